//! The flags of `octet serve`, each with an environment variable.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use octet_engine::engine::Pooling;
use octet_serve::{Keys, ReasoningFormat, ToolSyntax};
use serde_json::{Map, Value};

use crate::chat::{object, read};
use crate::numbers::{from_minus_one_u32, port, positive, whole};
use crate::samplers::MoreSamplerArgs;
use crate::sampling::SamplerArgs;
use crate::settings::empty_mirror;
use crate::units::{mebibytes, nonzero_bytes};
use crate::usage_error::Usage;

/// The server's settings.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Address to listen on. 0.0.0.0 listens on all interfaces: then also set --api-key.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = host, help_heading = "Server")]
    pub host: IpAddr,
    /// Port to listen on; 0 picks a free port.
    #[arg(long, value_name = "N", default_value_t = 8080, value_parser = port, help_heading = "Server")]
    pub port: u16,
    /// API key that clients must send; several are separated by commas, or given by several flags. Other users of this machine can see flags: prefer --api-key-file or
    /// OCTET_API_KEY.
    #[arg(long, value_name = "KEY", value_delimiter = ',', help_heading = "Server")]
    api_key: Vec<String>,
    /// File with API keys, one per line.
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    api_key_file: Option<PathBuf>,
    /// Allow web pages of this origin (scheme, host and port) to use the server; * allows all. Several are separated by commas, or
    /// given by several flags.
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', value_parser = origin, help_heading = "Server")]
    pub cors_origin: Vec<String>,
    /// Another host name that means this machine, such as the name of a reverse proxy; * is any. A server on the loopback interface
    /// that needs no key refuses requests with unknown names. Several are separated by commas, or given by several flags. Default:
    /// localhost, addresses, names without a dot, this machine's name, and those that its hosts file gives the loopback interface.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = host_name, help_heading = "Server")]
    pub allowed_host: Vec<String>,
    /// Allow the chat page at / to call this other server (scheme, host and port): HTTP tools and MCP servers of its user. May be
    /// given several times. Default: none.
    #[arg(long, value_name = "ORIGIN", value_parser = page_origin, help_heading = "Server")]
    pub page_connect: Vec<String>,
    /// Keep the chat page's conversations in this SQLite file, for each key apart; off keeps them in the browser alone. Default: a file
    /// in the user's data folder if the server listens on the loopback interface only and has no keys, else off.
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub page_store: Option<PathBuf>,
    /// File that names MCP servers for the chat page's tools: the usual JSON with `mcpServers`. Programs in it are started by this
    /// server.
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub mcp: Option<PathBuf>,
    /// Refuse requests with fields that are unknown or have no effect. Default: accept them, and name them in the header
    /// x-octet-warning and in the log.
    #[arg(long, help_heading = "Server")]
    pub strict: bool,
    /// Download images that requests give by http(s) address, from public addresses only. Default: such images are refused, unless
    /// another server answers that downloads them itself.
    #[arg(long, help_heading = "Server")]
    pub allow_image_urls: bool,
    /// Maximum time of a request in seconds; 0 is no limit.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = whole::<u64>, help_heading = "Server")]
    pub timeout: u64,
    /// Maximum request body size: 32MiB, 500K.
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = nonzero_bytes, help_heading = "Server")]
    pub max_body: u64,
    /// Maximum number of open connections.
    #[arg(long, value_name = "N", default_value = "1024", value_parser = positive, help_heading = "Server")]
    pub max_connections: usize,

    /// Name of the (first) model in requests; more names after commas. A name may be a pattern: 'claude-*' matches all names that
    /// begin with claude-. Default: the MODEL argument.
    #[arg(
        long,
        visible_alias = "served-model-name",
        value_name = "NAMES",
        value_delimiter = ',',
        help_heading = "Models"
    )]
    pub alias: Vec<String>,
    /// Unload a model after this time without requests: 5m, 1h30m, 90 (seconds); -1 is never.
    #[arg(long, value_name = "TIME", default_value = "-1", allow_hyphen_values = true, value_parser = keep_alive, help_heading = "Models")]
    pub keep_alive: KeepAlive,
    /// Maximum number of requests that wait for a model to be loaded.
    #[arg(long, value_name = "N", default_value = "64", value_parser = positive, help_heading = "Models")]
    pub load_queue: usize,

    /// Maximum concurrent requests. Also -np.
    #[arg(long, visible_alias = "max-num-seqs", value_name = "N", default_value = "4", value_parser = positive, help_heading = "Requests")]
    pub parallel: usize,
    /// Maximum queued requests; more are refused with 429.
    #[arg(long, value_name = "N", default_value = "128", value_parser = positive, help_heading = "Requests")]
    pub max_queue: usize,
    /// Number of tokens in the KV cache, for running requests and cached prefixes. Default: four full contexts, less if memory is
    /// short.
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Cache")]
    pub kv_tokens: Option<usize>,
    /// Memory for snapshots of recurrent states and of windows: 2GiB; a plain number is in MiB. Default: 2 GiB, less if memory is short.
    #[arg(long, value_name = "SIZE", value_parser = mebibytes, help_heading = "Cache")]
    pub cache_ram: Option<u64>,
    /// Also keep the prefix cache in this folder: it survives a restart, and may be larger than memory.
    #[arg(long, alias = "slot-save-path", value_name = "DIR", help_heading = "Cache")]
    pub cache_disk: Option<PathBuf>,
    /// Maximum size of the cache folder.
    #[arg(long, value_name = "SIZE", default_value = "20GiB", value_parser = nonzero_bytes, help_heading = "Cache")]
    pub cache_disk_size: u64,

    /// Reasoning: deepseek returns it in a separate field, hidden removes it, none leaves it in the answer.
    #[arg(long, value_name = "FORMAT", default_value = "deepseek", value_parser = reasoning, help_heading = "Answers")]
    pub reasoning_format: ReasoningFormat,
    /// Syntax of tool calls: qwen3_coder, hermes, openai, none. Default: derived from the model's template.
    #[arg(long, value_name = "NAME", value_parser = tools, help_heading = "Answers")]
    pub tool_call_parser: Option<ToolSyntax>,
    /// Jinja chat template instead of the (first) model's own.
    #[arg(long, value_name = "FILE", help_heading = "Answers")]
    pub chat_template: Option<PathBuf>,
    /// Default variables of the chat template, as a JSON object: '{"enable_thinking": false}'.
    #[arg(long, alias = "default-chat-template-kwargs", value_name = "JSON", value_parser = object, help_heading = "Answers")]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Maximum number of reasoning tokens, for requests that set none; -1 is no limit.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = from_minus_one_u32, help_heading = "Answers")]
    reasoning_budget: Option<i64>,
    /// llama-server's: the template's `enable_thinking`.
    #[arg(long, hide = true, value_parser = ["on", "off", "auto"])]
    reasoning: Option<String>,
    /// llama-server's: the template's `reasoning_effort`.
    #[arg(long, hide = true)]
    reasoning_effort: Option<String>,
    /// Pooling of embeddings: mean, cls (the first token) or last. Default: the model's own, else mean.
    #[arg(long, value_name = "KIND", value_parser = pooling, help_heading = "Answers")]
    pub pooling: Option<Pooling>,
    /// Defaults for requests.
    #[command(flatten, next_help_heading = "Sampling defaults (for requests that set nothing)")]
    pub sampling: SamplerArgs,
    #[command(flatten)]
    pub more_samplers: MoreSamplerArgs,
    /// Maximum number of generated tokens; -1: until the context is full.
    #[arg(short = 'n', long, alias = "n-predict", value_name = "N", allow_negative_numbers = true,
          value_parser = from_minus_one_u32,
          help_heading = "Sampling defaults (for requests that set nothing)")]
    predict: Option<i64>,
    #[command(flatten)]
    pub images: crate::images::ImageFlags,
}

