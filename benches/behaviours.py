#!/usr/bin/env python3
"""Asks Octet and LiteLLM's proxy the same, with one configuration and one mock behind both, and prints a table of what each did.

    python3 -m venv litellm && litellm/bin/pip install 'litellm[proxy]==1.*'
    benches/behaviours.py --octet target/debug/octet --litellm litellm/bin/litellm > table.md

The mock does what the name of the model says, and counts how often it is asked. `docs/litellm.md` holds the table.
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
  - {{model_name: "any/*", litellm_params: {{model: "openai/*", api_base: "{base}", api_key: k}}}}
router_settings:
  num_retries: 2
  cooldown_time: 30
  fallbacks: [{{falls: [ok]}}]
  context_window_fallbacks: [{{window: [ok]}}]
  content_policy_fallbacks: [{{policy: [ok]}}]
  model_group_alias: {{gpt-4: ok}}
  enable_pre_call_checks: true
general_settings: {{master_key: {key}}}
"""


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
        if model == "close":
            self.close_connection = True
            return
        if model == "hang":
            time.sleep(HANG_S)
        if model.startswith("fail") or (model == "flaky" and Mock.asked[model] == 1):
            return self.error(500, "broken")
        if model.startswith("limited"):
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

    def ask(self, model, path="/v1/chat/completions", key=KEY, headers=(), **more):
        body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], **more}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {"content-type": "application/json", "authorization": f"Bearer {key}", **dict(headers)}
        connection.request("POST", path, json.dumps(body), sent)
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
]


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
    args = p.parse_args()
    mock = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mock)
    threading.Thread(target=mock.serve_forever, daemon=True).start()
    folder = pathlib.Path(tempfile.mkdtemp())
    config = folder / "config.yaml"
    root = f"http://127.0.0.1:{mock.server_port}"
    config.write_text(CONFIG.format(base=f"{root}/v1", root=root, key=KEY))
    columns = []
    for name, program in [("LiteLLM", args.litellm), ("Octet", args.octet)]:
        if program is None:
            continue
        port = free_port()
        command = [str(program), "--config", str(config), "--port", str(port)]
        if name == "Octet":
            command.insert(1, "serve")
        Mock.asked.clear()
        with open(folder / f"{name}.log", "w") as log:
            process = start(command, {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}, port, log)
            proxy, results = Proxy(name, port), []
            for what, case in CASES:
                try:
                    results.append(case(proxy))
                except Exception as e:  # a proxy that hangs up is a result, too
                    results.append(f"({type(e).__name__}: {e})")
                print(f"{name}: {what}: {results[-1]}", file=sys.stderr, flush=True)
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)
        columns.append((name, results))
    print("| | " + " | ".join(name for name, _ in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for i, (what, _) in enumerate(CASES):
        print(f"| {what} | " + " | ".join(results[i] for _, results in columns) + " |")


if __name__ == "__main__":
    main()
