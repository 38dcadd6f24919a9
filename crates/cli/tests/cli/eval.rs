//! `octet eval` against mock servers, right and wrong ones, and code that would do harm.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use crate::common::Place;
use serde_json::{Value, json};

/// What a mock answers to a request: a text, or a list of calls.
type Answer = dyn Fn(&Value) -> Value + Send + Sync;

/// An OpenAI-compatible server; its address.
fn mock(answer: impl Fn(&Value) -> Value + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let answer: Arc<Answer> = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = answer.clone();
            // A client that disconnects ends its connection's thread.
            std::thread::spawn(move || serve(stream.unwrap(), answer.as_ref()));
        }
    });
    url
}

fn serve(mut stream: TcpStream, answer: &Answer) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let length =
            head.lines().find_map(|l| l.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body)?;
        let (kind, text) = match head.starts_with("GET ") {
            true => ("application/json", r#"{"data":[{"id":"mock"}]}"#.to_string()),
            false => ("text/event-stream", events(&answer(&serde_json::from_slice(&body)?))),
        };
        let length = text.len();
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{text}")?;
    }
}

fn events(answer: &Value) -> String {
    let delta = match answer {
        Value::Array(calls) => {
            let call = |(i, c): (usize, &Value)| json!({"index": i, "function": {"name": c[0], "arguments": c[1].to_string()}});
            json!({"tool_calls": calls.iter().enumerate().map(call).collect::<Vec<_>>()})
        }
        text => json!({"content": text}),
    };
    let events = [
        json!({"choices": [{"delta": delta}]}),
        json!({"choices": [{"delta": {}, "finish_reason": "stop"}]}),
    ];
    events.iter().map(|e| format!("data: {e}\n\n")).collect::<String>() + "data: [DONE]\n\n"
}

/// The last user's message of a request.
fn asked(body: &Value) -> String {
    let user = body["messages"].as_array().unwrap().iter().rfind(|m| m["role"] == "user").unwrap();
    user["content"].as_str().unwrap().to_string()
}

/// A cache that keeps all six rules of the suite.
const CACHE: &str = "
class LRUCache:
    def __init__(self, capacity, clock):
        if capacity < 0:
            raise ValueError('negative')
        self.capacity, self.clock, self.entries = capacity, clock, {}

    def _live(self, key):
        entry = self.entries.get(key)
        if entry is not None and entry[1] is not None and entry[1] <= self.clock():
            del self.entries[key]
            return None
        return entry

    def get(self, key, default=None):
        entry = self._live(key)
        if entry is None:
            return default
        del self.entries[key]
        self.entries[key] = entry
        return entry[0]

    def put(self, key, value, ttl=None):
        if self.capacity == 0:
            return
        self.entries.pop(key, None)
        if len(self.entries) >= self.capacity:
            for other in list(self.entries):
                self._live(other)
        while len(self.entries) >= self.capacity:
            del self.entries[next(iter(self.entries))]
        self.entries[key] = (value, None if ttl is None else self.clock() + ttl)

    def __len__(self):
        return sum(1 for key in list(self.entries) if self._live(key) is not None)

    def __contains__(self, key):
        return self._live(key) is not None
";

fn block(code: &str) -> Value {
    format!("Here it is:\n```python\n{code}\n```\n").into()
}

