//! Tiny encoders with weights that follow from their tensors' names, and what transformers computes for some texts:
//! `fixtures/encoders/encoders.py` made the numbers.

use std::collections::BTreeMap;

use bytes::Bytes;
use octet_weights::hf;
use serde_json::{Map, Value as Json, json};

/// Values in [-1, 1): splitmix64 of FNV-1a of the name, plus the place.
pub fn values(name: &str, count: usize) -> impl Iterator<Item = f32> {
    let hash = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
    (0..count as u64).map(move |i| {
        let mut z = seed.wrapping_add(i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z >> 40) as f32 / 8_388_608.0 - 1.0
    })
}

pub fn cases() -> Vec<Json> {
    serde_json::from_str(include_str!("../../fixtures/encoders/encoders.json")).expect("JSON")
}

pub fn text(json: &Json) -> &str {
    json.as_str().expect("a text")
}

pub fn numbers(json: &Json) -> Vec<f64> {
    json.as_array().expect("an array").iter().map(|x| x.as_f64().expect("a number")).collect()
}

/// A safetensors file of these tensors, each with the name that its values follow from.
fn safetensors(tensors: &[(String, String, Vec<usize>)], around_zero: bool) -> Bytes {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, origin, shape) in tensors {
        let start = data.len();
        let base = match shape.len() == 1 && name.ends_with(".weight") {
            true if around_zero => 0.0,
            true => 1.0,
            false => 0.0,
        };
        values(origin, shape.iter().product()).for_each(|x| data.extend((base + x / 4.0).to_le_bytes()));
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    let header = Json::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat().into()
}

/// The files of a case's checkpoint, as sentence-transformers has them.
pub fn files(case: &Json) -> BTreeMap<String, Bytes> {
    let json = |v: &Json| Bytes::from(v.to_string());
    let shape = |s: &Json| numbers(s).into_iter().map(|d| d as usize).collect();
    let tensors: Vec<_> = case["tensors"].as_object().expect("an object").iter().collect();
    let tensors: Vec<_> = tensors.into_iter().map(|(n, s)| (n.clone(), n.clone(), shape(s))).collect();
    let is_gemma = text(&case["config"]["model_type"]).starts_with("gemma");
    let mut files = BTreeMap::from([
        ("config.json".to_string(), json(&case["config"])),
        ("model.safetensors".to_string(), safetensors(&tensors, is_gemma)),
    ]);
    let vocab: Map<String, Json> = (0..64).map(|id| (format!("w{id}"), json!(id))).collect();
    let tokenizer = json!({"model": {"type": "WordPiece", "vocab": vocab, "unk_token": "w0",
        "max_input_chars_per_word": 100}, "added_tokens": [], "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "cls": ["w3", 3], "sep": ["w4", 4]}});
    files.insert("tokenizer.json".into(), json(&tokenizer));
    let pooling = text(&case["pooling"]);
    if !pooling.is_empty() {
        let pooling = json!({"pooling_mode_cls_token": pooling == "cls", "pooling_mode_mean_tokens": pooling == "mean"});
        files.insert("1_Pooling/config.json".into(), json(&pooling));
    }
    let mut modules = vec![json!({"path": "", "type": "sentence_transformers.models.Transformer"})];
    modules.push(json!({"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}));
    let mut width = case["config"]["hidden_size"].as_u64().expect("a width") as usize;
    for (i, layer) in case["dense"].as_array().expect("layers").iter().enumerate() {
        let (rows, folder) = (layer[0].as_u64().expect("rows") as usize, format!("{}_Dense", i + 2));
        let tensor = ("linear.weight".to_string(), format!("{folder}.linear.weight"), vec![rows, width]);
        files.insert(format!("{folder}/model.safetensors"), safetensors(&[tensor], false));
        let act = json!({"activation_function": format!("torch.nn.modules.activation.{}", text(&layer[1]))});
        files.insert(format!("{folder}/config.json"), json(&act));
        modules.push(json!({"path": folder, "type": "sentence_transformers.models.Dense"}));
        width = rows;
    }
    files.insert("modules.json".into(), json(&Json::Array(modules)));
    files
}

pub fn open(case: &Json) -> octet_weights::Model {
    hf::from_files(text(&case["name"]), files(case)).expect("a checkpoint")
}

/// A text: ids, types if they are not all 0, and what transformers computes.
pub type Text = (Vec<u32>, Vec<u32>, Vec<f32>);

/// The texts of a case.
pub fn texts(case: &Json) -> Vec<Text> {
    let ids = |json: &Json| numbers(json).into_iter().map(|x| x as u32).collect::<Vec<_>>();
    let all = case["texts"].as_array().expect("texts").iter();
    all.map(|t| {
        let types = if t["types"].is_null() { Vec::new() } else { ids(&t["types"]) };
        (ids(&t["ids"]), types, numbers(&t["result"]).into_iter().map(|x| x as f32).collect())
    })
    .collect()
}
