"""Trains the model: `python train.py DATA OUT [--steps N]`. Resumes from OUT/last.pt, logs to OUT/loss.csv.

Matrices by Muon (Jordan, 2024), all else by AdamW. The learning rate warms up, stays, and falls linearly over the last part:
`--steps` and `--decay` fix where; `--deadline HH:MM` sets them from the measured speed instead, and the log says what came of it."""

import argparse
import csv
import os
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from model import Config, Model

WARMUP = 40


@torch.no_grad()
def orthogonal(g):
    """The nearest semi-orthogonal matrix, roughly: five Newton-Schulz steps over the last two dimensions, in bf16."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    flip = x.shape[-2] > x.shape[-1]
    x = x.mT if flip else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return (x.mT if flip else x).float()


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal. A tensor of three dimensions is one matrix for each expert; `gate_up` is two. The workers share the
    tensors among them, and tell each other."""

    def __init__(self, params, lr, momentum=0.95, decay=0.01):
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self):
        rank, workers = dist.get_rank(), dist.get_world_size()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            for i, p in enumerate(params):
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                m = state["m"].lerp_(p.grad, 1 - group["momentum"])
                if i % workers != rank:
                    continue
                g = p.grad.lerp(m, group["momentum"])
                if p.ndim == 3:  # each expert's rows, and gate apart from up
                    parts = [orthogonal(x) for x in (g.chunk(2, 1) if g.shape[1] < g.shape[2] else [g])]
                    u = torch.cat(parts, 1)
                    rows = parts[0].shape[1]
                else:
                    u, rows = orthogonal(g), g.shape[0]
                p.mul_(1 - group["lr"] * group["decay"])
                p.add_(u, alpha=-group["lr"] * max(1, rows / p.shape[-1]) ** 0.5)
            for owner in range(workers):
                owned = params[owner::workers]
                flat = torch.cat([p.reshape(-1) for p in owned])
                dist.broadcast(flat, owner)
                for p, x in zip(owned, flat.split([p.numel() for p in owned])):
                    p.copy_(x.view_as(p))


def optimizers(model, scale):
    matrices, rest = [], []
    for name, p in model.named_parameters():
        small = p.ndim < 2 or "conv1d" in name or "embed" in name or name.endswith(("mlp.gate.weight", "shared_expert_gate.weight", "in_proj_a.weight", "in_proj_b.weight"))
        (rest if small else matrices).append(p)
    return [Muon(matrices, lr=0.02 * scale), torch.optim.AdamW(rest, lr=0.004 * scale, betas=(0.9, 0.95), weight_decay=0.0, fused=True)]


class Batches:
    """Rows in a shuffled order that the seed fixes; `step` says where it is."""

    def __init__(self, path, batch, seed):
        data = np.load(path)
        self.ids, self.batch, self.seed = data["ids"], batch, seed
        self.epoch, self.order = -1, None

    def at(self, step):
        each = len(self.ids) // self.batch
        if self.epoch != step // each:
            self.epoch = step // each
            self.order = np.random.default_rng((self.seed, self.epoch)).permutation(len(self.ids))
        i = step % each * self.batch
        return torch.from_numpy(self.ids[np.sort(self.order[i : i + self.batch])].astype(np.int64))


@torch.no_grad()
def held_out(model, ids, amp):
    with torch.compiler.set_stance("force_eager"), torch.autocast("cpu", torch.bfloat16, enabled=amp):
        losses = [model.loss(ids[i : i + 16]) for i in range(0, len(ids), 16)]
    return [sum(x[k].item() for x in losses) / len(losses) for k in (0, 1)]


def save(path, **what):
    torch.save(what, str(path) + ".part")
    os.replace(str(path) + ".part", path)


def seconds_until(clock):
    h, m = map(int, clock.split(":"))
    now = time.localtime()
    return (h - now.tm_hour) * 3600 + (m - now.tm_min) * 60 - now.tm_sec


def arguments():
    a = argparse.ArgumentParser()
    a.add_argument("data", type=Path)
    a.add_argument("out", type=Path)
    a.add_argument("--steps", type=int, default=3000)
    a.add_argument("--decay", type=int, help="steps over which the learning rate falls (default: a third)")
    a.add_argument("--deadline", help="local time at which training has to be done")
    a.add_argument("--batch", type=int, default=12, help="rows a step")
    a.add_argument("--lr", type=float, default=1.0, help="scale of the learning rates")
    a.add_argument("--mtp-every", type=int, default=4, help="steps of which one trains the MTP block too: it learns fast")
    a.add_argument("--dense", action="store_true", help="the dense model with as many active parameters")
    a.add_argument("--seed", type=int, default=0)
    a.add_argument("--workers", type=int, default=2, help="processes of one thread each; on a busy machine faster than threads")
    a.add_argument("--save-every", type=float, default=240, help="seconds between checkpoints")
    a.add_argument("--compile", action="store_true", help="compile the Gated DeltaNet layers: takes minutes, then a sixth less time a step")
    a.add_argument("--bf16", action="store_true", help="matrix products in bf16")
    return a.parse_args()


