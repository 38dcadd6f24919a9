//! One model's folder in the cache, in the layout of the Hugging Face hub, so that other tools find Octet's downloads and vice versa:
//!
//! ```text
//! models--user--repo/
//!   blobs/<etag>                 the bytes; SHA-256 for large files
//!   blobs/<etag>.incomplete      what an interrupted download left
//!   snapshots/<commit>/<file>    link to ../../blobs/<etag>
//!   refs/<branch>                the commit that the branch was at
//! .locks/models--user--repo/<etag>.lock
//! ```
//!
//! Models from other sources (a URL, a Python index) are in `models--octet--<name>` in the same layout: the blob is named by its
//! SHA-256, which also makes the "commit", and `octet.json` has the source.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::Error;
use crate::progress::{Event, Progress};
use crate::reference::is_safe;

/// Suffix of unfinished downloads, in every tool that uses this layout.
pub(crate) const INCOMPLETE: &str = ".incomplete";
/// The name of the lock for a whole entry of Octet's own.
pub(crate) const WHOLE: &str = "download";
/// The file with the source of an entry that is not from Hugging Face.
const ORIGIN: &str = "octet.json";

/// One folder of the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// `models--user--repo`.
    pub name: String,
    pub dir: PathBuf,
    locks: PathBuf,
}

/// An unfinished download.
#[derive(Debug)]
pub(crate) struct Unfinished {
    pub blob: String,
    pub path: PathBuf,
    /// The file it will become, if the tool that began it recorded that.
    pub file: Option<String>,
    pub bytes: u64,
    pub modified: std::time::SystemTime,
}

/// The source of one of Octet's own entries.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The reference to download it again.
    pub reference: String,
    /// The server's version of each file.
    pub versions: BTreeMap<String, String>,
}

impl Entry {
    /// The entry of a repository on Hugging Face.
    pub fn hub(cache: &Path, repo: &str) -> Self {
        Self::named(cache, &format!("models--{}", repo.replace('/', "--")))
    }

    /// One of Octet's own entries.
    pub fn own(cache: &Path, name: &str) -> Self {
        let name: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' })
            .collect();
        Self::named(cache, &format!("models--octet--{name}"))
    }

    pub fn named(cache: &Path, name: &str) -> Self {
        Self { name: name.into(), dir: cache.join(name), locks: cache.join(".locks").join(name) }
    }

    /// `user/repo`, if this is a repository's entry.
    pub fn repo(&self) -> Option<String> {
        let (user, repo) = self.name.strip_prefix("models--")?.split_once("--")?;
        Some(format!("{user}/{repo}"))
    }

    pub fn blobs(&self) -> PathBuf {
        self.dir.join("blobs")
    }

    pub fn blob(&self, name: &str) -> PathBuf {
        self.blobs().join(name)
    }

    /// True if a blob is present with all its bytes (of unknown number, with any). A shorter one was truncated after its download: by
    /// a full disk, an interrupted copy, or a file system error.
    pub fn has(&self, blob: &str, size: Option<u64>) -> bool {
        std::fs::metadata(self.blob(blob)).is_ok_and(|m| m.is_file() && size.is_none_or(|s| s == m.len()))
    }

    /// True if `file` of a snapshot is present itself, not as a link to its blob, with all its bytes: so it is on file systems without
    /// links.
    pub fn has_file(&self, commit: &str, file: &str, size: Option<u64>) -> bool {
        let path = self.snapshot(commit).join(file);
        std::fs::symlink_metadata(path).is_ok_and(|m| m.is_file() && size == Some(m.len()))
    }

