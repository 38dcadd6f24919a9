//! OpenAI's completions and embeddings towards clients.

use crate::common::*;
use octet_api::core::*;
use octet_api::openai::completions::{CompletionWriter, parse, response};
use octet_api::openai::embeddings;
use proptest::prelude::*;
use serde_json::{Value, json};

fn parsed(fields: Value) -> Result<GenerateRequest, octet_api::ApiError> {
    let mut body = json!({"model": "m", "prompt": "Once"});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    parse(body.to_string().as_bytes())
}

#[track_caller]
fn refused(fields: Value, param: &str, message: &str) {
    let e = parsed(fields).unwrap_err();
    assert_eq!(e.param.as_deref(), Some(param), "{e}");
    assert!(e.message.contains(message), "{e}");
}

#[test]
fn prompts_are_texts_or_tokens() {
    for (prompt, expected) in [
        (json!("a"), vec![Prompt::Text("a".into())]),
        (json!(["a", ""]), vec![Prompt::Text("a".into()), Prompt::Text(String::new())]),
        (json!([1, 2]), vec![Prompt::Tokens(vec![1, 2])]),
        (json!([[1], [2, 3]]), vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])]),
        // As llama-server takes them.
        (json!([1, "a"]), vec![Prompt::Mixed(vec![PromptPart::Token(1), PromptPart::Text("a".into())])]),
        (json!(["a", [2]]), vec![Prompt::Text("a".into()), Prompt::Tokens(vec![2])]),
        (json!({"prompt_string": "a"}), vec![Prompt::Text("a".into())]),
        (
            json!(["a", {"content": [{"type": "text", "text": "b "}, {"type": "text", "text": "c"}]}]),
            vec![Prompt::Text("a".into()), Prompt::Text("b c".into())],
        ),
    ] {
        let r = parsed(json!({"prompt": prompt})).unwrap();
        assert_eq!(r.input, Input::Completion(Completion { prompts: expected, echo: false, infill: None }));
    }
    refused(json!({"prompt": []}), "prompt", "at least one prompt");
    refused(json!({"prompt": [[]]}), "prompt[0]", "at least one token id");
    refused(json!({"prompt": [1, true]}), "prompt[1]", "a whole number");
    refused(json!({"prompt": {"content": "a"}}), "prompt.content", "an array");
    let image = json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]);
    refused(json!({"prompt": {"content": image}}), "prompt.content[0].type", "text");
    refused(json!({"prompt": [-1]}), "prompt[0]", "a whole number");
    refused(json!({"prompt": {"a": 1}}), "prompt.prompt_string", "is missing");
    refused(json!({"prompt": 1}), "prompt", "an array of token ids");
    refused(json!({"prompt": vec!["a"; 2049]}), "prompt", "at most 2048");
}

#[test]
fn errors_name_the_field() {
    assert_eq!(parsed(json!({})).unwrap().max_tokens, Some(16), "this dialect's own default");
    assert_eq!(parsed(json!({"max_tokens": -1})).unwrap().max_tokens, None);
    assert_eq!(parsed(json!({"max_tokens": 0, "echo": true})).unwrap().max_tokens, Some(0));
    refused(json!({"max_tokens": 0}), "max_tokens", "only with 'echo'");
    refused(json!({"suffix": 1}), "suffix", "a string");
    refused(json!({"messages": [{}]}), "messages", "/v1/chat/completions");
    refused(json!({"logprobs": true}), "logprobs", "a whole number from 0 to 20");
    refused(json!({"best_of": 3, "n": 2}), "best_of", "Leave it out or send 2");
    assert_eq!(parsed(json!({"best_of": 2, "n": 2, "suffix": ""})).unwrap().n, 2);
}

fn token(text: &[u8], logprob: Option<f32>, top: &[(&[u8], f32)]) -> TokenLogprob {
    let name = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    TokenLogprob {
        id: None,
        token: name(text),
        bytes: text.to_vec(),
        logprob,
        top: top
            .iter()
            .map(|(b, l)| TopLogprob { id: None, token: name(b), bytes: b.to_vec(), logprob: *l })
            .collect(),
    }
}

/// A prompt of three tokens, one of them half a character, that is given back with one token more.
fn echoed() -> Vec<Event> {
    vec![
        started(),
        Event::Logprobs { choice: 0, tokens: vec![token(b"a", None, &[])] },
        text("a"),
        Event::Logprobs {
            choice: 0,
            tokens: vec![
                token(b"\xc3", Some(-3.0), &[(b"b", -0.5)]),
                token(b"\xa9", Some(-0.25), &[(b"\xa9", -0.25)]),
            ],
        },
        text("é"),
        Event::Logprobs { choice: 0, tokens: vec![token(b" c", Some(-1.0), &[(b" c", -1.0), (b"d", -2.0)])] },
        text(" c"),
        finished(FinishReason::Length),
        Event::Usage(usage()),
        Event::Timings(timings()),
    ]
}

fn logprobs() -> Value {
    json!({
        "text_offset": [0, 1, 2, 2],
        "token_logprobs": [null, -3.0, -0.25, -1.0],
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9", " c"],
        "top_logprobs": [null, {"b": -0.5, "bytes:\\xc3": -3.0}, {"bytes:\\xa9": -0.25}, {" c": -1.0, "d": -2.0}],
    })
}

