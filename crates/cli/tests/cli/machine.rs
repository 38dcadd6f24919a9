//! What is on this machine: other programs' models, running servers, the service.

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
    for name in ["ollama:tiny:8m", "lmstudio:me/Tiny-GGUF/Tiny-Q8_0", "lmstudio:tiny-q8_0"] {
        let shown = place.octet(&["show", name, "--json"]).ok().stdout;
        assert!(shown.contains("\"architecture\": \"qwen35moe\""), "{name}: {shown}");
    }
    place.octet(&["show", "ollama:none"]).fails(1, &["ollama:none: no such model", "ollama:tiny:8m"]);
    // Nothing is written there.
    place.octet(&["rm", "ollama:tiny:8m"]).fails(1, &[]);
    assert!(place.path(".ollama/models/blobs/sha256-0a").exists());
    // Its own variable says where else they may be.
    let elsewhere =
        place.octet_with(&["list"], "", &[("OLLAMA_MODELS", str(&place.path("none")))]).ok().stdout;
    assert!(!elsewhere.contains("ollama:"), "{elsewhere}");
}

#[test]
fn without_a_server_ps_and_stop_say_so() {
    let place = Place::new();
    let url = "http://127.0.0.1:9";
    place.octet(&["ps", "--url", url]).fails(1, &["no server answers at http://127.0.0.1:9"]);
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
