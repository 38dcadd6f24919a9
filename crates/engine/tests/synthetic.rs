//! Made-up tiny models on every backend, without reference data: each architecture against what llama.cpp makes of the
//! same file, and types mixed.

mod common;

use common::{Run, exact_backends, limits, load};
use octet_synth::{Mix, TINY_ARCHITECTURES, tiny};
use octet_weights::GgmlType as T;

/// What llama.cpp (b11549, F32 files written by this workspace) writes greedily after the tokens `7 i + 11`, `i < 16`;
/// as many as it told before a token that is not a whole character.
const GREEDY_BY_LLAMA_CPP: [(&str, &[u32]); 7] = [
    ("qwen35moe", &[26, 72, 40, 268, 509, 307, 107, 13, 532, 51, 131, 585]),
    ("qwen35", &[84, 59, 9, 496, 496, 158, 280, 50, 420, 449, 56, 421]),
    ("qwen3moe", &[485, 83, 157, 543]),
    ("qwen3", &[481, 396, 168, 354, 82, 418, 121, 271, 499, 383]),
    ("qwen2", &[126, 93, 348, 77, 360, 62, 312, 68, 376]),
    ("llama", &[11, 344, 344, 344, 344, 344, 344, 344, 344, 344, 344, 344]),
    ("mixtral", &[485, 83, 573, 335, 316, 567, 174, 422]),
];

#[test]
fn greedy_text_is_llama_cpps() {
    let prompt: Vec<u32> = (0..16).map(|i| 7 * i + 11).collect();
    assert!(GREEDY_BY_LLAMA_CPP.iter().map(|(arch, _)| arch).eq(TINY_ARCHITECTURES));
    for (arch, want) in GREEDY_BY_LLAMA_CPP {
        let file = tiny(arch, Mix::Of(T::F32)).expect("a tiny model can be made");
        for on in exact_backends() {
            let mut run = Run::new(load(&file, on, limits()));
            let logits = run.feed(&prompt);
            let vocab = run.model.config().vocab;
            let got = run.greedy(&logits[logits.len() - vocab..], want.len());
            assert_eq!(got, want, "{arch} on {on:?}");
        }
    }
}

/// Logits of random weights are of a size that softmax can tell apart, however the prompt is cut.
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
