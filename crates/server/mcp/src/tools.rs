//! All tools of all servers, under names that models can call.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;

use crate::client::Client;
use crate::servers::{Server, Servers};

/// Longest result that a model is given; the rest is cut off, and that is said.
const RESULT_CHARS_MAX: usize = 200_000;
/// Tools of one server.
const TOOLS_MAX: usize = 512;
/// Longest name of a function, by OpenAI's rules.
const NAME_CHARS_MAX: usize = 64;
/// Longest description that a model is given.
const DESCRIPTION_CHARS_MAX: usize = 4000;

/// Why a call gave no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no tool of that name.
    #[error("there is no tool '{0}'; the list of tools names those that there are")]
    Unknown(String),
    /// Its server cannot be reached, or failed.
    #[error("MCP server '{server}': {why}")]
    Server {
        /// The server's name.
        server: String,
        /// What went wrong.
        why: String,
    },
}

/// A tool, as models see it.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// The name that models call: its own, or `server_name` where two servers have the same.
    pub name: String,
    /// The server's name.
    pub server: String,
    /// Its own name there.
    pub own_name: String,
    /// What it does.
    pub description: String,
    /// JSON schema of its arguments.
    pub schema: Value,
    /// It runs without asking the user.
    pub allowed: bool,
}

impl Tool {
    /// The tool as requests in OpenAI's form name it.
    pub fn definition(&self) -> Value {
        let function = json!({"name": self.name, "description": self.description, "parameters": self.schema});
        json!({"type": "function", "function": function})
    }
}

/// A server, and whether it can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub server: String,
    /// How many tools it has.
    pub tools: usize,
    /// Why it cannot be used.
    pub error: Option<String>,
}

/// What a tool gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its text.
    pub text: String,
    /// The tool says that it failed; the text says how.
    pub failed: bool,
}

/// An open connection, and the server's tools.
type Open = (Arc<Client>, Arc<Vec<Value>>);

/// A server, and its connection once there is one.
struct Connection {
    server: Server,
    open: Mutex<Option<Open>>,
}

impl Connection {
    /// The connection and its tools; made if there is none, or the one there was has ended.
    async fn get(&self) -> Result<(Arc<Client>, Arc<Vec<Value>>), String> {
        let mut open = self.open.lock().await;
        if let Some((client, tools)) = open.as_ref().filter(|(client, _)| client.is_open()) {
            return Ok((Arc::clone(client), Arc::clone(tools)));
        }
        *open = None;
        let client = Arc::new(Client::connect(&self.server).await?);
        let mut tools = client.tools().await?;
        tools.truncate(TOOLS_MAX);
        let made = (client, Arc::new(tools));
        tracing::info!("MCP server '{}': {} tools", self.server.name, made.1.len());
        *open = Some((Arc::clone(&made.0), Arc::clone(&made.1)));
        Ok(made)
    }
}

/// The tools of all servers.
pub struct Tools {
    servers: Vec<Connection>,
    /// As they were listed last.
    known: Mutex<Vec<Tool>>,
}

impl Tools {
    /// Starts nothing yet.
    pub fn new(servers: Servers) -> Self {
        let connection = |server| Connection { server, open: Mutex::default() };
        Self { servers: servers.0.into_iter().map(connection).collect(), known: Mutex::default() }
    }

    /// Whether no server is named.
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// Starts or reaches all servers that are not yet, and lists their tools. The servers that failed say why.
    pub async fn list(&self) -> (Vec<Listed>, Vec<Tool>) {
        let (mut servers, mut tools) = (Vec::new(), Vec::new());
        // At once: one after the other would add up what each takes to start.
        let reached = join_all(self.servers.iter().map(Connection::get)).await;
        for (connection, got) in self.servers.iter().zip(reached) {
            let server = connection.server.name.clone();
            match got {
                Ok((_, all)) => {
                    servers.push(Listed { server, tools: all.len(), error: None });
                    tools.extend(all.iter().filter_map(|t| tool(&connection.server, t)));
                }
                Err(why) => servers.push(Listed { server, tools: 0, error: Some(why) }),
            }
        }
        name(&mut tools);
        *self.known.lock().await = tools.clone();
        (servers, tools)
    }

    /// Calls the tool that models call `name`.
    pub async fn call(&self, name: &str, arguments: Map<String, Value>) -> Result<Answer, Error> {
        let find = |all: &[Tool]| all.iter().find(|t| t.name == name).cloned();
        let known = find(&self.known.lock().await);
        let tool = match known {
            Some(tool) => tool,
            None => {
                find(&self.list().await.1).ok_or_else(|| Error::Unknown(name.chars().take(100).collect()))?
            }
        };
        let failed = |why| Error::Server { server: tool.server.clone(), why };
        let connection = self.servers.iter().find(|c| c.server.name == tool.server);
        let connection = connection.ok_or_else(|| Error::Unknown(name.into()))?;
        let (client, _) = connection.get().await.map_err(failed)?;
        let result = client.call(&tool.own_name, arguments).await.map_err(failed)?;
        Ok(answer(&result))
    }
}

