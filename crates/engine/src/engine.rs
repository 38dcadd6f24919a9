//! A model that talks: one sequence, its prompt processed and its answer generated. Called by `octet run`.
//!
//! What a prompt has in common with the sequence before it is not computed again, as far as the architecture allows:
//! keys and values can be cut anywhere, a recurrent state only where a snapshot of it was kept.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use octet_compute::Batch;
use octet_compute::backend::KvType;
use octet_compute::batch::PAGE_TOKENS;
use octet_compute::cpu::{Cpu, CpuOptions};

use crate::Error;
use crate::cache::{Pool, Sequence, Snapshot};
use crate::detokenizer::{ControlTokens, Detokenizer};
use crate::models::{self, Limits, Model, config::CONTEXT_MAX, loader::Progress};
use crate::sampler::{Sampler, SamplerError, SamplerParams, StopStrings};
use crate::tokenizer::Tokenizer;

/// How a model is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Tokens of context; `None` is what the model was made for, at most [`DEFAULT_CONTEXT`].
    pub context: Option<usize>,
    /// Type of keys and values.
    pub kv: KvType,
    /// Tokens of a prompt that are processed at once.
    pub batch_tokens: usize,
    /// Tokens that [`Engine::score`] takes at once; each costs a row of logits. Generation needs 1.
    pub score_tokens: usize,
    /// Threads and kernels.
    pub cpu: CpuOptions,
}

/// Context of a model that was made for more, unless one is asked for.
pub const DEFAULT_CONTEXT: usize = 16_384;

impl Options {
    /// Tokens of context for a model that was made for `made_for`.
    pub fn context_for(&self, made_for: usize) -> usize {
        self.context.unwrap_or(made_for.min(DEFAULT_CONTEXT))
    }

    /// What a model that was made for `made_for` tokens of context is loaded with. Fails for more than [`CONTEXT_MAX`].
    pub fn limits(&self, made_for: usize) -> Result<Limits, Error> {
        let context = self.context_for(made_for);
        if context > CONTEXT_MAX {
            return Err(Error::ContextTooLong { context, most: CONTEXT_MAX });
        }
        let batch_tokens = self.batch_tokens.clamp(1, context.max(1));
        Ok(Limits {
            batch_tokens,
            batch_outputs: self.score_tokens.clamp(1, batch_tokens),
            kv: self.kv,
            ..Limits::single(context)
        })
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            context: None,
            kv: KvType::F16,
            batch_tokens: 512,
            score_tokens: 1,
            cpu: CpuOptions::default(),
        }
    }
}

/// What to generate.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Most tokens of the answer; `None` is as many as the context holds.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampling: SamplerParams,
    /// Texts that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// The answer goes on in the prompt's text: where the vocabulary writes a space before the first word, that space is
    /// part of the answer. Otherwise, in a chat, it is an artefact, and is left out.
    pub continues: bool,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model said that it is done.
    EndOfText,
    /// A stop string came.
    StopString,
    /// `max_tokens` or the context is used up.
    Length,
    /// The caller asked for it.
    Cancelled,
}

/// A token's log-probability, and those of its likeliest rivals.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct TokenLogprob {
    pub id: u32,
    pub logprob: f32,
    pub top: Vec<(u32, f32)>,
}

/// An answer, and what it cost.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its text, without control tokens.
    pub text: String,
    /// Its tokens, the one that ended it included.
    pub tokens: Vec<u32>,
    /// Log-probabilities of the tokens, where they were asked for.
    pub logprobs: Vec<TokenLogprob>,
    /// Why it ended.
    pub finish: Finish,
    /// The seed that it was drawn with: the same request with this seed gives the same answer.
    pub seed: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were not computed again.
    pub cached_tokens: usize,
    /// From the call to the first token of the answer.
    pub prompt_time: Duration,
    /// From there to the last one.
    pub generate_time: Duration,
}

/// A loaded model with one sequence.
pub struct Engine {
    model: Box<dyn Model>,
    pool: Pool,
    seq: Sequence,
    snapshot: Option<Snapshot>,
    batch: Batch,
    tokenizer: Arc<Tokenizer>,
    sampling: SamplerParams,
    /// Bit set of the ids that may be sampled.
    sampleable: Vec<u32>,
    context: usize,
}

