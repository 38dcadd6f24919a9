//! The tokenizers of all families against other libraries (`tokenizer_families.py`): tiny vocabularies, in both forms of a file.

use std::sync::atomic::AtomicBool;

use octet_engine::detokenizer::{ControlTokens, decode};
use octet_engine::tokenizer::{
    Bounds, HUGGING_FACE_KEY, Special, TEKKEN_KEY, TIKTOKEN_ADDED_KEY, TIKTOKEN_KEY, Tokenizer,
};
use octet_weights::{Metadata, Value};
use serde_json::{Value as Json, json};

fn fixture() -> Json {
    serde_json::from_str(include_str!("../fixtures/tokenizers.json")).unwrap()
}

fn ids(v: &Json) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|i| i.as_u64().unwrap() as u32).collect()
}

fn strings(v: &Json) -> Vec<String> {
    v.as_array().unwrap().iter().map(|s| s.as_str().unwrap().into()).collect()
}

/// A file with these keys of `tokenizer.ggml`.
fn gguf(keys: Vec<(&str, Value)>) -> Tokenizer {
    let mut m = Metadata::new("tiny.gguf");
    for (key, value) in keys {
        m.insert(&format!("tokenizer.ggml.{key}"), value);
    }
    Tokenizer::from_metadata(&m).unwrap()
}

fn from_json(json: &Json) -> Tokenizer {
    let mut m = Metadata::new("tokenizer.json");
    m.insert(HUGGING_FACE_KEY, Value::Str(json.to_string()));
    Tokenizer::from_metadata(&m).unwrap()
}

fn text(s: &str) -> Value {
    Value::Str(s.into())
}

/// The tokens of `want`, also if the text is cut into pieces.
fn check(t: &Tokenizer, name: &str, given: &str, want: &[u32]) {
    assert_eq!(t.encode(given, Special::Text).unwrap(), want, "{name}: {given:?}");
    let go_on = AtomicBool::new(false);
    for chunk_bytes in [1, 5, 16] {
        let bounds = Bounds { tokens_max: usize::MAX, cancelled: &go_on, chunk_bytes };
        let cut = t.encode_within(given, Special::Text, bounds).unwrap();
        assert_eq!((cut.tokens.as_slice(), cut.rest), (want, 0), "{name} in pieces: {given:?}");
    }
}

/// Every text of the fixture.
fn check_all(t: &Tokenizer, name: &str, fixture: &Json, want: &Json) {
    let texts = strings(&fixture["texts"]);
    assert_eq!(want.as_array().unwrap().len(), texts.len());
    for (given, want) in texts.iter().zip(want.as_array().unwrap()) {
        check(t, name, given, &ids(want));
    }
}

#[test]
fn pre_tokenizers_by_name() {
    let f = fixture();
    let file = &f["byte_level"];
    let mut checked = 0;
    let names: std::collections::BTreeSet<String> =
        file["ids"][0].as_array().unwrap().iter().flat_map(|w| strings(&w["names"])).collect();
    for name in &names {
        let t = gguf(vec![
            ("model", text("gpt2")),
            ("pre", text(name)),
            ("tokens", Value::Strs(strings(&file["tokens"]))),
            ("merges", Value::Strs(strings(&file["merges"]))),
        ]);
        for (given, wanted) in strings(&f["texts"]).iter().zip(file["ids"].as_array().unwrap()) {
            let want =
                wanted.as_array().unwrap().iter().find(|w| strings(&w["names"]).contains(name)).unwrap();
            check(&t, name, given, &ids(&want["ids"]));
            checked += 1;
        }
    }
    assert!(checked > 500, "{checked}");
    // The names differ in what they do: the fixture can tell them apart.
    let different = file["ids"].as_array().unwrap().iter().map(|w| w.as_array().unwrap().len()).max();
    assert!(different >= Some(8), "{different:?}");
}

