//! Drafting with the multi-token-prediction block: its pass, its buffers, its vocabulary, and the choice of a guess from its logits.

use octet_compute::backend::{Backend, Out, Pass, TableRow};
use octet_compute::{Batch, ExpertCounts};

use super::Limits;
use super::config::Config;
use super::decoder::{Decoder, DraftHead, Mtp, Op, Project, Scratch};
use super::recent::Recent;
use crate::Error;

/// The tokens that the block for multi-token prediction drafts among, besides those that end or mark parts of an answer. Each draft
/// reads the head, so a part of it makes drafts several times as fast (arXiv 2502.14856).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftVocab {
    /// The first tokens of the vocabulary: in byte-pair encodings the most frequent.
    pub first: usize,
    /// Maximum number of others: recent tokens of running answers. All running answers share them, and a draft reads their rows once
    /// for all: 3 MB for 2048 rows of Qwen3.5-35B-A3B, besides 55 MB for 32,768.
    pub recent: usize,
}

impl Default for DraftVocab {
    fn default() -> Self {
        Self { first: 32_768, recent: 2048 }
    }
}

impl DraftVocab {
    /// Whether a separate head is used for drafts: not if the vocabulary is hardly larger.
    pub(crate) fn is_part_of(self, vocab: usize) -> bool {
        self.first > 0 && vocab >= 2 * self.first
    }

    /// Rows of that head, without those that mark parts of an answer; 0 without one.
    pub(crate) fn rows(self, vocab: usize) -> usize {
        if self.is_part_of(vocab) { self.first + self.recent } else { 0 }
    }
}

/// A guess.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Guess {
    /// The token.
    pub id: u32,
    /// The drafter's probability of it, 0 to 1.
    pub chance: f32,
}

/// Rows of the last step and the tokens after them: the input of the multi-token-prediction block.
#[derive(Debug, Default)]
pub struct Rows {
    /// The rows, as outputs of a batch without tokens ([`Batch::push_row`]).
    pub from: Batch,
    /// The token after each row, at the position of the row itself.
    pub batch: Batch,
}

impl Rows {
    /// With capacity for `tokens` tokens of `spans` sequences and `pages` pages.
    pub fn with_capacity(tokens: usize, spans: usize, pages: usize) -> Self {
        Self { from: Batch::with_capacity(tokens, 0, 0), batch: Batch::with_capacity(tokens, spans, pages) }
    }
}

/// The block's buffers.
pub(super) struct State<B: Backend> {
    /// The trunk's states `[batch_tokens, hidden]`.
    pub hidden: B::Buf,
    /// `[batch_tokens, hidden]`
    pub work: B::Buf,
    /// The states for the next guesses `[slots, hidden]`: the trunk's, then the block's own.
    pub own: B::Buf,
    /// `[slots, hidden]`
    next: B::Buf,
    /// Logits `[slots, draft vocabulary]`, if the backend does not lend its buffer.
    logits: Vec<f32>,
    /// Rows of the head for drafts.
    vocab: usize,
    /// Recent tokens among them.
    recent: Recent,
}

impl<B: Backend> State<B> {
    pub fn new(be: &mut B, limits: &Limits, config: &Config, mtp: &Mtp<B>) -> Result<Self, Error> {
        let (tokens, slots) = (limits.batch_tokens * config.hidden, limits.slots * config.hidden);
        Ok(Self {
            hidden: be.buf(tokens)?,
            work: be.buf(tokens)?,
            own: be.buf(slots)?,
            next: be.buf(slots)?,
            logits: Vec::new(),
            vocab: mtp.head.as_ref().map_or(config.vocab, |h| h.ids.len() + h.recent),
            recent: mtp
                .head
                .as_ref()
                .map_or_else(Recent::default, |h| Recent::new(config.vocab, &h.ids, h.recent)),
        })
    }

    /// See [`super::Model::note`].
    pub fn note(&mut self, be: &mut B, whole: &B::Weight, head: &mut DraftHead<B>, tokens: &[u32]) {
        tokens.iter().for_each(|&id| self.recent.note(id));
        let rows = self.recent.changes();
        if !rows.is_empty() {
            be.copy_rows(whole, &mut head.weight, rows);
        }
    }

