//! Any bytes as a client's request for vectors in Ollama's dialect.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    match octet_api::ollama::embed::parse(data) {
        Ok(request) => assert!(!request.inputs.is_empty(), "there is something to turn into vectors"),
        Err(e) => assert!(e.message.len() < 2000, "an error quotes little: {}", e.message.len()),
    }
});
