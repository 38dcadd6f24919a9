//! Bodies that real client libraries sent (openai 3.54, anthropic 2.12 and ollama 0.6.3 for Python; captured at a socket) are
//! read, to their last field.

use octet_api::core::*;
use octet_api::{ApiError, Warning, anthropic, ollama, openai};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Reads a body; what it warns about.
type Parser = fn(&[u8]) -> Result<Vec<Warning>, ApiError>;

fn of_call(call: ollama::Call) -> Vec<Warning> {
    match call {
        ollama::Call::Generate(request) => request.warnings,
        ollama::Call::Load(_) => Vec::new(),
    }
}

const CHAT: Parser = |b| openai::chat::parse(b).map(|r| r.warnings);
const COMPLETIONS: Parser = |b| openai::completions::parse(b).map(|r| r.warnings);
const RESPONSES: Parser = |b| openai::responses::parse(b).map(|r| r.warnings);
const EMBEDDINGS: Parser = |b| openai::embeddings::parse(b).map(|r| r.warnings);
const MESSAGES: Parser = |b| anthropic::messages::parse(b).map(|r| r.warnings);
const COUNT: Parser = |b| anthropic::count_tokens::parse(b).map(|r| r.warnings);
const OLLAMA_CHAT: Parser = |b| ollama::chat::parse(b).map(of_call);
const OLLAMA_GENERATE: Parser = |b| ollama::generate::parse(b).map(of_call);
const OLLAMA_EMBED: Parser = |b| ollama::embed::parse(b).map(|r| r.warnings);
const OLLAMA_EMBED_OLD: Parser = |b| ollama::embed::parse_old(b).map(|r| r.warnings);
const OLLAMA_SHOW: Parser = |b| ollama::models::parse_show(b).map(|_| Vec::new());

/// Requests that generate nothing, and give no warning.
const LENIENT: [&str; 2] = ["ollama_unload", "ollama_show"];

macro_rules! bodies {
    ($($name:literal: $parser:expr,)*) => {
        [$(($name, include_str!(concat!("../clients/", $name, ".json")), $parser)),*]
    };
}

const BODIES: [(&str, &str, Parser); 21] = bodies![
    "openai_chat_stream": CHAT,
    "openai_chat_tools": CHAT,
    "openai_chat_parse": CHAT,
    "openai_completions": COMPLETIONS,
    "openai_completions_text": COMPLETIONS,
    "openai_embeddings": EMBEDDINGS,
    "openai_responses": RESPONSES,
    "openai_responses_parse": RESPONSES,
    "anthropic_stream": MESSAGES,
    "anthropic_tools": MESSAGES,
    "anthropic_parse": MESSAGES,
    "anthropic_count": COUNT,
    "ollama_chat": OLLAMA_CHAT,
    "ollama_chat_format": OLLAMA_CHAT,
    "ollama_image": OLLAMA_CHAT,
    "ollama_generate": OLLAMA_GENERATE,
    "ollama_generate_raw": OLLAMA_GENERATE,
    "ollama_unload": OLLAMA_GENERATE,
    "ollama_embed": OLLAMA_EMBED,
    "ollama_embeddings": OLLAMA_EMBED_OLD,
    "ollama_show": OLLAMA_SHOW,
];

fn body(name: &str) -> &'static str {
    BODIES.iter().find(|(n, ..)| *n == name).expect("a body of this name").1
}

fn ollama(call: Result<ollama::Call, ApiError>) -> GenerateRequest {
    match call.unwrap() {
        ollama::Call::Generate(r) => *r,
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_are_read_and_an_unknown_field_is_warned_about() {
    for (name, text, parse) in BODIES {
        let known = parse(text.as_bytes()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut more: Value = serde_json::from_str(text).unwrap();
        more["wings"] = json!(2);
        let mut warnings = parse(more.to_string().as_bytes()).unwrap_or_else(|e| panic!("{name}: {e}"));
        if let Some(last) = warnings.pop() {
            assert_eq!(last.message, "'wings' is ignored: unknown field", "{name}");
        } else {
            assert!(LENIENT.contains(&name), "{name}");
        }
        assert_eq!(warnings, known, "{name}");
    }
}

#[test]
fn openai_bodies_are_parsed() {
    let r = openai::chat::parse(body("openai_chat_stream").as_bytes()).unwrap();
    assert!(r.stream && r.include_usage);
    assert_eq!(
        (r.sampling.top_k, r.sampling.min_p, r.sampling.repetition_penalty),
        (Some(20), Some(0.05), Some(1.05))
    );
    assert_eq!(r.chat().unwrap().reasoning.enabled, Some(false));
    let r = openai::chat::parse(body("openai_chat_tools").as_bytes()).unwrap();
    assert_eq!((r.n, r.logprobs, r.max_tokens), (2, Some(3), Some(64)));
    assert_eq!(r.chat().unwrap().messages[2].tool_calls[0].arguments, "{\"city\":\"Köln\"}");
    let r = openai::completions::parse(body("openai_completions").as_bytes()).unwrap();
    let prompts = vec![Prompt::Tokens(vec![1, 2, 3]), Prompt::Tokens(vec![4, 5])];
    assert_eq!(r.input, Input::Completion(Completion { prompts, echo: true, infill: None }));
    let r = openai::embeddings::parse(body("openai_embeddings").as_bytes()).unwrap();
    assert_eq!((r.encoding, r.dimensions, r.inputs.len()), (VectorEncoding::Base64, Some(8), 2));
    let r = openai::responses::parse(body("openai_responses").as_bytes()).unwrap();
    let chat = r.chat().unwrap();
    let roles: Vec<_> = chat.messages.iter().map(|m| m.role).collect();
    assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::Tool]);
    assert_eq!(chat.messages[2].reasoning_text().as_deref(), Some("Hm."));
    assert_eq!(chat.messages[2].tool_calls[0].id, "call_1");
    assert_eq!(chat.reasoning.effort, Some(Effort::Medium));
    let r = openai::responses::parse(body("openai_responses_parse").as_bytes()).unwrap();
    assert!(r.store && r.previous_response_id.as_deref() == Some("resp_1"));
    assert!(matches!(r.response_format, ResponseFormat::JsonSchema { strict: Some(true), .. }));
}

#[test]
fn anthropic_bodies_are_parsed() {
    let r = anthropic::messages::parse(body("anthropic_stream").as_bytes()).unwrap();
    let chat = r.chat().unwrap();
    assert_eq!((chat.reasoning.enabled, chat.reasoning.budget_tokens), (Some(true), Some(1024)));
    assert_eq!((chat.parallel_tool_calls, r.stop.as_slice()), (Some(false), &["END".to_string()][..]));
    assert!(matches!(&chat.messages[0].content[0], Part::Text { cache: Some(_), .. }));
    let r = anthropic::messages::parse(body("anthropic_tools").as_bytes()).unwrap();
    let messages = &r.chat().unwrap().messages;
    let roles: Vec<_> = messages.iter().map(|m| m.role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant, Role::Tool, Role::User]);
    assert_eq!(messages[1].reasoning, [ReasoningPart::Text { text: "Hm.".into(), signature: None }]);
    assert_eq!(messages[1].tool_calls[0].arguments, "{\"city\":\"Köln\"}");
    assert_eq!(messages[2].tool_call_id.as_deref(), Some("toolu_1"));
}

