//! What each provider is sent: addresses, keys, and one conversation against the providers' public documentation.

use crate::common::*;
use octet_api::core::{
    Chat, Effort, GenerateRequest, Input, Message, Part, Prompt, Reasoning, ReasoningPart, ResponseFormat,
    Role, Tool, ToolCall, ToolChoice, ToolOrigin,
};
use octet_api::{ollama, openai};
use octet_config::{Edits, Provider};
use octet_upstream::{Endpoint, FailureKind, Settings};
use serde_json::{Value, json};

/// Everything that all providers have a place for.
fn conversation(stream: bool) -> GenerateRequest {
    let call = ToolCall {
        id: "call_1".into(),
        name: "weather".into(),
        arguments: r#"{"city":"Köln"}"#.into(),
        cache: None,
    };
    let chat = Chat {
        messages: vec![
            Message::text(Role::System, "Be brief."),
            Message::text(Role::User, "Weather?"),
            Message {
                reasoning: vec![ReasoningPart::Text { text: "Look it up.".into(), signature: None }],
                content: vec![Part::text("One moment.")],
                tool_calls: vec![call],
                ..Message::empty(Role::Assistant)
            },
            Message { tool_call_id: Some("call_1".into()), ..Message::text(Role::Tool, "9 °C") },
        ],
        tools: vec![Tool {
            name: "weather".into(),
            description: Some("Tells it.".into()),
            parameters: json!({"type": "object", "properties": {"city": {"type": "string"}}})
                .as_object()
                .unwrap()
                .clone(),
            strict: None,
            cache: None,
            origin: ToolOrigin::default(),
        }],
        ..Chat::default()
    };
    let mut r =
        GenerateRequest { stream, max_tokens: Some(500), ..GenerateRequest::new("ours", Input::Chat(chat)) };
    r.sampling.temperature = Some(0.5);
    r.sampling.top_p = Some(0.9);
    r.stop = vec!["END".into()];
    r
}

fn chat(r: &mut GenerateRequest) -> &mut Chat {
    match &mut r.input {
        Input::Chat(chat) => chat,
        Input::Completion(_) => unreachable!("a conversation"),
    }
}

/// What is sent for a request; the answer does not matter.
async fn sent(settings: impl FnOnce(&str) -> Settings, r: &GenerateRequest) -> Seen {
    let server = Server::start(vec![json_answer(&json!({}))]).await;
    let endpoint = Endpoint::new(settings(&server.base)).unwrap();
    let (_, failure) = generate(&endpoint, r).await;
    assert!(!server.seen().is_empty(), "nothing was sent: {failure:?}");
    server.last()
}

async fn sent_to(provider: Provider, r: &GenerateRequest) -> Value {
    sent(|base| Settings::new(remote(provider, base)), r).await.json()
}

async fn refused(provider: Provider, r: &GenerateRequest) -> octet_upstream::Failure {
    let server = Server::start(vec![json_answer(&json!({}))]).await;
    let (_, failure) = generate(&endpoint(provider, &server.base), r).await;
    assert!(server.seen().is_empty(), "it is refused before it is sent");
    failure.unwrap()
}

