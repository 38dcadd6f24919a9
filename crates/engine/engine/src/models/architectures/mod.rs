//! The architectures: a file each, which reads a model's metadata into a [`Plan`]. To add one, see ARCHITECTURE.md.

mod afmoe;
mod apertus;
mod bert;
mod cohere;
mod deci;
mod deepseek2;
mod encoder;
mod exaone_moe;
mod falcon_h1;
mod gemma;
mod gemma3n;
mod gemma4;
mod glm4;
mod gpt2;
mod gpt_oss;
mod gptneox;
mod granite;
mod hunyuan;
mod kimi_linear;
mod laguna;
mod lfm2;
mod llama;
mod llama4;
mod mimo2;
mod modern_bert;
mod muse_glimmer;
mod nemotron_h;
mod olmo2;
mod phi3;
mod qwen35;
mod smollm3;
mod starcoder2;
mod step35;

use super::keys::Keys;
use super::plan::Plan;
use crate::Error;

/// An architecture.
#[derive(Clone, Copy)]
pub struct Architecture {
    /// The value of `general.architecture`.
    pub name: &'static str,
    /// Models of this architecture; docs/models.md has these texts.
    pub models: &'static str,
    /// Reads the plan.
    pub plan: fn(&Keys) -> Result<Plan, Error>,
}

