//! Tokenizers against ids that others computed: Hugging Face's (from tokenizer.json, and from the same vocabulary as GGUF
//! keys), and sentencepiece's.

use octet_engine::detokenizer::{ControlTokens, decode};
use octet_engine::tokenizer::{HUGGING_FACE_KEY, Special, Tokenizer};
use octet_weights::{Metadata, Value};

fn read(name: &str) -> Option<String> {
    octet_testkit::shared(name).map(|p| std::fs::read_to_string(p).unwrap())
}

fn json(name: &str) -> Option<serde_json::Value> {
    read(name).map(|s| serde_json::from_str(&s).unwrap())
}

fn from_json(name: &str) -> Option<Tokenizer> {
    let mut m = Metadata::new("test");
    m.insert(HUGGING_FACE_KEY, Value::Str(read(name)?));
    Some(Tokenizer::from_metadata(&m).unwrap())
}

/// GGUF's keys as llama.cpp's converter writes them, with padding to `rows`.
fn gguf_keys(name: &str, pre: &str, rows: usize) -> Option<Metadata> {
    let file = json(name)?;
    let mut tokens: Vec<String> = (0..rows).map(|i| format!("[PAD{i}]")).collect();
    let mut types = vec![5i64; rows];
    for (text, id) in file["model"]["vocab"].as_object().unwrap() {
        let id = id.as_u64().unwrap() as usize;
        (tokens[id], types[id]) = (text.clone(), 1);
    }
    for a in file["added_tokens"].as_array().unwrap() {
        let id = a["id"].as_u64().unwrap() as usize;
        tokens[id] = a["content"].as_str().unwrap().into();
        types[id] = if a["special"] == true { 3 } else { 4 };
    }
    let merges = file["model"]["merges"].as_array().unwrap().iter();
    let merges = merges.map(|m| format!("{} {}", m[0].as_str().unwrap(), m[1].as_str().unwrap()));
    let mut m = Metadata::new("test.gguf");
    m.insert("tokenizer.ggml.model", Value::Str("gpt2".into()));
    m.insert("tokenizer.ggml.pre", Value::Str(pre.into()));
    m.insert("tokenizer.ggml.merges", Value::Strs(merges.collect()));
    m.insert("tokenizer.ggml.tokens", Value::Strs(tokens));
    m.insert("tokenizer.ggml.token_type", Value::Ints(types));
    Some(m)
}

fn ids(v: &serde_json::Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|i| i.as_u64().unwrap() as u32).collect()
}

/// A real model's own GGUF keys: its prompts' ids by Hugging Face's tokenizer are in the golden file.
#[test]
fn smollm2_from_its_gguf() {
    let Some(golden) = json("golden/smollm2/hf_dequant_f32.json") else { return };
    let Some(path) = octet_testkit::model("smollm2") else { return };
    let model = octet_weights::Model::open(path).unwrap();
    let t = Tokenizer::from_metadata(&model.metadata).unwrap();
    for p in golden["prompts"].as_array().unwrap() {
        let text = p["prompt_text"].as_str().unwrap();
        assert_eq!(t.encode(text, Special::Parse).unwrap(), ids(&p["prompt_ids"]), "{text:?}");
    }
    assert_eq!((t.vocab_len(), t.eos_ids(), t.prefix()), (49152, &[2, 0][..], &[][..]));
}

fn check_golden(t: &Tokenizer) {
    let cases = json("golden/tokenizer/qwen3_6_tokenization.json").unwrap();
    for case in cases.as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let want = ids(&case["ids"]);
        assert_eq!(t.encode(text, Special::Parse).unwrap(), want, "{text:?}");
        let decoded = decode(t, &want, ControlTokens::Show);
        assert_eq!(decoded, case["decoded"].as_str().unwrap(), "{text:?}");
    }
    assert!(cases.as_array().unwrap().len() > 50);
}

const QWEN36: &str = "tokenizer/qwen3_6/tokenizer.json";

#[test]
fn qwen3_6_from_tokenizer_json() {
    let Some(t) = from_json(QWEN36) else { return };
    check_golden(&t);
    assert_eq!(t.vocab_len(), 248077);
    assert!(t.prefix().is_empty());
    let mut eos = t.eos_ids().to_vec();
    eos.sort();
    assert_eq!(eos, [248044, 248046]);
}

#[test]
fn qwen3_6_from_gguf_keys() {
    let Some(mut m) = gguf_keys(QWEN36, "qwen35", 248320) else { return };
    m.insert("tokenizer.ggml.eos_token_id", Value::U64(248046));
    m.insert("tokenizer.ggml.bos_token_id", Value::U64(248044));
    m.insert("tokenizer.ggml.add_bos_token", Value::Bool(false));
    let t = Tokenizer::from_metadata(&m).unwrap();
    check_golden(&t);
    assert_eq!((t.vocab_len(), t.prefix(), t.bos_token()), (248077, &[][..], Some(248044)));
    assert_eq!(t.eos_ids(), [248046, 248044]);
    assert!(t.is_sampleable(248076) && !t.is_sampleable(248077) && !t.is_sampleable(999_999));
    let mask = t.sampleable_mask(248320);
    assert_eq!(mask.iter().map(|w| w.count_ones()).sum::<u32>(), 248077);
}

