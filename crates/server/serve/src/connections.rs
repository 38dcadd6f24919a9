//! What each connection is at: which may be closed to make room for another, and which hold up the end. Kept by `server`; told by
//! the requests, and by the socket (`linger`).
//!
//! A connection is idle while no request is on it: until the head of one has come, and again when its answer is out.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use futures_util::task::AtomicWaker;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::sync::{Notify, OwnedSemaphorePermit, watch};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::linger::Lingering;

/// At the end, how long the rest of a request may take.
const REST_TIME_MAX: Duration = Duration::from_secs(1);
/// How long a body may come, whatever it sends, and how long it may send nothing.
const BODY_GRACE: Duration = Duration::from_secs(20);
/// Each of so many bytes gives it a second more (Apache's mod_reqtimeout has the same rule and numbers).
const BODY_BYTES_PER_S: u64 = 500;
/// Longest time for a body to come.
const BODY_TIME_MAX: Duration = Duration::from_secs(120);
/// A connection may make way for a new one when it has sent nothing for so long: its request may be about to come.
const IDLE_MIN: Duration = Duration::from_millis(500);
/// A body that comes at least this fast does not make way.
const FAST_BYTES_PER_S: u64 = 16 << 10;

/// How a body comes.
#[derive(Debug, Clone, Copy)]
struct Pace {
    since: Instant,
    last: Instant,
    bytes: u64,
}

impl Pace {
    fn start(now: Instant) -> Self {
        Self { since: now, last: now, bytes: 0 }
    }

    /// When it has taken too long, if nothing comes until then.
    fn deadline(&self) -> Instant {
        let earned = BODY_GRACE + Duration::from_secs(self.bytes / BODY_BYTES_PER_S);
        (self.since + earned.min(BODY_TIME_MAX)).min(self.last + BODY_GRACE)
    }

    /// Bytes a second, where it is so slow that it may make way.
    fn slow(&self, now: Instant) -> Option<u64> {
        let time = now - self.since;
        let rate = (self.bytes as f64 / time.as_secs_f64().max(1e-9)) as u64;
        let slow = time >= IDLE_MIN && (rate < FAST_BYTES_PER_S || now - self.last >= IDLE_MIN);
        slow.then_some(rate)
    }
}

/// What a connection is at.
#[derive(Debug, Clone, Copy)]
enum At {
    /// No request is there since then, or not all of its head.
    Idle(Instant),
    /// A request's body comes.
    Body(Pace),
    /// A request is worked on, or answered.
    Answer,
}

/// How willingly a connection is given up for a new one: the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Worth {
    /// Nothing comes over it, since so long.
    Idle(std::cmp::Reverse<Duration>),
    /// A body comes at so many bytes a second.
    Slow(u64),
}

/// A connection as the others see it.
#[derive(Debug)]
pub struct Activity {
    at: Mutex<At>,
    began: Instant,
    /// Its client has yet to take the last bytes.
    flushing: AtomicBool,
    /// A request was answered before it had come to its end.
    unread: AtomicBool,
    leave: Notify,
    /// It ends at once, whatever it is at.
    dropped: AtomicBool,
    /// The body that comes over it is not waited for any longer.
    refused: AtomicBool,
    /// Who waits for that body.
    body: AtomicWaker,
    /// Its place among those that there may be.
    place: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Activity {
    /// Of a connection that has just come.
    pub fn new(place: OwnedSemaphorePermit) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            at: Mutex::new(At::Idle(now)),
            began: now,
            flushing: AtomicBool::new(false),
            unread: AtomicBool::new(false),
            leave: Notify::new(),
            dropped: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            body: AtomicWaker::new(),
            place: Mutex::new(Some(place)),
        })
    }

    fn set(&self, at: At) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    fn at(&self) -> At {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are bytes that the client does not take, or has to be given time to.
    pub fn flushing(&self, yes: bool) {
        self.flushing.store(yes, Ordering::Relaxed);
    }

    /// A request was answered before it had come to its end.
    pub fn set_unread(&self) {
        self.unread.store(true, Ordering::Relaxed);
    }

    /// See [`Activity::set_unread`].
    pub fn is_unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed)
    }

    /// When it came.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// What it is worth; `None` where it does not make way.
    pub fn worth(&self) -> Option<Worth> {
        let now = Instant::now();
        match self.at() {
            _ if self.flushing.load(Ordering::Relaxed) => None,
            At::Idle(since) => {
                Some(now - since).filter(|t| *t >= IDLE_MIN).map(|t| Worth::Idle(std::cmp::Reverse(t)))
            }
            At::Body(pace) => pace.slow(now).map(Worth::Slow),
            At::Answer => None,
        }
    }

    /// Someone waits for what comes over it.
    fn is_needed(&self) -> bool {
        matches!(self.at(), At::Answer) || self.flushing.load(Ordering::Relaxed)
    }

    /// Has it closed; its place is another's now. `None` where it was given away already. With a place in `parting` a client
    /// that was sending a body is told why.
    pub fn make_way(&self, parting: Option<OwnedSemaphorePermit>) -> Option<OwnedSemaphorePermit> {
        let mut held = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let place = held.take()?;
        if matches!(self.at(), At::Body(_)) && parting.is_some() {
            *held = parting;
            self.refused.store(true, Ordering::Release);
            self.body.wake();
        }
        self.leave.notify_one();
        Some(place)
    }

    /// Has it closed at once; its place.
    pub fn end(&self) -> Option<OwnedSemaphorePermit> {
        self.dropped.store(true, Ordering::Release);
        self.make_way(None)
    }
}

