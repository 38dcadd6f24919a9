//! Keys and values in q8_0: logits near f16's and transformers', and the same bits however a token is computed: split,
//! batched, from the cache, from the disk, after a preemption.

use std::ops::ControlFlow;
use std::sync::mpsc::Receiver;

use crate::common::drive::{finish, greedy, options, prompt, submit};
use crate::common::{On, Run, limits, load};
use octet_compute::backend::{KvType, KvTypes};
use octet_compute::cpu::isa::Isa;
use octet_engine::engine::{self, DiskOptions, Engine, Event, Request};
use octet_engine::models::Limits;
use octet_engine::score::Divergence;
use octet_synth::{Mix, Shape, synthetic, tiny, tiny_shape};
use octet_testkit::Golden;
use octet_weights::GgmlType;

const Q8_0: KvTypes = KvTypes { keys: KvType::Q8_0, values: KvType::Q8_0 };
const MIXED: KvTypes = KvTypes { keys: KvType::Q8_0, values: KvType::F16 };
const HYBRID_AND_PLAIN: [&str; 2] = ["qwen35moe", "qwen3"];

/// Largest difference of all logits together from those with exact keys and values, as a share of their size, and largest
/// mean divergence of the next token's probabilities, in nats.
const BOUNDS: (f64, f64) = (0.012, 4e-4);
/// The same if a token was routed to other experts: in such small models its logits differ.
const BOUNDS_OTHER_EXPERTS: (f64, f64) = (0.08, 1e-2);

fn with_kv(kv: KvTypes) -> Limits {
    Limits { kv, ..limits() }
}

/// Logits of one run, `[tokens, vocab]`, and how often it used each expert.
struct Logits {
    rows: Vec<f32>,
    experts: Vec<Vec<u64>>,
}

/// Fails where `got` is further from `want` than the bounds above; returns the mean divergence.
fn near(what: &str, got: &[f32], want: &[f32], vocab: usize, same_experts: bool) -> f64 {
    assert_eq!(got.len(), want.len(), "{what}");
    let square = |x: f32| f64::from(x) * f64::from(x);
    let size: f64 = want.iter().map(|&x| square(x)).sum();
    let apart: f64 = got.iter().zip(want).map(|(x, y)| square(x - y)).sum();
    let share = (apart / size).sqrt();
    let rows = || want.chunks_exact(vocab).zip(got.chunks_exact(vocab));
    let mean = rows().map(|(p, q)| Divergence::between(p, q, 0).kl).sum::<f64>() / rows().count() as f64;
    let (share_max, mean_max) = if same_experts { BOUNDS } else { BOUNDS_OTHER_EXPERTS };
    println!(
        "{what}: logits differ by {share:.5} of their size, {mean:.2e} nats, same experts {same_experts}"
    );
    assert!(share <= share_max && mean <= mean_max, "{what}: {share} of the size of logits, {mean} nats");
    mean
}

#[test]
fn logits_are_near_those_of_exact_keys_and_values() {
    let tokens: Vec<u32> = (0..150).map(|i| (i * 37 + i * i % 11) % 256).collect();
    for architecture in octet_synth::TINY_ARCHITECTURES {
        let file = tiny(architecture, Mix::Of(GgmlType::F32)).expect("a tiny model of a known architecture");
        let logits = |kv: KvTypes| {
            let mut run = Run::new(load(&file, On::Exact(Isa::detect()), with_kv(kv)));
            let rows = run.feed(&tokens);
            Logits { rows, experts: run.model.expert_counts().layers().collect() }
        };
        let want = logits(KvType::F32.into());
        let vocab = want.rows.len() / tokens.len();
        for kv in [Q8_0, MIXED] {
            let what = format!("{architecture}, {kv}");
            let got = logits(kv);
            let kl = near(&what, &got.rows, &want.rows, vocab, got.experts == want.experts);
            assert!(kl > 0.0, "{what} changes something");
        }
    }
}

