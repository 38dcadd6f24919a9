//! Logits stay on a graphics device if the largest ones are enough to choose a token: answers are the same as from all logits.

use std::sync::mpsc::channel;

use crate::common::drive::{Listener, collect, greedy, options, prompt};
use octet_engine::device::Device;
use octet_engine::engine::{self, Constraint, Engine, Request, Step};
use octet_engine::sampler::SamplerParams;
use octet_synth::{Mix, tiny};
use octet_vulkan::{Vulkan, VulkanOptions};

/// Allows four ids, which are hardly among the largest logits.
pub(crate) struct Few;

impl Constraint for Few {
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), String> {
        allowed.fill(0);
        allowed[3] = 0b1111;
        Ok(())
    }
    fn accept(&mut self, id: u32) -> Result<(), String> {
        if (96..100).contains(&id) { Ok(()) } else { Err(format!("{id} is not allowed")) }
    }
    fn is_finished(&self) -> bool {
        false
    }
    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Self)
    }
}

/// The tokens of these requests' answers, and how many steps left their logits on the device.
fn answers(index: usize, architecture: &str, requests: Vec<Request>) -> (Vec<Vec<u32>>, u64) {
    let device = Device::new("vulkan", move || {
        Vulkan::new(&VulkanOptions { index, lazy_kernels: true, ..VulkanOptions::default() })
    });
    let file = tiny(architecture, Mix::Q4KM).expect("a tiny model");
    let options = engine::Options { device: Some(device), ..options() };
    let mut engine = Engine::open(&file, &options, &mut |_, _| {}).expect("it opens");
    let rules = engine.rules().clone();
    let events: Vec<_> = requests
        .into_iter()
        .map(|r| {
            let (events, all) = channel();
            engine.submit(
                rules.prepare(r).expect("a good request"),
                Box::new(Listener { events, gone: Default::default() }),
            );
            all
        })
        .collect();
    while engine.step() == Step::Worked {}
    let tokens = events.iter().map(|e| collect(e).expect("an answer")[&0].tokens.clone()).collect();
    (tokens, engine.stats().picked_steps)
}

#[test]
fn answers_are_the_same_whether_all_logits_are_read_or_not() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let sampled =
        SamplerParams { temperature: 1.0, top_k: 20, top_p: 0.95, seed: Some(5), ..SamplerParams::default() };
    for architecture in ["llama", "qwen35moe"] {
        let requests = |logprobs| -> Vec<Request> {
            let one = |n, sampling: &SamplerParams| Request {
                sampling: SamplerParams { logprobs, ..sampling.clone() },
                ..greedy(prompt(n, n as u32), 12)
            };
            vec![one(9, &SamplerParams::greedy()), one(20, &sampled), one(70, &sampled)]
        };
        let (few, picked) = answers(index, architecture, requests(None));
        let (all, read) = answers(index, architecture, requests(Some(0)));
        assert_eq!(few, all, "{architecture}");
        assert!(picked >= 12 && read == 0, "{architecture}: {picked} steps and {read}");
        // if one request needs all logits, they are read for all requests
        let mut mixed = requests(None);
        mixed[0].sampling.logprobs = Some(0);
        assert_eq!(answers(index, architecture, mixed).0, all, "{architecture}, mixed");
    }
}

#[test]
fn a_constraint_sees_all_logits() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let held = Request { constraint: Some(Box::new(Few)), ..greedy(prompt(9, 9), 12) };
    let (tokens, picked) = answers(index, "llama", vec![held, greedy(prompt(20, 20), 12)]);
    assert!(tokens[0].len() == 12 && tokens[0].iter().all(|id| (96..100).contains(id)), "{:?}", tokens[0]);
    assert_eq!(picked, 0, "each of these steps chose a token under the constraint");
}
