//! Steps that are submitted ahead: behind a step that is still running, where the device itself takes the token with the largest logit of
//! each row. So the device need not wait until the host has chosen tokens, sent events and planned.
//!
//! Such a step is a bet that the host chooses the same tokens. It writes recurrent states into spare slots, so until the bet is won it has changed
//! nothing that anybody reads: whatever ends, is cached or fails meanwhile does so as without it. If the bet is lost, the step is computed again.

use super::speculation::controller::Shared;
use super::{Engine, Running};

impl Running {
    /// The host has chosen the token that the submitted step has taken, and it is not the last one.
    fn is_won(&self) -> bool {
        let tokens = &self.choice.tokens;
        self.took.is_some() && self.took == tokens.last().copied() && self.lease.computed + 1 == tokens.len()
    }
}

impl Engine {
    /// Submits steps ahead of sampled answers, too, which loses many bets: for tests.
    #[doc(hidden)]
    pub fn bet_on_samples(&mut self) {
        self.bets_on_samples = true;
    }

    /// Plans the step behind the planned one into `next`, if that probably pays. Then each row of the planned one is of an answer that goes on.
    /// `was_submitted`: the planned one was submitted ahead itself, so nobody has asked yet which guesses pay.
    pub(super) fn plan_next(&mut self, was_submitted: bool) -> bool {
        let rows = self.batch.outputs().len();
        if self.model.limits().spare_slots == 0
            || (self.batch.len(), self.running.len()) != (rows, rows)
            || self.speculation.reads_steps()
        {
            return false;
        }
        // A request that could be admitted goes first.
        if !self.waiting.is_empty()
            && self.cache.pool().free_slots() > 0
            && self.admission_blocked != Some(self.situation())
        {
            return false;
        }
        let goes_on = |(i, r): (usize, &Running)| {
            let (job, choice) = (&self.jobs[r.job], &r.choice);
            (r.planned, r.row, r.guessed) == (1, i, 0)
                && r.lease.computed + 1 == choice.tokens.len()
                && choice.is_probably_greedy(self.bets_on_samples)
                && !(job.closed || job.routes)
        };
        if !self.running.iter().enumerate().all(goes_on) || !self.model.can_follow(rows) {
            return false;
        }
        // Guesses are for a step that waits.
        let control = &self.speculation.control;
        let wants_guess = |r: &mut Running| {
            let guesses = &mut r.choice.guesses;
            control.wants_guess(&mut guesses.history, &guesses.classes, rows)
        };
        if was_submitted && self.running.iter_mut().any(wants_guess) {
            return false;
        }
        self.next.clear();
        for r in &mut self.running {
            let past = r.lease.computed + 1;
            // If the answer ends now, it needs no further page, so nothing is evicted for one.
            if !self.cache.grow_freely(&mut r.lease, past + 1) || !self.cache.take_spare(&mut r.lease) {
                return false;
            }
            let pages = r.lease.tables(past + 1);
            // The device has the token.
            self.next.push(&[0], past, r.lease.spare.unwrap_or(r.lease.slot), pages, 1);
            self.next.start_from(r.lease.slot);
            // Tokens after an image have other coordinates than their positions.
            super::images::place(&r.choice, &mut self.next, r.row, past..past + 1);
            r.took = None;
        }
        true
    }

    /// Makes the submitted step the current one, if there is one and its bet is won. Otherwise drops it, and takes the spare slots back.
    pub(super) fn take_next(&mut self) -> bool {
        if std::mem::take(&mut self.is_ahead) {
            if !self.running.is_empty() && self.running.iter().all(Running::is_won) {
                self.begin_next();
                return true;
            }
            self.stats.steps_dropped += 1;
            if let Err(e) = self.model.drop_next() {
                self.device_failed(&e);
            }
        }
        for r in &mut self.running {
            self.cache.release_spare(&mut r.lease);
        }
        false
    }

    fn begin_next(&mut self) {
        self.stats.steps_ahead += 1;
        std::mem::swap(&mut self.batch, &mut self.next);
        for r in &mut self.running {
            if let Some(spare) = &mut r.lease.spare {
                std::mem::swap(&mut r.lease.slot, spare);
            }
            // Rows are in the order of the sequences, of which some may have ended.
            r.row = self.batch.first_token(r.lease.slot).expect("it was in the step");
            (r.planned, r.guessed, r.rows) = (1, 0, 1);
            (r.first, r.past) = (r.row, r.lease.computed);
        }
        (self.plan.decodes, self.plan.prefills) = (self.running.len(), 0);
        self.speculation.shared = Shared { answers: self.running.len(), guesses: 0 };
    }
}
