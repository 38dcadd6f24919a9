//! One model over several graphics devices: logits, answers, and what is cached in memory and on disk are those of one device, to the bit. The
//! same device is opened several times.

use std::path::Path;

use octet_engine::device::Device;
use octet_engine::engine::speculation::{self, Mode};
use octet_engine::engine::{self, DiskOptions, Engine, Request, Step};
use octet_engine::models::{self, Model};
use octet_engine::sampler::SamplerParams;
use octet_testkit::shared;
use octet_vulkan::{Share, Split, Vulkan, VulkanOptions};

use crate::common::drive::{Got, WINDOWED, answer, collect, file, greedy, options, prompt, submit};
use crate::common::{Run, argmax, limits};

fn opened(index: usize) -> VulkanOptions {
    VulkanOptions { index, lazy_kernels: true, ..VulkanOptions::default() }
}

fn shares(index: usize, layers: &[usize]) -> Vec<Share> {
    layers.iter().map(|&layers| Share { device: opened(index), layers }).collect()
}

/// Logits of a prompt in one long step, of a short one, and of greedy tokens after it.
fn logits(name: &str, model: Box<dyn Model>) -> Vec<Vec<f32>> {
    let mut run = Run::new(model);
    let vocab = run.model.config().vocab;
    let ids = |n: usize| (0..n).map(|i| ((i * 37 + 11) % vocab.min(200)) as u32).collect::<Vec<_>>();
    let mut all = vec![run.feed(&ids(40)), run.feed(&ids(3))];
    for _ in 0..4 {
        let last = all.last().expect("of the prompt");
        let id = argmax(&last[last.len() - vocab..]);
        all.push(run.feed(&[id]));
    }
    assert!(all.iter().flatten().all(|x| x.is_finite()), "{name}");
    all
}

/// Experts, recurrent layers and windows; two caches in a layer (Falcon H1), and layers that use those of another device (Gemma 4).
#[test]
fn logits_are_those_of_one_device() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let made = ["qwen35moe", WINDOWED].map(|name| (name, file(name)));
    let zoo = ["gemma4_e", "falcon_h1"].map(|name| {
        let path = shared(&format!("zoo/gguf/{name}.gguf"))?;
        Some((name, octet_weights::Model::open(&path).expect("a reference model opens")))
    });
    for (name, file) in made.into_iter().chain(zoo.into_iter().flatten()) {
        let one = Vulkan::new(&opened(index)).expect("the device opens");
        let one = models::load(&file, one, limits(), &mut |_, _| {}).expect("it loads");
        let layers = one.config().layers;
        let want = logits(name, one);
        let three = [1, (layers - 1).div_ceil(2), layers];
        let shares = shares(index, if layers < 3 { &[1, 1][..] } else { &three });
        let device = Split::new(&shares).expect("the devices open");
        let model = models::load(&file, device, limits(), &mut |_, _| {}).expect("it loads");
        assert!(logits(name, model) == want, "{name} over {} devices", shares.len());
    }
}

fn open(index: usize, architecture: &str, layers: &[usize], options: engine::Options) -> Engine {
    let shares = shares(index, layers);
    let device = match layers {
        [] => Device::new("one", move || {
            let mut device = Vulkan::new(&opened(index))?;
            device.never_run_ahead();
            Ok(device)
        }),
        _ => Device::new("several", move || Split::new(&shares)),
    };
    let options = engine::Options { device: Some(device), ..options };
    Engine::open(&file(architecture), &options, &mut |_, _| {}).expect("it opens")
}

/// All answers to these requests at once.
fn answers(engine: &mut Engine, requests: &[Request]) -> Vec<Got> {
    let all: Vec<_> = requests.iter().map(|r| submit(engine, r.clone()).1).collect();
    while engine.step() == Step::Worked {
        engine.audit().expect("every page and slot is accounted for");
    }
    all.iter().flat_map(|events| collect(events).expect("answers").into_values()).collect()
}

#[test]
fn answers_in_batches_and_from_the_cache_are_those_of_one_device() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let sampling = SamplerParams { temperature: 0.8, top_k: 20, seed: Some(7), ..SamplerParams::default() };
    let logprobs = SamplerParams { logprobs: Some(2), ..SamplerParams::greedy() };
    // guesses of the block are computed on the last device, and states advanced by accepted ones on both
    let guesses = speculation::Options { mode: Mode::Mtp, always: true, ..speculation::Options::default() };
    let options = engine::Options { snapshot_memory: Some(64 << 20), speculation: guesses, ..options() };
    let [mut one, mut two] =
        [&[][..], &[1, 3]].map(|layers| open(index, "qwen35moe", layers, options.clone()));
    let requests = [
        greedy(prompt(9, 1), 8),
        Request { sampling, ..greedy(prompt(70, 2), 5) },
        Request { sampling: logprobs, routes: true, ..greedy(prompt(20, 3), 4) },
    ];
    let want = answers(&mut one, &requests);
    assert_eq!(answers(&mut two, &requests), want);
    let mut cached = 0;
    for (request, got) in requests.iter().zip(&want) {
        let next = greedy([&request.prompt[..], &got.tokens, &prompt(9, 50)].concat(), 4);
        let (want, got) = (answer(&mut one, next.clone()), answer(&mut two, next));
        assert_eq!(got, want, "a conversation, and its cached tokens");
        cached += got.1;
    }
    assert!(cached > 0);
    let (one, two) = (one.stats(), two.stats());
    assert_eq!((one.cache.taken, one.cache.snapshots), (two.cache.taken, two.cache.snapshots));
    assert_eq!((one.picked_steps, two.steps_ahead), (two.picked_steps, 0));
}

fn on_disk(dir: &Path) -> engine::Options {
    engine::Options { disk: Some(DiskOptions { dir: dir.into(), bytes: 1 << 30 }), ..options() }
}

#[test]
fn files_of_the_cache_are_those_of_one_device() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let first = greedy(prompt(90, 7), 10);
    let mut e = open(index, "qwen35moe", &[2, 1, 1], on_disk(dir.path()));
    let (tokens, _) = answer(&mut e, first.clone());
    e.flush();
    drop(e);
    let next = greedy([&first.prompt[..], &tokens, &prompt(9, 1)].concat(), 6);
    let mut e = open(index, "qwen35moe", &[], on_disk(dir.path()));
    let (got, cached) = answer(&mut e, next.clone());
    assert!(cached >= 90, "{cached} tokens");
    let cold = Request { cache: false, ..next };
    assert_eq!(got, answer(&mut open(index, "qwen35moe", &[], options()), cold).0);
}
