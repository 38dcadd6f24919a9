#!/usr/bin/env python3
"""A storm of mixed clients against one server whose models take turns; each answer must equal a quiet server's.

    tests/storm.py target/release/octet --seconds 600 --clients 64

The models are `fox` and a synthetic one, which `octet synth` writes; they share memory for one, so each is unloaded for the other.
Requests in all dialects, streamed and whole, with tools, schemas, stops, several answers; some clients leave in the middle. All are
greedy, so their texts do not depend on what else runs. Memory is sampled: its level in the last third must be that of the middle one.
Needs Python's standard library only. Exits with 1 after a difference, a failure, or growth.
"""
import argparse
import collections
import http.client
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

WAIT_S = 300
# A server under load answers these instead; the client asks again.
BUSY = {429, 503}
# How much the level of memory may rise from the middle third to the last.
GROWTH_MAX = 0.05


class Server:
    """`octet serve` with both models, at a free port."""

    def __init__(self, octet, models, folder, limit):
        self.log = os.path.join(folder, f"log-{time.time_ns()}")
        command = [octet, "serve", *models, "--port", "0", "-c", "1024", "-np", "8", "-t", "1", "--max-queue", "256"]
        command += ["--load-queue", "256", "--memory-limit", limit]
        env = {**os.environ, "OCTET_HOME": folder, "HF_HOME": folder}
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=open(self.log, "wb"), env=env)
        until = time.time() + WAIT_S
        while True:
            found = re.search(r"listening at http://[\d.]+:(\d+)", self.text())
            if found:
                self.port = int(found.group(1))
                return
            if self.process.poll() is not None or time.time() > until:
                sys.exit(f"the server does not start:\n{self.text()}")
            time.sleep(0.05)

    def text(self):
        with open(self.log, errors="replace") as file:
            return file.read()

    def memory(self):
        """Resident MiB without mapped files."""
        with open(f"/proc/{self.process.pid}/status") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("RssAnon")) / 1024

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)


