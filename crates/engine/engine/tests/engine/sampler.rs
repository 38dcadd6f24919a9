//! The sampler against a plain oracle, in f64 and with full sorts, that says what each token's probability should be.

use octet_compute::picks::picks;
use octet_engine::sampler::{PENALTY_LAST_N_MAX, Sampler, SamplerError, SamplerParams, bitset_below};
use octet_weights::{Metadata, Value};
use proptest::prelude::*;

/// Probability of each id, by the definition of each step.
fn oracle(params: &SamplerParams, logits: &[f32], may: impl Fn(usize) -> bool, history: &[u32]) -> Vec<f64> {
    let mut x: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
    for &(id, bias) in &params.logit_bias {
        x[id as usize] += f64::from(bias);
    }
    let window = &history[history.len().saturating_sub(params.penalty_last_n)..];
    for (id, x) in x.iter_mut().enumerate() {
        let count = window.iter().filter(|t| **t as usize == id).count();
        if count > 0 {
            let r = f64::from(params.repetition_penalty);
            *x = if *x > 0.0 { *x / r } else { *x * r };
            *x -= f64::from(params.presence_penalty) + count as f64 * f64::from(params.frequency_penalty);
        }
    }
    let mut order: Vec<usize> = (0..x.len()).filter(|i| may(*i) && x[*i] > f64::NEG_INFINITY).collect();
    // As the sampler computes them: logits are f32, and equal ones must be equal here.
    order.sort_by(|a, b| (x[*b] as f32).partial_cmp(&(x[*a] as f32)).unwrap().then(a.cmp(b)));
    let mut p = vec![0.0; x.len()];
    if params.temperature == 0.0 {
        p[order[0]] = 1.0;
        return p;
    }
    if params.top_k > 0 {
        order.truncate(params.top_k as usize);
    }
    let weight = |i: usize| ((x[i] - x[order[0]]) / f64::from(params.temperature)).exp();
    let total: f64 = order.iter().map(|i| weight(*i)).sum();
    let mut before = 0.0;
    for &i in &order {
        let in_nucleus = before == 0.0 || params.top_p == 1.0 || before < f64::from(params.top_p) * total;
        if in_nucleus && weight(i) >= f64::from(params.min_p) {
            p[i] = weight(i);
        }
        before += weight(i);
    }
    let kept: f64 = p.iter().sum();
    p.iter_mut().for_each(|p| *p /= kept);
    p
}

/// `n` draws; how often each id came.
fn draw(sampler: &mut Sampler, logits: &[f32], allowed: Option<&[u32]>, n: usize) -> Vec<usize> {
    let mut counts = vec![0; logits.len()];
    for _ in 0..n {
        counts[sampler.sample(logits, allowed).unwrap().id as usize] += 1;
    }
    counts
}

/// Draws fit the probabilities: nothing impossible, and chi-square below its 99.99% quantile (Wilson-Hilferty).
fn assert_fits(counts: &[usize], p: &[f64], what: &str) {
    let n: usize = counts.iter().sum();
    let (mut chi2, mut bins, mut rest) = (0.0, 0, (0.0, 0.0));
    for (&count, &p) in counts.iter().zip(p) {
        assert!(p > 0.0 || count == 0, "{what}: a token of probability 0 came {count} times");
        let expected = p * n as f64;
        if expected >= 8.0 {
            chi2 += (count as f64 - expected).powi(2) / expected;
            bins += 1;
        } else {
            rest = (rest.0 + expected, rest.1 + count as f64);
        }
    }
    if rest.0 >= 8.0 {
        chi2 += (rest.1 - rest.0).powi(2) / rest.0;
        bins += 1;
    }
    let freedom = f64::from(bins - 1).max(1.0);
    let spread = 2.0 / (9.0 * freedom);
    let limit = freedom * (1.0 - spread + 3.719 * spread.sqrt()).powi(3);
    assert!(chi2 < limit, "{what}: chi-square {chi2:.1} of {freedom} degrees of freedom; limit {limit:.1}");
}