/// tiktoken's vocabularies, of which a GGUF file may have the tokens alone.
#[test]
fn ranks_without_merges() {
    let f = fixture();
    let ranks = &f["ranks"];
    let tokens = strings(&ranks["tokens"]);
    let spelled = gguf(vec![
        ("model", text("gpt2")),
        ("pre", text("kimi-k2")),
        ("tokens", Value::Strs(strings(&f["byte_level"]["tokens"]))),
    ]);
    check_all(&spelled, "kimi-k2 in GGUF", &f, &ranks["kimi"]);

    let lines: Vec<String> = tokens.iter().enumerate().map(|(i, t)| format!("{t} {i}")).collect();
    let mut m = Metadata::new("checkpoint");
    m.insert(TIKTOKEN_KEY, Value::Str(lines.join("\n")));
    m.insert("tokenizer.ggml.pre", text("kimi-k2"));
    let n = tokens.len();
    let added = json!({n.to_string(): {"content": "<|im_end|>", "special": true}, (n + 1).to_string(): {"content": "<x>"}});
    m.insert(TIKTOKEN_ADDED_KEY, Value::Str(added.to_string()));
    let t = Tokenizer::from_metadata(&m).unwrap();
    check_all(&t, "tiktoken.model", &f, &ranks["kimi"]);
    let end = n as u32;
    assert_eq!(
        (t.encode("<|im_end|><x>", Special::Parse).unwrap(), t.eos_ids()),
        (vec![end, end + 1], &[end][..])
    );
    m.insert(TIKTOKEN_KEY, Value::Str("YQ== 0\nYQ".into()));
    let e = Tokenizer::from_metadata(&m).unwrap_err().to_string();
    assert!(e.contains("tokenizer.tiktoken.model") && e.contains("in line 2"), "{e}");
}

#[test]
fn tekken() {
    let f = fixture();
    let tokens = strings(&f["ranks"]["tokens"]);
    let vocab: Vec<Json> =
        tokens.iter().enumerate().map(|(rank, t)| json!({"rank": rank, "token_bytes": t})).collect();
    let file = json!({"vocab": vocab, "config": {"pattern": f["ranks"]["pattern"],
        "default_vocab_size": tokens.len() + 30, "default_num_special_tokens": 30}});
    let mut m = Metadata::new("checkpoint");
    m.insert(TEKKEN_KEY, Value::Str(file.to_string()));
    m.insert("tokenizer.ggml.eos_token_id", Value::U64(2));
    let t = Tokenizer::from_metadata(&m).unwrap();
    for (given, want) in strings(&f["texts"]).iter().zip(f["ranks"]["tekken"].as_array().unwrap()) {
        let want: Vec<u32> = ids(want).into_iter().map(|id| id + 30).collect();
        check(&t, "tekken.json", given, &want);
    }
    assert_eq!((t.prefix(), t.eos_ids(), t.vocab_len()), (&[1][..], &[2][..], tokens.len() + 30));
    assert_eq!(t.encode("[INST]<SPECIAL_29>", Special::Parse).unwrap(), [3, 29]);
    assert!(t.encode("[INST]", Special::Text).unwrap().len() > 1);

    let mut listed = file.clone();
    listed["special_tokens"] = json!([{"rank": 0, "token_str": "<unk>"}, {"rank": 4, "token_str": "[THINK]", "is_control": false},
        {"rank": 1, "token_str": "<s>", "is_control": true}]);
    m.insert(TEKKEN_KEY, Value::Str(listed.to_string()));
    let t = Tokenizer::from_metadata(&m).unwrap();
    assert_eq!(t.encode("[THINK]<SPECIAL_3>", Special::Parse).unwrap(), [4, 3]);
    assert!(!t.is_control(4) && t.is_control(3));
    listed["special_tokens"][0]["rank"] = 30.into();
    m.insert(TEKKEN_KEY, Value::Str(listed.to_string()));
    let e = Tokenizer::from_metadata(&m).unwrap_err().to_string();
    assert!(e.contains("tokenizer.tekken.json") && e.contains("special token 30 of 30"), "{e}");
}