    /// The unfinished download of a blob.
    pub fn part(&self, name: &str) -> PathBuf {
        self.blobs().join(format!("{name}{INCOMPLETE}"))
    }

    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.dir.join("snapshots").join(commit)
    }

    /// Commits with a snapshot, the most recently written first.
    pub fn commits(&self) -> Result<Vec<String>, Error> {
        let mut commits = Vec::new();
        for (name, path) in read_dir(&self.dir.join("snapshots"))? {
            let modified =
                std::fs::metadata(&path).and_then(|m| m.modified()).map_err(|e| Error::io(&path, e))?;
            commits.push((modified, name));
        }
        commits.sort();
        Ok(commits.into_iter().rev().map(|(_, name)| name).collect())
    }

    /// The last known commit of a branch; for a commit, the commit itself.
    pub fn commit_of(&self, revision: &str) -> Option<String> {
        if !is_safe(revision) {
            return None;
        }
        let named = std::fs::read_to_string(self.dir.join("refs").join(revision)).ok();
        let commit = named.map_or_else(|| revision.to_string(), |text| text.trim().to_string());
        (is_safe(&commit) && self.snapshot(&commit).is_dir()).then_some(commit)
    }

    /// Sets the commit of a branch. Done last, so that references only name complete snapshots.
    pub fn set_ref(&self, revision: &str, commit: &str) -> Result<(), Error> {
        if revision == commit || !is_safe(revision) {
            return Ok(());
        }
        let path = self.dir.join("refs").join(revision);
        create_parent(&path)?;
        write_whole(&path, commit.as_bytes())
    }

    /// Moves a finished download into place.
    pub fn keep(&self, part: &Path, blob: &str) -> Result<(), Error> {
        // Without a sync, a power failure could leave the name without the bytes.
        File::open(part).and_then(|f| f.sync_all()).map_err(|e| Error::io(part, e))?;
        let path = self.blob(blob);
        std::fs::rename(part, &path).map_err(|e| Error::io(&path, e))
    }

    /// Links `file` of a snapshot to a blob.
    pub fn link(&self, commit: &str, file: &str, blob: &str) -> Result<PathBuf, Error> {
        self.link_by(symlink, commit, file, blob)
    }

    fn link_by(&self, symlink: Symlink, commit: &str, file: &str, blob: &str) -> Result<PathBuf, Error> {
        let path = self.snapshot(commit).join(file);
        // On file systems without links it has been moved there already.
        if !self.blob(blob).exists() && std::fs::symlink_metadata(&path).is_ok_and(|m| m.is_file()) {
            return Ok(path);
        }
        let up = "../".repeat(file.split('/').count() + 1);
        let target = PathBuf::from(format!("{up}blobs/{blob}"));
        if std::fs::read_link(&path).is_ok_and(|t| t == target) {
            return Ok(path);
        }
        create_parent(&path)?;
        let parent = path.parent().unwrap_or(&path);
        let Ok(fresh) = tempfile::Builder::new().make_in(parent, |fresh| symlink(&target, fresh)) else {
            // Without links (or permission to create them), the file itself is moved, as in other tools.
            std::fs::rename(self.blob(blob), &path).map_err(|e| Error::io(&path, e))?;
            return Ok(path);
        };
        fresh.persist(&path).map_err(|e| Error::io(&path, e.error))?;
        Ok(path)
    }

    /// Prevents other processes (and other tools with this layout) from downloading the same blob. Waits, with an event, if one does.
    /// The lock ends when the file is closed.
    pub fn lock(&self, blob: &str, file: &str, progress: &dyn Progress) -> Result<File, Error> {
        let path = self.lock_path(blob);
        create_parent(&path)?;
        loop {
            let lock = open_lock(&path)?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    progress.event(Event::Waiting { file });
                    lock.lock().map_err(|e| Error::io(&path, e))?;
                }
                // Some network file systems have no locks. Concurrent pulls would then do the work twice.
                Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Unsupported => {
                    progress.event(Event::Note(
                        "the cache's file system has no locks; do not pull this twice at once",
                    ));
                }
                Err(TryLockError::Error(e)) => return Err(Error::io(&path, e)),
            }
            // Another tool may remove a lock's file after use; a lock on the removed file would be ineffective.
            if same_file(&lock, &path) {
                // A blob's name does not show the file it will become, which `list` and `rm` need.
                let note = lock.set_len(0).and_then(|()| (&lock).write_all(file.as_bytes()));
                note.map_err(|e| Error::io(&path, e))?;
                return Ok(lock);
            }
        }
    }

    /// True if no process is downloading this blob. Leaves no lock behind.
    pub fn is_idle(&self, blob: &str) -> Result<bool, Error> {
        let path = self.lock_path(blob);
        match File::open(&path) {
            Ok(file) => Ok(!matches!(file.try_lock(), Err(TryLockError::WouldBlock))),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(true),
            Err(e) => Err(Error::io(&path, e)),
        }
    }

    /// The unfinished downloads of this entry.
    pub fn unfinished(&self) -> Result<Vec<Unfinished>, Error> {
        let mut all = Vec::new();
        for (name, path) in read_dir(&self.blobs())? {
            // `<blob>.incomplete`, or `<blob>.<suffix>.incomplete` for further temporary files.
            let Some(blob) = name.strip_suffix(INCOMPLETE).and_then(|n| n.split('.').next()) else {
                continue;
            };
            let data = std::fs::metadata(&path).map_err(|e| Error::io(&path, e))?;
            all.push(Unfinished {
                file: std::fs::read_to_string(self.lock_path(blob)).ok().filter(|f| is_safe(f)),
                blob: blob.to_string(),
                bytes: data.len(),
                modified: data.modified().map_err(|e| Error::io(&path, e))?,
                path,
            });
        }
        Ok(all)
    }

    fn lock_path(&self, blob: &str) -> PathBuf {
        self.locks.join(format!("{blob}.lock"))
    }

    /// After a failed pull: removes the entry's folders if they only contain the source file. Locks stay, as others may be waiting for
    /// them; a remaining empty folder is harmless.
    pub fn prune(&self) {
        let is_empty = |dir: &Path| read_dir(dir).is_ok_and(|d| d.is_empty());
        let (blobs, snapshots) = (self.blobs(), self.dir.join("snapshots"));
        if is_empty(&blobs) && is_empty(&snapshots) {
            let _ = remove_file(&self.dir.join(ORIGIN));
            for dir in [&blobs, &snapshots, &self.dir] {
                let _ = std::fs::remove_dir(dir);
            }
        }
    }

    /// Removes the whole entry.
    pub fn remove(&self) -> Result<(), Error> {
        for dir in [&self.dir, &self.locks] {
            match std::fs::remove_dir_all(dir) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(Error::io(dir, e)),
                _ => {}
            }
        }
        Ok(())
    }

    pub fn origin(&self) -> Result<Option<Origin>, Error> {
        let path = self.dir.join(ORIGIN);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io(&path, e)),
        };
        // If the file is damaged, the download is repeated.
        let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let Some(reference) = json["reference"].as_str() else { return Ok(None) };
        let versions = json["versions"].as_object().into_iter().flatten();
        Ok(Some(Origin {
            reference: reference.into(),
            versions: versions.filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_string()))).collect(),
        }))
    }

    pub fn set_origin(&self, origin: &Origin) -> Result<(), Error> {
        let json = serde_json::json!({ "reference": origin.reference, "versions": origin.versions });
        let path = self.dir.join(ORIGIN);
        create_parent(&path)?;
        write_whole(&path, format!("{json:#}\n").as_bytes())
    }
}

