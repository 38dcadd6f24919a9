//! A real model, SmolLM2-135M in Q4_1: perplexity and teacher-forced log-probabilities against transformers' numbers for
//! the dequantised weights, and llama.cpp's tokens as the path that is forced.

use crate::common::{On, Run, argmax, load, log_softmax};
use octet_compute::cpu::isa::Isa;
use octet_engine::models::Limits;
use serde_json::Value;

struct Case {
    reference: Value,
    llamacpp: Value,
    file: octet_weights::Model,
}

fn case() -> Option<Case> {
    let json = |name: &str| {
        let path = octet_testkit::shared(name)?;
        let text = std::fs::read_to_string(path).expect("a golden file can be read");
        Some(serde_json::from_str(&text).expect("a golden file is JSON"))
    };
    Some(Case {
        reference: json("golden/smollm2/hf_dequant_f32.json")?,
        llamacpp: json("golden/smollm2/llamacpp_q4_1.json")?,
        file: octet_weights::Model::open(&octet_testkit::model("smollm2")?).expect("the model opens"),
    })
}

fn ids(v: &Value) -> Vec<u32> {
    v.as_array().expect("ids").iter().map(|x| x.as_u64().expect("an id") as u32).collect()
}

fn run(case: &Case, on: On, tokens: usize) -> Run {
    let limits = Limits { slots: 2, batch_tokens: tokens, batch_outputs: tokens, ..Limits::single(512) };
    Run::new(load(&case.file, on, limits))
}

fn perplexity(case: &Case, on: On) -> f64 {
    let mut run = run(case, on, 512);
    let vocab = run.model.config().vocab;
    let tokens = ids(&case.reference["perplexity"]["ids"]);
    let logits = run.feed(&tokens);
    let rows = logits.chunks_exact(vocab).zip(&tokens[1..]);
    let nll: f64 = rows.map(|(l, &next)| -f64::from(log_softmax(l)[next as usize])).sum();
    (nll / (tokens.len() - 1) as f64).exp()
}

/// Transformers' likeliest tokens with their log-probabilities, the token that follows, and the logits of each run.
type Step<'a> = dyn FnMut(&[(u32, f64)], u32, &[Vec<f32>]) + 'a;

/// Calls `step` along llama.cpp's answers to the first `prompts` prompts.
fn forced(case: &Case, prompts: usize, runs: &mut [Run], step: &mut Step) {
    let (wanted, answers) = (&case.reference["prompts"], &case.llamacpp);
    let [wanted, answers] = [wanted, answers].map(|v| v.as_array().expect("prompts"));
    for (want, forced) in wanted.iter().zip(answers).take(prompts) {
        let prompt = ids(&want["prompt_ids"]);
        let mut last: Vec<Vec<f32>> = Vec::new();
        for run in &mut *runs {
            run.clear();
            let logits = run.feed(&prompt);
            last.push(logits[logits.len() - run.model.config().vocab..].to_vec());
        }
        let steps = want["teacher_forced_top10"].as_array().expect("steps");
        for (top, id) in steps.iter().zip(ids(&forced["completion_ids"])) {
            let pair = |p: &Value| (p[0].as_u64().expect("an id") as u32, p[1].as_f64().expect("logprob"));
            let top: Vec<_> = top.as_array().expect("pairs").iter().map(pair).collect();
            step(&top, id, &last);
            last = runs.iter_mut().map(|run| run.feed(&[id])).collect();
        }
    }
}

/// How far 8-bit activations may move the log-probability of a forced token of this model (at most; see the test below).
const WORST: f64 = 0.42;

/// Worst and mean difference of the forced tokens' log-probabilities from transformers'.
#[derive(Default)]
struct Off {
    worst: f64,
    sum: f64,
    count: u32,
}

impl Off {
    fn add(&mut self, top: &[(u32, f64)], id: u32, logits: &[f32]) {
        // the forced token is nearly always among the ten that the file has
        if let Some((_, want)) = top.iter().find(|(t, _)| *t == id) {
            let d = (f64::from(log_softmax(logits)[id as usize]) - want).abs();
            (self.worst, self.sum, self.count) = (self.worst.max(d), self.sum + d, self.count + 1);
        }
    }
    fn mean(&self) -> f64 {
        assert!(self.count > 60, "the golden file has steps");
        self.sum / f64::from(self.count)
    }
}

