//! Images in every dialect, by a tiny model of the reference data that sees.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use octet_engine::vision;
use octet_serve::{ModelSpec, Options};
use octet_testkit::shared;
use serde_json::{Value, json};

use crate::common::{Fixture, model, with};

/// A template that writes a mark for each image.
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}\
    {% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}\
    {% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A server with the model; `None` without reference data.
async fn fixture() -> Option<Fixture> {
    with_template(TEMPLATE).await
}

/// The same with this template.
async fn with_template(template: &str) -> Option<Fixture> {
    let text = shared("zoo/vision/gguf/qwen35moe_vl.gguf")?;
    let tower = shared("zoo/vision/gguf/qwen35moe_vl.mmproj.gguf")?;
    let usual = model("tiny");
    let open = move || octet_weights::Model::open(&text).map_err(octet_serve::BoxError::from);
    let mut spec = ModelSpec {
        options: usual.options,
        chat_template: Some(template.into()),
        ..ModelSpec::new("tiny", Arc::new(open))
    };
    let file = Arc::new(octet_weights::Model::open(&tower).expect("a projector"));
    let engine = &mut spec.options.engine;
    engine.vision = Some(vision::Options { min_tokens: Some(1), ..vision::Options::new(file) });
    engine.device = None;
    Some(Fixture::with(Options::new(vec![spec])).await)
}

/// A file of the reference data in base64.
fn image(name: &str) -> String {
    BASE64.encode(std::fs::read(shared(&format!("zoo/vision/images/{name}")).unwrap()).unwrap())
}

fn chat(content: Value) -> Value {
    json!({
        "model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0,
        "ignore_eos": true,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn every_dialect_shows_the_same_image() {
    let Some(f) = fixture().await else { return };
    let (a, b) = (image("100x70.png"), image("64x64.png"));
    let url = |data: &str| format!("data:image/png;base64,{data}");
    let text = json!({"type": "text", "text": "What is this?"});
    let openai = |data: &str| chat(json!([{"type": "image_url", "image_url": {"url": url(data)}}, text]));
    let answer = f.ok("/v1/chat/completions", &openai(&a)).await;
    let want = answer["choices"][0]["message"]["content"].clone();
    let none = f.ok("/v1/chat/completions", &chat(json!("What is this?"))).await;
    let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    // Multiples of 32 pixels: 3 x 2 tokens, and a mark before and after.
    assert_eq!(tokens(&answer), tokens(&none) + 8);
    let other = f.ok("/v1/chat/completions", &openai(&b)).await;
    assert_ne!(other["choices"][0]["message"]["content"], want, "it sees");

    let source = json!({"type": "base64", "media_type": "image/png", "data": a});
    let anthropic = with(&chat(json!([{"type": "image", "source": source}, text])), json!({}));
    let answer = f.ok("/v1/messages", &anthropic).await;
    assert_eq!(answer["content"][0]["text"], want, "{answer}");
    let counted = f.ok("/v1/messages/count_tokens", &anthropic).await;
    assert_eq!(counted["input_tokens"].as_u64(), Some(tokens(&none) + 8));

    let responses = json!({"model": "tiny", "max_output_tokens": 8, "temperature": 0, "ignore_eos": true, "input": [
        {"role": "user", "content": [{"type": "input_image", "image_url": url(&a)}, {"type": "input_text", "text": "What is this?"}]},
    ]});
    let answer = f.ok("/v1/responses", &responses).await;
    assert!(answer.to_string().contains(&want.to_string()), "{answer}");

    let ollama = json!({"model": "tiny", "stream": false, "options": {"temperature": 0, "num_predict": 8},
        "messages": [{"role": "user", "content": "What is this?", "images": [a]}]});
    let answer = f.ok("/api/chat", &ollama).await;
    assert_eq!(answer["prompt_eval_count"].as_u64(), Some(tokens(&none) + 8), "{answer}");

    let gemini = json!({"contents": [{"role": "user", "parts": [
        {"inline_data": {"mime_type": "image/png", "data": a}}, {"text": "What is this?"},
    ]}], "generationConfig": {"temperature": 0, "maxOutputTokens": 8}});
    let answer = f.ok("/v1beta/models/tiny:generateContent", &gemini).await;
    assert_eq!(answer["usageMetadata"]["promptTokenCount"].as_u64(), Some(tokens(&none) + 8), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_model_says_of_itself_and_refuses() {
    let Some(f) = fixture().await else { return };
    let (_, props) = f.get("/props").await;
    assert_eq!(props["modalities"]["vision"], true, "{props}");
    let shown = f.ok("/api/show", &json!({"model": "tiny"})).await;
    assert!(shown["capabilities"].as_array().unwrap().contains(&json!("vision")), "{shown}");
    let bad = |data: &str| {
        let url = format!("data:image/png;base64,{}", BASE64.encode(data));
        chat(json!([{"type": "image_url", "image_url": {"url": url}}]))
    };
    for (data, why) in [("no image", "PNG, JPEG, WebP or GIF"), ("\u{89}PNG", "image")] {
        let (status, answer) = f.post("/v1/chat/completions", &bad(data)).await;
        assert!(status == 400 && answer.to_string().contains(why), "{status}: {answer}");
    }
    let by_address = json!([{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]);
    let (status, answer) = f.post("/v1/chat/completions", &chat(by_address)).await;
    assert_eq!(status, 400, "{answer}");
    // A mark that the user types is text.
    let answer = f.ok("/v1/chat/completions", &chat(json!("What is <|image_pad|>?"))).await;
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > 8, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn videos_are_lists_of_frames_for_models_that_read_them() {
    let place = "{% elif p.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}";
    let Some(f) =
        with_template(&TEMPLATE.replacen("{% else %}{{ p.text }}", &format!("{place}{{{{ p.text }}}}"), 1))
            .await
    else {
        return;
    };
    let url = |name: &str| format!("data:image/png;base64,{}", image(name));
    let (a, small) = (url("100x70.png"), url("64x64.png"));
    let text = |text: &str| json!({"type": "text", "text": text});
    let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let video = json!({"type": "video", "video": [a, a, a], "fps": 0.5});
    let answer = f.ok("/v1/chat/completions", &chat(json!([video, text("What is this?")]))).await;
    // Two pairs, the last frame twice: each has a time, 3 x 2 tokens, and a mark before and after; so has the whole.
    let mut want = tokens(&f.ok("/v1/chat/completions", &chat(json!("What is this?"))).await) + 18;
    for time in ["<1.0 seconds>", "<4.0 seconds>"] {
        let split = f.ok("/tokenize", &json!({"content": time})).await;
        want += split["tokens"].as_array().unwrap().len() as u64;
    }
    assert_eq!(tokens(&answer), want, "{answer}");
    let input = json!({"model": "tiny", "max_output_tokens": 1, "input": [{"role": "user", "content": [
        video, {"type": "input_text", "text": "What is this?"}]}]});
    let of_responses = f.ok("/v1/responses", &input).await;
    assert_eq!(of_responses["usage"]["input_tokens"].as_u64(), Some(tokens(&answer)), "{of_responses}");
    // Images keep their places beside it.
    let image = json!({"type": "image_url", "image_url": {"url": small}});
    let both = f.ok("/v1/chat/completions", &chat(json!([image, video, text("What is this?"), image]))).await;
    assert_eq!(tokens(&both), tokens(&answer) + 2 * 6);

    let one = json!({"type": "video", "video": [a], "fps": 1});
    let mixed = json!({"type": "video", "video": [a, small], "fps": 1});
    for (video, why) in [(one, "at least two frames"), (mixed, "have the same size")] {
        let (status, answer) = f.post("/v1/chat/completions", &chat(json!([video]))).await;
        assert!(status == 400 && answer.to_string().contains(why), "{status}: {answer}");
    }
    // Of all frames together, before they are decoded: a GIF of one dot on a large canvas.
    let dot = b"GIF89a\x34\x08\xd0\x07\x80\0\0\xff\xff\xff\0\0\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;";
    let large = format!("data:image/gif;base64,{}", BASE64.encode(dot));
    let many = json!({"type": "video", "video": vec![large; 256], "fps": 1});
    let (status, answer) = f.post("/v1/chat/completions", &chat(json!([many]))).await;
    assert_eq!(status, 400, "{answer}");
    let why = "is the first of 256 frames of 2100 x 2000 pixels; all together may have 1073741824";
    assert!(answer.to_string().contains(why), "{answer}");
    // A template without videos: refused by name.
    let f = fixture().await.expect("the reference data is there");
    let (status, answer) = f.post("/v1/chat/completions", &chat(json!([video]))).await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer.to_string().contains("reads text and images only; send its frames as images"), "{answer}");
}