#[tokio::test]
async fn each_provider_has_its_own_key_and_address() {
    let r = request(true);
    for (provider, version, line, header, value) in [
        (
            Provider::OpenAiCompatible,
            None,
            "POST /v1/chat/completions HTTP/1.1",
            "authorization",
            "Bearer sk-very-secret-key",
        ),
        (
            Provider::OpenAi,
            None,
            "POST /v1/chat/completions HTTP/1.1",
            "authorization",
            "Bearer sk-very-secret-key",
        ),
        (Provider::Anthropic, None, "POST /v1/messages HTTP/1.1", "x-api-key", "sk-very-secret-key"),
        (
            Provider::Gemini,
            None,
            "POST /v1beta/models/their-model:streamGenerateContent?alt=sse HTTP/1.1",
            "x-goog-api-key",
            "sk-very-secret-key",
        ),
        (
            Provider::AzureOpenAi,
            Some("2025-01-01-preview"),
            "POST /openai/deployments/their-model/chat/completions?api-version=2025-01-01-preview HTTP/1.1",
            "api-key",
            "sk-very-secret-key",
        ),
        (
            Provider::AzureOpenAi,
            Some("v1"),
            "POST /openai/v1/chat/completions HTTP/1.1",
            "api-key",
            "sk-very-secret-key",
        ),
        (Provider::Ollama, None, "POST /api/chat HTTP/1.1", "authorization", "Bearer sk-very-secret-key"),
    ] {
        let settings = |base: &str| {
            let mut s = Settings::new(remote(provider, base));
            s.remote.api_version = version.map(str::to_string);
            s.remote.extra_headers = vec![("X-Team".into(), octet_config::Secret::new("blue").unwrap())];
            s
        };
        let seen = sent(settings, &r).await;
        assert_eq!(seen.line, line);
        assert_eq!(seen.header(header), Some(value), "{provider:?}");
        assert_eq!(seen.header("x-team"), Some("blue"));
        assert_eq!(seen.header("content-type"), Some("application/json"));
        assert_eq!(seen.header("accept-encoding"), Some("identity"));
        let keys = seen.headers.iter().filter(|(_, v)| v.contains("secret")).count();
        assert_eq!((keys, seen.path().contains("secret")), (1, false), "the key stands in one place");
        let version = seen.header("anthropic-version");
        assert_eq!(version, (provider == Provider::Anthropic).then_some("2023-06-01"));
    }
}

/// Azure's Responses API is newer than its last version that is not a preview.
#[tokio::test]
async fn azure_responses_use_a_version_that_supports_them() {
    for (version, path) in [
        (None, "/openai/responses?api-version=2025-04-01-preview"),
        (Some("2025-03-01-preview"), "/openai/responses?api-version=2025-03-01-preview"),
        (Some("v1"), "/openai/v1/responses"),
    ] {
        let settings = |base: &str| {
            let mut s = Settings::new(remote(Provider::AzureOpenAi, base));
            s.remote.api_version = version.map(str::to_string);
            s.remote.responses = octet_config::ResponsesUse::Chats;
            s
        };
        assert_eq!(sent(settings, &request(false)).await.path(), path);
    }
}

#[tokio::test]
async fn names_can_not_lead_elsewhere() {
    for (model, path) in [
        ("../../admin", "/v1beta/models/..%2F..%2Fadmin:generateContent"),
        ("a?key=b#c", "/v1beta/models/a%3Fkey%3Db%23c:generateContent"),
        ("models/gemini-x", "/v1beta/models/gemini-x:generateContent"),
        ("ä b", "/v1beta/models/%C3%A4%20b:generateContent"),
    ] {
        let settings = |base: &str| {
            let mut s = Settings::new(remote(Provider::Gemini, base));
            s.remote.model = model.into();
            s
        };
        assert_eq!(sent(settings, &request(false)).await.path(), path);
    }
}

