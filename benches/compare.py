#!/usr/bin/env python3
"""Measures Octet against llama.cpp and ik_llama.cpp on this machine, in turn, and writes a report with pictures.

    pip install -r benches/requirements.txt
    cargo build --release
    taskset -c 0,1 benches/compare.py                    everything: two hours on two cores, 50 GiB of disk
    taskset -c 0,1 benches/compare.py --only 8L smollm2  some models;  --rounds 3 for less certainty
    benches/compare.py --report                          writes the report again from what was measured

In each round every engine runs each group of tests once, in a process of its own, one engine after the other; what is
compared is rounds, so a machine that becomes slower does so for all of them. The figures are medians over the rounds
with the least and the largest. Models are made up (`octet synth`): real shapes and types, random weights, which are as
fast as real ones; only routing is more uniform than a trained model's, the worst case for a cache.
Measurements are kept in docs/performance.json, by machine (--machine NAME); models in --models.
"""
import argparse
import contextlib
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

import report

ROOT = pathlib.Path(__file__).resolve().parent.parent
LLAMA, RTR = "llama.cpp", "ik_llama.cpp-rtr"
BUFFER = bytearray(4 << 20)

# name: (arguments of `octet synth`, groups of (engines, tests); each group is one process of each engine and round)
SHAPE = "qwen3.6-35b-a3b"


def layers8(quant):
    return [SHAPE, "--layers", "8", "--quant", quant], [([RTR], ["pp512", "tg64"])]


def other(shape, layers, quant="q4_k_m", engines=(RTR,)):
    """A model of another family: one token, a prompt, a long one, four sequences."""
    tests = ["pp512", "tg64"], ["pp4096"], ["tg64 @ d8192"], ["pp512 x4", "tg64 x4"]
    return [shape, "--layers", str(layers), "--quant", quant], [(list(engines), t) for t in tests]


MODELS = {
    "8L": ([SHAPE, "--layers", "8", "--quant", "q4_k_m"],
           [([LLAMA, RTR], ["pp512", "tg64"]), ([RTR], ["pp3500"]), ([RTR], ["tg64 @ d4096"]), ([RTR], ["pp512 x4", "tg64 x4"]), ([RTR], ["tg64 x8"])]),
    "40L": ([SHAPE, "--quant", "q4_k_m"], [([RTR], ["pp512", "tg64"])]),
    "8L-avx2": layers8("q4_k_m"),
    **{f"8L-{quant}": layers8(quant) for quant in ["q4_0", "q5_k", "q6_k", "q8_0", "iq4_xs", "mxfp4", "bf16"]},
    "8L-busy": (layers8("q4_k_m")[0], [([RTR], ["tg128"])]),
    "gemma4-6L": other("gemma4-26b-a4b", 6),
    "gpt-oss-8L": other("gpt-oss-20b", 8, "mxfp4_moe"),
    "glm-flash-8L": other("glm-4.7-flash", 8),
    "next-4L": other("qwen3-next-80b-a3b", 4, engines=(LLAMA,)),  # the other peer does not load it
    "smollm2": (None, [([LLAMA, RTR], ["pp512", "tg128"])]),
}
# Flags of `octet bench` for a model's rows, and whose file they are measured with.
FLAGS = {"8L-avx2": ["--isa", "avx2"]}
FILES = {"8L-avx2": "8L", "8L-busy": "8L"}
# Milliseconds that another program computes and then sleeps, again and again, while a model is measured.
BESIDE = {"8L-busy": (5, 20)}


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS), help="models to measure")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--engines", nargs="+", choices=[LLAMA, RTR], default=[LLAMA, RTR], help="peers to measure")
    p.add_argument("--machine", default=processor(), help="under which name the measurements are kept (default: %(default)s)")
    p.add_argument("--add", action="store_true", help="add the rounds to those that were measured before; the kernels are not measured again")
    p.add_argument("--octet", default=ROOT / "target/release/octet", type=pathlib.Path)
    p.add_argument("--models", default=ROOT / "target/bench-models", type=pathlib.Path, help="where made-up models are kept")
    p.add_argument("--remove", action="store_true", help="remove each made-up model after it was measured")
    p.add_argument("--out", default=ROOT / "docs", type=pathlib.Path)
    p.add_argument("--loads", action="store_true", help="measure only the loading again, for the rounds that there are")
    p.add_argument("--report", action="store_true", help="measure nothing")
    return p.parse_args()