class Run:
    """One worker's training. Worker 0 writes the log and the checkpoints, and decides when the learning rate falls."""

    def __init__(self, rank, a):
        self.rank, self.a, self.c = rank, a, Config(dense=a.dense)
        self.model = Model(self.c, a.seed)
        self.opts = optimizers(self.model, a.lr)
        self.peaks = [o.param_groups[0]["lr"] for o in self.opts]
        self.step, self.decay, self.last = 0, None, a.out / "last.pt"
        if self.last.exists():
            s = torch.load(self.last, weights_only=False)
            self.model.load_state_dict(s["model"])
            for o, state in zip(self.opts, s["optimizers"]):
                o.load_state_dict(state)
            self.step, self.decay = s["step"], s["decay"]
            print("resuming at step", self.step, flush=True)
        if a.compile:
            for block in self.model.blocks():
                if not block.full:
                    block.linear_attn.forward = torch.compile(block.linear_attn.forward, dynamic=False)
        if not a.deadline:
            self.decay = a.steps - (a.decay or a.steps // 3), a.steps
        self.train, self.test = Batches(a.data / "train.npz", a.batch, a.seed), Batches(a.data / "held_out.npz", 48, 0).at(0)
        self.start = self.saved = time.time()
        self.pace = []

    def save(self):
        save(self.last, model=self.model.state_dict(), optimizers=[o.state_dict() for o in self.opts], step=self.step, decay=self.decay, config=self.c.dict())

    def plan(self):
        """With a deadline: the last third of the time goes to the falling rate. All workers learn what worker 0 decides."""
        if self.decay is None and len(self.pace) > 20:
            left = seconds_until(self.a.deadline)
            each = sum(self.pace[-60:]) / len(self.pace[-60:])
            steps = int(left / each * 0.93) if left < (time.time() - self.a.began + left) / 3 else 0
            told = torch.tensor([max(10, steps) if steps or left < 0 else 0])
            dist.broadcast(told, 0)
            if told.item():
                self.decay = self.step, self.step + told.item()
                print("decay", self.decay, flush=True)

    def rate(self):
        lr = min(1, (self.step + 1) / WARMUP)
        if self.decay and self.step >= self.decay[0]:
            lr *= max(0.02, (self.decay[1] - self.step) / (self.decay[1] - self.decay[0]))
        for o, peak in zip(self.opts, self.peaks):
            o.param_groups[0]["lr"] = peak * lr
        return lr

    def update(self):
        """One step; returns what the log shows of it."""
        lr, a = self.rate(), self.a
        ids = self.train.at(self.step)[self.rank :: a.workers]
        with torch.autocast("cpu", torch.bfloat16, enabled=a.bf16):
            mtp = self.step % a.mtp_every == 0
            main_loss, mtp_loss = self.model.loss(ids, mtp)
            loss, balance = main_loss + (0.2 * mtp_loss if mtp else 0), 0.0
            if not a.dense:
                aux = [b.mlp.aux for b in (self.model.blocks() if mtp else self.model.model.layers)]
                loss = loss + 0.01 * sum(x[0] for x in aux) / len(aux) + 1e-4 * sum(x[1] for x in aux)
                balance = max((x[2].max() * self.c.experts).item() for x in aux)
        loss.backward()
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        told = torch.stack([main_loss.detach(), mtp_loss.detach() if mtp else torch.zeros(())])
        flat = torch.cat([*(g.reshape(-1) for g in grads), told])
        dist.all_reduce(flat)
        flat /= a.workers
        flat[:-2] *= (1 / (flat[:-2].norm() + 1e-6)).clamp(max=1)
        for g, x in zip(grads, flat.split([g.numel() for g in grads] + [2])):
            g.copy_(x.view_as(g))
        for o in self.opts:
            o.step()
            o.zero_grad(set_to_none=True)
        self.step += 1
        return [self.step, self.step * a.batch * ids.shape[1], f"{time.time() - self.start:.1f}", f"{flat[-2].item():.4f}", f"{flat[-1].item():.4f}" if mtp else "", f"{balance:.2f}", f"{lr:.3f}"]

    def go(self):
        log = None
        if self.rank == 0:
            log = open(self.a.out / "loss.csv", "a", newline="")
            if log.tell() == 0:
                csv.writer(log).writerow(["step", "tokens", "seconds", "loss", "mtp", "balance", "lr", "held_out", "held_out_mtp"])
        while self.decay is None or self.step < self.decay[1]:
            begun = time.time()
            self.plan()
            row = self.update()
            done = self.decay is not None and self.step >= self.decay[1]
            if self.rank == 0:
                if done or time.time() - self.saved > self.a.save_every:
                    row += [f"{x:.4f}" for x in held_out(self.model, self.test, self.a.bf16)]
                    self.save()
                    self.saved = time.time()
                csv.writer(log).writerow(row)
                log.flush()
            self.pace.append(time.time() - begun)
        print("done at step", self.step, flush=True)


def work(rank, a):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(a.out / "meeting"), a.workers), rank=rank, world_size=a.workers, timeout=timedelta(hours=1))
    Run(rank, a).go()
    dist.destroy_process_group()


def main():
    a = arguments()
    a.began = time.time()
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "meeting").unlink(missing_ok=True)
    torch.multiprocessing.spawn(work, (a,), a.workers)


if __name__ == "__main__":
    main()