#[test]
fn endpoints_that_can_not_be_are_refused_without_their_keys() {
    let new = |change: &dyn Fn(&mut Settings)| {
        let mut s = Settings::new(remote(Provider::OpenAi, "http://h"));
        change(&mut s);
        Endpoint::new(s).map(|e| e.host().to_string()).map_err(|e| e.to_string())
    };
    assert_eq!(new(&|_| {}), Ok("h".into()));
    for (base, said) in [
        ("ftp://h", "must be a URL"),
        ("h/v1", "is not a valid URL"),
        ("", "is not a valid URL"),
        ("http://me:hunter22@h/v1", "contains a name or a password"),
        ("http://h/v1?key=hunter22", "has a query"),
        ("http://hunter22 x", "is not a valid URL"),
    ] {
        let said_now = new(&|s| s.remote.api_base = base.into()).unwrap_err();
        assert!(said_now.contains(said) && !said_now.contains("hunter22"), "{base}: {said_now}");
    }
    assert!(new(&|s| s.remote.model = String::new()).unwrap_err().contains("has no name"));
    let bad = |name: &str, value: &str| {
        let secret = octet_config::Secret::new(value).unwrap();
        new(&|s| s.remote.extra_headers = vec![(name.into(), secret.clone())]).unwrap_err()
    };
    assert!(bad("x y", "v").contains("not a valid header name"));
    assert!(bad("Host", "v").contains("is created for each request"));
    assert!(!bad("x-key", "line\nbreak hunter22").contains("hunter22"));
    let s = Settings::new(remote(Provider::Anthropic, "http://h"));
    let shown = format!("{:?}", Endpoint::new(s).unwrap());
    assert!(!shown.contains("secret"), "{shown}");
}

proptest::proptest! {
    /// What a configuration may say can be sent: a server's start refuses nothing that a check of its file lets pass.
    #[test]
    fn checked_headers_can_be_sent(name in "[ -~]{0,12}|[a-zA-Z-]{1,12}", value in "[ -~]{1,20}|\\PC{1,20}|[\\x00-\\xff]{1,9}") {
        use octet_config::header;
        let Some(secret) = octet_config::Secret::new(&value) else { return Ok(()) };
        let mut s = Settings::new(remote(Provider::OpenAiCompatible, "http://h/v1"));
        let may = header::wrong_name(&name).is_none() && header::wrong_value(secret.expose()).is_none();
        s.remote.api_key = header::wrong_value(secret.expose()).is_none().then(|| secret.clone());
        s.remote.extra_headers = vec![(name, secret)];
        proptest::prop_assert_eq!(Endpoint::new(s).is_ok(), may);
    }
}

#[tokio::test]
async fn a_conversation_for_openai_and_its_likes() {
    let mut r = conversation(true);
    r.sampling.top_k = Some(20);
    chat(&mut r).reasoning = Reasoning { enabled: Some(true), ..Reasoning::default() };
    let body = sent_to(Provider::OpenAiCompatible, &r).await;
    assert_eq!(body["model"], "their-model");
    assert_eq!(body["messages"][2]["reasoning_content"], "Look it up.");
    assert_eq!(body["messages"][3], json!({"role": "tool", "content": "9 °C", "tool_call_id": "call_1"}));
    assert_eq!(body["stream_options"]["include_usage"], true);
    assert_eq!((&body["top_k"], &body["max_tokens"]), (&json!(20), &json!(500)));
    assert_eq!(body["chat_template_kwargs"]["enable_thinking"], true);
    // What we send is what our own server takes for the same.
    let read = openai::chat::parse(body.to_string().as_bytes()).unwrap();
    assert_eq!(read.input, r.input);

    let failure = refused(Provider::OpenAi, &r).await;
    assert_eq!((failure.kind, failure.param.as_deref()), (FailureKind::BadRequest, Some("top_k")));
    assert!(
        failure.message.contains("openai has nothing like 'top_k'")
            && failure.message.contains("drop_params")
    );
    let settings = |base: &str| {
        let mut s = Settings::new(remote(Provider::OpenAi, base));
        s.remote.changes.drop_params = true;
        s
    };
    let body = sent(settings, &r).await.json();
    assert_eq!((body.get("top_k"), &body["max_completion_tokens"]), (None, &json!(500)));
}

