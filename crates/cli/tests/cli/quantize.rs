//! `octet quantize` and `octet convert`.

use crate::common::{Place, Ran, str};
use serde_json::Value;

/// A text of words that the tiny models' tokenizers know.
const TEXT: &str = "the quick brown fox jumps over the lazy dog and runs away from it again and again ";

fn json(ran: Ran) -> Value {
    serde_json::from_str(&ran.ok().stdout).unwrap()
}

/// Mean negative log-likelihood of the text, in exact arithmetic.
fn nll(place: &Place, model: &str) -> f64 {
    place.write("text.txt", &TEXT.repeat(4));
    json(place.octet(&["perplexity", model, "-f", "text.txt", "--exact", "-t", "1", "--json"]))["nll"]
        .as_f64()
        .unwrap()
}

#[test]
fn a_quantised_model_loads_and_predicts_about_the_same() {
    for (architecture, types) in
        [("qwen35moe", ["q8_0", "q4_k_m", "iq2_s"]), ("llama", ["q6_k", "q4_0", "mxfp4_moe"])]
    {
        let place = Place::with_model(architecture, "f32");
        let before = nll(&place, "model.gguf");
        let mut last = u64::MAX;
        for ty in types {
            let out = format!("{ty}.gguf");
            let ran = place.octet(&["quantize", "model.gguf", "-o", &out, "--type", ty, "--keep-mtp"]).ok();
            assert!(ran.stdout.contains(&out) && ran.stdout.contains("bits a weight"), "{}", ran.stdout);
            let bytes = std::fs::metadata(place.path(&out)).unwrap().len();
            assert!(bytes < std::fs::metadata(place.path("model.gguf")).unwrap().len(), "{ty}");
            let after = nll(&place, &out);
            assert!((after - before).abs() < 0.5, "{architecture} {ty}: {before} {after}");
            if ty == "q8_0" {
                assert!((after - before).abs() < 0.01, "{architecture} {ty}: {before} {after}");
            }
            last = last.min(bytes);
        }
    }
}

#[test]
fn single_tensors_can_have_other_types() {
    let place = Place::with_model("qwen35moe", "f32");
    let run = |more: &[&str]| {
        place.octet(
            &[&["quantize", "model.gguf", "-o", "out.gguf", "--type", "q8_0", "--force"], more].concat(),
        )
    };
    let types = |place: &Place| {
        let model = octet_weights::Model::open(place.path("out.gguf")).unwrap();
        let all: Vec<(String, String)> =
            model.tensors().iter().map(|t| (t.name.clone(), t.ty.name().to_string())).collect();
        all
    };
    run(&["--tensor-type", "ffn_down_exps=q4_0", "--tensor-type", "blk.0.*gate_exps=f16"]).ok();
    for (name, ty) in types(&place) {
        match name.as_str() {
            n if n.ends_with("ffn_down_exps.weight") => assert_eq!(ty, "Q4_0", "{n}"),
            "blk.0.ffn_gate_exps.weight" => assert_eq!(ty, "F16"),
            n if n.ends_with("ffn_up_exps.weight") => assert_eq!(ty, "Q8_0", "{n}"),
            n if n.ends_with("_norm.weight") || n.ends_with("ffn_gate_inp.weight") => {
                assert_eq!(ty, "F32", "{n}")
            }
            n => assert!(!n.contains(".nextn."), "{n} belongs to multi-token prediction"),
        }
    }
    run(&["--tensor-type", "nothing=q4_0"]).fails(1, &["nothing", "blk.0.ffn_down_exps.weight"]);
    run(&["--tensor-type", "ffn_down=q9"]).fails(2, &["ffn_down=q9", "q4_k"]);
    run(&["--tensor-type", "ffn_down"]).fails(2, &["NAME=TYPE"]);
}

