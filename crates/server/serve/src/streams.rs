//! Streams that outlive their connection, until they have had no reader for a while. Written and read by `http::streams`.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::StreamExt;
use futures_util::stream::unfold;
use hyper::HeaderMap;
use octet_api::{ApiError, ErrorKind};
use tokio::sync::{Notify, watch};

use crate::gateway::Caller;

/// The header that names a stream.
pub const NAME: &str = "x-octet-stream";
/// Maximum number of streams; the oldest finished ones are removed for new ones.
const STREAMS_MAX: usize = 64;
/// Maximum bytes of one stream. The beginning of a longer one is dropped, and only current readers can continue.
const STREAM_BYTES_MAX: usize = 8 << 20;
/// Maximum bytes of all streams, except those that are still being written.
const ALL_BYTES_MAX: usize = 64 << 20;
/// How long an answer continues without a reader.
const UNREAD: Duration = Duration::from_secs(60);
/// Number of checks for readers in that time.
const UNREAD_LOOKS: u32 = 12;
/// Maximum bytes per read.
const PIECE_BYTES: usize = 64 << 10;

/// All streams, the oldest first.
#[derive(Debug, Default)]
pub struct Streams(Mutex<VecDeque<Arc<Stream>>>);

/// One stream.
#[derive(Debug)]
pub struct Stream {
    id: String,
    /// The virtual key that requested it, if any: no other virtual key may read it.
    owner: Option<Arc<str>>,
    headers: HeaderMap,
    text: Mutex<Text>,
    /// Notified of new bytes; its receivers are the readers.
    more: watch::Sender<()>,
    stop: Notify,
}

/// The received bytes.
#[derive(Debug, Default)]
struct Text {
    bytes: VecDeque<u8>,
    /// Number of dropped bytes.
    forgotten: usize,
    over: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Streams {
    /// Keeps a response, a stream that is for `caller`, under a name. Returns a response that reads it from its beginning.
    ///
    /// # Errors
    /// The name is taken, or too many streams are still being written.
    pub fn keep(&self, id: String, caller: &Caller, response: Response) -> Result<Response, ApiError> {
        let (head, body) = response.into_parts();
        let owner = match caller {
            Caller::Trusted => None,
            Caller::Key(key) => Some(Arc::clone(&key.id)),
        };
        let stream = Arc::new(Stream {
            id,
            owner,
            headers: head.headers,
            text: Mutex::default(),
            more: watch::Sender::new(()),
            stop: Notify::new(),
        });
        self.add(&stream)?;
        let response = stream.response();
        tokio::spawn(stream.write(body));
        Ok(response)
    }

    /// The stream of that name, if it is for `caller`.
    pub fn find(&self, id: &str, caller: &Caller) -> Option<Arc<Stream>> {
        lock(&self.0).iter().find(|s| s.id == id && s.is_for(caller)).cloned()
    }

    /// Adds one; refused where its name is taken, or too many streams are still being written.
    fn add(&self, stream: &Arc<Stream>) -> Result<(), ApiError> {
        let mut all = lock(&self.0);
        if all.iter().any(|s| s.id == stream.id) {
            return Err(ApiError::invalid(NAME, format!("{NAME}: this name is taken; use a random one")));
        }
        let bytes =
            |all: &VecDeque<Arc<Stream>>| all.iter().map(|s| lock(&s.text).bytes.len()).sum::<usize>();
        while all.len() >= STREAMS_MAX || bytes(&all) > ALL_BYTES_MAX {
            let Some(ended) = all.iter().position(|s| lock(&s.text).over) else {
                if all.len() < STREAMS_MAX {
                    break;
                }
                let what = format!("{STREAMS_MAX} named streams are being written already; leave {NAME} out");
                return Err(ApiError::new(ErrorKind::RateLimit, what));
            };
            all.remove(ended);
        }
        all.push_back(Arc::clone(stream));
        Ok(())
    }
}

impl Stream {
    fn is_for(&self, caller: &Caller) -> bool {
        match caller {
            Caller::Trusted => true,
            Caller::Key(key) => self.owner.as_ref() == Some(&key.id),
        }
    }

