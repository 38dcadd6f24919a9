//! Carries out what the scheduler decides, and hands each request a lease of its entry.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use super::scheduler::{Patience, Rules, Scheduler, Step};

/// Longest time between two decisions.
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(3600);

/// Starts and stops entries. All calls are made under the pool's lock, so none may wait or call the pool; they spawn tasks that do.
pub trait Host: Rules<Error: Clone + Send> + Send + Sized + 'static {
    /// What a request gets of an entry that runs: an address, a model.
    type Access: Send;

    /// Begins to start `x`, and later calls [`Scheduler::ready`] or [`Scheduler::failed`].
    fn start(&mut self, x: usize, pool: &Arc<Pool<Self>>);

    /// Begins to stop `x`, and later calls [`Scheduler::stopped`].
    fn stop(&mut self, x: usize, pool: &Arc<Pool<Self>>);

    /// What a request of `x` gets, which is ready.
    fn access(&mut self, x: usize) -> Self::Access;

    /// The requests of `x` are refused, since it will not fit.
    fn refused(&mut self, _x: usize, _why: &Self::Error) {}

    /// Looks for entries that have ended by themselves, before each decision; returns when it wants to look again.
    fn look(&mut self, _: &mut Scheduler<Waiter<Self>>, _: &Arc<Pool<Self>>, _: Instant) -> Option<Instant> {
        None
    }
}

/// A request that waits for an entry.
pub struct Waiter<H: Host> {
    answer: oneshot::Sender<Result<Lease<H>, H::Error>>,
    ttl: Option<Option<Duration>>,
}

impl<H: Host> Waiter<H> {
    /// Refuses the request.
    pub fn refuse(self, why: H::Error) {
        let _ = self.answer.send(Err(why)); // the receiver is gone if the client has left
    }
}

/// Why a request gets no entry.
#[derive(Debug)]
pub enum Refused<E> {
    /// So many wait for it already.
    QueueFull(usize),
    /// The pool was closed.
    Closed,
    /// The host's reason.
    Because(E),
}

/// All entries and their requests.
pub struct Pool<H: Host> {
    state: Mutex<State<H>>,
    /// The state has changed: the driver decides again.
    wake: Arc<Notify>,
    queue_max: usize,
    runtime: Handle,
    me: Weak<Self>,
}

impl<H: Host> Drop for Pool<H> {
    fn drop(&mut self) {
        self.wake.notify_one(); // the driver ends
    }
}

struct State<H: Host> {
    scheduler: Scheduler<Waiter<H>>,
    host: H,
    is_closed: bool,
}

/// An entry for a request: it keeps running while this is held.
pub struct Lease<H: Host> {
    pool: Arc<Pool<H>>,
    index: usize,
    generation: u64,
    is_counted: bool,
    /// What the host gave.
    pub access: H::Access,
}

impl<H: Host> Drop for Lease<H> {
    fn drop(&mut self) {
        if self.is_counted {
            let mut state = self.pool.state();
            state.scheduler.done(self.index, self.generation, Instant::now());
            drop(state);
            self.pool.wake.notify_one();
        }
    }
}

impl<H: Host> Pool<H> {
    /// A pool of the host's entries. At most `queue_max` requests wait for each. A task of `runtime` acts when something is due, until
    /// the pool is closed or dropped.
    pub fn new(
        host: impl FnOnce(&Weak<Self>) -> H,
        patience: Patience,
        queue_max: usize,
        runtime: Handle,
    ) -> Arc<Self> {
        let pool = Arc::new_cyclic(|me| Self {
            state: Mutex::new(State {
                scheduler: Scheduler::new(patience),
                host: host(me),
                is_closed: false,
            }),
            wake: Arc::default(),
            queue_max,
            runtime,
            me: me.clone(),
        });
        pool.runtime.spawn(drive(Arc::downgrade(&pool), Arc::clone(&pool.wake)));
        pool
    }

    fn state(&self) -> MutexGuard<'_, State<H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a task of the host.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// Reads scheduler and host.
    pub fn read<T>(&self, read: impl FnOnce(&Scheduler<Waiter<H>>, &H) -> T) -> T {
        let state = self.state();
        read(&state.scheduler, &state.host)
    }

    /// Changes scheduler or host. What follows from that is done by the driver.
    pub fn change<T>(&self, change: impl FnOnce(&mut Scheduler<Waiter<H>>, &mut H) -> T) -> T {
        let _after = Wake(Some(&self.wake));
        let state = &mut *self.state();
        change(&mut state.scheduler, &mut state.host)
    }

