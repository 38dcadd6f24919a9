//! Residual streams beside the one that goes through a model's blocks.

use super::Backend;

/// Maximum number of residual streams.
pub const MAX_STREAMS: usize = 8;

/// Alternating updates (AltUp, arXiv 2301.13310) of one layer: one of several residual streams goes through its blocks; the others are
/// predicted from all streams before it, and corrected by what the blocks changed.
pub struct AltUp<B: Backend> {
    /// Streams, from 2 to [`MAX_STREAMS`].
    pub streams: usize,
    /// Width of a stream.
    pub width: usize,
    /// `[streams * streams, streams]`: row `i * streams + j` gives the weight of stream `j` in the prediction of stream `i`.
    pub predict: B::Buf,
    /// `[streams, streams]`: row `i` gives the weight of the correction of stream `i`.
    pub correct: B::Buf,
    /// `[width]`
    pub scale: B::Buf,
}