    /// One guess for each sequence of `batch`, from `own`, which is then updated for the next guesses.
    pub fn draft(
        &mut self,
        decoder: &Decoder<B>,
        mtp: &Mtp<B>,
        be: &mut B,
        scratch: &mut Scratch<B>,
        cache: &mut B::Cache,
        counts: &ExpertCounts,
        batch: &Batch,
        out: &mut [Guess],
    ) -> Result<(), Error> {
        let (own, next) = (&self.own, &mut self.next);
        be.step(Pass::Other, batch, |be| {
            decoder.forward_mtp(mtp, be, scratch, cache, counts, batch, own, next, true);
        })?;
        be.count_experts(counts);
        std::mem::swap(&mut self.own, &mut self.next);
        let n = batch.outputs().len() * self.vocab;
        if be.borrow(&scratch.logits).is_none() {
            self.logits.resize(n, 0.0);
            be.read(&scratch.logits, &mut self.logits);
        }
        let logits = be.borrow(&scratch.logits).unwrap_or(&self.logits);
        for (row, out) in logits[..n].chunks_exact(self.vocab).zip(out) {
            *out = match &mtp.head {
                None => likeliest(row),
                Some(head) => {
                    let guess = likeliest(&row[..head.ids.len() + self.recent.ids().len()]);
                    let place = guess.id as usize;
                    let id =
                        head.ids.get(place).unwrap_or_else(|| &self.recent.ids()[place - head.ids.len()]);
                    Guess { id: *id, ..guess }
                }
            };
        }
        Ok(())
    }
}

impl<B: Backend> Decoder<B> {
    /// The multi-token-prediction block: row `t` of `hidden` is the trunk's state of token `t` after the last norm (or the block's
    /// own), `batch.tokens[t]` the token that follows it. `logits` then holds predictions of the token after that, for
    /// `batch.outputs`: of all tokens, or of those of [`Mtp::head`] where `own_head`.
    /// `hidden` and `work` are `[n, hidden]`; `work` is left holding the block's own state after its last norm.
    pub fn forward_mtp(
        &self,
        mtp: &Mtp<B>,
        be: &mut B,
        s: &mut Scratch<B>,
        cache: &mut B::Cache,
        counts: &ExpertCounts,
        batch: &Batch,
        hidden: &B::Buf,
        work: &mut B::Buf,
        own_head: bool,
    ) {
        self.mtp_input(mtp, be, s, batch, hidden, work);
        let step = self.step(batch, counts);
        mtp.blocks.iter().for_each(|block| block.forward(be, s, cache, &step));
        let own = mtp.head.as_ref().filter(|_| own_head).map(|h| &h.weight);
        if let Some(head) = own.or(self.head.as_ref()) {
            be.logits(batch, &s.h, &self.head(&mtp.norm, head), &mut s.logits);
        }
        be.norm(batch.len(), Some(&s.h), &mtp.norm, Out::Write(work));
    }

    /// Computes only the block's keys and values, which later tokens attend to: a fraction of its work.
    pub fn fill_mtp(
        &self,
        mtp: &Mtp<B>,
        be: &mut B,
        s: &mut Scratch<B>,
        cache: &mut B::Cache,
        batch: &Batch,
        hidden: &B::Buf,
        work: &mut B::Buf,
    ) {
        self.mtp_input(mtp, be, s, batch, hidden, work);
        for branch in mtp.blocks.iter().flat_map(|b| &b.branches) {
            let Op::Attention {
                spec,
                project: Project::Direct { k: Some(k), v: Some(v), .. },
                cache: at,
                ..
            } = &branch.op
            else {
                continue;
            };
            be.project(batch.len(), &s.h, branch.pre.as_ref(), [k, v], [&mut s.k, &mut s.v]);
            // Queries are computed into a buffer that nothing reads.
            be.rope_store(batch, spec, *at, cache, &mut s.qkv, Some((&mut s.k, &s.v)));
        }
    }

    fn mtp_input(
        &self,
        mtp: &Mtp<B>,
        be: &mut B,
        s: &mut Scratch<B>,
        batch: &Batch,
        hidden: &B::Buf,
        work: &mut B::Buf,
    ) {
        let n = batch.len();
        be.embed(batch, &self.embedding, TableRow::Id, self.embed_scale, work);
        be.project(n, work, Some(&mtp.embed_norm), [&mtp.fc_embed], [&mut s.h]);
        be.norm(n, Some(hidden), &mtp.hidden_norm, Out::Write(work));
        be.linear(n, work, &mtp.fc_hidden, Out::Add(&mut s.h, 1.0));
    }
}

/// The most probable token and its probability. Answers do not depend on it, so invalid logits are harmless.
pub(crate) fn likeliest(logits: &[f32]) -> Guess {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let id = logits.iter().position(|x| *x == most).unwrap_or(0) as u32;
    // Logits far below the maximum are negligible.
    let sum: f32 = logits.iter().filter(|x| **x > most - 12.0).map(|x| (x - most).exp()).sum();
    Guess { id, chance: if sum > 0.0 { 1.0 / sum } else { 0.0 } }
}
