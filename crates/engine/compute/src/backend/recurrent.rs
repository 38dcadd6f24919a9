//! Descriptions of layers with a recurrent state.

use super::{Backend, LayerCache, Norm};

/// Which key/query head a Gated DeltaNet value head uses, when there are more value heads than key heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadOrder {
    /// Value head `h` uses key head `h / (v_heads / k_heads)`: Hugging Face checkpoints.
    Grouped,
    /// Value head `h` uses key head `h % k_heads`: GGUF files.
    Tiled,
}

/// Gated DeltaNet of one layer, after its input projections (arXiv 2412.06464, section 3), or Kimi Delta Attention (arXiv 2510.26692), where each
/// channel of a key decays by itself.
pub struct Gdn<B: Backend> {
    /// Query/key heads.
    pub k_heads: usize,
    /// Value heads, a multiple of `k_heads`.
    pub v_heads: usize,
    /// Dimensions of a key head.
    pub k_dim: usize,
    /// Dimensions of a value head.
    pub v_dim: usize,
    /// Taps of the causal convolution, at most [`MAX_CONV`].
    pub conv_kernel: usize,
    /// Which key head serves a value head.
    pub order: HeadOrder,
    /// Convolution taps, `[conv_kernel, channels]`; the last row multiplies the current token.
    pub conv: B::Buf,
    /// Each row of the state decays by itself, not each head as a whole.
    pub row_decay: bool,
    /// `[v_heads]`, or `[v_heads, k_dim]` with a decay of each row.
    pub dt_bias: B::Buf,
    /// `-exp(A_log)`, of the same shape.
    pub a: B::Buf,
    /// The gate of the output is `sigmoid(z)`, not `silu(z)`.
    pub sigmoid_gate: bool,
    /// Weight of the gated RMS norm `[v_dim]`.
    pub norm: B::Buf,
    /// Its epsilon.
    pub eps: f32,
}

/// Mamba-2 of one layer, after its input projection (arXiv 2405.21060, section 7).
pub struct Ssm<B: Backend> {
    /// Groups of heads that share the vectors `B` and `C`.
    pub groups: usize,
    /// Heads, a multiple of `groups`.
    pub heads: usize,
    /// Dimensions of a head.
    pub dim: usize,
    /// Values of the state of each dimension.
    pub state: usize,
    /// Taps of the causal convolution, at most [`MAX_CONV`].
    pub taps: usize,
    /// Convolution taps `[taps, channels]`; the last row multiplies the current token.
    pub conv: B::Buf,
    /// `[channels]`
    pub conv_bias: Option<B::Buf>,
    /// `[heads]`
    pub dt_bias: B::Buf,
    /// `-exp(A_log)`, `[heads]`
    pub a: B::Buf,
    /// Factor of the input that skips the state `[heads]`.
    pub d: B::Buf,
    /// RMS norm of the gated output, of each group `[heads * dim / groups]` by itself: `len` is that of a group, the weight has all.
    pub norm: Option<Norm<B>>,
}

impl<B: Backend> Ssm<B> {
    /// The data that a layer keeps.
    pub fn cache(&self) -> LayerCache {
        LayerCache::State {
            conv: (self.taps - 1) * self.channels(),
            state: self.heads * self.dim * self.state,
            inputs: self.channels() + self.heads,
        }
    }

    /// Channels of the convolution: inputs, then `B` and `C` of all groups.
    pub fn channels(&self) -> usize {
        self.heads * self.dim + 2 * self.groups * self.state
    }
}

/// A gated short convolution (LFM2), after its input projection.
pub struct ShortConv<B: Backend> {
    /// Channels.
    pub width: usize,
    /// Taps, at most [`MAX_CONV`].
    pub taps: usize,
    /// `[taps, width]`; the last row multiplies the current token.
    pub conv: B::Buf,
}

/// Maximum number of taps of a convolution.
pub const MAX_CONV: usize = 8;

impl<B: Backend> Gdn<B> {
    /// The data that a layer keeps.
    pub fn cache(&self) -> LayerCache {
        LayerCache::State {
            conv: (self.conv_kernel - 1) * self.channels(),
            state: self.v_heads * self.k_dim * self.v_dim,
            inputs: self.channels() + self.v_heads + self.decays(),
        }
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.k_heads * self.k_dim + self.v_heads * self.v_dim
    }

    /// Decays of a token.
    pub fn decays(&self) -> usize {
        self.v_heads * if self.row_decay { self.k_dim } else { 1 }
    }

    /// Width of each buffer of queries, keys and values, where these are `buffers`: one with all channels, or three.
    pub fn widths(&self, buffers: usize) -> [usize; 3] {
        let keys = self.k_heads * self.k_dim;
        if buffers == 1 { [self.channels(), 0, 0] } else { [keys, keys, self.v_heads * self.v_dim] }
    }
}

impl<B: Backend> ShortConv<B> {
    /// The data that a layer keeps.
    pub fn cache(&self) -> LayerCache {
        LayerCache::State { conv: (self.taps - 1) * self.width, state: 0, inputs: self.width }
    }
}
