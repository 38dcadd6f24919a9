//! Bodies of requests: read with limits for length and time, within the room that all of them have together, and only where
//! they say that they are JSON. Used by all endpoints that take one.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Body as _, Frame, SizeHint};
use hyper::HeaderMap;
use hyper::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use octet_api::{ApiError, ErrorKind, shortened};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::UNSUPPORTED_MEDIA_TYPE;
use crate::linger::Unread;

/// Longest time for a body to come.
const BODY_TIME_MAX: Duration = Duration::from_secs(120);
/// Longer bodies are read where they hold nobody up.
const PARSE_INLINE_MAX: usize = 256 << 10;
/// Longest bodies that there may be room for at a time.
const LONGEST_AT_ONCE: usize = 8;
/// Of each body so much is not counted: who holds all the room with long ones does not keep short ones out. There are at most as
/// many of these as connections.
const UNCOUNTED_BYTES: usize = 256 << 10;
/// When a body may come again for which there was no room.
const RETRY_ROOM_S: u64 = 2;

/// The room that all bodies have together, from their first byte until they are read.
#[derive(Debug)]
pub struct BodyRoom {
    bytes_max: usize,
    room: Arc<Semaphore>,
}

impl BodyRoom {
    /// Room for eight bodies of the greatest length.
    pub fn new(body_bytes_max: usize) -> Self {
        let bytes_max = body_bytes_max.saturating_mul(LONGEST_AT_ONCE).min(Semaphore::MAX_PERMITS);
        Self { bytes_max, room: Arc::new(Semaphore::new(bytes_max)) }
    }

    fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let permits = u32::try_from(bytes).ok();
        let taken = permits.and_then(|n| Arc::clone(&self.room).try_acquire_many_owned(n).ok());
        taken.ok_or_else(|| {
            let what = format!(
                "the bodies of other requests take the {} bytes that there are for long ones; try again",
                self.bytes_max
            );
            ApiError { retry_after_s: Some(RETRY_ROOM_S), ..ApiError::new(ErrorKind::Overloaded, what) }
        })
    }
}

/// A body that has come, with its room.
#[derive(Debug, Default)]
pub struct Held {
    bytes: Vec<u8>,
    room: Option<OwnedSemaphorePermit>,
}

impl Held {
    /// The bytes, and their room: to be held for as long as they are.
    pub fn into_parts(self) -> (Bytes, Option<OwnedSemaphorePermit>) {
        (self.bytes.into(), self.room)
    }

    fn push(&mut self, data: &[u8], bytes_max: usize, room: &BodyRoom) -> Result<(), ApiError> {
        let len = self.bytes.len() + data.len();
        if len > bytes_max {
            return Err(too_large(bytes_max));
        }
        let counted = len.saturating_sub(UNCOUNTED_BYTES).min(data.len());
        if counted > 0 {
            let more = room.take(counted)?;
            match &mut self.room {
                Some(room) => room.merge(more),
                None => self.room = Some(more),
            }
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }
}

/// The body of a request.
pub async fn read(request: Request, bytes_max: usize, room: &BodyRoom) -> Result<Held, ApiError> {
    let (head, body) = request.into_parts();
    check_type(&head.headers)?;
    let length = head.headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|n| n > bytes_max as u64) {
        return Err(too_large(bytes_max));
    }
    let read = tokio::time::timeout(BODY_TIME_MAX, gather(body, bytes_max, room)).await;
    read.unwrap_or_else(|_| Err(ApiError::new(ErrorKind::Timeout, "the body took too long to come")))
}

async fn gather(mut body: Body, bytes_max: usize, room: &BodyRoom) -> Result<Held, ApiError> {
    let mut held = Held::default();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame
            .map_err(|e| ApiError::new(ErrorKind::InvalidRequest, format!("the body broke off: {e}")))?;
        // Trailers say nothing to us.
        if let Ok(data) = frame.into_data() {
            held.push(&data, bytes_max, room)?;
        }
    }
    Ok(held)
}

fn too_large(bytes_max: usize) -> ApiError {
    ApiError::new(
        ErrorKind::TooLarge,
        format!("the body is longer than the {bytes_max} bytes that the server takes"),
    )
}

/// What says that it is anything but JSON is refused: web pages send such to any address without asking the browser's leave. There are
/// clients that say nothing (litellm's for Ollama).
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(sent) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let sent = sent.to_str().unwrap_or("");
    let kind = sent.split(';').next().unwrap_or("").trim();
    let is_json = kind.eq_ignore_ascii_case("application/json")
        || kind.get(kind.len().saturating_sub(5)..).is_some_and(|end| end.eq_ignore_ascii_case("+json"));
    if is_json {
        return Ok(());
    }
    let what = format!(
        "the content type is '{}'; send JSON, with the header 'content-type: application/json'",
        shortened(sent)
    );
    let error = ApiError::new(ErrorKind::InvalidRequest, what);
    Err(ApiError { code: Some(UNSUPPORTED_MEDIA_TYPE.into()), ..error })
}

/// Reads a body by its dialect's rules.
pub async fn parse<T: Send + 'static>(
    body: Held,
    with: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let (bytes, _room) = body.into_parts();
    parse_bytes(bytes, with).await
}

/// The same of bytes alone.
pub async fn parse_bytes<T: Send + 'static>(
    bytes: Bytes,
    with: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if bytes.len() <= PARSE_INLINE_MAX {
        return with(&bytes);
    }
    let parsed = tokio::task::spawn_blocking(move || with(&bytes)).await;
    parsed.map_err(|e| ApiError::new(ErrorKind::Internal, e.to_string()))?
}

/// The middleware: where a request is answered before all of it has come, its connection ends behind the answer.
pub async fn part(request: Request, next: Next) -> Response {
    let unread = request.extensions().get::<Unread>().cloned();
    let whole = Arc::new(AtomicBool::new(request.body().is_end_stream()));
    let request = request.map(|inner| Body::new(Watched { inner, whole: Arc::clone(&whole) }));
    let mut response = next.run(request).await;
    if !whole.load(Ordering::Relaxed) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        if let Some(unread) = unread {
            unread.set();
        }
    }
    response
}

/// A request's body, which tells when it has come to its end.
struct Watched {
    inner: Body,
    whole: Arc<AtomicBool>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(cx);
        if matches!(frame, Poll::Ready(None)) || self.inner.is_end_stream() {
            self.whole.store(true, Ordering::Relaxed);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
