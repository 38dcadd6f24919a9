//! The engine: a model, its caches, and the running requests, one step at a time. Synchronous: `octet run` drives it from its own
//! thread, and `scheduler` from one shared by all clients.
//!
//! Continuous batching: each step computes one token for each answer, and spends the rest of a budget on prompts. Requests join and
//! leave between steps. `admit` decides which requests run, `plan` divides a step among them, `finish` processes the logits. Tokens do
//! not depend on any of that: each is computed by the same operations in the same order, whatever else is in the batch, however its
//! prompt was split, and whatever was cached.

mod admit;
mod ahead;
pub mod beside;
mod choice;
mod event;
mod finish;
mod images;
mod line_limits;
mod masks;
mod options;
mod plan;
mod request;
mod single;
pub mod speculation;
mod stats;

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use octet_compute::Batch;
use octet_compute::batch::PAGE_TOKENS;
use octet_compute::picks::{PICKS, Pick};
use slab::Slab;

use crate::Error;
use crate::cache::{Cache, Contents, Found, Lease, TOKENS_MIN, fingerprint};
pub use crate::cache::{CacheStats, DiskOptions, DiskStats};
use crate::experts::ExpertUsage;
use crate::models::{self, Ahead, Model, config::Config, loader::Progress};
use crate::sampler::SamplerParams;
use crate::tokenizer::Tokenizer;
use choice::Choice;
pub use event::{Event, EventSink, Finish, Miss, MissReport, Timings, TokenLogprob, Usage};
pub use line_limits::LineLimits;
use masks::MaskWorker;
pub use octet_compute::TokenRoutes;
pub use options::{DEFAULT_CONTEXT, MIXED_TOKENS_MIN, Options, SNAPSHOTS_SINGLE};
pub use request::{Constraint, Pooling, Prepared, Request, Rules, SubmitError, TextEnd, ThinkingBudget};
pub use single::Answer;
pub use stats::Stats;

/// Maximum number of pages stored on disk after a step.
const PAGES_SAVED: usize = 8;

/// A request's id within an engine; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId {
    job: JobId,
    /// Counts requests from the engine's start.
    serial: u64,
}

/// Index of a request in [`Engine::jobs`]; reused after its end.
type JobId = usize;

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Something was computed; there may be more work.
    Worked,
    /// There is no work until a request arrives.
    Idle,
}

/// A request with unfinished answers.
struct Job {
    serial: u64,
    sink: Box<dyn EventSink>,
    /// The sink is closed, or has received its last event.
    closed: bool,
    failed: bool,
    salt: String,
    cache: bool,
    explain_miss: bool,
    routes: bool,
    checkpoints: Vec<usize>,
    /// Answers besides the first; they branch off when the prompt is complete.
    followers: Vec<Choice>,
    /// Number of unfinished answers.
    left: usize,
    submitted: Instant,
    admitted: Option<Instant>,
    cached: usize,
    seed: u64,
    prompt_logprobs: Option<Vec<TokenLogprob>>,
    pooling: Option<(Pooling, Vec<f32>)>,
}

/// A queued sequence: new or preempted.
struct Waiting {
    job: JobId,
    choice: Box<Choice>,
}

/// A running sequence.
struct Running {
    job: JobId,
    choice: Box<Choice>,
    lease: Lease,
    /// Where it resumes when all data has arrived from disk.
    found: Option<Box<Found>>,
    /// Number of its tokens in the step.
    planned: usize,
    /// Its first row of logits, and how many it has.
    row: usize,
    rows: usize,
    /// Number of its guesses in the step: the last of `planned`.
    guessed: usize,
    /// The step's row of its token at position `past`; and the number of its tokens that no drafter has read yet.
    first: usize,
    past: usize,
    fresh: usize,
    done: bool,
    /// The token with the largest logit of its last row, if the largest ones were found on the device.
    took: Option<u32>,
}

impl Running {
    fn new(job: JobId, choice: Box<Choice>, lease: Lease) -> Self {
        Self {
            job,
            choice,
            past: lease.computed,
            lease,
            found: None,
            planned: 0,
            row: 0,
            rows: 0,
            guessed: 0,
            first: 0,
            fresh: 0,
            done: false,
            took: None,
        }
    }

