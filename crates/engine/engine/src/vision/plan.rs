//! A tower as data: `towers/` makes such plans, `load` and `encoder` run them. Its blocks are those of any model (`models::plan`), whose
//! attention sees the whole image.

use octet_compute::backend::Act;

use super::resized::Resized;
use crate::models::plan::{Glu, Norm, Op, Plan, Tensor};

/// Patches of a piece: a multiple of those of a token.
pub const PIECE_TOKENS: usize = 256;

/// Frames of a video that are read as one image.
pub const FRAMES: usize = 2;

/// A tower, from pixels to embeddings of a text model.
#[derive(Debug, Clone, PartialEq)]
pub struct Tower {
    /// The projector's kind.
    pub kind: &'static str,
    /// Residual blocks and rotations; a patch turns by its row and its column.
    pub blocks: Plan,
    /// Pixels of a patch's side.
    pub patch: usize,
    /// Patches of a token's side.
    pub merge: usize,
    /// Patches of a token follow each other, instead of rows of the whole image.
    pub by_token: bool,
    /// Tokens follow each other by squares of this side; blocks with a window attend within one.
    pub window: Option<usize>,
    /// The size that images are brought to.
    pub size: Size,
    /// How they are.
    pub filter: Filter,
    /// Mean and standard deviation of each channel, of values from 0 to 1.
    pub normal: [[f32; 3]; 2],
    /// How frames of a video are read, if they are.
    pub video: Option<Video>,
    /// The projection of patches `[hidden, 3, patch, patch]`, and for further frames; a still image has equal ones.
    pub embed: PatchEmbed,
    /// What is added to the patches.
    pub positions: Positions,
    /// What goes into a projection of a block and what comes out is bounded, by values beside its tensor (`input_min` and so on).
    pub bounded: bool,
    /// A further state beside the patches of each tile, which is no token, if there is one `[hidden]`; its position is the table's first.
    pub class: Option<Tensor>,
    /// Factors of the result of each block (LayerScale, arXiv 2103.17239) `[hidden]`; empty: none.
    pub scales: Vec<Tensor>,
    /// Patches to tokens.
    pub output: Output,
    /// Further results of some blocks, which are added to the text's states after its first layers (deepstack).
    pub deep: Vec<(usize, Merge)>,
    /// Width of the text model.
    pub out: usize,
    /// What a prompt has for an image.
    pub prompt: Prompt,
}

/// The projection of patches.
#[derive(Debug, Clone, PartialEq)]
pub struct PatchEmbed {
    /// Its name without `.weight`; checkpoints have a dimension for frames.
    pub name: String,
    /// There is a bias.
    pub bias: bool,
    /// Values of a patch are `[patch, patch, 3]`.
    pub channels_last: bool,
    /// Norms of a patch's values, of its projection, and of that with its position.
    pub norms: [Option<Norm>; 3],
}

/// The size that an image is brought to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Size {
    /// Sides are rounded to tokens; an image of fewer or more pixels is enlarged or reduced to these.
    Rounded {
        /// Pixels.
        min: usize,
        /// Pixels.
        max: usize,
        /// An image whose shorter side is no token is enlarged to one, before anything else.
        grows: bool,
    },
    /// All images become squares of this side.
    Square(usize),
    /// The longer side becomes `longest`, both are rounded up to squares of this side. Each square is a tile, seen by itself; then comes the
    /// whole image as one. An image of one square is only that.
    Tiles {
        /// Pixels.
        side: usize,
        /// Pixels.
        longest: usize,
    },
    /// Cut into squares of this side, from `least` to `most` of them, in the columns and rows whose ratio is nearest to the image's; the image is
    /// stretched over them. Each is a tile, as above, and then comes the whole image.
    Grid {
        /// Pixels.
        side: usize,
        /// Tiles.
        least: usize,
        /// Tiles.
        most: usize,
    },
    /// Larger images are reduced to a square of this side, by the same factor for both sides, which are then rounded up to tokens.
    Within(usize),
    /// The largest one of the same shape of at most this many patches, sides rounded down to tokens.
    Largest(usize),
}

/// Maximum tokens of an image that can be set.
const TOKENS_LIMIT: usize = 1 << 15;

