//! What each connection is at: which may be closed to make room for another, and which hold up the end. Kept by `server`; told by
//! the requests, and by the socket (`linger`).
//!
//! A connection is idle while no request is on it: until the head of one has come, and again when its answer is out.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::sync::{Notify, OwnedSemaphorePermit, watch};

use crate::linger::{Lingering, Unread};
use crate::watched::watched;

/// At the end, how long the rest of a request may take.
const REST_TIME_MAX: Duration = Duration::from_secs(1);

/// What a connection is at.
#[derive(Debug, Clone, Copy)]
enum At {
    /// No request is there since then, or not all of its head.
    Idle(Instant),
    /// A request's body comes.
    Body,
    /// A request is worked on, or answered.
    Answer,
}

/// A connection as the others see it.
#[derive(Debug)]
pub struct Activity {
    at: Mutex<At>,
    /// Its client has yet to take the last bytes.
    flushing: AtomicBool,
    leave: Notify,
    /// Its place among those that there may be.
    place: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Activity {
    /// Of a connection that has just come.
    pub fn new(place: OwnedSemaphorePermit) -> Arc<Self> {
        Arc::new(Self {
            at: Mutex::new(At::Idle(Instant::now())),
            flushing: AtomicBool::new(false),
            leave: Notify::new(),
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

    /// How long it has been idle; `None` where it is not.
    pub fn idle(&self) -> Option<Duration> {
        match self.at() {
            At::Idle(since) if !self.flushing.load(Ordering::Relaxed) => Some(since.elapsed()),
            _ => None,
        }
    }

    /// Someone waits for what comes over it.
    fn is_needed(&self) -> bool {
        matches!(self.at(), At::Answer) || self.flushing.load(Ordering::Relaxed)
    }

    /// Has it closed; its place is another's now. `None` where it was given away already.
    pub fn make_way(&self) -> Option<OwnedSemaphorePermit> {
        let place = self.place.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        self.leave.notify_one();
        Some(place)
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
        () = activity.leave.notified() => Duration::ZERO,
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
    unread: Unread,
    activity: Arc<Activity>,
}

impl Connected {
    /// `unread` is told where a request is answered before all of it has come.
    pub fn new(routes: Router, unread: Unread, activity: Arc<Activity>) -> Self {
        Self { routes: TowerToHyperService::new(routes), unread, activity }
    }
}

impl Service<Request<Incoming>> for Connected {
    type Response = Response<Going>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let activity = Arc::clone(&self.activity);
        activity.set(if request.body().is_end_stream() { At::Answer } else { At::Body });
        let coming = Arc::clone(&activity);
        let mut request = request.map(|inner| watched(inner, move || coming.set(At::Answer)));
        request.extensions_mut().insert(self.unread.clone());
        let answer = self.routes.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            activity.set(At::Answer);
            Ok(answer.map(|inner| Going { inner, activity }))
        })
    }
}

/// An answer's body, which tells when it is over.
pub struct Going {
    inner: Body,
    activity: Arc<Activity>,
}

impl Drop for Going {
    fn drop(&mut self) {
        self.activity.set(At::Idle(Instant::now()));
    }
}

impl HttpBody for Going {
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