    /// The row of logits of its last certain token.
    fn last_row(&self) -> usize {
        self.row + self.rows.max(1 + self.guessed) - 1 - self.guessed
    }
}

/// A loaded model with its caches and requests.
pub struct Engine {
    model: Box<dyn Model>,
    /// In the order of admission. Dropped before `cache`, whose threads may be waiting to send data to them.
    running: Vec<Running>,
    cache: Cache,
    rules: Arc<Rules>,
    jobs: Slab<Job>,
    /// Number of requests submitted so far.
    submitted: u64,
    waiting: VecDeque<Waiting>,
    /// The state in which nothing more could be admitted.
    admission_blocked: Option<admit::AdmissionState>,
    batch: Batch,
    /// The step behind it, which is submitted if `is_ahead`.
    next: Batch,
    is_ahead: bool,
    bets_on_samples: bool,
    /// When the last step ended, if that is known; and when the host knew.
    step_ended: Option<Instant>,
    step_seen: Instant,
    plan: plan::Plan,
    speculation: speculation::Speculation,
    /// A span's tokens with its guesses.
    guessed: Vec<u32>,
    /// Maximum number of prompt tokens in a step with answers; see [`Options::step_time_max`].
    mixed_tokens: usize,
    step_time_max: Duration,
    masks: MaskWorker,
    /// Encodes images, if the model has a tower.
    images: Option<images::Images>,
    /// Time that images took in this step.
    encode_time: Duration,
    stats: Stats,
    /// Scratch: the largest logits of a row.
    picks: Vec<Pick>,
    /// Whether the last step found the largest logits of each row on the device, and did not read all of them back.
    is_picked: bool,
    /// Why the device is lost, if it is.
    lost: Arc<OnceLock<String>>,
}

impl Engine {
    /// Loads a model onto its device; `progress` gets the bytes loaded so far and in total.
    pub fn open(
        file: &octet_weights::Model,
        options: &Options,
        progress: Progress<'_>,
    ) -> Result<Self, Error> {
        let options = &options.for_config(&Config::read(file)?);
        let contents = options.disk.as_ref().map(|disk| Contents::new(file, &disk.dir));
        let (load, hash) = (file.size_bytes(), contents.as_ref().map_or(0, Contents::bytes));
        let (tokenizer, model) = beside::tokenizer(&file.metadata, |goes_on| {
            let mut loaded = |done: u64, _: u64| progress(done, load + hash);
            options.device().load_while(file, options.limits_for(file)?, &mut loaded, goes_on)
        })?;
        let mut hashed = |done: u64| progress(load + done, load + hash);
        let mut engine = Self::assemble(file, options, tokenizer, model, contents, &mut hashed)?;
        engine.speculation.measure(&mut *engine.model)?;
        Ok(engine)
    }

    /// An engine for a loaded model, within [`Options::limits`]. `file` has the tokenizer, the context and the sampling defaults.
    pub fn with_model(
        file: &octet_weights::Model,
        options: &Options,
        model: Box<dyn Model>,
    ) -> Result<Self, Error> {
        let options = &options.for_config(&Config::read(file)?);
        let contents = options.disk.as_ref().map(|disk| Contents::new(file, &disk.dir));
        let tokenizer = Tokenizer::from_metadata(&file.metadata)?;
        Self::assemble(file, options, tokenizer, model, contents, &mut |_| {})
    }

