//! The reference models: all of them open, and each GGUF file says the same as the checkpoint that it was converted
//! from, tensor by tensor and key by key, once the two documented permutations are undone.

use octet_testkit::shared;
use octet_weights::{Model, Value};

const TWINS: &[&str] = &["tiny-qwen3_5_moe", "tiny-qwen3_5", "tiny-qwen3_moe", "tiny-llama"];

fn pair(name: &str) -> Option<(Model, Model)> {
    let gguf = shared(&format!("models/gguf/{name}.f32.gguf"))?;
    let hf = shared(&format!("models/{name}"))?;
    Some((Model::open(gguf).unwrap(), Model::open(hf).unwrap()))
}

#[test]
fn all_models_open_and_every_tensor_can_be_read() {
    let Some(root) = shared("models") else { return };
    let mut opened = 0;
    for dir in [root.join("gguf"), root] {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with("gguf") {
                continue; // the directory of them
            }
            let m = Model::open(&path).unwrap_or_else(|e| panic!("{e}"));
            assert!(m.metadata.str("general.architecture").is_ok());
            assert!(m.ignored().is_empty(), "{:?}", m.ignored());
            for t in m.tensors() {
                let values = m.tensor(&t.name, &t.shape).unwrap_or_else(|e| panic!("{e}")).to_f32();
                assert!(values.iter().all(|x| x.is_finite()), "{}: {}", path.display(), t.name);
                m.release(&t.name);
            }
            opened += 1;
        }
    }
    assert!(opened >= 9, "{opened} models");
}

/// Values of a tensor as the GGUF converter orders them.
fn as_converted(hf: &Model, name: &str) -> Option<Vec<f32>> {
    let arch = hf.metadata.str("general.architecture").unwrap();
    let key = |k: &str| hf.metadata.u32(&format!("{arch}.{k}")).unwrap() as usize;
    let values = match hf.optional(name).unwrap() {
        Some(t) => t.to_f32(),
        None => experts(hf, name)?,
    };
    let cols = hf.info(name).map_or(1, |t| t.shape[t.shape.len() - 1]);
    let suffix = name.splitn(3, '.').nth(2).unwrap_or_default();
    if arch == "llama" && matches!(suffix, "attn_q.weight" | "attn_k.weight") {
        return Some(adjacent_pairs(&values, cols, key("attention.key_length")));
    }
    if !arch.starts_with("qwen35") {
        return Some(values);
    }
    let (k_heads, v_heads) = (key("ssm.group_count"), key("ssm.time_step_rank"));
    let k_dim = key("ssm.state_size");
    let v_dim = key("ssm.inner_size") / v_heads;
    let tile = |v: &[f32], chunk: usize| tiled_heads(v, chunk, k_heads, v_heads);
    Some(match suffix {
        "attn_gate.weight" => tile(&values, v_dim * cols),
        "ssm_alpha.weight" | "ssm_beta.weight" => tile(&values, cols),
        "ssm_a" | "ssm_dt.bias" => tile(&values, 1),
        "attn_qkv.weight" | "ssm_conv1d.weight" => {
            let (qk, v) = values.split_at(2 * k_heads * k_dim * cols);
            [qk, &tile(v, v_dim * cols)].concat()
        }
        "ssm_out.weight" => values.chunks(cols).flat_map(|row| tile(row, v_dim)).collect(),
        _ => values,
    })
}

/// A stacked tensor `ffn_X_exps` of a checkpoint that has its experts apart, or gate and up in one.
fn experts(hf: &Model, name: &str) -> Option<Vec<f32>> {
    let stem = name.strip_suffix("_exps.weight")?;
    let (block, kind) = stem.rsplit_once('.')?;
    if let Some(t) = hf.optional(&format!("{block}.ffn_gate_up_exps.weight")).unwrap() {
        let half = t.info.shape[1] / 2 * t.info.shape[2];
        let values = t.to_f32();
        let halves = values.chunks(half).skip(usize::from(kind == "ffn_up")).step_by(2);
        return Some(halves.flatten().copied().collect());
    }
    let mut all = Vec::new();
    while let Some(t) = hf.optional(&format!("{stem}.{}.weight", all.len())).unwrap() {
        all.push(t.to_f32());
    }
    (!all.is_empty()).then(|| all.concat())
}