def model(args, name):
    """The path of a model, made or fetched if it is not there."""
    made, _ = MODELS[name]
    if made is None:
        return subprocess.check_output([args.octet, "pull", "smollm2:135m"], text=True).splitlines()[-1]
    path = args.models / f"{made[0]}-{FILES.get(name, name)}.gguf"
    if not path.exists():
        args.models.mkdir(parents=True, exist_ok=True)
        subprocess.check_call([args.octet, "synth", *made, "-o", path])
    return str(path)


def run(command):
    """Runs a command; its last line of output, and the largest amount of memory that it had resident."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} failed with status {status}")
    return output, usage.ru_maxrss * 1024


def octet(args, path, tests, flags):
    """One run of `octet bench` for tests of one number of sequences and one depth."""
    flags = list(flags)
    kinds = [t.split(" ")[0] for t in tests]
    flags += ["-p", ",".join(k[2:] for k in kinds if k[:2] == "pp") or "0", "-n", ",".join(k[2:] for k in kinds if k[:2] == "tg") or "0"]
    for part in tests[0].split(" ")[1:]:
        if part[0] == "x":
            flags += ["--parallel", part[1:]]
        if part[0] == "d":
            flags += ["-d", part[1:]]
    start = time.perf_counter()
    output, _ = run([args.octet, "bench", path, "-r", "1", "-o", "json", *flags])
    rows = json.loads(output)
    spent = sum(sum(r["samples_ns"]) for r in rows) / 1e9
    return {"version": rows[0]["octet_version"], "rates": {r["test"]: r["samples_ts"] for r in rows},
            "rows": rows, "other_seconds": time.perf_counter() - start - spent}


def peer(args, engine, path, tests):
    output, memory = run([sys.executable, ROOT / "benches/peer.py", engine, path, *tests])
    result = json.loads(output.splitlines()[-1])
    return {"version": result["version"], "rates": result["rates"], "memory": memory, "load_seconds": result["load_seconds"]}


@contextlib.contextmanager
def beside(busy, asleep):
    """Runs a program that computes for so many milliseconds and then sleeps, again and again."""
    loop = f"""
import time
while True:
    end = time.perf_counter() + {busy} / 1000
    while time.perf_counter() < end:
        pass
    time.sleep({asleep} / 1000)
"""
    process = subprocess.Popen([sys.executable, "-c", loop])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def warm(path):
    """Reads the file, so that whoever loads it next finds it in the system's cache as far as it fits there."""
    for _ in range(2):  # what was read once makes way first
        with open(path, "rb", buffering=0) as f:
            while f.readinto(BUFFER):
                pass


def load(args, path, tokens):
    """Seconds from start to the end of a step of so many tokens, and the memory of it, without that for measuring the memory's bandwidth."""
    start = time.perf_counter()
    _, memory = run([args.octet, "bench", path, "-p", tokens, "-n", "0", "-r", "1", "--no-warmup", "--no-bandwidth", "-o", "json"])
    return time.perf_counter() - start, memory


