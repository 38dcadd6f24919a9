//! The state of each connection: which may be closed to make room for a new one, and which delay shutdown. Owned by `server`;
//! updated by requests and by the socket (`linger`).
//!
//! A connection is idle while no request is on it: until the headers of one have arrived, and again after its answer was sent.

mod incoming;

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use futures_util::task::AtomicWaker;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response, Version};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::sync::{Notify, OwnedSemaphorePermit, watch};
use tokio::time::Instant;

pub use incoming::BodyError;
use incoming::{IncomingBody, Pace};

use crate::http2;
use crate::linger::Lingering;

/// At shutdown, how long the rest of a request may take.
const REST_TIME_MAX: Duration = Duration::from_secs(1);
/// An idle connection may be closed for a new one after this time; before, its request may be about to arrive.
const IDLE_MIN: Duration = Duration::from_millis(500);
/// The state of a connection.
#[derive(Debug, Clone, Copy)]
enum At {
    /// Idle since then: no request, or incomplete headers.
    Idle(Instant),
    /// A request's body is arriving.
    Body(Pace),
    /// A request is being processed or answered.
    Answer,
}

/// The state of a connection, as far as its socket needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// No request is on it.
    Idle,
    /// A request is arriving.
    Request,
    /// A request is being processed or answered.
    Answer,
}

/// The order in which connections are closed for new ones: the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvictionOrder {
    /// Idle for this long.
    Idle(std::cmp::Reverse<Duration>),
    /// Receives a body slowly: bytes per second.
    Slow(u64),
}

/// The shared state of a connection.
#[derive(Debug)]
pub struct Activity {
    at: Mutex<At>,
    began: Instant,
    /// Its client has not yet received the last bytes.
    flushing: AtomicBool,
    /// A request was answered before all of it had arrived.
    unread: AtomicBool,
    leave: Notify,
    /// Close it at once, whatever its state.
    dropped: AtomicBool,
    /// The rest of the arriving body is refused.
    refused: AtomicBool,
    /// The task that reads that body.
    body: AtomicWaker,
    /// Its permit among the maximum number of connections.
    place: Mutex<Option<OwnedSemaphorePermit>>,
    /// Its client understands interim responses (1xx): it speaks HTTP/1.1.
    knows_interim: AtomicBool,
    /// Over HTTP/2, the requests that are on it; `None` over HTTP/1.
    streams: Mutex<Option<Vec<Arc<Activity>>>>,
    /// For one of these requests, its connection.
    connection: Weak<Activity>,
}

impl Activity {
    /// For a new connection.
    pub fn new(place: OwnedSemaphorePermit) -> Arc<Self> {
        Arc::new(Self::made(Some(place)))
    }

    fn made(place: Option<OwnedSemaphorePermit>) -> Self {
        let now = Instant::now();
        Self {
            at: Mutex::new(At::Idle(now)),
            began: now,
            flushing: AtomicBool::new(false),
            unread: AtomicBool::new(false),
            leave: Notify::new(),
            dropped: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            body: AtomicWaker::new(),
            place: Mutex::new(place),
            knows_interim: AtomicBool::new(false),
            streams: Mutex::default(),
            connection: Weak::new(),
        }
    }

    fn streams(&self) -> MutexGuard<'_, Option<Vec<Arc<Self>>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allows several requests at once from now on (HTTP/2).
    pub fn multiplex(&self) {
        self.streams().get_or_insert_default();
    }

    /// Adds a request (HTTP/2).
    fn stream(self: &Arc<Self>) -> Arc<Self> {
        let stream = Arc::new(Self { connection: Arc::downgrade(self), ..Self::made(None) });
        self.set(At::Answer);
        self.streams().get_or_insert_default().push(Arc::clone(&stream));
        stream
    }

    /// The request was answered or cancelled.
    fn end_request(self: &Arc<Self>) {
        self.set(At::Idle(Instant::now()));
        let Some(connection) = self.connection.upgrade() else { return };
        let mut streams = connection.streams();
        let Some(streams) = streams.as_mut() else { return };
        streams.retain(|stream| !Arc::ptr_eq(stream, self));
        if streams.is_empty() {
            connection.set(At::Idle(Instant::now()));
        }
    }

