//! A step of the sampler allocates nothing, and a tokenizer that is dropped leaves nothing in the threads that used it. Alone in their
//! binary, because they count the allocations of the process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use octet_engine::sampler::{
    Dry, DynamicTemperature, Mirostat, MirostatVersion, Sampler, SamplerParams, Stage, Xtc, bitset_below,
};
use octet_engine::tokenizer::{Special, Tokenizer};
use octet_synth::{Mix, tiny};

struct Counting;

thread_local! {
    /// Allocations by this thread; the test harness has others.
    static COUNT: Cell<usize> = const { Cell::new(0) };
    /// Bytes that this thread has allocated, less those that it has freed.
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // An ending thread allocates after its locals are dropped; it is not one of ours.
    let _ = COUNT.try_with(|c| c.set(c.get() + 1));
    free(-bytes);
}

fn free(bytes: isize) {
    let _ = BYTES.try_with(|b| b.set(b.get() - bytes));
}

// SAFETY: every call goes to the system's allocator unchanged; counters are all that is added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        free(layout.size() as isize);
        // SAFETY: the caller keeps `dealloc`'s contract, and `ptr` is from `System`.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size as isize - layout.size() as isize);
        // SAFETY: the caller keeps `realloc`'s contract, and `ptr` is from `System`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A server that loads and unloads models for months has the same threads for all of them. (The library's own cache of words stayed: 9 MiB
/// for each load and thread.)
#[test]
fn a_tokenizer_leaves_nothing_in_its_threads() {
    let model = tiny("qwen35moe", Mix::Q4KM).unwrap();
    let words: Vec<String> = (0..10_000u32).map(|i| format!("{:x}", i.wrapping_mul(2_654_435_761))).collect();
    let text = words.join(" ");
    let load = || {
        let tokenizer = Tokenizer::from_metadata(&model.metadata).unwrap();
        assert!(tokenizer.encode(&text, Special::Text).unwrap().len() > words.len());
    };
    load(); // what is made once
    let before = BYTES.get();
    (0..3).for_each(|_| load());
    let kept = BYTES.get() - before;
    assert!(kept < 100 << 10, "{kept} bytes stay");
}

fn mirostat(version: MirostatVersion) -> Mirostat {
    Mirostat { version, tau: 5.0, eta: 0.1 }
}

#[test]
fn a_step_allocates_nothing() {
    const ROWS: usize = 20_000;
    let logits: Vec<Vec<f32>> = (0..8u32)
        .map(|step| {
            (0..ROWS as u32)
                .map(|i| ((i ^ (step * 977)).wrapping_mul(2_654_435_761) >> 20) as f32 / 400.0)
                .collect()
        })
        .collect();
    // No logit stands out, so top_p has to look at nearly all of them.
    let flat = vec![0.5; ROWS];
    let rising: Vec<f32> = (0..ROWS).map(|i| i as f32 * 1e-4).collect();
    let base = SamplerParams::default;
    let settings = [
        SamplerParams::greedy(),
        base(),
        SamplerParams { top_k: 20, top_p: 0.95, temperature: 0.6, ..base() },
        SamplerParams { top_k: u32::MAX, ..base() },
        SamplerParams { top_k: 3000, min_p: 0.05, ..base() },
        SamplerParams { top_p: 0.99, ..base() },
        SamplerParams { min_p: 0.1, ..base() },
        SamplerParams { repetition_penalty: 1.2, presence_penalty: 0.5, frequency_penalty: 0.1, ..base() },
        SamplerParams { presence_penalty: 1.5, penalty_last_n: usize::MAX, ..base() },
        SamplerParams { logit_bias: vec![(3, -100.0), (19_000, 5.0)], logprobs: Some(20), ..base() },
        SamplerParams { top_k: 5, logprobs: Some(ROWS), ..base() },
        SamplerParams { typical_p: 0.5, ..base() },
        SamplerParams { top_n_sigma: 1.0, top_k: 40, logprobs: Some(20), post_sampling: true, ..base() },
        SamplerParams { xtc: Xtc { probability: 0.5, threshold: 0.01 }, top_k: 40, min_keep: 3, ..base() },
        SamplerParams {
            dry: Dry { multiplier: 0.8, last_n: 50, breakers: vec![vec![7]], ..Dry::default() },
            ..base()
        },
        SamplerParams { dynamic_temperature: DynamicTemperature { range: 0.5, exponent: 1.0 }, ..base() },
        SamplerParams { mirostat: Some(mirostat(MirostatVersion::V1)), ..base() },
        SamplerParams { mirostat: Some(mirostat(MirostatVersion::V2)), ..base() },
        SamplerParams {
            order: vec![Stage::TopP, Stage::MinP, Stage::Dry, Stage::Penalties, Stage::Temperature],
            dry: Dry { multiplier: 0.8, ..Dry::default() },
            top_p: 0.9,
            temperature: 0.7,
            presence_penalty: 1.0,
            ..base()
        },
    ];
    let allowed: Vec<u32> = (0..ROWS as u32 / 32).map(|i| i.wrapping_mul(0x9E37_79B9)).collect();
    for params in settings {
        let mut sampler = Sampler::new(params.clone(), ROWS, &bitset_below(ROWS - 77), 1).unwrap();
        COUNT.set(0);
        for step in 0..60 {
            let logits = match step % 10 {
                8 => &flat,
                9 => &rising,
                n => &logits[n],
            };
            let allowed = (step % 3 == 0).then_some(&allowed[..]);
            let id = sampler.sample(logits, allowed).unwrap().id;
            sampler.accept(id);
            sampler.accept(step as u32 * 31);
        }
        assert_eq!(COUNT.get(), 0, "allocations with {params:?}");
    }
    let kept = Box::new(1);
    assert!(COUNT.get() > 0, "the counter counts {kept}");
}
