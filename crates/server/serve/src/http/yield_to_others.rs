//! Lets all other ready tasks run.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// A waker that remembers being woken, and wakes the task that polled last.
struct WakeFlag {
    done: AtomicBool,
    task: AtomicWaker,
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.done.store(true, Ordering::Release);
        self.task.wake();
    }
}

/// Completes when the scheduler runs this task again. `tokio::task::yield_now` alone completes at its second poll, and hyper polls the
/// body that it writes twice in a row.
pub async fn yield_to_others() {
    let mut yielded = pin!(tokio::task::yield_now());
    let mut woken: Option<Arc<WakeFlag>> = None;
    poll_fn(move |cx| match &woken {
        Some(w) => {
            // Registered before the check: a flag set later wakes this task.
            w.task.register(cx.waker());
            if w.done.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        }
        None => {
            let w = Arc::new(WakeFlag { done: AtomicBool::new(false), task: AtomicWaker::new() });
            w.task.register(cx.waker());
            let waker = Waker::from(Arc::clone(&w));
            woken = Some(w);
            yielded.as_mut().poll(&mut Context::from_waker(&waker))
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn others_have_had_their_turn() {
        let (sender, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let mut turn = pin!(yield_to_others());
        tokio::spawn(async move { sender.send(()) });
        // Polled twice in a row it is still not over.
        let twice = poll_fn(|cx| {
            let first = turn.as_mut().poll(cx).is_pending();
            Poll::Ready(first && turn.as_mut().poll(cx).is_pending())
        });
        assert!(twice.await);
        turn.await;
        assert!(heard.try_recv().is_ok());
    }

    struct Flag(AtomicBool);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// A body may be moved to another task between two polls: the last that polled is the one to wake.
    #[tokio::test]
    async fn who_polled_last_is_woken() {
        let mut turn = pin!(yield_to_others());
        let [first, last] = [(); 2].map(|()| Arc::new(Flag(AtomicBool::new(false))));
        for flag in [&first, &last] {
            let waker = Waker::from(Arc::clone(flag));
            assert!(turn.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        tokio::task::yield_now().await;
        assert!(last.0.load(Ordering::Relaxed));
        turn.await;
    }
}