    /// Its state.
    pub fn stage(&self) -> Stage {
        match self.at() {
            At::Idle(_) => Stage::Idle,
            At::Body(_) => Stage::Request,
            At::Answer => Stage::Answer,
        }
    }

    /// How long it has been idle.
    pub fn idle_for(&self) -> Option<Duration> {
        match self.at() {
            At::Idle(since) => Some(since.elapsed()),
            At::Body(_) | At::Answer => None,
        }
    }

    /// Whether its client understands interim responses (1xx).
    pub fn knows_interim(&self) -> bool {
        self.knows_interim.load(Ordering::Relaxed)
    }

    /// Whether its client has not yet received all bytes.
    pub fn is_flushing(&self) -> bool {
        self.flushing.load(Ordering::Relaxed)
    }

    fn set(&self, at: At) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    fn at(&self) -> At {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether there are bytes that the client has not yet received.
    pub fn flushing(&self, yes: bool) {
        self.flushing.store(yes, Ordering::Relaxed);
    }

    /// A request was answered before all of it had arrived.
    pub fn set_unread(&self) {
        self.unread.store(true, Ordering::Relaxed);
    }

    /// See [`Activity::set_unread`].
    pub fn is_unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed)
    }

    /// When it was accepted.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Its place in the eviction order; `None` if it must not be closed.
    pub fn eviction_order(&self) -> Option<EvictionOrder> {
        let now = Instant::now();
        if let Some(streams) = self.streams().as_ref().filter(|s| !s.is_empty()) {
            // It may be closed only if all of its requests are slow bodies.
            let slow = |stream: &Arc<Self>| match stream.at() {
                At::Body(pace) => pace.slow(now),
                At::Idle(_) | At::Answer => None,
            };
            let rates: Option<Vec<u64>> = streams.iter().map(slow).collect();
            return rates.filter(|_| !self.is_flushing()).map(|r| EvictionOrder::Slow(r.iter().sum()));
        }
        match self.at() {
            _ if self.is_flushing() => None,
            At::Idle(since) => Some(now - since)
                .filter(|t| *t >= IDLE_MIN)
                .map(|t| EvictionOrder::Idle(std::cmp::Reverse(t))),
            At::Body(pace) => pace.slow(now).map(EvictionOrder::Slow),
            At::Answer => None,
        }
    }

    /// Whether a client is waiting for an answer on it.
    fn is_needed(&self) -> bool {
        let answers = |stream: &Self| matches!(stream.at(), At::Answer);
        let answers = match self.streams().as_ref() {
            Some(streams) => streams.iter().any(|stream| answers(stream)),
            None => answers(self),
        };
        answers || self.is_flushing()
    }

    /// Refuses the rest of the arriving body.
    fn refuse(&self) {
        self.refused.store(true, Ordering::Release);
        self.body.wake();
    }

    /// Closes it and returns its permit; `None` if it was evicted before. With a permit in `parting`, a client that is sending a
    /// body gets an error response first.
    pub fn evict(&self, parting: Option<OwnedSemaphorePermit>) -> Option<OwnedSemaphorePermit> {
        let mut held = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let place = held.take()?;
        let streams: Vec<Arc<Self>> = self.streams().iter().flatten().map(Arc::clone).collect();
        if (matches!(self.at(), At::Body(_)) || !streams.is_empty()) && parting.is_some() {
            *held = parting;
            self.refuse();
            streams.iter().for_each(|stream| stream.refuse());
        }
        self.leave.notify_one();
        Some(place)
    }

    /// Closes it at once and returns its permit.
    pub fn end(&self) -> Option<OwnedSemaphorePermit> {
        self.dropped.store(true, Ordering::Release);
        self.evict(None)
    }
}

/// A connection that is served.
pub type Connection = http1::Connection<TokioIo<Lingering>, Connected>;

/// A connection of either version.
pub trait Served: Future<Output = hyper::Result<()>> {
    /// Accepts no further request.
    fn finish(self: Pin<&mut Self>);
}

