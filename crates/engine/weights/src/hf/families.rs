//! Families of checkpoints beside the oldest ones: a row each. `family_config` and `family_names` read their files.

/// Norms that are stored around zero: `1 + w` is applied.
#[derive(Debug, PartialEq)]
pub(super) enum AroundZero {
    None,
    /// Those of layers, but not the last one.
    Layers,
    All,
}

/// The field that says whether tokens see each other in both directions. Some configurations have a text here, which is about images.
pub(super) const BOTH_WAYS: &str = "use_bidirectional_attention";

/// A family.
#[derive(Debug)]
pub(super) struct Family {
    /// Values of `model_type`.
    types: &'static [&'static str],
    /// `general.architecture`.
    pub gguf: &'static str,
    /// Which RMS norms are stored around zero.
    pub around_zero: AroundZero,
    /// Rows of gates and of the other projection alternate in experts of one tensor.
    pub alternating: bool,
    /// Experts in one tensor have their inputs first.
    pub inputs_first: bool,
    /// Rotated dimensions are paired with their neighbours.
    pub adjacent: bool,
    /// What the norm `post_attention_layernorm` is.
    pub second_norm: &'static str,
    /// The activation of feed-forward blocks, and the field that names it.
    pub act: (&'static str, &'static str),
    /// Tokens see each other in both directions.
    pub encoder: bool,
    /// It has other names of tensors than decoders.
    pub own_names: bool,
    /// Positions begin after that of padding.
    pub after_padding: bool,
}

const fn family(types: &'static [&'static str], gguf: &'static str) -> Family {
    Family {
        types,
        gguf,
        around_zero: AroundZero::None,
        adjacent: false,
        alternating: false,
        inputs_first: false,
        second_norm: "ffn_norm",
        act: ("hidden_act", "silu"),
        encoder: false,
        own_names: false,
        after_padding: false,
    }
}

/// BERT and relatives.
const fn encoder(types: &'static [&'static str], gguf: &'static str) -> Family {
    Family { encoder: true, own_names: true, ..family(types, gguf) }
}

/// What tells the second generation of Ling from the first, whose configurations have the same `model_type`.
pub(super) const BAILING_2: &str = "bailing_moe_v2";

/// GGUF's name for Nemotron 3 with experts, whose checkpoints have the `model_type` of those without.
const NEMOTRON_MOE: &str = "nemotron_h_moe";

/// Gemma ignores `hidden_act`.
const GELU: (&str, &str) = ("hidden_activation", "gelu_pytorch_tanh");

const BERT: (&str, &str) = ("hidden_act", "gelu");

/// Norms before and after each part.
const SANDWICH: &str = "post_attention_norm";