impl Size {
    /// Other limits on the tokens of an image, where its size is not fixed. A token has so many pixels, and so many patches.
    pub fn limit(&mut self, least: Option<usize>, most: Option<usize>, pixels: usize, patches: usize) {
        let most = most.map(|n| n.clamp(1, TOKENS_LIMIT));
        match self {
            Self::Rounded { min, max, .. } => {
                *max = most.map_or((*max).min(super::TOKENS_MAX * pixels), |n| n * pixels);
                *min = least.map_or(*min, |n| n.min(TOKENS_LIMIT) * pixels).min(*max);
            }
            Self::Largest(n) => *n = most.map_or(*n, |most| most * patches),
            Self::Within(side) => {
                let token = pixels.isqrt();
                let tokens = side.div_ceil(token).min(most.unwrap_or(super::TOKENS_MAX).isqrt().max(1));
                *side = (*side).min(tokens * token);
            }
            Self::Tiles { side, longest } => {
                let each = (*side / pixels.isqrt()).pow(2).max(1);
                let tiles = (most.unwrap_or(super::TOKENS_MAX) / each).saturating_sub(1).isqrt().max(1);
                *longest = (*longest).min(tiles * *side);
            }
            Self::Grid { side, least, most: tiles } => {
                let each = (*side / pixels.isqrt()).pow(2).max(1);
                // The whole is one more.
                let fit = (most.unwrap_or(super::TOKENS_MAX) / each).saturating_sub(1).max(1);
                *tiles = (*tiles).min(fit);
                *least = (*least).min(*tiles);
            }
            Self::Square(_) => {}
        }
    }
}

/// An interpolation, with antialiasing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Filter {
    Bilinear,
    Bicubic,
    Lanczos,
}

/// Learned positions of patches.
#[derive(Debug, Clone, PartialEq)]
pub enum Positions {
    /// None.
    None,
    /// A square grid `[side * side, hidden]`, stretched over the image: each value is between four of it.
    Stretched {
        /// The table.
        table: Tensor,
        /// Its side.
        side: usize,
    },
    /// One for each patch of an image of fixed size, by rows.
    Fixed {
        /// `[patches, hidden]`
        table: Tensor,
    },
    /// The same with cubic interpolation, as PyTorch's `grid_sample` computes it.
    Cubic {
        /// The table.
        table: Tensor,
        /// Its side.
        side: usize,
    },
    /// The sum of one for the column and one for the row: `[2, count, hidden]`, or `[count, 2, hidden]` where they are pairs.
    Axes {
        /// The table.
        table: Tensor,
        /// Columns or rows.
        count: usize,
        /// Those of a number follow each other.
        pairs: bool,
    },
}

/// Patches to tokens.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a tower has one")]
pub enum Output {
    /// The patches of a token side by side.
    Merge(Merge),
    /// The mean of the patches of a token.
    Pool(Pool),
}

/// `down . act(up . middle . first . norm(patches))` or less, with the norm of each patch or of all of a token together, by its length.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Merge {
    pub norm: Option<Norm>,
    pub first: Option<Tensor>,
    /// The columns of `first` are `[hidden, merge, merge]`.
    pub hidden_first: bool,
    pub middle: Option<Middle>,
    pub glu: Option<Glu>,
}

/// `act(norm(project . x))`
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Middle {
    pub project: Tensor,
    pub norm: Norm,
    pub act: Act,
}

/// `project . last((factor * mean(norm(patches)) - shift) * scale)`
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// A norm before.
    pub norm: Option<Norm>,
    /// A factor of the mean.
    pub factor: f32,
    /// What is subtracted, and what it is multiplied with, of each channel.
    pub shift: Option<[Tensor; 2]>,
    /// A norm after.
    pub last: Norm,
    /// `[out, hidden]`
    pub project: Tensor,
    /// The file has it as `[hidden, out]`.
    pub inputs_first: bool,
}

/// Texts within an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// None.
    Whole,
    /// What follows each row of tokens, and the last one instead.
    Rows([&'static str; 2]),
    /// Idefics3's names of tiles.
    Tiles,
}

/// How a tower reads the frames of a video: two of them are like an image, whose patches have the pixels of both.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Video {
    /// Minimum number of pixels.
    pub min: usize,
    /// Maximum number of pixels.
    pub max: usize,
    /// These are of all frames together, instead of each.
    pub together: bool,
    /// How the model reads when a pair of frames is.
    pub times: Times,
    /// What chat templates write for a video.
    pub mark: &'static str,
    /// What is read for each pair of frames in its place.
    pub text: &'static str,
    /// Each of its tokens.
    pub token: &'static str,
}

/// How a model reads when the frames of a video are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Times {
    /// A text before each pair says it.
    Written,
    /// By the first coordinate of its tokens, which grows by so many a second.
    Turned {
        /// Coordinates.
        per_second: f64,
    },
}

