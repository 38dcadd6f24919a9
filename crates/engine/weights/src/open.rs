//! `Model::open`: detects the format of a path. The only entry point except for tests.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::gguf::split::split_name;
use crate::{Error, Model, gguf, hf};

impl Model {
    /// Opens a GGUF file (any part of a split set opens all of it), a Hugging Face directory (config.json and
    /// safetensors), or a directory with exactly one GGUF model in it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let meta = std::fs::metadata(path).map_err(|e| Error::io(&name, e))?;
        if meta.is_dir() {
            return open_dir(path, &name);
        }
        let extension = path.extension().map(|e| e.to_ascii_lowercase());
        let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if extension.is_some_and(|e| e == "safetensors" || e == "json") && !starts_with_magic(path, &name)? {
            let what = format!(
                "is one file of a Hugging Face checkpoint; give its directory instead, {}",
                directory.display()
            );
            return Err(Error::format(&name, what));
        }
        gguf::open(path)
    }
}

fn starts_with_magic(path: &Path, name: &str) -> Result<bool, Error> {
    let mut head = Vec::new();
    let mut file = std::fs::File::open(path).map_err(|e| Error::io(name, e))?.take(gguf::MAGIC.len() as u64);
    file.read_to_end(&mut head).map_err(|e| Error::io(name, e))?;
    Ok(head == gguf::MAGIC)
}

fn open_dir(path: &Path, name: &str) -> Result<Model, Error> {
    if hf::is_checkpoint(path) {
        return hf::open(path);
    }
    let found = gguf_models(path).map_err(|e| Error::io(name, e))?;
    match &found[..] {
        [one] => gguf::open(one),
        // Its errors say which file of a checkpoint is missing.
        [] if path.join("config.json").exists() => hf::open(path),
        [] => Err(Error::format(
            name,
            "has neither a .gguf file in it nor config.json and safetensors; give a model file or its directory",
        )),
        several => {
            let names: Vec<_> =
                several.iter().filter_map(|p| p.file_name()).map(|n| n.to_string_lossy()).collect();
            let what =
                format!("has {} GGUF models in it; give one of them: {}", names.len(), names.join(", "));
            Err(Error::format(name, what))
        }
    }
}

/// GGUF files of a directory in order, one of each split set. Image projectors (`mmproj*`) are not models.
fn gguf_models(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut models = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()) else { continue };
        if name.ends_with(".gguf") && !name.starts_with("mmproj") {
            models.push(path);
        }
    }
    models.sort();
    models.dedup_by_key(|p| {
        let name = p.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        // Parts of one set share a key; a whole file has its own.
        split_name(name).map_or((name.to_string(), 0), |(stem, _, count)| (stem.to_string(), count))
    });
    Ok(models)
}
