//! What encoders' checkpoints have of their own: fields of config.json, names of tensors, and the projections of sentence-transformers in
//! folders beside.

use serde_json::Value as Json;

use super::arch::{Keys, Layout};
use super::dir::Dir;
use super::families::Family;
use super::json::Fields;
use super::names::{Target, numbered};
use super::sidecars::json_file;
use crate::map::Mapped;
use crate::safetensors::{self, Entry};
use crate::source::Convert;
use crate::{Error, Metadata, Value};

/// `pooling_type` of a model that ranks.
const RANK: u32 = 4;

/// The table of positions.
pub(super) const POSITIONS: &str = "position_embd.weight";

/// Leaves out the first rows of a table.
pub(super) fn skip_rows(entry: &mut Entry, shape: &mut [usize], rows: usize) -> Result<(), String> {
    match shape.first_mut() {
        Some(all) if *all > rows => {
            entry.range.start += entry.range.len() / *all * rows;
            *all -= rows;
            Ok(())
        }
        _ => Err(format!("has shape {shape:?}; positions begin in row {rows}")),
    }
}

/// Tensors outside of layers. Those of heads come last.
const TOP: &[(&str, &str)] = &[
    ("embeddings.word_embeddings", "token_embd"),
    ("embeddings.tok_embeddings", "token_embd"),
    ("embeddings.position_embeddings", "position_embd"),
    ("embeddings.token_type_embeddings", "token_types"),
    ("embeddings.LayerNorm", "token_embd_norm"),
    ("embeddings.norm", "token_embd_norm"),
    ("emb_ln", "token_embd_norm"),
    ("final_norm", "output_norm"),
];

/// The classifiers of rerankers.
const HEADS: &[(&str, &str)] = &[
    ("pooler.dense", "cls"),
    ("classifier.dense", "cls"),
    ("head.dense", "cls"),
    ("head.norm", "cls.norm"),
    ("classifier.out_proj", "cls.output"),
    ("classifier", "cls.output"),
];

