//! Handles to a running engine, for other threads.

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

/// Facts about a loaded model.
#[derive(Debug, Clone)]
pub struct ModelInfo {
    /// Its dimensions.
    pub config: Config,
    /// Its caches' sizes.
    pub cache: CacheShape,
    /// A description of its backend.
    pub backend: String,
    /// Maximum number of tokens per step.
    pub batch_tokens: usize,
}

/// State shared by the engine's thread and all handles.
pub(super) struct Shared {
    pub rules: Arc<Rules>,
    pub info: ModelInfo,
    /// Maximum number of sequences, running and waiting.
    places: usize,
    /// Reserved slots whose requests the engine has not received yet.
    pub sent: AtomicUsize,
    /// Sequences that the engine has.
    held: AtomicUsize,
    pub draining: AtomicBool,
    pub stop: AtomicBool,
    stats: Mutex<Stats>,
    experts: Arc<ExpertCounts>,
    /// Memory bandwidth of the device in bytes per second; 0 if not measured yet.
    pub bandwidth: AtomicU64,
    /// A measurement was requested.
    pub bandwidth_wanted: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Why the engine's device is lost, if it is.
    lost: Arc<OnceLock<String>>,
    ended: Arc<Mutex<Ended>>,
}

/// Whether an engine has ended, and callbacks for its end.
#[derive(Default)]
struct Ended {
    is_over: bool,
    listeners: Vec<Box<dyn FnOnce() + Send>>,
}

/// Runs the callbacks when dropped.
struct NotifyEnd(Arc<Mutex<Ended>>);

impl Drop for NotifyEnd {
    fn drop(&mut self) {
        let mut ended = lock(&self.0);
        ended.is_over = true;
        let listeners = std::mem::take(&mut ended.listeners);
        drop(ended);
        listeners.into_iter().for_each(|tell| tell());
    }
}

/// A running engine. Clones are handles to the same one; when the last is dropped, the engine finishes its requests and ends.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    commands: Sender<Command>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // These values are consistent even if a thread panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Publishes statistics. If a reader holds the lock, they are published next time.
    pub fn publish(&self, stats: &Stats) {
        self.held.store(stats.waiting + stats.running, Ordering::Release);
        if let Ok(mut shown) = self.stats.try_lock() {
            *shown = *stats;
        }
    }

    /// True if no request can come any more: no slot is reserved, and none will be.
    pub fn is_drained(&self) -> bool {
        self.draining.load(Ordering::SeqCst) && self.sent.load(Ordering::SeqCst) == 0
    }

    /// The same before the engine goes idle: waits for the lock.
    pub fn publish_at_rest(&self, stats: &Stats) {
        self.held.store(stats.waiting + stats.running, Ordering::Release);
        *lock(&self.stats) = *stats;
    }
}

/// A reserved slot in the queue. Reserved before the prompt is rendered, so that excess requests are refused cheaply. Released when
/// dropped.
pub struct QueueSlot(Arc<Shared>);

impl Drop for QueueSlot {
    fn drop(&mut self) {
        self.0.sent.fetch_sub(1, Ordering::SeqCst);
    }
}

impl std::fmt::Debug for QueueSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueSlot").finish_non_exhaustive()
    }
}

impl Handle {
    /// Loads a model on its own thread. Returns when it is loaded; `progress` gets the bytes loaded so far and in total.
    pub fn open(
        file: octet_weights::Model,
        options: &Options,
        mut progress: impl FnMut(u64, u64) + Send + 'static,
    ) -> Result<Self, Error> {
        let engine = options.engine.clone();
        Self::start(options.queue, move || Engine::open(&file, &engine, &mut progress))
    }

