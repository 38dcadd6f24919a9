//! Descriptions of softmax attention.

use super::{Backend, LayerCache, Norm, PageGroup};

/// How rotary position embedding pairs up the dimensions of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopePairing {
    /// Pairs `(j, j + dims/2)`: GPT-NeoX style, all Hugging Face checkpoints and qwen GGUFs.
    Half,
    /// Pairs `(2j, 2j + 1)`: GGUF files of architecture `llama`.
    Adjacent,
}

/// The positions that a token attends to: none after its own, unless it sees them in both directions ([`crate::Batch::see`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Window {
    /// All.
    All,
    /// Its own and those before it, this many together.
    Last(usize),
    /// Those from the last multiple of this number on (Llama 4).
    Chunk(usize),
    /// Of those that it sees in both directions, the ones at most this far away (encoders).
    Around(usize),
}

impl Window {
    /// Whether positions are never attended to again once it has moved on.
    pub fn slides(self) -> bool {
        matches!(self, Self::Last(_) | Self::Chunk(_))
    }

    /// The first position that a token at `position` attends to.
    pub fn first(self, position: usize) -> usize {
        match self {
            Self::All => 0,
            Self::Last(n) => (position + 1).saturating_sub(n),
            Self::Chunk(n) => position - position % n,
            Self::Around(n) => position.saturating_sub(n),
        }
    }

    /// The positions that a token at `position` attends to, if it sees `first..end` in both directions: at least its own.
    pub fn seen(self, position: usize, [first, end]: [usize; 2]) -> std::ops::Range<usize> {
        match self {
            Self::Around(n) => self.first(position).max(first)..end.min(position + n + 1),
            _ => self.first(position).min(first)..end,
        }
    }
}

/// Rotary position embedding of one layer.
pub struct Rope<B: Backend> {
    /// The first rotated dimension of each head.
    pub at: usize,
    /// Number of rotated dimensions (even).
    pub dims: usize,
    /// How dimensions are paired.
    pub pairing: RopePairing,
    /// Inverse frequency of each pair `[dims / 2]`, radians per position.
    pub inv_freq: B::Buf,
    /// Factor of sines and cosines: YaRN's attention factor; 1 for all others.
    pub scale: f32,
    /// Pairs that turn by different coordinates of a token; `None`: all by its position.
    pub axes: Option<Axes>,
}

/// A rotation by several coordinates, for tokens that have some ([`crate::Batch::turn`]); for the others it is the usual one.
#[derive(Debug, Clone, PartialEq)]
pub struct Axes {
    /// The coordinate that each pair turns by `[dims / 2]`: 0 time, 1 row, 2 column.
    pub of_pair: Vec<u8>,
    /// The rotated dimensions are this many equal parts, each of which is paired within itself.
    pub parts: usize,
}

/// Softmax attention of one layer. `q`, `k`, `v` come from their projections un-normalised and un-rotated.
pub struct Attention<B: Backend> {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; query head `h` uses `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Dimensions of a query or key head.
    pub k_dim: usize,
    /// Dimensions of a value head.
    pub v_dim: usize,
    /// Values are the first `v_dim` dimensions of the keys, and are not stored (multi-head latent attention).
    pub values_in_keys: bool,
    /// Factor of the scores: usually `k_dim^-0.5`.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// A score of each query head `[heads]` that takes part in the softmax, with a value of zero.
    pub sinks: Option<B::Buf>,
    /// Each query head's projection is `[q (k_dim) | gate (k_dim)]`, and the output is multiplied by `sigmoid(gate)`.
    pub gated: bool,
    /// Norms of queries, keys and values: of each head `[dim]`, of all heads of a token together `[heads * dim]` (not where `gated`), or of
    /// the first `len` dimensions of each head.
    pub norms: [Option<Norm<B>>; 3],
    /// Queries and keys are normalised after the rotation instead of before it.
    pub norm_last: bool,
    /// The rotation, if the layer has one.
    pub rope: Option<Rope<B>>,
    /// The positions that are attended to.
    pub window: Window,
    /// Tokens of a block ([`crate::Batch::see`]) attend to all of it, too: also to positions after their own.
    pub two_way: bool,
    /// `[a, n, first]`: queries are multiplied by `1 + a ln(1 + floor((position + first) / n))`.
    pub position_scale: Option<[f32; 3]>,
    /// Factor of the values.
    pub value_scale: f32,
}

impl<B: Backend> Attention<B> {
    /// Scaled dot-product attention over all positions, without norms and rotation.
    pub fn plain(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self {
            heads,
            kv_heads,
            k_dim: head_dim,
            v_dim: head_dim,
            values_in_keys: false,
            scale: 1.0 / (head_dim as f32).sqrt(),
            softcap: None,
            sinks: None,
            gated: false,
            norms: [None, None, None],
            norm_last: false,
            rope: None,
            window: Window::All,
            two_way: false,
            position_scale: None,
            value_scale: 1.0,
        }
    }

    /// The cache of a layer with such keys and values.
    pub fn cache(&self) -> LayerCache {
        let v_dim = if self.values_in_keys { 0 } else { self.v_dim };
        LayerCache::Kv { kv_heads: self.kv_heads, k_dim: self.k_dim, v_dim, group: PageGroup::All }
    }
}
