//! `octet run --image`, `octet show` and projectors, on tiny models of the reference data.

use std::path::PathBuf;

use octet_testkit::shared;
use serde_json::{Value, json};

use crate::common::{Place, Ran};

/// A template that writes a mark for each image.
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}\
    {% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}\
    {% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A folder with a model and its projector, a template and two images; `None` without reference data.
fn place() -> Option<Place> {
    let file = |name: &str| shared(&format!("zoo/vision/{name}"));
    let place = Place::new();
    let copy = |from: PathBuf, to: &str| std::fs::copy(from, place.path(to)).unwrap();
    copy(file("gguf/qwen35moe_vl.gguf")?, "model.gguf");
    copy(file("gguf/qwen35moe_vl.mmproj.gguf")?, "mmproj-F16.gguf");
    copy(file("images/100x70.png")?, "a.png");
    copy(file("images/64x64.png")?, "b.png");
    place.write("template.jinja", TEMPLATE);
    Some(place)
}

fn run(place: &Place, more: &[&str]) -> Ran {
    let usual =
        ["run", "model.gguf", "--chat-template", "template.jinja", "--temp", "0", "-n", "8", "-t", "1"];
    place.octet(&[&usual, more].concat())
}

fn tokens(ran: Ran) -> u64 {
    let json: Value = serde_json::from_str(&ran.ok().stdout).unwrap();
    json["usage"]["prompt_tokens"].as_u64().unwrap()
}

#[test]
fn an_image_is_a_part_of_the_prompt() {
    let Some(place) = place() else { return };
    let small = ["--image-min-tokens", "1"];
    let with = |images: &[&str]| {
        let images = images.iter().flat_map(|name| ["--image", name]);
        let args: Vec<&str> = small.into_iter().chain(images).chain(["--json", "What is this?"]).collect();
        run(&place, &args)
    };
    // Multiples of 32 pixels: 3 x 2 tokens, and 2 x 2; and marks around each.
    let (none, one, two) = (tokens(with(&[])), tokens(with(&["a.png"])), tokens(with(&["a.png", "b.png"])));
    assert_eq!((one - none, two - one), (6 + 2, 4 + 2));
    // Enlarged to 64 tokens by default.
    assert!(tokens(run(&place, &["--json", "--image", "b.png", "What is this?"])) >= none + 64);
    let text = |image: &str| run(&place, &["--image", image, "What is this?"]).ok().stdout;
    assert_ne!(text("a.png"), text("b.png"), "it sees");
}

#[test]
fn what_cannot_be_read_is_refused() {
    let Some(place) = place() else { return };
    place.write("c.png", "no image");
    run(&place, &["--image", "none.png", "Hi"]).fails(1, &["none.png"]);
    run(&place, &["--image", "c.png", "Hi"]).fails(1, &["c.png", "PNG, JPEG, WebP or GIF"]);
    run(&place, &["--image", "a.png", "--no-mmproj", "Hi"]).fails(1, &["reads no images", "--mmproj"]);
    run(&place, &["--mmproj", "model.gguf", "Hi"]).fails(1, &["model.gguf", "clip"]);
    run(&place, &["--mmproj", "none.gguf", "Hi"]).fails(1, &["none.gguf"]);
    // A template that does not know images.
    let plain = ["run", "model.gguf", "--image", "a.png", "-n", "4", "-t", "1", "Hi"];
    place.octet(&plain).fails(1, &["0 places for images", "<|image_pad|>", "--chat-template"]);
}

/// A projector that cannot be used does not stop a model that needs none; the next one is tried.
#[test]
fn broken_projectors_are_left_out() {
    let Some(place) = place() else { return };
    let whole = std::fs::read(place.path("mmproj-F16.gguf")).unwrap();
    let other = shared("zoo/vision/gguf/gemma3_vl.mmproj.gguf").unwrap();
    let name = "mmproj-model.gguf";
    // One of a kind that does not exist, and one whose last tensor has another name.
    let renamed = |from: &str, to: &str| {
        let at = whole.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
        [&whole[..at], to.as_bytes(), &whole[at + from.len()..]].concat()
    };
    for (bytes, why) in [
        (b"no projector".to_vec(), "GGUF"),
        (whole[..whole.len() - 100].to_vec(), "end"),
        (renamed("qwen3vl_merger", "qwen9vl_merger"), "qwen9vl_merger"),
        (renamed("mm.2.weight", "mm.9.weight"), "mm.2.weight"),
    ] {
        std::fs::remove_file(place.path("mmproj-F16.gguf")).ok();
        std::fs::write(place.path(name), bytes).unwrap();
        let said = run(&place, &["Hi"]).ok().stderr;
        for word in [name, "reads no images", why, "--no-mmproj"] {
            assert!(said.contains(word), "no '{word}' in: {said}");
        }
        let said = run(&place, &["--no-mmproj", "Hi"]).ok().stderr;
        assert!(!said.contains(name), "{said}");
        run(&place, &["--image", "a.png", "Hi"]).fails(1, &["reads no images", name, why, "--mmproj"]);
        run(&place, &["--mmproj", name, "Hi"]).fails(1, &[name, why]);
        // The next one, in spite of a neighbour of another family.
        std::fs::write(place.path("mmproj-F16.gguf"), &whole).unwrap();
        std::fs::copy(&other, place.path("mmproj-BF16.gguf")).unwrap();
        let said = run(&place, &["--image", "a.png", "Hi"]).ok().stderr;
        assert!(
            said.contains(name) && said.contains("another projector") && !said.contains("BF16"),
            "{said}"
        );
        std::fs::remove_file(place.path("mmproj-BF16.gguf")).unwrap();
    }
}

/// A projector has embeddings of the model's width, but is of another family: the model takes no notice of it.
#[test]
fn projectors_of_other_families_are_not_taken() {
    let Some(place) = place() else { return };
    let other = shared("zoo/vision/gguf/gemma3_vl.mmproj.gguf").unwrap();
    std::fs::copy(other, place.path("mmproj-F16.gguf")).unwrap();
    let said = run(&place, &["Hi"]).ok().stderr;
    assert!(!said.contains("mmproj"), "{said}");
    let words = ["mmproj-F16.gguf", "another model", "'gemma3'", "'qwen35moe'"];
    run(&place, &["--image", "a.png", "Hi"]).fails(1, &words);
    run(&place, &["--mmproj", "mmproj-F16.gguf", "Hi"])
        .fails(1, &["mmproj-F16.gguf", "'gemma3'", "'qwen35moe'"]);
    // One that reads no images at all.
    let text = Place::with_model("llama", "q8_0");
    std::fs::write(text.path("mmproj-F16.gguf"), "no projector").unwrap();
    std::fs::copy(place.path("a.png"), text.path("a.png")).unwrap();
    let usual = ["run", "model.gguf", "--temp", "0", "-n", "2", "-t", "1", "Hi"];
    let said = text.octet(&usual).ok().stderr;
    assert!(said.contains("mmproj-F16.gguf") && said.contains("reads no images"), "{said}");
    std::fs::copy(place.path("mmproj-F16.gguf"), text.path("mmproj-F16.gguf")).unwrap();
    let said = text.octet(&usual).ok().stderr;
    assert!(!said.contains("mmproj"), "{said}");
}

#[test]
fn show_names_the_projector() {
    let Some(place) = place() else { return };
    let shown = place.octet(&["show", "model.gguf"]).ok().stdout;
    assert!(
        shown.contains("mmproj-F16.gguf (qwen3vl_merger)") && shown.contains("for 1920 x 1080"),
        "{shown}"
    );
    let json: Value =
        serde_json::from_str(&place.octet(&["show", "model.gguf", "--json"]).ok().stdout).unwrap();
    assert_eq!(json["images"]["projector"], "qwen3vl_merger");
    assert!(json["images"]["total_with_model"].as_u64() > json["memory"]["total"].as_u64(), "{json}");
    // The memory on a device includes it.
    let shown = place.octet(&["show", "model.gguf", "--device", "cpu"]).ok().stdout;
    assert!(shown.contains(" for images\n"), "{shown}");
    let json: Value =
        serde_json::from_str(&place.octet(&["show", "model.gguf", "--device", "cpu", "--json"]).ok().stdout)
            .unwrap();
    let device = &json["devices"][0];
    assert_eq!(device["total"], json["images"]["total_with_model"], "{json}");
    let bytes = |name: &str| json["images"][name].as_u64().expect("a number");
    assert_eq!(device["images"].as_u64(), Some(bytes("bytes") + bytes("work_bytes")), "{json}");
    if let Some(index) = octet_testkit::vulkan_device() {
        let device = format!("vulkan:{index}");
        let shown = place.octet(&["show", "model.gguf", "--device", &device]).ok().stdout;
        assert!(shown.contains(" are for images, which it reads\n"), "{shown}");
    }
    let without = place.octet(&["show", "model.gguf", "--no-mmproj"]).ok().stdout;
    assert!(!without.contains("mmproj"), "{without}");
}

#[test]
fn conversations_with_images_are_saved_and_continued() {
    let Some(place) = place() else { return };
    let usual =
        ["run", "model.gguf", "--chat-template", "template.jinja", "--temp", "0", "-n", "4", "-t", "1", "-i"];
    let typed = "/image a.png\nWhat is this?\nAnd b.png here?\n/save chat.json\n/bye\n";
    place.octet_with(&usual, typed, &[]).ok();
    let saved: Value =
        serde_json::from_str(&std::fs::read_to_string(place.path("chat.json")).unwrap()).unwrap();
    let asked = |i: usize| saved["messages"][i]["content"].clone();
    assert_eq!(asked(0)[1], json!({"type": "text", "text": "What is this?"}));
    assert_eq!(asked(2)[1], json!({"type": "text", "text": "And here?"}));
    assert!(asked(2)[0]["image_url"]["url"].as_str().unwrap().starts_with("data:image/png;base64,"));
    run(&place, &["--messages", "chat.json", "Thanks."]).ok();
}
