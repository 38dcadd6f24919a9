//! The differences between architectures: one row each, read by `Config::read` and the loader. The forward pass is the same for all
//! (`decoder`).

use octet_compute::backend::RopePairing;

use crate::Error;

/// An architecture, in terms of what `decoder` can compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Architecture {
    /// The value of `general.architecture`.
    pub name: &'static str,
    /// How its GGUF files pair dimensions for the rotary embedding (checkpoints state theirs).
    pub rope_pairing: RopePairing,
    /// Attention's output is multiplied by a gate, computed by the query projection.
    pub output_gate: bool,
    /// Normalisation of queries and keys.
    pub qk_norm: QkNorm,
    /// Most layers are Gated DeltaNet; the file says which.
    pub gated_deltanet: bool,
    /// The name of the norm before the feed-forward part.
    pub feed_forward_norm: &'static str,
    /// The file may have a multi-token-prediction block after the layers.
    pub mtp: bool,
    /// Default for dividing experts' probabilities by the sum of the chosen ones.
    pub norm_top_k: bool,
}

/// The range of the RMS norm of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// No norm.
    None,
    /// Each head separately.
    Head,
    /// All heads of a token together.
    Whole,
}

/// Llama and relatives: SmolLM2, Llama 3, Mistral; also Mixtral, which adds experts.
const LLAMA: Architecture = Architecture {
    name: "llama",
    rope_pairing: RopePairing::Adjacent,
    output_gate: false,
    qk_norm: QkNorm::None,
    gated_deltanet: false,
    feed_forward_norm: "ffn_norm",
    mtp: false,
    norm_top_k: true,
};
/// Llama with biases on the query, key and value projections: the loader accepts any bias in a file.
const QWEN2: Architecture = Architecture { name: "qwen2", rope_pairing: RopePairing::Half, ..LLAMA };
/// With query and key norms, and without the biases.
const QWEN3: Architecture = Architecture { name: "qwen3", qk_norm: QkNorm::Head, ..QWEN2 };
/// Qwen3.5 and 3.6, dense.
const QWEN35: Architecture = Architecture {
    name: "qwen35",
    output_gate: true,
    gated_deltanet: true,
    feed_forward_norm: "post_attention_norm",
    mtp: true,
    ..QWEN3
};

/// All supported architectures. Whether the feed-forward part is dense, experts, or experts with a shared one follows from a file's
/// metadata.
pub static ARCHITECTURES: [Architecture; 8] = [
    Architecture { name: "qwen35moe", ..QWEN35 },
    QWEN35,
    Architecture { name: "qwen3moe", ..QWEN3 },
    QWEN3,
    // Qwen1.5 and 2 with experts.
    Architecture { name: "qwen2moe", norm_top_k: false, ..QWEN2 },
    QWEN2,
    Architecture {
        name: "olmoe",
        rope_pairing: RopePairing::Half,
        qk_norm: QkNorm::Whole,
        norm_top_k: false,
        ..LLAMA
    },
    LLAMA,
];

/// The architecture that a model file names, if it is supported.
pub fn architecture(model: &octet_weights::Model) -> Result<&'static Architecture, Error> {
    let name = model.metadata.str("general.architecture")?;
    ARCHITECTURES.iter().find(|a| a.name == name).ok_or_else(|| Error::UnknownArchitecture {
        file: model.origin.clone(),
        name: name.to_string(),
        known: ARCHITECTURES.map(|a| a.name).join(", "),
    })
}
