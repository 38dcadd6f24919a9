//! Steps that a graphics device begins before the host has seen the tokens of the step before: answers, caches and failures are those of an
//! engine that waits for each step.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use crate::common::drive::{Got, Listener, answer, collect, finish, greedy, options, prompt, submit};
use octet_engine::Error;
use octet_engine::engine::{self, Engine, Finish, Request, Step};
use octet_engine::models::Device;
use octet_synth::{Mix, tiny};
use octet_vulkan::faults::{Fault, Faults};
use octet_vulkan::{Vulkan, VulkanOptions};

/// An engine on the device, which may run ahead, or not.
fn engine_on(index: usize, architecture: &str, runs_ahead: bool, faults: Option<Arc<Faults>>) -> Engine {
    let device = Device::new("vulkan", move || {
        let mut device = Vulkan::new(&VulkanOptions { index, ..VulkanOptions::default() })?;
        if !runs_ahead {
            device.never_run_ahead();
        }
        if let Some(faults) = &faults {
            device.inject_faults(Arc::clone(faults));
        }
        Ok(device)
    });
    let file = tiny(architecture, Mix::Q4KM).expect("a tiny model");
    let options = engine::Options { device: Some(device), snapshot_memory: Some(64 << 20), ..options() };
    Engine::open(&file, &options, &mut |_, _| {}).expect("it opens")
}

/// All answers to requests that arrive together and after some steps.
fn answers(engine: &mut Engine, requests: &[(usize, Request)]) -> Vec<Got> {
    let mut all = Vec::new();
    let mut steps = 0;
    loop {
        for (_, r) in requests.iter().filter(|(at, _)| *at == steps) {
            all.push(submit(engine, r.clone()).1);
        }
        let idle = engine.step() == Step::Idle;
        engine.audit().expect("every page and slot is accounted for");
        if idle && requests.iter().all(|(at, _)| *at <= steps) {
            break;
        }
        steps += 1;
    }
    all.iter().map(|events| collect(events).expect("an answer").remove(&0).expect("one")).collect()
}

#[test]
fn answers_are_those_of_steps_that_wait() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    for architecture in ["llama", "qwen35moe"] {
        let [mut ahead, mut waiting] = [true, false].map(|on| engine_on(index, architecture, on, None));
        let plain = answer(&mut waiting, Request { cache: false, ..greedy(prompt(20, 4), 40) }).0;
        // the batch changes: by requests that come, by answers that end at their limit, at a token and at a string
        let requests = vec![
            (0, greedy(prompt(9, 1), 50)),
            (0, greedy(prompt(70, 2), 23)),
            (10, greedy(prompt(30, 3), 70)),
            (12, Request { stop_token_ids: vec![plain[25]], ..greedy(prompt(20, 4), 60) }),
            (13, Request { stop: vec!["e".into(), "a".into()], ..greedy(prompt(33, 5), 60) }),
            (40, greedy(prompt(12, 6), 1)),
            (41, greedy(prompt(12, 6), 2)),
            (60, greedy(prompt(12, 6), 40)),
        ];
        let (got, want) = (answers(&mut ahead, &requests), answers(&mut waiting, &requests));
        for (got, want) in got.iter().zip(&want) {
            assert_eq!(
                (&got.tokens, &got.text, got.finish),
                (&want.tokens, &want.text, want.finish),
                "{architecture}"
            );
        }
        assert_eq!(got[3].finish, Some(Finish::StopToken));
        let stats = ahead.stats();
        assert!(stats.steps_ahead > 50 && stats.steps_ahead < stats.steps, "{stats:?}");
        assert_eq!(waiting.stats().steps_ahead, 0);
        assert_eq!(stats.generated_tokens + plain.len() as u64, waiting.stats().generated_tokens);
    }
}

/// What an answer left in the cache, with the token that a step in flight had already computed, is what another turn would have computed.
#[test]
fn conversations_go_on_where_a_step_in_flight_has_left_them() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    for architecture in ["llama", "qwen35moe"] {
        let [mut ahead, mut waiting] = [true, false].map(|on| engine_on(index, architecture, on, None));
        // an answer with a token that comes for the first time after more than 20
        let late = |salt| {
            let base = prompt(80, salt);
            let (tokens, _) = answer(&mut waiting, Request { cache: false, ..greedy(base.clone(), 60) });
            let at = (22..58).rfind(|i| !tokens[..*i].contains(&tokens[*i]))?;
            Some((base, tokens, at))
        };
        let (base, tokens, at) = (7..60).find_map(late).expect("the model says several things");
        let first = Request { stop_token_ids: vec![tokens[at]], ..greedy(base.clone(), 60) };
        assert_eq!(answer(&mut ahead, first).0, tokens[..=at]);
        assert!(ahead.stats().steps_ahead > 20);
        let next = [&base[..], &tokens[..=at], &prompt(20, 8)].concat();
        let (got, cached) = answer(&mut ahead, greedy(next.clone(), 30));
        // that of the step in flight included
        assert_eq!(cached, base.len() + at + 1, "{architecture}");
        let (want, _) = answer(&mut waiting, Request { cache: false, ..greedy(next, 30) });
        assert_eq!(got, want, "{architecture}");
    }
}