/// Rows `j` and `j + dim/2` of each head become rows `2j` and `2j + 1`.
fn adjacent_pairs(values: &[f32], cols: usize, dim: usize) -> Vec<f32> {
    let rows: Vec<_> = values.chunks(cols).collect();
    rows.chunks(dim).flat_map(|head| (0..dim).flat_map(|r| head[r / 2 + r % 2 * dim / 2])).copied().collect()
}

/// Value heads of `chunk` values each, from one group a key head to one round of key heads after the other.
fn tiled_heads(values: &[f32], chunk: usize, k_heads: usize, v_heads: usize) -> Vec<f32> {
    let group = v_heads / k_heads;
    assert_eq!(values.len(), chunk * v_heads);
    let head = |tiled: usize| tiled % k_heads * group + tiled / k_heads;
    (0..v_heads).flat_map(|t| &values[head(t) * chunk..(head(t) + 1) * chunk]).copied().collect()
}

#[test]
fn tensors_equal_their_conversion() {
    for name in TWINS {
        let Some((gguf, hf)) = pair(name) else { return };
        for t in gguf.tensors() {
            let want = gguf.tensor(&t.name, &t.shape).unwrap().to_f32();
            let ours = as_converted(&hf, &t.name).unwrap_or_else(|| panic!("{name}: {} is missing", t.name));
            assert_eq!(ours.len(), want.len(), "{name}: {}", t.name);
            if t.name.ends_with("ssm_a") {
                // The converter took the exponential in f32; ours is rounded once.
                let close = ours.iter().zip(&want).all(|(a, b)| (a - b).abs() <= 2e-7 * b.abs());
                assert!(close, "{name}: {}: {ours:?} {want:?}", t.name);
            } else {
                assert!(ours == want, "{name}: {}", t.name);
            }
        }
        // The same number of values in all, so none is missing.
        let count = |m: &Model| m.tensors().iter().map(|t| t.len()).sum::<usize>();
        assert_eq!(count(&hf), count(&gguf), "{name}");
    }
}

#[test]
fn metadata_equal_their_conversion() {
    for name in TWINS {
        let Some((gguf, hf)) = pair(name) else { return };
        let arch = gguf.metadata.str("general.architecture").unwrap().to_string();
        let mut compared = 0;
        for (key, want) in gguf.metadata.iter() {
            let ours = hf.metadata.get(key);
            let comparable = key.starts_with(&format!("{arch}."))
                || matches!(
                    key,
                    "general.architecture"
                        | "tokenizer.chat_template"
                        | "tokenizer.ggml.add_bos_token"
                        | "tokenizer.ggml.bos_token_id"
                        | "tokenizer.ggml.eos_token_id"
                        | "tokenizer.ggml.padding_token_id"
                );
            if !comparable {
                continue;
            }
            match (ours, want) {
                (Some(Value::F64(a)), Value::F64(b)) => assert_eq!(*a as f32, *b as f32, "{name}: {key}"),
                (ours, want) => assert_eq!(ours, Some(want), "{name}: {key}"),
            }
            compared += 1;
        }
        assert!(compared >= 15, "{name}: {compared} keys");
        assert_eq!(hf.metadata.str("octet.rope_pairing").unwrap(), "half");
        assert_eq!(hf.metadata.opt_ints("tokenizer.ggml.eos_token_ids").unwrap(), Some(&[421, 419][..]));
        assert!(hf.metadata.str("tokenizer.huggingface.json").unwrap().starts_with('{'));
        assert_eq!(hf.metadata.str("general.name").unwrap(), *name);
        let order = hf.metadata.opt_str("octet.gdn_head_order").unwrap();
        assert_eq!(order, arch.starts_with("qwen35").then_some("grouped"));
    }
}