/// A server's version as the name of a blob. Versions that are not plain file names are hashed.
pub(crate) fn blob_name(etag: &str) -> String {
    let tag = etag.trim().trim_start_matches("W/").trim_matches('"');
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if !tag.is_empty() && tag.len() <= 128 && tag.chars().all(plain) {
        tag.to_string()
    } else {
        sha256_of(etag)
    }
}

/// SHA-256 of a text in lower-case hexadecimal.
pub(crate) fn sha256_of(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Name and path of each item in a folder, sorted; empty if there is no folder.
pub(crate) fn read_dir(dir: &Path) -> Result<Vec<(String, PathBuf)>, Error> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Vec::new()),
        Err(e) => return Err(Error::io(dir, e)),
    };
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| Error::io(dir, e))?;
        // Files of this layout have Unicode names.
        if let Ok(name) = entry.file_name().into_string() {
            all.push((name, entry.path()));
        }
    }
    all.sort();
    Ok(all)
}

pub(crate) fn create_parent(path: &Path) -> Result<(), Error> {
    let parent = path.parent().unwrap_or(path);
    std::fs::create_dir_all(parent).map_err(|e| Error::io(parent, e))
}

/// Removes a file or link, if it exists.
pub(crate) fn remove_file(path: &Path) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::io(path, e)),
        _ => Ok(()),
    }
}

