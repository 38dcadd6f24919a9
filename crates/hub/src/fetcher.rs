//! What all sources of models share: the settings, the HTTP client, and the checks of a download. Owned by `hub`; used by `huggingface`, `web`
//! and `wheel`.

use std::io::Read;
use std::path::Path;

use crate::cache::remove_file;
use crate::config::HubConfig;
use crate::error::Error;
use crate::http::Http;
use crate::progress::{Event, Progress};

/// Returns the free bytes of a folder's file system.
type FreeSpace = Box<dyn Fn(&Path) -> std::io::Result<u64> + Send + Sync>;

/// The means of a download.
pub(crate) struct Fetcher {
    pub config: HubConfig,
    pub http: Http,
    pub free_space: FreeSpace,
}

impl Fetcher {
    /// With these settings. Accesses neither network nor disk.
    pub fn new(config: HubConfig) -> Self {
        let http = Http::new(&config);
        Self { config, http, free_space: Box::new(|dir| fs4::available_space(dir)) }
    }

    /// Remaining bytes of a download of `size` bytes.
    pub fn remaining(&self, part: &Path, size: u64) -> u64 {
        let left = std::fs::metadata(part).map_or(0, |m| m.len());
        if left > size { size } else { size - left }
    }

    /// Fails if the cache's file system has less than `need` bytes free.
    pub fn check_space(&self, need: u64, progress: &dyn Progress) -> Result<(), Error> {
        let cache = &self.config.cache;
        std::fs::create_dir_all(cache).map_err(|e| Error::io(cache, e))?;
        match (self.free_space)(cache) {
            Ok(have) if have < need => Err(Error::Space { dir: cache.clone(), need, have }),
            Ok(_) => Ok(()),
            Err(e) => {
                progress.event(Event::Note(&format!("{}: free space is not known: {e}", cache.display())));
                Ok(())
            }
        }
    }

    /// Checks a finished download before it gets its name; removes a bad one.
    pub fn accept(&self, part: &Path, file: &str, sha256: &str, expected: Option<&str>) -> Result<(), Error> {
        if let Some(expected) = expected.filter(|e| *e != sha256) {
            remove_file(part)?;
            return Err(Error::Checksum { file: file.into(), expected: expected.into(), got: sha256.into() });
        }
        if !file.to_ascii_lowercase().ends_with(".gguf") {
            return Ok(());
        }
        let mut start = Vec::new();
        let opened = std::fs::File::open(part).and_then(|f| f.take(64).read_to_end(&mut start));
        opened.map_err(|e| Error::io(part, e))?;
        if start.starts_with(b"GGUF") {
            return Ok(());
        }
        remove_file(part)?;
        let looks = if start.trim_ascii_start().starts_with(b"<") {
            "a web page came instead (is a login needed?)"
        } else if start.starts_with(b"version https://git-lfs") {
            "a Git LFS pointer came instead of the file"
        } else {
            "what came does not begin like one"
        };
        Err(Error::NotAModel {
            file: file.into(),
            what: format!("is not a GGUF file: {looks}; nothing was kept"),
        })
    }
}
