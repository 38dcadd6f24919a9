//! Layers with a window keep pages for the window only: the same tokens and log-probabilities as with pages for all positions, whatever is cached,
//! preempted, guessed or stored on disk, for every model that has windows.

use std::ops::ControlFlow;
use std::path::Path;

use octet_compute::backend::{KvType, KvTypes, PageGroup};
use octet_compute::batch::PAGE_TOKENS;
use octet_engine::device::Device;
use octet_engine::engine::speculation::{self, Mode};
use octet_engine::engine::{self, DiskOptions, Engine, Request};
use octet_engine::models::derive;
use octet_engine::models::{Limits, config::Config};
use octet_engine::report::Report;
use octet_testkit::shared;
use octet_vulkan::{Vulkan, VulkanOptions};
use octet_weights::{Model, Value};

use crate::common::drive::{
    WINDOW, WINDOWED, alone, answer, collect, engine, file, finish, greedy, options, prompt, submit,
};

/// Room for one sequence of the test, and for a few windows.
const TOKENS: usize = 832;

/// Options with pages of windows where they take less.
fn grouped(kv: KvTypes) -> engine::Options {
    engine::Options { context: Some(TOKENS), kv_tokens: Some(TOKENS), kv, max_seqs: 2, ..options() }
}

/// The same without: a step of the whole context needs all pages.
fn plain(kv: KvTypes) -> engine::Options {
    engine::Options { batch_tokens: TOKENS, max_seqs: 1, ..grouped(kv) }
}

fn open(file: &Model, options: &engine::Options) -> Engine {
    Engine::open(file, options, &mut |_, _| {}).expect("the model opens")
}

/// The models of the zoo with windows, and a made-up one.
fn models() -> Vec<(String, Model)> {
    let mut all = vec![(WINDOWED.to_string(), file(WINDOWED))];
    for folder in ["zoo/gguf", "zoo/models"] {
        let Some(dir) = shared(folder) else { continue };
        let mut paths: Vec<_> =
            std::fs::read_dir(dir).expect("it can be read").map(|e| e.expect("an entry").path()).collect();
        paths.sort();
        for path in paths {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let Ok(model) = Model::open(&path) else { continue };
            let has_windows = Config::read(&model).is_ok_and(|c| derive::has_windows(&c.plan));
            if has_windows && all.iter().all(|(n, _)| *n != name) {
                all.push((name, model));
            }
        }
    }
    all
}

/// Whether a model has pages of windows with these options.
fn has_groups(file: &Model, options: &engine::Options) -> bool {
    let plan = Config::read(file).expect("it was read before").plan;
    let limits = options.limits_for(file).expect("it fits");
    derive::windowed_pages(&plan, &limits).is_some()
}

/// Tokens and log-probabilities of an answer.
fn run(e: &mut Engine, tokens: &[u32], n: usize) -> (Vec<u32>, Vec<f32>, usize) {
    let mut request = greedy(tokens.to_vec(), n);
    request.sampling.logprobs = Some(1);
    let (_, events) = submit(e, request);
    finish(e);
    let got = collect(&events).expect("it can be served").remove(&0).expect("it has an answer");
    (got.tokens, got.logprobs.iter().map(|l| l.logprob).collect(), got.usage.cached_tokens)
}

/// A cold prompt longer than several windows, the conversation that continues it, and a branch of it.
fn conversation(name: &str, file: &Model, kv: KvTypes, device: Option<Device>) {
    let [mut e, mut want] = [grouped(kv), plain(kv)]
        .map(|options| open(file, &engine::Options { device: device.clone(), ..options }));
    let mut history = prompt(300, 3);
    for turn in 0..3 {
        let (tokens, chances, cached) = run(&mut e, &history, 40);
        want.clear();
        let (other, others, _) = run(&mut want, &history, 40);
        assert_eq!((&tokens, &chances), (&other, &others), "{name}, {kv}, turn {turn}");
        assert_eq!(cached > 0, turn > 0, "{name}, {kv}, turn {turn}: {cached} tokens cached");
        history.extend(tokens);
        history.extend(prompt(20, 60 + turn));
    }
    e.audit().expect("every page is accounted for");
    e.clear();
    e.audit().expect("every page is free");
}

