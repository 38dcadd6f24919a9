//! The hub: the interface of this crate for the commands `pull`, `list`, `rm` and `run`.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::config::HubConfig;
use crate::error::{Class, Error};
use crate::fetcher::Fetcher;
use crate::preview::{self, Preview};
use crate::progress::{Event, Progress};
use crate::reference::{HubRef, Reference, ShortRef};
use crate::{huggingface, inventory, web, wheel};

/// Downloads, finds, lists and removes models. Can be shared between threads.
pub struct Hub {
    fetcher: Fetcher,
}

impl Hub {
    /// A hub with these settings. Accesses neither network nor disk.
    pub fn new(config: HubConfig) -> Self {
        Self { fetcher: Fetcher::new(config) }
    }

    /// Uses `free_space` instead of the operating system, for tests of full disks.
    #[must_use]
    pub fn with_free_space(
        mut self,
        free_space: impl Fn(&Path) -> std::io::Result<u64> + Send + Sync + 'static,
    ) -> Self {
        self.fetcher.free_space = Box::new(free_space);
        self
    }

    /// The settings.
    pub fn config(&self) -> &HubConfig {
        &self.fetcher.config
    }

    fn cache(&self) -> &Path {
        &self.fetcher.config.cache
    }

    /// The local path of a model, if it is complete. Never uses the network. A GGUF is represented by its first file, safetensors by
    /// their folder.
    pub fn resolve(&self, reference: &Reference) -> Result<Option<PathBuf>, Error> {
        match reference {
            Reference::Path(path) => Ok(path.exists().then(|| path.clone())),
            Reference::Hub(hub) => inventory::resolve(self.cache(), hub),
            Reference::Url(url) => Ok(web::resolve(self.cache(), url)),
            Reference::Short(short) => self.resolve_short(short),
        }
    }

    /// Ensures that the model is on this machine, complete and in its latest version, and returns its path.
    ///
    /// Resumes an interrupted pull. If the network is unavailable but the model is present, returns that, with a note to `progress`.
    pub fn pull(&self, reference: &Reference, progress: &dyn Progress) -> Result<PathBuf, Error> {
        let here = self.resolve(reference)?;
        let reference_is_final = match reference {
            Reference::Path(path) => return here.ok_or_else(|| Error::NoSuchPath(path.clone())),
            // Existing files have been checked against the known size.
            Reference::Short(short) => short.pinned().is_some(),
            // A commit never changes, but the local file may have been truncated.
            Reference::Hub(_) | Reference::Url(_) => false,
        };
        if let Some(path) = here.as_ref().filter(|_| reference_is_final || self.config().offline) {
            return Ok(path.clone());
        }
        if self.config().offline {
            return Err(Error::Offline(reference.to_string()));
        }
        let pulled = match reference {
            Reference::Path(path) => Err(Error::NoSuchPath(path.clone())),
            Reference::Hub(hub) => huggingface::pull(&self.fetcher, hub, progress),
            Reference::Url(url) => web::pull(&self.fetcher, url, progress),
            Reference::Short(short) => self.pull_short(short, progress),
        };
        match (pulled, here) {
            (Err(e), Some(path)) if is_unreachable(&e) => {
                let note = format!("could not look for a newer version ({e}); using the one that is here");
                progress.event(Event::Note(&note));
                Ok(path)
            }
            (pulled, _) => pulled,
        }
    }

    /// The headers of a model that is not on this machine, without its weights; `None` where there is no GGUF file to look into.
    pub fn preview(&self, reference: &Reference, progress: &dyn Progress) -> Result<Option<Preview>, Error> {
        if self.config().offline {
            return Err(Error::Offline(reference.to_string()));
        }
        match reference {
            Reference::Path(path) => Err(Error::NoSuchPath(path.clone())),
            Reference::Hub(hub) => huggingface::preview(&self.fetcher, hub, progress),
            Reference::Short(short) => huggingface::preview(&self.fetcher, &short.hub(), progress),
            Reference::Url(url) => {
                let parts: Vec<_> =
                    web::parts(url).into_iter().map(|url| (crate::reference::file_name(&url), url)).collect();
                let remotes: Vec<_> =
                    parts.iter().map(|(name, url)| preview::Remote { name, url, token: None }).collect();
                preview::fetch(&self.fetcher, &remotes, progress).map(Some)
            }
        }
    }