/// Against transformers' numbers.
#[test]
fn golden_logits_are_near_with_quantised_keys_and_values() {
    for name in ["tiny-qwen3_5_moe", "tiny-qwen3_5", "tiny-qwen3_moe"] {
        let Some(g) = Golden::open(&format!("golden/tiny/{name}.golden.safetensors")) else { return };
        let Some(path) = octet_testkit::shared(&format!("models/{name}")) else { return };
        let file = octet_weights::Model::open(&path).expect("a reference model opens");
        for on in [On::Reference, On::Exact(Isa::detect())] {
            let mut run = Run::new(load(&file, on, with_kv(Q8_0)));
            let mut exact = Run::new(load(&file, on, limits()));
            let vocab = run.model.config().vocab;
            let (mut all_got, mut all_want) = (Vec::new(), Vec::new());
            for p in 0..4 {
                let ids = g.ids(&format!("p{p}.ids")).expect("ids");
                let want = g.f32(&format!("p{p}.logits")).expect("logits");
                run.clear();
                exact.clear();
                let got = run.feed(&ids);
                exact.feed(&ids);
                let rows = g.ids(&format!("p{p}.logit_rows"));
                let rows = rows.unwrap_or_else(|| (0..ids.len() as u32).collect());
                rows.iter().for_each(|&r| all_got.extend(&got[r as usize * vocab..][..vocab]));
                all_want.extend(want);
            }
            let same = run.model.expert_counts().layers().eq(exact.model.expert_counts().layers());
            near(&format!("{name} on {on:?}"), &all_got, &all_want, vocab, same);
        }
    }
}

#[test]
fn quantised_keys_and_values_do_not_depend_on_the_split() {
    let tokens = prompt(140, 3);
    for architecture in HYBRID_AND_PLAIN {
        let file = tiny(architecture, Mix::Q4KM).expect("a tiny model of a known architecture");
        let isas = Isa::ALL.into_iter().filter(|i| i.available()).map(On::Cpu);
        for (on, kv) in isas.flat_map(|on| [(on, Q8_0), (on, MIXED)]) {
            let mut run = Run::new(load(&file, on, with_kv(kv)));
            let whole = run.feed(&tokens);
            for cut in [1, 31, 64, 100] {
                run.clear();
                let mut parts = run.feed(&tokens[..cut]);
                parts.extend(run.feed(&tokens[cut..]));
                assert!(parts == whole, "{architecture} on {on:?}, {kv}: cut at {cut}");
            }
            run.clear();
            let steps: Vec<f32> = tokens.iter().flat_map(|&id| run.feed(&[id])).collect();
            assert!(steps == whole, "{architecture} on {on:?}, {kv}: step by step");
        }
    }
}

/// Tokens and the bits of their log-probabilities.
type Bits = Vec<(u32, u32)>;

fn with_logprobs(prompt: Vec<u32>, max_tokens: usize) -> Request {
    let mut request = greedy(prompt, max_tokens);
    request.sampling.logprobs = Some(0);
    request
}

fn bits(events: &Receiver<Event>) -> Bits {
    let token = |event| match event {
        Event::Token { id, logprob, .. } => Some((id, logprob.expect("it was asked for").logprob.to_bits())),
        Event::Failed(e) => panic!("{e}"),
        _ => None,
    };
    events.try_iter().filter_map(token).collect()
}

fn quantised() -> engine::Options {
    engine::Options { kv: Q8_0, snapshot_memory: Some(64 << 20), ..options() }
}

fn opened(architecture: &str, options: &engine::Options) -> Engine {
    let file = tiny(architecture, Mix::Q4KM).expect("a tiny model of a known architecture");
    Engine::open(&file, options, &mut |_, _| {}).expect("a tiny model opens")
}

/// What a request gives alone on a fresh engine.
fn cold(architecture: &str, request: &Request) -> Bits {
    let mut e = opened(architecture, &quantised());
    let (_, events) = submit(&mut e, Request { cache: false, ..request.clone() });
    finish(&mut e);
    bits(&events)
}

