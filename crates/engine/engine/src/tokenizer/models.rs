//! The models of the crate `tokenizers` that turn a word into tokens: byte-pair encoding, WordPiece, Unigram. Built by the readers of
//! files, which are not trusted: what the library does not check is checked here.

use std::collections::HashSet;

use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::{self, BPE};
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::{Model as _, Token};

use super::vocab::spell_byte;
use super::word_cache::WordCache;

/// A model.
pub(super) struct Words {
    model: ModelWrapper,
    cache: WordCache,
    /// Bytes of UTF-8 that the vocabulary cannot represent (byte-level vocabularies only; most have none).
    missing: Vec<u8>,
    byte_level: bool,
    /// The characters between which merges happen: last of the left token, first of the right one. Only where words may be whole texts.
    joins: Option<HashSet<(char, char)>>,
}

/// The contents of a BPE tokenizer file.
#[derive(Default)]
pub(super) struct BpeSpec {
    /// Token texts and ids.
    pub vocab: Vec<(String, u32)>,
    /// Pairs of token texts, the most frequent first.
    pub merges: Vec<(String, String)>,
    pub ignore_merges: bool,
    pub byte_fallback: bool,
    pub fuse_unk: bool,
    pub unk_token: Option<String>,
    pub continuing_subword_prefix: Option<String>,
    pub end_of_word_suffix: Option<String>,
    /// Tokens use GPT-2's byte alphabet, so every byte needs one.
    pub byte_level: bool,
}

impl BpeSpec {
    /// Checks what the library does not, and builds the model.
    pub(super) fn build(self) -> Result<Words, String> {
        let vocab: ahash::AHashMap<String, u32> = self.vocab.into_iter().collect();
        let prefix = self.continuing_subword_prefix.filter(|p| !p.is_empty());
        let suffix = self.end_of_word_suffix.filter(|s| !s.is_empty());
        check_merges(&vocab, &self.merges, prefix.as_deref().unwrap_or_default())?;
        if let Some(u) = self.unk_token.as_ref().filter(|u| !vocab.contains_key(*u)) {
            return Err(format!("the unknown token '{u}' is not in the vocabulary"));
        }
        let missing = if self.byte_level {
            let in_utf8 = (0u8..=0xf4).filter(|b| !matches!(b, 0xc0 | 0xc1));
            in_utf8.filter(|&b| !vocab.contains_key(spell_byte(b).encode_utf8(&mut [0; 4]) as &str)).collect()
        } else {
            Vec::new()
        };
        let plain = !self.byte_level && !self.ignore_merges && prefix.is_none() && suffix.is_none();
        let joins = plain.then(|| {
            let ends = |(a, b): &(String, String)| Some((a.chars().next_back()?, b.chars().next()?));
            self.merges.iter().filter_map(ends).collect()
        });
        let mut builder = BPE::builder()
            .vocab_and_merges(vocab, self.merges)
            .ignore_merges(self.ignore_merges)
            .byte_fallback(self.byte_fallback)
            .fuse_unk(self.fuse_unk)
            .cache_capacity(0); // `cache` is ours
        if let Some(u) = self.unk_token {
            builder = builder.unk_token(u);
        }
        if let Some(p) = prefix {
            builder = builder.continuing_subword_prefix(p);
        }
        if let Some(s) = suffix {
            builder = builder.end_of_word_suffix(s);
        }
        let model = builder.build().map_err(|e| match e.downcast_ref() {
            Some(bpe::Error::MergeTokenOutOfVocabulary(t)) => {
                format!("a merge needs '{t}', which is not in the vocabulary")
            }
            _ => e.to_string(),
        })?;
        let model = ModelWrapper::BPE(model);
        Ok(Words { model, cache: WordCache::new(), missing, byte_level: self.byte_level, joins })
    }
}

/// The library looks for the tokens of each merge itself, but copies them together into a buffer of the longest token, and takes the
/// prefix off without looking.
fn check_merges(
    vocab: &ahash::AHashMap<String, u32>,
    merges: &[(String, String)],
    prefix: &str,
) -> Result<(), String> {
    let longest = vocab.keys().map(String::len).max().unwrap_or(0);
    for (i, (a, b)) in merges.iter().enumerate() {
        let tail = b.strip_prefix(prefix).ok_or_else(|| format!("merge {i}, '{a} {b}', lacks the prefix"))?;
        if a.len() + tail.len() > longest {
            let joined = format!("{a}{tail}");
            let missing = [a, b].into_iter().find(|t| !vocab.contains_key(*t)).unwrap_or(&joined);
            return Err(format!("merge {i}, '{a} {b}', needs '{missing}', which is not in the vocabulary"));
        }
    }
    Ok(())
}

