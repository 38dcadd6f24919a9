//! Admission: moves requests from the queue to the model, and preempts them when pages run out.
//!
//! Requests are admitted in order, when pages for the prompt and some room for the answer are available. The rest of an answer's room
//! is not reserved, since most answers end long before `max_tokens`. When pages run out, the last admitted sequence is preempted and
//! goes back to the head of the queue. Its state is kept as a snapshot, so it resumes without loss if that is still there; otherwise
//! it is recomputed to the same bits. The oldest sequence is never preempted, and any single one fits: so every request finishes.

use std::time::Duration;

use octet_compute::batch::PAGE_TOKENS;

use super::event::Event;
use super::images::{self, Images};
use super::speculation::controller::Shared;
use super::{Engine, Pooling, Running, Waiting};
use crate::Error;
use crate::cache::{Arrival, Found, checkpoints};

/// Free positions required for an answer before it starts.
const HEADROOM: usize = 4 * PAGE_TOKENS;
/// A prompt waits for another one being computed if that saves at least this many tokens.
const SHARED_MIN: usize = 2 * PAGE_TOKENS;

/// Files from disk installed before a step: about 20 MB if other sequences are running, more if none waits.
const FILES_BESIDE: usize = 16;
const FILES_ALONE: usize = 256;
/// How long to wait for the first of them before checking for new requests.
const ARRIVAL_WAIT: Duration = Duration::from_millis(10);

/// Everything that decides admission: while it is unchanged, waiting requests still do not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AdmissionState {
    cache: u64,
    submitted: u64,
    waiting: usize,
    running: usize,
    available: usize,
    reserved: usize,
}

/// Positions needed to start a sequence: its tokens and some of its answer.
fn room_for(c: &super::Choice) -> usize {
    c.tokens.len() + HEADROOM.min(c.limit - c.generated())
}

enum Admission {
    Done,
    /// Not now; others behind it may be admitted first.
    Later,
    NoRoom,
}

impl Engine {
    /// Admits requests that fit. After a failure it checks again only when something has changed: comparing a long prompt with the
    /// cache takes a while, and steps are short.
    pub(super) fn admit(&mut self) {
        if self.waiting.is_empty() || self.cache.pool().free_slots() == 0 {
            return;
        }
        if self.admission_blocked == Some(self.situation()) {
            return;
        }
        let mut i = 0;
        while i < self.waiting.len() && self.cache.pool().free_slots() > 0 {
            self.stats.prompt_searches += 1;
            match self.admit_one(i) {
                Admission::Done => {}
                Admission::Later => i += 1,
                Admission::NoRoom => break,
            }
        }
        self.admission_blocked = Some(self.situation());
    }

    /// The current values.
    pub(super) fn situation(&self) -> AdmissionState {
        AdmissionState {
            cache: self.cache.version(),
            submitted: self.submitted,
            waiting: self.waiting.len(),
            running: self.running.len(),
            available: self.cache.pages_available(),
            reserved: self.reserved(),
        }
    }

    /// Pages that running sequences still need.
    fn reserved(&self) -> usize {
        let pages =
            |r: &Running| room_for(&r.choice).div_ceil(PAGE_TOKENS).saturating_sub(r.lease.pages.len());
        self.running.iter().map(pages).sum()
    }

    fn admit_one(&mut self, i: usize) -> Admission {
        let w = &self.waiting[i];
        let job = &self.jobs[w.job];
        let tokens = &w.choice.tokens;
        let mut found = if job.cache { self.cache.find(&job.salt, tokens) } else { Found::uncached() };
        // Never within an image: few of its tokens say little about which one it is.
        if let Some(place) = w.choice.places.around(found.position) {
            found = self.cache.find(&job.salt, &tokens[..=place.start]);
        }
        // All logits of the prompt are needed, or hidden states before its last.
        if job.prompt_logprobs.is_some() || matches!(job.pooling, Some((Pooling::Mean | Pooling::Cls, _))) {
            found = found.from_start();
        }
        if self.waits_for_another(i, &found) {
            return Admission::Later;
        }
        let reserved = self.reserved();
        let (w, running) = (&self.waiting[i], &self.running);
        // Without other running sequences, the available pages must suffice.
        let wanted = if running.is_empty() { 0 } else { room_for(&w.choice) };
        if self.cache.pages_needed(&found, wanted) + reserved > self.cache.pages_available() {
            return Admission::NoRoom;
        }
        let capacity = w.choice.prompt + w.choice.limit;
        let mut lease = self.cache.acquire(&mut *self.model, &found, capacity);
        if lease.is_none() && running.is_empty() {
            found = found.from_start();
            lease = self.cache.acquire(&mut *self.model, &found, capacity);
        }
        let Some(lease) = lease else { return Admission::NoRoom };
        let Some(Waiting { job, choice }) = self.waiting.remove(i) else { return Admission::NoRoom };
        let found = Box::new(found);
        let loading = lease.is_loading();
        let on_disk = loading.then(|| Box::clone(&found));
        self.running.push(Running { found: on_disk, ..Running::new(job, choice, lease) });
        if !loading {
            self.begin(self.running.len() - 1, &found);
        }
        Admission::Done
    }

