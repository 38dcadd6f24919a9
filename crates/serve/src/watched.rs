//! A body that tells when it has come to its end. Used by access lines, and by what looks whether all of a request has come.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};

/// `inner`, which calls `ended` behind its last frame: once or several times, and never where it is dropped before.
pub fn watched(inner: Body, ended: impl FnMut() + Send + Unpin + 'static) -> Body {
    Body::new(Watched { inner, ended })
}

struct Watched<F> {
    inner: Body,
    ended: F,
}

impl<F: FnMut() + Unpin> HttpBody for Watched<F> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
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
