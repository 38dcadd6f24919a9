//! Guesses by a small model with the same tokenizer, which processes the same text. A drafter of `speculation`.
//!
//! It has its own KV cache, with a sequence for each slot of the large model, and no prefix cache: it processes each prompt in parts
//! between the large model's steps, and guesses nothing until that is done. A sequence contains only certain tokens: a recurrent state is
//! copied before the model processes its own guesses.

use std::time::Instant;

use octet_compute::Batch;
use octet_compute::batch::PAGE_TOKENS;

use super::controller::{Class, Controller};
use super::{DRAFT_READ_TOKENS as READ_TOKENS, Drafter, Options, Work, measure};
use crate::Error;
use crate::cache::{Pool, Sequence};
use crate::models::{self, Model, mtp::likeliest};
use crate::tokenizer::Tokenizer;

pub(super) struct Small {
    model: Box<dyn Model>,
    pool: Pool,
    /// One per slot of the large model, with the tokens processed so far.
    sequences: Vec<Sequence>,
    /// A slot for the copied state of a sequence while its guesses are processed.
    aside: usize,
    batch: Batch,
    context: usize,
    /// Size of the large model's vocabulary.
    vocab: usize,
}

impl Small {
    pub fn open(
        options: &Options,
        file: &octet_weights::Model,
        engine: &crate::engine::Options,
    ) -> Result<Self, Error> {
        let named = |what: String| Error::Request(format!("speculative decoding with a draft model: {what}"));
        let Some(small) = &options.draft else { return Err(named("no draft model is named".into())) };
        same_tokens(file, small).map_err(named)?;
        let made_for = models::context_length(file)?;
        let context = engine.context_for(made_for).min(models::context_length(small)?);
        let limits = engine.draft_limits(made_for, small)?;
        let slots = limits.slots - 1;
        let mut model = engine.device().load(small, limits, &mut |_, _| {})?;
        let mut pool = Pool::new(&*model);
        let aside = pool.take_slot().ok_or_else(|| named("the draft model has no slot".into()))?;
        let sequences = (0..slots).map(|_| pool.sequence(&mut *model, context)).collect::<Result<_, _>>()?;
        Ok(Self {
            batch: Batch::with_capacity(READ_TOKENS, 1, context.div_ceil(PAGE_TOKENS)),
            model,
            pool,
            sequences,
            aside,
            context,
            vocab: models::config::Config::read(file)?.vocab,
        })
    }

    /// Processes more of `tokens` in the sequence of `slot`; true if all are processed, and the logits of the last one are available.
    fn read(&mut self, slot: usize, tokens: &[u32]) -> Result<bool, Error> {
        let seq = &mut self.sequences[slot];
        if !tokens.starts_with(&seq.tokens) || seq.tokens.len() >= tokens.len() {
            self.pool.clear(&mut *self.model, seq);
        }
        let past = seq.tokens.len();
        let n = (tokens.len() - past).min(READ_TOKENS);
        if self.pool.reserve(seq, n).is_err() {
            return Ok(false);
        }
        let complete = past + n == tokens.len();
        self.batch.clear();
        self.batch.push(&tokens[past..past + n], past, seq.slot, &seq.pages, usize::from(complete));
        self.model.step(&self.batch)?;
        seq.tokens.extend_from_slice(&tokens[past..past + n]);
        Ok(complete)
    }

    /// Guesses for the `i`th running sequence, whose tokens are all processed.
    fn follow(&mut self, work: &mut Work<'_>, control: &mut Controller, i: usize) -> Result<(), Error> {
        let (others, r) = (work.others(), &mut work.running[i]);
        let guesses = &mut r.choice.guesses;
        let (slot, past) = (self.sequences[r.lease.slot].slot, r.choice.tokens.len());
        self.model.copy_slot(slot, self.aside);
        loop {
            let guess = likeliest(self.model.last_logits());
            if guess.id as usize >= self.vocab {
                break;
            }
            guesses.push(guess.id, Class::drafted(guess.chance));
            let n = guesses.ids.len();
            let seq = &mut self.sequences[r.lease.slot];
            if n >= guesses.most
                || past + n >= self.context
                || !control.pays_to_draft(&guesses.history, others, &guesses.classes)
                || self.pool.reserve(seq, n).is_err()
            {
                break;
            }
            let start = Instant::now();
            self.batch.clear();
            self.batch.push(&[guess.id], past + n - 1, slot, &seq.pages, 1);
            self.model.step(&self.batch)?;
            control.record_draft(start.elapsed());
            control.charge(&mut guesses.history, 1);
        }
        self.model.copy_slot(self.aside, slot);
        Ok(())
    }
}

impl Drafter for Small {
    fn drafts(&self) -> bool {
        true
    }

    fn measure(&mut self, _: &mut dyn Model, control: &mut Controller) -> Result<(), Error> {
        let Self { model, batch, .. } = self;
        batch.clear();
        batch.push(&[0], 0, measure::SLOT, &[measure::PAGE], 1);
        control.record_draft(measure::least(|| model.step(batch).map(|_| ()))?);
        measure::reset(&mut **model);
        Ok(())
    }

    fn draft(&mut self, work: &mut Work<'_>, control: &mut Controller) -> Result<(), Error> {
        let others = work.others();
        for i in 0..work.running.len() {
            let r = &mut work.running[i];
            let guesses = &mut r.choice.guesses;
            let sees = !r.choice.places.is_empty(); // it has no tower
            if !guesses.is_open() || r.choice.tokens.len() >= self.context || sees {
                continue;
            }
            let history = &mut guesses.history;
            let pays = control.pays_to_draft(history, others, &[]) || control.probes(history);
            if pays && self.read(r.lease.slot, &r.choice.tokens)? {
                control.charge(&mut r.choice.guesses.history, 1);
                self.follow(work, control, i)?;
            }
        }
        Ok(())
    }
}

/// Fails if the two vocabularies differ: a guess would mean another text.
fn same_tokens(large: &octet_weights::Model, small: &octet_weights::Model) -> Result<(), String> {
    let read = |m: &octet_weights::Model| {
        Tokenizer::from_metadata(&m.metadata).map_err(|e| format!("{}: {e}", m.origin))
    };
    let (a, b) = (read(large)?, read(small)?);
    let refused = |what: String| {
        Err(format!(
            "{} has another tokenizer than {}: {what}; use a smaller model of the same family",
            small.origin, large.origin
        ))
    };
    // Rows of padding may differ.
    let common = a.vocab_len().min(b.vocab_len());
    if let Some(id) = (0..common as u32)
        .find(|&id| a.token_bytes(id) != b.token_bytes(id) && (a.is_sampleable(id) || b.is_sampleable(id)))
    {
        let text = |t: &Tokenizer| t.token_text(id).unwrap_or("").to_string();
        return refused(format!("token {id} is {:?} in one and {:?} in the other", text(&b), text(&a)));
    }
    let (longer, name) = if a.vocab_len() > common { (&a, &large.origin) } else { (&b, &small.origin) };
    match (common..longer.vocab_len()).find(|&id| longer.is_sampleable(id as u32)) {
        Some(id) => refused(format!("only {name} has a token {id}")),
        None => Ok(()),
    }
}
