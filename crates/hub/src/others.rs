//! Models that other programs keep on this machine: Ollama's and LM Studio's folders. They are read in place and never written.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;

use crate::modelfile::{Layers, read};
use crate::reference::is_safe;

/// How deep manifests and models may lie below their folder.
const DEPTH_MAX: usize = 6;
/// Models of one program.
const MODELS_MAX: usize = 10_000;
/// Longest manifest.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// The layer of a manifest that holds the weights.
const WEIGHTS: &str = "application/vnd.ollama.image.model";
/// The registry that Ollama leaves out of names, and the user there whose models have none.
const REGISTRY: &str = "registry.ollama.ai/";
const LIBRARY: &str = "library/";
/// The tag that Ollama leaves out of names.
const LATEST: &str = "latest";

/// Names of Ollama's models begin with this.
pub const OLLAMA: &str = "ollama:";
/// Names of LM Studio's models begin with this.
pub const LM_STUDIO: &str = "lmstudio:";

/// Another program's model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Other {
    /// The name to use here: `ollama:qwen3:8b`, `ollama:user/model:latest`, `lmstudio:user/repo/file`.
    pub name: String,
    /// The GGUF file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// When it was written.
    pub modified: SystemTime,
    /// What else its maker gave it. Only Ollama keeps such.
    pub layers: Layers,
}

/// A model that another program lists, but that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// Its name, as [`Other::name`].
    pub name: String,
    /// What is wrong.
    pub why: String,
}

/// Ollama's models below these folders (`~/.ollama/models`), by name, and those that cannot be used. Folders that are not there have none.
pub fn ollama(folders: &[PathBuf]) -> (Vec<Other>, Vec<Broken>) {
    let (mut all, mut broken) = (Vec::new(), Vec::new());
    for folder in folders {
        let manifests = folder.join("manifests");
        each_file(&manifests, DEPTH_MAX, &mut |path| {
            let Ok(below) = path.strip_prefix(&manifests) else { return };
            let parts: Vec<&str> = below.iter().filter_map(|part| part.to_str()).collect();
            // Not a manifest, but a file that a file manager left.
            if parts.last().is_none_or(|tag| tag.starts_with('.')) {
                return;
            }
            let Some((name, tag)) = parts.split_last().map(|(tag, name)| (name.join("/"), tag)) else {
                return;
            };
            if name.is_empty() {
                return;
            }
            let name = format!("{OLLAMA}{}:{tag}", short(&name));
            match of_manifest(folder, &name, path) {
                Ok(found) => all.extend(found),
                Err(why) => broken.push(Broken { name, why }),
            }
        });
    }
    broken.sort_by(|a, b| a.name.cmp(&b.name));
    (sorted(all), broken)
}

/// A name as Ollama shows it: `qwen3`, `alice/tiny`, `hf.co/user/repo`.
fn short(name: &str) -> &str {
    let name = name.strip_prefix(REGISTRY).unwrap_or(name);
    name.strip_prefix(LIBRARY).unwrap_or(name)
}

/// The model of a manifest; `None` if its weights are on Ollama's servers.
fn of_manifest(folder: &Path, name: &str, manifest: &Path) -> Result<Option<Other>, String> {
    let text = read(manifest, MANIFEST_BYTES_MAX).map_err(|why| format!("its manifest {why}"))?;
    let json: Value =
        serde_json::from_str(&text).map_err(|e| format!("its manifest is not valid JSON: {e}"))?;
    let layers = json.get("layers").and_then(Value::as_array).ok_or("its manifest has no layers")?;
    if layers.is_empty() {
        return Ok(None);
    }
    let layer = |kind: &str| layers.iter().find(|l| l["mediaType"] == kind);
    let blob = |layer: &Value| -> Result<PathBuf, &str> {
        let blob = layer["digest"].as_str().unwrap_or_default().replace(':', "-");
        let is_name = is_safe(&blob) && !blob.contains('/');
        if is_name {
            Ok(folder.join("blobs").join(blob))
        } else {
            Err("its manifest has a layer without a digest")
        }
    };
    let weights = blob(layer(WEIGHTS).ok_or("its manifest names no GGUF file")?)?;
    let beside = Layers::of(layers, blob)?;
    match file(name.to_string(), weights.clone()) {
        Some(found) => Ok(Some(Other { layers: beside, ..found })),
        None => Err(format!("its file {} is missing", weights.display())),
    }
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
    Some(Other { name, path, size: about.len(), modified, layers: Layers::default() })
}

fn sorted(mut all: Vec<Other>) -> Vec<Other> {
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all.dedup_by(|a, b| a.name == b.name);
    all
}

/// How its own program removes a model of this name; `None` if it is no other program's.
pub fn removal(name: &str) -> Option<String> {
    match (name.strip_prefix(OLLAMA), name.strip_prefix(LM_STUDIO)) {
        (Some(own), _) => Some(format!("`ollama rm {own}`")),
        (_, Some(_)) => Some("LM Studio (My Models)".into()),
        _ => None,
    }
}

/// Calls `found` with each file below a folder whose path can be printed; with that of each folder once, whatever links lead to it.
fn each_file(folder: &Path, depth: usize, found: &mut dyn FnMut(&Path)) {
    each_new_file(folder, depth, &mut HashSet::new(), found);
}

