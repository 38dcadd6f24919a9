//! The providers: one row each, with its API, its address, the variables of its key, and its quirks. As of 2026-11.

use self::Quirk::{KeyHeader, MaxTokens, RouterSuffix, SpeaksResponses};
use crate::Provider;
use crate::Provider::{Anthropic, AzureOpenAi, Gemini, Ollama, OpenAi, OpenAiCompatible as Compatible};

/// A prefix of model names, and its provider.
pub(crate) struct Known {
    /// `openai` of `openai/gpt-4o`.
    pub prefix: &'static str,
    /// Its API.
    pub provider: Provider,
    /// The base URL, if it is fixed.
    pub base: Option<&'static str>,
    /// Variables with the base URL.
    pub base_variables: &'static [&'static str],
    /// Variables with the key. Errors name the first one.
    pub key_variables: &'static [&'static str],
    /// Its quirks.
    pub quirks: &'static [Quirk],
}

/// A peculiarity of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quirk {
    /// It supports `max_tokens` but not the newer `max_completion_tokens`.
    MaxTokens,
    /// It has OpenAI's `/responses`.
    SpeaksResponses,
    /// Its key is sent in this header, too.
    KeyHeader(&'static str),
    /// `together/meta-llama/Llama` becomes `meta-llama/Llama:together`: the host follows the model.
    RouterSuffix,
}

impl Known {
    /// Whether such servers can continue an assistant message: `continue_final_message`, without `add_generation_prompt`.
    pub fn continues(&self) -> bool {
        matches!(self.prefix, "hosted_vllm" | "vllm" | "sglang")
    }

    pub fn has(&self, quirk: Quirk) -> bool {
        self.quirks.contains(&quirk)
    }
}

/// OpenAI's base URL.
pub(crate) const OPENAI: &str = "https://api.openai.com/v1";

/// No peculiarities.
const NONE: &[Quirk] = &[];
const MAX: &[Quirk] = &[MaxTokens];
const RESPONSES: &[Quirk] = &[SpeaksResponses];
const BOTH: &[Quirk] = &[MaxTokens, SpeaksResponses];

type Names = &'static [&'static str];

const fn row(
    prefix: &'static str,
    provider: Provider,
    base: Option<&'static str>,
    base_variables: Names,
    key_variables: Names,
    quirks: &'static [Quirk],
) -> Known {
    Known { prefix, provider, base, base_variables, key_variables, quirks }
}

/// A service with an OpenAI-compatible API.
const fn cloud(
    prefix: &'static str,
    base: &'static str,
    base_variables: Names,
    key_variables: Names,
    quirks: &'static [Quirk],
) -> Known {
    row(prefix, Compatible, Some(base), base_variables, key_variables, quirks)
}

/// An OpenAI-compatible server of the user, whose address must be given.
const fn own(prefix: &'static str, base_variables: Names, key_variables: Names) -> Known {
    row(prefix, Compatible, None, base_variables, key_variables, NONE)
}

