//! Which deployment is chosen: properties that hold whatever the numbers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use octet_config::Strategy;
use octet_router::ExpectedTokens;
use octet_router::choose::{Candidate, DeploymentSpec, Ineligible, Requirements, choose};
use octet_router::state::{Availability, DeploymentStatus, Limits, Permit, States};
use proptest::prelude::*;
use tokio::time::{Instant, advance};

const IDLE: DeploymentStatus = DeploymentStatus {
    available: Availability::Ready,
    in_flight: 0,
    requests: 0,
    tokens: 0,
    reserved: 0,
    first_s: None,
    per_token_s: None,
    elsewhere: None,
    has_answered: true,
};

fn terms(id: &str) -> DeploymentSpec {
    DeploymentSpec { id: id.into(), ..DeploymentSpec::default() }
}

fn candidate(terms: &DeploymentSpec) -> Candidate<'_> {
    Candidate { terms, live: IDLE, load: None, cached_tokens: None, prompt_tokens: None, out: None }
}

fn named(weights: &[f64]) -> Vec<DeploymentSpec> {
    let one = |(i, w): (usize, &f64)| DeploymentSpec { weight: Some(*w), ..terms(&format!("d{i}")) };
    weights.iter().enumerate().map(one).collect()
}

#[test]
fn shares_follow_weights() {
    let terms = named(&[9.0, 1.0, 0.0]);
    let all: Vec<_> = terms.iter().map(candidate).collect();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut got = [0u32; 3];
    for _ in 0..20_000 {
        got[choose(&all, &Requirements::default(), &mut rng).unwrap().index] += 1;
    }
    // Five standard deviations of a binomial.
    assert!((f64::from(got[0]) - 18_000.0).abs() < 5.0 * (20_000.0f64 * 0.09).sqrt(), "{got:?}");
    assert_eq!(got[2], 0);
}

#[test]
fn without_weights_limits_are_weights() {
    let mut all = [terms("a"), terms("b")];
    all[0].limits.rpm = Some(300);
    all[1].limits.rpm = Some(100);
    let all: Vec<_> = all.iter().map(candidate).collect();
    let mut rng = fastrand::Rng::with_seed(2);
    let mut first = 0;
    for _ in 0..10_000 {
        first += usize::from(choose(&all, &Requirements::default(), &mut rng).unwrap().index == 0);
    }
    assert!((7200..7800).contains(&first), "{first}");
}

