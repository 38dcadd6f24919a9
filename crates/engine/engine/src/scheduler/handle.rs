//! What other threads hold of a running engine.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use super::work::{Command, Submission, work};
use super::{Options, RETRY, Shutdown};
use crate::Error;
use crate::engine::{Engine, Event, EventSink, Request, Rules, Stats, SubmitError};
use crate::experts::ExpertUsage;
use crate::models::config::Config;
use octet_compute::ExpertCounts;
use octet_compute::backend::CacheShape;

/// What is known of a loaded model.
#[derive(Debug, Clone)]
pub struct ModelInfo {
    /// Its dimensions.
    pub config: Config,
    /// Its caches.
    pub cache: CacheShape,
    /// What runs it, for people.
    pub backend: String,
    /// Most tokens of a step.
    pub batch_tokens: usize,
}

/// What the engine's thread and all handles share.
pub(super) struct Shared {
    pub rules: Arc<Rules>,
    pub info: ModelInfo,
    /// Sequences that may be here: those that run, and those that wait.
    places: usize,
    /// Places that are taken, but not with the engine yet.
    pub sent: AtomicUsize,
    /// Sequences that are with the engine.
    held: AtomicUsize,
    pub draining: AtomicBool,
    pub stop: AtomicBool,
    stats: Mutex<Stats>,
    experts: Arc<ExpertCounts>,
    /// What the device's memory gives, in bytes per second; 0 before it was measured.
    pub bandwidth: AtomicU64,
    /// Somebody wants to know.
    pub bandwidth_wanted: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Why the engine's device is lost, once it is.
    lost: Arc<OnceLock<String>>,
    ended: Arc<Mutex<Ended>>,
}

/// That an engine has ended, and who is to be told.
#[derive(Default)]
struct Ended {
    is_over: bool,
    listeners: Vec<Box<dyn FnOnce() + Send>>,
}

/// Tells when it is dropped.
struct TellsEnd(Arc<Mutex<Ended>>);

impl Drop for TellsEnd {
    fn drop(&mut self) {
        let mut ended = lock(&self.0);
        ended.is_over = true;
        let listeners = std::mem::take(&mut ended.listeners);
        drop(ended);
        listeners.into_iter().for_each(|tell| tell());
    }
}

/// A running engine. Clones are handles to the same one; when the last is dropped, the engine finishes what it has, and
/// ends.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    commands: Sender<Command>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Figures and a handle: a thread that panicked has not left them half-written.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Shows figures to whoever asks. A reader never holds the engine up: then they are shown next time.
    pub fn publish(&self, stats: &Stats) {
        self.held.store(stats.waiting + stats.running, Ordering::Release);
        if let Ok(mut shown) = self.stats.try_lock() {
            *shown = *stats;
        }
    }

    /// True where nothing more can come: no place is taken any more, and none is given.
    pub fn is_drained(&self) -> bool {
        self.draining.load(Ordering::SeqCst) && self.sent.load(Ordering::SeqCst) == 0
    }

    /// The same where there may be no next time, since there is nothing more to do.
    pub fn publish_at_rest(&self, stats: &Stats) {
        self.held.store(stats.waiting + stats.running, Ordering::Release);
        *lock(&self.stats) = *stats;
    }
}

/// A place in the queue, taken before the work of making a prompt: a flood is cheap to refuse. Dropped, it is free again.
pub struct Place(Arc<Shared>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.sent.fetch_sub(1, Ordering::SeqCst);
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").finish_non_exhaustive()
    }
}

impl Handle {
    /// Loads a model on a thread of its own. Returns when it is loaded; `progress` gets the bytes loaded so far and in
    /// all.
    pub fn open(
        file: octet_weights::Model,
        options: &Options,
        mut progress: impl FnMut(u64, u64) + Send + 'static,
    ) -> Result<Self, Error> {
        let engine = options.engine.clone();
        Self::start(options.queue, move || Engine::open(&file, &engine, &mut progress))
    }

    /// Makes an engine on a thread of its own, which then runs it. Returns when the engine is made. At most `queue`
    /// requests wait for their turn.
    pub fn start(
        queue: usize,
        open: impl FnOnce() -> Result<Engine, Error> + Send + 'static,
    ) -> Result<Self, Error> {
        let (commands, received) = channel();
        let (ready, opened) = channel();
        let queue = queue.max(1);
        let thread = std::thread::Builder::new().name("octet-engine".into());
        // The backend's team takes the thread that it is made on for one of its own: it must be this one.
        let ended = Arc::new(Mutex::new(Ended::default()));
        let tells_end = TellsEnd(Arc::clone(&ended));
        let thread = thread.spawn(move || {
            // Dropped last: the engine's memory is free when others hear that it has ended.
            let _tells_end = tells_end;
            // What it is made of (the file) is dropped with `open`.
            let mut engine = match open() {
                Ok(engine) => engine,
                Err(e) => {
                    let _ = ready.send(Err(e)); // nobody waits: nothing to tell
                    return;
                }
            };
            let shared = Arc::new(shared(&mut engine, queue, ended));
            if ready.send(Ok(Arc::clone(&shared))).is_ok() {
                drop(ready);
                work(&mut engine, &received, &shared);
            }
        });
        let thread = thread.map_err(|e| Error::Request(format!("no thread for the engine: {e}")))?;
        // No answer: it panicked while loading.
        let shared = opened.recv().map_err(|_| Error::Panicked)??;
        *lock(&shared.thread) = Some(thread);
        Ok(Self { shared, commands })
    }