impl Served for Connection {
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Serves a connection to its end. If its first bytes are those of HTTP/2, it continues as HTTP/2, and is closed when idle for `idle_max`.
pub async fn serve(
    mut connection: Connection,
    activity: Arc<Activity>,
    mut close: watch::Receiver<()>,
    idle_max: Duration,
) {
    let mut result = run(Pin::new(&mut connection), &activity, &mut close, None).await;
    if result.as_ref().is_err_and(hyper::Error::is_parse_version_h2) {
        let parts = connection.into_parts();
        activity.multiplex();
        let connection = http2::connection(parts.io.into_inner().rewound(parts.read_buf), parts.service);
        result = run(pin!(connection), &activity, &mut close, Some(idle_max)).await;
    }
    if let Err(e) = result {
        tracing::debug!("a connection ended badly: {e}");
    }
}

/// Serves a connection until its client closes it, it is evicted, or `close` signals shutdown. In the last two cases, running
/// answers are finished first.
async fn run<C: Served>(
    mut connection: Pin<&mut C>,
    activity: &Activity,
    close: &mut watch::Receiver<()>,
    idle_max: Option<Duration>,
) -> hyper::Result<()> {
    let mut wait = tokio::select! {
        result = connection.as_mut() => return result,
        () = activity.leave.notified() => {
            if activity.dropped.load(Ordering::Acquire) {
                return Ok(());
            }
            // Gives the client time to read the error.
            if activity.refused.load(Ordering::Acquire) { REST_TIME_MAX } else { Duration::ZERO }
        }
        _ = close.changed() => REST_TIME_MAX,
        () = idle(activity, idle_max) => Duration::ZERO,
    };
    connection.as_mut().finish();
    loop {
        tokio::select! {
            biased;
            result = connection.as_mut() => return result,
            () = tokio::time::sleep(wait) => {}
        }
        if !activity.is_needed() {
            tracing::debug!("closed a connection whose request had not arrived completely");
            return Ok(());
        }
        wait = REST_TIME_MAX;
    }
}

/// Waits until a connection has been idle for `most`; forever if that is `None` (HTTP/1 has its own timer).
async fn idle(activity: &Activity, most: Option<Duration>) {
    let Some(most) = most else { return std::future::pending().await };
    loop {
        let idle = activity.idle_for().unwrap_or_default();
        let Some(left) = most.checked_sub(idle).filter(|left| !left.is_zero()) else { return };
        tokio::time::sleep(left).await;
    }
}

/// The routes for the requests of one connection; they update its state.
#[derive(Debug)]
pub struct Connected {
    routes: TowerToHyperService<Router>,
    activity: Arc<Activity>,
}

impl Connected {
    /// `activity` becomes an extension of each request.
    pub fn new(routes: Router, activity: Arc<Activity>) -> Self {
        Self { routes: TowerToHyperService::new(routes), activity }
    }
}

impl Service<Request<Incoming>> for Connected {
    type Response = Response<TrackedBody>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let activity = match request.version() {
            Version::HTTP_2 => {
                http2::name_host(&mut request);
                self.activity.stream()
            }
            version => {
                self.activity.knows_interim.store(version == Version::HTTP_11, Ordering::Relaxed);
                Arc::clone(&self.activity)
            }
        };
        let is_whole = request.body().is_end_stream();
        activity.set(if is_whole { At::Answer } else { At::Body(Pace::start(Instant::now())) });
        let mut request = request.map(|inner| IncomingBody::new(inner, Arc::clone(&activity)));
        request.extensions_mut().insert(Arc::clone(&activity));
        let on_it = OnConnection(activity);
        let answer = self.routes.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            on_it.0.set(At::Answer);
            Ok(answer.map(|inner| TrackedBody { inner, _on_it: on_it }))
        })
    }
}

/// Marks a request as running on its connection until dropped.
struct OnConnection(Arc<Activity>);

impl Drop for OnConnection {
    fn drop(&mut self) {
        self.0.end_request();
    }
}

/// The body of an answer, which ends the request when dropped.
pub struct TrackedBody {
    inner: Body,
    _on_it: OnConnection,
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
