//! InternVL (arXiv 2404.16821): tiles of a fixed size and the whole image, each with a further state beside its patches; results of blocks
//! have factors for each channel; squares of patches are a token.

use octet_compute::backend::{Act, Window};

use crate::Error;
use crate::models::plan::*;
use crate::vision::keys::Keys;
use crate::vision::plan::{Filter, Layout, Merge, Output, Positions, Prompt, Size, Tower};

/// Tiles of an image, if the file does not say.
const TILES: [usize; 2] = [1, 12];
/// Maximum number of tiles that a file can state.
const TILES_MAX: usize = 64;

pub fn plan(k: &Keys) -> Result<Tower, Error> {
    let side = k.size("image_size", 4096)?;
    let merge = k.opt_size("projector.scale_factor", 16)?.unwrap_or(2);
    if !side.is_multiple_of(k.patch * merge) {
        let what = format!("is {side}, no multiple of {merge} patches of {} pixels", k.patch);
        return Err(k.bad("image_size", what));
    }
    let least = k.opt_size("preproc_min_tiles", TILES_MAX)?.unwrap_or(TILES[0]);
    let most = k.opt_size("preproc_max_tiles", TILES_MAX)?.unwrap_or(TILES[1]);
    if least > most {
        return Err(k.bad("preproc_min_tiles", format!("is {least}, and the most is {most}")));
    }
    let wide = merge * merge * k.hidden;
    Ok(Tower {
        kind: "internvl",
        blocks: k.blocks(Vec::new(), blocks(k)),
        patch: k.patch,
        merge,
        by_token: true,
        window: None,
        size: Size::Grid { side, least, most },
        filter: Filter::Bicubic,
        normal: k.normal()?,
        video: None,
        embed: k.patch_embed(),
        positions: Positions::Fixed {
            table: Tensor::matrix("v.position_embd.weight", 1 + (side / k.patch).pow(2), k.hidden),
        },
        bounded: false,
        class: Some(Tensor::vector("v.class_embd", k.hidden)),
        scales: match k.has("v.blk.0.ls1.weight") {
            true => (0..k.layers).flat_map(|i| [1, 2].map(|n| scale(k, i, n))).collect(),
            false => Vec::new(),
        },
        output: Output::Merge(Merge {
            norm: Some(k.torch_norm("mm.model.mlp.0", wide)),
            first: None,
            hidden_first: false,
            middle: None,
            glu: Some(Glu {
                gate: None,
                up: Tensor::matrix("mm.model.mlp.1", k.out, wide),
                down: Tensor::matrix("mm.model.mlp.3", k.out, k.out),
                act: Act::GeluErf,
                inner: k.out,
            }),
        }),
        deep: Vec::new(),
        out: k.out,
        prompt: Prompt {
            mark: "<IMG_CONTEXT>",
            text: "<img><IMG_CONTEXT></img>",
            alone: "<img><IMG_CONTEXT></img>",
            token: "<IMG_CONTEXT>",
            layout: Layout::Whole,
            turns: false,
            together: false,
        },
    })
}

fn scale(k: &Keys, i: usize, n: usize) -> Tensor {
    Tensor::vector(format!("v.blk.{i}.ls{n}.weight"), k.hidden)
}

/// The largest towers have RMS norms, also of queries and keys; all others LayerNorms.
fn blocks(k: &Keys) -> Vec<Block> {
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let name = |n: &str| format!("v.blk.{i}.{n}");
        let norm = |n: &str| match k.has(&format!("{}.bias", name(n))) {
            true => k.layer_norm(&name(n), k.hidden),
            false => k.rms_norm(&name(n), k.hidden),
        };
        let whole = |n: &str| k.has(&format!("{}.weight", name(n))).then(|| k.rms_norm(&name(n), k.hidden));
        let norms = [whole("attn_q_norm"), whole("attn_k_norm"), None];
        // Its own tile, and nothing before it.
        let attention = Attention { norms, window: Window::Last(1), ..k.attention(i) };
        blocks.push(Block::new(i, norm("ln1"), Op::Attention(Box::new(attention))));
        blocks.push(Block::new(i, norm("ln2"), Op::Glu(k.glu(i, Act::GeluErf))));
    }
    blocks
}