/// What a prompt has for an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prompt {
    /// What chat templates write for an image.
    pub mark: &'static str,
    /// What is read in its place: texts and tokens around [`Prompt::token`], which stands for the image.
    pub text: &'static str,
    /// What stands for an image in a text that no template has written.
    pub alone: &'static str,
    /// Each of the image's tokens.
    pub token: &'static str,
    /// Positions after an image go on from its longer side, and its tokens have a row and a column.
    pub turns: bool,
    /// Texts within the image.
    pub layout: Layout,
    /// Its tokens see each other in both directions, so they are computed in one step.
    pub together: bool,
}

impl Tower {
    /// Width of a patch's state.
    pub fn hidden(&self) -> usize {
        self.blocks.hidden
    }
    /// Products of a patch in the largest part of a block, for an image of so many patches.
    pub fn work(&self, patches: usize) -> f64 {
        let (hidden, inner) = (self.hidden() as f64, self.inner() as f64);
        (2.0 * patches as f64 * hidden + hidden * hidden).max(3.0 * hidden * inner)
    }
    /// Tiles of a side of an image, at most.
    pub fn tiles_max(&self) -> usize {
        if let Size::Tiles { side, longest } = self.size { longest.div_ceil(side) } else { 1 }
    }
    /// Side of a tile in pixels that are read, which are whole tokens, if images are cut into such.
    pub fn tile(&self) -> Option<usize> {
        match self.size {
            Size::Tiles { side, .. } | Size::Grid { side, .. } => Some(side / self.side() * self.side()),
            _ => None,
        }
    }
    /// Patches of a tile, or of an image that is not cut.
    pub fn tile_patches(&self, image: &Resized) -> usize {
        self.tile().map_or(image.patches(), |side| (side / self.patch).pow(2))
    }
    /// States that are computed for an image: of its patches, and the further one of each tile.
    pub fn rows(&self, image: &Resized) -> usize {
        let patches = image.patches();
        patches + if self.class.is_some() { patches / self.tile_patches(image).max(1) } else { 0 }
    }
    /// The same for the largest image.
    pub fn rows_max(&self) -> usize {
        let patches = self.tokens_max() * self.merge * self.merge;
        let tile = self.tile().map_or(patches, |side| (side / self.patch).pow(2));
        patches + if self.class.is_some() { patches / tile.max(1) } else { 0 }
    }
    /// States of a piece, at most.
    pub fn piece_rows(&self) -> usize {
        PIECE_TOKENS + usize::from(self.class.is_some())
    }
    /// Values of a patch that is projected, at most: of both frames, if videos are read.
    pub fn patch_len_max(&self) -> usize {
        self.patch_len() * if self.video.is_some() { FRAMES } else { 1 }
    }
    /// Width of the states between a merger's projections.
    pub fn merged(&self) -> usize {
        let Output::Merge(m) = &self.output else { return 0 };
        let first = m.first.as_ref().map_or(0, |t| t.shape[0]);
        first.max(m.middle.as_ref().map_or(0, |m| m.project.shape[0]))
    }
    /// Width of the widest feed-forward block.
    pub fn inner(&self) -> usize {
        let glus =
            self.blocks.ops().filter_map(|(_, op)| if let Op::Glu(g) = op { Some(g.inner) } else { None });
        glus.max().unwrap_or(0)
    }
    /// Pixels of a token's side.
    pub fn side(&self) -> usize {
        self.patch * self.merge
    }
    /// Pixels of a token.
    pub fn pixels_per_token(&self) -> usize {
        self.side() * self.side()
    }
    /// Values of an embedding, with what is added after the text's first layers.
    pub fn width(&self) -> usize {
        self.out * (1 + self.deep.len())
    }
    /// Maximum number of tokens of an image.
    pub fn tokens_max(&self) -> usize {
        match self.size {
            Size::Rounded { max, .. } => max / self.pixels_per_token(),
            Size::Square(side) => (side / self.side()).pow(2),
            Size::Tiles { side, longest } => {
                let tiles = longest.div_ceil(side).pow(2);
                (side / self.side()).pow(2) * if tiles > 1 { tiles + 1 } else { 1 }
            }
            Size::Grid { side, most, .. } => {
                (side / self.side()).pow(2) * if most > 1 { most + 1 } else { 1 }
            }
            Size::Within(side) => side.div_ceil(self.side()).pow(2),
            Size::Largest(patches) => patches / (self.merge * self.merge),
        }
        .max(1)
    }
}
