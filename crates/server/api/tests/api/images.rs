//! Images of every dialect: parsed, for chat templates, and in providers' requests.

use octet_api::core::*;
use octet_api::{ApiError, anthropic, gemini, llama, ollama, openai};
use serde_json::{Value, json};

/// Not an image file: nothing here decodes it.
const PNG: &str = "iVBORw0KGgo=";
const JPEG: &str = "/9j/2wBD";

fn data_url(data: &str) -> String {
    format!("data:image/png;base64,{data}")
}

type Parsed = Result<GenerateRequest, ApiError>;

fn chat(messages: &Value) -> Parsed {
    openai::chat::parse(json!({"model": "m", "messages": messages}).to_string().as_bytes())
}

fn responses(input: &Value) -> Parsed {
    openai::responses::parse(json!({"model": "m", "input": input}).to_string().as_bytes())
}

fn messages(messages: &Value) -> Parsed {
    let body = json!({"model": "m", "max_tokens": 9, "messages": messages});
    anthropic::messages::parse(body.to_string().as_bytes())
}

fn contents(contents: &Value) -> Parsed {
    gemini::parse(json!({"model": "m", "contents": contents}).to_string().as_bytes())
}

fn ollama_chat(messages: &Value) -> Parsed {
    let body = json!({"model": "m", "messages": messages}).to_string();
    match ollama::chat::parse(body.as_bytes())? {
        ollama::Call::Generate(request) => Ok(*request),
        ollama::Call::Load(_) => panic!("not a load request"),
    }
}

/// The roles, and the content of each message with the data of its images.
fn seen(r: &GenerateRequest) -> Vec<(&'static str, Vec<String>)> {
    let part = |part: &Part| match part.as_image() {
        Some(Image { source: ImageSource::Base64 { data, .. }, .. }) => format!("<{data}>"),
        Some(image) => image.url(),
        None => part.as_text().unwrap_or_default().to_string(),
    };
    let message = |m: &Message| (m.role.name(), m.content.iter().map(part).collect());
    r.chat().unwrap().messages.iter().map(message).collect()
}

/// A conversation with three images, one of them in a tool's result, in each dialect.
fn conversations() -> Vec<(&'static str, Parsed)> {
    let text = |text: &str| json!({"type": "text", "text": text});
    let url =
        |data: &str| json!({"type": "image_url", "image_url": {"url": data_url(data), "detail": "high"}});
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let of_chat = chat(&json!([
        {"role": "user", "content": [text("A"), url(PNG), text("B"), url(JPEG)]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [text("C"), url(PNG)]},
    ]));
    let url = |data: &str| json!({"type": "input_image", "image_url": data_url(data), "detail": "high"});
    let text_in = |text: &str| json!({"type": "input_text", "text": text});
    let of_responses = responses(&json!([
        {"role": "user", "content": [text_in("A"), url(PNG), text_in("B"), url(JPEG)]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [text_in("C"), url(PNG)]},
    ]));
    let image = |kind: &str, data: &str| json!({"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}});
    let (png, jpeg) = (image("image/png", PNG), image("image/jpeg", JPEG));
    let of_anthropic = messages(&json!([
        {"role": "user", "content": [text("A"), png, text("B"), jpeg]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [text("C"), png]}]},
    ]));
    let inline = |kind: &str, data: &str| json!({"inline_data": {"mime_type": kind, "data": data}});
    let (png, jpeg) = (inline("image/png", PNG), inline("image/jpeg", JPEG));
    let of_gemini = contents(&json!([
        {"role": "user", "parts": [{"text": "A"}, png, {"text": "B"}, jpeg]},
        {"role": "model", "parts": [{"functionCall": {"id": "c", "name": "f", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse":
            {"id": "c", "name": "f", "response": {"output": "C"}, "parts": [png]}}]},
    ]));
    vec![("chat", of_chat), ("responses", of_responses), ("anthropic", of_anthropic), ("gemini", of_gemini)]
}

#[test]
fn images_come_in_every_dialect() {
    for (dialect, parsed) in conversations() {
        let r = parsed.unwrap_or_else(|e| panic!("{dialect}: {e}"));
        let seen = seen(&r);
        assert_eq!(seen[0], ("user", vec!["A".into(), format!("<{PNG}>"), "B".into(), format!("<{JPEG}>")]));
        assert_eq!(seen[2].1, ["C".to_string(), format!("<{PNG}>")], "{dialect}");
        let images: Vec<&Image> = r.images().collect();
        assert_eq!(images.len(), 3, "{dialect}");
        assert_eq!(images[1].media_type(), Some("image/jpeg"), "{dialect}");
        assert_eq!(images[0].bytes().unwrap(), b"\x89PNG\r\n\x1a\n");
        let detail = matches!(dialect, "chat" | "responses").then_some("high");
        assert_eq!(images[0].detail.as_deref(), detail, "{dialect}");
    }
    // Ollama has images beside the text.
    let r = ollama_chat(&json!([
        {"role": "user", "content": "A", "images": [PNG, JPEG]},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "content": "C", "tool_name": "f", "images": [PNG]},
    ]));
    let r = r.unwrap();
    assert_eq!(seen(&r)[0].1, ["A".to_string(), format!("<{PNG}>"), format!("<{JPEG}>")]);
    assert_eq!(seen(&r)[2].1, ["C".to_string(), format!("<{PNG}>")]);
}