/// `n` logits between -4 and 6, without order.
fn logits(n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as f32 / 6553.6 - 4.0).collect()
}

fn new(params: SamplerParams, rows: usize) -> Sampler {
    Sampler::new(params, rows, &bitset_below(rows), 11).unwrap()
}

fn error(params: SamplerParams) -> String {
    params.validate(100).unwrap_err().to_string()
}

fn base() -> SamplerParams {
    SamplerParams::default()
}

#[test]
fn draws_follow_the_distribution() {
    let settings = [
        base(),
        SamplerParams { temperature: 0.6, ..base() },
        SamplerParams { temperature: 2.5, ..base() },
        SamplerParams { top_k: 20, ..base() },
        SamplerParams { top_k: 20, top_p: 0.8, temperature: 0.7, ..base() },
        SamplerParams { top_p: 0.95, ..base() },
        SamplerParams { top_p: 0.9, min_p: 0.1, temperature: 1.5, ..base() },
        SamplerParams { top_p: 0.7, temperature: 50.0, ..base() }, // past the first 256
        SamplerParams { min_p: 0.2, ..base() },
        SamplerParams { top_k: 50, min_p: 0.05, ..base() },
        SamplerParams { logit_bias: vec![(4, 3.0), (5, f32::NEG_INFINITY), (4, 1.0)], ..base() },
        SamplerParams { repetition_penalty: 1.3, presence_penalty: 0.4, frequency_penalty: 0.3, ..base() },
    ];
    for rows in [40, 400] {
        let logits = logits(rows);
        let history: Vec<u32> = (0..100).map(|i| i * i % 37).collect();
        for params in &settings {
            let real = rows - 7;
            let mut sampler = Sampler::new(params.clone(), rows, &bitset_below(real), 5).unwrap();
            history.iter().for_each(|t| sampler.accept(*t));
            let p = oracle(params, &logits, |i| i < real, &history);
            assert_fits(&draw(&mut sampler, &logits, None, 4_000), &p, &format!("{rows} rows, {params:?}"));
            let odd = vec![0xAAAA_AAAA; rows.div_ceil(32)];
            let p = oracle(params, &logits, |i| i < real && i % 2 == 1, &history);
            assert_fits(
                &draw(&mut sampler, &logits, Some(&odd), 4_000),
                &p,
                &format!("odd of {rows}, {params:?}"),
            );
        }
    }
}

#[test]
fn greedy_breaks_ties_by_the_lowest_id() {
    let mut logits = vec![0.0; 1000];
    (logits[700], logits[300], logits[301]) = (2.5, 2.5, 2.5);
    let mut sampler = new(SamplerParams::greedy(), 1000);
    assert_eq!(sampler.sample(&logits, None).unwrap().id, 300);
    logits.fill(-0.0);
    logits[9] = 0.0;
    assert_eq!(sampler.sample(&logits, None).unwrap().id, 0);
    // Biases, penalties and masks apply to it, too.
    logits[9] = 1.0;
    let mut banned = new(SamplerParams { logit_bias: vec![(9, -100.0)], ..SamplerParams::greedy() }, 1000);
    assert_eq!(banned.sample(&logits, None).unwrap().id, 0);
    let mut penalized = new(SamplerParams { presence_penalty: 1.5, ..SamplerParams::greedy() }, 1000);
    assert_eq!(penalized.sample(&logits, None).unwrap().id, 9);
    penalized.accept(9);
    assert_eq!(penalized.sample(&logits, None).unwrap().id, 0);
    assert_eq!(sampler.sample(&logits, Some(&[0, 0b100])).unwrap().id, 34);
}

