//! The steps of the crate `tokenizers`: added tokens, normaliser, pre-tokenizer, model. They are run here and not by its `encode`
//! because the added tokens that count depend on the text (see `super`). `models` builds the model.

use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::tokenizer::normalizer::Range;
use tokenizers::tokenizer::pre_tokenizer::{OffsetType, Split};
use tokenizers::{
    NormalizedString, Normalizer as _, OffsetReferential, PreTokenizedString, PreTokenizer as _, Token,
};

use super::added::{Finder, Found};
use super::digits::DigitGroups;
use super::models::Words;

/// The model and the steps before it.
pub(super) struct Pipeline {
    pub normalizer: Option<NormalizerWrapper>,
    /// The pre-tokenizer, applied in order.
    pub steps: Vec<Step>,
    pub words: Words,
}

/// A step of a pre-tokenizer.
pub(super) enum Step {
    Library(PreTokenizerWrapper),
    Digits(DigitGroups),
}

impl Step {
    /// Bytes in GPT-2's alphabet.
    pub(super) fn byte_level() -> Self {
        Self::Library(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false)))
    }

    pub(super) fn is_byte_level(&self) -> bool {
        matches!(self, Self::Library(PreTokenizerWrapper::ByteLevel(_)))
    }
}

/// Precedes a piece of text that is not the first, in place of an added token: some steps treat the beginning of a text specially.
const STAND_IN: &str = "\0";

/// Maximum number of bytes that NFC composes into one (of the Kelvin sign, and of Hangul letters).
const NFC_SHRINKS: usize = 3;

impl Pipeline {
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
        work.tokenize(|s| self.words.tokenize(s.get())).map_err(|e| e.to_string())?;
        let splits = work.get_splits(OffsetReferential::Original, OffsetType::None);
        for (_, _, tokens) in splits.iter().skip(usize::from(at > 0)) {
            out.extend(tokens.iter().flatten().map(|t| t.id));
        }
        Ok(())
    }

    /// All steps before the model. A piece that is not the first gets the prefix [`STAND_IN`].
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
        for step in &self.steps {
            match step {
                Step::Library(p) => p.pre_tokenize(&mut work)?,
                Step::Digits(groups) => groups.split(&mut work)?,
            }
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
        let seam = apart.len();
        apart.extend(second);
        let Some(together) = words(&format!("{left}{right}"), at) else { return false };
        if together == apart {
            return true;
        }
        // One word across the boundary, which the model never joins there.
        if seam == 0 || seam == apart.len() || !(apart[seam - 1].1.is_empty() && apart[seam].1.is_empty()) {
            return false;
        }
        let right = apart.remove(seam).0;
        let never = match (apart[seam - 1].0.chars().next_back(), right.chars().next()) {
            (Some(a), Some(b)) => self.words.never_joins(a, b),
            _ => false,
        };
        apart[seam - 1].0.push_str(&right);
        never && together == apart
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
        let drops = |s: &Step| matches!(s, Step::Library(p) if drops(p));
        // Other vocabularies may skip unknown text.
        if !self.words.covers_bytes() || self.steps.iter().any(drops) {
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