#[tokio::test]
async fn a_conversation_for_anthropic() {
    let mut r = conversation(true);
    r.max_tokens = None;
    let body = sent_to(Provider::Anthropic, &r).await;
    let expected = json!({
        "model": "their-model",
        "max_tokens": 8192,
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": [
                {"type": "text", "text": "One moment."},
                {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Köln"}},
            ]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "9 °C"}]},
        ],
        "tools": [{"name": "weather", "description": "Tells it.", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}],
        "temperature": 0.5, "top_p": 0.9, "stop_sequences": ["END"], "stream": true,
    });
    assert_eq!(body, expected);
    // Reasoning without a signature is dropped, and not refused.
    chat(&mut r).reasoning = Reasoning { enabled: Some(true), ..Reasoning::default() };
    assert_eq!(sent_to(Provider::Anthropic, &r).await, expected);
    r.sampling.seed = Some(1);
    r.n = 2;
    let failure = refused(Provider::Anthropic, &r).await;
    assert!(failure.message.contains("'seed', 'n'"), "{failure}");
}

#[tokio::test]
async fn a_conversation_for_gemini() {
    let mut r = conversation(false);
    r.sampling.seed = Some(7);
    r.response_format = ResponseFormat::JsonSchema {
        name: None,
        description: None,
        schema: json!({"type": "object"}),
        strict: None,
    };
    chat(&mut r).tool_choice = ToolChoice::Named("weather".into());
    chat(&mut r).reasoning = Reasoning { effort: Some(Effort::Low), ..Reasoning::default() };
    let body = sent_to(Provider::Gemini, &r).await;
    let expected = json!({
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Weather?"}]},
            {"role": "model", "parts": [
                {"text": "One moment."},
                {"functionCall": {"name": "weather", "args": {"city": "Köln"}}},
            ]},
            {"role": "user", "parts": [{"functionResponse": {"name": "weather", "response": {"output": "9 °C"}}}]},
        ],
        "tools": [{"functionDeclarations": [{
            "name": "weather", "description": "Tells it.",
            "parametersJsonSchema": {"type": "object", "properties": {"city": {"type": "string"}}},
        }]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["weather"]}},
        "generationConfig": {
            "temperature": 0.5, "topP": 0.9, "maxOutputTokens": 500, "stopSequences": ["END"], "seed": 7,
            "responseMimeType": "application/json", "responseJsonSchema": {"type": "object"},
            "thinkingConfig": {"includeThoughts": true, "thinkingBudget": 2048},
        },
    });
    assert_eq!(body, expected);
    // From Gemini 3 on: levels, and a word where the proof of a call is not ours to give.
    let settings = |base: &str| {
        let mut s = Settings::new(remote(Provider::Gemini, base));
        s.remote.model = "gemini-3-pro-preview".into();
        s
    };
    let body = sent(settings, &r).await.json();
    assert_eq!(
        body["generationConfig"]["thinkingConfig"],
        json!({"includeThoughts": true, "thinkingLevel": "low"})
    );
    assert_eq!(body["contents"][1]["parts"][1]["thoughtSignature"], "skip_thought_signature_validator");
    // A signature from Gemini is sent back to Gemini only.
    chat(&mut r).messages[2].reasoning =
        vec![ReasoningPart::Text { text: "t".into(), signature: Some("gemini#c2ln".into()) }];
    assert_eq!(sent(settings, &r).await.json()["contents"][1]["parts"][1]["thoughtSignature"], "c2ln");
    chat(&mut r).reasoning = Reasoning::default();
    r.sampling.seed = None;
    let body = sent_to(Provider::Anthropic, &r).await;
    assert_eq!(body["messages"][1]["content"][0]["type"], "text", "{body}");
}

