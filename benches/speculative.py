#!/usr/bin/env python3
"""Compares guessing ahead with llama.cpp's own: lookup on prompts whose answers repeat them, or the model's block for several tokens.

    pip install -r benches/requirements.txt
    cargo build --release
    taskset -c 0,1 benches/speculative.py [MODEL.gguf] [--rounds 5] [--prompts benches/copying.jsonl]
    taskset -c 0,1 benches/speculative.py --mtp 0.8 MODEL.gguf    a model with a block (`octet synth --mtp`)

In each round `octet bench --speculative lookup` answers each prompt with guesses and without, in turn, and llama.cpp's server (package xllamacpp) answers
them without and with each of its ways to guess from the text. Every engine chooses greedily. A figure is the median over the prompts of each prompt's
median over the rounds, with the least and the largest prompt. Prints a Markdown table.

With `--mtp`, both compute one draft a step by the block of a made-up model, and take it with the given chance: `--draft-oracle` of Octet,
`synth_rates` of llama.cpp. The prompts are random tokens, and the figures the medians of the rounds.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
KINDS = ["off", "ngram-simple", "ngram-map-k", "ngram-mod", "ngram-cache"]


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", nargs="?", help="default: smollm2:135m, which is downloaded once")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--prompts", type=pathlib.Path, default=ROOT / "benches/copying.jsonl")
    p.add_argument("--tokens", type=int, default=96)
    p.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="llama.cpp's ways to guess; 'off' is always among them")
    p.add_argument("--octet", default=ROOT / "target/release/octet", type=pathlib.Path)
    p.add_argument("--mtp", type=float, metavar="CHANCE", help="compare drafts of the model's block, right with this chance")
    p.add_argument("--peer", help=argparse.SUPPRESS)
    return p.parse_args()


def peer(args):
    """In a process of its own: tokens per second of each prompt by llama.cpp, as JSON."""
    import xllamacpp

    threads = len(os.sched_getaffinity(0))
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.n_ctx, params.n_parallel, params.use_jinja, params.verbosity = 4096, 1, True, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    if args.peer != "off":
        kind = "COMMON_SPECULATIVE_TYPE_" + args.peer.upper().replace("-", "_")
        params.speculative.types = [getattr(xllamacpp.common_speculative_type, kind)]
    server = xllamacpp.Server(params)
    speeds = []
    for line in args.prompts.read_text().splitlines():
        body = {"messages": json.loads(line)["messages"], "temperature": 0, "max_tokens": args.tokens, "cache_prompt": False}
        speeds.append(server.handle_chat_completions(body)["timings"]["predicted_per_second"])
    print(json.dumps(speeds))


def peer_mtp(args):
    """In a process of its own: llama.cpp's tokens per second after a prompt of random tokens, and its guesses, as JSON."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.n_ctx, params.n_parallel, params.verbosity = 2048, 1, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = len(os.sched_getaffinity(0))
    if args.peer == "draft-mtp":
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_MTP]
        params.speculative.draft.n_max, params.speculative.draft.p_min = 1, 0.0
        params.speculative.synth_rates = [args.mtp]
    server = xllamacpp.Server(params)
    body = {"prompt": list(range(100, 356)), "temperature": 0, "max_tokens": args.tokens, "cache_prompt": False, "ignore_eos": True}
    server.handle_completions(body)  # the first one also warms up
    timings = server.handle_completions(body)["timings"]
    print(json.dumps([timings["predicted_per_second"], timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)]))


def compare_mtp(args):
    """Both engines without and with the block's drafts, in turn."""
    speeds = {(engine, kind): [] for engine in ["octet", "llama.cpp"] for kind in ["off", "mtp"]}
    drafted, taken = {"octet": 0, "llama.cpp": 0}, {"octet": 0, "llama.cpp": 0}
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
        how = ["--speculative", "mtp", "--draft-oracle", str(args.mtp), "--draft-max", "1", "-p", "256", "-n", str(args.tokens), "-r", "3", "-o", "json"]
        row = json.loads(ask([args.octet, "bench", args.model, *how]))["rows"][0]
        speeds["octet", "off"].append(statistics.median(row["without_tps"]))
        speeds["octet", "mtp"].append(statistics.median(row["with_tps"]))
        drafted["octet"] += row["drafted"]
        taken["octet"] += row["accepted"]
        for kind, name in [("off", "off"), ("draft-mtp", "mtp")]:
            command = [sys.executable, __file__, args.model, "--peer", kind, "--mtp", str(args.mtp), "--tokens", str(args.tokens)]
            speed, n, accepted = json.loads(ask(command).splitlines()[-1])
            speeds["llama.cpp", name].append(speed)
            drafted["llama.cpp"] += n
            taken["llama.cpp"] += accepted
    print("| engine | guesses | tokens/s | against its own without | guesses taken |\n|---|---|---:|---:|---:|")
    for (engine, kind), values in speeds.items():
        ratios = [value / off for value, off in zip(values, speeds[engine, "off"])]
        share = f"{taken[engine] / drafted[engine]:.0%}" if kind == "mtp" and drafted[engine] else ""
        print(f"| {engine} | {kind} | {spread(values)} | {spread(ratios)} | {share} |")


def ask(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr}")
    return done.stdout


def measure(args, kinds):
    """For each engine and kind, for each prompt, its tokens per second by rounds."""
    speeds = {("octet", "off"): [], ("octet", "lookup"): []} | {("llama.cpp", kind): [] for kind in kinds}
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
        how = ["--speculative", "lookup", "-f", args.prompts, "-n", str(args.tokens), "-r", "1", "-o", "json"]
        rows = json.loads(ask([args.octet, "bench", args.model, *how]))["rows"]
        speeds["octet", "off"].append([r["without_tps"][0] for r in rows])
        speeds["octet", "lookup"].append([r["with_tps"][0] for r in rows])
        for kind in kinds:
            command = [sys.executable, __file__, args.model, "--peer", kind, "--prompts", args.prompts, "--tokens", str(args.tokens)]
            speeds["llama.cpp", kind].append(json.loads(ask(command).splitlines()[-1]))
    return {key: [statistics.median(rounds) for rounds in zip(*rows)] for key, rows in speeds.items()}


def spread(values):
    return f"{statistics.median(values):.2f} [{min(values):.2f}-{max(values):.2f}]"


def main():
    args = parse()
    if args.peer:
        return peer(args) if args.mtp is None else peer_mtp(args)
    if args.mtp is not None:
        return compare_mtp(args)
    if args.model is None:
        args.model = ask([args.octet, "pull", "smollm2:135m"]).splitlines()[-1]
    speeds = measure(args, ["off"] + [kind for kind in args.kinds if kind != "off"])
    print("| engine | guesses | tokens/s | against its own without |\n|---|---|---:|---:|")
    for (engine, kind), values in speeds.items():
        ratios = [value / off for value, off in zip(values, speeds[engine, "off"])]
        print(f"| {engine} | {kind} | {statistics.median(values):.0f} | {spread(ratios)} |")


if __name__ == "__main__":
    main()
