//! `octet eval`: asks models the tasks of a suite, several times each, and counts how often they are right. Start here.
//!
//! A model of this machine is served to this process only, and asked as any other server is.

mod check;
mod code;
pub mod confine;
mod needle;
mod parse;
mod report;
mod stats;
mod suite;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::{Map, Value};
use url::Url;

use crate::args::EngineArgs;
use crate::endpoint::client::{self, Endpoint, Timeouts};
use crate::endpoint::{Object, for_each, object};
use crate::numbers::{positive, whole};
use crate::progress::Bar;
use crate::serve::local::Local;
use crate::settings::{Settings, secret};
use crate::stderr::note;
use crate::usage_error::Usage;
use check::Verdict;
use code::Python;
use report::{Row, Run, Side};
use suite::{Check, Question, Suite, Task};

const EXAMPLES: &str = "\
Examples:
  octet eval qwen3.6:35b-a3b                               the built-in suite
  octet eval q4_k_m.gguf iq3_xxs.gguf --allow-code         two models side by side
  octet eval model.gguf --url http://127.0.0.1:9090/v1     a model and a server
  octet eval model.gguf --suite tasks.toml --task needle   tasks of your own

Tasks of code run what the model has written: only with --allow-code, in a process without network,
other processes and files to write, with limits of time and memory. docs/benchmarking.md says what
that does not protect.";

/// Asks models the tasks of a suite, and counts how often they are right.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct EvalArgs {
    /// One or two models. Default: fox, the tiny built-in model.
    #[arg(value_name = "MODEL")]
    models: Vec<String>,
    /// An OpenAI-compatible server: http://HOST:PORT/v1. Models and servers together are at most two.
    #[arg(long, value_name = "URL", value_parser = client::base, help_heading = "Servers")]
    url: Vec<Url>,
    /// The model to request of the server (default: the first one listed; 'A,B' for one per server).
    #[arg(short, long, value_name = "NAME", requires = "url", help_heading = "Servers")]
    model: Option<String>,
    /// Environment variable with the API key; 'A,B' for one per server.
    #[arg(long, value_name = "NAME", requires = "url", help_heading = "Servers")]
    api_key_env: Option<String>,
    /// Timeout for a complete answer in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = positive, help_heading = "Servers")]
    request_timeout: usize,
    /// Connection timeout in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = positive, help_heading = "Servers")]
    connect_timeout: usize,
    /// The suite: 'gauntlet', or a file.
    #[arg(long, value_name = "NAME|FILE", default_value = suite::GAUNTLET_NAME)]
    suite: String,
    /// Only tasks whose names begin so. Can be repeated.
    #[arg(long, value_name = "NAME")]
    task: Vec<String>,
    /// How often each task is asked, each time with another seed.
    #[arg(short, long, value_name = "N", default_value = "5", value_parser = positive)]
    repetitions: usize,
    /// The first seed.
    #[arg(long, value_name = "N", default_value = "1", value_parser = whole::<u32>)]
    first_seed: u32,
    /// Most tokens of an answer, reasoning included, for tasks that set no limit.
    #[arg(long, value_name = "N", default_value = "8192", value_parser = positive)]
    max_tokens: usize,
    /// Request fields to add, or with null to remove: '{"temperature": 0}'.
    #[arg(long, value_name = "JSON", value_parser = object)]
    extra_body: Option<Object>,
    /// Run code that the models write, in a confined process. Default: tasks of code are not run.
    #[arg(long)]
    allow_code: bool,
    /// Print JSON, with all answers.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// What is asked, and how.
struct Asked<'a> {
    tasks: Vec<&'a Task>,
    repetitions: usize,
    seed: u64,
    max_tokens: usize,
    extra: Map<String, Value>,
    /// What runs code, or why none does.
    python: Result<Python, String>,
}

