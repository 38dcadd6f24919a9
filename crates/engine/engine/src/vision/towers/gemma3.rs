//! Gemma 3: SigLIP on squares of a fixed size, whose patches are averaged to 256 tokens.

use octet_compute::backend::Act;

use crate::Error;
use crate::models::plan::*;
use crate::vision::keys::Keys;
use crate::vision::plan::{Filter, Layout, Output, Pool, Positions, Prompt, Size, Tower};

pub fn plan(k: &Keys) -> Result<Tower, Error> {
    let image = k.size("image_size", 4096)?;
    let merge = k.opt_size("projector.scale_factor", 64)?.unwrap_or(4);
    if !image.is_multiple_of(k.patch * merge) {
        let what = format!("is {image}, no multiple of {merge} patches of {} pixels", k.patch);
        return Err(k.bad("image_size", what));
    }
    let patches = (image / k.patch).pow(2);
    let table = Tensor { shape: vec![patches, k.hidden], ..Tensor::vector("v.position_embd.weight", 0) };
    Ok(Tower {
        kind: "gemma3",
        blocks: k.blocks(Vec::new(), k.pre_norm_blocks(Act::Gelu, None)),
        patch: k.patch,
        merge,
        by_token: false,
        window: None,
        size: Size::Square(image),
        filter: Filter::Bilinear,
        normal: k.normal()?,
        video: None,
        embed: k.patch_embed(),
        positions: Positions::Fixed { table },
        bounded: false,
        class: None,
        scales: Vec::new(),
        output: Output::Pool(Pool {
            norm: Some(k.layer_norm("v.post_ln", k.hidden)),
            factor: 1.0,
            shift: None,
            last: k.rms_norm("mm.soft_emb_norm", k.hidden),
            project: Tensor::matrix("mm.input_projection", k.out, k.hidden),
            inputs_first: true,
        }),
        deep: Vec::new(),
        out: k.out,
        prompt: Prompt {
            mark: "<start_of_image>",
            text: "\n\n<start_of_image><image_soft_token><end_of_image>\n\n",
            alone: "<start_of_image><image_soft_token><end_of_image>",
            token: "<image_soft_token>",
            layout: Layout::Whole,
            turns: false,
            together: true,
        },
    })
}
