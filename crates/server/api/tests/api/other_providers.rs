//! Ollama's and Gemini's dialects towards providers: what our own server writes in Ollama's is read back the same, and any bytes
//! are harmless.

use crate::common::*;
use octet_api::anthropic;
use octet_api::core::*;
use octet_api::gemini::{self, ContentReader};
use octet_api::ollama::{self, LineReader};
use octet_api::openai::embeddings;
use proptest::prelude::*;

/// An answer as Ollama's dialect can have it: no end by a stop text, arguments written anew, calls at the end of their choice.
fn plain(events: Vec<Event>) -> Answer {
    let mut answer = Answer::from_events(&events);
    for choice in &mut answer.choices {
        choice.blocks.retain(|b| {
            !matches!(b, Block::Text(t) if t.is_empty())
                && !matches!(b, Block::Reasoning { text, .. } if text.is_empty())
        });
        if matches!(choice.finish, Some(FinishReason::StopSequence(_))) {
            choice.finish = Some(FinishReason::Stop);
        }
    }
    answer.id.clear();
    answer
}

/// Calls whose arguments are objects in the dialect, not text.
#[test]
fn numbers_in_calls_keep_their_digits() {
    let arguments = r#"{"id":123456789012345678901234567890,"most":1e400,"least":0.1000000000000000055}"#;
    let end = finished(FinishReason::ToolCalls);
    let all = script(Event::tool_call(0, 0, "call_1", "f", arguments).into_iter().chain([end]));
    let (request, answer) = (request(), Answer::from_events(&all));
    for whole in [
        anthropic::messages::response(&request, &answer),
        gemini::response(&request, &answer),
        ollama::chat::response(&request, &answer),
    ] {
        let whole = String::from_utf8(whole).unwrap();
        assert!(whole.contains(arguments), "{whole}");
    }
    let stream = write(ollama::chat::writer(&request), &all);
    assert!(stream.contains(arguments), "{stream}");
    let back = Answer::from_events(&read(LineReader::new(), stream.as_bytes(), 7));
    let call = back.choices[0].tool_calls().next().expect("a call");
    assert!(format!("{call:?}").contains("123456789012345678901234567890"), "{call:?}");
}

proptest! {
    #[test]
    fn answers_round_trip_through_ollama(choice in any_choice(0), piece in 1usize..50) {
        let all = script(choice);
        let expected = plain(all.clone());
        let stream = write(ollama::chat::writer(&request()), &all);
        let got = plain(read(LineReader::new(), stream.as_bytes(), piece));
        prop_assert_eq!(&got.choices, &expected.choices);
        prop_assert_eq!((&got.model, got.created_s), (&expected.model, expected.created_s));
        let counts = |a: &Answer| a.usage.map(|u| (u.prompt_tokens, u.completion_tokens));
        prop_assert_eq!(counts(&got), counts(&expected));
        let times = |a: &Answer| a.timings.map(|t| (t.prompt_ms, t.predicted_ms, t.total_ms));
        prop_assert_eq!(times(&got), times(&expected));
        // A whole answer has its texts in one piece.
        let whole = ollama::chat::events(&ollama::chat::response(&request(), &Answer::from_events(&all))).unwrap();
        let (got, expected) = (&plain(whole).choices[0], &expected.choices[0]);
        prop_assert_eq!((got.text(), got.reasoning()), (expected.text(), expected.reasoning()));
        prop_assert_eq!(got.tool_calls().collect::<Vec<_>>(), expected.tool_calls().collect::<Vec<_>>());
        prop_assert_eq!(&got.finish, &expected.finish);
    }

    #[test]
    fn any_stream_is_harmless(bytes in prop::collection::vec(any::<u8>(), 0..300), piece in 1usize..50) {
        error(&read(ContentReader::new(), &bytes, piece));
        error(&read(LineReader::new(), &bytes, piece));
        prop_assert!(gemini::events(&bytes).is_err() && ollama::chat::events(&bytes).is_err());
    }

    #[test]
    fn vectors_round_trip(vectors in prop::collection::vec(prop::collection::vec(-1e3f32..1e3, 3), 1..4), base64: bool) {
        let request = EmbedRequest {
            model: "m".into(),
            inputs: vec![Prompt::Text("a".into()); vectors.len()],
            dimensions: None,
            encoding: if base64 { VectorEncoding::Base64 } else { VectorEncoding::Float },
            truncate: false,
            timeout: None,
            keep_alive: None,
            context_length: None,
            user: None,
            extra: serde_json::Map::new(),
            warnings: Vec::new(),
            memory: MemoryHandle::default(),
        };
        let answer = Embeddings { model: "m".into(), vectors, prompt_tokens: 5, ..Embeddings::default() };
        prop_assert_eq!(&embeddings::read(&embeddings::response(&request, &answer)).unwrap(), &answer);
        prop_assert_eq!(&ollama::embed::read(&ollama::embed::response(&answer)).unwrap(), &answer);
    }
}

#[test]
fn a_stream_is_not_read_past_its_end() {
    let stream = "{\"message\":{\"content\":\"a\"},\"done\":true}\nnonsense\n";
    for piece in [1, 100] {
        let events = read(LineReader::new(), stream.as_bytes(), piece);
        assert!(!events.iter().any(|e| matches!(e, Event::Error(_))), "{events:?}");
    }
    // An end without a line break is an end.
    let events = read(LineReader::new(), stream.lines().next().unwrap().as_bytes(), 7);
    assert_eq!(Answer::from_events(&events).choices[0].finish, Some(FinishReason::Stop));
}
