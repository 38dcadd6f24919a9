#!/usr/bin/env python3
"""Asks a router for conversations of agents, and measures what it finds in the caches of prefixes of the replicas behind it.

    python3 -m venv sglang && sglang/bin/pip install sglang-router
    benches/prefixes.py --octet target/release/octet --sglang sglang/bin/python --rounds 2 > table.md
    benches/prefixes.py --octet target/release/octet --sglang sglang/bin/python --model models/fox/fox.gguf --rounds 3 > table.md

Replicas are simulated, or with --model they are four `octet serve` of that model, with two threads and a cache of 40,000 tokens each: their
own metrics say what was found.

A simulated replica has a cache of 400,000 tokens that drops what was not used for longest. It computes 8,000 tokens of prompts a second for each of at
most 16 requests at a time, and takes 5 s for an answer; --scale makes all times shorter. Conversations begin with one of 200 instructions,
some of them far more frequent than others, and have 5 to 25 turns. A token is four bytes.
"""
import argparse
import asyncio
import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SLOTS = 16
CACHE_TOKENS, BLOCK_TOKENS, BYTES_PER_TOKEN = 400_000, 16, 4
PREFILL_PER_S, ANSWER_S, THINK_S = 8000.0, 5.0, 2.0


@dataclasses.dataclass
class Load:
    """Lengths in words, which are a token of the simulation each and some three of a small vocabulary."""

    replicas: int
    conversations_per_s: float
    instructions: int
    instruction: tuple
    first: tuple
    later: tuple
    turns: tuple
    answer: int


SIMULATED = Load(8, 3.0, 200, (2000, 12000), (50, 1500), (200, 2000), (5, 25), 300)
SERVED = Load(4, 3.0, 40, (60, 300), (10, 50), (10, 50), (3, 9), 8)
FIRST_PORT, ROUTER_PORT = 7500, 7490
STRATEGIES = {"octet, prefix-affinity": "prefix-affinity", "octet, least-busy": "least-busy"}
SGLANG = "sglang-router, cache_aware"


class Replica:
    def __init__(self, scale):
        self.scale = scale
        self.cache = collections.OrderedDict()
        self.slots = asyncio.Semaphore(SLOTS)
        self.requests = self.hits = self.blocks = 0

    async def answer(self, text):
        """Takes as long as a prompt of which the cache has a part, and keeps it."""
        chain = blocks(text)
        async with self.slots:
            known = next((i for i, block in enumerate(chain) if block not in self.cache), len(chain))
            for block in chain:
                self.cache[block] = True
                self.cache.move_to_end(block)
            while len(self.cache) * BLOCK_TOKENS > CACHE_TOKENS:
                self.cache.popitem(last=False)
            self.requests, self.hits, self.blocks = self.requests + 1, self.hits + known, self.blocks + len(chain)
            await asyncio.sleep(self.scale * ((len(chain) - known) * BLOCK_TOKENS / PREFILL_PER_S + ANSWER_S))

    async def serve(self, reader, writer):
        try:
            while True:
                path, body = await request(reader)
                answer = {"object": "list", "data": [{"id": "m", "object": "model"}], "model_path": "m", "served_model_name": "m"}
                if "completions" in path:
                    asked = json.loads(body)
                    await self.answer("".join(m["content"] for m in asked["messages"]).encode())
                    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
                    usage = {"prompt_tokens": len(body) // BYTES_PER_TOKEN, "completion_tokens": 2, "total_tokens": len(body) // BYTES_PER_TOKEN + 2}
                    answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
                data = json.dumps(answer).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
                await writer.drain()
        # The end, or another protocol: sglang-router tries gRPC first.
        except (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError, IndexError, ValueError):
            pass
        finally:
            writer.close()


def blocks(text):
    """A hash for each block of tokens, of all text up to its end."""
    size, chain, hashed = BLOCK_TOKENS * BYTES_PER_TOKEN, [], hashlib.blake2b(digest_size=8)
    for i in range(0, len(text) - size + 1, size):
        hashed.update(text[i : i + size])
        chain.append(hashed.digest())
    return chain


async def request(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
    fields = dict(line.lower().split(":", 1) for line in head[1:] if ":" in line)
    if "chunked" not in fields.get("transfer-encoding", ""):
        return head[0].split(" ")[1], await reader.readexactly(int(fields.get("content-length", 0)))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return head[0].split(" ")[1], body


async def fetch(port, path, body=None):
    """The status and the text of an answer."""
    method = "GET" if body is None else "POST"
    data = b"" if body is None else json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ")[1]), answer.decode()


async def ask(messages, tokens):
    status, answer = await fetch(ROUTER_PORT, "/v1/chat/completions", {"model": "m", "max_tokens": tokens, "temperature": 0, "messages": messages})
    if status != 200:
        raise RuntimeError(f"the router answers {answer}")


def text(rng, tokens):
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") + str(rng.randrange(10, 99)) + " " for _ in range(tokens))


class Known:
    """What one cache without a limit would have found."""

    def __init__(self):
        self.seen, self.hits, self.blocks = set(), 0, 0

    def ask(self, messages):
        chain = blocks("".join(m["content"] for m in messages).encode())
        self.hits += sum(block in self.seen for block in chain)
        self.blocks += len(chain)
        self.seen.update(chain)


async def conversation(name, instructions, load, scale, waits, known):
    rng = random.Random(name)
    system = rng.choices(instructions, [1 / (i + 1) for i in range(len(instructions))])[0]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text(rng, rng.randint(*load.first))}]
    for _ in range(rng.randint(*load.turns)):
        known.ask(messages)
        began = time.monotonic()
        await ask(messages, load.answer)
        waits.append((time.monotonic() - began) / scale)
        messages = [*messages, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": text(rng, rng.randint(*load.later))}]
        await asyncio.sleep(scale * rng.expovariate(1 / THINK_S))


def command(args, load, router, folder):
    urls = [f"http://127.0.0.1:{FIRST_PORT + i}" for i in range(load.replicas)]
    if router == SGLANG:
        return [args.sglang, "-m", "sglang_router.launch_router", "--worker-urls", *urls, "--policy", "cache_aware", "--host", "127.0.0.1", "--port", str(ROUTER_PORT)]
    config = pathlib.Path(folder, "octet.yaml")
    entries = "".join(f"- {{model_name: m, litellm_params: {{model: hosted_vllm/m, api_base: '{url}/v1'}}}}\n" for url in urls)
    config.write_text(f"model_list:\n{entries}router_settings: {{routing_strategy: {STRATEGIES[router]}, num_retries: 0}}\n")
    return [args.octet, "serve", "--config", config, "--port", str(ROUTER_PORT)]


def is_taken(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


async def ready(name, process, try_it):
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"{name} has ended with {process.returncode}")
        try:
            return await try_it()
        except (OSError, IndexError, RuntimeError):
            pass
        await asyncio.sleep(0.1)
    raise RuntimeError(f"{name} does not answer")


async def health(port):
    if (await fetch(port, "/health"))[0] != 200:
        raise RuntimeError("not yet")


@contextlib.asynccontextmanager
async def simulated(args, load):
    """Replicas, as a function that gives requests, blocks that were found, and all blocks of each."""
    replicas = [Replica(args.scale) for _ in range(load.replicas)]
    servers = [await asyncio.start_server(r.serve, "127.0.0.1", FIRST_PORT + i, limit=1 << 22) for i, r in enumerate(replicas)]

    async def counts():
        return [(r.requests, r.hits, r.blocks) for r in replicas]

    try:
        yield counts
    finally:
        for server in servers:
            server.close()


@contextlib.asynccontextmanager
async def served(args, load):
    """The same in tokens, of real ones."""
    ports = range(FIRST_PORT, FIRST_PORT + load.replicas)
    flags = ["--threads", "2", "--kv-tokens", "40000", "-c", "4096"]
    command = lambda port: [args.octet, "serve", args.model, "--served-model-name", "m", "--port", port, *flags]
    processes = [subprocess.Popen(list(map(str, command(port))), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for port in ports]

    async def counts():
        found = []
        for port in ports:
            lines = [line for line in (await fetch(port, "/metrics"))[1].splitlines() if not line.startswith("#")]
            total = lambda name: sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))
            found.append(tuple(map(total, ["vllm:request_success_total", "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"])))
        return found

    try:
        for process, port in zip(processes, ports):
            await ready("a replica", process, lambda: health(port))
        yield counts
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