    /// Queues a request. Its events come through the receiver; dropping that cancels it.
    pub fn submit(&self, request: Request) -> Result<Receiver<Event>, SubmitError> {
        let (send, events) = channel();
        self.submit_to(request, Box::new(send))?;
        Ok(events)
    }

    /// Takes a place in the queue for a request that is yet to be made. There are as many as may run and wait together.
    pub fn reserve(&self) -> Result<Place, SubmitError> {
        let s = &self.shared;
        let room = |sent: usize| (sent + s.held.load(Ordering::Acquire) < s.places).then_some(sent + 1);
        let place = match s.sent.fetch_update(Ordering::SeqCst, Ordering::Acquire, room) {
            Ok(_) => Ok(Place(Arc::clone(s))),
            Err(_) => Err(SubmitError::QueueFull { retry_after: self.retry_after() }),
        };
        // Looked at when the place is taken: a place that is given is one that the engine waits for.
        if s.draining.load(Ordering::SeqCst) {
            return Err(SubmitError::Stopping);
        }
        place
    }

    /// Queues a request whose events go to `sink`. Checks it first, on this thread.
    pub fn submit_to(&self, request: Request, sink: Box<dyn EventSink>) -> Result<(), SubmitError> {
        self.submit_in(self.reserve()?, request, sink)
    }

    /// The same, with a place that was taken before.
    pub fn submit_in(
        &self,
        place: Place,
        request: Request,
        sink: Box<dyn EventSink>,
    ) -> Result<(), SubmitError> {
        let prepared = self.shared.rules.prepare(request)?;
        let command = Command::Submit(Submission::new(prepared, sink, place));
        self.commands.send(command).map_err(|e| {
            if let Command::Submit(submission) = e.0 {
                submission.refuse();
            }
            SubmitError::Stopping
        })
    }

    fn retry_after(&self) -> std::time::Duration {
        let stats = self.stats();
        let turns = (stats.waiting + 1).div_ceil(self.shared.rules.max_seqs) as u32;
        (stats.service_time * turns).clamp(*RETRY.start(), *RETRY.end())
    }

    /// What requests are checked against: tokenizer, context, vocabulary.
    pub fn rules(&self) -> &Arc<Rules> {
        &self.shared.rules
    }
    /// The model that is served.
    pub fn info(&self) -> &ModelInfo {
        &self.shared.info
    }
    /// Figures as they were after the last step or so.
    pub fn stats(&self) -> Stats {
        *lock(&self.shared.stats)
    }

    /// Which experts its tokens went to since it was loaded; `None` for a dense model. The engine is not held up.
    pub fn experts(&self) -> Option<ExpertUsage> {
        ExpertUsage::read(&self.shared.info.config, &self.shared.experts)
    }

    /// Asks for [`Handle::bandwidth`] to be measured when the engine rests next. Takes 256 MiB for some tens of milliseconds.
    pub fn want_bandwidth(&self) {
        self.shared.bandwidth_wanted.store(true, Ordering::Relaxed);
    }

    /// Bytes per second that the device's memory gives: the limit of a decode step. `None` before it was measured, and on devices
    /// where that is not quick.
    pub fn bandwidth(&self) -> Option<u64> {
        Some(self.shared.bandwidth.load(Ordering::Relaxed)).filter(|&b| b > 0)
    }

    /// Takes no more requests, and ends. Returns at once; see [`Handle::join`]. `Now` after `Drain` cuts it short.
    pub fn shutdown(&self, how: Shutdown) {
        self.shared.draining.store(true, Ordering::SeqCst);
        self.shared.stop.fetch_or(how == Shutdown::Now, Ordering::AcqRel);
        let _ = self.commands.send(Command::Wake); // it has ended already
    }

    /// True when the engine has ended, or panicked: its memory is free.
    pub fn is_finished(&self) -> bool {
        lock(&self.shared.ended).is_over
    }

    /// Why the engine's device is lost, once it is: known before any listener of a request hears of it. Then the engine ends.
    pub fn lost(&self) -> Option<&str> {
        self.shared.lost.get().map(String::as_str)
    }

    /// Calls `tell` when the engine has ended, or panicked; at once where it has. It may not wait for anything.
    pub fn on_end(&self, tell: impl FnOnce() + Send + 'static) {
        let mut ended = lock(&self.shared.ended);
        if !ended.is_over {
            ended.listeners.push(Box::new(tell));
            return;
        }
        drop(ended);
        tell();
    }

    /// Waits until the thread has ended. Fails if it panicked.
    pub fn join(&self) -> Result<(), Error> {
        let thread = lock(&self.shared.thread).take();
        thread.map_or(Ok(()), |t| t.join().map_err(|_| Error::Panicked))
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("info", &self.shared.info).field("stats", &self.stats()).finish()
    }
}

fn shared(engine: &mut Engine, queue: usize, ended: Arc<Mutex<Ended>>) -> Shared {
    let model = engine.model();
    let info = ModelInfo {
        config: model.config().clone(),
        cache: model.cache_shape().clone(),
        backend: model.backend().describe(),
        batch_tokens: model.limits().batch_tokens,
    };
    let experts = Arc::clone(model.expert_counts());
    Shared {
        rules: Arc::clone(engine.rules()),
        info,
        places: queue.saturating_add(engine.rules().max_seqs),
        sent: AtomicUsize::new(0),
        held: AtomicUsize::new(0),
        draining: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        stats: Mutex::new(engine.stats()),
        experts,
        bandwidth: AtomicU64::new(0),
        bandwidth_wanted: AtomicBool::new(false),
        thread: Mutex::new(None),
        lost: Arc::clone(engine.lost()),
        ended,
    }
}
