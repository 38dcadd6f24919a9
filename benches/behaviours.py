#!/usr/bin/env python3
"""Asks Octet and LiteLLM's proxy the same, with one configuration and one mock behind both, and prints a table of what each did.

    python3 -m venv litellm && litellm/bin/pip install 'litellm[proxy]==1.*' prisma==0.15.0
    benches/behaviours.py --octet target/debug/octet --litellm litellm/bin/litellm --database > table.md

The mock does what the name of the model says, and counts how often it is asked. `docs/litellm.md` holds the table. LiteLLM's keys, users and
teams need PostgreSQL, Node and npm: `--database` sets them up (`litellm_database.py`).
"""
import argparse
import collections
import http.client
import http.server
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from litellm_database import Database

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEY = "sk-table"
HANG_S = 6
CONFIG = """model_list:
  - {{model_name: ok, litellm_params: {{model: openai/ok, api_base: "{base}", api_key: k}}}}
  - {{model_name: flaky, litellm_params: {{model: openai/flaky, api_base: "{base}", api_key: k}}}}
  - {{model_name: fail, litellm_params: {{model: openai/fail, api_base: "{base}", api_key: k}}}}
  - {{model_name: close, litellm_params: {{model: openai/close, api_base: "{base}", api_key: k}}}}
  - {{model_name: bad, litellm_params: {{model: openai/bad, api_base: "{base}", api_key: k}}}}
  - {{model_name: cut, litellm_params: {{model: openai/cut, api_base: "{base}", api_key: k}}}}
  - {{model_name: tools, litellm_params: {{model: openai/tools, api_base: "{base}", api_key: k}}}}
  - {{model_name: falls, litellm_params: {{model: openai/fail2, api_base: "{base}", api_key: k}}}}
  - {{model_name: window, litellm_params: {{model: openai/window, api_base: "{base}", api_key: k}}}}
  - {{model_name: policy, litellm_params: {{model: openai/policy, api_base: "{base}", api_key: k}}}}
  - {{model_name: slow, litellm_params: {{model: openai/hang, api_base: "{base}", api_key: k, timeout: 1}}}}
  - {{model_name: pair, litellm_params: {{model: openai/limited, api_base: "{base}", api_key: k}}}}
  - {{model_name: pair, litellm_params: {{model: openai/ok, api_base: "{base}", api_key: k}}}}
  - {{model_name: twice, litellm_params: {{model: openai/once, api_base: "{base}", api_key: k, rpm: 2}}}}
  - model_name: bedrock
    litellm_params:
      {{model: bedrock/converse/nova, aws_access_key_id: AKID, aws_secret_access_key: s, aws_region_name: us-east-1, aws_bedrock_runtime_endpoint: "{root}"}}
  - {{model_name: keyless, litellm_params: {{model: groq/m, api_key: os.environ/NOT_SET_ANYWHERE}}}}
  - {{model_name: thinker, litellm_params: {{model: openai/responses/reasons, api_base: "{base}", api_key: k}}}}
  - {{model_name: alone, litellm_params: {{model: openai/limited-once, api_base: "{base}", api_key: k, num_retries: 0}}}}
  - {{model_name: mocked, litellm_params: {{model: openai/nothing, api_base: "{base}", api_key: k, mock_response: Mocked}}}}
  - {{model_name: reasoner, litellm_params: {{model: openai/gpt-5-mini, api_base: "{base}", api_key: k, drop_params: true}}}}
  - {{model_name: priced, litellm_params: {{model: openai/ok, api_base: "{base}", api_key: k, input_cost_per_token: 1, output_cost_per_token: 1}}}}
  - {{model_name: free, litellm_params: {{model: openai/ok, api_base: "{base}", api_key: k, input_cost_per_token: 0, output_cost_per_token: 0}}}}
  - {{model_name: "any/*", litellm_params: {{model: "openai/*", api_base: "{base}", api_key: k}}}}
router_settings:
  num_retries: 2
  cooldown_time: 30
  fallbacks: [{{falls: [ok]}}]
  context_window_fallbacks: [{{window: [ok]}}]
  content_policy_fallbacks: [{{policy: [ok]}}]
  model_group_alias: {{gpt-4: ok}}
  enable_pre_call_checks: true
litellm_settings:
  cache: true
  cache_params: {{type: local, mode: default_off}}
general_settings: {{master_key: {key}}}
"""
# Octet's own, which LiteLLM does not have.
DATABASE = "keys: {{database: {file}}}\n"