    fn assemble(
        file: &octet_weights::Model,
        options: &Options,
        tokenizer: Tokenizer,
        mut model: Box<dyn Model>,
        contents: Option<Contents<'_>>,
        hashed: &mut dyn FnMut(u64),
    ) -> Result<Self, Error> {
        let tokenizer = Arc::new(tokenizer);
        let made_for = models::context_length(file)?;
        let disk = match (&options.disk, contents) {
            (Some(disk), Some(contents)) => {
                let mut numerics = model.backend().numerics();
                if model.has_mtp() {
                    numerics.push_str(", mtp"); // pages have its keys and values too
                }
                let windowed = model.cache_shape().windowed.map_or("", |_| ", pages of windows");
                numerics.push_str(windowed); // pages then lack the keys and values of these layers
                Some((disk, fingerprint(contents, &numerics, options.kv, hashed)?))
            }
            _ => None,
        };
        let images = images::Images::open(file, options, &tokenizer, &mut *model)?;
        let speculation = speculation::Speculation::new(&options.speculation, file, &*model, options)?;
        let slot_bytes = model.cache_shape().slot_bytes() as u64;
        let snapshot_memory = options.snapshot_memory.unwrap_or(SNAPSHOTS_SINGLE as u64 * slot_bytes);
        let cache = Cache::new(&*model, snapshot_memory, disk)?;
        let context = options.context_for(made_for);
        let recommended = SamplerParams::from_metadata(&file.metadata, SamplerParams::default())?;
        let sampling = recommended.with(&options.sampling);
        let vocab = model.config().vocab;
        let sampleable = tokenizer.sampleable_mask(vocab);
        model.prepare_picks(&sampleable)?;
        let max_seqs = model.limits().slots;
        let table = context.div_ceil(PAGE_TOKENS) * (1 + usize::from(cache.has_windows()));
        Ok(Self {
            batch: Batch::with_capacity(model.limits().batch_tokens, max_seqs, max_seqs * table),
            // They change places.
            next: Batch::with_capacity(model.limits().batch_tokens, max_seqs, max_seqs * table),
            is_ahead: false,
            bets_on_samples: false,
            step_ended: None,
            step_seen: Instant::now(),
            rules: Arc::new(Rules {
                sampleable,
                tokenizer,
                is_encoder: model.config().encoder().is_some(),
                images: images.as_ref().map(|i| Arc::clone(&i.reader)),
                sampling,
                vocab,
                context,
                capacity: cache.pool().capacity() - PAGE_TOKENS,
                max_seqs,
                guesses: speculation.most(),
                uses_lookup: speculation.uses_lookup(),
            }),
            plan: plan::Plan::with_capacity(max_seqs),
            running: Vec::with_capacity(max_seqs),
            mixed_tokens: model.limits().batch_tokens.min(4 * MIXED_TOKENS_MIN),
            step_time_max: options.step_time_max,
            guessed: Vec::with_capacity(1 + speculation.most()),
            speculation,
            model,
            cache,
            jobs: Slab::new(),
            submitted: 0,
            waiting: VecDeque::new(),
            admission_blocked: None,
            masks: MaskWorker::default(),
            images,
            encode_time: Duration::ZERO,
            stats: Stats::default(),
            picks: Vec::with_capacity(PICKS),
            is_picked: false,
            lost: Arc::default(),
        })
    }