#[test]
fn gemma_in_both_forms() {
    let f = fixture();
    let file = &f["gemma"]["json"];
    let t = from_json(file);
    check_all(&t, "tokenizer.json", &f, &f["gemma"]["ids"]);
    assert_eq!(t.prefix(), [2]);
    assert_eq!(t.frame(&t.encode("a b", Special::Text).unwrap(), None).tokens, ids(&f["gemma"]["single"]));

    let map = file["model"]["vocab"].as_object().unwrap();
    let mut tokens: Vec<(&String, u64)> = map.iter().map(|(t, id)| (t, id.as_u64().unwrap())).collect();
    tokens.sort_by_key(|t| t.1);
    let kind = |text: &str, id: u64| match id {
        3 => 2,
        0..=2 => 3,
        _ if text.len() == 6 && text.starts_with("<0x") => 6,
        _ => 1,
    };
    let merges = file["model"]["merges"].as_array().unwrap().iter();
    let gguf = gguf(vec![
        ("model", text("gemma4")),
        ("pre", text("gemma4")),
        ("tokens", Value::Strs(tokens.iter().map(|t| t.0.clone()).collect())),
        ("token_type", Value::Ints(tokens.iter().map(|(t, id)| kind(t, *id)).collect())),
        ("merges", Value::Strs(merges.map(|m| strings(m).join(" ")).collect())),
        ("unknown_token_id", Value::U64(3)),
        ("bos_token_id", Value::U64(2)),
        ("eos_token_id", Value::U64(1)),
    ]);
    check_all(&gguf, "GGUF", &f, &f["gemma"]["ids"]);
    assert_eq!((gguf.prefix(), gguf.eos_ids()), (&[2][..], &[1][..]));
    for given in strings(&f["texts"]) {
        let tokens = gguf.encode(&given, Special::Text).unwrap();
        assert_eq!(decode(&gguf, &tokens, ControlTokens::Show), given);
    }
}

/// The frames of one text and of two, as in the library.
fn check_frames(t: &Tokenizer, want: &Json) {
    let encode = |text| t.encode(text, Special::Text).unwrap();
    assert_eq!(t.frame(&encode("one two"), None).tokens, ids(&want["single"]));
    let pair = t.frame(&encode("one two"), Some(&encode("three")));
    assert_eq!(pair.tokens, ids(&want["pair"]));
    assert_eq!(pair.segments.iter().map(|&s| u32::from(s)).collect::<Vec<_>>(), ids(&want["segments"]));
}

#[test]
fn word_piece_in_both_forms() {
    let f = fixture();
    for want in f["word_piece"].as_array().unwrap() {
        let t = from_json(&want["json"]);
        check_all(&t, "tokenizer.json", &f, &want["ids"]);
        check_frames(&t, want);
        let hello = t.encode("one two-three", Special::Text).unwrap();
        assert_eq!(decode(&t, &hello, ControlTokens::Hide), "one two - three");

        // llama.cpp's converter marks the beginnings of words instead of their continuations.
        let map = want["json"]["model"]["vocab"].as_object().unwrap();
        let mut tokens = vec![String::new(); map.len()];
        for (name, id) in map {
            tokens[id.as_u64().unwrap() as usize] = match name.strip_prefix("##") {
                Some(rest) => rest.into(),
                None if name.len() > 2 && name.starts_with('[') => name.clone(),
                None => format!("▁{name}"),
            };
        }
        let types = (0..tokens.len()).map(|id| if id < 5 { 3 } else { 1 }).collect();
        let gguf = gguf(vec![
            ("model", text("bert")),
            ("tokens", Value::Strs(tokens)),
            ("token_type", Value::Ints(types)),
            ("unknown_token_id", Value::U64(1)),
            ("bos_token_id", Value::U64(2)),
            ("seperator_token_id", Value::U64(3)),
            ("token_type_count", Value::U64(2)),
        ]);
        check_all(&gguf, "GGUF", &f, &want["ids"]);
        check_frames(&gguf, want);
        assert!(gguf.encode("[SEP]", Special::Text).unwrap().len() > 1);
    }
}

