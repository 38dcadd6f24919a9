#!/usr/bin/env python3
"""Loads `octet serve` with many clients, good and bad, and tells whether it stood: needs nothing but Python.

    benches/load.py                                       ten minutes, 64 clients, a tiny made-up model, target/release/octet
    benches/load.py --minutes 1 --octet target/debug/octet --clients 16
    benches/load.py --model model.gguf -- -c 8192 -np 8   a model of one's own, and flags for `octet serve`

First, with nobody else there: the worst gap between two tokens of a stream while a long prompt is computed, and what constraints
cost. Then the load: clients that take whole answers or streams, leave in the middle or before the first byte, read slowly, send
garbage, texts and bodies far too long. Each answer has to be one: complete, or refused with a status that fits. At last the server is
told to end. Memory is sampled every five seconds. Tables in Markdown go to standard output; the exit status is 1 where anything was wrong.
"""
import argparse
import collections
import http.client
import json
import os
import pathlib
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

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHAT = "/v1/chat/completions"
# Small caches, which are full long before the first third is over: what grows after that is a leak.
FLAGS = ["-c", "4096", "-np", "8", "--max-queue", "24", "--cache-ram", "16MiB"]
MAX_BODY = 4 << 20
SAMPLE_S = 5
TIMEOUT_S = 300
# The queue is full; long requests take all the room that there is.
COME_BACK = (429, 503)
END_S = 120
# Memory may grow by so much from the second third to the last: allocators keep a little of what peaks took.
GROWTH = 0.02
GROWTH_MIB = 4
WORDS = "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one you".split()
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["name", "n", "tags"], "properties": {
    "name": {"type": "string", "maxLength": 40}, "n": {"type": "integer", "minimum": 0, "maximum": 99999},
    "tags": {"type": "array", "maxItems": 4, "items": {"enum": ["red", "green", "blue"]}}}}


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--octet", default=ROOT / "target/release/octet", type=pathlib.Path)
    p.add_argument("--model", help="file, folder or name; without it a tiny made-up one")
    p.add_argument("--minutes", type=float, default=10)
    p.add_argument("--clients", type=int, default=64)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--log", type=pathlib.Path, help="where the server's log goes; without it nowhere, if all is well")
    p.add_argument("flags", nargs="*", help="flags of `octet serve`, after --")
    return p.parse_args()


