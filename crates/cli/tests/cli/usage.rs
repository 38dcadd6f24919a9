//! Errors for the user, and the commands for models on this machine.

use crate::common::Place;

const COMMANDS: [&str; 13] = [
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
    "keys",
    "usage",
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
    for (flags, words) in [
        (["run", "--temp", "abc"], "expected a number"),
        (["run", "--predict", "x"], "expected a whole number, -1 or more"),
        (["serve", "--port", "70000"], "expected a port, 0 to 65535"),
        (["serve", "--timeout", "1.5"], "expected a whole number from 0 up"),
        (["serve", "--top-k", "4294967296"], "expected at most 4294967295"),
        (["run", "--draft-max", "x"], "expected a whole number from 0 up"),
        (["serve", "-c", "many"], "expected a whole number from 0 up"),
    ] {
        place.octet(&flags).fails(2, &[flags[2], words]);
    }
    place.octet(&["shwo", "m.gguf"]).fails(2, &["shwo", "show"]);
    place.octet(&["show", "a.gguf", "-m", "b.gguf"]).fails(2, &["two models", "a.gguf", "b.gguf"]);
    place.octet(&["run", "--web", "--temp", "0"]).fails(2, &["--web", "cannot be used with", "--temp"]);
    place.octet(&["run", "--web", "Tell me a story."]).fails(2, &["--web takes no prompt"]);
    place.octet(&["run", "--web", "hello"]).fails(2, &["--web takes no prompt"]);
    place.octet(&["run", "--port", "0"]).fails(2, &["--web"]);
}

#[test]
fn flags_take_precedence_over_the_environment() {
    let place = Place::with_model("qwen2", "q8_0");
    let context = |args: &[&str], variables: &[(&str, &str)]| {
        let args = [&["show", "--json"], args].concat();
        let ran = place.octet_with(&args, "", &[&[("OCTET_MODEL", "model.gguf")], variables].concat()).ok();
        serde_json::from_str::<serde_json::Value>(&ran.stdout).unwrap()["memory"]["context"].as_u64().unwrap()
    };
    assert_eq!(context(&[], &[("OCTET_CTX_SIZE", "512")]), 512);
    assert_eq!(context(&["-c", "256"], &[("OCTET_CTX_SIZE", "512")]), 256);
    assert_eq!(context(&["--max-model-len", "128"], &[]), 128);
    // llama.cpp's 0: the model's own context size.
    assert_eq!(context(&["-c", "0"], &[]), context(&[], &[("OCTET_CTX_SIZE", "0")]));
    assert_eq!(context(&[], &[("OCTET_CTX_SIZE", "")]), context(&[], &[]), "an empty variable is none");
    let wrong = place.octet_with(&["show", "model.gguf"], "", &[("OCTET_CTX_SIZE", "many")]);
    wrong.fails(2, &["many", "OCTET_CTX_SIZE"]);
}

#[test]
fn flags_of_one_command_are_refused_by_others() {
    let place = Place::new();
    // `--output` is a format for `octet bench`, and a file for `octet synth`; `--json` makes sense for few commands.
    let variables = [("OCTET_OUTPUT", "json"), ("OCTET_JSON", "1"), ("OCTET_FORCE", "1")];
    let synth = ["synth", "tiny-llama", "--quant", "q8_0"];
    place.octet_with(&synth, "", &variables).fails(2, &["--output"]);
    assert!(!place.path("json").exists());
    place.octet_with(&[&synth[..], &["-o", "made.gguf"]].concat(), "", &variables).ok();
    let stdout = "cannot go to standard output; name a file";
    place.octet(&[&synth[..], &["-o", "-"]].concat()).fails(2, &[&format!("a synthetic model {stdout}")]);
    let imatrix = place.octet(&["imatrix", "made.gguf", "-f", "made.gguf", "-o", "-"]);
    imatrix.fails(2, &[&format!("an importance matrix {stdout}")]);
    let quantize = place.octet(&["quantize", "made.gguf", "-o", "-", "--type", "q4_0"]);
    quantize.fails(2, &[&format!("a model {stdout}")]);
    assert!(!place.octet_with(&["show", "made.gguf"], "", &variables).ok().stdout.starts_with('{'));
    let lists = [("OCTET_THREADS", "1,2")];
    let bench = ["bench", "made.gguf", "-p", "0", "-n", "1", "-r", "1", "--no-bandwidth"];
    place.octet_with(&bench, "", &lists).fails(2, &["OCTET_THREADS", "one value"]);
    place.octet_with(&bench, "", &[("OCTET_THREADS", "1")]).ok();
}

