#!/usr/bin/env python3
"""Measures llama.cpp or ik_llama.cpp in this process, with the tests of `octet bench`. Called by compare.py.

peer.py ENGINE MODEL.gguf TEST...     ENGINE: llama.cpp, ik_llama.cpp, ik_llama.cpp-rtr (weights repacked at load)
                                      TEST: pp512, tg64, "tg64 @ d4096", "pp512 x4", "tg64 x8"
Prints one JSON object: what was loaded, how long that took, and tokens per second of each test after a short warm-up.
Engines come from PyPI: llama-cpp-python, ik-llama-cpp-python. Threads are bound by OMP_PLACES; pin the rest with taskset.
"""
import argparse
import importlib.metadata
import json
import os
import re
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("engine", choices=["llama.cpp", "ik_llama.cpp", "ik_llama.cpp-rtr"])
parser.add_argument("model")
parser.add_argument("tests", nargs="+")
parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
parser.add_argument("-r", "--repetitions", type=int, default=1)
parser.add_argument("--ubatch-size", type=int, default=512)
args = parser.parse_args()
for name, value in {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores", "OMP_NUM_THREADS": str(args.threads)}.items():
    os.environ.setdefault(name, value)

IK = args.engine.startswith("ik_")
if IK:
    from ik_llama_cpp import _ctypes_api as C

    package = "ik-llama-cpp-python"
else:
    import llama_cpp as C

    package = "llama-cpp-python"


def parse(test):
    match = re.fullmatch(r"(pp|tg)(\d+)(?: x(\d+))?(?: @ d(\d+))?", test)
    if not match:
        parser.error(f"no test is called {test!r}")
    kind, n, sequences, depth = match.groups()
    return kind, int(n), int(sequences or 1), int(depth or 0)


TESTS = {test: parse(test) for test in args.tests}
SEQUENCES = max(sequences for _, _, sequences, _ in TESTS.values())
CONTEXT = max((n + depth) * sequences for _, n, sequences, depth in TESTS.values())


def load():
    C.llama_backend_init()
    mp = C.llama_model_default_params()
    mp.n_gpu_layers = 0
    if args.engine.endswith("-rtr"):
        mp.use_mmap, mp.repack_tensors = False, True
    start = time.perf_counter()
    model = C.llama_model_load_from_file(args.model.encode(), mp)
    assert model, f"{args.engine} can not load {args.model}"
    seconds = time.perf_counter() - start
    cp = C.llama_context_default_params()
    # Each sequence has its own part of the context, padded by the engines to 256 tokens.
    cp.n_ctx = (CONTEXT // SEQUENCES + 256) * SEQUENCES
    cp.n_batch, cp.n_ubatch, cp.n_seq_max = cp.n_ctx, args.ubatch_size, SEQUENCES
    cp.n_threads = cp.n_threads_batch = args.threads
    if IK:
        # Its flash attention asserts on batches of several sequences.
        cp.flash_attn, cp.fused_moe_up_gate = SEQUENCES == 1, True
    else:
        cp.flash_attn_type = 1
        cp.kv_unified = False
    context = C.llama_init_from_model(model, cp)
    assert context, f"{args.engine} can not make a context"
    return context, seconds


context, load_seconds = load()


def clear():
    if IK:
        C.llama_kv_cache_clear(context)
    else:
        C.llama_memory_clear(C.llama_get_memory(context), True)


def token(i, sequence):
    """The same token ids as `octet bench` feeds."""
    return (7 * i + 131 * sequence + 11) % 1000


def feed(past, n, at_once, sequences):
    """Feeds n tokens after `past` to each sequence; asks for the logits that generation would need."""
    batch = C.llama_batch_init(max(at_once, 1) * sequences, 0, 1)
    for start in range(past, past + n, at_once):
        k = 0
        end = min(start + at_once, past + n)
        for sequence in range(sequences):
            for i in range(start, end):
                batch.token[k], batch.pos[k], batch.n_seq_id[k] = token(i, sequence), i, 1
                batch.seq_id[k][0] = sequence
                batch.logits[k] = int(i + 1 == end and (at_once == 1 or end == past + n))
                k += 1
        batch.n_tokens = k
        code = C.llama_decode(context, batch)
        assert code == 0, f"llama_decode returned {code}"
    C.llama_batch_free(batch)


def run(kind, n, sequences, depth):
    clear()
    feed(0, depth, 512, sequences)
    start = time.perf_counter()
    feed(depth, n, n if kind == "pp" else 1, sequences)
    return n * sequences / (time.perf_counter() - start)


rates = {}
for name, test in TESTS.items():
    kind, n, sequences, _ = test
    run(kind, min(n, 64 if kind == "pp" else 8), sequences, 0)  # reads the whole model once, and warms up
    rates[name] = [run(*test) for _ in range(args.repetitions)]
result = {"engine": args.engine, "version": importlib.metadata.version(package), "load_seconds": load_seconds, "rates": rates}
print(json.dumps(result), flush=True)
os._exit(0)  # neither engine frees a model of this size quickly
