//! `octet experts` with the built-in model, whose experts have specialised, and its errors.

use serde_json::Value;

use crate::common::Place;

const PROMPTS: &str = r#"{"domain": "stories", "prompt": "Tell me a story about a fox.", "answer": "Once there was a fox who lived in a wood. One day the fox found a red apple."}

{"domain": "code", "text": "def double(x):\n    return 2 * x\n\ndef is_even(n):\n    return n % 2 == 0\n"}
{"domain": "stories", "text": "The bear was tired. It slept all day, and in the evening it met the fox."}
"#;

#[test]
fn experts_differ_between_domains() {
    let place = Place::new();
    place.write("prompts.jsonl", PROMPTS);
    let args = ["experts", "fox", "--prompts", "prompts.jsonl", "-t", "1"];
    let ran = place.octet(&[&args[..], &["--json", "--svg", "map.svg"]].concat()).ok();
    let all: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let domains = all["domains"].as_array().expect("a list");
    assert_eq!(domains.iter().map(|d| d["name"].as_str().unwrap()).collect::<Vec<_>>(), ["stories", "code"]);
    let per_token = all["experts_per_token"].as_u64().unwrap();
    for d in domains {
        for layer in d["layers"].as_array().unwrap().iter().take(8) {
            let chosen: u64 = layer.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum();
            assert_eq!(
                chosen,
                per_token * d["tokens"].as_u64().unwrap(),
                "every token chooses in each layer"
            );
        }
    }
    // Stories and code are further apart than two halves of the same stories could be.
    let information = |l: &Value| l["mutual_information_bits"].as_f64().unwrap();
    let layers = all["layers"].as_array().unwrap();
    assert!(layers.len() == 8 && layers.iter().all(|l| information(l) > 0.05), "{layers:?}");

    let svg = std::fs::read_to_string(place.path("map.svg")).expect("a picture");
    assert!(svg.starts_with("<svg") && svg.contains(">code: "), "{}", &svg[..200]);
    let table = place.octet(&args).ok().stdout;
    assert!(table.lines().count() >= 8 + 4 && table.contains("code: "), "{table}");
}

#[test]
fn plain_lines_are_prompts() {
    let place = Place::new();
    place.write("stories.txt", "Tell me a story about a fox.\n\nTell me a story about a bear.\n");
    let ran = place.octet(&["experts", "--prompts", "stories.txt", "-t", "1", "--json"]).ok();
    let all: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(all["domains"][0]["name"], "stories");
    assert_eq!(all["domains"].as_array().unwrap().len(), 1);
}

#[test]
fn wrong_lines_are_named() {
    let place = Place::new();
    let experts = |text: &str| {
        place.write("prompts.jsonl", text);
        place.octet(&["experts", "--prompts", "prompts.jsonl"])
    };
    experts("").fails(1, &["no prompts"]);
    experts("{\"domain\": \"a\", \"text\": \"b\"}\n{\"domain\": \"a\"}")
        .fails(1, &["line 2", "'prompt'", "'text'"]);
    experts("{\"domain\": \"a\", \"txt\": \"b\"}").fails(1, &["line 1", "txt"]);
    experts("{\"domain\": \"a\", \"text\": \"b\", \"prompt\": \"c\"}").fails(1, &["line 1"]);
    let dense = Place::with_model("llama", "q8_0");
    dense.write("prompts.jsonl", PROMPTS);
    let ran = dense.octet(&["experts", "model.gguf", "--prompts", "prompts.jsonl"]);
    ran.fails(1, &["no experts"]);
}
