//! What is on this machine: other programs' models, running servers, the service.

use std::io::{Read, Write};

use crate::common::{Place, str};

/// A model in Ollama's folder, and one in LM Studio's.
fn with_others() -> Place {
    let place = Place::with_model("qwen35moe", "q8_0");
    let ollama = place.path(".ollama/models");
    let manifests = ollama.join("manifests/registry.ollama.ai/library/tiny");
    std::fs::create_dir_all(&manifests).unwrap();
    std::fs::create_dir_all(ollama.join("blobs")).unwrap();
    let layer = r#"{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:0a", "size": 1}"#;
    std::fs::write(manifests.join("8m"), format!(r#"{{"schemaVersion": 2, "layers": [{layer}]}}"#)).unwrap();
    std::fs::copy(place.path("model.gguf"), ollama.join("blobs/sha256-0a")).unwrap();
    let studio = place.path(".lmstudio/models/me/Tiny-GGUF");
    std::fs::create_dir_all(&studio).unwrap();
    std::fs::copy(place.path("model.gguf"), studio.join("Tiny-Q8_0.gguf")).unwrap();
    place
}

#[test]
fn other_programs_models_are_listed_and_read_in_place() {
    let place = with_others();
    let listed = place.octet(&["list"]).ok().stdout;
    for name in ["ollama:tiny:8m\t", "lmstudio:me/Tiny-GGUF/Tiny-Q8_0\t"] {
        assert!(listed.contains(name), "{listed}");
    }
    for name in
        ["ollama:tiny:8m", "lmstudio:me/Tiny-GGUF/Tiny-Q8_0", "lmstudio:tiny-q8_0", "lmstudio:Tiny-Q8_0.gguf"]
    {
        let shown = place.octet(&["show", name, "--json"]).ok().stdout;
        assert!(shown.contains("\"architecture\": \"qwen35moe\""), "{name}: {shown}");
    }
    place.octet(&["show", "ollama:none"]).fails(1, &["ollama:none: no such model", "ollama:tiny:8m"]);
    // Nothing is written there.
    place.octet(&["rm", "ollama:tiny:8m"]).fails(1, &["read in place", "`ollama rm tiny:8m` removes it"]);
    place.octet(&["rm", "lmstudio:tiny-q8_0"]).fails(1, &["read in place", "LM Studio"]);
    assert!(place.path(".ollama/models/blobs/sha256-0a").exists());
    // A manifest that an interrupted write left is named.
    place.write(".ollama/models/manifests/registry.ollama.ai/library/tiny/cut", "{");
    let listed = place.octet(&["list"]).ok();
    assert!(
        listed.stderr.contains("note: ollama:tiny:cut: its manifest is not valid JSON"),
        "{}",
        listed.stderr
    );
    // Its own variable says where else they may be.
    let elsewhere =
        place.octet_with(&["list"], "", &[("OLLAMA_MODELS", str(&place.path("none")))]).ok().stdout;
    assert!(!elsewhere.contains("ollama:"), "{elsewhere}");
}

/// Adds a model to Ollama's folder: `tiny`'s weights with further layers, by kind.
fn add_ollama(place: &Place, name: &str, layers: &[(&str, &str)]) {
    let mut all = vec![("model", "0a".to_string())];
    for (i, (kind, text)) in layers.iter().enumerate() {
        let digest = format!("{name}{i}");
        place.write(&format!(".ollama/models/blobs/sha256-{digest}"), text);
        all.push((kind, digest));
    }
    let layer = |(kind, digest): &(&str, String)| {
        format!(
            r#"{{"mediaType": "application/vnd.ollama.image.{kind}", "digest": "sha256:{digest}", "size": 1}}"#
        )
    };
    let layers = all.iter().map(layer).collect::<Vec<_>>().join(", ");
    let manifest = format!(".ollama/models/manifests/registry.ollama.ai/alice/{name}/latest");
    std::fs::create_dir_all(place.path(&manifest).parent().unwrap()).unwrap();
    place.write(&manifest, &format!(r#"{{"layers": [{layers}]}}"#));
}

const MESSAGES: &str =
    r#"[{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "It is me."}]"#;

/// Ollama's `SYSTEM` is what `--system` is, `MESSAGE` is a conversation's beginning, and `PARAMETER` what flags are.
#[test]
fn what_an_ollama_models_maker_set_counts() {
    let place = with_others();
    add_ollama(&place, "mario", &[("system", "You are Mario.")]);
    let settings =
        r#"{"temperature": 0, "num_predict": 8, "num_ctx": 512, "repeat_penalty": 1.3, "num_gpu": 1}"#;
    let all = [
        ("system", "You are Mario."),
        ("messages", MESSAGES),
        ("params", settings),
        ("template", "{{ .X }}"),
    ];
    add_ollama(&place, "luigi", &all);
    let run =
        |args: &[&str]| place.octet(&[&["run"], args, &["--json", "-t", "1", "Hi there"]].concat()).ok();
    let ask = |args: &[&str]| {
        let json: serde_json::Value = serde_json::from_str(&run(args).stdout).unwrap();
        (json["usage"]["prompt_tokens"].as_u64().unwrap(), json["content"].clone())
    };
    let plain = ["--temp", "0", "-c", "512", "-n", "8"];
    let with_plain = |args: &[&str]| ask(&[args, &plain[..]].concat());
    let with_system = with_plain(&["model.gguf", "--system", "You are Mario."]);
    assert_eq!(with_plain(&["ollama:alice/mario"]), with_system);
    assert_eq!(
        with_plain(&["ollama:alice/mario", "--system", "Hm"]),
        with_plain(&["model.gguf", "--system", "Hm"])
    );
    assert!(with_plain(&["ollama:tiny:8m"]).0 < with_system.0);
    let chat = format!(
        r#"[{{"role": "system", "content": "You are Mario."}}, {}]"#,
        &MESSAGES[1..MESSAGES.len() - 1]
    );
    place.write("chat.json", &chat);
    let in_full = ["model.gguf", "--messages", "chat.json", "--repeat-penalty", "1.3"];
    assert_eq!(ask(&["ollama:alice/luigi"]), with_plain(&in_full));
    let shown = place.octet(&["show", "ollama:alice/luigi"]).ok().stdout;
    assert!(shown.contains("a system message of 14 characters, 2 messages to begin with,"), "{shown}");
    // Flags come first, and a prompt without a template has no beginning.
    let longer = run(&["ollama:alice/luigi", "-n", "9"]).stdout;
    let longer: serde_json::Value = serde_json::from_str(&longer).unwrap();
    assert_eq!(longer["usage"]["completion_tokens"], 9, "{longer}");
    assert_eq!(ask(&["ollama:alice/luigi", "--raw"]).0, ask(&["model.gguf", "--raw", "-n", "1"]).0);
    // What is not read is said, once a day.
    let said =
        |ran: &crate::common::Ran| ran.stderr.contains("own chat template is used, not Ollama's TEMPLATE");
    add_ollama(&place, "peach", &[("template", "{{ .X }}"), ("params", r#"{"top_p": 7}"#), ("adapter", "")]);
    let first = run(&["ollama:alice/peach", "-n", "1", "-c", "64"]);
    assert!(said(&first), "{}", first.stderr);
    for part in ["its parameter top_p 7 is left out: ", "its adapter (LoRA) is not applied"] {
        assert!(first.stderr.contains(part), "{part}: {}", first.stderr);
    }
    assert!(!said(&run(&["ollama:alice/peach", "-n", "1", "-c", "64"])));
}

/// The server takes the same, as far as a request does not say otherwise, and shows it.
#[cfg(unix)]
#[test]
fn what_an_ollama_models_maker_set_counts_in_the_server() {
    let place = with_others();
    let settings = r#"{"temperature": 0, "num_predict": 6, "num_ctx": 768, "stop": ["<|im_end|>", "User:"]}"#;
    add_ollama(
        &place,
        "luigi",
        &[("system", "You are Luigi."), ("messages", MESSAGES), ("params", settings)],
    );
    let served = crate::served::Served::start_plain(&place, "ollama:alice/luigi");
    let body = |text: String| text.split_once("\r\n\r\n").unwrap().1.to_string();
    let json = |text: String| -> serde_json::Value { serde_json::from_str(&body(text)).unwrap() };
    let props = json(served.get("/props"));
    let params = &props["default_generation_settings"]["params"];
    assert_eq!(
        (
            &params["temperature"],
            &params["n_predict"],
            &params["stop"][1],
            &props["default_generation_settings"]["n_ctx"]
        ),
        (&0.0.into(), &6.into(), &"User:".into(), &768.into()),
        "{props}"
    );
    assert_eq!(
        (&props["system"], &props["messages"][1]["content"]),
        (&"You are Luigi.".into(), &"It is me.".into())
    );
    let shown = json(served.post("/api/show", r#"{"model": "alice/luigi"}"#));
    let parameters = shown["parameters"].as_str().unwrap();
    for line in ["num_predict                    6", "stop                           \"User:\""] {
        assert!(parameters.lines().any(|l| l == line), "{parameters}");
    }
    assert_eq!((&shown["system"], &shown["messages"][0]["role"]), (&"You are Luigi.".into(), &"user".into()));
    let prompt = |messages: &str| {
        let asked = format!(r#"{{"messages": [{messages}]}}"#);
        json(served.post("/apply-template", &asked))["prompt"].as_str().unwrap().to_string()
    };
    let own = prompt(r#"{"role": "user", "content": "Hi"}"#);
    let places: Vec<usize> = ["You are Luigi.", "Who?", "It is me.", "Hi"]
        .iter()
        .map(|text| own.find(text).expect(text))
        .collect();
    assert!(places.is_sorted(), "{own}");
    let instructed =
        prompt(r#"{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}"#);
    assert!(instructed.contains("Be brief.") && !instructed.contains("Luigi"), "{instructed}");
    let asked = r#"{"messages": [{"role": "user", "content": "Hi"}]}"#;
    let answer = json(served.post("/v1/chat/completions", asked));
    assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() <= 6, "{answer}");
    assert_eq!(
        json(served.post("/v1/chat/completions", asked))["choices"],
        answer["choices"],
        "temperature 0"
    );
}

#[test]
fn a_model_of_a_known_shape_is_described_offline() {
    let place = Place::new();
    let shown = place.octet(&["show", "qwen3.6:35b-a3b"]).ok().stdout;
    assert!(shown.starts_with("qwen3.6:35b-a3b\n") && shown.contains("34.66 B"), "{shown}");
    for made_up in
        ["random", "synthetic", "prediction", "chat template", "tokenizer", "end tokens", "sampling"]
    {
        assert!(!shown.contains(made_up), "'{made_up}' in {shown}");
    }
    let json = place.octet(&["show", "qwen3.6:35b-a3b", "--json"]).ok().stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["tokenizer"].is_null() && json["layers"] == 40, "{json}");
    // With the projector of its repository.
    assert_eq!(json["images"]["projector"], "qwen3vl_merger");
    let [all, alone, tower, work] = [
        &json["images"]["total_with_model"],
        &json["memory"]["total"],
        &json["images"]["bytes"],
        &json["images"]["work_bytes"],
    ]
    .map(|n| n.as_u64().unwrap());
    assert!(all == alone + tower + work && tower > 800 << 20, "{json}");
    assert!(shown.contains("memory of the model with it: "), "{shown}");
}

/// Its header is read from where it is, and the file for that is temporary.
#[test]
fn a_model_that_is_not_here_is_shown_by_its_own_name() {
    let place = Place::with_model("llama", "q8_0");
    let file = std::fs::read(place.path("model.gguf")).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/tiny-Q8_0.gguf", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map(Result::unwrap) {
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let answer =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", file.len());
            let _ = stream.write_all(answer.as_bytes()).and_then(|()| stream.write_all(&file));
        }
    });
    let online = [("HF_HUB_OFFLINE", "0")];
    let shown = place.octet_with(&["show", &url], "", &online).ok().stdout;
    let line = shown.lines().find(|line| line.starts_with("  file ")).expect("a file");
    assert_eq!(line.split_whitespace().last(), Some("tiny-Q8_0.gguf"), "{shown}");
    let json = place.octet_with(&["show", &url, "--json"], "", &online).ok().stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["origin"], "tiny-Q8_0.gguf");
}

/// Answers requests with 401, as a server with keys does.
#[test]
fn ps_says_how_a_key_is_given() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map(Result::unwrap) {
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let answer = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    let place = Place::new();
    place.octet(&["ps", "--url", &url]).fails(1, &["needs an API key", "--key-file FILE or OCTET_API_KEY"]);
    let keyed = place.octet_with(&["ps", "--url", &url], "", &[("OCTET_API_KEY", "wrong")]);
    keyed.fails(1, &["does not accept this API key", "--key-file"]);
}

#[test]
fn without_a_server_ps_and_stop_say_so() {
    let place = Place::new();
    let url = "http://127.0.0.1:9";
    let ran = place.octet(&["ps", "--url", url]).fails(1, &["no server answers at http://127.0.0.1:9"]);
    assert!(!ran.stderr.contains("client error"), "{}", ran.stderr);
    place.octet(&["stop", "m", "--url", url]).fails(1, &["no server answers"]);
    place.octet(&["ps", "--url", "https://x"]).fails(2, &["only http://"]);
}

#[cfg(any(target_os = "linux", target_os = "macos"))]
#[test]
fn the_service_is_a_file_of_the_system() {
    let place = Place::new();
    let text = place.octet(&["service", "install", "--print", "--", "m.gguf", "--port", "9000"]).ok().stdout;
    assert!(text.contains("serve") && text.contains("m.gguf") && text.contains("9000"), "{text}");
    let behind = place.octet(&["service", "install", "m.gguf", "--port", "9000", "--print"]).ok().stdout;
    assert_eq!(behind, text);
    assert!(std::fs::read_dir(place.dir.path()).unwrap().next().is_none(), "nothing is written");
    place.octet(&["service", "remove"]).fails(1, &["there is no such service"]);
}
