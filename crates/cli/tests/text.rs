//! `octet run`, `tokenize`, `template` and `perplexity` on tiny models of random weights.

mod common;

use common::Place;
use serde_json::{Value, json};

/// Flags that make answers short and always the same.
const GREEDY: &[&str] = &["--temp", "0", "-n", "12", "-t", "1", "-c", "512"];

fn run(place: &Place, more: &[&str]) -> common::Ran {
    place.octet(&[&["run", "model.gguf"], GREEDY, more].concat())
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn greedy_answers_are_the_same_every_time() {
    let place = Place::with_model("qwen35moe", "q4_k_m");
    let first = run(&place, &["Why is the sky blue?"]).ok();
    assert!(!first.stdout.is_empty());
    assert_eq!(first.stderr, "", "no progress and no summary where standard error is no terminal");
    assert_eq!(run(&place, &["Why", "is the sky", "blue?"]).ok().stdout, first.stdout, "words are joined");
    let ran =
        place.octet_with(&[&["run", "-m", "model.gguf"], GREEDY].concat(), "Why is the sky blue?\n", &[]);
    assert_eq!(ran.ok().stdout, first.stdout, "from standard input");
    place.write("question.txt", "Why is the sky blue?");
    assert_eq!(run(&place, &["-f", "question.txt"]).ok().stdout, first.stdout, "from a file");
    assert_eq!(
        run(&place, &["-ub", "3", "Why is the sky blue?"]).ok().stdout,
        first.stdout,
        "in small steps"
    );
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let place = Place::with_model("llama", "q8_0");
    let with = |seed: &str| {
        let args = ["run", "model.gguf", "-n", "24", "-t", "1", "--temp", "1.5", "--seed", seed, "Hi"];
        place.octet(&args).ok().stdout
    };
    assert_eq!(with("7"), with("7"));
    assert_ne!(with("7"), with("8"));
}

#[test]
fn json_tells_usage_timings_and_logprobs() {
    let place = Place::with_model("qwen3", "q8_0");
    let out = json_of(&run(&place, &["--json", "--logprobs", "3", "Hello"]).ok().stdout);
    assert_eq!(out["finish_reason"], "length");
    assert_eq!(out["usage"]["completion_tokens"], 12);
    assert!(out["usage"]["prompt_tokens"].as_u64().unwrap() > 5);
    let entries = out["logprobs"]["content"].as_array().unwrap();
    assert_eq!(entries.len(), 12);
    for entry in entries {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!(entry["logprob"], top[0]["logprob"], "greedy takes the likeliest");
    }
    assert!(out["timings"]["predicted_per_second"].as_f64().unwrap() > 0.0);
    run(&place, &["--logprobs", "3", "Hello"]).fails(2, &["--json"]);
}

#[test]
fn a_summary_comes_when_asked_for() {
    let place = Place::with_model("qwen3moe", "q4_k_m");
    let ran = run(&place, &["-v", "Hello"]).ok();
    assert!(ran.stderr.contains("12 tokens (") && ran.stderr.contains("first token after"), "{}", ran.stderr);
}

#[test]
fn a_chat_keeps_and_saves_what_was_said() {
    let place = Place::with_model("qwen35moe", "q8_0");
    let typed = "Hello\n/set num_predict 3\n\"\"\"two\nlines\"\"\"\n/save chat.json\n/set\n/nonsense\n/set top_p 7\n/bye\nnever\n";
    let args = [&["run", "model.gguf", "-i", "--system", "Be brief."], GREEDY].concat();
    let ran = place.octet_with(&args, typed, &[]).ok();
    let chat = json_of(&std::fs::read_to_string(place.path("chat.json")).unwrap());
    let messages = chat["messages"].as_array().unwrap();
    let roles: Vec<&str> = messages.iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
    assert_eq!(
        (&messages[0]["content"], &messages[3]["content"]),
        (&json!("Be brief."), &json!("two\nlines"))
    );
    for said in [&messages[2], &messages[4]] {
        assert!(
            ran.stdout.contains(said["content"].as_str().unwrap().trim_end_matches('\n')),
            "{}",
            ran.stdout
        );
    }
    for word in ["num_predict 3", "no /nonsense", "top_p", "chat.json: 5 messages"] {
        assert!(ran.stderr.contains(word), "no '{word}' in {}", ran.stderr);
    }
    // The first answer of a chat is what a single question gets.
    let once = run(&place, &["--system", "Be brief.", "Hello"]).ok().stdout;
    assert!(ran.stdout.starts_with(&once), "{once:?} {:?}", ran.stdout);

    let typed = "/load chat.json\n/regenerate\n/save again.json\n/clear\n/regenerate\n";
    let args = [&["run", "model.gguf", "-i", "-n", "3"], &GREEDY[..2], &GREEDY[4..]].concat();
    let ran = place.octet_with(&args, typed, &[]).ok();
    let again = json_of(&std::fs::read_to_string(place.path("again.json")).unwrap());
    assert_eq!(again["messages"], chat["messages"], "greedy answers are the same again");
    assert!(ran.stderr.contains("nothing to answer yet"), "{}", ran.stderr);
}

#[test]
fn a_question_too_long_is_taken_back_and_the_chat_goes_on() {
    let place = Place::with_model("qwen2", "q8_0");
    let typed = format!("{}\nHi\n/save chat.json\n", "long ".repeat(400));
    let args = ["run", "model.gguf", "-i", "-c", "128", "-n", "2", "--temp", "0", "-t", "1"];
    let ran = place.octet_with(&args, &typed, &[]).ok();
    assert!(ran.stderr.contains("--ctx-size"), "{}", ran.stderr);
    let chat = json_of(&std::fs::read_to_string(place.path("chat.json")).unwrap());
    assert_eq!(chat["messages"].as_array().unwrap().len(), 2);
    place.octet(&["run", "model.gguf", "-c", "128", &"long ".repeat(400)]).fails(1, &["--ctx-size", "128"]);
}

#[test]
fn texts_go_on_without_a_template() {
    let place = Place::with_model("llama", "f32");
    let raw = run(&place, &["--raw", "Once upon a time"]).ok().stdout;
    assert_ne!(raw, run(&place, &["Once upon a time"]).ok().stdout);
    run(&place, &["--raw", "--system", "Be brief.", "Once"]).fails(2, &["--raw", "--system"]);
}

#[test]
fn reasoning_is_told_from_the_answer() {
    let place = Place::with_model("qwen3", "q8_0");
    // Whatever the model says after this prompt, it thinks.
    place
        .write("thinks.jinja", "{{ messages[0].content }}{% if add_generation_prompt %}<think>\n{% endif %}");
    let thinks = ["--chat-template", "thinks.jinja"];
    let out = json_of(&run(&place, &[&thinks[..], &["--json", "Hello"]].concat()).ok().stdout);
    assert_eq!(out["content"], "");
    assert!(!out["reasoning_content"].as_str().unwrap().is_empty());
    let shown = run(&place, &[&thinks[..], &["Hello"]].concat()).ok().stdout;
    assert!(shown.starts_with("<think>\n"), "{shown}");
    let hidden = run(&place, &[&thinks[..], &["--hide-thinking", "Hello"]].concat()).ok();
    assert_eq!(hidden.stdout, "");
    assert!(hidden.stderr.contains("thinking"), "{}", hidden.stderr);
}

#[test]
fn stop_strings_end_the_answer() {
    let place = Place::with_model("llama", "q8_0");
    let all = json_of(&run(&place, &["--json", "Hi"]).ok().stdout);
    let text = all["content"].as_str().unwrap();
    let stop: String = text.chars().skip(text.chars().count() / 2).take(2).collect();
    let cut = json_of(&run(&place, &["--json", "--stop", &stop, "Hi"]).ok().stdout);
    assert_eq!(cut["finish_reason"], "stop");
    assert_eq!(cut["content"].as_str(), text.split(&stop).next());
}

#[test]
fn wrong_settings_are_named() {
    let place = Place::with_model("qwen2", "q8_0");
    run(&place, &["--top-p", "1.5", "Hi"]).fails(1, &["top_p", "1.5"]);
    run(&place, &["--temp", "hot", "Hi"]).fails(2, &["--temp", "hot"]);
    run(&place, &["--chat-template-kwargs", "[1]", "Hi"]).fails(2, &["JSON object"]);
    run(&place, &["--chat-template", "none.jinja", "Hi"]).fails(1, &["none.jinja"]);
    run(&place, &[" "]).fails(2, &["prompt is empty"]);
    run(&place, &["-f", "none.txt"]).fails(1, &["none.txt"]);
    place.write("bad.json", "{\"messages\": 1}");
    run(&place, &["--messages", "bad.json", "Hi"]).fails(1, &["bad.json", "messages"]);
}

#[test]
fn tokens_are_shown_and_make_the_text_again() {
    let place = Place::with_model("qwen35moe", "q8_0");
    let text = "Héllo, <|im_end|> world";
    let tokens = json_of(&place.octet(&["tokenize", "model.gguf", text, "--json"]).ok().stdout);
    let tokens = tokens.as_array().unwrap().clone();
    let ids = json_of(&place.octet(&["tokenize", "-m", "model.gguf", text, "--ids-only"]).ok().stdout);
    assert_eq!(ids, tokens.iter().map(|t| t["id"].clone()).collect::<Value>());
    let plain = json_of(&place.octet(&["tokenize", "model.gguf", "Hello, world", "--json"]).ok().stdout);
    let back: String = plain.as_array().unwrap().iter().map(|t| t["text"].as_str().unwrap()).collect();
    assert_eq!(back, "Hello, world");
    let special = json_of(&place.octet(&["tokenize", "model.gguf", text, "--special", "--json"]).ok().stdout);
    let has_end = |tokens: &Value| tokens.as_array().unwrap().iter().any(|t| t["text"] == "<|im_end|>");
    assert!(has_end(&special) && !has_end(&Value::Array(tokens)));
    let ran = place.octet_with(&["tokenize", "model.gguf", "-"], "Hello", &[]).ok();
    assert!(ran.stdout.contains("token"), "{}", ran.stdout);
    place.octet(&["tokenize", "model.gguf"]).fails(2, &["no text"]);
}

#[test]
fn templates_are_rendered() {
    let place = Place::with_model("qwen35moe", "q8_0");
    let text =
        place.octet(&["template", "model.gguf", "--user", "Hi <|im_end|>", "--system", "Be brief."]).ok();
    let prompt = text.stdout;
    assert!(prompt.contains("Be brief.") && prompt.contains("Hi <|im_end|>"), "{prompt}");
    assert!(prompt.trim_end().ends_with("<|im_start|>assistant"), "{prompt}");
    let without = place.octet(&["template", "model.gguf", "-u", "Hi", "--no-generation-prompt"]).ok().stdout;
    assert!(without.trim_end().ends_with("<|im_end|>"), "{without}");

    let chat = json!({"messages": [{"role": "system", "content": "A"}, {"role": "user", "content": "B"}]});
    place.write("chat.json", &chat.to_string());
    let from_file = place.octet(&["template", "model.gguf", "--messages", "chat.json"]).ok().stdout;
    assert_eq!(from_file, place.octet(&["template", "model.gguf", "-sys", "A", "-u", "B"]).ok().stdout);
    // What a user types never becomes structure.
    let tokens = place.octet(&["template", "model.gguf", "-u", "<|im_end|>", "--tokens"]).ok().stdout;
    let ends = tokens.lines().filter(|l| l.ends_with("\"<|im_end|>\"")).count();
    assert_eq!(ends, 1, "{tokens}");

    place.write(
        "kwargs.jinja",
        "{{ messages[0].content }} {{ tone }} {{ enable_thinking }} {{ tools | length }}",
    );
    place.write("tools.json", "[{\"type\": \"function\"}]");
    let own = place.octet(&[
        "template",
        "model.gguf",
        "-u",
        "Hi",
        "--chat-template",
        "kwargs.jinja",
        "--kwargs",
        "{\"tone\": \"low\"}",
        "--no-think",
        "--tools",
        "tools.json",
    ]);
    let own = own.ok().stdout;
    assert!(own.starts_with("Hi low ") && own.to_lowercase().contains("false 1"), "{own}");
    place.octet(&["template", "model.gguf", "--source"]).ok();
    place.octet(&["template", "model.gguf"]).fails(2, &["--user"]);
}

#[test]
fn perplexity_of_random_weights_is_about_the_vocabulary() {
    let place = Place::with_model("qwen3", "f32");
    place.write("text.txt", &"The quick brown fox jumps over the lazy dog. ".repeat(4));
    let whole = json_of(&place.octet(&["perplexity", "model.gguf", "-f", "text.txt", "--json"]).ok().stdout);
    let ppl = whole["perplexity"].as_f64().unwrap();
    assert!(ppl > 100.0 && ppl < 3000.0, "{whole}");
    let windows = ["perplexity", "model.gguf", "-f", "text.txt", "--json", "-c", "16"];
    let windows = json_of(&place.octet(&windows).ok().stdout);
    assert!(windows["tokens"].as_u64() < whole["tokens"].as_u64(), "the first of each window does not count");
    let text = place.octet(&["perplexity", "model.gguf", "-f", "text.txt"]).ok().stdout;
    assert!(text.starts_with("perplexity "), "{text}");
    place.write("empty.txt", "");
    place.octet(&["perplexity", "model.gguf", "-f", "empty.txt"]).fails(1, &["empty.txt", "too short"]);
}

#[test]
fn damaged_models_are_named_by_every_command() {
    let place = Place::with_model("llama", "q8_0");
    let whole = std::fs::read(place.path("model.gguf")).unwrap();
    std::fs::write(place.path("short.gguf"), &whole[..whole.len() / 2]).unwrap();
    for args in [
        &["run", "short.gguf", "Hi"][..],
        &["tokenize", "short.gguf", "Hi"],
        &["template", "short.gguf", "-u", "Hi"],
        &["perplexity", "short.gguf", "-f", "short.gguf"],
    ] {
        let ran = place.octet(args).fails(1, &["error: ", "short.gguf"]);
        assert!(ran.stdout.is_empty() && !ran.stderr.contains("panicked"), "{}", ran.stderr);
    }
}
