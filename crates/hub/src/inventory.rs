//! The contents of the cache: finding a model, listing all, removing one. Uses no network.

use std::collections::{BTreeSet, HashMap};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::cache::{Entry, INCOMPLETE, Unfinished, WHOLE, read_dir, remove_file};
use crate::catalog::CATALOG;
use crate::error::Error;
use crate::reference::{HubRef, MAIN, Reference, Select, ShortRef, is_safe};
use crate::select::{Chosen, Gguf, choose, ggufs, matching};
use crate::snapshot::{blobs_of, files};
use crate::{web, wheel};

/// A model in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// Its reference: `hf:user/repo:Q4_K_M`, a URL, or a short name.
    pub reference: String,
    /// Short names of the same file.
    pub aliases: Vec<String>,
    /// The first GGUF file, or the folder of the safetensors; the cache folder of an unfinished download.
    pub path: PathBuf,
    /// Bytes on disk.
    pub size: u64,
    /// When it was downloaded, or last added to.
    pub modified: SystemTime,
    /// False for an interrupted pull: pull it again to continue, or remove it.
    pub complete: bool,
}

/// What [`Hub::remove`](crate::Hub::remove) removed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// Model files.
    pub files: usize,
    /// Bytes freed, unfinished downloads included.
    pub bytes: u64,
}

/// The path of a repository's model, if it is complete.
pub(crate) fn resolve(cache: &Path, reference: &HubRef) -> Result<Option<PathBuf>, Error> {
    let entry = Entry::hub(cache, &reference.repo);
    let Some(commit) = entry.commit_of(&reference.revision) else { return Ok(None) };
    let snapshot = entry.snapshot(&commit);
    // An incomplete or ambiguous selection is treated as missing: a pull will report the problem.
    let Ok(chosen) = choose(&files(&snapshot)?, &reference.select) else { return Ok(None) };
    Ok(match chosen {
        Chosen::Gguf(files) => files.first().map(|f| snapshot.join(f)),
        Chosen::Directory(_) => has_all_shards(&snapshot).then_some(snapshot),
    })
}

/// True if every file in the weights' index is present (or there is no index).
fn has_all_shards(snapshot: &Path) -> bool {
    let Ok(text) = std::fs::read_to_string(snapshot.join("model.safetensors.index.json")) else {
        return true;
    };
    // An invalid index is reported by the reader of the weights.
    let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let names: BTreeSet<&str> =
        json["weight_map"].as_object().into_iter().flatten().filter_map(|(_, f)| f.as_str()).collect();
    names.into_iter().all(|name| is_safe(name) && snapshot.join(name).is_file())
}

fn entries(cache: &Path) -> Result<Vec<Entry>, Error> {
    let all =
        read_dir(cache)?.into_iter().filter(|(name, path)| name.starts_with("models--") && path.is_dir());
    Ok(all.map(|(name, _)| Entry::named(cache, &name)).collect())
}

/// Every model, in the order of references.
pub(crate) fn list(cache: &Path) -> Result<Vec<Installed>, Error> {
    let mut all = Vec::new();
    for entry in entries(cache)? {
        list_entry(&entry, &mut all)?;
    }
    let aliases = aliases(cache)?;
    for model in &mut all {
        model.aliases = aliases.get(&model.path).cloned().unwrap_or_default();
        model.aliases.retain(|a| *a != model.reference);
    }
    all.sort_by(|a, b| (&a.reference, &a.path).cmp(&(&b.reference, &b.path)));
    Ok(all)
}

fn list_entry(entry: &Entry, all: &mut Vec<Installed>) -> Result<(), Error> {
    let origin = entry.origin()?.map(|o| o.reference);
    let name = |revision: &str, label: Option<String>| match (&origin, entry.repo()) {
        (Some(origin), _) => Some(origin.clone()),
        (None, Some(repo)) => {
            let select = label.map_or(Select::Default, Select::Quant);
            Some(HubRef { repo, revision: revision.into(), select }.to_string())
        }
        (None, None) => None,
    };
    let first = all.len();
    let main = entry.commit_of(MAIN);
    let mut seen = BTreeSet::new();
    // The branch's current state first: models that an older snapshot also has are not listed twice.
    let mut commits = entry.commits()?;
    commits.sort_by_key(|c| Some(c) != main.as_ref());
    for commit in commits {
        let snapshot = entry.snapshot(&commit);
        let at_main = Some(&commit) == main.as_ref();
        for (label, files, complete) in models(&snapshot, &files(&snapshot)?) {
            // Without a branch, the commit is the only name; an interrupted pull sets no branch.
            let revision = if at_main || !complete { MAIN } else { &commit };
            if let (true, Some(name)) = (seen.insert(label.clone()), name(revision, label)) {
                all.push(installed(name, &snapshot, &files, complete)?);
            }
        }
    }
    for part in entry.unfinished()? {
        let label = part.file.and_then(|f| ggufs(&[f]).pop()).map(|g| g.label);
        let Some(name) = name(MAIN, label) else { continue };
        let known = all[first..].iter().position(|m| !m.complete && m.reference == name);
        let at = known.map_or_else(
            || {
                all.push(Installed::unfinished(name, entry.dir.clone()));
                all.len() - 1
            },
            |at| first + at,
        );
        all[at].size += part.bytes;
        all[at].modified = all[at].modified.max(part.modified);
    }
    Ok(())
}