#[test]
fn snapshots_are_taken_where_they_are_asked_for() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let mut e = engine_on(index, "qwen35moe", true, None);
    let base = greedy(prompt(80, 7), 60);
    let (tokens, _) = answer(&mut e, Request { cache: false, ..base.clone() });
    let at = (20..40).find(|&i| !tokens[..i].contains(&tokens[i])).expect("the model says several things");
    for before in [true, false] {
        e.clear();
        let mut request = base.clone();
        let ids = vec![tokens[at]];
        if before {
            request.snapshot_before = ids
        } else {
            request.snapshot_after = ids
        }
        assert_eq!(answer(&mut e, request).0, tokens);
        let kept = 80 + at + usize::from(!before);
        let other = [&base.prompt[..], &tokens[..kept - 80], &[99, 98, 97]].concat();
        let (got, cached) = answer(&mut e, greedy(other.clone(), 5));
        assert_eq!(cached, kept, "before: {before}");
        assert_eq!(got, answer(&mut e, Request { cache: false, ..greedy(other, 5) }).0);
    }
}

#[test]
fn requests_that_are_cancelled_in_flight_harm_nobody() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    for architecture in ["llama", "qwen35moe"] {
        let mut e = engine_on(index, architecture, true, None);
        let one = greedy(prompt(30, 1), 60);
        let (want, _) = answer(&mut e, Request { cache: false, ..one.clone() });
        for steps in [20, 21, 33] {
            let (_, kept) = submit(&mut e, one.clone());
            let (events, left) = channel();
            let gone = Arc::new(AtomicBool::new(false));
            let prepared = e.rules().prepare(greedy(prompt(40, 2), 300)).expect("it can be served");
            e.submit(prepared, Box::new(Listener { events, gone: gone.clone() }));
            (0..steps).for_each(|_| assert_eq!(e.step(), Step::Worked));
            gone.store(true, Ordering::Relaxed);
            finish(&mut e);
            assert_eq!(collect(&kept).expect("an answer")[&0].tokens, want, "{architecture}");
            // what it left in the cache is right
            let tokens = collect(&left).expect("no failure").remove(&0).expect("some").tokens;
            let next = [prompt(40, 2), tokens].concat();
            let (got, _) = answer(&mut e, greedy(next.clone(), 20));
            assert_eq!(got, answer(&mut e, Request { cache: false, ..greedy(next, 20) }).0, "{architecture}");
        }
        // alone, with the last step in flight
        let mut heard = 0;
        let all = e.generate(greedy(prompt(30, 1), 60), &mut |_| {
            heard += 1;
            if heard == 25 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(all.expect("it is cancelled").finish, Finish::Cancelled);
        finish(&mut e);
        assert_eq!(answer(&mut e, one.clone()).0, want, "{architecture}");
    }
}

#[test]
fn a_device_that_fails_in_flight_fails_the_requests() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    // the second one ends while its last step is in flight, so no further step is submitted
    for (fault, limit, steps) in [
        (Fault::Lost, 60, 20),
        (Fault::Lost, 20, 20),
        (Fault::OutOfMemory, 60, 20),
        (Fault::OutOfMemory, 20, 20),
    ] {
        let faults = Arc::new(Faults::default());
        let mut e = engine_on(index, "qwen35moe", true, Some(faults.clone()));
        let request = Request { cache: false, ..greedy(prompt(30, 1), limit) };
        let (want, _) = answer(&mut e, request.clone());
        let (_, events) = submit(&mut e, request.clone());
        // one step for the prompt
        (0..steps - 1).for_each(|_| assert_eq!(e.step(), Step::Worked));
        assert!(e.stats().steps_ahead > 10);
        faults.inject(fault);
        e.step();
        let error = collect(&events).expect_err("the device failed");
        let word = if fault == Fault::Lost { "lost" } else { "memory" };
        assert!(matches!(&error, Error::Device(why) if why.contains(word)), "{error}");
        assert_eq!(e.is_broken(), fault == Fault::Lost);
        if fault == Fault::OutOfMemory {
            finish(&mut e);
            assert_eq!(answer(&mut e, request).0, want);
        }
    }
}
