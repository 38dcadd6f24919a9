//! Tools of the operator's MCP servers, for the page: which there are, and calls of them. The clients are in `octet-mcp`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use octet_api::{ApiError, ErrorKind};
use octet_mcp::{Error, Tools};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::call::{Call, call};
use super::error::json as json_response;
use crate::app::App;

/// `GET /mcp/tools`: the servers and their tools. Servers that have not run are started.
pub async fn list(State(app): State<Arc<App>>) -> Response {
    let Some(tools) = &app.options.mcp else { return json_response(200, r#"{"servers": [], "tools": []}"#) };
    let (servers, tools) = tools.list().await;
    let server = |s: octet_mcp::Listed| match s.error {
        Some(error) => json!({"name": s.server, "tools": s.tools, "error": error}),
        None => json!({"name": s.server, "tools": s.tools}),
    };
    let tool = |t: octet_mcp::Tool| {
        json!({
            "name": t.name, "server": t.server, "description": t.description, "parameters": t.schema, "allowed": t.allowed,
        })
    };
    let servers: Vec<Value> = servers.into_iter().map(server).collect();
    let tools: Vec<Value> = tools.into_iter().map(tool).collect();
    json_response(200, json!({"servers": servers, "tools": tools}).to_string())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    name: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

/// `POST /mcp/call`: calls a tool. What goes wrong in it is a result too: the model may do better next time.
pub async fn call_tool(State(app): State<Arc<App>>, request: Request) -> Response {
    call(app, request, |c: Call| async move {
        let (body, _share) = c.body.into_parts();
        let asked: Asked = serde_json::from_slice(&body)
            .map_err(|e| ApiError::new(ErrorKind::InvalidRequest, format!("the body is not a call: {e}")))?;
        let unknown = || {
            ApiError::new(
                ErrorKind::NotFound,
                Error::Unknown(asked.name.chars().take(100).collect()).to_string(),
            )
        };
        let tools: &Tools = c.app.options.mcp.as_deref().ok_or_else(unknown)?;
        let answer = match tools.call(&asked.name, asked.arguments.clone()).await {
            Ok(answer) => json!({"text": answer.text, "failed": answer.failed}),
            Err(Error::Unknown(_)) => return Err(unknown()),
            Err(e) => json!({"text": e.to_string(), "failed": true}),
        };
        Ok(json_response(200, answer.to_string()))
    })
    .await
}
