//! A body wrapper that reports its end. Used for access log lines, and to see whether a whole request has arrived.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};

/// Wraps `inner`; calls `ended` after its last frame, once or several times. If it is dropped earlier, `ended` is not called.
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