/// Every model of a snapshot: its label (none for safetensors), its files, and whether all of them are present.
fn models(snapshot: &Path, files: &[String]) -> Vec<(Option<String>, Vec<String>, bool)> {
    let complete = |g: &Gguf| g.files.len() == g.parts;
    let mut models: Vec<_> =
        ggufs(files).into_iter().map(|g| (Some(g.label.clone()), g.files.clone(), complete(&g))).collect();
    if models.is_empty() {
        match choose(files, &Select::Default) {
            Ok(chosen) => models.push((None, chosen.files().to_vec(), has_all_shards(snapshot))),
            Err(_) if files.iter().any(|f| f.ends_with(".safetensors")) => {
                models.push((None, files.to_vec(), false))
            }
            // A repository of something else, such as a tokenizer.
            Err(_) => {}
        }
    }
    models
}

impl Installed {
    fn unfinished(reference: String, path: PathBuf) -> Self {
        Self {
            reference,
            aliases: Vec::new(),
            path,
            size: 0,
            modified: SystemTime::UNIX_EPOCH,
            complete: false,
        }
    }
}

fn installed(
    reference: String,
    snapshot: &Path,
    files: &[String],
    complete: bool,
) -> Result<Installed, Error> {
    let path = match files {
        [first, ..] if first.ends_with(".gguf") => snapshot.join(first),
        _ => snapshot.to_path_buf(),
    };
    let mut model = Installed { complete, ..Installed::unfinished(reference, path) };
    for file in files {
        let path = snapshot.join(file);
        let data = std::fs::metadata(&path).map_err(|e| Error::io(&path, e))?;
        model.size += data.len();
        model.modified = model.modified.max(data.modified().map_err(|e| Error::io(&path, e))?);
    }
    Ok(model)
}

/// Path -> the short names that lead to it.
fn aliases(cache: &Path) -> Result<HashMap<PathBuf, Vec<String>>, Error> {
    let mut aliases: HashMap<PathBuf, Vec<String>> = HashMap::new();
    for known in CATALOG {
        let short = ShortRef { known, quant: None };
        let by_wheel = short.pinned().and_then(|p| wheel::resolve(cache, known, p));
        for path in resolve(cache, &short.hub())?.into_iter().chain(by_wheel) {
            aliases.entry(path).or_default().push(known.name.to_string());
        }
    }
    Ok(aliases)
}

/// Removes a model; for a short name, every copy.
pub(crate) fn remove(cache: &Path, reference: &Reference) -> Result<Removed, Error> {
    let mut removed = Removed::default();
    for (entry, model) in copies(cache, reference)? {
        match model {
            Some(model) => remove_from(&entry, &model, &mut removed)?,
            None => remove_entry(&entry, &mut removed)?,
        }
    }
    if removed == Removed::default() { Err(not_here(reference)) } else { Ok(removed) }
}

/// Fails as [`remove`] would, as far as that can be known without removing anything.
pub(crate) fn check_removable(cache: &Path, reference: &Reference) -> Result<(), Error> {
    let mut any = false;
    for (entry, model) in copies(cache, reference)? {
        any |= match model {
            Some(model) if model.select != Select::Default => !Selection::find(&entry, &model)?.is_nothing(),
            // Unreferenced blobs are removed, too.
            Some(model) => {
                !Selection::find(&entry, &model)?.is_nothing() || !read_dir(&entry.blobs())?.is_empty()
            }
            None => !entry.commits()?.is_empty() || !read_dir(&entry.blobs())?.is_empty(),
        };
    }
    if any { Ok(()) } else { Err(not_here(reference)) }
}

fn not_removable(reference: &Reference, why: &str) -> Error {
    Error::NotRemovable { name: reference.to_string(), why: why.into() }
}

fn not_here(reference: &Reference) -> Error {
    not_removable(reference, "it is not in the cache")
}

/// The entries that a reference selects, each with the selected part; `None` is all of it.
fn copies(cache: &Path, reference: &Reference) -> Result<Vec<(Entry, Option<HubRef>)>, Error> {
    let on_hub = |model: HubRef| (Entry::hub(cache, &model.repo), Some(model));
    Ok(match reference {
        Reference::Path(_) => {
            return Err(not_removable(
                reference,
                "only models in the cache are; remove a file of your own with the system's tools",
            ));
        }
        Reference::Hub(model) => vec![on_hub(model.clone())],
        Reference::Url(url) => vec![(web::entry(cache, url), None)],
        Reference::Short(short) => {
            let pinned = short.pinned().map(|_| (wheel::entry(cache, short.known), None));
            [on_hub(short.hub())].into_iter().chain(pinned).collect()
        }
    })
}

