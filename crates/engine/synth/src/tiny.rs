//! Models small enough for tests, one for each architecture.

use crate::{Error, GdnShape, Mix, MoeShape, Shape, known};

/// Architectures that [`tiny`] knows.
pub const TINY_ARCHITECTURES: &[&str] =
    &["qwen35moe", "qwen35", "qwen3moe", "qwen3", "qwen2", "qwen2moe", "olmoe", "llama", "mixtral"];

/// A model of one to eleven million random weights, the same every time. Its rows are multiples of 256, so every mix
/// fits.
///
/// `qwen35moe` and `qwen35` have four layers, the last of them full attention, and a multi-token-prediction block;
/// `qwen35moe` has 600 rows for 577 tokens, and the head of `qwen35` and of `llama` is the embedding table. `mixtral`
/// is `llama` with experts.
pub fn tiny(architecture: &str, mix: Mix) -> Result<octet_weights::Model, Error> {
    crate::synthetic(&tiny_shape(architecture)?, mix, None, 0)
}

/// The shape of [`tiny`], to be varied.
pub fn tiny_shape(architecture: &str) -> Result<Shape, Error> {
    let like = |name: &str| known::shape(name).map(shrink);
    let moe = |experts, top_k, shared_intermediate| {
        Some(MoeShape { experts, top_k, intermediate: 256, shared_intermediate })
    };
    let shape = match architecture {
        "qwen35moe" => Shape { vocab: 600, moe: moe(8, 3, 256), mtp: true, ..like("qwen3.6-35b-a3b")? },
        "qwen35" => Shape { tied: true, mtp: true, ..like("qwen3.6-27b")? },
        "qwen3moe" => Shape { moe: moe(8, 2, 0), ..like("qwen3-30b-a3b")? },
        "qwen3" => like("qwen3-8b")?,
        "qwen2" => like("qwen2.5-7b")?,
        "qwen2moe" => {
            Shape { architecture: "qwen2moe", intermediate: 0, moe: moe(8, 3, 256), ..like("qwen2.5-7b")? }
        }
        // As many key and value heads as query heads.
        "olmoe" => Shape {
            architecture: "olmoe",
            kv_heads: 4,
            intermediate: 0,
            rope_scaling: None,
            moe: moe(8, 3, 0),
            ..like("llama-3.2-1b")?
        },
        "llama" => like("llama-3.2-1b")?,
        "mixtral" => Shape { moe: moe(4, 2, 0), ..like("mixtral-8x7b")? },
        _ => return Err(Error::UnknownArchitecture { name: architecture.to_string() }),
    };
    Ok(Shape { name: format!("tiny-{architecture}"), ..shape })
}

/// Fewer and smaller, but of the same kind.
fn shrink(s: Shape) -> Shape {
    let layers = if s.gdn.is_some() { 4 } else { 2 };
    Shape {
        layers,
        hidden: 256,
        vocab: 577,
        real_vocab: 577,
        context: 4096,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        // a quarter or all of a head, as in the large ones
        rope_dims: if s.rope_dims < s.head_dim { 16 } else { 64 },
        intermediate: if s.intermediate > 0 { 256 } else { 0 },
        // as many value heads for each key head
        gdn: s.gdn.map(|g| {
            let k_heads = 2;
            GdnShape { k_heads, v_heads: g.v_heads / g.k_heads * k_heads, head_dim: 64, ..g }
        }),
        ..s
    }
}
