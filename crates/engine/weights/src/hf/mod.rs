//! Reads Hugging Face directories (config.json, safetensors, tokenizer) in GGUF's terms. Called by `Model::open`.
//!
//! Metadata get GGUF's keys (`config`, `sidecars`) and tensors GGUF's names and conventions (`names` has the table), so that the
//! engine knows one model format only. Tensors stay in the mapped files; only those whose values change (norms stored around zero,
//! `A_log`) are computed when they are requested.

mod config;
mod dir;
mod json;
mod names;
mod sentencepiece;
mod sidecars;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use bytes::Bytes;

use crate::gguf::DIMS_MAX;
use crate::map::Mapped;
use crate::safetensors::{self, Entry, Index};
use crate::source::{Convert, Files, Place};
use crate::{Error, GgmlType, Metadata, Model, TensorInfo, Value};
use dir::Dir;
use json::Fields;
use names::Target;

const CONFIG: &str = "config.json";
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

fn open_dir(dir: &Dir) -> Result<Model, Error> {
    if !dir.has(CONFIG) {
        return Err(Error::format(&dir.path(CONFIG), "is missing; a Hugging Face directory has one"));
    }
    let (config_path, config) = sidecars::json_file(dir, CONFIG)?;
    let root = Fields::new(&config_path, &config);
    let (files, entries) = read_headers(dir)?;

    let mut metadata = Metadata::new(&config_path);
    let has_mtp = entries.iter().flatten().any(|e| e.name.starts_with("mtp."));
    let layout = config::translate(&root, has_mtp, &mut metadata)?;
    sidecars::read(dir, &root, &config::text_fields(&root)?, &mut metadata)?;
    metadata.insert("general.name", Value::Str(dir.model_name()));

    let (tensors, ignored) = canonical(&layout, &files, entries)?;
    let has_head = tensors.iter().any(|(t, _)| t.name == "output.weight");
    if layout.tied == Some(false) && !has_head {
        let what = "is missing, and config.json says that the embedding table is not used in its place \
                    (tie_word_embeddings is false)";
        return Err(Error::tensor(&dir.origin(), "lm_head.weight", what));
    }
    Model::new(dir.origin(), metadata, Box::new(Files::new(files, tensors, ignored)))
}

/// Maps all safetensors files and reads their headers; compares them with the index if there is one.
fn read_headers(dir: &Dir) -> Result<(Vec<Mapped>, Vec<Vec<Entry>>), Error> {
    let read = |name: &str| {
        let file = dir.map(name)?;
        let entries = safetensors::parse(&file.name, &file.bytes)?;
        Ok::<_, Error>((file, entries))
    };
    if dir.has(SINGLE) {
        let (file, entries) = read(SINGLE)?;
        return Ok((vec![file], vec![entries]));
    }
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
        let (file, tensors) = read(shard)?;
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

/// A checkpoint's tensors under GGUF's names, and the names of those that have none.
#[allow(clippy::type_complexity)] // two lists, each used once
fn canonical(
    layout: &config::Layout,
    files: &[Mapped],
    entries: Vec<Vec<Entry>>,
) -> Result<(Vec<(TensorInfo, Place)>, Vec<String>), Error> {
    let mut tensors = Vec::new();
    let mut ignored = Vec::new();
    let mut seen: HashMap<String, (String, usize)> = HashMap::new();
    for (file, entry) in
        entries.into_iter().enumerate().flat_map(|(i, es)| es.into_iter().map(move |e| (i, e)))
    {
        let (name, convert, squeeze) = match names::target(layout, &entry.name) {
            Target::Tensor { name, convert, squeeze } => (name, convert, squeeze),
            Target::Unused => continue,
            Target::Unknown => {
                ignored.push(entry.name);
                continue;
            }
        };
        let bad = |what: String| Error::tensor(&files[file].name, &entry.name, what);
        if let Some((other, i)) = seen.get(&name) {
            return Err(bad(format!(
                "is the same as '{other}' in {}; only one may be there",
                files[*i].name
            )));
        }
        let stored = entry.ggml_type().ok_or_else(|| {
            bad(format!(
                "is stored as {}; F32, F16 and BF16 are supported: take the BF16 checkpoint, or a GGUF file of the \
                 model",
                entry.dtype
            ))
        })?;
        let shape = shape(&entry, squeeze).map_err(bad)?;
        let ty = if convert == Convert::None { stored } else { GgmlType::F32 };
        seen.insert(name.clone(), (entry.name, file));
        tensors.push((TensorInfo { name, ty, shape }, Place { file, range: entry.range, stored, convert }));
    }
    Ok((tensors, ignored))
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
            [_, _] => {}
            _ => return Err(format!("has shape {shape:?}; expected [channels, 1, taps]")),
        }
    }
    Ok(shape)
}
