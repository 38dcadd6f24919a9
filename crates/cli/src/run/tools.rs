//! Tools of MCP servers in the terminal (`--mcp`): shows each call, asks before a tool runs for the first time, remembers what always may
//! run.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use octet_config::printable;
use octet_mcp::Tools;
use octet_parser::ToolCall;
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use super::session::call_id;
use crate::settings::Settings;
use crate::stderr::note;

/// The file of tools that may always run, in the user's data folder.
const FILE: &str = "mcp-allowed.json";
/// Turns of tools in a row, before an answer.
pub const TURNS_MAX: usize = 12;
/// How much of a result is shown.
const SHOWN_CHARS: usize = 300;

/// Why a call is not run.
struct Refusal {
    /// For the user.
    shown: &'static str,
    /// For the model.
    told: &'static str,
}

const DENIED: Refusal = Refusal {
    shown: "not run: you did not allow it, and the model is told so",
    told: "the user did not allow this call",
};

/// The tools, and which may run without a question.
pub struct Toolbox {
    tools: Arc<Tools>,
    all: Vec<octet_mcp::Tool>,
    runtime: Runtime,
    /// `server/tool`.
    allowed: BTreeSet<String>,
    file: Option<PathBuf>,
}

impl Toolbox {
    /// Starts the servers of a file with `mcpServers`. Those that fail are named, and left out.
    pub fn open(file: &Path, settings: &Settings) -> anyhow::Result<Option<Self>> {
        let Some(tools) = crate::serve::page::tools(Some(file), None)? else { return Ok(None) };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (servers, all) = runtime.block_on(tools.list());
        for server in servers {
            if let Some(why) = server.error {
                note!("warning: MCP server '{}': {}", printable(&server.server), printable(&why));
            }
        }
        let file = settings.data.as_ref().map(|data| data.join(FILE));
        // A damaged file allows nothing.
        let kept = file.as_ref().and_then(|f| std::fs::read_to_string(f).ok());
        let allowed = kept.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        Ok(Some(Self { tools, all, runtime, allowed, file }))
    }

    /// Their names with their servers', for people: `get_weather (weather)`.
    pub fn names(&self) -> Vec<String> {
        let name = |t: &octet_mcp::Tool| format!("{} ({})", printable(&t.name), printable(&t.server));
        self.all.iter().map(name).collect()
    }

    /// The tools as the template shows them to the model.
    pub fn definitions(&self) -> Vec<Value> {
        self.all.iter().map(octet_mcp::Tool::definition).collect()
    }

    /// The tools as the parser recognises their calls.
    pub fn recognised(&self) -> Vec<octet_parser::Tool> {
        let one =
            |t: &octet_mcp::Tool| octet_parser::Tool { name: t.name.clone(), parameters: t.schema.clone() };
        self.all.iter().map(one).collect()
    }

    /// Runs the calls of an answer; their results as messages.
    pub fn answer(&mut self, calls: &[ToolCall]) -> Vec<Value> {
        let message = |call: &ToolCall, text: String| json!({"role": "tool", "tool_call_id": call_id(call), "name": call.name, "content": text});
        calls.iter().map(|call| message(call, self.result(call))).collect()
    }

    fn result(&mut self, call: &ToolCall) -> String {
        note!(
            "{}",
            console::style(format!("tool {} {}", call.name, shortened(&call.arguments))).dim().for_stderr()
        );
        let Ok(arguments) = serde_json::from_str::<Map<String, Value>>(&call.arguments) else {
            return "the arguments are not a JSON object".into();
        };
        if let Err(Refusal { shown, told }) = self.may_run(call) {
            note!("{shown}");
            return told.into();
        }
        let text = match self.runtime.block_on(self.tools.call(&call.name, arguments)) {
            Ok(answer) => answer.text,
            Err(e) => e.to_string(),
        };
        note!("{}", console::style(shortened(&text)).dim().for_stderr());
        text
    }

    /// Asks, unless the operator's file or an earlier answer allows the tool.
    fn may_run(&mut self, call: &ToolCall) -> Result<(), Refusal> {
        let unknown =
            Refusal { shown: "not run: no server has this tool", told: "there is no tool of this name" };
        let Some(tool) = self.all.iter().find(|t| t.name == call.name) else { return Err(unknown) };
        let id = format!("{}/{}", tool.server, tool.own_name);
        if tool.allowed || self.allowed.contains(&id) {
            return Ok(());
        }
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return Err(Refusal {
                shown: "not run: there is no terminal to ask for permission in; \"autoApprove\": true in the file lets a \
                        server's tools run without a question",
                ..DENIED
            });
        }
        let mut out = std::io::stderr().lock();
        // Without a terminal that can be written there is no yes.
        let asked = write!(out, "Run {} of {}? [y]es, [a]lways, [N]o: ", tool.name, tool.server)
            .and_then(|()| out.flush());
        let mut line = String::new();
        if asked.is_err() || std::io::stdin().read_line(&mut line).is_err() {
            return Err(DENIED);
        }
        match line.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            "a" | "always" => {
                self.allowed.insert(id);
                self.keep();
                Ok(())
            }
            _ => Err(DENIED),
        }
    }

    fn keep(&self) {
        let Some(file) = &self.file else { return };
        let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        let kept = folder.and_then(|()| std::fs::write(file, json!(self.allowed).to_string()));
        if let Err(e) = kept {
            note!("note: {}: {e}; you will be asked again", file.display());
        }
    }
}

/// A text for the terminal: one line, without control characters, not too long.
fn shortened(text: &str) -> String {
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut out: String = printable(&line).chars().take(SHOWN_CHARS).collect();
    if line.chars().count() > SHOWN_CHARS {
        out.push('…');
    }
    out
}
