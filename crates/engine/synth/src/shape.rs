//! The dimensions of a model, which determine its tensors. Made by `known` and by tests.

use std::sync::Arc;

use crate::Error;
use crate::listing::Listing;

/// Most layers that a made-up model may have.
const MAX_LAYERS: usize = 512;

/// Dimensions of a model. Field names are those of `config.json` where it has them, shortened.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// The model's name.
    pub name: String,
    /// `general.architecture` of its GGUF files.
    pub architecture: &'static str,
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding table.
    pub vocab: usize,
    /// Tokens that the tokenizer knows; rows past them are padding.
    pub real_vocab: usize,
    /// Maximum context.
    pub context: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// Rotated dimensions of a head.
    pub rope_dims: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Scaling of low rotary frequencies.
    pub rope_scaling: Option<RopeScaling>,
    /// Epsilon of the RMS norms.
    pub eps: f32,
    /// Intermediate size of the dense MLP (with experts: of no tensor, but some files state it).
    pub intermediate: usize,
    /// Mixture of experts in every layer.
    pub moe: Option<MoeShape>,
    /// Gated DeltaNet in all layers but each `interval`-th.
    pub gdn: Option<GdnShape>,
    /// The output head is the embedding table.
    pub tied: bool,
    /// Query, key and value projections have biases.
    pub qkv_bias: bool,
    /// One multi-token-prediction block after the layers.
    pub mtp: bool,
    /// The model's keys and tensors, where the numbers above don't describe it: of them only the widths of the stream and the table, the
    /// layers and `tied` count then.
    pub listing: Option<Arc<Listing>>,
}

/// Mixture-of-experts dimensions.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct MoeShape {
    pub experts: usize,
    /// Experts that a token is routed to.
    pub top_k: usize,
    pub intermediate: usize,
    /// 0 without a shared expert.
    pub shared_intermediate: usize,
}

/// Gated DeltaNet dimensions; key and value heads are equally wide.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct GdnShape {
    pub k_heads: usize,
    pub v_heads: usize,
    pub head_dim: usize,
    pub conv_kernel: usize,
    /// Each `interval`-th layer is full attention.
    pub interval: usize,
}

/// Llama 3.1's frequency scaling (`rope_type: llama3`).
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct RopeScaling {
    pub factor: f32,
    pub low_freq_factor: f32,
    pub high_freq_factor: f32,
    pub original_context: f32,
}

impl Shape {
    /// The same model with another number of layers.
    pub fn with_layers(&self, layers: usize) -> Result<Self, Error> {
        if layers == 0 || layers > MAX_LAYERS {
            return Err(Error::Layers { name: self.name.clone(), layers, max: MAX_LAYERS });
        }
        let gdn = self.gdn.map(|g| GdnShape { interval: g.interval.min(layers.max(2)), ..g });
        Ok(Self { layers, gdn, ..self.clone() })
    }

    /// The same model with a block for multi-token prediction; fails where its architecture has none.
    pub fn with_mtp(&self) -> Result<Self, Error> {
        if !self.is_hybrid() {
            return Err(Error::NoMtp { name: self.name.clone() });
        }
        Ok(Self { mtp: true, ..self.clone() })
    }

    /// True when layer `i` is Gated DeltaNet; the multi-token-prediction block, `i == layers`, never is.
    pub fn is_recurrent(&self, i: usize) -> bool {
        i < self.layers && self.gdn.is_some_and(|g| !(i + 1).is_multiple_of(g.interval))
    }

    /// Qwen3 and later normalise queries and keys, as OLMoE does.
    pub(crate) fn qk_norm(&self) -> bool {
        self.architecture.starts_with("qwen3") || self.is_olmoe()
    }

    /// OLMoE normalises all heads together.
    pub(crate) fn is_olmoe(&self) -> bool {
        self.architecture == "olmoe"
    }

    /// Qwen3.5 and later: attention with an output gate, Gated DeltaNet in the other layers.
    pub(crate) fn is_hybrid(&self) -> bool {
        self.gdn.is_some()
    }

    /// Blocks in the file: layers and the multi-token-prediction block.
    pub(crate) fn blocks(&self) -> usize {
        self.layers + usize::from(self.mtp)
    }
}