/// Why a body is read no further.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// It took too long.
    #[error("the body took too long to come")]
    Slow,
    /// Its connection is needed.
    #[error("all connections are in use, and the body came too slowly to keep this one; try again")]
    MadeWay,
    /// The connection broke off.
    #[error("the body broke off: {0}")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A request's body on its way, which tells how it comes.
struct Coming<B> {
    inner: B,
    activity: Arc<Activity>,
    over: Option<Pin<Box<Sleep>>>,
}

impl<B> Coming<B> {
    fn new(inner: B, activity: Arc<Activity>) -> Self {
        Self { inner, activity, over: None }
    }

    /// Ready when it has taken too long.
    fn poll_over(&mut self, pace: Pace, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = pace.deadline();
        let over = self.over.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if over.deadline() != deadline {
            over.as_mut().reset(deadline);
        }
        over.as_mut().poll(cx)
    }
}

impl<B> HttpBody for Coming<B>
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
            return Poll::Ready(Some(Err(BodyError::MadeWay)));
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

/// A connection that is served.
pub type Connection = http1::Connection<TokioIo<Lingering>, Connected>;

/// Serves a connection to its end: as its client likes, or because it is to make way, or because `close` says that all are to end.
/// Then what is being answered is finished, and the rest is closed.
pub async fn serve(connection: Connection, activity: Arc<Activity>, mut close: watch::Receiver<()>) {
    let mut connection = pin!(connection);
    let ended = |result: hyper::Result<()>| {
        if let Err(e) = result {
            tracing::debug!("a connection ended badly: {e}");
        }
    };
    let mut wait = tokio::select! {
        result = connection.as_mut() => return ended(result),
        () = activity.leave.notified() => {
            if activity.dropped.load(Ordering::Acquire) {
                return;
            }
            // Who is told why gets the time to read it.
            if activity.refused.load(Ordering::Acquire) { REST_TIME_MAX } else { Duration::ZERO }
        }
        _ = close.changed() => REST_TIME_MAX,
    };
    connection.as_mut().graceful_shutdown();
    loop {
        tokio::select! {
            biased;
            result = connection.as_mut() => return ended(result),
            () = tokio::time::sleep(wait) => {}
        }
        if !activity.is_needed() {
            tracing::debug!("a connection is closed on which no request has come to its end");
            return;
        }
        wait = REST_TIME_MAX;
    }
}

/// The routes for the requests of one connection, which tell it what they are at.
#[derive(Debug)]
pub struct Connected {
    routes: TowerToHyperService<Router>,
    activity: Arc<Activity>,
}

impl Connected {
    /// Requests find `activity` among their extensions.
    pub fn new(routes: Router, activity: Arc<Activity>) -> Self {
        Self { routes: TowerToHyperService::new(routes), activity }
    }
}

impl Service<Request<Incoming>> for Connected {
    type Response = Response<TrackedBody>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let activity = Arc::clone(&self.activity);
        let is_whole = request.body().is_end_stream();
        activity.set(if is_whole { At::Answer } else { At::Body(Pace::start(Instant::now())) });
        let mut request = request.map(|inner| Coming::new(inner, Arc::clone(&activity)));
        request.extensions_mut().insert(Arc::clone(&activity));
        let answer = self.routes.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            activity.set(At::Answer);
            Ok(answer.map(|inner| TrackedBody { inner, activity }))
        })
    }
}

/// An answer's body, which tells when it is over.
pub struct TrackedBody {
    inner: Body,
    activity: Arc<Activity>,
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.activity.set(At::Idle(Instant::now()));
    }
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
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
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
    use tokio::time::advance;

    use super::*;

    /// A body whose pieces somebody sends.
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

    fn body() -> (UnboundedSender<Bytes>, Coming<Sent>, Arc<Activity>) {
        let (send, pieces) = unbounded_channel();
        let room = Arc::new(tokio::sync::Semaphore::new(1));
        let activity = Activity::new(room.try_acquire_owned().unwrap());
        activity.set(At::Body(Pace::start(Instant::now())));
        (send, Coming::new(Sent(pieces), Arc::clone(&activity)), activity)
    }

    async fn next(body: &mut Coming<Sent>) -> Option<Result<usize, BodyError>> {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
        Some(frame.map(|f| f.data_ref().unwrap().len()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stands_still_is_not_waited_for() {
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
    async fn who_sends_slowest_is_worth_least() {
        let all = [body(), body(), body()];
        for ((send, ..), bytes) in all.iter().zip([1000, 10, 1 << 20]) {
            send.send(Bytes::from(vec![b' '; bytes])).unwrap();
        }
        let [mut a, mut b, mut c] = all;
        for (_, body, _) in [&mut a, &mut b, &mut c] {
            next(body).await.unwrap().unwrap();
        }
        assert_eq!(a.2.worth(), None, "it has only begun");
        advance(Duration::from_millis(400)).await;
        c.0.send(Bytes::from_static(b" ")).unwrap();
        next(&mut c.1).await.unwrap().unwrap();
        advance(Duration::from_millis(100)).await;
        assert_eq!([&a, &b, &c].map(|x| x.2.worth()), [Some(Worth::Slow(2000)), Some(Worth::Slow(20)), None]);
        assert!(Worth::Slow(20) < Worth::Slow(2000));
        let idle = |s| Worth::Idle(std::cmp::Reverse(Duration::from_secs(s)));
        assert!(idle(2) < idle(1) && idle(1) < Worth::Slow(0));
        // It is told.
        let room = Arc::new(tokio::sync::Semaphore::new(1));
        assert!(b.2.make_way(room.try_acquire_owned().ok()).is_some());
        assert!(matches!(next(&mut b.1).await, Some(Err(BodyError::MadeWay))));
        assert!(a.2.make_way(None).is_some() && a.2.make_way(None).is_none(), "once");
    }
}
