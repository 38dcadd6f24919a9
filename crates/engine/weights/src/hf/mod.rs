//! Reads Hugging Face directories (config.json, safetensors, tokenizer) in GGUF's terms.
//!
//! Metadata get GGUF's keys (`config`, `sidecars`) and tensors GGUF's names and conventions (`names` has the table), so that the
//! engine knows one model format only. Tensors stay in the mapped files; only those whose values change (norms stored around zero,
//! `A_log`) are computed when they are requested.

mod arch;
mod config;
mod dir;
mod encoder;
mod experts;
mod factors;
mod families;
mod family_config;
mod family_names;
mod family_own;
mod json;
mod layer_kinds;
mod names;
mod processor;
mod rope;
mod sentencepiece;
mod sidecars;
mod sparse;
mod tower;
mod tower_kinds;

pub use arch::model_types;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use bytes::Bytes;

use crate::config_fields::CONFIG;
use crate::gguf::DIMS_MAX;
use crate::map::Mapped;
use crate::safetensors::{self, Entry, Index};
use crate::schemes::{self, Content, Logical, Settings};
use crate::source::{Convert, Files, Place};
use crate::{Error, GgmlType, Metadata, Model, TensorInfo, Value};
use arch::{Arch, Layout};
use dir::Dir;
use json::Fields;
use names::Target;
use serde_json::{Map, Value as Json};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const INDEX_BYTES_MAX: usize = 64 << 20;

/// Whether a directory holds a checkpoint, by the names of its files.
pub(crate) fn is_checkpoint(path: &Path) -> bool {
    path.join(CONFIG).exists() && (path.join(SINGLE).exists() || path.join(INDEX).exists())
}

/// Opens a directory with config.json and safetensors.
pub(crate) fn open(path: &Path) -> Result<Model, Error> {
    open_dir(&Dir::Disk(path.into()))
}

/// A checkpoint whose files are in memory, by name; messages call the directory `origin`.
pub fn from_files(origin: &str, files: BTreeMap<String, Bytes>) -> Result<Model, Error> {
    open_dir(&Dir::Memory { origin: origin.into(), files })
}

/// The vision tower of a checkpoint in the form of a projector's GGUF file; `None` if it has none that is known.
///
/// # Errors
/// If its files are damaged, or its configuration cannot be used.
pub fn open_tower(path: impl AsRef<Path>) -> Result<Option<Model>, Error> {
    tower::open(&Dir::Disk(path.as_ref().into()))
}

/// The tensors of a checkpoint under its own names, and nothing else of it: quantised matrices are put together, whatever the
/// architecture.
pub fn open_tensors(path: impl AsRef<Path>) -> Result<Model, Error> {
    tensors_of(&Dir::Disk(path.as_ref().into()))
}

/// The same with files in memory, see [`from_files`].
pub fn tensors_from_files(origin: &str, files: BTreeMap<String, Bytes>) -> Result<Model, Error> {
    tensors_of(&Dir::Memory { origin: origin.into(), files })
}

fn tensors_of(dir: &Dir) -> Result<Model, Error> {
    let (config_path, config) = sidecars::json_file(dir, CONFIG)?;
    let (files, entries) = read_headers(dir)?;
    let logical = schemes::collect(&files, entries, &settings(dir, &config_path, &config)?, |_| true)?;
    let mut tensors = Vec::new();
    let mut ignored = Vec::new();
    for Logical { name, content } in logical {
        match content {
            Content::Plain { entry, .. } if entry.ggml_type().is_none() => ignored.push(name),
            Content::Plain { file, entry } => {
                let shape =
                    shape(&entry, false).map_err(|what| Error::tensor(&files[file].name, &name, what))?;
                tensors.push(plain(file, entry, name, shape, Convert::None));
            }
            Content::Quantised(q) => {
                let info = TensorInfo { name, ty: q.ty(), shape: q.shape().to_vec() };
                tensors.push((info, Place::Quantised(q)));
            }
        }
    }
    Model::new(dir.origin(), Metadata::new(&config_path), Box::new(Files::new(files, tensors, ignored)))
}

/// What the directory's files say about the quantisation.
fn settings(dir: &Dir, config_path: &str, config: &Map<String, Json>) -> Result<Settings, Error> {
    let mut beside = Vec::new();
    for name in schemes::FILES {
        if dir.has(name) {
            beside.push(sidecars::json_file(dir, name)?.1);
        }
    }
    Settings::new(config, &beside)
        .map_err(|(field, what)| Error::format(config_path, format!("field '{field}' {what}")))
}

