//! Generation on tiny synthetic models: a reused prefix never changes an answer, and requests that
//! cannot be served are refused with the numbers.

use std::ops::ControlFlow;

use octet_compute::cpu::CpuOptions;
use octet_engine::Error;
use octet_engine::engine::{Answer, Engine, Finish, Options, Request};
use octet_engine::sampler::SamplerParams;
use octet_synth::{Mix, TINY_ARCHITECTURES, tiny};
use octet_weights::Value;

fn engine(architecture: &str) -> Engine {
    let file = tiny(architecture, Mix::Q4KM).expect("a tiny model of a known architecture");
    let cpu = CpuOptions { threads: Some(2), pin: false, ..CpuOptions::default() };
    let options = Options { context: Some(300), batch_tokens: 32, cpu, ..Options::default() };
    Engine::open(&file, &options, &mut |_, _| {}).expect("a tiny model opens")
}

fn greedy(max_tokens: usize) -> Request {
    let sampling = SamplerParams { temperature: 0.0, ..SamplerParams::default() };
    Request { max_tokens: Some(max_tokens), sampling, ..Request::default() }
}

/// `request` of this prompt, which later ones share up to `checkpoint`.
fn with(request: &Request, prompt: &[u32], checkpoint: usize) -> Request {
    Request { prompt: prompt.to_vec(), checkpoints: vec![checkpoint], ..request.clone() }
}

fn run(e: &mut Engine, prompt: &[u32], checkpoint: usize, request: &Request) -> Answer {
    let mut streamed = String::new();
    let request = with(request, prompt, checkpoint);
    let answer = e
        .generate(request, &mut |text| {
            streamed.push_str(text);
            ControlFlow::Continue(())
        })
        .expect("the request can be served");
    assert_eq!(streamed, answer.text, "what was streamed is the answer");
    answer
}

fn prompt(n: usize, salt: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + salt) % 256).collect()
}

#[test]
fn a_reused_prefix_changes_nothing() {
    for architecture in TINY_ARCHITECTURES {
        let mut warm = engine(architecture);
        let first = prompt(70, 3);
        let answer = run(&mut warm, &first, 60, &greedy(12));
        assert_eq!(answer.cached_tokens, 0);

        // the conversation goes on: all but the last generated token are in the cache
        let mut second = first.clone();
        second.extend(&answer.tokens);
        second.extend(prompt(9, 5));
        let checkpoint = second.len() - 3;
        let warm_answer = run(&mut warm, &second, checkpoint, &greedy(12));
        assert!(warm_answer.cached_tokens >= 70, "{architecture}: {}", warm_answer.cached_tokens);
        let cold = run(&mut engine(architecture), &second, 0, &greedy(12));
        assert_eq!(warm_answer.tokens, cold.tokens, "{architecture}: the conversation goes on");

        // back to the checkpoint with another ending
        let mut third = second[..checkpoint].to_vec();
        third.extend(prompt(7, 11));
        let back = run(&mut warm, &third, 0, &greedy(12));
        assert!(back.cached_tokens >= checkpoint, "{architecture}: {}", back.cached_tokens);
        let cold = run(&mut engine(architecture), &third, 0, &greedy(12));
        assert_eq!(back.tokens, cold.tokens, "{architecture}: back at the checkpoint");

        // the very same prompt again, and one that has nothing in common
        let again = run(&mut warm, &third, 0, &greedy(12));
        assert_eq!(again.tokens, cold.tokens, "{architecture}: again");
        let other = prompt(40, 90);
        let fresh = run(&mut warm, &other, 0, &greedy(5));
        assert_eq!(
            fresh.tokens,
            run(&mut engine(architecture), &other, 0, &greedy(5)).tokens,
            "{architecture}"
        );
    }
}

