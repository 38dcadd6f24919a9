//! A model directory, on disk or in memory (for tests and fuzzing).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::Error;
use crate::map::Mapped;

/// The location of a model's files.
pub(super) enum Dir {
    Disk(PathBuf),
    Memory { origin: String, files: BTreeMap<String, Bytes> },
}

impl Dir {
    /// What the user called it.
    pub fn origin(&self) -> String {
        match self {
            Self::Disk(path) => path.display().to_string(),
            Self::Memory { origin, .. } => origin.clone(),
        }
    }

    /// A name for the model: that of its directory, or of its repository when it lies in the hub's cache
    /// (`models--OWNER--NAME/snapshots/REVISION`).
    pub fn model_name(&self) -> String {
        let Self::Disk(path) = self else { return self.origin() };
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone()); // "." has no name of its own
        let name = |p: Option<&Path>| p.and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned());
        let repository = name(path.ancestors().nth(2))
            .and_then(|n| n.strip_prefix("models--").map(|n| n.replacen("--", "/", 1)));
        repository.or_else(|| name(Some(&path))).unwrap_or_else(|| self.origin())
    }

    /// Path of `name` for messages.
    pub fn path(&self, name: &str) -> String {
        match self {
            Self::Disk(path) => path.join(name).display().to_string(),
            Self::Memory { origin, .. } => format!("{origin}/{name}"),
        }
    }

    /// Names of all files.
    pub fn list(&self) -> Result<Vec<String>, Error> {
        let path = match self {
            Self::Memory { files, .. } => return Ok(files.keys().cloned().collect()),
            Self::Disk(path) => path,
        };
        let io = |e| Error::io(&self.origin(), e);
        let entries = std::fs::read_dir(path).map_err(io)?;
        entries.map(|e| Ok(e.map_err(io)?.file_name().to_string_lossy().into_owned())).collect()
    }

    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::Disk(path) => path.join(name).exists(),
            Self::Memory { files, .. } => files.contains_key(name),
        }
    }

    /// The text of file `name`, if there is one; at most `bytes_max` long.
    pub fn text(&self, name: &str, bytes_max: usize) -> Result<Option<String>, Error> {
        if !self.has(name) {
            return Ok(None);
        }
        let file = self.path(name);
        let too_long =
            |n: u64| Error::format(&file, format!("has {n} bytes; at most {bytes_max} are accepted"));
        let bytes = match self {
            Self::Memory { files, .. } => files[name].to_vec(),
            Self::Disk(path) => {
                let path = path.join(name);
                let meta = std::fs::metadata(&path).map_err(|e| Error::io(&file, e))?;
                if !meta.is_file() {
                    return Err(Error::format(&file, "is not a regular file"));
                }
                if meta.len() > bytes_max as u64 {
                    return Err(too_long(meta.len()));
                }
                std::fs::read(&path).map_err(|e| Error::io(&file, e))?
            }
        };
        if bytes.len() > bytes_max {
            return Err(too_long(bytes.len() as u64));
        }
        let text =
            String::from_utf8(bytes).map_err(|e| Error::format(&file, format!("is not UTF-8: {e}")))?;
        Ok(Some(text))
    }

    /// File `name` as bytes, mapped where it lies on disk.
    pub fn map(&self, name: &str) -> Result<Mapped, Error> {
        match self {
            Self::Disk(path) => Mapped::open(&path.join(name)),
            Self::Memory { files, .. } => match files.get(name) {
                Some(bytes) => Ok(Mapped::in_memory(&self.path(name), bytes.clone())),
                None => Err(Error::io(&self.path(name), std::io::ErrorKind::NotFound.into())),
            },
        }
    }
}
