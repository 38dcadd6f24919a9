//! Text to token ids, and back to bytes. Built from a model's metadata; used for prompts and by the
//! detokenizer.
//!
//! Two questions decide every call. *Is the text trusted?* Control tokens (`<|im_end|>`) and tokens written like tags
//! (`<think>`, `[INST]`) come only from trusted text; in other text they are encoded like any other word, so
//! a user cannot end a turn by typing one. Added tokens that are plain text (runs of spaces, words) are vocabulary and come
//! from any text. *Which tokenizer encoded the training data?* BPE with merges, WordPiece and Unigram run through the crate
//! `tokenizers`, which is the reference; SentencePiece's BPE by scores is `spm`.

mod added;
mod charsmap;
mod chunk;
mod digits;
mod encoders;
mod ends;
mod export;
mod fim;
mod frames;
mod gguf;
mod growth;
mod huggingface;
mod models;
mod pipeline;
mod pre;
mod ranks;
mod spm;
mod steps;
mod tiktoken;
mod vocab;
mod word_cache;

use std::sync::atomic::{AtomicBool, Ordering};

use octet_weights::{Error, Metadata};

use added::{Added, Class, Finder};
pub use chunk::{CHUNK_BYTES, WORD_BYTES_MAX};
pub use export::to_gguf;
pub use fim::FimTokens;
use frames::Frames;
pub use frames::Input;
use pipeline::Pipeline;
use spm::Spm;
pub use vocab::TokenKind;
use vocab::Vocab;

/// The metadata key of a verbatim Hugging Face `tokenizer.json`.
pub const HUGGING_FACE_KEY: &str = "tokenizer.huggingface.json";

/// The metadata key of a verbatim `tekken.json`, Mistral's format.
pub const TEKKEN_KEY: &str = "tokenizer.tekken.json";

/// The metadata key of a verbatim `tiktoken.model`: a token in base64 and its rank on each line. `tokenizer.ggml.pre` names the
/// pre-tokenizer.
pub const TIKTOKEN_KEY: &str = "tokenizer.tiktoken.model";

/// The metadata key of the added tokens of such a file: `added_tokens_decoder` of a tokenizer_config.json, as JSON.
pub const TIKTOKEN_ADDED_KEY: &str = "tokenizer.tiktoken.added";

/// The added tokens that a text may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// The text is not trusted: control tokens and tags in it stay text.
    Text,
    /// The text is trusted (a template, a test): all added tokens are recognised.
    Parse,
}

/// A prompt that mixes trusted and untrusted text, as a chat template renders it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompt {
    /// The text.
    pub text: String,
    /// Byte offsets in `text`, ascending, that no added token may span: each is inside a text of a message that
    /// looks like one.
    pub barriers: Vec<usize>,
}

/// Why a text could not be tokenised.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The vocabulary cannot express it.
    #[error("the text cannot be tokenized: {0}")]
    Text(String),
    /// A text with bounds contains a part that cannot be split.
    #[error("the text cannot be tokenized: no word ends within {WORD_BYTES_MAX} bytes from byte {from} on")]
    Word {
        /// Its start.
        from: usize,
    },
    /// The caller cancelled.
    #[error("tokenizing the text was given up")]
    Cancelled,
}

/// Bounds on the work for a text, checked about every [`CHUNK_BYTES`].
#[derive(Debug, Clone, Copy)]
pub struct Bounds<'a> {
    /// The work ends soon after more tokens than this; the rest of the text is not tokenised.
    pub tokens_max: usize,
    /// Set by another thread to cancel.
    pub cancelled: &'a AtomicBool,
    /// [`CHUNK_BYTES`]; less in tests.
    pub chunk_bytes: usize,
}

/// The result for a text with bounds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Tokens of its start, or all.
    pub tokens: Vec<u32>,
    /// Bytes that were not tokenised: 0 unless there are more than [`Bounds::tokens_max`] tokens.
    pub rest: usize,
}

/// Text to tokens, for one model. Immutable, and shared between threads.
pub struct Tokenizer {
    vocab: Vocab,
    model: Model,
    /// Tokens to find before the normaliser runs: those allowed in any text, and all of them.
    text_only: Finder,
    all: Finder,
    /// The same for tokens to find in normalised text (a Hugging Face option that few models use).
    text_only_normalized: Finder,
    all_normalized: Finder,
    /// All tags and control tokens, which templates guard.
    guarded: Vec<(String, bool)>,
    bos: Option<u32>,
    /// The tokens before a document.
    prefix: Vec<u32>,
    frames: Frames,
    eos: Vec<u32>,
    /// The first space of a text is an artefact of the vocabulary, and is dropped when text is decoded.
    strip_first_space: bool,
    /// Maximum number of bytes of text per token; `None` if unbounded.
    token_bytes_max: Option<usize>,
    fim: Option<FimTokens>,
}