#[test]
fn a_prompt_cancelled_between_steps_resumes_there() {
    for architecture in ["qwen35moe", "llama"] {
        let mut e = engine(architecture);
        let p = prompt(100, 3); // four steps of up to 32 tokens
        let mut asked = 0;
        let stop_at_the_third = &mut |_: &str| {
            asked += 1;
            if asked == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let stopped =
            e.generate(with(&greedy(8), &p, 90), stop_at_the_third).expect("the request can be served");
        assert_eq!((stopped.finish, stopped.tokens.len()), (Finish::Cancelled, 0), "{architecture}");
        let answer = run(&mut e, &p, 90, &greedy(8));
        assert_eq!(answer.cached_tokens, 64, "{architecture}: the steps that were done");
        assert_eq!(answer.tokens, run(&mut engine(architecture), &p, 0, &greedy(8)).tokens, "{architecture}");
    }
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let mut e = engine("qwen35moe");
    let sampling = SamplerParams { temperature: 1.5, seed: Some(42), ..SamplerParams::default() };
    let request = Request { max_tokens: Some(20), sampling, ..Request::default() };
    let p = prompt(20, 1);
    let (a, b) = (run(&mut e, &p, 0, &request), run(&mut e, &p, 0, &request));
    assert_eq!(a.tokens, b.tokens);
    let other = Request { sampling: SamplerParams { seed: Some(43), ..request.sampling.clone() }, ..request };
    assert_ne!(a.tokens, run(&mut e, &p, 0, &other).tokens);
}

/// A request without a seed gets one, and the answer says which.
#[test]
fn an_answer_names_its_seed() {
    let mut e = engine("llama");
    let sampling = SamplerParams { temperature: 1.5, ..SamplerParams::default() };
    let request = Request { max_tokens: Some(20), sampling, ..Request::default() };
    let p = prompt(20, 1);
    let first = run(&mut e, &p, 0, &request);
    let sampling = SamplerParams { seed: Some(first.seed), ..request.sampling.clone() };
    let again = run(&mut e, &p, 0, &Request { sampling, ..request.clone() });
    assert_eq!((again.tokens, again.seed), (first.tokens, first.seed));
    assert_ne!(run(&mut e, &p, 0, &request).seed, first.seed);
}

/// A tiny model whose words begin with SentencePiece's space.
fn sentence_piece() -> octet_weights::Model {
    let mut file = tiny("llama", Mix::Q4KM).expect("a tiny model of a known architecture");
    let rows = file.info("token_embd.weight").expect("a table").shape[0];
    let word = |i: usize| match i {
        0 => ("<unk>".to_string(), 2),
        1 => ("<s>".into(), 3),
        2 => ("</s>".into(), 3),
        3..259 => (format!("<0x{:02X}>", i - 3), 6),
        _ => (format!("▁w{i}"), 1),
    };
    let (tokens, types) = (0..rows).map(word).unzip();
    let stale: Vec<String> = file.metadata.iter().map(|(k, _)| k.to_string()).collect();
    let mut metadata = octet_weights::Metadata::new("spm.gguf");
    for key in stale.iter().filter(|k| !k.starts_with("tokenizer.")) {
        metadata.insert(key, file.metadata.get(key).expect("a key that was listed").clone());
    }
    metadata.insert("tokenizer.ggml.model", Value::Str("llama".into()));
    metadata.insert("tokenizer.ggml.tokens", Value::Strs(tokens));
    metadata.insert("tokenizer.ggml.token_type", Value::Ints(types));
    metadata.insert("tokenizer.ggml.scores", Value::Floats(vec![0.0; rows]));
    metadata.insert("tokenizer.ggml.eos_token_id", Value::U64(2));
    file.metadata = metadata;
    file
}

#[test]
fn a_completion_keeps_its_first_space() {
    let cpu = CpuOptions { threads: Some(2), pin: false, ..CpuOptions::default() };
    let options = Options { context: Some(300), cpu, ..Options::default() };
    let mut e = Engine::open(&sentence_piece(), &options, &mut |_, _| {}).expect("a tiny model opens");
    let sampling = SamplerParams { temperature: 0.0, logit_bias: vec![(300, 100.0)], ..Default::default() };
    let request = Request { max_tokens: Some(2), sampling, ..Request::default() };
    assert_eq!(run(&mut e, &[1, 270], 0, &request).text, "w300 w300");
    assert_eq!(run(&mut e, &[1, 270], 0, &Request { continues: true, ..request }).text, " w300 w300");
}

#[test]
fn a_too_large_context_is_refused() {
    let file = tiny("llama", Mix::Q4KM).expect("a tiny model of a known architecture");
    for context in [(1 << 28) + 1, usize::MAX] {
        let options = Options { context: Some(context), ..Options::default() };
        let e = Engine::open(&file, &options, &mut |_, _| {}).expect_err("too long");
        assert!(matches!(e, Error::ContextTooLong { .. }) && e.to_string().contains("268435456"), "{e}");
    }
}

#[test]
fn a_stop_string_ends_the_answer_and_is_not_part_of_it() {
    let mut e = engine("llama");
    let p = prompt(20, 1);
    let whole = run(&mut e, &p, 0, &greedy(40)).text;
    let chars: Vec<char> = whole.chars().collect();
    assert!(chars.len() > 12, "the made-up model says something");
    let stop: String = chars[6..10].iter().collect();
    let at = whole.find(&stop).expect("it was cut from there");
    let stopped = run(&mut e, &p, 0, &Request { stop: vec![stop], ..greedy(40) });
    assert_eq!((stopped.text.as_str(), stopped.finish), (&whole[..at], Finish::StopString));
}

#[test]
fn scores_do_not_depend_on_how_many_are_made_at_once() {
    let text = prompt(90, 2);
    let score = |score_tokens: usize| {
        let file = tiny("qwen35", Mix::Q4KM).expect("a tiny model of a known architecture");
        let cpu = CpuOptions { threads: Some(2), pin: false, ..CpuOptions::default() };
        let options = Options { context: Some(300), score_tokens, cpu, ..Options::default() };
        let mut e = Engine::open(&file, &options, &mut |_, _| {}).expect("a tiny model opens");
        e.score(&text, &mut |_| {}).expect("a text that fits")
    };
    let one = score(1);
    assert_eq!(one.len(), 89);
    assert!(one.iter().all(|x| *x > 0.0));
    assert_eq!(one, score(64));
}

#[test]
fn the_caller_can_end_an_answer() {
    let mut e = engine("qwen3");
    let mut calls = 0; // one before the prompt's only step, then one a token
    let answer = e.generate(with(&greedy(50), &prompt(10, 1), 0), &mut |_| {
        calls += 1;
        if calls == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let answer = answer.expect("the request can be served");
    assert_eq!((answer.finish, answer.tokens.len()), (Finish::Cancelled, 3));
}

#[test]
fn requests_that_can_not_be_served_are_refused() {
    let mut e = engine("qwen35");
    let mut refuse = |p: &[u32], r: &Request| {
        e.generate(with(r, p, 0), &mut |_| ControlFlow::Continue(()))
            .expect_err("it cannot be served")
            .to_string()
    };
    assert!(refuse(&[], &greedy(1)).contains("no tokens"));
    assert!(refuse(&[1, 1_000_000], &greedy(1)).contains("1000000"));
    let long = refuse(&prompt(400, 1), &greedy(1));
    assert!(long.contains("400") && long.contains("300"), "{long}");
    let sampling = SamplerParams { top_p: 7.0, ..SamplerParams::default() };
    assert!(refuse(&[1], &Request { sampling, ..greedy(1) }).contains("top_p"));
    // and the engine keeps working
    assert_eq!(run(&mut e, &prompt(5, 1), 0, &greedy(3)).tokens.len(), 3);
    assert!(matches!(
        e.generate(with(&greedy(50), &prompt(299, 1), 0), &mut |_| ControlFlow::Continue(())),
        Ok(Answer { finish: Finish::Length | Finish::EndOfText, .. })
    ));
    assert!(matches!(
        e.generate(with(&greedy(50), &prompt(300, 1), 0), &mut |_| ControlFlow::Continue(())),
        Err(Error::ContextFull { .. })
    ));
}
