//! `octet bench --speculative` and `-f`: measures answers with and without guesses, alternately, on the same loaded model.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use octet_engine::engine::speculation::{self, Mode};
use octet_engine::engine::{Answer, Engine, Options, Request};
use octet_engine::report::Report;
use octet_engine::sampler::SamplerParams;
use octet_engine::template::ChatTemplate;
use octet_engine::tokenizer::{Special, Tokenizer};
use serde_json::{Value, json};

use super::Output;
use crate::args::{KernelArgs, KvArgs, MemoryArgs};
use crate::chat::{Conversation, read_or_stdin};
use crate::progress::Bar;
use crate::usage_error::Usage;

/// What to measure, from the flags of `octet bench`.
pub struct Work<'a> {
    pub file: Option<&'a Path>,
    pub speculation: speculation::Options,
    /// Lengths of synthetic prompts, if there is no file.
    pub n_prompt: &'a [usize],
    /// Maximum number of answer tokens.
    pub n_gen: usize,
    pub repetitions: usize,
    pub warmup: bool,
    pub threads: Option<usize>,
    pub kernels: &'a KernelArgs,
    pub kv: &'a KvArgs,
    pub memory: &'a MemoryArgs,
    pub output: Output,
}

/// A prompt and its name in the table.
struct Prompt {
    name: String,
    ids: Vec<u32>,
    /// The answer ends where the model ends it; answers to synthetic prompts do not.
    ends: bool,
}

/// The measurements of one prompt: tokens per second of each run.
struct Row {
    name: String,
    tokens: usize,
    without: Vec<f64>,
    with: Vec<f64>,
    drafted: usize,
    accepted: usize,
    generated: usize,
}

impl Row {
    fn ratio(&self) -> f64 {
        median(&self.with) / median(&self.without)
    }
    /// Tokens per step with guesses.
    fn per_step(&self) -> f64 {
        self.generated as f64 / (self.generated - self.accepted).max(1) as f64
    }
    fn taken(&self) -> Option<f64> {
        (self.drafted > 0).then(|| self.accepted as f64 / self.drafted as f64)
    }
    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "prompt_tokens": self.tokens,
            "without_tps": self.without,
            "with_tps": self.with,
            "ratio": self.ratio(),
            "tokens_per_step": self.per_step(),
            "drafted": self.drafted,
            "accepted": self.accepted,
        })
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

pub fn run(work: &Work, model: &octet_weights::Model) -> anyhow::Result<()> {
    if work.speculation.mode == Mode::Off {
        return Err(Usage(
            "--speculative off leaves nothing to compare: give auto, mtp, lookup or draft=MODEL".into(),
        )
        .into());
    }
    let tokenizer = Tokenizer::from_metadata(&model.metadata)?;
    let prompts = match work.file {
        Some(path) => read(path, model, &tokenizer)?,
        None => made_up(work.n_prompt, tokenizer.vocab_len()),
    };
    let longest = prompts.iter().map(|p| p.ids.len()).max().unwrap_or(0);
    anyhow::ensure!(longest > 0, "there is no prompt to answer");
    let context = longest + work.n_gen + 1;
    let mut options = Options {
        context: Some(context),
        kv: work.kv.kv(),
        cpu: work.kernels.options(work.threads),
        speculation: work.speculation.clone(),
        ..Options::default()
    };
    if !work.memory.no_memory_check {
        let report = Report::new(model)?;
        crate::memory::shrink(&report, &mut options, crate::memory::available(), true)?;
        let bill = crate::memory::needed(&report, &options)?;
        crate::memory::check(&report, &[bill], context, "shorter prompts, or a smaller -n")?;
    }
    let bar = Bar::bytes("loading");
    let mut engine = Engine::open(model, &options, &mut |done, all| bar.update(done, all))?;
    drop(bar);
    let rows = measure(work, &prompts, &mut engine)?;
    anyhow::ensure!(!rows.is_empty(), "no answer has two tokens or more, so there is no speed");
    write(work.output, &rows, &engine)
}

/// Answers each prompt with and without guesses, alternately.
fn measure(work: &Work, prompts: &[Prompt], engine: &mut Engine) -> anyhow::Result<Vec<Row>> {
    let mut bar = Bar::steps("");
    let runs = work.repetitions + usize::from(work.warmup);
    let mut rows = Vec::new();
    for (i, prompt) in prompts.iter().enumerate() {
        bar.set_message(prompt.name.clone());
        let mut row = Row {
            name: prompt.name.clone(),
            tokens: prompt.ids.len(),
            without: Vec::new(),
            with: Vec::new(),
            drafted: 0,
            accepted: 0,
            generated: 0,
        };
        for repetition in 0..runs {
            let counts = !work.warmup || repetition > 0;
            let without = answer(engine, prompt, work.n_gen, false)?;
            let with = answer(engine, prompt, work.n_gen, true)?;
            anyhow::ensure!(
                with.tokens == without.tokens,
                "{}: guesses changed the answer: this is a bug",
                prompt.name
            );
            if counts && with.tokens.len() > 1 {
                let rate = |a: &Answer| (a.tokens.len() - 1) as f64 / a.generate_time.as_secs_f64().max(1e-9);
                row.without.push(rate(&without));
                row.with.push(rate(&with));
                row.drafted += with.drafted;
                row.accepted += with.accepted;
                row.generated += with.tokens.len() - 1;
            }
            bar.update((i * runs + repetition + 1) as u64, (prompts.len() * runs) as u64);
        }
        if !row.with.is_empty() {
            rows.push(row);
        }
    }
    Ok(rows)
}

