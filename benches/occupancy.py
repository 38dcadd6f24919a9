#!/usr/bin/env python3
"""Counts the bytes that a decode step of Qwen3.6-35B-A3B at Q4_K_M can have in flight on a graphics card, for each stage, and prints a table.

    benches/occupancy.py

A card reaches its bandwidth only with enough reads under way: by Little's law 3 TB/s at 0.6 us are 1.8 MB, 14 KiB for each of 132
multiprocessors. This counts what kernels allow, it measures nothing: invocations that are resident times
the bytes that each reads before it has to wait for them. Sizes of workgroups, and how many blocks an invocation reads at a time, come
from the shaders; the grids are those of `crates/engine/vulkan/src/verbs`.
"""
import pathlib
import re

SHADERS = pathlib.Path(__file__).resolve().parent.parent / "crates/engine/vulkan/shaders"
# Multiprocessors, and threads that one holds at most. What registers and shared memory leave is not counted.
CARDS = {"H100": (132, 2048), "RTX 3090": (82, 1536)}
HIDDEN, VOCAB, EXPERTS, TOP_K, INNER = 2048, 248320, 256, 8, 512
# Bytes of a block of 32 weights, with its scales.
BYTES = {"Q4_K": 18, "Q5_K": 22, "Q6_K": 26.5, "F32": 4}


def source(name):
    return (SHADERS / name).read_text()


def constant(name, pattern):
    """A number in a shader."""
    found = re.search(pattern, source(name))
    if not found:
        raise SystemExit(f"{name} has no '{pattern}'")
    return int(found[1])


ROWS, ROUTER_ROWS = constant("linear.glsl", r"define ROWS (\d+)u"), constant("router.comp", r"define ROWS (\d+)u")
THREADS = 256
FLOATS = constant("linear.glsl", r"TYPE <= BF16 \? (\d+)u")
BLOCKS = constant("linear.glsl", r"TYPE <= BF16 \? \d+u : (\d+)u")
GATE_UP = constant("gate_up.comp", r"EACH = TOKENS == 1u \? (\d+)u")
DOWN = constant("down.comp", r"EACH = (\d+)u")
ATTEND, CHUNK = constant("attend.comp", r"local_size_x = (\d+)"), constant("attend.comp", r"CHUNK = (\d+)u")


def linear(rows, cols, ty, of_group=ROWS):
    """Invocations, bytes that each reads at a time, and bytes in all."""
    unit = BYTES[ty]
    per_row = cols if ty == "F32" else cols / 32
    # No invocation has more terms than its part of a stripe.
    each = min(FLOATS if ty == "F32" else BLOCKS, per_row * of_group / THREADS)
    return rows / of_group * THREADS, each * unit, rows * per_row * unit


def gate_up(experts, ty):
    return experts * INNER / 32 * 256, min(GATE_UP, HIDDEN / 32 / 8) * BYTES[ty], 2 * experts * INNER * HIDDEN / 32 * BYTES[ty]


def down(ty):
    # Four experts of a row at a time.
    return HIDDEN / 8 * 256, min(DOWN, INNER / 32 / 8) * BYTES[ty], TOP_K * HIDDEN * INNER / 32 * BYTES[ty]


def attend(context):
    # 16 heads; an invocation sums up a quarter of a key, two values a word, of which compilers keep some eight reads under way.
    return 16 * -(-context // CHUNK) * ATTEND, 8 * 4, context * 2 * 2 * 256 * 2


STAGES = [
    ("queries, keys, values and gates of Gated DeltaNet", [linear(8192, HIDDEN, "Q5_K"), linear(4096, HIDDEN, "Q4_K")]),
    ("queries, keys, values of attention", [linear(9216, HIDDEN, "Q4_K")]),
    ("attention, 128 positions", [attend(128)]),
    ("attention, 4,096 positions", [attend(4096)]),
    ("projection of attention or Gated DeltaNet", [linear(HIDDEN, 4096, "Q4_K")]),
    ("router; gate and up of the shared expert", [linear(EXPERTS, HIDDEN, "F32", ROUTER_ROWS), gate_up(1, "Q4_K")]),
    ("gate and up of 8 experts; down of the shared one", [gate_up(TOP_K, "Q4_K"), linear(HIDDEN, INNER, "Q6_K")]),
    ("down of 8 experts", [down("Q4_K")]),
    ("output head", [linear(VOCAB, HIDDEN, "Q6_K")]),
]


def main():
    columns = [f"KiB in flight, {card}" for card in CARDS]
    print("| stage | MB | " + " | ".join(columns) + " |\n|---|---:" + "|---:" * len(columns) + "|")
    for name, kernels in STAGES:
        row = []
        for processors, resident in CARDS.values():
            wanted = sum(invocations for invocations, _, _ in kernels)
            fit = min(1.0, resident * processors / wanted)
            row.append(f"{sum(i * each for i, each, _ in kernels) * fit / processors / 1024:.1f}")
        print(f"| {name} | {sum(total for _, _, total in kernels) / 1e6:.1f} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