/// Parts of a layer: BERT's, nomic-bert's in two forms, ModernBERT's.
const PARTS: &[(&str, &str)] = &[
    ("attention.self.query", "attn_q"),
    ("attention.self.key", "attn_k"),
    ("attention.self.value", "attn_v"),
    ("attention.output.dense", "attn_output"),
    ("attention.output.LayerNorm", "attn_output_norm"),
    ("intermediate.dense", "ffn_up"),
    ("output.dense", "ffn_down"),
    ("output.LayerNorm", "layer_output_norm"),
    ("attn.Wqkv", "attn_qkv"),
    ("attn.out_proj", "attn_output"),
    ("norm1", "attn_output_norm"),
    ("mlp.fc11", "ffn_up"),
    ("mlp.fc12", "ffn_gate"),
    ("mlp.fc2", "ffn_down"),
    ("norm2", "layer_output_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "attn_output_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("post_mlp_layernorm", "layer_output_norm"),
    ("attn_norm", "attn_norm"),
    ("attn.Wo", "attn_output"),
    ("mlp_norm", "ffn_norm"),
    ("mlp.Wi", "ffn_up"),
    ("mlp.Wo", "ffn_down"),
];

/// Fields of config.json. Returns whether the model ranks, and the row of the first position.
pub(super) fn translate(text: &Fields, family: &Family, keys: &mut Keys) -> Result<(bool, usize), Error> {
    refuse(text)?;
    keys.put("attention.causal", Value::Bool(false));
    let mut first = 0;
    if family.after_padding {
        first = text.opt_u32("pad_token_id")?.unwrap_or(1).saturating_add(1);
        let positions = text.u32("max_position_embeddings")?;
        keys.put_u32("context_length", positions.saturating_sub(first));
    }
    if let Some(trained) = text.opt_u32("max_trained_positions")? {
        // Longer ones need a scaling that the checkpoint does not state.
        let positions = text.opt_u32("n_positions")?.unwrap_or(trained);
        keys.put_u32("context_length", positions.min(trained));
    }
    if family.gguf == "modern-bert" {
        for field in ["hidden_activation", "classifier_activation"] {
            let act = text.opt_str(field)?.unwrap_or("gelu");
            if text.opt_str("hidden_activation")?.unwrap_or("gelu") != act {
                return Err(text.bad(field, format!("is '{act}', another one than hidden_activation")));
            }
            keys.put("hidden_activation", Value::Str(act.into()));
        }
        if let Some(n) = text.opt_u32("global_attn_every_n_layers")? {
            keys.put_u32("attention.sliding_window_pattern", n);
        }
        if let Some(pooling) = text.opt_str("classifier_pooling")? {
            keys.metadata.insert("octet.classifier_pooling", Value::Str(pooling.into()));
        }
    }
    let class = text.opt_strs("architectures")?.and_then(|all| all.first().copied()).unwrap_or_default();
    let ranks = class.ends_with("ForSequenceClassification");
    if ranks {
        let labels = text.opt_object("id2label")?.map_or(Ok(1), |o| Ok::<_, Error>(o.len()))?;
        if labels != 1 {
            let what = format!("has {labels} labels; of classifiers, only rerankers with one are supported");
            return Err(text.bad("id2label", what));
        }
        keys.put_u32("pooling_type", RANK);
    }
    Ok((ranks, first as usize))
}

/// Refuses configurations that would load and compute something else.
fn refuse(text: &Fields) -> Result<(), Error> {
    for (field, known) in [("position_embedding_type", "absolute"), ("activation_function", "swiglu")] {
        if let Some(other) = text.opt_str(field)?.filter(|v| *v != known) {
            return Err(text.bad(field, format!("is '{other}'; only '{known}' is supported")));
        }
    }
    for field in ["prenorm", "rotary_emb_interleaved", "is_decoder", "parallel_block", "use_rms_norm"] {
        if text.opt_bool(field)? == Some(true) {
            return Err(text.bad(field, "is true; only false is supported"));
        }
    }
    if let Some(other) = text.opt_f64("rotary_emb_fraction")?.filter(|f| *f != 1.0) {
        return Err(text.bad("rotary_emb_fraction", format!("is {other}; only 1 is supported")));
    }
    if let Some(n) = text.opt_u32("moe_every_n_layers")?.filter(|n| *n > 0) {
        let what = format!("is {n}; checkpoints with experts are not supported: use a GGUF file");
        return Err(text.bad("moe_every_n_layers", what));
    }
    Ok(())
}

/// What tensor `hf` of an encoder's checkpoint is.
pub(super) fn target(layout: &Layout, hf: &str) -> Target {
    let mut rest = hf;
    for prefix in ["model.", "bert.", "roberta.", "nomic_bert."] {
        rest = rest.strip_prefix(prefix).unwrap_or(rest);
    }
    let Some((stem, end)) = rest.rsplit_once('.') else { return Target::Unknown };
    let end = match end {
        "weight" | "gamma" => "weight",
        "bias" | "beta" => "bias",
        _ if rest == "embeddings.position_ids" => return Target::Unused,
        _ => return Target::Unknown,
    };
    let found = |name: String| Target::Tensor {
        name: format!("{name}.{end}"),
        convert: Convert::None,
        squeeze: false,
    };
    let layer = ["encoder.layer.", "encoder.layers.", "layers."].iter().find_map(|p| stem.strip_prefix(p));
    if let Some(layer) = layer {
        return match numbered(layer).and_then(|(i, stem)| Some((i, lookup(PARTS, stem)?))) {
            Some((i, name)) if i < layout.trunk => found(format!("blk.{i}.{name}")),
            _ => Target::Unknown,
        };
    }
    match (lookup(TOP, stem), lookup(HEADS, stem)) {
        (Some(name), _) => found(name.into()),
        (None, Some(name)) if layout.ranks => found(name.into()),
        _ if is_projection(hf) => found(stem.into()),
        // Those of training: predicted tokens and the next sentence.
        _ if !layout.ranks
            && ["pooler.", "cls.", "lm_head.", "head.", "decoder."].iter().any(|p| rest.starts_with(p)) =>
        {
            Target::Unused
        }
        _ => Target::Unknown,
    }
}

fn lookup<'a>(table: &[(&str, &'a str)], stem: &str) -> Option<&'a str> {
    table.iter().find(|(hf, _)| *hf == stem).map(|(_, gguf)| *gguf)
}

/// Whether a tensor is of a projection behind pooling, see [`projections`].
pub(super) fn is_projection(name: &str) -> bool {
    let number = name.strip_prefix("dense_").and_then(|rest| rest.split_once('.'));
    number.is_some_and(|(n, end)| n.parse::<usize>().is_ok() && matches!(end, "weight" | "bias"))
}

const MODULES: &str = "modules.json";
const MODULES_BYTES_MAX: usize = 1 << 20;