#[test]
fn agrees_with_transformers() {
    let Some(case) = case() else { return };
    let want = case.reference["perplexity"]["ppl"].as_f64().expect("a perplexity");
    // Dequantised weights with f32 activations are the reference's own arithmetic, but for f16 keys and values. With 8-bit
    // activations llama.cpp gets a perplexity of 23.330 here, and is off by 0.186 at worst and 0.037 on average. The
    // perplexity of so short a text moves by half a percent with nothing but the order of a sum. The worst of so few tokens
    // depends on the instruction set more than the average does: 0.349 and 0.036 with portable code, 0.397 and 0.038 with AVX2
    // and with AVX-VNNI, whose f32 arithmetic is AVX2's.
    let exact = (On::Exact(Isa::detect()), 0.0005, 0.02, 0.002);
    let isas = Isa::ALL.into_iter().filter(|i| i.available());
    let worst = |isa| if matches!(isa, Isa::Avx2 | Isa::AvxVnni) { WORST } else { 0.35 };
    let quantised = isas.map(|isa| (On::Cpu(isa), 0.015, worst(isa), 0.05));
    for (on, share, worst, mean) in std::iter::once(exact).chain(quantised) {
        // Portable code is slow: three answers, and no perplexity.
        let is_slow = matches!(on, On::Cpu(Isa::Portable));
        if !is_slow {
            let got = perplexity(&case, on);
            println!("{on:?}: perplexity {got:.4} (reference {want:.4})");
            assert!((got / want - 1.0).abs() <= share, "{on:?}: perplexity {got}, reference {want}");
        }
        let mut off = Off::default();
        let prompts = if is_slow { 3 } else { usize::MAX };
        forced(&case, prompts, &mut [run(&case, on, 64)], &mut |top, id, logits| {
            off.add(top, id, &logits[0])
        });
        let (got_worst, got_mean) = (off.worst, off.mean());
        println!("{on:?}: log-probabilities off by {got_worst:.4} at worst, {got_mean:.4} on average");
        assert!(
            got_worst <= worst && got_mean <= mean,
            "{on:?}: log-probabilities off by {got_worst}, {got_mean}"
        );
    }
}

/// A graphics device with f32 weights gives transformers' log-probabilities, and its tokens but for ties. With 8-bit activations it is as
/// near to them as the processor is. In free text one near tie is enough to part two devices for good.
#[test]
fn a_graphics_device_agrees_with_transformers() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let Some(case) = case() else { return };
    let mut exact = Off::default();
    // one answer: in software f32 weights are slow
    forced(&case, 1, &mut [run(&case, On::ExactVulkan(index), 64)], &mut |top, id, logits| {
        exact.add(top, id, &logits[0]);
        let (got, lead) = (argmax(&logits[0]), top[0].1 - top[1].1);
        assert!(got == top[0].0 || lead < 0.02, "{got}, and transformers has {:?}", &top[..2]);
    });
    println!("f32: off by {:.4} at worst of {}", exact.worst, exact.count);
    assert!(exact.count > 25 && exact.worst <= 0.02, "in f32 log-probabilities are off by {}", exact.worst);

    let all = [On::Cpu(Isa::detect()), On::Vulkan(index)];
    let mut runs = all.map(|on| run(&case, on, 64));
    let mut off = all.map(|_| Off::default());
    let (mut steps, mut same) = (0, 0);
    // two answers: in software a token takes a second
    forced(&case, 2, &mut runs, &mut |top, id, logits| {
        off.iter_mut().zip(logits).for_each(|(off, logits)| off.add(top, id, logits));
        steps += 1;
        let (processors, devices) = (argmax(&logits[0]), argmax(&logits[1]));
        same += usize::from(processors == devices);
        // each of the two may be off by WORST, so tokens whose distance is up to twice that may change places
        let lead = logits[0][processors as usize] - logits[0][devices as usize];
        assert!(
            f64::from(lead) <= 2.0 * WORST,
            "step {steps}: {devices}, and the processor has {processors} by {lead}"
        );
    });
    let [cpu, vulkan] = off.each_ref().map(|o| (o.worst, o.mean()));
    println!("{same} of {steps} tokens are the processor's; processor {cpu:?}, device {vulkan:?}");
    assert!(vulkan.0 <= WORST && vulkan.1 <= 0.05, "log-probabilities are off by {vulkan:?}");
    // Along all five answers with AVX2 123 of 130: of the seven, the device has transformers' token in three, the processor in four.
    assert!(same * 10 >= steps * 9, "{same} of {steps} tokens");
}