    /// For `run`: the local model, or else pulls it.
    pub fn ensure(&self, reference: &Reference, progress: &dyn Progress) -> Result<PathBuf, Error> {
        match self.resolve(reference)? {
            Some(path) => Ok(path),
            None => self.pull(reference, progress),
        }
    }

    /// Every model in the cache, including other tools'.
    pub fn list(&self) -> Result<Vec<inventory::Installed>, Error> {
        inventory::list(self.cache())
    }

    /// Removes a model from the cache, with everything that nothing else needs. Never removes files outside the cache.
    pub fn remove(&self, reference: &Reference) -> Result<inventory::Removed, Error> {
        inventory::remove(self.cache(), reference)
    }

    /// Fails if [`Hub::remove`] would: to check several names before the first is removed.
    pub fn check_removable(&self, reference: &Reference) -> Result<(), Error> {
        inventory::check_removable(self.cache(), reference)
    }

    fn resolve_short(&self, short: &ShortRef) -> Result<Option<PathBuf>, Error> {
        let on_hub = inventory::resolve(self.cache(), &short.hub())?;
        let Some(pinned) = short.pinned() else { return Ok(on_hub) };
        // A file with another size is damaged, and is ignored.
        let on_hub = on_hub.filter(|path| pinned.is_at(path));
        Ok(on_hub.or_else(|| wheel::resolve(self.cache(), short.known, pinned)))
    }

    /// Tries the sources in order.
    fn pull_short(&self, short: &ShortRef, progress: &dyn Progress) -> Result<PathBuf, Error> {
        let hub = short.hub();
        let Some(pinned) = short.pinned() else { return huggingface::pull(&self.fetcher, &hub, progress) };
        let host = self.config().endpoint.host_str().unwrap_or_default();
        let on_hub = format!("Hugging Face ({host}), {}", hub.repo);
        let on_index = format!("Python index, {} {}", pinned.wheel.project, pinned.wheel.version);
        type Source<'a> = Box<dyn Fn() -> Result<PathBuf, Error> + 'a>;
        let sources: [(String, Source<'_>); 2] = [
            (on_hub, Box::new(|| self.pull_pinned(&hub, pinned.sha256, progress))),
            (on_index, Box::new(|| wheel::pull(&self.fetcher, short.known, pinned, progress))),
        ];
        let mut tried = Vec::new();
        for (name, pull) in sources {
            progress.event(Event::Trying { source: &name });
            match pull() {
                // A full disk affects every source.
                Err(e) if e.is_local() => return Err(e),
                Err(e) => {
                    progress.event(Event::Failed { source: &name, why: &e });
                    tried.push((name, e));
                }
                pulled => return pulled,
            }
        }
        Err(Error::Sources { name: short.known.name.into(), tried })
    }

    /// From the hub, if it is exactly the catalogue's file.
    fn pull_pinned(&self, hub: &HubRef, sha256: &str, progress: &dyn Progress) -> Result<PathBuf, Error> {
        let path = huggingface::pull(&self.fetcher, hub, progress)?;
        // The hub names large files by their hash, which the download was checked against.
        let blob = std::fs::canonicalize(&path).map_err(|e| Error::io(&path, e))?;
        let name = blob.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if name == sha256 || self.hash(&blob)? == sha256 {
            return Ok(path);
        }
        inventory::remove(self.cache(), &Reference::Hub(hub.clone()))?;
        Err(Error::Checksum { file: hub.to_string(), expected: sha256.into(), got: name.into() })
    }

    fn hash(&self, path: &Path) -> Result<String, Error> {
        use sha2::{Digest, Sha256};
        let io = |e| Error::io(path, e);
        let mut file = std::fs::File::open(path).map_err(io)?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 256 << 10];
        loop {
            match file.read(&mut buffer).map_err(io)? {
                0 => return Ok(crate::cache::hex(&hash.finalize())),
                n => hash.update(&buffer[..n]),
            }
        }
    }
}

/// True if the source could not be reached, rather than having refused.
fn is_unreachable(e: &Error) -> bool {
    matches!(e.class(), Some(Class::Unreachable | Class::Transient(_)))
}