/// The part of an entry that a reference selects.
struct Selection {
    /// The snapshots to look in.
    commits: Vec<String>,
    /// Names of files, the same in each of them.
    files: BTreeSet<String>,
    /// What interrupted pulls of them left.
    unfinished: Vec<Unfinished>,
}

impl Selection {
    /// A model's files in every snapshot (or in that of a named revision). If there are several models, one must be named: removing
    /// must not guess.
    fn find(entry: &Entry, model: &HubRef) -> Result<Self, Error> {
        let mut commits = entry.commits()?;
        let anywhere = model.revision == MAIN;
        if !anywhere {
            let only = entry.commit_of(&model.revision);
            commits.retain(|c| Some(c) == only.as_ref());
        }
        let mut unfinished = if anywhere || commits.is_empty() { entry.unfinished()? } else { Vec::new() };
        let mut names: BTreeSet<String> = unfinished.iter().filter_map(|u| u.file.clone()).collect();
        for commit in &commits {
            names.extend(files(&entry.snapshot(commit))?);
        }
        let names: Vec<String> = names.into_iter().collect();
        let models = ggufs(&names);
        let all = model.select == Select::Default;
        let files: BTreeSet<String> = match matching(&models, &model.select).as_slice() {
            _ if all && models.len() <= 1 => names.into_iter().collect(),
            [one] if !all => one.files.iter().cloned().collect(),
            [] if !all => BTreeSet::new(),
            _ => {
                let labels: Vec<&str> = models.iter().map(|m| m.label.as_str()).collect();
                return Err(Error::choice(
                    &model.repo,
                    format!("several models are here; name one of {}", labels.join(", ")),
                ));
            }
        };
        unfinished.retain(|u| u.file.as_ref().map_or(all, |f| files.contains(f)));
        Ok(Self { commits, files, unfinished })
    }

    fn is_nothing(&self) -> bool {
        self.files.is_empty() && self.unfinished.is_empty()
    }
}

/// Removes a model's files, and what interrupted pulls of it left.
fn remove_from(entry: &Entry, model: &HubRef, removed: &mut Removed) -> Result<(), Error> {
    let meant = Selection::find(entry, model)?;
    if meant.is_nothing() && model.select != Select::Default {
        return Ok(());
    }
    for commit in &meant.commits {
        let snapshot = entry.snapshot(commit);
        for file in files(&snapshot)?.iter().filter(|f| meant.files.contains(*f)) {
            let path = snapshot.join(file);
            if !path.is_symlink() {
                removed.bytes += std::fs::metadata(&path).map_err(|e| Error::io(&path, e))?.len();
            }
            remove_file(&path)?;
            removed.files += 1;
        }
    }
    for part in &meant.unfinished {
        remove_unfinished(entry, part, removed)?;
    }
    sweep(entry, removed)
}

fn remove_unfinished(entry: &Entry, part: &Unfinished, removed: &mut Removed) -> Result<(), Error> {
    // One of Octet's own entries has a single lock.
    if !entry.is_idle(&part.blob)? || !entry.is_idle(WHOLE)? {
        return Err(Error::Busy(
            part.file.clone().or_else(|| entry.repo()).unwrap_or_else(|| entry.name.clone()),
        ));
    }
    removed.bytes += part.bytes;
    remove_file(&part.path)
}

/// Removes a whole entry.
fn remove_entry(entry: &Entry, removed: &mut Removed) -> Result<(), Error> {
    for part in entry.unfinished()? {
        remove_unfinished(entry, &part, removed)?;
    }
    for commit in entry.commits()? {
        let snapshot = entry.snapshot(&commit);
        removed.files += files(&snapshot)?.len();
        std::fs::remove_dir_all(&snapshot).map_err(|e| Error::io(&snapshot, e))?;
    }
    sweep(entry, removed)
}

/// Removes blobs without references, empty folders, and finally the entry itself.
fn sweep(entry: &Entry, removed: &mut Removed) -> Result<(), Error> {
    let mut used = BTreeSet::new();
    for commit in entry.commits()? {
        let snapshot = entry.snapshot(&commit);
        used.extend(blobs_of(&snapshot)?);
        remove_empty(&snapshot)?;
    }
    let mut left = false;
    for (name, path) in read_dir(&entry.blobs())? {
        // A blob whose lock is held has just been finished; its link is still to be made.
        if used.contains(&name) || name.ends_with(INCOMPLETE) || !entry.is_idle(&name)? {
            left = true;
            continue;
        }
        removed.bytes += std::fs::metadata(&path).map_err(|e| Error::io(&path, e))?.len();
        remove_file(&path)?;
    }
    if left || !entry.commits()?.is_empty() { Ok(()) } else { entry.remove() }
}

/// Removes a folder and its subfolders, as far as they are empty.
fn remove_empty(folder: &Path) -> Result<(), Error> {
    for (_, path) in read_dir(folder)? {
        if path.is_dir() && !path.is_symlink() {
            remove_empty(&path)?;
        }
    }
    match std::fs::remove_dir(folder) {
        Err(e) if !matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotFound) => {
            Err(Error::io(folder, e))
        }
        _ => Ok(()),
    }
}
