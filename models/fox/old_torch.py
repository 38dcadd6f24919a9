"""What `model.py` and `train.py` use and PyTorch 1.13 lacks, which is Debian 12's: `steps.py` runs there. Does nothing with a later one."""

import contextlib
import types

import torch
import torch.nn.functional as F


def rms_norm(x, _, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def attention(q, k, v, is_causal):
    assert is_causal
    scores = q @ k.mT * q.shape[-1] ** -0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(-1) @ v


def adamw(params, **options):
    """Its fused form is for graphics cards there."""
    options.pop("fused", None)
    return UNFUSED(params, **options)


if not hasattr(F, "rms_norm"):
    F.rms_norm = rms_norm
if not hasattr(F, "scaled_dot_product_attention"):
    F.scaled_dot_product_attention = attention
if not hasattr(torch, "compiler"):
    torch.compiler = types.SimpleNamespace(set_stance=lambda _: contextlib.nullcontext())
if torch.__version__.startswith("1."):
    torch.is_autocast_enabled = lambda _="cpu": torch.is_autocast_cpu_enabled()
    UNFUSED, torch.optim.AdamW = torch.optim.AdamW, adamw