/// Right answers to the built-in suite.
fn right(body: &Value) -> Value {
    let text = asked(body);
    let number_after = |mark: &str| {
        let (_, after) = text.split_once(mark).unwrap_or_else(|| panic!("no '{mark}' in {text}"));
        after.trim().split(|c: char| !c.is_ascii_digit()).next().unwrap().parse::<u64>().unwrap()
    };
    let has = |word: &str| text.contains(word);
    if has("LRUCache") {
        block(CACHE)
    } else if has("What does this Python program print") {
        let printed = [
            ("* 3", "[[7, 0], [7, 0], [9, 0, 1]]"),
            ("bag=[]", "[1, 3] [2] [1, 3]"),
            ("c = a[:]", "[1, 2, 3, 4, 5] [1, 2, 3, 4] [1, 2, 3, 6]"),
            ("dict(old)", "{'left': [1, 3], 'right': [2, 5]} {'left': [1, 3], 'right': [4]}"),
            ("lambda", "[[2, 2], [2, 2]]"),
        ];
        let found = printed.iter().find(|(mark, _)| has(mark)).unwrap();
        format!("They share a list.\n\n**Answer:** `{}`", found.1).into()
    } else if has("Two trains") {
        let hours = number_after("trains are") as f64
            / (number_after("one at") + number_after("the other at")) as f64;
        format!("They meet after {hours} h.\nAnswer: {} km", hours * number_after("always at") as f64).into()
    } else if has("Okafor") {
        assert_eq!(body["response_format"]["type"], "json_schema");
        let items = [json!({"name": "chairs", "count": 12}), json!({"name": "tables", "count": 3})];
        json!({"customer": "Mrs Okafor", "items": items, "urgent": true}).to_string().into()
    } else if has("Lindqvist") {
        let items = [json!({"name": "lamps", "count": 2}), json!({"name": "candles", "count": 12})];
        json!({"customer": "Lindqvist", "items": items, "urgent": false}).to_string().into()
    } else if has("Describe the number") {
        let n = number_after("the number");
        let digits: Vec<u32> = n.to_string().chars().filter_map(|c| c.to_digit(10)).collect();
        let object = json!({"number": n, "even": n % 2 == 0, "digits": digits, "next": n + 1});
        format!("```json\n{object}\n```").into()
    } else if has("How warm") {
        let (city, unit) = if has("Bergen") { ("Bergen", "celsius") } else { ("Denver", "fahrenheit") };
        json!([["weather_forecast", {"city": city, "days_from_now": 1, "unit": unit}]])
    } else if has("kitchen light") {
        let light = |room: &str, percent: u64| json!(["set_light", {"room": room, "percent": percent}]);
        json!([
            light("bedroom", number_after("bedroom light to")),
            light("kitchen", number_after("kitchen light to"))
        ])
    } else if has("Just tell me the number") {
        (number_after("What is") + number_after("+")).to_string().into()
    } else if has("are left in the store") {
        let result = body["messages"][2]["content"].as_str().unwrap();
        serde_json::from_str::<Value>(result).unwrap()["left"].to_string().into()
    } else {
        let name = text.split("locker named ").last().unwrap().split('?').next().unwrap();
        format!("Answer: {}", number_after(&format!("locker named {name} is"))).into()
    }
}

fn json_of(place: &Place, args: &[&str]) -> Value {
    // Where Python is: the command has an environment of its own.
    let path = std::env::var("PATH").unwrap();
    serde_json::from_str(&place.octet_with(args, "", &[("PATH", &path)]).ok().stdout).unwrap()
}

fn rows(all: &Value) -> &Vec<Value> {
    all["models"][0]["tasks"].as_array().unwrap()
}

#[test]
fn right_answers_pass_and_wrong_ones_do_not() {
    let (good, bad) = (mock(right), mock(|_| "I do not know.".into()));
    let place = Place::new();
    let all = json_of(&place, &["eval", "--url", &good, "--allow-code", "--json"]);
    for row in rows(&all) {
        let judged = if cfg!(target_os = "linux") || row["task"] != "lru-cache" { 5 } else { 0 };
        assert_eq!((&row["passed"], &row["judged"]), (&json!(judged), &json!(judged)), "{row:#}");
        assert!(row["answer_s_median"].as_f64().is_some() && row["runs"][0]["answer"].is_string(), "{row:#}");
    }
    assert_eq!(rows(&all).len(), 14);
    let low = all["models"][0]["interval_95"][0].as_f64().unwrap();
    assert!(low > 0.94, "{low}");

    // Side by side; code is not run unless that is allowed.
    let both = ["eval", "--url", &good, "--url", &bad, "-r", "2"];
    let table = place.octet(&both).ok().stdout;
    assert!(table.lines().all(|l| l.chars().count() <= 80), "{table}");
    for words in [
        "first:  ",
        "second: ",
        "train-and-bird",
        "2/2",
        "0/2",
        "--allow-code",
        "second - first: -100 points",
    ] {
        assert!(table.contains(words), "no {words} in {table}");
    }
    let all = json_of(&place, &[&both[..], &["--json"]].concat());
    assert_eq!(rows(&all)[0]["not_run"], 2, "{all:#}");
    assert!(all["difference"]["rate"].as_f64().unwrap() < -0.99, "{all:#}");
    assert!(all["models"][1]["tasks"].as_array().unwrap().iter().all(|t| t["passed"] == 0));
    let one = place.octet(&["eval", "--url", &good, "--task", "train", "-r", "1"]).ok().stdout;
    assert!(one.contains("train-and-bird") && !one.contains("needle") && one.contains("21-100%"), "{one}");
}

