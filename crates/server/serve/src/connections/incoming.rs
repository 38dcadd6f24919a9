//! A request body as it arrives. Created by `service` for each request; ends with an error if it arrives too slowly.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use super::activity::{Activity, At};
use super::pace::Pace;

/// Why reading a body failed.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// It took too long.
    #[error("the request body arrived too slowly")]
    Slow,
    /// Its connection is needed for another client.
    #[error(
        "all connections are in use, and this one was closed because its request body arrived too slowly; try again"
    )]
    Evicted,
    /// The connection failed.
    #[error("the request body ended early: {0}")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// An arriving request body, which records its progress in the connection's state.
pub(super) struct IncomingBody<B> {
    inner: B,
    activity: Arc<Activity>,
    over: Option<Pin<Box<Sleep>>>,
}

impl<B> IncomingBody<B> {
    pub(super) fn new(inner: B, activity: Arc<Activity>) -> Self {
        Self { inner, activity, over: None }
    }

    /// Ready when its time limit has passed.
    fn poll_over(&mut self, pace: Pace, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = pace.deadline();
        let over = self.over.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if over.deadline() != deadline {
            over.as_mut().reset(deadline);
        }
        over.as_mut().poll(cx)
    }
}

impl<B> HttpBody for IncomingBody<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        this.activity.body.register(cx.waker());
        if this.activity.refused.load(Ordering::Acquire) {
            return Poll::Ready(Some(Err(BodyError::Evicted)));
        }
        let At::Body(mut pace) = this.activity.at() else {
            let frame = ready!(Pin::new(&mut this.inner).poll_frame(cx));
            return Poll::Ready(frame.map(|f| f.map_err(|e| BodyError::Broken(e.into()))));
        };
        let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) else {
            return this.poll_over(pace, cx).map(|()| Some(Err(BodyError::Slow)));
        };
        let now = Instant::now();
        if frame.is_none() || this.inner.is_end_stream() {
            this.activity.set(At::Answer);
        } else if now > pace.deadline() {
            return Poll::Ready(Some(Err(BodyError::Slow)));
        } else if let Some(data) = frame.as_ref().and_then(|f| f.as_ref().ok()?.data_ref()) {
            (pace.last, pace.bytes) = (now, pace.bytes + data.len() as u64);
            this.activity.set(At::Body(pace));
        }
        Poll::Ready(frame.map(|f| f.map_err(|e| BodyError::Broken(e.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
    use tokio::time::advance;

    use super::super::activity::EvictionOrder;
    use super::super::pace::BODY_GRACE;
    use super::*;

    /// A body whose pieces come from a channel.
    struct Sent(UnboundedReceiver<Bytes>);

    impl HttpBody for Sent {
        type Data = Bytes;
        type Error = std::io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
            self.0.poll_recv(cx).map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
        }
    }

    fn body() -> (UnboundedSender<Bytes>, IncomingBody<Sent>, Arc<Activity>) {
        let (send, pieces) = unbounded_channel();
        let room = Arc::new(tokio::sync::Semaphore::new(1));
        let activity = Activity::new(room.try_acquire_owned().unwrap());
        activity.set(At::Body(Pace::start(Instant::now())));
        (send, IncomingBody::new(Sent(pieces), Arc::clone(&activity)), activity)
    }

    async fn next(body: &mut IncomingBody<Sent>) -> Option<Result<usize, BodyError>> {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
        Some(frame.map(|f| f.data_ref().unwrap().len()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_body_times_out() {
        let (send, mut body, _) = body();
        send.send(Bytes::from_static(b"{")).unwrap();
        assert!(matches!(next(&mut body).await, Some(Ok(1))));
        let began = Instant::now();
        assert!(matches!(next(&mut body).await, Some(Err(BodyError::Slow))));
        let took = began.elapsed();
        assert!(took >= BODY_GRACE && took < BODY_GRACE + Duration::from_secs(1), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_is_not_waited_for_either() {
        let (send, mut body, _) = body();
        let began = Instant::now();
        let error = loop {
            send.send(Bytes::from_static(b" ")).unwrap();
            match next(&mut body).await.unwrap() {
                Ok(_) => advance(Duration::from_secs(5)).await,
                Err(e) => break e,
            }
        };
        assert!(began.elapsed() <= BODY_GRACE + Duration::from_secs(5));
        assert!(matches!(error, BodyError::Slow), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_line_is_waited_for() {
        let (send, mut body, activity) = body();
        // 100 KB at 1 KB a second.
        for _ in 0..100 {
            send.send(Bytes::from(vec![b' '; 1000])).unwrap();
            assert!(matches!(next(&mut body).await, Some(Ok(1000))));
            advance(Duration::from_secs(1)).await;
        }
        drop(send);
        assert!(next(&mut body).await.is_none());
        assert!(matches!(activity.at(), At::Answer));
    }

    #[tokio::test(start_paused = true)]
    async fn the_slowest_sender_is_evicted_first() {
        let all = [body(), body(), body()];
        for ((send, ..), bytes) in all.iter().zip([1000, 10, 1 << 20]) {
            send.send(Bytes::from(vec![b' '; bytes])).unwrap();
        }
        let [mut a, mut b, mut c] = all;
        for (_, body, _) in [&mut a, &mut b, &mut c] {
            next(body).await.unwrap().unwrap();
        }
        assert_eq!(a.2.eviction_order(), None, "it has only begun");
        advance(Duration::from_millis(400)).await;
        c.0.send(Bytes::from_static(b" ")).unwrap();
        next(&mut c.1).await.unwrap().unwrap();
        advance(Duration::from_millis(100)).await;
        assert_eq!(
            [&a, &b, &c].map(|x| x.2.eviction_order()),
            [Some(EvictionOrder::Slow(2000)), Some(EvictionOrder::Slow(20)), None]
        );
        assert!(EvictionOrder::Slow(20) < EvictionOrder::Slow(2000));
        let idle = |s| EvictionOrder::Idle(std::cmp::Reverse(Duration::from_secs(s)));
        assert!(idle(2) < idle(1) && idle(1) < EvictionOrder::Slow(0));
        // It gets an error.
        let room = Arc::new(tokio::sync::Semaphore::new(1));
        assert!(b.2.evict(room.try_acquire_owned().ok()).is_some());
        assert!(matches!(next(&mut b.1).await, Some(Err(BodyError::Evicted))));
        assert!(a.2.evict(None).is_some() && a.2.evict(None).is_none(), "once");
    }
}
