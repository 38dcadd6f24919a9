//! Tiny synthetic models on every backend, without reference data: each architecture against llama.cpp's text for the
//! same file, and mixed types.

use crate::common::{Run, exact_backends, limits, load};
use octet_engine::tokenizer::{Special, Tokenizer};
use octet_synth::{Mix, TINY_ARCHITECTURES, known, synthetic, tiny};
use octet_weights::{GgmlType as T, Value};

/// What llama.cpp (b11549, F32 files written by this workspace) writes greedily after the tokens `7 i + 11`, `i < 16`.
const GREEDY_BY_LLAMA_CPP: [(&str, [u32; 12]); 7] = [
    ("qwen35moe", [26, 72, 40, 268, 509, 307, 107, 13, 532, 51, 131, 585]),
    ("qwen35", [84, 59, 9, 496, 496, 158, 280, 50, 420, 449, 56, 421]),
    ("qwen3moe", [485, 83, 157, 543, 245, 4, 551, 155, 25, 26, 151, 555]),
    ("qwen3", [481, 396, 168, 354, 82, 418, 121, 271, 499, 383, 245, 568]),
    ("qwen2", [126, 93, 348, 77, 360, 62, 312, 68, 376, 203, 513, 416]),
    ("llama", [11, 344, 344, 344, 344, 344, 344, 344, 344, 344, 344, 344]),
    ("mixtral", [485, 83, 573, 335, 316, 567, 174, 422, 195, 101, 329, 501]),
];

/// The same with YaRN: a factor of 4 from an original context of 64.
const GREEDY_WITH_YARN: [(&str, [u32; 12]); 7] = [
    ("qwen35moe", [26, 72, 40, 268, 509, 307, 107, 13, 532, 51, 131, 585]),
    ("qwen35", [84, 59, 9, 496, 496, 158, 280, 50, 420, 449, 56, 421]),
    ("qwen3moe", [485, 83, 157, 543, 245, 4, 551, 155, 25, 26, 216, 220]),
    ("qwen3", [126, 316, 213, 68, 439, 311, 70, 194, 453, 361, 276, 274]),
    ("qwen2", [126, 527, 545, 15, 381, 393, 180, 422, 373, 464, 20, 397]),
    ("llama", [11, 421, 421, 421, 421, 421, 421, 421, 421, 421, 421, 421]),
    ("mixtral", [126, 499, 155, 25, 293, 245, 4, 501, 287, 517, 305, 425]),
];

fn check_greedy(arch: &str, file: &octet_weights::Model, want: &[u32]) {
    let prompt: Vec<u32> = (0..16).map(|i| 7 * i + 11).collect();
    for on in exact_backends() {
        let mut run = Run::new(load(file, on, limits()));
        let logits = run.feed(&prompt);
        let vocab = run.model.config().vocab;
        let got = run.greedy(&logits[logits.len() - vocab..], want.len());
        assert_eq!(got, want, "{arch} on {on:?}");
    }
}

#[test]
fn greedy_text_is_llama_cpps() {
    // these two are held against transformers in `moe_golden`
    let elsewhere = ["qwen2moe", "olmoe"];
    let here = TINY_ARCHITECTURES.iter().filter(|arch| !elsewhere.contains(arch));
    assert!(GREEDY_BY_LLAMA_CPP.iter().map(|(arch, _)| arch).eq(here));
    for (arch, want) in GREEDY_BY_LLAMA_CPP {
        check_greedy(arch, &tiny(arch, Mix::Of(T::F32)).expect("a tiny model can be made"), &want);
    }
}

#[test]
fn greedy_text_is_llama_cpps_with_yarn() {
    for (arch, want) in GREEDY_WITH_YARN {
        let mut file = tiny(arch, Mix::Of(T::F32)).expect("a tiny model can be made");
        let prefix = file.metadata.str("general.architecture").expect("an architecture").to_string();
        for (key, value) in [
            ("type", Value::Str("yarn".into())),
            ("factor", Value::F64(4.0)),
            ("original_context_length", Value::U64(64)),
        ] {
            file.metadata.insert(&format!("{prefix}.rope.scaling.{key}"), value);
        }
        check_greedy(arch, &file, &want);
    }
}

/// Logits of random weights are large enough for softmax to distinguish, however the prompt is split.
#[test]
fn mixed_types_run() {
    let tokens: Vec<u32> = (0..9).map(|i| i * 37 % 500).collect();
    for arch in TINY_ARCHITECTURES {
        for mix in [Mix::Q4KM, Mix::Of(T::IQ4_XS)] {
            let file = tiny(arch, mix).expect("a tiny model can be made");
            for on in exact_backends() {
                let mut run = Run::new(load(&file, on, limits()));
                let logits = run.feed(&tokens);
                let rms = (logits.iter().map(|x| x * x).sum::<f32>() / logits.len() as f32).sqrt();
                assert!((0.3..10.0).contains(&rms), "{arch} {mix} on {on:?}: logits of {rms}");

                run.clear();
                let mut parts = run.feed(&tokens[..4]);
                parts.extend(run.feed(&tokens[4..]));
                assert_eq!(parts, logits, "{arch} {mix} on {on:?}: a prompt in two parts");
            }
        }
    }
}

/// Synthetic vocabularies work in the tokenizer: text round-trips, and every row except padding may be sampled.
#[test]
fn synthetic_vocabularies_tokenize() {
    let large = known::shape("qwen3.6-35b-a3b").expect("a known shape");
    let large = synthetic(&large, Mix::Q4KM, Some(2), 0).expect("a made-up model");
    let tiny = TINY_ARCHITECTURES.iter().map(|a| tiny(a, Mix::Q4KM).expect("a tiny model can be made"));
    for file in tiny.chain([large]) {
        let t = Tokenizer::from_metadata(&file.metadata).expect("a tokenizer");
        for text in ["the cat sat", "Zażółć 42 gęślą\n\n jaźń 🦊", ""] {
            let ids = t.encode(text, Special::Text).expect("text can be encoded");
            let bytes: Vec<u8> = ids.iter().flat_map(|&id| t.token_bytes(id).to_vec()).collect();
            assert_eq!(String::from_utf8(bytes).as_deref(), Ok(text), "{}", file.origin);
        }
        let turn = t.encode("<|im_start|>user", Special::Parse).expect("text can be encoded");
        assert_eq!(t.token_text(turn[0]), Some("<|im_start|>"), "{}", file.origin);
        assert_eq!(t.eos_ids().iter().map(|&id| t.token_text(id)).next(), Some(Some("<|im_end|>")));
        let rows = file.info("token_embd.weight").expect("a table").shape[0] as u32;
        let padding = (0..rows).filter(|&id| !t.is_sampleable(id)).count();
        let want = [(248_320, 243), (600, 23)].iter().find(|(r, _)| *r == rows).map_or(0, |(_, n)| *n);
        assert_eq!(padding, want, "{}", file.origin);
    }
}
