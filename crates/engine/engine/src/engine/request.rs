//! What can be asked of the engine, and the checks that a request passes before it is queued. Checked on the caller's
//! thread: the engine's own only ever sees requests that can be served.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::choice::Choice;
use crate::Error;
use crate::detokenizer::ControlTokens;
use crate::sampler::SamplerParams;
use crate::tokenizer::Tokenizer;

/// A prompt and what to make of it. `Default` has no prompt, and generates plainly.
#[derive(Clone)]
pub struct Request {
    /// Tokens of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// Positions in the prompt that later prompts are likely to share, where a model with recurrent layers keeps a
    /// snapshot of its state: the end of the system prompt and the tools, the ends of messages. Best right after a
    /// message's text, *before* the token that ends it: then a prompt that goes on with the message finds it as well.
    /// The end of the prompt and that of the answer are kept without being named.
    pub checkpoints: Vec<usize>,
    /// Most tokens of the answer; `None` is as many as the context holds. 0 only processes the prompt.
    pub max_tokens: Option<usize>,
    /// No token that ends the answer is sampled, and no stop string looked for, before it has this many tokens.
    pub min_tokens: usize,
    /// How tokens are chosen. Choice `k` takes the seed plus `k`; without a seed one is drawn, and told by
    /// [`super::Event::Admitted`].
    pub sampling: SamplerParams,
    /// Texts that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// Tokens that end the answer, besides the model's own.
    pub stop_token_ids: Vec<u32>,
    /// The model's end tokens do not end the answer.
    pub ignore_eos: bool,
    /// How many answers; they share the prompt's computation.
    pub n: usize,
    /// The answer goes on in the prompt's text: where the vocabulary writes a space before the first word, that space is
    /// part of the answer. Otherwise, in a chat, it is an artefact, and is left out.
    pub continues: bool,
    /// Whether control tokens appear in the text.
    pub control_tokens: ControlTokens,
    /// Control tokens that appear in any case: those that the model's calls are written with.
    pub shown_tokens: Vec<u32>,
    /// Log-probabilities of the prompt's tokens, and of this number of most probable alternatives. The prompt is then computed in full.
    pub prompt_logprobs: Option<usize>,
    /// Return a pooled hidden state of the prompt; nothing is generated.
    pub pooling: Option<Pooling>,
    /// What the answer must look like.
    pub constraint: Option<Box<dyn Constraint>>,
    /// How long the model may think, where the answer begins within its thoughts.
    pub thinking: Option<ThinkingBudget>,
    /// Tokens of the answer before which a snapshot pays: an answer that comes back in a later prompt often differs from
    /// there on (a tool call, which clients write anew).
    pub snapshot_before: Vec<u32>,
    /// Tokens after which one pays: the end of the thoughts.
    pub snapshot_after: Vec<u32>,
    /// Use what is cached, and leave something for later requests.
    pub cache: bool,
    /// Requests with different salts share nothing in the cache.
    pub cache_salt: Option<String>,
    /// Say where the prompt left what was cached; see [`super::Event::Admitted`].
    pub explain_miss: bool,
    /// Say which experts chose each token; see [`super::Event::Token`].
    pub routes: bool,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            prompt: Vec::new(),
            checkpoints: Vec::new(),
            max_tokens: None,
            min_tokens: 0,
            sampling: SamplerParams::default(),
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            n: 1,
            continues: false,
            control_tokens: ControlTokens::Hide,
            shown_tokens: Vec::new(),
            prompt_logprobs: None,
            pooling: None,
            constraint: None,
            thinking: None,
            snapshot_before: Vec::new(),
            snapshot_after: Vec::new(),
            cache: true,
            cache_salt: None,
            explain_miss: false,
            routes: false,
        }
    }
}

/// How the hidden states of a prompt become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// That of the first token. Only encoders are trained for it: in a model that reads forward the first token knows nothing of
    /// the others.
    Cls,
    /// That of the last token.
    Last,
    /// The mean over all tokens.
    Mean,
}

/// A budget for thinking: when it is used up before `close` came, `end` is put in the model's mouth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThinkingBudget {
    /// Most tokens before `close`; 0 does not let it think at all.
    pub max_tokens: usize,
    /// The token that ends the thoughts (`</think>`).
    pub close: u32,
    /// What is forced; has `close` in it.
    pub end: Vec<u32>,
}

/// A grammar, schema or choice that an answer must follow. One object follows one answer.
pub trait Constraint: Send {
    /// Sets the bits of the ids that may come next, and clears all others: bit `i % 32` of `allowed[i / 32]`. While
    /// the answer may end, its end tokens are among them. Runs beside the model's step, on another thread.
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), String>;
    /// The answer goes on with `id`.
    fn accept(&mut self, id: u32) -> Result<(), String>;
    /// Nothing more may come: the answer ends here.
    fn is_finished(&self) -> bool;
    /// Adds tokens to `forced` that are likely to come next, because little or nothing else is allowed: at most `most`. Only guesses:
    /// the mask decides.
    fn forced(&mut self, _most: usize, _forced: &mut Vec<u32>) {}
    /// The same constraint at the same point, for another answer to the same prompt.
    fn fork(&self) -> Box<dyn Constraint>;
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Self {
        self.fork()
    }
}