#[test]
fn what_cannot_be_made_leaves_nothing() {
    let place = Place::with_model("llama", "f32");
    place.octet(&["quantize", "model.gguf", "-o", "out.gguf", "--type", "q9"]).fails(2, &["q9", "q4_k_m"]);
    place.octet(&["quantize", "model.gguf", "-o", "-", "--type", "q8_0"]).fails(2, &["standard output"]);
    place
        .octet(&["quantize", "model.gguf", "-o", "model.gguf", "--type", "q8_0"])
        .fails(1, &["exists already"]);
    place
        .octet(&["quantize", "missing.gguf", "-o", "out.gguf", "--type", "q8_0"])
        .fails(1, &["missing.gguf"]);
    place.write("im.gguf", "not a matrix");
    place
        .octet(&["quantize", "model.gguf", "-o", "out.gguf", "--type", "q8_0", "--imatrix", "im.gguf"])
        .fails(1, &["im.gguf", "importance matrix"]);
    // A weight that is no number.
    let path = place.path("model.gguf");
    let model = octet_weights::Model::open(&path).unwrap();
    let name = "blk.0.ffn_up.weight";
    let info = model.info(name).unwrap().clone();
    let tensor = model.tensor(name, &info.shape).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let first = tensor.data[..64].to_vec();
    let at = bytes.windows(64).position(|w| w == first).unwrap();
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(place.path("nan.gguf"), bytes).unwrap();
    place
        .octet(&["quantize", "nan.gguf", "-o", "out.gguf", "--type", "q4_0"])
        .fails(1, &["blk.0.ffn_up.weight", "row 0", "NaN", "finite"]);
    let left: Vec<String> = std::fs::read_dir(place.dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|n| n.starts_with("out") || n.ends_with(".part"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A limit of a file's size is an error of writing, as a full disk is.
#[test]
#[cfg(unix)]
fn a_full_disk_leaves_nothing() {
    let place = Place::with_model("llama", "f32");
    let full = |args: &[&str]| {
        let octet = place.command(&[]);
        let mut shell = std::process::Command::new("sh");
        shell
            .arg("-c")
            .arg("trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\"")
            .arg(octet.get_program())
            .args(args);
        shell.current_dir(place.dir.path()).env_clear().env("HOME", place.dir.path());
        place.run(&mut shell, "").fails(1, &["out.gguf", "File too large"]);
    };
    full(&["quantize", "model.gguf", "-o", "out.gguf", "--type", "q8_0"]);
    full(&["convert", "model.gguf", "-o", "out.gguf"]);
    // A file that is to be replaced stays.
    place.write("out.gguf", "older");
    full(&["quantize", "model.gguf", "-o", "out.gguf", "--type", "q4_0", "--force"]);
    assert_eq!(std::fs::read_to_string(place.path("out.gguf")).unwrap(), "older");
    let mut left: Vec<_> =
        std::fs::read_dir(place.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["model.gguf", "out.gguf"]);
}

#[test]
fn a_file_can_have_a_size() {
    let place = Place::with_model("qwen35moe", "f32");
    let bytes = |name: &str| std::fs::metadata(place.path(name)).unwrap().len();
    place.octet(&["quantize", "model.gguf", "-o", "q8_0.gguf", "--type", "q8_0"]).ok();
    place.octet(&["quantize", "model.gguf", "-o", "q4_0.gguf", "--type", "q4_0"]).ok();
    let limit = (bytes("q4_0.gguf") + bytes("q8_0.gguf")) / 2;
    place.octet(&["quantize", "model.gguf", "-o", "fit.gguf", "--fit", &limit.to_string()]).ok();
    assert!(
        bytes("fit.gguf") <= limit && bytes("fit.gguf") > bytes("q4_0.gguf"),
        "{} of {limit}",
        bytes("fit.gguf")
    );
    assert!((nll(&place, "fit.gguf") - nll(&place, "model.gguf")).abs() < 0.2);
    place
        .octet(&["quantize", "model.gguf", "-o", "no.gguf", "--fit", "9KiB"])
        .fails(1, &["smallest mix", "--fit"]);
    place.octet(&["quantize", "model.gguf", "-o", "no.gguf"]).fails(2, &["--type"]);
}

/// Checkpoints become files with the same log-probabilities, in GGUF's conventions: nothing of Octet's own is left in the metadata.
#[test]
fn checkpoints_become_files_that_predict_the_same() {
    for name in ["tiny-qwen3_5_moe", "tiny-llama", "tiny-qwen3_moe"] {
        let Some(path) = octet_testkit::shared(&format!("models/{name}")) else { return };
        let place = Place::new();
        let before = nll(&place, str(&path));
        place.octet(&["convert", str(&path), "-o", "out.gguf", "--keep-mtp"]).ok();
        let after = nll(&place, "out.gguf");
        assert!((before - after).abs() < 1e-5, "{name}: {before} {after}");
        let model = octet_weights::Model::open(place.path("out.gguf")).unwrap();
        assert!(model.metadata.iter().all(|(key, _)| !key.starts_with("octet.")), "{name}");
        // Tensor by tensor as llama.cpp's converter wrote them.
        let theirs = octet_testkit::shared(&format!("models/gguf/{name}.f32.gguf")).unwrap();
        let theirs = octet_weights::Model::open(theirs).unwrap();
        for t in theirs.tensors() {
            let ours = model.tensor(&t.name, &t.shape).unwrap_or_else(|e| panic!("{e}")).to_f32();
            let want = theirs.tensor(&t.name, &t.shape).unwrap().to_f32();
            let close = ours.iter().zip(&want).all(|(a, b)| (a - b).abs() <= 2e-7 * b.abs());
            assert!(close, "{name}: {}", t.name);
        }
        assert_eq!(theirs.tensors().len(), model.tensors().len(), "{name}");
    }
}

/// A checkpoint that reads images becomes two files: the second has the tensors of llama.cpp's own converter, and is found beside the first.
#[test]
fn the_tower_of_a_checkpoint_becomes_a_projector() {
    let Some(path) = octet_testkit::shared("zoo/vision/models/qwen35moe_vl") else { return };
    let place = Place::new();
    let convert = ["convert", str(&path), "-o", "out.gguf"];
    let ran = place.octet(&convert).ok();
    assert!(ran.stdout.contains("mmproj-out.gguf") && ran.stdout.contains("reads images"), "{}", ran.stdout);
    let theirs = octet_testkit::shared("zoo/vision/gguf/qwen35moe_vl.mmproj.gguf").unwrap();
    let theirs = octet_weights::Model::open(theirs).unwrap();
    let ours = octet_weights::Model::open(place.path("mmproj-out.gguf")).unwrap();
    for t in theirs.tensors() {
        let values =
            |m: &octet_weights::Model| m.tensor(&t.name, &t.shape).unwrap_or_else(|e| panic!("{e}")).to_f32();
        assert_eq!(values(&ours), values(&theirs), "{}", t.name);
    }
    assert_eq!(ours.tensors().len(), theirs.tensors().len());
    for (key, _) in theirs.metadata.iter().filter(|(key, _)| key.starts_with("clip.")) {
        assert!(ours.metadata.get(key).is_some(), "{key}");
    }
    // It comes before another one in the same folder.
    std::fs::copy(place.path("mmproj-out.gguf"), place.path("mmproj-a.gguf")).unwrap();
    let shown = place.octet(&["show", "out.gguf"]).ok().stdout;
    assert!(shown.contains("mmproj-out.gguf"), "{shown}");
    // Neither file is written if there is one of these names.
    std::fs::remove_file(place.path("out.gguf")).unwrap();
    place.octet(&convert).fails(1, &["mmproj-out.gguf", "--force", "--no-mmproj"]);
    assert!(!place.path("out.gguf").exists());
    let said = place.octet(&[&convert[..], &["--no-mmproj"]].concat()).ok().stderr;
    assert!(said.contains("mmproj-out.gguf") && said.contains("delete it"), "{said}");
}

/// Nothing is written, and nothing computed, for an output that cannot be right.
#[test]
fn outputs_that_are_no_model_files_are_refused() {
    let place = Place::with_model("llama", "q8_0");
    std::fs::create_dir(place.path("folder")).unwrap();
    let to = |output: &str| place.octet(&["convert", "model.gguf", "-o", output]);
    to("folder").fails(1, &["folder is a folder"]);
    to("..").fails(2, &["is a folder", "name a file"]);
    to("mmproj-foo.gguf").fails(2, &["mmproj-foo.gguf", "projector", "choose another name"]);
    let files: Vec<_> =
        std::fs::read_dir(place.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(files.len(), 2, "{files:?}");
}

/// A checkpoint that `run` would refuse is not converted: a tensor of the tower is missing, or one of the text has no name.
#[test]
fn incomplete_checkpoints_are_not_converted() {
    let Some(path) = octet_testkit::shared("zoo/vision/models/qwen35moe_vl") else { return };
    for (from, to, words) in [
        ("visual.blocks.1.norm2.bias", "visual.blocks.9.norm2.bias", ["v.blk.1.ln2.bias", "--no-mmproj"]),
        ("visual.merger.norm.bias", "visual.merger.norm.boas", ["v.post_ln.bias", "--no-mmproj"]),
        (
            "layers.0.input_layernorm.weight",
            "layers.0.input_layernurm.weight",
            ["blk.0.attn_norm.weight", "is missing"],
        ),
    ] {
        let place = Place::new();
        std::fs::create_dir(place.path("model")).unwrap();
        for file in std::fs::read_dir(&path).unwrap() {
            let file = file.unwrap().path();
            let name = file.file_name().unwrap().to_str().unwrap().to_string();
            let mut bytes = std::fs::read(&file).unwrap();
            // In the header, and in the index.
            while let Some(at) = bytes.windows(from.len()).position(|w| w == from.as_bytes()) {
                bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
            }
            std::fs::write(place.path("model").join(name), bytes).unwrap();
        }
        place.octet(&["convert", "model", "-o", "out.gguf"]).fails(1, &words);
        assert!(!place.path("out.gguf").exists());
    }
}

/// Quantised checkpoints: what GGUF has a type for keeps it, and everything else predicts about the same.
#[test]
fn quantised_checkpoints_can_be_converted() {
    for (name, ty, off) in [
        ("gptq/int4-g128-sym", Some("Q4_0"), 1e-5),
        ("modelopt/nvfp4", Some("NVFP4"), 1e-5),
        ("fp8/block-ue8m0", Some("BF16"), 0.02),
        ("fp8/moe-fp8-block", None, 0.05),
    ] {
        let Some(path) = octet_testkit::shared(&format!("formats/{name}")) else { return };
        let place = Place::new();
        let before = nll(&place, str(&path));
        place.octet(&["convert", str(&path), "-o", "out.gguf", "--keep-mtp"]).ok();
        let after = nll(&place, "out.gguf");
        assert!((before - after).abs() < off, "{name}: {before} {after}");
        let model = octet_weights::Model::open(place.path("out.gguf")).unwrap();
        if let Some(ty) = ty {
            let up = model.tensors().iter().find(|t| t.name.contains("ffn_up")).unwrap();
            assert_eq!(up.ty.name(), ty, "{name}");
        }
    }
}
