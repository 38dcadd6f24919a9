//! What checkpoints are: their architectures, and where translated metadata go.

use super::families::{self, Family};
use crate::{Metadata, Value};

/// Far above any model; keeps per-layer lists small.
pub(super) const LAYERS_MAX: u32 = 1 << 12;

/// Architectures that can be translated.
#[derive(Debug, Clone, Copy)]
pub(super) enum Arch {
    Qwen35Moe,
    Qwen35,
    Qwen3Moe,
    Qwen3,
    Qwen2,
    /// Qwen1.5 and 2 with experts.
    Qwen2Moe,
    Olmoe,
    /// Llama and Mistral.
    Llama,
    /// In GGUF a llama with experts.
    Mixtral,
    /// One of `families`.
    Other(&'static Family),
}

const MODEL_TYPES: &[(&str, Arch)] = &[
    ("qwen3_5_moe", Arch::Qwen35Moe),
    ("qwen3_5_moe_text", Arch::Qwen35Moe),
    ("qwen3_5", Arch::Qwen35),
    ("qwen3_5_text", Arch::Qwen35),
    ("qwen3_moe", Arch::Qwen3Moe),
    ("qwen3", Arch::Qwen3),
    ("qwen2", Arch::Qwen2),
    ("qwen2_moe", Arch::Qwen2Moe),
    ("olmoe", Arch::Olmoe),
    ("llama", Arch::Llama),
    ("mistral", Arch::Llama),
    ("smolvlm", Arch::Llama),
    ("idefics3", Arch::Llama),
    ("mixtral", Arch::Mixtral),
];

impl Arch {
    /// The architecture of a `model_type`, if it is known; of an encoder, if there are both and the configuration says so.
    pub fn of(model_type: &str, both_ways: bool) -> Option<Self> {
        let known = MODEL_TYPES.iter().find(|(name, _)| *name == model_type).map(|(_, arch)| *arch);
        known.or_else(|| families::find(model_type, both_ways).map(Self::Other))
    }

    /// `general.architecture`.
    pub fn gguf_name(self) -> &'static str {
        match self {
            Self::Qwen35Moe => "qwen35moe",
            Self::Qwen35 => "qwen35",
            Self::Qwen3Moe => "qwen3moe",
            Self::Qwen3 => "qwen3",
            Self::Qwen2 => "qwen2",
            Self::Qwen2Moe => "qwen2moe",
            Self::Olmoe => "olmoe",
            Self::Llama | Self::Mixtral => "llama",
            Self::Other(family) => family.gguf,
        }
    }

    /// Has Gated DeltaNet layers, gated attention and norms stored around zero.
    pub fn is_qwen35(self) -> bool {
        matches!(self, Self::Qwen35Moe | Self::Qwen35)
    }
}

/// The values of `model_type` that are read, each with its `general.architecture`.
pub fn model_types() -> Vec<(&'static str, &'static str)> {
    MODEL_TYPES.iter().map(|(name, arch)| (*name, arch.gguf_name())).chain(families::types()).collect()
}

/// Factors of the rows of a matrix of each layer, by the end of its name: of so many rows each, the last one of all others.
pub(super) type RowFactors = (&'static str, Vec<(usize, f64)>);

/// What the translation of tensor names needs to know.
pub(super) struct Layout {
    pub arch: Arch,
    /// Decoder layers.
    pub trunk: usize,
    /// Multi-token-prediction layers after them.
    pub mtp: usize,
    /// Numbers of further layers for multi-token prediction among the decoder's, by what they have besides.
    pub guessing: Vec<usize>,
    /// Whether the output head is the embedding table, where the file says so.
    pub tied: Option<bool>,
    /// MLX's form: norms that are stored around zero elsewhere have 1 added.
    pub mlx: bool,
    /// The model ranks texts: its classifier is used.
    pub ranks: bool,
    /// Factors of the rows of layers' matrices.
    pub factors: Vec<RowFactors>,
    /// The row of a text's first position in the table of positions; those before are not used.
    pub first_position: usize,
}

/// Metadata below the architecture's prefix.
pub(super) struct Keys<'a> {
    pub metadata: &'a mut Metadata,
    /// The architecture's name in GGUF.
    pub prefix: &'static str,
}

impl Keys<'_> {
    pub fn put(&mut self, key: &str, value: Value) {
        self.metadata.insert(&format!("{}.{key}", self.prefix), value);
    }
    pub fn put_u32(&mut self, key: &str, value: u32) {
        self.put(key, Value::U64(value.into()));
    }
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(&format!("{}.{key}", self.prefix))
    }
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        self.metadata.remove(&format!("{}.{key}", self.prefix))
    }
}
