//! Packed weights that stay in a file: the next start maps it instead of packing them again. Used by `device`.
//!
//! | file | what |
//! |---|---|
//! | `format` | what is in a file |
//! | `write` | the thread that writes one |
//! | `settle` | the thread that checks one while it is in use |
//!
//! A file is found by the path of its model's file, and used if the model's key is the same. Matrices are compared with checksums before
//! they are used: experts when a step first needs them, all others at load. While it is in use, the file may be removed or replaced; if it
//! is truncated, steps fail.

mod format;
mod settle;
mod write;

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::thread::JoinHandle;

use octet_weights::GgmlType;
use xxhash_rust::xxh3::xxh3_64;

use super::huge::HugeVec;
use super::map::FileMap;
use super::pack::{Checks, Packed};
use super::team::Team;
use crate::backend::{Error, FileId};
use format::{Header, Region};

/// How file names end.
const COMPLETE: &str = "packed";
const PART: &str = "packed-part";
/// Smaller models are packed in less than a second.
const LEAST_BYTES: u64 = 1 << 30;

/// Where packed weights are kept.
#[derive(Debug, Clone)]
pub struct PackedFiles {
    /// The folder.
    pub dir: PathBuf,
    /// Packed weights of fewer bytes are not kept.
    pub least: u64,
    /// Tells the user that a file is written, or why not.
    pub notice: Notice,
}

/// A function for messages to the user.
#[derive(Clone, Copy)]
pub struct Notice(pub fn(&str));

impl std::fmt::Debug for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Notice")
    }
}

impl PackedFiles {
    /// In this folder, those of models for which it is worth it.
    pub fn new(dir: PathBuf, notice: fn(&str)) -> Self {
        Self { dir, least: LEAST_BYTES, notice: Notice(notice) }
    }

    /// All files of packed weights in the folder.
    pub fn list(dir: &Path) -> Vec<KeptFile> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let all = entries.filter_map(|entry| {
            let path = entry.path();
            let ending = path.extension()?.to_str()?;
            if ending != COMPLETE && ending != PART {
                return None;
            }
            let model = format::header_of(&path)?.path.into();
            let bytes = entry.metadata().ok()?.len();
            Some(KeptFile { is_complete: ending == COMPLETE, path, model, bytes })
        });
        let mut all: Vec<KeptFile> = all.collect();
        all.sort_by(|a, b| a.path.cmp(&b.path));
        all
    }
}

/// A file of packed weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptFile {
    /// Its path.
    pub path: PathBuf,
    /// The model's file.
    pub model: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// It is not being written any more.
    pub is_complete: bool,
}

/// The name of a model's file of packed weights.
fn file_name(id: &FileId, ending: &str) -> String {
    let path = id.path.to_string_lossy();
    let stem = id.path.file_stem().unwrap_or_default().to_string_lossy();
    format!("{stem:.40}-{:016x}.{ending}", xxh3_64(path.as_bytes()))
}

/// A projection, or a stack of experts, in the file.
struct InFile {
    map: Arc<FileMap>,
    region: Region,
    /// Which matrices were compared with their checksums.
    checked: Box<[AtomicBool]>,
    left: AtomicUsize,
}

impl InFile {
    fn new(map: &Arc<FileMap>, region: Region) -> Self {
        let checked = (0..region.count).map(|_| AtomicBool::new(false)).collect();
        Self { map: map.clone(), left: AtomicUsize::new(region.count), checked, region }
    }

    fn is_piece_right(&self, i: usize) -> bool {
        xxh3_64(self.map.bytes(self.region.piece(i))) == self.region.sums[i]
    }

    fn set_checked(&self, matrix: usize) {
        if !self.checked[matrix].swap(true, AcqRel) {
            self.left.fetch_sub(1, AcqRel);
        }
    }

    /// The factors of its rows; `None` if they are wrong.
    fn scales(&self) -> Option<Vec<f32>> {
        let bytes = self.map.bytes(self.region.factors());
        let is_right = bytes.is_empty() || self.region.sums.last() == Some(&xxh3_64(bytes));
        is_right.then(|| bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }
}

impl Checks for InFile {
    fn check(&self, matrix: usize) {
        if self.checked[matrix].load(Acquire) {
            return;
        }
        let pieces = self.region.pieces_of_matrix();
        if !(matrix * pieces..(matrix + 1) * pieces).all(|i| self.is_piece_right(i)) {
            self.map.lose();
        }
        self.set_checked(matrix);
    }
    fn is_done(&self) -> bool {
        self.left.load(Acquire) == 0
    }
}

/// A complete file of the model.
struct Found {
    map: Arc<FileMap>,
    regions: HashMap<String, Arc<InFile>>,
}

impl Found {
    /// The file at `path`, if it is whole and of this model.
    fn open(path: &Path, id: &FileId) -> Option<Self> {
        let mut file = File::open(path).ok()?;
        let header = Header::read(&mut file).ok()??;
        let meta = file.metadata().ok()?;
        let is_same = header.is_complete && header.key == format::key(id);
        // Whoever has changed it, has changed its time.
        if !is_same || meta.len() != header.bytes || meta.modified().ok()? != header.time() {
            return None;
        }
        let regions = format::read_index(&mut file, &header).ok()??;
        let map = Arc::new(FileMap::new(&file, usize::try_from(header.bytes).ok()?).ok()?);
        let regions = regions.into_iter().map(|(name, r)| (name, Arc::new(InFile::new(&map, r)))).collect();
        Some(Self { map, regions })
    }
}

/// What is to be in the file.
struct Part {
    name: String,
    packed: Packed,
}

/// The file of a model that is being loaded, or is loaded.
pub(super) struct PackedFile {
    options: PackedFiles,
    id: FileId,
    found: Option<Found>,
    /// Some of it is wrong.
    is_damaged: bool,
    /// The name of what is packed next.
    next: Option<String>,
    /// What was loaded, and how many bytes of that are not in the file.
    parts: Vec<Part>,
    missing: u64,
    work: Option<Work>,
}

/// A thread that ends early if it is dropped.
struct Work {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Work {
    fn start(name: &str, work: impl FnOnce(&AtomicBool) + Send + 'static) -> Option<Self> {
        let stop = Arc::<AtomicBool>::default();
        let stops = stop.clone();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            settle::yield_to_others();
            work(&stops);
        });
        Some(Self { stop, thread: Some(thread.ok()?) })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.stop.store(true, Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic no longer matters
        }
    }
}

