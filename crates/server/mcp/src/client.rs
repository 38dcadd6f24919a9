//! A connection to one server, by rmcp. Used by `tools`.

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

/// How long a server may take to start: `npx` and `uvx` download it first.
pub const START: Duration = Duration::from_secs(90);
/// How long a call may take.
pub const CALL: Duration = Duration::from_secs(300);

/// A running connection. When it is dropped, a program is ended.
pub struct Client(RunningService<RoleClient, ClientConfig>);

impl Client {
    /// Starts or reaches a server.
    pub async fn connect(server: &Server) -> Result<Self, String> {
        let connecting = async {
            match &server.reach {
                Reach::Program { .. } => program(server).await,
                Reach::Http { .. } => http(server).await,
            }
        };
        let within = format!("did not start within {} s", START.as_secs());
        tokio::time::timeout(START, connecting).await.map_err(|_| within)?.map(Self)
    }

    /// Whether it can still be used.
    pub fn is_open(&self) -> bool {
        !self.0.is_closed() && !self.0.is_transport_closed()
    }

    /// All its tools, as JSON: `name`, `description`, `inputSchema`.
    pub async fn tools(&self) -> Result<Vec<Value>, String> {
        let all = tokio::time::timeout(START, self.0.list_all_tools()).await;
        let all =
            all.map_err(|_| "did not list its tools in time".to_string())?.map_err(|e| e.to_string())?;
        all.into_iter().map(|tool| serde_json::to_value(tool).map_err(|e| e.to_string())).collect()
    }

    /// Calls a tool. Gives the protocol's result as JSON: `content`, `isError`, `structuredContent`.
    pub async fn call(&self, tool: &str, arguments: Map<String, Value>) -> Result<Value, String> {
        let params = CallToolRequestParams::new(tool.to_string()).with_arguments(arguments);
        let result = tokio::time::timeout(CALL, self.0.call_tool(params)).await;
        let result = result.map_err(|_| format!("no result within {} s", CALL.as_secs()))?;
        serde_json::to_value(result.map_err(|e| e.to_string())?).map_err(|e| e.to_string())
    }
}

type Running = RunningService<RoleClient, ClientConfig>;

fn about() -> ClientConfig {
    let mut config = ClientConfig::default();
    config.client_info.name = "octet".into();
    config.client_info.version = env!("CARGO_PKG_VERSION").into();
    config
}

async fn program(server: &Server) -> Result<Running, String> {
    let Reach::Program { command, args, env, cwd } = &server.reach else {
        unreachable!("asked for a program")
    };
    let mut program = tokio::process::Command::new(command);
    program.args(args).envs(env).kill_on_drop(true);
    if let Some(folder) = cwd {
        program.current_dir(folder);
    }
    // What it logs would stand in the midst of an answer in the terminal.
    let (process, _) = TokioChildProcess::builder(program)
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| format!("cannot start '{command}': {e}"))?;
    about().serve(process).await.map_err(|e| format!("'{command}' does not answer as an MCP server: {e}"))
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