#[test]
fn truncation_at_its_limits() {
    let logits = logits(300);
    let best = (0..300).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
    for params in [
        SamplerParams { top_k: 1, ..base() },
        SamplerParams { top_p: 1e-9, ..base() },
        SamplerParams { top_p: 0.0, ..base() },
        SamplerParams { top_p: 0.0, top_k: 10, ..base() },
        SamplerParams { min_p: 1.0, ..base() },
        SamplerParams { min_p: 1.0, top_p: 0.9, ..base() },
        SamplerParams { temperature: f32::MIN_POSITIVE, ..base() },
        SamplerParams { temperature: 1e-45, ..base() },
    ] {
        assert_eq!(draw(&mut new(params.clone(), 300), &logits, None, 50)[best], 50, "{params:?}");
    }
    // More than there are is all, and the same draws as without a limit are possible.
    for params in [SamplerParams { top_k: 300, ..base() }, SamplerParams { top_k: u32::MAX, ..base() }] {
        let p = oracle(&base(), &logits, |_| true, &[]);
        assert_fits(&draw(&mut new(params, 300), &logits, None, 4_000), &p, "all");
    }
    // Of equal tokens the lower ids are kept, however many blocks they come from.
    let counts = draw(&mut new(SamplerParams { top_k: 150, ..base() }, 300), &[1.5; 300], None, 4000);
    assert!(counts[..150].iter().all(|n| *n > 0) && counts[150..].iter().all(|n| *n == 0));
}

#[test]
fn same_seed_same_text() {
    let logits = logits(500);
    let text = |seed: Option<u64>, fallback| {
        let params = SamplerParams { seed, ..base() };
        let mut s = Sampler::new(params, 500, &bitset_below(500), fallback).unwrap();
        (0..40).map(|_| s.sample(&logits, None).unwrap().id).collect::<Vec<_>>()
    };
    assert_eq!(text(Some(3), 1), text(Some(3), 2));
    assert_eq!(text(None, 3), text(Some(3), 0));
    assert_ne!(text(Some(3), 0), text(Some(4), 0));
    assert_eq!(new(SamplerParams { seed: Some(3), ..base() }, 9).seed(), 3);
    assert_eq!(new(base(), 9).seed(), 11);
    // Written down once: a changed draw changes users' seeded texts, and belongs in the changelog.
    assert_eq!(text(Some(3), 0)[..8], [372, 296, 317, 398, 398, 309, 487, 432]);
}

#[test]
fn broken_logits_are_errors() {
    for params in [SamplerParams::greedy(), base(), SamplerParams { top_k: 3, ..base() }] {
        let mut s =
            Sampler::new(SamplerParams { logprobs: Some(2), ..params }, 200, &bitset_below(190), 0).unwrap();
        let mut l = logits(200);
        l[199] = f32::NAN; // padding may have any value
        assert!(s.sample(&l, None).is_ok());
        l[150] = f32::INFINITY;
        let inf = s.sample(&l, None).unwrap_err();
        assert_eq!(inf, SamplerError::NotFinite { id: 150, value: f32::INFINITY });
        l[33] = f32::NAN;
        let nan = s.sample(&l, None).unwrap_err().to_string();
        assert_eq!(nan, "the logit of token 33 is NaN; the model's weights or its computation are damaged");
        assert_eq!(s.sample(&[f32::NEG_INFINITY; 200], None), Err(SamplerError::NothingAllowed));
        assert_eq!(s.sample(&logits(200), Some(&[])), Err(SamplerError::NothingAllowed));
        assert_eq!(s.sample(&[0.0; 199], None), Err(SamplerError::Logits { got: 199, expected: 200 }));
        assert!(s.top_logprobs().is_empty());
        assert!(s.sample(&logits(200), None).is_ok());
    }
    let nothing = Sampler::new(base(), 64, &[0, 0, 1], 0).unwrap_err();
    assert_eq!(nothing, SamplerError::NothingAllowed);
}

