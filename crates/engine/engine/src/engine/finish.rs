//! After a step: chooses tokens from logits, sends events, and caches what was computed.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use octet_compute::batch::{PAGE_TOKENS, Redo};
use octet_compute::picks;

use super::choice::Logits;
use super::event::{Event, Finish, Timings, TokenLogprob, Usage};
use super::{Engine, Pooling, Running, Waiting};
use crate::Error;
use crate::cache::TOKENS_MIN;

/// Maximum number of answers whose tokens are chosen together.
const TOGETHER_MAX: usize = 32;

impl Engine {
    /// Processes the results of a step.
    pub(super) fn finish_step(&mut self) {
        // First for all sequences, whatever happens to their requests: their states have advanced.
        for r in &mut self.running {
            if r.planned > 0 {
                r.lease.computed += r.planned - r.guessed;
                r.lease.redo = Redo::default();
                r.fresh = r.planned;
            }
        }
        self.choose_together();
        // Answers that branch off here are appended; they were not in the step.
        for i in 0..self.running.len() {
            if self.running[i].planned > 0
                && !self.jobs[self.running[i].job].closed
                && let Err(e) = self.advance(i)
            {
                self.fail(self.running[i].job, e);
            }
        }
        // Finished ones, too: a drafter's data about them may be reused.
        self.speculate();
        let mut i = 0;
        while i < self.running.len() {
            if self.running[i].done {
                let r = self.running.remove(i);
                self.cache.release(r.lease);
                self.speculation.finished(&r.choice);
            } else {
                i += 1;
            }
        }
        let stats = &mut self.stats;
        self.jobs.retain(|_, job| {
            stats.finished += u64::from(job.left == 0);
            job.left > 0
        });
    }

    /// Chooses the next tokens of several answers in parallel. Each is the same as if chosen in turn: every answer has its own
    /// sampler. A single answer, or one that needs other work first, is chosen in turn.
    fn choose_together(&mut self) {
        let Self { running, jobs, model, rules, .. } = self;
        let cells = [const { Mutex::new(None) }; TOGETHER_MAX];
        let lock = |i: usize| cells[i].lock().unwrap_or_else(PoisonError::into_inner);
        let mut ready = running.iter_mut().filter(|r| {
            let job = &jobs[r.job];
            let complete = r.planned > 0 && r.lease.computed == r.choice.tokens.len();
            // The prompt's scores need the sampler first.
            complete && !job.closed && job.prompt_logprobs.is_none() && r.choice.can_choose_ahead()
        });
        loop {
            let mut n = 0;
            for (i, r) in (0..TOGETHER_MAX).zip(&mut ready) {
                *lock(i) = Some((r.last_row() * rules.vocab, &mut *r.choice));
                n = i + 1;
            }
            let choose = |i: usize, logits: &[f32]| {
                if let Some((at, choice)) = lock(i).take() {
                    choice.choose_ahead(&logits[at..at + rules.vocab]);
                }
            };
            if n < 2 || !model.share_logits(n, &choose) || n < TOGETHER_MAX {
                return;
            }
        }
    }

    /// Advances sequence `i` by its part of the step.
    fn advance(&mut self, i: usize) -> Result<(), Error> {
        let Running { lease, choice, planned, guessed, .. } = &self.running[i];
        let (at, from) = (lease.computed, lease.computed + guessed - planned);
        let (length, prompt) = (choice.tokens.len(), choice.prompt);
        let in_prompt = from < prompt;
        if in_prompt {
            self.stats.computed_tokens += *planned as u64;
            self.read_prompt(i, from)?;
        }
        if self.is_checkpoint(i) {
            self.keep(i);
        }
        if at < length {
            if in_prompt && length == prompt {
                let done = at.min(prompt);
                self.send(i, Event::PromptProgress { done, total: prompt });
            }
            return Ok(());
        }
        if at == prompt {
            self.prompt_done(i);
        }
        if self.running[i].choice.limit == 0 {
            self.done(i, Finish::Length);
            return Ok(());
        }
        self.next_token(i, self.running[i].last_row())?;
        self.judge_guesses(i)
    }

    /// Verifies the guesses of sequence `i`, whose token before them has just been chosen: as long as a guess equals the chosen token,
    /// the row of logits after it is valid.
    fn judge_guesses(&mut self, i: usize) -> Result<(), Error> {
        let guessed = self.running[i].guessed;
        if guessed > 0 {
            self.speculation.stats.drafts += 1;
            self.speculation.stats.drafted += guessed as u64;
            self.running[i].choice.guesses.drafted += guessed;
        }
        let before = self.running[i].choice.guesses.accepted;
        let judged = self.judge_each(i, guessed);
        let guesses = &mut self.running[i].choice.guesses;
        let right = guesses.accepted - before;
        self.speculation.settle(guesses, guessed, right);
        judged
    }

