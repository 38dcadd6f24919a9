//! Shapes of published models, from their config.json.

use std::sync::Arc;

use crate::listing::{self, Gemma, Listing};
use crate::{Error, GdnShape, MoeShape, RopeScaling, Shape};

/// The names that [`shape`] knows, one for each shape and alias.
pub fn names() -> Vec<&'static str> {
    NAMES.iter().flat_map(|(names, _)| names.iter().copied()).collect()
}

/// The shape of a published model, by name in any case: `qwen3.6-35b-a3b`; `:` counts as `-`.
pub fn shape(name: &str) -> Result<Shape, Error> {
    let wanted = name.to_ascii_lowercase().replace([':', '_'], "-");
    NAMES
        .iter()
        .find_map(|(names, make)| {
            let found = names.iter().find(|n| **n == wanted)?;
            Some(Shape { name: found.to_string(), ..make() })
        })
        .ok_or_else(|| Error::UnknownShape { name: name.to_string() })
}

/// Names of one shape, and the shape.
type Entry = (&'static [&'static str], fn() -> Shape);

/// Llama 3.2's tables stretch four times as far as 3.1's.
const LLAMA_3_1_FACTOR: f32 = 8.0;
const LLAMA_3_2_FACTOR: f32 = 32.0;

#[rustfmt::skip] // a table
const NAMES: &[Entry] = &[
    // hidden, layers, (heads, kv_heads), DeltaNet value heads, experts or MLP
    (&["qwen3.6-35b-a3b", "qwen3.5-35b-a3b"],
                             || qwen35(2048, 40, (16, 2), 32, experts(256, 8, 512, 512))),
    (&["qwen3.5-122b-a10b"], || qwen35(3072, 48, (32, 2), 64, experts(256, 8, 1024, 1024))),
    (&["qwen3.5-397b-a17b"], || qwen35(4096, 60, (32, 2), 64, experts(512, 10, 1024, 1024))),
    (&["qwen3.6-27b", "qwen3.5-27b"],
                             || qwen35(5120, 64, (24, 4), 48, Ffn::Dense(17408))),
    (&["qwen3.5-9b"],        || qwen35(4096, 32, (16, 4), 32, Ffn::Dense(12288))),
    (&["qwen3.5-4b"],        || tied(qwen35(2560, 32, (16, 4), 32, Ffn::Dense(9216)))),
    (&["qwen3.5-2b"],        || tied(qwen35(2048, 24, (8, 2), 16, Ffn::Dense(6144)))),
    (&["qwen3.5-0.8b"],      || tied(qwen35(1024, 24, (8, 2), 16, Ffn::Dense(3584)))),
    // The original releases; those of July 2025 differ in context and theta only.
    (&["qwen3-30b-a3b"],     || Shape { intermediate: 6144, ..qwen3(2048, 48, (32, 4), experts(128, 8, 768, 0)) }),
    (&["qwen3-8b"],          || qwen3(4096, 36, (32, 8), Ffn::Dense(12288))),
    (&["qwen3-4b"],          || tied(qwen3(2560, 36, (32, 8), Ffn::Dense(9728)))),
    (&["qwen3-0.6b"],        || tied(qwen3(1024, 28, (16, 8), Ffn::Dense(3072)))),
    (&["qwen3-vl-30b-a3b"],  || qwen3_vl("qwen3vlmoe", Shape { intermediate: 6144, ..qwen3(2048, 48, (32, 4), experts(128, 8, 768, 0)) })),
    (&["qwen3-vl-8b"],       || qwen3_vl("qwen3vl", qwen3(4096, 36, (32, 8), Ffn::Dense(12288)))),
    (&["ministral3-3b"],     || tied(ministral3(3072, 26, 9216))),
    (&["ministral3-8b"],     || ministral3(4096, 34, 14336)),
    (&["ministral3-14b"],    || ministral3(5120, 40, 16384)),
    (&["qwen2.5-7b"],        qwen2_5_7b),
    (&["llama-3.1-8b"],      || llama3(4096, 32, 128, 14336, LLAMA_3_1_FACTOR)),
    (&["llama-3.2-3b", "llama3.2-3b"], || tied(Shape { heads: 24, ..llama3(3072, 28, 128, 8192, LLAMA_3_2_FACTOR) })),
    (&["llama-3.2-1b", "llama3.2-1b"], || tied(llama3(2048, 16, 64, 8192, LLAMA_3_2_FACTOR))),
    (&["smollm2-135m"],      smollm2_135m),
    (&["mixtral-8x7b"],      mixtral_8x7b),
    // hidden, layers, rows of the table
    (&["gpt-oss-20b"],       || listed("gpt-oss", listing::gpt_oss(32), 2880, 24, 201_088)),
    (&["gpt-oss-120b"],      || listed("gpt-oss", listing::gpt_oss(128), 2880, 36, 201_088)),
    (&["gemma4-26b-a4b"],    || gemma4(30, Gemma { hidden: 2816, heads: 16, kv_heads: [8, 2], head_dims: [256, 512], inner: 2112, experts: Some((128, 704)) })),
    (&["gemma4-31b"],        || gemma4(60, Gemma { hidden: 5376, heads: 32, kv_heads: [16, 4], head_dims: [256, 512], inner: 21504, experts: None })),
    (&["gemma4-e2b"],        || gemma4_small(35, 15, 12288, 5, Gemma { hidden: 1536, heads: 8, kv_heads: [1; 2], head_dims: [256, 512], inner: 6144, experts: None })),
    (&["gemma4-e4b"],        || gemma4_small(42, 24, 10240, 6, Gemma { hidden: 2560, heads: 8, kv_heads: [2; 2], head_dims: [256, 512], inner: 10240, experts: None })),
    (&["gemma3n-e2b"],       || gemma3n(30, 8192)),
    (&["gemma3n-e4b"],       || gemma3n(35, 16_384)),
    (&["gemma3-4b"],         || gemma3(34, 2560, (8, 4), 256, 10240)),
    (&["gemma3-12b"],        || gemma3(48, 3840, (16, 8), 256, 15360)),
    (&["gemma3-27b"],        || gemma3(62, 5376, (32, 16), 128, 21504)),
    (&["glm-4.7-flash", "glm-4.7-flash-30b-a3b"],
                             || listed("deepseek2", listing::glm_4_7_flash(), 2048, 47, 154_880)),
    (&["qwen3-next-80b-a3b", "qwen3-coder-next", "qwen3-coder-next-80b-a3b"],
                             || listed("qwen3next", listing::qwen3_next(), 2048, 48, 151_936)),
    (&["laguna-xs", "laguna-xs-2.1"], || listed("laguna", listing::laguna_xs(), 2048, 40, 100_352)),
    (&["phi-3.5-moe"],       || listed("phimoe", listing::phi_3_5_moe(), 4096, 32, 32_064)),
    (&["step-3.5-flash"],    || listed("step35", listing::step_3_5_flash(), 4096, 45, 128_896)),
    (&["kimi-linear-48b-a3b"], || listed("kimi-linear", listing::kimi_linear(), 2304, 27, 163_840)),
];

