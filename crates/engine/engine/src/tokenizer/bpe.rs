//! Byte-pair encoding with the crate `tokenizers`: added tokens, normaliser, pre-tokenizer, merges. These are the steps of its
//! `encode`, run here because the added tokens that count depend on the text (see `super`).

use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::tokenizer::normalizer::Range;
use tokenizers::tokenizer::pre_tokenizer::{OffsetType, Split};
use tokenizers::{
    Model as _, NormalizedString, Normalizer as _, OffsetReferential, PreTokenizedString, PreTokenizer as _,
    Token,
};

use super::added::{Finder, Found};
use super::vocab::spell_byte;

/// The merges and the steps before them.
pub(super) struct Bpe {
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    merges: BPE,
    /// Bytes of UTF-8 that the vocabulary cannot represent (byte-level vocabularies only; most have none).
    missing: Vec<u8>,
    byte_level: bool,
}

/// Precedes a piece of text that is not the first, in place of an added token: some steps treat the beginning of a text specially.
const STAND_IN: &str = "\0";

/// Maximum number of bytes that NFC composes into one (of the Kelvin sign, and of Hangul letters).
const NFC_SHRINKS: usize = 3;

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
    pub normalizer: Option<NormalizerWrapper>,
    pub pre_tokenizer: Option<PreTokenizerWrapper>,
    /// Tokens use GPT-2's byte alphabet, so every byte needs one.
    pub byte_level: bool,
}

impl Bpe {
    /// Checks the merges (the library does not) and builds the model.
    pub(super) fn new(spec: BpeSpec) -> Result<Self, String> {
        let prefix = spec.continuing_subword_prefix.as_deref().unwrap_or_default();
        let vocab: ahash::AHashMap<String, u32> = spec.vocab.into_iter().collect();
        let mut joined = String::new();
        for (i, (a, b)) in spec.merges.iter().enumerate() {
            let tail =
                b.strip_prefix(prefix).ok_or_else(|| format!("merge {i}, '{a} {b}', lacks the prefix"))?;
            joined.clear();
            joined.push_str(a);
            joined.push_str(tail);
            if let Some(t) = [a, b, &joined].into_iter().find(|t| !vocab.contains_key(*t)) {
                return Err(format!("merge {i}, '{a} {b}', needs '{t}', which is not in the vocabulary"));
            }
        }
        if let Some(u) = spec.unk_token.as_ref().filter(|u| !vocab.contains_key(*u)) {
            return Err(format!("the unknown token '{u}' is not in the vocabulary"));
        }
        let missing = if spec.byte_level {
            let in_utf8 = (0u8..=0xf4).filter(|b| !matches!(b, 0xc0 | 0xc1));
            in_utf8.filter(|&b| !vocab.contains_key(spell_byte(b).encode_utf8(&mut [0; 4]) as &str)).collect()
        } else {
            Vec::new()
        };
        let mut builder = BPE::builder()
            .vocab_and_merges(vocab, spec.merges)
            .ignore_merges(spec.ignore_merges)
            .byte_fallback(spec.byte_fallback)
            .fuse_unk(spec.fuse_unk);
        if let Some(u) = spec.unk_token {
            builder = builder.unk_token(u);
        }
        if let Some(p) = spec.continuing_subword_prefix.filter(|p| !p.is_empty()) {
            builder = builder.continuing_subword_prefix(p);
        }
        if let Some(s) = spec.end_of_word_suffix.filter(|s| !s.is_empty()) {
            builder = builder.end_of_word_suffix(s);
        }
        let merges = builder.build().map_err(|e| e.to_string())?;
        Ok(Self {
            normalizer: spec.normalizer,
            pre_tokenizer: spec.pre_tokenizer,
            merges,
            missing,
            byte_level: spec.byte_level,
        })
    }

    /// Appends the tokens of `piece`, which begins at byte `at` of the text. `found` are the added tokens found in it before
    /// normalising, `normalized` those to find afterwards; none may span a `barred` range of the text.
    pub(super) fn encode(
        &self,
        piece: &str,
        at: usize,
        found: &[Found],
        normalized: &Finder,
        barred: &impl Fn(usize, usize) -> bool,
        out: &mut Vec<u32>,
    ) -> Result<(), String> {
        let mut work = self.cut_words(piece, at, found, normalized, barred).map_err(|e| e.to_string())?;
        work.tokenize(|s| self.words(s.get())).map_err(|e| e.to_string())?;
        let splits = work.get_splits(OffsetReferential::Original, OffsetType::None);
        for (_, _, tokens) in splits.iter().skip(usize::from(at > 0)) {
            out.extend(tokens.iter().flatten().map(|t| t.id));
        }
        Ok(())
    }

