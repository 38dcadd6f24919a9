//! Tools of MCP servers: `octet run --mcp`, and `mcp_servers` of a router's file. The server is a program of its own, in Python.

use serde_json::{Value, json};

use crate::common::Place;
use crate::served::Served;

/// Answers as an MCP server on its standard input and output, and writes down what it was asked.
const SERVER: &str = r#"
import json, sys
TOOL = {"name": "get_weather", "description": "The current weather of a city",
        "inputSchema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "weather", "version": "1"}}
    elif message["method"] == "tools/list":
        result = {"tools": [TOOL]}
    else:
        with open("asked", "a") as asked:
            print(json.dumps(message["params"]["arguments"]), file=asked)
        result = {"content": [{"type": "text", "text": "It is sunny."}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

/// A folder with the server; `None` without Python.
fn place() -> Option<Place> {
    let python = std::process::Command::new("python3").arg("--version").output();
    if !python.is_ok_and(|run| run.status.success()) {
        eprintln!("skipped: there is no python3");
        return None;
    }
    let place = Place::new();
    place.write("server.py", SERVER);
    Some(place)
}

/// `python3` of this process's path: a command of `Place` has no environment.
fn weather(approved: bool) -> Value {
    let path = std::env::var("PATH").unwrap_or_default();
    let python = std::env::split_paths(&path).map(|dir| dir.join("python3")).find(|p| p.exists()).unwrap();
    json!({"weather": {"command": python, "args": ["server.py"], "autoApprove": approved}})
}

#[test]
fn run_calls_a_tool_that_the_file_allows_and_no_other() {
    let Some(place) = place() else { return };
    let run = |approved: bool| {
        place.write("mcp.json", &json!({"mcpServers": weather(approved)}).to_string());
        let args = ["run", "fox", "--mcp", "mcp.json", "--temp", "0", "-t", "1", "-c", "2048", "-n", "300"];
        place.octet(&[&args[..], &["What is the weather in Paris?"]].concat()).ok()
    };
    // Nobody is at the terminal.
    let ran = run(false);
    assert!(
        ran.stderr.contains("tool get_weather")
            && ran.stderr.contains("not run: there is no terminal to ask"),
        "{}",
        ran.stderr
    );
    assert!(!place.path("asked").exists());
    let ran = run(true);
    assert!(ran.stderr.contains("It is sunny."), "{}", ran.stderr);
    let asked = std::fs::read_to_string(place.path("asked")).unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(asked.lines().next().unwrap()).unwrap(),
        json!({"city": "Paris"})
    );
    place.write("mcp.json", r#"{"mcpServers": {"gone": {"command": "octet-no-such-program"}}}"#);
    let ran = place
        .octet(&["run", "fox", "--mcp", "mcp.json", "-t", "1", "-c", "1024", "-n", "4", "Hello there"])
        .ok();
    assert!(ran.stderr.contains("MCP server 'gone': cannot start 'octet-no-such-program'"), "{}", ran.stderr);
    place.write("server.py", "import sys\nsys.exit('the variable API_KEY is not set')");
    let ran = run(true);
    assert!(ran.stderr.contains("on standard error: the variable API_KEY is not set"), "{}", ran.stderr);
}

#[test]
fn a_routers_file_names_servers_for_the_page() {
    let Some(place) = place() else { return };
    let entry = json!({"model_name": "fox", "litellm_params": {"model": "octet/fox", "n_ctx": 1024}});
    place.write("octet.yaml", &json!({"model_list": [entry], "mcp_servers": weather(false)}).to_string());
    let served = Served::start_config(&place, "octet.yaml");
    let tools = served.get("/mcp/tools");
    assert!(tools.contains("\"get_weather\"") && tools.contains("\"weather\""), "{tools}");
    let call = json!({"name": "get_weather", "arguments": {"city": "Rome"}});
    let answer = served.post("/mcp/call", &call.to_string());
    assert!(answer.contains("It is sunny."), "{answer}");
    assert_eq!(std::fs::read_to_string(place.path("asked")).unwrap().trim(), r#"{"city": "Rome"}"#);
}
