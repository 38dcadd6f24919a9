"""Writes docs/compatibility.md: which program and which library was tried with what. Used by run.py --report. The section on
llama-server's tests, which tests/llama-server/run.py writes, stays."""

import ast
import re

import scenarios
from harness import ROOT

HEAD = """# Compatibility

What was run against Octet, in which version, and what worked. `tests/agents/run.py --report docs/compatibility.md`
writes this file, except the last section, which `tests/llama-server/run.py` writes.

## Programs

Each program is the published one, installed from npm or PyPI, and runs without a network. The server is the real one
with Qwen3.6's tokenizer and chat template; the model is scripted, so the runs test the protocol, not the model.
[agents.md](agents.md) has the settings.
"""

NOTES = """
- "Several turns with tool calls" creates a file, reads it by a command, changes it, reads it again and answers.
- "Resume of a session" continues that session in another process.
- "A second model name" is `--model haiku` with Claude Code, another alias elsewhere.
- "Screenshot in a tool result" is a PNG that a tool returns to a model that reads text only: the session continues, and
  the model sees a line of text instead of the image.
- "Ten screenshots that the model sees" are PNGs that tools return one after the other to a model with a tower, in a session that is then
  resumed: each is in the model's prompts, and is encoded once (`octet:encoded_images`).
"""

LIBRARIES = """
## Client libraries

Run by `cargo test -p octet-serve --test clients --test gateway_clients` with `OCTET_TEST_NETWORK=1`, against a tiny
model with random weights.

| library | version | what its test does |
|---|---|---|
"""

# The heading of the section that is another's.
LLAMA_SERVER = "\n## llama-server's own tests\n"


def name(program, feature):
    """What a result is kept under."""
    return f"{program.key} {program.version} {feature}"


def cell(program, feature, results):
    if feature in program.without:
        return f"– ({program.without[feature]})"
    if not program.has(feature):
        return "not tried"
    ok = results.get(name(program, feature))
    if ok and feature == "tools" and program.edits_as_text:
        return "yes (edits as text)"
    if ok and feature == "image" and not program.image_expect:
        return "yes (the program does not send it)"
    return {True: "yes", False: "**no**", None: "not tried"}[ok]


def libraries():
    """A row for each library that clients.py asks the server through: its pinned version, and what the test says it does."""
    tests = ROOT / "crates/server/serve/tests"
    pins = "".join(path.read_text() for path in [tests / "clients.rs", tests / "common/python.rs"])
    tree = ast.parse((tests / "clients.py").read_text())
    says = {n.name: ast.get_docstring(n) for n in tree.body if isinstance(n, ast.FunctionDef)}
    table = next(n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "CLIENTS")
    rows = []
    for key, function in zip(table.keys, table.values):
        # Tests of the server's figures have no library of their name.
        if version := re.search(rf'"{key.value}==([0-9.]+)"', pins):
            rows.append(f"| {key.value} | {version[1]} | {says[function.id]} |")
    return "\n".join(rows) + "\n"


def write(path, programs, results):
    names = list(scenarios.FEATURES)
    lines = ["| program | version | API | " + " | ".join(scenarios.FEATURES[f] for f in names) + " |"]
    lines.append("|---" * (3 + len(names)) + "|")
    for p in programs:
        cells = [cell(p, f, results) for f in names]
        lines.append(f"| {p.name} | {p.version} | {p.api} | " + " | ".join(cells) + " |")
    old = path.read_text() if path.exists() else ""
    _, heading, rest = old.partition(LLAMA_SERVER)
    path.write_text(HEAD + "\n" + "\n".join(lines) + "\n" + NOTES + LIBRARIES + libraries() + heading + rest)