enum Model {
    Steps(Box<Pipeline>),
    Spm(Box<Spm>),
}

/// The parts of a tokenizer that `gguf` and `huggingface` read from a file.
struct Parts {
    vocab: Vocab,
    model: Model,
    added: Vec<Added>,
    bos: Option<u32>,
    add_bos: bool,
    /// The tokens around an input, if the file describes them.
    frames: Option<Frames>,
    strip_first_space: bool,
}

impl Tokenizer {
    /// The tokenizer of a model: from its `tokenizer.json`, `tekken.json` or `tiktoken.model` if it has one, otherwise from
    /// `tokenizer.ggml.*`.
    /// Errors name the key, its value and the supported values.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, Error> {
        let parts = match metadata.opt_str(HUGGING_FACE_KEY)? {
            Some(json) => huggingface::load(metadata, json)?,
            None if metadata.get(TEKKEN_KEY).is_some() => tiktoken::tekken(metadata)?,
            None if metadata.get(TIKTOKEN_KEY).is_some() => tiktoken::ranked(metadata)?,
            None => gguf::load(metadata)?,
        };
        Self::assemble(metadata, parts)
    }

    fn assemble(metadata: &Metadata, mut parts: Parts) -> Result<Self, Error> {
        growth::check_added(parts.added.iter()).map_err(|e| Error::format(metadata.file(), e))?;
        let eos = ends::find(metadata, &parts.vocab, &parts.added)?;
        // A token that ends an answer is a control token, even if the file does not mark it.
        for added in parts.added.iter_mut().filter(|a| eos.contains(&a.id)) {
            added.control = true;
            parts.vocab.set_control(added.id);
        }
        let guarded = parts
            .added
            .iter()
            .filter(|a| a.class() != Class::Text)
            .map(|a| (a.text.clone(), a.class() == Class::Control))
            .collect();
        let finder = |keep: &dyn Fn(&Added) -> bool| {
            let tokens = parts.added.iter().filter(|a| keep(a)).cloned().collect();
            Finder::new(tokens).map_err(|e| Error::format(metadata.file(), e))
        };
        let bos = bos_id(metadata, &parts.vocab)?.or(parts.bos);
        let (frames, prefix) = around(metadata, &parts, bos, eos.first().copied())?;
        let mut tokenizer = Self {
            text_only: finder(&|a| !a.normalized && a.class() == Class::Text)?,
            all: finder(&|a| !a.normalized)?,
            text_only_normalized: finder(&|a| a.normalized && a.class() == Class::Text)?,
            all_normalized: finder(&|a| a.normalized)?,
            guarded,
            bos,
            prefix,
            frames,
            eos,
            strip_first_space: parts.strip_first_space,
            token_bytes_max: token_bytes_max(&parts),
            vocab: parts.vocab,
            model: parts.model,
            fim: None,
        };
        tokenizer.fim = fim::find(metadata, &tokenizer)?;
        Ok(tokenizer)
    }

    /// The tokens of `text`, without BOS: see [`Tokenizer::prefix`].
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>, EncodeError> {
        Ok(self.run(text, &[], special, None)?.tokens)
    }

    /// The same, with bounds on the work.
    pub fn encode_within(
        &self,
        text: &str,
        special: Special,
        bounds: Bounds<'_>,
    ) -> Result<Encoded, EncodeError> {
        self.run(text, &[], special, Some(bounds))
    }

    /// The tokens of a rendered chat prompt: control tokens are recognised in the template's own text, not in messages.
    pub fn encode_prompt(&self, prompt: &Prompt) -> Result<Vec<u32>, EncodeError> {
        Ok(self.run(&prompt.text, &prompt.barriers, Special::Parse, None)?.tokens)
    }

    /// The same, with bounds on the work.
    pub fn encode_prompt_within(&self, prompt: &Prompt, bounds: Bounds<'_>) -> Result<Encoded, EncodeError> {
        self.run(&prompt.text, &prompt.barriers, Special::Parse, Some(bounds))
    }

    /// A text of more bytes has more tokens than `tokens`. `None` if the bytes per token are unbounded.
    pub fn bytes_max(&self, tokens: usize) -> Option<usize> {
        Some(self.token_bytes_max?.saturating_mul(tokens))
    }

    fn run(
        &self,
        text: &str,
        barriers: &[usize],
        special: Special,
        bounds: Option<Bounds<'_>>,
    ) -> Result<Encoded, EncodeError> {
        let barred = |start: usize, end: usize| {
            let first = barriers.partition_point(|&b| b <= start);
            barriers.get(first).is_some_and(|&b| b < end)
        };
        let (raw, normalized) = match special {
            Special::Text => (&self.text_only, &self.text_only_normalized),
            Special::Parse => (&self.all, &self.all_normalized),
        };
        let all = raw.find(text, barred);
        let tokens_max = bounds.map_or(usize::MAX, |b| b.tokens_max);
        let word_max = bounds.map_or(usize::MAX, |_| WORD_BYTES_MAX);
        let chunk_bytes = bounds.map_or(CHUNK_BYTES, |b| b.chunk_bytes);
        let mut tokens = Vec::with_capacity((text.len() / 4 + 8).min(tokens_max.saturating_add(CHUNK_BYTES)));
        let mut from = 0;
        while from < text.len() {
            if tokens.len() > tokens_max {
                break;
            }
            if bounds.is_some_and(|b| b.cancelled.load(Ordering::Relaxed)) {
                return Err(EncodeError::Cancelled);
            }
            let ends = |at: usize, left: &str, right: &str| match &self.model {
                Model::Steps(steps) => steps.ends_word(left, right, at, normalized, &barred),
                Model::Spm(spm) => spm.ends_word(left, right),
            };
            let end = chunk::end(text, from, chunk_bytes, word_max, &all, ends)
                .map_err(|e| EncodeError::Word { from: e.from })?;
            let found = &all[all.partition_point(|f| f.start < from)..all.partition_point(|f| f.start < end)];
            match &self.model {
                Model::Steps(steps) => {
                    steps.encode(&text[from..end], from, found, normalized, &barred, &mut tokens)
                }
                Model::Spm(spm) => spm.encode(&text[from..end], from, found, &mut tokens),
            }
            .map_err(EncodeError::Text)?;
            from = end;
        }
        Ok(Encoded { tokens, rest: text.len() - from })
    }

    /// The bytes of `id`, perhaps a part of a character; empty for an id that is not a token.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocab.bytes(id)
    }

    /// The name of `id` in the vocabulary (`Ġthe`, `▁the`, `<|im_end|>`).
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.vocab.text(id)
    }

    /// The kind of `id`.
    pub fn kind(&self, id: u32) -> TokenKind {
        self.vocab.kind(id)
    }

    /// Whether the token is not text: control, unknown and unused ids.
    pub fn is_control(&self, id: u32) -> bool {
        matches!(self.kind(id), TokenKind::Control | TokenKind::Unknown | TokenKind::Unused)
    }

    /// The id of the added token with exactly this text.
    pub fn special_id(&self, text: &str) -> Option<u32> {
        [&self.all, &self.all_normalized]
            .into_iter()
            .flat_map(|f| f.tokens())
            .find(|t| t.text == text)
            .map(|t| t.id)
    }

    /// One more than the last id that is a token. A model's logits may have more rows: those are padding.
    pub fn vocab_len(&self) -> usize {
        self.vocab.real_len()
    }

    /// Whether a model may generate `id`: padding and holes are not tokens.
    pub fn is_sampleable(&self, id: u32) -> bool {
        self.kind(id) != TokenKind::Unused
    }

    /// [`Tokenizer::is_sampleable`] of the ids `0..rows` as a bit set: bit `id % 32` of word `id / 32`.
    pub fn sampleable_mask(&self, rows: usize) -> Vec<u32> {
        let mut mask = vec![0; rows.div_ceil(32)];
        for id in (0..rows as u32).filter(|&id| self.is_sampleable(id)) {
            mask[id as usize / 32] |= 1 << (id % 32);
        }
        mask
    }

    /// The tokens before a document (a completion's prompt; chat templates write their own): BOS if this model was trained with
    /// one, for GLM two tokens.
    pub fn prefix(&self) -> &[u32] {
        &self.prefix
    }

    /// One text, or two (a reranker's query and document), with the tokens that this tokenizer puts around them: `[CLS] text [SEP]`.
    pub fn frame(&self, first: &[u32], second: Option<&[u32]>) -> Input {
        self.frames.join(first, second)
    }

    /// The same for one text, shortened so that all has at most `tokens_max` tokens (the frame alone is never shortened).
    pub fn frame_cut(&self, text: &[u32], tokens_max: usize) -> Input {
        self.frames.join_cut(text, tokens_max)
    }

    /// The model's BOS token whether or not documents begin with it: the template's `bos_token`.
    pub fn bos_token(&self) -> Option<u32> {
        self.bos
    }

    /// Tokens that end an answer. The first is the model's own EOS, if its file names one.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos
    }

    /// Parts texts that end an answer into texts and tokens: a control token has no text within an answer. The model's own end tokens are
    /// left out, as they end it anyway.
    pub fn part_stops(&self, all: &[String]) -> (Vec<String>, Vec<u32>) {
        let (mut texts, mut ids) = (Vec::new(), Vec::new());
        for text in all {
            match self.special_id(text) {
                Some(id) if self.eos.contains(&id) => {}
                Some(id) => ids.push(id),
                None => texts.push(text.clone()),
            }
        }
        (texts, ids)
    }

    /// The fill-in-the-middle tokens, if this model was trained with them.
    pub fn fim(&self) -> Option<FimTokens> {
        self.fim
    }

    /// Tags and control tokens, and whether each is a control token: what templates must guard in messages.
    pub fn guarded(&self) -> &[(String, bool)] {
        &self.guarded
    }

    /// Whether decoding drops the first space of a text (SentencePiece vocabularies add one).
    pub(crate) fn strips_first_space(&self) -> bool {
        self.strip_first_space
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_len", &self.vocab_len()).field("eos", &self.eos).finish()
    }
}

