//! Models that other programs keep on this machine: Ollama's and LM Studio's folders. They are read in place and never written. Used by
//! `octet list`, and for names such as `ollama:qwen3:8b`.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;

use crate::reference::is_safe;

/// How deep manifests and models may lie below their folder.
const DEPTH_MAX: usize = 6;
/// Models of one program.
const MODELS_MAX: usize = 10_000;
/// Longest manifest.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// The layer of a manifest that holds the weights.
const WEIGHTS: &str = "application/vnd.ollama.image.model";
/// The registry and the user that Ollama leaves out of names.
const DEFAULT: &str = "registry.ollama.ai/library/";
/// The tag that Ollama leaves out of names.
const LATEST: &str = "latest";

/// Names of Ollama's models begin with this.
pub const OLLAMA: &str = "ollama:";
/// Names of LM Studio's models begin with this.
pub const LM_STUDIO: &str = "lmstudio:";

/// Another program's model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Other {
    /// The name to use here: `ollama:qwen3:8b`, `lmstudio:user/repo/file`.
    pub name: String,
    /// The GGUF file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// When it was written.
    pub modified: SystemTime,
}

/// Ollama's models below these folders (`~/.ollama/models`), by name. Folders that are not there have none.
pub fn ollama(folders: &[PathBuf]) -> Vec<Other> {
    let mut all = Vec::new();
    for folder in folders {
        let manifests = folder.join("manifests");
        each_file(&manifests, DEPTH_MAX, &mut |path| {
            let Ok(below) = path.strip_prefix(&manifests) else { return };
            let parts: Vec<&str> = below.iter().filter_map(|part| part.to_str()).collect();
            if let Some(found) = of_manifest(folder, &parts.join("/"), path) {
                all.push(found);
            }
        });
    }
    sorted(all)
}

/// The model of a manifest. `below` is its path: `registry.ollama.ai/library/qwen3/8b`.
fn of_manifest(folder: &Path, below: &str, manifest: &Path) -> Option<Other> {
    let length = std::fs::metadata(manifest).ok()?.len();
    let text = (length <= MANIFEST_BYTES_MAX).then(|| std::fs::read_to_string(manifest).ok())??;
    let json: Value = serde_json::from_str(&text).ok()?;
    let layers = json.get("layers")?.as_array()?;
    let weights = layers.iter().find(|l| l["mediaType"] == WEIGHTS)?;
    let blob = weights["digest"].as_str()?.replace(':', "-");
    if !is_safe(&blob) {
        return None;
    }
    let (name, tag) = below.rsplit_once('/')?;
    let name = name.strip_prefix(DEFAULT).unwrap_or(name);
    file(format!("{OLLAMA}{name}:{tag}"), folder.join("blobs").join(blob))
}

/// LM Studio's models below these folders (`~/.lmstudio/models`): `user/repo/file.gguf`. Later parts of split models and projectors are
/// left out.
pub fn lm_studio(folders: &[PathBuf]) -> Vec<Other> {
    let mut all = Vec::new();
    for folder in folders {
        each_file(folder, DEPTH_MAX, &mut |path| {
            let Some(stem) = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix(".gguf"))
            else {
                return;
            };
            let lower = stem.to_ascii_lowercase();
            let is_later = lower.rsplit_once("-of-").is_some_and(|(part, _)| !part.ends_with("-00001"));
            if lower.contains("mmproj") || is_later {
                return;
            }
            let parts = path.strip_prefix(folder).ok().and_then(Path::parent);
            let parts: Vec<&str> = parts.into_iter().flatten().filter_map(|part| part.to_str()).collect();
            let name = parts.into_iter().chain([stem]).collect::<Vec<_>>().join("/");
            all.extend(file(format!("{LM_STUDIO}{name}"), path.to_path_buf()));
        });
    }
    sorted(all)
}

fn file(name: String, path: PathBuf) -> Option<Other> {
    let about = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file)?;
    let modified = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    Some(Other { name, path, size: about.len(), modified })
}

fn sorted(mut all: Vec<Other>) -> Vec<Other> {
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all.dedup_by(|a, b| a.name == b.name);
    all
}

