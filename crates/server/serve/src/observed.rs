//! A body that tells when it has come to its end. Used by access lines, and by what looks whether all of a request has come.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};

/// `inner`, which calls `ended` behind its last frame: once or several times, and never where it is dropped before.
pub fn observed<B: Body + Unpin, F: FnMut() + Unpin>(inner: B, ended: F) -> ObservedBody<B, F> {
    ObservedBody { inner, ended }
}

/// See [`observed`].
pub struct ObservedBody<B, F> {
    inner: B,
    ended: F,
}

impl<B: Body + Unpin, F: FnMut() + Unpin> Body for ObservedBody<B, F> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(cx);
        if matches!(frame, Poll::Ready(None)) || self.inner.is_end_stream() {
            (self.ended)();
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
