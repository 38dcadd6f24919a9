//! `octet imatrix` and `octet compare`.

use crate::common::{Place, Ran};
use serde_json::Value;

const TEXT: &str = "the quick brown fox jumps over the lazy dog and runs away from it again and again. ";

fn json(ran: Ran) -> Value {
    serde_json::from_str(&ran.ok().stdout).unwrap()
}

const WINDOW: &[&str] = &["-f", "text.txt", "--window", "64", "-t", "1"];

#[test]
fn a_model_differs_little_from_itself_and_more_from_fewer_bits() {
    let place = Place::with_model("qwen35moe", "f32");
    place.write("text.txt", &TEXT.repeat(20));
    for ty in ["q8_0", "q4_0"] {
        place.octet(&["quantize", "model.gguf", "-o", &format!("{ty}.gguf"), "--type", ty]).ok();
    }
    let models = ["compare", "model.gguf", "model.gguf", "q8_0.gguf", "q4_0.gguf", "--exact"];
    let more = ["--json", "--svg", "out.svg", "--save-base", "base.kld"];
    place.octet(&[&["compare", "model.gguf", "--exact", "--save-base", "base.kld"], WINDOW].concat()).ok();
    std::fs::rename(place.path("base.kld"), place.path("first.kld")).unwrap();
    let all = json(place.octet(&[&models[..], WINDOW, &more].concat()));
    let rows = all["models"].as_array().unwrap();
    let kl: Vec<f64> = rows.iter().map(|r| r["kl_divergence"]["mean"].as_f64().unwrap()).collect();
    // A saved base has 16 bits.
    assert!(kl[0] < 1e-6 && kl[0] < kl[1] && kl[1] < kl[2], "{kl:?}");
    assert_eq!(rows[0]["same_top"]["value"], 1.0);
    let ratio = rows[0]["perplexity_ratio"]["value"].as_f64().unwrap();
    assert!((ratio - 1.0).abs() < 1e-3, "{ratio}");
    assert_eq!(rows[2]["worst"].as_array().unwrap().len(), 5);
    let svg = std::fs::read_to_string(place.path("out.svg")).unwrap();
    assert!(svg.contains("q4_0.gguf") && svg.ends_with("</svg>\n"));
    assert_eq!(svg.matches("by bytes read a token").count() + svg.matches("by tokens a second").count(), 2);
    assert!(rows.iter().all(|r| r["tokens_per_second"].as_f64().unwrap() > 0.0), "{all:#}");
    // The same base again, and from the file.
    assert!(
        std::fs::read(place.path("base.kld")).unwrap() == std::fs::read(place.path("first.kld")).unwrap()
    );
    let again =
        json(place.octet(&[&["compare", "base.kld", "q4_0.gguf", "--exact", "--json"], WINDOW].concat()));
    assert_eq!(again["models"][0]["kl_divergence"], rows[2]["kl_divergence"]);
    let unmeasured =
        [&["compare", "base.kld", "q4_0.gguf", "--speed", "0", "--json", "--svg", "one.svg"], WINDOW]
            .concat();
    assert_eq!(json(place.octet(&unmeasured))["models"][0]["tokens_per_second"], Value::Null);
    assert!(!std::fs::read_to_string(place.path("one.svg")).unwrap().contains("tokens a second"));
    let table = place.octet(&[&["compare", "base.kld", "q4_0.gguf", "--exact"], WINDOW].concat()).ok().stdout;
    assert!(
        table.contains("same top token")
            && table.contains("tokens/s")
            && table.contains("q4_0.gguf: the tokens that differ most"),
        "{table}"
    );
    // A long name has a line of its own.
    std::fs::copy(place.path("q4_0.gguf"), place.path("a-model-with-a-long-name.q4_0.gguf")).unwrap();
    let long =
        ["compare", "base.kld", "a-model-with-a-long-name.q4_0.gguf", "q4_0.gguf", "--exact", "--worst", "0"];
    let long = place.octet(&[&long, WINDOW].concat()).ok().stdout;
    assert!(long.contains("\na-model-with-a-long-name.q4_0.gguf\n "), "{long}");
    assert!(long.lines().all(|l| l.chars().count() <= 80), "{long}");
}

