//! `octet route calibrate` and `octet route explain --send` with scripted servers; and prerouters of the wrong size.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::common::Place;
use serde_json::{Value, json};

/// A server whose models answer according to their names. Counts the requests of each.
struct Scripted {
    base: String,
    requests: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Scripted {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}/v1", listener.local_addr().unwrap());
        let requests: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
        let counts = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let counts = Arc::clone(&counts);
                // A client that disconnects ends its connection's thread.
                std::thread::spawn(move || serve(stream.unwrap(), &counts));
            }
        });
        Self { base, requests }
    }

    fn requests(&self, model: &str) -> usize {
        self.requests.lock().unwrap().get(model).copied().unwrap_or(0)
    }

    /// A file with a cascade `auto` of two models, and a judge.
    fn file(&self, place: &Place, fast: &str, confidence: &str) -> String {
        let entry = |name: &str, model: &str| {
            format!(
                "- {{model_name: {name}, litellm_params: {{model: hosted_vllm/{model}, api_base: '{}'}}}}\n",
                self.base
            )
        };
        let models = [entry("fast", fast), entry("strong", "large"), entry("judge", "judge")].concat();
        let cascade =
            format!("cascades:\n- {{model_name: auto, fast: fast, strong: strong, {confidence}}}\n");
        let file = place.write("octet.yaml", &format!("model_list:\n{models}{cascade}"));
        crate::common::str(&file).to_string()
    }
}

fn serve(mut stream: TcpStream, counts: &Mutex<BTreeMap<String, usize>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim().to_ascii_lowercase();
            if let Some(n) = line.strip_prefix("content-length:") {
                length = n.trim().parse().ok()?;
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let body: Value = serde_json::from_slice(&body).ok()?;
        let model = body["model"].as_str()?.to_string();
        let (kind, text) = answer(&model, &body);
        *counts.lock().unwrap().entry(model).or_default() += 1;
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", text.len());
        stream.write_all((head + &text).as_bytes()).ok()?;
    }
}

/// `small` is right about easy questions, and unsure about others; `large` is always right; `judge` judges correctly; `thinks` gives no text.
fn answer(model: &str, body: &Value) -> (&'static str, String) {
    let prompt = body["messages"].to_string();
    let easy = prompt.contains("easy");
    let (words, probability): (&[&str], f64) = match model {
        "small" if easy => (&["right", " answer"], 0.95),
        "small" => (&["wrong", " answer"], 0.4),
        "large" => (&["right"], 0.9),
        "judge" if prompt.contains("right") => (&["Yes."], 0.9),
        "judge" => (&["No."], 0.9),
        _ => (&[], 0.9),
    };
    let top = |token: &str, p: f64| json!({"token": token, "logprob": p.ln(), "bytes": null});
    let token = |word: &&str| {
        let mut one = top(word, probability);
        one["top_logprobs"] = json!([top(word, probability), top("other", (1.0 - probability) / 2.0)]);
        one
    };
    let head = json!({"id": "a", "object": "chat.completion", "created": 1, "model": model});
    let usage =
        json!({"prompt_tokens": 3, "completion_tokens": words.len(), "total_tokens": 3 + words.len()});
    let with = |more: Value| {
        let mut one = head.clone();
        one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        one
    };
    let thoughts = words.is_empty().then_some("Let me think");
    let finish = if words.is_empty() { "length" } else { "stop" };
    if body["stream"] != true {
        let message = json!({"role": "assistant", "content": words.concat(), "reasoning_content": thoughts});
        let choice = json!({"index": 0, "message": message, "finish_reason": finish});
        return ("application/json", with(json!({"choices": [choice], "usage": usage})).to_string());
    }
    let mut events: Vec<Value> = words
        .iter()
        .map(|word| json!({"index": 0, "delta": {"content": word}, "logprobs": {"content": [token(word)]}}))
        .collect();
    events.extend(thoughts.map(|text| json!({"index": 0, "delta": {"reasoning_content": text}})));
    events.push(json!({"index": 0, "delta": {}, "finish_reason": finish}));
    let mut out = String::new();
    for choice in events {
        let _ = write!(out, "data: {}\n\n", with(json!({"choices": [choice]})));
    }
    let _ = write!(out, "data: {}\n\ndata: [DONE]\n\n", with(json!({"choices": [], "usage": usage})));
    ("text/event-stream", out)
}

