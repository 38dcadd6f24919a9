#!/usr/bin/env python3
"""Runs llama-server's own API tests against Octet, and compares with what expected.toml says of each.

    cargo build -p octet
    tests/llama-server/run.py [FILE...] [--octet target/debug/octet] [--only EXPRESSION] [--report docs/compatibility.md]

The tests come from the source distribution of llama-cpp-python on PyPI, which carries llama.cpp's sources: 77 MB, fetched once into
`--folder` (default: target/agents). Nothing of them is in the repository. Without the network this says so and ends well. The server
that they start is wrapper.py, which starts `octet serve` with the built-in model; plugin.py says what of the tests is switched off.
Exit status: 0 if each test did what expected.toml says, else 1.
"""

import argparse
import collections
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "agents"))

from harness import ROOT, Failure, Installed, check, run_quietly

HERE = Path(__file__).resolve().parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
VERSION = "0.3.36"
# What their requirements.txt names, but for a newer numpy.
PACKAGES = [
    "pytest==8.3.5", "pytest-timeout==2.4.0", "aiohttp==3.14.5", "filelock==4.2.12", "numpy==2.4.6", "openai==2.14.0",
    "prometheus-client==0.20.0", "requests==2.32.5", "wget==3.2",
]
# The folders of the archive that are unpacked. Tests find the templates by a path from their own folder.
TESTS, TEMPLATES = "tools/server/tests/", "models/templates/"
TIMEOUT_S = 120
HEADING = "## llama-server's own tests"


