"""The Qwen3.5-MoE architecture for training on CPUs: Gated DeltaNet and gated attention 3:1, experts, an MTP block.

Parameter names and shapes are those of transformers' `Qwen3_5MoeForCausalLM`, so that a checkpoint loads there as it is
(`check.py` compares). The one deviation is `mtp.*`, which transformers leaves out. `dense=True` gives the dense sibling."""

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import nn

CHUNK = 32


@dataclass
class Config:
    vocab: int = 2048
    hidden: int = 128
    layers: int = 8
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    key_heads: int = 2
    value_heads: int = 4
    linear_dim: int = 32
    experts: int = 32
    top_k: int = 4
    inner: int = 64
    shared_inner: int = 64
    interval: int = 4
    rope_theta: float = 10000.0
    rope_sections: tuple = (2, 1, 1)
    eps: float = 1e-6
    dense: bool = False

    def dict(self):
        return asdict(self)

    @property
    def dense_inner(self):
        """Inner size of the dense model with as many active parameters a token."""
        return self.top_k * self.inner + self.shared_inner + self.experts // 4


class RMSNorm(nn.Module):
    """`x / rms(x) * (1 + weight)`; with `centred=False` the weight is plain."""

    def __init__(self, dim, eps, centred=True):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim) if centred else torch.ones(dim))
        self.eps, self.centred, self.dim = eps, centred, dim

    def forward(self, x):
        w = self.weight + 1 if self.centred else self.weight
        return F.rms_norm(x.float(), (self.dim,), w, self.eps)


def linear(i, o):
    return nn.Linear(i, o, bias=False)


class Attention(nn.Module):
    """Gated attention: the query projection gives a gate beside each head's query; RoPE on a quarter of the head."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = linear(c.hidden, c.heads * c.head_dim * 2)
        self.k_proj = linear(c.hidden, c.kv_heads * c.head_dim)
        self.v_proj = linear(c.hidden, c.kv_heads * c.head_dim)
        self.o_proj = linear(c.heads * c.head_dim, c.hidden)
        self.q_norm, self.k_norm = RMSNorm(c.head_dim, c.eps), RMSNorm(c.head_dim, c.eps)

    def rope(self, x):  # [B, heads, T, D]
        r = self.c.head_dim // 4
        f = self.c.rope_theta ** (-torch.arange(0, r, 2) / r)
        a = torch.arange(x.shape[2])[:, None] * f
        cos, sin = a.cos(), a.sin()
        p, q, rest = x[..., : r // 2], x[..., r // 2 : r], x[..., r:]
        return torch.cat([p * cos - q * sin, q * cos + p * sin, rest], -1)

    def forward(self, x):
        b, t, _ = x.shape
        c = self.c
        q, gate = self.q_proj(x).view(b, t, c.heads, 2 * c.head_dim).chunk(2, -1)
        k = self.k_norm(self.k_proj(x).view(b, t, c.kv_heads, c.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(b, t, c.kv_heads, c.head_dim).transpose(1, 2).float()
        q, k = self.rope(self.q_norm(q).transpose(1, 2)), self.rope(k)
        n = c.heads // c.kv_heads
        o = F.scaled_dot_product_attention(q, k.repeat_interleave(n, 1), v.repeat_interleave(n, 1), is_causal=True)
        o = o.transpose(1, 2).reshape(b, t, -1)
        return self.o_proj(o * torch.sigmoid(gate.reshape(b, t, -1)))


def delta_rule(q, k, v, g, beta):
    """The gated delta rule in chunks (Yang et al., 2024). q, k: [B, H, T, Dk], v: [B, H, T, Dv], g, beta: [B, H, T], f32; T % CHUNK == 0."""
    b, h, t, dk = q.shape
    n, dv = t // CHUNK, v.shape[-1]
    q, k, v = (x.reshape(b, h, n, CHUNK, -1) for x in (q, k, v))
    beta = beta.reshape(b, h, n, CHUNK, 1)
    s = g.reshape(b, h, n, CHUNK).cumsum(-1)
    mask = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril()
    decay = (s[..., :, None] - s[..., None, :]).masked_fill(~mask, float("-inf")).exp()
    kb = k * beta
    a = (kb @ k.transpose(-1, -2) * decay).tril(-1) + torch.eye(CHUNK)
    u = torch.linalg.solve_triangular(a, torch.cat([v * beta, kb * s.exp()[..., None]], -1), upper=False, unitriangular=True)
    u, w = u.split([dv, dk], -1)
    attn = q @ k.transpose(-1, -2) * decay
    qs = q * s.exp()[..., None]
    last = s[..., -1:]
    ke = (k * (last - s).exp()[..., None]).transpose(-1, -2)
    last = last.exp()[..., None]
    state, out = q.new_zeros(b, h, dk, dv), []
    for i in range(n):
        d = u[:, :, i] - w[:, :, i] @ state
        out.append(qs[:, :, i] @ state + attn[:, :, i] @ d)
        state = state * last[:, :, i] + ke[:, :, i] @ d
    return torch.cat(out, 2)


class DeltaNet(nn.Module):
    """Gated DeltaNet: a causal convolution of four taps, the delta rule, a gated norm."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.key, self.value = c.key_heads * c.linear_dim, c.value_heads * c.linear_dim
        self.in_proj_qkv = linear(c.hidden, 2 * self.key + self.value)
        self.in_proj_z = linear(c.hidden, self.value)
        self.in_proj_b, self.in_proj_a = linear(c.hidden, c.value_heads), linear(c.hidden, c.value_heads)
        self.conv1d = nn.Conv1d(2 * self.key + self.value, 2 * self.key + self.value, 4, groups=2 * self.key + self.value, bias=False)
        self.A_log = nn.Parameter(torch.zeros(c.value_heads))
        self.dt_bias = nn.Parameter(torch.zeros(c.value_heads))
        self.norm = RMSNorm(c.linear_dim, c.eps, centred=False)
        self.out_proj = linear(self.value, c.hidden)

    def forward(self, x):
        b, t, _ = x.shape
        c, d = self.c, self.c.linear_dim
        u = F.pad(self.in_proj_qkv(x).float(), (0, 0, 3, 0))
        w = self.conv1d.weight[:, 0]
        y = F.silu(sum(u[:, j : j + t] * w[:, j] for j in range(4)))
        q, k, v = y.split([self.key, self.key, self.value], -1)

        def heads(m, n, unit):
            m = m.view(b, t, n, d)
            m = m * torch.rsqrt((m * m).sum(-1, keepdim=True) + 1e-6) if unit else m
            return m.transpose(1, 2).repeat_interleave(c.value_heads // n, 1)

        beta = torch.sigmoid(self.in_proj_b(x).float()).transpose(1, 2)
        g = (-self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)).transpose(1, 2)
        q = heads(q, c.key_heads, True) * d**-0.5
        o = delta_rule(q, heads(k, c.key_heads, True), heads(v, c.value_heads, False), g, beta).transpose(1, 2)
        z = self.in_proj_z(x).float().view(b, t, c.value_heads, d)
        return self.out_proj((self.norm(o) * F.silu(z)).reshape(b, t, -1))