/// The contents of a WordPiece tokenizer file (Wu et al., arXiv:1609.08144): the longest token that begins the word, then the longest
/// that continues it.
pub(super) struct WordPieceSpec {
    /// Token texts and ids.
    pub vocab: Vec<(String, u32)>,
    pub unk_token: String,
    /// Begins the text of a token inside a word.
    pub prefix: String,
    /// Longer words are unknown.
    pub chars_max: usize,
}

/// Words of more characters are unknown in all published models; the time for a word is the square of its length.
const WORD_PIECE_CHARS_MAX: usize = 4096;

impl WordPieceSpec {
    pub(super) fn build(self) -> Result<Words, String> {
        let vocab: ahash::AHashMap<String, u32> = self.vocab.into_iter().collect();
        if !vocab.contains_key(&self.unk_token) {
            return Err(format!("the unknown token '{}' is not in the vocabulary", self.unk_token));
        }
        if self.chars_max > WORD_PIECE_CHARS_MAX {
            return Err(format!(
                "allows words of {} characters; the maximum is {WORD_PIECE_CHARS_MAX}",
                self.chars_max
            ));
        }
        let model = WordPiece::builder()
            .vocab(vocab)
            .unk_token(self.unk_token)
            .continuing_subword_prefix(self.prefix)
            .max_input_chars_per_word(self.chars_max)
            .build()
            .map_err(|e| e.to_string())?;
        Ok(Words {
            model: ModelWrapper::WordPiece(model),
            cache: WordCache::new(),
            missing: Vec::new(),
            byte_level: false,
            joins: None,
        })
    }
}

/// The contents of a Unigram tokenizer file (Kudo, arXiv:1804.10959): the tokens with the greatest sum of scores.
pub(super) struct UnigramSpec {
    /// Text and score of each id.
    pub pieces: Vec<(String, f64)>,
    pub unk: Option<usize>,
    pub byte_fallback: bool,
}

impl UnigramSpec {
    pub(super) fn build(self) -> Result<Words, String> {
        if let Some((text, score)) = self.pieces.iter().find(|(_, score)| !score.is_finite()) {
            return Err(format!("has the score {score} for '{text}'; expected a finite number"));
        }
        let model = Unigram::from(self.pieces, self.unk, self.byte_fallback).map_err(|e| e.to_string())?;
        let model = ModelWrapper::Unigram(model);
        Ok(Words { model, cache: WordCache::new(), missing: Vec::new(), byte_level: false, joins: None })
    }
}

impl Words {
    /// The tokens of a word.
    pub(super) fn tokenize(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        if let Some(&b) = self.missing.iter().find(|&&b| word.contains(spell_byte(b))) {
            return Err(format!("the vocabulary has no token for byte 0x{b:02x}").into());
        }
        if !matches!(self.model, ModelWrapper::BPE(_)) {
            return self.model.tokenize(word);
        }
        // Nothing reads more of a token than its id.
        let token = |&id: &u32| Token::new(id, String::new(), (0, 0));
        if let Some(tokens) = self.cache.find(word, |ids| ids.iter().map(token).collect()) {
            return Ok(tokens);
        }
        let tokens = self.model.tokenize(word)?;
        self.cache.keep(word, tokens.iter().map(|t| t.id));
        Ok(tokens)
    }

    /// Whether no token has `left` followed by `right` in it, nor stands for both: their words can be tokenized separately.
    pub(super) fn never_joins(&self, left: char, right: char) -> bool {
        let known = |c: char| self.model.token_to_id(c.encode_utf8(&mut [0; 4])).is_some();
        self.joins.as_ref().is_some_and(|j| !j.contains(&(left, right))) && known(left) && known(right)
    }

    /// Whether every byte of a text is in its tokens.
    pub(super) fn covers_bytes(&self) -> bool {
        self.byte_level
    }
}