    /// Creates an engine on its own thread, which then runs it. Returns when the engine exists. At most `queue` requests may wait.
    pub fn start(
        queue: usize,
        open: impl FnOnce() -> Result<Engine, Error> + Send + 'static,
    ) -> Result<Self, Error> {
        let (commands, received) = channel();
        let (ready, opened) = channel();
        let queue = queue.max(1);
        let thread = std::thread::Builder::new().name("octet-engine".into());
        // The backend's team includes the thread that creates it: it must be this one.
        let ended = Arc::new(Mutex::new(Ended::default()));
        let tells_end = NotifyEnd(Arc::clone(&ended));
        let thread = thread.spawn(move || {
            // Dropped last: the engine's memory is free when the callbacks run.
            let _tells_end = tells_end;
            // Its inputs (the file) are dropped with `open`.
            let mut engine = match open() {
                Ok(engine) => engine,
                Err(e) => {
                    let _ = ready.send(Err(e)); // Without a receiver there is nothing to report.
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

    /// Queues a request. Its events arrive through the receiver; dropping that cancels it.
    pub fn submit(&self, request: Request) -> Result<Receiver<Event>, SubmitError> {
        let (send, events) = channel();
        self.submit_to(request, Box::new(send))?;
        Ok(events)
    }

    /// Reserves a queue slot for a request in preparation. There are as many slots as requests may run and wait.
    pub fn reserve(&self) -> Result<QueueSlot, SubmitError> {
        let s = &self.shared;
        let room = |sent: usize| (sent + s.held.load(Ordering::Acquire) < s.places).then_some(sent + 1);
        let place = match s.sent.fetch_update(Ordering::SeqCst, Ordering::Acquire, room) {
            Ok(_) => Ok(QueueSlot(Arc::clone(s))),
            Err(_) => Err(SubmitError::QueueFull { retry_after: self.retry_after() }),
        };
        // Checked after the slot is taken: the engine waits for slots that were given out.
        if s.draining.load(Ordering::SeqCst) {
            return Err(SubmitError::Stopping);
        }
        place
    }

    /// Queues a request whose events go to `sink`. Checks it first, on this thread.
    pub fn submit_to(&self, request: Request, sink: Box<dyn EventSink>) -> Result<(), SubmitError> {
        self.submit_in(self.reserve()?, request, sink)
    }

    /// The same with a reserved slot.
    pub fn submit_in(
        &self,
        place: QueueSlot,
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

    /// The checks of requests: tokenizer, context, vocabulary.
    pub fn rules(&self) -> &Arc<Rules> {
        &self.shared.rules
    }
    /// The model that is served.
    pub fn info(&self) -> &ModelInfo {
        &self.shared.info
    }
    /// Recent statistics.
    pub fn stats(&self) -> Stats {
        *lock(&self.shared.stats)
    }

    /// Expert usage since the model was loaded; `None` for a dense model. Does not block the engine.
    pub fn experts(&self) -> Option<ExpertUsage> {
        ExpertUsage::read(&self.shared.info.config, &self.shared.experts)
    }

    /// Requests a measurement of [`Handle::bandwidth`] when the engine is idle. Uses 256 MiB for some tens of milliseconds.
    pub fn request_bandwidth(&self) {
        self.shared.bandwidth_wanted.store(true, Ordering::Relaxed);
    }

    /// Memory bandwidth of the device in bytes per second, the limit of a decode step. `None` before it was measured, and on devices
    /// that have no memory to spare for it.
    pub fn bandwidth(&self) -> Option<u64> {
        Some(self.shared.bandwidth.load(Ordering::Relaxed)).filter(|&b| b > 0)
    }

    /// Accepts no more requests, and ends. Returns at once; see [`Handle::join`]. `Now` after `Drain` cancels the rest.
    pub fn shutdown(&self, how: Shutdown) {
        self.shared.draining.store(true, Ordering::SeqCst);
        self.shared.stop.fetch_or(how == Shutdown::Now, Ordering::AcqRel);
        let _ = self.commands.send(Command::Wake); // it has ended already
    }

    /// True if the engine has ended or panicked: its memory is free.
    pub fn is_finished(&self) -> bool {
        lock(&self.shared.ended).is_over
    }

    /// Why the engine's device is lost, if it is: set before any request's sink is notified. The engine then ends.
    pub fn lost(&self) -> Option<&str> {
        self.shared.lost.get().map(String::as_str)
    }

    /// Calls `tell` when the engine has ended or panicked; at once if it has. `tell` must not block.
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