    /// All steps before the merges. A piece that is not the first gets the prefix [`STAND_IN`].
    fn cut_words(
        &self,
        piece: &str,
        at: usize,
        found: &[Found],
        normalized: &Finder,
        barred: &impl Fn(usize, usize) -> bool,
    ) -> tokenizers::Result<PreTokenizedString> {
        let lead = if at > 0 { STAND_IN } else { "" };
        let mut work = PreTokenizedString::from(format!("{lead}{piece}"));
        if at > 0 || !found.is_empty() {
            let stand_in = (at > 0).then_some(Found { start: 0, end: lead.len(), id: 0 });
            let here = |f: &Found| Found {
                start: f.start - at + lead.len(),
                end: f.end - at + lead.len(),
                id: f.id,
            };
            let found: Vec<Found> = stand_in.into_iter().chain(found.iter().map(here)).collect();
            work.split(|_, s| cut(s, &found))?;
        }
        if let Some(n) = &self.normalizer {
            work.normalize(|s| n.normalize(s))?;
        }
        if !normalized.is_empty() {
            work.split(|_, s| {
                let origin = s.offsets_original().0;
                let found = normalized.find(s.get(), |start, end| {
                    let range = s.convert_offsets(Range::Normalized(start..end));
                    range.is_some_and(|r| {
                        let there = |here: usize| origin + here + at - lead.len();
                        barred(there(r.start), there(r.end))
                    })
                });
                cut(s, &found)
            })?;
        }
        if let Some(p) = &self.pre_tokenizer {
            p.pre_tokenize(&mut work)?;
        }
        Ok(work)
    }

    /// Whether a word ends between `left` and `right`, of which the first begins at byte `at` of the text: split separately they
    /// give the same words as together. Neither has added tokens that are found before normalising.
    pub(super) fn ends_word(
        &self,
        left: &str,
        right: &str,
        at: usize,
        normalized: &Finder,
        barred: &impl Fn(usize, usize) -> bool,
    ) -> bool {
        let words = |text: &str, at: usize| {
            let work = self.cut_words(text, at, &[], normalized, barred).ok()?;
            let splits = work.get_splits(OffsetReferential::Original, OffsetType::None);
            let words = splits.iter().skip(usize::from(at > 0));
            let word = |(text, _, tokens): &(&str, _, &Option<Vec<Token>>)| {
                (text.to_string(), tokens.iter().flatten().map(|t| t.id).collect::<Vec<_>>())
            };
            Some(words.map(word).collect::<Vec<_>>())
        };
        let (Some(mut apart), Some(second)) = (words(left, at), words(right, at + left.len())) else {
            return false;
        };
        apart.extend(second);
        words(&format!("{left}{right}"), at).is_some_and(|together| together == apart)
    }

    /// Maximum number of bytes of text that normalising may turn into one; `None` if unbounded.
    pub(super) fn shrinks_to(&self) -> Option<usize> {
        fn drops(p: &PreTokenizerWrapper) -> bool {
            match p {
                PreTokenizerWrapper::Sequence(all) => all.as_ref().iter().any(drops),
                PreTokenizerWrapper::Split(s) => s.behavior == SplitDelimiterBehavior::Removed,
                _ => false,
            }
        }
        // Other vocabularies may skip unknown text.
        if !self.byte_level || self.pre_tokenizer.as_ref().is_some_and(drops) {
            return None;
        }
        match &self.normalizer {
            None => Some(1),
            Some(NormalizerWrapper::NFC(_)) => Some(NFC_SHRINKS),
            Some(_) => None,
        }
    }

    /// Applies the normaliser.
    pub(super) fn normalize(&self, text: &str) -> Result<String, String> {
        let mut s = NormalizedString::from(text);
        if let Some(n) = &self.normalizer {
            n.normalize(&mut s).map_err(|e| e.to_string())?;
        }
        Ok(s.get().to_string())
    }

    fn words(&self, piece: &str) -> tokenizers::Result<Vec<Token>> {
        if let Some(&b) = self.missing.iter().find(|&&b| piece.contains(spell_byte(b))) {
            return Err(format!("the vocabulary has no token for byte 0x{b:02x}").into());
        }
        self.merges.tokenize(piece)
    }
}

/// Splits the added tokens from a piece of text.
fn cut(s: NormalizedString, found: &[Found]) -> tokenizers::Result<Vec<Split>> {
    let slice = |start: usize, end: usize| {
        s.slice(Range::Normalized(start..end)).ok_or("an added token was found off a character's edge")
    };
    let mut out = Vec::with_capacity(2 * found.len() + 1);
    let mut done = 0;
    for f in found {
        if done < f.start {
            out.push(Split::from(slice(done, f.start)?));
        }
        let token = Token::new(f.id, String::new(), (0, f.end - f.start));
        out.push(Split::from((slice(f.start, f.end)?, Some(vec![token]))));
        done = f.end;
    }
    let len = s.get().len();
    if done < len {
        out.push(if done == 0 { Split::from(s) } else { Split::from(slice(done, len)?) });
    }
    Ok(out)
}