fn answer(engine: &mut Engine, prompt: &Prompt, n: usize, guesses: bool) -> anyhow::Result<Answer> {
    engine.set_guessing(guesses);
    let request = Request {
        prompt: prompt.ids.clone(),
        max_tokens: Some(n),
        sampling: SamplerParams::greedy(),
        ignore_eos: !prompt.ends,
        cache: false,
        ..Request::default()
    };
    Ok(engine.generate(request, &mut |_| ControlFlow::Continue(()))?)
}

/// Reads prompts from a file: one JSON object per line, with `messages` or a `prompt`, and optionally a `name`.
fn read(path: &Path, model: &octet_weights::Model, tokenizer: &Tokenizer) -> anyhow::Result<Vec<Prompt>> {
    let text = read_or_stdin(path)?;
    let mut prompts = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let place = || format!("{}:{}", path.display(), i + 1);
        let value: Value = serde_json::from_str(line).with_context(place)?;
        let ids = match value["prompt"].as_str() {
            Some(prompt) => {
                let mut ids = tokenizer.prefix().to_vec();
                ids.extend(tokenizer.encode(prompt, Special::Text).with_context(place)?);
                ids
            }
            None => {
                let template = ChatTemplate::from_metadata(&model.metadata, tokenizer)?;
                let chat = Conversation::load(value.clone()).with_context(place)?;
                tokenizer.encode_prompt(&template.render(&chat.input(true)).with_context(place)?)?
            }
        };
        let name = value["name"].as_str().map_or_else(|| format!("line {}", i + 1), String::from);
        prompts.push(Prompt { name, ids, ends: true });
    }
    Ok(prompts)
}

/// Synthetic prompts of these lengths.
fn made_up(lengths: &[usize], vocab: usize) -> Vec<Prompt> {
    let ids =
        |n: usize| (0..n as u64).map(|i| ((i * 7919 + i * i % 613) % vocab.max(1) as u64) as u32).collect();
    let lengths = lengths.iter().filter(|n| **n > 0);
    lengths.map(|&n| Prompt { name: format!("prompt of {n}"), ids: ids(n), ends: false }).collect()
}

/// The measured costs of guesses, and what they imply.
fn costs(c: &speculation::Costs) -> String {
    let ms = |t: Duration| format!("{:.2}", 1e3 * t.as_secs_f64());
    let steps: Vec<String> = c.steps.iter().map(|(n, t)| format!("{n}: {}", ms(*t))).collect();
    let mut text = format!("steps by their tokens, ms: {}", steps.join(", "));
    if c.drafts {
        text += &format!("; a draft {}", ms(c.draft));
    }
    if c.has_mtp {
        text += &format!("; the block's keys and values {}", ms(c.fill));
        if !c.drafts {
            text +=
                &format!("; a draft would take {}: the block cannot pay here and is not used", ms(c.draft));
        }
    }
    text
}

fn write(output: Output, rows: &[Row], engine: &Engine) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match output {
        Output::Md => markdown(&mut out, rows, engine)?,
        Output::Csv => {
            writeln!(out, "name,prompt_tokens,without_tps,with_tps,ratio,tokens_per_step,drafted,accepted")?;
            for r in rows {
                let name = r.name.replace('"', "'");
                let (a, b) = (median(&r.without), median(&r.with));
                let (ratio, step) = (r.ratio(), r.per_step());
                writeln!(out, "\"{name}\",{},{a},{b},{ratio},{step},{},{}", r.tokens, r.drafted, r.accepted)?;
            }
        }
        Output::Jsonl => rows.iter().try_for_each(|r| writeln!(out, "{}", r.json()))?,
        Output::Json => {
            let rows: Vec<Value> = rows.iter().map(Row::json).collect();
            writeln!(out, "{:#}", json!({"rows": rows, "accepted_at": accepted_at(engine)}))?;
        }
    }
    Ok(out.flush()?)
}

/// By position: the share of drafts of which the guess there was accepted.
fn accepted_at(engine: &Engine) -> Vec<f64> {
    let stats = engine.stats().speculation;
    (0..speculation::POSITIONS)
        .map(|i| stats.accepted_at[i])
        .take_while(|n| *n > 0)
        .map(|n| n as f64 / stats.drafts.max(1) as f64)
        .collect()
}

fn markdown(out: &mut impl Write, rows: &[Row], engine: &Engine) -> anyhow::Result<()> {
    writeln!(out, "| prompt | tokens | without, t/s | with, t/s | ratio | tokens a step | guesses taken |")?;
    writeln!(out, "|---|---:|---:|---:|---:|---:|---:|")?;
    for r in rows {
        let taken = r.taken().map_or("-".into(), |t| format!("{:.0}%", 100.0 * t));
        writeln!(
            out,
            "| {} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {taken} |",
            r.name,
            r.tokens,
            median(&r.without),
            median(&r.with),
            r.ratio(),
            r.per_step(),
        )?;
    }
    let ratios: Vec<f64> = rows.iter().map(Row::ratio).collect();
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    writeln!(
        out,
        "\nratio: median {:.2}, least {least:.2}; medians of each prompt's runs, in turn",
        median(&ratios)
    )?;
    let shares: Vec<String> = accepted_at(engine).iter().map(|s| format!("{:.0}%", 100.0 * s)).collect();
    if !shares.is_empty() {
        writeln!(out, "steps whose 1st, 2nd, .. guess was taken: {}", shares.join(" "))?;
    }
    Ok(writeln!(out, "{}", costs(&engine.guess_costs()))?)
}
