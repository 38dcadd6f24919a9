//! Requests to the engine, and the checks that they pass before they are queued. Checked on the caller's thread, so the engine only
//! sees valid requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::choice::Choice;
use super::line_limits::LineLimits;
use crate::Error;
use crate::detokenizer::ControlTokens;
use crate::error::count_tokens;
pub use crate::models::plan::Pooling;
use crate::sampler::SamplerParams;
use crate::tokenizer::Tokenizer;
use crate::vision::{Places, Reader, Resized};

/// A prompt and what to do with it. The default has no prompt and generates text.
#[derive(Clone)]
pub struct Request {
    /// Tokens of the prompt, at least one. The tokens of images are put in where [`crate::vision::Reader::token`] stands.
    pub prompt: Vec<u32>,
    /// The images of the prompt in order, where the model reads images ([`Rules::images`]).
    pub images: Vec<Arc<Resized>>,
    /// Positions in the prompt that later prompts probably share, where a model with recurrent layers takes a snapshot: the end of the
    /// system prompt and the tools, the ends of messages. Best right after a message's text, *before* the token that ends it: then a
    /// prompt that extends the message can resume there, too. The end of the prompt and of the answer are included automatically.
    pub checkpoints: Vec<usize>,
    /// Maximum number of answer tokens; `None` means up to the context. 0 only processes the prompt.
    pub max_tokens: Option<usize>,
    /// Minimum number of answer tokens, before which no token or stop string ends it.
    pub min_tokens: usize,
    /// Sampling settings. Choice `k` uses the seed plus `k`; without a seed a random one is used, and reported by
    /// [`super::Event::Admitted`].
    pub sampling: SamplerParams,
    /// Stop strings, which are not part of the answer.
    pub stop: Vec<String>,
    /// Ends of the answer that depend on its lines; the reason is [`super::Finish::Length`].
    pub lines: LineLimits,
    /// Tokens that end the answer besides the model's own.
    pub stop_token_ids: Vec<u32>,
    /// The model's end tokens do not end the answer.
    pub ignore_eos: bool,
    /// Number of answers; they share the computed prompt.
    pub n: usize,
    /// The answer continues the prompt's text: if the vocabulary writes a space before the first word, it is part of the answer.
    /// Otherwise, as in a chat, it is omitted.
    pub continues: bool,
    /// Whether control tokens appear in the text.
    pub control_tokens: ControlTokens,
    /// Control tokens that always appear: those of the model's call syntax.
    pub shown_tokens: Vec<u32>,
    /// Report log-probabilities of the prompt's tokens, and of this many most probable alternatives. The prompt is then computed in
    /// full.
    pub prompt_logprobs: Option<usize>,
    /// Return a pooled hidden state of the prompt; generates nothing. An encoder's last layers are applied to it: what a reranker returns is its
    /// score.
    pub pooling: Option<Pooling>,
    /// The type of each token of the prompt, for encoders: 1 in the second text of a pair. Empty: all are 0.
    pub types: Vec<u8>,
    /// A constraint on the answer.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Ends the answer by its text, besides `stop`; the reason is [`super::Finish::StopString`].
    pub end: Option<Box<dyn TextEnd>>,
    /// The thinking budget, if the answer begins within reasoning.
    pub thinking: Option<ThinkingBudget>,
    /// Tokens of the answer before which a snapshot is useful: clients often change an answer there in later prompts (a tool call,
    /// which they rewrite).
    pub snapshot_before: Vec<u32>,
    /// Tokens after which one is useful: the end of reasoning.
    pub snapshot_after: Vec<u32>,
    /// Use the prefix cache, and cache the results.
    pub cache: bool,
    /// Requests with different salts share no cache.
    pub cache_salt: Option<String>,
    /// Explain cache misses; see [`super::Event::Admitted`].
    pub explain_miss: bool,
    /// Report the experts of each token; see [`super::Event::Token`].
    pub routes: bool,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            prompt: Vec::new(),
            images: Vec::new(),
            checkpoints: Vec::new(),
            max_tokens: None,
            min_tokens: 0,
            sampling: SamplerParams::default(),
            stop: Vec::new(),
            lines: LineLimits::default(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            n: 1,
            continues: false,
            control_tokens: ControlTokens::Hide,
            shown_tokens: Vec::new(),
            prompt_logprobs: None,
            pooling: None,
            types: Vec::new(),
            constraint: None,
            end: None,
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

/// A thinking budget: if it is used up before `close` came, `end` is forced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThinkingBudget {
    /// Maximum number of tokens before `close`; 0 disables reasoning.
    pub max_tokens: usize,
    /// The token that ends reasoning (`</think>`).
    pub close: u32,
    /// The forced tokens; includes `close`.
    pub end: Vec<u32>,
}

/// A grammar, schema or choice that an answer must match. One object per answer.
pub trait Constraint: Send {
    /// Sets the bits of the ids that may come next and clears all others: bit `i % 32` of `allowed[i / 32]`. If the answer may end,
    /// its end tokens are included. Runs on another thread, parallel to the model's step.
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), String>;
    /// The answer continues with `id`.
    fn accept(&mut self, id: u32) -> Result<(), String>;
    /// Nothing more may follow: the answer ends here.
    fn is_finished(&self) -> bool;
    /// Adds to `forced` up to `most` tokens that will probably come next, because little else is allowed. These are guesses only; the
    /// mask decides.
    fn forced(&mut self, _most: usize, _forced: &mut Vec<u32>) {}
    /// A copy at the same position, for another answer to the same prompt.
    fn fork(&self) -> Box<dyn Constraint>;
}

