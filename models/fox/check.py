"""Compares the training forward pass with transformers' Qwen3.5-MoE: `python check.py [CHECKPOINT]` (random weights without one)."""

import sys

import torch
from transformers import Qwen3_5MoeTextConfig, Qwen3_5MoeForCausalLM

from model import Config, Model


def transformers_config(c):
    return Qwen3_5MoeTextConfig(
        vocab_size=c.vocab, hidden_size=c.hidden, num_hidden_layers=c.layers, num_attention_heads=c.heads, num_key_value_heads=c.kv_heads,
        head_dim=c.head_dim, linear_conv_kernel_dim=4, linear_key_head_dim=c.linear_dim, linear_value_head_dim=c.linear_dim,
        linear_num_key_heads=c.key_heads, linear_num_value_heads=c.value_heads, moe_intermediate_size=c.inner,
        shared_expert_intermediate_size=c.shared_inner, num_experts=c.experts, num_experts_per_tok=c.top_k, rms_norm_eps=c.eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta, "partial_rotary_factor": 0.25,
                         "mrope_section": list(c.rope_sections), "mrope_interleaved": True},
        full_attention_interval=c.interval, tie_word_embeddings=True)


def main():
    torch.manual_seed(3)
    if len(sys.argv) > 1:
        saved = torch.load(sys.argv[1], weights_only=False)
        c = Config(**saved["config"])
        model = Model(c)
        model.load_state_dict(saved["model"])
    else:
        c = Config()
        model = Model(c)
        for p in model.parameters():  # nothing may be zero, or a mistake would not show
            if p.ndim > 1:
                p.data.normal_(0, p.shape[-1] ** -0.5 if p.shape[-1] > 4 else 0.4)
            else:
                p.data += torch.randn_like(p) * 0.3
    reference = Qwen3_5MoeForCausalLM(transformers_config(c)).eval()
    state = {k: v for k, v in model.state_dict().items() if not k.startswith("mtp.")}
    missing, unexpected = reference.load_state_dict(state, strict=False)
    assert not unexpected and missing == ["lm_head.weight"], (missing, unexpected)
    reference.tie_weights()
    ids = torch.randint(0, c.vocab, (2, 128))
    with torch.no_grad():
        ours = model.logits(model.model(ids))
        theirs = reference(input_ids=ids, use_cache=False).logits
    difference = (ours - theirs).abs().max().item()
    print(f"largest difference of a logit: {difference:.2e} (standard deviation {theirs.std():.2f})")
    assert difference < 1e-3


if __name__ == "__main__":
    main()
