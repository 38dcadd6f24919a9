//! Damaged and hostile vocabularies: an error that says what and where, and never a panic.

use octet_engine::detokenizer::{ControlTokens, decode};
use octet_engine::tokenizer::{HUGGING_FACE_KEY, Special, Tokenizer};
use octet_weights::{Metadata, Value};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

/// A small byte-level tokenizer.json with every part that is read.
fn small() -> Json {
    json!({
        "added_tokens": [
            {"id": 7, "content": "<e>", "special": true, "lstrip": true, "rstrip": true},
            {"id": 8, "content": "tag", "special": false, "single_word": true, "normalized": true}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"},
            {"type": "Replace", "pattern": {"String": "xx"}, "content": "y"}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": " ?\\p{L}+|\\s+(?!\\S)"}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<e>", "type_id": 0}}],
            "special_tokens": {"<e>": {"id": "<e>", "ids": [7], "tokens": ["<e>"]}}},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "Ġ": 5, "Ġa": 6},
            "merges": [["a", "b"], ["ab", "c"], ["Ġ", "a"]]}
    })
}

fn load(json: &str) -> Result<Tokenizer, String> {
    let mut m = Metadata::new("the-file");
    m.insert(HUGGING_FACE_KEY, Value::Str(json.into()));
    Tokenizer::from_metadata(&m).map_err(|e| e.to_string())
}

#[test]
fn damaged_tokenizer_json_is_named() {
    let t = load(&small().to_string()).unwrap();
    assert_eq!(t.encode("ABC a <e>", Special::Parse).unwrap(), [4, 6, 7]);
    assert_eq!((t.prefix(), t.vocab_len()), (&[7][..], 9));
    let e = t.encode("abd", Special::Text).unwrap_err().to_string();
    assert!(e.contains("no token for byte 0x64"), "{e}");

    let refused = |pointer: &str, value: Json, want: &str| {
        let mut j = small();
        *j.pointer_mut(pointer).unwrap() = value;
        let e = load(&j.to_string()).unwrap_err();
        assert!(e.starts_with("the-file: ") && e.contains(want), "{pointer}: {e}");
    };
    refused("/model/merges/1", json!(["ab", "cc"]), "merge 1, 'ab cc', needs 'cc'");
    refused("/model/merges/1", json!(["ab", "ab"]), "needs 'abab'");
    refused("/model/merges/1", json!("abc"), "merge 'abc' at 1");
    refused("/model/vocab/b", json!(0), "gives id 0 to both");
    refused("/model/vocab/b", json!(4_000_000_000u32), "at most");
    refused("/added_tokens/0/id", json!(4_000_000_000u32), "at most");
    // What makes texts longer and longer, and tokens that take long to search for.
    let double = json!({"type": "Replace", "pattern": {"String": "l"}, "content": "ll"});
    refused("/normalizer/normalizers", json!(vec![double.clone(); 30]), "times as long");
    let nested = json!({"type": "Sequence", "normalizers": vec![double; 9]});
    refused("/normalizer/normalizers", json!([nested]), "1024 times as long");
    refused("/normalizer/normalizers", json!(vec![json!({"type": "NFC"}); 65]), "at most 64");
    let long = json!([{"type": "Replace", "pattern": {"String": "l"}, "content": "l".repeat(257)}]);
    refused("/normalizer/normalizers", long, "puts a text of 257 bytes");
    refused("/normalizer/normalizers", json!([{"type": "Prepend", "prepend": "l".repeat(257)}]), "257 bytes");
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    refused("/pre_tokenizer/pretokenizers", json!(vec![level; 20]), "times as long");
    refused("/added_tokens/0/content", json!("a".repeat(65_536)), "added token 7 of 65536 bytes");
    refused("/added_tokens/1/content", json!("a".repeat(65_536)), "added token 8 of 65536 bytes");
    refused("/model/type", json!("Unigram"), "Unigram model whose vocabulary has another model's form");
    refused("/model/type", json!("WordLevel"), "'WordLevel'; known: BPE, WordPiece, Unigram");
    refused("/model/vocab", json!([["a", 0.5]]), "Bpe model whose vocabulary has another model's form");
    refused("/decoder", json!({"type": "WordPiece"}), "'WordPiece'");
    refused("/post_processor/type", json!("New"), "post_processor 'New' that is not supported");
    refused("/post_processor/single/0", json!({"SpecialToken": {"id": "<x>"}}), "which is not known");
    refused("/decoder", json!(null), "no decoder");
    refused(
        "/pre_tokenizer/pretokenizers/0/pattern/Regex",
        json!("(unclosed"),
        "has an unsupported pre_tokenizer",
    );
    refused(
        "/normalizer/normalizers/0/type",
        json!("ByteLevel"),
        "'ByteLevel' that is not supported; supported: NFC",
    );
    refused("/normalizer/normalizers/2/pattern", json!({"Regex": "x*"}), "'Replace' without a text");
    refused("/model", json!(1), "tokenizer.json");
    assert!(load("{").unwrap_err().contains("EOF"));
    assert!(load("").unwrap_err().contains("the-file"));
}