proptest! {
    #[test]
    fn sessions_follow_weights_and_stay_when_others_leave(
        weights in prop::collection::vec(0.5f64..8.0, 2..6),
        gone in any::<prop::sample::Index>(),
        seed in any::<u64>(),
    ) {
        let terms = named(&weights);
        let gone = gone.index(terms.len());
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut got = vec![0.0; terms.len()];
        for session in 0..2000 {
            let session = format!("{seed}-{session}");
            let demand = Requirements { session: Some(&session), ..Requirements::default() };
            let mut all: Vec<_> = terms.iter().map(candidate).collect();
            let before = choose(&all, &demand, &mut rng).unwrap().index;
            prop_assert_eq!(before, choose(&all, &demand, &mut rng).unwrap().index);
            got[before] += 1.0;
            all[gone].live.available = Availability::Cooling(Duration::from_secs(1));
            let after = choose(&all, &demand, &mut rng).unwrap().index;
            prop_assert!(after != gone);
            prop_assert!(before == gone || before == after, "only those of the one that left move");
        }
        let sum: f64 = weights.iter().sum();
        for (w, n) in weights.iter().zip(&got) {
            let share = w / sum;
            let sd = (2000.0 * share * (1.0 - share)).sqrt();
            prop_assert!((n - 2000.0 * share).abs() < 6.0 * sd, "{:?} {:?}", weights, got);
        }
    }

    #[test]
    fn the_lowest_available_order_is_used(
        orders in prop::collection::vec((0u32..4, any::<bool>()), 1..8),
        strategy in prop::sample::select(vec![
            Strategy::SimpleShuffle, Strategy::LeastBusy, Strategy::UsageBased, Strategy::LatencyBased,
            Strategy::CostBased, Strategy::PrefixAffinity,
        ]),
        seed in any::<u64>(),
    ) {
        let terms: Vec<DeploymentSpec> =
            orders.iter().enumerate().map(|(i, o)| DeploymentSpec { order: o.0, ..terms(&format!("d{i}")) }).collect();
        let mut all: Vec<_> = terms.iter().map(candidate).collect();
        for (c, (_, well)) in all.iter_mut().zip(&orders) {
            if !well {
                c.live.available = Availability::OnTrial;
            }
        }
        let demand = Requirements { strategy, prefix: Some(seed), ..Requirements::default() };
        let least = orders.iter().filter(|o| o.1).map(|o| o.0).min();
        match choose(&all, &demand, &mut fastrand::Rng::with_seed(seed)) {
            Ok(pick) => {
                prop_assert!(orders[pick.index].1);
                prop_assert_eq!(Some(orders[pick.index].0), least);
            }
            Err(reasons) => {
                prop_assert_eq!(least, None);
                prop_assert!(reasons.iter().all(|r| *r == Ineligible::OnTrial));
            }
        }
    }

    /// No deployment gets more than its limits: in any 60 seconds, and concurrently.
    #[test]
    fn limits_are_never_exceeded(
        limits in (1u64..6, 50u64..400, 1u32..4),
        steps in prop::collection::vec((0u64..9000, 1u64..120, 0u64..120, any::<bool>()), 1..120),
    ) {
        let (rpm, tpm, parallel) = limits;
        let limits = Limits { rpm: Some(rpm), tpm: Some(tpm), max_parallel: Some(parallel) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let states = States::default();
            let state = states.get("d");
            let mut running: Vec<(Permit, ExpectedTokens)> = Vec::new();
            let mut sent: Vec<(Instant, u64)> = Vec::new();
            let mut answered: Vec<(Instant, u64)> = Vec::new();
            for (wait_ms, prompt, answer, end) in steps {
                advance(Duration::from_millis(wait_ms)).await;
                let now = Instant::now();
                if end && !running.is_empty() {
                    let (permit, took) = running.remove(0);
                    // Some answers are shorter than they may be, and some break off.
                    let of_answer = took.answer / 2;
                    if took.answer % 3 > 0 {
                        permit.answered(Some((took.prompt + of_answer, of_answer)), true, now);
                        answered.push((now, of_answer));
                    }
                }
                let recent = |all: &[(Instant, u64)]| -> Vec<u64> {
                    all.iter().filter(|s| now - s.0 < Duration::from_secs(60)).map(|s| s.1).collect()
                };
                let reserved: u64 = running.iter().map(|r| r.1.answer).sum();
                let used = recent(&sent).iter().chain(&recent(&answered)).sum::<u64>() + reserved;
                let tokens = ExpectedTokens { prompt, answer };
                if let Some(permit) = Arc::clone(&state).admit(&limits, tokens, now) {
                    // One that is longer than the limit alone goes alone.
                    assert!(used == 0 || used + prompt <= tpm, "{used} and {prompt} of {tpm}");
                    running.push((permit, tokens));
                    sent.push((now, prompt));
                }
                assert!(running.len() <= parallel as usize);
                assert!(recent(&sent).len() as u64 <= rpm);
                assert_eq!(state.live(Duration::ZERO, now).reserved, running.iter().map(|r| r.1.answer).sum::<u64>());
            }
        });
    }
}