async def measure(args, load, router, seed, instructions):
    async with (served if args.model else simulated)(args, load) as counts:
        with tempfile.TemporaryDirectory() as folder:
            # Another program would answer instead.
            if is_taken(ROUTER_PORT):
                sys.exit(f"a program listens at {ROUTER_PORT}")
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            process = subprocess.Popen(list(map(str, command(args, load, router, folder))), start_new_session=True, **quiet)
            try:
                await ready("the router", process, lambda: ask([{"role": "user", "content": "Hi"}], 1))
                before = await counts()
                rng, waits, tasks, known = random.Random(seed), [], [], Known()
                for i in range(args.conversations):
                    await asyncio.sleep(args.scale * rng.expovariate(load.conversations_per_s))
                    tasks.append(asyncio.create_task(conversation(f"{seed}-{i}", instructions, load, args.scale, waits, known)))
                await asyncio.gather(*tasks)
                after = await counts()
            finally:
                os.killpg(process.pid, signal.SIGTERM)  # sglang-router is started by another one
                process.wait()
    requests, hits, total = ([a[k] - b[k] for a, b in zip(after, before)] for k in range(3))
    waits.sort()
    print(f"{router}, round {seed}: requests of each replica {[int(n) for n in requests]}", file=sys.stderr, flush=True)
    print(
        f"| {router} | {seed} | {100 * sum(hits) / sum(total):.1f}% | {100 * known.hits / known.blocks:.1f}% | {max(requests) * load.replicas / sum(requests):.2f} | {waits[len(waits) // 2]:.1f} | {waits[len(waits) * 99 // 100]:.1f} |",
        flush=True,
    )


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--octet", default=ROOT / "target/release/octet", type=pathlib.Path)
    p.add_argument("--sglang", type=pathlib.Path, help="a Python with sglang-router; without it that one is not measured")
    p.add_argument("--model", type=pathlib.Path, help="of real replicas; a small one, that answers some thousand tokens of prompts a second")
    p.add_argument("--conversations", default=300, type=int)
    p.add_argument("--scale", default=1.0, type=float, help="of all times; with too small a one this program is too slow, and routers see no load")
    p.add_argument("--rounds", default=1, type=int)
    args = p.parse_args()
    load = SERVED if args.model else SIMULATED
    instructions = [text(random.Random(f"instructions {i}"), random.Random(i).randint(*load.instruction)) for i in range(load.instructions)]
    print("| router | round | tokens found cached | were sent before | most requests of a replica, of the mean | s, median | s, p99 |\n|---|---:|---:|---:|---:|---:|---:|")
    for seed in range(1, args.rounds + 1):
        for router in [*STRATEGIES, *([SGLANG] if args.sglang else [])]:
            asyncio.run(measure(args, load, router, seed, instructions))


if __name__ == "__main__":
    sys.exit(main())
