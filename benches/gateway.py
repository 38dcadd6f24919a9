#!/usr/bin/env python3
"""Measures what `octet serve --config` adds to a request to another server, beside LiteLLM's proxy, in one run.

    python3 -m venv litellm && litellm/bin/pip install 'litellm[proxy]==1.*'
    benches/gateway.py --tool ../shared/tools/gateway_bench.py --litellm litellm/bin/litellm --nginx nginx > table.md
    benches/gateway.py --redis redis-server > table.md

With --redis, `octet` stands there twice more: with limits of the deployment that it counts itself, and with the same limits counted in
a Redis server, which runs beside the mock.

nginx only passes bytes on: what it adds is what one more process in between costs on this machine, whatever it does.

The tool holds the server that is asked (a mock that answers at once) and the clients. In each round the gateways stand in turn between them, each
alone on the machine but for the mock and the clients: gateway on one core, the rest on another. What is compared is added
latency (through the gateway less straight to the mock, in alternating windows) and processor time of the gateway for a
request. At last the memory of `octet serve` is watched over `--requests` requests. A report in Markdown goes to standard output.
"""
import argparse
import http.client
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEY = "sk-bench"
MOCK, GATEWAY, REDIS = 9100, 4000, 9101
KINDS = ["json", "sse0", "sse5"]
CONCURRENCY = [1, 16, 64]
CONFIG = """model_list:
  - model_name: bench
    litellm_params: {{model: openai/bench, api_key: none, api_base: "http://127.0.0.1:{mock}/v1"}}
litellm_settings: {{request_timeout: 600, num_retries: 0}}
general_settings: {{master_key: {key}}}
"""
LIMITED = CONFIG.replace('/v1"}}', '/v1", rpm: 1000000000, tpm: 100000000000, max_parallel_requests: 100000}}')
SHARED = LIMITED + 'router_settings: {{redis_url: "redis://127.0.0.1:{redis}/0"}}\n'
NGINX = """daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr;
events {{ worker_connections 1024; }}
http {{
  access_log {folder}/access.log;
  upstream mock {{ server 127.0.0.1:{mock}; keepalive 64; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://mock; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }}
  }}
}}
"""
# What its makers advise for speed.
LITELLM = {"LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--octet", default=ROOT / "target/release/octet", type=pathlib.Path)
    p.add_argument("--tool", default=ROOT / "../shared/tools/gateway_bench.py", type=pathlib.Path)
    p.add_argument("--python", default=sys.executable, help="that runs the tool: with uvloop its clients take less time")
    p.add_argument("--litellm", type=pathlib.Path, help="without it that one is not measured")
    p.add_argument("--nginx", help="that program, 1.20 or later, as one more gateway")
    p.add_argument("--redis", help="a Redis or Valkey server: Octet with limits is measured without and with it, too")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=3, help="length of a window")
    p.add_argument("--requests", type=int, default=100_000, help="over which memory is watched")
    return p.parse_args()


