//! Which provider a model's name means, where its API is and what its key is called. Facts about others; used by `deployments`.

use crate::Provider;
use crate::problem::mistyped;

/// A word before a model's name, and what it stands for.
pub(crate) struct Known {
    /// `openai` of `openai/gpt-4o`.
    pub prefix: &'static str,
    /// The API that it speaks.
    pub provider: Provider,
    /// Where that begins, if it is at one place.
    pub base: Option<&'static str>,
    /// Variables that may say where.
    pub base_variables: &'static [&'static str],
    /// Variables that may hold the key. The first is named where none is set.
    pub key_variables: &'static [&'static str],
}

impl Known {
    /// Whether such servers go on with an assistant's message: `continue_final_message`, without `add_generation_prompt`.
    pub fn continues(&self) -> bool {
        matches!(self.prefix, "hosted_vllm" | "vllm" | "sglang")
    }
}

use Provider::{Anthropic, AzureOpenAi, Gemini, Ollama, OpenAi, OpenAiCompatible as Compatible};

const fn cloud(prefix: &'static str, base: &'static str, key_variables: &'static [&'static str]) -> Known {
    Known { prefix, provider: Compatible, base: Some(base), base_variables: &[], key_variables }
}

const fn own(
    prefix: &'static str,
    base_variables: &'static [&'static str],
    key_variables: &'static [&'static str],
) -> Known {
    Known { prefix, provider: Compatible, base: None, base_variables, key_variables }
}

/// All that are known.
pub(crate) const KNOWN: &[Known] = &[
    Known {
        prefix: "openai",
        provider: OpenAi,
        base: Some(OPENAI),
        base_variables: &["OPENAI_BASE_URL", "OPENAI_API_BASE"],
        key_variables: &["OPENAI_API_KEY"],
    },
    Known {
        prefix: "anthropic",
        provider: Anthropic,
        base: Some("https://api.anthropic.com"),
        base_variables: &["ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL"],
        key_variables: &["ANTHROPIC_API_KEY"],
    },
    Known {
        prefix: "gemini",
        provider: Gemini,
        base: Some("https://generativelanguage.googleapis.com/v1beta"),
        base_variables: &["GEMINI_API_BASE"],
        key_variables: &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
    },
    Known {
        prefix: "azure",
        provider: AzureOpenAi,
        base: None,
        base_variables: &["AZURE_API_BASE"],
        key_variables: &["AZURE_API_KEY", "AZURE_OPENAI_API_KEY"],
    },
    Known {
        prefix: "ollama",
        provider: Ollama,
        base: Some("http://127.0.0.1:11434"),
        base_variables: &["OLLAMA_API_BASE"],
        key_variables: &[],
    },
    Known {
        prefix: "ollama_chat",
        provider: Ollama,
        base: Some("http://127.0.0.1:11434"),
        base_variables: &["OLLAMA_API_BASE"],
        key_variables: &[],
    },
    own("hosted_vllm", &["HOSTED_VLLM_API_BASE"], &["HOSTED_VLLM_API_KEY"]),
    own("vllm", &["HOSTED_VLLM_API_BASE"], &["HOSTED_VLLM_API_KEY"]),
    own("openai_like", &["OPENAI_LIKE_API_BASE"], &["OPENAI_LIKE_API_KEY"]),
    own("custom_openai", &[], &[]),
    own("openai_compatible", &[], &[]),
    own("sglang", &[], &[]),
    own("llama_cpp", &[], &[]),
    own("llamafile", &["LLAMAFILE_API_BASE"], &["LLAMAFILE_API_KEY"]),
    own("lm_studio", &["LM_STUDIO_API_BASE"], &["LM_STUDIO_API_KEY"]),
    own("litellm_proxy", &["LITELLM_PROXY_API_BASE"], &["LITELLM_PROXY_API_KEY"]),
    own("xinference", &["XINFERENCE_API_BASE"], &["XINFERENCE_API_KEY"]),
    own("docker_model_runner", &["DOCKER_MODEL_RUNNER_API_BASE"], &[]),
    cloud("groq", "https://api.groq.com/openai/v1", &["GROQ_API_KEY"]),
    cloud("mistral", "https://api.mistral.ai/v1", &["MISTRAL_API_KEY"]),
    cloud("deepseek", "https://api.deepseek.com/v1", &["DEEPSEEK_API_KEY"]),
    cloud("openrouter", "https://openrouter.ai/api/v1", &["OPENROUTER_API_KEY"]),
    cloud(
        "together_ai",
        "https://api.together.xyz/v1",
        &["TOGETHERAI_API_KEY", "TOGETHER_AI_API_KEY", "TOGETHER_API_KEY"],
    ),
    cloud(
        "fireworks_ai",
        "https://api.fireworks.ai/inference/v1",
        &["FIREWORKS_API_KEY", "FIREWORKS_AI_API_KEY"],
    ),
    cloud("xai", "https://api.x.ai/v1", &["XAI_API_KEY"]),
    cloud("perplexity", "https://api.perplexity.ai", &["PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY"]),
    cloud("nvidia_nim", "https://integrate.api.nvidia.com/v1", &["NVIDIA_NIM_API_KEY"]),
    cloud("cerebras", "https://api.cerebras.ai/v1", &["CEREBRAS_API_KEY"]),
    cloud("sambanova", "https://api.sambanova.ai/v1", &["SAMBANOVA_API_KEY"]),
    cloud("deepinfra", "https://api.deepinfra.com/v1/openai", &["DEEPINFRA_API_KEY"]),
    cloud("moonshot", "https://api.moonshot.ai/v1", &["MOONSHOT_API_KEY"]),
    cloud("dashscope", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", &["DASHSCOPE_API_KEY"]),
    cloud("novita", "https://api.novita.ai/v3/openai", &["NOVITA_API_KEY"]),
    cloud("hyperbolic", "https://api.hyperbolic.xyz/v1", &["HYPERBOLIC_API_KEY"]),
    cloud("nebius", "https://api.studio.nebius.ai/v1", &["NEBIUS_API_KEY"]),
    cloud("zai", "https://api.z.ai/api/paas/v4", &["ZAI_API_KEY"]),
];

/// Where OpenAI itself is.
pub(crate) const OPENAI: &str = "https://api.openai.com/v1";

/// Providers of LiteLLM's that have an API of their own, which is not spoken here.
const OTHERS: &[&str] = &[
    "bedrock",
    "bedrock_converse",
    "sagemaker",
    "sagemaker_chat",
    "vertex_ai",
    "vertex_ai_beta",
    "cohere",
    "cohere_chat",
    "huggingface",
    "replicate",
    "watsonx",
    "databricks",
    "azure_ai",
    "cloudflare",
    "predibase",
    "triton",
    "snowflake",
    "github_copilot",
    "voyage",
    "ai21",
    "nlp_cloud",
    "aleph_alpha",
    "baseten",
    "oci",
    "petals",
    "clarifai",
    "gradient_ai",
    "text-completion-openai",
];

/// The provider of this name.
pub(crate) fn known(prefix: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|k| k.prefix == prefix)
}

