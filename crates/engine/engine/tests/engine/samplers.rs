//! The samplers against llama.cpp's own: the same logits and settings leave the same tokens with the same probabilities.
//! `fixtures/samplers/llama_cpp.py` writes what llama.cpp's published package does.

use octet_engine::sampler::{
    Dry, DynamicTemperature, Mirostat, MirostatVersion, Sampler, SamplerParams, Stage, Xtc, bitset_below,
    dry_breakers,
};
use octet_engine::tokenizer::Tokenizer;
use octet_weights::{Metadata, Value as Meta};
use serde_json::Value;

/// As the script makes them.
fn logits(n: usize, step: u32) -> Vec<f32> {
    let one = |i: u32| {
        let x = (i + 1).wrapping_mul(2_654_435_761).wrapping_add(step.wrapping_mul(2_246_822_519));
        ((x >> 16) % 4096) as f32 / 256.0 - (i % 7) as f32
    };
    (0..n as u32).map(one).collect()
}

fn settings(case: &Value) -> SamplerParams {
    let float = |name: &str, off: f32| case.get(name).map_or(off, |x| x.as_f64().unwrap() as f32);
    let count = |name: &str, off: usize| case.get(name).map_or(off, |x| x.as_u64().unwrap() as usize);
    let base = SamplerParams::default();
    let names = case["samplers"].as_array();
    let order =
        names.map(|names| names.iter().map(|n| Stage::from_name(n.as_str().unwrap()).unwrap()).collect());
    let mirostat = case.get("mirostat").map(|version| Mirostat {
        version: if version == 1 { MirostatVersion::V1 } else { MirostatVersion::V2 },
        tau: float("mirostat_tau", 5.0),
        eta: float("mirostat_eta", 0.1),
    });
    let ids = |list: &Value| list.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect();
    SamplerParams {
        temperature: float("temperature", 1.0),
        top_k: count("top_k", 0) as u32,
        top_p: float("top_p", 1.0),
        min_p: float("min_p", 0.0),
        typical_p: float("typical_p", 1.0),
        top_n_sigma: float("top_n_sigma", 0.0),
        repetition_penalty: float("repeat_penalty", 1.0),
        penalty_last_n: count("repeat_last_n", base.penalty_last_n),
        presence_penalty: float("presence_penalty", 0.0),
        frequency_penalty: float("frequency_penalty", 0.0),
        min_keep: count("min_keep", 0),
        xtc: Xtc {
            probability: if case.get("xtc_threshold").is_some() { 1.0 } else { 0.0 },
            threshold: float("xtc_threshold", 0.1),
        },
        dynamic_temperature: DynamicTemperature {
            range: float("dynatemp_range", 0.0),
            exponent: float("dynatemp_exponent", 1.0),
        },
        dry: Dry {
            multiplier: float("dry_multiplier", 0.0),
            base: float("dry_base", 1.75),
            allowed_length: count("dry_allowed_length", 2),
            last_n: count("dry_penalty_last_n", usize::MAX),
            breakers: case["dry_breakers"].as_array().map_or(Vec::new(), |b| b.iter().map(ids).collect()),
        },
        mirostat,
        order: order.unwrap_or(base.order),
        post_sampling: true,
        logprobs: Some(count("n", 60)),
        ..SamplerParams::default()
    }
}

#[test]
fn the_same_tokens_are_left_as_in_llama_cpp() {
    let file: Value = serde_json::from_str(include_str!("../fixtures/samplers/llama_cpp.json")).unwrap();
    let history = file["history"].as_array().unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert!(cases.len() > 25);
    for case in cases {
        let n = case["n"].as_u64().unwrap() as usize;
        let what = &case["settings"];
        let mut sampler = Sampler::new(settings(what), n, &bitset_below(n), 3).unwrap();
        history.iter().for_each(|id| sampler.accept(id.as_u64().unwrap() as u32));
        for (step, expected) in case["steps"].as_array().unwrap().iter().enumerate() {
            let drawn = sampler.sample(&logits(n, step as u32), None).unwrap();
            let left = expected["left"].as_array().unwrap();
            let got = sampler.top_logprobs();
            let ids: Vec<u32> = got.iter().map(|t| t.0).collect();
            let theirs: Vec<u32> = left.iter().map(|t| t[0].as_u64().unwrap() as u32).collect();
            assert_eq!(ids, theirs, "step {step} of {what}");
            for (t, theirs) in got.iter().zip(left) {
                let theirs = theirs[1].as_f64().unwrap();
                let ours = f64::from(t.1).exp();
                assert!(
                    (ours - theirs).abs() < 3e-6 + theirs * 1e-4,
                    "token {}: {ours} {theirs}; {what}",
                    t.0
                );
            }
            assert!(ids.contains(&drawn.id));
            // Mirostat depends on the chosen token; the others sample for the same text again.
            if let Some(id) = expected.get("drawn") {
                sampler.accept(id.as_u64().unwrap() as u32);
            }
        }
    }
}

