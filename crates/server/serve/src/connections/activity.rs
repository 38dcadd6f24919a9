//! The state of a connection: whether it is idle, and whether it may be closed to make room for a new one. Updated by requests and by the
//! socket (`linger`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::Instant;

use super::pace::{IDLE_MIN, Pace};

/// The state of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) enum At {
    /// Idle since then: no request, or incomplete headers.
    Idle(Instant),
    /// A request's body is arriving.
    Body(Pace),
    /// A request is being processed or answered.
    Answer,
}

/// The state of a connection, as far as its socket needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// No request is on it.
    Idle,
    /// A request is arriving.
    Request,
    /// A request is being processed or answered.
    Answer,
}

/// The order in which connections are closed for new ones: the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvictionOrder {
    /// Idle for this long.
    Idle(std::cmp::Reverse<Duration>),
    /// Receives a body slowly: bytes per second.
    Slow(u64),
}

/// The shared state of a connection.
#[derive(Debug)]
pub struct Activity {
    at: Mutex<At>,
    began: Instant,
    /// Its client has not yet received the last bytes.
    flushing: AtomicBool,
    /// A request was answered before all of it had arrived.
    unread: AtomicBool,
    pub(super) leave: Notify,
    /// Close it at once, whatever its state.
    pub(super) dropped: AtomicBool,
    /// The rest of the arriving body is refused.
    pub(super) refused: AtomicBool,
    /// The task that reads that body.
    pub(super) body: AtomicWaker,
    /// Its permit among the maximum number of connections.
    place: Mutex<Option<OwnedSemaphorePermit>>,
    /// Its client understands interim responses (1xx): it speaks HTTP/1.1.
    pub(super) knows_interim: AtomicBool,
    /// Over HTTP/2, the requests that are on it; `None` over HTTP/1.
    streams: Mutex<Option<Vec<Arc<Activity>>>>,
    /// For one of these requests, its connection.
    connection: Weak<Activity>,
}

impl Activity {
    /// For a new connection.
    pub fn new(place: OwnedSemaphorePermit) -> Arc<Self> {
        Arc::new(Self::made(Some(place)))
    }

    fn made(place: Option<OwnedSemaphorePermit>) -> Self {
        let now = Instant::now();
        Self {
            at: Mutex::new(At::Idle(now)),
            began: now,
            flushing: AtomicBool::new(false),
            unread: AtomicBool::new(false),
            leave: Notify::new(),
            dropped: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            body: AtomicWaker::new(),
            place: Mutex::new(place),
            knows_interim: AtomicBool::new(false),
            streams: Mutex::default(),
            connection: Weak::new(),
        }
    }

    fn streams(&self) -> MutexGuard<'_, Option<Vec<Arc<Self>>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allows several requests at once from now on (HTTP/2).
    pub fn multiplex(&self) {
        self.streams().get_or_insert_default();
    }

    /// Adds a request (HTTP/2).
    pub(super) fn stream(self: &Arc<Self>) -> Arc<Self> {
        let stream = Arc::new(Self { connection: Arc::downgrade(self), ..Self::made(None) });
        self.set(At::Answer);
        self.streams().get_or_insert_default().push(Arc::clone(&stream));
        stream
    }

    /// The request was answered or cancelled.
    pub(super) fn end_request(self: &Arc<Self>) {
        self.set(At::Idle(Instant::now()));
        let Some(connection) = self.connection.upgrade() else { return };
        let mut streams = connection.streams();
        let Some(streams) = streams.as_mut() else { return };
        streams.retain(|stream| !Arc::ptr_eq(stream, self));
        if streams.is_empty() {
            connection.set(At::Idle(Instant::now()));
        }
    }

    /// Its state.
    pub fn stage(&self) -> Stage {
        match self.at() {
            At::Idle(_) => Stage::Idle,
            At::Body(_) => Stage::Request,
            At::Answer => Stage::Answer,
        }
    }

    /// How long it has been idle.
    pub fn idle_for(&self) -> Option<Duration> {
        match self.at() {
            At::Idle(since) => Some(since.elapsed()),
            At::Body(_) | At::Answer => None,
        }
    }

    /// Whether its client understands interim responses (1xx).
    pub fn knows_interim(&self) -> bool {
        self.knows_interim.load(Ordering::Relaxed)
    }

    /// Whether its client has not yet received all bytes.
    pub fn is_flushing(&self) -> bool {
        self.flushing.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, at: At) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    pub(super) fn at(&self) -> At {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether there are bytes that the client has not yet received.
    pub fn flushing(&self, yes: bool) {
        self.flushing.store(yes, Ordering::Relaxed);
    }

    /// A request was answered before all of it had arrived.
    pub fn set_unread(&self) {
        self.unread.store(true, Ordering::Relaxed);
    }

    /// See [`Activity::set_unread`].
    pub fn is_unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed)
    }

    /// When it was accepted.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Its place in the eviction order; `None` if it must not be closed.
    pub fn eviction_order(&self) -> Option<EvictionOrder> {
        let now = Instant::now();
        if let Some(streams) = self.streams().as_ref().filter(|s| !s.is_empty()) {
            // It may be closed only if all of its requests are slow bodies.
            let slow = |stream: &Arc<Self>| match stream.at() {
                At::Body(pace) => pace.slow(now),
                At::Idle(_) | At::Answer => None,
            };
            let rates: Option<Vec<u64>> = streams.iter().map(slow).collect();
            return rates.filter(|_| !self.is_flushing()).map(|r| EvictionOrder::Slow(r.iter().sum()));
        }
        match self.at() {
            _ if self.is_flushing() => None,
            At::Idle(since) => Some(now - since)
                .filter(|t| *t >= IDLE_MIN)
                .map(|t| EvictionOrder::Idle(std::cmp::Reverse(t))),
            At::Body(pace) => pace.slow(now).map(EvictionOrder::Slow),
            At::Answer => None,
        }
    }

    /// Whether a client is waiting for an answer on it.
    pub(super) fn is_needed(&self) -> bool {
        let answers = |stream: &Self| matches!(stream.at(), At::Answer);
        let answers = match self.streams().as_ref() {
            Some(streams) => streams.iter().any(|stream| answers(stream)),
            None => answers(self),
        };
        answers || self.is_flushing()
    }

    /// Refuses the rest of the arriving body.
    fn refuse(&self) {
        self.refused.store(true, Ordering::Release);
        self.body.wake();
    }

    /// Closes it and returns its permit; `None` if it was evicted before. With a permit in `parting`, a client that is sending a
    /// body gets an error response first.
    pub fn evict(&self, parting: Option<OwnedSemaphorePermit>) -> Option<OwnedSemaphorePermit> {
        let mut held = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let place = held.take()?;
        let streams: Vec<Arc<Self>> = self.streams().iter().flatten().map(Arc::clone).collect();
        if (matches!(self.at(), At::Body(_)) || !streams.is_empty()) && parting.is_some() {
            *held = parting;
            self.refuse();
            streams.iter().for_each(|stream| stream.refuse());
        }
        self.leave.notify_one();
        Some(place)
    }

    /// Closes it at once and returns its permit.
    pub fn end(&self) -> Option<OwnedSemaphorePermit> {
        self.dropped.store(true, Ordering::Release);
        self.evict(None)
    }
}
