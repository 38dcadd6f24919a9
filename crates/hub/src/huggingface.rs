//! Models on the Hugging Face hub (or a mirror): listing a repository, downloading.

use std::path::PathBuf;

use url::Url;

use crate::cache::{Entry, blob_name};
use crate::download::{self, Piece};
use crate::error::{Class, Error};
use crate::fetcher::Fetcher;
use crate::http::{Call, Trust};
use crate::preview::{self, Preview};
use crate::progress::{Event, Meter, Progress};
use crate::reference::{HubRef, is_safe};
use crate::select::{Chosen, choose, projector};

/// Maximum size of a repository's listing, which is usually a few megabytes at most.
const LISTING_BYTES_MAX: u64 = 64 << 20;

/// The header with a large file's hash, in the hub's redirect to the file.
const LINKED_ETAG: &str = "x-linked-etag";

/// A file to download.
struct Remote {
    name: String,
    url: Url,
    blob: String,
    size: Option<u64>,
    /// Known for large files, which the hub names by their hash.
    sha256: Option<String>,
}

/// Downloads a model and returns its path: the first GGUF part, or the snapshot folder.
pub(crate) fn pull(fetcher: &Fetcher, reference: &HubRef, progress: &dyn Progress) -> Result<PathBuf, Error> {
    let (commit, files) = listing(fetcher, reference, progress)?;
    let chosen = choose(&files, &reference.select).map_err(|what| Error::choice(&reference.repo, what))?;
    let entry = Entry::hub(&fetcher.config.cache, &reference.repo);
    let mut remotes = Vec::new();
    // A GGUF model's projector lies beside it. The model comes first.
    let projector = match &chosen {
        Chosen::Gguf(names) => names.first().and_then(|model| projector(&files, model)),
        Chosen::Directory(_) => None,
    };
    if let Some(name) = &projector {
        progress.event(Event::Note(&format!("the model reads images with {name}, which is fetched, too")));
    }
    for name in chosen.files().iter().chain(&projector) {
        remotes.push(describe(fetcher, reference, &commit, name, progress)?);
    }
    let missing = remotes.iter().filter(|r| !is_cached(&entry, &commit, r));
    let need = missing.map(|r| fetcher.remaining(&entry.part(&r.blob), r.size.unwrap_or(0))).sum();
    fetcher.check_space(need, progress)?;
    let mut paths = Vec::new();
    for (i, remote) in remotes.iter().enumerate() {
        let blob = fetch(fetcher, &entry, &commit, remote, (i + 1, remotes.len()), progress)
            .inspect_err(|_| entry.prune())?;
        paths.push(entry.link(&commit, &remote.name, &blob)?);
    }
    entry.set_ref(&reference.revision, &commit)?;
    Ok(match chosen {
        Chosen::Gguf(_) => paths.swap_remove(0),
        Chosen::Directory(_) => entry.snapshot(&commit),
    })
}

/// The headers of a model's GGUF files; `None` if it has none.
pub(crate) fn preview(
    fetcher: &Fetcher,
    reference: &HubRef,
    progress: &dyn Progress,
) -> Result<Option<Preview>, Error> {
    let (commit, files) = listing(fetcher, reference, progress)?;
    let chosen = choose(&files, &reference.select).map_err(|what| Error::choice(&reference.repo, what))?;
    let Chosen::Gguf(mut names) = chosen else { return Ok(None) };
    // Beside the model, where readers look for it.
    let beside = names.first().and_then(|model| projector(&files, model));
    names.extend(beside);
    let urls =
        names.iter().map(|name| address(fetcher, &format!("{}/resolve/{commit}/{name}", reference.repo)));
    let urls = urls.collect::<Result<Vec<Url>, Error>>()?;
    let token = fetcher.config.token.as_ref();
    let remotes: Vec<_> =
        names.iter().zip(&urls).map(|(name, url)| preview::Remote { name, url, token }).collect();
    preview::fetch(fetcher, &remotes, progress).map(Some).map_err(|e| advise(e, fetcher, reference))
}

/// The commit of the revision, and all its files.
fn listing(
    fetcher: &Fetcher,
    reference: &HubRef,
    progress: &dyn Progress,
) -> Result<(String, Vec<String>), Error> {
    let url = address(fetcher, &format!("api/models/{}/revision/{}", reference.repo, reference.revision))?;
    let call = Call { token: fetcher.config.token.as_ref(), ..Call::get(&url, Trust::System) };
    let answer = fetcher
        .http
        .send_retrying(&call, &reference.repo, progress)
        .map_err(|e| advise(e, fetcher, reference))?;
    let url = answer.url.clone();
    let text = answer.text(LISTING_BYTES_MAX)?;
    let odd = |what: &str| Error::fetch(&url, format!("the list of files {what}"), Class::Permanent);
    let json: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| odd(&format!("is not JSON: {e}")))?;
    let commit = json["sha"]
        .as_str()
        .filter(|c| is_safe(c) && !c.contains('/'))
        .ok_or_else(|| odd("names no commit"))?;
    let files = json["siblings"].as_array().ok_or_else(|| odd("names no files"))?;
    let names = files.iter().filter_map(|f| f["rfilename"].as_str()).filter(|f| is_safe(f));
    Ok((commit.to_string(), names.map(str::to_string).collect()))
}

