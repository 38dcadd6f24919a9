//! Models whose keys and tensors are listed by kind of layer, as their GGUF files have them: architectures that the numbers of a shape do
//! not describe. Sizes are those of the published config.json.

use octet_weights::Value;

/// A model.
#[derive(Debug, PartialEq)]
pub struct Listing {
    /// Every `every`-th layer is of the second kind; the last one, too, if `last`.
    every: usize,
    last: bool,
    /// Layers at the front that are of a kind of their own in their feed-forward part.
    leading: usize,
    keys: Vec<(&'static str, Key)>,
    /// Tensors of a layer, without `blk.N.`.
    tensors: Vec<(Of, &'static str, Vec<usize>)>,
    /// Divisors of rotary frequencies, and how many of them turn.
    pub(crate) divisors: Option<(usize, usize)>,
    /// Width of the further input that each layer has for each token; 0: none.
    pub(crate) per_layer: usize,
    /// Residual streams beside the one that goes through the layers.
    pub(crate) streams: usize,
    /// The rule by which its tokenizer cuts texts.
    pub(crate) pre: &'static str,
}

/// The value of a key.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Key {
    Int(usize),
    Float(f64),
    Text(&'static str),
    Flag(bool),
    /// One for each layer: of most, and of the second kind.
    Ints(usize, usize),
    Flags(bool, bool),
    /// One for each layer: of those at the front, and of the others.
    LeadingInts(usize, usize),
    /// One for each layer: of so many first ones, and of the others.
    FirstFloats(usize, f64, f64),
    /// The number of layers behind those at the front.
    Behind,
}

/// Which layers have a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Of {
    All,
    /// All but those of the second kind.
    First,
    Second,
    Leading,
    AfterLeading,
    LeadingFirst,
    LeadingSecond,
}

use Key::{Behind, FirstFloats, Flag, Flags, Float, Int, Ints, LeadingInts, Text};
use Of::{AfterLeading, All, First, Leading, LeadingFirst, LeadingSecond, Second};

/// gpt-oss: 20b has 24 layers of 32 experts and uses 3.6 of 20.9 billion parameters a token, 120b 36 of 128 and 5.1 of 116.8. Windows in every
/// second layer.
#[rustfmt::skip] // a table
pub(crate) fn gpt_oss(experts: usize) -> Listing {
    Listing { every: 2, last: false, leading: 0, divisors: None, per_layer: 0, streams: 0, pre: "gpt-4o",
        keys: vec![
            ("context_length", Int(131_072)), ("feed_forward_length", Int(2880)), ("expert_feed_forward_length", Int(2880)),
            ("attention.head_count", Int(64)), ("attention.head_count_kv", Int(8)),
            ("attention.key_length", Int(64)), ("attention.value_length", Int(64)),
            ("attention.sliding_window", Int(128)), ("attention.layer_norm_rms_epsilon", Float(1e-5)),
            ("rope.freq_base", Float(150_000.0)), ("rope.scaling.type", Text("yarn")), ("rope.scaling.factor", Float(32.0)),
            ("rope.scaling.original_context_length", Int(4096)),
            ("expert_count", Int(experts)), ("expert_used_count", Int(4)),
        ],
        tensors: vec![
            (All, "attn_norm.weight", vec![2880]),
            (All, "attn_q.weight", vec![4096, 2880]), (All, "attn_q.bias", vec![4096]),
            (All, "attn_k.weight", vec![512, 2880]), (All, "attn_k.bias", vec![512]),
            (All, "attn_v.weight", vec![512, 2880]), (All, "attn_v.bias", vec![512]),
            (All, "attn_output.weight", vec![2880, 4096]), (All, "attn_output.bias", vec![2880]),
            (All, "attn_sinks.weight", vec![64]),
            (All, "post_attention_norm.weight", vec![2880]),
            (All, "ffn_gate_inp.weight", vec![experts, 2880]), (All, "ffn_gate_inp.bias", vec![experts]),
            (All, "ffn_gate_exps.weight", vec![experts, 2880, 2880]), (All, "ffn_gate_exps.bias", vec![experts, 2880]),
            (All, "ffn_up_exps.weight", vec![experts, 2880, 2880]), (All, "ffn_up_exps.bias", vec![experts, 2880]),
            (All, "ffn_down_exps.weight", vec![experts, 2880, 2880]), (All, "ffn_down_exps.bias", vec![experts, 2880]),
        ],
    }
}

/// What the sizes of a family's models differ in. Head sizes and key/value heads: of layers with a window, and of those without.
pub(crate) struct Gemma {
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: [usize; 2],
    pub head_dims: [usize; 2],
    pub inner: usize,
    /// Experts and their width, beside the dense part; of each token eight.
    pub experts: Option<(usize, usize)>,
}

/// Gemma 3: every sixth layer attends to everything.
#[rustfmt::skip] // a table
pub(crate) fn gemma3(g: &Gemma) -> Listing {
    let (h, [kv, _], [d, _]) = (g.hidden, g.kv_heads, g.head_dims);
    Listing { every: 6, last: false, leading: 0, divisors: None, per_layer: 0, streams: 0, pre: "qwen2",
        keys: vec![
            ("context_length", Int(131_072)), ("feed_forward_length", Int(g.inner)),
            ("attention.head_count", Int(g.heads)), ("attention.head_count_kv", Int(kv)),
            ("attention.key_length", Int(d)), ("attention.value_length", Int(d)),
            ("attention.sliding_window", Int(1024)), ("attention.layer_norm_rms_epsilon", Float(1e-6)),
            ("rope.freq_base", Float(1e6)), ("rope.scaling.type", Text("linear")), ("rope.scaling.factor", Float(8.0)),
        ],
        tensors: vec![
            (All, "attn_norm.weight", vec![h]),
            (All, "attn_q.weight", vec![g.heads * d, h]), (All, "attn_k.weight", vec![kv * d, h]), (All, "attn_v.weight", vec![kv * d, h]),
            (All, "attn_output.weight", vec![h, g.heads * d]),
            (All, "attn_q_norm.weight", vec![d]), (All, "attn_k_norm.weight", vec![d]),
            (All, "post_attention_norm.weight", vec![h]), (All, "ffn_norm.weight", vec![h]), (All, "post_ffw_norm.weight", vec![h]),
            (All, "ffn_gate.weight", vec![g.inner, h]), (All, "ffn_up.weight", vec![g.inner, h]), (All, "ffn_down.weight", vec![h, g.inner]),
        ],
    }
}

/// Gemma 4: 26B-A4B uses 3.8 of 25.2 billion parameters a token, 31B is dense. Every sixth layer attends to everything, with wider heads and
/// keys that are the values.
#[rustfmt::skip] // a table
pub(crate) fn gemma4(g: &Gemma) -> Listing {
    let (h, [kv, kv_all], [d, d_all]) = (g.hidden, g.kv_heads, g.head_dims);
    let (q, q_all) = (g.heads * d, g.heads * d_all);
    let mut keys = vec![
        ("context_length", Int(262_144)), ("feed_forward_length", Int(g.inner)),
        ("attention.head_count", Int(g.heads)), ("attention.head_count_kv", Ints(kv, kv_all)),
        ("attention.key_length", Int(d_all)), ("attention.value_length", Int(d_all)),
        ("attention.key_length_swa", Int(d)), ("attention.value_length_swa", Int(d)),
        ("attention.sliding_window", Int(1024)), ("attention.sliding_window_pattern", Flags(true, false)),
        ("attention.shared_kv_layers", Int(0)), ("attention.layer_norm_rms_epsilon", Float(1e-6)),
        ("rope.freq_base", Float(1e6)), ("rope.freq_base_swa", Float(1e4)),
        ("rope.dimension_count", Int(d_all)), ("rope.dimension_count_swa", Int(d)),
        ("final_logit_softcapping", Float(30.0)), ("embedding_length_per_layer_input", Int(0)),
    ];
    let mut tensors = vec![
        (All, "attn_norm.weight", vec![h]),
        (First, "attn_q.weight", vec![q, h]), (Second, "attn_q.weight", vec![q_all, h]),
        (First, "attn_k.weight", vec![kv * d, h]), (Second, "attn_k.weight", vec![kv_all * d_all, h]),
        (First, "attn_v.weight", vec![kv * d, h]),
        (First, "attn_output.weight", vec![h, q]), (Second, "attn_output.weight", vec![h, q_all]),
        (First, "attn_q_norm.weight", vec![d]), (Second, "attn_q_norm.weight", vec![d_all]),
        (First, "attn_k_norm.weight", vec![d]), (Second, "attn_k_norm.weight", vec![d_all]),
        (All, "post_attention_norm.weight", vec![h]), (All, "ffn_norm.weight", vec![h]), (All, "post_ffw_norm.weight", vec![h]),
        (All, "ffn_gate.weight", vec![g.inner, h]), (All, "ffn_up.weight", vec![g.inner, h]), (All, "ffn_down.weight", vec![h, g.inner]),
        (All, "layer_output_scale.weight", vec![1]),
    ];
    if let Some((experts, inner)) = g.experts {
        keys.extend([("expert_feed_forward_length", Int(inner)), ("expert_count", Int(experts)), ("expert_used_count", Int(8))]);
        tensors.extend([
            (All, "pre_ffw_norm_2.weight", vec![h]), (All, "post_ffw_norm_1.weight", vec![h]), (All, "post_ffw_norm_2.weight", vec![h]),
            (All, "ffn_gate_inp.weight", vec![experts, h]), (All, "ffn_gate_inp.scale", vec![h]),
            (All, "ffn_gate_up_exps.weight", vec![experts, 2 * inner, h]),
            (All, "ffn_down_exps.weight", vec![experts, h, inner]), (All, "ffn_down_exps.scale", vec![experts]),
        ]);
    }
    // A quarter of the pairs turn.
    Listing { every: 6, last: false, leading: 0, divisors: Some((d_all / 2, d_all / 8)), per_layer: 0, streams: 0, pre: "qwen2", keys, tensors }
}

/// Gemma 4 E2B and E4B: layers behind the first `own` use keys and values of earlier ones, and have feed-forward blocks of another width; each layer
/// has an input of its own.
#[rustfmt::skip] // a table
pub(crate) fn gemma4_small(g: &Gemma, own: usize, inner: usize, every: usize) -> Listing {
    const WIDTH: usize = 256;
    let (h, kv, [d, d_all]) = (g.hidden, g.kv_heads[0], g.head_dims);
    let (q, q_all) = (g.heads * d, g.heads * d_all);
    let keys = vec![
        ("context_length", Int(131_072)), ("feed_forward_length", LeadingInts(g.inner, inner)),
        ("attention.head_count", Int(g.heads)), ("attention.head_count_kv", Int(kv)),
        ("attention.key_length", Int(d_all)), ("attention.value_length", Int(d_all)),
        ("attention.key_length_swa", Int(d)), ("attention.value_length_swa", Int(d)),
        ("attention.sliding_window", Int(512)), ("attention.sliding_window_pattern", Flags(true, false)),
        ("attention.shared_kv_layers", Behind), ("attention.layer_norm_rms_epsilon", Float(1e-6)),
        ("rope.freq_base", Float(1e6)), ("rope.freq_base_swa", Float(1e4)),
        ("rope.dimension_count", Int(d_all)), ("rope.dimension_count_swa", Int(d)),
        ("final_logit_softcapping", Float(30.0)), ("embedding_length_per_layer_input", Int(WIDTH)),
    ];
    let mut tensors = vec![
        (All, "attn_norm.weight", vec![h]),
        (First, "attn_q.weight", vec![q, h]), (Second, "attn_q.weight", vec![q_all, h]),
        (First, "attn_output.weight", vec![h, q]), (Second, "attn_output.weight", vec![h, q_all]),
        (First, "attn_q_norm.weight", vec![d]), (Second, "attn_q_norm.weight", vec![d_all]),
        (All, "post_attention_norm.weight", vec![h]), (All, "ffn_norm.weight", vec![h]), (All, "post_ffw_norm.weight", vec![h]),
        (All, "inp_gate.weight", vec![WIDTH, h]), (All, "proj.weight", vec![h, WIDTH]), (All, "post_norm.weight", vec![h]),
        (All, "layer_output_scale.weight", vec![1]),
    ];
    for (of, d) in [(LeadingFirst, d), (LeadingSecond, d_all)] {
        tensors.extend([
            (of, "attn_k.weight", vec![kv * d, h]), (of, "attn_v.weight", vec![kv * d, h]), (of, "attn_k_norm.weight", vec![d]),
        ]);
    }
    for (of, n) in [(Leading, g.inner), (AfterLeading, inner)] {
        tensors.extend([
            (of, "ffn_gate.weight", vec![n, h]), (of, "ffn_up.weight", vec![n, h]), (of, "ffn_down.weight", vec![h, n]),
        ]);
    }
    let divisors = Some((d_all / 2, d_all / 8));
    Listing { every, last: false, leading: own, divisors, per_layer: WIDTH, streams: 0, pre: "qwen2", keys, tensors }
}

/// Gemma 3n: layers behind the first 20 use keys and values of earlier ones, though files have their own; each layer has an input of its own, and
/// predicts and corrects four residual streams.
#[rustfmt::skip] // a table
pub(crate) fn gemma3n(inner: usize) -> Listing {
    const H: usize = 2048;
    const WIDTH: usize = 256;
    const STREAMS: usize = 4;
    let keys = vec![
        ("context_length", Int(32_768)), ("feed_forward_length", Int(inner)),
        ("attention.head_count", Int(8)), ("attention.head_count_kv", Int(2)),
        ("attention.key_length", Int(256)), ("attention.value_length", Int(256)),
        ("attention.sliding_window", Int(512)), ("attention.sliding_window_pattern", Flags(true, false)),
        ("attention.shared_kv_layers", Behind), ("attention.layer_norm_rms_epsilon", Float(1e-6)),
        ("rope.freq_base", Float(1e6)), ("rope.freq_base_swa", Float(1e4)), ("rope.dimension_count", Int(256)),
        ("final_logit_softcapping", Float(30.0)), ("embedding_length_per_layer_input", Int(WIDTH)),
        ("altup.num_inputs", Int(STREAMS)), ("altup.active_idx", Int(0)),
        ("activation_sparsity_scale", FirstFloats(10, 1.644_853_4, f64::NEG_INFINITY)),
    ];
    let tensors = vec![
        (All, "attn_norm.weight", vec![H]),
        (All, "attn_q.weight", vec![2048, H]), (All, "attn_k.weight", vec![512, H]), (All, "attn_v.weight", vec![512, H]),
        (All, "attn_output.weight", vec![H, 2048]), (All, "attn_q_norm.weight", vec![256]), (All, "attn_k_norm.weight", vec![256]),
        (All, "post_attention_norm.weight", vec![H]), (All, "ffn_norm.weight", vec![H]), (All, "post_ffw_norm.weight", vec![H]),
        (All, "ffn_gate.weight", vec![inner, H]), (All, "ffn_up.weight", vec![inner, H]), (All, "ffn_down.weight", vec![H, inner]),
        (All, "inp_gate.weight", vec![WIDTH, H]), (All, "proj.weight", vec![H, WIDTH]), (All, "post_norm.weight", vec![H]),
        (All, "altup_router.weight", vec![STREAMS, H]), (All, "altup_router_norm.weight", vec![H]),
        (All, "altup_predict_coef.weight", vec![STREAMS * STREAMS, STREAMS]),
        (All, "altup_correct_coef.weight", vec![STREAMS, STREAMS]), (All, "altup_correct_scale.weight", vec![H]),
        (All, "laurel_l.weight", vec![64, H]), (All, "laurel_r.weight", vec![H, 64]), (All, "laurel_post_norm.weight", vec![H]),
    ];
    Listing { every: 5, last: false, leading: 20, divisors: None, per_layer: WIDTH, streams: STREAMS - 1, pre: "qwen2", keys, tensors }
}

/// GLM-4.7-Flash: 3 of 30 billion parameters a token; latent attention.
#[rustfmt::skip] // a table
pub(crate) fn glm_4_7_flash() -> Listing {
    Listing {
        every: usize::MAX, last: false, leading: 1, divisors: None, per_layer: 0, streams: 0, pre: "glm4",
        keys: vec![
            ("context_length", Int(202_752)), ("feed_forward_length", Int(10_240)), ("expert_feed_forward_length", Int(1536)),
            ("vocab_size", Int(154_880)), ("leading_dense_block_count", Int(1)),
            ("attention.head_count", Int(20)), ("attention.head_count_kv", Int(1)),
            ("attention.q_lora_rank", Int(768)), ("attention.kv_lora_rank", Int(512)),
            ("attention.key_length", Int(576)), ("attention.value_length", Int(512)),
            ("attention.key_length_mla", Int(256)), ("attention.value_length_mla", Int(256)),
            ("attention.layer_norm_rms_epsilon", Float(1e-5)),
            ("rope.dimension_count", Int(64)), ("rope.freq_base", Float(1e6)),
            ("expert_count", Int(64)), ("expert_used_count", Int(4)), ("expert_shared_count", Int(1)),
            ("expert_group_count", Int(1)), ("expert_group_used_count", Int(1)), ("expert_gating_func", Int(2)),
            ("expert_weights_scale", Float(1.8)), ("expert_weights_norm", Flag(true)),
        ],
        tensors: vec![
            (All, "attn_norm.weight", vec![2048]),
            (All, "attn_q_a.weight", vec![768, 2048]), (All, "attn_q_a_norm.weight", vec![768]), (All, "attn_q_b.weight", vec![5120, 768]),
            (All, "attn_kv_a_mqa.weight", vec![576, 2048]), (All, "attn_kv_a_norm.weight", vec![512]),
            (All, "attn_k_b.weight", vec![20, 512, 192]), (All, "attn_v_b.weight", vec![20, 256, 512]),
            (All, "attn_output.weight", vec![2048, 5120]),
            (All, "ffn_norm.weight", vec![2048]),
            (Leading, "ffn_gate.weight", vec![10_240, 2048]), (Leading, "ffn_up.weight", vec![10_240, 2048]),
            (Leading, "ffn_down.weight", vec![2048, 10_240]),
            (AfterLeading, "ffn_gate_inp.weight", vec![64, 2048]), (AfterLeading, "exp_probs_b.bias", vec![64]),
            (AfterLeading, "ffn_gate_exps.weight", vec![64, 1536, 2048]), (AfterLeading, "ffn_up_exps.weight", vec![64, 1536, 2048]),
            (AfterLeading, "ffn_down_exps.weight", vec![64, 2048, 1536]),
            (AfterLeading, "ffn_gate_shexp.weight", vec![1536, 2048]), (AfterLeading, "ffn_up_shexp.weight", vec![1536, 2048]),
            (AfterLeading, "ffn_down_shexp.weight", vec![2048, 1536]),
        ],
    }
}

/// Qwen3-Next-80B-A3B and Qwen3-Coder-Next: three layers of Gated DeltaNet, one of attention; 512 experts.
#[rustfmt::skip] // a table
pub(crate) fn qwen3_next() -> Listing {
    Listing {
        every: 4, last: false, leading: 0, divisors: None, per_layer: 0, streams: 0, pre: "qwen2",
        keys: vec![
            ("context_length", Int(262_144)), ("feed_forward_length", Int(5120)),
            ("expert_feed_forward_length", Int(512)), ("expert_shared_feed_forward_length", Int(512)),
            ("attention.head_count", Int(16)), ("attention.head_count_kv", Int(2)),
            ("attention.key_length", Int(256)), ("attention.value_length", Int(256)),
            ("attention.layer_norm_rms_epsilon", Float(1e-6)), ("attention.recurrent_layers", Flags(true, false)),
            ("full_attention_interval", Int(4)), ("rope.dimension_count", Int(64)), ("rope.freq_base", Float(1e7)),
            ("ssm.conv_kernel", Int(4)), ("ssm.state_size", Int(128)), ("ssm.group_count", Int(16)),
            ("ssm.time_step_rank", Int(32)), ("ssm.inner_size", Int(4096)),
            ("expert_count", Int(512)), ("expert_used_count", Int(10)),
        ],
        tensors: vec![
            (All, "attn_norm.weight", vec![2048]),
            (First, "attn_qkv.weight", vec![8192, 2048]), (First, "attn_gate.weight", vec![4096, 2048]), (First, "ssm_ba.weight", vec![64, 2048]),
            (First, "ssm_conv1d.weight", vec![8192, 4]), (First, "ssm_a", vec![32]), (First, "ssm_dt.bias", vec![32]),
            (First, "ssm_norm.weight", vec![128]), (First, "ssm_out.weight", vec![2048, 4096]),
            (Second, "attn_q.weight", vec![8192, 2048]), (Second, "attn_k.weight", vec![512, 2048]), (Second, "attn_v.weight", vec![512, 2048]),
            (Second, "attn_q_norm.weight", vec![256]), (Second, "attn_k_norm.weight", vec![256]), (Second, "attn_output.weight", vec![2048, 4096]),
            (All, "post_attention_norm.weight", vec![2048]),
            (All, "ffn_gate_inp.weight", vec![512, 2048]), (All, "ffn_gate_inp_shexp.weight", vec![2048]),
            (All, "ffn_gate_exps.weight", vec![512, 512, 2048]), (All, "ffn_up_exps.weight", vec![512, 512, 2048]),
            (All, "ffn_down_exps.weight", vec![512, 2048, 512]),
            (All, "ffn_gate_shexp.weight", vec![512, 2048]), (All, "ffn_up_shexp.weight", vec![512, 2048]),
            (All, "ffn_down_shexp.weight", vec![2048, 512]),
        ],
    }
}

/// Kimi-Linear-48B-A3B: three layers of Kimi Delta Attention, one of latent attention; so is the last one. 256 experts.
#[rustfmt::skip] // a table
pub(crate) fn kimi_linear() -> Listing {
    Listing {
        every: 4, last: true, leading: 1, divisors: None, per_layer: 0, streams: 0, pre: "kimi-k2",
        keys: vec![
            ("context_length", Int(1_048_576)), ("feed_forward_length", Int(9216)), ("expert_feed_forward_length", Int(1024)),
            ("vocab_size", Int(163_840)), ("leading_dense_block_count", Int(1)),
            ("attention.head_count", Int(32)), ("attention.head_count_kv", Ints(0, 1)),
            ("attention.kv_lora_rank", Int(512)), ("attention.key_length", Int(576)), ("attention.value_length", Int(512)),
            ("attention.key_length_mla", Int(192)), ("attention.value_length_mla", Int(128)),
            ("attention.layer_norm_rms_epsilon", Float(1e-5)),
            ("rope.dimension_count", Int(64)), ("rope.freq_base", Float(1e4)),
            ("ssm.conv_kernel", Int(4)), ("kda.head_dim", Int(128)),
            ("expert_count", Int(256)), ("expert_used_count", Int(8)), ("expert_shared_count", Int(1)),
            ("expert_gating_func", Int(2)), ("expert_weights_scale", Float(2.446)),
        ],
        tensors: vec![
            (All, "attn_norm.weight", vec![2304]),
            (First, "attn_q.weight", vec![4096, 2304]), (First, "attn_k.weight", vec![4096, 2304]), (First, "attn_v.weight", vec![4096, 2304]),
            (First, "ssm_conv1d_q.weight", vec![4096, 4]), (First, "ssm_conv1d_k.weight", vec![4096, 4]), (First, "ssm_conv1d_v.weight", vec![4096, 4]),
            (First, "ssm_f_a.weight", vec![128, 2304]), (First, "ssm_f_b.weight", vec![4096, 128]),
            (First, "ssm_g_a.weight", vec![128, 2304]), (First, "ssm_g_b.weight", vec![4096, 128]),
            (First, "ssm_beta.weight", vec![32, 2304]), (First, "ssm_a", vec![32]), (First, "ssm_dt.bias", vec![4096]),
            (First, "ssm_norm.weight", vec![128]),
            (Second, "attn_q.weight", vec![6144, 2304]),
            (Second, "attn_kv_a_mqa.weight", vec![576, 2304]), (Second, "attn_kv_a_norm.weight", vec![512]),
            (Second, "attn_k_b.weight", vec![32, 512, 128]), (Second, "attn_v_b.weight", vec![32, 128, 512]),
            (All, "attn_output.weight", vec![2304, 4096]),
            (All, "ffn_norm.weight", vec![2304]),
            (Leading, "ffn_gate.weight", vec![9216, 2304]), (Leading, "ffn_up.weight", vec![9216, 2304]),
            (Leading, "ffn_down.weight", vec![2304, 9216]),
            (AfterLeading, "ffn_gate_inp.weight", vec![256, 2304]), (AfterLeading, "exp_probs_b.bias", vec![256]),
            (AfterLeading, "ffn_gate_exps.weight", vec![256, 1024, 2304]), (AfterLeading, "ffn_up_exps.weight", vec![256, 1024, 2304]),
            (AfterLeading, "ffn_down_exps.weight", vec![256, 2304, 1024]),
            (AfterLeading, "ffn_gate_shexp.weight", vec![1024, 2304]), (AfterLeading, "ffn_up_shexp.weight", vec![1024, 2304]),
            (AfterLeading, "ffn_down_shexp.weight", vec![2304, 1024]),
        ],
    }
}

/// Phi-3.5-MoE: 6.6 of 41.9 billion parameters a token.
#[rustfmt::skip] // a table
pub(crate) fn phi_3_5_moe() -> Listing {
    Listing {
        every: usize::MAX, last: false, leading: 0, divisors: None, per_layer: 0, streams: 0, pre: "llama-bpe",
        keys: vec![
            ("context_length", Int(131_072)), ("feed_forward_length", Int(6400)),
            ("attention.head_count", Int(32)), ("attention.head_count_kv", Int(8)),
            ("attention.layer_norm_rms_epsilon", Float(1e-5)),
            ("rope.dimension_count", Int(128)), ("rope.freq_base", Float(1e4)),
            ("expert_count", Int(16)), ("expert_used_count", Int(2)),
        ],
        tensors: vec![
            (All, "attn_norm.weight", vec![4096]), (All, "attn_norm.bias", vec![4096]),
            (All, "attn_q.weight", vec![4096, 4096]), (All, "attn_q.bias", vec![4096]),
            (All, "attn_k.weight", vec![1024, 4096]), (All, "attn_k.bias", vec![1024]),
            (All, "attn_v.weight", vec![1024, 4096]), (All, "attn_v.bias", vec![1024]),
            (All, "attn_output.weight", vec![4096, 4096]), (All, "attn_output.bias", vec![4096]),
            (All, "ffn_norm.weight", vec![4096]), (All, "ffn_norm.bias", vec![4096]),
            (All, "ffn_gate_inp.weight", vec![16, 4096]),
            (All, "ffn_gate_exps.weight", vec![16, 6400, 4096]), (All, "ffn_up_exps.weight", vec![16, 6400, 4096]),
            (All, "ffn_down_exps.weight", vec![16, 4096, 6400]),
        ],
    }
}

/// Laguna XS 2.1: 3 of 33 billion parameters a token. The layers without windows, a quarter, are fewer heads wide; in the published model
/// they are the first ones of four, and here the last ones.
#[rustfmt::skip] // a table
pub(crate) fn laguna_xs() -> Listing {
    Listing {
        every: 4, last: false, leading: 1, divisors: None, per_layer: 0, streams: 0, pre: "laguna",
        keys: vec![
            ("context_length", Int(262_144)), ("feed_forward_length", Int(8192)), ("expert_feed_forward_length", Int(512)),
            ("expert_shared_feed_forward_length", Int(512)), ("leading_dense_block_count", Int(1)),
            ("attention.head_count", Ints(64, 48)), ("attention.head_count_kv", Int(8)),
            ("attention.key_length", Int(128)), ("attention.value_length", Int(128)),
            ("attention.sliding_window", Int(512)), ("attention.sliding_window_pattern", Flags(true, false)),
            ("attention.layer_norm_rms_epsilon", Float(1e-6)),
            ("rope.dimension_count", Int(64)), ("rope.dimension_count_swa", Int(128)),
            ("rope.freq_base", Float(5e5)), ("rope.freq_base_swa", Float(1e4)),
            ("rope.scaling.type", Text("yarn")), ("rope.scaling.factor", Float(32.0)),
            ("rope.scaling.original_context_length", Int(8192)),
            ("expert_count", Int(256)), ("expert_used_count", Int(8)), ("expert_weights_scale", Float(2.5)),
            ("expert_weights_norm", Flag(true)), ("expert_gating_func", Int(2)),
        ],
        tensors: vec![
            (All, "attn_norm.weight", vec![2048]),
            (First, "attn_q.weight", vec![8192, 2048]), (Second, "attn_q.weight", vec![6144, 2048]),
            (All, "attn_k.weight", vec![1024, 2048]), (All, "attn_v.weight", vec![1024, 2048]),
            (First, "attn_output.weight", vec![2048, 8192]), (Second, "attn_output.weight", vec![2048, 6144]),
            (All, "attn_q_norm.weight", vec![128]), (All, "attn_k_norm.weight", vec![128]),
            (First, "attn_gate.weight", vec![64, 2048]), (Second, "attn_gate.weight", vec![48, 2048]),
            (All, "ffn_norm.weight", vec![2048]),
            (Leading, "ffn_gate.weight", vec![8192, 2048]), (Leading, "ffn_up.weight", vec![8192, 2048]),
            (Leading, "ffn_down.weight", vec![2048, 8192]),
            (AfterLeading, "ffn_gate_inp.weight", vec![256, 2048]), (AfterLeading, "exp_probs_b.bias", vec![256]),
            (AfterLeading, "ffn_gate_exps.weight", vec![256, 512, 2048]), (AfterLeading, "ffn_up_exps.weight", vec![256, 512, 2048]),
            (AfterLeading, "ffn_down_exps.weight", vec![256, 2048, 512]),
            (AfterLeading, "ffn_gate_shexp.weight", vec![512, 2048]), (AfterLeading, "ffn_up_shexp.weight", vec![512, 2048]),
            (AfterLeading, "ffn_down_shexp.weight", vec![2048, 512]),
        ],
    }
}

/// Step-3.5-Flash: 11 of 197 billion parameters a token. Layers as in [`laguna_xs`].
#[rustfmt::skip] // a table
pub(crate) fn step_3_5_flash() -> Listing {
    Listing {
        every: 4, last: true, leading: 3, divisors: None, per_layer: 0, streams: 0, pre: "deepseek-v3",
        keys: vec![
            ("context_length", Int(262_144)), ("feed_forward_length", Int(11_264)), ("expert_feed_forward_length", Int(1280)),
            ("expert_shared_feed_forward_length", Int(1280)), ("leading_dense_block_count", Int(3)),
            ("attention.head_count", Ints(96, 64)), ("attention.head_count_kv", Ints(8, 8)),
            ("attention.key_length", Int(128)), ("attention.value_length", Int(128)),
            ("attention.sliding_window", Int(512)), ("attention.sliding_window_pattern", Flags(true, false)),
            ("attention.layer_norm_rms_epsilon", Float(1e-5)),
            ("rope.dimension_count", Int(128)), ("rope.freq_base", Float(5e6)), ("rope.freq_base_swa", Float(1e4)),
            ("expert_count", Int(288)), ("expert_used_count", Int(8)), ("expert_weights_scale", Float(3.0)),
            ("expert_weights_norm", Flag(true)), ("expert_gating_func", Int(2)),
        ],
        tensors: vec![
            (All, "attn_norm.weight", vec![4096]),
            (First, "attn_q.weight", vec![12_288, 4096]), (Second, "attn_q.weight", vec![8192, 4096]),
            (All, "attn_k.weight", vec![1024, 4096]), (All, "attn_v.weight", vec![1024, 4096]),
            (First, "attn_output.weight", vec![4096, 12_288]), (Second, "attn_output.weight", vec![4096, 8192]),
            (All, "attn_q_norm.weight", vec![128]), (All, "attn_k_norm.weight", vec![128]),
            (First, "attn_gate.weight", vec![96, 4096]), (Second, "attn_gate.weight", vec![64, 4096]),
            (All, "ffn_norm.weight", vec![4096]),
            (Leading, "ffn_gate.weight", vec![11_264, 4096]), (Leading, "ffn_up.weight", vec![11_264, 4096]),
            (Leading, "ffn_down.weight", vec![4096, 11_264]),
            (AfterLeading, "ffn_gate_inp.weight", vec![288, 4096]), (AfterLeading, "exp_probs_b.bias", vec![288]),
            (AfterLeading, "ffn_gate_exps.weight", vec![288, 1280, 4096]), (AfterLeading, "ffn_up_exps.weight", vec![288, 1280, 4096]),
            (AfterLeading, "ffn_down_exps.weight", vec![288, 4096, 1280]),
            (AfterLeading, "ffn_gate_shexp.weight", vec![1280, 4096]), (AfterLeading, "ffn_up_shexp.weight", vec![1280, 4096]),
            (AfterLeading, "ffn_down_shexp.weight", vec![4096, 1280]),
        ],
    }
}

impl Listing {
    /// Whether layer `i` of `layers` is of the second kind. Few layers have both kinds all the same.
    fn is_second(&self, i: usize, layers: usize) -> bool {
        self.every < usize::MAX && (i + 1).is_multiple_of(self.every.min(layers.max(2)))
            || self.last && layers > 1 && i + 1 == layers
    }

