//! `octet serve`: one model or several, for clients of OpenAI's, Anthropic's and Ollama's APIs.

mod args;
mod bill;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use clap::Args;
use octet_engine::engine::{DiskOptions, Options as EngineOptions};
use octet_engine::report::Report;
use octet_engine::scheduler;
use octet_hub::Reference;
use octet_serve::{Keys, Memory, ModelSpec, Options, Reserved, Server, Stage};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

use crate::Usage;
use crate::config::{EngineArgs, Settings};
use crate::model::{locate, open, reference};
use crate::stderr::{Log, note};
pub use args::ServerArgs;
use bill::Bill;

const EXAMPLES: &str = "\
Examples:
  octet serve smollm2:135m                                one model, at http://127.0.0.1:8080/v1
  octet serve qwen3.6:35b-a3b --alias local -np 8 --cache-disk ~/.cache/octet/kv
  octet serve coder=qwen3.6:35b-a3b small=smollm2:135m --keep-alive 10m
                                                          two, each loaded when it is first asked for
  curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"model\": \"smollm2:135m\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'

A chat for the browser is at the address itself; docs/serving.md and docs/agents.md say more.
Ctrl-C finishes what was accepted and ends; a second one ends at once.";

/// Serves models to clients of OpenAI's, Anthropic's and Ollama's APIs.
#[derive(Debug, Args)]
#[command(visible_alias = "server", after_help = EXAMPLES)]
pub struct ServeArgs {
    /// Models, each as MODEL or NAME=MODEL: short name, hf:user/repo:QUANT, address, GGUF file, or Hugging Face
    /// directory.
    #[arg(value_name = "MODEL")]
    positional: Vec<String>,
    /// The same as MODEL.
    #[arg(short = 'm', long = "model", value_name = "MODEL", help_heading = "Models")]
    flag: Vec<String>,
    /// A model on Hugging Face: user/repo:QUANT. Also -hf.
    #[arg(long = "hf", alias = "hf-repo", value_name = "REPO", help_heading = "Models")]
    hf: Vec<String>,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Say more: why prompts were not found in the cache, what happens to connections. (RUST_LOG says which.)
    #[arg(short, long)]
    verbose: bool,
}

/// Tokens of a prompt that are scored at once (`echo` with `logprobs`): each costs a row of logits.
const SCORE_TOKENS: usize = 32;
/// Threads that serve connections: they only move bytes.
const SERVING_THREADS: usize = 2;
/// Threads for templates, tokenizers and grammars.
const BLOCKING_THREADS: usize = 16;

pub fn run(args: &ServeArgs, settings: &Settings) -> anyhow::Result<()> {
    log(args.verbose, settings)?;
    if let Some(dir) = &args.server.cache_disk {
        check_folder(dir)?;
    }
    let keys = args.server.keys()?;
    let address = SocketAddr::new(args.server.host, args.server.port);
    // Before anything is fetched or counted.
    let reserved = Reserved::new(address).map_err(anyhow::Error::from_boxed)?;
    let options = options(args, settings, keys)?;
    let open = !args.server.host.is_loopback() && options.keys.is_empty();
    let single = options.models.len() == 1;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(SERVING_THREADS)
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()?;
    let served = runtime.block_on(async {
        let server = Server::listen(reserved, options).map_err(anyhow::Error::from_boxed)?;
        let mut stage = signals()?;
        if single && !server.preload(&mut stage).await.map_err(anyhow::Error::from_boxed)? {
            note!("ended before the model was loaded");
            return Ok(());
        }
        let address = server.address()?;
        note!("\nlistening at http://{address}    OpenAI: /v1    Anthropic, Ollama: /    chat: / in a browser");
        if open {
            note!(
                "WARNING: everybody who can reach this machine's address {} can use the server; give an --api-key",
                address.ip()
            );
        }
        server.run(stage).await;
        note!("ended");
        Ok(())
    });
    // A model that is still being loaded, or a prompt that is tokenized, is nobody's any more: not worth waiting for.
    runtime.shutdown_background();
    served
}

fn log(verbose: bool, settings: &Settings) -> anyhow::Result<()> {
    let filter = match &settings.log {
        Some(filter) => EnvFilter::try_new(filter).map_err(|e| Usage(format!("RUST_LOG: {e}")))?,
        None => EnvFilter::new(if verbose { "info,octet_serve=debug,octet_engine=debug" } else { "info" }),
    };
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Log);
    let subscriber = subscriber.log_internal_errors(false).with_target(false);
    let subscriber = subscriber.with_ansi(std::io::stderr().is_terminal());
    subscriber.compact().try_init().map_err(anyhow::Error::from_boxed)
}

/// Watches for Ctrl-C and SIGTERM: the first one drains, the second stops.
fn signals() -> anyhow::Result<watch::Receiver<Stage>> {
    let (tell, stage) = watch::channel(Stage::Run);
    #[cfg(unix)]
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::spawn(async move {
        for next in [Stage::Drain, Stage::Stop] {
            #[cfg(unix)]
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            #[cfg(not(unix))]
            let _ = tokio::signal::ctrl_c().await;
            if tell.send(next).is_err() {
                return;
            }
        }
        // A third one has nothing more to say; the sender stays until the server has ended.
        tell.closed().await;
    });
    Ok(stage)
}

