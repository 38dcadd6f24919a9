//! Work on blocking threads: reading and writing long bodies, files, loading models. Used here and by the server.
//!
//! All work has one type, because tokio's task is compiled again for each type of closure, and there are dozens.

use std::any::Any;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::{JoinError, JoinHandle};

/// Longer bodies are read and written on a blocking thread. Parsing one of this size takes about a millisecond.
pub const INLINE_BYTES_MAX: usize = 256 << 10;

/// The result of work on a blocking thread. The work goes on if this is dropped.
pub struct Blocking<T> {
    task: JoinHandle<Box<dyn Any + Send>>,
    result: PhantomData<fn() -> T>,
}

/// Runs `work` on a blocking thread.
pub fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Blocking<T> {
    let work: Box<dyn FnOnce() -> Box<dyn Any + Send> + Send> = Box::new(move || Box::new(work()));
    Blocking { task: tokio::task::spawn_blocking(work), result: PhantomData }
}

/// Runs `work`, which reads or writes `bytes` bytes: in the caller's task, or on a blocking thread if they are many, so that a long body
/// does not delay other requests.
///
/// # Errors
/// If `work` panicked on a blocking thread, or the runtime ended before it began.
pub async fn run_sized<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    if bytes <= INLINE_BYTES_MAX { Ok(work()) } else { spawn_blocking(work).await }
}

impl<T: 'static> Future for Blocking<T> {
    /// An error if `work` panicked, or if the runtime ended before it began.
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = Pin::new(&mut self.task).poll(cx);
        result.map(|done| done.map(|out| *out.downcast::<T>().expect("the type that `spawn_blocking` boxed")))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc::channel;

    use super::*;

    /// With the only blocking thread occupied, short work completes at its first poll, and long work waits for the thread.
    #[test]
    fn only_long_work_leaves_the_thread_of_its_task() {
        let builder = || tokio::runtime::Builder::new_current_thread();
        let runtime = builder().max_blocking_threads(1).build().unwrap();
        let (open, opened) = channel::<()>();
        let (short, long) = runtime.block_on(async {
            let occupied = spawn_blocking(move || opened.recv().unwrap());
            let mut short = pin!(run_sized(INLINE_BYTES_MAX, || std::thread::current().id()));
            let mut long = pin!(run_sized(INLINE_BYTES_MAX + 1, || std::thread::current().id()));
            let first = |cx: &mut Context<'_>| (short.as_mut().poll(cx), long.as_mut().poll(cx).is_pending());
            let mut first = Some(first);
            let (short, is_pending) =
                std::future::poll_fn(|cx| Poll::Ready(first.take().expect("polled once")(cx))).await;
            assert!(is_pending, "it ran in its task");
            open.send(()).unwrap();
            occupied.await.unwrap();
            let Poll::Ready(short) = short else { panic!("short work waited for a blocking thread") };
            (short.unwrap(), long.await.unwrap())
        });
        assert_eq!(short, std::thread::current().id());
        assert_ne!(long, short);
    }
}
