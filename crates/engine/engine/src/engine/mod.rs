//! The engine: a model, its caches, and the requests that it works on, one step at a time. Synchronous: `octet run` drives
//! it from its own thread, and `scheduler` from one that it shares with everybody.
//!
//! Continuous batching: every step feeds each answer its last token, and spends the rest of a budget on prompts. Requests
//! join and leave between steps. `admit` says who runs, `plan` who gets how much of a step, `finish` what becomes of the
//! logits. Tokens do not depend on any of that: each is computed by the same operations in the same order, whatever else
//! is in the batch, however its prompt was cut, and whatever came from the cache.

mod admit;
mod choice;
mod event;
mod finish;
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
use crate::models::{self, Model, loader::Progress};
use crate::sampler::SamplerParams;
use crate::tokenizer::Tokenizer;
use choice::Choice;
pub use event::{Event, EventSink, Finish, Miss, MissReport, Timings, TokenLogprob, Usage};
use masks::MaskWorker;
pub use octet_compute::TokenRoutes;
pub use options::{DEFAULT_CONTEXT, MIXED_TOKENS_MIN, Options, SNAPSHOTS_SINGLE};
pub use request::{Constraint, Pooling, Prepared, Request, Rules, SubmitError, ThinkingBudget};
pub use single::Answer;
pub use stats::Stats;

/// Pages that are copied out for the disk after a step.
const PAGES_SAVED: usize = 8;

/// Name of a request within an engine; no other request ever has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId {
    job: JobId,
    /// Counted from the engine's first request on.
    serial: u64,
}

/// Place of a request in [`Engine::jobs`]: another's when the request is over.
type JobId = usize;

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Something was computed; there may be more to do.
    Worked,
    /// There is nothing to do until a request comes.
    Idle,
}

/// A request, as long as one of its answers is not finished.
struct Job {
    serial: u64,
    sink: Box<dyn EventSink>,
    /// The listener is gone, or has got its last event.
    closed: bool,
    failed: bool,
    salt: String,
    cache: bool,
    explain_miss: bool,
    routes: bool,
    checkpoints: Vec<usize>,
    /// Answers besides the first; they branch off when the prompt is done.
    followers: Vec<Choice>,
    /// Answers that are not finished.
    left: usize,
    submitted: Instant,
    admitted: Option<Instant>,
    cached: usize,
    seed: u64,
    prompt_logprobs: Option<Vec<TokenLogprob>>,
    pooling: Option<(Pooling, Vec<f32>)>,
}

/// A sequence in the queue: new, or put back.
struct Waiting {
    job: JobId,
    choice: Box<Choice>,
}

/// A sequence on the model.
struct Running {
    job: JobId,
    choice: Box<Choice>,
    lease: Lease,
    /// Where it goes on once all has come from disk.
    found: Option<Box<Found>>,
    /// Tokens of it in the step.
    planned: usize,
    /// Its first row of logits, and how many it has.
    row: usize,
    rows: usize,
    /// Guesses of it in the step: the last of `planned`.
    guessed: usize,
    /// Row of the step's token at position `past`, its first one there; and how many tokens of it no drafter has looked at yet.
    first: usize,
    past: usize,
    fresh: usize,
    done: bool,
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
        }
    }

    /// The row of logits of its last token that is certain.
    fn last_row(&self) -> usize {
        self.row + self.rows.max(1 + self.guessed) - 1 - self.guessed
    }
}

/// A loaded model at work.
pub struct Engine {
    model: Box<dyn Model>,
    /// In the order in which they were admitted. Dropped before `cache`, whose threads may be waiting to tell them of
    /// something that they have read.
    running: Vec<Running>,
    cache: Cache,
    rules: Arc<Rules>,
    jobs: Slab<Job>,
    /// Requests that were submitted so far.
    submitted: u64,
    waiting: VecDeque<Waiting>,
    /// When nobody more could be admitted.
    looked: Option<admit::AdmissionState>,
    batch: Batch,
    plan: plan::Plan,
    speculation: speculation::Speculation,
    /// A span's tokens with its guesses.
    guessed: Vec<u32>,
    /// Most tokens of prompts in a step that has answers too; see [`Options::step_time_max`].
    mixed_tokens: usize,
    step_time_max: Duration,
    masks: MaskWorker,
    stats: Stats,
    /// The largest logits of a row, and whether the last step found those instead of reading all.
    picks: Vec<Pick>,
    is_picked: bool,
    /// Why the device is lost, as soon as it is.
    lost: Arc<OnceLock<String>>,
}

