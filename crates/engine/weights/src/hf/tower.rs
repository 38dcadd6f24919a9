//! The vision tower of a checkpoint in the form of llama.cpp's projector files: their metadata keys and tensor names, so that the engine
//! knows one form.

use super::dir::Dir;
use super::json::Fields;
use super::{CONFIG, plain, read_headers, settings, shape, sidecars};
use crate::schemes::{self, Content, Logical};
use crate::source::{Convert, Files, Place};
use crate::{Error, Metadata, Model, TensorInfo, Value};

/// Folders of a tower's tensors.
const FOLDERS: &[&str] = &["model.visual.", "visual.", "model.language_model.visual."];

/// Values of `vision_config.model_type` or of `model_type` whose towers are those of Qwen3-VL.
const QWEN: &[&str] =
    &["qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen3_5_vision", "qwen3_5_moe_vision"];

/// Parts of a block.
const PARTS: &[(&str, &str)] = &[
    ("attn.qkv", "attn_qkv"),
    ("attn.proj", "attn_out"),
    ("norm1", "ln1"),
    ("norm2", "ln2"),
    ("mlp.linear_fc1", "ffn_up"),
    ("mlp.linear_fc2", "ffn_down"),
];

/// Tensors outside of blocks.
const TOP: &[(&str, &str)] = &[
    ("patch_embed.proj", "v.patch_embd"),
    ("pos_embed", "v.position_embd"),
    ("merger.norm", "v.post_ln"),
    ("merger.linear_fc1", "mm.0"),
    ("merger.linear_fc2", "mm.2"),
];

/// The tower of a checkpoint; `None`: it has none, or none of a known kind.
pub(super) fn open(dir: &Dir) -> Result<Option<Model>, Error> {
    let (config_path, config) = sidecars::json_file(dir, CONFIG)?;
    let root = Fields::new(&config_path, &config);
    let Some(vision) = root.opt_object("vision_config")? else { return Ok(None) };
    let kind = match vision.opt_str("model_type")? {
        Some(kind) => Some(kind),
        None => root.opt_str("model_type")?,
    };
    if !kind.is_some_and(|kind| QWEN.contains(&kind)) {
        return Ok(None);
    }
    let mut metadata = Metadata::new(&config_path);
    let deep = translate(&vision, &mut metadata)?;
    processor(dir, &mut metadata)?;
    let (files, entries) = read_headers(dir)?;
    let is_tower = |name: &str| FOLDERS.iter().any(|folder| name.starts_with(folder));
    let logical = schemes::collect(&files, entries, &settings(dir, &config_path, &config)?, is_tower)?;
    let (mut tensors, mut ignored) = (Vec::new(), Vec::new());
    for Logical { name, content } in logical {
        let Some(own) = FOLDERS.iter().find_map(|folder| name.strip_prefix(folder)) else { continue };
        match (target(own, &deep), content) {
            (None, _) => ignored.push(name),
            (Some(_), Content::Plain { entry, .. }) if entry.ggml_type().is_none() => ignored.push(name),
            (Some(to), Content::Plain { file, mut entry }) => {
                // The convolution over frames has five dimensions: its inputs become rows.
                if let [outputs, inputs, rest @ ..] = &entry.shape[..]
                    && rest.len() == 3
                    && let Some(rows) = outputs.checked_mul(*inputs)
                {
                    entry.shape = [&[rows], rest].concat();
                }
                let shape =
                    shape(&entry, false).map_err(|what| Error::tensor(&files[file].name, &name, what))?;
                tensors.push(plain(file, entry, to, shape, Convert::None));
            }
            (Some(to), Content::Quantised(q)) => {
                let info = TensorInfo { name: to, ty: q.ty(), shape: q.shape().to_vec() };
                tensors.push((info, Place::Quantised(q)));
            }
        }
    }
    if tensors.is_empty() {
        return Ok(None); // a checkpoint that was saved without it
    }
    Model::new(dir.origin(), metadata, Box::new(Files::new(files, tensors, ignored))).map(Some)
}

