//! A connection that ends so that its client gets to read the last answer. Wrapped around each by `server`.
//!
//! Two ends are looked after: ours, and the client's. A client may close its sending side behind its request and still wait for the answer
//! (`nc -N`); one that is gone looks the same. So it is asked: an interim answer (`100 Continue`, which clients skip) is written, and where
//! nobody is there any more the system at the other end resets the connection. Until then, and as long as it is not reset, its request is
//! worked on.
//!
//! A socket that is closed with bytes in it that nobody has read is reset, and the reset takes back what was sent and not
//! read yet: a client that is still sending 40 MB would never see the 413 that it was answered, but a broken connection,
//! and try again. So the answer is sent, the sending side closed, and what still comes is thrown away for a while.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use crate::connections::{Activity, Stage};

/// Longest time to throw away what comes.
const LINGER_TIME_MAX: Duration = Duration::from_secs(2);
/// Most bytes of it.
const LINGER_BYTES_MAX: usize = 64 << 20;
/// Bytes that are read at once.
const PIECE_BYTES: usize = 16 << 10;

/// How soon a client that has closed its side is asked whether it is there, how often again, and how often it is looked whether it is
/// not.
const ASK_AFTER: Duration = Duration::from_millis(100);
const ASK_EVERY: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The question.
const ASK: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A connection.
#[derive(Debug)]
pub struct Lingering {
    stream: TcpStream,
    activity: Arc<Activity>,
    closing: Option<Closing>,
    /// What was read before and is to be read again.
    before: Bytes,
    /// The client has closed its side.
    half: Option<HalfClosed>,
    /// Something was written since the last bytes came: it is no time for an interim answer.
    answered: bool,
    /// Requests are not answered one after the other (HTTP/2).
    multiplexed: bool,
}

/// A connection whose client will send no more.
#[derive(Debug)]
struct HalfClosed {
    look: Pin<Box<Sleep>>,
    ask: Instant,
    /// Until then what has come may not have been taken in.
    settled: Instant,
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

    /// The same, of which `before` is read again, as HTTP/2.
    pub fn rewound(self, before: Bytes) -> Self {
        Self { before, multiplexed: true, ..self }
    }

    /// The client has closed its side. Ready when the connection is over for us, too: there is nothing to answer, or nobody to read it.
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
                // A request that did not come to its end.
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

    /// Done when the client has closed its side too, or was given time enough.
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
