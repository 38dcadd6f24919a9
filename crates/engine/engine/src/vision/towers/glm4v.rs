//! GLM-4.1V, 4.5V and 4.6V (arXiv 2507.01006): images of any size, learned positions and rotations by row and column, squares of 2 x 2
//! patches are a token.

use octet_compute::backend::Act;

use super::qwen3;
use crate::Error;
use crate::models::plan::*;
use crate::vision::keys::Keys;
use crate::vision::plan::{Layout, Merge, Middle, Output, PatchEmbed, Positions, Prompt, Size, Tower};

/// Pixels of an image, if the file does not say.
const PIXELS: [usize; 2] = [6272, 4_816_896];

pub fn plan(k: &Keys) -> Result<Tower, Error> {
    let merge = k.opt_size("spatial_merge_size", 8)?.unwrap_or(2);
    let table = "v.position_embd.weight";
    let rows = k.rows(table, k.hidden)?;
    let side = rows.isqrt();
    if side * side != rows {
        let what = format!("has {rows} rows, which are no square");
        return Err(octet_weights::Error::tensor(&k.model.origin, table, what).into());
    }
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let norm = |n: &str| k.rms_norm(&format!("v.blk.{i}.{n}"), k.hidden);
        let attention = Attention { rope: Some(0), ..k.attention(i) };
        // The width that the metadata has is the merger's.
        let inner = k.rows(&format!("v.blk.{i}.ffn_up.weight"), k.hidden)?;
        blocks.push(Block::new(i, norm("ln1"), Op::Attention(Box::new(attention))));
        blocks.push(Block::new(i, norm("ln2"), Op::Glu(k.glu_of(i, inner, Act::Silu))));
    }
    let inner = k.rows("mm.up.weight", k.out)?;
    let size = match qwen3::size(k, merge, PIXELS)? {
        Size::Rounded { min, max, .. } => Size::Rounded { min, max, grows: true },
        other => other,
    };
    Ok(Tower {
        kind: "glm4v",
        blocks: k.blocks(vec![k.rope(10_000.0, [1, 2], false)], blocks),
        patch: k.patch,
        merge,
        by_token: true,
        window: None,
        size,
        filter: qwen3::FILTER,
        normal: k.normal()?,
        video: None,
        embed: PatchEmbed {
            norms: [None, Some(k.rms_norm("v.norm_embd", k.hidden)), None],
            ..k.patch_embed()
        },
        positions: Positions::Cubic {
            table: Tensor { shape: vec![rows, k.hidden], ..Tensor::vector(table, 0) },
            side,
        },
        bounded: false,
        class: None,
        scales: Vec::new(),
        output: Output::Merge(Merge {
            norm: Some(k.rms_norm("v.post_ln", k.hidden)),
            first: Some(Tensor::matrix("mm.patch_merger", k.out, merge * merge * k.hidden)),
            hidden_first: true,
            middle: Some(Middle {
                project: Tensor::matrix("mm.model.fc", k.out, k.out),
                norm: k.torch_norm("mm.post_norm", k.out),
                act: Act::GeluErf,
            }),
            glu: Some(Glu {
                gate: Some(Tensor::matrix("mm.gate", inner, k.out)),
                up: Tensor::matrix("mm.up", inner, k.out),
                down: Tensor::matrix("mm.down", k.out, inner),
                act: Act::Silu,
                inner,
            }),
        }),
        deep: Vec::new(),
        out: k.out,
        prompt: Prompt {
            mark: "<|image|>",
            text: "<|image|>",
            alone: "<|begin_of_image|><|image|><|end_of_image|>",
            token: "<|image|>",
            layout: Layout::Whole,
            turns: true,
            together: false,
        },
    })
}