/// Size and hash of a file, without its contents, from the hub's own response before the redirect.
fn describe(
    fetcher: &Fetcher,
    reference: &HubRef,
    commit: &str,
    name: &str,
    progress: &dyn Progress,
) -> Result<Remote, Error> {
    let url = address(fetcher, &format!("{}/resolve/{commit}/{name}", reference.repo))?;
    let token = fetcher.config.token.as_ref();
    let call = Call { token, head: true, stop_at: Some(LINKED_ETAG), ..Call::get(&url, Trust::System) };
    let answer =
        fetcher.http.send_retrying(&call, name, progress).map_err(|e| advise(e, fetcher, reference))?;
    let redirected = answer.status >= 300;
    let etag = answer.header(LINKED_ETAG).or(answer.header("etag")).ok_or_else(|| {
        Error::fetch(&url, "the server names no version (ETag) of this file", Class::Permanent)
    })?;
    let blob = blob_name(etag);
    let size = answer.header("x-linked-size").and_then(|s| s.parse().ok());
    let size = size.or_else(|| answer.content_length().filter(|_| !redirected));
    let is_sha = blob.len() == 64 && blob.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    // A tag that was not a plain file name was hashed by us, and is not a hash of the file.
    let is_sha = is_sha && etag.contains(&blob);
    Ok(Remote { name: name.into(), url, sha256: is_sha.then(|| blob.clone()), blob, size })
}

/// True if a file is present with all its bytes: as a blob, or in the snapshot on file systems without links.
fn is_cached(entry: &Entry, commit: &str, remote: &Remote) -> bool {
    entry.has(&remote.blob, remote.size) || entry.has_file(commit, &remote.name, remote.size)
}

/// Downloads a file unless it is present. Returns its blob's name.
fn fetch(
    fetcher: &Fetcher,
    entry: &Entry,
    commit: &str,
    remote: &Remote,
    position: (usize, usize),
    progress: &dyn Progress,
) -> Result<String, Error> {
    let name = remote.name.as_str();
    let _lock = entry.lock(&remote.blob, name, progress)?;
    let there = entry.snapshot(commit).join(name);
    let there = std::fs::metadata(entry.blob(&remote.blob)).or_else(|_| std::fs::metadata(there));
    if let Ok(there) = there {
        if is_cached(entry, commit, remote) {
            progress.event(Event::Finished { file: name, bytes: there.len() });
            return Ok(remote.blob.clone());
        }
        let note = format!("the {name} that is here is damaged ({} bytes); fetching it again", there.len());
        progress.event(Event::Note(&note));
    }
    let part = entry.part(&remote.blob);
    let mut meter = Meter::new(progress, name, remote.size);
    meter.begin(&part, position);
    let token = fetcher.config.token.as_ref();
    let piece =
        Piece { url: &remote.url, token, trust: Trust::System, start: 0, len: remote.size, validator: None };
    let (sha256, bytes) = download::fetch(&fetcher.http, &piece, &part, &mut meter)?;
    fetcher.accept(&part, name, &sha256, remote.sha256.as_deref())?;
    entry.keep(&part, &remote.blob)?;
    progress.event(Event::Finished { file: name, bytes });
    Ok(remote.blob.clone())
}

/// A URL below the endpoint; each part of `path` is encoded.
fn address(fetcher: &Fetcher, path: &str) -> Result<Url, Error> {
    let mut url = fetcher.config.endpoint.clone();
    match url.path_segments_mut() {
        Ok(mut segments) => segments.pop_if_empty().extend(path.split('/')),
        Err(()) => {
            return Err(Error::Setting {
                setting: "HF_ENDPOINT".into(),
                what: "is not a URL that a path can be added to".into(),
            });
        }
    };
    Ok(url)
}

/// Adds a hint to common errors.
fn advise(e: Error, fetcher: &Fetcher, reference: &HubRef) -> Error {
    let Error::Fetch { url, mut what, class } = e else { return e };
    let repo = &reference.repo;
    let advice = match class {
        // The hub also answers 401 for repositories that do not exist.
        Class::Status(401) if fetcher.config.token.is_none() => {
            format!("there is no repository {repo}, or it needs a token: set HF_TOKEN")
        }
        Class::Status(401) => {
            format!("there is no repository {repo}, or the token in HF_TOKEN is not valid for it")
        }
        Class::Status(403) => {
            format!("access to {repo} is restricted: accept its terms at {}{repo}", fetcher.config.endpoint)
        }
        Class::Status(404) => {
            format!("there is no {repo} at revision {}, or no such file in it", reference.revision)
        }
        _ => return Error::Fetch { url, what, class },
    };
    what = format!("{what}; {advice}");
    Error::Fetch { url, what, class }
}
