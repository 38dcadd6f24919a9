//! Increments of the detokeniser, put together, are the text as a whole: for any ids and any text, for byte-level
//! vocabularies and for those with byte tokens.

use std::sync::Arc;

use octet_engine::detokenizer::{ControlTokens, Detokenizer, decode};
use octet_engine::tokenizer::{Special, Tokenizer};
use octet_weights::{Metadata, Value};
use proptest::prelude::*;

/// The 256 bytes, some merges, two added tokens: the smallest byte-level vocabulary that is complete.
fn byte_level() -> Arc<Tokenizer> {
    let spell = |b: u8| match b {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => b as char,
        0..=b' ' => char::from_u32(0x100 + b as u32).unwrap(),
        0x7f..=0xa0 => char::from_u32(0x121 + b as u32 - 0x7f).unwrap(),
        0xad => '\u{143}',
    };
    let mut tokens: Vec<String> = (0..=255).map(|b| spell(b).to_string()).collect();
    let merges = ["Ġ t", "h e", "Ġt he", "Ã ©", "ð Ł"];
    tokens.extend(merges.iter().map(|m| m.replace(' ', "")));
    let mut types = vec![1; tokens.len()];
    for (text, kind) in [("<|im_end|>", 3), ("<think>", 4), ("[PAD263]", 5)] {
        tokens.push(text.into());
        types.push(kind);
    }
    let mut m = Metadata::new("byte-level");
    m.insert("tokenizer.ggml.model", Value::Str("gpt2".into()));
    m.insert("tokenizer.ggml.pre", Value::Str("qwen2".into()));
    m.insert("tokenizer.ggml.tokens", Value::Strs(tokens));
    m.insert("tokenizer.ggml.token_type", Value::Ints(types));
    m.insert("tokenizer.ggml.merges", Value::Strs(merges.iter().map(|s| s.to_string()).collect()));
    Arc::new(Tokenizer::from_metadata(&m).unwrap())
}

fn sentence_piece() -> Arc<Tokenizer> {
    let mut tokens: Vec<(String, i64, f64)> =
        vec![("<unk>".into(), 2, 0.0), ("<s>".into(), 3, 0.0), ("</s>".into(), 3, 0.0)];
    tokens.extend((0..=255).map(|b| (format!("<0x{b:02X}>"), 6, 0.0)));
    for (i, t) in ["▁", "t", "h", "e", "é", "▁t", "he", "▁the", "▁▁"].iter().enumerate() {
        tokens.push((t.to_string(), 1, -(i as f64)));
    }
    let mut m = Metadata::new("sentencepiece");
    m.insert("tokenizer.ggml.model", Value::Str("llama".into()));
    m.insert("tokenizer.ggml.tokens", Value::Strs(tokens.iter().map(|t| t.0.clone()).collect()));
    m.insert("tokenizer.ggml.token_type", Value::Ints(tokens.iter().map(|t| t.1).collect()));
    m.insert("tokenizer.ggml.scores", Value::Floats(tokens.iter().map(|t| t.2).collect()));
    Arc::new(Tokenizer::from_metadata(&m).unwrap())
}

fn increments(t: &Arc<Tokenizer>, ids: &[u32], control: ControlTokens) -> String {
    let mut d = Detokenizer::new(t.clone(), control);
    let mut all = String::new();
    for &id in ids {
        all.push_str(d.push(id));
    }
    all.push_str(d.flush());
    all
}

proptest! {
    #[test]
    fn increments_sum_to_the_text(ids in prop::collection::vec(0u32..300, 0..40), show: bool) {
        let control = if show { ControlTokens::Show } else { ControlTokens::Hide };
        for t in [byte_level(), sentence_piece()] {
            prop_assert_eq!(increments(&t, &ids, control), decode(&t, &ids, control));
        }
    }

    #[test]
    fn text_comes_back(text in "\\PC{0,40}|[ \n\t<>|the]{0,20}|.{0,20}") {
        let (b, s) = (byte_level(), sentence_piece());
        let ids = b.encode(&text, Special::Text).unwrap();
        prop_assert!(ids.iter().all(|&id| b.is_sampleable(id) && !b.is_control(id)));
        // The qwen2 vocabulary composes (NFC); text that is composed already comes back byte for byte: ASCII, and all of the
        // highest planes but the ideographs for compatibility, which become others.
        let composed = |c: char| c.is_ascii() || c > '\u{1f000}' && !('\u{2f800}'..='\u{2fa1f}').contains(&c);
        if text.chars().all(composed) {
            prop_assert_eq!(increments(&b, &ids, ControlTokens::Show), text.clone());
        }
        let ids = s.encode(&text, Special::Text).unwrap();
        prop_assert_eq!(increments(&s, &ids, ControlTokens::Show), text.replace('▁', " "));
    }
}

#[test]
fn incomplete_characters_are_held() {
    let t = byte_level();
    let mut d = Detokenizer::new(t.clone(), ControlTokens::Hide);
    let emoji = "🦀".as_bytes();
    for b in &emoji[..3] {
        assert_eq!(d.push(u32::from(*b)), "");
    }
    assert_eq!(d.push(emoji[3].into()), "🦀");
    assert_eq!(d.push(0xe2), "");
    assert_eq!(d.push(261), "", "a control token is hidden and loses nothing");
    assert_eq!(d.push(b'x'.into()), "\u{fffd}x");
    assert_eq!(d.push(0xf0), "");
    assert_eq!(d.flush(), "\u{fffd}");
    assert_eq!(d.flush(), "");
}

#[test]
fn a_completion_keeps_its_first_space() {
    let t = sentence_piece();
    let the = t.encode("the", Special::Text).unwrap();
    assert_eq!(the.len(), 1);
    assert_eq!(Detokenizer::new(t.clone(), ControlTokens::Hide).push(the[0]), "the");
    assert_eq!(Detokenizer::continuing(t, ControlTokens::Hide).push(the[0]), " the");
}