fn open_dir(dir: &Dir) -> Result<Model, Error> {
    if !dir.has(CONFIG) {
        return Err(Error::format(&dir.path(CONFIG), "is missing; a Hugging Face directory has one"));
    }
    let (config_path, config) = sidecars::json_file(dir, CONFIG)?;
    let root = Fields::new(&config_path, &config);
    let settings = settings(dir, &config_path, &config)?;
    let (mut files, mut entries) = read_headers(dir)?;

    let mut metadata = Metadata::new(&config_path);
    let has_mtp = entries.iter().flatten().any(|e| e.name.starts_with("mtp."));
    let mut layout = config::translate(&root, has_mtp, &mut metadata)?;
    layout.guessing = entries.iter().flatten().filter_map(|e| family_names::guessing(&e.name)).collect();
    layout.guessing.sort_unstable();
    layout.guessing.dedup();
    // MLX's own files have norms with 1 added and convolutions transposed; the second shows the first.
    layout.mlx = entries.iter().flatten().any(|e| {
        e.name.ends_with(".linear_attn.conv1d.weight") && matches!(e.shape[..], [_, taps, 1] if taps > 1)
    });
    sidecars::read(dir, &root, &config::text_fields(&root)?, &mut metadata)?;
    encoder::projections(dir, &mut metadata, &mut files, &mut entries)?;
    metadata.insert("general.name", Value::Str(dir.model_name()));

    let used = |name: &str| names::target(&layout, name) != Target::Unused;
    let logical = schemes::collect(&files, entries, &settings, used)?;
    let (mut tensors, ignored) = canonical(&layout, &files, logical)?;
    experts::unify(&mut tensors);
    let scales = factors::of_rows(&layout.factors, &tensors);
    let has_head = tensors.iter().any(|(t, _)| t.name == "output.weight");
    // An embedding model has none.
    if layout.tied == Some(false) && !has_head && !dir.has(sidecars::POOLING) {
        let what = "is missing, and config.json says that the embedding table is not used in its place \
                    (tie_word_embeddings is false)";
        return Err(Error::tensor(&dir.origin(), "lm_head.weight", what));
    }
    factors::record(&layout.factors, &mut metadata);
    Model::new(dir.origin(), metadata, Box::new(Files::new(files, tensors, ignored).with_scales(scales)))
}

/// Maps all safetensors files and reads their headers; compares them with the index if there is one.
fn read_headers(dir: &Dir) -> Result<(Vec<Mapped>, Vec<Vec<Entry>>), Error> {
    let (mut files, mut entries) = if dir.has(SINGLE) {
        let (file, tensors) = read_header(dir, SINGLE)?;
        (vec![file], vec![tensors])
    } else {
        read_shards(dir)?
    };
    read_extra(dir, &mut files, &mut entries)?;
    Ok((files, entries))
}

fn read_header(dir: &Dir, name: &str) -> Result<(Mapped, Vec<Entry>), Error> {
    let file = dir.map(name)?;
    let entries = safetensors::parse(&file.name, &file.bytes)?;
    Ok((file, entries))
}

/// The files that the index names.
fn read_shards(dir: &Dir) -> Result<(Vec<Mapped>, Vec<Vec<Entry>>), Error> {
    let Some(text) = dir.text(INDEX, INDEX_BYTES_MAX)? else {
        let what = format!("has neither {SINGLE} nor {INDEX}; only safetensors checkpoints are supported");
        return Err(Error::format(&dir.origin(), what));
    };
    let index_path = dir.path(INDEX);
    let index = Index::parse(&index_path, &text)?;
    if let Some((name, shard)) = index.tensors.iter().find(|(_, s)| !dir.has(&index.shards[*s])) {
        let what = format!(
            "is listed in {}, which is missing; the checkpoint has {} shards, download it again",
            index.shards[*shard],
            index.shards.len()
        );
        return Err(Error::tensor(&index_path, name, what));
    }
    let (mut files, mut entries) = (Vec::new(), Vec::new());
    for shard in &index.shards {
        let (file, tensors) = read_header(dir, shard)?;
        files.push(file);
        entries.push(tensors);
    }
    let present: Vec<HashSet<&str>> =
        entries.iter().map(|shard| shard.iter().map(|e| e.name.as_str()).collect()).collect();
    if let Some((name, shard)) = index.tensors.iter().find(|(name, s)| !present[*s].contains(name.as_str())) {
        let what = format!("is listed in {}, which does not have it", files[*shard].name);
        return Err(Error::tensor(&index_path, name, what));
    }
    Ok((files, entries))
}

