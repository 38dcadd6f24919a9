//! Packed weights that are kept for the next start: `octet list` shows them, `octet rm` removes them, small models have none.

use std::path::Path;
use std::time::{Duration, Instant};

use octet_compute::cpu::packed_file::{Notice, PackedFiles};
use octet_engine::engine::{Engine, Options};

use crate::common::Place;

/// Writes the packed weights of a model to where `octet` looks for them.
fn keep(place: &Place, model: &Path) {
    let dir = place.path(".cache/octet/packed");
    let before = PackedFiles::list(&dir).len();
    let mut options = Options { context: Some(64), ..Options::default() };
    options.cpu.packed_files = Some(PackedFiles { dir: dir.clone(), least: 1, notice: Notice(|_| {}) });
    let file = octet_weights::Model::open(model).unwrap();
    let _engine = Engine::open(&file, &options, &mut |_, _| {}).unwrap();
    let start = Instant::now();
    loop {
        let now = PackedFiles::list(&dir);
        if now.len() > before && now.iter().all(|kept| kept.is_complete) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{now:?}");
        std::thread::yield_now();
    }
}

#[test]
fn packed_weights_are_listed_and_removed() {
    let place = Place::with_cached_model("qwen3moe", "Q8_0");
    let kept = || PackedFiles::list(&place.path(".cache/octet/packed"));
    let ask = |model: &str, more: &[&str]| {
        let args = ["run", model, "--raw", "t1 t2 t3", "-n", "8", "--temp", "0", "-t", "1", "-c", "64"];
        place.octet(&[&args[..], more].concat()).ok()
    };
    let want = ask("model.gguf", &[]).stdout;
    assert!(kept().is_empty(), "a small model has none");
    keep(&place, &place.path("model.gguf"));
    keep(&place, &place.cached());
    assert_eq!(kept().len(), 2);

    let list = place.octet(&["list"]).ok().stdout;
    let lines: Vec<&str> = list.lines().filter(|l| l.contains("packed weights")).collect();
    assert!(lines.len() == 2 && lines.iter().any(|l| l.starts_with("hf:me/tiny-GGUF:Q8_0\t")), "{list}");
    assert!(lines.iter().any(|l| l.contains("model.gguf")), "{list}");
    let json: serde_json::Value =
        serde_json::from_str(&place.octet(&["list", "--json"]).ok().stdout).unwrap();
    assert!(json[0]["packed"].as_u64().is_some_and(|bytes| bytes > 0), "{json}");
    // Kept or not, the answer is the same.
    assert_eq!(ask("model.gguf", &[]).stdout, want);
    assert_eq!(ask("model.gguf", &["--no-packed"]).stdout, want);

    let removed = place.octet(&["rm", "model.gguf"]).ok().stdout;
    assert!(removed.contains("the model stays") && place.path("model.gguf").exists(), "{removed}");
    place.octet(&["rm", "model.gguf"]).fails(1, &["model.gguf"]);
    assert_eq!(kept().len(), 1);
    place.octet(&["rm", "hf:me/tiny-GGUF:Q8_0"]).ok();
    assert!(kept().is_empty() && !place.cached().exists());
    assert_eq!(ask("model.gguf", &[]).stdout, want);
}
