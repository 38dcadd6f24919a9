"""Writes docs/performance.md and its pictures from what compare.py measured. Called by compare.py."""
import statistics

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "octet"  # the same picture is the same file
import matplotlib.pyplot as plt

ENGINES = ["llama.cpp", "ik_llama.cpp", "ik_llama.cpp-rtr", "octet"]
# The type that most bytes of a model's file have.
TYPES = {"8L": "Q4_K", "40L": "Q4_K", "8L-avx2": "Q4_K", "8L-q4_0": "Q4_0", "8L-q5_k": "Q5_K", "8L-q6_k": "Q6_K", "8L-q8_0": "Q8_0", "8L-iq4_xs": "IQ4_XS",
         "8L-mxfp4": "MXFP4", "8L-bf16": "BF16", "8L-busy": "Q4_K"}
COLOURS = {"llama.cpp": "#b8c4ce", "ik_llama.cpp": "#8fa3b5", "ik_llama.cpp-rtr": "#5f7d99", "octet": "#e4572e"}
TITLES = {
    "8L": "8 layers of Qwen3.6-35B-A3B, Q4_K_M",
    "40L": "Qwen3.6-35B-A3B (all 40 layers), Q4_K_M",
    "8L-q8_0": "8 layers, Q8_0",
    "8L-iq4_xs": "8 layers, IQ4_XS",
    "8L-q6_k": "8 layers, Q6_K",
    "8L-avx2": "8 layers, Q4_K_M, Octet with `--isa avx2`",
    "8L-q4_0": "8 layers, Q4_0",
    "8L-q5_k": "8 layers, Q5_K",
    "8L-mxfp4": "8 layers, MXFP4",
    "8L-bf16": "8 layers, BF16",
    "8L-busy": "8 layers, Q4_K_M, beside a program that is busy for 5 ms of every 25 ms",
    "gemma4-6L": "6 layers of Gemma 4 26B-A4B, Q4_K_M",
    "gpt-oss-8L": "8 layers of gpt-oss-20b, MXFP4 experts, Q8_0",
    "glm-flash-8L": "8 layers of GLM-4.7-Flash, Q4_K_M",
    "next-4L": "4 layers of Qwen3-Next-80B-A3B, Q4_K_M",
    "smollm2": "SmolLM2-135M-Instruct, Q4_1 (dense)",
}


def rates(rounds, engine, test):
    return [r[engine]["rates"][test] for r in rounds if test in r.get(engine, {}).get("rates", {})]


def spread(values, digits=1):
    if not values:
        return ""
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}-{max(values):.{digits}f}]"


def best_peer(rounds, test):
    peers = {e: statistics.median(v) for e in ENGINES[:-1] if (v := rates(rounds, e, test))}
    return max(peers, key=peers.get)


def ratios(rounds, test, peer):
    return [r["octet"]["rates"][test] / r[peer]["rates"][test] for r in rounds if test in r.get(peer, {}).get("rates", {})]


def share_of_memory(detail):
    """How near a test comes to a plain read of memory: in turn with it where that was measured, or else before the model was loaded."""
    if detail.get("memory_share"):
        return detail["memory_share"]
    if detail["bytes_per_second"] and detail["memory_bytes_per_second"]:
        return detail["bytes_per_second"] / detail["memory_bytes_per_second"]
    return None


def table(entry):
    rounds = entry["rounds"]
    tests = list(dict.fromkeys(t for r in rounds for t in r["octet"]["rates"]))
    engines = [e for e in ENGINES if any(e in r for r in rounds)]
    lines = ["| test | " + " | ".join(engines) + " | against the best peer | of memory bandwidth |",
             "|---|" + "---:|" * (len(engines) + 2)]
    for test in tests:
        peer = best_peer(rounds, test)
        detail = [r["octet"]["detail"][test] for r in rounds]
        share = [s for d in detail if (s := share_of_memory(d))]
        share = f"{100 * statistics.median(share):.0f}%" if test.startswith("tg") and share else ""
        cells = [spread(rates(rounds, e, test)) for e in engines]
        lines.append(f"| {test} | " + " | ".join(cells) + f" | **{spread(ratios(rounds, test, peer), 2)}** | {share} |")
    loads = {e: [r[e]["load_seconds"] for r in rounds if "load_seconds" in r.get(e, {})] for e in engines}
    memory = {e: max(r[e]["memory"] for r in rounds if e in r) for e in engines}
    lines.append("| load, s | " + " | ".join(spread(loads[e]) for e in engines) + " | | |")
    lines.append("| most memory resident, GiB | " + " | ".join(f"{memory[e] / 2**30:.2f}" for e in engines) + " | | |")
    return lines + ["", f"File: {entry['file_bytes'] / 2**30:.2f} GiB. {'1 round' if len(rounds) == 1 else f'{len(rounds)} rounds'}."]