/// Why a model's name means no provider, for people.
pub(crate) enum Unknown {
    /// It is likely a slip.
    Mistyped(String),
    /// It is a provider that is not spoken here, or none: the entry is left out.
    NotSpoken(String),
}

use Unknown::{Mistyped, NotSpoken};

/// The provider and what is left of a model's name: `openai/gpt-4o`. `stated` is `custom_llm_provider`.
pub(crate) fn split<'a>(model: &'a str, stated: Option<&str>) -> Result<(&'static Known, &'a str), Unknown> {
    if let Some(stated) = stated {
        let rest = model.strip_prefix(stated).and_then(|m| m.strip_prefix('/')).unwrap_or(model);
        return known(stated).map(|k| (k, rest)).ok_or_else(|| unknown(stated));
    }
    match model.split_once('/') {
        Some((prefix, rest)) => match known(prefix) {
            Some(_) if rest.is_empty() => Err(NotSpoken(format!("'{model}' names no model after the slash"))),
            Some(k) => Ok((k, rest)),
            None => Err(unknown(prefix)),
        },
        None => inferred(model).map(|k| (k, model)).ok_or_else(|| {
            let here =
                "octet/NAME for a model that runs here, hosted_vllm/NAME with api_base for a server of yours";
            NotSpoken(format!("'{model}' says no provider: write openai/{model}, {here}"))
        }),
    }
}

/// How models begin that LiteLLM knows without a provider, and whose they are.
pub(crate) const INFERRED: &[(&str, &str)] = &[
    ("gpt-", "openai"),
    ("chatgpt-", "openai"),
    ("o1", "openai"),
    ("o3", "openai"),
    ("o4", "openai"),
    ("text-embedding-", "openai"),
    ("davinci-", "openai"),
    ("babbage-", "openai"),
    ("claude-", "anthropic"),
];

/// The provider of a model without one.
fn inferred(model: &str) -> Option<&'static Known> {
    let (_, prefix) = INFERRED.iter().find(|(begin, _)| model.starts_with(begin))?;
    known(prefix)
}

fn unknown(prefix: &str) -> Unknown {
    if prefix == "auto_router" {
        let text = "LiteLLM's automatic routers are not run here: write a cascade, which asks a fast group or a strong one by rules \
                    and by how sure the fast one is (docs/routing.md)";
        return NotSpoken(text.into());
    }
    if OTHERS.contains(&prefix) {
        return NotSpoken(format!(
            "the provider '{prefix}' has an API of its own, which is not spoken here; if it has an OpenAI-compatible address, write \
             openai_like/MODEL with api_base and api_key"
        ));
    }
    let names = || KNOWN.iter().map(|k| k.prefix).chain(["octet", "process"]);
    match mistyped(prefix, names()) {
        Some(near) => Mistyped(format!("there is no provider '{prefix}': did you mean '{near}'?")),
        None => NotSpoken(format!(
            "there is no provider '{prefix}' here; for an OpenAI-compatible server write openai_like/MODEL or hosted_vllm/MODEL with \
             api_base (docs/providers.md lists the providers)"
        )),
    }
}
