//! Pre-tokenizers by their names in `tokenizer.ggml.pre`: they split text into words before byte-pair merging. Used by `gguf`.
//!
//! The expressions are facts about the models, from their tokenizer.json or else from llama.cpp's table of the same names. Each
//! expression splits the pieces of the one before it.

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

/// A pre-tokenizer.
pub(super) struct PreTokenizer {
    names: &'static [&'static str],
    /// Applied in order; each match and each gap between matches becomes a piece.
    splits: &'static [&'static str],
    /// Normalise the text to Unicode NFC first.
    pub nfc: bool,
    /// A piece that is a token stays whole, whatever the merges.
    pub ignore_merges: bool,
    /// Documents begin with BOS unless the file says otherwise.
    pub add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const BASE: PreTokenizer =
    PreTokenizer { names: &[], splits: &[], nfc: false, ignore_merges: false, add_bos: false };

const KNOWN: &[PreTokenizer] = &[
    PreTokenizer { names: &["qwen35"], splits: &[QWEN35], nfc: true, ..BASE },
    PreTokenizer { names: &["qwen2"], splits: &[QWEN2], nfc: true, ..BASE },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3"],
        splits: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
        ..BASE
    },
    PreTokenizer { names: &["smaug-bpe", "dbrx"], splits: &[LLAMA3], ..BASE },
    PreTokenizer { names: &["tekken"], splits: &[TEKKEN], ignore_merges: true, add_bos: true, ..BASE },
    PreTokenizer { names: &["gpt-2", "gpt2", "olmo"], splits: &[GPT2], ..BASE },
    PreTokenizer {
        names: &["smollm", "starcoder", "refact", "command-r"],
        splits: &[r"\p{N}", GPT2],
        ..BASE
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        splits: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
        ..BASE
    },
    // The last alternative of GPT-2's expression is omitted on purpose, as in llama.cpp.
    PreTokenizer {
        names: &["default"],
        splits: &[
            r"[\p{P}\$\+<=>\^~\|]+",
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
            r"\p{N}+",
            r"[0-9][0-9][0-9]",
        ],
        ..BASE
    },
];

/// The pre-tokenizer `name`, or an error with all known names.
pub(super) fn find(name: &str) -> Result<&'static PreTokenizer, String> {
    KNOWN.iter().find(|p| p.names.contains(&name)).ok_or_else(|| {
        let all: Vec<&str> = KNOWN.iter().flat_map(|p| p.names.iter().copied()).collect();
        format!("is '{name}', a pre-tokenizer that is not supported; supported: {}", all.join(", "))
    })
}

impl PreTokenizer {
    /// The splits, then GPT-2's byte alphabet.
    pub(super) fn build(&self) -> Result<PreTokenizerWrapper, String> {
        let mut steps = Vec::new();
        for s in self.splits {
            let split = Split::new(SplitPattern::Regex((*s).into()), SplitDelimiterBehavior::Isolated, false)
                .map_err(|e| format!("'{s}': {e}"))?;
            steps.push(PreTokenizerWrapper::Split(split));
        }
        steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false)));
        Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_builds_and_is_unique() {
        let mut seen = std::collections::HashSet::new();
        for p in KNOWN {
            p.build().unwrap();
            assert!(p.names.iter().all(|n| seen.insert(*n)));
        }
        let e = find("gpt-9").err().unwrap();
        assert!(e.contains("'gpt-9'") && e.contains("qwen35, qwen2"), "{e}");
    }
}
