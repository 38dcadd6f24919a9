//! `octet plan`: the sizes of published files, and which models fit.

use crate::common::Place;
use serde_json::Value;

fn plan(args: &[&str]) -> Value {
    let ran = Place::new().octet(&[&["plan", "--json", "--bandwidth", "100"], args].concat()).ok();
    serde_json::from_str(&ran.stdout).expect("JSON")
}

fn find<'a>(plan: &'a Value, model: &str, quant: &str) -> Option<&'a Value> {
    let all = plan["models"].as_array().expect("a list");
    all.iter().find(|m| m["model"] == model && m["quantization"] == quant)
}

#[test]
fn weights_are_as_large_as_published_files() {
    let plan = plan(&["--ram", "80"]);
    // Bytes of the files on the hub, their metadata included.
    for (model, quant, bytes) in [
        ("qwen3:8b", "Q4_K_M", 5_027_783_488.0),
        ("qwen3:8b", "Q8_0", 8_709_518_624.0),
        ("qwen3:30b-a3b", "Q4_K_M", 18_556_685_792.0),
        ("gemma4:e2b", "Q4_K_M", 3_106_930_688.0),
        ("gemma4:e4b", "Q4_K_M", 4_977_169_568.0),
        ("gpt-oss:20b", "MXFP4", 12_109_566_560.0),
        ("gpt-oss:120b", "MXFP4", 63_387_346_208.0),
    ] {
        let found = find(&plan, model, quant).expect("it fits")["weight_bytes"].as_f64().expect("a number");
        assert!((found / bytes - 1.0).abs() < 0.01, "{model} {quant}: {found} {bytes}");
    }
    // Projectors, less what is computed and kept: files of the hub in F16.
    for (model, bytes) in [("gemma4:26b-a4b", 1_193_058_432.0), ("qwen3.5:4b", 672_000_000.0)] {
        let file = octet_synth::projector(model).expect("it is known").expect("it has one");
        let found = file.size_bytes() as f64;
        assert!((found / bytes - 1.0).abs() < 0.002, "{model}: {found} {bytes}");
        let all = find(&plan, model, "Q4_K_M").expect("it fits")["image_bytes"].as_f64().expect("a number");
        assert!(all > found + f64::from(256 << 20), "{model}: {all}");
    }
    // Parameters of whole checkpoints, in billions; of the others their cards say what their encoders have.
    for (model, text, billions) in [
        ("qwen3-vl:8b", 1.0, 8.767..8.768),
        ("qwen3-vl:30b-a3b", 1.0, 31.070..31.071),
        ("ministral3:8b", 0.0, 0.40..0.45),
        ("gemma4:e4b", 0.0, 0.15..0.18),
    ] {
        let found = find(&plan, model, "Q4_K_M").expect("it fits");
        let number = |name: &str| found[name].as_f64().expect("a number");
        let file = octet_synth::projector(model).expect("it is known").expect("it has one");
        let values: usize = file.tensors().iter().map(|t| t.shape.iter().product::<usize>()).sum();
        let all = (text * number("parameters") + values as f64) / 1e9;
        assert!(billions.contains(&all), "{model}: {all}");
        assert!(number("image_bytes") > file.size_bytes() as f64 + f64::from(256 << 20), "{found}");
    }
    assert_eq!(find(&plan, "qwen3:8b", "Q4_K_M").expect("it fits")["image_bytes"], Value::Null);
    // The others are estimates, and in the order of their bits.
    let of_model = |model: &str| -> Vec<f64> {
        let all = plan["models"].as_array().expect("a list").iter().filter(|m| m["model"] == model);
        all.map(|m| m["weight_bytes"].as_f64().expect("a number")).collect()
    };
    let sizes = of_model("qwen3:30b-a3b");
    assert!(sizes.len() > 12 && sizes.is_sorted(), "{sizes:?}");
    assert!(find(&plan, "llama3.2:3b", "UD-IQ2_M").is_none(), "only Unsloth publishes those");
}

