//! Every architecture of the reference data against transformers' numbers in f32: logits, greedy text, any split of a prompt.

use std::collections::BTreeMap;

use octet_engine::models::{self, Model};
use octet_testkit::{Golden, max_abs_diff, shared};

use crate::common::{On, Run, exact_backends, limits, try_load};

/// Models whose logits may differ by more than 1e-4: transformers itself differs so much between its forms of a recurrence, or between
/// orders of summation.
const WIDER: &[&str] = &["qwen3_next", "kimi_linear", "gemma4_moe"];

/// Models that the GGUF file describes incompletely, and the number of tokens up to which it is right. The checkpoint has it all.
const INCOMPLETE: &[(&str, usize)] = &[
    // The position scale is not in the file, and begins here.
    ("mistral4", 32),
];

/// A software device is slow: there, longer prompts count only where a model has no shorter ones.
const DEVICE_TOKENS: usize = 40;

/// Architectures that are refused by name.
const REFUSED: &[&str] = &[];

/// Names of all models that have a file below `folder` of the zoo.
fn names(folder: &str) -> BTreeMap<String, String> {
    let Some(dir) = shared(&format!("zoo/{folder}")) else { return BTreeMap::new() };
    let entries = std::fs::read_dir(dir).expect("the zoo can be read");
    let entries = entries.map(|e| e.expect("an entry").file_name().into_string().expect("a name"));
    entries.map(|file| (file.trim_end_matches(".gguf").to_string(), format!("zoo/{folder}/{file}"))).collect()
}

/// Loads a model, or says why that fails; `is_made`: as the GGUF file that is made of it.
fn open(path: &str, is_made: bool, on: On) -> Result<Box<dyn Model>, String> {
    let path = shared(path).expect("it was listed");
    let mut file = octet_weights::Model::open(&path).map_err(|e| e.to_string())?;
    if is_made {
        let options = octet_quantize::Options { keep_mtp: true, ..Default::default() };
        file = octet_quantize::make(file, options, &mut |_, _| {}).map_err(|e| e.to_string())?;
    }
    models::loader::check(&file).map_err(|e| format!("check: {e}"))?;
    try_load(&file, on, models::Limits { pages: 12, batch_tokens: 320, batch_outputs: 320, ..limits() })
}

/// The first difference of a model from its golden file, or `None`.
fn difference(name: &str, path: &str, is_made: bool, on: On) -> Option<String> {
    let golden = Golden::open(&format!("zoo/golden/{name}.golden.safetensors"))?;
    let mut run = match open(path, is_made, on) {
        Ok(model) => Run::with_context(model, 384),
        Err(e) => return Some(e),
    };
    let vocab = run.model.config().vocab;
    let tolerance = match on {
        _ if WIDER.contains(&name) => 3e-4,
        // Its scores have no factor, so they are large, and orders of summation show.
        On::ExactVulkan(_) if name == "gemma4_dense" => 1.5e-4,
        _ => 1e-4,
    };
    let gguf = path.ends_with(".gguf");
    let last = INCOMPLETE.iter().find(|(n, _)| gguf && *n == name).map_or(usize::MAX, |(_, tokens)| *tokens);
    let mut compared = 0;
    for p in 0.. {
        let Some(ids) = golden.ids(&format!("p{p}.ids")) else { break };
        let is_slow = matches!(on, On::ExactVulkan(_)) && ids.len() > DEVICE_TOKENS;
        if ids.len() > last || (is_slow && compared > 0) {
            continue;
        }
        // The golden of the longest prompt of LongRoPE uses other divisors than the shorter ones: a context decides here.
        if name == "phi3" && p < 2 {
            continue;
        }
        compared += 1;
        let want = golden.f32(&format!("p{p}.logits")).expect("every prompt has logits");
        let width = golden.shape(&format!("p{p}.logits")).expect("a shape")[1];
        let rows = golden.ids(&format!("p{p}.logit_rows")).unwrap_or_else(|| (0..ids.len() as u32).collect());
        run.clear();
        let whole = run.feed(&ids);
        let pick = |logits: &[f32]| -> Vec<f32> {
            rows.iter().flat_map(|r| logits[*r as usize * vocab..][..width.min(vocab)].to_vec()).collect()
        };
        let want: Vec<f32> = want.chunks_exact(width).flat_map(|r| r[..width.min(vocab)].to_vec()).collect();
        let worst = max_abs_diff(&pick(&whole), &want);
        if worst > tolerance {
            return Some(format!("prompt {p} ({} tokens) differs by {worst}", ids.len()));
        }
        if let Some(want) = golden.ids(&format!("p{p}.greedy_ids")) {
            let n = want.len().min(last - ids.len());
            let got = run.greedy(&whole[whole.len() - vocab..], n);
            if got != want[..n] {
                return Some(format!("greedy text of prompt {p}: {got:?} instead of {want:?}"));
            }
        }
        for cut in [1, ids.len() / 2, 17.min(ids.len() - 1)] {
            run.clear();
            let mut parts = run.feed(&ids[..cut]);
            parts.extend(run.feed(&ids[cut..]));
            if parts != whole {
                return Some(format!("prompt {p} cut at {cut} has other bits"));
            }
        }
    }
    None
}

