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
    for name in ["ollama:tiny:8m ", "lmstudio:me/Tiny-GGUF/Tiny-Q8_0 "] {
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

/// Ollama's `SYSTEM` is what `--system` is.
#[test]
fn an_ollama_models_system_message_is_used() {
    let place = with_others();
    let ollama = place.path(".ollama/models");
    let layer = |kind: &str, digest: &str| {
        format!(
            r#"{{"mediaType": "application/vnd.ollama.image.{kind}", "digest": "sha256:{digest}", "size": 1}}"#
        )
    };
    let layers = [layer("model", "0a"), layer("system", "0b")].join(", ");
    let manifests = ollama.join("manifests/registry.ollama.ai/alice/mario");
    std::fs::create_dir_all(&manifests).unwrap();
    std::fs::write(manifests.join("latest"), format!(r#"{{"layers": [{layers}]}}"#)).unwrap();
    std::fs::write(ollama.join("blobs/sha256-0b"), "You are Mario.").unwrap();
    let ask = |args: &[&str]| {
        let shared = ["--json", "--temp", "0", "-t", "1", "-c", "512", "-n", "8", "Hi there"];
        let ran = place.octet(&[&["run"], args, &shared].concat()).ok();
        let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        (json["usage"]["prompt_tokens"].as_u64().unwrap(), json["content"].clone())
    };
    let with_system = ask(&["model.gguf", "--system", "You are Mario."]);
    assert_eq!(ask(&["ollama:alice/mario"]), with_system);
    assert_eq!(ask(&["ollama:alice/mario", "--system", "Hm"]), ask(&["model.gguf", "--system", "Hm"]));
    assert!(ask(&["ollama:tiny:8m"]).0 < with_system.0);
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
