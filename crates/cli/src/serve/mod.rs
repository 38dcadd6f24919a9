//! `octet serve`: serves one or several models through OpenAI's, Anthropic's, Ollama's and Gemini's APIs.

mod args;
mod limits;
mod load;
pub mod local;
mod log;
mod memory_plan;
pub mod page;
pub mod prerouters;
pub mod routes;
mod systemd;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, FromArgMatches};
use octet_hub::Reference;
use octet_serve::{ImageFetcher, Keys, Memory, ModelSpec, Options, Reserved, Server, Stage};
use tokio::sync::watch;

use crate::args::EngineArgs;
use crate::images::ImageFlags;
use crate::model::reference;
use crate::settings::{self, Settings};
use crate::stderr::note;
use crate::usage_error::Usage;
pub use args::ServerArgs;
use load::Load;

const EXAMPLES: &str = "\
Examples:
  octet serve smollm2:135m                                one model, at http://127.0.0.1:8080/v1
  octet serve qwen3.6:35b-a3b --alias local -np 8 --cache-disk ~/.cache/octet/kv
  octet serve coder=qwen3.6:35b-a3b small=smollm2:135m --keep-alive 10m
                                                          two models, loaded on demand
  octet serve --config octet.yaml                         a router: docs/router.md
  curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\
    -d '{\"model\": \"smollm2:135m\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'

The chat page is at the address itself. See docs/serving.md, docs/router.md and docs/agents.md.
Ctrl-C finishes open requests and exits; a second Ctrl-C exits at once.";

/// Serves models through OpenAI's, Anthropic's, Ollama's and Gemini's APIs.
#[derive(Debug, Args)]
#[command(visible_alias = "server", after_help = EXAMPLES)]
pub struct ServeArgs {
    /// Models, each as MODEL or NAME=MODEL: short name, hf:user/repo:QUANT, ollama:NAME, lmstudio:FILE, URL, GGUF file, or Hugging Face
    /// directory.
    #[arg(value_name = "MODEL")]
    positional: Vec<String>,
    /// The same as MODEL.
    #[arg(short = 'm', long = "model", value_name = "MODEL", help_heading = "Models")]
    flag: Vec<String>,
    /// A model on Hugging Face: user/repo:QUANT. Also -hf.
    #[arg(long = "hf", alias = "hf-repo", value_name = "REPO", help_heading = "Models")]
    hf: Vec<String>,
    /// Router configuration, which defines all models: docs/router.md. The server reloads it when it changes, or on SIGHUP.
    /// Flags override the file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["positional", "flag", "hf", "alias"], help_heading = "Models")]
    config: Option<PathBuf>,
    #[command(flatten)]
    pub unsupported: UnsupportedArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Log more: why prompts were not in the cache, what happens to connections. RUST_LOG selects the parts.
    #[arg(short, long, help_heading = "Server")]
    verbose: bool,
    /// Format of the log: text, or json with one object a line.
    #[arg(long, value_enum, default_value_t, help_heading = "Server")]
    log_format: log::LogFormat,
}

/// Configuration keys that may be ignored.
#[derive(Debug, Clone, Default, Args)]
pub struct UnsupportedArgs {
    /// Ignore these unsupported configuration keys, although they protect something or change answers: guardrails,
    /// general_settings.allowed_ips. Default: such a key is an error.
    #[arg(
        long = "ignore-unsupported",
        value_name = "KEY,...",
        value_delimiter = ',',
        num_args = 1,
        action = clap::ArgAction::Append,
        help_heading = "Models"
    )]
    pub keys: Vec<String>,
}

impl ServeArgs {
    /// The defaults without flags.
    pub fn plain() -> anyhow::Result<Self> {
        let matches = Self::augment_args(clap::Command::new("serve")).try_get_matches_from(["serve"])?;
        Ok(Self::from_arg_matches(&matches)?)
    }
}

