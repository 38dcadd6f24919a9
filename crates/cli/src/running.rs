//! `octet ps` and `octet stop`: the models of a running server, by its Ollama endpoints.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::{Method, Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use crate::stderr::note;
use crate::units::size;
use crate::usage_error::Usage;

const PS_EXAMPLES: &str = "\
Examples:
  octet ps                                   the server on this machine
  octet ps --url http://box.lan:8080         another one";
const STOP_EXAMPLES: &str = "\
Examples:
  octet stop qwen3:8b                        unload it; the next request loads it again";

/// How long the server may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long a model without requests may take to be unloaded.
const UNLOADING: Duration = Duration::from_secs(2);
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// Longest answer.
const BODY_BYTES_MAX: usize = 4 << 20;

/// The running server.
#[derive(Debug, Args)]
pub struct ServerAt {
    /// Address of the server.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// File that holds an API key of the server. Default: OCTET_API_KEY.
    #[arg(long, value_name = "FILE")]
    key_file: Option<std::path::PathBuf>,
}

/// Lists the models that a running server has loaded.
#[derive(Debug, Args)]
#[command(after_help = PS_EXAMPLES)]
pub struct PsArgs {
    #[command(flatten)]
    at: ServerAt,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Unloads a model of a running server.
#[derive(Debug, Args)]
#[command(after_help = STOP_EXAMPLES)]
pub struct StopArgs {
    /// Its name, as `octet ps` shows it.
    #[arg(value_name = "MODEL")]
    model: String,
    #[command(flatten)]
    at: ServerAt,
}

/// `octet ps`.
pub fn ps(args: &PsArgs) -> anyhow::Result<()> {
    let got = args.at.ask(Method::GET, "/api/ps", None)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{got:#}")?;
        return Ok(());
    }
    let models = got["models"].as_array().context("the server's answer is not a list of models")?;
    let name = |m: &Value| octet_config::printable(m["name"].as_str().unwrap_or_default()).into_owned();
    let width = models.iter().map(|m| name(m).chars().count()).fold("MODEL".len(), usize::max);
    let bytes = |m: &Value, key: &str| m[key].as_u64().unwrap_or(0);
    let has_card = models.iter().any(|m| bytes(m, "size_vram") > 0);
    let on_card = |cell: &str| if has_card { format!("  {cell:>10}") } else { String::new() };
    writeln!(out, "{:width$}  {:>10}{}  CONTEXT", "MODEL", "MEMORY", on_card("ON CARD"))?;
    for m in models {
        let card = match bytes(m, "size_vram") {
            0 => "-".into(),
            bytes => size(bytes),
        };
        let context = m["context_length"].as_u64().map_or("-".into(), |n| n.to_string());
        writeln!(out, "{:width$}  {:>10}{}  {context}", name(m), size(bytes(m, "size")), on_card(&card))?;
    }
    if models.is_empty() {
        note!("no model is loaded; the first request loads one");
    }
    Ok(())
}

/// `octet stop`.
pub fn stop(args: &StopArgs) -> anyhow::Result<()> {
    // Ollama's way: to keep it for no time unloads it.
    let body = json!({"model": args.model, "keep_alive": 0, "stream": false});
    let is_it = |m: &&Value| ["name", "model"].iter().any(|key| m[key] == args.model.as_str());
    // All models, and those of this name: it may be another name of one.
    let loaded = || {
        let got = args.at.ask(Method::GET, "/api/ps", None)?;
        let all = got["models"].as_array().map_or(&[][..], Vec::as_slice);
        anyhow::Ok((all.len(), all.iter().filter(is_it).count()))
    };
    let before = loaded()?;
    args.at.ask(Method::POST, "/api/generate", Some(body))?;
    if before.0 == 0 {
        writeln!(std::io::stdout(), "{}: is not loaded", args.model)?;
        return Ok(());
    }
    let deadline = Instant::now() + UNLOADING;
    let unloaded = loop {
        let now = loaded()?;
        if now.1 < before.1 || now.0 < before.0 {
            break true;
        }
        if Instant::now() >= deadline {
            break false;
        }
        std::thread::sleep(BETWEEN_LOOKS);
    };
    let what = if unloaded { "unloaded" } else { "is unloaded as soon as no request needs it" };
    writeln!(std::io::stdout(), "{}: {what}", args.model)?;
    Ok(())
}

impl ServerAt {
    /// Sends a request and reads its answer.
    fn ask(&self, method: Method, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
        let base = self.url.trim_end_matches('/').trim_end_matches("/v1");
        if !base.starts_with("http://") {
            return Err(Usage(format!("--url {base}: only http:// is supported")).into());
        }
        let url = format!("{base}{path}");
        let key = match &self.key_file {
            Some(file) => {
                Some(crate::chat::read(file)?.lines().next().unwrap_or_default().trim().to_string())
            }
            None => crate::settings::lookup("OCTET_API_KEY")
                .and_then(|keys| keys.split(',').next().map(String::from)),
        };
        let mut request =
            Request::builder().method(method).uri(&url).header(CONTENT_TYPE, "application/json");
        let has_key = key.is_some();
        if let Some(key) = key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        let bytes = Bytes::from(body.map(|b| b.to_string()).unwrap_or_default());
        let request =
            request.body(Full::new(bytes)).with_context(|| format!("{url}: not a usable address"))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let asking = async {
            let client = Client::builder(TokioExecutor::new()).build_http();
            let response = client.request(request).await.map_err(|e| match e.is_connect() {
                true => anyhow::anyhow!(
                    "no server answers at {base}; `octet serve` starts one, --url names another"
                ),
                false => anyhow::Error::new(e).context(format!("{base} gives no answer")),
            })?;
            let status = response.status();
            let body = Limited::new(response.into_body(), BODY_BYTES_MAX)
                .collect()
                .await
                .map_err(anyhow::Error::from_boxed)?;
            anyhow::Ok((status, body.to_bytes()))
        };
        let answer = runtime.block_on(async { tokio::time::timeout(TIMEOUT, asking).await });
        let (status, body) = match answer {
            Ok(answer) => answer?,
            Err(_) => anyhow::bail!("{base} gives no answer within {} s", TIMEOUT.as_secs()),
        };
        let json: Value = serde_json::from_slice(&body).unwrap_or_default();
        if !status.is_success() {
            let error = &json["error"];
            let why = error.as_str().or(error["message"].as_str()).unwrap_or("no reason given");
            let keys = "--key-file FILE or OCTET_API_KEY gives";
            if status == StatusCode::UNAUTHORIZED && !has_key {
                anyhow::bail!("{base} needs an API key: {keys} it");
            }
            if status == StatusCode::UNAUTHORIZED {
                anyhow::bail!("{base} does not accept this API key; {keys} another one");
            }
            anyhow::bail!("{base} refuses ({status}): {}", octet_config::printable(why));
        }
        Ok(json)
    }
}