impl Engine {
    /// Loads a model onto the CPU; `progress` is told the bytes loaded so far and in all.
    pub fn open(
        file: &octet_weights::Model,
        options: &Options,
        progress: Progress<'_>,
    ) -> Result<Self, Error> {
        let tokenizer = Arc::new(Tokenizer::from_metadata(&file.metadata)?);
        let made_for = models::context_length(file)?;
        let (context, limits) = (options.context_for(made_for), options.limits(made_for)?);
        let mut model = models::load(file, Cpu::new(&options.cpu)?, limits, progress)?;
        let mut pool = Pool::new(&*model);
        let seq = pool.sequence(&mut *model, context)?;
        let vocab = model.config().vocab;
        Ok(Self {
            batch: Batch::with_capacity(model.limits().batch_tokens, 1, context.div_ceil(PAGE_TOKENS)),
            sampleable: tokenizer.sampleable_mask(vocab),
            sampling: SamplerParams::from_metadata(&file.metadata, SamplerParams::default())?,
            model,
            pool,
            seq,
            snapshot: None,
            tokenizer,
            context,
        })
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }
    /// Sampling that the model's files ask for.
    pub fn sampling(&self) -> &SamplerParams {
        &self.sampling
    }
    /// Tokens of context.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Answers `prompt`, calling `on_text` with each piece of text as soon as it is certain, and with none before each
    /// step of the prompt, so that a long one can be broken off. `checkpoint` is the length of the part of the prompt
    /// that later prompts will repeat: a snapshot of the state is kept there.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        checkpoint: usize,
        request: &Request,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, Error> {
        let start = Instant::now();
        if prompt.is_empty() {
            return Err(Error::Request("the prompt has no tokens".into()));
        }
        if prompt.len() >= self.context {
            return Err(Error::ContextFull { tokens: prompt.len(), context: self.context });
        }
        let vocab = self.model.config().vocab;
        self.check_ids(prompt)?;
        let mut sampler = Sampler::new(request.sampling.clone(), vocab, &self.sampleable, entropy())?;
        prompt.iter().for_each(|&id| sampler.accept(id));

        let cached = self.reuse(prompt);
        let mut out = Output::new(&self.tokenizer, request, sampler.seed(), prompt.len(), cached)?;
        let mut patience = || on_text("");
        let mut flow = ControlFlow::Continue(());
        let mut fed = cached;
        if checkpoint > cached && checkpoint < prompt.len() {
            flow = self.feed_while(&prompt[cached..checkpoint], false, &mut patience)?;
            if flow.is_continue() {
                self.keep_snapshot()?;
                fed = checkpoint;
            }
        }
        if flow.is_continue() {
            flow = self.feed_while(&prompt[fed..], true, &mut patience)?;
        }
        if flow.is_break() {
            out.answer.finish = Finish::Cancelled;
            out.answer.prompt_time = start.elapsed();
            return Ok(out.answer);
        }

        let room = self.context - prompt.len();
        let limit = request.max_tokens.map_or(room, |n| n.min(room));
        let mut prompt_time = None;
        while out.answer.tokens.len() < limit {
            let sampled = sampler.sample(self.model.last_logits(), None)?;
            prompt_time.get_or_insert_with(|| start.elapsed());
            sampler.accept(sampled.id);
            if let Some(logprob) = sampled.logprob {
                let top = sampler.top_logprobs().to_vec();
                out.answer.logprobs.push(TokenLogprob { id: sampled.id, logprob, top });
            }
            if let Some(finish) = out.take(sampled.id, &self.tokenizer, on_text) {
                out.answer.finish = finish;
                break;
            }
            if out.answer.tokens.len() < limit {
                self.feed(&[sampled.id], true)?;
            }
        }
        out.finish(on_text);
        let mut answer = out.answer;
        answer.prompt_time = prompt_time.unwrap_or_else(|| start.elapsed());
        answer.generate_time = start.elapsed() - answer.prompt_time;
        Ok(answer)
    }

    /// Negative log-likelihood of each token but the first, given those before it. Fails where the model computes
    /// something that is no number.
    pub fn score(&mut self, tokens: &[u32], tick: &mut dyn FnMut(usize)) -> Result<Vec<f32>, Error> {
        if tokens.len() > self.context {
            return Err(Error::ContextFull { tokens: tokens.len(), context: self.context });
        }
        self.check_ids(tokens)?;
        self.clear();
        let vocab = self.model.config().vocab;
        let at_once = self.model.limits().batch_outputs.min(self.model.limits().batch_tokens);
        let mut nll = Vec::with_capacity(tokens.len());
        for start in (0..tokens.len().saturating_sub(1)).step_by(at_once) {
            let part = &tokens[start..(start + at_once).min(tokens.len() - 1)];
            self.pool.reserve(&mut self.seq, part.len())?;
            self.batch.clear();
            self.batch.push(part, start, self.seq.slot, &self.seq.pages, part.len());
            let rows = self.model.step(&self.batch).chunks_exact(vocab);
            for (row, &next) in rows.zip(&tokens[start + 1..]) {
                nll.push(negative_log_likelihood(row, next)?);
            }
            self.seq.tokens.extend_from_slice(part);
            tick(nll.len());
        }
        Ok(nll)
    }

    fn check_ids(&self, tokens: &[u32]) -> Result<(), Error> {
        let vocab = self.model.config().vocab;
        match tokens.iter().find(|&&id| id as usize >= vocab) {
            Some(id) => Err(Error::Request(format!("token id {id} is not in the vocabulary of {vocab}"))),
            None => Ok(()),
        }
    }

    /// Forgets everything that was processed.
    pub fn clear(&mut self) {
        if let Some(s) = self.snapshot.take() {
            self.pool.drop_snapshot(s);
        }
        self.pool.clear(&mut *self.model, &mut self.seq);
    }