#[test]
fn damaged_gguf_keys_are_named() {
    let good = || {
        let strings = |s: &str| Value::Strs(s.split(',').map(str::to_string).collect());
        let mut m = Metadata::new("the-file");
        m.insert("tokenizer.ggml.model", Value::Str("gpt2".into()));
        m.insert("tokenizer.ggml.pre", Value::Str("qwen2".into()));
        m.insert("tokenizer.ggml.tokens", strings("a,b,ab,<e>"));
        m.insert("tokenizer.ggml.token_type", Value::Ints(vec![1, 1, 1, 3]));
        m.insert("tokenizer.ggml.merges", strings("a b"));
        m.insert("tokenizer.ggml.scores", Value::Floats(vec![0.0; 4]));
        m
    };
    assert_eq!(Tokenizer::from_metadata(&good()).unwrap().encode("aba", Special::Text).unwrap(), [2, 0]);
    let refused = |key: &str, value: Value, want: &str| {
        let mut m = good();
        m.insert(&format!("tokenizer.ggml.{key}"), value);
        let e = Tokenizer::from_metadata(&m).unwrap_err().to_string();
        assert!(e.starts_with("the-file: ") && e.contains(want), "{key}: {e}");
    };
    let text = |s: &str| Value::Str(s.into());
    refused("model", text("rwkv"), "'rwkv', a tokenizer that is not supported; supported: gpt2");
    refused("model", text("none"), "the file has no vocabulary");
    refused("model", text("bert"), "has no unknown token");
    refused("pre", text("gpt-9"), "'gpt-9', a pre-tokenizer that is not supported; supported: qwen35");
    refused("tokens", Value::Strs(vec![]), "has 0 tokens");
    refused("tokens", Value::Ints(vec![1]), "not an array of strings");
    refused("token_type", Value::Ints(vec![1]), "has 1 values for 4 tokens");
    refused("token_type", Value::Ints(vec![1, 1, 1, 9]), "has 9 for token 3");
    refused("merges", Value::Strs(vec!["ab".into()]), "has 'ab' at 0; expected two tokens");
    refused("merges", Value::Strs(vec!["a b c".into()]), "expected two tokens");
    refused("merges", Value::Strs(vec!["b b".into()]), "needs 'bb'");
    refused("eos_token_id", Value::U64(4), "is 4, which is no token");
    refused("eos_token_ids", Value::Ints(vec![3, -1]), "is -1, which is no token");

    let mut m = good();
    m.insert("tokenizer.ggml.model", text("llama"));
    assert!(Tokenizer::from_metadata(&m).is_ok());
    let mut refused = |value: Value, want: &str| {
        m.insert("tokenizer.ggml.scores", value);
        let e = Tokenizer::from_metadata(&m).unwrap_err().to_string();
        assert!(e.contains("tokenizer.ggml.scores") && e.contains(want), "{e}");
    };
    refused(Value::Floats(vec![0.0; 3]), "has 3 values for 4 tokens");
    refused(Value::Floats(vec![0.0, f64::NAN, 0.0, 0.0]), "NaN for token 1");
    refused(Value::Ints(vec![0; 4]), "not an array of floats");
    let e = Tokenizer::from_metadata(&Metadata::new("empty")).unwrap_err().to_string();
    assert!(e.contains("tokenizer.ggml.model") && e.contains("missing"), "{e}");
}

/// Replaces the `n`th value of a JSON tree.
fn replace(v: &mut Json, n: &mut usize, with: &Json) {
    if *n == 0 {
        *v = with.clone();
    }
    *n = n.wrapping_sub(1);
    match v {
        Json::Array(a) => a.iter_mut().for_each(|v| replace(v, n, with)),
        Json::Object(o) => o.values_mut().for_each(|v| replace(v, n, with)),
        _ => {}
    }
}

thread_local! {
    /// Tokenizers of other kinds.
    static FAMILIES: Json = serde_json::from_str(include_str!("../fixtures/tokenizers.json")).unwrap();
}

proptest! {
    /// Any value in any part of the file: the file is refused, or it works on any text.
    #[test]
    fn random_damage_never_panics(
        n in 0usize..90,
        with in prop::sample::select(vec![
            json!(null), json!(true), json!(0), json!(-1), json!(1e300), json!(7), json!(""), json!(" "), json!("a"), json!("Ġ"),
            json!("▁"), json!([]), json!({}), json!(["a", "b"]), json!({"a": 0}), json!("(?i:a)|$"), json!("\\b|(?<=a)"),
            json!({"type": "NFC"}), json!({"type": "Prepend", "prepend": ""}), json!({"type": "Metaspace"}),
            json!({"type": "Strip", "strip_left": true, "strip_right": true}), json!("Removed"), json!("MergedWithNext"),
            json!({"type": "Whitespace"}), json!({"type": "Digits", "individual_digits": true}), json!({"type": "StripAccents"}),
            json!({"type": "Nmt"}), json!({"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAAA"}), json!([["a", 0.0]]),
            json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true}),
            json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": ""}), json!({"type": "BertPreTokenizer"}),
        ]),
        file in 0usize..4,
        text in "[abcxt <>eg\n]{0,12}|\\PC{0,6}|[ a\u{300}e\u{301}\u{212a}中\0<s>/]{0,8}",
    ) {
        let mut j = match file {
            0 | 1 => small(),
            2 => FAMILIES.with(|f| f["unigram"]["json"].clone()),
            _ => FAMILIES.with(|f| f["word_piece"][1]["json"].clone()),
        };
        let mut n = n;
        replace(&mut j, &mut n, &with);
        if let Ok(t) = load(&j.to_string()) {
            for special in [Special::Text, Special::Parse] {
                if let Ok(ids) = t.encode(&text, special) {
                    decode(&t, &ids, ControlTokens::Show);
                }
            }
        }
    }
}