    fn has(&self, of: Of, i: usize, layers: usize) -> bool {
        match of {
            All => true,
            First => !self.is_second(i, layers),
            Second => self.is_second(i, layers),
            Leading => i < self.leading,
            AfterLeading => i >= self.leading,
            LeadingFirst => i < self.leading && !self.is_second(i, layers),
            LeadingSecond => i < self.leading && self.is_second(i, layers),
        }
    }

    /// How many experts a layer has.
    pub(crate) fn experts(&self) -> usize {
        let count = self.keys.iter().find(|(key, _)| *key == "expert_count");
        if let Some((_, Int(n))) = count { *n } else { 0 }
    }

    /// The keys of its architecture with so many layers, without the architecture's name.
    pub(crate) fn keys(&self, layers: usize) -> impl Iterator<Item = (&'static str, Value)> {
        let number = |n: usize| Value::U64(n as u64);
        let second = move |i: usize| self.is_second(i, layers);
        self.keys.iter().map(move |(key, value)| {
            let value = match *value {
                Int(n) => number(n),
                // F32 in files: rounded here already, so that a written file reads back equal.
                Float(x) => Value::F64((x as f32).into()),
                Text(text) => Value::Str(text.into()),
                Flag(is) => Value::Bool(is),
                Ints(a, b) => {
                    Value::Ints((0..layers).map(|i| if second(i) { b } else { a } as i64).collect())
                }
                LeadingInts(a, b) => {
                    Value::Ints((0..layers).map(|i| if i < self.leading { a } else { b } as i64).collect())
                }
                FirstFloats(n, a, b) => {
                    let one = |i| f64::from(if i < n { a } else { b } as f32);
                    Value::Floats((0..layers).map(one).collect())
                }
                Behind => number(layers.saturating_sub(self.leading)),
                Flags(a, b) => {
                    Value::Array((0..layers).map(|i| Value::Bool(if second(i) { b } else { a })).collect())
                }
            };
            (*key, value)
        })
    }

    /// The tensors of layer `i` of `layers`: names without the layer's, and dimensions.
    pub(crate) fn tensors(&self, i: usize, layers: usize) -> impl Iterator<Item = (&'static str, &[usize])> {
        let of_layer = self.tensors.iter().filter(move |(of, ..)| self.has(*of, i, layers));
        of_layer.map(|(_, name, dims)| (*name, &dims[..]))
    }
}
