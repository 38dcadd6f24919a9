//! Guesses by the model's own block for multi-token prediction. A drafter of `speculation`.
//!
//! The block is one attention layer over `(state of token t, token t + 1)`, at position `t`. Its keys and values lie in the pages of the
//! other layers, and are shared and stored with them. After each step of the model, those of the step's tokens are computed, also for
//! prompts: a fraction of the layer's work (`models::Model::draft`). The whole layer runs only for the last token of an answer, and again
//! with its own output for each further guess. Entries of guesses are overwritten as the sequence continues.
//!
//! If a sequence resumes from the cache, the block's last entry before was computed with the token that followed at the time, and the
//! state to compute it again is gone. One entry of many is stale, which can make a guess worse.

use std::time::Instant;

use octet_compute::Batch;

use super::controller::{Class, Controller};
use super::{Drafter, Work, measure};
use crate::Error;
use crate::models::{Guess, Model, Rows};
use crate::vision::Places;

/// Number of last tokens of a text that are added to the block's vocabulary. Most are in it anyway; each of the others costs one copy of
/// a row.
const NOTED_TOKENS_MAX: usize = 8192;

pub(super) struct Block {
    fill: Rows,
    draft: Rows,
    out: Vec<Guess>,
    /// The answers to draft for, in the order of the batch.
    order: Vec<usize>,
    /// Whether it is dropped if it cannot pay.
    must_pay: bool,
}

impl Block {
    pub fn new(model: &dyn Model, must_pay: bool) -> Self {
        let limits = model.limits();
        let pages = limits.slots * limits.pages;
        Self {
            fill: Rows::with_capacity(limits.batch_tokens, limits.slots, pages),
            draft: Rows::with_capacity(limits.slots, limits.slots, pages),
            out: vec![Guess::default(); limits.slots],
            order: Vec::with_capacity(limits.slots),
            must_pay,
        }
    }

    /// Collects the entries to write since the last call, and the answers to draft for.
    fn gather(&mut self, work: &mut Work<'_>, control: &Controller) {
        for rows in [&mut self.fill, &mut self.draft] {
            rows.from.clear();
            rows.batch.clear();
        }
        self.order.clear();
        let (others, room) = (work.others(), work.model.limits().batch_tokens);
        let Work { model, running, .. } = work;
        for (i, r) in running.iter_mut().enumerate() {
            let (lease, tokens) = (&r.lease, &r.choice.tokens);
            if r.fresh == 0 || lease.is_loading() {
                continue;
            }
            let row = |position: usize| r.first + position - r.past;
            // Of images it knows the places only.
            let places = &r.choice.places;
            let plain = |ids: &[u32]| ids.iter().map(|id| places.id(*id)).collect::<Vec<_>>();
            let has_images = !places.is_empty();
            // Entries whose next token is known.
            let (past, mut end) = (r.past, lease.computed.min(tokens.len() - 1));
            let last = lease.computed - 1;
            let wanted = r.choice.guesses.is_open() && {
                let history = &mut r.choice.guesses.history;
                control.pays_to_draft(history, others, &[]) || control.probes(history)
            };
            if wanted && self.draft.batch.fits(last, 1, lease.slot, lease.tables(last + 1)) {
                self.draft.from.push_row(row(last));
                let tables = lease.tables(last + 1);
                self.draft.batch.push(&tokens[last + 1..], last, lease.slot, tables, 1);
                turn(&mut self.draft.batch, places, last..last + 1);
                self.order.push(i);
                end = last;
                let noted = &mut r.choice.guesses.noted;
                let new = &tokens[(*noted).max(tokens.len().saturating_sub(NOTED_TOKENS_MAX))..];
                if has_images {
                    model.note(&plain(new))
                } else {
                    model.note(new)
                }
                *noted = tokens.len();
            }
            let n = end.saturating_sub(past);
            let tables = lease.tables(end);
            if self.fill.batch.fits(past, n, lease.slot, tables) && self.fill.batch.len() + n <= room {
                (past..end).for_each(|p| self.fill.from.push_row(row(p)));
                let next = &tokens[past + 1..end + 1];
                let mapped = if has_images { plain(next) } else { Vec::new() };
                let next = if has_images { &mapped } else { next };
                self.fill.batch.push(next, past, lease.slot, tables, 0);
                turn(&mut self.fill.batch, places, past..end);
            }
            r.fresh = 0;
        }
    }