impl Engine {
    /// Loads a model onto its device; `progress` gets the bytes loaded so far and in all.
    pub fn open(
        file: &octet_weights::Model,
        options: &Options,
        progress: Progress<'_>,
    ) -> Result<Self, Error> {
        // First what can fail at once.
        let tokenizer = Tokenizer::from_metadata(&file.metadata)?;
        let limits = options.limits(models::context_length(file)?, 0)?;
        let contents = options.disk.as_ref().map(|disk| Contents::new(file, &disk.dir));
        let (load, hash) = (file.size_bytes(), contents.as_ref().map_or(0, Contents::bytes));
        let mut loaded = |done: u64, _: u64| progress(done, load + hash);
        let model = options.device().load(file, limits, &mut loaded)?;
        let mut hashed = |done: u64| progress(load + done, load + hash);
        let mut engine = Self::assemble(file, options, tokenizer, model, contents, &mut hashed)?;
        engine.speculation.measure(&mut *engine.model)?;
        Ok(engine)
    }

    /// An engine around a model that is loaded already, within [`Options::limits`]. `file` gives the tokenizer, the
    /// context and the sampling defaults.
    pub fn with_model(
        file: &octet_weights::Model,
        options: &Options,
        model: Box<dyn Model>,
    ) -> Result<Self, Error> {
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
                Some((disk, fingerprint(contents, &numerics, options.kv, hashed)?))
            }
            _ => None,
        };
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
        let table = context.div_ceil(PAGE_TOKENS);
        Ok(Self {
            batch: Batch::with_capacity(model.limits().batch_tokens, max_seqs, max_seqs * table),
            rules: Arc::new(Rules {
                sampleable,
                tokenizer,
                sampling,
                vocab,
                context,
                capacity: cache.pool().capacity() - PAGE_TOKENS,
                max_seqs,
                guesses: speculation.most(),
                looks_up: speculation.looks_up(),
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
            looked: None,
            masks: MaskWorker::default(),
            stats: Stats::default(),
            picks: Vec::with_capacity(PICKS),
            is_picked: false,
            lost: Arc::default(),
        })
    }

    /// What requests are checked against, to be done on other threads.
    pub fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }
    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.rules.tokenizer
    }
    /// Sampling that the model's files ask for.
    pub fn sampling(&self) -> &SamplerParams {
        &self.rules.sampling
    }
    /// Most tokens of a sequence.
    pub fn context(&self) -> usize {
        self.rules.context
    }
    /// Its device is lost: no request can be served any more. It has to be opened again.
    pub fn is_broken(&self) -> bool {
        self.lost.get().is_some()
    }
    /// Why its device is lost, once it is: known before any listener hears of it.
    pub(crate) fn lost(&self) -> &Arc<OnceLock<String>> {
        &self.lost
    }
    /// What runs the model.
    pub fn backend(&mut self) -> &mut dyn models::Inspect {
        self.model.backend()
    }
    /// The model itself.
    pub(crate) fn model(&mut self) -> &mut dyn Model {
        &mut *self.model
    }

    /// Whether it guesses, as far as it was opened to; for measurements. Everything said with guesses must be the same without.
    pub fn set_guessing(&mut self, on: bool) {
        self.speculation.paused = !on;
    }

    /// What guesses cost here, as far as it was opened to guess.
    pub fn guess_costs(&self) -> speculation::Costs {
        self.speculation.costs(&*self.model)
    }

    /// Figures as they are now.
    pub fn stats(&self) -> Stats {
        Stats {
            running: self.running.len(),
            waiting: self.waiting.len(),
            cache: self.cache.stats(),
            speculation: self.speculation.stats,
            ..self.stats
        }
    }

    /// Which experts its tokens went to since it was opened; `None` for a dense model.
    pub fn experts(&self) -> Option<ExpertUsage> {
        ExpertUsage::read(self.model.config(), self.model.expert_counts())
    }

    /// Queues a request that has been checked by [`Rules::prepare`].
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

    /// Cancels a request. It gets no further event. Nothing happens where it is over already.
    pub fn cancel(&mut self, id: RequestId) {
        if let Some(job) = self.jobs.get_mut(id.job).filter(|job| job.serial == id.serial) {
            job.closed = true;
        }
    }

    /// Does one step of work.
    pub fn step(&mut self) -> Step {
        self.drop_closed();
        self.admit();
        if self.running.is_empty() {
            return Step::Idle;
        }
        self.take_arrivals();
        self.plan_step();
        if self.batch.is_empty() {
            return Step::Worked;
        }
        // Before the masks are computed elsewhere: a choice whose constraint is away looks as if it had none.
        let needs_few = self.needs_few();
        self.masks.send(&mut self.running);
        let routes = self.running.iter().any(|r| self.jobs[r.job].routes);
        self.model.expert_counts().trace(routes);
        let start = Instant::now();
        let computed = if needs_few {
            self.model.step_picking(&self.batch)
        } else {
            self.model.step(&self.batch).map(|_| false)
        };
        self.is_picked = matches!(computed, Ok(true));
        self.stats.picked_steps += u64::from(self.is_picked);
        let time = start.elapsed();
        self.stats.step_bytes = self.model.backend().bytes_read().unwrap_or(0);
        let (failed, masks) = self.masks.receive(&mut self.running);
        for (id, e) in failed {
            self.fail(id, Error::Constraint(e));
        }
        self.note_time(time);
        if masks.masks > 0 {
            self.stats.masked_steps += 1;
            self.stats.masked_step_time += time + masks.waited;
            self.stats.mask_time += masks.computed;
            self.stats.mask_wait_time += masks.waited;
        }
        if let Err(e) = computed {
            // the states of all that ran are undefined
            self.device_failed(&e);
            return Step::Worked;
        }
        self.finish_step();
        self.cache.save_pages(&mut *self.model, PAGES_SAVED);
        Step::Worked
    }

    /// Whether all tokens that this step lets choose can be chosen from the largest logits of their rows.
    fn needs_few(&self) -> bool {
        self.running.iter().filter(|r| r.planned > 0).all(|r| {
            let job = &self.jobs[r.job];
            job.prompt_logprobs.is_none()
                && r.choice.needs_few()
                && job.followers.iter().all(Choice::needs_few)
        })
    }

    /// Stores a little of the cache on disk, for when there is nothing else to do. False when all is stored.
    pub fn save_some(&mut self) -> bool {
        self.cache.save_pages(&mut *self.model, PAGES_SAVED) || self.cache.save_next(&mut *self.model)
    }

    /// Stores the cache on disk, as far as it has a folder and room there, and waits until that is done.
    pub fn flush(&mut self) {
        self.cache.flush(&mut *self.model);
    }

    /// Cancels everything; every listener hears why.
    pub fn stop(&mut self) {
        self.fail_all(|| Error::Stopped);
        self.drop_closed();
    }

    /// Tells all listeners that it is over. Touches nothing else: the engine may have panicked.
    pub(crate) fn fail_all(&mut self, error: impl Fn() -> Error) {
        let ids: Vec<JobId> = self.jobs.iter().map(|(id, _)| id).collect();
        for id in ids {
            self.fail(id, error());
        }
    }

    /// Forgets everything that was processed.
    pub fn clear(&mut self) {
        self.cache.clear();
    }

    /// Checks that every page and slot is accounted for. For tests.
    pub fn audit(&self) -> Result<(), String> {
        self.cache.audit(self.running.iter().map(|r| &r.lease))
    }

    /// Guesses what comes after this step.
    fn speculate(&mut self) {
        let start = Instant::now();
        let Self { model, cache, running, jobs: _, speculation, .. } = self;
        let mut work = speculation::Work { model: &mut **model, cache, running };
        if let Err(e) = speculation.draft(&mut work) {
            self.device_failed(&e);
        }
        self.stats.draft_time += start.elapsed();
    }

    /// Tells all listeners that the device has failed, and why.
    fn device_failed(&mut self, why: &impl std::fmt::Display) {
        let why = why.to_string();
        if self.model.backend().is_lost() {
            self.lost.get_or_init(|| why.clone());
        }
        self.fail_all(|| Error::Device(why.clone()));
        // those whose client has left leave nothing to be kept either
        self.jobs.iter_mut().for_each(|(_, job)| job.failed = true);
        self.drop_closed();
    }

    /// Tells the listener that it is over, and cancels what is left.
    fn fail(&mut self, id: JobId, error: Error) {
        if let Some(job) = self.jobs.get_mut(id)
            && !job.closed
        {
            (job.closed, job.failed) = (true, true);
            // over either way
            let _ = job.sink.send(Event::Failed(error));
        }
    }

    /// Takes out what nobody listens to any more. What was computed of a prompt is kept: who gave up waiting for it
    /// often asks again.
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

    /// Adapts the share of prompts in mixed steps to the time that steps take.
    fn note_time(&mut self, time: Duration) {
        self.stats.steps += 1;
        self.stats.step_time += time;
        self.stats.step_time_last = time;
        let p = &self.plan;
        if p.decodes == 0 {
            return;
        }
        if p.prefills == 0 {
            self.speculation.control.record_step(self.batch.len(), time);
        }
        self.stats.decode_step_time_max = self.stats.decode_step_time_max.max(time);
        if p.prefills == 0 {
            return;
        }
        let (time, most) = (time.as_secs_f64().max(1e-9), self.step_time_max.as_secs_f64());
        let batch_tokens = self.model.limits().batch_tokens;
        if time > most {
            let fewer = p.prefills as f64 * (most / time).max(0.25);
            self.mixed_tokens = self.mixed_tokens.min(fewer as usize);
        } else if p.prefills * 8 >= self.mixed_tokens * 7 && time < 0.8 * most {
            self.mixed_tokens += self.mixed_tokens / 4 + 1;
        }
        self.mixed_tokens = self.mixed_tokens.clamp(MIXED_TOKENS_MIN.min(batch_tokens), batch_tokens);
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("rules", &self.rules).field("stats", &self.stats()).finish()
    }
}
