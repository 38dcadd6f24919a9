//! The architectures: a file each, which reads a model's metadata into a [`Plan`]. To add one, see ARCHITECTURE.md.

mod cohere;
mod deepseek2;
mod falcon_h1;
mod gemma;
mod gemma4;
mod glm4;
mod gpt_oss;
mod granite;
mod hunyuan;
mod lfm2;
mod llama;
mod llama4;
mod mimo2;
mod muse_glimmer;
mod nemotron_h;
mod olmo2;
mod phi3;
mod qwen35;
mod smollm3;
mod starcoder2;

use super::keys::Keys;
use super::plan::Plan;
use crate::Error;

/// An architecture.
#[derive(Clone, Copy)]
pub struct Architecture {
    /// The value of `general.architecture`.
    pub name: &'static str,
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

const fn row(name: &'static str, plan: fn(&Keys) -> Result<Plan, Error>) -> Architecture {
    Architecture { name, plan }
}

/// All supported architectures.
pub static ARCHITECTURES: &[Architecture] = &[
    row("qwen35moe", qwen35::plan),
    row("qwen35", qwen35::plan),
    row("qwen3next", qwen35::plan),
    row("qwen3moe", llama::qwen3),
    row("qwen3", llama::qwen3),
    row("qwen3vlmoe", llama::qwen3),
    row("qwen3vl", llama::qwen3),
    row("qwen2moe", llama::qwen2moe),
    row("qwen2", llama::halves),
    row("olmoe", llama::olmoe),
    row("llama", llama::plan),
    row("seed_oss", llama::seed_oss),
    row("ernie4_5", llama::plan),
    row("ernie4_5-moe", llama::ernie),
    row("mistral3", llama::mistral3),
    row("mellum", llama::mellum),
    row("minimax-m2", llama::minimax),
    row("glm4moe", llama::glm4moe),
    row("dots1", llama::dots),
    row("hy_v3", llama::hy_v3),
    row("hunyuan-moe", hunyuan::moe),
    row("hunyuan-dense", hunyuan::dense),
    row("deepseek2", deepseek2::plan),
    row("mistral4", deepseek2::plan),
    row("gemma2", gemma::gemma2),
    row("gemma3", gemma::gemma3),
    row("gemma4", gemma4::plan),
    row("smollm3", smollm3::plan),
    row("olmo2", olmo2::plan),
    row("exaone4", olmo2::exaone4),
    row("muse-glimmer", muse_glimmer::plan),
    row("granite", granite::plan),
    row("granitemoe", granite::plan),
    row("granitehybrid", granite::hybrid),
    row("gpt-oss", gpt_oss::plan),
    row("lfm2", lfm2::plan),
    row("lfm2moe", lfm2::plan),
    row("phi3", phi3::plan),
    row("nemotron_h", nemotron_h::plan),
    row("nemotron_h_moe", nemotron_h::plan),
    row("falcon-h1", falcon_h1::plan),
    row("command-r", cohere::plan),
    row("cohere2", cohere::plan),
    row("llama4", llama4::plan),
    row("mimo2", mimo2::plan),
    row("glm4", glm4::plan),
    row("starcoder2", starcoder2::plan),
];

/// Architectures that are refused by name, and what a plan would need for them.
const MISSING: &[(&str, &str)] = &[
    ("qwen4exp", "sparse attention and n-gram embeddings"),
    ("deepseek4", "compressed attention caches, an indexer and hyper-connections"),
    ("deepseek32", "the indexer of sparse attention"),
    ("glm-dsa", "the indexer of sparse attention"),
    ("glm5-next", "pooled sparse attention and hyper-connections"),
    ("minimax-m3", "sparse attention"),
    ("bailingmoe3", "Kimi Delta Attention with gates"),
    ("kimi-linear", "Kimi Delta Attention, which decays each channel"),
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