/// Metadata of the tower. Returns the blocks whose results the text's first layers get.
fn translate(vision: &Fields, metadata: &mut Metadata) -> Result<Vec<u32>, Error> {
    if let Some(act) = vision.opt_str("hidden_act")?
        && act != "gelu_pytorch_tanh"
    {
        return Err(vision.bad("hidden_act", format!("is '{act}'; only 'gelu_pytorch_tanh' is supported")));
    }
    metadata.insert("general.architecture", Value::Str("clip".into()));
    metadata.insert("clip.projector_type", Value::Str("qwen3vl_merger".into()));
    let mut put = |key: &str, value: Value| metadata.insert(&format!("clip.vision.{key}"), value);
    for (key, field) in [
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("block_count", "depth"),
        ("attention.head_count", "num_heads"),
        ("patch_size", "patch_size"),
        ("spatial_merge_size", "spatial_merge_size"),
        ("projection_dim", "out_hidden_size"),
    ] {
        put(key, Value::U64(vision.u32(field)?.into()));
    }
    put("attention.layer_norm_epsilon", Value::F64(1e-6));
    let layers = vision.u32("depth")?;
    let mut deep = Vec::new();
    for value in vision.opt_array("deepstack_visual_indexes")?.unwrap_or_default() {
        match value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n < layers) {
            Some(n) => deep.push(n),
            None => return Err(vision.bad("deepstack_visual_indexes", "is not an array of blocks")),
        }
    }
    // More blocks are refused by the engine.
    let flags = (0..layers.min(1024)).map(|i| Value::Bool(deep.contains(&i))).collect();
    put("is_deepstack_layers", Value::Array(flags));
    Ok(deep)
}

/// What the processor's file says of sizes and pixels.
fn processor(dir: &Dir, metadata: &mut Metadata) -> Result<(), Error> {
    let (path, own) = sidecars::json_file(dir, "preprocessor_config.json")?;
    let (all_path, all) = sidecars::json_file(dir, "processor_config.json")?;
    let (own, all) = (Fields::new(&path, &own), Fields::new(&all_path, &all));
    let fields = all.opt_object("image_processor")?.unwrap_or(own);
    let mut put = |key: &str, value: Value| metadata.insert(&format!("clip.vision.{key}"), value);
    let size = fields.opt_object("size")?;
    for (key, field, old) in [
        ("image_min_pixels", "shortest_edge", "min_pixels"),
        ("image_max_pixels", "longest_edge", "max_pixels"),
    ] {
        let new = size.as_ref().map_or(Ok(None), |s| s.opt_u32(field))?;
        if let Some(pixels) = if new.is_some() { new } else { fields.opt_u32(old)? } {
            put(key, Value::U64(pixels.into()));
        }
    }
    for field in ["image_mean", "image_std"] {
        let values = match fields.opt_array(field)? {
            None => vec![0.5; 3],
            Some(values) => values
                .iter()
                .map(|v| v.as_f64().ok_or_else(|| fields.bad(field, "is not an array of numbers")))
                .collect::<Result<_, _>>()?,
        };
        put(field, Value::Floats(values));
    }
    Ok(())
}

/// The name in a projector file of a tensor of the tower.
fn target(own: &str, deep: &[u32]) -> Option<String> {
    let (stem, end) = own.rsplit_once('.').filter(|(_, end)| matches!(*end, "weight" | "bias"))?;
    let of = |table: &[(&str, &str)], stem: &str| {
        table.iter().find(|(hf, _)| *hf == stem).map(|(_, gguf)| gguf.to_string())
    };
    let numbered = |rest: &str| -> Option<(usize, String)> {
        let (i, rest) = rest.split_once('.')?;
        Some((i.parse().ok()?, rest.to_string()))
    };
    let name = if let Some(rest) = stem.strip_prefix("blocks.") {
        let (i, part) = numbered(rest)?;
        format!("v.blk.{i}.{}", of(PARTS, &part)?)
    } else if let Some(rest) = stem.strip_prefix("deepstack_merger_list.") {
        let (i, part) = numbered(rest)?;
        let part = of(&[("norm", "norm"), ("linear_fc1", "fc1"), ("linear_fc2", "fc2")], &part)?;
        format!("v.deepstack.{}.{part}", deep.get(i)?)
    } else {
        of(TOP, stem)?
    };
    Some(format!("{name}.{end}"))
}