class Mock(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked = collections.Counter()
    bodies = {}

    def log_message(self, *_):
        pass

    def answer(self, status, body, headers=()):
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in [("content-type", "application/json"), ("content-length", str(len(data))), *headers]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def error(self, status, code, message="no", headers=()):
        self.answer(status, {"error": {"message": message, "type": "error", "code": code}}, headers)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.endswith("/converse"):
            signed = (self.headers["authorization"] or "").startswith("AWS4-HMAC-SHA256 Credential=AKID/")
            Mock.asked["nova, signed" if signed else "nova, not signed"] += 1
            message = {"role": "assistant", "content": [{"text": "Hi"}]}
            usage = {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5}
            return self.answer(200, {"output": {"message": message}, "stopReason": "end_turn", "usage": usage, "metrics": {"latencyMs": 1}})
        model = body["model"]
        Mock.asked[model] += 1
        Mock.bodies[model] = body
        if self.path.endswith("/responses"):
            text = {"type": "output_text", "text": "Hi", "annotations": []}
            item = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [text]}
            usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
            head = {"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": model, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
            return self.answer(200, {**head, "output": [item], "usage": usage})
        if model == "close":
            self.close_connection = True
            return
        if model == "hang":
            time.sleep(HANG_S)
        if model.startswith("fail") or (model == "flaky" and Mock.asked[model] == 1):
            return self.error(500, "broken")
        if model == "limited-once" and Mock.asked[model] == 1:
            return self.error(429, "rate_limit_exceeded")
        if model.startswith("limited") and model != "limited-once":
            return self.error(429, "rate_limit_exceeded", headers=[("retry-after", "20")])
        if model == "bad":
            return self.error(400, "invalid")
        if model == "window":
            return self.error(400, "context_length_exceeded", "This model's maximum context length is 10 tokens")
        if model == "policy":
            return self.error(400, "content_policy_violation", "Your request was rejected by our safety system")
        message = {"role": "assistant", "content": "Hi"}
        if model == "tools":
            call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        head = {"id": "x", "created": 1, "model": model}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return self.answer(200, {**head, "object": "chat.completion", "choices": [choice], "usage": usage})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        chunk = {**head, "object": "chat.completion.chunk"}
        for text in ["H", "i"]:
            delta = {"role": "assistant", "content": text}
            event = {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()
            if model == "cut":
                self.connection.shutdown(socket.SHUT_RDWR)
                return
        event = {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        self.wfile.write(f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode())


class Proxy:
    def __init__(self, name, port):
        self.name, self.port = name, port

    def post(self, path, body):
        return self.send("POST", path, json.dumps(body), {"content-type": "application/json", "authorization": f"Bearer {KEY}"})

    def get(self, path):
        return self.send("GET", path, None, {"authorization": f"Bearer {KEY}"})

    def ask(self, model, path="/v1/chat/completions", key=KEY, headers=(), **more):
        body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], **more}
        sent = {"content-type": "application/json", "authorization": f"Bearer {key}", **dict(headers)}
        return self.send("POST", path, json.dumps(body), sent)

    def send(self, method, path, body, headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        try:
            text = answer.read().decode()
        except (http.client.IncompleteRead, ConnectionError) as e:
            text = getattr(e, "partial", b"").decode() + "\n(broken off)"
        connection.close()
        return answer.status, text


def content(text):
    try:
        return json.loads(text)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError):
        return None


def plain(status, text):
    return f"{status} “{content(text)}”" if status == 200 else str(status)


def asked(*models):
    return ", ".join(f"{m}: {Mock.asked[m]}" for m in models)


def streamed(text):
    out = ""
    for line in text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:]).get("choices", []):
                out += (choice.get("delta") or {}).get("content") or ""
    return out


def case_cut(p):
    status, text = p.ask("cut", stream=True)
    error = "error event" if '"error"' in text else "no error event"
    return f"{status} “{streamed(text)}”, {error}{', broken off' if 'broken off' in text else ''}"


def case_tools(p):
    status, text = p.ask("tools", tools=[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}])
    call = json.loads(text)["choices"][0]["message"]["tool_calls"][0]["function"] if status == 200 else None
    return f"{status} {call['name']}({call['arguments']})" if call else str(status)


def case_pair(p):
    good = sum(p.ask("pair")[0] == 200 for _ in range(10))
    return f"{good} of 10 answered; {asked('limited')}"