/// All known providers. `{NAME}` in an address is an environment variable.
pub(crate) const KNOWN: &[Known] = &[
    row("openai", OpenAi, Some(OPENAI), &["OPENAI_BASE_URL", "OPENAI_API_BASE"], &["OPENAI_API_KEY"], NONE),
    row(
        "anthropic",
        Anthropic,
        Some("https://api.anthropic.com"),
        &["ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL"],
        &["ANTHROPIC_API_KEY"],
        NONE,
    ),
    row(
        "gemini",
        Gemini,
        Some("https://generativelanguage.googleapis.com/v1beta"),
        &["GEMINI_API_BASE"],
        &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
        NONE,
    ),
    row("azure", AzureOpenAi, None, &["AZURE_API_BASE"], &["AZURE_API_KEY", "AZURE_OPENAI_API_KEY"], NONE),
    row("ollama", Ollama, Some("http://127.0.0.1:11434"), &["OLLAMA_API_BASE"], &[], NONE),
    row("ollama_chat", Ollama, Some("http://127.0.0.1:11434"), &["OLLAMA_API_BASE"], &[], NONE),
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
    own("lemonade", &["LEMONADE_API_BASE"], &["LEMONADE_API_KEY"]),
    own("infinity", &["INFINITY_API_BASE"], &["INFINITY_API_KEY"]),
    own("ragflow", &["RAGFLOW_API_BASE"], &["RAGFLOW_API_KEY"]),
    own("databricks", &["DATABRICKS_API_BASE"], &["DATABRICKS_API_KEY"]),
    // The address ends in /openai/v1, or is one of a serverless deployment.
    own("azure_ai", &["AZURE_AI_API_BASE"], &["AZURE_AI_API_KEY"]),
    cloud("ai21", "https://api.ai21.com/studio/v1", &["AI21_API_BASE"], &["AI21_API_KEY"], MAX),
    cloud("ai21_chat", "https://api.ai21.com/studio/v1", &["AI21_API_BASE"], &["AI21_API_KEY"], MAX),
    cloud("aihubmix", "https://aihubmix.com/v1", &["AIHUBMIX_API_BASE"], &["AIHUBMIX_API_KEY"], NONE),
    cloud("aiml", "https://api.aimlapi.com/v1", &["AIML_API_BASE"], &["AIML_API_KEY", "AIMLAPI_KEY"], MAX),
    cloud("abliteration", "https://api.abliteration.ai/v1", &[], &["ABLITERATION_API_KEY"], NONE),
    cloud(
        "amazon_nova",
        "https://api.nova.amazon.com/v1",
        &["AMAZON_NOVA_API_BASE"],
        &["AMAZON_NOVA_API_KEY"],
        MAX,
    ),
    cloud(
        "anyscale",
        "https://api.endpoints.anyscale.com/v1",
        &["ANYSCALE_API_BASE"],
        &["ANYSCALE_API_KEY"],
        MAX,
    ),
    cloud("apertis", "https://api.stima.tech/v1", &[], &["STIMA_API_KEY"], MAX),
    cloud("assemblyai", "https://llm-gateway.assemblyai.com/v1", &[], &["ASSEMBLYAI_API_KEY"], NONE),
    cloud("baseten", "https://inference.baseten.co/v1", &["BASETEN_API_BASE"], &["BASETEN_API_KEY"], MAX),
    cloud("cerebras", "https://api.cerebras.ai/v1", &["CEREBRAS_API_BASE"], &["CEREBRAS_API_KEY"], NONE),
    cloud(
        "charity_engine",
        "https://api.charityengine.services/remotejobs/v2/inference",
        &[],
        &["CHARITY_ENGINE_API_KEY"],
        MAX,
    ),
    cloud("chutes", "https://llm.chutes.ai/v1", &[], &["CHUTES_API_KEY"], MAX),
    cloud(
        "clarifai",
        "https://api.clarifai.com/v2/ext/openai/v1",
        &[],
        &["CLARIFAI_API_KEY", "CLARIFAI_PAT"],
        MAX,
    ),
    cloud(
        "cloudflare",
        "https://api.cloudflare.com/client/v4/accounts/{CLOUDFLARE_ACCOUNT_ID}/ai/v1",
        &["CLOUDFLARE_API_BASE"],
        &["CLOUDFLARE_API_KEY", "CLOUDFLARE_API_TOKEN"],
        MAX,
    ),
    cloud(
        "codestral",
        "https://codestral.mistral.ai/v1",
        &["CODESTRAL_API_BASE"],
        &["CODESTRAL_API_KEY"],
        MAX,
    ),
    cloud("cognition", "https://api.cognition.ai/v1", &["COGNITION_API_BASE"], &["COGNITION_API_KEY"], NONE),
    // Cohere's OpenAI-compatible addresses: chat and embeddings.
    cloud(
        "cohere",
        "https://api.cohere.ai/compatibility/v1",
        &["COHERE_API_BASE"],
        &["COHERE_API_KEY", "CO_API_KEY"],
        MAX,
    ),
    cloud(
        "cohere_chat",
        "https://api.cohere.ai/compatibility/v1",
        &["COHERE_API_BASE"],
        &["COHERE_API_KEY", "CO_API_KEY"],
        MAX,
    ),
    cloud(
        "cometapi",
        "https://api.cometapi.com/v1",
        &["COMETAPI_BASE_URL", "COMETAPI_API_BASE"],
        &["COMETAPI_KEY", "COMETAPI_API_KEY"],
        NONE,
    ),
    cloud("compactifai", "https://api.compactif.ai/v1", &[], &["COMPACTIFAI_API_KEY"], MAX),
    cloud("cortecs", "https://api.cortecs.ai/v1", &["CORTECS_API_BASE"], &["CORTECS_API_KEY"], RESPONSES),
    cloud(
        "crusoe",
        "https://managed-inference-api-proxy.crusoecloud.com/v1",
        &["CRUSOE_API_BASE"],
        &["CRUSOE_API_KEY"],
        MAX,
    ),
    cloud("darkbloom", "https://api.darkbloom.dev/v1", &["DARKBLOOM_API_BASE"], &["DARKBLOOM_API_KEY"], MAX),
    cloud(
        "dashscope",
        "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        &["DASHSCOPE_API_BASE"],
        &["DASHSCOPE_API_KEY"],
        MAX,
    ),
    cloud(
        "deepinfra",
        "https://api.deepinfra.com/v1/openai",
        &["DEEPINFRA_API_BASE"],
        &["DEEPINFRA_API_KEY"],
        NONE,
    ),
    cloud("deepseek", "https://api.deepseek.com/v1", &["DEEPSEEK_API_BASE"], &["DEEPSEEK_API_KEY"], MAX),
    cloud("edenai", "https://api.edenai.run/v3", &["EDENAI_API_BASE"], &["EDENAI_API_KEY"], MAX),
    cloud(
        "empiriolabs",
        "https://api.empiriolabs.ai/v1",
        &["EMPIRIOLABS_API_BASE"],
        &["EMPIRIOLABS_API_KEY"],
        BOTH,
    ),
    cloud("empower", "https://app.empower.dev/api/v1", &["EMPOWER_API_BASE"], &["EMPOWER_API_KEY"], MAX),
    cloud(
        "featherless_ai",
        "https://api.featherless.ai/v1",
        &["FEATHERLESS_AI_API_BASE", "FEATHERLESS_API_BASE"],
        &["FEATHERLESS_AI_API_KEY", "FEATHERLESS_API_KEY"],
        MAX,
    ),
    cloud(
        "fireworks_ai",
        "https://api.fireworks.ai/inference/v1",
        &["FIREWORKS_API_BASE"],
        &["FIREWORKS_API_KEY", "FIREWORKS_AI_API_KEY", "FIREWORKSAI_API_KEY", "FIREWORKS_AI_TOKEN"],
        BOTH,
    ),
    cloud(
        "friendliai",
        "https://api.friendli.ai/serverless/v1",
        &["FRIENDLI_API_BASE"],
        &["FRIENDLIAI_API_KEY", "FRIENDLI_TOKEN"],
        MAX,
    ),
    cloud("galadriel", "https://api.galadriel.com/v1", &["GALADRIEL_API_BASE"], &["GALADRIEL_API_KEY"], MAX),
    cloud(
        "github",
        "https://models.github.ai/inference",
        &["GITHUB_API_BASE"],
        &["GITHUB_API_KEY", "GITHUB_TOKEN"],
        MAX,
    ),
    cloud("gmi", "https://api.gmi-serving.com/v1", &[], &["GMI_API_KEY"], NONE),
    cloud("gradient_ai", "https://inference.do-ai.run/v1", &[], &["GRADIENT_AI_API_KEY"], MAX),
    cloud("groq", "https://api.groq.com/openai/v1", &["GROQ_API_BASE"], &["GROQ_API_KEY"], RESPONSES),
    cloud("helicone", "https://ai-gateway.helicone.ai", &[], &["HELICONE_API_KEY"], NONE),
    cloud(
        "huggingface",
        "https://router.huggingface.co/v1",
        &["HF_API_BASE", "HUGGINGFACE_API_BASE"],
        &["HUGGINGFACE_API_KEY", "HF_TOKEN"],
        &[RouterSuffix, MaxTokens],
    ),
    cloud(
        "hyperbolic",
        "https://api.hyperbolic.xyz/v1",
        &["HYPERBOLIC_API_BASE"],
        &["HYPERBOLIC_API_KEY"],
        MAX,
    ),
    cloud(
        "inception",
        "https://api.inceptionlabs.ai/v1",
        &["INCEPTION_API_BASE"],
        &["INCEPTION_API_KEY"],
        MAX,
    ),
    // Embeddings.
    cloud(
        "jina_ai",
        "https://api.jina.ai/v1",
        &["JINA_AI_API_BASE"],
        &["JINA_AI_API_KEY", "JINA_API_KEY", "JINA_AI_TOKEN"],
        NONE,
    ),
    cloud("lambda_ai", "https://api.lambda.ai/v1", &["LAMBDA_API_BASE"], &["LAMBDA_API_KEY"], MAX),
    cloud("libertai", "https://api.libertai.io/v1", &["LIBERTAI_API_BASE"], &["LIBERTAI_API_KEY"], MAX),
    cloud("llamagate", "https://api.llamagate.dev/v1", &[], &["LLAMAGATE_API_KEY"], MAX),
    cloud("meta", "https://api.meta.ai/v1", &["META_API_BASE"], &["META_API_KEY"], RESPONSES),
    cloud("meta_llama", "https://api.llama.com/compat/v1", &["LLAMA_API_BASE"], &["LLAMA_API_KEY"], NONE),
    cloud("minimax", "https://api.minimax.io/v1", &["MINIMAX_API_BASE"], &["MINIMAX_API_KEY"], NONE),
    cloud("mistral", "https://api.mistral.ai/v1", &["MISTRAL_API_BASE"], &["MISTRAL_API_KEY"], MAX),
    cloud(
        "modelscope",
        "https://api-inference.modelscope.cn/v1",
        &["MODELSCOPE_API_BASE"],
        &["MODELSCOPE_API_KEY"],
        MAX,
    ),
    cloud("moonshot", "https://api.moonshot.ai/v1", &["MOONSHOT_API_BASE"], &["MOONSHOT_API_KEY"], MAX),
    cloud("morph", "https://api.morphllm.com/v1", &["MORPH_API_BASE"], &["MORPH_API_KEY"], MAX),
    cloud("nano-gpt", "https://nano-gpt.com/api/v1", &[], &["NANOGPT_API_KEY"], MAX),
    cloud("nebius", "https://api.studio.nebius.ai/v1", &["NEBIUS_API_BASE"], &["NEBIUS_API_KEY"], NONE),
    cloud(
        "neosantara",
        "https://api.neosantara.xyz/v1",
        &["NEOSANTARA_API_BASE"],
        &["NEOSANTARA_API_KEY"],
        BOTH,
    ),
    cloud("novita", "https://api.novita.ai/v3/openai", &["NOVITA_API_BASE"], &["NOVITA_API_KEY"], MAX),
    cloud("nscale", "https://inference.api.nscale.com/v1", &["NSCALE_API_BASE"], &["NSCALE_API_KEY"], MAX),
    cloud(
        "nvidia_nim",
        "https://integrate.api.nvidia.com/v1",
        &["NVIDIA_NIM_API_BASE"],
        &["NVIDIA_NIM_API_KEY"],
        MAX,
    ),
    cloud(
        "openrouter",
        "https://openrouter.ai/api/v1",
        &["OPENROUTER_API_BASE"],
        &["OPENROUTER_API_KEY", "OR_API_KEY"],
        RESPONSES,
    ),
    cloud("ovhcloud", "https://oai.endpoints.kepler.ai.cloud.ovh.net/v1", &[], &["OVHCLOUD_API_KEY"], MAX),
    cloud("parasail", "https://api.parasail.io/v1", &["PARASAIL_API_BASE"], &["PARASAIL_API_KEY"], RESPONSES),
    cloud(
        "perplexity",
        "https://api.perplexity.ai",
        &["PERPLEXITY_API_BASE"],
        &["PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY"],
        MAX,
    ),
    cloud("pinstripes", "https://pinstripes.io/v1", &["PINSTRIPES_API_BASE"], &["PINSTRIPES_API_KEY"], BOTH),
    cloud("poe", "https://api.poe.com/v1", &[], &["POE_API_KEY"], MAX),
    cloud("prism", "https://api.prisminference.com/v1", &["PRISM_API_BASE"], &["PRISM_API_KEY"], RESPONSES),
    cloud("publicai", "https://api.publicai.co/v1", &["PUBLICAI_API_BASE"], &["PUBLICAI_API_KEY"], MAX),
    cloud(
        "qwen_ai_platform",
        "https://dashscope.aliyuncs.com/compatible-mode/v1",
        &["QWEN_AI_PLATFORM_API_BASE"],
        &["QWEN_AI_PLATFORM_API_KEY", "DASHSCOPE_API_KEY"],
        MAX,
    ),
    cloud(
        "qwencloud",
        "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        &["QWENCLOUD_API_BASE"],
        &["QWENCLOUD_API_KEY", "DASHSCOPE_API_KEY"],
        MAX,
    ),
    cloud("reka", "https://api.reka.ai/v1", &["REKA_API_BASE"], &["REKA_API_KEY"], NONE),
    cloud("sail", "https://api.sailresearch.com/v1", &["SAIL_API_BASE"], &["SAIL_API_KEY"], RESPONSES),
    cloud("sambanova", "https://api.sambanova.ai/v1", &["SAMBANOVA_API_BASE"], &["SAMBANOVA_API_KEY"], MAX),
    cloud(
        "sarvam",
        "https://api.sarvam.ai/v1",
        &[],
        &["SARVAM_API_KEY"],
        &[MaxTokens, KeyHeader("api-subscription-key")],
    ),
    cloud("scaleway", "https://api.scaleway.ai/v1", &[], &["SCW_SECRET_KEY"], NONE),
    cloud("scx-ai", "https://api.scx.ai/v1", &["SCX_API_BASE"], &["SCX_API_KEY"], MAX),
    cloud("synthetic", "https://api.synthetic.new/openai/v1", &[], &["SYNTHETIC_API_KEY"], MAX),
    cloud(
        "tencent",
        "https://tokenhub-intl.tencentcloudmaas.com/v1",
        &["TENCENT_API_BASE"],
        &["TENCENT_API_KEY"],
        MAX,
    ),
    cloud(
        "tensormesh",
        "https://serverless.tensormesh.ai/v1",
        &["TENSORMESH_SERVERLESS_BASE_URL"],
        &["TENSORMESH_INFERENCE_API_KEY"],
        BOTH,
    ),
    cloud(
        "together_ai",
        "https://api.together.xyz/v1",
        &["TOGETHER_AI_API_BASE"],
        &["TOGETHERAI_API_KEY", "TOGETHER_AI_API_KEY", "TOGETHER_API_KEY", "TOGETHER_AI_TOKEN"],
        MAX,
    ),
    cloud("v0", "https://api.v0.dev/v1", &["V0_API_BASE"], &["V0_API_KEY"], NONE),
    cloud("veniceai", "https://api.venice.ai/api/v1", &[], &["VENICE_AI_API_KEY"], NONE),
    cloud(
        "vercel_ai_gateway",
        "https://ai-gateway.vercel.sh/v1",
        &["VERCEL_AI_GATEWAY_API_BASE"],
        &["VERCEL_AI_GATEWAY_API_KEY", "VERCEL_OIDC_TOKEN"],
        NONE,
    ),
    cloud(
        "volcengine",
        "https://ark.cn-beijing.volces.com/api/v3",
        &["VOLCENGINE_API_BASE", "ARK_API_BASE"],
        &["VOLCENGINE_API_KEY", "ARK_API_KEY"],
        MAX,
    ),
    // Embeddings.
    cloud(
        "voyage",
        "https://api.voyageai.com/v1",
        &[],
        &["VOYAGE_API_KEY", "VOYAGE_AI_API_KEY", "VOYAGE_AI_TOKEN"],
        NONE,
    ),
    cloud("wandb", "https://api.inference.wandb.ai/v1", &["WANDB_API_BASE"], &["WANDB_API_KEY"], MAX),
    cloud("xai", "https://api.x.ai/v1", &["XAI_API_BASE"], &["XAI_API_KEY"], RESPONSES),
    cloud("xiaomi_mimo", "https://api.xiaomimimo.com/v1", &[], &["XIAOMI_MIMO_API_KEY"], MAX),
    cloud("zai", "https://api.z.ai/api/paas/v4", &["ZAI_API_BASE"], &["ZAI_API_KEY"], MAX),
    row(
        "bedrock",
        Provider::Bedrock,
        Some("https://bedrock-runtime.{REGION}.amazonaws.com"),
        &["AWS_ENDPOINT_URL_BEDROCK_RUNTIME"],
        &["AWS_BEARER_TOKEN_BEDROCK"],
        NONE,
    ),
    row(
        "bedrock_converse",
        Provider::Bedrock,
        Some("https://bedrock-runtime.{REGION}.amazonaws.com"),
        &["AWS_ENDPOINT_URL_BEDROCK_RUNTIME"],
        &["AWS_BEARER_TOKEN_BEDROCK"],
        NONE,
    ),
    row("vertex_ai", Provider::Vertex, Some("https://{REGION}aiplatform.googleapis.com"), &[], &[], NONE),
    row(
        "vertex_ai_beta",
        Provider::Vertex,
        Some("https://{REGION}aiplatform.googleapis.com"),
        &[],
        &[],
        NONE,
    ),
];

/// Providers of LiteLLM with an API that is not supported.
pub(crate) const OTHERS: &[&str] = &[
    "sagemaker",
    "sagemaker_chat",
    "replicate",
    "watsonx",
    "predibase",
    "triton",
    "snowflake",
    "github_copilot",
    "chatgpt",
    "nlp_cloud",
    "aleph_alpha",
    "oci",
    "petals",
    "bytez",
    "datarobot",
    "heroku",
    "gigachat",
    "langgraph",
    "manus",
    "text-completion-openai",
    "text-completion-codestral",
];

/// Whether a model's name may have this provider as a prefix.
#[cfg(test)]
pub(crate) fn is_provider(prefix: &str) -> bool {
    KNOWN.iter().any(|k| k.prefix == prefix)
}