impl PackedFile {
    /// Opens the file of a model, if there is one.
    pub fn open(options: &PackedFiles, id: &FileId) -> Self {
        let found = Found::open(&options.dir.join(file_name(id, COMPLETE)), id);
        Self {
            options: options.clone(),
            id: id.clone(),
            found,
            is_damaged: false,
            next: None,
            parts: Vec::new(),
            missing: 0,
            work: None,
        }
    }

    /// The packed matrices called `name`, if the file has them in this shape. Checks them now, or `later`, when they are used. If it has
    /// none, the next that are [added](Self::add) have this name.
    ///
    /// # Errors
    /// If the file is damaged: the model has to be loaded without it.
    pub fn take(
        &mut self,
        team: &mut Team,
        name: &str,
        ty: GgmlType,
        [count, rows, cols]: [usize; 3],
        later: bool,
    ) -> Result<Option<Packed>, Error> {
        self.next = Some(name.into());
        let Some(found) = self.found.as_ref().and_then(|f| f.regions.get(name)) else { return Ok(None) };
        let found = found.clone();
        let l = &found.region.layout;
        if (l.ty(), l.rows(), l.cols(), found.region.count) != (ty, rows, cols, count) {
            return Ok(None);
        }
        let wrong = AtomicBool::new(false);
        if !later {
            team.run(|w| {
                for i in w.items(found.region.pieces()) {
                    if !found.is_piece_right(i) {
                        wrong.store(true, Relaxed);
                    }
                }
            });
            (0..count).for_each(|m| found.set_checked(m));
        }
        let scales = found.scales();
        let (Some(scales), false, false) = (scales, wrong.into_inner(), found.map.is_lost()) else {
            return Err(self.damage());
        };
        let data = HugeVec::of_file(&found.map, found.region.matrices());
        let checks = later.then(|| found.clone() as Arc<dyn Checks>);
        let packed = Packed::of_file(found.region.layout, data, scales, checks);
        self.add(&packed);
        self.missing -= packed.size_bytes() as u64;
        Ok(Some(packed))
    }

    /// Adds what was packed now, if it has a name.
    pub fn add(&mut self, packed: &Packed) {
        if let Some(name) = self.next.take() {
            self.missing += packed.size_bytes() as u64;
            self.parts.push(Part { name, packed: packed.shared() });
        }
    }

    /// All is loaded: starts to check the file, or to write a new one if that is worth it.
    ///
    /// # Errors
    /// If the file is damaged.
    pub fn loaded(&mut self) -> Result<(), Error> {
        let parts = std::mem::take(&mut self.parts);
        if self.found.as_ref().is_some_and(|f| f.map.is_lost()) {
            return Err(self.damage());
        }
        if self.missing >= self.options.least {
            let (job, notice) = (write::Job::new(&self.options.dir, &self.id, parts), self.options.notice.0);
            match job.is_worth_it() {
                Ok(true) => notice(&job.message()),
                Ok(false) => {}
                Err(why) => {
                    notice(&why);
                    return Ok(());
                }
            }
            self.work = Work::start("octet-pack-write", move |stop| {
                if let Err(why) = job.run(stop) {
                    notice(&why);
                }
            });
            return Ok(());
        }
        if let Some(found) = self.found.take() {
            let all: Vec<Arc<InFile>> = found.regions.into_values().collect();
            let map = found.map.clone();
            self.found = Some(Found { map: found.map, regions: HashMap::new() });
            self.work = Work::start("octet-pack-check", move |stop| settle::run(&map, all, stop));
        }
        Ok(())
    }

    /// Whether the file was found to be damaged, and so removed.
    pub fn is_damaged(&self) -> bool {
        self.is_damaged
    }

    /// Why steps fail, if the file was damaged while it was in use.
    pub fn failure(&mut self) -> Option<Error> {
        let is_lost = self.found.as_ref().is_some_and(|f| f.map.is_lost());
        is_lost.then(|| self.damage())
    }

    /// Removes the file, so that the next load does without.
    fn damage(&mut self) -> Error {
        let path = self.options.dir.join(file_name(&self.id, COMPLETE));
        if !std::mem::replace(&mut self.is_damaged, true) {
            let _ = std::fs::remove_file(&path); // it may be gone, and the next one replaces it
        }
        Error(format!(
            "{}: packed weights were damaged or truncated while they were in use; load the model again",
            path.display()
        ))
    }
}