    /// Ends the answer.
    pub fn stop(&self) {
        self.stop.notify_one();
    }

    fn push(&self, piece: &[u8]) {
        let mut text = lock(&self.text);
        text.bytes.extend(piece);
        let excess = text.bytes.len().saturating_sub(STREAM_BYTES_MAX);
        text.bytes.drain(..excess);
        text.forgotten += excess;
        drop(text);
        self.more.send_replace(());
    }

    /// What follows the first `at` bytes: `None` where nothing is there yet, and no bytes at the end.
    fn after(&self, at: usize) -> Result<Option<Bytes>, std::io::Error> {
        let text = lock(&self.text);
        let Some(begin) = at.checked_sub(text.forgotten) else {
            return Err(std::io::Error::other("the beginning of the stream is no longer stored"));
        };
        let end = text.bytes.len().min(begin.saturating_add(PIECE_BYTES));
        if begin < end {
            return Ok(Some(text.bytes.range(begin..end).copied().collect::<Vec<u8>>().into()));
        }
        Ok(text.over.then(Bytes::new))
    }

    /// Stores the answer until its end, until it is stopped, or until it had no reader for a while. Dropping `body` cancels the answer.
    async fn write(self: Arc<Self>, body: Body) {
        let mut body = body.into_data_stream();
        // One future for all pieces: a new one for each would never finish while an answer arrives.
        let mut unread = pin!(self.unread());
        loop {
            tokio::select! {
                piece = body.next() => match piece {
                    Some(Ok(piece)) => self.push(&piece),
                    // The stream breaks off for its readers too: without an end they know.
                    Some(Err(_)) | None => break,
                },
                () = self.stop.notified() => break,
                () = &mut unread => break,
            }
        }
        drop(body);
        lock(&self.text).over = true;
        self.more.send_replace(());
    }

    async fn unread(&self) {
        loop {
            self.more.closed().await;
            let mut looks = 0;
            // A new reader sends no signal: a reloaded page may have come and gone between two checks.
            while self.more.is_closed() {
                if looks == UNREAD_LOOKS {
                    return;
                }
                tokio::time::sleep(UNREAD / UNREAD_LOOKS).await;
                looks += 1;
            }
        }
    }

    /// The stream from its beginning, for one more reader.
    pub fn response(self: &Arc<Self>) -> Response {
        let state = (Arc::clone(self), self.more.subscribe(), 0);
        let bytes = unfold(state, |(stream, mut more, at)| async move {
            loop {
                match stream.after(at) {
                    Ok(Some(piece)) if piece.is_empty() => return None,
                    Ok(Some(piece)) => {
                        let at = at + piece.len();
                        return Some((Ok(piece), (stream, more, at)));
                    }
                    // The sender is in `stream`, so this waits.
                    Ok(None) => more.changed().await.ok()?,
                    Err(e) => return Some((Err(e), (stream, more, usize::MAX))),
                }
            }
        });
        let mut response = Response::new(Body::from_stream(bytes));
        *response.headers_mut() = self.headers.clone();
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_unread_answer_is_dropped_while_it_runs() {
        let stream = Arc::new(Stream {
            id: String::new(),
            owner: None,
            headers: HeaderMap::new(),
            text: Mutex::default(),
            more: watch::Sender::new(()),
            stop: Notify::new(),
        });
        let token = |()| async {
            tokio::time::sleep(UNREAD / 6).await;
            Some((Ok::<_, std::convert::Infallible>(Bytes::from_static(b".")), ()))
        };
        let written = Arc::clone(&stream).write(Body::from_stream(unfold((), token)));
        tokio::time::timeout(UNREAD * 2, written).await.expect("it ends");
        assert!(lock(&stream.text).over);
        assert!(!lock(&stream.text).bytes.is_empty());
    }
}