impl std::fmt::Debug for Architecture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Architecture {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

const fn row(
    name: &'static str,
    models: &'static str,
    plan: fn(&Keys) -> Result<Plan, Error>,
) -> Architecture {
    Architecture { name, models, plan }
}

/// All supported architectures.
pub static ARCHITECTURES: &[Architecture] = &[
    row("qwen35moe", "Qwen3.5 and 3.6 35B-A3B, 122B-A10B", qwen35::plan),
    row("qwen35", "Qwen3.5 and 3.6, dense", qwen35::plan),
    row("qwen3next", "Qwen3-Next 80B-A3B, Qwen3-Coder-Next", qwen35::plan),
    row("qwen3moe", "Qwen3 30B-A3B, 235B-A22B, Coder", llama::qwen3),
    row("qwen3", "Qwen3, dense", llama::qwen3),
    row("qwen3vlmoe", "Qwen3-VL 30B-A3B", llama::qwen3vl),
    row("qwen3vl", "Qwen3-VL 2B to 32B", llama::qwen3vl),
    row("qwen2vl", "Qwen2.5-VL 3B to 72B", llama::qwen2vl),
    row("qwen2moe", "Qwen1.5-MoE, Qwen2 57B-A14B", llama::qwen2moe),
    row("qwen2", "Qwen2, Qwen2.5, Qwen2.5-Coder, MiMo 7B", llama::halves),
    row("olmoe", "OLMoE 1B-7B", llama::olmoe),
    row("llama", "Llama 1 to 3.3, SmolLM2, Mistral 7B to Small 3, Mixtral, InternLM 3", llama::plan),
    row("seed_oss", "Seed-OSS 36B", llama::seed_oss),
    row("ernie4_5", "ERNIE 4.5 0.3B", llama::plan),
    row("ernie4_5-moe", "ERNIE 4.5 21B-A3B", llama::ernie),
    row("internlm2", "InternLM 2, 2.5", llama::plan),
    row("exaone", "EXAONE 3, 3.5, Deep", llama::halves),
    row("arcee", "AFM 4.5B", llama::arcee),
    row("apertus", "Apertus 8B, 70B", apertus::plan),
    row("deci", "Llama-Nemotron Super 49B, Ultra 253B", deci::plan),
    row("mistral3", "Ministral 3, Devstral Small 2", llama::mistral3),
    row("mellum", "Mellum 2 12B-A2.5B", llama::mellum),
    row("minimax-m2", "MiniMax M2, M2.5", llama::minimax),
    row("glm4moe", "GLM-4.5-Air, 4.5 to 4.7, 4.5V, 4.6V", llama::glm4moe),
    row("dots1", "dots.llm1", llama::dots),
    row("bailingmoe2", "Ling and Ring 2: mini, flash", llama::dots),
    row("bailingmoe", "Ling-lite, Ling-plus", llama::deepseek),
    row("deepseek", "DeepSeekMoE 16B", llama::deepseek),
    row("afmoe", "Trinity Nano, Mini", afmoe::plan),
    row("hy_v3", "Hunyuan 3", llama::hy_v3),
    row("hunyuan-moe", "Hunyuan A13B", hunyuan::moe),
    row("hunyuan-dense", "Hunyuan 0.5B to 7B", hunyuan::dense),
    row("deepseek2", "GLM-4.7-Flash, DeepSeek V2-Lite, V3, R1, Kimi K2, Moonlight", deepseek2::plan),
    row("kimi-linear", "Kimi Linear 48B-A3B", kimi_linear::plan),
    row("mistral4", "Mistral Small 4", deepseek2::plan),
    row("gemma", "Gemma 1, CodeGemma", gemma::gemma),
    row("gemma2", "Gemma 2", gemma::gemma2),
    row("gemma3", "Gemma 3", gemma::gemma3),
    row("gemma3n", "Gemma 3n E2B, E4B, text only", gemma3n::plan),
    row("gemma4", "Gemma 4 26B-A4B, 31B, 12B, E4B, E2B", gemma4::plan),
    row("olmo", "OLMo 1", olmo2::olmo),
    row("smollm3", "SmolLM3", smollm3::plan),
    row("olmo2", "OLMo 2 and 3", olmo2::plan),
    row("exaone4", "EXAONE 4", olmo2::exaone4),
    row("exaone-moe", "K-EXAONE 236B-A23B", exaone_moe::plan),
    row("muse-glimmer", "Muse Glimmer 30B, text only", muse_glimmer::plan),
    row("granite", "Granite 3 and 4, dense", granite::plan),
    row("minicpm", "MiniCPM 1, 2, 4", granite::minicpm),
    row("granitemoe", "Granite 3 with experts", granite::plan),
    row("granitehybrid", "Granite 4 H", granite::hybrid),
    row("gpt-oss", "gpt-oss 20b, 120b", gpt_oss::plan),
    row("lfm2", "LFM2, LFM2.5", lfm2::plan),
    row("lfm2moe", "LFM2 8B-A1B, 24B-A2B", lfm2::plan),
    row("phi3", "Phi-3, 3.5, 4, 4-mini", phi3::plan),
    row("phimoe", "Phi-3.5-MoE", phi3::moe),
    row("nemotron_h", "Nemotron-H, Nemotron 3 Nano 4B", nemotron_h::plan),
    row("nemotron_h_moe", "Nemotron 3 Nano 30B-A3B, Super 120B", nemotron_h::plan),
    row("falcon-h1", "Falcon-H1", falcon_h1::plan),
    row("command-r", "Command R, Aya", cohere::plan),
    row("cohere2", "Command R7B, Command A", cohere::plan),
    row("cohere2moe", "Command with experts (30B-A3B)", cohere::moe),
    row("llama4", "Llama 4 Scout, Maverick, text only", llama4::plan),
    row("mimo2", "MiMo-V2-Flash", mimo2::plan),
    row("laguna", "Laguna XS, S, M", laguna::plan),
    row("step35", "Step 3.5 Flash", step35::plan),
    row("glm4", "GLM-4-0414, GLM-4.1V", glm4::plan),
    row("chatglm", "GLM-4 9B, ChatGLM 3, GLM-Edge", glm4::chatglm),
    row("starcoder2", "StarCoder2", starcoder2::plan),
    row("nemotron", "Nemotron 4, Minitron", starcoder2::nemotron),
    row("jais2", "Jais 2", starcoder2::nemotron),
    row("stablelm", "StableLM 2, StableLM Zephyr", gptneox::stablelm),
    row("phi2", "Phi-1, 1.5, 2", gptneox::phi2),
    row("gptneox", "Pythia, GPT-NeoX", gptneox::plan),
    row("falcon", "Falcon 7B, 11B, 40B", gptneox::falcon),
    row("gpt2", "GPT-2", gpt2::plan),
    row("starcoder", "StarCoder, SantaCoder", gpt2::plan),
    row(
        "bert",
        "Encoders: bge, bge-m3 and its rerankers, mxbai, arctic-embed, e5, all-MiniLM, cross-encoders",
        bert::bert,
    ),
    row("nomic-bert", "Encoders: nomic-embed-text v1, v1.5", bert::nomic),
    row("nomic-bert-moe", "Encoders: nomic-embed-text v2", bert::nomic_moe),
    row(
        "modern-bert",
        "Encoders: gte-modernbert and its reranker, ModernBERT embed, granite-embedding R2",
        modern_bert::plan,
    ),
    row("eurobert", "Encoders: EuroBERT", encoder::eurobert),
    row("llama-embed", "Encoders: llama-embed-nemotron 8B", encoder::llama_embed),
    row("gemma-embedding", "Encoders: EmbeddingGemma", gemma::embedding),
];

/// Architectures that are refused by name, and what a plan would need for them.
pub static MISSING: &[(&str, &str)] = &[
    ("qwen4exp", "sparse attention and n-gram embeddings"),
    ("deepseek4", "compressed attention caches, an indexer and hyper-connections"),
    ("deepseek32", "the indexer of sparse attention"),
    ("glm-dsa", "the indexer of sparse attention"),
    ("glm5-next", "pooled sparse attention and hyper-connections"),
    ("minimax-m3", "sparse attention"),
    ("bailingmoe3", "Kimi Delta Attention with gates"),
    ("jina-bert-v2", "ALiBi"),
    ("jina-bert-v3", "adapters for each task"),
    ("neo-bert", "its own norms and feed-forward blocks"),
];

/// The architecture that a model file names, if it is supported.
pub fn architecture(model: &octet_weights::Model) -> Result<&'static Architecture, Error> {
    let name = model.metadata.str("general.architecture")?;
    if let Some((_, what)) = MISSING.iter().find(|(n, _)| *n == name) {
        let what = format!("is '{name}', which needs {what}: not supported yet");
        return Err(octet_weights::Error::key(model.metadata.file(), "general.architecture", what).into());
    }
    ARCHITECTURES.iter().find(|a| a.name == name).ok_or_else(|| Error::UnknownArchitecture {
        file: model.origin.clone(),
        name: name.to_string(),
        known: ARCHITECTURES.iter().map(|a| a.name).collect::<Vec<_>>().join(", "),
    })
}