/// Calls `found` with each file below a folder.
fn each_file(folder: &Path, depth: usize, found: &mut dyn FnMut(&Path)) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.take(MODELS_MAX).flatten() {
        let path = entry.path();
        match path.metadata() {
            Ok(about) if about.is_dir() && depth > 0 => each_file(&path, depth - 1, found),
            Ok(about) if about.is_file() => found(&path),
            _ => {}
        }
    }
}

/// The model that a user named: whole, without Ollama's `:latest`, or by the end of LM Studio's name. The error lists what there is.
pub fn find(all: &[Other], name: &str) -> Result<PathBuf, String> {
    let wanted = [name.to_string(), format!("{name}:{LATEST}")];
    if let Some(found) = all.iter().find(|m| wanted.iter().any(|w| m.name.eq_ignore_ascii_case(w))) {
        return Ok(found.path.clone());
    }
    let end = name.split_once(':').map_or(name, |(_, end)| end).to_ascii_lowercase();
    let of_end = |m: &&Other| {
        let own = m.name.split_once(':').map_or(m.name.as_str(), |(_, own)| own).to_ascii_lowercase();
        m.name.starts_with(LM_STUDIO) && own.rsplit('/').next() == Some(&end)
    };
    match all.iter().filter(of_end).collect::<Vec<_>>().as_slice() {
        [one] => Ok(one.path.clone()),
        _ if all.is_empty() => Err(format!("{name}: that program has no models on this machine")),
        _ => {
            let names: Vec<&str> = all.iter().map(|m| m.name.as_str()).collect();
            Err(format!("{name}: no such model on this machine; there are {}", names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: PathBuf, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn names(all: &[Other]) -> Vec<&str> {
        all.iter().map(|m| m.name.as_str()).collect()
    }

    #[test]
    fn ollamas_manifests_lead_to_its_blobs() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_path_buf();
        let manifest = |digest: &str| {
            format!(
                r#"{{"schemaVersion": 2, "layers": [{{"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:bb", "size": 1}},
                {{"mediaType": "{WEIGHTS}", "digest": "{digest}", "size": 4}}]}}"#
            )
        };
        let library = root.join("manifests/registry.ollama.ai/library");
        write(library.join("qwen3/8b"), &manifest("sha256:aa"));
        write(library.join("llama/latest"), &manifest("sha256:aa"));
        write(root.join("manifests/hf.co/user/repo/Q4_K_M"), &manifest("sha256:aa"));
        write(library.join("gone/latest"), &manifest("sha256:missing"));
        write(library.join("evil/latest"), &manifest("../../../etc/passwd"));
        write(library.join("broken/latest"), "{");
        write(root.join("blobs/sha256-aa"), "GGUF");
        let all = ollama(&[root.clone(), root.join("none")]);
        assert_eq!(names(&all), ["ollama:hf.co/user/repo:Q4_K_M", "ollama:llama:latest", "ollama:qwen3:8b"]);
        assert_eq!((all[0].size, &all[0].path), (4, &root.join("blobs/sha256-aa")));
        for (name, is_there) in [("ollama:qwen3:8b", true), ("ollama:LLAMA", true), ("ollama:qwen3", false)] {
            assert_eq!(find(&all, name).is_ok(), is_there, "{name}");
        }
        assert!(find(&all, "ollama:x").unwrap_err().contains("there are ollama:hf.co/user/repo:Q4_K_M, "));
        assert!(find(&[], "ollama:x").unwrap_err().contains("no models"));
    }

    #[test]
    fn lm_studios_files_are_named_by_their_place() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_path_buf();
        for file in [
            "a/r/x-Q4_K_M.gguf",
            "a/r/mmproj-x.gguf",
            "b/r/y-00001-of-00002.gguf",
            "b/r/y-00002-of-00002.gguf",
            "b/r/notes.txt",
        ] {
            write(root.join(file), "GGUF");
        }
        let all = lm_studio(std::slice::from_ref(&root));
        assert_eq!(names(&all), ["lmstudio:a/r/x-Q4_K_M", "lmstudio:b/r/y-00001-of-00002"]);
        assert_eq!(find(&all, "lmstudio:X-q4_k_m").unwrap(), root.join("a/r/x-Q4_K_M.gguf"));
        assert!(find(&all, "lmstudio:z").is_err());
    }
}