#[test]
fn logprobs_are_the_models_own() {
    let l = logits(400);
    let real = 390;
    let params = SamplerParams {
        logprobs: Some(5),
        temperature: 0.3,
        top_k: 40,
        presence_penalty: 2.0,
        logit_bias: vec![(7, -100.0)],
        ..base()
    };
    let mut s = Sampler::new(params, 400, &bitset_below(real), 0).unwrap();
    s.accept(12);
    let log_sum = l[..real].iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln();
    let exact = |id: u32| f64::from(l[id as usize]) - log_sum;
    let mut order: Vec<u32> = (0..real as u32).collect();
    order.sort_by(|a, b| l[*b as usize].total_cmp(&l[*a as usize]));
    let sampled = s.sample(&l, Some(&[u32::MAX; 3])).unwrap();
    assert!((f64::from(sampled.logprob.unwrap()) - exact(sampled.id)).abs() < 1e-5);
    assert_eq!(s.top_logprobs().iter().map(|t| t.0).collect::<Vec<_>>(), order[..5]);
    for &(id, logprob) in s.top_logprobs() {
        assert!((f64::from(logprob) - exact(id)).abs() < 1e-5);
    }
    let mut none = new(base(), 400);
    assert_eq!(none.sample(&l, None).unwrap().logprob, None);
    assert!(none.top_logprobs().is_empty());
    let mut chosen_only = new(SamplerParams { logprobs: Some(0), ..base() }, 400);
    assert!(chosen_only.sample(&l, None).unwrap().logprob.is_some());
    assert!(chosen_only.top_logprobs().is_empty());
}

#[test]
fn settings_out_of_range_are_named() {
    assert_eq!(
        error(SamplerParams { temperature: -0.5, ..base() }),
        "temperature is -0.5; expected a finite number, 0 (greedy) or more"
    );
    assert_eq!(
        error(SamplerParams { top_p: 1.5, ..base() }),
        "top_p is 1.5; expected a number from 0 to 1 (off)"
    );
    assert_eq!(
        error(SamplerParams { min_p: f32::NAN, ..base() }),
        "min_p is NaN; expected a number from 0 (off) to 1"
    );
    assert_eq!(
        error(SamplerParams { repetition_penalty: 0.0, ..base() }),
        "repetition_penalty is 0; expected a finite number above 0 (1 is off)"
    );
    assert_eq!(
        error(SamplerParams { presence_penalty: 2.1, ..base() }),
        "presence_penalty is 2.1; expected a number from -2 to 2 (0 is off)"
    );
    assert_eq!(
        error(SamplerParams { frequency_penalty: -3.0, ..base() }),
        "frequency_penalty is -3; expected a number from -2 to 2 (0 is off)"
    );
    assert_eq!(
        error(SamplerParams { logit_bias: vec![(100, 1.0)], ..base() }),
        "logit_bias is {100: 1}; expected token ids below 100, the size of the vocabulary"
    );
    assert_eq!(
        error(SamplerParams { logit_bias: vec![(1, f32::INFINITY)], ..base() }),
        "logit_bias is {1: inf}; expected biases from -100 to 100, or -inf to ban a token"
    );
    assert_eq!(
        error(SamplerParams { logprobs: Some(101), ..base() }),
        "logprobs is 101; expected at most 100, the size of the vocabulary"
    );
    let too_long = error(SamplerParams { penalty_last_n: PENALTY_LAST_N_MAX + 1, ..base() });
    assert!(
        too_long.starts_with("penalty_last_n is 1048577; expected 0 (none) to 1048576 tokens, or "),
        "{too_long}"
    );
    assert_eq!(base().validate(1), Ok(()));
}

