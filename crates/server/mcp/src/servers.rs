//! The file that names the servers: the `mcpServers` object that Claude Desktop, Cursor and others read.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Servers in one file.
const SERVERS_MAX: usize = 64;
/// Length of a server's name.
const NAME_CHARS_MAX: usize = 48;

/// What is wrong with a file, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Problem(pub String);

/// The servers of a file, in its order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Servers(pub Vec<Server>);

/// One MCP server.
#[derive(Clone, PartialEq)]
pub struct Server {
    /// Its name in the file.
    pub name: String,
    /// How it is reached.
    pub reach: Reach,
    /// Whether its tools run without asking the user (`"autoApprove": true`).
    pub allowed: bool,
}

/// How a server is reached.
#[derive(Clone, PartialEq)]
pub enum Reach {
    /// A program that speaks on its standard input and output.
    Program {
        /// The program.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Variables besides those of this process.
        env: BTreeMap<String, String>,
        /// The folder that it runs in; this process's by default.
        cwd: Option<String>,
    },
    /// An address of streamable HTTP.
    Http {
        /// The address.
        url: String,
        /// Further headers of each request.
        headers: BTreeMap<String, String>,
    },
}

/// Values of variables and headers may be secret.
impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = match &self.reach {
            Reach::Program { command, .. } => command,
            Reach::Http { url, .. } => url,
        };
        write!(f, "Server({}: {how})", self.name)
    }
}

impl Servers {
    /// Reads a file's text. `lookup` gives the values of `${NAME}` and `${env:NAME}` in it.
    pub fn parse(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self, Problem> {
        let root: Value = serde_json::from_str(text).map_err(|e| Problem(format!("not valid JSON: {e}")))?;
        // VS Code's file names them `servers`.
        let all = root.get("mcpServers").or_else(|| root.get("servers"));
        let all = all.ok_or_else(|| Problem("has no object 'mcpServers'".into()))?;
        Self::read(all, lookup)
    }

    /// Reads the object itself: names and servers.
    pub fn read(all: &Value, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self, Problem> {
        let Value::Object(all) = all else { return Err(Problem("the MCP servers are not an object".into())) };
        if all.len() > SERVERS_MAX {
            return Err(Problem(format!("more than {SERVERS_MAX} MCP servers")));
        }
        let on = all.iter().filter(|(_, server)| server.get("disabled") != Some(&Value::Bool(true)));
        on.map(|(name, server)| one(name, server, lookup)).collect::<Result<_, _>>().map(Self)
    }
}

/// One entry of the object.
struct Entry<'a> {
    name: &'a str,
    fields: &'a Map<String, Value>,
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

fn one(name: &str, server: &Value, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Server, Problem> {
    let wrong = |what: &str| Problem(format!("MCP server '{name}': {what}"));
    if name.is_empty()
        || name.chars().count() > NAME_CHARS_MAX
        || name.contains(|c: char| c.is_control() || c == '/')
    {
        return Err(wrong(&format!("a name has 1 to {NAME_CHARS_MAX} characters, without '/'")));
    }
    let Value::Object(fields) = server else { return Err(wrong("is not an object")) };
    let entry = Entry { name, fields, lookup };
    let kind = entry.text("type")?.or(entry.text("transport")?).unwrap_or_default();
    let (command, url) = (entry.text("command")?, entry.text("url")?);
    let reach = match (command, url) {
        (Some(_), Some(_)) => return Err(wrong("has both 'command' and 'url'")),
        (None, None) => return Err(wrong("needs a 'command' or a 'url'")),
        (Some(command), None) => Reach::Program {
            command,
            args: entry.texts("args")?,
            env: entry.map("env")?,
            cwd: entry.text("cwd")?,
        },
        (None, Some(_)) if kind == "sse" => {
            return Err(wrong(
                "uses the old SSE transport, which is not supported; use its streamable HTTP address",
            ));
        }
        (None, Some(url)) if url.starts_with("http://") || url.starts_with("https://") => {
            Reach::Http { url, headers: entry.map("headers")? }
        }
        (None, Some(_)) => return Err(wrong("its 'url' must begin with http:// or https://")),
    };
    let allowed = matches!(fields.get("autoApprove"), Some(Value::Bool(true)));
    Ok(Server { name: name.into(), reach, allowed })
}

impl Entry<'_> {
    fn wrong(&self, key: &str, what: &str) -> Problem {
        Problem(format!("MCP server '{}': '{key}' {what}", self.name))
    }

    /// A text with its variables replaced.
    fn filled(&self, key: &str, value: &Value) -> Result<String, Problem> {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(n) => n.to_string(),
            Value::Bool(b) => b.to_string(),
            _ => return Err(self.wrong(key, "must be a text")),
        };
        let mut out = String::new();
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once("${") {
            let (name, behind) =
                after.split_once('}').ok_or_else(|| self.wrong(key, "has a '${' without '}'"))?;
            let name = name.strip_prefix("env:").unwrap_or(name);
            let (name, default) = name.split_once(":-").map_or((name, None), |(n, d)| (n, Some(d)));
            let value = (self.lookup)(name).or_else(|| default.map(String::from));
            out.push_str(before);
            out.push_str(
                &value.ok_or_else(|| {
                    self.wrong(key, &format!("needs the variable {name}, which is not set"))
                })?,
            );
            rest = behind;
        }
        out.push_str(rest);
        Ok(out)
    }

    fn text(&self, key: &str) -> Result<Option<String>, Problem> {
        match self.fields.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => self.filled(key, value).map(Some),
        }
    }

