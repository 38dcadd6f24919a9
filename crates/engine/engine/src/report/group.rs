//! Assigns a tensor to a group by its name and layer.

use std::fmt;

use crate::models::config::Config;

/// A group of tensors that are read alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Routed experts: a token reads some of them.
    RoutedExperts,
    /// The shared expert, which each token reads.
    SharedExpert,
    /// The router's and the shared expert's gates.
    Router,
    /// The MLP of layers without experts.
    DenseMlp,
    /// Recurrent layers: projections, convolution, gates and their own norm.
    LinearAttention,
    /// Projections of softmax attention.
    FullAttention,
    /// All other norms.
    Norms,
    /// The embedding table: a token reads one row.
    Embedding,
    /// Embeddings of each layer (Gemma 3n, Gemma 4 E2B and E4B): a token reads one row.
    LayerEmbedding,
    /// What brings them into the layers.
    LayerInputs,
    /// What predicts and corrects residual streams beside that of the blocks, and low-rank branches (AltUp and LAuReL of Gemma 3n).
    Streams,
    /// The output head; if the file has none, the embedding table read as a whole.
    LmHead,
    /// The multi-token-prediction block; plain decoding does not read it.
    Mtp,
    /// Tensors that are read only while loading, or not at all.
    Other,
}

impl Group {
    /// All groups, in the order of reports.
    pub const ALL: [Self; 14] = [
        Self::Embedding,
        Self::LayerEmbedding,
        Self::LinearAttention,
        Self::FullAttention,
        Self::Router,
        Self::RoutedExperts,
        Self::SharedExpert,
        Self::DenseMlp,
        Self::LayerInputs,
        Self::Streams,
        Self::Norms,
        Self::LmHead,
        Self::Mtp,
        Self::Other,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::RoutedExperts => "routed experts",
            Self::SharedExpert => "shared expert",
            Self::Router => "router",
            Self::DenseMlp => "dense mlp",
            Self::LinearAttention => "linear attention",
            Self::FullAttention => "full attention",
            Self::Norms => "norms",
            Self::Embedding => "embedding",
            Self::LayerEmbedding => "layer embedding",
            Self::LayerInputs => "layer inputs",
            Self::Streams => "altup and laurel",
            Self::LmHead => "lm_head",
            Self::Mtp => "multi-token prediction",
            Self::Other => "other",
        }
    }

    /// The group of the tensor `name`.
    pub fn of(name: &str, config: &Config) -> Self {
        match name {
            "token_embd.weight" | "position_embd.weight" | "token_types.weight" => return Self::Embedding,
            "output.weight" | "output.bias" => return Self::LmHead,
            "output_norm.weight" | "token_embd_norm.weight" | "cls.norm.weight" => return Self::Norms,
            "per_layer_token_embd.weight" => return Self::LayerEmbedding,
            "per_layer_model_proj.weight" => return Self::LayerInputs,
            "per_layer_proj_norm.weight" => return Self::Norms,
            _ if name.starts_with("altup_") => return Self::Streams,
            _ if name.starts_with("cls.") || name.starts_with("dense_") => return Self::DenseMlp,
            _ => {}
        }
        let block = name.strip_prefix("blk.").and_then(|s| s.split_once('.'));
        let Some((layer, stem)) = block.and_then(|(i, stem)| Some((i.parse::<usize>().ok()?, stem))) else {
            return Self::Other;
        };
        let Some(&recurrent) = config.recurrent.get(layer) else {
            return Self::Mtp;
        };
        let is = |prefix: &str| stem.starts_with(prefix);
        if is("ffn_gate_inp") || is("exp_probs_b") {
            Self::Router
        } else if is("ffn_") && stem.contains("_shexp") {
            Self::SharedExpert
        } else if is("ffn_") && (stem.contains("_exps") || is_one_expert(stem)) {
            Self::RoutedExperts
        } else if recurrent && (is("ssm_") || is("shortconv") || is_delta(stem, config, layer)) {
            Self::LinearAttention
        } else if stem.contains("norm") {
            Self::Norms
        } else if is("attn_") {
            Self::FullAttention
        } else if is("ffn_gate.") || is("ffn_up.") || is("ffn_down.") {
            Self::DenseMlp
        } else if is("inp_gate.") || is("proj.") {
            Self::LayerInputs
        } else if is("altup_") || is("laurel_") {
            Self::Streams
        } else {
            Self::Other
        }
    }
}

/// Projections of Gated DeltaNet are called as those of attention, in layers without it.
fn is_delta(stem: &str, config: &Config, layer: usize) -> bool {
    stem.starts_with("attn_") && !stem.starts_with("attn_norm") && config.kv_heads()[layer] == 0
}

/// `ffn_gate.17.weight`: older files have one tensor per expert.
fn is_one_expert(stem: &str) -> bool {
    stem.split('.').nth(1).is_some_and(|s| s.bytes().all(|b| b.is_ascii_digit()))
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
