//! Qwen2.5-VL (arXiv 2502.13923): images of any size, rotations by row and column, squares of 2 x 2 patches are a token; most blocks attend
//! within windows of 112 pixels.

use octet_compute::backend::{Act, Window};
use octet_weights::Value;

use super::qwen3;
use crate::Error;
use crate::models::plan::*;
use crate::vision::keys::Keys;
use crate::vision::plan::{Merge, Output, Positions, Times, Tower, Video};

/// Pixels of an image and of each frame of a video, if the file does not say.
const PIXELS: [usize; 2] = [3136, 12_845_056];
/// Pixels of a window's side, if the file does not say.
const WINDOW: usize = 112;
/// Coordinates of a second of a video, if the file does not say: those of all released models, which llama.cpp's projectors leave out.
const PER_SECOND: f64 = 2.0;

pub fn plan(k: &Keys) -> Result<Tower, Error> {
    let merge = k.opt_size("spatial_merge_size", 8)?.unwrap_or(2);
    let window = k.opt_size("window_size", 4096)?.unwrap_or(WINDOW) / (k.patch * merge);
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let norm = |n: &str| k.rms_norm(&format!("v.blk.{i}.{n}"), k.hidden);
        // Its own window, and nothing before it.
        let window = if sees_all(k, i)? { Window::All } else { Window::Last(1) };
        let attention = Attention { rope: Some(0), window, ..k.attention(i) };
        blocks.push(Block::new(i, norm("ln1"), Op::Attention(Box::new(attention))));
        blocks.push(Block::new(i, norm("ln2"), Op::Glu(k.glu(i, Act::Silu))));
    }
    let wide = merge * merge * k.hidden;
    let video = Video {
        min: PIXELS[0],
        max: PIXELS[1],
        together: false,
        times: Times::Turned { per_second: per_second(k)? },
        mark: qwen3::VIDEO_MARK,
        text: qwen3::VIDEO_MARK,
        token: qwen3::VIDEO_MARK,
    };
    Ok(Tower {
        kind: "qwen2.5vl_merger",
        blocks: k.blocks(vec![k.rope(10_000.0, [1, 2], false)], blocks),
        patch: k.patch,
        merge,
        by_token: true,
        window: Some(window.max(1)),
        size: qwen3::size(k, merge, PIXELS)?,
        filter: qwen3::FILTER,
        normal: k.normal()?,
        video: qwen3::video(k, merge, video)?,
        embed: k.patch_embed(),
        positions: Positions::None,
        bounded: false,
        class: None,
        scales: Vec::new(),
        output: Output::Merge(Merge {
            first: None,
            hidden_first: false,
            middle: None,
            norm: Some(k.rms_norm("v.post_ln", k.hidden)),
            glu: Some(Glu {
                gate: None,
                up: Tensor::matrix("mm.0", wide, wide),
                down: Tensor::matrix("mm.2", k.out, wide),
                act: Act::GeluErf,
                inner: wide,
            }),
        }),
        deep: Vec::new(),
        out: k.out,
        prompt: qwen3::PROMPT,
    })
}

/// By how much the first coordinate of a video's tokens grows in a second.
fn per_second(k: &Keys) -> Result<f64, Error> {
    let key = "tokens_per_second";
    match k.get(key) {
        None => Ok(PER_SECOND),
        Some(Value::F64(n)) if (0.0..=1000.0).contains(n) => Ok(*n),
        Some(_) => Err(k.bad(key, "is not a number from 0 to 1000".into())),
    }
}

/// Whether block `i` attends to the whole image.
fn sees_all(k: &Keys, i: usize) -> Result<bool, Error> {
    let key = "full_attention_blocks";
    match k.get(key) {
        Some(Value::Ints(blocks)) => Ok(blocks.contains(&(i as i64))),
        Some(_) => Err(k.bad(key, "is not an array of blocks".into())),
        None => Ok(k.opt_size("n_wa_pattern", 256)?.is_none_or(|n| (i + 1).is_multiple_of(n))),
    }
}
