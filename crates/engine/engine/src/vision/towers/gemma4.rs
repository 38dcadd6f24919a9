//! Gemma 4: images of any shape up to a number of tokens, each the mean of 3 x 3 patches; norms before and after each part, gated GELU,
//! rotations of the halves of a head by column and row.

use octet_compute::backend::Act;

use crate::Error;
use crate::models::plan::*;
use crate::vision::keys::Keys;
use crate::vision::plan::{Filter, Layout, Output, Pool, Positions, Prompt, Size, Tower};

/// Tokens of an image, if the file does not say.
pub const TOKENS: usize = 280;

/// What a prompt has for an image.
pub const PROMPT: Prompt = Prompt {
    mark: "<|image|>",
    text: "<|image><|image|><image|>",
    alone: "<|image><|image|><image|>",
    token: "<|image|>",
    layout: Layout::Whole,
    turns: false,
    together: true,
};

pub fn plan(k: &Keys) -> Result<Tower, Error> {
    let merge = k.opt_size("projector.scale_factor", 16)?.unwrap_or(3);
    let tokens = k.opt_size("image_tokens", 1 << 14)?.unwrap_or(TOKENS);
    let table = "v.position_embd.weight";
    let count = k.rows(table, k.hidden)?;
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let norm = |n: &str, len| k.rms_norm(&format!("v.blk.{i}.{n}"), len);
        let mut a = Attention { scale: 1.0, rope: Some(0), ..k.attention(i) };
        let (q, key) = (norm("attn_q_norm", k.dim()), norm("attn_k_norm", k.dim()));
        a.norms = [Some(q), Some(key), Some(k.plain_norm(k.dim()))];
        let attention = Block::new(i, norm("ln1", k.hidden), Op::Attention(Box::new(a)));
        blocks.push(attention.post(norm("attn_post_norm", k.hidden)));
        let feed_forward = Block::new(i, norm("ln2", k.hidden), Op::Glu(k.glu(i, Act::Gelu)));
        blocks.push(feed_forward.post(norm("ffn_post_norm", k.hidden)));
    }
    let shift = ["v.std_bias", "v.std_scale"].map(|n| Tensor::vector(n, k.hidden));
    Ok(Tower {
        kind: "gemma4v",
        blocks: k.blocks(vec![k.rope(100.0, [2, 1], true)], blocks),
        patch: k.patch,
        merge,
        by_token: false,
        window: None,
        size: Size::Largest(tokens * merge * merge),
        filter: Filter::Bicubic,
        // The model itself brings values from 0 to 1 to -1 to 1.
        normal: [[0.5; 3]; 2],
        video: None,
        embed: k.patch_embed(),
        positions: Positions::Axes {
            table: Tensor { shape: vec![2, count, k.hidden], ..Tensor::vector(table, 0) },
            count,
            pairs: false,
        },
        // Those of E2B and E4B.
        bounded: k.layers > 0 && k.has("v.blk.0.attn_q.input_max"),
        class: None,
        scales: Vec::new(),
        output: Output::Pool(Pool {
            norm: None,
            factor: (k.hidden as f32).sqrt(),
            shift: k.has("v.std_bias").then_some(shift),
            last: k.plain_norm(k.hidden),
            project: Tensor::matrix("mm.input_projection", k.out, k.hidden),
            inputs_first: false,
        }),
        deep: Vec::new(),
        out: k.out,
        prompt: PROMPT,
    })
}
