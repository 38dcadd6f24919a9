//! Videos: lists of frames in the forms of Qwen's and vLLM's APIs; encoded videos are refused by name in every dialect.

use octet_api::core::*;
use octet_api::{ApiError, anthropic, gemini, ollama, openai};
use serde_json::{Value, json};

const PNG: &str = "iVBORw0KGgo=";
const JPEG: &str = "/9j/4A==";

fn chat(part: &Value) -> Result<GenerateRequest, ApiError> {
    let content = json!([{"type": "text", "text": "A"}, part, {"type": "text", "text": "B"}]);
    openai::chat::parse(
        json!({"model": "m", "messages": [{"role": "user", "content": content}]}).to_string().as_bytes(),
    )
}

fn responses(part: &Value) -> Result<GenerateRequest, ApiError> {
    let input = json!([{"role": "user", "content": [{"type": "input_text", "text": "A"}, part]}]);
    openai::responses::parse(json!({"model": "m", "input": input}).to_string().as_bytes())
}

fn png() -> String {
    format!("data:image/png;base64,{PNG}")
}

/// Numbers, times and types of the frames.
fn frames(r: &GenerateRequest) -> Vec<(usize, f64, Option<String>)> {
    let frame = |image: &Image| {
        let frame = image.frame.expect("a frame");
        (frame.number, frame.at_s, image.media_type().map(Into::into))
    };
    r.images().map(frame).collect()
}

#[test]
fn lists_of_frames_have_times() {
    let of = |i: usize, at_s: f64| (i, at_s, Some("image/png".to_string()));
    let with = |more: Value| {
        let mut part = json!({"type": "video", "video": [png(), {"url": png()}, png()]});
        part.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        part
    };
    for parse in [chat, responses] {
        for (more, times_s) in [
            (json!({"fps": 2}), [0.0, 0.5, 1.0]),
            (json!({"fps": 0.5}), [0.0, 2.0, 4.0]),
            (json!({"sample_fps": 4}), [0.0, 0.25, 0.5]),
            (json!({"times": [1, 1.5, 60]}), [1.0, 1.5, 60.0]),
        ] {
            let r = parse(&with(more.clone())).unwrap();
            let want: Vec<_> = times_s.iter().enumerate().map(|(i, at_s)| of(i, *at_s)).collect();
            assert_eq!(frames(&r), want, "{more}");
            assert!(r.warnings.is_empty(), "{more}: {:?}", r.warnings);
            let at = &r.images().nth(1).unwrap().at;
            assert!(at.ends_with("content[1].video[1]"), "{at}");
        }
        let r = parse(&with(json!({}))).unwrap();
        assert_eq!(frames(&r)[2].1, 1.0);
        assert!(r.warnings[0].message.contains("two frames a second are assumed"), "{:?}", r.warnings);
        for (more, why) in [
            (json!({"times": [0, 1]}), "has 2 times for 3 frames"),
            (json!({"times": [0, 2, 1]}), "before the one that precedes it"),
            (json!({"times": [0, -1, 1]}), "times[1]"),
            (json!({"fps": 0}), "above 0"),
            (json!({"fps": "fast"}), "fps"),
            (json!({"video": [png(), 7]}), "video[1]"),
            (json!({"video": []}), "has no frames"),
            (json!({"video": vec![png(); 257]}), "has 257 frames; at most 256 are read"),
            (json!({"fps": 1e-310}), "puts a frame behind 1000000 seconds"),
            (json!({"video": [png(), "data:application/pdf;base64,JVBERi0x"]}), "video[1]' must be an image"),
            (
                json!({"video": [{"url": "data:video/mp4;base64,AAAA"}, png()]}),
                "video[0].url' must be an image",
            ),
        ] {
            let e = parse(&with(more.clone())).unwrap_err();
            assert!(e.message.contains(why), "{more}: {e}");
        }
    }
    // What is stored of a request is the same video.
    let r = responses(&with(json!({"times": [1, 1.5, 60]}))).unwrap();
    let content = openai::responses::body(&r, "m").unwrap().json["input"][0]["content"].clone();
    let video = json!({"type": "video", "video": [png(), png(), png()], "times": [1.0, 1.5, 60.0]});
    assert_eq!(content, json!([{"type": "input_text", "text": "A"}, video]));
    assert_eq!(frames(&responses(&video).unwrap()), frames(&r));
    // Breakpoints of both forms are behind the last frame.
    for name in ["prompt_cache_breakpoint", "cache_control"] {
        let r = chat(&with(json!({"fps": 1, name: {"ttl": "1h"}}))).unwrap();
        let content = &r.chat().unwrap().messages[0].content;
        let cached = content.iter().map(|p| matches!(p, Part::Image { cache: Some(_), .. }));
        assert!(cached.eq([false, false, false, true, false]), "{name}: {content:?}");
    }
    // vLLM's form: JPEG images, separated by commas.
    let url = format!("data:video/jpeg;base64,{JPEG},{JPEG}");
    let r = chat(&json!({"type": "video_url", "video_url": {"url": url}, "fps": 1})).unwrap();
    let jpeg = Some("image/jpeg".to_string());
    assert_eq!(frames(&r), [(0, 0.0, jpeg.clone()), (1, 1.0, jpeg)]);
}

