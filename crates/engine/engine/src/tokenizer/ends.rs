//! The tokens that end an answer. Read by [`super::Tokenizer`].

use octet_weights::{Error, Metadata};

use super::added::Added;
use super::vocab::{TokenKind, Vocab};

/// Tokens that end an answer in known chat models, if they are control tokens.
const END_NAMES: &[&str] = &[
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endofturn|>",
    "</s>",
    "<｜end▁of▁sentence｜>",
];

/// Every id that ends an answer: those that the file names, then the well-known ones.
pub(super) fn find(metadata: &Metadata, vocab: &Vocab, added: &[Added]) -> Result<Vec<u32>, Error> {
    let mut out: Vec<u32> = Vec::new();
    let mut push = |key: &str, id: i64| match u32::try_from(id) {
        Ok(id) if vocab.kind(id) != TokenKind::Unused => {
            if !out.contains(&id) {
                out.push(id);
            }
            Ok(())
        }
        _ => Err(Error::key(metadata.file(), key, format!("is {id}, which is no token of the vocabulary"))),
    };
    for name in ["eos", "eot", "eom"] {
        let key = format!("tokenizer.ggml.{name}_token_id");
        if let Some(id) = metadata.opt_u32(&key)? {
            push(&key, id.into())?;
        }
    }
    let key = "tokenizer.ggml.eos_token_ids";
    for &id in metadata.opt_ints(key)?.unwrap_or_default() {
        push(key, id)?;
    }
    // gpt-oss ends each message of an answer with `<|end|>`, and the answer with one of the other two.
    let has = |name: &str| added.iter().any(|a| a.control && a.text == name);
    let ends_messages = has("<|return|>") && has("<|call|>");
    let is_end = |text: &str| END_NAMES.contains(&text) && !(ends_messages && text == "<|end|>");
    for a in added.iter().filter(|a| a.control && is_end(&a.text)) {
        push("tokenizer", a.id.into())?;
    }
    Ok(out)
}
