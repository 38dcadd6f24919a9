//! Work that takes a processor for a while: templates and tokenizers. Every endpoint that has such work gives it to [`Apart`],
//! so that all of it together leaves the models room to compute.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use octet_api::{ApiError, ErrorKind};
use tokio::sync::Semaphore;

/// Requests that may wait for their turn without a place in a model's queue: those that only count.
const WAITING_MAX: usize = 64;
/// When one may come again for which there was no room.
const RETRY_S: u64 = 2;

/// Does such work, so much of it at once.
pub struct Apart {
    at_once: Arc<Semaphore>,
    waiting: Semaphore,
}

/// Tells work that nobody waits for it any more. Held by who waits.
struct Waits(Arc<AtomicBool>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Apart {
    /// Does at most `at_once` at a time.
    pub fn new(at_once: usize) -> Self {
        Self { at_once: Arc::new(Semaphore::new(at_once.max(1))), waiting: Semaphore::new(WAITING_MAX) }
    }

    /// Does `work` on a thread that may take its time. The flag that it is given is set as soon as the caller is dropped: then the
    /// client is gone. For requests that have a place in a model's queue, which bounds how many wait here.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&AtomicBool) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = Arc::clone(&self.at_once).acquire_owned().await.map_err(|e| internal(&e))?;
        let waits = Waits(Arc::default());
        let gone = Arc::clone(&waits.0);
        let done = tokio::task::spawn_blocking(move || {
            let out = if gone.load(Ordering::Relaxed) { Err(given_up()) } else { work(&gone) };
            drop(turn);
            out
        });
        let out = done.await.map_err(|e| internal(&e))?;
        drop(waits);
        out
    }

    /// The same for requests that have no such place; refused where too many wait already.
    pub async fn run_unqueued<T: Send + 'static>(
        &self,
        work: impl FnOnce(&AtomicBool) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let Ok(_waiting) = self.waiting.try_acquire() else {
            let what = "too many requests wait for their texts to be tokenized";
            let error = ApiError::new(ErrorKind::RateLimit, what);
            return Err(ApiError { retry_after_s: Some(RETRY_S), ..error });
        };
        self.run(work).await
    }
}

/// What work says that was given up. Nobody hears it.
pub fn given_up() -> ApiError {
    ApiError::new(ErrorKind::Overloaded, "the request was given up")
}

fn internal(e: &dyn std::error::Error) -> ApiError {
    ApiError::new(ErrorKind::Internal, e.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn who_leaves_stops_the_work_and_makes_room() {
        let apart = Arc::new(Apart::new(1));
        let (began, seen) = channel();
        let (ended, end) = channel();
        let ours = Arc::clone(&apart);
        let client = tokio::spawn(async move {
            let work = move |gone: &AtomicBool| {
                began.send(()).map_err(|e| internal(&e))?;
                while !gone.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                ended.send(()).map_err(|e| internal(&e))
            };
            ours.run(work).await
        });
        tokio::task::spawn_blocking(move || seen.recv()).await.unwrap().unwrap();
        // one at a time, and so many more may wait
        let mut others: Vec<_> = (0..WAITING_MAX + 5)
            .map(|_| {
                let apart = Arc::clone(&apart);
                tokio::spawn(async move { apart.run_unqueued(|_| Ok(())).await })
            })
            .collect();
        while others.iter().filter(|o| o.is_finished()).count() < 5 || apart.waiting.available_permits() > 0 {
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
        assert_eq!(apart.run(|_| Ok(7)).await.unwrap(), 7);
    }
}