fn tool(server: &Server, value: &Value) -> Option<Tool> {
    let own_name = value.get("name")?.as_str()?.to_string();
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    let schema = value.get("inputSchema").filter(|s| s.is_object()).cloned();
    Some(Tool {
        name: called(&own_name),
        server: server.name.clone(),
        own_name,
        description: text("description").chars().take(DESCRIPTION_CHARS_MAX).collect(),
        schema: schema.unwrap_or_else(|| json!({"type": "object", "properties": {}})),
        allowed: server.allowed,
    })
}

/// A name by OpenAI's rules: letters, digits, `_` and `-`.
fn called(name: &str) -> String {
    let fits = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
    name.chars().map(fits).take(NAME_CHARS_MAX).collect()
}

/// Makes names unique: first with the server's name in front, then with a number behind.
fn name(tools: &mut [Tool]) {
    let mut count = std::collections::HashMap::new();
    for tool in tools.iter() {
        *count.entry(tool.name.clone()).or_insert(0) += 1;
    }
    let mut taken = HashSet::new();
    for tool in tools {
        if count.get(&tool.name) != Some(&1) {
            tool.name = called(&format!("{}_{}", tool.server, tool.own_name));
        }
        let base = tool.name.clone();
        for n in 2.. {
            if taken.insert(tool.name.clone()) {
                break;
            }
            let end = format!("_{n}");
            tool.name = base.chars().take(NAME_CHARS_MAX - end.len()).collect::<String>() + &end;
        }
    }
}

/// The protocol's result as text.
fn answer(result: &Value) -> Answer {
    let parts = result.get("content").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let part = |p: &Value| match p.get("type").and_then(Value::as_str) {
        Some("text") => p.get("text").and_then(Value::as_str).unwrap_or_default().to_string(),
        // The model reads no pictures from tools; their data would fill its context.
        Some(kind @ ("image" | "audio")) => format!("[{kind}]"),
        _ => p.to_string(),
    };
    let mut text = parts.iter().map(part).collect::<Vec<_>>().join("\n");
    if text.is_empty() {
        text = result.get("structuredContent").map_or_else(String::new, Value::to_string);
    }
    if let Some((at, _)) = text.char_indices().nth(RESULT_CHARS_MAX) {
        text.truncate(at);
        text.push_str("\n[cut off]");
    }
    Answer { text, failed: result.get("isError") == Some(&Value::Bool(true)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::Reach;

    fn server(name: &str) -> Server {
        let reach = Reach::Http { url: "http://127.0.0.1:9/".into(), headers: Default::default() };
        Server { name: name.into(), reach, allowed: false }
    }

    #[test]
    fn names_are_unique_and_fit_openai() {
        let of = |s: &str, t: &str| tool(&server(s), &json!({"name": t})).unwrap();
        let mut all = [of("a b", "get"), of("c", "get"), of("c", "put.it"), of("c", "x"), of("c", "x")];
        name(&mut all);
        let names: Vec<&str> = all.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["a_b_get", "c_get", "put_it", "c_x", "c_x_2"]);
        assert_eq!(all[2].own_name, "put.it");
    }

    #[test]
    fn results_become_text() {
        let text = |v: Value| answer(&v);
        let two =
            text(json!({"content": [{"type": "text", "text": "a"}, {"type": "image", "data": "AAAA"}]}));
        assert_eq!(two, Answer { text: "a\n[image]".into(), failed: false });
        let failed = text(json!({"content": [{"type": "text", "text": "no"}], "isError": true}));
        assert!(failed.failed);
        assert_eq!(text(json!({"content": [], "structuredContent": {"n": 1}})).text, r#"{"n":1}"#);
        let long =
            text(json!({"content": [{"type": "text", "text": "ä".repeat(RESULT_CHARS_MAX + 5)}]})).text;
        assert!(long.ends_with("[cut off]") && long.chars().count() < RESULT_CHARS_MAX + 20);
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_says_so() {
        let program = Reach::Program {
            command: "octet-no-such-program".into(),
            args: Vec::new(),
            env: Default::default(),
            cwd: None,
        };
        let tools = Tools::new(Servers(vec![Server { name: "p".into(), reach: program, allowed: false }]));
        let (listed, all) = tools.list().await;
        assert!(all.is_empty() && listed[0].error.as_ref().unwrap().contains("octet-no-such-program"));
        assert_eq!(tools.call("x", Map::new()).await, Err(Error::Unknown("x".into())));
    }
}