def fetch(installed):
    """The folder with llama.cpp's tests and templates, and the Python that runs them."""
    python = installed.venv("llama-server", *PACKAGES) / "python"
    folder = installed.folder / f"llama-cpp-python-{VERSION}"
    done = folder / "fetched"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        # pip asks the package for its metadata, which takes its build tools (30 MB more).
        pip = [python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        run_quietly([*pip, "--no-binary", "llama-cpp-python", f"llama-cpp-python=={VERSION}", "--dest", folder])
        for archive in folder.glob("*.tar.gz"):
            unpack(archive, folder)
            archive.unlink()
        (folder / TESTS / "tmp").mkdir(exist_ok=True)
        done.write_text("")
    return folder, python


def unpack(archive, folder):
    """Writes the files of the two folders, below `folder`."""
    with tarfile.open(archive) as files:
        for file in files:
            name = file.name.partition("/vendor/llama.cpp/")[2]
            if not file.isfile() or not name.startswith((TESTS, TEMPLATES)):
                continue
            path = (folder / name).resolve()
            check(path.is_relative_to(folder.resolve()), f"{archive.name} has a file outside of its folder: {file.name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files.extractfile(file).read())


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Expected:
    """What expected.toml says."""

    def __init__(self):
        said = tomllib.loads((HERE / "expected.toml").read_text())
        self.left_out = said["left_out"]
        self.groups = said["group"]
        self.varies = set(said["varies"]["tests"])

    def group(self, test):
        """The group of a test that fails: by its name, or by that of its function, of which all cases fail."""
        names = {test, function(test)}
        return next((g for g in self.groups if names & set(g["tests"])), None)

    def unknown(self, tests):
        """Names that no test has."""
        known = set(tests) | {function(t) for t in tests}
        return sorted(n for n in [*self.varies, *(n for g in self.groups for n in g["tests"])] if n not in known)


def function(test):
    """`file::function` of a test, without the values of its case."""
    return test.partition("[")[0]


def run(args, expected, folder, python):
    """Runs the tests; outcome and message of each, by name."""
    results = args.folder / "llama-server-results.jsonl"
    log = args.folder / "llama-server.log"
    results.write_text("")
    tests = folder / TESTS
    files = args.files or sorted(p.name for p in tests.glob("unit/test_*.py") if p.name not in expected.left_out)
    command = [python, "-m", "pytest", "-p", "plugin", "-p", "no:cacheprovider", "-m", "not slow", "-q", "--tb=short"]
    command += [f"--timeout={TIMEOUT_S}", *(["-k", args.only] if args.only else []), *(f"unit/{f}" for f in files)]
    env = os.environ | {
        "PYTHONPATH": f"{HERE}:{tests}", "PYTHONDONTWRITEBYTECODE": "1", "PORT": str(free_port()),
        "LLAMA_SERVER_BIN_PATH": str(HERE / "wrapper.py"), "LLAMA_CACHE": str(args.folder / "none"),
        # They reach this machine only, so that the outcome is the same without a network.
        "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.1,localhost,::1",
        "OCTET": str(args.octet.resolve()), "RESULTS": str(results.resolve()),
    }
    with open(log, "w") as out:
        code = subprocess.run(command, cwd=tests, env=env, stdout=out, stderr=subprocess.STDOUT).returncode
    # 1 is failed tests.
    check(code in (0, 1), f"pytest ended with {code}; see {log}")
    print(f"all that was said is in {log}")
    found = [json.loads(line) for line in results.read_text().splitlines()]
    return {r["test"]: r for r in found}


def compare(results, expected, whole):
    """Prints what is not as expected; whether all is."""
    wrong = []
    for test, result in results.items():
        group = expected.group(test)
        if test in expected.varies or result["outcome"] == "skipped":
            continue
        if result["outcome"] == "failed" and not group:
            wrong.append(f"FAILED {test}\n    {result['why']}")
        if result["outcome"] == "passed" and group:
            wrong.append(f"passes, but expected.toml has it: {test}")
    if whole:
        wrong += [f"expected.toml names a test that is not there: {name}" for name in expected.unknown(results)]
    print("\n".join(wrong))
    counts = collections.Counter(r["outcome"] for r in results.values())
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped; {len(wrong)} not as expected")
    return not wrong


def section(results, expected, tests):
    """The section of docs/compatibility.md."""
    rows = []
    by_file = collections.defaultdict(list)
    for test, result in results.items():
        by_file[test.partition("::")[0]].append((test, result["outcome"]))
    passed = of = 0
    for file in sorted(p.name for p in tests.glob("unit/test_*.py")):
        if file in expected.left_out:
            rows.append(f"| {file} | – | – | not run: {expected.left_out[file]} |")
            continue
        outcomes = by_file[file]
        good = sum(o == "passed" for _, o in outcomes)
        passed, of = passed + good, of + len(outcomes)
        why = collections.Counter(expected.group(t)["key"] for t, o in outcomes if o == "failed" and expected.group(t))
        # Whether those that vary fail or skip themselves is all the same.
        why["skipped by the test itself"] = sum(o == "skipped" or o == "failed" and t in expected.varies for t, o in outcomes)
        rows.append(f"| {file} | {good} | {len(outcomes)} | {', '.join(f'{k} ({n})' for k, n in why.most_common() if n)} |")
    reasons = "\n".join(f"- *{g['key']}*: {g['reason']}" for g in expected.groups)
    return f"""{HEADING}

`tests/llama-server/run.py --report docs/compatibility.md` runs the API tests of llama.cpp's server, from the source
distribution of llama-cpp-python {VERSION}, against `octet serve` with the built-in model instead of theirs,
and writes this section. The model's text is not compared. {passed} of {of} pass.

| test file | passed | of | why the others fail |
|---|---|---|---|
{chr(10).join(rows)}

{reasons}
"""


def write(path, text):
    """Replaces the section in a file, or appends it."""
    old = path.read_text()
    pattern = re.escape(HEADING) + r"\n.*?(?=\n## |\Z)"
    new, n = re.subn(pattern, lambda _: text.rstrip("\n"), old, flags=re.S)
    path.write_text((new if n else f"{old.rstrip()}\n\n{text}").rstrip("\n") + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="only these, such as test_basic.py")
    parser.add_argument("--octet", default=TARGET / "debug/octet", type=Path)
    parser.add_argument("--folder", default=TARGET / "agents", type=Path, help="where the tests and their Python are kept")
    parser.add_argument("--only", help="pytest's -k")
    parser.add_argument("--report", type=Path, help="write the section of docs/compatibility.md to this file")
    args = parser.parse_args()
    if not args.octet.exists():
        sys.exit(f"{args.octet} is missing; run: cargo build -p octet")
    args.folder = args.folder.resolve()
    expected = Expected()
    try:
        folder, python = fetch(Installed(args.folder))
    except Failure as e:
        print(f"skipped: the tests could not be fetched from PyPI: {e}")
        return 1 if os.environ.get("CI") else 0
    whole = not (args.files or args.only)
    results = run(args, expected, folder, python)
    good = compare(results, expected, whole)
    if args.report:
        check(whole, "--report needs a run of all tests")
        write(args.report, section(results, expected, folder / TESTS))
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as e:
        sys.exit(f"failed: {e}")