    /// Cuts the sequence back to what it has in common with `prompt`, or as far as its state can go back, and always
    /// leaves a token to compute. Returns how many tokens are kept.
    fn reuse(&mut self, prompt: &[u32]) -> usize {
        let same =
            self.seq.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count().min(prompt.len() - 1);
        if same == self.seq.tokens.len() {
            return same;
        }
        if !self.model.config().recurrent.contains(&true) {
            self.pool.truncate(&mut self.seq, same);
            return same;
        }
        match self.snapshot.take_if(|s| s.tokens <= same) {
            Some(s) => {
                self.pool.restore(&mut *self.model, &mut self.seq, &s);
                self.snapshot = Some(s);
            }
            None => self.clear(),
        }
        self.seq.tokens.len()
    }

    fn keep_snapshot(&mut self) -> Result<(), Error> {
        if let Some(s) = self.snapshot.take() {
            self.pool.drop_snapshot(s);
        }
        if self.model.config().recurrent.contains(&true) {
            self.snapshot = Some(self.pool.snapshot(&mut *self.model, &self.seq)?);
        }
        Ok(())
    }

    /// Appends `tokens` to the sequence, as many at once as a step takes.
    fn feed(&mut self, tokens: &[u32], logits: bool) -> Result<(), Error> {
        self.feed_while(tokens, logits, &mut || ControlFlow::Continue(())).map(|_| ())
    }

    /// The same, and asks before each step whether to go on. What was appended until then stays.
    fn feed_while(
        &mut self,
        tokens: &[u32],
        logits: bool,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Error> {
        self.pool.reserve(&mut self.seq, tokens.len())?;
        let at_once = self.model.limits().batch_tokens;
        let steps = tokens.len().div_ceil(at_once);
        for (i, part) in tokens.chunks(at_once).enumerate() {
            if go_on().is_break() {
                return Ok(ControlFlow::Break(()));
            }
            let outputs = usize::from(logits && i + 1 == steps);
            self.batch.clear();
            self.batch.push(part, self.seq.tokens.len(), self.seq.slot, &self.seq.pages, outputs);
            self.model.step(&self.batch);
            self.seq.tokens.extend_from_slice(part);
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// A seed for requests that name none.
fn entropy() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

/// Of `next`, in nats. Fails where the logits are no numbers to compute with.
fn negative_log_likelihood(logits: &[f32], next: u32) -> Result<f32, SamplerError> {
    SamplerError::check(logits)?;
    let i = next as usize;
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|v| f64::from(v - max).exp()).sum();
    let nll = sum.ln() as f32 + max - logits[i];
    if nll.is_finite() { Ok(nll) } else { Err(SamplerError::NotFinite { id: next, value: logits[i] }) }
}

/// The answer as it grows.
struct Output {
    answer: Answer,
    detokenizer: Detokenizer,
    stop: StopStrings,
    stopped: bool,
}

impl Output {
    fn new(
        tokenizer: &Arc<Tokenizer>,
        request: &Request,
        seed: u64,
        prompt_tokens: usize,
        cached_tokens: usize,
    ) -> Result<Self, Error> {
        let (tokenizer, control) = (Arc::clone(tokenizer), ControlTokens::Hide);
        Ok(Self {
            answer: Answer {
                text: String::new(),
                tokens: Vec::new(),
                logprobs: Vec::new(),
                finish: Finish::Length,
                seed,
                prompt_tokens,
                cached_tokens,
                prompt_time: Duration::ZERO,
                generate_time: Duration::ZERO,
            },
            detokenizer: match request.continues {
                true => Detokenizer::continuing(tokenizer, control),
                false => Detokenizer::new(tokenizer, control),
            },
            stop: StopStrings::new(request.stop.clone())?,
            stopped: false,
        })
    }

    /// Takes the next token; `Some` when the answer ends with it.
    fn take(
        &mut self,
        id: u32,
        tokenizer: &Tokenizer,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Option<Finish> {
        self.answer.tokens.push(id);
        if tokenizer.eos_ids().contains(&id) {
            return Some(Finish::EndOfText);
        }
        let found = self.stop.push(self.detokenizer.push(id));
        self.answer.text.push_str(found.emit);
        let flow = if found.emit.is_empty() { on_text("") } else { on_text(found.emit) };
        if found.stopped {
            self.stopped = true;
            return Some(Finish::StopString);
        }
        flow.is_break().then_some(Finish::Cancelled)
    }

    /// Hands out what was held back.
    fn finish(&mut self, on_text: &mut dyn FnMut(&str) -> ControlFlow<()>) {
        if self.stopped {
            return;
        }
        let found = self.stop.push(self.detokenizer.flush());
        let mut rest = found.emit.to_string();
        if found.stopped {
            self.answer.finish = Finish::StopString;
        } else {
            rest.push_str(self.stop.flush());
        }
        self.answer.text.push_str(&rest);
        if !rest.is_empty() {
            // the answer is over either way
            let _ = on_text(&rest);
        }
    }
}
