#!/usr/bin/env python3
"""Runs real agent programs against Octet, each with tool calls, a resumed session, a second model, sub-agents, screenshots.

    cargo build -p octet-serve --example scripted
    tests/agents/run.py [PROGRAM...] [--list] [--folder DIR] [--keep] [--report docs/compatibility.md]

The programs are installed at pinned versions from npm and PyPI into `--folder` (default: target/agents). The server is the real one but
for the model, which plays a script (crates/server/serve/examples/scripted). Tokenizer and chat template are not in the repository: they
come from the reference data beside the checkout (`../shared`, or OCTET_SHARED); without it this says so and ends well.
"""

import argparse
import ctypes
import fcntl
import json
import os
import shutil
import socket
import struct
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import report
import scenarios
from harness import ROOT, Failure, Installed, Place, Server
from programs import PROGRAMS

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def leave_network():
    """From here on this process and its children reach themselves only. False where the system does not let us."""
    if not sys.platform.startswith("linux"):
        return False
    user = os.getuid()
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        return False
    # The same user inside: programs refuse files of others.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sH", b"lo", IFF_UP))
    return True


class Trial:
    """One program in a folder and with a server of its own, for all its features."""

    def __init__(self, program, folder, args, sees=False):
        self.program = program
        place = program.place = Place(folder, f"{program.bin}:{args.node}")
        names = ["local", *program.aliases]
        self.server = place.server = Server(args.server, args.shared, folder, scenarios.script(program), names, sees)
        place.url = self.server.url
        program.setup()
        self.seen = 0

    def run(self, feature):
        """Runs one scenario; why it failed, or None."""
        try:
            scenarios.run(self.program, feature)
        except Failure as e:
            return str(e)
        finally:
            entries = self.server.entries()
            new, self.seen = entries[self.seen:], len(entries)
        failures = [e["failure"] for e in new if e["failure"]]
        unwanted = self.program.unwanted
        if unwanted and any(unwanted in self.server.prompt(e) for e in new):
            failures.append(f"{unwanted} is in a prompt")
        return "; ".join(failures) or None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("programs", nargs="*", help="keys of programs; default: all")
    parser.add_argument("--list", action="store_true", help="list the programs and end")
    parser.add_argument("--feature", action="append", choices=list(scenarios.FEATURES), help="only these")
    parser.add_argument("--folder", type=Path, default=target / "agents", help="where programs are installed")
    parser.add_argument("--server", type=Path, default=target / "debug/examples/scripted", help="the scripted server")
    parser.add_argument("--report", type=Path, help="write the table of docs/compatibility.md to this file")
    parser.add_argument("--keep", type=Path, help="keep homes, logs and prompts in this folder")
    args = parser.parse_args()
    known = {p.key: p for p in (kind() for kind in PROGRAMS)}
    if args.list:
        print("\n".join(f"{p.key:14} {p.name} {p.version}" for p in known.values()))
        return 0
    unknown = set(args.programs) - set(known)
    if unknown:
        parser.error(f"unknown programs {sorted(unknown)}; there are {sorted(known)}")
    args.shared = Path(os.environ.get("OCTET_SHARED", ROOT.parent / "shared"))
    if not (args.shared / "templates").exists():
        print(f"skipped: needs a tokenizer and a chat template of Qwen3.5's kind in {args.shared}, which is not there")
        return 1 if os.environ.get("CI") else 0
    args.folder, args.server = args.folder.resolve(), args.server.resolve()
    installed = Installed(args.folder)
    chosen = [known[key] for key in args.programs or known]
    for program in chosen:
        program.bin = program.install(installed)
    args.node = installed.node()
    if not leave_network():
        print("note: the programs may reach the network: this system makes no network namespace for us")
    folder = args.keep or Path(tempfile.mkdtemp(prefix="octet-agents-"))
    # What was found is kept, so that the table can be made of several runs.
    kept = args.folder / "results.json"
    results = json.loads(kept.read_text()) if kept.exists() else {}
    all_well = True
    for program in chosen:
        place = folder / program.key
        shutil.rmtree(place, ignore_errors=True)
        trial = Trial(program, place, args)
        try:
            for feature in args.feature or scenarios.FEATURES:
                if not program.has(feature):
                    continue
                began = time.monotonic()
                if feature == "screens":
                    trial.server.stop()
                    trial = Trial(program, place / "sees", args, sees=True)
                why = trial.run(feature)
                results[report.name(program, feature)] = why is None
                all_well &= why is None
                took = f"{time.monotonic() - began:.0f} s"
                print(f"{program.key:18} {feature:10} {'ok' if why is None else 'FAILED'} ({took})", flush=True)
                if why:
                    print("    " + why.replace("\n", "\n    "), flush=True)
        finally:
            trial.server.stop()
    if not args.keep:
        shutil.rmtree(folder)
    kept.write_text(json.dumps(results, indent=1))
    if args.report:
        report.write(args.report, known.values(), results)
    return 0 if all_well else 1


if __name__ == "__main__":
    sys.exit(main())
