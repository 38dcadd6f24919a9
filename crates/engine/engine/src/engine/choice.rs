//! One growing answer: its sampler, its text, and its end conditions. Created by `Rules::prepare`; updated by the engine after each
//! step.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::event::{Event, Finish, TokenLogprob};
use super::line_limits::Lines;
use super::request::{Constraint, Request, Rules, TextEnd, ThinkingBudget};
use super::speculation::Guesses;
use octet_compute::picks::Pick;

use crate::Error;
use crate::detokenizer::Detokenizer;
use crate::sampler::{Sampler, StopStrings};
use crate::tokenizer::Tokenizer;
use crate::vision::{Places, is_image};

/// A constraint, and its mask for the next token.
pub struct Masked {
    pub constraint: Box<dyn Constraint>,
    /// Bit set `[vocab / 32]`.
    pub allowed: Vec<u32>,
    /// `allowed` is valid for the next token.
    pub fresh: bool,
}

/// What the next token is chosen from.
#[derive(Clone, Copy)]
pub enum Logits<'a> {
    /// A row of logits.
    All(&'a [f32]),
    /// Its largest ones: enough if [`Choice::needs_few`].
    Largest(&'a [Pick]),
}

/// One of a request's answers. Independent of the caches, so that it can be preempted.
pub struct Choice {
    /// Its index in the request.
    pub index: u32,
    /// Prompt and answer.
    pub tokens: Vec<u32>,
    /// Number of prompt tokens.
    pub prompt: usize,
    /// The images of the prompt, whose tokens have ids of their own, and their embeddings as far as they are computed.
    pub places: Places,
    pub embeddings: Vec<Option<Arc<Vec<f32>>>>,
    /// The types of the prompt's tokens; empty: all are 0.
    pub types: Vec<u8>,
    /// Maximum number of answer tokens.
    pub limit: usize,
    /// Positions of snapshots still ahead, descending.
    pub checkpoints: Vec<usize>,
    /// Remaining snapshots that tokens of the answer may trigger.
    pub triggers_left: u32,
    pub snapshot_before: Vec<u32>,
    pub snapshot_after: Vec<u32>,
    pub masked: Option<Box<Masked>>,
    /// Time of the first token.
    pub first_token: Option<Instant>,
    pub sampler: Sampler,
    /// Guesses for the next tokens.
    pub guesses: Guesses,
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    stop: StopStrings,
    end: Option<Box<dyn TextEnd>>,
    lines: Lines,
    stop_token_ids: Vec<u32>,
    ignore_eos: bool,
    min_tokens: usize,
    /// All ids except those that end an answer; empty if `min_tokens` is 0.
    endless: Vec<u32>,
    thinking: Option<ThinkingBudget>,
    /// Tokens that must come next.
    forced: VecDeque<u32>,
    /// The next token and its log-probability, if chosen already.
    chosen: Option<Result<(u32, Option<f32>), Error>>,
}

/// Maximum number of snapshots triggered by tokens of one answer.
const TRIGGERS_MAX: u32 = 2;

impl Choice {
    pub fn new(
        rules: &Rules,
        request: &mut Request,
        places: &Places,
        index: usize,
        limit: usize,
    ) -> Result<Self, Error> {
        let mut sampling = request.sampling.clone();
        let seed = sampling.seed.unwrap_or(0).wrapping_add(index as u64);
        sampling.seed = Some(seed);
        if limit == 0 {
            sampling.logprobs = request.prompt_logprobs;
        } else if let Some(n) = request.prompt_logprobs {
            // One sampler serves prompt and answer.
            sampling.logprobs = Some(sampling.logprobs.map_or(n, |m| m.max(n)));
        }
        // The maximum length, for which the sampler allocates.
        sampling.dry.last_n = sampling.dry.last_n.min(rules.context);
        let mut sampler = Sampler::new(sampling, rules.vocab, &rules.sampleable, seed)?;
        request.prompt.iter().filter(|id| !is_image(**id)).for_each(|&id| sampler.accept(id));

        let last = index + 1 == request.n;
        let constraint = match &request.constraint {
            Some(c) if !last => Some(c.fork()),
            _ => request.constraint.take(),
        };
        let words = rules.vocab.div_ceil(32);
        let masked = constraint
            .map(|constraint| Box::new(Masked { constraint, allowed: vec![0; words], fresh: false }));
        let mut endless = Vec::new();
        if request.min_tokens > 0 {
            endless = vec![u32::MAX; words];
            let ends = rules.tokenizer.eos_ids().iter().chain(&request.stop_token_ids);
            ends.for_each(|&id| clear(&mut endless, id));
        }
        let tokens_max = request.prompt.len() + limit;
        let mut tokens = Vec::with_capacity(tokens_max);
        tokens.extend_from_slice(&request.prompt);
        let detokenizer = if request.continues { Detokenizer::continuing } else { Detokenizer::new };
        Ok(Self {
            index: index as u32,
            prompt: tokens.len(),
            tokens,
            embeddings: vec![None; places.all.len()],
            types: request.types.clone(),
            places: places.clone(),
            limit,
            checkpoints: Vec::new(),
            triggers_left: TRIGGERS_MAX,
            snapshot_before: request.snapshot_before.clone(),
            snapshot_after: request.snapshot_after.clone(),
            masked,
            first_token: None,
            sampler,
            guesses: Guesses::new(if limit > 1 { rules.guesses } else { 0 }, rules.uses_lookup, tokens_max),
            detokenizer: detokenizer(Arc::clone(&rules.tokenizer), request.control_tokens)
                .showing(request.shown_tokens.clone()),
            tokenizer: Arc::clone(&rules.tokenizer),
            stop: StopStrings::new(request.stop.clone())?,
            end: match &request.end {
                Some(end) if !last => Some(end.fork()),
                _ => request.end.take(),
            },
            lines: Lines::new(request.lines.clone()),
            stop_token_ids: request.stop_token_ids.clone(),
            ignore_eos: request.ignore_eos,
            min_tokens: request.min_tokens,
            endless,
            thinking: request.thinking.clone(),
            forced: VecDeque::new(),
            chosen: None,
        })
    }

    /// Number of answer tokens so far.
    pub fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// The stop string that ended the answer.
    pub fn stopped_by(&self) -> Option<&str> {
        self.stop.matched()
    }

    /// Chooses the next token from `logits` and appends it to the answer. Returns its event, and the finish reason if the answer ends
    /// with it.
    pub fn next(&mut self, logits: Logits<'_>) -> Result<(Event, Option<Finish>), Error> {
        self.first_token.get_or_insert_with(Instant::now);
        let (id, logprob) = self.chosen.take().unwrap_or_else(|| self.choose(logits))?;
        let top = |s: &Sampler| s.top_logprobs().to_vec();
        let logprob = logprob.map(|logprob| TokenLogprob { id, logprob, top: top(&self.sampler) });
        self.tokens.push(id);
        self.sampler.accept(id);
        let mut finish = self.ends_with(id);
        if let Some(m) = &mut self.masked {
            m.fresh = false;
            if finish.is_none() {
                m.accept(id).map_err(Error::Constraint)?;
            }
        }
        let mut text = String::new();
        if finish.is_none() {
            finish = self.take_text(id, &mut text);
        }
        if finish.is_none() && self.end.as_mut().is_some_and(|end| end.token(&text)) {
            finish = Some(Finish::StopString);
        }
        if finish.is_none() {
            if self.masked.as_ref().is_some_and(|m| m.constraint.is_finished()) {
                finish = Some(Finish::EndOfText);
            } else if self.generated() >= self.limit {
                finish = Some(Finish::Length);
            }
        }
        match finish {
            Some(Finish::StopString) => {}
            Some(other) => finish = Some(self.flush_text(&mut text).unwrap_or(other)),
            None => self.watch_thoughts(id),
        }
        Ok((Event::Token { choice: self.index, id, text, logprob, routes: None }, finish))
    }

    /// Chooses the next token, which [`Choice::next`] then uses for the same row of logits. Touches no state shared with other
    /// answers.
    pub fn choose_ahead(&mut self, logits: &[f32]) {
        self.chosen = Some(self.choose(Logits::All(logits)));
    }

    /// True if only a row of logits is missing for that.
    pub fn can_choose_ahead(&self) -> bool {
        self.forced.is_empty() && !self.needs_mask() && self.limit > 0
    }

    /// Whether the tokens to come can be chosen from a row's largest logits.
    pub fn needs_few(&self) -> bool {
        self.masked.is_none() && self.generated() >= self.min_tokens && self.sampler.needs_few()
    }

    /// Whether the next token will be the one with the largest logit, as far as one knows, or may be (`or_may_be`); and not the last one.
    pub fn is_probably_greedy(&self, or_may_be: bool) -> bool {
        let generated = self.generated();
        self.needs_few()
            && (or_may_be || self.sampler.params().temperature == 0.0)
            && self.forced.is_empty()
            && generated > 0
            && generated + 1 < self.limit
    }

    fn choose(&mut self, logits: Logits<'_>) -> Result<(u32, Option<f32>), Error> {
        if let Some(id) = self.forced.pop_front() {
            let logprob = match (self.sampler.params().logprobs, logits) {
                (Some(_), Logits::All(logits)) => Some(self.sampler.score(logits, id)?),
                _ => None,
            };
            return Ok((id, logprob));
        }
        let logits = match logits {
            Logits::All(logits) => logits,
            Logits::Largest(largest) => {
                let sampled = self.sampler.sample_largest(largest)?;
                return Ok((sampled.id, sampled.logprob));
            }
        };
        let endless = self.generated() < self.min_tokens;
        let allowed = match &mut self.masked {
            Some(m) => {
                debug_assert!(m.fresh);
                if endless {
                    m.allowed.iter_mut().zip(&self.endless).for_each(|(a, e)| *a &= e);
                }
                Some(&m.allowed[..])
            }
            None => endless.then_some(&self.endless[..]),
        };
        let sampled = self.sampler.sample(logits, allowed)?;
        Ok((sampled.id, sampled.logprob))
    }

    /// True if the model chooses the next token under a constraint.
    pub fn needs_mask(&self) -> bool {
        self.forced.is_empty() && self.masked.as_ref().is_some_and(|m| !m.fresh)
    }

    fn ends_with(&self, id: u32) -> Option<Finish> {
        if self.tokenizer.eos_ids().contains(&id) && !self.ignore_eos {
            return Some(Finish::EndOfText);
        }
        self.stop_token_ids.contains(&id).then_some(Finish::StopToken)
    }

    /// Appends the text that is certain with the new token; `Some` if a stop string or a line ends the answer.
    fn take_text(&mut self, id: u32, text: &mut String) -> Option<Finish> {
        let early = self.generated() <= self.min_tokens && self.min_tokens > 0;
        let piece = self.detokenizer.push(id);
        if early {
            self.lines.skip(piece);
            text.push_str(piece);
            return None;
        }
        let found = self.stop.push(piece);
        let (bytes, is_last) = self.lines.push(found.emit, since(self.first_token));
        text.push_str(&found.emit[..bytes]);
        match (self.lines.has_ended(), found.stopped) {
            (false, true) => Some(Finish::StopString),
            _ => is_last.then_some(Finish::Length),
        }
    }

    /// Appends the held-back text at the end of the answer; `Some` if another end comes first.
    fn flush_text(&mut self, text: &mut String) -> Option<Finish> {
        if self.lines.has_ended() {
            return None;
        }
        let begin = text.len();
        let found = self.stop.push(self.detokenizer.flush());
        text.push_str(found.emit);
        let stopped = found.stopped;
        if !stopped {
            text.push_str(self.stop.flush());
        }
        let (bytes, _) = self.lines.push(&text[begin..], since(self.first_token));
        text.truncate(begin + bytes);
        match self.lines.has_ended() {
            true => Some(Finish::Length),
            false => stopped.then_some(Finish::StopString),
        }
    }

    /// Ends reasoning whose budget is used up.
    fn watch_thoughts(&mut self, id: u32) {
        let Some(t) = &self.thinking else { return };
        if id == t.close {
            self.thinking = None; // what is forced after it still comes
        } else if self.forced.is_empty() && self.generated() >= t.max_tokens {
            self.forced.extend(&t.end);
        }
    }

    /// Adds up to `most` tokens that must or probably will come next.
    pub fn forced_tokens(&mut self, most: usize, forced: &mut Vec<u32>) {
        forced.extend(self.forced.iter().take(most));
        if forced.is_empty()
            && let Some(m) = &mut self.masked
        {
            m.forced(most, forced);
        }
    }

    /// Before the first token: with a thinking budget of 0, forces the end of reasoning.
    pub fn begin(&mut self) {
        if let Some(t) = &self.thinking
            && t.max_tokens == 0
            && self.generated() == 0
            && self.forced.is_empty()
        {
            self.forced.extend(&t.end);
        }
    }
}

/// The time since the first token.
fn since(first_token: Option<Instant>) -> Duration {
    first_token.map_or(Duration::ZERO, |first| first.elapsed())
}

fn clear(bits: &mut [u32], id: u32) {
    if let Some(word) = bits.get_mut(id as usize / 32) {
        *word &= !(1 << (id % 32));
    }
}
