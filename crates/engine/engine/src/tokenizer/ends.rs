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
    "<|eot|>", // Llama 4
    "<|eom|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|return|>", // gpt-oss
    "<|call|>",
    "<|flush|>", // Solar Open
    "<|calls|>",
    "<end_of_turn>",
    "<turn|>", // Gemma 4
    "<|tool_response>",
    "<|endofturn|>",
    "[|endofturn|]",         // EXAONE
    "<|END_OF_TURN_TOKEN|>", // Command
    "<|role_end|>",          // Ling
    "<end_of_utterance>",    // SmolVLM, Granite Docling
    "[EOT]",                 // Kimi
    "[EOS]",
    "[e~[", // MiniMax
    "</s>",
    "<｜end▁of▁sentence｜>",
];

/// Tokens that begin the next turn, and so end an answer, in families without a token for its end.
const NEXT_TURNS: &[(&str, &[&str])] = &[("[gMASK]", &["<|user|>", "<|observation|>"])]; // GLM

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
    let has = |name: &str| added.iter().any(|a| a.control && a.text == name);
    // These end each message of an answer with `<|end|>`, and the answer with one of the others.
    let ends_messages = has("<|return|>") && has("<|call|>") || has("<|flush|>") && has("<|calls|>");
    let next_turn = |text: &str| NEXT_TURNS.iter().any(|(mark, turns)| turns.contains(&text) && has(mark));
    let is_end =
        |text: &str| END_NAMES.contains(&text) && !(ends_messages && text == "<|end|>") || next_turn(text);
    for a in added.iter().filter(|a| a.control && is_end(&a.text)) {
        push("tokenizer", a.id.into())?;
    }
    Ok(out)
}