#[test]
fn data_must_be_base64() {
    for (data, expected) in
        [("A*==", None), ("A", None), ("iVBORw0KGgo", Some(PNG)), ("iVBORw0K\nGgo=", Some(PNG))]
    {
        let url = json!({"type": "image_url", "image_url": {"url": data_url(data)}});
        let block =
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}});
        let all = [
            (chat(&json!([{"role": "user", "content": [url]}])), "messages[0].content[0].image_url.url"),
            (messages(&json!([{"role": "user", "content": [block]}])), "messages[0].content[0].source.data"),
            (
                ollama_chat(&json!([{"role": "user", "content": "A", "images": [data]}])),
                "messages[0].images[0]",
            ),
            (
                contents(&json!([{"parts": [{"inlineData": {"mimeType": "image/png", "data": data}}]}])),
                "contents[0].parts[0].inlineData.data",
            ),
        ];
        for (parsed, param) in all {
            match expected {
                Some(data) => assert!(seen(&parsed.unwrap())[0].1.contains(&format!("<{data}>")), "{param}"),
                None => {
                    let e = parsed.unwrap_err();
                    assert_eq!(e.param.as_deref(), Some(param));
                    assert!(e.message.contains("base64"), "{e}");
                }
            }
        }
    }
    let url = json!({"type": "image_url", "image_url": {"url": "data:image/svg+xml,%3Csvg%3E"}});
    let e = chat(&json!([{"role": "user", "content": [url]}])).unwrap_err();
    assert!(e.message.contains(";base64,"), "{e}");
}

#[test]
fn templates_of_models_that_see_have_places_for_images() {
    let sees = Roles { images: true, ..Roles::default() };
    for (dialect, parsed) in conversations() {
        let r = parsed.unwrap();
        let t = r.chat().unwrap().template(sees).unwrap();
        let (text, image) = (|text: &str| json!({"type": "text", "text": text}), json!({"type": "image"}));
        assert_eq!(t.messages[0]["content"], json!([text("A"), image, text("B"), image]), "{dialect}");
        assert_eq!(t.messages[2]["content"], json!([text("C"), image]), "{dialect}");
        let types: Vec<_> = t.images.iter().map(Image::media_type).collect();
        assert_eq!(types, [Some("image/png"), Some("image/jpeg"), Some("image/png")], "{dialect}");
        assert_eq!(t.warnings, [], "{dialect}");
        // For others a text stands there: the message to answer is a tool's result.
        let t = r.chat().unwrap().template(Roles::default()).unwrap();
        assert_eq!(t.messages[2]["content"][1], text("[Here was an image. This model reads text only.]"));
        assert!(t.images.is_empty() && !t.warnings.is_empty(), "{dialect}");
        let asked = Chat { messages: r.chat().unwrap().messages[..1].to_vec(), ..Chat::default() };
        let e = asked.template(Roles::default()).unwrap_err();
        assert!(e.message.contains("is an image, and this model reads text only"), "{e}");
    }
}

