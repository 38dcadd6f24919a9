//! A model's vocabulary as a trie of byte strings, for computing masks. Built once per model, at the first request that needs it, by
//! the owner of the tokenizer; shared by all constraints.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use llguidance::ParserFactory;
use toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

use crate::watchdog::Watchdog;
use crate::{Error, limits};

/// An entry of the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    /// Text as bytes; may be a partial character.
    Text(Vec<u8>),
    /// A special token by name: `<|im_end|>`, `<tool_call>`. Allowed only where a constraint contains this token: text that looks like
    /// it is written with other tokens.
    Special(String),
    /// Not a token: padding.
    Unused,
}

/// Maximum length of a token in bytes in the trie. Longer ones (none are known) are never allowed.
const TOKEN_BYTES_MAX: usize = 1000;
/// Maximum number of ids that the trie supports.
const TOKENS_MAX: usize = 1 << 21;

/// Classes of text whose masks are precomputed: where a constraint allows any text of such characters, as most tokens are, only the
/// other tokens are checked. For JSON strings, with and without a length limit nearby, and for text between tags.
const SLICES: &[&str] = &[
    r#"[\x20\x0A\x0D\x09]+"#,
    r#"[^"\\<\x00-\x1F\x7F]{1,10}"#,
    r#"[^"\\<\x00-\x1F\x7F]{1,30}"#,
    r#"[^"\\<\x00-\x1F\x7F]+"#,
    r#"[^<]+"#,
];

/// Tokenizes plain text.
type Encode = Box<dyn Fn(&str) -> Option<Vec<u32>> + Send + Sync>;

/// Time limits of work on a constraint, in wall-clock time: on a busy machine more time passes than the work takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLimits {
    /// A compilation.
    pub compile: Duration,
    /// The computation of one mask.
    pub step: Duration,
}

impl Default for TimeLimits {
    /// 5 s and 0.5 s.
    fn default() -> Self {
        Self { compile: limits::COMPILE_TIME_MAX, step: limits::STEP_TIME_MAX }
    }
}

/// A vocabulary to compile constraints for. Takes a second or two and some 100 MB for 248k tokens: share it.
pub struct Vocabulary {
    pub(crate) factory: ParserFactory,
    pub(crate) watchdog: Watchdog,
    pub(crate) times: TimeLimits,
    /// Number of running compilations.
    pub(crate) compiling: AtomicUsize,
    /// Bit set of all token ids.
    pub(crate) everything: Vec<u32>,
    /// Those that are text.
    pub(crate) plain: Vec<u32>,
    eos: Vec<u32>,
}

impl Vocabulary {
    /// `tokens` in order of ids, and the ids that end an answer. `encode` tokenizes plain text without added tokens and prefixes; text
    /// that it refuses is tokenized by longest match.
    pub fn new(
        tokens: impl IntoIterator<Item = Token>,
        eos: &[u32],
        encode: impl Fn(&str) -> Option<Vec<u32>> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, Error> {
        Self::with_times(tokens, eos, encode, TimeLimits::default())
    }

    /// The same with other time limits: servers have no setting for them; tests on busy machines need more.
    pub fn with_times(
        tokens: impl IntoIterator<Item = Token>,
        eos: &[u32],
        encode: impl Fn(&str) -> Option<Vec<u32>> + Send + Sync + 'static,
        times: TimeLimits,
    ) -> Result<Arc<Self>, Error> {
        let words: Vec<Vec<u8>> = tokens.into_iter().map(word).collect();
        if words.is_empty() || words.len() > TOKENS_MAX {
            return Err(Error::Vocabulary(format!("it has {} ids; expected 1 to {TOKENS_MAX}", words.len())));
        }
        if eos.is_empty() {
            return Err(Error::Vocabulary("it names no token that ends an answer".into()));
        }
        if let Some(id) = eos.iter().find(|&&id| id as usize >= words.len()) {
            return Err(Error::Vocabulary(format!(
                "the end of an answer is {id}, beyond its {} ids",
                words.len()
            )));
        }
        let (mut everything, mut plain) =
            (vec![0; words.len().div_ceil(32)], vec![0; words.len().div_ceil(32)]);
        for (id, word) in words.iter().enumerate().filter(|(_, w)| !w.is_empty()) {
            everything[id / 32] |= 1 << (id % 32);
            plain[id / 32] |= u32::from(word[0] != TokTrie::SPECIAL_TOKEN_MARKER) << (id % 32);
        }
        let info = TokRxInfo::new(words.len() as u32, eos[0]);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(eos);
        let env: TokEnv = Arc::new(Env { trie, encode: Box::new(encode) });
        let slices: Vec<String> = SLICES.iter().map(|s| s.to_string()).collect();
        let can = InferenceCapabilities { ff_tokens: true, ..Default::default() };
        let mut factory =
            ParserFactory::new(&env, can, &slices).map_err(|e| Error::Vocabulary(e.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = limits::parser();
        let watchdog = Watchdog::new(times.step)?;
        Ok(Arc::new(Self {
            factory,
            watchdog,
            times,
            compiling: AtomicUsize::new(0),
            everything,
            plain,
            eos: eos.to_vec(),
        }))
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.trie().vocab_size()
    }

    /// Always false: [`Vocabulary::new`] refuses empty vocabularies.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ids that end an answer.
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }

    /// The id of a special token by name.
    pub fn special(&self, name: &str) -> Option<u32> {
        let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
        word.extend_from_slice(name.as_bytes());
        self.trie().token_id_at_bytes(&word)
    }

    /// The tokens of a text, with its tags as special tokens.
    pub(crate) fn tokens(&self, text: &str) -> Vec<u32> {
        let env = self.factory.tok_env();
        let (mut out, mut rest) = (Vec::new(), text);
        let special = |rest: &str| {
            octet_parser::tags(rest)
                .find_map(|t| Some((t.as_ptr() as usize - rest.as_ptr() as usize, t.len(), self.special(t)?)))
        };
        while let Some((at, len, id)) = special(rest) {
            out.extend(env.tokenize(&rest[..at]));
            out.push(id);
            rest = &rest[at + len..];
        }
        out.extend(env.tokenize(rest));
        out
    }

    fn trie(&self) -> &TokTrie {
        self.factory.tok_env().tok_trie()
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("len", &self.len()).field("eos", &self.eos).finish()
    }
}

/// The trie's bytes for a token: special ones are marked with a byte that no text contains.
fn word(token: Token) -> Vec<u8> {
    let marker = TokTrie::SPECIAL_TOKEN_MARKER;
    let word = match token {
        // The byte 0xff is never part of UTF-8, so no text needs its token.
        Token::Text(bytes) if bytes.first() != Some(&marker) => bytes,
        Token::Special(name) if !name.is_empty() => [&[marker], name.as_bytes()].concat(),
        Token::Text(_) | Token::Special(_) | Token::Unused => Vec::new(),
    };
    if word.len() > TOKEN_BYTES_MAX { Vec::new() } else { word }
}

struct Env {
    trie: TokTrie,
    encode: Encode,
}

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, s: &[u8]) -> Vec<u32> {
        self.trie.tokenize_with_greedy_fallback(s, |text| {
            // A normaliser may have changed the text.
            let same = |ids: &Vec<u32>| {
                ids.iter().all(|&id| (id as usize) < self.trie.vocab_size())
                    && self.trie.decode_raw(ids) == text.as_bytes()
            };
            (self.encode)(text).filter(same).unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()))
        })
    }
}