/// Replaces a file atomically: readers see the old or the new content, even with concurrent writers.
fn write_whole(path: &Path, content: &[u8]) -> Result<(), Error> {
    let mut builder = tempfile::Builder::new();
    // The umask sets the permissions of shared caches; `tempfile`'s default is the owner only.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let write = || {
        let dir = path.parent().unwrap_or(path);
        // Its errors name the temporary file, which means nothing to the user.
        let mut fresh = builder.tempfile_in(dir).map_err(|e| std::io::Error::from(e.kind()))?;
        fresh.as_file_mut().write_all(content)?;
        fresh.persist(path).map_err(|e| e.error)
    };
    write().map(drop).map_err(|e| Error::io(path, e))
}

fn open_lock(path: &Path) -> Result<File, Error> {
    File::options().create(true).append(true).open(path).map_err(|e| Error::io(path, e))
}

#[cfg(unix)]
fn same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |m: std::fs::Metadata| (m.dev(), m.ino());
    file.metadata().ok().map(id) == std::fs::metadata(path).ok().map(id)
}

#[cfg(not(unix))]
fn same_file(_: &File, _: &Path) -> bool {
    true // an open file cannot be removed there
}

/// A function that creates a link to a target.
type Symlink = fn(&Path, &Path) -> std::io::Result<()>;

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;

    #[test]
    fn the_layout_is_the_hubs() {
        let dir = tempfile::tempdir().unwrap();
        let entry = Entry::hub(dir.path(), "user/some--repo");
        assert_eq!(entry.name, "models--user--some--repo");
        assert_eq!(entry.repo().as_deref(), Some("user/some--repo"));
        std::fs::create_dir_all(entry.blobs()).unwrap();
        std::fs::write(entry.part("abc"), "bytes").unwrap();
        entry.keep(&entry.part("abc"), "abc").unwrap();
        for file in ["x.gguf", "Q4/y.gguf"] {
            let path = entry.link("c0ffee", file, "abc").unwrap();
            assert_eq!(path, dir.path().join("models--user--some--repo/snapshots/c0ffee").join(file));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "bytes");
            entry.link("c0ffee", file, "abc").unwrap(); // twice is once
        }
        #[cfg(unix)]
        assert_eq!(
            std::fs::read_link(entry.snapshot("c0ffee").join("Q4/y.gguf")).unwrap(),
            Path::new("../../../blobs/abc")
        );
        assert_eq!(entry.commit_of("main"), None);
        entry.set_ref("main", "c0ffee").unwrap();
        assert_eq!(entry.commit_of("main").as_deref(), Some("c0ffee"));
        assert_eq!(entry.commit_of("c0ffee").as_deref(), Some("c0ffee"));
        assert_eq!(entry.commit_of("../.."), None);
        assert_eq!(entry.commits().unwrap(), ["c0ffee"]);
    }

    #[test]
    fn where_there_are_no_links_files_move() {
        let dir = tempfile::tempdir().unwrap();
        let entry = Entry::hub(dir.path(), "user/repo");
        let refuse: Symlink = |_, _| Err(ErrorKind::Unsupported.into());
        for content in ["old", "newer"] {
            std::fs::create_dir_all(entry.blobs()).unwrap();
            std::fs::write(entry.blob("abc"), content).unwrap();
            for _ in 0..2 {
                let path = entry.link_by(refuse, "c0ffee", "x.gguf", "abc").unwrap();
                assert_eq!(std::fs::read_to_string(path).unwrap(), content);
            }
            assert!(!entry.has("abc", None));
            assert!(entry.has_file("c0ffee", "x.gguf", Some(content.len() as u64)));
        }
        assert!(!entry.has_file("c0ffee", "x.gguf", Some(4)) && !entry.has_file("c0ffee", "x.gguf", None));
        // A link that was made in the meantime would point nowhere.
        entry.link("c0ffee", "x.gguf", "abc").unwrap();
        assert!(entry.has_file("c0ffee", "x.gguf", Some(5)));
    }

    #[test]
    fn a_lock_keeps_others_out_and_survives_the_removal_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let entry = Entry::own(dir.path(), "x y");
        assert_eq!(entry.name, "models--octet--x-y");
        let lock = entry.lock("b", "file", &Silent).unwrap();
        assert!(!entry.is_idle("b").unwrap() && entry.is_idle("other").unwrap());
        std::fs::remove_file(entry.lock_path("b")).unwrap();
        let again = entry.lock("b", "file", &Silent).unwrap();
        drop(lock);
        assert!(!entry.is_idle("b").unwrap());
        drop(again);
        assert!(entry.is_idle("b").unwrap());
    }

    /// Two pulls in one process once had one temporary name, and renamed each other's file away.
    #[test]
    fn many_write_the_same_files_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let entry = Entry::hub(dir.path(), "user/repo");
        std::fs::create_dir_all(entry.snapshot("c0ffee")).unwrap();
        std::fs::create_dir_all(entry.blobs()).unwrap();
        std::fs::write(entry.blob("abc"), "bytes").unwrap();
        std::thread::scope(|scope| {
            for i in 0..8 {
                let entry = &entry;
                scope.spawn(move || {
                    for j in 0..50 {
                        entry.set_ref("main", "c0ffee").unwrap();
                        let reference = format!("{i} {j}");
                        entry.set_origin(&Origin { reference, ..Default::default() }).unwrap();
                        entry.link(&format!("c0ffee{j}"), "x.gguf", "abc").unwrap();
                    }
                });
            }
        });
        assert_eq!(entry.commit_of("main").as_deref(), Some("c0ffee"));
        let origin = entry.origin().unwrap().unwrap();
        assert!(origin.reference.ends_with(" 49"), "{origin:?}");
        // Nothing else is left behind.
        let names = |dir: &Path| read_dir(dir).unwrap().into_iter().map(|(n, _)| n).collect::<Vec<_>>();
        assert_eq!(names(&entry.dir), ["blobs", ORIGIN, "refs", "snapshots"]);
        assert_eq!(names(&entry.dir.join("refs")), ["main"]);
        assert_eq!(names(&entry.snapshot("c0ffee7")), ["x.gguf"]);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
            let plain = dir.path().join("plain");
            std::fs::write(&plain, "").unwrap();
            assert_eq!(mode(entry.dir.join("refs/main")), mode(plain), "as any file that a program makes");
        }
    }

    #[test]
    fn a_servers_tag_becomes_a_plain_name() {
        assert_eq!(blob_name("\"abc-12\""), "abc-12");
        assert_eq!(blob_name("W/\"abc\""), "abc");
        for bad in ["", "\"../x\"", "\"a/b\"", "\"..\""] {
            assert_eq!(blob_name(bad).len(), 64, "{bad}");
        }
    }

    #[test]
    fn the_origin_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let entry = Entry::own(dir.path(), "x");
        assert_eq!(entry.origin().unwrap(), None);
        let versions = BTreeMap::from([("f.gguf".to_string(), "v1".to_string())]);
        let origin = Origin { reference: "https://h/f.gguf".into(), versions };
        entry.set_origin(&origin).unwrap();
        assert_eq!(entry.origin().unwrap(), Some(origin));
    }
}