#[test]
fn images_stay_in_place_where_messages_are_merged() {
    let image = |data: &str| json!({"type": "image_url", "image_url": {"url": data_url(data)}});
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let r = chat(&json!([
        {"role": "system", "content": "S"}, {"role": "user", "content": [image(PNG), {"type": "text", "text": "A"}]},
        {"role": "user", "content": "B"}, {"role": "system", "content": [image(JPEG)]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "C"}, image(JPEG)]},
        {"role": "user", "content": [{"type": "text", "text": "D"}, image(PNG)]},
    ]));
    let r = r.unwrap();
    let roles =
        Roles { system: SystemPlace::Nowhere, alternating: true, answers_results: true, ..Roles::default() };
    let t = r.chat().unwrap().template(Roles { images: true, ..roles }).unwrap();
    let (text, image) = (|text: &str| json!({"type": "text", "text": text}), json!({"type": "image"}));
    let first = json!([text("S"), image, text("A\n\nB\n\n<system>\n"), image, text("\n</system>")]);
    assert_eq!(t.messages[0]["content"], first);
    let result = json!([text("C"), image, text("\n\n<user>\nD"), image, text("\n</user>")]);
    assert_eq!(t.messages[2]["content"], result);
    let types: Vec<_> = t.images.iter().map(|i| i.media_type().unwrap()).collect();
    assert_eq!(types, ["image/png", "image/jpeg", "image/jpeg", "image/png"]);
    // Templates without tools get results in a user message.
    let described = r.chat().unwrap().with_generic_tools(Value::to_string).0.into_owned();
    let results = &described.messages[described.messages.len() - 2];
    assert_eq!(results.content.len(), 2);
    assert!(results.content[1].as_image().is_some());
}

#[test]
fn a_prompt_has_images_at_its_markers() {
    let parse = |prompt: Value| llama::completion(json!({"prompt": prompt}).to_string().as_bytes());
    let r =
        parse(json!({"prompt_string": "What is <__media__>? <__media__>", "multimodal_data": [PNG, JPEG]}));
    let r = r.unwrap();
    let Input::Completion(Completion { prompts, .. }) = &r.input else { panic!("not a prompt") };
    let Prompt::Mixed(parts) = &prompts[0] else { panic!("{prompts:?}") };
    let show = |part: &PromptPart| match part {
        PromptPart::Text(text) => text.clone(),
        PromptPart::Token(id) => id.to_string(),
        PromptPart::Image(image) => format!("{} {}", image.at, image.media_type().unwrap()),
    };
    let shown: Vec<String> = parts.iter().map(show).collect();
    let at = |n: usize, kind: &str| format!("prompt.multimodal_data[{n}] image/{kind}");
    assert_eq!(shown, ["What is ".into(), at(0, "png"), "? ".into(), at(1, "jpeg")]);
    assert_eq!(r.images().count(), 2);
    let e = parse(json!({"prompt_string": "<__media__>", "multimodal_data": [PNG, JPEG]})).unwrap_err();
    assert!(e.message.contains("has 1 times '<__media__>', but 'multimodal_data' has 2 images"), "{e}");
    parse(json!({"prompt_string": "A", "multimodal_data": ["!"]})).unwrap_err();
    // Without images the marker is text.
    let r = parse(json!({"prompt_string": "<__media__>", "multimodal_data": []})).unwrap();
    assert_eq!(r.images().count(), 0);
    // Vectors of images are another matter.
    let input = json!({"prompt_string": "<__media__>", "multimodal_data": [PNG]});
    let e =
        openai::embeddings::parse(json!({"model": "m", "input": input}).to_string().as_bytes()).unwrap_err();
    assert!(e.message.contains("images cannot be embedded"), "{e}");
}