#[test]
fn unigram_in_both_forms() {
    let f = fixture();
    let want = &f["unigram"];
    let t = from_json(&want["json"]);
    check_all(&t, "tokenizer.json", &f, &want["ids"]);
    check_frames(&t, want);

    let pieces = want["json"]["model"]["vocab"].as_array().unwrap();
    let base64 = want["json"]["normalizer"]["normalizers"][0]["precompiled_charsmap"].as_str().unwrap();
    let keys = |charsmap: Vec<i64>| {
        vec![
            ("model", text("t5")),
            ("tokens", Value::Strs(pieces.iter().map(|p| p[0].as_str().unwrap().into()).collect())),
            ("scores", Value::Floats(pieces.iter().map(|p| p[1].as_f64().unwrap()).collect())),
            ("token_type", Value::Ints(ids(&want["types"]).into_iter().map(i64::from).collect())),
            ("precompiled_charsmap", Value::Ints(charsmap)),
            ("add_space_prefix", Value::Bool(true)),
            ("remove_extra_whitespaces", Value::Bool(true)),
            ("add_bos_token", Value::Bool(true)),
            ("unknown_token_id", Value::U64(0)),
            ("bos_token_id", Value::U64(1)),
            ("eos_token_id", Value::U64(2)),
            ("seperator_token_id", Value::U64(2)),
            ("token_type_count", Value::U64(1)),
        ]
    };
    let charsmap = bytes(base64);
    // As unsigned and as signed bytes: files have both.
    for map in [charsmap.clone(), charsmap.iter().map(|&b| i64::from(b as u8 as i8)).collect()] {
        let gguf = gguf(keys(map));
        check_all(&gguf, "GGUF", &f, &want["ids"]);
        check_frames(&gguf, want);
    }
    // The control tokens have the best scores, and text must not become one.
    for t in [&t, &gguf(keys(charsmap))] {
        let tokens = t.encode("a</s><s>", Special::Text).unwrap();
        assert!(!tokens.contains(&1) && !tokens.contains(&2), "{tokens:?}");
        assert_eq!(t.encode("</s>", Special::Parse).unwrap(), [2]);
    }
    let mut m = Metadata::new("tiny.gguf");
    for (key, value) in keys(vec![9, 0, 0, 0, 1]) {
        m.insert(&format!("tokenizer.ggml.{key}"), value);
    }
    let e = Tokenizer::from_metadata(&m).unwrap_err().to_string();
    assert!(e.contains("precompiled_charsmap") && e.contains("shorter than its trie"), "{e}");
}

/// Base64 of the fixture.
fn bytes(base64: &str) -> Vec<i64> {
    const ALPHABET: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = base64.chars().filter(|c| *c != '=').flat_map(|c| {
        let n = ALPHABET.find(c).unwrap();
        (0..6).rev().map(move |i| (n >> i & 1) as i64)
    });
    let bits: Vec<i64> = bits.collect();
    bits.chunks_exact(8).map(|b| b.iter().fold(0, |n, bit| n << 1 | bit)).collect()
}