#[test]
fn templates_have_one_place_for_a_video() {
    let part = json!({"type": "video", "video": [png(), png()], "fps": 2});
    let r = chat(&part).unwrap();
    let text = |text: &str| json!({"type": "text", "text": text});
    let sees = Roles { images: true, videos: true, ..Roles::default() };
    let t = r.chat().unwrap().template(sees).unwrap();
    assert_eq!(t.messages[0]["content"], json!([text("A"), {"type": "video"}, text("B")]));
    assert_eq!(t.images.len(), 2);
    for (roles, why) in [
        (
            Roles { videos: false, ..sees },
            "is a frame of a video, and this model reads text and images only; send its frames as images",
        ),
        (Roles::default(), "is a frame of a video, and this model reads text only; send text"),
    ] {
        let e = r.chat().unwrap().template(roles).unwrap_err();
        assert!(e.message.contains(why), "{e}");
        assert_eq!(e.param.as_deref(), Some("messages[0].content[1].video[0]"));
        // Where it is not asked about, one text stands in its place.
        let mut later = r.chat().unwrap().clone();
        later.messages.push(Message::text(Role::Assistant, "C"));
        later.messages.push(Message::text(Role::User, "D"));
        let t = later.template(roles).unwrap();
        let content = t.messages[0]["content"].as_array().unwrap();
        assert!(
            content.len() == 3 && content[1]["text"].as_str().unwrap().starts_with("[Here was a video."),
            "{content:?}"
        );
        assert_eq!((t.images.len(), t.warnings.len()), (0, 1));
    }
}

#[test]
fn encoded_videos_are_refused_with_what_to_send_instead() {
    let mp4 = "data:video/mp4;base64,AAAAGGZ0eXBtcDQy";
    let frames = "{\"type\": \"video\", \"video\": [image, image, ...], \"fps\": 2}";
    for part in [
        json!({"type": "video_url", "video_url": {"url": "https://x/a.mp4"}}),
        json!({"type": "video_url", "video_url": {"url": mp4}}),
        json!({"type": "video_url", "video_url": "https://x/a.mp4"}),
        json!({"type": "video", "video": "https://x/a.mp4"}),
        json!({"type": "input_video", "video_url": mp4}),
        // LangChain's forms, and others without a list.
        json!({"type": "video", "base64": "AAAA", "mime_type": "video/mp4"}),
        json!({"type": "video", "file_id": "file-1"}),
        json!({"type": "video", "video": {"file_id": "file-1"}}),
        json!({"type": "input_video", "input_video": {"data": "AAAA"}}),
    ] {
        // Where it is not asked about, a text stands in its place.
        let earlier = json!([{"role": "user", "content": [part]}, {"role": "assistant", "content": "A"}, {"role": "user", "content": "B"}]);
        let r =
            openai::chat::parse(json!({"model": "m", "messages": earlier}).to_string().as_bytes()).unwrap();
        assert_eq!((r.images().count(), r.warnings.len()), (0, 1), "{part}: {:?}", r.warnings);
        for parse in [chat, responses] {
            let e = parse(&part).unwrap_err();
            assert!(
                e.message.contains("videos are not decoded here") && e.message.contains(frames),
                "{part}: {e}"
            );
        }
    }
    // As a file, or as an image.
    let file = json!({"type": "file", "file": {"file_data": "data:video/mp4;base64,AAAAGP/0eXBtcDQy"}});
    let e = chat(&file).unwrap_err();
    assert!(e.message.contains("is a video, which is not decoded here: send its frames as images"), "{e}");
    let r = chat(&json!({"type": "image_url", "image_url": {"url": mp4}})).unwrap();
    let e = r.chat().unwrap().template(Roles { images: true, videos: true, ..Roles::default() }).unwrap_err();
    assert!(e.message.contains("is a video") && e.message.contains("send its frames as images"), "{e}");

    let of_gemini = |part: Value| {
        let body = json!({"model": "m", "contents": [{"role": "user", "parts": [part]}]});
        gemini::parse(body.to_string().as_bytes())
    };
    for part in [
        json!({"inlineData": {"mimeType": "video/mp4", "data": "AAAA"}, "videoMetadata": {"fps": 1}}),
        json!({"file_data": {"mime_type": "video/mp4", "file_uri": "gs://a/b"}}),
    ] {
        let e = of_gemini(part.clone()).unwrap_err();
        assert!(
            e.message.contains("videos are not decoded here; send its frames as pictures"),
            "{part}: {e}"
        );
    }
    let body = json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [
        {"type": "document", "source": {"type": "base64", "media_type": "video/mp4", "data": "AAAAGP/0eXBtcDQy"}}]}]});
    let e = anthropic::messages::parse(body.to_string().as_bytes()).unwrap_err();
    assert!(e.message.contains("send its frames as images"), "{e}");
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "A", "images": [mp4]}]});
    let ollama::Call::Generate(r) = ollama::chat::parse(body.to_string().as_bytes()).unwrap() else {
        panic!("not a load request");
    };
    let e = r.chat().unwrap().template(Roles { images: true, ..Roles::default() }).unwrap_err();
    assert!(e.message.contains("is a video") && e.message.contains("send its frames as images"), "{e}");
}