/// Twelve easy questions and twelve hard ones, without labels.
fn questions(place: &Place, before: &str) -> String {
    let line = |i: usize| {
        let kind = if i.is_multiple_of(2) { "easy" } else { "hard" };
        json!({"prompt": format!("an {kind} question, number {i}")}).to_string() + "\n"
    };
    let lines: String = (0..24).map(line).collect();
    crate::common::str(&place.write("prompts.jsonl", &format!("{before}{lines}"))).to_string()
}

#[test]
fn a_judge_says_which_answers_are_right() {
    let (place, server) = (Place::new(), Scripted::new());
    let config = server.file(&place, "small", "confidence: {window: 4, signal: top1.min, threshold: 0.1}");
    // A byte order mark, as some editors write, is not part of the first line.
    let prompts = questions(&place, "\u{feff}");
    let calibrate =
        ["route", "calibrate", &prompts, "--config", &config, "--judge", "judge", "--quality", "0.99"];
    let said = place.octet(&calibrate).ok().stdout;
    assert!(said.contains("the fast model is right on 50.0%, the strong one on 100.0%"), "{said}");
    assert!(said.contains("24 by the judge"), "{said}");
    let row = said.lines().find(|line| line.starts_with("top1.min")).unwrap();
    assert!(row.contains("1.000"), "what is unsure is wrong: {row}");
    // Half of the answers are discarded; the rest are all right.
    assert!(said.contains("sends 50.0% to the strong model and is right on 100.0%"), "{said}");
    assert_eq!([server.requests("small"), server.requests("large"), server.requests("judge")], [24, 24, 48]);
    // The printed setting works in a configuration file.
    let setting = said.lines().find(|line| line.starts_with("confidence: {window: 4")).unwrap().to_string();
    let config = server.file(&place, "small", &setting);
    for (kind, verdict, model) in [("easy", "kept", "small"), ("hard", "escalated", "large")] {
        let body =
            json!({"model": "auto", "messages": [{"role": "user", "content": format!("an {kind} one")}]});
        place.write("request.json", &body.to_string());
        let explain = ["route", "explain", "request.json", "--config", &config, "--send"];
        let before = server.requests(model);
        let said = place.octet(&explain).ok().stdout;
        assert!(said.contains(&format!(": {verdict}")) && said.ends_with(" answered\n"), "{said}");
        assert_eq!(server.requests(model), before + 1, "{said}");
        let route: Value =
            serde_json::from_str(&place.octet(&[&explain[..], &["--json"]].concat()).ok().stdout).unwrap();
        let group = if kind == "easy" { "fast" } else { "strong" };
        let chosen = route["steps"].as_array().unwrap().iter().rev().find(|s| s["step"] == "chose");
        assert_eq!(chosen.map(|s| &s["group"]), Some(&json!(group)), "{route}");
    }
}

#[test]
fn unmeasurable_and_impossible_settings_are_reported() {
    let (place, server) = (Place::new(), Scripted::new());
    let config = server.file(&place, "thinks", "confidence: {window: 4, signal: top1.min, threshold: 0.1}");
    let prompts = questions(&place, "");
    let calibrate = ["route", "calibrate", &prompts, "--config", &config];
    place.octet(&calibrate).fails(1, &["none had text within 256 tokens", "--max-tokens"]);
    for share in ["nan", "inf", "0", "1.5", "-1"] {
        let quality = format!("--quality={share}");
        place.octet(&[&calibrate[..], &[&quality]].concat()).fails(2, &["--quality", "above 0, up to 1"]);
    }
}

#[test]
fn a_prerouter_of_another_model_is_refused() {
    let place = Place::new();
    place.write("three.json", r#"{"bias": 0.5, "weights": [1, 2, 3]}"#);
    let file = "model_list:\n- {model_name: fast, litellm_params: {model: octet/fox}}\n- {model_name: strong, litellm_params: {model: ollama/x}}\n\
                cascades:\n- {model_name: auto, fast: fast, strong: strong, prerouter: {file: three.json, threshold: 0.5}}\n";
    place.write("octet.yaml", file);
    let said = ["has 3 weights, and the embeddings of 'fast' have 128 numbers", "octet.yaml:5"];
    place.octet(&["config", "check", "octet.yaml"]).fails(1, &said);
    place.octet(&["serve", "--config", "octet.yaml", "--port", "0"]).fails(1, &said);
    let weights = vec!["0.5"; 128].join(", ");
    place.write("three.json", &format!("{{\"bias\": 0.5, \"weights\": [{weights}]}}"));
    place.octet(&["config", "check", "octet.yaml"]).ok();
}
