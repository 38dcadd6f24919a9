//! Splits numbers into groups of three digits from the right, as some pre-tokenizers do with a look-ahead. That look-ahead reads the rest
//! of the number at every digit; this reads it once.

use tokenizers::tokenizer::normalizer::Range;
use tokenizers::tokenizer::pre_tokenizer::PreTokenizedString;

/// Which digits are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DigitGroups {
    /// Each run of decimal digits in a piece: `(?=(\d{3})+(?!\d))`.
    Anywhere,
    /// Pieces of numeric characters alone.
    Numbers,
    /// Pieces of decimal digits alone.
    Decimals,
}

impl DigitGroups {
    /// Splits all pieces.
    pub(super) fn split(self, work: &mut PreTokenizedString) -> tokenizers::Result<()> {
        work.split(|_, piece| {
            let mut out = Vec::new();
            let mut done = 0;
            for cut in self.cuts(piece.get()) {
                out.push(piece.slice(Range::Normalized(done..cut)).ok_or("a digit has no boundary")?);
                done = cut;
            }
            let len = piece.get().len();
            match done {
                0 => out.push(piece),
                _ => out.push(piece.slice(Range::Normalized(done..len)).ok_or("a digit has no boundary")?),
            }
            Ok(out)
        })
    }

    /// Byte offsets at which a group begins, without the piece's own beginning.
    fn cuts(self, text: &str) -> Vec<usize> {
        let whole = match self {
            Self::Anywhere => true,
            Self::Numbers => text.chars().all(char::is_numeric),
            Self::Decimals => text.chars().all(is_decimal),
        };
        if !whole {
            return Vec::new();
        }
        let grouped = |c: char| self != Self::Anywhere || is_decimal(c);
        let (mut cuts, mut group) = (Vec::new(), 0);
        for (at, c) in text.char_indices().rev() {
            group = if grouped(c) { group + 1 } else { 0 };
            if group == 3 {
                cuts.push(at);
                group = 0;
            }
        }
        cuts.reverse();
        cuts.retain(|&at| at > 0);
        cuts
    }
}

/// A decimal digit (Unicode's category Nd).
fn is_decimal(c: char) -> bool {
    c.is_ascii_digit() || !c.is_ascii() && c.is_numeric() && regex_digit(c)
}

fn regex_digit(c: char) -> bool {
    static DIGIT: std::sync::OnceLock<Option<tokenizers::utils::SysRegex>> = std::sync::OnceLock::new();
    let digit = DIGIT.get_or_init(|| tokenizers::utils::SysRegex::new(r"\d").ok());
    digit.as_ref().is_some_and(|d| d.find_iter(c.encode_utf8(&mut [0; 4])).next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::tokenizer::SplitDelimiterBehavior::Isolated;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizer as _};

    fn pieces(text: &str, cut: impl Fn(&mut PreTokenizedString)) -> Vec<String> {
        let mut work = PreTokenizedString::from(text);
        cut(&mut work);
        let splits = work.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.iter().map(|s| s.0.to_string()).collect()
    }

    /// The library's own split at the look-ahead gives the same pieces.
    #[test]
    fn groups_are_those_of_the_look_ahead() {
        let regex = |r: &str| Split::new(SplitPattern::Regex(r.into()), Isolated, false).unwrap();
        let (numbers, ahead) = (regex(r"\p{N}+"), regex(r"(?=(\d{3})+(?!\d))"));
        for text in
            ["", "1", "1234567", "123½4567½89", "٣٤٥٦", "x12345 and 1234, 0.123456", "1²2345", "999", "½½½½"]
        {
            let want = pieces(text, |w| {
                numbers.pre_tokenize(w).unwrap();
                ahead.pre_tokenize(w).unwrap();
            });
            let got = pieces(text, |w| {
                numbers.pre_tokenize(w).unwrap();
                DigitGroups::Anywhere.split(w).unwrap();
            });
            assert_eq!(got, want, "{text}");
        }
        // Command's: only numbers that end at the end of a word.
        let (whole, plain) = (regex(r"(?<!\d)\d++\b"), regex(r"\d{1,3}(?=(?:\d{3})*\b)"));
        for text in ["1234567 1234a a1234 12_ 1234_5678 12345½ 1,234,5678.12", "٣٤٥٦", "½¾¼½", "1234é1234"]
        {
            let want = pieces(text, |w| plain.pre_tokenize(w).unwrap());
            let got = pieces(text, |w| {
                whole.pre_tokenize(w).unwrap();
                DigitGroups::Decimals.split(w).unwrap();
            });
            assert_eq!(got, want, "{text}");
        }
    }
}
