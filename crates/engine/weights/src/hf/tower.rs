//! The vision tower of a checkpoint in the form of llama.cpp's projector files: their metadata keys and tensor names, so that the engine
//! knows one form. `tower_kinds` has the tables.

use super::dir::Dir;
use super::json::Fields;
use super::tower_kinds::{KINDS, Kind};
use super::{CONFIG, config, plain, processor, read_headers, settings, shape, sidecars};
use crate::schemes::{self, Content, Logical};
use crate::source::{Convert, Files, Place};
use crate::{Error, Metadata, Model, TensorInfo, Value};

/// What may stand before a tower's names.
const ROOTS: &[&str] = &["model.", "language_model.", "model.language_model."];

/// Blocks whose results the text's first layers get.
type Deep = Vec<u32>;

/// The tower of a checkpoint; `None`: it has none, or none of a known kind.
pub(super) fn open(dir: &Dir) -> Result<Option<Model>, Error> {
    let (config_path, config) = sidecars::json_file(dir, CONFIG)?;
    let root = Fields::new(&config_path, &config);
    let Some(vision) = root.opt_object("vision_config")? else { return Ok(None) };
    // Of towers that several models have, the model's name decides.
    let names = [root.opt_str("model_type")?, vision.opt_str("model_type")?];
    let Some(kind) = KINDS.iter().find(|k| names.iter().flatten().any(|name| k.types.contains(name))) else {
        return Ok(None);
    };
    let mut metadata = Metadata::new(&config_path);
    let deep = translate(kind, &root, &vision, &mut metadata)?;
    processor::read(kind, dir, &vision, &mut metadata)?;
    let (files, entries) = read_headers(dir)?;
    let is_tower = |name: &str| kind.own(name).is_some();
    let logical = schemes::collect(&files, entries, &settings(dir, &config_path, &config)?, is_tower)?;
    let (mut tensors, mut ignored) = (Vec::new(), Vec::new());
    for Logical { name, content } in logical {
        let Some(own) = kind.own(&name) else { continue };
        match (kind.target(own, &deep), content) {
            (None, _) => ignored.push(name),
            (Some(_), Content::Plain { entry, .. }) if entry.ggml_type().is_none() => ignored.push(name),
            (Some((to, convert)), Content::Plain { file, mut entry }) => {
                match &entry.shape[..] {
                    // A single value.
                    [] => entry.shape = vec![1],
                    // The convolution over frames has five dimensions: its inputs become rows.
                    [outputs, inputs, rest @ ..] if rest.len() == 3 => {
                        if let Some(rows) = outputs.checked_mul(*inputs) {
                            entry.shape = [&[rows], rest].concat();
                        }
                    }
                    _ => {}
                }
                let shape =
                    shape(&entry, false).map_err(|what| Error::tensor(&files[file].name, &name, what))?;
                tensors.push(plain(file, entry, to, shape, convert));
            }
            (Some((to, _)), Content::Quantised(q)) => {
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

/// Metadata of the tower.
fn translate(kind: &Kind, root: &Fields, vision: &Fields, metadata: &mut Metadata) -> Result<Deep, Error> {
    let (field, known) = kind.act;
    let act = vision.opt_str(field)?.unwrap_or(known[0]);
    if !known.contains(&act) {
        let known = known.join("' and '");
        return Err(vision.bad(field, format!("is '{act}'; only '{known}' can be used here")));
    }
    metadata.insert("clip.use_silu", Value::Bool(act == "silu"));
    metadata.insert("general.architecture", Value::Str("clip".into()));
    metadata.insert("clip.projector_type", Value::Str(kind.projector.into()));
    let mut put = |key: &str, value: Value| {
        metadata.insert(&format!("clip.vision.{key}"), value);
    };
    for (key, field, default) in kind.sizes {
        match (size(vision, field)?, default) {
            (Some(n), _) => put(key, Value::U64(n.into())),
            (None, Some(n)) => put(key, Value::U64((*n).into())),
            (None, None) => return Err(vision.bad(field, "is missing; expected an unsigned 32-bit integer")),
        }
    }
    put("attention.layer_norm_epsilon", Value::F64(vision.opt_f64(kind.eps.0)?.unwrap_or(kind.eps.1)));
    if !kind.sizes.iter().any(|(key, ..)| *key == "projection_dim") {
        let text = config::text_fields(root)?;
        put("projection_dim", Value::U64(text.u32("hidden_size")?.into()));
    }
    (kind.further)(root, vision, &mut put)?;
    deepstack(vision, &mut put)
}

/// A size, of which there may be one for each of an image's sides, both the same.
fn size(vision: &Fields, field: &str) -> Result<Option<u32>, Error> {
    match vision.get(field).and_then(|v| v.as_array()).map(Vec::as_slice) {
        Some([a, b]) if a == b => match a.as_u64().and_then(|n| n.try_into().ok()) {
            Some(n) => Ok(Some(n)),
            None => Err(vision.bad(field, "is not an array of unsigned 32-bit integers")),
        },
        Some(_) => Err(vision.bad(field, "is not an array of two equal sides")),
        None => vision.opt_u32(field),
    }
}

/// Blocks whose results the text's first layers get.
fn deepstack(vision: &Fields, put: &mut dyn FnMut(&str, Value)) -> Result<Deep, Error> {
    let Some(values) = vision.opt_array("deepstack_visual_indexes")? else { return Ok(Vec::new()) };
    let layers = vision.u32("depth")?;
    let mut deep = Vec::new();
    for value in values {
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

impl Kind {
    /// The name of a tensor of the tower without the folders around it.
    fn own<'a>(&self, name: &'a str) -> Option<&'a str> {
        let roots = ROOTS.iter().filter_map(|root| name.strip_prefix(root));
        let mut names = std::iter::once(name).chain(roots);
        names.find_map(|name| self.folders.iter().find_map(|folder| name.strip_prefix(folder)))
    }

    /// The name in a projector file of a tensor of the tower, and how its values change.
    fn target(&self, own: &str, deep: &[u32]) -> Option<(String, Convert)> {
        if let Some((_, to, convert)) = self.whole.iter().find(|(hf, ..)| *hf == own) {
            return Some((to.to_string(), *convert));
        }
        // Factors of a block's results have no suffix.
        let (stem, end) = match own.rsplit_once('.')? {
            (_, last) if last.starts_with("lambda_") => (own, "weight"),
            parts => parts,
        };
        let is_clip = matches!(end, "input_min" | "input_max" | "output_min" | "output_max");
        if !matches!(end, "weight" | "bias") && !is_clip {
            return None;
        }
        let of = |table: &[(&str, &str)], stem: &str| {
            table.iter().find(|(hf, _)| *hf == stem).map(|(_, gguf)| gguf.to_string())
        };
        let numbered = |rest: &str| -> Option<(usize, String)> {
            let (i, rest) = rest.split_once('.')?;
            Some((i.parse().ok()?, rest.to_string()))
        };
        let name = if let Some(rest) = stem.strip_prefix(self.blocks) {
            let (i, part) = numbered(rest)?;
            format!("v.blk.{i}.{}", of(self.parts, part.strip_suffix(".linear").unwrap_or(&part))?)
        } else if let Some(rest) = stem.strip_prefix("deepstack_merger_list.") {
            let (i, part) = numbered(rest)?;
            let part = of(&[("norm", "norm"), ("linear_fc1", "fc1"), ("linear_fc2", "fc2")], &part)?;
            format!("v.deepstack.{}.{part}", deep.get(i)?)
        } else {
            of(self.top, stem)?
        };
        Some((format!("{name}.{end}"), Convert::None))
    }
}