#[test]
fn bases_of_other_vocabularies_and_short_texts_are_refused() {
    let place = Place::with_model("llama", "f32");
    place.write("text.txt", "the fox");
    place
        .octet(&[&["compare", "model.gguf", "model.gguf"], WINDOW].concat())
        .fails(1, &["text.txt", "window of 64"]);
    place.octet(&[&["compare", "model.gguf"], WINDOW].concat()).fails(1, &["--save-base"]);
    place
        .octet(&["imatrix", "model.gguf", "-f", "text.txt", "-o", "im.gguf"])
        .fails(1, &["text.txt", "--chunk"]);
    assert!(!place.path("im.gguf").exists());
}

#[test]
fn an_importance_matrix_is_made_and_used() {
    let place = Place::with_model("qwen35moe", "f32");
    place.write("text.txt", &TEXT.repeat(20));
    let ran = place
        .octet(&[
            "imatrix",
            "model.gguf",
            "-f",
            "text.txt",
            "-o",
            "im.gguf",
            "--chunk",
            "64",
            "--exact",
            "-t",
            "1",
        ])
        .ok();
    assert!(ran.stdout.contains("experts:"), "{}", ran.stdout);
    let file = octet_weights::Model::open(place.path("im.gguf")).unwrap();
    assert_eq!(file.metadata.str("general.type").unwrap(), "imatrix");
    let tokens = file.metadata.u32("imatrix.chunk_count").unwrap() as f32 * 64.0;
    let model = octet_weights::Model::open(place.path("model.gguf")).unwrap();
    let mut experts = 0.0;
    for t in model.tensors().iter().filter(|t| octet_quantize::is_quantised(t) && !t.name.contains(".nextn."))
    {
        // The embedding is looked up, and the block for multi-token prediction is not run.
        if t.name == "token_embd.weight" || t.name.starts_with("blk.4.") {
            continue;
        }
        let sums =
            file.optional(&format!("{}.in_sum2", t.name)).unwrap().unwrap_or_else(|| panic!("no {}", t.name));
        let counts = file.optional(&format!("{}.counts", t.name)).unwrap().unwrap();
        let matrices = if t.shape.len() > 2 { t.shape[0] } else { 1 };
        assert_eq!(sums.info.shape, [matrices, *t.shape.last().unwrap()], "{}", t.name);
        assert_eq!(counts.info.shape, [matrices, 1]);
        let counted: f32 = counts.to_f32().iter().sum();
        match matrices {
            1 => assert_eq!(counted, tokens, "{}", t.name),
            // Three experts a token.
            _ => assert_eq!(counted, 3.0 * tokens, "{}", t.name),
        }
        assert!(
            sums.to_f32().iter().all(|s| s.is_finite() && *s >= 0.0)
                && sums.to_f32().iter().any(|s| *s > 0.0)
        );
        experts += counted;
    }
    assert!(experts > 0.0);
    for (out, more) in [("plain.gguf", &[][..]), ("with.gguf", &["--imatrix", "im.gguf"])] {
        place.octet(&[&["quantize", "model.gguf", "-o", out, "--type", "q2_k"], more].concat()).ok();
    }
    let with = octet_weights::Model::open(place.path("with.gguf")).unwrap();
    assert_eq!(with.metadata.str("quantize.imatrix.dataset").unwrap(), "text.txt");
    let models = ["compare", "model.gguf", "plain.gguf", "with.gguf", "--exact", "--json"];
    let all = json(place.octet(&[&models[..], WINDOW].concat()));
    let kl = |i: usize| all["models"][i]["kl_divergence"]["mean"].as_f64().unwrap();
    assert!(kl(0).is_finite() && kl(1).is_finite(), "{} {}", kl(0), kl(1));
    // A matrix of another model.
    let seen = octet_quantize::Seen { columns: 3, sums: vec![1.0; 3], counts: vec![2.0] };
    let other = octet_quantize::Importance {
        seen: [("blk.0.ffn_up_shexp.weight".to_string(), seen)].into(),
        ..Default::default()
    };
    octet_synth::write(&other.to_model().unwrap(), &place.path("other.gguf"), false, &mut |_, _| {}).unwrap();
    place
        .octet(&["quantize", "model.gguf", "-o", "out.gguf", "--type", "q4_0", "--imatrix", "other.gguf"])
        .fails(1, &["other.gguf", "blk.0.ffn_up_shexp.weight", "3 columns", "another model"]);
}