    /// Installs data that has arrived from disk. Waits a moment for it if there is nothing else to do.
    pub(super) fn take_arrivals(&mut self) {
        let alone = self.running.iter().all(|r| r.lease.is_loading());
        let (files, mut wait) =
            if alone { (FILES_ALONE, ARRIVAL_WAIT) } else { (FILES_BESIDE, Duration::ZERO) };
        let mut i = 0;
        while i < self.running.len() {
            let r = &mut self.running[i];
            if !r.lease.is_loading() {
                i += 1;
                continue;
            }
            let arrival =
                self.cache.install_loaded(&mut *self.model, &mut r.lease, &r.choice.tokens, files, wait);
            wait = Duration::ZERO;
            match arrival {
                Arrival::Pending => i += 1,
                Arrival::Complete => {
                    if let Some(found) = r.found.take() {
                        self.begin(i, &found);
                    }
                    i += 1;
                }
                Arrival::Failed => {
                    let r = self.running.remove(i);
                    self.cache.release(r.lease);
                    self.waiting.push_front(Waiting { job: r.job, choice: r.choice });
                }
            }
        }
    }

    /// Initialises sequence `i`.
    fn begin(&mut self, i: usize, found: &Found) {
        let r = &mut self.running[i];
        let job = &mut self.jobs[r.job];
        let choice = &mut r.choice;
        if job.admitted.is_some() {
            // It was preempted: collecting results of the prompt starts again.
            if let Some(scores) = &mut job.prompt_logprobs {
                scores.clear();
            }
            if let Some((_, sum)) = &mut job.pooling {
                sum.clear();
            }
            return;
        }
        job.admitted = Some(std::time::Instant::now());
        job.cached = found.position;
        choice.begin();
        self.stats.prompt_tokens += choice.prompt as u64;
        if job.cache {
            self.stats.queried_tokens += choice.prompt as u64;
            self.stats.cached_tokens += found.position as u64;
            if self.cache.needs_snapshots() {
                choice.checkpoints =
                    checkpoints(found.position, found.matched, &job.checkpoints, choice.prompt);
            }
        }
        let miss = if job.explain_miss {
            self.cache.explain(&self.rules.tokenizer, &choice.tokens, found).map(Box::new)
        } else {
            None
        };
        let event = Event::Admitted { cached_tokens: found.position, seed: job.seed, miss };
        job.closed |= job.sink.send(event).is_break();
    }

    /// True if a running prompt shares a prefix with the `i`th queued one that it has not computed yet. It will leave a snapshot
    /// there.
    fn waits_for_another(&mut self, i: usize, found: &Found) -> bool {
        let w = &self.waiting[i];
        let most = w.choice.tokens.len() - 1;
        for r in &mut self.running {
            let computing = r.lease.computed + 1 < r.choice.tokens.len();
            if !computing || !r.lease.shares_cache_with(found) {
                continue;
            }
            let (ours, theirs) = (&w.choice.tokens[..most], &r.choice.tokens[..r.choice.tokens.len() - 1]);
            let same = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
            if same < found.position + SHARED_MIN || same <= r.lease.computed {
                continue;
            }
            if self.cache.needs_snapshots() {
                let c = &mut r.choice.checkpoints;
                let near = |&c: &usize| c <= same && c + SHARED_MIN > same && c > r.lease.computed;
                if !c.iter().any(near) {
                    let at = c.partition_point(|&c| c > same);
                    c.insert(at, same);
                }
            }
            return true;
        }
        false
    }

    /// Plans the next step and acquires its pages.
    pub(super) fn plan_step(&mut self) {
        if self.cache.has_windows() {
            self.running.iter_mut().for_each(|r| self.cache.slide(&mut r.lease));
        }
        loop {
            self.share_step();
            let Some(short) = (0..self.running.len()).find(|&i| !self.make_room(i)) else { break };
            // The last admitted sequence is preempted, even if it is the one that needs a page.
            if self.running.len() == 1 {
                let r = &self.running[short];
                let (id, pages) = (r.job, r.lease.pages.len());
                let needed = (r.lease.computed + r.planned).div_ceil(PAGE_TOKENS);
                let available = pages + self.cache.pages_available();
                self.fail(id, Error::CacheFull { needed, available });
                self.drop_closed();
                continue;
            }
            self.preempt();
        }
        self.fill_batch();
    }