#[test]
fn models_recommend_settings() {
    let mut meta = Metadata::new("m.gguf");
    let mine = SamplerParams { min_p: 0.3, seed: Some(4), ..base() };
    assert_eq!(SamplerParams::from_metadata(&meta, mine.clone()), Ok(mine.clone()));
    for (key, value) in [
        ("temp", Value::F64(0.6)),
        ("top_k", Value::U64(20)),
        ("top_p", Value::F64(0.95)),
        ("penalty_repeat", Value::F64(1.05)),
        ("penalty_last_n", Value::I64(-1)),
    ] {
        meta.insert(&format!("general.sampling.{key}"), value);
    }
    let want = SamplerParams {
        temperature: 0.6,
        top_k: 20,
        top_p: 0.95,
        repetition_penalty: 1.05,
        penalty_last_n: usize::MAX,
        ..mine.clone()
    };
    assert_eq!(SamplerParams::from_metadata(&meta, mine), Ok(want));
    meta.insert("general.sampling.top_p", Value::F64(-1.0));
    assert_eq!(
        SamplerParams::from_metadata(&meta, base()).unwrap_err().to_string(),
        "m.gguf: the recommended sampling settings cannot be used: top_p is -1; expected a number from 0 to 1 (off)"
    );
    meta.insert("general.sampling.top_k", Value::Str("many".into()));
    let e = SamplerParams::from_metadata(&meta, base()).unwrap_err().to_string();
    assert!(e.contains("m.gguf") && e.contains("general.sampling.top_k"), "{e}");
}

fn any_params(rows: usize) -> impl Strategy<Value = SamplerParams> {
    let truncation = (
        prop_oneof![Just(0.0f32), 0.01f32..4.0],
        prop_oneof![Just(0u32), 1u32..40, any::<u32>()],
        prop_oneof![Just(1.0f32), 0f32..1.0],
        prop_oneof![Just(0.0f32), 0f32..=1.0],
    );
    let penalties = (
        prop_oneof![Just(1.0f32), 0.5f32..2.0],
        prop_oneof![Just(usize::MAX), 0usize..30],
        prop_oneof![Just(0.0f32), -2f32..2.0],
        prop_oneof![Just(0.0f32), -2f32..2.0],
    );
    let bias = prop::collection::vec((0..rows as u32, -100f32..100.0), 0..4);
    let logprobs = prop::option::of(0..=rows);
    (truncation, penalties, bias, logprobs, any::<u64>()).prop_map(
        |((temperature, top_k, top_p, min_p), p, logit_bias, logprobs, seed)| SamplerParams {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty: p.0,
            penalty_last_n: p.1,
            presence_penalty: p.2,
            frequency_penalty: p.3,
            logit_bias,
            logprobs,
            seed: Some(seed),
            ..base()
        },
    )
}