#[test]
fn log_probabilities_cover_the_prompt_as_lm_eval_reads_them() {
    let r = parsed(json!({"prompt": [1, 2, 3], "echo": true, "logprobs": 1, "max_tokens": 1})).unwrap();
    let v: Value = serde_json::from_slice(&response(&r, &Answer::from_events(&echoed()))).unwrap();
    let choice = &v["choices"][0];
    assert_eq!((&v["object"], &v["id"]), (&json!("text_completion"), &json!("cmpl-abc")));
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("aé c"), &json!("length")));
    assert_eq!(choice["logprobs"], logprobs());
    // Its sum over a continuation of two tokens behind a context of one, without the token that was generated; and whether
    // each was the most probable one.
    let l = &choice["logprobs"];
    let continuation = 1..3;
    let sum: f64 = continuation.clone().map(|i| l["token_logprobs"][i].as_f64().unwrap()).sum();
    assert_eq!(sum, -3.25);
    let greedy = continuation.map(|i| {
        let top = l["top_logprobs"][i].as_object().unwrap();
        let best = top.iter().max_by(|a, b| a.1.as_f64().unwrap().total_cmp(&b.1.as_f64().unwrap())).unwrap();
        *best.0 == l["tokens"][i]
    });
    assert_eq!(greedy.collect::<Vec<_>>(), [false, true]);
}

#[test]
fn a_stream_says_the_same() {
    let r =
        parsed(json!({"logprobs": 1, "stream": true, "stream_options": {"include_usage": true}})).unwrap();
    let stream = write(CompletionWriter::new(&r), &echoed());
    assert!(stream.ends_with("data: [DONE]\n\n"));
    let chunks = data(&stream);
    let mut all = json!({"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []});
    let mut said = String::new();
    for choice in chunks.iter().filter_map(|c| c["choices"].get(0)) {
        said += choice["text"].as_str().unwrap();
        for (name, list) in all.as_object_mut().unwrap() {
            list.as_array_mut()
                .unwrap()
                .extend(choice["logprobs"][name].as_array().cloned().unwrap_or_default());
        }
    }
    assert_eq!((said.as_str(), all), ("aé c", logprobs()));
    let last = &chunks[chunks.len() - 1];
    assert_eq!((&last["choices"], &last["usage"]["total_tokens"]), (&json!([]), &json!(19)));
    assert!(chunks[..chunks.len() - 1].iter().all(|c| c.get("usage").is_none()));
    assert_eq!(chunks[chunks.len() - 2]["choices"][0]["finish_reason"], "length");
    let r = parsed(json!({"stream": true})).unwrap();
    let stream = write(CompletionWriter::new(&r), &echoed());
    assert!(!stream.contains("usage") && !stream.contains("token_logprobs"));
    assert_eq!(data(&stream).last().unwrap()["timings"]["predicted_n"], 7);
    assert!(
        write(CompletionWriter::new(&r), &[started(), text("a")]).contains("ended before it was complete")
    );
}

proptest! {
    #[test]
    fn streams_and_whole_answers_agree(a in prop::collection::vec(any_text(), 0..5), b in prop::collection::vec(any_text(), 0..5)) {
        let mut events = vec![started()];
        for (i, texts) in [&a, &b].into_iter().enumerate() {
            let choice = i as u32;
            events.extend(texts.iter().map(|t| Event::Text { choice, text: t.clone() }));
            events.push(Event::Finished { choice, reason: FinishReason::Stop });
        }
        let r = request();
        let whole: Value = serde_json::from_slice(&response(&r, &Answer::from_events(&events))).unwrap();
        let mut texts = [String::new(), String::new()];
        for c in data(&write(CompletionWriter::new(&r), &events)).iter().filter_map(|c| c["choices"].get(0)) {
            texts[c["index"].as_u64().unwrap() as usize] += c["text"].as_str().unwrap();
        }
        prop_assert_eq!(&texts, &[a.concat(), b.concat()]);
        prop_assert_eq!(&texts[1], whole["choices"][1]["text"].as_str().unwrap());
    }
}

#[test]
fn vectors_have_the_requested_encoding() {
    let parsed = |fields: Value| {
        let mut body = json!({"model": "m", "input": "a"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        embeddings::parse(body.to_string().as_bytes())
    };
    let e = Embeddings {
        model: "m".into(),
        id: "1".into(),
        vectors: vec![vec![1.0, -0.5]],
        prompt_tokens: 3,
        ..Embeddings::default()
    };
    let v: Value = serde_json::from_slice(&embeddings::response(&parsed(json!({})).unwrap(), &e)).unwrap();
    assert_eq!(
        v,
        json!({"id": "embd-1", "object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [1.0, -0.5]}], "model": "m",
            "usage": {"prompt_tokens": 3, "total_tokens": 3}})
    );
    let r = parsed(json!({"encoding_format": "base64", "input": [[1, 2]]})).unwrap();
    assert_eq!(r.inputs, [Prompt::Tokens(vec![1, 2])]);
    let v: Value = serde_json::from_slice(&embeddings::response(&r, &e)).unwrap();
    // Python: base64.b64encode(struct.pack('<2f', 1, -0.5))
    assert_eq!(v["data"][0]["embedding"], "AACAPwAAAL8=");
    for (fields, param) in [
        (json!({"input": ""}), "input"),
        (json!({"input": ["a", ""]}), "input"),
        (json!({"input": [{"content": []}]}), "input"),
        (json!({"encoding_format": "int8"}), "encoding_format"),
        (json!({"dimensions": 0}), "dimensions"),
        (json!({"input": []}), "input"),
        (json!({"truncate_prompt_tokens": 5}), "truncate_prompt_tokens"),
    ] {
        assert_eq!(parsed(fields).unwrap_err().param.as_deref(), Some(param));
    }
}
