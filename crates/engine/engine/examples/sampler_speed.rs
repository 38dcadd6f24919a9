//! How long choosing a token takes over Qwen3.5's vocabulary: `cargo run --release -p octet-engine --example
//! sampler_speed`.

use std::hint::black_box;
use std::time::Instant;

use octet_engine::sampler::{Sampler, SamplerParams, bitset_below};

const ROWS: usize = 248_320;
const REAL: usize = 248_077;
const STEPS: usize = 300;

/// About as a model's: normally distributed, and a few tokens that stand out, the more so the larger `spread`.
fn logits(spread: f32) -> Vec<f32> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let mut row: Vec<f32> = (0..ROWS).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect();
    row.iter_mut().for_each(|x| *x *= spread);
    for (i, x) in (0..40).zip([14.0, 13.0, 12.5, 11.0, 10.0, 9.0].into_iter().cycle()) {
        row[i * 6007] = x * spread;
    }
    row
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let base = SamplerParams::default;
    let chat = || SamplerParams { temperature: 0.6, top_k: 20, top_p: 0.95, ..base() };
    let cases = [
        ("greedy", 2.0, SamplerParams::greedy()),
        ("top_k 20, top_p 0.95", 2.0, chat()),
        ("the same, presence penalty", 2.0, SamplerParams { presence_penalty: 1.5, ..chat() }),
        ("the same, 20 logprobs", 2.0, SamplerParams { logprobs: Some(20), ..chat() }),
        ("temperature only", 2.0, base()),
        ("min_p 0.05", 2.0, SamplerParams { min_p: 0.05, ..base() }),
        ("top_p 0.95", 2.0, SamplerParams { top_p: 0.95, ..base() }),
        ("top_p 0.95, unsure", 0.8, SamplerParams { top_p: 0.95, ..base() }),
        ("top_p 0.95, flat logits", 0.1, SamplerParams { top_p: 0.95, ..base() }),
        ("top_k 2000", 2.0, SamplerParams { top_k: 2000, ..base() }),
    ];
    let grammar: Vec<u32> = (0..ROWS as u32 / 32).map(|i| i.wrapping_mul(0x9E37_79B9)).collect();
    println!("{:<30} {:>12} {:>14}", "microseconds of a step", "all", "with a grammar");
    for (name, spread, params) in cases {
        let row = logits(spread);
        let mut sampler = Sampler::new(params, ROWS, &bitset_below(REAL), 1)?;
        let mut median = |allowed: Option<&[u32]>| -> Result<f64, Box<dyn std::error::Error>> {
            let mut times = Vec::with_capacity(STEPS);
            for _ in 0..STEPS {
                let start = Instant::now();
                let sampled = sampler.sample(black_box(&row), allowed)?;
                times.push(start.elapsed().as_secs_f64() * 1e6);
                sampler.accept(black_box(sampled.id));
            }
            times.sort_by(f64::total_cmp);
            Ok(times[STEPS / 2])
        };
        println!("{name:<30} {:>12.0} {:>14.0}", median(None)?, median(Some(&grammar))?);
    }
    Ok(())
}
