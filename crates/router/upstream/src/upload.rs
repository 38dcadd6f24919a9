//! Request bodies: bytes in memory, or a client's body that is streamed. Created by the server for unread requests; sent by `client`.

use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderValue;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Rest = Pin<Box<dyn Body<Data = Bytes, Error = BoxError> + Send>>;

/// A client's body of which only the beginning was read. It can be sent again as long as nothing of the rest was sent.
pub struct Upload {
    content_type: HeaderValue,
    beginning: Bytes,
    /// Position of the model's name in the beginning, if it is there.
    model: Option<Range<usize>>,
    /// Total length, if known.
    length: Option<u64>,
    rest: Mutex<Remaining>,
}

/// The unread rest.
enum Remaining {
    /// The beginning is everything.
    Nothing,
    There(Rest),
    Sent,
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upload").field("beginning", &self.beginning.len()).finish_non_exhaustive()
    }
}

impl Upload {
    /// A body that starts with `beginning`. `length` is the total, if known.
    pub fn new<B>(content_type: HeaderValue, beginning: Bytes, rest: Option<B>, length: Option<u64>) -> Self
    where
        B: Body<Data = Bytes, Error = BoxError> + Send + 'static,
    {
        let rest = Mutex::new(match rest {
            Some(rest) => Remaining::There(Box::pin(rest)),
            None => Remaining::Nothing,
        });
        Self { content_type, beginning, model: None, length, rest }
    }

    /// The same, with the model's name at these bytes, which the provider's name replaces.
    pub fn naming(self, model: Range<usize>) -> Self {
        Self { model: Some(model).filter(|m| m.start <= m.end && m.end <= self.beginning.len()), ..self }
    }

    /// Whether a part was sent and is gone, so that no other provider can be tried.
    pub fn is_spent(&self) -> bool {
        matches!(*self.lock(), Remaining::Sent)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Remaining> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn content_type(&self) -> &HeaderValue {
        &self.content_type
    }

    /// The body for a provider with the model name `model`; `None` if it is gone.
    pub(crate) fn body(self: &Arc<Self>, model: &str) -> Option<Outgoing> {
        if self.is_spent() {
            return None;
        }
        let mut head = VecDeque::new();
        let mut length = self.length;
        match &self.model {
            Some(range) => {
                head.push_back(self.beginning.slice(..range.start));
                head.push_back(Bytes::copy_from_slice(model.as_bytes()));
                head.push_back(self.beginning.slice(range.end..));
                length = length.map(|n| n.saturating_sub(range.len() as u64) + model.len() as u64);
            }
            None => head.push_back(self.beginning.clone()),
        }
        head.retain(|piece| !piece.is_empty());
        Some(Outgoing::Upload(UploadBody { upload: Arc::clone(self), head, rest: None, length }))
    }
}

/// A request body.
#[derive(Debug)]
pub(crate) enum Outgoing {
    Whole(Full<Bytes>),
    Upload(UploadBody),
}

impl From<Bytes> for Outgoing {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(Full::new(bytes))
    }
}

/// One attempt to send an [`Upload`].
pub(crate) struct UploadBody {
    upload: Arc<Upload>,
    head: VecDeque<Bytes>,
    rest: Option<Rest>,
    length: Option<u64>,
}

impl std::fmt::Debug for UploadBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UploadBody").field("upload", &self.upload).finish_non_exhaustive()
    }
}

impl UploadBody {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(piece) = self.head.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if self.rest.is_none() {
            let mut remaining = self.upload.lock();
            match std::mem::replace(&mut *remaining, Remaining::Sent) {
                Remaining::Nothing => {
                    *remaining = Remaining::Nothing;
                    return Poll::Ready(None);
                }
                Remaining::There(rest) => {
                    drop(remaining);
                    self.rest = Some(rest);
                }
                Remaining::Sent => {
                    return Poll::Ready(Some(Err("the body was already sent to another deployment".into())));
                }
            }
        }
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        loop {
            match ready!(rest.as_mut().poll_frame(cx)) {
                // Trailers are ignored.
                Some(Ok(frame)) if !frame.is_data() => {}
                other => return Poll::Ready(other),
            }
        }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Whole(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
            Self::Upload(body) => body.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Upload(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Upload(body) => body.length.map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}
