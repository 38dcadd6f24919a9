//! The kernels of a graphics device are compiled while a model is loaded, so that no request waits for that.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use crate::common::drive::{Listener, collect, greedy, options, prompt};
use crate::common::{encoders, limits};
use octet_compute::Batch;
use octet_engine::device::Device;
use octet_engine::engine::speculation::{Mode, Options as Speculation};
use octet_engine::engine::{self, Engine, Step};
use octet_engine::models;
use octet_synth::{Mix, tiny};
use octet_vulkan::{Vulkan, VulkanOptions};
use octet_weights::GgmlType;

/// What a start of a model did.
struct Start {
    /// Kernels that were compiled after loading.
    late: Vec<String>,
    /// Bytes of saved kernels that the driver got.
    saved_bytes: usize,
    /// Seconds that loading took.
    seconds: f64,
}

/// Prompts of several lengths at once.
const PROMPTS: [&[usize]; 7] = [&[1], &[3], &[7, 2], &[20], &[40, 33, 8], &[290], &[5, 60, 1, 9]];

/// Loads a model with `options`, and generates for these prompts, with drafts.
fn start(architecture: &str, mix: Mix, options: VulkanOptions, prompts: &[&[usize]]) -> Start {
    let devices = Arc::new(Mutex::new(Vec::new()));
    let opened = devices.clone();
    let device = Device::new("vulkan", move || {
        let device = Vulkan::new(&options)?;
        opened.lock().unwrap().push((device.late_kernels(), device.loaded_kernel_bytes()));
        Ok(device)
    });
    let options = engine::Options {
        device: Some(device),
        batch_tokens: 300,
        speculation: Speculation { mode: Mode::Auto, always: true, ..Speculation::default() },
        ..self::options()
    };
    let file = tiny(architecture, mix).expect("a tiny model");
    let start = std::time::Instant::now();
    let mut engine = Engine::open(&file, &options, &mut |_, _| {}).expect("it opens");
    let seconds = start.elapsed().as_secs_f64();
    let (late, saved_bytes) = devices.lock().unwrap().first().cloned().expect("a device was opened");
    let rules = engine.rules().clone();
    for lengths in prompts {
        let events: Vec<_> = lengths
            .iter()
            .map(|n| {
                let (events, all) = channel();
                let request = rules.prepare(greedy(prompt(*n, *n as u32), 6)).expect("a good request");
                engine.submit(request, Box::new(Listener { events, gone: Default::default() }));
                all
            })
            .collect();
        while engine.step() == Step::Worked {}
        events.iter().for_each(|e| assert!(!collect(e).expect("an answer").is_empty()));
    }
    let late = late.lock().unwrap().clone();
    Start { late, saved_bytes, seconds }
}

#[test]
fn no_kernel_is_compiled_after_a_model_is_loaded() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let options = VulkanOptions { index, ..VulkanOptions::default() };
    let slots = VulkanOptions { expert_slots: Some(4), ..options.clone() };
    for (architecture, mix, options) in [
        ("qwen35moe", Mix::Q4KM, options.clone()),
        ("qwen35moe", Mix::Q4KM, slots),
        ("qwen3moe", Mix::Of(GgmlType::Q8_0), options.clone()),
        ("llama", Mix::Of(GgmlType::F16), options.clone()),
        ("olmoe", Mix::Q4KM, options.clone()),
    ] {
        let Start { late, seconds, .. } = start(architecture, mix, options, &PROMPTS);
        println!("{architecture} {mix:?}: loaded in {seconds:.2} s");
        assert!(late.is_empty(), "{architecture} {mix:?}: {late:?}");
    }
}

/// Texts of any length and several at once, their vectors and scores.
#[test]
fn no_kernel_is_compiled_after_an_encoder_is_loaded() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    for name in ["bert with mean and projections", "modernbert reranker"] {
        let case = encoders::cases().into_iter().find(|c| c["name"] == name).expect("a case");
        let file = encoders::open(&case);
        let device = Vulkan::new(&VulkanOptions { index, ..VulkanOptions::default() }).expect("a device");
        let late = device.late_kernels();
        let mut model = models::load(&file, device, limits(), &mut |_, _| {}).expect("it loads");
        let mut vector = Vec::new();
        for lengths in [&[1][..], &[2], &[20], &[7, 1, 24], &[24, 24, 24]] {
            let mut batch = Batch::default();
            for (i, n) in lengths.iter().enumerate() {
                batch.push(&prompt(*n, 1).iter().map(|t| t % 64).collect::<Vec<_>>(), 0, i, &[i as u32], 1);
                batch.see(0..*n);
            }
            model.step(&batch).expect("a step");
            let mut state = model.hidden().expect("states").to_vec();
            state.truncate(model.config().hidden);
            vector = model.pool(&state).expect("a vector");
        }
        assert!(vector.iter().all(|x| x.is_finite()), "{name}: {vector:?}");
        let late = late.lock().unwrap();
        assert!(late.is_empty(), "{name}: {late:?}");
    }
}

/// Compiled kernels are saved in a file. The next start hands its content to the driver, unless it is damaged.
#[test]
fn saved_kernels_are_used_and_a_damaged_file_is_replaced() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let options =
        VulkanOptions { index, kernel_cache: Some(folder.path().into()), ..VulkanOptions::default() };
    let file = || {
        let files: Vec<_> = std::fs::read_dir(folder.path()).expect("a folder").collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].as_ref().expect("a file").path()
    };
    let saved_bytes = || start("llama", Mix::Q4KM, options.clone(), &PROMPTS[..1]).saved_bytes;
    assert_eq!(saved_bytes(), 0);
    let saved = std::fs::read(file()).expect("it was saved");
    let hash_bytes = 32;
    assert_eq!(saved_bytes(), saved.len() - hash_bytes);
    for damaged in [&saved[..saved.len() / 2], b"", b"something else that is longer than a hash of 32 bytes"]
    {
        std::fs::write(file(), damaged).expect("it is written");
        assert_eq!(saved_bytes(), 0, "{} damaged bytes", damaged.len());
        assert_ne!(std::fs::read(file()).expect("it is there"), damaged);
    }
}