    /// Gives the guesses to their answers. Moves answers that need no more to the end: the batch of the next pass is the start of this
    /// one. Returns its length.
    fn assign_guesses(&mut self, work: &mut Work<'_>, control: &Controller) -> usize {
        let others = work.others();
        let mut more = 0;
        for (place, (&i, guess)) in self.order.iter().zip(&self.out).enumerate() {
            let guesses = &mut work.running[i].choice.guesses;
            if guesses.most == guesses.ids.len() {
                continue;
            }
            guesses.push(guess.id, Class::drafted(guess.chance));
            let wants = guesses.ids.len() < guesses.most
                && control.pays_to_draft(&guesses.history, others, &guesses.classes);
            if wants {
                more = place + 1;
            } else {
                guesses.most = guesses.ids.len();
            }
        }
        more
    }
}

impl Block {
    /// Charges the answers of a pass for it.
    fn charge(&self, work: &mut Work<'_>, control: &Controller) {
        for &i in &self.order {
            control.charge(&mut work.running[i].choice.guesses.history, self.order.len());
        }
    }
}

/// Gives the newest span of a batch the coordinates of its positions, where images are before them.
fn turn(batch: &mut Batch, places: &Places, positions: std::ops::Range<usize>) {
    if places.has_turns() {
        batch.turn(positions.map(|p| places.turn(p)));
    }
}

impl Drafter for Block {
    fn drafts(&self) -> bool {
        true
    }

    fn can_pay(&self, control: &Controller) -> bool {
        !self.must_pay || control.block_can_pay()
    }

    fn measure(&mut self, model: &mut dyn Model, control: &mut Controller) -> Result<(), Error> {
        let mut one = Rows::with_capacity(1, 1, 1);
        one.from.push_row(0);
        one.batch.push(&[0], 0, measure::SLOT, &[measure::PAGE], 1);
        let none = Rows::default();
        let draft = measure::least(|| model.draft(&none, &one, &mut self.out))?;
        control.record_draft(draft);
        let fill = measure::least(|| model.draft(&one, &none, &mut self.out))?;
        control.record_fill(fill);
        Ok(())
    }

    fn draft(&mut self, work: &mut Work<'_>, control: &mut Controller) -> Result<(), Error> {
        self.gather(work, control);
        if self.fill.batch.is_empty() && self.draft.batch.is_empty() {
            return Ok(());
        }
        let start = Instant::now();
        work.model.draft(&self.fill, &self.draft, &mut self.out)?;
        if self.order.is_empty() {
            return Ok(());
        }
        if self.fill.batch.len() <= self.order.len() {
            control.record_draft(start.elapsed());
        }
        self.charge(work, control);
        let mut depth = 1;
        loop {
            let more = self.assign_guesses(work, control);
            self.order.truncate(more);
            self.draft.batch.clear();
            for &i in &self.order {
                let r = &mut work.running[i];
                let at = r.lease.computed - 1 + depth;
                let (Some(&id), true) =
                    (r.choice.guesses.ids.last(), work.cache.grow(work.model, &mut r.lease, at + 1))
                else {
                    break;
                };
                let tables = r.lease.tables(at + 1);
                if !self.draft.batch.fits(at, 1, r.lease.slot, tables) {
                    break;
                }
                self.draft.batch.push(&[id], at, r.lease.slot, tables, 1);
                turn(&mut self.draft.batch, &r.choice.places, at..at + 1);
            }
            self.order.truncate(self.draft.batch.len());
            if self.order.is_empty() {
                return Ok(());
            }
            let start = Instant::now();
            work.model.draft_more(&self.draft.batch, &mut self.out)?;
            control.record_draft(start.elapsed());
            self.charge(work, control);
            depth += 1;
        }
    }
}
