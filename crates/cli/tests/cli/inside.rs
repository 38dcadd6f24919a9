//! The built-in model (`models/fox`): found without a name, a network or a cache; trained, so its answers make sense.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::common::Place;

const SHORT: &[&str] = &["--temp", "0", "-t", "1", "-c", "1024", "-n", "300"];

fn answer(args: &[&str]) -> Value {
    let ran = Place::new().octet(&[&["run", "--json"], SHORT, args].concat()).ok();
    assert!(ran.stderr.starts_with("fox: the tiny model built into octet"), "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {}", ran.stdout))
}

#[test]
fn the_readmes_first_command_answers() {
    let told = answer(&["Tell me a story about a fox."]);
    assert_eq!(told["finish_reason"], "stop");
    let text = told["content"].as_str().unwrap();
    assert!(text.contains(" fox ") && text.split_whitespace().count() > 30, "{text}");
    let thought = told["reasoning_content"].as_str().unwrap();
    assert!(thought.contains("fox"), "{thought}");
    let without = answer(&["--no-think", "Tell me a story about a fox."]);
    assert!(without.get("reasoning_content").is_none_or(Value::is_null), "{without}");
}

#[test]
fn a_name_is_a_model_and_a_text_with_a_space_is_none() {
    let place = Place::with_model("llama", "q8_0");
    let run = |args: &[&str]| place.octet(&[&["run"], SHORT, args].concat());
    let inside = run(&["-m", "fox", "Hello", "there"]).ok();
    assert_eq!(inside.stderr, "", "no note where it is named");
    let first = run(&["Hello there"]).ok();
    assert!(first.stdout == inside.stdout && first.stderr.starts_with("fox: "), "{}", first.stderr);
    assert_eq!(run(&["Hello there"]).ok().stderr, "", "the note comes once a day");
    assert_eq!(run(&["FOX", "Hello there"]).ok().stdout, inside.stdout);
    let other =
        place.octet_with(&[&["run"], SHORT, &["Hello there"]].concat(), "", &[("OCTET_MODEL", "model.gguf")]);
    assert_eq!(other.ok().stdout, run(&["model.gguf", "Hello there"]).ok().stdout);
    run(&["Hello", "there"]).fails(1, &["unknown model"]);
    run(&["a b.gguf", "Hello"]).fails(1, &["a b.gguf"]);
    std::fs::rename(place.path("model.gguf"), place.path("my model")).unwrap();
    assert_ne!(run(&["my model", "Hello there"]).ok().stdout, inside.stdout, "a file of this name");
}

#[test]
fn other_commands_know_it() {
    let place = Place::new();
    let shown: Value = serde_json::from_str(&place.octet(&["show", "--json"]).ok().stdout).unwrap();
    assert_eq!((&shown["architecture"], &shown["mtp_layers"]), (&json!("qwen35moe"), &json!(1)));
    assert!(shown["bytes"].as_u64().unwrap() < 12_000_000);
    assert!(place.octet(&["list"]).ok().stdout.contains("fox\t"));
    assert!(place.octet(&["pull", "fox"]).ok().stderr.contains("nothing to download"));
    place.octet(&["rm", "fox"]).fails(1, &["built in"]);
    let bench = ["bench", "-p", "16", "-n", "4", "-r", "1", "-t", "1", "--no-bandwidth", "-o", "json"];
    place.octet(&bench).ok();
}

#[test]
fn input_that_stays_open_is_named() {
    let place = Place::new();
    let mut command = place.command(&[&["run"], SHORT, &["Tell me a story about a fox."]].concat());
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("waiting for the end of standard input")));
    drop(child.stdin.take());
    lines.for_each(drop);
    assert!(child.wait().unwrap().success());
}
