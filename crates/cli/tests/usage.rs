//! What a user is told when something is wrong, and the commands around models on this machine.

mod common;

use common::Place;

const COMMANDS: [&str; 11] = [
    "run",
    "bench",
    "show",
    "synth",
    "pull",
    "list",
    "rm",
    "tokenize",
    "template",
    "perplexity",
    "completions",
];

#[test]
fn help_teaches() {
    let place = Place::new();
    let top = place.octet(&["--help"]).ok().stdout;
    for command in COMMANDS {
        assert!(top.contains(command), "{top}");
        let help = place.octet(&[command, "--help"]).ok().stdout;
        assert!(help.contains("Examples:") && help.contains(&format!("octet {command}")), "{help}");
    }
    place.octet(&["--version"]).ok();
}

#[test]
fn bad_flags_are_refused_by_name() {
    let place = Place::new();
    place.octet(&["bench", "--frobnicate"]).fails(2, &["--frobnicate"]);
    place.octet(&["bench", "m.gguf", "-t", "0"]).fails(2, &["--threads", "above 0"]);
    place.octet(&["shwo", "m.gguf"]).fails(2, &["shwo", "show"]);
    place.octet(&["show"]).fails(2, &["no model is named", "OCTET_MODEL"]);
    place.octet(&["show", "a.gguf", "-m", "b.gguf"]).fails(2, &["two models", "a.gguf", "b.gguf"]);
}

#[test]
fn the_environment_mirrors_flags_and_flags_beat_it() {
    let place = Place::with_model("qwen2", "q8_0");
    let context = |args: &[&str], variables: &[(&str, &str)]| {
        let args = [&["show", "--json"], args].concat();
        let ran = place.octet_with(&args, "", &[&[("OCTET_MODEL", "model.gguf")], variables].concat()).ok();
        serde_json::from_str::<serde_json::Value>(&ran.stdout).unwrap()["memory"]["context"].as_u64().unwrap()
    };
    assert_eq!(context(&[], &[("OCTET_CTX_SIZE", "512")]), 512);
    assert_eq!(context(&["-c", "256"], &[("OCTET_CTX_SIZE", "512")]), 256);
    assert_eq!(context(&["--max-model-len", "128"], &[]), 128);
    let ran = place.octet_with(&["show", "model.gguf"], "", &[("OCTET_JSON", "1")]).ok();
    assert!(ran.stdout.starts_with('{'));
    place.octet_with(&["show", "model.gguf"], "", &[("OCTET_CTX_SIZE", "many")]).fails(2, &["many"]);
}

#[test]
fn models_that_are_not_there() {
    let place = Place::new();
    place.octet(&["show", "missing.gguf"]).fails(1, &["missing.gguf", "no such file", "octet list"]);
    place.octet(&["show", "smollm:135m"]).fails(1, &["smollm:135m", "did you mean 'smollm2:135m'?"]);
    place.octet(&["show", "smollm2:135m"]).fails(1, &["smollm2:135m", "HF_HUB_OFFLINE"]);
    place.octet(&["show", "-hf", "me/nothing:Q8_0"]).fails(1, &["me/nothing", "HF_HUB_OFFLINE"]);
}

#[test]
fn damaged_files_are_named() {
    let place = Place::with_model("llama", "q8_0");
    let whole = std::fs::read(place.path("model.gguf")).unwrap();
    std::fs::write(place.path("short.gguf"), &whole[..whole.len() / 2]).unwrap();
    std::fs::write(place.path("text.gguf"), "hello").unwrap();
    std::fs::write(place.path("empty.gguf"), "").unwrap();
    for file in ["short.gguf", "text.gguf", "empty.gguf"] {
        for command in ["show", "bench"] {
            let ran = place.octet(&[command, file]).fails(1, &["error: ", file]);
            assert!(ran.stdout.is_empty() && !ran.stderr.contains("panicked"), "{}", ran.stderr);
        }
    }
}

#[test]
fn an_empty_cache_says_how_to_fill_it() {
    let place = Place::new();
    let ran = place.octet(&["list"]).ok();
    assert!(ran.stdout.is_empty() && ran.stderr.contains("octet pull"), "{}", ran.stderr);
    assert_eq!(place.octet(&["list", "--json"]).ok().stdout.trim(), "[]");
    place.octet(&["pull", "smollm2:135m"]).fails(1, &["HF_HUB_OFFLINE"]);
    place.octet(&["rm", "smollm2:135m"]).fails(1, &["smollm2:135m"]);
    place.octet(&["rm", "nothing-like-this"]).fails(1, &["nothing-like-this", "known are"]);
}

#[test]
fn models_in_the_cache_are_listed_and_removed() {
    let place = Place::with_model("llama", "q8_0");
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let entry = place.path("hub/models--me--tiny-GGUF");
    let snapshot = entry.join("snapshots").join(commit);
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(entry.join("refs")).unwrap();
    std::fs::write(entry.join("refs/main"), commit).unwrap();
    std::fs::rename(place.path("model.gguf"), snapshot.join("tiny-Q8_0.gguf")).unwrap();

    let list = place.octet(&["list"]).ok().stdout;
    assert!(list.starts_with("NAME") && list.contains("hf:me/tiny-GGUF:Q8_0"), "{list}");
    let json: serde_json::Value = serde_json::from_str(&place.octet(&["ls", "--json"]).ok().stdout).unwrap();
    assert_eq!(json[0]["reference"], "hf:me/tiny-GGUF:Q8_0");
    assert_eq!(json[0]["complete"], true);
    let shown = place.octet(&["show", "-hf", "me/tiny-GGUF:Q8_0"]).ok().stdout;
    assert!(shown.contains("llama"), "{shown}");
    let removed = place.octet(&["rm", "hf:me/tiny-GGUF:Q8_0"]).ok().stdout;
    assert!(removed.contains("removed 1 file"), "{removed}");
    assert_eq!(place.octet(&["list", "--json"]).ok().stdout.trim(), "[]");
}

#[test]
fn completions_are_printed() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(place.octet(&["completions", shell]).ok().stdout.contains("ubatch-size"));
    }
}
