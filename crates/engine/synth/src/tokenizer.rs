//! A synthetic byte-level BPE vocabulary of any size: bytes, then ever longer words of lower-case letters, with and without a leading
//! space, each merged from the one that is a letter shorter.
//!
//! It is as large as the real one, so that every row of the output head can be sampled, and the output of a model with random weights
//! is readable nonsense.

/// Tokens that stand at the end of the vocabulary, in the order of Qwen's; smaller vocabularies have the first ones.
const SPECIALS: [&str; 33] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
];

/// Token types of GGUF files.
const NORMAL: i64 = 1;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const UNUSED: i64 = 5;

/// A vocabulary as GGUF metadata has it.
pub(crate) struct Vocabulary {
    pub tokens: Vec<String>,
    pub types: Vec<i64>,
    /// `a b`: in order of rank.
    pub merges: Vec<String>,
    /// Ids of `<|endoftext|>` and `<|im_end|>`.
    pub end_of_text: usize,
    pub end_of_turn: usize,
}

/// A vocabulary of `real` tokens, `specials` of which are control tokens at its end, in `rows` rows.
///
/// # Panics
/// When there is no room for all bytes and the specials.
pub(crate) fn vocabulary(rows: usize, real: usize, specials: usize) -> Vocabulary {
    let specials = &SPECIALS[..specials];
    let base = real.checked_sub(specials.len()).filter(|&n| n >= 256 && real <= rows);
    let base = base.expect("a vocabulary has room for all bytes and its special tokens");
    let mut tokens: Vec<String> = (0..=255u8).map(|b| byte_char(b).to_string()).collect();
    let mut merges = Vec::with_capacity(base - 256);
    // Words of each length are made from all words of the length before: `ab`, ` a`, then `abc`, ` ab`, ...
    let mut shorter: Vec<String> =
        ('a'..='z').map(String::from).chain([byte_char(b' ').to_string()]).collect();
    while tokens.len() < base {
        let mut longer = Vec::new();
        for (word, letter) in shorter.iter().flat_map(|w| ('a'..='z').map(move |c| (w, c))) {
            if tokens.len() == base {
                break;
            }
            merges.push(format!("{word} {letter}"));
            longer.push(format!("{word}{letter}"));
            tokens.push(format!("{word}{letter}"));
        }
        shorter = longer;
    }
    tokens.extend(specials.iter().map(|s| s.to_string()));
    let mut types = vec![NORMAL; base];
    types.extend(specials.iter().map(|s| if is_control(s) { CONTROL } else { USER_DEFINED }));
    types.resize(rows, UNUSED);
    tokens.extend((real..rows).map(|id| format!("[PAD{id}]")));
    Vocabulary { tokens, types, merges, end_of_text: base, end_of_turn: base + 2 }
}

/// Markup of tool calls, of thinking and of code stays in the text; the rest controls.
fn is_control(special: &str) -> bool {
    let is_code = special.contains("fim_") || matches!(special, "<|repo_name|>" | "<|file_sep|>");
    special.starts_with("<tts") || (special.starts_with("<|") && !is_code)
}

/// The character that stands for a byte in byte-level BPE: itself where it is printable, else one from U+0100 on.
fn byte_char(b: u8) -> char {
    let is_printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_printable(b) {
        return char::from(b);
    }
    let before = (0..b).filter(|&x| !is_printable(x)).count() as u32;
    char::from_u32(0x100 + before).expect("the first characters past U+0100 exist")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_vocabulary_is_sound() {
        let v = vocabulary(248_320, 248_077, 33);
        let ids: HashMap<&str, usize> = v.tokens.iter().enumerate().map(|(i, t)| (t.as_str(), i)).collect();
        assert_eq!((v.tokens.len(), v.types.len(), ids.len()), (248_320, 248_320, 248_320));
        assert_eq!((v.end_of_text, v.end_of_turn), (248_044, 248_046));
        assert_eq!((ids["<think>"], ids["</tool_call>"], ids["<|audio_pad|>"]), (248_068, 248_059, 248_076));
        // each word is merged from tokens before it
        for (rank, merge) in v.merges.iter().enumerate() {
            let (a, b) = merge.split_once(' ').unwrap();
            let id = ids[format!("{a}{b}").as_str()];
            assert!(id == 256 + rank && ids[a] < id && ids[b] < id, "{merge}");
        }
        assert_eq!(v.merges.len(), 248_044 - 256);
        assert_eq!(v.types.iter().filter(|&&t| t == USER_DEFINED).count(), 12);
        assert_eq!(v.types.iter().filter(|&&t| t == UNUSED).count(), 243);
    }

    #[test]
    fn bytes_have_gpt2s_characters() {
        assert_eq!([b' ', b'\n', b'a', 0, 0xad, 0xff].map(byte_char), ['Ġ', 'Ċ', 'a', 'Ā', 'Ń', 'ÿ']);
    }
}