/// Decides by an answer's text where it ends. One object per answer; it sees the text as it is generated.
pub trait TextEnd: Send {
    /// The text that the next token adds, often none; true if the answer ends with it.
    fn token(&mut self, text: &str) -> bool;
    /// One for another answer to the same prompt, before its first token.
    fn fork(&self) -> Box<dyn TextEnd>;
}

impl Clone for Box<dyn TextEnd> {
    fn clone(&self) -> Self {
        self.fork()
    }
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Self {
        self.fork()
    }
}

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full.
    #[error("too many requests are waiting; try again in {} s", retry_after.as_secs().max(1))]
    QueueFull {
        /// When there will probably be room.
        retry_after: Duration,
    },
    /// It could never run, even with an empty cache.
    #[error(
        "the prompt has {}{}; this model's maximum context length is {}, and the KV cache holds {capacity}",
        count_tokens(*prompt),
        max_tokens.map_or(String::new(), |n| format!(" and max_tokens is {n}")),
        count_tokens(*context)
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Requested answer tokens.
        max_tokens: Option<usize>,
        /// Maximum tokens of a sequence.
        context: usize,
        /// Tokens that the KV cache holds in total.
        capacity: usize,
    },
    /// The engine is shutting down, or has failed.
    #[error("the model is shutting down")]
    Stopping,
    /// The request is invalid; why.
    #[error(transparent)]
    Invalid(#[from] Error),
}

/// The facts about a loaded model that checks need; shared by all submitters.
#[derive(Debug)]
pub struct Rules {
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Default sampling settings of its files.
    pub sampling: SamplerParams,
    /// Length of a row of logits.
    pub vocab: usize,
    /// Maximum tokens of a sequence.
    pub context: usize,
    /// Tokens that the KV cache holds.
    pub capacity: usize,
    /// Maximum number of concurrent sequences.
    pub max_seqs: usize,
    /// Maximum number of guesses of an answer per step, and whether lookup is used.
    pub(super) guesses: usize,
    /// See `guesses`.
    pub(super) uses_lookup: bool,
    /// The model is an encoder: it gives vectors or scores, and no text.
    pub is_encoder: bool,
    /// Reads images; `None`: the model has no tower.
    pub images: Option<Arc<Reader>>,
    /// Bit set of ids that may be sampled.
    pub(super) sampleable: Vec<u32>,
}

/// A valid request, with all that it needs allocated.
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
    /// The seed of the first choice.
    pub(super) seed: u64,
}

/// A random seed.
pub(super) fn entropy() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

fn invalid(what: String) -> SubmitError {
    SubmitError::Invalid(Error::Request(what))
}

impl Rules {
    /// Checks a request, and creates its samplers and matchers.
    pub fn prepare(&self, mut request: Request) -> Result<Prepared, SubmitError> {
        let ids = [&request.prompt[..], &request.stop_token_ids];
        if let Some(id) = ids.into_iter().flatten().find(|&&id| id as usize >= self.vocab) {
            return Err(invalid(format!("token id {id} is not in the vocabulary of {}", self.vocab)));
        }
        if self.is_encoder {
            if request.pooling.is_none() || request.prompt_logprobs.is_some() {
                let what = "this model gives vectors or scores of texts and cannot write any; use it with /v1/embeddings or /v1/rerank";
                return Err(invalid(what.into()));
            }
            // What a token computes depends on those after it.
            request.cache = false;
        }
        let places = self.read_images(&mut request)?;
        if !request.types.is_empty() && request.types.len() != request.prompt.len() {
            return Err(invalid("types have to be as many as tokens of the prompt".into()));
        }
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
            .map(|k| Choice::new(self, &mut request, &places, k, limit))
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

    /// Puts the images of a request into its prompt.
    fn read_images(&self, request: &mut Request) -> Result<Places, SubmitError> {
        if request.images.is_empty() {
            return Ok(Places::default());
        }
        let Some(reader) = &self.images else {
            return Err(invalid("the model does not read images".into()));
        };
        if request.prompt_logprobs.is_some() {
            return Err(invalid("log-probabilities of a prompt with images are not supported".into()));
        }
        let images = std::mem::take(&mut request.images);
        Ok(reader.read(&mut request.prompt, &mut request.checkpoints, &images)?)
    }
}
