"""Renders chat templates as transformers does: jinja2's sandbox, its settings, its functions. Answers one JSON line for each that it reads.

Run by families.rs: a line holds `template` (a path), `messages`, `tools`, `variables`; the answer `text`, or `error`.
"""

import json
import sys
from datetime import datetime, timezone
from pathlib import Path

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


class Generation(Extension):
    """transformers' blocks that mark what the assistant says."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(what):
    raise jinja2.exceptions.TemplateError(what)


def main():
    extensions = [Generation, loopcontrols]
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.fromtimestamp(0, timezone.utc).strftime(f)
    compiled = {}
    for line in sys.stdin:
        asked = json.loads(line)
        path = asked["template"]
        try:
            if path not in compiled:
                compiled[path] = env.from_string(Path(path).read_text())
            chat = {"messages": asked["messages"], "tools": asked["tools"], "documents": None}
            variables = {**TOKENS, "add_generation_prompt": False, **asked["variables"]}
            answer = {"text": compiled[path].render(**chat, **variables)}
        except Exception as e:
            answer = {"error": f"{type(e).__name__}: {e}"}
        print(json.dumps(answer), flush=True)


main()