def rss_mib(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def on_core(core, command, **more):
    return subprocess.Popen(["taskset", "-c", str(core), *map(str, command)], **more)


def ask(timeout=5):
    c = http.client.HTTPConnection("127.0.0.1", GATEWAY, timeout=timeout)
    body = json.dumps({"model": "bench", "messages": [{"role": "user", "content": "hi"}]})
    c.request("POST", "/v1/chat/completions", body, {"content-type": "application/json", "authorization": f"Bearer {KEY}"})
    answer = c.getresponse()
    answer.read()
    c.close()
    return answer.status


class Gateway:
    """A gateway in a process of its own, on core 1."""

    def __init__(self, args, name, folder):
        config = folder / "config.yaml"
        text = {"octet, limits": LIMITED, "octet, limits in Redis": SHARED}.get(name, CONFIG)
        config.write_text(text.format(mock=MOCK, key=KEY, redis=REDIS))
        if name.startswith("octet"):
            command, env = [args.octet, "serve", "--config", config, "--port", GATEWAY], {}
        elif name == "nginx":
            config.write_text(NGINX.format(folder=folder, mock=MOCK, port=GATEWAY))
            command, env = [args.nginx, "-c", config], {}
        else:
            command, env = [args.litellm, "--config", config, "--host", "127.0.0.1", "--port", GATEWAY, "--num_workers", 1,
                            "--telemetry", "False"], LITELLM
        self.log = open(folder / f"{name}.log", "ab")
        self.process = on_core(1, command, env=os.environ | env, stdout=self.log, stderr=self.log)
        for _ in range(600):
            if self.process.poll() is not None:
                sys.exit(f"{name} did not start:\n{(folder / f'{name}.log').read_text()}")
            try:
                if ask() == 200:
                    return
            except OSError:
                pass
            time.sleep(0.2)
        sys.exit(f"{name} does not answer")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


def tool(args, *more):
    command = ["taskset", "-c", "0", args.python, args.tool, "--gateway", f"http://127.0.0.1:{GATEWAY}", "--model", "bench", "--key", KEY,
               "--upstream-port", str(MOCK), "-o", "json", *more]
    return json.loads(subprocess.check_output(list(map(str, command))))


def sleep_of_processors():
    """How processors of this machine wait for work. In a virtual machine the host has to wake one that sleeps, which takes longer
    than a whole request through a gateway; Linux can have it look for work a while first (guest_halt_poll_ns)."""
    def read(path):
        try:
            return pathlib.Path("/sys", path).read_text().strip()
        except OSError:
            return None
    governor = read("devices/system/cpu/cpuidle/current_governor")
    poll = read("module/haltpoll/parameters/guest_halt_poll_ns")
    return ", ".join(filter(None, [f"idle governor {governor}" if governor else None, f"guest_halt_poll_ns {poll}" if poll else None]))


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def spread(values, digits=2):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def table(name, cells):
    """Rows of one gateway: windows of all rounds."""
    for key in sorted(cells, key=lambda k: (KINDS.index(k[0]), k[1])):
        windows, added = cells[key]["gateway"], cells[key]["added"]
        errors = sum(sum(w["errors"].values()) for w in windows)
        first = spread([w["ttft_p50"] for w in added]) if key[0] != "json" else ""
        print(f"| {key[0]} | {key[1]} | {name} | {spread([w['rps'] for w in windows], 0)} | {spread([w['total_p50'] for w in added])} | {first} | "
              f"{spread([w['total_p99'] for w in added])} | {spread([w['gateway_cpu_ms'] for w in windows], 3)} | {errors} |")


def flat(args, folder):
    """Resident memory after each tenth of so many requests."""
    gateway, samples = Gateway(args, "octet", folder), []
    step = max(1, args.requests // 10)
    for _ in range(10):
        # The tool sends as many straight to the mock, which nobody counts; warming up comes on top.
        tool(args, "--kinds", "json", "-c", "16", "--rounds", "1", "--seconds", "600", "--max-requests", str(step))
        samples.append(rss_mib(gateway.process.pid))
    gateway.stop()
    return samples


def main():
    args = parse()
    names = ["octet"] + ["octet, limits", "octet, limits in Redis"] * bool(args.redis) + ["litellm"] * bool(args.litellm) + ["nginx"] * bool(args.nginx)
    cells = {name: {} for name in names}
    memory = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        mock = on_core(0, [args.python, args.tool, "upstream", "--port", MOCK])
        redis = on_core(0, [args.redis, "--port", REDIS, "--bind", "127.0.0.1", "--save", ""], stdout=subprocess.DEVNULL) if args.redis else None
        try:
            for r in range(args.rounds):
                for name in names if r % 2 == 0 else names[::-1]:
                    print(f"round {r + 1} of {args.rounds}: {name}", file=sys.stderr)
                    gateway = Gateway(args, name, folder)
                    result = tool(args, "--kinds", ",".join(KINDS), "-c", ",".join(map(str, CONCURRENCY)), "--rounds", "1",
                                  "--seconds", args.seconds)
                    gateway.stop()
                    memory[name].append(result["gateway_rss_mib_before_after"][1])
                    for cell in result["cells"]:
                        kept = cells[name].setdefault((cell["kind"], cell["concurrency"]), {"gateway": [], "added": []})
                        kept["gateway"] += cell["gateway"]
                        kept["added"] += cell["added"]
            samples = flat(args, folder)
        finally:
            for process in filter(None, [mock, redis]):
                process.terminate()
                process.wait(5)
    version = lambda command: subprocess.check_output(command, text=True).strip().splitlines()[-1]
    print(f"{args.rounds} rounds, windows of {args.seconds:g} s, {processor()}, {os.cpu_count()} cores ({sleep_of_processors()}), {version([args.octet, '--version'])}"
          + (f", {version([args.litellm, '--version'])}" if args.litellm else "") + ". Milliseconds: median over the rounds (least-largest).\n")
    print("| request | clients | through | requests/s | added, p50 | added to the first event, p50 | added, p99 | CPU ms a request | errors |")
    print("|" + "---|" * 9)
    for name in names:
        table(name, cells[name])
    print()
    for name in names:
        print(f"Memory of {name} after each round: {spread(memory[name], 0)} MiB.")
    print(f"\nMemory of octet over {args.requests} requests, MiB after each tenth: " + " ".join(f"{s:.1f}" for s in samples) + ".")


if __name__ == "__main__":
    main()
