//! The bytes of an answer, with limits on time and length. Read by events, raw answers and complete ones.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use crate::encoding::Encoding;
use crate::endpoint::Timeouts;
use crate::failure::{Failure, FailureKind};
use crate::tls::Place;

/// Maximum time to wait for the rest of a complete answer, so that its connection can be reused.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(1);
/// Maximum bytes of such a rest.
const DRAIN_BYTES_MAX: usize = 64 << 10;

/// The deadlines of a call, from the start of the request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
    limits: Timeouts,
    stream: bool,
}

impl Clock {
    pub(crate) fn start(limits: Timeouts, stream: bool) -> Self {
        Self { start: Instant::now(), limits, stream }
    }

    /// Deadline of the first piece.
    pub(crate) fn first(&self) -> Option<Due> {
        let first = self.limits.first_chunk.filter(|_| self.stream);
        earlier(self.whole(), Due::new(self.start, first, "no first data from the provider"))
    }

    /// Deadline of the next piece.
    fn next(&self, last: Instant) -> Option<Due> {
        earlier(self.whole(), Due::new(last, self.limits.idle, "no data from the provider"))
    }

    fn whole(&self) -> Option<Due> {
        Due::new(self.start, self.limits.whole, "the answer is not complete")
    }
}

/// A deadline, and what has not happened by then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Due {
    pub(crate) at: Instant,
    limit: Duration,
    what: &'static str,
}

impl Due {
    /// `None` without a limit, or for one beyond any uptime.
    fn new(from: Instant, limit: Option<Duration>, what: &'static str) -> Option<Self> {
        let limit = limit?;
        Some(Self { at: from.checked_add(limit)?, limit, what })
    }

    pub(crate) fn failure(&self) -> Failure {
        let what = format!("{} within {} s", self.what, self.limit.as_secs_f64());
        Failure::new(FailureKind::Timeout, what)
    }
}

fn earlier(a: Option<Due>, b: Option<Due>) -> Option<Due> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if b.at < a.at { b } else { a }),
        (a, b) => a.or(b),
    }
}

/// The body of an answer.
#[derive(Debug)]
pub(crate) struct Body {
    incoming: Incoming,
    clock: Clock,
    /// When the last piece arrived; `None` before the first.
    last: Option<Instant>,
    /// Wakes at the next deadline. Reset only when it wakes too early, not for every piece.
    alarm: Option<Pin<Box<Sleep>>>,
    bytes_left: u64,
    bytes_max: u64,
    encoding: Encoding,
    /// The request's place in a pool.
    place: Option<Place>,
}

impl Body {
    pub(crate) fn new(incoming: Incoming, clock: Clock, bytes_max: u64) -> Self {
        Self {
            incoming,
            clock,
            last: None,
            alarm: None,
            bytes_left: bytes_max,
            bytes_max,
            encoding: Encoding::Identity,
            place: None,
        }
    }

    /// A body that keeps the request's place until it ends.
    pub(crate) fn keeping(self, place: Option<Place>) -> Self {
        Self { place, ..self }
    }

    /// A body of an encoded answer.
    pub(crate) fn decoded(self, encoding: Encoding) -> Self {
        Self { encoding, ..self }
    }

    /// The next piece; `None` at the end.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Failure>>> {
        loop {
            match Pin::new(&mut self.incoming).poll_frame(cx) {
                Poll::Ready(None) => {
                    self.place = None;
                    return Poll::Ready(None);
                }
                Poll::Ready(Some(Err(e))) => return Poll::Ready(Some(Err(broken(&e)))),
                Poll::Ready(Some(Ok(frame))) => match Frame::into_data(frame) {
                    Ok(bytes) => return Poll::Ready(Some(self.decode(bytes))),
                    Err(_trailers) => {}
                },
                Poll::Pending => return self.poll_alarm(cx).map(|e| Some(Err(e))),
            }
        }
    }

    fn decode(&mut self, bytes: Bytes) -> Result<Bytes, Failure> {
        self.last = Some(Instant::now());
        let bytes = self.encoding.decode(bytes, self.bytes_left)?;
        match self.bytes_left.checked_sub(bytes.len() as u64) {
            Some(left) => self.bytes_left = left,
            None => {
                let what = format!("the answer is longer than {} bytes", self.bytes_max);
                return Err(Failure::protocol(what));
            }
        }
        Ok(bytes)
    }

    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        let limit = match self.last {
            None => self.clock.first(),
            Some(last) => self.clock.next(last),
        };
        let Some(due) = limit else { return Poll::Pending };
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due.at)));
        if alarm.deadline() > due.at {
            alarm.as_mut().reset(due.at);
        }
        loop {
            if alarm.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if alarm.deadline() >= due.at {
                return Poll::Ready(due.failure());
            }
            alarm.as_mut().reset(due.at);
        }
    }

    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, Failure>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The beginning of the body, until it is longer than `most`, and whether that is all.
    pub(crate) async fn beginning(&mut self, most: usize) -> Result<(BytesMut, bool), Failure> {
        let mut all = BytesMut::new();
        while all.len() <= most {
            match self.next().await {
                Some(piece) if all.is_empty() => all = BytesMut::from(piece?),
                Some(piece) => all.extend_from_slice(&piece?),
                None => return Ok((all, true)),
            }
        }
        Ok((all, false))
    }

    /// The whole body.
    pub(crate) async fn whole(mut self) -> Result<Bytes, Failure> {
        let Some(first) = self.next().await else { return Ok(Bytes::new()) };
        let first = first?;
        let Some(second) = self.next().await else { return Ok(first) };
        let mut all = BytesMut::from(first);
        all.extend_from_slice(&second?);
        while let Some(piece) = self.next().await {
            all.extend_from_slice(&piece?);
        }
        Ok(all.freeze())
    }

    /// Reads the rest of a complete answer. A connection in the middle of an answer cannot be reused.
    pub(crate) fn drain(mut self) {
        let rest = async move {
            let mut left = DRAIN_BYTES_MAX;
            while let Some(Ok(bytes)) = self.next().await {
                match left.checked_sub(bytes.len()) {
                    Some(n) => left = n,
                    None => return,
                }
            }
        };
        drop(tokio::spawn(tokio::time::timeout(DRAIN_TIME_MAX, rest)));
    }
}

fn broken(e: &hyper::Error) -> Failure {
    Failure::protocol(format!("the answer ended before it was complete: {}", chain(e)))
}

/// An error with its causes.
pub(crate) fn chain(e: &dyn std::error::Error) -> String {
    let mut out = e.to_string();
    let mut source = e.source();
    while let Some(e) = source {
        let text = e.to_string();
        if !out.contains(&text) {
            out.push_str(": ");
            out.push_str(&text);
        }
        source = e.source();
    }
    out
}
