"""Makes the numbers of moe_golden.rs: logits of tiny models with norm_topk_prob false, by transformers 5.23.0.

    pip install torch transformers && python moe_golden.py

Weights follow from their names and places, by the same integers as in moe_golden.rs.
"""

import numpy as np
import torch
from transformers import OlmoeConfig, OlmoeForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM

COMMON = dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_experts=8,
              num_experts_per_tok=3, norm_topk_prob=False, max_position_embeddings=256, tie_word_embeddings=False)
QWEN2_MOE = Qwen2MoeConfig(num_key_value_heads=2, intermediate_size=96, moe_intermediate_size=64,
                           shared_expert_intermediate_size=96, **COMMON)
OLMOE = OlmoeConfig(num_key_value_heads=4, intermediate_size=64, eos_token_id=0, **COMMON)


def values(name, count):
    """float32 values in [-1, 1): splitmix64 of FNV-1a of the name, plus the place."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    with np.errstate(over="ignore"):
        z = (np.uint64(seed) + np.arange(count, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - np.float32(1)


def fill(name, shape):
    x = values(name, int(np.prod(shape))).reshape(shape)
    if "norm" in name:
        return np.float32(1) + np.float32(0.25) * x
    return np.float32(0.5) * x if len(shape) == 1 else np.float32(0.25) * x


for config, cls in ((QWEN2_MOE, Qwen2MoeForCausalLM), (OLMOE, OlmoeForCausalLM)):
    model = cls(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("gate_up_proj"):
                # One tensor of all experts here; files have three for each.
                for e in range(config.num_experts):
                    stem = name.removesuffix("gate_up_proj") + f"{e}."
                    half = p.shape[1] // 2
                    p[e, :half] = torch.from_numpy(fill(stem + "gate_proj.weight", (half, p.shape[2])))
                    p[e, half:] = torch.from_numpy(fill(stem + "up_proj.weight", (half, p.shape[2])))
            elif name.endswith("experts.down_proj"):
                for e in range(config.num_experts):
                    stem = name.removesuffix("down_proj") + f"{e}.down_proj.weight"
                    p[e] = torch.from_numpy(fill(stem, tuple(p.shape[1:])))
            else:
                p.copy_(torch.from_numpy(fill(name, tuple(p.shape))))
        ids = torch.tensor([[(7 * i + 3) % 96 for i in range(40)]])
        logits = model(ids).logits[0]
    print(config.model_type)
    for row in (0, 20, 39):
        print(f"    ({row}, {[round(x, 5) for x in logits[row, ::12].tolist()]}),")
