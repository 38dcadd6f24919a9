//! Qwen3-VL, Qwen3.5 and 3.6: images of any size, rotations by row and column, squares of 2 x 2 patches are a token. Qwen3-VL adds results of
//! three blocks to the text's first layers (arXiv 2511.21631).

use octet_compute::backend::Act;

use crate::Error;
use crate::models::plan::*;
use crate::vision::keys::Keys;
use crate::vision::plan::{Filter, Layout, Merge, Output, Positions, Prompt, Size, Times, Tower, Video};

/// Pixels of an image, if the file does not say.
const PIXELS: [usize; 2] = [65_536, 16_777_216];

/// Pixels of all frames of a video, if the file does not say: as in released models' `video_preprocessor_config.json`.
const VIDEO_PIXELS: [usize; 2] = [4096, 25_165_824];

/// Maximum number of pixels that a file can state.
const PIXELS_MAX: usize = 1 << 30;

/// How videos are read.
const VIDEO: Video = Video {
    min: VIDEO_PIXELS[0],
    max: VIDEO_PIXELS[1],
    together: true,
    times: Times::Written,
    mark: VIDEO_MARK,
    // What templates write around it stays, as in transformers since 5.10; before, it was left out.
    text: "<|vision_start|><|video_pad|><|vision_end|>",
    token: VIDEO_MARK,
};

/// What stands for a video, and each of its tokens.
pub const VIDEO_MARK: &str = "<|video_pad|>";

/// How images are resized.
pub const FILTER: Filter = Filter::Bicubic;

/// What a prompt has for an image.
pub const PROMPT: Prompt = Prompt {
    mark: "<|image_pad|>",
    text: "<|image_pad|>",
    alone: "<|vision_start|><|image_pad|><|vision_end|>",
    token: "<|image_pad|>",
    turns: true,
    layout: Layout::Whole,
    together: false,
};

/// The size of an image; `pixels` are limits if the file does not say.
pub fn size(k: &Keys, merge: usize, pixels: [usize; 2]) -> Result<Size, Error> {
    let [min, max] = pixels_of(k, ["image_min_pixels", "image_max_pixels"], merge, pixels)?;
    Ok(Size::Rounded { min, max, grows: false })
}

/// Limits on the pixels of videos; `video` has those that hold if the file does not say.
pub fn video(k: &Keys, merge: usize, video: Video) -> Result<Option<Video>, Error> {
    let [min, max] = pixels_of(k, ["video_min_pixels", "video_max_pixels"], merge, [video.min, video.max])?;
    Ok(k.has_frames("v.patch_embd").then_some(Video { min, max, ..video }))
}

/// The least and the most pixels, at least those of a token.
fn pixels_of(k: &Keys, keys: [&str; 2], merge: usize, pixels: [usize; 2]) -> Result<[usize; 2], Error> {
    let limit = |i: usize| Ok::<_, Error>(k.opt_size(keys[i], PIXELS_MAX)?.unwrap_or(pixels[i]));
    let (min, max, side) = (limit(0)?, limit(1)?, k.patch * merge);
    if min > max || max < side * side {
        return Err(k.bad(keys[1], format!("is {max}, with at least {min} pixels")));
    }
    Ok([min, max])
}

pub fn plan(k: &Keys) -> Result<Tower, Error> {
    let merge = k.opt_size("spatial_merge_size", 8)?.unwrap_or(2);
    let table = "v.position_embd.weight";
    let rows = k.rows(table, k.hidden)?;
    let grid = rows.isqrt();
    if grid * grid != rows {
        let what = format!("has {rows} rows, which are no square");
        return Err(octet_weights::Error::tensor(&k.model.origin, table, what).into());
    }
    let wide = merge * merge * k.hidden;
    let glu = |up: String, down: String| Glu {
        gate: None,
        up: Tensor::matrix(up, wide, wide),
        down: Tensor::matrix(down, k.out, wide),
        act: Act::GeluErf,
        inner: wide,
    };
    let deep = k.pattern("is_deepstack_layers")?.into_iter().enumerate().filter(|(_, is)| *is);
    let deep = deep.map(|(i, _)| {
        let name = |n: &str| format!("v.deepstack.{i}.{n}");
        (
            i,
            Merge {
                first: None,
                hidden_first: false,
                middle: None,
                norm: Some(k.layer_norm(&name("norm"), wide)),
                glu: Some(glu(name("fc1"), name("fc2"))),
            },
        )
    });
    Ok(Tower {
        kind: "qwen3vl_merger",
        blocks: k.blocks(vec![k.rope(10_000.0, [1, 2], false)], k.pre_norm_blocks(Act::Gelu, Some(0))),
        patch: k.patch,
        merge,
        by_token: true,
        window: None,
        size: size(k, merge, PIXELS)?,
        filter: FILTER,
        normal: k.normal()?,
        video: video(k, merge, VIDEO)?,
        embed: k.patch_embed(),
        positions: Positions::Stretched {
            table: Tensor { shape: vec![rows, k.hidden], ..Tensor::vector(table, 0) },
            side: grid,
        },
        bounded: false,
        class: None,
        scales: Vec::new(),
        output: Output::Merge(Merge {
            first: None,
            hidden_first: false,
            middle: None,
            norm: Some(k.layer_norm("v.post_ln", k.hidden)),
            glu: Some(glu("mm.0".into(), "mm.2".into())),
        }),
        deep: deep.collect(),
        out: k.out,
        prompt: PROMPT,
    })
}