def measure(args, name, data):
    path = model(args, name)
    before = data["models"].get(name, {}).get("rounds", []) if args.add else []
    entry = {"file_bytes": os.path.getsize(path), "rounds": before}
    data["models"][name] = entry
    for number in range(args.rounds):
        round_ = {}
        for engines, tests in MODELS[name][1]:
            for engine in ["octet", *(e for e in engines if e in args.engines)]:
                warm(path)
                with beside(*BESIDE[name]) if name in BESIDE else contextlib.nullcontext():
                    result = octet(args, path, tests, FLAGS.get(name, [])) if engine == "octet" else peer(args, engine, path, tests)
                mine = round_.setdefault(engine, {"rates": {}, "memory": 0})
                mine["rates"].update({k: v[0] for k, v in result["rates"].items()})
                if engine != "octet":
                    mine["memory"] = max(mine["memory"], result["memory"])
                mine["version"] = result["version"]
                if "load_seconds" in result:
                    mine["load_seconds"] = result["load_seconds"]
                for row in result.get("rows", []):
                    keep = ["test", "bytes_per_second", "memory_bytes_per_second", "memory_share", "memory_bytes_per_second_in_turn", "weight_bytes_per_token",
                            "device", "n_threads", "profile"]
                    mine.setdefault("detail", {})[row["test"]] = {k: row[k] for k in keep}
                print(f"{name} round {number + 1}: {engine:18}", {k: round(v[0], 1) for k, v in result["rates"].items()}, flush=True)
        warm(path)
        round_["octet"]["load_seconds"], _ = load(args, path, "1")  # what a user waits for
        _, round_["octet"]["memory"] = load(args, path, "512")
        entry["rounds"].append(round_)
        save(args, data)
    if args.remove and MODELS[name][0] is not None:
        os.remove(path)


def measure_loads(args, name, data):
    """Measures again how long loading takes in the first rounds that there are, and the memory; forgets the others'."""
    path, entry = model(args, name), data["models"][name]
    for number, round_ in enumerate(entry["rounds"]):
        for engine, mine in round_.items():
            mine.pop("load_seconds", None)
            if number >= args.rounds:
                continue
            warm(path)
            if engine == "octet":
                mine["load_seconds"], _ = load(args, path, "1")
                _, mine["memory"] = load(args, path, "512")
            else:
                mine["load_seconds"] = peer(args, engine, path, ["pp1"])["load_seconds"]
            print(f"{name} load {number + 1}: {engine:18} {mine['load_seconds']:.1f} s", flush=True)
        save(args, data)


def cpuinfo(key):
    with open("/proc/cpuinfo") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.split(":")[0].strip() == key), None)


def processor():
    """A name for machines with this processor."""
    parts = [cpuinfo("vendor_id"), cpuinfo("cpu family"), cpuinfo("model")]
    return "-".join(filter(None, parts)).lower() or platform.machine()


def machine():
    name = cpuinfo("model name") or platform.processor() or platform.machine()
    family = cpuinfo("cpu family")
    if family:
        name += f" (family {family}, model {cpuinfo('model')})"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    commit = subprocess.check_output(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], text=True).strip()
    return {"processor": name, "cores": len(os.sched_getaffinity(0)), "memory": memory, "kernel": platform.release(),
            "date": time.strftime("%Y-%m-%d"), "commit": commit}


def kernels(args):
    """What `octet bench --kernels` measures, without other engines between."""
    output, _ = run([args.octet, "bench", "--kernels", "-o", "json"])
    return json.loads(output)


def save(args, data):
    args.out.mkdir(parents=True, exist_ok=True)
    kept = args.out / "performance.json"
    machines = json.loads(kept.read_text()) if kept.exists() else {}
    machines[args.machine] = data
    temporary = args.out / "performance.json.tmp"
    temporary.write_text(json.dumps(machines, indent=1) + "\n")
    temporary.rename(args.out / "performance.json")


def main():
    args = parse()
    kept = args.out / "performance.json"
    machines = json.loads(kept.read_text()) if kept.exists() else {}
    data = machines.get(args.machine, {"models": {}})
    if not args.report:
        data["machine"] = machine()
        if not args.add or "kernels" not in data:
            data["kernels"] = kernels(args)
        for name in args.only:
            (measure_loads if args.loads else measure)(args, name, data)
        machines[args.machine] = data
    report.write(machines, args.out)


if __name__ == "__main__":
    main()
