"""Writes how llama.cpp guesses with this model's block: `python drafts.py fox.gguf drafts.json`, with xllamacpp 2026.10.11549.

For each prompt, its answer by the most probable tokens, and for each greatest number of guesses in a step: how many guesses there were
and how many were right. An engine that feeds the block other states gets other guesses, and fewer that are right."""

import argparse
import json
from importlib.metadata import version
from pathlib import Path

import xllamacpp

# Of these one answer is clearly the most probable. A story has near ties, which another order of sums decides otherwise.
TEXTS = [
    "What is the capital of Portugal?",
    "Describe a squirrel as JSON.",
    "Write a Python function that adds two numbers.",
    "Write a Python function that computes the factorial of a number.",
    "Where do owls live?",
    "Which day comes after Tuesday?",
    "Count from 3 to 12.",
    "Who are you?",
    "Explain chemistry.",
]


def server(path, guesses):
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.verbosity = 2048, 1, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
    if guesses:
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_MTP]
        params.speculative.draft.n_max = guesses
        params.speculative.draft.p_min = 0.0
    return xllamacpp.Server(params)


def ask(engine, prompt, tokens):
    body = {"prompt": prompt, "temperature": 0, "max_tokens": tokens, "cache_prompt": False}
    answer = engine.handle_completions(body)
    return answer["choices"][0]["text"], answer["timings"]


def main():
    a = argparse.ArgumentParser()
    a.add_argument("model", type=Path)
    a.add_argument("out", type=Path)
    a.add_argument("--tokens", type=int, default=100)
    a = a.parse_args()
    plain = server(a.model, 0)
    prompts = []
    for text in TEXTS:
        prompt = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<think>\n"
        answer, timings = ask(plain, prompt, a.tokens)
        prompts.append({"prompt": prompt, "answer": answer, "tokens": timings["predicted_n"], "guesses": []})
    for guesses in [1, 2, 3]:
        engine = server(a.model, guesses)
        for one in prompts:
            answer, timings = ask(engine, one["prompt"], a.tokens)
            assert answer == one["answer"], one
            one["guesses"].append([timings["draft_n"], timings["draft_n_accepted"]])
    made = {"by": f"llama.cpp (xllamacpp {version('xllamacpp')})", "tokens": a.tokens, "prompts": prompts}
    a.out.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