/// Each rule of the cache has a test that a cache without it does not pass.
#[test]
#[cfg(target_os = "linux")]
fn each_rule_of_the_cache_is_tested() {
    let place = Place::new();
    for (from, to, test) in [
        ("if capacity < 0:", "if False:", "test_capacity_is_checked"),
        ("return default", "return None", "test_get_returns_the_value_or_the_default"),
        (
            "        del self.entries[key]\n        self.entries[key] = entry\n",
            "",
            "test_the_least_recently_used_is_dropped",
        ),
        ("self.entries.pop(key, None)", "pass", "test_put_replaces"),
        ("<= self.clock()", "< self.clock()", "test_entries_expire_on_time"),
        (
            "                self._live(other)",
            "                pass",
            "test_expired_entries_push_nothing_out",
        ),
        (
            "return self._live(key) is not None",
            "return self.get(key, self) is not self",
            "test_length_and_membership",
        ),
        (
            "class LRUCache:",
            "from collections import OrderedDict\nclass LRUCache:",
            "test_it_is_the_models_own",
        ),
    ] {
        let wrong = CACHE.replacen(from, to, 1);
        assert_ne!(wrong, CACHE);
        let url = mock(move |_| block(&wrong));
        let all =
            json_of(&place, &["eval", "--url", &url, "--allow-code", "--task", "lru", "-r", "1", "--json"]);
        let reason = rows(&all)[0]["runs"][0]["reason"].as_str().unwrap_or_else(|| panic!("{test}: {all:#}"));
        assert!(reason.starts_with(test), "{from}: {reason}");
    }
}

/// A suite with one task of code, whose test passes for `answer = 42`.
const CODE: &str = "
name = 'code'
[[task]]
name = 'answer'
prompt = 'Define answer.'
check.python = { defines = 'answer', tests = '''
def test_it():
    assert answer == 42, f'it is {answer}'
''' }
";

/// What a suite's task of code makes of an answer.
#[cfg(target_os = "linux")]
fn judged(place: &Place, code: &str) -> Value {
    let answer = block(code);
    let url = mock(move |_| answer.clone());
    place.write("code.toml", CODE);
    let all =
        json_of(place, &["eval", "--url", &url, "--allow-code", "--suite", "code.toml", "-r", "1", "--json"]);
    rows(&all)[0]["runs"][0].clone()
}

#[test]
#[cfg(target_os = "linux")]
fn code_that_would_do_harm_does_none() {
    let place = Place::new();
    let kept = place.write("kept", "as it was");
    let (kept_at, new_at) = (kept.display().to_string(), place.path("new").display().to_string());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let denied = |what: &str| {
        format!("answer = 0\ntry:\n    {what}\nexcept (PermissionError, ValueError):\n    answer = 42")
    };
    for code in [
        "answer = 42".to_string(),
        "import threading\nout = []\nt = threading.Thread(target=lambda: out.append(42))\nt.start()\nt.join()\nanswer = out[0]".into(),
        "print('\\x1b[2J' * 1000)\nanswer = 42".into(),
        "import os\nanswer = 42 if {'HOME', 'PATH'}.isdisjoint(os.environ) and os.listdir('.') == [] else 0".into(),
        denied(&format!("import _socket; _socket.socket().connect(('127.0.0.1', {port}))")),
        denied("import os; os.fork()"),
        denied("import _posixsubprocess, os; os.posix_spawn('/bin/true', ['true'], {})"),
        denied(&format!("open({kept_at:?}, 'w').write('changed')")),
        denied(&format!("open({kept_at:?}, 'a').write('changed')")),
        denied(&format!("import os; os.remove({kept_at:?})")),
        denied(&format!("import os; os.rename({kept_at:?}, {new_at:?})")),
        denied(&format!("import os; os.truncate({kept_at:?}, 0)")),
        denied(&format!("import os; os.chmod({kept_at:?}, 0)")),
        denied(&format!("import os; os.mkdir({new_at:?})")),
        denied(&format!("import os; os.symlink({kept_at:?}, {new_at:?})")),
        denied("import os; os.kill(os.getppid(), 9)"),
        denied("import os; os.kill(-1, 9)"),
        denied("import os; os.memfd_create('x')"),
        denied("import resource; resource.setrlimit(resource.RLIMIT_CPU, (1 << 30, 1 << 30))"),
        denied("import ctypes, errno; ctypes.set_errno(0); l = ctypes.CDLL(None, use_errno=True); r = l.unshare(0x10000000); e = ctypes.get_errno(); answer = 1\n    if r == -1 and e == errno.EPERM: raise PermissionError"),
    ] {
        assert_eq!(judged(&place, &code)["passed"], true, "{code}: {:#}", judged(&place, &code));
    }
    for (code, why) in [
        ("answer = 41", "test_it: AssertionError: it is 41"),
        ("answer = (", "the code: SyntaxError"),
        ("answer = 0\nraise SystemExit(0)", "the code: SystemExit"),
        ("answer = 42\nimport os\nos._exit(0)", "ends before its tests do"),
        (
            "answer = 42\nprint('{\"passed\": [\"x\"], \"failed\": []}', flush=True)\nimport os\nos._exit(0)",
            "ends before",
        ),
        (
            "answer = 42\ndef test_mine(): pass\nraise ValueError('\\x1b[2J')",
            "the code: ValueError: \\u{1b}[2J",
        ),
        ("answer = bytearray(1 << 40)", "MemoryError"),
        ("answer = [0]\nwhile True: answer = answer * 2", "MemoryError"),
        ("answer = 42\nimport sys\nwhile True: sys.stdout.write('x' * 65536)", "prints more than"),
        ("answer = 42\nimport sys\nwhile True: sys.stderr.write('x' * 65536)", "prints more than"),
        // By its processor time, or on a busy machine by the clock.
        ("answer = 42\nwhile True: pass", "signal|does not end within"),
        ("answer = 42\nimport os\nos.abort()", "signal"),
    ] {
        let run = judged(&place, code);
        let reason = run["reason"].as_str().unwrap_or_else(|| panic!("{code}: {run:#}"));
        let is_said = why.split('|').any(|why| reason.contains(why));
        assert!(run["passed"] == false && is_said, "{code}: {reason}");
    }
    assert_eq!(std::fs::read_to_string(kept).unwrap(), "as it was");
    assert!(!place.path("new").exists());
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nobody connected");
}

