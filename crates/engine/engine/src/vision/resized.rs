//! An image as a tower reads it.

/// A resized image.
#[derive(Debug, Clone, PartialEq)]
pub struct Resized {
    /// Patches of a row, and rows of them.
    pub grid: [usize; 2],
    /// Tokens of a row, and rows of them.
    pub tokens: [usize; 2],
    /// Columns and rows of tiles, which lie one below the other, and below them the whole; `[0, 0]`: only that.
    pub tiles: [usize; 2],
    /// Tokens of text that a prompt has within it.
    pub between: usize,
    /// 1, or the frames of a video that are read together.
    pub frames: usize,
    /// Where they lie in the video.
    pub moment: Option<Moment>,
    /// `[frames, height, width, 3]`
    pub rgb: Vec<u8>,
    /// Of its pixels and its size.
    pub hash: [u8; 32],
}

/// A place in a video.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment {
    /// The video begins with it.
    pub is_first: bool,
    /// Seconds from its beginning, the mean of a pair of frames.
    pub at_s: f64,
    /// What the first coordinate of its tokens is ahead of the video's; 0 where times are written.
    pub turn: u32,
}

impl Resized {
    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens[0] * self.tokens[1]
    }
    /// Number of tokens that a prompt has for it.
    pub fn prompt_len(&self) -> usize {
        self.len() + self.between
    }
    /// True for no image: a resized one has a token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Number of patches.
    pub fn patches(&self) -> usize {
        self.grid[0] * self.grid[1]
    }
}
