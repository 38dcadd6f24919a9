//! GGUF files at any URL.

use std::path::{Path, PathBuf};

use url::Url;

use crate::cache::{Entry, Origin, WHOLE, sha256_of};
use crate::download::{self, Piece};
use crate::error::{Error, redacted};
use crate::fetcher::Fetcher;
use crate::http::{Call, Trust};
use crate::progress::{Event, Meter, Progress};
use crate::reference::{MAIN, file_name};
use crate::select::split_suffix;
use crate::snapshot::drop_old;

/// Metadata of a file before its download.
struct Remote {
    url: Url,
    name: String,
    size: Option<u64>,
    validator: Option<String>,
    /// Changes when the file does.
    version: String,
    /// The blob of this version, if it is present.
    blob: Option<String>,
}

/// The entry of a URL. User, password and query are not part of its name: they may be temporary signatures, and must not be stored.
pub(crate) fn entry(cache: &Path, url: &Url) -> Entry {
    let name = file_name(url);
    let stem = name.strip_suffix(".gguf").unwrap_or(&name);
    let (stem, _, _) = split_suffix(stem).unwrap_or((stem, 1, 1));
    let parts = parts(url);
    let first = parts.first().unwrap_or(url);
    Entry::own(cache, &format!("{stem}-{}", &sha256_of(&redacted(first))[..8]))
}

/// The URLs of all parts of a split file, in order; else the URL itself.
pub(crate) fn parts(url: &Url) -> Vec<Url> {
    let name = file_name(url);
    let Some((stem, _, parts)) = name.strip_suffix(".gguf").and_then(split_suffix) else {
        return vec![url.clone()];
    };
    let part = |n: usize| {
        let mut part = url.clone();
        if let Ok(mut segments) = part.path_segments_mut() {
            segments.pop().push(&format!("{stem}-{n:05}-of-{parts:05}.gguf"));
        }
        part
    };
    (1..=parts).map(part).collect()
}

/// The file on disk, if all its parts are present.
pub(crate) fn resolve(cache: &Path, url: &Url) -> Option<PathBuf> {
    let entry = entry(cache, url);
    let snapshot = entry.snapshot(&entry.commit_of(MAIN)?);
    let paths: Vec<PathBuf> = parts(url).iter().map(|u| snapshot.join(file_name(u))).collect();
    paths.iter().all(|p| p.is_file()).then(|| paths.into_iter().next()).flatten()
}

/// Downloads a file, or all parts of a split one, and returns the path of the first.
pub(crate) fn pull(fetcher: &Fetcher, url: &Url, progress: &dyn Progress) -> Result<PathBuf, Error> {
    let entry = entry(&fetcher.config.cache, url);
    // One lock for the entry, so that this pull only discards its own files.
    let _lock = entry.lock(WHOLE, &file_name(url), progress)?;
    pull_into(fetcher, &entry, url, progress).inspect_err(|_| entry.prune())
}

fn pull_into(fetcher: &Fetcher, entry: &Entry, url: &Url, progress: &dyn Progress) -> Result<PathBuf, Error> {
    let mut origin = entry.origin()?.unwrap_or_default();
    origin.reference = redacted(parts(url).first().unwrap_or(url));
    let mut remotes = Vec::new();
    for part in parts(url) {
        remotes.push(describe(fetcher, entry, &origin, part, progress)?);
    }
    let missing = remotes.iter().filter(|r| r.blob.is_none());
    let need = missing.map(|r| fetcher.remaining(&entry.part(&r.version), r.size.unwrap_or(0))).sum();
    fetcher.check_space(need, progress)?;
    // Before the first byte: an interrupted pull is listed under its own name.
    entry.set_origin(&origin)?;
    let mut blobs = Vec::new();
    for (i, remote) in remotes.iter().enumerate() {
        blobs.push(match &remote.blob {
            Some(blob) => blob.clone(),
            None => fetch(fetcher, entry, remote, (i + 1, remotes.len()), progress)?,
        });
        // Recorded at once, so that an interrupted pull of many parts continues where it stopped.
        origin.versions.insert(remote.name.clone(), format!("{} {}", remote.version, blobs[i]));
        entry.set_origin(&origin)?;
    }
    let commit = sha256_of(&blobs.join(" "))[..40].to_string();
    let mut first = None;
    for (remote, blob) in remotes.iter().zip(&blobs) {
        let path = entry.link(&commit, &remote.name, blob)?;
        first.get_or_insert(path);
    }
    entry.set_ref(MAIN, &commit)?;
    drop_old(entry, &commit)?;
    Ok(first.unwrap_or_else(|| entry.snapshot(&commit)))
}

/// Requests one byte: servers with signed URLs only answer GET.
fn describe(
    fetcher: &Fetcher,
    entry: &Entry,
    origin: &Origin,
    url: Url,
    progress: &dyn Progress,
) -> Result<Remote, Error> {
    let name = file_name(&url);
    let mut call = Call::get(&url, Trust::System);
    call.headers.push(("range", "bytes=0-0".into()));
    let answer = fetcher.http.send_retrying(&call, &name, progress)?;
    let size = match answer.status {
        206 => answer.content_range().and_then(|(_, _, total)| total),
        200 => answer.content_length(),
        _ => None,
    };
    let validator = answer.validator();
    // Without a version, no part of an older download may be reused.
    let stamp = validator.clone().unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        format!("{} {}", now.as_nanos(), std::process::id())
    });
    let version = sha256_of(&format!("{} {stamp} {size:?}", redacted(&url)))[..32].to_string();
    let blob =
        origin.versions.get(&name).and_then(|v| v.strip_prefix(&version)).map(|b| b.trim().to_string());
    let commit = entry.commit_of(MAIN);
    let has_file = || commit.is_some_and(|c| entry.has_file(&c, &name, size));
    let blob = blob.filter(|b| entry.has(b, size) || has_file());
    Ok(Remote { url, name, size, validator, version, blob })
}

fn fetch(
    fetcher: &Fetcher,
    entry: &Entry,
    remote: &Remote,
    position: (usize, usize),
    progress: &dyn Progress,
) -> Result<String, Error> {
    let part = entry.part(&remote.version);
    let mut meter = Meter::new(progress, &remote.name, remote.size);
    meter.begin(&part, position);
    let piece = Piece {
        url: &remote.url,
        token: None,
        trust: Trust::System,
        start: 0,
        len: remote.size,
        validator: remote.validator.as_deref(),
    };
    let (sha256, bytes) = download::fetch(&fetcher.http, &piece, &part, &mut meter)?;
    fetcher.accept(&part, &remote.name, &sha256, None)?;
    entry.keep(&part, &sha256)?;
    progress.event(Event::Finished { file: &remote.name, bytes });
    Ok(sha256)
}
