//! Long texts: split into chunks they become the same tokens, the work stops soon after the limit, and it can be cancelled.

use std::sync::atomic::AtomicBool;

use octet_engine::tokenizer::{
    Bounds, CHUNK_BYTES, EncodeError, Encoded, HUGGING_FACE_KEY, Prompt, Special, Tokenizer, WORD_BYTES_MAX,
};
use octet_synth::{Mix, tiny};
use octet_weights::{Metadata, Value};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

static NOT_CANCELLED: AtomicBool = AtomicBool::new(false);

fn bounds(chunk_bytes: usize) -> Bounds<'static> {
    Bounds { tokens_max: usize::MAX, cancelled: &NOT_CANCELLED, chunk_bytes }
}

fn from_json(json: String) -> Tokenizer {
    let mut m = Metadata::new("test");
    m.insert(HUGGING_FACE_KEY, Value::Str(json));
    Tokenizer::from_metadata(&m).unwrap()
}

/// A byte-level vocabulary of bytes and a few merges, with steps that look at what is around a word.
fn byte_level(pre_tokenizer: &Json, normalizer: &Json) -> Tokenizer {
    let mut names: Vec<String> = (0u32..256)
        .map(|b| match b {
            0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from_u32(b).unwrap(),
            0..=0x20 => char::from_u32(0x100 + b).unwrap(),
            0x7f..=0xa0 => char::from_u32(0x121 + b - 0x7f).unwrap(),
            _ => '\u{143}',
        })
        .map(String::from)
        .collect();
    let merges =
        [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "Ġ"), ("1", "2"), ("12", "3"), ("s", "Ġ"), ("Ċ", "Ċ")];
    names.extend(merges.iter().map(|(a, b)| format!("{a}{b}")));
    let vocab: serde_json::Map<String, Json> =
        names.iter().enumerate().map(|(i, n)| (n.clone(), i.into())).collect();
    let n = names.len();
    from_json(
        json!({
            "added_tokens": [
                {"id": n, "content": "<|im_end|>", "special": true},
                {"id": n + 1, "content": "<tag>", "special": false},
                {"id": n + 2, "content": "<l>", "special": true, "lstrip": true, "rstrip": true},
                {"id": n + 3, "content": "the end", "special": false, "normalized": true},
                {"id": n + 4, "content": "word", "special": false, "normalized": true, "single_word": true},
                {"id": n + 5, "content": "   ", "special": false}],
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": vocab,
                "merges": merges.iter().map(|(a, b)| format!("{a} {b}")).collect::<Vec<_>>()},
        })
        .to_string(),
    )
}

/// SentencePiece's words, whose normaliser puts a space in front of every text.
fn prepending() -> Tokenizer {
    let names = ["<unk>", "▁", "t", "h", "e", "s", "th", "the", "▁the", "▁▁", "s▁"];
    let vocab: serde_json::Map<String, Json> =
        names.iter().enumerate().map(|(i, n)| (n.to_string(), i.into())).collect();
    from_json(
        json!({
            "added_tokens": [{"id": 0, "content": "<unk>", "special": true}, {"id": 11, "content": "<|im_end|>", "special": true}],
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
            "decoder": {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            "model": {"type": "BPE", "vocab": vocab, "unk_token": "<unk>",
                "merges": ["t h", "th e", "▁ the", "▁ ▁", "s ▁"]},
        })
        .to_string(),
    )
}

/// SentencePiece's BPE by scores, and one whose pieces may hold a space behind a letter.
fn scored(piece: &str) -> Tokenizer {
    let tokens = ["<unk>", "▁", "t", "h", "e", "s", "th", "the", "▁the", "▁▁", piece, "<|im_end|>"];
    let types = [2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3];
    let mut m = Metadata::new("spm.gguf");
    m.insert("tokenizer.ggml.model", Value::Str("llama".into()));
    m.insert("tokenizer.ggml.tokens", Value::Strs(tokens.map(String::from).to_vec()));
    m.insert("tokenizer.ggml.token_type", Value::Ints(types.to_vec()));
    m.insert("tokenizer.ggml.scores", Value::Floats((0..tokens.len()).map(|i| -(i as f64)).collect()));
    Tokenizer::from_metadata(&m).unwrap()
}

fn tokenizers() -> Vec<Tokenizer> {
    let split = |regex: &str| {
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]})
    };
    let qwen = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let llama =
        r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let gpt2 =
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    let metaspace = |scheme: &str, split: bool| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split});
    let nfc = json!({"type": "NFC"});
    let mut all = vec![
        byte_level(&split(qwen), &nfc),
        byte_level(&split(llama), &json!({"type": "Sequence", "normalizers": [nfc, {"type": "Lowercase"}]})),
        byte_level(&gpt2, &Json::Null),
        byte_level(&json!({"type": "Digits", "individual_digits": false}), &Json::Null),
        byte_level(&metaspace("first", true), &Json::Null),
        byte_level(&metaspace("always", false), &Json::Null),
        byte_level(&Json::Null, &Json::Null),
        prepending(),
        scored("h▁"),
        scored("▁th"),
        Tokenizer::from_metadata(&tiny("qwen35moe", Mix::Q4KM).unwrap().metadata).unwrap(),
    ];
    let families: Json = serde_json::from_str(include_str!("../fixtures/tokenizers.json")).unwrap();
    for file in [&families["gemma"], &families["word_piece"][0], &families["unigram"]] {
        all.push(from_json(file["json"].to_string()));
    }
    if let Some(path) = octet_testkit::shared("models/tiny-qwen3_5_moe/tokenizer.json") {
        all.push(from_json(std::fs::read_to_string(path).unwrap()));
    }
    all
}