/// Why a request is not taken.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// Too many wait already.
    #[error("too many requests are waiting; try again in {} s", retry_after.as_secs().max(1))]
    QueueFull {
        /// When there is likely to be room.
        retry_after: Duration,
    },
    /// It could never run, however empty the cache.
    #[error(
        "the prompt has {prompt} tokens{}; the context holds {context} and the KV cache {capacity}",
        max_tokens.map_or(String::new(), |n| format!(" and max_tokens is {n}"))
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Those asked for on top.
        max_tokens: Option<usize>,
        /// Most tokens of a sequence.
        context: usize,
        /// Tokens that the KV cache holds for all sequences together.
        capacity: usize,
    },
    /// The engine is shutting down, or has failed.
    #[error("the model is shutting down")]
    Stopping,
    /// The request makes no sense; what is wrong with it.
    #[error(transparent)]
    Invalid(#[from] Error),
}

/// What checks need to know of a loaded model; shared by all who submit.
#[derive(Debug)]
pub struct Rules {
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Sampling that its files ask for.
    pub sampling: SamplerParams,
    /// Rows of logits.
    pub vocab: usize,
    /// Most tokens of a sequence.
    pub context: usize,
    /// Tokens that the KV cache holds.
    pub capacity: usize,
    /// Sequences that run at once.
    pub max_seqs: usize,
    /// Most guesses of an answer in a step, and whether its text is searched for some.
    pub(super) guesses: usize,
    /// See `guesses`.
    pub(super) looks_up: bool,
    /// Bit set of the ids that may be sampled.
    pub(super) sampleable: Vec<u32>,
}

/// A request that can be served, with everything that it needs allocated.
pub struct Prepared {
    pub(super) choices: Vec<Choice>,
    pub(super) checkpoints: Vec<usize>,
    pub(super) prompt_logprobs: bool,
    pub(super) pooling: Option<Pooling>,
    pub(super) cache: bool,
    pub(super) cache_salt: Option<String>,
    pub(super) explain_miss: bool,
    pub(super) routes: bool,
    pub(super) submitted: Instant,
    /// Of the first choice.
    pub(super) seed: u64,
}

/// A seed for requests that name none.
pub(super) fn entropy() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

fn invalid(what: String) -> SubmitError {
    SubmitError::Invalid(Error::Request(what))
}

impl Rules {
    /// Checks a request, and makes its samplers and matchers.
    pub fn prepare(&self, mut request: Request) -> Result<Prepared, SubmitError> {
        let prompt = request.prompt.len();
        if prompt == 0 {
            return Err(invalid("the prompt has no tokens".into()));
        }
        let generates = request.pooling.is_none() && request.max_tokens != Some(0);
        let most = self.context.min(self.capacity);
        // A prompt alone may fill the context; an answer needs room for one token.
        let asked = request.max_tokens.unwrap_or(1).max(usize::from(generates));
        let needed = prompt.saturating_add(if generates { asked } else { 0 });
        if needed > most {
            return Err(SubmitError::TooLong {
                prompt,
                max_tokens: request.max_tokens.filter(|_| generates),
                context: self.context,
                capacity: self.capacity,
            });
        }
        let ids = [&request.prompt[..], &request.stop_token_ids];
        if let Some(id) = ids.into_iter().flatten().find(|&&id| id as usize >= self.vocab) {
            return Err(invalid(format!("token id {id} is not in the vocabulary of {}", self.vocab)));
        }
        if request.n == 0 || request.n > self.max_seqs {
            let n = request.n;
            return Err(invalid(format!(
                "n is {n}; expected 1 to {}, the sequences that run at once",
                self.max_seqs
            )));
        }
        if request.n > 1 && !generates {
            return Err(invalid("n above 1 needs something to generate".into()));
        }
        if let Some(t) = &request.thinking
            && (!t.end.contains(&t.close) || t.end.iter().any(|&id| id as usize >= self.vocab))
        {
            return Err(invalid("the end of the thoughts must hold the token that closes them".into()));
        }
        request.checkpoints.retain(|&c| c > 0 && c < prompt);
        request.checkpoints.sort_unstable();
        request.checkpoints.dedup();
        let room = most - prompt;
        let limit = if generates { request.max_tokens.map_or(room, |n| n.min(room)) } else { 0 };
        let seed = *request.sampling.seed.get_or_insert_with(entropy);
        let choices = (0..request.n)
            .map(|k| Choice::new(self, &mut request, k, limit))
            .collect::<Result<_, Error>>()?;
        Ok(Prepared {
            choices,
            checkpoints: request.checkpoints,
            prompt_logprobs: request.prompt_logprobs.is_some(),
            pooling: request.pooling,
            cache: request.cache,
            cache_salt: request.cache_salt,
            explain_miss: request.explain_miss,
            routes: request.routes,
            submitted: Instant::now(),
            seed,
        })
    }
}
