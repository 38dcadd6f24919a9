//! Helpers of the tests of all dialects: scripts of events, driving writers and readers, generators.

use octet_api::ApiError;
use octet_api::core::Timings;
use octet_api::core::{
    Answer, Chat, Event, FinishReason, GenerateRequest, Input, Message, Role, TokenLogprob, TopLogprob, Usage,
};
use octet_api::dialect::{StreamReader, StreamWriter};
use proptest::prelude::*;

/// A request for a chat of one message.
pub fn request() -> GenerateRequest {
    let chat = Chat { messages: vec![Message::text(Role::User, "Hi")], ..Chat::default() };
    GenerateRequest { stream: true, include_usage: true, ..GenerateRequest::new("m", Input::Chat(chat)) }
}

pub fn started() -> Event {
    Event::Started {
        id: "abc".into(),
        model: "m".into(),
        created_s: 1_700_000_000,
        usage: Some(prompt_usage()),
    }
}

fn prompt_usage() -> Usage {
    Usage { prompt_tokens: 12, cached_tokens: Some(8), ..Usage::default() }
}

pub fn usage() -> Usage {
    Usage { completion_tokens: 7, reasoning_tokens: Some(3), ..prompt_usage() }
}

pub fn timings() -> Timings {
    Timings {
        cache_n: 8,
        prompt_n: 4,
        prompt_ms: 20.0,
        predicted_n: 7,
        predicted_ms: 300.0,
        load_ms: 5.0,
        total_ms: 380.0,
        draft: None,
    }
}

pub fn text(text: &str) -> Event {
    Event::Text { choice: 0, text: text.into() }
}

pub fn reasoning(text: &str) -> Event {
    Event::Reasoning { choice: 0, text: text.into() }
}

pub fn finished(reason: FinishReason) -> Event {
    Event::Finished { choice: 0, reason }
}

pub fn logprob(token: &str, logprob: f32) -> TokenLogprob {
    let top = vec![
        TopLogprob { id: None, token: token.into(), bytes: token.as_bytes().to_vec(), logprob },
        TopLogprob { id: None, token: "x".into(), bytes: b"x".to_vec(), logprob: f32::NEG_INFINITY },
    ];
    TokenLogprob {
        id: None,
        token: token.into(),
        bytes: token.as_bytes().to_vec(),
        logprob: Some(logprob),
        top,
    }
}

/// `body` between the beginning and the counts.
pub fn script(body: impl IntoIterator<Item = Event>) -> Vec<Event> {
    let mut events = vec![started()];
    events.extend(body);
    events.push(Event::Usage(usage()));
    events.push(Event::Timings(timings()));
    events
}

/// An answer with everything: reasoning, text, two calls.
pub fn everything() -> Vec<Event> {
    let mut body =
        vec![reasoning("Let me "), reasoning("think."), text("Looking"), text(" up."), text("\n\"é\"")];
    body.extend(Event::tool_call(0, 0, "call_1", "weather", r#"{"city":"Köln"}"#));
    body.push(Event::ToolCallStart { choice: 0, index: 1, id: "call_2".into(), name: "time".into() });
    for piece in ["{\"zone\"", ": \"CET\"", "}"] {
        body.push(Event::ToolCallArguments { choice: 0, index: 1, text: piece.into() });
    }
    body.push(finished(FinishReason::ToolCalls));
    script(body)
}

pub fn write(mut writer: impl StreamWriter, events: &[Event]) -> String {
    let mut out = Vec::new();
    events.iter().for_each(|e| writer.write(e, &mut out));
    writer.end(&mut out);
    String::from_utf8(out).expect("streams are text")
}

/// Reads a stream in pieces of `piece` bytes.
pub fn read(mut reader: impl StreamReader, stream: &[u8], piece: usize) -> Vec<Event> {
    let mut out = Vec::new();
    stream.chunks(piece.max(1)).for_each(|bytes| reader.push(bytes, &mut out));
    reader.end(&mut out);
    out
}

/// The only error, which is the last event.
pub fn error(events: &[Event]) -> &ApiError {
    let errors = events.iter().filter(|e| matches!(e, Event::Error(_))).count();
    match events.last() {
        Some(Event::Error(e)) if errors == 1 => e,
        _ => panic!("no single error at the end: {events:?}"),
    }
}

/// JSON of every `data:` line but `[DONE]`.
pub fn data(stream: &str) -> Vec<serde_json::Value> {
    let lines = stream.lines().filter_map(|l| l.strip_prefix("data: ")).filter(|l| *l != "[DONE]");
    lines.map(|l| serde_json::from_str(l).expect("data is JSON")).collect()
}

/// An answer without the parts that a dialect does not have.
pub fn without(mut answer: Answer, strip: impl Fn(&mut Answer)) -> Answer {
    strip(&mut answer);
    answer
}

/// Any text, often of what might be mistaken for structure.
pub fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~]{1,12}",
        "\\PC{1,6}",
        prop::sample::select(vec!["data: ", "\n\n", "\r\n", "[DONE]", "\"", "\u{2028}", "\0"])
            .prop_map(str::to_string)
    ]
}

/// Any JSON object as text.
pub fn any_arguments() -> impl Strategy<Value = String> {
    prop::collection::btree_map("[a-z]{1,4}", any_text(), 0..3)
        .prop_map(|m| serde_json::to_string(&m).expect("a map"))
}

/// The events of one choice up to its end: reasoning, text and calls, each in pieces.
pub fn any_choice(choice: u32) -> impl Strategy<Value = Vec<Event>> {
    let piece = any_text();
    let pieces = |n| prop::collection::vec(any_text(), n);
    (
        pieces(0..3),
        pieces(0..4),
        prop::collection::vec((any_arguments(), "[a-z_]{1,8}", 1usize..4), 0..3),
        piece,
        0..5u8,
    )
        .prop_map(move |(thoughts, texts, calls, stop, reason)| {
            let mut out: Vec<Event> =
                thoughts.into_iter().map(|text| Event::Reasoning { choice, text }).collect();
            out.extend(texts.into_iter().map(|text| Event::Text { choice, text }));
            let any_calls = !calls.is_empty();
            for (i, (arguments, name, cuts)) in calls.into_iter().enumerate() {
                let index = i as u32;
                out.push(Event::ToolCallStart { choice, index, id: format!("call_{choice}_{i}"), name });
                let chars: Vec<char> = arguments.chars().collect();
                for piece in chars.chunks(chars.len().div_ceil(cuts)) {
                    out.push(Event::ToolCallArguments { choice, index, text: piece.iter().collect() });
                }
            }
            let reason = match reason {
                _ if any_calls => FinishReason::ToolCalls,
                0 => FinishReason::Stop,
                1 => FinishReason::StopSequence(stop),
                2 => FinishReason::ContentFilter,
                _ => FinishReason::Length,
            };
            out.push(Event::Finished { choice, reason });
            out
        })
}