/// Texts of characters that tokenizers handle specially.
fn texts() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("the"),
        Just("The end"),
        Just("word"),
        Just(" "),
        Just("  "),
        Just("   "),
        Just("\n"),
        Just("\r\n\n"),
        Just("'s"),
        Just("'T"),
        Just("12"),
        Just("1234567"),
        Just("<|im_end|>"),
        Just("<tag>"),
        Just(" <l>\n"),
        Just("e\u{301}"),
        Just("\u{301}"),
        Just("क्षि"),
        Just("中文"),
        Just("，"),
        Just("..."),
        Just("!\n"),
        Just("\u{212a}"),
        Just("▁"),
        Just("ts"),
        Just("\0"),
        Just("🙂"),
        Just("the "),
        Just("s the"),
        Just("\t"),
        Just("(("),
        Just("x_y"),
    ];
    proptest::collection::vec(part, 0..80).prop_map(|parts| parts.concat())
}

/// In any chunks, `text` becomes the same tokens as a whole, also if no added token may span its byte `barrier`.
fn same_in_pieces(text: &str, chunk: usize, barrier: usize) -> Result<(), TestCaseError> {
    for (i, t) in tokenizers().iter().enumerate() {
        for special in [Special::Text, Special::Parse] {
            // Text that cannot be encoded as a whole cannot be encoded in chunks either.
            let whole = t.encode(text, special);
            let cut = t.encode_within(text, special, bounds(chunk));
            prop_assert_eq!(whole.is_err(), cut.is_err(), "tokenizer {}", i);
            let (Ok(whole), Ok(cut)) = (whole, cut) else { continue };
            if let Some(most) = t.bytes_max(whole.len()) {
                prop_assert!(text.len() <= most, "tokenizer {}: {} bytes, {}", i, text.len(), most);
            }
            prop_assert_eq!(cut, Encoded { tokens: whole, rest: 0 }, "tokenizer {} {:?}", i, special);
        }
        let prompt = Prompt { barriers: vec![barrier.min(text.len())], text: text.into() };
        let whole = t.encode_prompt(&prompt).ok();
        prop_assert_eq!(
            t.encode_prompt_within(&prompt, bounds(chunk)).ok().map(|e| e.tokens),
            whole,
            "tokenizer {}",
            i
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn tokens_do_not_depend_on_chunks(text in texts(), chunk in 1usize..60, barrier in 0usize..200) {
        same_in_pieces(&text, chunk, barrier)?;
    }
}

/// A chunk boundary may be next to an added token that is not allowed there.
#[test]
fn barriers_may_be_beside_chunk_boundaries() {
    for barrier in 0..10 {
        same_in_pieces("\n\nword\nthe word,", 1, barrier).unwrap();
    }
}

/// A whole word stays apart from what is in the chunks on both of its sides, and next to an added token.
#[test]
fn whole_words_are_not_made_by_chunk_boundaries() {
    for text in ["1234567word12", "12word 12", " 12word,", "<tag>word12", "the <l>word12 word"] {
        for chunk in 1..text.len() {
            same_in_pieces(text, chunk, 0).unwrap();
        }
    }
}

fn qwen() -> Tokenizer {
    Tokenizer::from_metadata(&tiny("qwen35moe", Mix::Q4KM).unwrap().metadata).unwrap()
}

#[test]
fn tokenizing_stops_soon_after_the_limit() {
    let t = qwen();
    let text = "some words, and 123 more. ".repeat(40_000);
    let bound = Bounds { tokens_max: 100, ..bounds(CHUNK_BYTES) };
    let out = t.encode_within(&text, Special::Parse, bound).unwrap();
    assert!(out.tokens.len() > 100 && text.len() - out.rest < 2 * CHUNK_BYTES, "{} left", out.rest);
    let first = &text[..text.len() - out.rest];
    assert_eq!(t.encode(first, Special::Parse).unwrap(), out.tokens);
    let cancelled = AtomicBool::new(true);
    let bound = Bounds { cancelled: &cancelled, ..bounds(CHUNK_BYTES) };
    assert_eq!(t.encode_within(&text, Special::Parse, bound), Err(EncodeError::Cancelled));
    assert_eq!(t.encode_within("", Special::Parse, bounds(CHUNK_BYTES)), Ok(Encoded::default()));
}

#[test]
fn unbounded_words_are_refused() {
    let t = qwen();
    for (what, lead) in [("x", ""), (" ", "x"), ("中", "a b "), ("\n", "12 ")] {
        let text = format!("{lead}{}", what.repeat(WORD_BYTES_MAX / what.len() + 200));
        let e = t.encode_within(&text, Special::Text, bounds(1000)).unwrap_err();
        assert!(matches!(e, EncodeError::Word { from } if from <= lead.len()), "{what:?}: {e}");
        assert!(e.to_string().contains("no word ends within 1048576 bytes"), "{e}");
    }
    // and long ones are not
    let long = "x".repeat(3 * CHUNK_BYTES);
    assert_eq!(t.encode_within(&long, Special::Text, bounds(CHUNK_BYTES)).unwrap().rest, 0);
    assert_eq!(t.bytes_max(0), Some(0));
    assert!(t.bytes_max(10) >= Some(100) && t.bytes_max(usize::MAX) == Some(usize::MAX));
}
