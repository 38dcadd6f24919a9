//! The built-in model (`models/fox`): trained weights of Qwen3.5's architecture in Q8_0, against transformers' greedy answers and
//! log-probabilities for the same weights (`models/fox/golden.py`). Needs nothing but the repository.

use crate::common::{On, Run, argmax, exact_backends, limits, load, log_softmax};
use octet_compute::cpu::isa::Isa;
use octet_engine::tokenizer::{Special, Tokenizer};
use serde_json::Value;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../models/fox");

fn file() -> octet_weights::Model {
    octet_weights::Model::open(format!("{FOLDER}/fox.gguf")).expect("the model opens")
}

fn golden() -> Vec<Value> {
    let text = std::fs::read_to_string(format!("{FOLDER}/golden.json")).expect("the golden file can be read");
    serde_json::from_str(&text).expect("the golden file is a list")
}

fn ids(v: &Value) -> Vec<u32> {
    v.as_array().expect("ids").iter().map(|x| x.as_u64().expect("an id") as u32).collect()
}

#[test]
fn tokens_are_those_of_the_tokenizer_that_it_was_trained_with() {
    let tokenizer = Tokenizer::from_metadata(&file().metadata).expect("its tokenizer");
    for case in golden() {
        let prompt = case["prompt"].as_str().expect("a prompt");
        assert_eq!(tokenizer.encode(prompt, Special::Parse).expect("it is short"), ids(&case["prompt_ids"]));
        let answer = case["answer"].as_str().expect("an answer");
        assert_eq!(tokenizer.encode(answer, Special::Parse).expect("it is short"), ids(&case["answer_ids"]));
    }
}

/// Worst and mean difference of the answers' log-probabilities, and how many tokens are not the likeliest ones.
fn measure(on: On) -> (f32, f32, usize) {
    let mut run = Run::new(load(&file(), on, limits()));
    let vocab = run.model.config().vocab;
    let (mut worst, mut sum, mut count, mut others) = (0.0f32, 0.0, 0, 0);
    for case in golden() {
        run.clear();
        let (prompt, answer) = (ids(&case["prompt_ids"]), ids(&case["answer_ids"]));
        let logits = run.feed(&[&prompt[..], &answer[..answer.len() - 1]].concat());
        let rows = logits.chunks_exact(vocab).skip(prompt.len() - 1);
        let wanted = case["logprobs"].as_array().expect("log-probabilities");
        for ((row, &id), want) in rows.zip(&answer).zip(wanted) {
            let d = (log_softmax(row)[id as usize] - want.as_f64().expect("a number") as f32).abs();
            (worst, sum, count) = (worst.max(d), sum + d, count + 1);
            others += usize::from(argmax(row) != id);
        }
    }
    assert!(count > 80, "the golden file has answers");
    (worst, sum / count as f32, others)
}

#[test]
fn trained_weights_give_transformers_answers() {
    for on in exact_backends() {
        let (worst, _, others) = measure(on);
        assert!(worst < 2e-3 && others == 0, "{on:?}: off by {worst}, {others} other tokens");
    }
    for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
        let (worst, mean, _) = measure(On::Cpu(isa));
        println!("{isa:?}: log-probabilities off by {worst} at worst, {mean} on average");
        assert!(mean < 0.05, "{isa:?}: off by {mean} on average");
    }
}

#[test]
fn its_block_for_multi_token_prediction_is_trained() {
    let mut run = Run::new(load(&file(), On::Exact(Isa::detect()), limits()));
    let (vocab, hidden, layers) =
        (run.model.config().vocab, run.model.config().hidden, run.model.config().layers);
    let (mut same, mut count) = (0, 0);
    for case in golden() {
        let (prompt, answer) = (ids(&case["prompt_ids"]), ids(&case["answer_ids"]));
        let all = [&prompt[..], &answer[..]].concat();
        run.clear();
        run.prepare(&all);
        let mut state = Vec::new();
        let batch = std::mem::take(&mut run.batch);
        let mut keep = |layer, h: &[f32]| {
            if layer == layers + 1 {
                state = h.to_vec();
            }
        };
        run.model.step_traced(&batch, &mut keep).expect("memory for a trace");
        // Row t: the trunk's state of token t with token t + 1, from which follows token t + 2.
        run.clear();
        run.prepare(&all[1..]);
        let drafts = run.model.step_mtp(&run.batch, &state[..(all.len() - 1) * hidden]);
        let drafts = drafts.expect("memory for a step").expect("the block was loaded");
        let rows = drafts.chunks_exact(vocab).skip(prompt.len() - 1);
        for (row, &id) in rows.zip(&answer[1..]) {
            same += usize::from(argmax(row) == id);
            count += 1;
        }
    }
    assert!(same * 10 > count * 6, "{same} of {count} drafts are the trunk's own tokens");
}
