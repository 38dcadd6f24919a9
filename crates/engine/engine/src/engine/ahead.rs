//! Steps that are submitted ahead: behind a step that is still running, where the device itself finds all tokens of the next one. So the device
//! need not wait until the host has chosen tokens, sent events and planned.
//!
//! A step in flight computes the last token of each of its sequences, whatever becomes of them: an answer that ends meanwhile, or whose
//! client leaves, has then one token more in its state, which is cached with it. Nothing is admitted or preempted beside such a step.

use octet_compute::batch::PAGE_TOKENS;

use super::{Engine, Running};

impl Running {
    /// Whether the state of its slot is known: of `computed` tokens. Counts the token of the step in flight, which the state has, or
    /// will have before anything that is submitted from now on.
    pub(super) fn land(&mut self) -> bool {
        if !std::mem::take(&mut self.is_ahead) {
            return true;
        }
        // Without a token the step before has not been processed: its sink was closed.
        let is_known = self.lease.computed < self.choice.tokens.len();
        self.lease.computed += usize::from(is_known);
        is_known
    }
}

impl Engine {
    /// Plans the step behind the planned one into `next`, if it needs nothing of the host but what is known by now.
    pub(super) fn plan_next(&mut self) -> bool {
        let rows = self.batch.outputs().len();
        // As many tokens as rows: each is the one of an answer.
        if self.batch.len() != rows || !self.model.runs_ahead(rows) || self.speculation.reads_steps() {
            return false;
        }
        // A request that could be admitted goes first.
        if !self.waiting.is_empty() && self.cache.pool().free_slots() > 0 {
            return false;
        }
        let recurrent = self.cache.is_recurrent();
        let may = |(i, r): (usize, &Running)| {
            let (job, choice) = (&self.jobs[r.job], &r.choice);
            let last = choice.tokens.last();
            // A snapshot is taken before or after certain tokens, when the state has not gone further.
            let snapshots = recurrent && choice.triggers_left > 0;
            (r.planned, r.row, r.guessed) == (1, i, 0)
                // Guesses are for a step that waits.
                && choice.guesses.ids.is_empty()
                && r.lease.computed + 1 == choice.tokens.len()
                && choice.is_chosen_by_device()
                && choice.checkpoints.last().is_none_or(|at| *at <= r.lease.computed)
                && (!snapshots || choice.snapshot_before.is_empty())
                && !(snapshots && last.is_some_and(|id| choice.snapshot_after.contains(id)))
                && !(job.closed || job.routes || job.prompt_logprobs.is_some() || job.pooling.is_some())
        };
        if self.running.len() != rows || !self.running.iter().enumerate().all(may) {
            return false;
        }
        self.next.clear();
        for r in &mut self.running {
            let past = r.lease.computed + 1;
            if !self.cache.grow(&mut *self.model, &mut r.lease, past + 1) {
                return false;
            }
            // The device has the token.
            let pages = &r.lease.pages[..(past + 1).div_ceil(PAGE_TOKENS)];
            self.next.push(&[0], past, r.lease.slot, pages, 1);
        }
        true
    }

    /// Marks the sequences of the step in flight: the one that [`Engine::plan_next`] has planned.
    pub(super) fn set_ahead(&mut self, is_ahead: bool) {
        self.is_ahead = is_ahead;
        self.running.iter_mut().for_each(|r| r.is_ahead = is_ahead);
    }

    /// Makes the step in flight the current one. False if there is none, or nobody is left in it.
    pub(super) fn take_next(&mut self) -> bool {
        if !std::mem::take(&mut self.is_ahead) {
            return false;
        }
        if self.running.is_empty() {
            if let Err(e) = self.model.drop_next() {
                self.device_failed(&e);
            }
            return false;
        }
        std::mem::swap(&mut self.batch, &mut self.next);
        for r in &mut self.running {
            r.is_ahead = false;
            let at =
                self.batch.first_token(r.lease.slot).expect("nobody is admitted beside a step in flight");
            (r.planned, r.guessed, r.row, r.rows) = (1, 0, at, 1);
            (r.first, r.past) = (at, r.lease.computed);
        }
        (self.plan.decodes, self.plan.prefills) = (self.running.len(), 0);
        true
    }
}