/// Maximum number of bytes of text per token.
fn token_bytes_max(parts: &Parts) -> Option<usize> {
    if parts.added.iter().any(|a| a.lstrip || a.rstrip) {
        return None;
    }
    let longest = parts.vocab.ids().map(|id| parts.vocab.bytes(id).len()).max();
    let added = parts.added.iter().map(|a| a.text.len()).max();
    // An unknown token replaces a character.
    let longest = longest.max(added).unwrap_or(0).max(char::MAX.len_utf8());
    let shrinks = match &parts.model {
        Model::Steps(steps) => steps.shrinks_to()?,
        Model::Spm(_) => 1,
    };
    Some(longest * shrinks)
}

/// The BOS token of the file. (Ids of padding and the like are not read: real files name
/// some that do not exist, and nothing here passes them to a model.)
fn bos_id(metadata: &Metadata, vocab: &Vocab) -> Result<Option<u32>, Error> {
    const KEY: &str = "tokenizer.ggml.bos_token_id";
    match metadata.opt_u32(KEY)? {
        Some(id) if vocab.kind(id) == TokenKind::Unused => {
            Err(Error::key(metadata.file(), KEY, format!("is {id}, which is no token of the vocabulary")))
        }
        id => Ok(id),
    }
}

/// The tokens around an input, and those before a document. The file's switches for BOS and EOS count where no post-processor
/// describes the frame.
fn around(
    metadata: &Metadata,
    parts: &Parts,
    bos: Option<u32>,
    eos: Option<u32>,
) -> Result<(Frames, Vec<u32>), Error> {
    let flag = |name: &str| metadata.opt_bool(&format!("tokenizer.ggml.add_{name}_token"));
    let add_bos = flag("bos")?;
    let bos = bos.filter(|_| add_bos.unwrap_or(parts.add_bos));
    let frames = match &parts.frames {
        Some(frames) => frames.clone(),
        None => {
            let eos = eos.filter(|_| matches!(flag("eos"), Ok(Some(true))));
            Frames::of_ends(frames::Ends { bos, eos, ..Default::default() })
        }
    };
    if let Some(id) = frames.tokens().find(|&id| parts.vocab.kind(id) == TokenKind::Unused) {
        let what = format!("puts token {id} around texts, which is no token of the vocabulary");
        return Err(Error::format(metadata.file(), what));
    }
    let prefix = match frames.prefix() {
        prefix if add_bos != Some(false) && !prefix.is_empty() => prefix,
        _ => bos.into_iter().collect(),
    };
    Ok((frames, prefix))
}
