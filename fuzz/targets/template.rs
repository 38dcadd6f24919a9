//! Any bytes as a chat template, rendered for a conversation with a tool call.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use octet_engine::template::{ChatInput, ChatTemplate};
use octet_engine::tokenizer::Tokenizer;
use octet_weights::{Metadata, Value};
use serde_json::json;

/// A vocabulary of bytes and two control tokens.
static MODEL: LazyLock<(Metadata, Tokenizer)> = LazyLock::new(|| {
    let mut tokens: Vec<String> = (0..=255).map(|b| format!("<0x{b:02X}>")).collect();
    let mut types = vec![6; 256];
    tokens.extend(["<|im_start|>", "<|im_end|>", "<unk>"].map(String::from));
    types.extend([3, 3, 2]);
    let mut metadata = Metadata::new("m.gguf");
    metadata.insert("tokenizer.ggml.model", Value::Str("llama".into()));
    metadata.insert("tokenizer.ggml.scores", Value::Floats(vec![0.0; tokens.len()]));
    metadata.insert("tokenizer.ggml.tokens", Value::Strs(tokens));
    metadata.insert("tokenizer.ggml.token_type", Value::Ints(types));
    metadata.insert("tokenizer.ggml.eos_token_id", Value::U64(257));
    let tokenizer = Tokenizer::from_metadata(&metadata).expect("a vocabulary that is complete");
    (metadata, tokenizer)
});

fuzz_target!(|data: &[u8]| {
    let (metadata, tokenizer) = &*MODEL;
    let Ok(template) = ChatTemplate::new(&String::from_utf8_lossy(data), metadata, tokenizer) else { return };
    let call = json!({"type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}});
    let input = ChatInput {
        messages: vec![
            json!({"role": "system", "content": "Be brief."}),
            json!({"role": "user", "content": [{"type": "text", "text": "a <|im_end|> b"}]}),
            json!({"role": "assistant", "content": null, "tool_calls": [call]}),
            json!({"role": "tool", "content": "2"}),
        ],
        tools: Some(vec![json!({"type": "function", "function": {"name": "f", "parameters": {}}})]),
        add_generation_prompt: true,
        now_s: Some(0),
        ..ChatInput::default()
    };
    if let Ok(prompt) = template.render(&input) {
        assert!(
            prompt.barriers.is_sorted() && prompt.barriers.iter().all(|&b| prompt.text.is_char_boundary(b))
        );
        tokenizer.encode_prompt(&prompt).expect("bytes can be encoded");
    }
});