/// The folders of the projections behind pooling, in order.
fn folders(dir: &Dir) -> Result<Vec<String>, Error> {
    let Some(text) = dir.text(MODULES, MODULES_BYTES_MAX)? else { return Ok(Vec::new()) };
    let path = dir.path(MODULES);
    let wrong = |what: String| Error::format(&path, what);
    let modules: Json = serde_json::from_str(&text).map_err(|e| wrong(format!("is not JSON: {e}")))?;
    let mut all = Vec::new();
    let mut pooled = false;
    for module in modules.as_array().into_iter().flatten() {
        let kind = module["type"].as_str().and_then(|t| t.rsplit('.').next()).unwrap_or_default();
        match kind {
            "Pooling" => pooled = true,
            "Dense" if !pooled => {
                return Err(wrong("has a Dense module before pooling, which is not supported".into()));
            }
            "Dense" => {
                let folder = module["path"].as_str().unwrap_or_default();
                let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
                if folder.is_empty() || !folder.bytes().all(is_plain) {
                    return Err(wrong(format!("has the path '{folder}'; expected a folder beside it")));
                }
                all.push(folder.to_string());
            }
            "Transformer" | "Normalize" => {}
            other => return Err(wrong(format!("has a module '{other}', which is not supported"))),
        }
    }
    Ok(all)
}

/// Reads the projections that sentence-transformers put behind pooling, as tensors `dense_2`, `dense_3` and so on, and their activations.
pub(super) fn projections(
    dir: &Dir,
    metadata: &mut Metadata,
    files: &mut Vec<Mapped>,
    entries: &mut Vec<Vec<Entry>>,
) -> Result<(), Error> {
    for (i, folder) in folders(dir)?.into_iter().enumerate() {
        let name = format!("dense_{}", i + 2);
        let (path, fields) = json_file(dir, &format!("{folder}/config.json"))?;
        let fields = Fields::new(&path, &fields);
        let act = fields.opt_str("activation_function")?.unwrap_or("torch.nn.modules.linear.Identity");
        let act = match act.rsplit('.').next().unwrap_or_default() {
            "Identity" => "none",
            "Tanh" => "tanh",
            "GELU" => "gelu",
            "SiLU" => "silu",
            _ => return Err(fields.bad("activation_function", format!("is '{act}', which is not supported"))),
        };
        metadata.insert(&format!("octet.{name}.activation"), Value::Str(act.into()));
        let file = dir.map(&format!("{folder}/model.safetensors"))?;
        let mut tensors = safetensors::parse(&file.name, &file.bytes)?;
        for tensor in &mut tensors {
            if let Some(end) = tensor.name.strip_prefix("linear.") {
                tensor.name = format!("{name}.{end}");
            }
        }
        files.push(file);
        entries.push(tensors);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::arch::Arch;
    use super::*;

    fn name(hf: &str, ranks: bool) -> String {
        let arch = Arch::of("bert", false).expect("a family");
        let layout = Layout {
            arch,
            trunk: 2,
            mtp: 0,
            guessing: Vec::new(),
            tied: None,
            mlx: false,
            ranks,
            factors: Vec::new(),
            first_position: 0,
        };
        match target(&layout, hf) {
            Target::Tensor { name, .. } => name,
            other => format!("{other:?}"),
        }
    }

    /// Names of released files that transformers writes no more.
    #[test]
    fn older_names() {
        for (hf, want) in [
            ("bert.embeddings.LayerNorm.gamma", "token_embd_norm.weight"),
            ("encoder.layer.1.output.LayerNorm.beta", "blk.1.layer_output_norm.bias"),
            ("embeddings.position_ids", "Unused"),
            ("cls.predictions.decoder.weight", "Unused"),
            ("cls.seq_relationship.bias", "Unused"),
            ("lm_head.layer_norm.weight", "Unused"),
            // nomic-embed-text v1.5
            ("emb_ln.weight", "token_embd_norm.weight"),
            ("encoder.layers.0.attn.Wqkv.weight", "blk.0.attn_qkv.weight"),
            ("encoder.layers.0.attn.out_proj.weight", "blk.0.attn_output.weight"),
            ("encoder.layers.0.mlp.fc11.weight", "blk.0.ffn_up.weight"),
            ("encoder.layers.0.mlp.fc12.weight", "blk.0.ffn_gate.weight"),
            ("encoder.layers.0.mlp.fc2.weight", "blk.0.ffn_down.weight"),
            ("encoder.layers.0.norm1.bias", "blk.0.attn_output_norm.bias"),
            ("encoder.layers.0.norm2.weight", "blk.0.layer_output_norm.weight"),
            ("encoder.layers.2.norm2.weight", "Unknown"),
            ("encoder.layers.0.mlp.experts.bias", "Unknown"),
            ("classifier.weight", "Unknown"),
        ] {
            assert_eq!(name(hf, false), want, "{hf}");
        }
        assert_eq!(name("bert.pooler.dense.bias", true), "cls.bias");
        assert_eq!(name("classifier.weight", true), "cls.output.weight");
        assert_eq!(name("head.norm.weight", true), "cls.norm.weight");
    }
}
