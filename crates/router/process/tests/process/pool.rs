//! The pool with many clients on several threads, some of which leave while they wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use octet_process::swap::{Fit, Host, Lease, Patience, Phase, Pool, Refused, Rules, Running};
use tokio::runtime::Handle;

const PATIENCE: Patience = Patience {
    turn_loads: 1,
    keep_place: Duration::ZERO,
    turn_min: Duration::from_millis(2),
    turn_max: Duration::from_millis(4),
    pause: Duration::from_millis(1),
    backoff_min: Duration::ZERO,
    backoff_max: Duration::ZERO,
};
const ENTRIES: usize = 3;
/// An entry for which there is never room.
const TOO_LARGE: usize = ENTRIES;
/// An entry that cannot be started.
const BROKEN: usize = ENTRIES + 1;

/// One entry fits. Each counts its starts, and the requests that hold it.
struct One {
    used: [Arc<AtomicUsize>; ENTRIES],
    starts: usize,
}

impl Rules for One {
    type Error = &'static str;

    fn fits(&mut self, x: usize, running: &[Running]) -> Fit<Self::Error> {
        match running.first() {
            _ if x == TOO_LARGE => Fit::Never("too large"),
            None => Fit::Yes,
            Some(y) => Fit::Blocked { by: vec![y.index], again: None },
        }
    }

    fn overtakes(&mut self, _: usize, _: usize) -> bool {
        true
    }
}

impl Host for One {
    type Access = Arc<AtomicUsize>;

    fn start(&mut self, x: usize, pool: &Arc<Pool<Self>>) {
        self.starts += 1;
        let owner = Arc::clone(pool);
        pool.spawn(async move {
            tokio::task::yield_now().await;
            owner.change(|scheduler, _| {
                if x == BROKEN {
                    scheduler.failed(x, Instant::now()).into_iter().for_each(|w| w.refuse("broken"));
                } else {
                    scheduler.ready(x, Instant::now());
                }
            });
        });
    }

    fn stop(&mut self, x: usize, pool: &Arc<Pool<Self>>) {
        assert_eq!(self.used[x].load(Ordering::SeqCst), 0, "it ends while a request uses it");
        let owner = Arc::clone(pool);
        pool.spawn(async move {
            tokio::task::yield_now().await;
            owner.change(|scheduler, _| scheduler.stopped(x, Instant::now()));
        });
    }

    fn access(&mut self, x: usize) -> Self::Access {
        Arc::clone(&self.used[x])
    }

    fn refused(&mut self, x: usize, why: &Self::Error) {
        assert_eq!((x, *why), (TOO_LARGE, "too large"));
    }
}

fn pool(queue_max: usize) -> Arc<Pool<One>> {
    let host = One { used: Default::default(), starts: 0 };
    let pool = Pool::new(|_| host, PATIENCE, queue_max, Handle::current());
    pool.change(|scheduler, _| {
        for _ in 0..=BROKEN {
            scheduler.add(2, None, Instant::now());
        }
    });
    pool
}

/// How often a request steps back while it holds its entry.
const HELD: usize = 5;

async fn use_entry(lease: Lease<One>) {
    assert!(lease.access.fetch_add(1, Ordering::SeqCst) < 2, "two at once");
    for _ in 0..HELD {
        tokio::task::yield_now().await;
    }
    lease.access.fetch_sub(1, Ordering::SeqCst);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn clients_that_come_and_leave_share_one_place() {
    let pool = pool(usize::MAX);
    let clients: Vec<_> = (0..60)
        .map(|client| {
            let pool = Arc::clone(&pool);
            tokio::spawn(async move {
                for round in 0..10 {
                    let entry = (client + round) % ENTRIES;
                    let lease = pool.lease(None, |_, _| Ok(entry));
                    if (client + round) % 4 == 0 {
                        let patience = Duration::from_micros(200 * (client as u64 % 7));
                        if let Ok(lease) = tokio::time::timeout(patience, lease).await {
                            use_entry(lease.expect("a lease")).await;
                        }
                    } else {
                        use_entry(lease.await.expect("a lease")).await;
                    }
                }
            })
        })
        .collect();
    for client in clients {
        tokio::time::timeout(Duration::from_secs(60), client).await.expect("no request is lost").unwrap();
    }
    let left: usize = pool.read(|scheduler, _| (0..ENTRIES).map(|i| scheduler.state(i).1).sum());
    assert_eq!(left, 0, "nobody uses an entry any more");
    let starts = pool.read(|_, host| host.starts);
    assert!(starts <= 200, "{starts} starts for 600 requests");
}

#[tokio::test]
async fn requests_are_refused_for_reasons() {
    let pool = pool(1);
    let lease = |entry: usize| pool.lease(None, move |_, _| Ok(entry));
    assert!(matches!(lease(TOO_LARGE).await, Err(Refused::Because("too large"))));
    assert!(matches!(lease(BROKEN).await, Err(Refused::Because("broken"))));
    assert!(matches!(lease(BROKEN).await, Err(Refused::Because("broken"))), "it is tried each time");
    assert!(matches!(pool.lease(None, |_, _| Err("unknown")).await, Err(Refused::Because("unknown"))));
    // two use the first entry, one waits for it
    let held = [lease(0).await.expect("a lease"), lease(0).await.expect("a lease")];
    let mut third = Box::pin(lease(0));
    assert!(polled(&mut third).await.is_none(), "two at once");
    assert!(matches!(lease(0).await, Err(Refused::QueueFull(1))));
    drop(held);
    let third = third.await.expect("a lease");
    // it ends when nobody needs it any more
    pool.change(|scheduler, _| scheduler.set_ttl(0, Some(Duration::ZERO)));
    drop(third);
    let stopped = async {
        while pool.read(|scheduler, _| scheduler.state(0).0) != Phase::Stopped {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), stopped).await.expect("it ends");
    // a pool that is closed refuses those that wait, and all others
    let held = [lease(1).await.expect("a lease"), lease(1).await.expect("a lease")];
    let mut waits = Box::pin(lease(1));
    assert!(polled(&mut waits).await.is_none());
    pool.close();
    assert!(matches!(waits.await, Err(Refused::Closed)));
    assert!(matches!(lease(1).await, Err(Refused::Closed)));
    drop(held);
}

/// Lets a future run until it waits.
async fn polled<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match std::pin::Pin::new(&mut *future).poll(context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}
