//! A model file that is truncated after loading: nothing of it is read any more. (A mapped page that is missing would kill the process.)

use std::fs::File;

use octet_compute::cpu::CpuOptions;
use octet_engine::engine::{Engine, Options, Request};
use octet_engine::sampler::SamplerParams;
use octet_synth::{Mix, tiny};
use octet_weights::Model;
use octet_weights::gguf::Writer;

fn tokens(engine: &mut Engine) -> Vec<u32> {
    let sampling = SamplerParams::greedy();
    let request = Request { prompt: (1..40).collect(), max_tokens: Some(8), sampling, ..Request::default() };
    engine.generate(request, &mut |_| std::ops::ControlFlow::Continue(())).expect("an answer").tokens
}

#[test]
fn a_file_that_is_truncated_after_loading_is_not_read() {
    let cpu = CpuOptions { threads: Some(1), pin: false, ..CpuOptions::default() };
    let options = Options { context: Some(128), cpu, ..Options::default() };
    let dir = tempfile::tempdir().expect("a folder");
    // With an output head of its own, and with the embedding table for one.
    for architecture in ["llama", "qwen35moe"] {
        let made = tiny(architecture, Mix::Q4KM).expect("a tiny model");
        let path = dir.path().join(format!("{architecture}.gguf"));
        let file = File::create(&path).expect("a file");
        let mut writer = Writer::new(file, &made.metadata, made.tensors().to_vec()).expect("a header");
        for info in made.tensors() {
            writer
                .append(&made.tensor(&info.name, &info.shape).expect("a tensor").data)
                .expect("it is written");
        }
        writer.finish().expect("all is written");
        let model = Model::open(&path).expect("a model");
        let mut engine = Engine::open(&model, &options, &mut |_, _| {}).expect("it loads");
        drop(model);
        File::options().write(true).open(&path).and_then(|f| f.set_len(0)).expect("it is truncated");
        let mut whole = Engine::open(&made, &options, &mut |_, _| {}).expect("it loads");
        assert_eq!(tokens(&mut engine), tokens(&mut whole), "{architecture}");
    }
}