def derived(entry):
    """Ratios between Octet's own rows: what depth and company cost."""
    rounds = entry["rounds"]
    lines = []
    for what, a, b, scale in [("decode at depth 4096 against depth 0", "tg64 @ d4096", "tg64", 1), ("prefill of 4 prompts together against one", "pp512 x4", "pp512", 1),
                              ("decode of 4 sequences against one", "tg64 x4", "tg64", 1), ("decode of 8 sequences against one", "tg64 x8", "tg64", 1)]:
        cells = []
        for engine in ["octet", "ik_llama.cpp-rtr", "llama.cpp"]:
            values = [r[engine]["rates"][a] / r[engine]["rates"][b] for r in rounds if a in r.get(engine, {}).get("rates", {}) and b in r[engine]["rates"]]
            cells.append(spread(values, 2))
        if any(cells):
            lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return ["", "| ratio | octet | ik_llama.cpp-rtr | llama.cpp |", "|---|---:|---:|---:|", *lines] if lines else []


def bars(data, path):
    """Octet and its peers, each row relative to the best peer."""
    rows = []
    for name, entry in data["models"].items():
        for test in dict.fromkeys(t for r in entry["rounds"] for t in r["octet"]["rates"]):
            peer = best_peer(entry["rounds"], test)
            best = statistics.median(rates(entry["rounds"], peer, test))
            rows.append((f"{name}  {test}", {e: [x / best for x in v] for e in ENGINES if (v := rates(entry["rounds"], e, test))}))
    figure, axes = plt.subplots(figsize=(9, 0.55 * len(rows) + 1.2), layout="constrained")
    for i, (_, engines) in enumerate(rows):
        for j, (engine, values) in enumerate(engines.items()):
            y = i + (j - (len(engines) - 1) / 2) * 0.2
            middle = statistics.median(values)
            axes.barh(y, middle, height=0.18, color=COLOURS[engine], label=engine if i == 0 else None,
                      xerr=[[middle - min(values)], [max(values) - middle]], error_kw={"lw": 0.8})
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.invert_yaxis()
    axes.axvline(1, color="black", lw=0.8)
    axes.set_xlabel("speed, relative to the best peer's median (longer is faster)")
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def ceiling(data, name):
    """What the kernel of a model's type unpacks out of the cache, on all threads, in bytes per second by number of tokens."""
    isa = "avx2" if name.endswith("avx2") else None
    rows = [k for k in data.get("kernels", []) if k["type"] == TYPES.get(name) and isa in (None, k["isa"])]
    most = max((k["n_threads"] for k in rows), default=0)
    # The widest instruction set comes first.
    rows = [k for k in rows if k["n_threads"] == most]
    return {int(n): rate for n, rate in rows[0]["cached_bytes_per_second"].items()} if rows else {}


def roofline(data, path):
    """How near each of Octet's rows comes to what memory gives: bytes a second against tokens that share a read. Dashed: what the
    kernel itself could do, with weights in the cache."""
    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    for name, entry in data["models"].items():
        points = {}
        for r in entry["rounds"]:
            for test, d in r["octet"]["detail"].items():
                if "@" in test or not d["profile"] or not d["bytes_per_second"]:
                    continue
                parallel = int(test.split(" x")[1]) if " x" in test else 1
                at_once = parallel if test.startswith("tg") else 512
                points.setdefault((at_once, test), []).append(share_of_memory(d))
        if points:
            xs = sorted(points)
            axes.plot([x for x, _ in xs], [100 * statistics.median(points[x]) for x in xs], marker="o", lw=0.8, label=name)
            memory = statistics.median(d["memory_bytes_per_second"] for r in entry["rounds"] for d in r["octet"]["detail"].values() if d["memory_bytes_per_second"])
            if limit := ceiling(data, name):
                axes.plot(list(limit), [100 * rate / memory for rate in limit.values()], ls="--", lw=0.6, color=axes.lines[-1].get_color())
            for x in xs:
                axes.annotate(x[1], (x[0], 100 * statistics.median(points[x])), fontsize=7, xytext=(4, 4), textcoords="offset points")
    axes.axhline(100, color="black", lw=0.8)
    axes.text(1, 101, "measured read bandwidth of the memory", fontsize=8, va="bottom")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("tokens that share one reading of the weights")
    axes.set_ylabel("% of the memory's bandwidth (dashed: the kernel's own limit)")
    axes.set_yscale("symlog", linthresh=100)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def verbs(entry, test):
    """Where a step's time goes, from the last round."""
    profile = entry["rounds"][-1]["octet"]["detail"][test]["profile"]
    if not profile:
        return []
    total = sum(v["ns"] for v in profile["verbs"].values())
    lines = ["", f"Where the time of {test} goes (last round):", "", "| verb | calls a step | µs a step | share | GB/s |", "|---|---:|---:|---:|---:|"]
    for name, v in profile["verbs"].items():
        steps = profile["steps"]
        lines.append(f"| {name} | {v['calls'] / steps:.0f} | {v['ns'] / steps / 1e3:.0f} | {100 * v['ns'] / total:.1f}% | {v['bytes'] / max(v['ns'], 1):.1f} |")
    return lines