/// Checks all models of a folder on one backend.
fn walk(folder: &str, is_made: bool, on: On) {
    let mut wrong = Vec::new();
    for (name, path) in names(folder) {
        println!("{name} on {on:?}"); // shown if it fails, or takes long
        let result = difference(&name, &path, is_made, on);
        if REFUSED.contains(&name.as_str()) {
            let e = result.unwrap_or_default();
            if !e.contains("not supported yet") {
                wrong.push(format!("{name}: expected a refusal, not '{e}'"));
            }
        } else if let Some(what) = result {
            wrong.push(format!("{name}: {what}"));
        }
    }
    assert!(wrong.is_empty(), "{} models on {on:?}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn gguf_files_on_the_reference() {
    walk("gguf", false, On::Reference);
}

#[test]
fn gguf_files_on_every_instruction_set() {
    exact_backends().into_iter().filter(|on| *on != On::Reference).for_each(|on| walk("gguf", false, on));
}

#[test]
fn checkpoints_on_the_reference() {
    walk("models", false, On::Reference);
}

#[test]
fn gguf_files_that_are_made_of_checkpoints() {
    walk("models", true, exact_backends().last().copied().expect("the reference"));
}

#[test]
fn checkpoints_on_the_best_instruction_set() {
    walk("models", false, *exact_backends().last().expect("a backend"));
}

#[test]
fn gguf_files_on_a_graphics_device() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    walk("gguf", false, On::ExactVulkan(index));
}

/// A checkpoint with more layers than its configuration says: the last one would be left out silently.
#[test]
fn layers_beyond_those_of_the_configuration_are_refused() {
    let mut named = 0;
    for (name, path) in names("models") {
        let from = shared(&path).expect("it was listed");
        let text = std::fs::read_to_string(from.join("config.json")).expect("a configuration");
        let mut config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let Some(less) = shorten(&mut config) else { continue };
        let dir = tempfile::tempdir().expect("a folder");
        for file in std::fs::read_dir(&from).expect("a folder") {
            let file = file.expect("an entry").path();
            std::fs::copy(&file, dir.path().join(file.file_name().expect("a name"))).expect("it is copied");
        }
        std::fs::write(dir.path().join("config.json"), config.to_string()).expect("it is written");
        let opened = octet_weights::Model::open(dir.path()).map_err(|e| e.to_string());
        let e = opened.and_then(|file| try_load(&file, On::Reference, limits()).map(drop).and(Ok(())));
        let e = e.err().unwrap_or_else(|| panic!("{name}: one of {} layers is left out", less + 1));
        named += usize::from(e.contains("num_hidden_layers") && e.contains(&format!("layer {less}")));
    }
    assert!(named == 0 || named > 8, "{named} say why");
}

/// Takes away the last layer from a configuration, and returns how many are left.
fn shorten(config: &mut serde_json::Value) -> Option<usize> {
    let text = if config["text_config"].is_object() { &mut config["text_config"] } else { config };
    let fields = text.as_object_mut()?;
    let layers = fields.get("num_hidden_layers")?.as_u64()? as usize;
    let less = layers.checked_sub(1).filter(|less| *less > 0)?;
    fields.insert("num_hidden_layers".into(), less.into());
    for list in fields.values_mut().filter_map(|v| v.as_array_mut()).filter(|list| list.len() == layers) {
        list.pop();
    }
    Some(less)
}
