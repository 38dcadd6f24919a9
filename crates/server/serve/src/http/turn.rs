//! Lets all other tasks that are ready have their turn. Used by `reply`, while it gathers what another server sent at
//! once.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Whom the scheduler wakes: it remembers that it did.
struct Woken {
    done: AtomicBool,
    task: Waker,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.done.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}

/// Comes back when the scheduler does. `yield_now` alone comes back when it is polled a second time, and a server polls the body that it
/// writes twice in a row.
pub async fn others_turn() {
    let mut yielded = pin!(tokio::task::yield_now());
    let mut woken: Option<Arc<Woken>> = None;
    poll_fn(move |cx| match &woken {
        Some(w) if w.done.load(Ordering::Acquire) => Poll::Ready(()),
        Some(_) => Poll::Pending,
        None => {
            let w = Arc::new(Woken { done: AtomicBool::new(false), task: cx.waker().clone() });
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
        let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let mut turn = pin!(others_turn());
        tokio::spawn(async move { said.send(()) });
        // Polled twice in a row it is still not over.
        let twice = poll_fn(|cx| {
            let first = turn.as_mut().poll(cx).is_pending();
            Poll::Ready(first && turn.as_mut().poll(cx).is_pending())
        });
        assert!(twice.await);
        turn.await;
        assert!(heard.try_recv().is_ok());
    }
}
