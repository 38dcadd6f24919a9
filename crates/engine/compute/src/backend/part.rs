//! Names of parts that not every backend has.

/// Parts of models that not every backend has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Part {
    Encoder,
    Windows,
    SoftCaps,
    Sinks,
    HeadSizes,
    LatentAttention,
    AttentionScale,
    ValueNorm,
    SharedKeys,
    NormAfterRotation,
    PositionScale,
    RopeByLayer,
    NoRotation,
    PrefixNorm,
    LayerNorm,
    PostNorm,
    ParallelBranches,
    Scales,
    Activation,
    RouterScores,
    ExpertBias,
    UngatedSharedExpert,
    OutputGate,
    PerLayerEmbedding,
    RowDecay,
    Mamba2,
    ShortConvolution,
    Images,
    ImagesTogether,
    Bounds,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Windows => "sliding windows",
            Self::SoftCaps => "soft-capped scores",
            Self::Sinks => "attention sinks",
            Self::HeadSizes => "value heads of another size than key heads",
            Self::LatentAttention => "multi-head latent attention",
            Self::AttentionScale => "a scale of attention scores",
            Self::ValueNorm => "norms of values",
            Self::SharedKeys => "keys shared by layers",
            Self::NormAfterRotation => "norms after the rotation",
            Self::PositionScale => "queries scaled by position",
            Self::RopeByLayer => "rotations that differ by layer",
            Self::NoRotation => "layers without rotation",
            Self::PrefixNorm => "norms of a part of a head",
            Self::LayerNorm => "LayerNorm",
            Self::PostNorm => "norms after a block",
            Self::ParallelBranches => "blocks side by side",
            Self::Scales => "scales of embeddings, blocks or logits",
            Self::Activation => "activations other than SiLU",
            Self::RouterScores => "this kind of router",
            Self::ExpertBias => "biases of experts",
            Self::UngatedSharedExpert => "shared experts without a gate",
            Self::OutputGate => "gates of attention with a projection of their own",
            Self::PerLayerEmbedding => "embeddings of each layer",
            Self::RowDecay => "Kimi Delta Attention",
            Self::Mamba2 => "Mamba-2 layers",
            Self::ShortConvolution => "short convolutions",
            Self::Images => "images",
            Self::ImagesTogether => "images whose tokens see each other in both directions",
            Self::Bounds => "bounded projections",
            Self::Encoder => "encoders (attention in both directions)",
        })
    }
}