pub fn run(args: &EvalArgs, settings: &Settings) -> anyhow::Result<()> {
    let suite = Suite::open(&args.suite)?;
    let mut models = args.models.clone();
    if models.is_empty() && args.url.is_empty() {
        models.push(settings.default_model());
    }
    if models.len() + args.url.len() > 2 {
        return Err(Usage("at most two models or servers can be compared".into()).into());
    }
    models.iter().try_for_each(|name| crate::model::check(name))?;
    let tasks = suite.tasks(&args.task)?;
    let asked = Asked {
        python: python(args, &tasks)?,
        tasks,
        repetitions: args.repetitions,
        seed: args.first_seed.into(),
        max_tokens: args.max_tokens,
        extra: args.extra_body.as_ref().map(|o| o.0.clone()).unwrap_or_default(),
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    let mut sides = Vec::new();
    for name in &models {
        // One after the other: two may not fit into memory together.
        let local = Local::start(name, &args.engine, args.request_timeout as u64, settings)?;
        let endpoint = Endpoint::new(local.url.clone(), None, Some(local.key.clone()), args.timeouts());
        let endpoint = Arc::new(runtime.block_on(endpoint)?);
        sides.push(runtime.block_on(side(name.clone(), &endpoint, &asked))?);
    }
    let of_models = for_each(args.model.as_deref(), args.url.len(), "--model")?;
    let keys = for_each(args.api_key_env.as_deref(), args.url.len(), "--api-key-env")?;
    for ((url, model), key) in args.url.iter().zip(of_models).zip(keys) {
        let key = key.map(|name| secret(&name)).transpose()?;
        let endpoint = Arc::new(runtime.block_on(Endpoint::new(url.clone(), model, key, args.timeouts()))?);
        sides.push(runtime.block_on(side(url.to_string(), &endpoint, &asked))?);
    }
    let mut out = std::io::stdout().lock();
    match args.json {
        true => writeln!(out, "{}", report::json(&suite.name, asked.seed, asked.repetitions, &sides))?,
        false => report::table(&mut out, &sides)?,
    }
    out.flush()?;
    for side in &sides {
        let answered = side.rows.iter().flat_map(|r| &r.runs).any(|r| r.answer.is_some());
        ensure!(answered || side.all_left_out(), "{}: no question was answered", side.name);
    }
    Ok(())
}

impl EvalArgs {
    fn timeouts(&self) -> Timeouts {
        let seconds = |n| Duration::from_secs(n as u64);
        Timeouts { connect: seconds(self.connect_timeout), request: seconds(self.request_timeout) }
    }
}

/// What runs code, or why none does.
fn python(args: &EvalArgs, tasks: &[&Task]) -> anyhow::Result<Result<Python, String>> {
    let mut has_code = false;
    for task in tasks {
        has_code |= matches!(task.question(0, 0)?.check, Check::Python(_));
    }
    if !has_code {
        return Ok(Err("no task has code".into()));
    }
    if !args.allow_code {
        return Ok(Err("code that a model wrote is run with --allow-code only".into()));
    }
    let found = Python::find().map_err(|e| format!("{e:#}"));
    if let Err(why) = &found {
        note!("note: {why}; tasks of code are not run");
    }
    Ok(found)
}

/// Asks one model everything.
async fn side(name: String, endpoint: &Arc<Endpoint>, asked: &Asked<'_>) -> anyhow::Result<Side> {
    let mut bar = Bar::steps("");
    let all = (asked.tasks.len() * asked.repetitions) as u64;
    let mut rows = Vec::new();
    for (t, task) in asked.tasks.iter().enumerate() {
        bar.set_message(format!("{name}: {}", task.name));
        let mut runs = Vec::new();
        for repetition in 0..asked.repetitions {
            bar.update((t * asked.repetitions + repetition) as u64, all);
            runs.push(ask(endpoint, task, repetition, asked).await?);
        }
        rows.push(Row { task: task.name.clone(), runs });
    }
    Ok(Side { name, model: endpoint.model.clone(), rows })
}

/// Asks once, and judges the answer.
async fn ask(
    endpoint: &Arc<Endpoint>,
    task: &Task,
    repetition: usize,
    asked: &Asked<'_>,
) -> anyhow::Result<Run> {
    let seed = asked.seed + repetition as u64;
    let question = task.question(repetition, asked.seed)?;
    if let (Check::Python(_), Err(why)) = (&question.check, &asked.python) {
        return Ok(Run { seed, verdict: Verdict::NotRun(why.clone()), answer: None, is_left_out: true });
    }
    let answer = match endpoint.clone().ask(request(&endpoint.model, &question, seed, asked)).await {
        Ok(answer) => answer,
        Err(why) => {
            return Ok(Run { seed, verdict: Verdict::NotRun(why.0), answer: None, is_left_out: false });
        }
    };
    let verdict = match (&question.check, &asked.python) {
        (Check::Python(tests), Ok(python)) => python.judge(tests, &answer.said.content)?,
        (check, _) => check::judge(check, question.tools.as_ref(), &answer.said)?,
    };
    let verdict = match verdict {
        Verdict::Failed(why) if answer.is_cut_off => {
            Verdict::Failed(format!("cut off by the limit of tokens; {why}"))
        }
        verdict => verdict,
    };
    Ok(Run { seed, verdict, answer: Some(answer), is_left_out: false })
}

fn request(model: &str, question: &Question, seed: u64, asked: &Asked) -> String {
    let mut body = question.request();
    let mut put = |key: &str, value: Value| drop(body.insert(key.into(), value));
    put("model", model.into());
    put("max_tokens", question.max_tokens.unwrap_or(asked.max_tokens as u64).into());
    put("seed", seed.into());
    put("stream", true.into());
    put("stream_options", serde_json::json!({"include_usage": true}));
    for (key, value) in &asked.extra {
        put(key, value.clone());
    }
    body.retain(|_, v| !v.is_null());
    Value::Object(body).to_string()
}