#[test]
fn quantised_answers_have_the_same_bits_in_batches_and_from_the_cache() {
    for architecture in HYBRID_AND_PLAIN {
        let mut e = opened(architecture, &quantised());
        // in a batch, and with prompts in parts
        let first: Vec<Request> = (0..4).map(|i| with_logprobs(prompt(90 + 7 * i, i as u32), 20)).collect();
        let events: Vec<_> = first.iter().map(|r| submit(&mut e, r.clone()).1).collect();
        finish(&mut e);
        for (request, events) in first.iter().zip(&events) {
            let got = bits(events);
            assert_eq!(got.len(), 20);
            assert!(got == cold(architecture, request), "{architecture}: in a batch");
            // the conversation goes on
            let said = got.iter().map(|(id, _)| *id);
            let next = request.prompt.iter().copied().chain(said).chain([1, 2, 3]).collect();
            let next = with_logprobs(next, 12);
            let before = e.stats().cached_tokens;
            let (_, events) = submit(&mut e, next.clone());
            finish(&mut e);
            assert!(e.stats().cached_tokens > before, "{architecture}: it was cached");
            assert!(bits(&events) == cold(architecture, &next), "{architecture}: out of the cache");
        }
    }
}

#[test]
fn quantised_pages_come_back_from_disk() {
    for architecture in HYBRID_AND_PLAIN {
        let dir = tempfile::tempdir().expect("a folder");
        let disk = Some(DiskOptions { dir: dir.path().into(), bytes: 1 << 30 });
        let with_disk = engine::Options { disk, ..quantised() };
        let mut e = opened(architecture, &with_disk);
        let first = with_logprobs(prompt(200, 7), 40);
        let (_, events) = submit(&mut e, first.clone());
        finish(&mut e);
        e.flush();
        drop(e);
        let said = bits(&events).into_iter().map(|(id, _)| id);
        let next = with_logprobs(first.prompt.iter().copied().chain(said).chain([5, 6, 7]).collect(), 15);
        let want = cold(architecture, &next);
        let mut e = opened(architecture, &with_disk);
        let (_, events) = submit(&mut e, next.clone());
        finish(&mut e);
        assert_eq!((e.stats().cache.disk.hits, e.stats().cache.disk.errors), (1, 0), "{architecture}");
        assert!(bits(&events) == want, "{architecture}");
        drop(e);
        // with other types nothing of it is found
        for kv in [KvType::F16.into(), MIXED] {
            let mut e = opened(architecture, &engine::Options { kv, ..with_disk.clone() });
            submit(&mut e, next.clone());
            finish(&mut e);
            assert_eq!(
                (e.stats().cached_tokens, e.stats().cache.disk.errors),
                (0, 0),
                "{architecture}, {kv}"
            );
        }
    }
}

#[test]
fn preempted_quantised_sequences_continue() {
    for architecture in HYBRID_AND_PLAIN {
        // four sequences of 390 tokens need 7 pages each, and there are 12
        let mut e = opened(architecture, &engine::Options { kv_tokens: Some(11 * 64), ..quantised() });
        let requests: Vec<Request> = (0..4).map(|i| with_logprobs(prompt(30, i), 360)).collect();
        let events: Vec<_> = requests.iter().map(|r| submit(&mut e, r.clone()).1).collect();
        finish(&mut e);
        assert!(e.stats().preemptions > 0, "{:?}", e.stats());
        for (r, events) in requests.iter().zip(&events) {
            assert!(bits(events) == cold(architecture, r), "{architecture}");
        }
    }
}

#[test]
fn heads_unsuitable_for_q8_0_are_named_before_loading() {
    let shape = Shape { head_dim: 48, rope_dims: 48, ..tiny_shape("qwen3").expect("a shape") };
    let file = synthetic(&shape, Mix::Of(GgmlType::F32), None, 0).expect("a made-up model");
    let open = |kv| Engine::open(&file, &engine::Options { kv, ..options() }, &mut |_, _| {});
    for (kv, what) in [(Q8_0, "keys"), (KvTypes { keys: KvType::F16, ..Q8_0 }, "values")] {
        let e = open(kv).expect_err("48 is no multiple of 32").to_string();
        assert!(
            e.contains(&format!("{what} of type q8_0")) && e.contains("48") && e.contains(&file.origin),
            "{e}"
        );
    }
    let mut e = open(KvType::F16.into()).expect("f16 holds any");
    let answer = e.generate(greedy(prompt(40, 1), 3), &mut |_| ControlFlow::Continue(()));
    assert_eq!(answer.expect("it can be served").tokens.len(), 3);
}