impl ServerArgs {
    /// Default maximum length of answers.
    pub fn predict(&self) -> Option<u32> {
        self.predict.and_then(|n| u32::try_from(n).ok())
    }

    /// The keys of flags and file.
    pub fn keys(&self) -> anyhow::Result<Keys> {
        let wrong = |what: String| Err(Usage(what).into());
        let mut keys = self.api_key.clone();
        // An unset shell variable must not disable authentication.
        let given = [("api-key", !keys.is_empty()), ("api-key-file", self.api_key_file.is_some())];
        for (flag, given) in given {
            if !given && let Some(name) = empty_mirror(flag) {
                return wrong(format!(
                    "the environment variable {name} is set, but to nothing: everybody could use the server; set it to a \
                     key's value or file, or unset it"
                ));
            }
        }
        if keys.iter().any(|k| k.trim().is_empty()) {
            return wrong("--api-key is empty (or OCTET_API_KEY blank): give a key, or leave it out".into());
        }
        if keys.iter().any(|k| k.trim() != k || k.contains(char::is_control)) {
            return wrong(
                "--api-key (or OCTET_API_KEY) begins or ends with white space, or has a control character in it, which no \
                 client can send: give the key alone"
                    .into(),
            );
        }
        if let Some(path) = &self.api_key_file {
            let text = read(path).context("the API keys cannot be read")?;
            let before = keys.len();
            keys.extend(
                text.lines().map(|l| l.trim().to_string()).filter(|l| !l.is_empty() && !l.starts_with('#')),
            );
            anyhow::ensure!(keys.len() > before, "{}: holds no key", path.display());
        }
        Ok(Keys::new(keys))
    }