const ROWS: usize = 333;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Masked ids are never chosen, whatever the settings. Chosen ids are possible by the oracle; greedy chooses its best.
    #[test]
    fn masks_are_never_violated(
        params in any_params(ROWS),
        logits in prop::collection::vec(prop_oneof![6 => -20f32..20.0, 1 => (-4i8..4).prop_map(f32::from), 1 => Just(f32::NEG_INFINITY)], ROWS),
        real in 1..=ROWS,
        allowed in prop::option::of(prop::collection::vec(any::<u32>(), 0..14)),
        history in prop::collection::vec(0..ROWS as u32 + 20, 0..80),
    ) {
        let may = |i: usize| i < real
            && allowed.as_ref().is_none_or(|a| a.get(i / 32).is_some_and(|w| w >> (i % 32) & 1 == 1));
        let mut sampler = Sampler::new(params.clone(), ROWS, &bitset_below(real), 0).unwrap();
        history.iter().for_each(|t| sampler.accept(*t));
        let possible = (0..ROWS).any(|i| may(i) && logits[i] > f32::NEG_INFINITY);
        for _ in 0..20 {
            match sampler.sample(&logits, allowed.as_deref()) {
                Err(e) => {
                    prop_assert_eq!(e, SamplerError::NothingAllowed);
                    prop_assert!(!possible);
                }
                Ok(s) => {
                    prop_assert!(possible && may(s.id as usize), "{} is masked", s.id);
                    // The oracle computes in f64, so a token at a limit may be on either side.
                    let loose = SamplerParams {
                        top_p: (params.top_p * 1.001 + 1e-5).min(1.0),
                        min_p: params.min_p * 0.99,
                        ..params.clone()
                    };
                    let (wide, least) = if params.temperature == 0.0 { (SamplerParams { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..loose }, 0.999) } else { (loose, 0.0) };
                    let p = oracle(&wide, &logits, may, &history);
                    let best = p.iter().copied().fold(0.0, f64::max);
                    prop_assert!(p[s.id as usize] > best * least, "{} is not possible", s.id);
                    prop_assert_eq!(s.logprob.is_some(), params.logprobs.is_some());
                    prop_assert!(s.logprob.is_none_or(|l| l <= 1e-6));
                }
            }
        }
    }

    /// Incremental counts equal counts of the whole window.
    #[test]
    fn penalties_cover_the_window(
        history in prop::collection::vec(0u32..24, 0..200),
        last_n in prop_oneof![Just(usize::MAX), 0usize..40],
        (r, presence, frequency) in (0.5f32..2.0, -2f32..2.0, -2f32..2.0),
    ) {
        let params = SamplerParams {
            penalty_last_n: last_n, repetition_penalty: r, presence_penalty: presence, frequency_penalty: frequency,
            ..SamplerParams::greedy()
        };
        let l = logits(20);
        let mut sampler = new(params.clone(), 20);
        for n in 0..history.len() {
            let id = sampler.sample(&l, None).unwrap().id;
            // Plain probabilities of the same step: within rounding, the chosen token is the best.
            let p = oracle(&SamplerParams { temperature: 1.0, ..params.clone() }, &l, |_| true, &history[..n]);
            let best = p.iter().copied().fold(0.0, f64::max);
            prop_assert!(p[id as usize] > best * 0.9999, "step {n}");
            sampler.accept(history[n]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// From the largest logits of a row, which a device finds, the sampler chooses the same tokens as from all of them.
    #[test]
    fn the_largest_logits_are_enough(
        levels in prop::collection::vec(-40i32..40, 1..400),
        fine in any::<bool>(),
        bits in prop::collection::vec(any::<u32>(), 13),
        temperature in prop::sample::select(vec![0.0f32, 0.3, 1.0, 1.7]),
        top_k in 1..=64u32,
        top_p in prop::sample::select(vec![0.1f32, 0.8, 0.95, 1.0]),
        min_p in prop::sample::select(vec![0.0f32, 0.05, 0.5]),
        seed in any::<u64>(),
    ) {
        let step = if fine { 0.173 } else { 0.5 };
        let logits: Vec<f32> = levels.iter().map(|l| if *l == -40 { f32::NEG_INFINITY } else { *l as f32 * step }).collect();
        let params = SamplerParams { temperature, top_k, top_p, min_p, ..SamplerParams::default() };
        let Ok(mut all) = Sampler::new(params, logits.len(), &bits, seed) else { return Ok(()) };
        let mut few = all.clone();
        prop_assert!(few.needs_few());
        let largest = picks(&logits, &bits).expect("numbers");
        for _ in 0..20 {
            prop_assert_eq!(few.sample_largest(&largest), all.sample(&logits, None));
        }
    }
}

#[test]
fn all_logits_are_read_if_the_largest_are_not_enough() {
    let few = SamplerParams { temperature: 0.7, top_k: 20, top_p: 0.8, ..SamplerParams::default() };
    let needs_few = |params: SamplerParams| {
        Sampler::new(params, 300, &bitset_below(300), 1).expect("good settings").needs_few()
    };
    assert!(needs_few(few.clone()) && needs_few(SamplerParams::greedy()));
    let all = [
        SamplerParams { top_k: 0, ..few.clone() },
        SamplerParams { top_k: 65, ..few.clone() },
        SamplerParams { logprobs: Some(0), ..few.clone() },
        SamplerParams { repetition_penalty: 1.1, ..few.clone() },
        SamplerParams { presence_penalty: 1.5, ..SamplerParams::greedy() },
        SamplerParams { logit_bias: vec![(3, 1.0)], ..SamplerParams::greedy() },
    ];
    for params in all {
        assert!(!needs_few(params.clone()), "{params:?}");
    }
}