def case_wildcard(p):
    first, _ = p.ask("any/limited9")
    second, text = p.ask("any/ok9")
    return f"{first}, then {plain(second, text)}"


def case_slow(p):
    began = time.time()
    status, _ = p.ask("slow")
    return f"{status}; asked {Mock.asked['hang']} times" + (", within 5 s" if time.time() - began < 5 else "")


def case_alone(p):
    first, second = p.ask("alone")[0], p.ask("alone")
    return f"{first}, then {plain(*second)}"


def case_reasoner(p):
    status, _ = p.ask("reasoner", temperature=0.3, max_tokens=50)
    sent = Mock.bodies.get("gpt-5-mini", {})
    names = ["temperature", "max_tokens", "max_completion_tokens"]
    return f"{status}; {', '.join(f'{name}: {sent[name]}' for name in names if name in sent) or 'neither'}"


def case_limit(p):
    return ", ".join(str(p.ask("twice")[0]) for _ in range(3))


def shows(*models):
    return lambda p, model, **kw: f"{plain(*p.ask(model, **kw))}; {asked(*models)}" if models else plain(*p.ask(model, **kw))


CASES = [
    ("an answer", lambda p: plain(*p.ask("ok"))),
    ("a stream", lambda p: (lambda s, t: f"{s} “{streamed(t)}”{', [DONE]' if '[DONE]' in t else ''}")(*p.ask("ok", stream=True))),
    ("a call of a tool", case_tools),
    ("an alias (`model_group_alias`)", lambda p: plain(*p.ask("gpt-4"))),
    ("a wildcard (`any/*`)", lambda p: plain(*p.ask("any/ok2"))),
    ("one failure (500), `num_retries: 2`", lambda p: shows("flaky")(p, "flaky")),
    ("failures without end (500), `num_retries: 2`", lambda p: shows("fail")(p, "fail")),
    ("connections closed without an answer", lambda p: shows("close")(p, "close")),
    ("a bad request (400)", lambda p: shows("bad")(p, "bad")),
    ("`fallbacks` on 500", lambda p: shows("fail2")(p, "falls")),
    ("`context_window_fallbacks`", lambda p: shows("window")(p, "window")),
    ("`content_policy_fallbacks`", lambda p: shows("policy")(p, "policy")),
    ("10 requests to a group of which one deployment answers 429", case_pair),
    ("429 for one model of a wildcard, then another model", case_wildcard),
    ("`timeout: 1` and a provider that takes 6 s, `num_retries: 2`", case_slow),
    ("three requests at `rpm: 2`", case_limit),
    ("a 429 of a group's only deployment, then the same again", lambda p: case_alone(p)),
    ("`mock_response: Mocked`", lambda p: shows("nothing")(p, "mocked")),
    ("`temperature: 0.3` and `max_tokens: 50` for gpt-5-mini, `drop_params`: what the provider gets", lambda p: case_reasoner(p)),
    ("a stream that is cut after one piece", case_cut),
    ("a model of Bedrock (`converse`)", lambda p: shows("nova, signed")(p, "bedrock")),
    ("a model whose key is not set", lambda p: plain(*p.ask("keyless"))),
    ("an unknown model", lambda p: plain(*p.ask("nobody"))),
    ("a wrong key", lambda p: plain(*p.ask("ok", key="sk-wrong"))),
    ("`/chat/completions` without `/v1`", lambda p: plain(*p.ask("ok", path="/chat/completions"))),
    ("Azure's path", lambda p: plain(*p.ask("ok", path="/openai/deployments/ok/chat/completions?api-version=2024-10-21"))),
    ("a body with `num_retries: 0`", lambda p: shows("fail3")(p, "any/fail3", num_retries=0)),
    ("a body with `fallbacks: [ok]`", lambda p: shows("fail4")(p, "any/fail4", fallbacks=["ok"])),
    ("what of a body's `num_retries`, `fallbacks`, `metadata`, `tags` and `cache` the provider gets", lambda p: case_forwarded(p)),
    ("a chat for `model: openai/responses/NAME`", lambda p: case_responses(p)),
    ("the same twice, `cache: {use-cache: true}` (`mode: default_off`)", lambda p: case_cached(p)),
    ("a stream twice from the cache", lambda p: case_cache_stream(p)),
    ("`cache: {ttl: 1}`, again after 1.5 s", lambda p: case_cache_ttl(p)),
    ("four requests: `no-store`, `use-cache`, `no-cache`, `use-cache`", lambda p: case_cache_refused(p)),
    ("a key for one model; its alias a second time", lambda p: case_key(p)),
    ("a key's budget is spent: the same model, then one with prices of 0", lambda p: case_free(p)),
    ("the same for a user's budget", lambda p: case_free_of_user(p)),
    ("a user with `rpm_limit: 2` and two keys: three requests", lambda p: case_user(p)),
    ("a team with `rpm_limit: 2`, one model and two keys", lambda p: case_team(p)),
    ("a key, blocked, unblocked, its team blocked, unblocked", lambda p: case_block(p)),
    ("`/team/member_add` with a wrong entry, then 30 members", lambda p: case_members(p)),
    ("what the master key spent, in `/spend/logs`", lambda p: case_spend(p)),
]


