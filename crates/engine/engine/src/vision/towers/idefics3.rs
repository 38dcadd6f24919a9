//! Idefics3 (arXiv 2408.12637) and SmolVLM: SigLIP on tiles of a fixed size and on the whole image, squares of patches are a token.

use octet_compute::backend::{Act, Window};

use crate::Error;
use crate::models::plan::*;
use crate::vision::keys::Keys;
use crate::vision::plan::{Filter, Layout, Merge, Output, Positions, Prompt, Size, Tower};

pub fn plan(k: &Keys) -> Result<Tower, Error> {
    let side = k.size("image_size", 4096)?;
    let merge = k.opt_size("projector.scale_factor", 16)?.unwrap_or(4);
    if side < k.patch || !(side / k.patch).is_multiple_of(merge) {
        let what = format!("is {side}: its patches of {} pixels are no multiple of {merge}", k.patch);
        return Err(k.bad("image_size", what));
    }
    let longest = k.opt_size("preproc_image_size", 4096)?.unwrap_or(4 * side).max(side);
    let table = Tensor::matrix("v.position_embd.weight", (side / k.patch).pow(2), k.hidden);
    let mut blocks = k.pre_norm_blocks(Act::Gelu, None);
    for block in blocks.iter_mut().flat_map(|b| &mut b.branches) {
        if let Op::Attention(a) = &mut block.op {
            // Its own tile, and nothing before it.
            a.window = Window::Last(1);
        }
    }
    Ok(Tower {
        kind: "idefics3",
        blocks: k.blocks(Vec::new(), blocks),
        patch: k.patch,
        merge,
        by_token: true,
        window: None,
        size: Size::Tiles { side, longest },
        filter: Filter::Lanczos,
        normal: k.normal()?,
        video: None,
        embed: k.patch_embed(),
        positions: Positions::Fixed { table },
        bounded: false,
        class: None,
        scales: Vec::new(),
        output: Output::Merge(Merge {
            norm: Some(k.layer_norm("v.post_ln", k.hidden)),
            first: Some(Tensor::matrix("mm.model.fc", k.out, merge * merge * k.hidden)),
            hidden_first: false,
            middle: None,
            glu: None,
        }),
        deep: Vec::new(),
        out: k.out,
        prompt: Prompt {
            mark: "<image>",
            text: "<image>",
            alone: "<image>",
            token: "<image>",
            turns: false,
            layout: Layout::Tiles,
            together: false,
        },
    })
}