#[test]
fn what_fits_depends_on_memory_and_context() {
    let (small, large) = (plan(&["--ram", "16"]), plan(&["--ram", "32"]));
    assert_eq!(find(&small, "qwen3.6:35b-a3b", "Q4_K_M"), None);
    // Its smaller files fit, and are far faster than a dense model that fits.
    let rate_of =
        |model: &str, quant: &str| find(&small, model, quant).and_then(|m| m["tokens_per_second"].as_f64());
    let (sparse, dense) = (rate_of("qwen3.6:35b-a3b", "UD-IQ3_XXS"), rate_of("qwen3.6:27b", "UD-IQ3_XXS"));
    assert!(sparse.expect("it fits") > 5.0 * dense.expect("it fits"));
    let too_large = small["too_large"].as_array().expect("a list");
    assert!(too_large.iter().any(|m| m["model"] == "qwen3.5:122b-a10b"), "{too_large:?}");
    // With a drive to read experts from, such models run too, the faster the more of them are in memory.
    let [less, more] = ["16", "20"].map(|ram| plan(&["--ram", ram, "--disk", "3"]));
    let on_disk = |plan: &Value, model: &str| {
        let of_model = |m: &&Value| m["model"] == model && m["quantization"] == "Q4_K_M";
        let found = plan["from_disk"].as_array().expect("a list").iter().find(of_model);
        let is_too_large = plan["too_large"].as_array().expect("a list").iter().any(|m| m["model"] == model);
        assert!(found.is_none() || !is_too_large);
        found.and_then(|m| Some((m["tokens_per_second"].as_f64()?, m["expert_slots"].as_u64()?)))
    };
    let [half, most] = [&less, &more].map(|p| on_disk(p, "qwen3.6:35b-a3b").expect("it is listed"));
    assert!(half.0 < most.0 && 8 < half.1 && half.1 < most.1 && most.1 < 256, "{half:?} {most:?}");
    assert!(on_disk(&less, "qwen3.5:122b-a10b").is_some());
    assert!(on_disk(&less, "qwen3.6:27b").is_none(), "it has no experts");
    let sparse = find(&large, "qwen3.6:35b-a3b", "Q4_K_M").expect("it fits");
    let dense = find(&large, "qwen3.6:27b", "Q4_K_M").expect("it fits");
    let rate = |m: &Value| m["tokens_per_second"].as_f64().expect("a number");
    assert!(rate(sparse) > 5.0 * rate(dense), "few of its experts are read for a token");
    assert!(rate(sparse) > sparse["tokens_per_second_full_context"].as_f64().expect("a number"));

    let long = plan(&["--ram", "32", "-c", "262144"]);
    assert!(find(&long, "qwen3:8b", "Q4_K_M").is_none(), "it was made for 40960 tokens");
    assert_eq!(find(&long, "qwen3.6:35b-a3b", "Q4_K_M").expect("it fits")["context"], 262_144);

    let card = plan(&["--ram", "32", "--vram", "12GiB"]);
    let on = |model: &str| find(&card, model, "Q4_K_M").expect("it fits")["device"].clone();
    assert_eq!((on("qwen3:8b"), on("qwen3.6:35b-a3b")), ("card".into(), "cpu".into()));
    assert_eq!(find(&card, "qwen3:8b", "Q4_K_M").expect("it fits")["tokens_per_second"], Value::Null);
}

#[test]
fn the_table_has_one_line_for_each_model() {
    let ran = Place::new().octet(&["plan", "--ram", "24GiB", "--bandwidth", "60"]).ok();
    let lines: Vec<&str> = ran.stdout.lines().filter(|l| l.starts_with("octet run qwen3:8b:")).collect();
    assert!(lines.len() == 1, "{}", ran.stdout);
    let reads = |model: &str| {
        let line =
            ran.stdout.lines().find(|l| l.starts_with(&format!("octet run {model}:"))).expect("a line");
        line.contains("GiB*")
    };
    assert!(reads("qwen3.5:9b") && !reads("qwen3:8b"), "{}", ran.stdout);
    assert!(ran.stdout.contains("* Reads images."), "{}", ran.stdout);
    assert!(ran.stdout.contains("Too large, even in their smallest quantisation:"), "{}", ran.stdout);
    assert!(ran.stdout.lines().all(|l| l.chars().count() <= 80), "{}", ran.stdout);
    Place::new().octet(&["plan", "--ram", "much"]).fails(2, &["GiB"]);
}
