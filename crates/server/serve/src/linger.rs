//! A socket that closes so that its client can read the last answer. Wraps every connection of `server`.
//!
//! Half-closed clients: a client may close its sending side after its request and still wait for the answer (`nc -N`); a client that
//! has exited looks the same. To tell them apart, an interim response (`100 Continue`, which clients skip) is written: if nobody is
//! there, the other end resets the connection. Until then the request continues.
//!
//! Unread bytes: closing a socket with unread bytes resets the connection, and a reset discards what the client has not read yet. A
//! client that is still sending 40 MB would see a broken connection instead of the 413, and try again. So the answer is sent, the
//! sending side is closed, and further bytes are discarded for a while.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use crate::connections::activity::{Activity, Stage};

/// Maximum time to discard bytes.
const LINGER_TIME_MAX: Duration = Duration::from_secs(2);
/// Maximum number of bytes to discard.
const LINGER_BYTES_MAX: usize = 64 << 20;
/// Bytes per read.
const PIECE_BYTES: usize = 16 << 10;

/// Delay before the first interim response to a half-closed client, its interval, and how often the connection is checked for a reset.
const ASK_AFTER: Duration = Duration::from_millis(100);
const ASK_EVERY: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The interim response.
const ASK: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A connection.
#[derive(Debug)]
pub struct Lingering {
    stream: TcpStream,
    activity: Arc<Activity>,
    closing: Option<Closing>,
    /// Bytes that were read before and are returned again.
    before: Bytes,
    /// The client has closed its sending side.
    half: Option<HalfClosed>,
    /// Bytes were written since the last bytes arrived: no interim response may follow.
    answered: bool,
    /// Requests are concurrent (HTTP/2).
    multiplexed: bool,
}

/// A connection whose client sends no more.
#[derive(Debug)]
struct HalfClosed {
    look: Pin<Box<Sleep>>,
    ask: Instant,
    /// Until then the server may not have processed what arrived.
    settled: Instant,
}

#[derive(Debug)]
struct Closing {
    over: Pin<Box<Sleep>>,
    bytes_left: usize,
}

impl Lingering {
    /// Wraps a connection. It lingers if a request was answered before all of it had arrived. `activity` is updated when its client
    /// reads slowly.
    pub fn new(stream: TcpStream, activity: Arc<Activity>) -> Self {
        Self {
            stream,
            activity,
            closing: None,
            before: Bytes::new(),
            half: None,
            answered: false,
            multiplexed: false,
        }
    }

    /// The same for HTTP/2, which reads `before` again.
    pub fn rewound(self, before: Bytes) -> Self {
        Self { before, multiplexed: true, ..self }
    }

    /// For a client that has closed its sending side. Ready when the connection is over: no answer is pending, or the client is gone.
    fn poll_half_closed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let now = Instant::now();
        let half = self.half.get_or_insert_with(|| HalfClosed {
            look: Box::pin(sleep(LOOK_EVERY)),
            ask: now + ASK_AFTER,
            settled: now + ASK_AFTER,
        });
        loop {
            match self.activity.stage() {
                Stage::Answer => {}
                // A request that did not arrive completely.
                Stage::Request if Instant::now() >= half.settled => return Poll::Ready(Ok(())),
                Stage::Request => {}
                Stage::Idle if !self.activity.is_flushing() => return Poll::Ready(Ok(())),
                Stage::Idle => {}
            }
            if let Some(e) = self.stream.take_error()? {
                return Poll::Ready(Err(e));
            }
            if Instant::now() >= half.ask {
                half.ask = Instant::now() + ASK_EVERY;
                let may = !self.answered && !self.activity.is_flushing() && self.activity.knows_interim();
                if may && self.activity.stage() == Stage::Answer {
                    match self.stream.try_write(ASK) {
                        Ok(n) if n < ASK.len() => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                        Ok(_) => {}
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                        Err(e) => return Poll::Ready(Err(e)),
                    }
                }
            }
            ready!(half.look.as_mut().poll(cx));
            half.look.as_mut().reset(Instant::now() + LOOK_EVERY);
        }
    }

    fn wrote(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.activity.flushing(written.is_pending());
        self.answered |= matches!(written, Poll::Ready(Ok(n)) if n > 0);
        written
    }
}

impl AsyncRead for Lingering {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.before.is_empty() {
            let n = this.before.len().min(buf.remaining());
            buf.put_slice(&this.before.split_to(n));
            return Poll::Ready(Ok(()));
        }
        if this.half.is_some() {
            return this.poll_half_closed(cx);
        }
        let (had, room) = (buf.filled().len(), buf.remaining());
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        if buf.filled().len() > had {
            this.answered = false;
        } else if room > 0 && !this.multiplexed && this.activity.stage() != Stage::Idle {
            return this.poll_half_closed(cx);
        }
        Poll::Ready(Ok(()))
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

    /// Done when the client has closed its side, or the time is over.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, activity, closing, .. } = &mut *self;
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