    /// Something outside has changed, of which [`Host::look`] knows.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Waits until an entry, which `find` chooses, accepts a request; starts it if it is not running. `ttl`: from then on, how long the
    /// entry runs when idle (`None`: for ever).
    ///
    /// # Errors
    /// See [`Refused`].
    pub async fn lease(
        &self,
        ttl: Option<Option<Duration>>,
        find: impl FnOnce(&mut H, &mut Scheduler<Waiter<H>>) -> Result<usize, H::Error>,
    ) -> Result<Lease<H>, Refused<H::Error>> {
        // If the client leaves, the driver is woken after `given` is dropped, to check who is still waiting.
        let mut leaves = Wake(None);
        let (answer, mut given) = oneshot::channel();
        {
            let state = &mut *self.state();
            if state.is_closed {
                return Err(Refused::Closed);
            }
            let index = find(&mut state.host, &mut state.scheduler).map_err(Refused::Because)?;
            let (_, _, waiting) = state.scheduler.state(index);
            if waiting >= self.queue_max {
                return Err(Refused::QueueFull(waiting));
            }
            state.scheduler.ask(index, Waiter { answer, ttl });
        }
        self.decide();
        let lease = match given.try_recv() {
            Ok(lease) => lease,
            Err(_) => {
                leaves.0 = Some(&self.wake);
                self.wake.notify_one(); // there may be another time to act at
                given.await.map_err(|_| Refused::Closed)?
            }
        };
        lease.map_err(Refused::Because)
    }

    /// Refuses all requests that wait, and all later ones.
    pub fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.scheduler.forget(|_| true, Instant::now()); // each hears that it is closed
        drop(state);
        self.wake.notify_one();
    }

    /// Whether the pool was closed.
    pub fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Does what is due; returns when more will be.
    fn decide(&self) -> Option<Instant> {
        let me = self.me.upgrade()?;
        let mut guard = self.state();
        let State { scheduler, host, is_closed } = &mut *guard;
        if *is_closed {
            return None;
        }
        scheduler.forget(|w| w.answer.is_closed(), Instant::now());
        let mut steps = Vec::new();
        loop {
            let now = Instant::now();
            let look = host.look(scheduler, &me, now);
            let next = scheduler.next(host, now, &mut steps);
            if steps.is_empty() {
                return look.into_iter().chain(next).min();
            }
            for step in steps.drain(..) {
                match step {
                    Step::Grant(i, waiter) => grant(&me, scheduler, host, i, waiter, now),
                    Step::Stop(i) => host.stop(i, &me),
                    Step::Start(i) => host.start(i, &me),
                    Step::Refuse(i, waiters, why) => {
                        host.refused(i, &why);
                        waiters.into_iter().for_each(|w| w.refuse(why.clone()));
                    }
                }
            }
        }
    }
}

/// Acts when something is due.
async fn drive<H: Host>(pool: Weak<Pool<H>>, wake: Arc<Notify>) {
    while let Some(pool) = pool.upgrade().filter(|pool| !pool.is_closed()) {
        let next = pool.decide();
        drop(pool);
        let far = Instant::now() + LOOK_AGAIN_MAX;
        tokio::select! {
            () = tokio::time::sleep_until(next.unwrap_or(far).into()) => {}
            () = wake.notified() => {}
        }
    }
}

/// Admits a request.
fn grant<H: Host>(
    pool: &Arc<Pool<H>>,
    scheduler: &mut Scheduler<Waiter<H>>,
    host: &mut H,
    index: usize,
    waiter: Waiter<H>,
    now: Instant,
) {
    let generation = scheduler.generation(index);
    let lease =
        Lease { pool: Arc::clone(pool), index, generation, is_counted: true, access: host.access(index) };
    if let Err(lease) = waiter.answer.send(Ok(lease)) {
        // Its client has just left. Dropping its lease would take the lock that is held here.
        if let Ok(mut lease) = lease {
            lease.is_counted = false;
        }
        scheduler.done(index, generation, now);
    } else if let Some(ttl) = waiter.ttl {
        scheduler.set_ttl(index, ttl);
    }
}

/// Wakes the driver when dropped.
struct Wake<'a>(Option<&'a Notify>);

impl Drop for Wake<'_> {
    fn drop(&mut self) {
        if let Some(wake) = self.0 {
            wake.notify_one();
        }
    }
}