fn options(args: &ServeArgs, settings: &Settings, keys: Keys) -> anyhow::Result<Options> {
    let s = &args.server;
    let models = models(args, settings)?;
    let mut options = Options {
        memory: Memory {
            free: if args.engine.memory.no_memory_check {
                Arc::new(|| None)
            } else {
                Arc::new(crate::memory::available)
            },
            limit: s.memory_limit,
        },
        load_queue: s.load_queue,
        keys,
        cors_origins: s.cors_origin.clone(),
        body_bytes_max: usize::try_from(s.max_body).unwrap_or(usize::MAX),
        timeout: s.timeout(),
        reasoning: s.reasoning_format,
        connections_max: s.max_connections,
        ..Options::new(Vec::new())
    };
    options.models = models;
    Ok(options)
}

fn models(args: &ServeArgs, settings: &Settings) -> anyhow::Result<Vec<ModelSpec>> {
    let hf = args.hf.iter().map(|h| format!("hf:{}", h.trim_start_matches("hf:")));
    let mut given: Vec<String> = args.positional.iter().chain(&args.flag).cloned().chain(hf).collect();
    if given.is_empty() {
        given.extend(settings.model.clone());
    }
    if given.is_empty() {
        let what =
            "no model is named; give a file or a name (`octet list` shows those here), or set OCTET_MODEL";
        return Err(Usage(what.into()).into());
    }
    let of = given.len();
    let mut models = Vec::with_capacity(of);
    for (i, given) in given.iter().enumerate() {
        models.push(model((i, of), given, args, settings)?);
    }
    Ok(models)
}

/// The cache makes a folder that is not there.
fn check_folder(dir: &Path) -> anyhow::Result<()> {
    // A link that leads nowhere is no place for one either.
    if dir.symlink_metadata().is_ok() && !dir.is_dir() {
        let what = format!(
            "--cache-disk {}: is not a folder; name one, or a place where one can be made",
            dir.display()
        );
        return Err(Usage(what).into());
    }
    Ok(())
}

/// `NAME=MODEL`, unless all of it is a file.
fn split_name(given: &str) -> (Option<&str>, &str) {
    match given.split_once('=') {
        Some((name, model))
            if !name.is_empty() && !name.contains(['/', '\\', '.']) && !Path::new(given).exists() =>
        {
            (Some(name), model)
        }
        _ => (None, given),
    }
}

/// What clients call a model for which nobody gives a name.
fn default_name(model: &str) -> anyhow::Result<String> {
    Ok(match reference(model)? {
        Reference::Path(path) => {
            let path = path.canonicalize().unwrap_or(path);
            let name = path.file_name().map_or_else(|| model.into(), |n| n.to_string_lossy().into_owned());
            name.strip_suffix(".gguf").map_or(name.clone(), String::from)
        }
        _ => model.trim_start_matches("hf:").to_string(),
    })
}

/// Model `i` of so many. It is fetched if it is not here, and its memory is counted; nothing is loaded.
fn model(
    (i, of): (usize, usize),
    given: &str,
    args: &ServeArgs,
    settings: &Settings,
) -> anyhow::Result<ModelSpec> {
    let s = &args.server;
    let first = i == 0;
    let (name, model) = split_name(given);
    let mut names: Vec<String> = if first { s.alias.clone() } else { Vec::new() };
    names.extend(name.map(String::from));
    if names.is_empty() {
        names.push(default_name(model)?);
    }
    let path = locate(model, settings)?;
    let file = open(model, settings)?;
    let report = Report::new(&file)?;
    let engine = EngineOptions {
        max_seqs: s.parallel,
        score_tokens: SCORE_TOKENS,
        kv_tokens: s.kv_tokens,
        snapshot_memory: s.cache_ram,
        disk: s.cache_disk.clone().map(|dir| DiskOptions { dir, bytes: s.cache_disk_size }),
        ..args.engine.options()
    };
    let check = !args.engine.memory.no_memory_check;
    let free = crate::memory::available().filter(|_| check);
    // Its share of the limit, so that all stay in memory together; where that is too little, all of it.
    let mut bill = Bill::new(&report, &engine, least(free, s.memory_limit.map(|l| l / of as u64)))?;
    if !bill.fits(&report) {
        bill = Bill::new(&report, &engine, least(free, s.memory_limit))?;
    }
    if check {
        bill.check(&report)?;
    }
    let name = names.remove(0);
    note!("{}", bill.text(&name, &report));
    let written = path.metadata().and_then(|m| m.modified()).ok();
    let open = move || octet_weights::Model::open(&path).map_err(octet_serve::BoxError::from);
    Ok(ModelSpec {
        aliases: names,
        created_s: written.and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map_or(0, |d| d.as_secs()),
        options: scheduler::Options { engine: bill.options, queue: s.max_queue },
        chat_template: if first { s.template()? } else { None },
        template_kwargs: s.template_kwargs(),
        tool_syntax: s.tool_call_parser,
        keep_alive: s.keep_alive.0,
        ..ModelSpec::new(name, Arc::new(open))
    })
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_may_be_given_names() {
        assert_eq!(split_name("coder=hf:a/b:Q4_K_M"), (Some("coder"), "hf:a/b:Q4_K_M"));
        assert_eq!(split_name("smollm2:135m"), (None, "smollm2:135m"));
        assert_eq!(split_name("./odd=name.gguf"), (None, "./odd=name.gguf"));
        assert_eq!(split_name("=x"), (None, "=x"));
        assert_eq!(default_name("hf:a/b:Q4_K_M").unwrap(), "a/b:Q4_K_M");
        assert_eq!(default_name("./models/x.Q8_0.gguf").unwrap(), "x.Q8_0");
    }
}
