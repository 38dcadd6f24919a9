//! Vision towers of checkpoints: a row each, with the fields and tensors that projector files have under other names.

use super::json::Fields;
use crate::source::Convert;
use crate::{Error, Value};

/// Adds metadata that are no plain copies of fields. Gets the whole configuration and the tower's.
type Further = fn(&Fields, &Fields, &mut dyn FnMut(&str, Value)) -> Result<(), Error>;

/// Metadata, a field of a processor's `size`, and an older one of the processor, which goes first.
pub(super) type Limit = (&'static str, &'static str, &'static str);

/// A kind of tower.
pub(super) struct Kind {
    /// Values of `model_type`, or of `vision_config.model_type`.
    pub types: &'static [&'static str],
    /// `clip.projector_type`
    pub projector: &'static str,
    /// What stands before the names of its tensors.
    pub folders: &'static [&'static str],
    /// What stands before the number of a block.
    pub blocks: &'static str,
    /// Tensors of a block.
    pub parts: &'static [(&'static str, &'static str)],
    /// Tensors outside of blocks.
    pub top: &'static [(&'static str, &'static str)],
    /// Tensors whose names do not end with `.weight` or `.bias`, or whose values change.
    pub whole: &'static [(&'static str, &'static str, Convert)],
    /// Metadata, fields of `vision_config`, and their defaults.
    pub sizes: &'static [(&'static str, &'static str, Option<u32>)],
    /// The field of what is added to the variance in norms, and its default.
    pub eps: (&'static str, f64),
    /// The field of the activation, and those that are supported, the default first.
    pub act: (&'static str, &'static [&'static str]),
    /// Limits on an image, the lower one first.
    pub limits: &'static [Limit],
    /// Those limits count the pixels of so many frames.
    pub frames: u32,
    /// Limits on a video, the lower one first; empty: it reads none.
    pub video_limits: &'static [Limit],
    /// Fields of processors that must be as a field of `vision_config`, and its default.
    pub patches: &'static [(&'static str, &'static str, u32)],
    /// Mean and deviation of pixels, if the processor does not say.
    pub normal: [[f64; 3]; 2],
    /// Other metadata.
    pub further: Further,
}

const NO_FURTHER: Further = |_, _, _| Ok(());
const HALVES: [[f64; 3]; 2] = [[0.5; 3]; 2];
const TANH: &str = "gelu_pytorch_tanh";

/// Parts of a block of SigLIP.
const SIGLIP: &[(&str, &str)] = &[
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.out_proj", "attn_out"),
    ("layer_norm1", "ln1"),
    ("layer_norm2", "ln2"),
    ("mlp.fc1", "ffn_up"),
    ("mlp.fc2", "ffn_down"),
];

/// Names of sizes in most configurations.
const SIZES: &[(&str, &str, Option<u32>)] = &[
    ("embedding_length", "hidden_size", None),
    ("feed_forward_length", "intermediate_size", None),
    ("block_count", "num_hidden_layers", None),
    ("attention.head_count", "num_attention_heads", None),
    ("patch_size", "patch_size", None),
    ("image_size", "image_size", None),
];

/// All kinds that are read.
pub(super) const KINDS: &[Kind] =
    &[QWEN3, QWEN25, GEMMA3, GEMMA4, GEMMA4_UNIFIED, PIXTRAL, IDEFICS3, INTERNVL, GLM4V];

/// Qwen3-VL, Qwen3.5 and 3.6.
const QWEN3: Kind = Kind {
    types: &["qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen3_5_vision", "qwen3_5_moe_vision"],
    projector: "qwen3vl_merger",
    folders: &["visual."],
    blocks: "blocks.",
    parts: &[
        ("attn.qkv", "attn_qkv"),
        ("attn.proj", "attn_out"),
        ("norm1", "ln1"),
        ("norm2", "ln2"),
        ("mlp.linear_fc1", "ffn_up"),
        ("mlp.linear_fc2", "ffn_down"),
    ],
    top: &[
        ("patch_embed.proj", "v.patch_embd"),
        ("pos_embed", "v.position_embd"),
        ("merger.norm", "v.post_ln"),
        ("merger.linear_fc1", "mm.0"),
        ("merger.linear_fc2", "mm.2"),
    ],
    whole: &[],
    sizes: &[
        ("embedding_length", "hidden_size", None),
        ("feed_forward_length", "intermediate_size", None),
        ("block_count", "depth", None),
        ("attention.head_count", "num_heads", None),
        ("patch_size", "patch_size", None),
        ("spatial_merge_size", "spatial_merge_size", None),
        ("projection_dim", "out_hidden_size", None),
    ],
    eps: ("layer_norm_eps", 1e-6),
    act: ("hidden_act", &[TANH]),
    limits: &[
        ("image_min_pixels", "shortest_edge", "min_pixels"),
        ("image_max_pixels", "longest_edge", "max_pixels"),
    ],
    frames: 1,
    video_limits: &[("video_min_pixels", "shortest_edge", ""), ("video_max_pixels", "longest_edge", "")],
    patches: &[
        ("patch_size", "patch_size", 16),
        ("merge_size", "spatial_merge_size", 2),
        ("temporal_patch_size", "temporal_patch_size", 2),
    ],
    normal: HALVES,
    further: NO_FURTHER,
};

/// Qwen2.5-VL: most blocks attend within windows.
const QWEN25: Kind = Kind {
    types: &["qwen2_5_vl"],
    projector: "qwen2.5vl_merger",
    parts: &[
        ("attn.qkv", "attn_qkv"),
        ("attn.proj", "attn_out"),
        ("norm1", "ln1"),
        ("norm2", "ln2"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ],
    top: &[
        ("patch_embed.proj", "v.patch_embd"),
        ("merger.ln_q", "v.post_ln"),
        ("merger.mlp.0", "mm.0"),
        ("merger.mlp.2", "mm.2"),
    ],
    act: ("hidden_act", &["silu"]),
    video_limits: &[
        ("video_min_pixels", "shortest_edge", "min_pixels"),
        ("video_max_pixels", "longest_edge", "max_pixels"),
    ],
    normal: CLIP,
    further: |_, vision, put| {
        let per_second = vision.opt_f64("tokens_per_second")?.unwrap_or(4.0);
        put("tokens_per_second", Value::F64(per_second));
        put("window_size", Value::U64(vision.opt_u32("window_size")?.unwrap_or(112).into()));
        let whole = vision.opt_array("fullatt_block_indexes")?.unwrap_or_default();
        let whole: Option<Vec<i64>> = whole.iter().map(|v| v.as_i64()).collect();
        match whole {
            Some(blocks) => put("full_attention_blocks", Value::Ints(blocks)),
            None => return Err(vision.bad("fullatt_block_indexes", "is not an array of blocks")),
        }
        Ok(())
    },
    ..QWEN3
};

/// Gemma 3.
const GEMMA3: Kind = Kind {
    types: &["gemma3"],
    projector: "gemma3",
    folders: &["vision_tower.vision_model.", "vision_tower.", "multi_modal_projector."],
    blocks: "encoder.layers.",
    parts: SIGLIP,
    top: &[
        ("embeddings.patch_embedding", "v.patch_embd"),
        ("embeddings.position_embedding", "v.position_embd"),
        ("post_layernorm", "v.post_ln"),
    ],
    whole: &[
        ("mm_soft_emb_norm.weight", "mm.soft_emb_norm.weight", Convert::PlusOne),
        ("mm_input_projection_weight", "mm.input_projection.weight", Convert::None),
    ],
    sizes: SIZES,
    eps: ("layer_norm_eps", 1e-6),
    act: ("hidden_act", &[TANH]),
    limits: &[],
    frames: 1,
    video_limits: &[],
    patches: &[],
    normal: HALVES,
    further: |root, vision, put| {
        // Patches of a side of a token.
        let patches = vision.u32("image_size")? / vision.u32("patch_size")?.max(1);
        let tokens = root.opt_u32("mm_tokens_per_image")?.unwrap_or(256);
        put("projector.scale_factor", Value::U64((patches / tokens.isqrt().max(1)).into()));
        Ok(())
    },
};

/// Gemma 4; its smaller models clip what goes into projections and what comes out.
const GEMMA4: Kind = Kind {
    types: &["gemma4"],
    projector: "gemma4v",
    folders: &["vision_tower.", "embed_vision."],
    blocks: "encoder.layers.",
    parts: &[
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_out"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("input_layernorm", "ln1"),
        ("post_attention_layernorm", "attn_post_norm"),
        ("pre_feedforward_layernorm", "ln2"),
        ("post_feedforward_layernorm", "ffn_post_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ],
    top: &[("patch_embedder.input_proj", "v.patch_embd"), ("embedding_projection", "mm.input_projection")],
    whole: &[
        ("patch_embedder.position_embedding_table", "v.position_embd.weight", Convert::None),
        ("std_bias", "v.std_bias", Convert::None),
        ("std_scale", "v.std_scale", Convert::None),
    ],
    sizes: &[
        ("embedding_length", "hidden_size", None),
        ("feed_forward_length", "intermediate_size", None),
        ("block_count", "num_hidden_layers", None),
        ("attention.head_count", "num_attention_heads", None),
        ("patch_size", "patch_size", Some(16)),
        ("projector.scale_factor", "pooling_kernel_size", Some(3)),
    ],
    eps: ("rms_norm_eps", 1e-6),
    act: ("hidden_activation", &[TANH]),
    limits: &[("image_tokens", "", "max_soft_tokens")],
    frames: 1,
    video_limits: &[],
    patches: &[],
    normal: HALVES,
    further: |_, _, put| {
        put("patch_order", Value::Str("channels last".into()));
        Ok(())
    },
};

/// Mean and deviation of CLIP's training data.
const CLIP: [[f64; 3]; 2] = [[0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]];

/// Mistral's; all but Pixtral 12B have a merger of patches.
const PIXTRAL: Kind = Kind {
    types: &["mistral3", "pixtral"],
    projector: "pixtral",
    folders: &["vision_tower.", "multi_modal_projector."],
    blocks: "transformer.layers.",
    parts: &[
        ("attention.q_proj", "attn_q"),
        ("attention.k_proj", "attn_k"),
        ("attention.v_proj", "attn_v"),
        ("attention.o_proj", "attn_out"),
        ("attention_norm", "ln1"),
        ("ffn_norm", "ln2"),
        ("feed_forward.gate_proj", "ffn_gate"),
        ("feed_forward.up_proj", "ffn_up"),
        ("feed_forward.down_proj", "ffn_down"),
    ],
    top: &[
        ("patch_conv", "v.patch_embd"),
        ("ln_pre", "v.pre_ln"),
        ("norm", "mm.input_norm"),
        ("patch_merger.merging_layer", "mm.patch_merger"),
        ("linear_1", "mm.1"),
        ("linear_2", "mm.2"),
    ],
    whole: &[],
    sizes: SIZES,
    eps: ("", 1e-5),
    act: ("hidden_act", &["gelu", "silu"]),
    limits: &[("image_size", "longest_edge", "")],
    frames: 1,
    video_limits: &[],
    patches: &[],
    normal: CLIP,
    further: |root, _, put| {
        let merge = root.opt_u32("spatial_merge_size")?.unwrap_or(2);
        put("spatial_merge_size", Value::U64(merge.into()));
        put("rope_pairing", Value::Str("half".into()));
        Ok(())
    },
};

/// SmolVLM and Idefics3.
const IDEFICS3: Kind = Kind {
    types: &["smolvlm", "idefics3"],
    projector: "idefics3",
    folders: &["vision_model.", "connector."],
    top: &[
        ("embeddings.patch_embedding", "v.patch_embd"),
        ("embeddings.position_embedding", "v.position_embd"),
        ("post_layernorm", "v.post_ln"),
        ("modality_projection.proj", "mm.model.fc"),
    ],
    whole: &[],
    limits: &[("preproc_image_size", "longest_edge", "")],
    further: |root, _, put| {
        put("projector.scale_factor", Value::U64(root.opt_u32("scale_factor")?.unwrap_or(2).into()));
        Ok(())
    },
    ..GEMMA3
};

/// Gemma 4 12B, which has no blocks.
const GEMMA4_UNIFIED: Kind = Kind {
    types: &["gemma4_unified"],
    projector: "gemma4uv",
    folders: &["vision_embedder.", "embed_vision."],
    parts: &[],
    top: &[
        ("patch_dense", "v.patch_embd"),
        ("patch_ln1", "v.patch_norm.1"),
        ("patch_ln2", "v.patch_norm.2"),
        ("pos_norm", "v.patch_norm.3"),
        ("embedding_projection", "mm.input_projection"),
    ],
    whole: &[("pos_embedding", "v.position_embd.weight", Convert::None)],
    sizes: &[
        ("embedding_length", "mm_embed_dim", None),
        ("patch_size", "patch_size", Some(16)),
        ("projector.scale_factor", "pooling_kernel_size", Some(3)),
    ],
    normal: [[0.0; 3], [1.0; 3]],
    further: |_, _, put| {
        put("patch_order", Value::Str("channels last".into()));
        put("position_order", Value::Str("pairs".into()));
        Ok(())
    },
    ..GEMMA4
};

/// InternVL in transformers' form.
const INTERNVL: Kind = Kind {
    types: &["internvl", "internvl_vision"],
    projector: "internvl",
    folders: &["vision_tower.", "multi_modal_projector."],
    blocks: "encoder.layer.",
    parts: &[
        ("attention.q_proj", "attn_q"),
        ("attention.k_proj", "attn_k"),
        ("attention.v_proj", "attn_v"),
        ("attention.projection_layer", "attn_out"),
        ("attention.q_norm", "attn_q_norm"),
        ("attention.k_norm", "attn_k_norm"),
        ("layernorm_before", "ln1"),
        ("layernorm_after", "ln2"),
        ("mlp.fc1", "ffn_up"),
        ("mlp.fc2", "ffn_down"),
        ("lambda_1", "ls1"),
        ("lambda_2", "ls2"),
    ],
    top: &[
        ("embeddings.patch_embeddings.projection", "v.patch_embd"),
        ("layer_norm", "mm.model.mlp.0"),
        ("linear_1", "mm.model.mlp.1"),
        ("linear_2", "mm.model.mlp.3"),
    ],
    whole: &[
        ("embeddings.cls_token", "v.class_embd", Convert::None),
        ("embeddings.position_embeddings", "v.position_embd.weight", Convert::None),
    ],
    sizes: SIZES,
    eps: ("layer_norm_eps", 1e-6),
    act: ("hidden_act", &["gelu"]),
    limits: &[("preproc_min_tiles", "", "min_patches"), ("preproc_max_tiles", "", "max_patches")],
    frames: 1,
    video_limits: &[],
    patches: &[],
    normal: CLIP,
    further: |root, _, put| {
        let ratio = root.opt_f64("downsample_ratio")?.unwrap_or(0.5);
        let merge = 1.0 / ratio;
        if !(1.0..=16.0).contains(&merge) || merge.fract() != 0.0 {
            return Err(
                root.bad("downsample_ratio", format!("is {ratio}; expected 1 divided by a whole number"))
            );
        }
        put("projector.scale_factor", Value::U64(merge as u64));
        Ok(())
    },
};

/// GLM-4.1V, 4.5V and 4.6V.
const GLM4V: Kind = Kind {
    types: &["glm4v", "glm4v_moe", "glm46v"],
    projector: "glm4v",
    parts: QWEN25.parts,
    top: &[
        ("patch_embed.proj", "v.patch_embd"),
        ("embeddings.position_embedding", "v.position_embd"),
        ("post_conv_layernorm", "v.norm_embd"),
        ("post_layernorm", "v.post_ln"),
        ("downsample", "mm.patch_merger"),
        ("merger.proj", "mm.model.fc"),
        ("merger.post_projection_norm", "mm.post_norm"),
        ("merger.gate_proj", "mm.gate"),
        ("merger.up_proj", "mm.up"),
        ("merger.down_proj", "mm.down"),
    ],
    eps: ("rms_norm_eps", 1e-5),
    act: ("hidden_act", &["silu"]),
    frames: 2,
    video_limits: &[],
    normal: CLIP,
    ..QWEN3
};