    /// The source of the template from the flags.
    pub fn template(&self) -> anyhow::Result<Option<String>> {
        self.chat_template.as_deref().map(template_source).transpose()
    }

    /// The template's default variables.
    pub fn template_kwargs(&self) -> Map<String, Value> {
        let mut all = self.chat_template_kwargs.clone().unwrap_or_default();
        if let Some(how) = self.reasoning.as_deref().filter(|how| *how != "auto") {
            all.insert("enable_thinking".into(), (how == "on").into());
        }
        if let Some(effort) = self.reasoning_effort.as_deref().filter(|e| *e != "default") {
            all.insert("reasoning_effort".into(), effort.into());
        }
        all
    }

    /// Default maximum number of reasoning tokens.
    pub fn reasoning_budget(&self) -> Option<u32> {
        self.reasoning_budget.and_then(|n| u32::try_from(n).ok())
    }

    /// Maximum time of a request.
    pub fn timeout(&self) -> Option<Duration> {
        (self.timeout > 0).then(|| Duration::from_secs(self.timeout))
    }
}

/// The template in a file, or as it stands: llama.cpp takes both.
fn template_source(given: &Path) -> anyhow::Result<String> {
    match given.to_str().filter(|text| text.contains("{%") || text.contains("{{")) {
        Some(source) => Ok(source.to_string()),
        None => read(given).context(
            "the chat template cannot be read: --chat-template takes a file or Jinja's text; names of templates, as \
             llama.cpp has them, are not supported: leave the flag out to use the model's own",
        ),
    }
}

fn reasoning(name: &str) -> Result<ReasoningFormat, String> {
    name.parse().map_err(|e| format!("{e}"))
}

fn tools(name: &str) -> Result<ToolSyntax, String> {
    name.parse().map_err(|e| format!("{e}"))
}

fn pooling(name: &str) -> Result<Pooling, String> {
    match name {
        "mean" => Ok(Pooling::Mean),
        "cls" => Ok(Pooling::Cls),
        "last" => Ok(Pooling::Last),
        _ => Err("expected mean, cls or last".into()),
    }
}