/// The runtime for connections: one or two threads that only move bytes. On one core a second thread would only alternate with the
/// first, at one switch per request.
pub fn serving_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = match std::thread::available_parallelism() {
        Ok(n) if n.get() > 1 => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    builder.worker_threads(2).max_blocking_threads(BLOCKING_THREADS).enable_all().build()
}
/// Threads for templates, tokenizers and grammars.
const BLOCKING_THREADS: usize = 16;

pub fn run(args: &ServeArgs, settings: &Settings) -> anyhow::Result<()> {
    serve(args, settings, false)
}

/// `octet run --web`: serves one model to this machine, and opens the page.
pub fn page(
    model: String,
    port: u16,
    mcp: Option<PathBuf>,
    images: &ImageFlags,
    engine: &EngineArgs,
    settings: &Settings,
) -> anyhow::Result<()> {
    let mut args = ServeArgs { positional: vec![model], engine: engine.clone(), ..ServeArgs::plain()? };
    args.server.port = port;
    args.server.mcp = mcp;
    args.server.images = images.clone();
    serve(&args, settings, true)
}

fn serve(args: &ServeArgs, settings: &Settings, show_page: bool) -> anyhow::Result<()> {
    log::start(args.verbose, args.log_format, settings)?;
    if let Some(dir) = &args.server.cache_disk {
        check_folder(dir)?;
    }
    let keys = args.server.keys()?;
    let read = |file| routes::read(file, &args.unsupported.keys);
    let config = args.config.as_deref().map(read).transpose()?;
    let mut options = options(args, keys);
    let mut plans = Vec::new();
    let mut address = SocketAddr::new(args.server.host, args.server.port);
    if let Some(config) = &config {
        routes::server(&mut options, &mut address, config, &settings.given)?;
    }
    options.page_store = page::store(&args.server, settings, address, is_open(&options, config.as_ref()))?;
    options.mcp = page::tools(args.server.mcp.as_deref(), config.as_ref())?;
    // Before anything is downloaded or estimated.
    let reserved = match systemd::socket()? {
        Some(inherited) => inherited,
        None => Reserved::new(address).map_err(anyhow::Error::from_boxed)?,
    };
    match (config, &args.config) {
        (Some(config), Some(file)) => {
            prerouters::check(&config, settings)?;
            options.routes = Some(routes::routes(config, file, args, settings)?);
        }
        _ => {
            let (models, texts) = models(args, settings)?;
            (options.models, plans) = (models, texts);
        }
    }
    let notes = limits::apply(&mut options);
    let single = options.models.len() == 1;
    let runtime = serving_runtime()?;
    let served = runtime.block_on(async {
        let server = Server::listen(reserved, options).map_err(anyhow::Error::from_boxed)?;
        // The server has accepted the names.
        plans.iter().chain(&notes).for_each(|line| note!("{line}"));
        let mut stage = signals(args.config.is_none() && !ignores_hangup())?;
        let gateway = server.app().gateway().cloned();
        if let Some(gateway) = &gateway {
            routes::reload_on_hangup(gateway)?;
        }
        if single && !server.preload(&mut stage).await.map_err(anyhow::Error::from_boxed)? {
            note!("stopped before the model was loaded");
            return Ok(());
        }
        let address = server.address()?;
        match args.log_format {
            log::LogFormat::Json => {
                let line = serde_json::json!({"level": "INFO", "message": "listening", "address": address.to_string()});
                note!("{line}");
            }
            log::LogFormat::Text => {
                note!(
                    "\nlistening at http://{address}\n  chat page: /   OpenAI: /v1   Anthropic, Ollama, Gemini: /"
                );
            }
        }
        // Without a terminal, no browser is opened.
        if show_page && std::io::stderr().is_terminal() {
            open_browser(address);
        }
        if let Some(tools) = server.app().options.mcp.clone() {
            tokio::spawn(async move { page::start(&tools).await });
        }
        warn_if_open(gateway.map_or(server.app().options.keys.is_empty(), |g| g.is_open()), address);
        systemd::ready();
        let mut ending = stage.clone();
        tokio::spawn(async move {
            let _ = ending.wait_for(|stage| *stage != Stage::Run).await;
            systemd::stopping();
        });
        server.run(stage).await;
        note!("stopped");
        Ok(())
    });
    // A model still loading, or a prompt still being tokenized, is not waited for.
    runtime.shutdown_background();
    served
}

