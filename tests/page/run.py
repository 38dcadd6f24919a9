#!/usr/bin/env python3
"""Tests the pages in Debian's Chromium against the real server with the model inside, and that their built files are what the sources say.

    cargo build -p octet
    tests/page/run.py [--octet target/debug/octet] [--folder DIR] [--shots DIR] [--only PATTERN] [--slow N]

Chromium must be installed (`apt-get install chromium`); Node comes from PyPI, Playwright, axe and an MCP server from npm, at pinned versions,
into `--folder` (default: target/agents). `--shots` also takes the pictures of docs/. With `--slow` the browser takes N times as long
for all that it computes, which no test may mind.
"""

import argparse
import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "agents"))

from harness import ROOT, Failure, Installed, run_quietly

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
WEB = ROOT / "crates/server/serve/web"
ASSETS = ROOT / "crates/server/serve/assets"
PACKAGES = [
    "playwright-core@1.65.1",
    "@axe-core/playwright@4.14.0",
    "@modelcontextprotocol/server-everything@2026.8.31",
]
HERE = Path(__file__).resolve().parent
TESTS = ["page", "daily", "server", "admin", "pictures"]


def differences(a, b):
    """Names of files that are not the same in both folders."""
    compared = filecmp.dircmp(a, b)
    _, wrong, failed = filecmp.cmpfiles(a, b, compared.common_files, shallow=False)
    return sorted(compared.left_only + compared.right_only + wrong + failed)


def build(node, folder):
    """Builds the page from its sources elsewhere, and compares."""
    web = folder / "web"
    shutil.copytree(WEB, web, ignore=shutil.ignore_patterns("node_modules"))
    env = os.environ | {"PATH": f"{node}:{os.environ['PATH']}", "OUT": str(folder / "assets")}
    for command in (["ci", "--no-audit", "--no-fund", "--ignore-scripts"], ["run", "build"], ["test"]):
        run_quietly([node / "npm", *command], cwd=web, env=env)
    different = differences(folder / "assets/page", ASSETS / "page")
    for document in ("index.html", "admin.html"):
        if (folder / "assets" / document).read_bytes() != (ASSETS / document).read_bytes():
            different.append(document)
    if different:
        raise Failure(f"{ASSETS.relative_to(ROOT)} is not what {WEB.relative_to(ROOT)} builds: {', '.join(different)}; run 'npm run build' there")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--octet", default=TARGET / "debug/octet", type=Path)
    parser.add_argument("--folder", default=TARGET / "agents", type=Path)
    parser.add_argument("--shots", type=Path)
    parser.add_argument("--only")
    parser.add_argument("--slow", type=float)
    args = parser.parse_args()
    chromium = shutil.which("chromium")
    if not chromium:
        sys.exit("there is no chromium; on Debian: apt-get install chromium")
    if not args.octet.exists():
        sys.exit(f"{args.octet} is missing; run: cargo build -p octet")
    installed = Installed(args.folder)
    node = installed.node()
    with tempfile.TemporaryDirectory() as temporary:
        build(node, Path(temporary))
        packages = installed.npm("page", PACKAGES).parent
        env = os.environ | {
            "PATH": f"{node}:{os.environ['PATH']}",
            "OCTET": str(args.octet.resolve()),
            "CHROMIUM": chromium,
            "PACKAGES": str(packages.resolve()),
            "SHOTS": str(args.shots.resolve()) if args.shots else "",
            "SLOW": str(args.slow) if args.slow else "",
        }
        only = ["--test-name-pattern", args.only] if args.only else []
        tests = [node / "node", "--test", "--test-concurrency=1", "--test-reporter=spec", "--test-force-exit", *only, *(HERE / f"{name}.test.mjs" for name in TESTS)]
        sys.exit(subprocess.run(tests, env=env, cwd=temporary).returncode)


if __name__ == "__main__":
    try:
        main()
    except Failure as e:
        sys.exit(f"failed: {e}")
