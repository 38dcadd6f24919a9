//! What the server keeps and runs for the chat page: its conversations (`--page-store`) and MCP servers (`--mcp`).

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use octet_config::{Config, printable};
use octet_conversations::Store;
use octet_mcp::{Servers, Tools};

use super::args::ServerArgs;
use crate::chat::read;
use crate::settings::{self, Settings};
use crate::stderr::note;

/// The file's name in the user's data folder.
const FILE: &str = "conversations.db";

/// The store of the page's conversations. `is_open`: no key is needed.
pub fn store(
    args: &ServerArgs,
    settings: &Settings,
    address: SocketAddr,
    is_open: bool,
) -> anyhow::Result<Option<Arc<Store>>> {
    if let Some(path) = &args.page_store {
        if path.as_os_str() == "off" {
            return Ok(None);
        }
        let store = Store::open(path).context("the page's conversations cannot be kept (--page-store)")?;
        return Ok(Some(Arc::new(store)));
    }
    // One user: whoever sits at this machine.
    let Some(folder) = settings.data.as_ref().filter(|_| is_open && address.ip().is_loopback()) else {
        return Ok(None);
    };
    match Store::open(&folder.join(FILE)) {
        Ok(store) => Ok(Some(Arc::new(store))),
        Err(e) => {
            note!("note: the page's conversations stay in the browser: {e}");
            Ok(None)
        }
    }
}

/// The tools of the MCP servers in a file with `mcpServers`, and of `mcp_servers` in a router's file.
pub fn tools(file: Option<&Path>, config: Option<&Config>) -> anyhow::Result<Option<Arc<Tools>>> {
    let mut servers = Servers::default();
    if let Some(file) = file {
        let text = read(file).context("the MCP servers cannot be read (--mcp)")?;
        let found = Servers::parse(&text, &settings::lookup);
        servers = found.with_context(|| format!("{}", file.display()))?;
    }
    // LiteLLM's file may have kinds of servers that are not supported here: they are left out, not refused.
    for (name, server) in config.and_then(|c| c.mcp_servers.as_object()).into_iter().flatten() {
        let one = serde_json::Map::from_iter([(name.clone(), server.clone())]);
        match Servers::read(&one.into(), &settings::lookup) {
            Ok(read) => servers.0.extend(read.0),
            Err(e) => note!("note: mcp_servers: {e}; it is left out"),
        }
    }
    let tools = Tools::new(servers);
    Ok((!tools.is_empty()).then(|| Arc::new(tools)))
}

/// Starts the MCP servers, so that the first question need not wait for them, and says which failed. The log names the others.
pub async fn start(tools: &Tools) {
    for server in tools.list().await.0 {
        if let Some(why) = server.error {
            note!("warning: MCP server '{}': {}", printable(&server.server), printable(&why));
        }
    }
}