def requests(models):
    """Name, path and body of each request."""
    words = ["fox", "river", "bread", "winter", "music", "harbour", "ladder", "candle"]
    call = {"type": "function", "function": {"name": "look_up", "description": "Looks a word up.", "parameters": {
        "type": "object", "properties": {"word": {"type": "string"}, "times": {"type": "integer"}}, "required": ["word"]}}}
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
              "required": ["name", "age"], "additionalProperties": False}
    out = []
    for model in models:
        for i, word in enumerate(words):
            say = [{"role": "user", "content": f"Tell me about a {word}." + " And more." * (7 * i)}]
            plain = {"model": model, "temperature": 0}
            chat = {**plain, "messages": say, "max_tokens": 24}
            stream = {"stream": bool(i % 2)}
            contents = [{"role": "user", "parts": [{"text": say[0]["content"]}]}]
            gemini = "streamGenerateContent?alt=sse" if i % 2 else "generateContent"
            config = {"temperature": 0, "maxOutputTokens": 20}
            options = {"temperature": 0, "num_predict": 16}
            out += [
                ("chat", "/v1/chat/completions", {**chat, **stream}),
                ("n", "/v1/chat/completions", {**chat, "n": 3, **stream}),
                ("stop", "/v1/chat/completions", {**chat, "stop": ["e", "\n"]}),
                ("tools", "/v1/chat/completions", {**chat, "tools": [call], "tool_choice": "required", "max_tokens": 60, **stream}),
                ("schema", "/v1/chat/completions", {**chat, "max_tokens": 80, "response_format": {
                    "type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}}}),
                ("logprobs", "/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 3}),
                ("prompts", "/v1/completions", {**plain, "prompt": [word, f"The {word}"], "max_tokens": 12, **stream}),
                ("responses", "/v1/responses", {**plain, "input": say[0]["content"], "max_output_tokens": 20, "store": False, **stream}),
                ("messages", "/v1/messages", {**chat, **stream}),
                ("ollama", "/api/chat", {"model": model, "messages": say, "options": options, **stream}),
                ("generate", "/api/generate", {"model": model, "prompt": word, "options": options, **stream}),
                ("gemini", f"/v1beta/models/{model}:{gemini}", {"contents": contents, "generationConfig": config}),
                ("embed", "/v1/embeddings", {"model": model, "input": [word, say[0]["content"]]}),
                ("tokens", "/tokenize", {"model": model, "content": say[0]["content"]}),
                ("invalid", "/v1/chat/completions", {**chat, "temperature": "hot"}),
            ]
    return out


def send(port, path, body, leave=None):
    """Status and body; with `leave`, the client leaves after that many bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        if leave == 0:
            return None, b""
        answer = connection.getresponse()
        return answer.status, answer.read() if leave is None else answer.read(leave)
    finally:
        connection.close()


# What differs from one answer to the next: ids, times, the number of pieces, and what came from the cache (Anthropic's input_tokens is
# without that).
VARYING = re.compile(r"^(id|item_id|response_id|responseId|call_id|message_id|request_id|created|created_at|createTime|completed_at|"
                     r"timings|type|input_tokens|.*duration.*|.*cache.*|system_fingerprint|sequence_number|obfuscation|context|thoughtSignature|signature)$")


def cleaned(value):
    if isinstance(value, dict):
        return {k: cleaned(v) for k, v in value.items() if not VARYING.match(k)}
    return [cleaned(v) for v in value] if isinstance(value, list) else value


def leaves(value, path=""):
    """The texts and numbers of a value, by their place without indices."""
    if isinstance(value, dict):
        index = value.get("index", "")
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}{index if key != 'index' else ''}")
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, path + "[]")
    elif value is not None:
        yield path, value


def meaning(status, raw):
    """What an answer says, however it was cut into events."""
    if status != 200:
        return status, cleaned(json.loads(raw)).get("error", "")
    text = raw.decode()
    if text.startswith("{") and "\n{" not in text.strip():
        return status, cleaned(json.loads(text))
    texts, others = collections.defaultdict(str), []
    for line in text.splitlines():
        data = line.removeprefix("data:").strip()
        if not data.startswith("{"):
            continue
        for path, value in leaves(cleaned(json.loads(data))):
            if isinstance(value, str) and re.search(r"delta|content|text|response|arguments|reasoning|thinking|partial_json", path):
                texts[path] += value
            elif not isinstance(value, str) and "usage" in path.lower() or "finish" in path or "stop" in path:
                others.append((path, value))
    return status, dict(texts), sorted(others, key=str)


class Storm:
    def __init__(self, port, asked, expected, seconds):
        self.port, self.asked, self.expected = port, asked, expected
        self.until = time.time() + seconds
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.wrong = []

    def client(self, seed):
        chance = random.Random(seed)
        while time.time() < self.until and len(self.wrong) < 5:
            i = chance.randrange(len(self.asked))
            name, path, body = self.asked[i]
            leave = chance.choice([0, 1, 200]) if chance.random() < 0.08 else None
            try:
                status, raw = send(self.port, path, body, leave)
            except (OSError, http.client.HTTPException, socket.timeout) as e:
                self.note(name, f"{path}: {e!r}")
                continue
            if leave is not None or status in BUSY:
                with self.lock:
                    self.counts["left" if leave is not None else "busy"] += 1
                continue
            found = meaning(status, raw)
            if found != self.expected[i]:
                self.note(name, f"{path} {json.dumps(body)[:300]}\n  quiet: {self.expected[i]}\n  storm: {found}")
                continue
            with self.lock:
                self.counts["equal"] += 1

    def note(self, name, what):
        with self.lock:
            self.counts["wrong"] += 1
            self.wrong.append(f"{name}: {what}")


def level(samples):
    """The level of memory: what it is at least, most of the time."""
    return statistics.quantiles(samples, n=4)[0] if len(samples) > 1 else samples[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("octet")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--memory-limit", default="30MiB", help="room for one of the models")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tiny = os.path.join(folder, "tiny.gguf")
        subprocess.run([args.octet, "synth", "tiny-qwen35moe", "-o", tiny], check=True, stdout=subprocess.DEVNULL)
        given = ["one=fox", f"two={tiny}"]
        asked = requests(["one", "two"])
        quiet = Server(args.octet, given, folder, "4GiB")
        expected = [meaning(*send(quiet.port, path, body)) for _, path, body in asked]
        assert quiet.stop() == 0
        by_status = collections.Counter(e[0] for e in expected)
        print(f"{len(asked)} requests, statuses of the quiet server: {dict(by_status)}", flush=True)

        server = Server(args.octet, given, folder, args.memory_limit)
        storm = Storm(server.port, asked, expected, args.seconds)
        clients = [threading.Thread(target=storm.client, args=(seed,)) for seed in range(args.clients)]
        for client in clients:
            client.start()
        samples, began = [], time.time()
        while any(client.is_alive() for client in clients):
            samples.append(server.memory())
            time.sleep(1)
            if len(samples) % 30 == 0:
                recent = samples[-30:]
                print(f"{time.time() - began:5.0f} s  {dict(storm.counts)}  memory {level(recent):.0f} to {max(recent):.0f} MiB", flush=True)
        loads = server.text().count("loaded model=")
        code = server.stop()
        third = max(len(samples) // 3, 1)
        middle, last = level(samples[third:2 * third] or samples), level(samples[2 * third:] or samples)
        print(f"{dict(storm.counts)}; {loads} loads; memory {middle:.0f} -> {last:.0f} MiB, most {max(samples):.0f}; exit {code}")
        for wrong in storm.wrong:
            print("WRONG", wrong)
        grew = last > middle * (1 + GROWTH_MAX) + 8
        if storm.wrong or code != 0 or grew or not storm.counts["equal"]:
            sys.exit("the storm changed something" if not grew else "memory grew")


if __name__ == "__main__":
    main()
