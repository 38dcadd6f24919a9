"""Writes a checkpoint as GGUF: `python export.py CHECKPOINT TOKENIZER OUT.gguf [--type q8_0|q5_0|f32]`.

Names, folded norms and the order of the value heads are those of llama.cpp's converter for `qwen35moe` (dense: `qwen35`)."""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
import torch

import tokenizer
from model import Config

NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "post_attention_norm", "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
         "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.conv1d": "ssm_conv1d",
         "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out", "mlp.gate": "ffn_gate_inp",
         "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
         "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
MTP = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head_norm"}


def tiled(w, axis, c, size):
    """The value heads (blocks of `size` along `axis`) from grouped by key head to one of each key head in turn."""
    w = np.moveaxis(w, axis, 0)
    per = c.value_heads // c.key_heads
    w = w.reshape(c.key_heads, per, size, *w.shape[1:]).swapaxes(0, 1).reshape(w.shape)
    return np.moveaxis(w, 0, axis)


def tensors(state, c):
    """(name, array, may be quantised) of each tensor of the file."""
    key, d = c.key_heads * c.linear_dim, c.linear_dim
    for name, w in state.items():
        w = w.float().numpy()
        if "norm" in name and "linear_attn.norm" not in name:
            w = w + 1
        parts = name.removesuffix(".weight").split(".")
        if name == "model.embed_tokens.weight":
            yield "token_embd.weight", w, True
        elif name == "model.norm.weight":
            yield "output_norm.weight", w, False
        elif parts[0] == "mtp" and parts[1] != "layers":
            yield f"blk.{c.layers}.nextn.{MTP[parts[1]]}.weight", w, parts[1] == "fc"
        else:
            i = int(parts[2]) + (c.layers if parts[0] == "mtp" else 0)
            rest = ".".join(parts[3:])
            if rest == "mlp.experts.gate_up_proj":
                yield f"blk.{i}.ffn_gate_exps.weight", w[:, : c.inner], True
                yield f"blk.{i}.ffn_up_exps.weight", w[:, c.inner :], True
            elif rest == "mlp.experts.down_proj":
                yield f"blk.{i}.ffn_down_exps.weight", w, True
            elif rest == "linear_attn.A_log":
                yield f"blk.{i}.ssm_a", -np.exp(tiled(w, 0, c, 1)), False
            elif rest == "linear_attn.dt_bias":
                yield f"blk.{i}.ssm_dt.bias", tiled(w, 0, c, 1), False
            else:
                short = NAMES[rest]
                if short in ("attn_qkv", "ssm_conv1d"):
                    w = w.reshape(w.shape[0], -1)
                    w = np.concatenate([w[: 2 * key], tiled(w[2 * key :], 0, c, d)])
                elif short == "attn_gate":
                    w = tiled(w, 0, c, d)
                elif short in ("ssm_alpha", "ssm_beta"):
                    w = tiled(w, 0, c, 1)
                elif short == "ssm_out":
                    w = tiled(w, 1, c, d)
                elif short == "ffn_gate_inp_shexp":
                    w = w[0]
                big = w.ndim == 2 and short not in ("ffn_gate_inp", "ssm_conv1d", "ssm_alpha", "ssm_beta")
                yield f"blk.{i}.{short}.weight", w, big


def metadata(w, c, arch, tok, context):
    w.add_name("Fox")
    w.add_string("general.description", "A tiny Qwen3.5-MoE model, trained from scratch on generated text (models/fox of Octet)")
    w.add_license("apache-2.0")
    w.add_quantization_version(2)
    w.add_block_count(c.layers + 1)
    w.add_uint32(f"{arch}.nextn_predict_layers", 1)
    w.add_context_length(context)
    w.add_embedding_length(c.hidden)
    w.add_head_count(c.heads)
    w.add_head_count_kv(c.kv_heads)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_layer_norm_rms_eps(c.eps)
    w.add_rope_dimension_count(c.head_dim // 4)
    w.add_rope_dimension_sections([*c.rope_sections, 0])
    w.add_rope_freq_base(c.rope_theta)
    if c.dense:
        w.add_feed_forward_length(c.dense_inner)
    else:
        w.add_expert_count(c.experts)
        w.add_expert_used_count(c.top_k)
        w.add_expert_feed_forward_length(c.inner)
        w.add_expert_shared_feed_forward_length(c.shared_inner)
    w.add_ssm_conv_kernel(4)
    w.add_ssm_state_size(c.linear_dim)
    w.add_ssm_group_count(c.key_heads)
    w.add_ssm_time_step_rank(c.value_heads)
    w.add_ssm_inner_size(c.value_heads * c.linear_dim)
    w.add_uint32(f"{arch}.full_attention_interval", c.interval)
    bpe = json.loads(tok.to_str())["model"]
    kinds = {**dict.fromkeys(tokenizer.CONTROL, 3), **dict.fromkeys(tokenizer.MARKS, 4)}
    tokens = [tok.id_to_token(i) for i in range(c.vocab)]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen35")
    w.add_token_list(tokens)
    w.add_token_types([kinds.get(t, 1) for t in tokens])
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in bpe["merges"]])
    w.add_eos_token_id(tok.token_to_id("<|im_end|>"))
    w.add_pad_token_id(tok.token_to_id("<|endoftext|>"))
    w.add_bos_token_id(tok.token_to_id("<|endoftext|>"))
    w.add_add_bos_token(False)
    w.add_chat_template((Path(__file__).parent / "template.jinja").read_text())
    w.add_float32("general.sampling.temp", 0.6)
    w.add_int32("general.sampling.top_k", 20)
    w.add_float32("general.sampling.top_p", 0.95)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("checkpoint", type=Path)
    a.add_argument("tokenizer", type=Path)
    a.add_argument("out", type=Path)
    a.add_argument("--type", default="q8_0")
    a.add_argument("--context", type=int, default=4096)
    a = a.parse_args()
    saved = torch.load(a.checkpoint, weights_only=False)
    c = Config(**saved["config"])
    arch = "qwen35" if c.dense else "qwen35moe"
    w = gguf.GGUFWriter(a.out, arch)
    metadata(w, c, arch, tokenizer.load(a.tokenizer), a.context)
    kind = gguf.GGMLQuantizationType[a.type.upper()]
    w.add_file_type({"f32": 0, "q8_0": 7, "q5_0": 8}[a.type])
    count = 0
    for name, x, big in tensors(saved["model"], c):
        x = np.ascontiguousarray(x, dtype=np.float32)
        count += x.size
        if big and a.type != "f32":
            expert = "_exps" in name
            of = kind if expert else gguf.GGMLQuantizationType.Q8_0
            w.add_tensor(name, gguf.quants.quantize(x, of), raw_dtype=of)
        else:
            w.add_tensor(name, x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(f"{a.out}: {count} parameters, {a.out.stat().st_size} bytes, step {saved['step']}")


if __name__ == "__main__":
    main()