    /// The checks of requests, to be run on other threads.
    pub fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }
    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.rules.tokenizer
    }
    /// Default sampling settings of the model's files.
    pub fn sampling(&self) -> &SamplerParams {
        &self.rules.sampling
    }
    /// Maximum number of tokens of a sequence.
    pub fn context(&self) -> usize {
        self.rules.context
    }
    /// Its device is lost: no further request can be served. It must be opened again.
    pub fn is_broken(&self) -> bool {
        self.lost.get().is_some()
    }
    /// Why its device is lost, if it is: set before any sink is notified.
    pub(crate) fn lost(&self) -> &Arc<OnceLock<String>> {
        &self.lost
    }
    /// The backend.
    pub fn backend(&mut self) -> &mut dyn models::Inspect {
        self.model.backend()
    }
    /// The model itself.
    pub(crate) fn model(&mut self) -> &mut dyn Model {
        &mut *self.model
    }

    /// Enables guessing, if it was opened with it; for measurements. Results must be the same without guesses.
    pub fn set_guessing(&mut self, on: bool) {
        self.speculation.paused = !on;
    }

    /// Measured costs of guesses, if it was opened with them.
    pub fn guess_costs(&self) -> speculation::Costs {
        self.speculation.costs(&*self.model)
    }

    /// Current figures.
    pub fn stats(&self) -> Stats {
        Stats {
            running: self.running.len(),
            waiting: self.waiting.len(),
            cache: self.cache.stats(),
            speculation: self.speculation.stats,
            ..self.stats
        }
    }

    /// Expert usage since it was opened; `None` for a dense model.
    pub fn experts(&self) -> Option<ExpertUsage> {
        ExpertUsage::read(self.model.config(), self.model.expert_counts())
    }

    /// Queues a request checked by [`Rules::prepare`].
    pub fn submit(&mut self, request: Prepared, sink: Box<dyn EventSink>) -> RequestId {
        let mut choices = request.choices.into_iter();
        let first = choices.next();
        let followers: Vec<_> = choices.collect();
        let serial = self.submitted;
        self.submitted += 1;
        let job = self.jobs.insert(Job {
            serial,
            sink,
            closed: false,
            failed: false,
            salt: request.cache_salt.unwrap_or_default(),
            cache: request.cache,
            explain_miss: request.explain_miss,
            routes: request.routes,
            checkpoints: request.checkpoints,
            left: 1 + followers.len(),
            followers,
            submitted: request.submitted,
            admitted: None,
            cached: 0,
            seed: request.seed,
            prompt_logprobs: request.prompt_logprobs.then(Vec::new),
            pooling: request.pooling.map(|p| (p, Vec::new())),
        });
        self.waiting.extend(first.map(|choice| Waiting { job, choice: Box::new(choice) }));
        RequestId { job, serial }
    }

    /// Cancels a request, which gets no further event. Does nothing if it is finished.
    pub fn cancel(&mut self, id: RequestId) {
        if let Some(job) = self.jobs.get_mut(id.job).filter(|job| job.serial == id.serial) {
            job.closed = true;
        }
    }

    /// Runs one step.
    pub fn step(&mut self) -> Step {
        self.drop_closed();
        let was_submitted = self.take_next();
        if !was_submitted {
            self.admit();
            if self.running.is_empty() {
                return Step::Idle;
            }
            self.take_arrivals();
            self.plan_step();
            self.encode_images();
            if self.batch.is_empty() {
                return Step::Worked;
            }
        }
        // Before the masks are computed elsewhere: a choice whose constraint is away looks as if it had none.
        let needs_few = was_submitted || self.needs_few();
        self.masks.send(&mut self.running);
        let routes = self.running.iter().any(|r| self.jobs[r.job].routes);
        self.model.expert_counts().trace(routes);
        let goes_ahead = needs_few && self.plan_next(was_submitted);
        // The device began a submitted step when the one before ended.
        let start = if was_submitted { self.step_ended } else { Some(Instant::now()) };
        let computed = if was_submitted || goes_ahead {
            self.model.step_ahead(&self.batch, goes_ahead.then_some(&self.next)).map(|ahead| (true, ahead))
        } else {
            let picked = if needs_few {
                self.model.step_picking(&self.batch)
            } else {
                self.model.step(&self.batch).map(|_| false)
            };
            picked.map(|is_picked| (is_picked, Ahead { was_running: true, is_next_submitted: false }))
        };
        let was_running = computed.as_ref().is_ok_and(|(_, ahead)| ahead.was_running);
        self.is_ahead = computed.as_ref().is_ok_and(|(_, ahead)| ahead.is_next_submitted);
        self.is_picked = matches!(computed, Ok((true, _)));
        self.stats.picked_steps += u64::from(self.is_picked);
        let now = Instant::now();
        let known = start.filter(|_| was_running).map(|start| now - start);
        let time = known.unwrap_or_else(|| self.stats.step_time_last.min(now - self.step_seen));
        (self.step_ended, self.step_seen) = (was_running.then_some(now), now);
        self.stats.step_bytes = self.model.backend().bytes_read().unwrap_or(0);
        self.stats.store = self.model.backend().store_stats();
        let (failed, masks) = self.masks.receive(&mut self.running);
        for (id, e) in failed {
            self.fail(id, Error::Constraint(e));
        }
        self.record_time(time, known.is_some());
        self.encode_time = Duration::ZERO;
        if masks.masks > 0 {
            self.stats.masked_steps += 1;
            self.stats.masked_step_time += time + masks.waited;
            self.stats.mask_time += masks.computed;
            self.stats.mask_wait_time += masks.waited;
        }
        if let Err(e) = computed {
            // The states of all running sequences are undefined.
            self.device_failed(&e);
            return Step::Worked;
        }
        self.finish_step();
        self.cache.save_pages(&mut *self.model, PAGES_SAVED);
        Step::Worked
    }

    /// Whether the largest logits of each row suffice to choose all tokens of this step.
    fn needs_few(&self) -> bool {
        self.running.iter().filter(|r| r.planned > 0).all(|r| {
            let job = &self.jobs[r.job];
            job.prompt_logprobs.is_none()
                && r.choice.needs_few()
                && job.followers.iter().all(Choice::needs_few)
        })
    }

    /// Stores a part of the cache on disk, when idle. False if everything is stored.
    pub fn save_some(&mut self) -> bool {
        self.cache.save_pages(&mut *self.model, PAGES_SAVED) || self.cache.save_next(&mut *self.model)
    }

    /// Stores the cache on disk, as far as configured and possible, and waits for the end.
    pub fn flush(&mut self) {
        self.cache.flush(&mut *self.model);
    }

    /// Cancels all requests, and sends the reason to each sink.
    pub fn stop(&mut self) {
        self.fail_all(|| Error::Stopped);
        self.drop_closed();
    }

    /// Sends a failure to all sinks. Accesses nothing else: the engine may have panicked.
    pub(crate) fn fail_all(&mut self, error: impl Fn() -> Error) {
        let ids: Vec<JobId> = self.jobs.iter().map(|(id, _)| id).collect();
        for id in ids {
            self.fail(id, error());
        }
    }

    /// Clears the cache.
    pub fn clear(&mut self) {
        self.cache.clear();
    }

    /// Checks that every page and slot is accounted for. For tests.
    pub fn audit(&self) -> Result<(), String> {
        self.cache.audit(self.running.iter().map(|r| &r.lease))
    }

    /// Guesses the tokens after this step.
    fn speculate(&mut self) {
        let start = Instant::now();
        let Self { model, cache, running, jobs: _, speculation, .. } = self;
        let mut work = speculation::Work { model: &mut **model, cache, running };
        if let Err(e) = speculation.draft(&mut work) {
            self.device_failed(&e);
        }
        self.stats.draft_time += start.elapsed();
    }

    /// Sends the device's failure to all sinks.
    fn device_failed(&mut self, why: &impl std::fmt::Display) {
        let why = why.to_string();
        let of_images = self.images.as_ref().is_some_and(images::Images::is_lost);
        if self.model.backend().is_lost() || of_images {
            self.lost.get_or_init(|| why.clone());
        }
        self.fail_all(|| Error::Device(why.clone()));
        // Disconnected requests must not be cached either.
        self.jobs.iter_mut().for_each(|(_, job)| job.failed = true);
        self.drop_closed();
    }

    /// Sends the failure to the request's sink, and cancels the rest.
    fn fail(&mut self, id: JobId, error: Error) {
        if let Some(job) = self.jobs.get_mut(id)
            && !job.closed
        {
            (job.closed, job.failed) = (true, true);
            // The request is finished either way.
            let _ = job.sink.send(Event::Failed(error));
        }
    }

    /// Removes requests whose sinks are closed. The computed part of their prompts is cached: clients that give up often retry.
    fn drop_closed(&mut self) {
        let mut any = false;
        for (_, job) in &mut self.jobs {
            job.closed |= job.sink.is_closed();
            any |= job.closed;
        }
        if !any {
            return;
        }
        self.waiting.retain(|w| !self.jobs[w.job].closed);
        let mut i = 0;
        while i < self.running.len() {
            if self.jobs[self.running[i].job].closed {
                let mut r = self.running.remove(i);
                let failed = self.jobs[r.job].failed;
                if !failed && r.lease.computed >= r.lease.kept + TOKENS_MIN {
                    self.cache.keep(&mut *self.model, &mut r.lease, &r.choice.tokens);
                }
                self.cache.release(r.lease);
            } else {
                i += 1;
            }
        }
        let stats = &mut self.stats;
        self.jobs.retain(|_, job| {
            match (job.closed, job.failed) {
                (true, true) => stats.failed += 1,
                (true, false) => stats.cancelled += 1,
                (false, _) => {}
            }
            !job.closed
        });
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("rules", &self.rules).field("stats", &self.stats()).finish()
    }
}
