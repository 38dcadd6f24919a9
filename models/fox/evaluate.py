"""What a checkpoint can do: `python evaluate.py CHECKPOINT DATA [--rows N]`.

Loss by domain on held-out text, share of MTP drafts that the model itself would choose, balance of the experts, and the mutual
information of expert and domain."""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from data import DOMAINS
from model import Config, Model


def mutual_information(joint):
    """In bits; `joint`: counts [experts, domains]."""
    p = joint / joint.sum()
    independent = p.sum(1, keepdims=True) * p.sum(0, keepdims=True)
    return float((p[p > 0] * np.log2(p[p > 0] / independent[p > 0])).sum())


@torch.no_grad()
def main():
    a = argparse.ArgumentParser()
    a.add_argument("checkpoint", type=Path)
    a.add_argument("data", type=Path)
    a.add_argument("--split", default="held_out")
    a.add_argument("--rows", type=int, default=96)
    a = a.parse_args()
    torch.set_num_threads(1)
    saved = torch.load(a.checkpoint, weights_only=False)
    c = Config(**saved["config"])
    model = Model(c)
    model.load_state_dict(saved["model"])
    data = np.load(a.data / f"{a.split}.npz")
    ids_all, domain_all = data["ids"][-a.rows :], data["domain"][-a.rows :]
    losses, following, drafts = [], [], []
    joint = np.zeros((c.layers, c.experts, len(DOMAINS)))
    for i in range(0, len(ids_all), 8):
        ids, domain = torch.from_numpy(ids_all[i : i + 8].astype(np.int64)), domain_all[i : i + 8]
        hidden = model.model(ids)
        logits = model.logits(hidden)
        losses.append(F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none").numpy())
        if not c.dense:
            for layer in range(c.layers):
                chosen = model.model.layers[layer].mlp.chosen.numpy()
                np.add.at(joint[layer], (chosen, domain.reshape(-1, 1)), 1)
        draft = model.logits(model.mtp(model.model.embed_tokens(ids.roll(-1, 1)), hidden))
        following.append(F.cross_entropy(draft[:, :-2].transpose(1, 2), ids[:, 2:], reduction="none").numpy())
        drafts.append((draft[:, :-2].argmax(-1) == logits[:, 1:-1].argmax(-1)).numpy())
    losses, following, drafts = map(np.concatenate, (losses, following, drafts))
    print(f"step {saved['step']}, {losses.size} tokens of {a.split}: loss {losses.mean():.4f}, MTP {following.mean():.4f}, drafts taken {drafts.mean():.1%}")
    target = domain_all[:, 1:]
    for d, name in enumerate(DOMAINS):
        here = target == d
        taken = drafts[here[:, :-1]].mean() if here.any() else 0
        print(f"  {name:11} {here.mean():6.1%} of the tokens, loss {losses[here].mean():.4f}, drafts taken {taken:.1%}")
    if not c.dense:
        for layer in range(c.layers):
            share = joint[layer].sum(1) / joint[layer].sum()
            entropy = -(share[share > 0] * np.log2(share[share > 0])).sum()
            print(f"  layer {layer}: mutual information {mutual_information(joint[layer]):.3f} bits, busiest expert {share.max() * c.experts:.2f} of even, entropy {entropy:.2f} of {np.log2(c.experts):.0f} bits")


if __name__ == "__main__":
    main()
