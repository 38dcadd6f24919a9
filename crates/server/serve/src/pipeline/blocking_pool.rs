//! CPU-heavy work of requests: templates and tokenizers. All endpoints run it on [`BlockingPool`], so that the models keep enough
//! processors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use octet_api::{ApiError, ErrorKind};
use tokio::sync::Semaphore;

use crate::blocking::spawn_blocking;
use crate::memory_budget::MemoryPermit;

/// Maximum number of waiting requests that hold no place in a model's queue: those that only count tokens.
const WAITING_MAX: usize = 64;
/// `Retry-After` if too many wait.
const RETRY_S: u64 = 2;
/// Requests with shorter bodies have their own lane: they take milliseconds and would wait seconds behind long ones.
const SHORT_BYTES: usize = 64 << 10;

/// Runs such work with bounded concurrency.
pub struct BlockingPool {
    short: Lane,
    long: Lane,
    waiting: Semaphore,
}

/// A first-come, first-served queue.
struct Lane {
    turns: Arc<Semaphore>,
    /// Requests that only count queue one at a time, so at most one of them is ahead of a prompt.
    counting: Semaphore,
}

/// Sets the cancel flag when the caller is dropped.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl BlockingPool {
    /// Runs at most `at_once` jobs at a time, and as many short ones.
    pub fn new(at_once: usize) -> Self {
        let lane = || Lane { turns: Arc::new(Semaphore::new(at_once.max(1))), counting: Semaphore::new(1) };
        Self { short: lane(), long: lane(), waiting: Semaphore::new(WAITING_MAX) }
    }

    fn lane(&self, bytes: usize) -> &Lane {
        if bytes < SHORT_BYTES { &self.short } else { &self.long }
    }

    /// Runs `work` for a request of this size in bytes on a blocking thread. Its flag is set when the caller is dropped, that is, when
    /// the client disconnects. For requests that hold a place in a model's queue, which bounds the number of waiting ones.
    pub async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&AtomicBool) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = Arc::clone(&self.lane(bytes).turns).acquire_owned().await.map_err(|e| internal(&e))?;
        let waits = CancelOnDrop(Arc::default());
        let gone = Arc::clone(&waits.0);
        let done = spawn_blocking(move || {
            let out = if gone.load(Ordering::Relaxed) { Err(given_up()) } else { work(&gone) };
            drop(turn);
            out
        });
        let out = done.await.map_err(|e| internal(&e))?;
        drop(waits);
        out
    }

    /// The same for requests without such a place, with their memory permit; refused if too many are waiting.
    pub async fn run_unqueued<T: Send + 'static>(
        &self,
        share: MemoryPermit,
        work: impl FnOnce(&AtomicBool) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let Ok(_waiting) = self.waiting.try_acquire() else {
            let what = "too many requests wait for their texts to be tokenized";
            let error = ApiError::new(ErrorKind::RateLimit, what);
            return Err(ApiError { retry_after_s: Some(RETRY_S), ..error });
        };
        let bytes = share.body_bytes;
        let _counting = self.lane(bytes).counting.acquire().await.map_err(|e| internal(&e))?;
        let counted = move |gone: &AtomicBool| {
            let out = work(gone);
            drop(share);
            out
        };
        self.run(bytes, counted).await
    }
}

/// The result of cancelled work, which nobody reads.
pub fn given_up() -> ApiError {
    ApiError::new(ErrorKind::Overloaded, "the request was cancelled")
}

