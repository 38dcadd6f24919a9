//! Any bytes as the metadata of a GGUF file with a tokenizer: it is refused, or takes texts, and its tokens text.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use octet_engine::detokenizer::{ControlTokens, Detokenizer, decode};
use octet_engine::tokenizer::{Special, Tokenizer};

fuzz_target!(|data: &[u8]| {
    let Ok(file) = octet_weights::gguf::from_bytes("m.gguf", bytes::Bytes::copy_from_slice(data)) else {
        return;
    };
    let Ok(tokenizer) = Tokenizer::from_metadata(&file.metadata) else { return };
    let tokenizer = Arc::new(tokenizer);
    for special in [Special::Text, Special::Parse] {
        if let Ok(ids) = tokenizer.encode("the <s>\u{2581}\u{1f980} \n\tx", special) {
            assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_len()));
        }
    }
    let ids: Vec<u32> = (0..tokenizer.vocab_len().min(300) as u32).collect();
    let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer), ControlTokens::Show);
    let mut text: String = ids.iter().map(|&id| detokenizer.push(id).to_string()).collect();
    text.push_str(detokenizer.flush());
    assert_eq!(text, decode(&tokenizer, &ids, ControlTokens::Show));
});