/// What follows attention in every layer.
enum Ffn {
    Dense(usize),
    Experts(MoeShape),
}

fn experts(experts: usize, top_k: usize, intermediate: usize, shared_intermediate: usize) -> Ffn {
    Ffn::Experts(MoeShape { experts, top_k, intermediate, shared_intermediate })
}

fn tied(shape: Shape) -> Shape {
    Shape { tied: true, ..shape }
}

/// What the table's lines have in common: full rotary embedding, nothing optional.
fn plain(
    architecture: &'static str,
    hidden: usize,
    layers: usize,
    (heads, kv_heads): (usize, usize),
    ffn: Ffn,
) -> Shape {
    let (intermediate, moe) = match ffn {
        Ffn::Dense(n) => (n, None),
        Ffn::Experts(moe) => (0, Some(moe)),
    };
    Shape {
        name: String::new(),
        architecture,
        layers,
        hidden,
        vocab: 0,
        real_vocab: 0,
        context: 0,
        heads,
        kv_heads,
        head_dim: 128,
        rope_dims: 128,
        rope_theta: 1e6,
        rope_scaling: None,
        eps: 1e-6,
        intermediate,
        moe,
        gdn: None,
        tied: false,
        qkv_bias: false,
        mtp: false,
        listing: None,
    }
}