class Grouped(torch.autograd.Function):
    """`y[a:b] = x[a:b] @ w[e].T` for each expert's rows, where `counts` holds the number of rows of each."""

    @staticmethod
    def forward(ctx, x, w, counts):
        ctx.save_for_backward(x, w)
        ctx.counts = counts
        y = x.new_empty(x.shape[0], w.shape[1])
        a = 0
        for e, n in enumerate(counts):
            if n:
                torch.mm(x[a : a + n], w[e].t(), out=y[a : a + n])
            a += n
        return y

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dx, dw, a = torch.empty_like(x), torch.zeros_like(w), 0
        dy = dy.contiguous()
        for e, n in enumerate(ctx.counts):
            if n:
                torch.mm(dy[a : a + n], w[e], out=dx[a : a + n])
                torch.mm(dy[a : a + n].t(), x[a : a + n], out=dw[e])
            a += n
        return dx, dw, None


class Mlp(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(hidden, inner), linear(hidden, inner), linear(inner, hidden)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(c.experts, 2 * c.inner, c.hidden))
        self.down_proj = nn.Parameter(torch.empty(c.experts, c.hidden, c.inner))


class Moe(nn.Module):
    """Softmax over all experts, the best `top_k` renormalised, and a shared expert behind a gate of its own."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.gate = linear(c.hidden, c.experts)
        self.experts = Experts(c)
        self.shared_expert = Mlp(c.hidden, c.shared_inner)
        self.shared_expert_gate = linear(c.hidden, 1)
        self.aux, self.chosen = None, None

    def forward(self, x):
        c = self.c
        shape, x = x.shape, x.reshape(-1, x.shape[-1])
        with torch.autocast("cpu", enabled=False):
            logits = F.linear(x.float(), self.gate.weight.float())
        p = logits.softmax(-1)
        top, idx = p.topk(c.top_k, -1)
        top = top / top.sum(-1, keepdim=True)
        counts = torch.bincount(idx.reshape(-1), minlength=c.experts)
        self.chosen = idx
        share = counts / idx.numel()
        self.aux = c.experts * (share * p.mean(0)).sum(), (logits.logsumexp(-1) ** 2).mean(), share.detach()
        order = idx.reshape(-1).argsort(stable=True)
        rows = order // c.top_k
        counts = counts.tolist()
        dt = torch.bfloat16 if torch.is_autocast_enabled("cpu") else x.dtype
        h = Grouped.apply(x.to(dt)[rows], self.experts.gate_up_proj.to(dt), counts)
        gate, up = h.chunk(2, -1)
        y = Grouped.apply(F.silu(gate) * up, self.experts.down_proj.to(dt), counts)
        y = torch.zeros_like(x, dtype=torch.float32).index_add_(0, rows, y.float() * top.reshape(-1)[order, None])
        return (y + torch.sigmoid(self.shared_expert_gate(x).float()) * self.shared_expert(x)).view(shape)


class Layer(nn.Module):
    def __init__(self, c, full):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(c.hidden, c.eps), RMSNorm(c.hidden, c.eps)
        if full:
            self.self_attn = Attention(c)
        else:
            self.linear_attn = DeltaNet(c)
        self.full = full
        self.mlp = Mlp(c.hidden, c.dense_inner) if c.dense else Moe(c)

    def forward(self, h):
        x = self.input_layernorm(h)
        h = h + (self.self_attn(x) if self.full else self.linear_attn(x))
        return h + self.mlp(self.post_attention_layernorm(h))


class Trunk(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        self.layers = nn.ModuleList(Layer(c, (i + 1) % c.interval == 0) for i in range(c.layers))
        self.norm = RMSNorm(c.hidden, c.eps)

    def forward(self, ids):
        h = self.embed_tokens(ids)
        for layer in self.layers:
            h = layer(h)
        return self.norm(h)


class Mtp(nn.Module):
    """From the hidden state of token t and the embedding of token t + 1 to token t + 2."""

    def __init__(self, c):
        super().__init__()
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = RMSNorm(c.hidden, c.eps), RMSNorm(c.hidden, c.eps)
        self.fc = linear(2 * c.hidden, c.hidden)
        self.layers = nn.ModuleList([Layer(c, True)])
        self.norm = RMSNorm(c.hidden, c.eps)

    def forward(self, embedded, hidden):
        z = torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)], -1)
        return self.norm(self.layers[0](self.fc(z)))


class Model(nn.Module):
    def __init__(self, c, seed=0):
        super().__init__()
        self.c = c
        self.model, self.mtp = Trunk(c), Mtp(c)
        self.init(seed)

    @torch.no_grad()
    def init(self, seed):
        r = torch.Generator().manual_seed(seed)
        for name, p in self.named_parameters():
            if "norm" in name:
                continue
            if name.endswith("A_log"):
                p.copy_(torch.empty(p.shape).uniform_(1.0, 8.0, generator=r).log())
            elif name.endswith("dt_bias"):  # steps from 0.002 to 0.1, through the inverse of softplus
                dt = torch.logspace(-2.7, -1, p.numel())
                p.copy_(dt + torch.log(-torch.expm1(-dt)))
            elif "conv1d" in name:
                p.normal_(0, 0.3, generator=r)
                p[:, :, 3] += 0.5
            elif "embed_tokens" in name:
                p.normal_(0, 0.04, generator=r)
            elif name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj")):
                p.zero_()
            else:
                p.normal_(0, 0.7 * p.shape[-1] ** -0.5, generator=r)

    def blocks(self):
        return [*self.model.layers, *self.mtp.layers]

    def logits(self, h):
        return F.linear(h, self.model.embed_tokens.weight)

    def loss(self, ids, mtp=True):
        """Mean loss of the next token, and of the one after it where `mtp`. ids: [B, T], T % CHUNK == 0."""
        hidden = self.model(ids)

        def cross_entropy(h, shift):
            logits = self.logits(h[:, : ids.shape[1] - shift]).float().flatten(0, 1)
            return F.cross_entropy(logits, ids[:, shift:].reshape(-1))

        if not mtp:
            return cross_entropy(hidden, 1), None
        following = self.model.embed_tokens(ids.roll(-1, 1))
        return cross_entropy(hidden, 1), cross_entropy(self.mtp(following, hidden), 2)
