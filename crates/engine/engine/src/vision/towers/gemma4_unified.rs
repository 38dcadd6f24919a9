//! Gemma 4 12B: no tower but a projection of large patches, with norms before and after it, and of their sum with learned positions.

use crate::Error;
use crate::models::plan::*;
use crate::vision::keys::Keys;
use crate::vision::plan::{Filter, Merge, Output, PatchEmbed, Positions, Size, Tower};

use super::gemma4::{PROMPT, TOKENS};

/// The projector's kind.
pub const KIND: &str = "gemma4uv";

pub fn plan(k: &Keys) -> Result<Tower, Error> {
    let merge = k.opt_size("projector.scale_factor", 16)?.unwrap_or(3);
    let tokens = k.opt_size("image_tokens", 1 << 14)?.unwrap_or(TOKENS);
    // Patches of other models, of which squares are read as one.
    let patch = k.patch * merge;
    let (table, pairs) = ("v.position_embd.weight", k.has_pairs());
    let (count, shape) = match k.model.info(table).map(|t| &t.shape[..]) {
        Some(&[count, 2, width]) if pairs => (count, vec![count, 2, width]),
        Some(&[2, count, width]) if !pairs => (count, vec![2, count, width]),
        _ => (k.rows(table, k.hidden)?, vec![2, 0, k.hidden]),
    };
    let norm = |i: usize, len: usize| Some(k.torch_norm(&format!("v.patch_norm.{i}"), len));
    let norms = [norm(1, 3 * patch * patch), norm(2, k.hidden), norm(3, k.hidden)];
    Ok(Tower {
        kind: KIND,
        blocks: k.blocks(Vec::new(), Vec::new()),
        patch,
        merge: 1,
        by_token: false,
        window: None,
        size: Size::Largest(tokens),
        filter: Filter::Bicubic,
        normal: k.normal()?,
        video: None,
        embed: PatchEmbed { norms, ..k.patch_embed() },
        positions: Positions::Axes { table: Tensor { shape, ..Tensor::vector(table, 0) }, count, pairs },
        bounded: false,
        class: None,
        scales: Vec::new(),
        output: Output::Merge(Merge {
            norm: Some(k.plain_norm(k.hidden)),
            first: Some(Tensor::matrix("mm.input_projection", k.out, k.hidden)),
            hidden_first: false,
            middle: None,
            glu: None,
        }),
        deep: Vec::new(),
        out: k.out,
        prompt: PROMPT,
    })
}