#[test]
fn every_model_with_windows_answers_the_same() {
    for (name, file) in models() {
        if name == "llama4_scout" {
            continue; // its window is longer than the test's context
        }
        assert!(has_groups(&file, &grouped(KvType::F32.into())), "{name}");
        assert!(!has_groups(&file, &plain(KvType::F32.into())), "{name}");
        for kv in [KvType::F32, KvType::F16, KvType::Q8_0] {
            // Some tiny models have smaller heads than a block.
            let fits = Report::new(&file).expect("it was read before").check_kv(kv.into()).is_ok();
            if fits {
                conversation(&name, &file, kv.into(), None);
            }
        }
    }
}

#[test]
fn windows_on_a_graphics_device_have_pages_of_their_own() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let device = Device::new("vulkan", move || {
        Vulkan::new(&VulkanOptions { index, lazy_kernels: true, ..VulkanOptions::default() })
    });
    conversation(WINDOWED, &file(WINDOWED), KvType::F16.into(), Some(device));
}

#[test]
fn a_step_is_cut_where_windows_have_no_pages_for_it() {
    let options =
        engine::Options { batch_tokens: 512, snapshot_memory: Some(0), ..grouped(KvType::F16.into()) };
    let file = file(WINDOWED);
    let plan = Config::read(&file).unwrap().plan;
    let pages = derive::windowed_pages(&plan, &options.limits_for(&file).unwrap()).unwrap().pages;
    assert!(pages < 512 / PAGE_TOKENS + 2 * 2, "a whole step does not fit beside two windows");
    let mut e = open(&file, &options);
    let requests: Vec<_> = (0..3).map(|who| greedy(prompt(301 + 31 * who as usize, who), 30)).collect();
    let events: Vec<_> = requests.iter().map(|r| submit(&mut e, r.clone()).1).collect();
    finish(&mut e);
    for (request, events) in requests.iter().zip(&events) {
        let got = collect(events).expect("it can be served").remove(&0).expect("an answer");
        let want = open(&file, &plain(KvType::F16.into()))
            .generate(Request { cache: false, ..request.clone() }, &mut |_| ControlFlow::Continue(()))
            .expect("it can be served");
        assert_eq!(got.tokens, want.tokens);
    }
    assert_eq!(e.stats().preemptions, 0);
}

#[test]
fn guesses_do_not_change_the_text() {
    let speculation = speculation::Options { mode: Mode::Lookup, ..speculation::Options::default() };
    let mut e = engine(WINDOWED, &engine::Options { speculation, ..options() });
    // repeats itself, so that guesses are made
    let tokens: Vec<u32> = (0..300).map(|i| i % 7).collect();
    let request = greedy(tokens, 60);
    let got = answer(&mut e, request.clone()).0;
    assert_eq!(got, alone(WINDOWED, &request));
    assert!(e.stats().speculation.drafted > 0, "it guesses");
}

fn on_disk(dir: &Path) -> engine::Options {
    engine::Options { disk: Some(DiskOptions { dir: dir.into(), bytes: 1 << 30 }), ..options() }
}

#[test]
fn windows_are_stored_on_disk_with_their_snapshots() {
    let dir = tempfile::tempdir().expect("a folder");
    let request = greedy(prompt(290, 5), 20);
    let mut e = engine(WINDOWED, &on_disk(dir.path()));
    let (tokens, _) = answer(&mut e, request.clone());
    e.flush();
    drop(e);
    let longer = greedy([&request.prompt[..], &tokens, &prompt(9, 1)].concat(), 20);
    let mut e = engine(WINDOWED, &on_disk(dir.path()));
    let (got, cached) = answer(&mut e, longer.clone());
    assert_eq!(cached, 290 + 19);
    assert_eq!(got, alone(WINDOWED, &longer));
    assert_eq!(e.stats().cache.disk.hits, 1);
    // Without pages of windows, pages have another content: nothing is found.
    let all = engine::Options { batch_tokens: 400, kv_tokens: Some(400), ..on_disk(dir.path()) };
    let (got, cached) = answer(&mut engine(WINDOWED, &all), longer.clone());
    assert_eq!((cached, got), (0, alone(WINDOWED, &longer)));
}