#[cfg(unix)]
#[test]
fn variables_that_are_not_texts_are_reported() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let place = Place::new();
    let bad = OsStr::from_bytes(b"caf\xe9");
    for name in ["OCTET_MODEL", "OCTET_CTX_SIZE", "HF_HUB_CACHE", "HF_TOKEN"] {
        let ran = place.run(place.command(&["run", "-hf", "me/nothing:Q8_0", "Hi"]).env(name, bad), "");
        ran.fails(2, &[name, "UTF-8"]);
    }
}

#[test]
fn models_that_are_not_there() {
    let place = Place::new();
    place.octet(&["show", "missing.gguf"]).fails(1, &["missing.gguf", "no such file", "octet list"]);
    place.octet(&["show", "smollm:135m"]).fails(1, &["smollm:135m", "did you mean 'smollm2:135m'?"]);
    let unknown = place.octet(&["show", "smollm:135m"]).fails(1, &["Short names: "]).stderr;
    assert!(unknown.lines().next().unwrap().ends_with("did you mean 'smollm2:135m'?"), "{unknown}");
    place.octet(&["synth", "tiny", "-o", "x.gguf"]).fails(2, &["qwen3.6-35b-a3b", "tiny-qwen35moe"]);
    place.octet(&["run", "smollm2:135m", "Hi"]).fails(1, &["smollm2:135m", "HF_HUB_OFFLINE"]);
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
    assert!(ran.stdout.contains("built in") && ran.stderr.contains("octet pull"), "{}", ran.stderr);
    assert_eq!(place.octet(&["list", "--json"]).ok().stdout.trim(), "[]");
    place.octet(&["pull", "smollm2:135m"]).fails(1, &["HF_HUB_OFFLINE"]);
    place.octet(&["rm", "smollm2:135m"]).fails(1, &["smollm2:135m"]);
    place.octet(&["rm", "nothing-like-this"]).fails(1, &["nothing-like-this", "Short names: "]);
}

#[test]
fn models_in_the_cache_are_listed_and_removed() {
    let place = Place::with_cached_model("llama", "q8_0");
    let list = place.octet(&["list"]).ok().stdout;
    // A pipe gets a line for each model, whose fields are always there.
    let fields = |line: &str| line.split('\t').map(String::from).collect::<Vec<_>>();
    let [fox, tiny]: [Vec<String>; 2] =
        list.lines().map(fields).collect::<Vec<_>>().try_into().expect("two models");
    assert_eq!((&*fox[0], &*fox[2], &*fox[3], &*fox[4]), ("fox", "", "built in", "fox"));
    let bytes = std::fs::metadata(place.cached()).unwrap().len().to_string();
    assert_eq!((&*tiny[0], &tiny[1], &*tiny[3]), ("hf:me/tiny-GGUF:Q8_0", &bytes, ""));
    assert!(tiny[2].starts_with("20") && tiny[2].ends_with('Z') && tiny[4] == tiny[0], "{tiny:?}");
    let json: serde_json::Value = serde_json::from_str(&place.octet(&["ls", "--json"]).ok().stdout).unwrap();
    assert_eq!(json[0]["reference"], "hf:me/tiny-GGUF:Q8_0");
    assert_eq!(json[0]["complete"], true);
    let shown = place.octet(&["show", "-hf", "me/tiny-GGUF:Q8_0"]).ok().stdout;
    assert!(shown.contains("llama"), "{shown}");
    // All names are checked before the first model is removed.
    for wrong in ["smollm2:135m", "hf:me/tiny-GGUF:Q4_0", "hf:me/other", "nothing-like-this"] {
        place.octet(&["rm", "hf:me/tiny-GGUF:Q8_0", wrong]).fails(1, &[wrong]);
        assert!(place.cached().exists(), "{wrong}");
    }
    let removed = place.octet(&["rm", "hf:me/tiny-GGUF:Q8_0"]).ok().stdout;
    assert!(removed.contains("removed 1 file"), "{removed}");
    assert_eq!(place.octet(&["list", "--json"]).ok().stdout.trim(), "[]");
}

#[test]
fn names_are_all_understood_before_anything_is_fetched() {
    let place = Place::new();
    let ran = place.octet(&["pull", "smollm2:135m", "nothing-like-this"]).fails(1, &["nothing-like-this"]);
    assert!(!ran.stderr.contains("HF_HUB_OFFLINE"), "the first one was tried: {}", ran.stderr);
}

