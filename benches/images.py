#!/usr/bin/env python3
"""Measures how long an image takes, in Octet and in llama.cpp (its mtmd), and writes a table.

    pip install -r benches/requirements.txt
    taskset -c 0,1 benches/images.py ../shared/zoo/vision/gguf --rounds 3 > table.md

The folder has tiny pairs `NAME.gguf` and `NAME.mmproj.gguf`. The projector is made anew in the sizes that people run (27 layers, 1152
wide, random F16 weights), in front of the same tiny model, whose own time is next to nothing. Both read the same files as servers, each
with all processors, and are asked in turn about the same PNG, which is another one in each round: what is measured is the time of a
request that wants one token.
"""
import argparse
import base64
import json
import os
import pathlib
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
OCTET_PORT, PEER_PORT = 18651, 18652
LAYERS, WIDTH, HIDDEN, HEADS = 27, 1152, 4304, 16
# Of the released models: the side of the table of positions in patches, and images to measure, in pixels.
MODELS = {
    "qwen35moe_vl": (48, [(512, 512), (1024, 768)]),
    "gemma3_vl": (64, [(896, 896)]),
}
PROMPT = "<|im_start|>user\n{mark}What is this?<|im_end|>\n<|im_start|>assistant\n"


def projector(source, target, side):
    """A projector in real sizes, of the form of a tiny one."""
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(source)
    field = lambda name: reader.fields[f"clip.vision.{name}"].contents()
    patch, merge = field("patch_size"), 4 if "clip.vision.spatial_merge_size" in reader.fields else 1
    sizes = {field("embedding_length"): WIDTH, 3 * field("embedding_length"): 3 * WIDTH, field("feed_forward_length"): HIDDEN}
    if merge > 1:
        sizes[merge * field("embedding_length")] = merge * WIDTH
    changed = {"embedding_length": WIDTH, "feed_forward_length": HIDDEN, "block_count": LAYERS, "attention.head_count": HEADS, "image_size": patch * side, "projector.scale_factor": 4}
    writer = gguf.GGUFWriter(target, "clip")
    for name, f in reader.fields.items():
        short = name.removeprefix("clip.vision.")
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = changed.get(short, f.contents())
        if short == "is_deepstack_layers":
            value = [False] * LAYERS
        kind = f.types[0]
        writer.add_key_value(name, value, kind, f.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    rng = np.random.default_rng(1)

    def add(tensor, name):
        shape = [int(n) for n in reversed(tensor.shape)]
        if tensor.name == "v.position_embd.weight":
            shape = [side * side, WIDTH]
        elif tensor.name.startswith("v.patch_embd.weight"):
            shape[0] = WIDTH
        else:
            shape = [sizes.get(n, n) for n in shape]
        values = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
        if len(shape) == 1 and name.endswith("weight"):
            values += 1
        writer.add_tensor(name, values.astype(np.float32 if len(shape) != 2 or "position" in name else np.float16))

    for tensor in reader.tensors:
        if tensor.name.startswith("v.blk.0."):
            for layer in range(LAYERS):
                add(tensor, tensor.name.replace(".0.", f".{layer}.", 1))
        elif not re.match(r"v\.(blk|deepstack)\.", tensor.name):
            add(tensor, tensor.name)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def png(width, height, seed):
    """A picture with edges and gradients."""
    rows = bytearray()
    for y in range(height):
        rows.append(0)
        for x in range(width):
            rows += bytes((x * 255 // width, y * 255 // height, (x // 16 + y // 16 + seed) % 5 * 50))
    chunk = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(bytes(rows), 1)) + chunk(b"IEND", b"")


def peer(model, mmproj, port, threads):
    """llama.cpp's server, in this process."""
    import xllamacpp

    p = xllamacpp.CommonParams()
    p.model.path, p.mmproj.path, p.port = model, mmproj, int(port)
    p.n_ctx, p.n_batch, p.n_ubatch, p.n_parallel = 8192, 2048, 2048, 1
    p.n_gpu_layers, p.mmproj_use_gpu, p.warmup = 0, False, True
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(threads)
    server = xllamacpp.Server(p)
    print(server.listening_address, flush=True)
    sys.stdin.read()  # until the other side ends


def post(port, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=1800) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as e:
        sys.exit(f"port {port}: {e}: {e.read().decode(errors='replace')}")


def wait(port, process):
    for _ in range(1200):
        if process.poll() is not None:
            sys.exit(f"a server has ended with {process.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/props", timeout=2) as answer:
                return json.load(answer).get("media_marker", "<__media__>")
        except OSError:
            time.sleep(0.1)
    sys.exit("a server does not answer")


def measure(args, name, mmproj, images):
    model, threads = args.folder / f"{name}.gguf", len(os.sched_getaffinity(0))
    commands = {
        "octet": (OCTET_PORT, [args.octet, "serve", model, "--port", OCTET_PORT, "--mmproj", mmproj, "-c", "8192", "--batch-size", "2048", "--threads", threads]),
        "llama.cpp": (PEER_PORT, [sys.executable, __file__, "--peer", model, mmproj, PEER_PORT, threads]),
    }
    log = open(args.log, "ab") if args.log else subprocess.DEVNULL
    processes = {who: subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=log, stderr=log) for who, (_, command) in commands.items()}
    try:
        marks = {who: wait(port, processes[who]) for who, (port, _) in commands.items()}
        for size in images:
            seconds, tokens = {who: [] for who in commands}, {}
            for round in range(-args.warm, args.rounds):
                data = base64.b64encode(png(*size, round + args.warm)).decode()
                for who, (port, _) in sorted(commands.items(), reverse=round % 2 == 1):
                    prompt = {"prompt_string": PROMPT.format(mark=marks[who]), "multimodal_data": [data]}
                    began = time.monotonic()
                    answer = post(port, {"prompt": prompt, "n_predict": 1, "temperature": 0, "cache_prompt": False})
                    taken = time.monotonic() - began
                    tokens[who] = answer["tokens_evaluated"]
                    print(f"{name} {size[0]} x {size[1]}: {who} {taken:.2f} s, {tokens[who]} tokens", file=sys.stderr, flush=True)
                    if round >= 0:
                        seconds[who].append(taken)
            ours, theirs = (statistics.median(seconds[who]) for who in commands)
            ratios = [b / a for a, b in zip(seconds["octet"], seconds["llama.cpp"])]
            print(f"| {name} | {size[0]} x {size[1]} | {tokens['octet']}, {tokens['llama.cpp']} | {ours:.2f} | {theirs:.2f} | {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}) |", flush=True)
    finally:
        for process in processes.values():
            process.terminate()
            process.wait()


def main():
    if sys.argv[1:2] == ["--peer"]:
        return peer(*sys.argv[2:])
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--octet", default=ROOT / "target/release/octet", type=pathlib.Path)
    p.add_argument("--rounds", default=3, type=int)
    p.add_argument("--warm", default=1, type=int, help="rounds before")
    p.add_argument("--only", nargs="*", choices=MODELS, default=list(MODELS))
    p.add_argument("--log", help="what the servers say goes to the end of this file")
    args = p.parse_args()
    print("| model | image | tokens of the prompt | Octet, s | llama.cpp, s | llama.cpp / Octet |\n|---|---|---|---:|---:|---:|", flush=True)
    for name in args.only:
        side, images = MODELS[name]
        with tempfile.TemporaryDirectory() as made:
            file = pathlib.Path(made, "mmproj.gguf")
            projector(args.folder / f"{name}.mmproj.gguf", file, side)
            measure(args, name, file, images)


if __name__ == "__main__":
    main()
