#!/usr/bin/env python3
"""Asks a router for conversations of agents, with replicas behind it whose caches of prefixes are simulated, and measures what it finds there.

    python3 -m venv sglang && sglang/bin/pip install sglang-router
    benches/prefixes.py --octet target/release/octet --sglang sglang/bin/python --rounds 2 > table.md

A replica has a cache of 400,000 tokens that drops what was not used for longest. It computes 8,000 tokens of prompts a second for each of at
most 16 requests at a time, and takes 5 s for an answer; --scale makes all times shorter. Conversations begin with one of 200 instructions,
some of them far more frequent than others, and have 5 to 25 turns. A token is four bytes.
"""
import argparse
import asyncio
import collections
import hashlib
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
REPLICAS, SLOTS = 8, 16
CACHE_TOKENS, BLOCK_TOKENS, BYTES_PER_TOKEN = 400_000, 16, 4
PREFILL_PER_S, ANSWER_S, THINK_S = 8000.0, 5.0, 2.0
INSTRUCTIONS, CONVERSATIONS_PER_S = 200, 3.0
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


async def ask(messages):
    body = json.dumps({"model": "m", "max_tokens": 300, "messages": messages}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", ROUTER_PORT)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()
    status = int((await reader.read()).split(b" ")[1])
    writer.close()
    return status


def text(rng, tokens):
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") + str(rng.randrange(10, 99)) + " " for _ in range(tokens))


async def conversation(name, instructions, scale, waits):
    rng = random.Random(name)
    system = rng.choices(instructions, [1 / (i + 1) for i in range(INSTRUCTIONS)])[0]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text(rng, rng.randint(50, 1500))}]
    for _ in range(rng.randint(5, 25)):
        began = time.monotonic()
        status = await ask(messages)
        if status != 200:
            raise RuntimeError(f"the router answers {status}")
        waits.append((time.monotonic() - began) / scale)
        messages = [*messages, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": text(rng, rng.randint(200, 2000))}]
        await asyncio.sleep(scale * rng.expovariate(1 / THINK_S))


def command(args, router, folder):
    urls = [f"http://127.0.0.1:{FIRST_PORT + i}" for i in range(REPLICAS)]
    if router == SGLANG:
        return [args.sglang, "-m", "sglang_router.launch_router", "--worker-urls", *urls, "--policy", "cache_aware", "--host", "127.0.0.1", "--port", str(ROUTER_PORT)]
    config = pathlib.Path(folder, "octet.yaml")
    entries = "".join(f"- {{model_name: m, litellm_params: {{model: hosted_vllm/m, api_base: '{url}/v1'}}}}\n" for url in urls)
    config.write_text(f"model_list:\n{entries}router_settings: {{routing_strategy: {STRATEGIES[router]}, num_retries: 0}}\n")
    return [args.octet, "serve", "--config", config, "--port", str(ROUTER_PORT)]


async def ready(process):
    for _ in range(600):
        # Then another program would answer at this port.
        if process.poll() is not None:
            raise RuntimeError(f"the router has ended with {process.returncode}")
        try:
            if await ask([{"role": "user", "content": "Hi"}]) == 200:
                return
        except (OSError, IndexError):
            pass
        await asyncio.sleep(0.1)
    raise RuntimeError("the router does not answer")


async def measure(args, router, seed, instructions):
    replicas = [Replica(args.scale) for _ in range(REPLICAS)]
    servers = [await asyncio.start_server(r.serve, "127.0.0.1", FIRST_PORT + i, limit=1 << 22) for i, r in enumerate(replicas)]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(list(map(str, command(args, router, folder))), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            await ready(process)
            for replica in replicas:
                replica.requests = replica.hits = replica.blocks = 0
            rng, waits, tasks = random.Random(seed), [], []
            for i in range(args.conversations):
                await asyncio.sleep(args.scale * rng.expovariate(CONVERSATIONS_PER_S))
                tasks.append(asyncio.create_task(conversation(f"{seed}-{i}", instructions, args.scale, waits)))
            await asyncio.gather(*tasks)
        finally:
            process.terminate()
            process.wait()
            for server in servers:
                server.close()
    requests, waits = [r.requests for r in replicas], sorted(waits)
    hits = sum(r.hits for r in replicas) / sum(r.blocks for r in replicas)
    print(
        f"| {router} | {seed} | {100 * hits:.1f}% | {max(requests) * REPLICAS / sum(requests):.2f} | {waits[len(waits) // 2]:.1f} | {waits[len(waits) * 99 // 100]:.1f} |",
        flush=True,
    )


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--octet", default=ROOT / "target/release/octet", type=pathlib.Path)
    p.add_argument("--sglang", type=pathlib.Path, help="a Python with sglang-router; without it that one is not measured")
    p.add_argument("--conversations", default=300, type=int)
    p.add_argument("--scale", default=1.0, type=float, help="of all times; with too small a one this program is too slow, and routers see no load")
    p.add_argument("--rounds", default=1, type=int)
    args = p.parse_args()
    instructions = [text(random.Random(f"instructions {i}"), random.Random(i).randint(2000, 12000)) for i in range(INSTRUCTIONS)]
    print("| router | round | tokens found cached | most requests of a replica, of the mean | s, median | s, p99 |\n|---|---:|---:|---:|---:|---:|")
    for seed in range(1, args.rounds + 1):
        for router in [*STRATEGIES, *([SGLANG] if args.sglang else [])]:
            asyncio.run(measure(args, router, seed, instructions))


if __name__ == "__main__":
    sys.exit(main())