#[test]
fn mistakes_and_servers_that_fail_are_reported() {
    let place = Place::new();
    place.octet(&["eval", "fox", "--suite", "none.toml"]).fails(1, &["none.toml", "gauntlet"]);
    place.write("bad.toml", "name = 'x'\n[[task]]\nname = 't'\nprompt = 'p'\n");
    place.octet(&["eval", "fox", "--suite", "bad.toml"]).fails(1, &["bad.toml", "task 't'", "check"]);
    place.octet(&["eval", "fox", "--task", "nothing"]).fails(1, &["no task 'nothing'", "train-and-bird"]);
    place.octet(&["eval", "a.gguf", "b.gguf", "c.gguf"]).fails(2, &["at most two"]);
    place.octet(&["eval", "none.gguf"]).fails(1, &["none.gguf"]);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{closed}/v1");
    place
        .octet(&["eval", "--url", &url, "-m", "m", "--task", "train", "-r", "1"])
        .fails(1, &["no question was answered"]);
    place.write("code.toml", CODE);
    let left_out =
        place.octet(&["eval", "--url", &url, "-m", "m", "--suite", "code.toml", "-r", "1"]).ok().stdout;
    assert!(left_out.contains("not run") && left_out.contains("--allow-code"), "{left_out}");
}

/// The built-in model, as it is served. A schema of one value makes it right.
#[test]
fn the_built_in_model_is_asked() {
    let place = Place::new();
    place.write(
        "suite.toml",
        r#"
        name = "small"
        [[task]]
        name = "form"
        prompt = "Write the JSON."
        response_format = true
        max_tokens = 400
        check.json.schema = { type = "object", properties = { a = { const = "{{a}}" } }, required = ["a"], additionalProperties = false }
        variant = [{ a = 7 }, { a = "x" }]
        [[task]]
        name = "words"
        system = "Be short."
        prompt = "Say hello."
        max_tokens = 8
        check.regex = "no model says this: [0-9]{40}"
        "#,
    );
    let no_thoughts = r#"{"chat_template_kwargs": {"enable_thinking": false}}"#;
    let args = ["eval", "fox", "--suite", "suite.toml", "-r", "2", "--json", "--extra-body", no_thoughts];
    let all = json_of(&place, &args);
    let (form, words) = (&rows(&all)[0], &rows(&all)[1]);
    assert_eq!((&form["passed"], &words["passed"]), (&json!(2), &json!(0)), "{all:#}");
    assert_eq!(words["judged"], 2);
    assert!(words["runs"][0]["reason"].as_str().unwrap().starts_with("cut off"), "{all:#}");
    assert!(
        form["runs"][0]["tokens"].as_u64().unwrap() > 0
            && form["first_token_s_median"].as_f64().unwrap() > 0.0
    );
    // The same seeds give the same answers.
    let again = json_of(&place, &args);
    assert_eq!(rows(&again)[1]["runs"][1]["answer"], words["runs"][1]["answer"]);
    assert_eq!(all["models"][0]["name"], "fox");
}