class Server:
    """`octet serve` in a process of its own."""

    def __init__(self, args, folder):
        model = args.model
        if model is None:
            model = str(folder / "tiny.gguf")
            subprocess.run([args.octet, "synth", "tiny-qwen35moe", "--quant", "q8_0", "-o", model, "--force"], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.log = args.log or folder / "log"
        command = [str(args.octet), "serve", f"m={model}", "--port", "0", *(args.flags or FLAGS), "--max-body", str(MAX_BODY)]
        self.process = subprocess.Popen(command, stderr=open(self.log, "wb"), stdout=subprocess.DEVNULL)
        while not (found := re.search(rb"listening at http://([\d.]+):(\d+)", self.log.read_bytes())):
            if self.process.poll() is not None:
                sys.exit(f"octet serve did not start:\n{self.log.read_text()}")
            time.sleep(0.05)
        self.host, self.port = found[1].decode(), int(found[2])

    def connect(self, timeout=TIMEOUT_S):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def memory_mib(self):
        out = subprocess.run(["ps", "-o", "rss=", "-p", str(self.process.pid)], capture_output=True, text=True).stdout.strip()
        return int(out) / 1024 if out else None

    def metrics(self):
        c = self.connect(30)
        c.request("GET", "/metrics")
        text = c.getresponse().read().decode()
        c.close()
        return {m[1]: float(m[2]) for m in re.finditer(r'^((?:octet|vllm):\w+){model_name="m"} (\S+)$', text, re.M)}

    def end(self):
        """Seconds that it took to end, and its exit status."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            return time.monotonic() - began, self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return END_S, "killed"


def words(rng, n):
    return " ".join(rng.choice(WORDS) for _ in range(n))


def chat(text, max_tokens=32, **more):
    return {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, **more}


def schema(form=SCHEMA):
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": form}}


class Wrong(Exception):
    """An answer that should not have been."""


def post(connection, path, body):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    connection.request("POST", path, body, {"content-type": "application/json"})
    return connection.getresponse()


def refused(response):
    """Reads an error; fails where it is none that a client can work with."""
    text = response.read()
    try:
        message = json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        raise Wrong(f"status {response.status} without an error in its body: {text[:200]!r}") from None
    if response.status in COME_BACK:
        if int(response.getheader("retry-after", "0")) < 1:
            raise Wrong(f"{response.status} without Retry-After")
        return f"{response.status}, come back"
    if response.status >= 500:
        raise Wrong(f"{response.status}: {message[:200]}")
    return f"{response.status}, refused"


def pieces(response):
    """Lines of a stream's data, each with its time."""
    for line in response:
        if line.startswith(b"data: "):
            yield time.monotonic(), line[6:].strip()


def read_stream(response, pause=0.0):
    last, finish, got = b"", None, 0
    for _, data in pieces(response):
        last = data
        if data != b"[DONE]":
            event = json.loads(data)
            if "error" in event:
                raise Wrong(f"an error within a stream: {event['error']}")
            for choice in event.get("choices", []):
                finish = choice.get("finish_reason") or finish
            got += 1
        time.sleep(pause)
    if last != b"[DONE]" or finish is None:
        raise Wrong(f"a stream broke off after {got} pieces: {last[:200]!r}")
    return "complete"


# Kinds of clients. Each does one request on a connection of its own, and returns what came of it.

def whole(c, rng):
    r = post(c, CHAT, chat(words(rng, rng.randint(1, 300)), rng.randint(1, 64), temperature=rng.choice([0, 1]), n=rng.choice([1, 1, 2])))
    if r.status != 200:
        return refused(r)
    if not all(choice["finish_reason"] for choice in json.loads(r.read())["choices"]):
        raise Wrong("an answer without an end")
    return "complete"


def stream(c, rng):
    r = post(c, CHAT, chat(words(rng, rng.randint(1, 1500)), rng.randint(1, 128), stream=True))
    return read_stream(r) if r.status == 200 else refused(r)


def conversation(c, rng):
    """Turns with a beginning in common, which the cache is for."""
    messages = [{"role": "system", "content": words(random.Random(rng.randint(0, 3)), 400)}]
    for _ in range(3):
        messages.append({"role": "user", "content": words(rng, 40)})
        r = post(c, CHAT, {**chat("", 24), "messages": messages})
        if r.status != 200:
            return refused(r)
        messages.append({"role": "assistant", "content": json.loads(r.read())["choices"][0]["message"].get("content") or "-"})
    return "complete"


def constrained(c, rng):
    r = post(c, CHAT, chat(words(rng, 30), 200, response_format=schema(), chat_template_kwargs={"enable_thinking": False}))
    if r.status != 200:
        return refused(r)
    choice = json.loads(r.read())["choices"][0]
    if choice["finish_reason"] == "stop" and set(json.loads(choice["message"]["content"])) != {"name", "n", "tags"}:
        raise Wrong(f"not what the schema demands: {choice}")
    return "complete"


def slow(c, rng):
    r = post(c, CHAT, chat(words(rng, 50), 64, stream=True))
    return read_stream(r, pause=0.1) if r.status == 200 else refused(r)


def leaves(c, rng):
    r = post(c, CHAT, chat(words(rng, rng.randint(1, 800)), 800, stream=True, ignore_eos=True))
    if r.status != 200:
        return refused(r)
    for _ in zip(range(rng.randint(1, 20)), pieces(r)):
        pass
    return "left in the middle"


def leaves_early(c, rng):
    body = json.dumps(chat(words(rng, rng.randint(1, 2500)), 800, stream=rng.random() < 0.5, ignore_eos=True)).encode()
    c.putrequest("POST", CHAT)
    c.putheader("content-type", "application/json")
    c.putheader("content-length", str(len(body)))
    c.endheaders(body[:rng.choice([len(body), len(body) // 2])])
    time.sleep(rng.random() * 0.3)
    return "left before the answer"


def garbage(c, rng):
    anywhere = [
        rng.randbytes(rng.randint(1, 5000)), b"", b"[" * 100_000, b'{"model": "m", "messages": 7}', b'{"model": "nobody", "messages": []}',
        json.dumps(chat("x", -5)).encode(), json.dumps(chat("x", temperature="hot")).encode(), json.dumps(chat("x", frob=1)).encode(),
    ]
    forms = [chat("x", response_format=schema({"type": "frob"})), chat("x", structured_outputs={"grammar": "start: start"})]
    path = rng.choice([CHAT, CHAT, "/v1/completions", "/v1/embeddings", "/tokenize"])
    r = post(c, path, rng.choice(anywhere + [json.dumps(f).encode() for f in forms if path == CHAT]))
    if r.status == 200:
        raise Wrong(f"{path} takes garbage")
    if r.status not in COME_BACK and (path == "/tokenize" or not 400 <= r.status < 500):
        r.read()
        if not 400 <= r.status < 500:
            raise Wrong(f"status {r.status} for garbage at {path}")
        return f"{r.status}, refused"
    return refused(r)


def too_long(c, rng):
    size = rng.choice([200_000, MAX_BODY // 2, MAX_BODY + 1000])
    text = rng.choice(["x" * size, words(rng, 1000) * (size // 3000)])
    body = rng.choice([chat(text), {"content": text}])
    try:
        r = post(c, CHAT if "messages" in body else "/tokenize", body)
    except (BrokenPipeError, ConnectionResetError):
        # Refused by its length before it was read; not every client sees the answer.
        return "413, not read" if size > MAX_BODY else "broken off"
    if r.status == 200 and size <= MAX_BODY:
        r.read()  # a large context
        return "complete"
    if r.status == 200:
        raise Wrong(f"{size} bytes are taken")
    return refused(r)


def counts(c, rng):
    r = post(c, "/tokenize", {"content": words(rng, rng.randint(1, 3000))})
    if r.status != 200:
        return refused(r)
    if json.loads(r.read())["count"] < 1:
        raise Wrong("no tokens")
    return "complete"


def embeds(c, rng):
    r = post(c, "/v1/embeddings", {"model": "m", "input": [words(rng, rng.randint(1, 200)) for _ in range(rng.randint(1, 3))]})
    if r.status != 200:
        return refused(r)
    json.loads(r.read())["data"][0]["embedding"]
    return "complete"


KINDS = [whole, stream, conversation, constrained, slow, leaves, leaves_early, garbage, too_long, counts, embeds]


def client(server, kind, seed, until, took, wrong):
    rng = random.Random(seed)
    while time.monotonic() < until:
        connection = server.connect()
        began = time.monotonic()
        try:
            what = kind(connection, rng)
            if what == "broken off":
                raise Wrong("the connection broke off while a body was sent that is not too long")
        except Wrong as e:
            what = "WRONG"
            wrong.append(f"{kind.__name__}: {e}")
        except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError) as e:
            what = "WRONG"
            wrong.append(f"{kind.__name__}: {type(e).__name__}: {e}")
        finally:
            connection.close()
        took[kind.__name__, what].append(time.monotonic() - began)
        if what.endswith("come back"):
            time.sleep(rng.random())
        if server.process.poll() is not None:
            return


def load(args, server):
    """What came of each kind's requests, what was wrong, and samples of memory."""
    took, wrong, memory = collections.defaultdict(list), [], []
    began = time.monotonic()
    until = began + 60 * args.minutes
    threads = [threading.Thread(target=client, args=(server, KINDS[i % len(KINDS)], args.seed + i, until, took, wrong), daemon=True)
               for i in range(args.clients)]
    for t in threads:
        t.start()
    while time.monotonic() < until and server.process.poll() is None:
        time.sleep(min(SAMPLE_S, max(0.1, until - time.monotonic())))
        if (mib := server.memory_mib()) is not None:
            memory.append((time.monotonic() - began, mib))
    for t in threads:
        t.join(TIMEOUT_S)
        if t.is_alive():
            wrong.append("a request got no answer")
    return took, wrong, memory


def gaps(server, rng):
    """Inter-token gaps of one stream in milliseconds, without and with a long prompt beside it, and how long that took."""
    c = server.connect()
    context = json.loads(fetch(server, "/props"))["default_generation_settings"]["n_ctx"]
    text = words(rng, context)
    ratio = json.loads(fetch(server, "/tokenize", {"content": text}))["count"] / context
    n = int(context * 0.75 / ratio)
    times, first = [], threading.Event()
    window = {}

    def beside():
        first.wait(TIMEOUT_S)
        c = server.connect()
        window["began"] = time.monotonic()
        r = post(c, "/v1/completions", {"model": "m", "prompt": words(rng, n), "max_tokens": 1, "cache_prompt": False})
        r.read()
        window["ended"], window["status"] = time.monotonic(), r.status
        c.close()

    other = threading.Thread(target=beside, daemon=True)
    other.start()
    tokens = min(1500, context // 2)
    r = post(c, CHAT, chat("Hello", tokens, stream=True, ignore_eos=True))
    for at, data in pieces(r):
        if data != b"[DONE]" and json.loads(data).get("choices"):
            times.append(at)
            if len(times) == 20:
                first.set()
    first.set()
    other.join(TIMEOUT_S)
    c.close()
    if window.get("status") != 200:
        return None
    pairs = [(b, 1e3 * (b - a)) for a, b in zip(times[1:], times[2:])]
    beside = [gap for at, gap in pairs if window["began"] <= at <= window["ended"]]
    alone = [gap for at, gap in pairs if not window["began"] <= at <= window["ended"]]
    return alone, beside, window["ended"] - window["began"], int(context * 0.75)


def fetch(server, path, body=None):
    c = server.connect()
    if body is None:
        c.request("GET", path)
        r = c.getresponse()
    else:
        r = post(c, path, body)
    text = r.read()
    c.close()
    if r.status != 200:
        raise Wrong(f"{path}: {r.status} {text[:200]!r}")
    return text


def masks(before, after):
    """A row about what masks cost between two looks at the metrics."""
    d = {k: after[k] - before[k] for k in after if k.startswith(("octet:mask", "octet:step")) and k in before}
    steps = d.get("octet:masked_steps", 0)
    if not steps:
        return "| - | - | - | - |"
    ms = lambda name: 1e3 * d[name] / steps
    share = d["octet:mask_wait_seconds"] / d["octet:masked_step_seconds"]
    return (f"| {steps:.0f} | {ms('octet:masked_step_seconds'):.2f} | {ms('octet:mask_seconds'):.3f} | "
            f"{ms('octet:mask_wait_seconds'):.3f} ({share:.1%}) |")


def row(label, values):
    values = sorted(values)
    if not values:
        return f"| {label} | - | - | - |"
    return f"| {label} | {statistics.median(values):.1f} | {values[int(0.99 * (len(values) - 1))]:.1f} | {values[-1]:.1f} |"


def main():
    args = parse()
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(args, pathlib.Path(folder))
        rng = random.Random(args.seed)
        try:
            fetch(server, CHAT, chat("Hello", 8))
            found = gaps(server, rng)
            before = server.metrics()
            for _ in range(8):
                kind = server.connect()
                constrained(kind, rng)
                kind.close()
            alone = masks(before, server.metrics())
            before = server.metrics()
            print(f"{args.clients} clients for {args.minutes:g} minutes ...", file=sys.stderr)
            took, more, memory = load(args, server)
            wrong += more
            crashed = server.process.poll()
            loaded = masks(before, server.metrics()) if crashed is None else "| - | - | - | - |"
            idle = {}
            for _ in range(300 if crashed is None else 0):
                idle = server.metrics()
                if not idle["vllm:num_requests_running"] + idle["vllm:num_requests_waiting"]:
                    break
                time.sleep(0.2)
            else:
                wrong += ["requests are left whose clients are gone"] if crashed is None else []
            end_s, status = server.end() if crashed is None else (0, crashed)
        finally:
            if server.process.poll() is None:
                server.process.kill()
        log = server.log.read_text(errors="replace")
    panics = [line for line in log.splitlines() if "panicked" in line or "engine failed" in line or "(a bug)" in line]
    wrong += panics
    if crashed is not None:
        wrong.append(f"the server ended by itself with {crashed}:\n{log[-2000:]}")
    elif status != 0:
        wrong.append(f"told to end, it ended with {status}")

    print(f"\n## {args.clients} clients for {args.minutes:g} minutes\n\n| client | outcome | requests | median s | longest s |\n|---|---|--:|--:|--:|")
    for (kind, what), times in sorted(took.items()):
        print(f"| {kind.replace('_', ' ')} | {what} | {len(times)} | {statistics.median(times):.2f} | {max(times):.2f} |")
    print(f"| all | | {sum(map(len, took.values()))} | | |")

    print("\n| memory, MiB | first third | second | last |\n|---|--:|--:|--:|")
    end = memory[-1][0] if memory else 0
    thirds = [[m for at, m in memory if i * end / 3 < at <= (i + 1) * end / 3] or [0] for i in range(3)]
    print("| mean | " + " | ".join(f"{statistics.mean(t):.1f}" for t in thirds) + " |")
    print("| most | " + " | ".join(f"{max(t):.1f}" for t in thirds) + " |")
    growth = statistics.mean(thirds[2]) - statistics.mean(thirds[1])
    flat = growth <= max(GROWTH_MIB, GROWTH * statistics.mean(thirds[1]))
    print(f"\n{len(memory)} samples; from the second third to the last {growth:+.1f} MiB: {'flat' if flat else 'IT GROWS'}. "
          f"It ended {end_s:.1f} s after it was told to, with status {status}.")
    if not flat:
        wrong.append(f"memory grows by {growth:.1f} MiB")

    print("\n| gap between two tokens, ms | median | p99 | worst |\n|---|--:|--:|--:|")
    if found:
        print(row("alone", found[0]))
        print(row(f"beside a prompt of {found[3]} tokens ({found[2]:.1f} s)", found[1]))
    else:
        wrong.append("the long prompt beside the stream was refused")
    print(f"\nThe longest step with an answer's token in it, of all: {1e3 * idle.get('octet:decode_step_seconds_max', 0):.0f} ms.")

    print("\n| constrained steps | | ms a step | mask, ms (beside it) | waited for, ms (share) |\n|---|--:|--:|--:|--:|")
    print(f"| one at a time {alone}\n| under load {loaded}")
    print(f"\n{len(wrong)} wrong." + "".join(f"\n- {w}" for w in wrong[:20]))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
