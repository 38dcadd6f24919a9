//! A connection that ends so that its client gets to read the last answer. Wrapped around each by `server`.
//!
//! A socket that is closed with bytes in it that nobody has read is reset, and the reset takes back what was sent and not
//! read yet: a client that is still sending 40 MB would never see the 413 that it was answered, but a broken connection,
//! and try again. So the answer is sent, the sending side closed, and what still comes is thrown away for a while.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::connections::Activity;

/// Longest time to throw away what comes.
const LINGER_TIME_MAX: Duration = Duration::from_secs(2);
/// Most bytes of it.
const LINGER_BYTES_MAX: usize = 64 << 20;
/// Bytes that are read at once.
const PIECE_BYTES: usize = 16 << 10;

/// A connection.
#[derive(Debug)]
pub struct Lingering {
    stream: TcpStream,
    activity: Arc<Activity>,
    closing: Option<Closing>,
}

#[derive(Debug)]
struct Closing {
    over: Pin<Box<Sleep>>,
    bytes_left: usize,
}

impl Lingering {
    /// Wraps a connection. It lingers where a request was answered before it had come to its end. `activity` hears when its
    /// client is slow to read.
    pub fn new(stream: TcpStream, activity: Arc<Activity>) -> Self {
        Self { stream, activity, closing: None }
    }

    fn wrote(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.activity.flushing(written.is_pending());
        written
    }
}

impl AsyncRead for Lingering {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Lingering {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Done when the client has closed its side too, or was given time enough.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, activity, closing } = &mut *self;
        let closing = match closing {
            Some(closing) => closing,
            None => {
                ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
                if !activity.is_unread() {
                    return Poll::Ready(Ok(()));
                }
                activity.flushing(true);
                let over = Box::pin(sleep(LINGER_TIME_MAX));
                closing.insert(Closing { over, bytes_left: LINGER_BYTES_MAX })
            }
        };
        let mut piece = [0; PIECE_BYTES];
        while closing.over.as_mut().poll(cx).is_pending() {
            let mut buf = ReadBuf::new(&mut piece);
            let read = ready!(Pin::new(&mut *stream).poll_read(cx, &mut buf));
            let bytes = buf.filled().len();
            match closing.bytes_left.checked_sub(bytes) {
                Some(left) if read.is_ok() && bytes > 0 => closing.bytes_left = left,
                _ => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}
