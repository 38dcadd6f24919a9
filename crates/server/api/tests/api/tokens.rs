//! `/tokenize`, `/detokenize`, `/apply-template`.

use octet_api::core::Input;
use octet_api::tokens::{Detokenize, Text, Tokenize, apply_template, detokenize, tokenize};
use serde_json::json;

#[track_caller]
fn refused<T: std::fmt::Debug>(
    read: fn(&[u8], &str) -> Result<T, octet_api::ApiError>,
    body: &str,
    param: Option<&str>,
) {
    let e = read(body.as_bytes(), "m").expect_err(body);
    assert_eq!(e.param.as_deref(), param, "{body}: {e}");
}

#[test]
fn both_names_are_taken_and_the_model_may_be_left_out() {
    let text = Text {
        model: "m".into(),
        content: "hi".into(),
        add_special: false,
        parse_special: true,
        with_pieces: false,
        warnings: Vec::new(),
    };
    let ours = tokenize(br#"{"content": "hi"}"#, "m").unwrap();
    assert_eq!(ours, Tokenize::Text(text.clone()));
    let body = json!({"model": "q", "prompt": "hi", "add_special_tokens": true, "return_token_strs": true, "parse_special": false});
    let theirs = tokenize(body.to_string().as_bytes(), "m").unwrap();
    let told = Text { model: "q".into(), add_special: true, parse_special: false, with_pieces: true, ..text };
    assert_eq!(theirs, Tokenize::Text(told));
    let chat = br#"{"messages": [{"role": "user", "content": "Hi"}], "model": null}"#;
    let Tokenize::Chat(r) = tokenize(chat, "m").unwrap() else { panic!() };
    assert_eq!(r.model, "m");
    assert!(matches!(apply_template(chat, "m").unwrap().input, Input::Chat(c) if c.messages.len() == 1));
    let ends = |fields: &str| {
        let body = format!(r#"{{"messages": [{{"role": "assistant", "content": "Hi"}}], {fields}}}"#);
        let Input::Chat(chat) = apply_template(body.as_bytes(), "m").unwrap().input else { panic!() };
        chat.no_answer || chat.continue_final
    };
    assert!(ends(r#""add_generation_prompt": false"#));
    assert!(ends(r#""continue_final_message": true, "add_generation_prompt": false"#));
    assert!(!ends(r#""add_generation_prompt": true"#) && !ends(r#""add_generation_prompt": null"#));
    let tokens = detokenize(br#"{"tokens": [1, 2]}"#, "m").unwrap();
    assert_eq!(tokens, Detokenize { model: "m".into(), tokens: vec![1, 2], warnings: Vec::new() });
}

#[test]
fn errors_name_the_field() {
    refused(tokenize, r#"["m", "hi", false, true, false]"#, None);
    refused(detokenize, r#"["m", [1]]"#, None);
    refused(apply_template, "[]", None);
    refused(tokenize, "{}", Some("content"));
    refused(tokenize, r#"{"content": 5}"#, Some("content"));
    refused(tokenize, r#"{"content": "a", "prompt": "b"}"#, Some("prompt"));
    refused(tokenize, r#"{"content": "a", "with_pieces": 1}"#, Some("with_pieces"));
    refused(tokenize, r#"{"content": "a", "text": "b"}"#, Some("text"));
    refused(tokenize, r#"{"content": "a", "content": "b"}"#, Some("content"));
    refused(tokenize, r#"{"content": "a", "model": ""}"#, Some("model"));
    refused(detokenize, "{}", Some("tokens"));
    refused(detokenize, r#"{"tokens": [1, -1]}"#, Some("tokens[1]"));
    refused(detokenize, r#"{"tokens": 1}"#, Some("tokens"));
    refused(apply_template, "{}", Some("messages"));
    refused(apply_template, r#"{"messages": [], "add_generation_prompt": 1}"#, Some("add_generation_prompt"));
}
