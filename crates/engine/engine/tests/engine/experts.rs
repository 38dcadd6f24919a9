//! Counts of experts: the same on every backend and however tokens are batched, and readable while the engine works.

use crate::common::drive::{answer, collect, engine, finish, greedy, options, prompt, submit};
use crate::common::{On, Run, exact_backends, limits, load};
use octet_compute::cpu::isa::Isa;
use octet_engine::engine::{Event, Request, TokenRoutes};
use octet_engine::experts::ExpertUsage;
use octet_engine::scheduler::{Handle, Options, Shutdown};
use octet_synth::{Mix, tiny};
use octet_weights::GgmlType;

fn counts(run: &Run) -> Vec<Vec<u64>> {
    run.model.expert_counts().layers().collect()
}

/// Architecture, layers with the multi-token-prediction block, experts, and how many a token is given to.
const MIXTURES: [(&str, usize, usize, u64); 5] = [
    ("qwen35moe", 5, 8, 3),
    ("qwen3moe", 2, 8, 2),
    ("qwen2moe", 2, 8, 3),
    ("olmoe", 2, 8, 3),
    ("mixtral", 2, 4, 2),
];

#[test]
fn counts_are_those_of_the_oracle() {
    let tokens = prompt(150, 5);
    for (architecture, layers, experts, top_k) in MIXTURES {
        let file = tiny(architecture, Mix::Of(GgmlType::F32)).expect("a tiny model of a known architecture");
        let mut oracle = Run::new(load(&file, On::Reference, limits()));
        oracle.feed(&tokens);
        let want = counts(&oracle);
        assert_eq!((want.len(), want[0].len()), (layers, experts));
        for (i, layer) in want.iter().enumerate() {
            // the block behind the layers was not run
            let ran = i < oracle.model.config().layers;
            assert_eq!(layer.iter().sum::<u64>(), if ran { 150 * top_k } else { 0 }, "{architecture} {i}");
        }
        for on in exact_backends() {
            let mut whole = Run::new(load(&file, on, limits()));
            whole.feed(&tokens);
            assert_eq!(counts(&whole), want, "{architecture} on {on:?}");
            let mut cut = Run::new(load(&file, on, limits()));
            cut.feed(&tokens[..77]);
            tokens[77..100].iter().for_each(|&t| drop(cut.feed(&[t])));
            cut.feed(&tokens[100..]);
            assert_eq!(counts(&cut), want, "{architecture} on {on:?}, in parts");
        }
    }
}

#[test]
fn an_engine_reports_the_experts_of_its_tokens() {
    let mut e = engine("qwen35moe", &options());
    let unused = e.experts().expect("a mixture of experts");
    assert_eq!((unused.per_token, unused.layers.len(), unused.experts()), (3, 4, 8));
    assert!(unused.layers.iter().all(|l| l.choices() == 0));
    let (said, _) = answer(&mut e, greedy(prompt(100, 1), 20));
    let first = e.experts().expect("a mixture of experts");
    // the answer's last token was not fed
    assert!(first.layers.iter().all(|l| first.tokens(l) == 119));
    // tokens from the cache are not counted again
    answer(&mut e, greedy([&prompt(100, 1)[..], &said, &[1, 2, 3]].concat(), 1));
    let second = e.experts().expect("a mixture of experts");
    let computed = e.stats().computed_tokens + 19;
    assert!(computed < 130 && second.layers.iter().all(|l| second.tokens(l) == computed), "{computed}");
    assert_eq!(engine("qwen3", &options()).experts(), None);
}

/// Other threads read while the engine's thread counts: counts never decrease, and in the end all are there.
#[test]
fn counts_are_read_while_they_grow() {
    let file = tiny("qwen3moe", Mix::Q4KM).expect("a tiny model of a known architecture");
    let handle = Handle::open(file, &Options { engine: options(), queue: 16 }, |_, _| {}).expect("it opens");
    let events: Vec<_> =
        (0..4).map(|i| handle.submit(greedy(prompt(60, i), 100)).expect("there is room")).collect();
    let read = || handle.experts().expect("a mixture of experts");
    let grown = |a: &ExpertUsage, b: &ExpertUsage| {
        a.layers.iter().zip(&b.layers).all(|(a, b)| a.tokens.iter().zip(&b.tokens).all(|(a, b)| a <= b))
    };
    let mut last = read();
    while handle.stats().finished < 4 {
        let now = read();
        assert!(grown(&last, &now));
        last = now;
    }
    events.iter().for_each(|e| drop(collect(e).expect("it can be served")));
    handle.shutdown(Shutdown::Drain);
    handle.join().expect("the thread ends well");
    let (stats, usage) = (handle.stats(), read());
    let fed = stats.computed_tokens + stats.generated_tokens - 4;
    assert!(usage.layers.iter().all(|l| usage.tokens(l) == fed), "{fed}: {usage:?}");
}

