//! Any bytes as a tokenizer.json and, after a zero byte, a text: the tokenizer is refused, or takes the text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use octet_engine::tokenizer::{HUGGING_FACE_KEY, Special, Tokenizer};
use octet_weights::{Metadata, Value};

fuzz_target!(|data: &[u8]| {
    let mut pieces = data.splitn(2, |b| *b == 0).map(String::from_utf8_lossy);
    let (json, text) = (pieces.next().unwrap_or_default(), pieces.next().unwrap_or_default());
    let mut metadata = Metadata::new("tokenizer.json");
    metadata.insert(HUGGING_FACE_KEY, Value::Str(json.into_owned()));
    let Ok(tokenizer) = Tokenizer::from_metadata(&metadata) else { return };
    for special in [Special::Text, Special::Parse] {
        if let Ok(ids) = tokenizer.encode(&text, special) {
            assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_len()));
        }
    }
});