#[test]
fn pages_of_a_window_do_not_grow_with_the_context() {
    let windows = |context: usize| {
        let options = engine::Options { context: Some(context), kv_tokens: None, ..options() };
        let e = open(&file(WINDOWED), &options);
        drop(e);
        let report = Report::new(&file(WINDOWED)).unwrap();
        let limits = options.limits_for(&file(WINDOWED)).unwrap();
        let (pages, kept) = report.windowed_pages(&limits).expect("pages of windows");
        let memory = report.memory(&limits, false);
        let of = |group| report.kv_bytes_of(group, limits.kv) * PAGE_TOKENS as u64;
        let running = (pages.pages - kept) as u64;
        let want = of(PageGroup::All) * limits.pages as u64 + of(PageGroup::Windowed) * running;
        assert_eq!((memory.kv, memory.states), (want, of(PageGroup::Windowed) * kept as u64));
        pages.pages
    };
    assert_eq!(windows(2000), windows(4000));
    assert!(windows(2000) * PAGE_TOKENS < 2000 && WINDOW < PAGE_TOKENS);
}

/// Positions that llama.cpp's cache of layers with a window has for one sequence: the window and a micro-batch of 512, rounded up to 256.
fn llama_cpp(window: u64) -> u64 {
    (window + 512).next_multiple_of(256)
}

/// A model of the zoo with the dimensions of a released one.
fn sized(name: &str, architecture: &str, keys: &[(&str, Value)]) -> Option<Model> {
    let mut model = Model::open(&shared(&format!("zoo/gguf/{name}.gguf"))?).expect("it opens");
    for (key, value) in keys {
        model.metadata.insert(&format!("{architecture}.{key}"), value.clone());
    }
    Some(model)
}

/// At 131,072 tokens of context, keys and values take at most as much as in llama.cpp, but for the page to which a sequence copies another's last
/// one.
#[test]
fn long_contexts_take_no_more_than_elsewhere() {
    const CONTEXT: u64 = 131_072;
    let n = Value::U64;
    let gpt_oss = sized(
        "gpt_oss",
        "gpt-oss",
        &[
            ("block_count", n(24)),
            ("attention.head_count", n(64)),
            ("attention.head_count_kv", n(8)),
            ("attention.key_length", n(64)),
            ("attention.value_length", n(64)),
            ("attention.sliding_window", n(128)),
        ],
    );
    let slides = |i: usize| i % 6 != 5;
    let gemma4 = sized(
        "gemma4_moe",
        "gemma4",
        &[
            ("block_count", n(30)),
            ("attention.head_count", n(16)),
            (
                "attention.head_count_kv",
                Value::Ints((0..30).map(|i| if slides(i) { 8 } else { 2 }).collect()),
            ),
            ("attention.key_length", n(512)),
            ("attention.value_length", n(512)),
            ("attention.key_length_swa", n(256)),
            ("attention.value_length_swa", n(256)),
            ("attention.sliding_window", n(1024)),
            (
                "attention.sliding_window_pattern",
                Value::Array((0..30).map(|i| Value::Bool(slides(i))).collect()),
            ),
        ],
    );
    for (model, window, sizes) in [(gpt_oss, 128, [24_576, 24_576]), (gemma4, 1024, [20_480, 204_800])] {
        let Some(model) = model else { continue };
        let report = Report::new(&model).expect("it can be described");
        let options = engine::Options { context: Some(CONTEXT as usize), ..engine::Options::default() };
        let limits = Limits { snapshots: 0, ..options.limits_for(&model).expect("it can be opened") };
        let [all, windowed] = [PageGroup::All, PageGroup::Windowed].map(|g| report.kv_bytes_of(g, limits.kv));
        assert_eq!([all, windowed], sizes);
        let theirs = all * CONTEXT + windowed * llama_cpp(window);
        let ours = report.memory(&limits, false).kv;
        assert!(ours <= theirs + PAGE_TOKENS as u64 * all, "{}: {ours} bytes, {theirs} there", model.origin);
    }
}
