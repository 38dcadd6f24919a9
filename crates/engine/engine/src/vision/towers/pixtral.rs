//! Pixtral (arXiv 2410.07073): Pixtral 12B, Mistral Small 3.1 and 3.2, Ministral 3, Devstral Small 2. Images of any shape within a square; half of the
//! pairs of a head turn by row, half by column, with every second frequency; squares of 2 x 2 patches are a token, where a merger says so.

use octet_compute::backend::{Act, RopePairing};

use crate::Error;
use crate::models::plan::*;
use crate::vision::keys::Keys;
use crate::vision::plan::{Filter, Layout, Merge, Output, PatchEmbed, Positions, Prompt, Size, Tower};

const MERGER: &str = "mm.patch_merger";

pub fn plan(k: &Keys) -> Result<Tower, Error> {
    // Pixtral 12B has none.
    let is_merged = k.has(&format!("{MERGER}.weight"));
    let merge = if is_merged { k.opt_size("spatial_merge_size", 8)?.unwrap_or(2) } else { 1 };
    let act = if k.flag("clip.use_silu")? { Act::Silu } else { Act::GeluErf };
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let norm = |n: &str| k.rms_norm(&format!("v.blk.{i}.{n}"), k.hidden);
        let attention = Attention { rope: Some(0), ..k.attention(i) };
        blocks.push(Block::new(i, norm("ln1"), Op::Attention(Box::new(attention))));
        blocks.push(Block::new(i, norm("ln2"), Op::Glu(k.glu(i, act))));
    }
    let mut rope = k.rope(10_000.0, [1, 2], false);
    let half = rope.inv_freq.len() / 2;
    let odd = 10_000f32.powf(-2.0 / k.dim() as f32);
    rope.inv_freq[half..].iter_mut().for_each(|f| *f *= odd);
    // llama.cpp's converter reorders queries and keys.
    rope.pairing = if k.has_halves() { RopePairing::Half } else { RopePairing::Adjacent };
    Ok(Tower {
        kind: "pixtral",
        blocks: k.blocks(vec![rope], blocks),
        patch: k.patch,
        merge,
        by_token: true,
        window: None,
        size: Size::Within(k.size("image_size", 1 << 14)?),
        filter: Filter::Bicubic,
        normal: k.normal()?,
        video: None,
        embed: PatchEmbed { norms: [None, Some(k.rms_norm("v.pre_ln", k.hidden)), None], ..k.patch_embed() },
        positions: Positions::None,
        bounded: false,
        class: None,
        scales: Vec::new(),
        output: Output::Merge(Merge {
            norm: is_merged.then(|| k.rms_norm("mm.input_norm", k.hidden)),
            first: is_merged.then(|| Tensor::matrix(MERGER, k.hidden, merge * merge * k.hidden)),
            hidden_first: true,
            middle: None,
            glu: Some(Glu {
                gate: None,
                up: Tensor::matrix("mm.1", k.out, k.hidden),
                down: Tensor::matrix("mm.2", k.out, k.out),
                act: Act::GeluErf,
                inner: k.out,
            }),
        }),
        deep: Vec::new(),
        out: k.out,
        prompt: Prompt {
            mark: "[IMG]",
            text: "[IMG]",
            alone: "[IMG]",
            token: "[IMG]",
            turns: false,
            layout: Layout::Rows(["[IMG_BREAK]", "[IMG_END]"]),
            together: false,
        },
    })
}