def case_responses(p):
    status, text = p.ask("thinker", max_tokens=9)
    sent = Mock.bodies.get("reasons", {})
    how = "`/responses`" if "input" in sent else "`/chat/completions`" if sent else "nobody"
    return f"{plain(status, text)}; asked at {how}, max_output_tokens: {sent.get('max_output_tokens')}"


def case_cached(p):
    both = [p.ask("any/cached", cache={"use-cache": True})[0] for _ in range(2)]
    once = Mock.asked["cached"]
    for _ in range(2):
        p.ask("any/cached")
    return f"{both[0]}, {both[1]}; cached: {once}; twice more without the field: {Mock.asked['cached']}"


def case_cache_ttl(p):
    p.ask("any/brief", cache={"use-cache": True, "ttl": 1})
    time.sleep(1.5)
    p.ask("any/brief", cache={"use-cache": True, "ttl": 1})
    return f"requests to the provider: {Mock.asked['brief']}"


def case_cache_refused(p):
    for control in [{"use-cache": True, "no-store": True}, {"use-cache": True}, {"use-cache": True, "no-cache": True}, {"use-cache": True}]:
        p.ask("any/picky", cache=control)
    return f"requests to the provider: {Mock.asked['picky']}"


def case_cache_stream(p):
    texts = [p.ask("any/flow", stream=True, cache={"use-cache": True}) for _ in range(2)]
    return f"{', '.join(f'“{streamed(text)}”' for _, text in texts)}; requests to the provider: {Mock.asked['flow']}"


class NoDatabase(Exception):
    pass


def manage(p, path, **body):
    """A request about keys, users or teams."""
    status, text = p.post(path, body)
    try:
        answer = json.loads(text)
    except ValueError:
        answer = {}
    if status >= 400 and ("database" in text.lower() or " db" in text.lower()):
        raise NoDatabase(f"{status}, without a database")
    if status >= 500:
        raise NoDatabase(str(status))
    return status, answer


def managed(case):
    def run(p):
        try:
            return case(p)
        except NoDatabase as e:
            return str(e)
    return run


def held(p, key, model="ok"):
    return p.ask(model, key=key)[0]


@managed
def case_key(p):
    key = manage(p, "/key/generate", models=["ok"], key_alias="one")[1]["key"]
    again = manage(p, "/key/generate", key_alias="one")[0]
    return f"{held(p, key)}; another model {held(p, key, 'tools')}; the same alias again {again}"


@managed
def case_user(p):
    user = manage(p, "/user/new", user_id="ann", rpm_limit=2)[1]
    second = manage(p, "/key/generate", user_id="ann")[1]["key"]
    return ", ".join(str(held(p, key)) for key in (user["key"], second, second))


@managed
def case_free(p):
    return after_the_budget(p, manage(p, "/key/generate", max_budget=1)[1]["key"])


@managed
def case_free_of_user(p):
    return after_the_budget(p, manage(p, "/user/new", max_budget=1)[1]["key"])


def after_the_budget(p, key):
    # A request costs $5.
    out = [held(p, key, "priced")]
    # What was spent may be counted a little later.
    until = time.time() + 30
    while (status := held(p, key, "priced")) == 200 and time.time() < until:
        time.sleep(0.5)
    return ", ".join(map(str, [*out, status, held(p, key, "free")]))


@managed
def case_team(p):
    team = manage(p, "/team/new", team_alias="blue", models=["ok"], rpm_limit=2)[1]["team_id"]
    keys = [manage(p, "/key/generate", team_id=team)[1]["key"] for _ in range(2)]
    others = held(p, keys[0], "tools")
    return f"{', '.join(str(held(p, key)) for key in (keys[0], keys[1], keys[1]))}; another model {others}"