/// Whether the server answers requests without a key.
fn is_open(options: &Options, config: Option<&octet_config::Config>) -> bool {
    let of_file = config.is_none_or(|c| {
        let has_keys = c.keys.database.is_some() || c.keys.database_url.is_some();
        c.server.master_key.is_none() && c.server.api_keys.is_empty() && !has_keys
    });
    options.keys.is_empty() && of_file
}

fn warn_if_open(is_open: bool, address: SocketAddr) {
    if is_open && !address.ip().is_loopback() {
        note!(
            "WARNING: everyone who can reach this machine's address {} can use the server; set an --api-key",
            address.ip()
        );
    }
}

/// Opens the page, if there is a browser to open it in; else says where it is.
fn open_browser(address: SocketAddr) {
    let url = format!("http://{address}/");
    if settings::is_remote() {
        note!(
            "open {url} in a browser; from your own machine: ssh -L {0}:127.0.0.1:{0} THIS-MACHINE",
            address.port()
        );
    } else if open::that_detached(&url).is_err() {
        note!("no browser can be opened here: open {url} yourself");
    }
}

/// Whether the process was started to outlive its terminal (`nohup`): Linux says which signals are ignored. Elsewhere it is assumed.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_none_or(|mask| mask & 1 != 0)
}

/// Handles Ctrl-C and SIGTERM, and with `hangup` the terminal's end: the first drains, the second stops.
fn signals(hangup: bool) -> anyhow::Result<watch::Receiver<Stage>> {
    let (sender, stage) = watch::channel(Stage::Run);
    #[cfg(unix)]
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    #[cfg(unix)]
    let mut hung_up =
        hangup.then(|| tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())).transpose()?;
    #[cfg(not(unix))]
    let _ = hangup;
    tokio::spawn(async move {
        for next in [Stage::Drain, Stage::Stop] {
            #[cfg(unix)]
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
                () = received(hung_up.as_mut()) => {}
            }
            #[cfg(not(unix))]
            let _ = tokio::signal::ctrl_c().await;
            if sender.send(next).is_err() {
                return;
            }
        }
        // A third has no further effect; the sender stays until the server has ended.
        sender.closed().await;
    });
    Ok(stage)
}