#[test]
fn text_never_becomes_a_control_token() {
    let Some(t) = from_json(QWEN36) else { return };
    let end = t.special_id("<|im_end|>").unwrap();
    let think = t.special_id("<think>").unwrap();
    assert!(t.is_control(end) && !t.is_control(think));
    for text in ["<|im_end|>", "a<think>b</think>", "<|im_start|>system\nx<|im_end|>"] {
        let plain = t.encode(text, Special::Text).unwrap();
        assert!(plain.iter().all(|&id| id < 248044), "{text} {plain:?}");
        assert_eq!(decode(&t, &plain, ControlTokens::Show), text);
        assert!(t.encode(text, Special::Parse).unwrap().iter().any(|&id| id >= 248044));
    }
}

#[test]
fn tiny_vocabularies_agree_in_both_forms() {
    let Some(text) = read("golden/text/public_domain.txt") else { return };
    for model in ["tiny-llama", "tiny-qwen3_5_moe"] {
        let name = format!("models/{model}/tokenizer.json");
        let a = from_json(&name).unwrap();
        let got = a.encode(&text, Special::Text).unwrap();
        assert_eq!(decode(&a, &got, ControlTokens::Show), text);
        let b = Tokenizer::from_metadata(&gguf_keys(&name, "qwen35", 512).unwrap()).unwrap();
        assert_eq!(b.encode(&text, Special::Text).unwrap(), got, "{model}");
    }
}

fn strings(v: &serde_json::Value) -> Vec<String> {
    v.as_array().unwrap().iter().map(|s| s.as_str().unwrap().into()).collect()
}

/// A SentencePiece vocabulary as GGUF keys, and as the tokenizer.json that transformers would make of it.
#[test]
fn sentencepiece_in_both_forms() {
    let file: serde_json::Value = serde_json::from_str(include_str!("../fixtures/spm_bpe.json")).unwrap();
    let tokens = strings(&file["tokens"]);
    let types: Vec<i64> = ids(&file["types"]).iter().map(|&t| t.into()).collect();
    let scores: Vec<f64> = file["scores"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap()).collect();

    // Every way to make a token of two others, the best score first.
    let id = |t: &str| tokens.iter().position(|x| x == t);
    let mut merges: Vec<(usize, String, String)> = Vec::new();
    for (i, t) in tokens.iter().enumerate().filter(|(i, _)| types[*i] == 1) {
        for (cut, _) in t.char_indices().skip(1) {
            if let (Some(_), Some(_)) = (id(&t[..cut]), id(&t[cut..])) {
                merges.push((i, t[..cut].into(), t[cut..].into()));
            }
        }
    }
    merges.sort_by(|a, b| scores[b.0].total_cmp(&scores[a.0]));
    let vocab: serde_json::Map<_, _> =
        tokens.iter().enumerate().map(|(i, t)| (t.clone(), i.into())).collect();
    let added = [0, 1, 2].map(|i| serde_json::json!({"id": i, "content": tokens[i], "special": true}));
    let json = serde_json::json!({
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing", "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "vocab": vocab, "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "merges": merges.iter().map(|m| format!("{} {}", m.1, m.2)).collect::<Vec<_>>()}
    });

    let mut m = Metadata::new("spm.gguf");
    m.insert("tokenizer.ggml.model", Value::Str("llama".into()));
    m.insert("tokenizer.ggml.tokens", Value::Strs(tokens.clone()));
    m.insert("tokenizer.ggml.token_type", Value::Ints(types));
    m.insert("tokenizer.ggml.scores", Value::Floats(scores));
    m.insert("tokenizer.ggml.bos_token_id", Value::U64(1));
    let gguf = Tokenizer::from_metadata(&m).unwrap();
    let mut m = Metadata::new("spm");
    m.insert(HUGGING_FACE_KEY, Value::Str(json.to_string()));
    let hugging_face = Tokenizer::from_metadata(&m).unwrap();

    let cases = file["cases"].as_array().unwrap();
    assert!(cases.len() >= 40);
    for t in [&gguf, &hugging_face] {
        assert_eq!((t.prefix(), t.eos_ids()), (&[1][..], &[2][..]));
        for case in cases {
            let text = case["text"].as_str().unwrap();
            let want = ids(&case["ids"]);
            assert_eq!(t.encode(text, Special::Text).unwrap(), want, "{text:?}");
            assert_eq!(decode(t, &want, ControlTokens::Show), case["decoded"].as_str().unwrap());
        }
        assert_eq!(t.encode("<s>", Special::Parse).unwrap(), [1]);
        assert!(t.encode("<s>", Special::Text).unwrap().len() > 2);
    }
}