#[tokio::test]
async fn a_conversation_for_ollama() {
    let mut r = conversation(false);
    chat(&mut r).reasoning = Reasoning { enabled: Some(false), ..Reasoning::default() };
    r.response_format = ResponseFormat::JsonObject;
    let body = sent_to(Provider::Ollama, &r).await;
    let expected = json!({
        "model": "their-model",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "One moment.", "thinking": "Look it up.", "tool_calls": [
                {"id": "call_1", "function": {"index": 0, "name": "weather", "arguments": {"city": "Köln"}}},
            ]},
            {"role": "tool", "content": "9 °C", "tool_name": "weather", "tool_call_id": "call_1"},
        ],
        "tools": [{"type": "function", "function": {
            "name": "weather", "description": "Tells it.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        }}],
        "think": false, "format": "json", "stream": false, "truncate": false, "shift": false,
        "options": {"temperature": 0.5, "top_p": 0.9, "num_predict": 500, "stop": ["END"]},
    });
    assert_eq!(body, expected);
    // Our own server takes it for the same.
    let ollama::Call::Generate(read) = ollama::chat::parse(body.to_string().as_bytes()).unwrap() else {
        panic!("a chat");
    };
    let mut expected = r.clone();
    chat(&mut expected).messages[3].name = Some("weather".into());
    assert_eq!((&read.input, &read.sampling, &read.stop), (&expected.input, &r.sampling, &r.stop));
    chat(&mut r).tool_choice = ToolChoice::Required;
    assert_eq!(refused(Provider::Ollama, &r).await.param.as_deref(), Some("tool_choice"));
    chat(&mut r).tool_choice = ToolChoice::None;
    assert_eq!(sent_to(Provider::Ollama, &r).await.get("tools"), None);
}

#[tokio::test]
async fn parameters_of_the_configuration_mean_the_same_everywhere() {
    let settings = |provider| {
        move |base: &str| {
            let mut s = Settings::new(remote(provider, base));
            let map = |v: Value| v.as_object().unwrap().clone();
            s.params = map(json!({"temperature": 0.1, "max_tokens": 9, "special": 1}));
            s.remote.changes.edits =
                Edits { drop: vec!["seed".into()], rename: Vec::new(), set: map(json!({"top_p": 0.25})) };
            s.remote.changes.extra_body = map(json!({"priority": 3}));
            s.remote.changes.chat_template_kwargs = map(json!({"enable_thinking": false}));
            s
        }
    };
    let mut r = request(false);
    r.sampling.seed = Some(1);
    r.sampling.temperature = Some(0.75);
    for (provider, pointers) in [
        (Provider::OpenAiCompatible, ["/temperature", "/max_tokens", "/top_p"]),
        (Provider::OpenAi, ["/temperature", "/max_completion_tokens", "/top_p"]),
        (Provider::Anthropic, ["/temperature", "/max_tokens", "/top_p"]),
        (Provider::Ollama, ["/options/temperature", "/options/num_predict", "/options/top_p"]),
        (
            Provider::Gemini,
            ["/generationConfig/temperature", "/generationConfig/maxOutputTokens", "/generationConfig/topP"],
        ),
    ] {
        let body = sent(settings(provider), &r).await.json();
        let values = pointers.map(|p| body.pointer(p).cloned().unwrap_or_default());
        assert_eq!(values, [json!(0.75), json!(9), json!(0.25)], "{body}");
        assert!(!body.to_string().contains("seed"), "{body}");
        assert_eq!((&body["special"], &body["priority"]), (&json!(1), &json!(3)));
        let off = match provider {
            Provider::OpenAiCompatible => &body["chat_template_kwargs"]["enable_thinking"] == false,
            Provider::OpenAi => body["reasoning_effort"] == "none",
            Provider::Anthropic => body["thinking"]["type"] == "disabled",
            Provider::Ollama => body["think"] == false,
            _ => body["generationConfig"]["thinkingConfig"]["thinkingBudget"] == 0,
        };
        assert!(off, "thinking is off: {body}");
    }
}

#[tokio::test]
async fn plain_prompts_need_targets_that_support_them() {
    let prompt =
        octet_api::core::Completion { prompts: vec![Prompt::Text("Once".into())], ..Default::default() };
    let r = GenerateRequest::new("m", Input::Completion(prompt));
    for provider in [Provider::OpenAi, Provider::Anthropic, Provider::Gemini, Provider::Ollama] {
        let failure = refused(provider, &r).await;
        assert_eq!((failure.kind, failure.param.as_deref()), (FailureKind::BadRequest, Some("prompt")));
    }
}