/// With quantised activations some choices may differ, within a limit.
#[test]
fn every_token_is_counted_on_every_instruction_set() {
    let tokens = prompt(90, 2);
    for (architecture, _, _, top_k) in MIXTURES {
        let file = tiny(architecture, Mix::Q4KM).expect("a tiny model of a known architecture");
        for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
            let mut run = Run::new(load(&file, On::Cpu(isa), limits()));
            run.feed(&tokens);
            let layers = run.model.config().layers;
            let sums: Vec<u64> = counts(&run)[..layers].iter().map(|l| l.iter().sum()).collect();
            assert_eq!(sums, vec![90 * top_k; layers], "{architecture} on {isa:?}");
        }
    }
}

/// The experts of an answer's tokens, from its events.
fn routes(events: &std::sync::mpsc::Receiver<Event>) -> Vec<Option<TokenRoutes>> {
    let routes = |e| if let Event::Token { routes, .. } = e { Some(routes.map(|r| *r)) } else { None };
    events.try_iter().filter_map(routes).collect()
}

/// A prompt of one token: then each token that was computed chose one of the answer, and the routes add up to the counts.
#[test]
fn the_routes_of_an_answer_are_what_was_counted() {
    let mut e = engine("qwen35moe", &options());
    let asking = |asked| Request { routes: asked, ..greedy(prompt(1, 3), 20) };
    let (_, events) = submit(&mut e, asking(true));
    finish(&mut e);
    let routes_of: Vec<TokenRoutes> = routes(&events).into_iter().map(|r| r.expect("asked for")).collect();
    let usage = e.experts().expect("a mixture of experts");
    assert_eq!((routes_of.len(), routes_of[0].gates.len()), (20, usage.layers.len()));
    for (i, layer) in usage.layers.iter().enumerate() {
        let mut counted = vec![0; layer.tokens.len()];
        for r in &routes_of {
            let chosen = &r.experts[i * usage.per_token..(i + 1) * usage.per_token];
            chosen.iter().for_each(|&expert| counted[expert as usize] += 1);
        }
        assert_eq!(counted, layer.tokens, "layer {i}");
        assert!(routes_of.iter().any(|r| r.gates[i] > 0), "it has a shared expert");
    }
    let (_, events) = submit(&mut e, asking(false));
    finish(&mut e);
    assert!(routes(&events).iter().all(Option::is_none), "not asked for");
    let mut dense = engine("qwen3", &options());
    let (_, events) = submit(&mut dense, asking(true));
    finish(&mut dense);
    assert!(routes(&events).iter().all(Option::is_none), "it has no experts");
}

/// Guesses, the rest of the batch and the cache do not change them.
#[test]
fn routes_are_the_same_in_every_batch_and_with_guesses() {
    // it repeats itself, so lookup guesses right
    let repeated: Vec<u32> = prompt(12, 7).into_iter().cycle().take(120).collect();
    let asking = |n| Request { routes: true, n, ..greedy(repeated.clone(), 60) };
    let mut e = engine("qwen35moe", &options());
    let (_, events) = submit(&mut e, asking(1));
    finish(&mut e);
    let alone = routes(&events);
    let (_, cached) = submit(&mut e, asking(1));
    let (_, other) = submit(&mut e, greedy(prompt(90, 5), 40));
    finish(&mut e);
    assert_eq!(routes(&cached), alone);
    assert!(routes(&other).iter().all(Option::is_none));
    let speculation = octet_engine::engine::speculation::Options::default();
    let mut guessing = engine("qwen35moe", &octet_engine::engine::Options { speculation, ..options() });
    let (_, events) = submit(&mut guessing, asking(1));
    finish(&mut guessing);
    assert_eq!(routes(&events), alone, "{:?}", guessing.stats().speculation);
}

/// On a CPU they are those of the oracle: experts in the same order, and the weight of the shared one.
#[test]
fn routes_are_those_of_the_oracle() {
    let tokens = prompt(40, 9);
    for (architecture, ..) in MIXTURES {
        let file = tiny(architecture, Mix::Of(GgmlType::F32)).expect("a tiny model of a known architecture");
        let of = |on| {
            let mut run = Run::new(load(&file, on, limits()));
            run.model.expert_counts().trace(true);
            run.feed(&tokens);
            (0..tokens.len()).map(|t| run.model.expert_counts().routes(t)).collect::<Vec<_>>()
        };
        let want = of(On::Reference);
        assert!(want.iter().all(Option::is_some), "{architecture}");
        for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
            for (t, (got, want)) in of(On::Exact(isa)).iter().flatten().zip(want.iter().flatten()).enumerate()
            {
                assert_eq!(got.experts, want.experts, "{architecture} on {isa:?}, token {t}");
                let near = got.gates.iter().zip(&want.gates).all(|(a, b)| a.abs_diff(*b) <= 1);
                assert!(near, "{architecture} on {isa:?}, token {t}: {got:?}, {want:?}");
            }
        }
    }
}
