//! The routes as the requests of one connection reach them: each request updates the connection's state.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::header::{HOST, HeaderValue};
use hyper::service::Service;
use hyper::{Request, Response, Version};
use hyper_util::service::TowerToHyperService;
use tokio::time::Instant;

use super::activity::{Activity, At};
use super::incoming::IncomingBody;
use super::pace::Pace;

/// A connection of either version.
pub trait Served: Future<Output = hyper::Result<()>> {
    /// Accepts no further request.
    fn finish(self: Pin<&mut Self>);
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
                name_host(&mut request);
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

/// Sets the `Host` header, as HTTP/1 has it.
fn name_host<B>(request: &mut Request<B>) {
    let authority = request.uri().authority().and_then(|a| HeaderValue::from_str(a.as_str()).ok());
    if let Some(host) = authority {
        request.headers_mut().entry(HOST).or_insert(host);
    }
}