#[test]
fn strategies_use_their_measures() {
    let mut rng = fastrand::Rng::with_seed(3);
    let names = [terms("a"), terms("b"), terms("c")];
    let mut pick = |strategy, stream, set: &dyn Fn(&mut [Candidate<'_>])| {
        let mut all: Vec<_> = names.iter().map(candidate).collect();
        set(&mut all);
        let demand = Requirements { strategy, stream, latency_buffer: 0.1, ..Requirements::default() };
        let mut got: Vec<&str> =
            (0..64).map(|_| &*names[choose(&all, &demand, &mut rng).unwrap().index].id).collect();
        got.sort_unstable();
        got.dedup();
        got.concat()
    };
    let busy = |all: &mut [Candidate<'_>]| {
        all[0].live.in_flight = 3;
        all[1].live.in_flight = 1;
        all[2].load = Some(2);
    };
    assert_eq!(pick(Strategy::LeastBusy, true, &busy), "b");
    let used = |all: &mut [Candidate<'_>]| {
        all[0].live.tokens = 100;
        all[2].live.tokens = 5;
    };
    assert_eq!(pick(Strategy::UsageBased, true, &used), "b");
    let fast = |all: &mut [Candidate<'_>]| {
        for (c, s) in all.iter_mut().zip([0.5, 0.52, 0.9]) {
            c.live.first_s = Some(s);
            c.live.per_token_s = Some(1.0 - s);
        }
    };
    assert_eq!(pick(Strategy::LatencyBased, true, &fast), "ab", "as fast as makes no difference");
    assert_eq!(pick(Strategy::LatencyBased, false, &fast), "c");
    let unknown = |all: &mut [Candidate<'_>]| {
        all[0].live.first_s = Some(0.1);
        all[1].live.in_flight = 1;
        all[2].live.first_s = Some(0.2);
    };
    assert_eq!(pick(Strategy::LatencyBased, true, &unknown), "a", "what is being measured waits for it");
    let idle = |all: &mut [Candidate<'_>]| all[0].live.first_s = Some(0.1);
    assert_eq!(pick(Strategy::LatencyBased, true, &idle), "bc", "what was never measured goes first");
}

#[test]
fn the_cheapest_deployment_is_chosen_and_unpriced_ones_last() {
    let mut all = [terms("a"), terms("b"), terms("c")];
    all[0].cost = Some(2e-6);
    all[2].cost = Some(0.0);
    let demand = Requirements { strategy: Strategy::CostBased, ..Requirements::default() };
    let mut rng = fastrand::Rng::with_seed(4);
    for (left_out, expected) in [(None, 2), (Some(2), 0)] {
        let mut candidates: Vec<_> = all.iter().map(candidate).collect();
        if let Some(i) = left_out {
            candidates[i].out = Some(Ineligible::Tried);
        }
        assert_eq!(choose(&candidates, &demand, &mut rng).unwrap().index, expected);
    }
}

#[test]
fn prefixes_share_a_deployment_until_it_is_overloaded() {
    let names: Vec<DeploymentSpec> = (0..4).map(|i| terms(&format!("d{i}"))).collect();
    let mut rng = fastrand::Rng::with_seed(5);
    let demand =
        Requirements { strategy: Strategy::PrefixAffinity, prefix: Some(42), ..Requirements::default() };
    let mut load = [0u32; 4];
    let mut choose_with = |load: &[u32; 4], cached: Option<usize>| {
        let mut all: Vec<_> = names.iter().map(candidate).collect();
        all.iter_mut().zip(load).for_each(|(c, n)| c.live.in_flight = *n);
        if let Some(i) = cached {
            all[i].cached_tokens = Some(5000);
        }
        choose(&all, &demand, &mut rng).unwrap()
    };
    let home = choose_with(&load, None).index;
    assert_eq!(choose_with(&load, None).index, home);
    let warm = (home + 1) % 4;
    assert_eq!(choose_with(&load, Some(warm)).index, warm, "what is in a cache beats a hash");
    // A request is no burden to what has the prompt in its cache; else an idle one is better.
    let mut busy = [0; 4];
    (busy[home], busy[warm]) = (1, 1);
    assert_eq!(choose_with(&busy, Some(warm)).index, warm);
    assert!(![home, warm].contains(&choose_with(&busy, None).index));
    // One conversation may not drown one deployment.
    for _ in 0..400 {
        let at = choose_with(&load, None).index;
        load[at] += 1;
    }
    assert!(load.iter().all(|n| *n <= 127), "{load:?}");
    assert!(load[home] >= 100, "{load:?}");
}

#[test]
fn prompts_that_do_not_fit_use_other_deployments() {
    let mut all = [terms("small"), terms("large")];
    all[0].window_tokens = Some(1000);
    all[1].window_tokens = Some(8000);
    let mut rng = fastrand::Rng::with_seed(6);
    let mut pick = |tokens: Option<u64>, above: Option<u64>| {
        let mut candidates: Vec<_> = all.iter().map(candidate).collect();
        candidates.iter_mut().for_each(|c| c.prompt_tokens = tokens);
        let demand = Requirements { check_context: true, window_above: above, ..Requirements::default() };
        choose(&candidates, &demand, &mut rng).map(|p| p.index)
    };
    for _ in 0..20 {
        assert_eq!(pick(Some(1001), None), Ok(1));
        assert_eq!(pick(None, Some(1000)), Ok(1), "a window that was too small is no fallback for itself");
    }
    let window = |tokens, window| Ineligible::ContextWindow { tokens, window };
    assert_eq!(pick(Some(9000), None), Err(vec![window(9000, 1000), window(9000, 8000)]));
}

#[tokio::test(start_paused = true)]
async fn a_minutes_count_agrees_with_a_list() {
    let states = States::default();
    let state = states.get("d");
    let mut rng = fastrand::Rng::with_seed(8);
    let mut sent: Vec<(Instant, u64)> = Vec::new();
    let mut most: HashMap<&str, u32> = HashMap::new();
    for _ in 0..2000 {
        advance(Duration::from_millis(rng.u64(0..1500))).await;
        let now = Instant::now();
        let tokens = rng.u64(0..50);
        let tokens = ExpectedTokens { prompt: tokens, answer: rng.u64(0..50) };
        let permit = state.admit(&Limits::default(), tokens, now).unwrap();
        let actual = rng.u64(0..80);
        permit.answered(Some((actual, actual / 2)), true, now);
        sent.push((now, actual));
        let live = state.live(Duration::from_secs(3600), now);
        let within = |s: u64| sent.iter().filter(move |x| now - x.0 < Duration::from_secs(s));
        // Whole seconds: at least the last 60, at most the last 61.
        assert!(live.requests as usize >= within(60).count() && live.requests as usize <= within(62).count());
        let tokens = |s| within(s).map(|x| x.1).sum::<u64>();
        assert!(live.tokens >= tokens(60) && live.tokens <= tokens(62), "{} {}", live.tokens, tokens(60));
        most.entry("requests").and_modify(|n| *n = (*n).max(live.requests)).or_insert(live.requests);
    }
    assert!(most["requests"] > 50);
}
