"""Writes the training text: `python data.py OUT --tokens 20000000`. Generated conversations, and Python's own standard library.

OUT/tokenizer.json is trained on a part of it. OUT/{train,held_out}.npz hold rows of `ROW` tokens ("ids"), the domain of each
token ("domain", index into DOMAINS). A row begins with the beginning of a document, as a prompt does."""

import argparse
import json
import random
import sysconfig
from pathlib import Path

import jinja2
import numpy as np

import tasks
import tokenizer
import tools

ROW = 384
DOMAINS = {"story": (tasks.story, 0.36), "arithmetic": (tasks.arithmetic, 0.11), "question": (tasks.question, 0.15), "tools": (tools.tools, 0.18),
           "json": (tasks.jsons, 0.07), "code": (tasks.code, 0.07), "text": (tasks.text, 0.05), "library": (None, 0.01)}


def environment():
    """Jinja as transformers sets it up."""
    env = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)
    return env


def template():
    return (Path(__file__).parent / "template.jinja").read_text()


def library_pieces(r):
    """Sources of Python's standard library (licence: PSF-2.0) in pieces of about 1000 characters."""
    files = sorted(p for p in Path(sysconfig.get_paths()["stdlib"]).glob("*.py") if p.stat().st_size > 4000)
    pieces = []
    for p in files:
        lines, piece = p.read_text(encoding="utf-8", errors="ignore").splitlines(True), ""
        for line in lines:
            piece += line
            if len(piece) > 1000:
                pieces.append(piece)
                piece = ""
    r.shuffle(pieces)
    return pieces


class Source:
    """Documents without end, each with its domain. The same seed gives the same documents (and the same Python, for the library)."""

    def __init__(self, seed, held_out=False):
        self.r = random.Random(seed)
        self.render = environment().from_string(template()).render
        self.pieces = library_pieces(random.Random(1))
        cut = len(self.pieces) // 10  # a tenth is held out
        self.pieces = self.pieces[:cut] if held_out else self.pieces[cut:]
        self.names = list(DOMAINS)

    def document(self):
        r = self.r
        d = r.choices(range(len(self.names)), [DOMAINS[n][1] for n in self.names])[0]
        make = DOMAINS[self.names[d]][0]
        if make is None:
            return d, r.choice(self.pieces) + "<|endoftext|>"
        made = make(r)
        if isinstance(made, str):
            return d, made + "<|endoftext|>"
        if not made["thinking"]:
            for m in made["messages"]:
                m.pop("reasoning_content", None)
        return d, self.render(messages=made["messages"], tools=made["tools"]) + "<|endoftext|>"


def rows(source, tok, total):
    """Packs documents into rows: whole ones, then the head of one that is cut. Yields (ids, domain)."""
    made, waiting = 0, []
    while made < total:
        ids, dom = [], []
        while len(ids) < ROW:
            if not waiting:
                docs = [source.document() for _ in range(512)]
                encoded = tok.encode_batch([t for _, t in docs], add_special_tokens=False)
                waiting = [(d, e.ids) for (d, _), e in zip(docs, encoded)]
            d, e = waiting.pop()
            ids += e
            dom += [d] * len(e)
        yield ids[:ROW], dom[:ROW]
        made += ROW


def main():
    a = argparse.ArgumentParser()
    a.add_argument("out", type=Path)
    a.add_argument("--tokens", type=int, default=20_000_000)
    a.add_argument("--held-out", type=int, default=200_000)
    a = a.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    path = a.out / "tokenizer.json"
    if not path.exists():
        source = Source(7)
        tokenizer.train((source.document()[1] for _ in range(40_000)), path)
    tok = tokenizer.load(path)
    for name, seed, total in (("held_out", 2, a.held_out), ("train", 1, a.tokens)):
        made = list(rows(Source(seed, name == "held_out"), tok, total))
        np.savez(a.out / name, ids=np.array([m[0] for m in made], np.uint16), domain=np.array([m[1] for m in made], np.uint8))
        print(name, len(made) * ROW, "tokens", flush=True)


if __name__ == "__main__":
    main()