    fn share_step(&mut self) {
        let limits = self.model.limits();
        let budget = super::plan::Budget {
            tokens: limits.batch_tokens,
            mixed: self.mixed_tokens,
            rows: limits.batch_outputs + 1 - limits.slots,
        };
        self.plan.wants.clear();
        let (jobs, images) = (&self.jobs, &mut self.images);
        images.iter_mut().for_each(Images::begin_step);
        self.plan.wants.extend(self.running.iter_mut().map(|r| {
            let computed = r.lease.computed;
            let checkpoints = &mut r.choice.checkpoints;
            while checkpoints.last().is_some_and(|&c| c <= computed) {
                checkpoints.pop();
            }
            let tokens = r.choice.tokens.len() - computed;
            let ready = images.as_mut().map_or(tokens, |images| images.ready(computed, r.job, &mut r.choice));
            if r.lease.is_loading() || ready == 0 {
                return super::plan::Want { tokens: tokens.max(2), most: 0, scored: false };
            }
            super::plan::Want {
                tokens,
                most: r.choice.checkpoints.last().map_or(tokens, |c| c - computed).min(ready),
                scored: jobs[r.job].prompt_logprobs.is_some() && computed < r.choice.prompt,
            }
        }));
        if self.rules.is_encoder {
            return self.plan.share_whole(budget.tokens);
        }
        self.plan.share(budget);
        images::keep_together(&mut self.plan, &self.running, budget.tokens);
        self.share_guesses(budget);
    }

    /// Gives guesses the rest of the step's budget.
    fn share_guesses(&mut self, budget: super::plan::Budget) {
        let plan = &self.plan;
        let scored = |(w, n): (&super::plan::Want, &usize)| if w.scored { *n } else { 0 };
        let scored: usize = plan.wants.iter().zip(&plan.shares).map(scored).sum();
        let mut left = (budget.tokens - plan.decodes - plan.prefills)
            .min(budget.rows - scored.max(1))
            .min(self.speculation.step_guesses);
        let (mut tokens, mut brings) = (plan.decodes, plan.decodes as f64);
        for (r, w) in self.running.iter_mut().zip(&plan.wants) {
            let guesses = &mut r.choice.guesses;
            r.guessed = 0;
            if w.tokens == 1 && !r.lease.is_loading() {
                let control = &self.speculation.control;
                let (history, classes) = (&mut guesses.history, &guesses.classes);
                r.guessed = control.choose(history, classes, left, &mut tokens, &mut brings);
                left -= r.guessed;
            }
        }
        self.speculation.shared = Shared { answers: plan.decodes, guesses: tokens - plan.decodes };
    }

    fn make_room(&mut self, i: usize) -> bool {
        let r = &mut self.running[i];
        r.planned = self.plan.shares[i] + r.guessed;
        let tokens = r.lease.computed + r.planned;
        if self.cache.grow(&mut *self.model, &mut r.lease, tokens) {
            return true;
        }
        // No sequence is preempted for a guess.
        r.planned -= r.guessed;
        let tokens = tokens - std::mem::take(&mut r.guessed);
        if self.cache.grow(&mut *self.model, &mut r.lease, tokens) {
            return true;
        }
        // There are always windowed pages for one token, and mostly for those up to the end of a page.
        let covered = r.lease.covered();
        // An image is computed as a whole.
        let covered = r.choice.places.around(covered).map_or(covered, |place| place.start);
        let fits = r.lease.pages.len() * PAGE_TOKENS >= tokens && covered > r.lease.computed;
        if fits {
            r.planned = covered - r.lease.computed;
        }
        fits
    }

    /// Preempts the last admitted sequence.
    fn preempt(&mut self) {
        let Some(mut r) = self.running.pop() else { return };
        self.stats.preemptions += 1;
        self.cache.keep(&mut *self.model, &mut r.lease, &r.choice.tokens);
        self.cache.release(r.lease);
        r.choice.guesses.clear();
        self.waiting.push_front(Waiting { job: r.job, choice: r.choice });
    }

    fn fill_batch(&mut self) {
        self.batch.clear();
        for r in &mut self.running {
            if r.planned == 0 {
                continue;
            }
            let computed = r.lease.computed;
            let end = computed + r.planned - r.guessed;
            let scored = self.jobs[r.job].prompt_logprobs.is_some() && computed < r.choice.prompt;
            let outputs = match scored {
                true => r.planned,
                false => usize::from(end == r.choice.tokens.len()) + r.guessed,
            };
            (r.row, r.rows) = (self.batch.outputs().len(), outputs);
            (r.first, r.past) = (self.batch.len(), computed);
            let pages = r.lease.tables(end + r.guessed);
            let mut tokens = &r.choice.tokens[computed..end];
            let places = &r.choice.places;
            if r.guessed > 0 || !places.is_empty() {
                self.guessed.clear();
                self.guessed.extend(tokens.iter().map(|id| places.id(*id)));
                self.guessed.extend_from_slice(&r.choice.guesses.ids[..r.guessed]);
                tokens = &self.guessed;
            }
            self.batch.push(tokens, computed, r.lease.slot, pages, outputs);
            if self.rules.is_encoder {
                self.batch.see(0..end);
                if !r.choice.types.is_empty() {
                    self.batch.set_types(r.choice.types.iter().map(|t| u32::from(*t)));
                }
            }
            images::place(&r.choice, &mut self.batch, r.first, computed..end + r.guessed);
            self.batch.speculate(r.guessed, r.lease.redo);
        }
    }
}
