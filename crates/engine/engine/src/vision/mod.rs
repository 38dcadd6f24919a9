//! Images: a tower turns each into embeddings, which take the place of tokens in a prompt.
//!
//! `plan` describes a tower as data; `towers/` reads such plans from a projector's metadata (llama.cpp's `mmproj` files, or the vision part of
//! a checkpoint, which `octet_weights` brings into the same form). `resize`, `image` and `video` prepare pixels as transformers' processors do,
//! `encoder` runs a tower in pieces, and `places` knows where images lie in a prompt. `engine::images` puts it together.

mod encoder;
mod fit;
mod image;
mod kernels;
mod keys;
mod load;
mod memory;
mod places;
pub mod plan;
mod resize;
mod resized;
mod towers;
mod video;
mod weights;

use std::sync::Arc;

pub use encoder::Encoder;
pub use fit::{belongs, check, reads_images};
pub use image::SIDE_MAX;
pub use load::{open, open_on};
pub(crate) use places::is_image;
pub use places::{Place, Places, Reader};
pub use plan::PIECE_TOKENS;
pub use plan::Tower;
pub use resized::{Moment, Resized};
pub use towers::{Kind, TOWERS, tower};
pub use video::Clip;

/// A decoded image: rows of red, green and blue bytes from the top left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Pixels of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// `[height, width, 3]`
    pub rgb: Vec<u8>,
}

/// A tower for a model, and its limits.
#[derive(Clone)]
pub struct Options {
    /// The projector.
    pub file: Arc<octet_weights::Model>,
    /// Minimum number of tokens of an image, where its size decides; `None`: the projector's own.
    pub min_tokens: Option<usize>,
    /// Maximum number of tokens of an image; `None`: the projector's own, but at most [`TOKENS_MAX`].
    pub max_tokens: Option<usize>,
    /// Maximum bytes of embeddings that are kept for later prompts.
    pub cache_bytes: u64,
    /// The tower runs on the model's device, instead of the processor.
    pub on_device: bool,
}

/// Default maximum number of tokens of an image. Attention in a tower grows with the square of it.
pub const TOKENS_MAX: usize = 4096;
/// Default of [`Options::cache_bytes`].
pub const CACHE_BYTES: u64 = 256 << 20;

impl Options {
    /// The projector `file` with default limits, on the processor.
    pub fn new(file: Arc<octet_weights::Model>) -> Self {
        Self { file, min_tokens: None, max_tokens: None, cache_bytes: CACHE_BYTES, on_device: false }
    }

    /// The tower that the file describes, within these limits.
    ///
    /// # Errors
    /// If the file is no projector, or one of an unknown kind.
    pub fn tower(&self) -> Result<Tower, crate::Error> {
        let mut tower = tower(&self.file)?;
        let (pixels, patches) = (tower.pixels_per_token(), tower.merge * tower.merge);
        tower.size.limit(self.min_tokens, self.max_tokens, pixels, patches);
        Ok(tower)
    }

    /// The same, of a file that was compared with it: see [`check`].
    ///
    /// # Errors
    /// As [`Options::tower`], or if a tensor is missing or has another shape.
    pub fn checked(&self) -> Result<Tower, crate::Error> {
        let tower = self.tower()?;
        check(&self.file, &tower)?;
        Ok(tower)
    }

    /// Bytes beside the tower's weights, at most: what it computes for the largest image, and kept embeddings. 0 if the file is unusable.
    pub fn work_bytes(&self) -> u64 {
        self.tower().map_or(0, |tower| tower.work_bytes() + self.cache_bytes)
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.file.origin)
    }
}