fn listed(architecture: &'static str, listing: Listing, hidden: usize, layers: usize, vocab: usize) -> Shape {
    let shape = plain(architecture, hidden, layers, (0, 0), Ffn::Dense(0));
    Shape { vocab, real_vocab: vocab, listing: Some(Arc::new(listing)), ..shape }
}

fn gemma4(layers: usize, g: Gemma) -> Shape {
    tied(listed("gemma4", listing::gemma4(&g), g.hidden, layers, 262_144))
}

/// With `own` layers that have keys and values; the others' feed-forward blocks are `inner` wide.
fn gemma4_small(layers: usize, own: usize, inner: usize, every: usize, g: Gemma) -> Shape {
    tied(listed("gemma4", listing::gemma4_small(&g, own, inner, every), g.hidden, layers, 262_144))
}

fn gemma3n(layers: usize, inner: usize) -> Shape {
    tied(listed("gemma3n", listing::gemma3n(inner), 2048, layers, 262_144))
}

fn gemma3(layers: usize, hidden: usize, (heads, kv): (usize, usize), head_dim: usize, inner: usize) -> Shape {
    let g = Gemma { hidden, heads, kv_heads: [kv; 2], head_dims: [head_dim; 2], inner, experts: None };
    tied(listed("gemma3", listing::gemma3(&g), hidden, layers, 262_144))
}

fn qwen35(hidden: usize, layers: usize, heads: (usize, usize), v_heads: usize, ffn: Ffn) -> Shape {
    let architecture = if matches!(ffn, Ffn::Experts(_)) { "qwen35moe" } else { "qwen35" };
    Shape {
        vocab: 248_320,
        real_vocab: 248_077,
        context: 262_144,
        head_dim: 256,
        rope_dims: 64,
        rope_theta: 1e7,
        gdn: Some(GdnShape { k_heads: 16, v_heads, head_dim: 128, conv_kernel: 4, interval: 4 }),
        ..plain(architecture, hidden, layers, heads, ffn)
    }
}

fn qwen3(hidden: usize, layers: usize, heads: (usize, usize), ffn: Ffn) -> Shape {
    let architecture = if matches!(ffn, Ffn::Experts(_)) { "qwen3moe" } else { "qwen3" };
    Shape {
        vocab: 151_936,
        real_vocab: 151_669,
        context: 40_960,
        ..plain(architecture, hidden, layers, heads, ffn)
    }
}

/// Qwen3's text models with longer contexts.
fn qwen3_vl(architecture: &'static str, shape: Shape) -> Shape {
    Shape { architecture, context: 262_144, rope_theta: 5e6, ..shape }
}

fn ministral3(hidden: usize, layers: usize, intermediate: usize) -> Shape {
    Shape {
        vocab: 131_072,
        real_vocab: 131_072,
        context: 262_144,
        eps: 1e-5,
        ..plain("mistral3", hidden, layers, (32, 8), Ffn::Dense(intermediate))
    }
}

fn qwen2_5_7b() -> Shape {
    Shape {
        vocab: 152_064,
        real_vocab: 151_665,
        context: 32_768,
        qkv_bias: true,
        ..plain("qwen2", 3584, 28, (28, 4), Ffn::Dense(18944))
    }
}

fn llama3(hidden: usize, layers: usize, head_dim: usize, intermediate: usize, factor: f32) -> Shape {
    Shape {
        vocab: 128_256,
        real_vocab: 128_256,
        context: 131_072,
        head_dim,
        rope_dims: head_dim,
        rope_theta: 500_000.0,
        rope_scaling: Some(RopeScaling {
            factor,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192.0,
        }),
        eps: 1e-5,
        ..plain("llama", hidden, layers, (32, 8), Ffn::Dense(intermediate))
    }
}

