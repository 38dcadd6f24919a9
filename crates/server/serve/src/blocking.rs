//! Work on blocking threads, of one type for all: tokio's task is compiled anew for each type of closure, and there are dozens here.

use std::any::Any;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::{JoinError, JoinHandle};

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

impl<T: 'static> Future for Blocking<T> {
    /// An error if `work` panicked, or if the runtime ended before it began.
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = Pin::new(&mut self.task).poll(cx);
        result.map(|done| done.map(|out| *out.downcast::<T>().expect("the type that `spawn_blocking` boxed")))
    }
}