/// Draws with and without reported probabilities, which use another code path.
#[test]
fn reported_probabilities_change_no_text() {
    let base = || SamplerParams { seed: Some(5), ..SamplerParams::default() };
    for params in [
        base(),
        SamplerParams { top_k: 12, top_p: 0.9, temperature: 1.3, ..base() },
        SamplerParams { min_p: 0.05, presence_penalty: 0.5, ..base() },
        SamplerParams { xtc: Xtc { probability: 0.5, threshold: 0.02 }, ..base() },
        SamplerParams::greedy(),
    ] {
        let text = |params: SamplerParams| {
            let mut s = Sampler::new(params, 500, &bitset_below(500), 0).unwrap();
            let mut next = |step| {
                let id = s.sample(&logits(500, step), None).unwrap().id;
                s.accept(id);
                id
            };
            (0..60).map(&mut next).collect::<Vec<_>>()
        };
        let looked = SamplerParams { post_sampling: true, logprobs: Some(3), ..params.clone() };
        assert_eq!(text(params.clone()), text(looked), "{params:?}");
    }
}

/// XTC is applied with its probability, and uses no number of the draws' random stream.
#[test]
fn xtc_is_applied_with_its_probability() {
    let l = logits(60, 0);
    let xtc = |probability| SamplerParams {
        xtc: Xtc { probability, threshold: 0.05 },
        post_sampling: true,
        logprobs: Some(1),
        ..SamplerParams::default()
    };
    let mut often = Sampler::new(xtc(0.3), 60, &bitset_below(60), 9).unwrap();
    let best = (0..60u32).max_by(|a, b| l[*a as usize].total_cmp(&l[*b as usize])).unwrap();
    let removed = (0..4000).filter(|_| {
        often.sample(&l, None).unwrap();
        often.top_logprobs()[0].0 != best
    });
    let removed = removed.count() as f64 / 4000.0;
    assert!((removed - 0.3).abs() < 0.04, "{removed}");
}

#[test]
fn breakers_match_every_tokenization() {
    let mut meta = Metadata::new("m.gguf");
    let tokens = ["<unk>", "<s>", "</s>", "a", "b", "c", "ab", "bc", "xa", "abc", "\u{2581}"];
    let strings = tokens.iter().map(|t| (*t).to_string()).collect();
    meta.insert("tokenizer.ggml.model", Meta::Str("llama".into()));
    meta.insert("tokenizer.ggml.tokens", Meta::Strs(strings));
    let scores = (0..tokens.len()).map(|i| -(i as f64)).collect();
    meta.insert("tokenizer.ggml.scores", Meta::Floats(scores));
    let tokenizer = Tokenizer::from_metadata(&meta).unwrap();
    let all = dry_breakers(&tokenizer, "abc");
    // "abc" itself; tokens that end with "a" or "ab", followed by the rest. ("bc" is one token.)
    for expected in [vec![9], vec![3, 7], vec![8, 7], vec![6, 5]] {
        assert!(all.contains(&expected), "{expected:?} of {all:?}");
    }
    assert!(!all.iter().any(|b| b[0] == 4 || b[0] == 5), "{all:?}");
    assert_eq!(dry_breakers(&tokenizer, "c").len(), 3, "c, bc, abc");
    assert!(dry_breakers(&tokenizer, "").is_empty());
}