/// Waits for a signal; forever without one to wait for.
#[cfg(unix)]
async fn received(signal: Option<&mut tokio::signal::unix::Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// The server's options from the flags.
pub fn options(args: &ServeArgs, keys: Keys) -> Options {
    let s = &args.server;
    Options {
        memory: Memory {
            free: if args.engine.memory.no_memory_check {
                Arc::new(|| None)
            } else {
                Arc::new(crate::memory::available)
            },
            limit: args.engine.limit.memory_limit,
        },
        load_queue: s.load_queue,
        keys,
        cors_origins: s.cors_origin.clone(),
        page_connect: s.page_connect.clone(),
        host_names: s.allowed_host.iter().cloned().chain(octet_machine::names()).collect(),
        body_bytes_max: usize::try_from(s.max_body).unwrap_or(usize::MAX),
        free_at_start: crate::memory::available(),
        timeout: s.timeout(),
        reasoning: s.reasoning_format,
        strict: s.strict,
        image_urls: s.allow_image_urls.then(ImageFetcher::default),
        connections_max: s.max_connections,
        ..Options::new(Vec::new())
    }
}

/// The models, and their memory plans.
fn models(args: &ServeArgs, settings: &Settings) -> anyhow::Result<(Vec<ModelSpec>, Vec<String>)> {
    let hf = args.hf.iter().map(|h| format!("hf:{}", h.trim_start_matches("hf:")));
    let mut given: Vec<String> = args.positional.iter().chain(&args.flag).cloned().chain(hf).collect();
    if given.is_empty() {
        given.push(settings.default_model());
    }
    let of = given.len();
    let all = given.iter().enumerate().map(|(i, given)| model((i, of), given, args, settings));
    Ok(all.collect::<Result<Vec<_>, _>>()?.into_iter().unzip())
}

/// The cache creates the folder if necessary.
fn check_folder(dir: &Path) -> anyhow::Result<()> {
    // A dangling symbolic link is not accepted.
    if dir.symlink_metadata().is_ok() && !dir.is_dir() {
        let what = format!(
            "--cache-disk {}: is not a folder; name one, or a place where one can be made",
            dir.display()
        );
        return Err(Usage(what).into());
    }
    Ok(())
}

/// Splits `NAME=MODEL`, unless the whole is a file, a path or a URL.
fn split_name(given: &str) -> (Option<&str>, &str) {
    let is_path = given.starts_with(['.', '/', '~']) || Path::new(given).exists();
    match given.split_once('=') {
        Some((name, model))
            if !name.is_empty() && !is_path && !name.contains('\\') && !name.contains("://") =>
        {
            (Some(name), model)
        }
        _ => (None, given),
    }
}

/// The default name of a model for clients.
fn default_name(model: &str) -> anyhow::Result<String> {
    if crate::embedded::is(model) {
        return Ok(crate::embedded::NAME.into());
    }
    if let Some((_, name)) = model.split_once(':').filter(|_| crate::model::is_other_programs(model)) {
        return Ok(name.into());
    }
    Ok(match reference(model)? {
        Reference::Path(path) => {
            let path = path.canonicalize().unwrap_or(path);
            let name = path.file_name().map_or_else(|| model.into(), |n| n.to_string_lossy().into_owned());
            name.strip_suffix(".gguf").map_or(name.clone(), String::from)
        }
        _ => model.trim_start_matches("hf:").to_string(),
    })
}

/// Model `i` of `of`, and its memory plan. Downloads it if necessary, and estimates its memory; loads nothing.
fn model(
    (i, of): (usize, usize),
    given: &str,
    args: &ServeArgs,
    settings: &Settings,
) -> anyhow::Result<(ModelSpec, String)> {
    let s = &args.server;
    let first = i == 0;
    let (name, model) = split_name(given);
    let mut names: Vec<String> = if first { s.alias.clone() } else { Vec::new() };
    names.extend(name.map(String::from));
    // A wildcard name cannot be listed: another name is used.
    let listed = names.iter().position(|n| !n.contains('*'));
    match listed {
        Some(at) => names.swap(0, at),
        None => names.insert(0, default_name(model)?),
    }
    let mut load = Load::of(args, settings)?;
    if !first {
        load.chat_template = None;
    }
    let name = names.remove(0);
    let (spec, bill) = load.spec(&name, model, of, settings)?;
    Ok((ModelSpec { aliases: names, ..spec }, bill))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_may_be_given_names() {
        assert_eq!(split_name("coder=hf:a/b:Q4_K_M"), (Some("coder"), "hf:a/b:Q4_K_M"));
        assert_eq!(split_name("smollm2:135m"), (None, "smollm2:135m"));
        assert_eq!(split_name("qwen3.5=/models/base.gguf"), (Some("qwen3.5"), "/models/base.gguf"));
        assert_eq!(split_name("local/qwen=base.gguf"), (Some("local/qwen"), "base.gguf"));
        for whole in ["./odd=name.gguf", "/a=b.gguf", "~/a=b.gguf", "https://host/x.gguf?download=true"] {
            assert_eq!(split_name(whole), (None, whole));
        }
        assert_eq!(split_name("=x"), (None, "=x"));
        assert_eq!(default_name("hf:a/b:Q4_K_M").unwrap(), "a/b:Q4_K_M");
        assert_eq!(default_name("./models/x.Q8_0.gguf").unwrap(), "x.Q8_0");
    }
}