#[test]
fn ollama_bodies_are_parsed() {
    let r = ollama(ollama::chat::parse(body("ollama_chat").as_bytes()));
    let chat = r.chat().unwrap();
    assert_eq!((r.max_tokens, r.context_length, r.stream), (Some(64), Some(8192), true));
    assert_eq!(r.keep_alive, Some(KeepAlive::Seconds(600.0)));
    assert_eq!(chat.reasoning.enabled, Some(true));
    assert_eq!(chat.messages[1].tool_calls[0].id, "call_1_0");
    assert_eq!(chat.messages[2].tool_call_id.as_deref(), Some("call_1_0"), "the answer finds its call");
    assert_eq!(chat.tools[0].name, "weather");
    let r = ollama(ollama::chat::parse(body("ollama_chat_format").as_bytes()));
    assert!(matches!(r.response_format, ResponseFormat::JsonSchema { .. }) && !r.stream);
    assert_eq!((r.logprobs, r.sampling.seed, r.sampling.penalty_last_n), (Some(2), Some(1), Some(64)));
    let r = ollama(ollama::generate::parse(body("ollama_generate").as_bytes()));
    let roles: Vec<_> = r.chat().unwrap().messages.iter().map(|m| m.role).collect();
    assert_eq!(
        (roles.as_slice(), r.chat().unwrap().reasoning.effort),
        (&[Role::System, Role::User][..], Some(Effort::Low))
    );
    let r = ollama(ollama::generate::parse(body("ollama_generate_raw").as_bytes()));
    assert!(r.chat().is_none() && r.response_format == ResponseFormat::JsonObject);
    let r = ollama(ollama::chat::parse(body("ollama_image").as_bytes()));
    let e = r.chat().unwrap().template(Roles::default()).unwrap_err();
    assert_eq!(e.message, "'messages[0].images[0]' is an image, and this model reads text only; send text");
    let ollama::Call::Load(load) = ollama::generate::parse(body("ollama_unload").as_bytes()).unwrap() else {
        panic!()
    };
    assert_eq!(load.response(false, 0)["done_reason"], "unload");
    assert_eq!(ollama::models::parse_show(body("ollama_show").as_bytes()).unwrap(), "m");
}

/// Puts `with` at the `n`-th place of a tree.
fn replace(v: &mut Value, n: &mut usize, with: &Value) -> bool {
    if *n == 0 {
        *v = with.clone();
        return true;
    }
    *n -= 1;
    match v {
        Value::Array(items) => items.iter_mut().any(|v| replace(v, n, with)),
        Value::Object(map) => map.values_mut().any(|v| replace(v, n, with)),
        _ => false,
    }
}

proptest! {
    /// Any value anywhere in a body is read, or refused with an error that names the place.
    #[test]
    fn errors_are_named(
        which in 0..BODIES.len(),
        at in 1usize..80,
        junk in prop::sample::select(vec![
            json!(null), json!(-1), json!(1e300), json!(0.5), json!(18446744073709551615u64), json!(true), json!(""), json!("x"),
            json!([]), json!([[]]), json!({}), json!({"type": "x"}), json!("\u{0}".repeat(5000)), json!([{"role": 5}]),
        ]),
    ) {
        let (name, text, parse) = BODIES[which];
        let mut v: Value = serde_json::from_str(text).unwrap();
        replace(&mut v, &mut { at }, &junk);
        if let Err(e) = parse(v.to_string().as_bytes()) {
            prop_assert!(e.param.is_some(), "{}: {}", name, e);
            prop_assert!(e.message.len() < 1000, "{}: {}", name, e);
        }
    }

    #[test]
    fn any_bytes_are_harmless(which in 0..BODIES.len(), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(BODIES[which].2(&bytes).is_err());
    }
}
