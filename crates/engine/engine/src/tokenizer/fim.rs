//! Fill-in-the-middle tokens of code models (Bavarian et al., arXiv:2207.14255). Read by [`super::Tokenizer`].

use octet_weights::{Error, Metadata};

use super::Tokenizer;

/// The tokens around a gap: `prefix` TEXT `suffix` TEXT `middle`, then the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FimTokens {
    /// Before the text that precedes the gap.
    pub prefix: u32,
    /// Before the text that follows it.
    pub suffix: u32,
    /// Before the answer.
    pub middle: u32,
    /// Before a repository's name.
    pub repository: Option<u32>,
    /// Before a file's name.
    pub file: Option<u32>,
    /// Padding; ends an answer.
    pub pad: Option<u32>,
}

/// Keys of GGUF files, with their older names, and token texts for files without keys (Qwen and Code Llama, StarCoder and Granite,
/// DeepSeek, Codestral and others).
const KINDS: [(&[&str], &[&str]); 6] = [
    (
        &["fim_pre_token_id", "prefix_token_id"],
        &[
            "<|fim_prefix|>",
            "<fim_prefix>",
            "<fim-prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "[PREFIX]",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
    ),
    (
        &["fim_suf_token_id", "suffix_token_id"],
        &[
            "<|fim_suffix|>",
            "<fim_suffix>",
            "<fim-suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "[SUFFIX]",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
    ),
    (
        &["fim_mid_token_id", "middle_token_id"],
        &[
            "<|fim_middle|>",
            "<fim_middle>",
            "<fim-middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "[MIDDLE]",
            "<|code_middle|>",
            "<|middle|>",
        ],
    ),
    (
        &["fim_rep_token_id"],
        &["<|fim_repo|>", "<|repo_name|>", "<fim_repo>", "<fim-repo>", "<REPO>", "<reponame>", "<repo_name>"],
    ),
    (&["fim_sep_token_id"], &["<|file_sep|>", "<file_sep>"]),
    (&["fim_pad_token_id"], &["<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<PAD>"]),
];

/// The tokens, if the model has them.
pub(super) fn find(metadata: &Metadata, tokenizer: &Tokenizer) -> Result<Option<FimTokens>, Error> {
    let one = |(keys, texts): (&[&str], &[&str])| -> Result<Option<u32>, Error> {
        for key in keys {
            let id = metadata.opt_u32(&format!("tokenizer.ggml.{key}"))?;
            if let Some(id) = id.filter(|id| tokenizer.is_sampleable(*id)) {
                return Ok(Some(id));
            }
        }
        Ok(texts.iter().find_map(|text| tokenizer.special_id(text)))
    };
    let [prefix, suffix, middle, repository, file, pad] = KINDS;
    let (Some(prefix), Some(suffix), Some(middle)) = (one(prefix)?, one(suffix)?, one(middle)?) else {
        return Ok(None);
    };
    Ok(Some(FimTokens {
        prefix,
        suffix,
        middle,
        repository: one(repository)?,
        file: one(file)?,
        pad: one(pad)?,
    }))
}
