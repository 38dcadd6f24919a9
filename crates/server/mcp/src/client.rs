//! A connection to one server, by rmcp.

use std::collections::HashMap;
use std::process::Stdio;
use std::time::Duration;

use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{CallToolRequestParams, ClientConfig};
use rmcp::service::RunningService;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use rmcp::{RoleClient, ServiceExt};
use serde_json::{Map, Value};

use crate::servers::{Reach, Server};
use crate::stderr::Said;

/// How long a server may take to start: `npx` and `uvx` download it first.
pub const START: Duration = Duration::from_secs(90);
/// How long a call may take.
pub const CALL: Duration = Duration::from_secs(300);

/// A running connection. When it is dropped, a program is ended.
pub struct Client {
    running: Running,
    /// What a program writes to its standard error; of a server at an address, nothing.
    said: Said,
}

impl Client {
    /// Starts or reaches a server.
    pub async fn connect(server: &Server) -> Result<Self, String> {
        let said = Said::default();
        let connecting = async {
            match &server.reach {
                Reach::Program { .. } => program(server, &said).await,
                Reach::Http { .. } => http(server).await,
            }
        };
        let within = || said.added_to(format!("did not start within {} s", START.as_secs()));
        let running = tokio::time::timeout(START, connecting).await.map_err(|_| within())??;
        Ok(Self { running, said })
    }

    /// Whether it can still be used.
    pub fn is_open(&self) -> bool {
        !self.running.is_closed() && !self.running.is_transport_closed()
    }

    /// All its tools, as JSON: `name`, `description`, `inputSchema`.
    pub async fn tools(&self) -> Result<Vec<Value>, String> {
        let all = tokio::time::timeout(START, self.running.list_all_tools()).await;
        let all = all.map_err(|_| "did not list its tools in time".to_string())?;
        let all = match all {
            Ok(all) => all,
            Err(e) => return Err(self.failed(e.to_string()).await),
        };
        all.into_iter().map(|tool| serde_json::to_value(tool).map_err(|e| e.to_string())).collect()
    }

    /// Calls a tool. Gives the protocol's result as JSON: `content`, `isError`, `structuredContent`.
    pub async fn call(&self, tool: &str, arguments: Map<String, Value>) -> Result<Value, String> {
        let params = CallToolRequestParams::new(tool.to_string()).with_arguments(arguments);
        let result = tokio::time::timeout(CALL, self.running.call_tool(params)).await;
        match result.map_err(|_| format!("no result within {} s", CALL.as_secs()))? {
            Ok(result) => serde_json::to_value(result).map_err(|e| e.to_string()),
            Err(e) => Err(self.failed(e.to_string()).await),
        }
    }

    /// An error; if the program has ended, with what it said last.
    async fn failed(&self, why: String) -> String {
        if self.is_open() {
            return why;
        }
        self.said.until_the_end().await;
        self.said.added_to(why)
    }
}

type Running = RunningService<RoleClient, ClientConfig>;

fn about() -> ClientConfig {
    let mut config = ClientConfig::default();
    config.client_info.name = "octet".into();
    config.client_info.version = env!("CARGO_PKG_VERSION").into();
    config
}

async fn program(server: &Server, said: &Said) -> Result<Running, String> {
    let Reach::Program { command, args, env, cwd } = &server.reach else {
        unreachable!("asked for a program")
    };
    let mut program = tokio::process::Command::new(command);
    program.args(args).envs(env).kill_on_drop(true);
    if let Some(folder) = cwd {
        program.current_dir(folder);
    }
    // What it logs would stand in the midst of an answer in the terminal: its end is kept for errors.
    let (process, stderr) = TokioChildProcess::builder(program)
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot start '{command}': {e}"))?;
    if let Some(stderr) = stderr {
        said.listen(stderr);
    }
    match about().serve(process).await {
        Ok(running) => Ok(running),
        Err(e) => {
            said.until_the_end().await;
            Err(said.added_to(format!("'{command}' does not answer as an MCP server: {e}")))
        }
    }
}

async fn http(server: &Server) -> Result<Running, String> {
    let Reach::Http { url, headers } = &server.reach else { unreachable!("asked for an address") };
    let mut own = HashMap::new();
    for (name, value) in headers {
        let name: HeaderName = name.parse().map_err(|_| format!("'{name}' cannot be a header"))?;
        let mut value: HeaderValue =
            value.parse().map_err(|_| format!("the value of header '{name}' is not valid"))?;
        value.set_sensitive(true);
        own.insert(name, value);
    }
    let config = StreamableHttpClientTransportConfig::with_uri(url.as_str()).custom_headers(own);
    let transport = StreamableHttpClientTransport::with_client(http_client()?, config);
    about().serve(transport).await.map_err(|e| format!("{url}: {e}"))
}

/// Redirects are refused: they would take the headers to another host.
fn http_client() -> Result<reqwest::Client, String> {
    let tls = octet_tls::client(octet_tls::Trust::System).map_err(|e| format!("TLS: {e}"))?;
    let builder = reqwest::Client::builder().tls_backend_preconfigured(tls).pool_max_idle_per_host(0);
    builder.redirect(reqwest::redirect::Policy::none()).build().map_err(|e| e.to_string())
}