    fn judge_each(&mut self, i: usize, guessed: usize) -> Result<(), Error> {
        for place in 0..guessed {
            let r = &mut self.running[i];
            let row = r.last_row() + 1 + place;
            // The answer is finished, or its sink is closed.
            if r.done || self.jobs[r.job].closed {
                return Ok(());
            }
            let right = r.choice.tokens.last() == Some(&r.choice.guesses.ids[place]);
            self.speculation.record(&mut r.choice.guesses, place, right);
            if !right {
                return Ok(());
            }
            r.lease.computed += 1;
            r.lease.redo.len += 1;
            if self.is_checkpoint(i) {
                self.keep(i);
            }
            self.next_token(i, row)?;
        }
        Ok(())
    }

    /// Collects the requested results for each prompt token.
    fn read_prompt(&mut self, i: usize, from: usize) -> Result<(), Error> {
        let r = &mut self.running[i];
        let job = &mut self.jobs[r.job];
        let vocab = self.rules.vocab;
        if let Some(scores) = &mut job.prompt_logprobs {
            let rows = self.model.last_logits()[r.row * vocab..].chunks_exact(vocab).take(r.planned);
            for (row, &id) in rows.zip(&r.choice.tokens[from + 1..r.choice.prompt.max(from + 1)]) {
                let logprob = r.choice.sampler.score(row, id)?;
                scores.push(TokenLogprob { id, logprob, top: r.choice.sampler.top_logprobs().to_vec() });
            }
        }
        if let Some((pooling, sum)) = &mut job.pooling {
            let first = self.batch.first_token(r.lease.slot).unwrap_or(0);
            let hidden = self.model.config().hidden;
            let states = self.model.hidden()?;
            let rows = states[first * hidden..].chunks_exact(hidden).take(r.planned);
            sum.resize(hidden, 0.0);
            for (i, row) in rows.enumerate() {
                let is_first = from + i == 0;
                match pooling {
                    Pooling::Cls if is_first => sum.copy_from_slice(row),
                    Pooling::Cls => break,
                    Pooling::Last => sum.copy_from_slice(row),
                    Pooling::Mean => sum.iter_mut().zip(row).for_each(|(s, x)| *s += x),
                }
            }
        }
        Ok(())
    }

    fn is_checkpoint(&self, i: usize) -> bool {
        let Running { lease, choice, .. } = &self.running[i];
        if !self.cache.needs_snapshots() {
            // Caching pages is cheap, and others may be waiting for them.
            return lease.computed < choice.prompt;
        }
        let after = |id: &u32| lease.computed > choice.prompt && choice.snapshot_after.contains(id);
        choice.checkpoints.last() == Some(&lease.computed)
            || (after(&choice.tokens[lease.computed - 1]) && self.may_trigger(i))
    }

    fn may_trigger(&self, i: usize) -> bool {
        let Running { lease, choice, .. } = &self.running[i];
        choice.triggers_left > 0 && lease.computed >= lease.kept + TOKENS_MIN
    }

    /// Caches what sequence `i` has computed.
    fn keep(&mut self, i: usize) {
        let r = &mut self.running[i];
        if r.lease.computed > r.choice.prompt {
            r.choice.triggers_left = r.choice.triggers_left.saturating_sub(1);
        }
        self.cache.keep(&mut *self.model, &mut r.lease, &r.choice.tokens);
    }

    /// The prompt of sequence `i` is complete.
    fn prompt_done(&mut self, i: usize) {
        let r = &self.running[i];
        let total = r.choice.prompt;
        self.send(i, Event::PromptProgress { done: total, total });
        let r = &mut self.running[i];
        let job = &mut self.jobs[r.job];
        // A scored or embedded prompt is unlikely to be continued.
        let prompt_only = job.prompt_logprobs.is_some() || job.pooling.is_some();
        if let Some(scores) = job.prompt_logprobs.take() {
            job.closed |= job.sink.send(Event::PromptLogprobs(scores)).is_break();
        }
        if let Some((pooling, mut state)) = job.pooling.take() {
            if pooling == Pooling::Mean {
                state.iter_mut().for_each(|s| *s /= total as f32);
            }
            match self.model.pool(&state) {
                Ok(vector) => job.closed |= job.sink.send(Event::Embedding(vector)).is_break(),
                Err(e) => return self.device_failed(&e),
            }
        }
        // A repeated prompt resumes from a state just before its end.
        let near = usize::from(self.cache.needs_snapshots());
        if !prompt_only && total > r.lease.kept + near {
            self.cache.keep(&mut *self.model, &mut r.lease, &r.choice.tokens);
        }
        self.branch_off(i);
    }

