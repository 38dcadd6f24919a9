//! Pre-tokenizers by their names in `tokenizer.ggml.pre`: they split text into words before byte-pair merging.
//!
//! A table of facts about models: from their tokenizer.json or tiktoken code where that is public, else from llama.cpp's table
//! of the same names. Where both are known and differ, the model's own counts. Each step splits the pieces of the one before it.

use tokenizers::normalizers::{NFC, NormalizerWrapper};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::punctuation::Punctuation;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

use super::digits::DigitGroups;
use super::pipeline::Step;

/// A pre-tokenizer.
pub(super) struct PreTokenizer {
    names: &'static [&'static str],
    /// Applied in order.
    cuts: &'static [Cut],
    /// Normalise the text to Unicode NFC first.
    pub nfc: bool,
    /// A piece that is a token stays whole, whatever the merges (tiktoken's rule).
    pub ignore_merges: bool,
    /// Documents begin with BOS unless the file says otherwise.
    pub add_bos: bool,
    /// Inputs of an embedding model end with a separator unless the file says otherwise.
    pub add_sep: bool,
    /// Tokens are plain text with `▁` for a space, not GPT-2's byte alphabet.
    pub raw: bool,
}

/// One step.
enum Cut {
    /// Each match of the expression and each gap between matches is a piece.
    At(&'static str),
    /// Every numeric character is a piece, or each run of them.
    Digits { each: bool },
    /// Runs of punctuation.
    Punctuation,
    /// Digits in groups of three from the right.
    Thousands(DigitGroups),
    /// GPT-2's expression, and its alphabet of bytes: later steps see that alphabet.
    Gpt2Bytes,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// OpenAI's o200k.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// o200k with runs of Han characters apart, which take no part in the words.
const KIMI_K2: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const YOUTU_CJK: &str = r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[…“”‘’—\x{FF01}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+";
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
/// The end differs: line breaks stand alone.
const SPARK: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##;
/// Han, Hiragana and Katakana.
const HAN_KANA: &str = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+";
/// Most scripts without case.
const EAST: &str = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+";
/// Letters with case, as DeepSeek's file lists them.
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+";
const DEEPSEEK_PUNCTUATION: &str =
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+";
/// Scripts that Trinity's tokenizer keeps apart.
const ASIA: &str = r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}\x{E00}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const LINES: &str = r"[^\n]+|[\n]+";

const BASE: PreTokenizer = PreTokenizer {
    names: &[],
    cuts: &[],
    nfc: false,
    ignore_merges: false,
    add_bos: false,
    add_sep: false,
    raw: false,
};
/// tiktoken's rules: a word that is a token stays whole.
const RANKS: PreTokenizer = PreTokenizer { ignore_merges: true, ..BASE };

const KNOWN: &[PreTokenizer] = &[
    PreTokenizer { names: &["qwen35"], cuts: &[Cut::At(QWEN35)], nfc: true, ..BASE },
    PreTokenizer {
        names: &["qwen2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2", "stablelm2"],
        cuts: &[Cut::At(QWEN2)],
        nfc: true,
        ..BASE
    },
    // Its Python code composes characters, as Qwen's does.
    PreTokenizer { names: &["hunyuan"], cuts: &[Cut::At(QWEN2)], nfc: true, ..RANKS },
    PreTokenizer { names: &["solar-open", "grok-2"], cuts: &[Cut::At(QWEN2)], ..BASE },
    PreTokenizer {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "lfm2",
            "midm-2.0",
            "jina-v5-nano",
        ],
        cuts: &[Cut::At(LLAMA3)],
        add_bos: true,
        ..RANKS
    },
    PreTokenizer { names: &["smaug-bpe", "dbrx"], cuts: &[Cut::At(LLAMA3)], ..BASE },
    PreTokenizer { names: &["glm4", "chatglm-bpe"], cuts: &[Cut::At(LLAMA3)], ..RANKS },
    PreTokenizer { names: &["tekken"], cuts: &[Cut::At(TEKKEN)], add_bos: true, ..RANKS },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2", "granite-embed-multi-97m"],
        cuts: &[Cut::At(GPT4O)],
        ..RANKS
    },
    PreTokenizer { names: &["kimi-k2", "kimi-k25"], cuts: &[Cut::At(KIMI_K2)], ..RANKS },
    PreTokenizer { names: &["youtu"], cuts: &[Cut::At(YOUTU_CJK), Cut::At(YOUTU)], ..RANKS },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        cuts: &[Cut::At(r"\p{N}{1,3}"), Cut::At(HAN_KANA), Cut::At(DEEPSEEK_V3)],
        ..BASE
    },
    PreTokenizer {
        names: &["spark2_5"],
        cuts: &[Cut::At(r"\p{N}{1,3}"), Cut::At(HAN_KANA), Cut::At(SPARK), Cut::At(r"\p{N}")],
        ..BASE
    },
    PreTokenizer {
        names: &["deepseek-llm"],
        cuts: &[
            Cut::At(r"[\r\n]"),
            Cut::At(DEEPSEEK_LETTERS),
            Cut::At(DEEPSEEK_PUNCTUATION),
            Cut::At(r"\s+$"),
            Cut::At(EAST),
            Cut::Digits { each: true },
        ],
        ..BASE
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        cuts: &[
            Cut::At(r"[\r\n]"),
            Cut::At(r"\s?\p{L}+"),
            Cut::At(r"\s?\p{P}+"),
            Cut::At(EAST),
            Cut::Digits { each: true },
        ],
        ..BASE
    },
    PreTokenizer {
        names: &["seed-coder"],
        cuts: &[Cut::At(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
        )],
        ..BASE
    },
    PreTokenizer {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        cuts: &[Cut::At(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        )],
        ..BASE
    },
    PreTokenizer {
        names: &["exaone-moe"],
        cuts: &[Cut::At(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )],
        ..BASE
    },
    PreTokenizer {
        names: &["minicpm5"],
        cuts: &[
            Cut::At(r"\p{N}{1,3}"),
            Cut::At(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ),
        ],
        ..RANKS
    },
    PreTokenizer {
        names: &["ufakzeka"],
        cuts: &[Cut::At(
            r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )],
        ..BASE
    },
    PreTokenizer { names: &["laguna"], cuts: &[Cut::At(LINES), Cut::At(QWEN2)], ..BASE },
    PreTokenizer {
        names: &["jais-2"],
        cuts: &[Cut::At(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
        )],
        ..BASE
    },
    PreTokenizer {
        names: &["superbpe"],
        cuts: &[Cut::At(r"\p{N}+"), Cut::Thousands(DigitGroups::Anywhere)],
        ..BASE
    },
    PreTokenizer {
        names: &["afmoe"],
        cuts: &[
            Cut::At(r"\p{N}+"),
            Cut::Thousands(DigitGroups::Numbers),
            Cut::At(ASIA),
            Cut::At(DEEPSEEK_V3),
        ],
        ..BASE
    },
    PreTokenizer {
        names: &["tiny_aya", "cohere2moe"],
        cuts: &[Cut::At(r"(?<!\d)\d++\b"), Cut::Thousands(DigitGroups::Decimals), Cut::At(GPT4O)],
        ..BASE
    },
    PreTokenizer {
        names: &[
            "gpt-2",
            "gpt2",
            "phi-2",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "trillion",
            "granite-docling",
            "jais",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
        ],
        cuts: &[Cut::At(GPT2)],
        ..BASE
    },
    // GPT-NeoX's tokenizer and its heirs compose characters.
    PreTokenizer { names: &["olmo", "mpt", "modern-bert"], cuts: &[Cut::At(GPT2)], nfc: true, ..BASE },
    PreTokenizer {
        names: &["jina-v1-en", "jina-v2-code", "roberta-bpe"],
        cuts: &[Cut::At(GPT2)],
        add_sep: true,
        ..BASE
    },
    PreTokenizer {
        names: &["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"],
        cuts: &[Cut::Digits { each: true }, Cut::At(GPT2)],
        ..BASE
    },
    PreTokenizer {
        names: &["command-r"],
        cuts: &[Cut::Digits { each: true }, Cut::At(GPT2)],
        nfc: true,
        ..BASE
    },
    PreTokenizer {
        names: &["falcon"],
        cuts: &[Cut::Punctuation, Cut::Gpt2Bytes, Cut::Digits { each: false }, Cut::At("[0-9][0-9][0-9]")],
        ..BASE
    },
    PreTokenizer { names: &["bloom", "gpt3-finnish", "poro-chat"], cuts: &[Cut::At(BLOOM)], ..BASE },
    PreTokenizer { names: &["viking"], cuts: &[Cut::At(BLOOM), Cut::Digits { each: true }], ..BASE },
    PreTokenizer {
        names: &["chameleon"],
        cuts: &[
            Cut::At(r"<sentinel:[0-9]+>"),
            Cut::At(r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"),
            Cut::At(r"([\t\n]|    |  )"),
            Cut::Digits { each: true },
            Cut::At(r"[\p{P}!-/:-@\[-`{-~]"),
            Cut::At(GPT2),
        ],
        add_bos: true,
        ..BASE
    },
    PreTokenizer {
        names: &["gemma4", "granite-embed-multi-311m", "sarvam-moe"],
        add_bos: true,
        raw: true,
        ..BASE
    },
    // The last alternative of GPT-2's expression is omitted on purpose, as in llama.cpp.
    PreTokenizer {
        names: &["default"],
        cuts: &[
            Cut::At(r"[\p{P}\$\+<=>\^~\|]+"),
            Cut::At(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
            Cut::At(r"\p{N}+"),
            Cut::At(r"[0-9][0-9][0-9]"),
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

/// The first name that stands for these expressions, or for GPT-2's own where a byte-level step `uses_own`.
pub(super) fn name_of(regexes: &[&str], uses_own: bool, nfc: bool) -> Option<&'static str> {
    let wanted = if uses_own && regexes.is_empty() { &[GPT2][..] } else { regexes };
    let fits = |p: &&PreTokenizer| {
        let own = p.cuts.iter().map(|c| if let Cut::At(regex) = c { Some(*regex) } else { None });
        p.nfc == nfc && !p.raw && own.eq(wanted.iter().map(|r| Some(*r)))
    };
    KNOWN.iter().find(fits).map(|p| p.names[0])
}

impl PreTokenizer {
    /// The steps, then GPT-2's byte alphabet unless the vocabulary is plain text.
    pub(super) fn build(&self) -> Result<Vec<Step>, String> {
        let mut steps = Vec::with_capacity(self.cuts.len() + 1);
        for cut in self.cuts {
            steps.push(cut.step()?);
        }
        if !self.raw && !steps.iter().any(Step::is_byte_level) {
            steps.push(Step::byte_level());
        }
        Ok(steps)
    }
}

impl Cut {
    fn step(&self) -> Result<Step, String> {
        Ok(Step::Library(match self {
            Self::At(regex) => split(regex)?,
            Self::Digits { each } => PreTokenizerWrapper::Digits(Digits::new(*each)),
            Self::Punctuation => {
                PreTokenizerWrapper::Punctuation(Punctuation::new(SplitDelimiterBehavior::Contiguous))
            }
            Self::Gpt2Bytes => PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, true)),
            Self::Thousands(groups) => return Ok(Step::Digits(*groups)),
        }))
    }
}

/// Unicode's composed form.
pub(super) fn nfc() -> NormalizerWrapper {
    NormalizerWrapper::NFC(NFC)
}

/// Each match of `regex` and each gap between matches is a piece.
pub(super) fn split(regex: &str) -> Result<PreTokenizerWrapper, String> {
    Split::new(SplitPattern::Regex(regex.into()), SplitDelimiterBehavior::Isolated, false)
        .map(PreTokenizerWrapper::Split)
        .map_err(|e| format!("'{regex}': {e}"))
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