fn each_new_file(folder: &Path, depth: usize, seen: &mut HashSet<PathBuf>, found: &mut dyn FnMut(&Path)) {
    let is_new = std::fs::canonicalize(folder).is_ok_and(|own| seen.insert(own));
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.take(if is_new { MODELS_MAX } else { 0 }).flatten() {
        let path = entry.path();
        if !path.file_name().and_then(|name| name.to_str()).is_some_and(is_safe) {
            continue;
        }
        match path.metadata() {
            Ok(about) if about.is_dir() && depth > 0 => each_new_file(&path, depth - 1, seen, found),
            Ok(about) if about.is_file() => found(&path),
            _ => {}
        }
    }
}

/// The model that a user named: whole, without Ollama's `:latest` or with its registry, by the end of LM Studio's name, or by its file.
/// The error says what is wrong with it, or lists what there is.
pub fn find(all: &[Other], broken: &[Broken], name: &str) -> Result<Other, String> {
    let (program, own) = name.split_once(':').unwrap_or_default();
    let asked = match program == OLLAMA.trim_end_matches(':') {
        true => format!("{OLLAMA}{}", short(own)),
        false => name.strip_suffix(".gguf").unwrap_or(name).to_string(),
    };
    let wanted = [format!("{asked}:{LATEST}"), asked.clone()];
    let is_wanted = |name: &str| wanted.iter().any(|w| name.eq_ignore_ascii_case(w));
    if let Some(found) = all.iter().find(|m| is_wanted(&m.name)) {
        return Ok(found.clone());
    }
    if let Some(Broken { name, why }) = broken.iter().find(|b| is_wanted(&b.name)) {
        return Err(format!("{name}: {why}; `ollama pull` or `ollama create` makes it whole again"));
    }
    let end = asked.split_once(':').map_or("", |(_, end)| end).to_ascii_lowercase();
    let of_end = |m: &&Other| {
        let own = m.name.split_once(':').map_or(m.name.as_str(), |(_, own)| own).to_ascii_lowercase();
        m.name.starts_with(LM_STUDIO) && own.rsplit('/').next() == Some(&end)
    };
    match all.iter().filter(of_end).collect::<Vec<_>>().as_slice() {
        [one] => Ok((*one).clone()),
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

    /// Folders are read once, and names that a terminal would carry out are no names.
    #[cfg(unix)]
    #[test]
    fn links_lead_nowhere_twice() {
        let folder = tempfile::tempdir().unwrap();
        let models = folder.path().join("models");
        write(models.join("alice/tiny.gguf"), "GGUF");
        write(models.join("alice/\u{1b}[31m.gguf"), "GGUF");
        for n in 0..12 {
            std::os::unix::fs::symlink(".", models.join(format!("alice/{n}"))).unwrap();
        }
        assert_eq!(names(&lm_studio(&[models])), ["lmstudio:alice/tiny"]);
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
        write(library.join("cloud/latest"), r#"{"layers": []}"#);
        write(library.join("llama/.DS_Store"), "x");
        write(root.join("manifests/registry.ollama.ai/alice/tiny/latest"), &manifest("sha256:aa"));
        let (all, broken) = ollama(&[root.clone(), root.join("none")]);
        assert_eq!(
            names(&all),
            [
                "ollama:alice/tiny:latest",
                "ollama:hf.co/user/repo:Q4_K_M",
                "ollama:llama:latest",
                "ollama:qwen3:8b"
            ]
        );
        assert_eq!((all[0].size, &all[0].path), (4, &root.join("blobs/sha256-aa")));
        for (name, is_there) in [
            ("ollama:qwen3:8b", true),
            ("ollama:LLAMA", true),
            ("ollama:qwen3", false),
            ("ollama:alice/tiny", true),
            ("ollama:registry.ollama.ai/alice/tiny:latest", true),
            ("ollama:registry.ollama.ai/library/llama", true),
            ("ollama:tiny", false),
        ] {
            assert_eq!(find(&all, &broken, name).is_ok(), is_there, "{name}");
        }
        let why = |name: &str| find(&all, &broken, name).unwrap_err();
        assert!(why("ollama:x").contains("there are ollama:alice/tiny:latest, "));
        for (name, part) in [
            ("ollama:broken", "not valid JSON"),
            ("ollama:gone", "is missing"),
            ("ollama:evil", "without a digest"),
        ] {
            assert!(why(name).contains(part), "{}", why(name));
        }
        assert_eq!(broken.len(), 3);
        assert!(find(&[], &[], "ollama:x").unwrap_err().contains("no models"));
    }

    #[test]
    fn a_system_message_comes_with_its_model() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_path_buf();
        let layers = format!(
            r#"{{"layers": [{{"mediaType": "{WEIGHTS}", "digest": "sha256:aa"}}, {{"mediaType": "application/vnd.ollama.image.system", "digest": "sha256:bb"}}]}}"#
        );
        write(root.join("manifests/registry.ollama.ai/library/mario/latest"), &layers);
        write(root.join("blobs/sha256-aa"), "GGUF");
        let mario =
            || find(&ollama(std::slice::from_ref(&root)).0, &[], "ollama:mario").unwrap().layers.read();
        assert!(mario().1[0].contains("sha256-bb"));
        write(root.join("blobs/sha256-bb"), "You are Mario.");
        assert_eq!(mario().0.system.unwrap(), "You are Mario.");
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
        for name in ["lmstudio:X-q4_k_m", "lmstudio:x-Q4_K_M.gguf", "lmstudio:a/r/x-Q4_K_M.gguf"] {
            assert_eq!(find(&all, &[], name).unwrap().path, root.join("a/r/x-Q4_K_M.gguf"), "{name}");
        }
        assert!(find(&all, &[], "lmstudio:z").is_err());
    }
}