/// Blocks of multi-token prediction in files of their own, which not every tool adds to the index. Only tensors of such blocks that no
/// other file has are read.
fn read_extra(dir: &Dir, files: &mut Vec<Mapped>, entries: &mut Vec<Vec<Entry>>) -> Result<(), Error> {
    let known: HashSet<String> = files.iter().map(|f| f.name.clone()).collect();
    let is_extra = |name: &String| {
        name.starts_with("model")
            && name.ends_with(".safetensors")
            && (name.contains("mtp") || name.contains("extra"))
            || name == "mtp.safetensors"
    };
    let mut names: Vec<String> = dir.list()?.into_iter().filter(is_extra).collect();
    names.sort();
    for name in names.iter().filter(|name| !known.contains(&dir.path(name))) {
        let (file, tensors) = read_header(dir, name)?;
        let present: HashSet<&str> = entries.iter().flatten().map(|e| e.name.as_str()).collect();
        let is_new = |e: &Entry| e.name.starts_with("mtp.") && !present.contains(e.name.as_str());
        let new: Vec<Entry> = tensors.into_iter().filter(is_new).collect();
        files.push(file);
        entries.push(new);
    }
    Ok(())
}

/// A checkpoint's tensors under GGUF's names, and the names of those that have none.
#[allow(clippy::type_complexity)] // two lists, each used once
fn canonical(
    layout: &Layout,
    files: &[Mapped],
    logical: Vec<Logical>,
) -> Result<(Vec<(TensorInfo, Place)>, Vec<String>), Error> {
    let mut tensors = Vec::new();
    let mut ignored = Vec::new();
    let mut seen: HashMap<String, (String, usize)> = HashMap::new();
    for Logical { name: own, content } in logical {
        let target = match layout.arch {
            Arch::Other(family) if family.own_names => encoder::target(layout, &own),
            Arch::Other(family) => family_names::target(family, layout, &own),
            _ => names::target(layout, &own),
        };
        let (name, convert, squeeze) = match target {
            Target::Tensor { name, convert, squeeze } => (name, convert, squeeze),
            Target::Unused => continue,
            Target::Unknown => {
                ignored.push(own);
                continue;
            }
        };
        let file = match &content {
            Content::Plain { file, .. } => *file,
            Content::Quantised(q) => q.origin().0,
        };
        let bad = |what: String| Error::tensor(&files[file].name, &own, what);
        if let Some((other, i)) = seen.get(&name) {
            return Err(bad(format!(
                "is the same as '{other}' in {}; only one may be there",
                files[*i].name
            )));
        }
        tensors.push(match content {
            Content::Plain { file, mut entry } => {
                if entry.shape.is_empty() && name.contains(".xielu.") {
                    entry.shape = vec![1]; // a number of an activation
                }
                let mut shape = shape(&entry, squeeze).map_err(bad)?;
                if name == encoder::POSITIONS {
                    encoder::skip_rows(&mut entry, &mut shape, layout.first_position).map_err(bad)?;
                }
                if convert == Convert::Transpose {
                    let [.., a, b] = &mut shape[..] else {
                        return Err(bad(format!("has shape {shape:?}; expected a matrix")));
                    };
                    std::mem::swap(a, b);
                }
                if entry.ggml_type().is_none() {
                    let what = format!("is stored as {}; F32, F16 and BF16 are expected here", entry.dtype);
                    return Err(bad(what));
                }
                plain(file, entry, name.clone(), shape, convert)
            }
            // Quantised matrices have their outputs first.
            Content::Quantised(_) if ![Convert::None, Convert::Transpose].contains(&convert) || squeeze => {
                return Err(bad("is quantised; F32, F16 and BF16 are expected here".into()));
            }
            Content::Quantised(q) => (
                TensorInfo { name: name.clone(), ty: q.ty(), shape: q.shape().to_vec() },
                Place::Quantised(q),
            ),
        });
        seen.insert(name, (own, file));
    }
    Ok((tensors, ignored))
}

/// A tensor that is stored as plain floats; anything else counts as F32 and is refused before.
fn plain(
    file: usize,
    entry: Entry,
    name: String,
    shape: Vec<usize>,
    convert: Convert,
) -> (TensorInfo, Place) {
    let stored = entry.ggml_type().unwrap_or(GgmlType::F32);
    let keeps = [Convert::None, Convert::Transpose].contains(&convert);
    let ty = if keeps { stored } else { GgmlType::F32 };
    (TensorInfo { name, ty, shape }, Place::Plain { file, range: entry.range, stored, convert })
}

/// The shape in GGUF's order, or what is wrong with it.
fn shape(entry: &Entry, squeeze: bool) -> Result<Vec<usize>, String> {
    // Dimensions fit: their product equals the tensor's bytes, or one of them is 0.
    let mut shape: Vec<usize> = entry.shape.iter().map(|&d| d as usize).collect();
    if shape.is_empty() || shape.len() > DIMS_MAX as usize || shape.contains(&0) {
        return Err(format!("has shape {shape:?}; expected 1 to {DIMS_MAX} dimensions, none of them 0"));
    }
    if squeeze {
        match shape[..] {
            [_, 1, _] => drop(shape.remove(1)),
            [_, _, 1] => drop(shape.pop()), // MLX
            [_, _] => {}
            _ => return Err(format!("has shape {shape:?}; expected [channels, 1, taps]")),
        }
    }
    Ok(shape)
}
