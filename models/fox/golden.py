"""Writes what the engine's tests hold against: `python golden.py CHECKPOINT TOKENIZER golden.json`.

Transformers' own model computes with the weights as they are in a Q8_0 file: for each prompt its tokens, the greedy answer, and that
answer's log-probabilities."""

import argparse
import json
from pathlib import Path

import gguf
import torch
from transformers import Qwen3_5MoeForCausalLM

import tokenizer
from check import transformers_config
from data import environment, template
from export import tensors
from model import Config, Model

PROMPTS = [("Tell me a story about a fox.", True), ("What is 3 + 4?", True), ("Describe a bear as JSON.", False), ("Write a Python function that adds two numbers.", False)]
Q8_0 = gguf.GGMLQuantizationType.Q8_0


def as_stored(state, c):
    """The weights after a round through Q8_0, where `export.py` quantises. Reordered heads are whole blocks, so it may be done before."""
    big = {name for name, _, quantised in tensors(state, c) if quantised}
    stored = {}
    for name, w in state.items():
        one = {name: w}
        made = list(tensors(one, c))
        if made[0][0] in big:
            w = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(w.float().numpy(), Q8_0), Q8_0))
        stored[name] = w
    return stored


@torch.no_grad()
def main():
    a = argparse.ArgumentParser()
    a.add_argument("checkpoint", type=Path)
    a.add_argument("tokenizer", type=Path)
    a.add_argument("out", type=Path)
    a.add_argument("--tokens", type=int, default=48)
    a = a.parse_args()
    saved = torch.load(a.checkpoint, weights_only=False)
    c = Config(**saved["config"])
    Model(c).load_state_dict(saved["model"])  # complete, and of this shape
    state = {k: v for k, v in as_stored(saved["model"], c).items() if not k.startswith("mtp.")}
    model = Qwen3_5MoeForCausalLM(transformers_config(c)).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and missing == ["lm_head.weight"]
    model.tie_weights()
    tok = tokenizer.load(a.tokenizer)
    render = environment().from_string(template()).render
    out = []
    for text, thinking in PROMPTS:
        prompt = render(messages=[{"role": "user", "content": text}], add_generation_prompt=True, enable_thinking=thinking)
        ids = tok.encode(prompt, add_special_tokens=False).ids
        answer, logprobs = [], []
        end = tok.token_to_id("<|im_end|>")
        while len(answer) < a.tokens and (not answer or answer[-1] != end):
            row = model(input_ids=torch.tensor([ids + answer]), use_cache=False).logits[0, -1].log_softmax(-1)
            answer.append(int(row.argmax()))
            logprobs.append(round(float(row.max()), 6))
        out.append({"user": text, "thinking": thinking, "prompt": prompt, "prompt_ids": ids, "answer_ids": answer, "logprobs": logprobs, "answer": tok.decode(answer, skip_special_tokens=False)})
        print(repr(out[-1]["answer"]))
    a.out.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