/// Phi-3's special tokens take the white space behind them, and two spaces may be one token.
#[test]
fn white_space_around_added_tokens_of_sentencepiece() {
    let tokens = ["<unk>", "<s>", "</s>", "▁", "a", "▁a", "▁▁", "<|user|>", "<|endoftext|>", "\n", "<0x0A>"];
    let keys = |m: &mut Metadata| {
        m.insert("tokenizer.ggml.model", text("llama"));
        m.insert("tokenizer.ggml.tokens", Value::Strs(tokens.map(String::from).to_vec()));
        m.insert("tokenizer.ggml.token_type", Value::Ints(vec![2, 3, 3, 1, 1, 1, 4, 3, 3, 1, 6]));
        m.insert("tokenizer.ggml.scores", Value::Floats((0..tokens.len()).map(|i| -(i as f64)).collect()));
        m.insert("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    };
    let mut m = Metadata::new("tiny.gguf");
    keys(&mut m);
    let t = Tokenizer::from_metadata(&m).unwrap();
    assert_eq!(
        t.encode("<|user|>\n a<|endoftext|>\na  a", Special::Parse).unwrap(),
        [7, 9, 5, 8, 9, 4, 6, 4]
    );
    assert_eq!(decode(&t, &[4, 6, 4], ControlTokens::Hide), "a  a");
    m.insert("general.architecture", text("phi3"));
    let t = Tokenizer::from_metadata(&m).unwrap();
    assert_eq!(t.encode("<|user|>\n a<|endoftext|>\na", Special::Parse).unwrap(), [7, 4, 8, 9, 4]);
}

/// GLM puts two tokens before a document.
#[test]
fn a_document_may_begin_with_several_tokens() {
    let mut file = fixture()["gemma"]["json"].clone();
    file["post_processor"]["single"] =
        json!([{"SpecialToken": {"id": "g", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
    file["post_processor"]["pair"] = json!([]);
    file["post_processor"]["special_tokens"] =
        json!({"g": {"id": "g", "ids": [2, 1], "tokens": ["[gMASK]", "<sop>"]}});
    assert_eq!(from_json(&file).prefix(), [2, 1]);
    let mut m = Metadata::new("checkpoint");
    m.insert(HUGGING_FACE_KEY, Value::Str(file.to_string()));
    m.insert("tokenizer.ggml.add_bos_token", Value::Bool(false));
    assert!(Tokenizer::from_metadata(&m).unwrap().prefix().is_empty());
    file["post_processor"]["special_tokens"]["g"]["ids"] = json!([999]);
    m.insert(HUGGING_FACE_KEY, Value::Str(file.to_string()));
    let e = Tokenizer::from_metadata(&m).unwrap_err().to_string();
    assert!(e.contains("puts token 999 around texts"), "{e}");
}

/// What ends an answer, by the control tokens of each family (from their generation_config.json or llama.cpp's list).
#[test]
fn ends_of_answers_by_family() {
    for (control, ends) in [
        ("<|im_start|> <|im_end|> <|endoftext|>", "<|im_end|> <|endoftext|>"),
        ("<|start|> <|end|> <|return|> <|call|> <|channel|>", "<|return|> <|call|>"),
        ("<|begin|> <|end|> <|flush|> <|calls|>", "<|flush|> <|calls|>"),
        ("<|user|> <|assistant|> <|end|>", "<|end|>"),
        (
            "[gMASK] <sop> <|endoftext|> <|user|> <|assistant|> <|observation|>",
            "<|endoftext|> <|user|> <|observation|>",
        ),
        ("<bos> <|turn> <turn|> <|tool_response>", "<turn|> <|tool_response>"),
        ("<start_of_turn> <end_of_turn>", "<end_of_turn>"),
        ("<|header_start|> <|eot|> <|eom|> <|end_of_text|>", "<|eot|> <|eom|> <|end_of_text|>"),
        ("[BOS] [EOS] [EOT] <|im_user|> <|im_end|>", "[EOS] [EOT] <|im_end|>"),
        ("<|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
        ("[|system|] [|endofturn|]", "[|endofturn|]"),
        ("<role> <|role_end|> <|endoftext|>", "<|role_end|> <|endoftext|>"),
        ("]~b] [e~[", "[e~["),
        ("<s> </s> [INST]", "</s>"),
        ("<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    ] {
        let control: Vec<&str> = control.split(' ').collect();
        let t = gguf(vec![
            ("model", text("gpt2")),
            ("pre", text("gpt-2")),
            ("tokens", Value::Strs(control.iter().map(|t| t.to_string()).collect())),
            ("token_type", Value::Ints(vec![3; control.len()])),
            ("merges", Value::Strs(Vec::new())),
        ]);
        let found: Vec<&str> = t.eos_ids().iter().filter_map(|&id| t.token_text(id)).collect();
        assert_eq!(found.join(" "), ends, "{control:?}");
    }
}