    fn texts(&self, key: &str) -> Result<Vec<String>, Problem> {
        match self.fields.get(key) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(all)) => all.iter().map(|v| self.filled(key, v)).collect(),
            Some(_) => Err(self.wrong(key, "must be a list of texts")),
        }
    }

    fn map(&self, key: &str) -> Result<BTreeMap<String, String>, Problem> {
        match self.fields.get(key) {
            None | Some(Value::Null) => Ok(BTreeMap::new()),
            Some(Value::Object(all)) => {
                all.iter().map(|(name, v)| Ok((name.clone(), self.filled(key, v)?))).collect()
            }
            Some(_) => Err(self.wrong(key, "must be an object of texts")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Servers, String> {
        let lookup = |name: &str| (name == "TOKEN").then(|| "secret".to_string());
        Servers::parse(text, &lookup).map_err(|e| e.0)
    }

    #[test]
    fn the_usual_file_is_read() {
        let text = r#"{"mcpServers": {
            "files": {"command": "npx", "args": ["-y", "server-filesystem", "/srv"], "env": {"KEY": "${TOKEN}", "N": 1}},
            "wiki": {"type": "http", "url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${env:TOKEN}"}},
            "off": {"command": "x", "disabled": true},
            "free": {"command": "y", "args": ["${NONE:-z}"], "autoApprove": true}}}"#;
        let Servers(all) = read(text).unwrap();
        assert_eq!(all.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["files", "wiki", "free"]);
        let Reach::Program { command, args, env, .. } = &all[0].reach else { panic!("a program") };
        assert_eq!(
            (command.as_str(), args.len(), env["KEY"].as_str(), env["N"].as_str()),
            ("npx", 3, "secret", "1")
        );
        let Reach::Http { headers, .. } = &all[1].reach else { panic!("an address") };
        assert_eq!(headers["Authorization"], "Bearer secret");
        let Reach::Program { args, .. } = &all[2].reach else { panic!("a program") };
        assert!(all[2].allowed && !all[0].allowed && args[0] == "z");
        assert!(!format!("{all:?}").contains("secret"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("[", "not valid JSON"),
            ("{}", "mcpServers"),
            (r#"{"mcpServers": []}"#, "not an object"),
            (r#"{"mcpServers": {"a": 1}}"#, "'a': is not an object"),
            (r#"{"mcpServers": {"a": {}}}"#, "'command' or a 'url'"),
            (r#"{"mcpServers": {"a": {"command": "x", "url": "http://y"}}}"#, "both"),
            (r#"{"mcpServers": {"a": {"command": ["x"]}}}"#, "'command' must be a text"),
            (r#"{"mcpServers": {"a": {"command": "x", "args": "y"}}}"#, "'args' must be a list"),
            (r#"{"mcpServers": {"a": {"url": "ftp://y"}}}"#, "http://"),
            (r#"{"mcpServers": {"a": {"url": "http://y", "type": "sse"}}}"#, "SSE"),
            (r#"{"mcpServers": {"a": {"command": "${NONE}"}}}"#, "NONE, which is not set"),
            (r#"{"mcpServers": {"a/b": {"command": "x"}}}"#, "a name has"),
        ] {
            let wrong = read(text).unwrap_err();
            assert!(wrong.contains(part), "{text}: {wrong}");
        }
    }
}