def kernel_table(data):
    rows = data.get("kernels", [])
    if not rows:
        return []
    lines = ["### Kernels", "", "GB/s of packed weights (`octet bench --kernels`): one token, weights in the cache and in memory, next to a plain read of as much memory.", "",
             "| type | instruction set | threads | cached | bytes a cycle | memory | plain read | share |", "|---|---|---:|---:|---:|---:|---:|---:|"]
    for k in rows:
        cached, memory, plain = k["cached_bytes_per_second"]["1"] / 1e9, k["memory_bytes_per_second"] / 1e9, k["plain_read_bytes_per_second"] / 1e9
        cycle = f"{k['cached_bytes_per_cycle']:.1f}" if k["cached_bytes_per_cycle"] else ""
        lines.append(f"| {k['type']} | {k['isa']} | {k['n_threads']} | {cached:.1f} | {cycle} | {memory:.1f} | {plain:.1f} | {100 * memory / plain:.0f}% |")
    return lines + [""]


def of_machine(name, data, out):
    """The report of one machine, and its pictures."""
    machine = data["machine"]
    rounds = [r for e in data["models"].values() for r in e["rounds"]]
    versions = {e: next((r[e]["version"] for r in rounds if e in r), None) for e in ENGINES}
    bandwidth = [d["memory_bytes_per_second"] for r in rounds for d in r["octet"]["detail"].values() if d["memory_bytes_per_second"]]
    device = next(d["device"] for r in rounds for d in r["octet"]["detail"].values())
    lines = [
        f"## {name}", "",
        f"- Machine: {machine['processor']}, {machine['cores']} cores, {machine['memory'] / 2**30:.0f} GiB, Linux {machine['kernel']}; {machine['date']}, commit {machine['commit']}",
        f"- Octet: {device}; memory read bandwidth measured by it: {spread([b / 1e9 for b in bandwidth])} GB/s",
        "- Peers, from PyPI: " + ", ".join(f"{e} ({'llama-cpp-python' if e == 'llama.cpp' else 'ik-llama-cpp-python'} {versions[e]})" for e in ENGINES[:-1] if versions[e])
        + "; -rtr repacks the weights at load, that engine's fastest mode", "",
        f"![Speed relative to the best peer](performance-{name}.svg)", "", f"![Share of the memory's bandwidth](roofline-{name}.svg)", "",
    ]
    for model, entry in data["models"].items():
        lines += [f"### {TITLES[model]}", "", *table(entry), *derived(entry)]
        if model in ("8L", "40L"):
            lines += verbs(entry, "tg64") + verbs(entry, "pp512")
        lines.append("")
    bars(data, out / f"performance-{name}.svg")
    roofline(data, out / f"roofline-{name}.svg")
    return lines + kernel_table(data)


def write(machines, out):
    lines = [
        "# Performance on a CPU", "",
        "Written by `benches/compare.py`, which measures Octet and its peers in turn on one machine; run it on yours. Tokens per second, median [least-largest] over the rounds;",
        "*against the best peer* is the ratio within each round to the peer with the highest median. *of memory bandwidth* compares each step with plain reads right before and after it",
        "(on the Ice Lake with reads before the model was loaded). `pp512` processes a prompt of 512 tokens, `tg64` generates 64, `@ d4096` after",
        "4096 tokens, `x4` four sequences at once and their tokens together. llama.cpp's load time is that of mapping the file; it reads it when it first computes. Weights are random",
        "(`octet synth`), shapes and types are the published ones; all engines run the same files with the same token ids.", "",
        "[performance-notes.md](performance-notes.md) says how the figures of each machine were measured, and what was measured by other means.", "",
    ]
    for name, data in machines.items():
        if data["models"]:
            lines += of_machine(name, data, out)
    (out / "performance.md").write_text("\n".join(lines).rstrip() + "\n")