fn smollm2_135m() -> Shape {
    Shape {
        vocab: 49_152,
        real_vocab: 49_152,
        context: 8192,
        head_dim: 64,
        rope_dims: 64,
        rope_theta: 100_000.0,
        eps: 1e-5,
        tied: true,
        ..plain("llama", 576, 30, (9, 3), Ffn::Dense(1536))
    }
}

fn mixtral_8x7b() -> Shape {
    Shape {
        vocab: 32_000,
        real_vocab: 32_000,
        context: 32_768,
        eps: 1e-5,
        intermediate: 14336,
        ..plain("llama", 4096, 32, (32, 8), experts(8, 2, 14336, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mix;
    use crate::plan::plan;

    fn parameters(name: &str) -> usize {
        plan(&shape(name).unwrap(), Mix::Of(octet_weights::GgmlType::BF16)).iter().map(|p| p.info.len()).sum()
    }

    /// Published parameter counts of the language models (a tied head counts once).
    #[test]
    fn parameters_are_those_of_the_published_models() {
        for (name, want) in [
            ("qwen3-30b-a3b", 30_532_122_624),
            ("qwen3-0.6b", 596_049_920),
            ("qwen3-4b", 4_022_468_096),
            ("qwen3-8b", 8_190_735_360),
            ("qwen3-vl-8b", 8_190_735_360),
            ("qwen3-vl-30b-a3b", 30_532_122_624),
            ("qwen2.5-7b", 7_615_616_512),
            ("smollm2-135m", 134_515_008),
            ("mixtral-8x7b", 46_702_792_704),
        ] {
            assert_eq!(parameters(name), want, "{name}");
        }
        // these files also hold the table of rotary divisors, one for each pair of a head's dimensions
        assert_eq!(parameters("llama-3.1-8b"), 8_030_261_248 + 64);
        assert_eq!(parameters("llama-3.2-1b"), 1_235_814_400 + 32);
        assert_eq!(parameters("llama-3.2-3b"), 3_212_749_824 + 64);
        // what model cards round to, of the language model without its multi-token-prediction block
        for (name, low, high) in [
            ("qwen3.6-35b-a3b", 34.6e9, 35.0e9),
            ("qwen3.5-122b-a10b", 121.6e9, 122.5e9),
            ("qwen3.5-397b-a17b", 396.0e9, 397.5e9),
            ("qwen3.6-27b", 26.8e9, 27.2e9),
            ("qwen3.5-9b", 8.9e9, 9.1e9),
            ("ministral3-3b", 3.4e9, 3.5e9),
            ("ministral3-8b", 8.4e9, 8.5e9),
            ("ministral3-14b", 13.5e9, 13.6e9),
            ("qwen3.5-4b", 4.1e9, 4.3e9),
            ("qwen3.5-2b", 1.8e9, 1.95e9),
            ("qwen3.5-0.8b", 0.74e9, 0.82e9),
        ] {
            let n = parameters(name) as f64;
            assert!(low <= n && n <= high, "{name} has {n}");
        }
    }

    #[test]
    fn names_are_found_however_they_are_written() {
        for name in names() {
            assert_eq!(shape(name).unwrap().name, name);
        }
        assert_eq!(shape("Qwen3.6:35B-A3B").unwrap().name, "qwen3.6-35b-a3b");
        let said = shape("gpt-5").unwrap_err().to_string();
        assert!(said.contains("'gpt-5'") && said.contains("qwen3.6-35b-a3b"), "{said}");
    }

    #[test]
    fn few_layers_keep_both_kinds() {
        let full = shape("qwen3.6-35b-a3b").unwrap();
        let kinds = |n| {
            let s = full.with_layers(n).unwrap();
            (0..n).map(|i| s.is_recurrent(i)).collect::<Vec<_>>()
        };
        assert_eq!(kinds(2), [true, false]);
        assert_eq!(kinds(3), [true, true, false]);
        assert_eq!(kinds(5), [true, true, true, false, true]);
        assert!(full.with_layers(0).is_err() && full.with_layers(1 << 20).is_err());
    }
}