const FAMILIES: &[Family] = &[
    Family { around_zero: AroundZero::All, act: GELU, ..family(&["gemma"], "gemma") },
    Family {
        around_zero: AroundZero::All,
        second_norm: SANDWICH,
        act: GELU,
        ..family(&["gemma2"], "gemma2")
    },
    Family {
        around_zero: AroundZero::All,
        second_norm: SANDWICH,
        act: GELU,
        ..family(&["gemma3", "gemma3_text"], "gemma3")
    },
    Family { second_norm: SANDWICH, act: GELU, ..family(&["gemma3n", "gemma3n_text"], "gemma3n") },
    Family {
        second_norm: SANDWICH,
        act: GELU,
        ..family(&["gemma4", "gemma4_text", "gemma4_unified"], "gemma4")
    },
    Family { second_norm: SANDWICH, ..family(&["glm4_moe", "glm4v_moe", "glm4v_moe_text"], "glm4moe") },
    Family { adjacent: true, ..family(&["glm4", "glm4v", "glm4v_text"], "glm4") },
    Family { adjacent: true, ..family(&["glm"], "chatglm") },
    Family {
        adjacent: true,
        ..family(&["glm4_moe_lite", "deepseek_v2", "deepseek_v3", "kimi_k2"], "deepseek2")
    },
    family(&["kimi_linear"], "kimi-linear"),
    Family { adjacent: true, ..family(&["mistral4"], "mistral4") },
    family(&["ministral3", "mistral3"], "mistral3"),
    Family {
        alternating: true,
        inputs_first: true,
        second_norm: "post_attention_norm",
        ..family(&["gpt_oss"], "gpt-oss")
    },
    Family { adjacent: true, inputs_first: true, ..family(&["llama4", "llama4_text"], "llama4") },
    family(&["granite"], "granite"),
    family(&["granitemoe", "granitemoeshared"], "granitemoe"),
    family(&["granitemoehybrid"], "granitehybrid"),
    family(&["lfm2"], "lfm2"),
    family(&["lfm2_moe"], "lfm2moe"),
    family(&["minimax_m2"], "minimax-m2"),
    Family {
        second_norm: SANDWICH,
        around_zero: AroundZero::Layers,
        act: ("hidden_activation", "silu"),
        ..family(&["muse_glimmer", "muse_glimmer_text"], "muse-glimmer")
    },
    Family { act: ("mlp_hidden_act", "relu2"), ..family(&["nemotron_h"], "nemotron_h") },
    Family { act: ("mlp_hidden_act", "relu2"), ..family(&["nemotron_h"], NEMOTRON_MOE) },
    family(&["phi3"], "phi3"),
    family(&["phimoe"], "phimoe"),
    Family { act: ("hidden_act", "xielu"), ..family(&["apertus"], "apertus") },
    Family { second_norm: SANDWICH, ..family(&["exaone4"], "exaone4") },
    family(&["exaone_moe"], "exaone-moe"),
    Family { act: ("activation_function", "silu"), ..family(&["exaone"], "exaone") },
    family(&["minicpm"], "minicpm"),
    family(&["olmo"], "olmo"),
    Family { second_norm: SANDWICH, ..family(&["olmo2", "olmo3"], "olmo2") },
    Family { adjacent: true, ..family(&["cohere"], "command-r") },
    Family { adjacent: true, ..family(&["cohere2"], "cohere2") },
    Family { adjacent: true, ..family(&["cohere2_moe"], "cohere2moe") },
    family(&["falcon_h1"], "falcon-h1"),
    family(&["mimo_v2_flash", "mimo_v2"], "mimo2"),
    family(&["mimo"], "qwen2"),
    family(&["bailing_moe"], "bailingmoe"),
    family(&["bailing_moe", BAILING_2], "bailingmoe2"),
    Family { around_zero: AroundZero::All, ..family(&["step3p5", "step3p7"], "step35") },
    family(&["internlm2"], "internlm2"),
    family(&["internlm3"], "llama"),
    family(&["hy_v3"], "hy_v3"),
    family(&["deepseek"], "deepseek"),
    family(&["nemotron-nas"], "deci"),
    Family { act: ("activation", "gelu"), ..family(&["falcon", "RefinedWeb", "RefinedWebModel"], "falcon") },
    Family { act: ("hidden_act", "gelu"), ..family(&["gpt_neox"], "gptneox") },
    Family { act: ("activation_function", "gelu_pytorch_tanh"), ..family(&["gpt_bigcode"], "starcoder") },
    Family { adjacent: true, ..family(&["ernie4_5"], "ernie4_5") },
    Family { adjacent: true, ..family(&["ernie4_5_moe"], "ernie4_5-moe") },
    Family { act: ("hidden_act", "gelu_pytorch_tanh"), ..family(&["starcoder2"], "starcoder2") },
    Family { act: ("hidden_act", "relu2"), ..family(&["arcee"], "arcee") },
    Family {
        around_zero: AroundZero::All,
        act: ("hidden_act", "relu2"),
        ..family(&["nemotron"], "nemotron")
    },
    Family { act: ("activation_function", "gelu_new"), ..family(&["gpt2"], "gpt2") },
    family(&["hunyuan_v1_dense"], "hunyuan-dense"),
    family(&["hunyuan_v1_moe"], "hunyuan-moe"),
    family(&["laguna"], "laguna"),
    Family { second_norm: SANDWICH, ..family(&["afmoe"], "afmoe") },
    family(&["stablelm"], "stablelm"),
    Family { act: ("hidden_act", "gelu_new"), ..family(&["phi"], "phi2") },
    family(&["mellum"], "mellum"),
    Family { act: ("hidden_act", "relu2"), ..family(&["jais2"], "jais2") },
    Family { around_zero: AroundZero::All, second_norm: SANDWICH, ..family(&["qwen3_next"], "qwen3next") },
    family(&["qwen2_5_vl", "qwen2_5_vl_text"], "qwen2vl"),
    family(&["qwen3_vl", "qwen3_vl_text"], "qwen3vl"),
    family(&["qwen3_vl_moe", "qwen3_vl_moe_text"], "qwen3vlmoe"),
    Family { second_norm: SANDWICH, ..family(&["seed_oss"], "seed_oss") },
    family(&["smollm3"], "smollm3"),
    family(&["dots1"], "dots1"),
    Family { act: BERT, ..encoder(&["bert"], "bert") },
    Family { act: BERT, after_padding: true, ..encoder(&["xlm-roberta", "roberta", "camembert"], "bert") },
    encoder(&["nomic_bert"], "nomic-bert"),
    Family { encoder: true, ..family(&["eurobert"], "eurobert") },
    Family { encoder: true, ..family(&["llama_bidirec"], "llama-embed") },
    // Its activation is a field of GGUF, too.
    Family { act: ("", ""), ..encoder(&["modernbert"], "modern-bert") },
    Family {
        around_zero: AroundZero::All,
        second_norm: SANDWICH,
        act: GELU,
        encoder: true,
        ..family(&["gemma3_text"], "gemma-embedding")
    },
];

/// The family of a `model_type`; of several, that of encoders if `both_ways`.
pub(super) fn find(model_type: &str, both_ways: bool) -> Option<&'static Family> {
    let all = || FAMILIES.iter().filter(|f| f.types.contains(&model_type));
    all().find(|f| f.encoder == both_ways).or_else(|| all().next())
}

/// The family itself, or that of the same `model_type` with experts.
pub(super) fn with_experts(family: &'static Family) -> &'static Family {
    let is_other = |f: &&Family| family.gguf == "nemotron_h" && f.gguf == NEMOTRON_MOE;
    FAMILIES.iter().find(is_other).unwrap_or(family)
}

/// All values of `model_type`, each with its `general.architecture`.
pub(super) fn types() -> impl Iterator<Item = (&'static str, &'static str)> {
    FAMILIES.iter().flat_map(|f| f.types.iter().map(|t| (*t, f.gguf)))
}
