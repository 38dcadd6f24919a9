//! What tells one architecture from another: a row for each, read by `Config::read` and the loader. The forward pass is
//! the same for all (`decoder`).

use octet_compute::backend::RopePairing;

use crate::Error;

/// One architecture, in terms of what `decoder` can compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Architecture {
    /// As `general.architecture` has it.
    pub name: &'static str,
    /// How GGUF files of it pair dimensions up for the rotary embedding (checkpoints say theirs).
    pub rope_pairing: RopePairing,
    /// Attention's output is multiplied by a gate, which the query projection computes too.
    pub output_gate: bool,
    /// How queries and keys are normalised.
    pub qk_norm: QkNorm,
    /// Most layers are Gated DeltaNet; the file says which.
    pub gated_deltanet: bool,
    /// What files call the norm before the feed-forward part.
    pub feed_forward_norm: &'static str,
    /// A multi-token-prediction block may follow the layers.
    pub mtp: bool,
    /// Experts' probabilities are divided by the sum of the chosen ones, where the file does not say.
    pub norm_top_k: bool,
}

/// What the RMS norm of queries and keys goes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// There is none.
    None,
    /// Each head by itself.
    Head,
    /// All heads of a token together.
    Whole,
}

/// Llama and its kin: SmolLM2, Llama 3, Mistral; and Mixtral, which is the same with experts.
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
/// Llama with biases on the query, key and value projections: the loader takes any bias that a file has.
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

/// Every architecture that can be run. Whether the feed-forward part is dense, experts, or experts and a shared one
/// follows from a file's metadata.
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

/// The architecture that a model file names, if it can be run.
pub fn architecture(model: &octet_weights::Model) -> Result<&'static Architecture, Error> {
    let name = model.metadata.str("general.architecture")?;
    ARCHITECTURES.iter().find(|a| a.name == name).ok_or_else(|| Error::UnknownArchitecture {
        file: model.origin.clone(),
        name: name.to_string(),
        known: ARCHITECTURES.map(|a| a.name).join(", "),
    })
}
