#!/usr/bin/env python3
"""How much of Claude Code's prompts is computed again: records the requests of two sessions, and replays them to a model that computes.

    cargo build -p octet-serve --example scripted
    tests/agents/prefix.py

The sessions run against the scripted server through a proxy that keeps their bodies, in a temporary folder. They are then sent in the same
order to a server with a tiny model of Qwen3.5's hybrid architecture, with random weights and Qwen3.6's tokenizer: once as they are, and once with the billing header of the first system
block under another name, so that it stays in the prompt as it would for a server that does not know it.
"""

import argparse
import http.client
import json
import os
import re
import sys
import tempfile
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import ROOT, Installed, Server
from programs.claude_code import ClaudeCode
from run import Trial

HEADER = b"x-anthropic-billing-header:"


def recorder(target, kept):
    """A proxy for `target` that appends the bodies of messages to `kept`; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path.split("?")[0] == "/v1/messages":
                kept.append(body)
            self.forward(body)

        def do_GET(self):
            self.forward(None)

        def forward(self, body):
            connection = http.client.HTTPConnection(target.removeprefix("http://"))
            connection.request(self.command, self.path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            self.send_response(answer.status)
            self.send_header("content-type", answer.headers["content-type"])
            self.end_headers()  # the end of the connection is the end of the answer
            while piece := answer.read1(65536):
                self.wfile.write(piece)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def record(args, folder):
    """The bodies of two sessions, each with tool calls and a resumed part."""
    program = ClaudeCode()
    installed = Installed(args.folder)
    program.bin, args.node = program.install(installed), installed.node()
    trial = Trial(program, folder, args)
    sessions = []
    try:
        for program.greeting in ("Good morning. ", "It is late. "):
            kept = []
            program.place.url = recorder(trial.server.url, kept)
            for feature in ("tools", "resume"):
                why = trial.run(feature)
                if why:
                    raise SystemExit(why)
            sessions.append(kept)
    finally:
        trial.server.stop()
    return sessions


def metric(url, name):
    text = urllib.request.urlopen(f"{url}/metrics").read().decode()
    return sum(float(v) for v in re.findall(rf"^{re.escape(name)}(?:_total)?{{[^}}]*}} ([0-9.e+]+)$", text, re.M))


COUNTS = ("vllm:prompt_tokens", "octet:prompt_tokens_computed")


def replay(args, sessions, rename, folder):
    """Sends the bodies to a model that computes: for each session the requests, and the tokens of its prompts and those of them that were
    computed, for its first request and for all."""
    server = Server(args.server, args.shared, folder, None, ["local", *ClaudeCode.aliases])
    counts = lambda: [metric(server.url, name) for name in COUNTS]
    try:
        out = []
        for bodies in sessions:
            before, first = counts(), None
            for body in bodies:
                data = json.loads(body.replace(HEADER, b"y-" + HEADER[2:]) if rename else body)
                data |= {"max_tokens": 1, "stream": False}
                request = urllib.request.Request(
                    f"{server.url}/v1/messages", json.dumps(data).encode(), {"content-type": "application/json"}
                )
                urllib.request.urlopen(request).read()
                first = first or counts()
            out.append([len(bodies), *(b - a for a, b in zip(before, first)), *(b - a for a, b in zip(before, counts()))])
        return out
    finally:
        server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--folder", type=Path, default=target / "agents")
    parser.add_argument("--server", type=Path, default=target / "debug/examples/scripted")
    args = parser.parse_args()
    args.shared = Path(os.environ.get("OCTET_SHARED", ROOT.parent / "shared"))
    with tempfile.TemporaryDirectory(prefix="octet-prefix-") as folder:
        folder = Path(folder)
        sessions = record(args, folder / "place")
        print("| billing header | session | requests | first prompt | of it computed | all prompts | of them computed |")
        print("|---|---|---|---|---|---|---|")
        for name, rename in (("kept", True), ("left out", False)):
            for number, row in enumerate(replay(args, sessions, rename, folder / name), 1):
                print(f"| {name} | {number} | " + " | ".join(f"{v:,.0f}" for v in row) + " |", flush=True)


if __name__ == "__main__":
    main()