#[test]
fn damaged_cache_files_can_be_fetched_again() {
    let place = Place::with_cached_model("llama", "q8_0");
    let whole = std::fs::read(place.cached()).unwrap();
    std::fs::write(place.cached(), &whole[..whole.len() / 2]).unwrap();
    let name = "hf:me/tiny-GGUF:Q8_0";
    let again = format!("`octet rm {name}`, then `octet pull {name}`");
    place.octet(&["run", name, "Hi"]).fails(1, &[name, &again]);
    std::fs::write(place.path("short.gguf"), &whole[..whole.len() / 2]).unwrap();
    assert!(!place.octet(&["run", "short.gguf", "Hi"]).fails(1, &["short.gguf"]).stderr.contains("octet rm"));
}

#[test]
fn flags_that_would_do_nothing_are_refused() {
    let place = Place::with_model("llama", "q8_0");
    place.octet(&["show", "model.gguf", "--no-memory-check"]).fails(2, &["--no-memory-check"]);
    for flag in [["--quant", "q8_0"], ["--layers", "1"], ["--weights-seed", "0"]] {
        place.octet(&["bench", "model.gguf", flag[0], flag[1]]).fails(2, &[flag[0], "--synthetic"]);
    }
}

#[test]
fn counts_are_bounded() {
    let place = Place::with_model("llama", "q8_0");
    for args in [
        &["run", "model.gguf", "Hi", "-c", "18446744073709551615"][..],
        &["bench", "model.gguf", "-p", "9000000000000000000"],
        &["bench", "model.gguf", "-d", "268435457"],
    ] {
        place.octet(args).fails(2, &["268435456"]);
    }
}

/// A closed standard error: the reading end of the pipe is closed.
#[cfg(unix)]
#[test]
fn unread_notes_do_not_block() {
    let place = Place::with_model("llama", "q8_0");
    let run = |args: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = place.command(args);
        command.stdin(std::process::Stdio::null()).stderr(writer);
        command.output().unwrap()
    };
    assert_eq!(run(&["run", "missing.gguf", "Hi"]).status.code(), Some(1));
    let answer = run(&["run", "model.gguf", "Hi", "-v", "-n", "12", "-t", "1", "--temp", "0"]);
    assert_eq!(answer.status.code(), Some(0));
    assert!(!answer.stdout.is_empty());
}

#[test]
fn completions_are_printed() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(place.octet(&["completions", shell]).ok().stdout.contains("ubatch-size"));
    }
}

#[test]
fn an_empty_key_does_not_open_the_server() {
    let place = Place::with_model("qwen3", "q8_0");
    let serve = ["serve", "model.gguf", "--port", "0"];
    let twice =
        place.octet(&[&serve[..], &["model.gguf"]].concat()).fails(1, &["two models are called 'model'"]);
    assert!(!twice.stderr.contains("KV cache"), "no bill of what is not served: {}", twice.stderr);
    let flag = |key: &str| place.octet(&[&serve[..], &["--api-key", key]].concat());
    for key in ["", " ", "\t"] {
        flag(key).fails(2, &["--api-key is empty", "leave it out"]);
    }
    for key in [" secret", "secret\n", "sec\nret"] {
        flag(key).fails(2, &["--api-key", "no client can send"]);
    }
    // An empty variable is an error: its user expects a key.
    for name in ["OCTET_API_KEY", "OCTET_API_KEY_FILE"] {
        place.octet_with(&serve, "", &[(name, "")]).fails(2, &[name, "to nothing", "unset it"]);
    }
    place.octet_with(&serve, "", &[("OCTET_API_KEY", " ")]).fails(2, &["OCTET_API_KEY", "leave it out"]);
}

#[test]
fn flags_of_the_server_that_make_no_sense_are_refused() {
    let place = Place::with_model("qwen3", "q8_0");
    let file = place.write("afile", "x");
    for (flag, value) in [
        ("--max-body", "0"),
        ("--cache-disk-size", "0"),
        ("--cors-origin", "bad"),
        ("--cors-origin", "https://chat.example.com/"),
        ("--cache-disk", file.to_str().unwrap()),
    ] {
        let ran = place.octet(&["serve", "model.gguf", "--port", "0", flag, value]).fails(2, &[flag]);
        assert!(!ran.stderr.contains("listening"), "{flag}: {}", ran.stderr);
    }
}

#[test]
fn a_used_port_is_reported_before_a_model_is_opened() {
    let place = Place::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let ran = place
        .octet(&["serve", "missing.gguf", "--port", &port])
        .fails(1, &["cannot listen at", &port, "--port"]);
    assert!(!ran.stderr.contains("missing.gguf"), "{}", ran.stderr);
}