    /// Starts the other answers to the prompt of sequence `i`.
    fn branch_off(&mut self, i: usize) {
        let id = self.running[i].job;
        let parent = &self.running[i];
        let row = parent.last_row();
        // The tokens after the last whole page are copied for each answer.
        let past = parent.past.max(parent.lease.computed / PAGE_TOKENS * PAGE_TOKENS);
        let (first, fresh) = (parent.first + past - parent.past, parent.lease.computed - past);
        for mut choice in std::mem::take(&mut self.jobs[id].followers) {
            choice.begin();
            let choice = Box::new(choice);
            match self.cache.fork(&mut *self.model, &self.running[i].lease) {
                Some(lease) => {
                    let r = Running::new(id, choice, lease);
                    self.running.push(Running { row, rows: 1, first, past, fresh, ..r });
                    if let Err(e) = self.next_token(self.running.len() - 1, row) {
                        self.fail(id, e);
                    }
                }
                None => self.waiting.push_front(Waiting { job: id, choice }),
            }
        }
    }

    /// Chooses the next token of sequence `i` from this row of logits.
    fn next_token(&mut self, i: usize, row: usize) -> Result<(), Error> {
        let r = &mut self.running[i];
        let choice = &mut r.choice;
        if choice.needs_mask()
            && let Some(masked) = &mut choice.masked
        {
            masked.compute().map_err(Error::Constraint)?;
        }
        let vocab = self.rules.vocab;
        let logits = if self.is_picked {
            self.model.picks(row, &mut self.picks);
            r.took = picks::best(&self.picks);
            Logits::Largest(&self.picks)
        } else {
            Logits::All(&self.model.last_logits()[row * vocab..(row + 1) * vocab])
        };
        let (mut event, finish) = r.choice.next(logits)?;
        if let Event::Token { routes, .. } = &mut event
            && self.jobs[r.job].routes
        {
            let token = self.batch.outputs()[row] as usize;
            *routes = self.model.expert_counts().routes(token).map(Box::new);
        }
        self.stats.generated_tokens += 1;
        let choice = &self.running[i].choice;
        if finish.is_none()
            && choice.tokens.last().is_some_and(|id| choice.snapshot_before.contains(id))
            && self.may_trigger(i)
        {
            self.keep(i);
        }
        self.send(i, event);
        if let Some(finish) = finish {
            self.done(i, finish);
        }
        Ok(())
    }

    /// Finishes sequence `i`.
    fn done(&mut self, i: usize, finish: Finish) {
        let r = &mut self.running[i];
        r.done = true;
        // A snapshot for a few more tokens is not worth it; pages alone cost nothing.
        if r.lease.computed >= r.lease.kept + TOKENS_MIN || !self.cache.needs_snapshots() {
            self.cache.keep(&mut *self.model, &mut r.lease, &r.choice.tokens);
        }
        let choice = &r.choice;
        let job = &mut self.jobs[r.job];
        job.left -= 1;
        let now = Instant::now();
        let admitted = job.admitted.unwrap_or(now);
        let first = choice.first_token.unwrap_or(now);
        let old = self.stats.service_time;
        self.stats.service_time =
            if old.is_zero() { now - admitted } else { (7 * old + (now - admitted)) / 8 };
        let event = Event::Done {
            choice: choice.index,
            finish,
            stop: choice.stopped_by().map(str::to_string),
            usage: Usage {
                prompt_tokens: choice.prompt,
                cached_tokens: job.cached,
                completion_tokens: choice.generated(),
            },
            timings: Timings {
                queued: admitted - job.submitted,
                prompt: first - admitted,
                generation: now - first,
                drafted: choice.guesses.drafted,
                accepted: choice.guesses.accepted,
            },
        };
        self.send(i, event);
    }

    fn send(&mut self, i: usize, event: Event) {
        let job = &mut self.jobs[self.running[i].job];
        if !job.closed {
            job.closed = job.sink.send(event).is_break();
        }
    }
}