@managed
def case_block(p):
    team = manage(p, "/team/new")[1]["team_id"]
    key = manage(p, "/key/generate", team_id=team)[1]["key"]
    out = [held(p, key)]
    for path, body in [("/key/block", {"key": key}), ("/key/unblock", {"key": key}), ("/team/block", {"team_id": team}), ("/team/unblock", {"team_id": team})]:
        manage(p, path, **body)
        out.append(held(p, key))
    return ", ".join(map(str, out))


@managed
def case_members(p):
    team = manage(p, "/team/new")[1]["team_id"]
    wrong = manage(p, "/team/member_add", team_id=team, member=[{"user_id": "m1", "role": "user"}, {"user_id": "m2", "role": "no role"}])[0]
    right, told = manage(p, "/team/member_add", team_id=team, member=[{"user_id": f"m{i}", "role": "user"} for i in range(30)])
    return f"{wrong}, then {right} with {len([m for m in told['members_with_roles'] if m['user_id'].startswith('m')])} members"


@managed
def case_spend(p):
    status, text = p.get("/spend/logs")
    if status >= 500:
        raise NoDatabase(f"{status}, without a database")
    return f"{status}; {'lists' if 'litellm_proxy_master_key' in text else 'does not list'} the master key"


def case_forwarded(p):
    extra = {"num_retries": 1, "fallbacks": ["ok"], "metadata": {"a": "b"}, "tags": ["t"], "cache": {"no-cache": True}}
    status, _ = p.ask("any/ok8", **extra)
    got = [k for k in extra if k in Mock.bodies.get("ok8", {})]
    return f"{status}; {', '.join(got) or 'nothing'}"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(command, env, port, log):
    process = subprocess.Popen(command, env={**os.environ, **env}, stdout=log, stderr=log, start_new_session=True)
    until = time.time() + 300
    while time.time() < until:
        if process.poll() is not None:
            sys.exit(f"{command[0]} ended with {process.returncode}; see {log.name}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health/liveliness")
            if connection.getresponse().status == 200:
                return process
        except OSError:
            pass
        time.sleep(0.2)
    sys.exit(f"{command[0]} does not listen; see {log.name}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--octet", default=ROOT / "target/release/octet", type=pathlib.Path)
    p.add_argument("--litellm", type=pathlib.Path, help="without it that column is empty")
    p.add_argument("--database", action="store_true", help="gives LiteLLM a database; without it, it has no keys, users and teams")
    p.add_argument("--only", default="", help="only the rows whose text contains this")
    args = p.parse_args()
    mock = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mock)
    threading.Thread(target=mock.serve_forever, daemon=True).start()
    folder = pathlib.Path(tempfile.mkdtemp())
    config = folder / "config.yaml"
    root = f"http://127.0.0.1:{mock.server_port}"
    config.write_text(CONFIG.format(base=f"{root}/v1", root=root, key=KEY) + DATABASE.format(file=folder / "keys.db"))
    database = Database(folder, args.litellm) if args.litellm and args.database else None
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    columns, cases = [], [case for case in CASES if args.only in case[0]]
    for name, program in [("LiteLLM", args.litellm), ("Octet", args.octet)]:
        if program is None:
            continue
        port = free_port()
        command = [str(program), "--config", str(config), "--port", str(port)]
        if name == "Octet":
            command.insert(1, "serve")
        Mock.asked.clear()
        with open(folder / f"{name}.log", "w") as log:
            own = database.environment if database and name == "LiteLLM" else {}
            process = start(command, {**environment, **own}, port, log)
            proxy, results = Proxy(name, port), []
            for what, case in cases:
                try:
                    results.append(case(proxy))
                except Exception as e:  # a proxy that hangs up is a result, too
                    results.append("no answer within 60 s" if isinstance(e, TimeoutError) else f"({type(e).__name__}: {e})")
                print(f"{name}: {what}: {results[-1]}", file=sys.stderr, flush=True)
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)
        columns.append((name, results))
    if database:
        database.stop()
    print("| | " + " | ".join(name for name, _ in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for i, (what, _) in enumerate(cases):
        print(f"| {what} | " + " | ".join(results[i] for _, results in columns) + " |")


if __name__ == "__main__":
    main()