/// An address to listen on, or `localhost`.
fn host(text: &str) -> Result<IpAddr, String> {
    if text == "localhost" {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    text.parse().map_err(|_| {
        "expected an address of this machine, like 127.0.0.1 or ::1, 0.0.0.0 for all of them, or localhost".into()
    })
}

/// `https://chat.example.com`, `http://box.lan:3000`, `vscode-webview://id`, or `*`: exactly as browsers send it, or it would never
/// match.
fn origin(text: &str) -> Result<String, String> {
    let wrong = || {
        format!(
            "expected an origin as browsers send it, like https://chat.example.com or http://box.lan:3000, or *; got '{text}'"
        )
    };
    if text == "*" {
        return Ok(text.into());
    }
    let (scheme, host) = text.split_once("://").ok_or_else(wrong)?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_lowercase())
        && scheme.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"+-.".contains(&b));
    // Lower case, no path, user or spaces; international names are in punycode.
    let is_host = !host.is_empty()
        && host.bytes().all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase() && !b"/?#@,\"'".contains(&b));
    let default_port =
        matches!((scheme, host.rsplit_once(':')), ("http", Some((_, "80"))) | ("https", Some((_, "443"))));
    if is_scheme && is_host && !default_port { Ok(text.into()) } else { Err(wrong()) }
}

/// An origin that a Content-Security-Policy may contain.
pub(super) fn host_name(text: &str) -> Result<String, String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if text == "*" || (!text.is_empty() && text.chars().all(is_name)) {
        return Ok(text.trim_end_matches('.').to_string());
    }
    Err(format!("expected a host name without scheme and port, like chat.example.com, or *; got '{text}'"))
}

fn page_origin(text: &str) -> Result<String, String> {
    let is_http = text.starts_with("http://") || text.starts_with("https://");
    if is_http && !text.contains([';', '*']) {
        return origin(text);
    }
    Err(format!("expected the scheme, host and port of a server, like http://127.0.0.1:9000; got '{text}'"))
}

/// A model's keep-alive; a separate type, as clap treats an `Option` as a flag that may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive(pub Option<Duration>);

/// `5m`, `1h30m`, seconds; negative is forever.
fn keep_alive(text: &str) -> Result<KeepAlive, String> {
    if text.starts_with('-') || text == "never" {
        return Ok(KeepAlive(None));
    }
    let time = octet_config::units::time(text);
    time.map(|t| KeepAlive(Some(t)))
        .ok_or_else(|| format!("expected a time like 5m, 1h30m, 90 (seconds) or -1 (never), got '{text}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        assert_eq!(host("localhost"), host("127.0.0.1"));
        assert!(host("::1").is_ok() && host("example.com").unwrap_err().contains("or localhost"));
    }

    #[test]
    fn times() {
        let seconds = |n| Ok(KeepAlive(Some(Duration::from_secs(n))));
        assert_eq!(
            (keep_alive("5m"), keep_alive("1h30m"), keep_alive("90")),
            (seconds(300), seconds(5400), seconds(90))
        );
        assert_eq!((keep_alive("-1"), keep_alive("0")), (Ok(KeepAlive(None)), seconds(0)));
        for wrong in ["", "m", "5x", "5m3"] {
            assert!(keep_alive(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn origins_are_what_browsers_send() {
        for right in [
            "*",
            "https://chat.example.com",
            "http://box.lan:3000",
            "http://[::1]:8080",
            "vscode-webview://1a-b",
        ] {
            assert_eq!(origin(right).as_deref(), Ok(right));
        }
        for wrong in [
            "",
            "bad",
            "chat.example.com",
            "https://",
            "https://a.b/",
            "https://a.b/c",
            "HTTPS://a.b",
            "https://A.b",
            "https://a.b:443",
            "https://u@a.b",
            "https://a.b, https://c.d",
            "https://a b",
            "://a.b",
            "null",
        ] {
            assert!(origin(wrong).is_err(), "{wrong}");
        }
    }
}