fn internal(e: &dyn std::error::Error) -> ApiError {
    ApiError::new(ErrorKind::Internal, e.to_string())
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::mpsc::channel;
    use std::task::Poll;
    use std::time::Duration;

    use super::*;
    use crate::memory_budget::MemoryBudget;

    #[tokio::test(flavor = "multi_thread")]
    async fn who_leaves_stops_the_work_and_makes_room() {
        let blocking_pool = Arc::new(BlockingPool::new(1));
        let (began, seen) = channel();
        let (ended, end) = channel();
        let ours = Arc::clone(&blocking_pool);
        let client = tokio::spawn(async move {
            let work = move |gone: &AtomicBool| {
                began.send(()).map_err(|e| internal(&e))?;
                while !gone.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                ended.send(()).map_err(|e| internal(&e))
            };
            ours.run(0, work).await
        });
        tokio::task::spawn_blocking(move || seen.recv()).await.unwrap().unwrap();
        // one at a time; up to this number wait
        let mut others: Vec<_> = (0..WAITING_MAX + 5)
            .map(|_| {
                let blocking_pool = Arc::clone(&blocking_pool);
                tokio::spawn(
                    async move { blocking_pool.run_unqueued(MemoryPermit::default(), |_| Ok(())).await },
                )
            })
            .collect();
        while others.iter().filter(|o| o.is_finished()).count() < 5
            || blocking_pool.waiting.available_permits() > 0
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        client.abort();
        tokio::task::spawn_blocking(move || end.recv()).await.unwrap().unwrap();
        let mut refused = 0;
        for other in others.drain(..) {
            if let Err(e) = other.await.unwrap() {
                assert_eq!((e.kind, e.retry_after_s), (ErrorKind::RateLimit, Some(RETRY_S)));
                refused += 1;
            }
        }
        assert_eq!(refused, 5);
        assert_eq!(blocking_pool.run(0, |_| Ok(7)).await.unwrap(), 7);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn prompts_stand_before_all_counts_but_one() {
        const LONG: usize = SHORT_BYTES;
        let blocking_pool = Arc::new(BlockingPool::new(1));
        let (done, order) = channel();
        let (open, door) = channel::<()>();
        let (began, seen) = channel();
        let first = {
            let (blocking_pool, done) = (Arc::clone(&blocking_pool), done.clone());
            tokio::spawn(async move {
                let work = move |_: &AtomicBool| {
                    began.send(()).map_err(|e| internal(&e))?;
                    door.recv().map_err(|e| internal(&e))?;
                    done.send("first").map_err(|e| internal(&e))
                };
                blocking_pool.run_unqueued(long_share(), work).await
            })
        };
        tokio::task::spawn_blocking(move || seen.recv()).await.unwrap().unwrap();
        let counts: Vec<_> = (0..20)
            .map(|_| {
                let (blocking_pool, done) = (Arc::clone(&blocking_pool), done.clone());
                let work = move |_: &AtomicBool| done.send("count").map_err(|e| internal(&e));
                tokio::spawn(async move { blocking_pool.run_unqueued(long_share(), work).await })
            })
            .collect();
        while blocking_pool.waiting.available_permits() > WAITING_MAX - 21 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // What is short waits for none of them, whatever it is for.
        assert_eq!(blocking_pool.run(5, |_| Ok(1)).await.unwrap(), 1);
        assert_eq!(blocking_pool.run_unqueued(MemoryPermit::default(), |_| Ok(2)).await.unwrap(), 2);
        let work = move |_: &AtomicBool| done.send("prompt").map_err(|e| internal(&e));
        let mut prompt = pin!(blocking_pool.run(LONG, work));
        // Once it was polled it stands in the line.
        let is_pending = poll_fn(|cx| Poll::Ready(prompt.as_mut().poll(cx).is_pending())).await;
        assert!(is_pending);
        open.send(()).unwrap();
        prompt.await.unwrap();
        for task in counts.into_iter().chain([first]) {
            task.await.unwrap().unwrap();
        }
        let order: Vec<&str> = order.iter().collect();
        assert!(order[..3].contains(&"prompt"), "{order:?}");

        fn long_share() -> MemoryPermit {
            let mut share = MemoryPermit::default();
            MemoryBudget::new(LONG, None).take_body(&mut share, LONG).unwrap();
            share
        }
    }
}
