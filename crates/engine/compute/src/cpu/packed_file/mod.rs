//! Packed weights that stay in a file: the next start maps it instead of packing them again, or reads experts from it that are not in
//! memory.
//!
//! | file | what |
//! |---|---|
//! | `format` | what is in a file |
//! | `place` | what is at a file's path |
//! | `write` | the thread that writes one |
//! | `settle` | the thread that checks one while it is in use |
//! | `table` | an embedding table in the model's own file |
//! | `direct` | experts that are read from one when they are needed |
//! | `pace` | how fast these threads work while steps run |
//!
//! A file is found by the path of its model's file, and used if the model's key is the same. Matrices are compared with checksums before
//! they are used: experts when a step first needs them, all others at load. While it is in use, the file may be removed or replaced; if it
//! is truncated, steps fail.

mod direct;
mod format;
mod pace;
mod place;
mod settle;
mod table;
mod write;

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::thread::JoinHandle;

use bytes::Bytes;
use octet_weights::{GgmlType, Piece, Stamp};
use xxhash_rust::xxh3::xxh3_64;

use super::arbiter::Arbiter;
use super::huge::HugeVec;
use super::map::FileMap;
use super::pack::{Checks, Layout, Packed};
use super::team::Team;
use crate::backend::{Error, FileId, StoredExperts, StoredProjection};
use direct::OpenFile;
pub(super) use direct::{KeptExperts, Later};
use format::{Header, Region};
use pace::Pace;
use place::Role;
use table::{Rows, Table};

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

    /// That of a model.
    fn path(&self, id: &FileId, ending: &str) -> PathBuf {
        let path = id.path.to_string_lossy();
        let stem = id.path.file_stem().unwrap_or_default().to_string_lossy();
        self.dir.join(format!("{stem:.40}-{:016x}.{ending}", xxh3_64(path.as_bytes())))
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
            let role = if ending == PART { Role::Part } else { Role::Complete };
            let model = place::header_of(&path, role)?.path.into();
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

    fn is_group_right(&self, i: usize) -> bool {
        xxh3_64(self.map.bytes(self.region.group(i))) == self.region.sums[i]
    }

    /// Compares a matrix with its checksums, unless that was done. Before each turn, `go_on` may wait, or end it by `false`; then it is
    /// false, too.
    fn check_if(&self, matrix: usize, go_on: &mut dyn FnMut() -> bool) -> bool {
        let (groups, turn) = (self.region.layout.groups(), self.region.turn());
        let all = matrix * groups..(matrix + 1) * groups;
        for from in all.clone().step_by(turn) {
            // A step may have done it meanwhile.
            if self.is_checked(matrix) {
                return true;
            }
            if !go_on() {
                return false;
            }
            self.check_groups(from..all.end.min(from + turn));
        }
        self.set_checked(matrix);
        true
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
        self.check_if(matrix, &mut || true);
    }
    fn check_groups(&self, mut groups: Range<usize>) {
        if !groups.all(|i| self.is_group_right(i)) {
            self.map.lose();
        }
    }
    fn set_checked(&self, matrix: usize) {
        if !self.checked[matrix].swap(true, AcqRel) {
            self.left.fetch_sub(1, AcqRel);
        }
    }
    fn is_checked(&self, matrix: usize) -> bool {
        self.checked[matrix].load(Acquire)
    }
    fn is_done(&self) -> bool {
        self.left.load(Acquire) == 0
    }
}

/// A complete file of the model: mapped, or read as experts are needed.
enum Found {
    Mapped { map: Arc<FileMap>, regions: HashMap<String, Arc<InFile>> },
    Read { file: Arc<OpenFile>, regions: HashMap<String, Arc<Region>> },
}

/// Why there is no complete file to use.
enum Unused {
    /// There is none of this model.
    Missing,
    /// It is of no use, and is replaced.
    Damaged(String),
    /// It stays as it is, and none is written.
    Kept(String),
}

impl Unused {
    fn damaged(what: &str) -> Self {
        Self::Damaged(what.into())
    }
    fn kept(e: impl std::fmt::Display) -> Self {
        Self::Kept(e.to_string())
    }
}

impl Found {
    fn map(options: &PackedFiles, id: &FileId) -> Result<Self, Unused> {
        let (file, header, regions) = Self::open(&options.path(id, COMPLETE), id)?;
        let bytes = usize::try_from(header.bytes).map_err(Unused::kept)?;
        let map = Arc::new(FileMap::new(&file, bytes).map_err(Unused::kept)?);
        let regions = regions.into_iter().map(|(name, r)| (name, Arc::new(InFile::new(&map, r)))).collect();
        Ok(Self::Mapped { map, regions })
    }

    fn read(options: &PackedFiles, id: &FileId) -> Result<Self, Unused> {
        let path = options.path(id, COMPLETE);
        let (file, _, regions) = Self::open(&path, id)?;
        let meta = file.metadata().map_err(Unused::kept)?;
        let stamp = path.canonicalize().and_then(|path| Stamp::new(path, &meta)).map_err(Unused::kept)?;
        let regions = regions.into_iter().map(|(name, r)| (name, Arc::new(r))).collect();
        let file = OpenFile::new(path, &stamp, options.notice).map_err(Unused::kept)?;
        Ok(Self::Read { file: Arc::new(file), regions })
    }

    /// The file at `path`, if it is whole and of this model.
    fn open(path: &Path, id: &FileId) -> Result<(File, Header, HashMap<String, Region>), Unused> {
        let (mut file, header) = match place::look(path, Role::Complete) {
            place::Found::Nothing => return Err(Unused::Missing),
            place::Found::Other(what) => return Err(Unused::Kept(place::stays(&what))),
            place::Found::Ours(file, header) => (file, header.map_err(Unused::damaged)?),
        };
        if !header.is_complete {
            return Err(Unused::damaged("it is not complete"));
        }
        if header.key != format::key(id) {
            return Err(Unused::Missing); // the model has changed
        }
        let meta = file.metadata().map_err(Unused::kept)?;
        if meta.len() != header.bytes {
            let what = format!("it has {} bytes, and had {} when it was written", meta.len(), header.bytes);
            return Err(Unused::Damaged(what));
        }
        if meta.modified().map_err(Unused::kept)? != header.time() {
            return Err(Unused::damaged("it was changed after it was written"));
        }
        match format::read_index(&mut file, &header).map_err(Unused::kept)? {
            Some(regions) => Ok((file, header, regions)),
            None => Err(Unused::damaged("its index is damaged")),
        }
    }

    fn region(&self, name: &str) -> Option<&Region> {
        match self {
            Self::Mapped { regions, .. } => regions.get(name).map(|file| &file.region),
            Self::Read { regions, .. } => regions.get(name).map(Arc::as_ref),
        }
    }

    /// The region called `name`, if it has `count` matrices of this layout.
    fn fitting(&self, name: &str, layout: &Layout, count: usize) -> Option<&Region> {
        let shape = |l: &Layout| (l.ty(), l.rows(), l.cols());
        self.region(name).filter(|r| (shape(&r.layout), r.count) == (shape(layout), count))
    }

    /// Whether a page or a byte of the mapping was wrong.
    fn is_lost(&self) -> bool {
        matches!(self, Self::Mapped { map, .. } if map.is_lost())
    }
}

/// What is to be in the file.
struct Part {
    name: String,
    layout: Layout,
    count: usize,
    source: Source,
}

/// Where it comes from.
enum Source {
    Memory(Packed),
    /// Experts that are in the model's file, and `later` in this one.
    Model {
        experts: Arc<dyn StoredExperts>,
        later: Later,
    },
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
    /// Embedding tables that are read in the model's own file until they are copied.
    tables: Vec<Arc<Table>>,
    work: Option<Work>,
}

/// A thread that ends early if it is dropped.
struct Work {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Work {
    /// Starts it; it works beside the steps of `arbiter`.
    fn start(
        name: &str,
        arbiter: &Arbiter,
        work: impl FnOnce(&mut Pace, &AtomicBool) + Send + 'static,
    ) -> Option<Self> {
        let stop = Arc::<AtomicBool>::default();
        let (stops, arbiter) = (stop.clone(), arbiter.clone());
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            pace::yield_to_others();
            work(&mut Pace::new(&arbiter), &stops);
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
    /// Opens the file of a model, if there is one: `maps` it, or reads experts from it, as not all are in memory. `None` if something
    /// else is at its path, or it cannot be read: then none is written.
    pub fn open(options: &PackedFiles, id: &FileId, maps: bool) -> Option<Self> {
        let found = if maps { Found::map(options, id) } else { Found::read(options, id) };
        let say = |why: &str| {
            let path = options.path(id, COMPLETE);
            (options.notice.0)(&format!("packed weights are not used: {}: {why}", path.display()));
        };
        let found = match found {
            Ok(found) => Some(found),
            Err(Unused::Missing) => None,
            Err(Unused::Damaged(why)) => {
                say(&format!("{why}; all is packed anew"));
                None
            }
            Err(Unused::Kept(why)) => {
                say(&format!("{why}; none are kept for the next start"));
                return None;
            }
        };
        Some(Self {
            options: options.clone(),
            id: id.clone(),
            found,
            is_damaged: false,
            next: None,
            parts: Vec::new(),
            missing: 0,
            tables: Vec::new(),
            work: None,
        })
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
        let Some(Found::Mapped { regions, .. }) = &self.found else { return Ok(None) };
        let Some(found) = regions.get(name) else { return Ok(None) };
        let found = found.clone();
        let l = &found.region.layout;
        if (l.ty(), l.rows(), l.cols(), found.region.count) != (ty, rows, cols, count) {
            return Ok(None);
        }
        let wrong = AtomicBool::new(false);
        if !later {
            team.run(|w| {
                for mut groups in w.chunks(found.region.groups(), found.region.turn()) {
                    if !groups.all(|i| found.is_group_right(i)) {
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
        Ok(Some(packed))
    }

    /// Adds what is packed in memory, if it has a name.
    pub fn add(&mut self, packed: &Packed) {
        if let Some(name) = self.next.take() {
            let (layout, count) = (*packed.layout(), packed.count());
            self.push(Part { name, layout, count, source: Source::Memory(packed.shared()) });
        }
    }

    /// Adds a stack of experts that stay in the model's file. Returns where they are packed, or will be, if they are kept.
    pub fn experts(file: &mut Option<Self>, stack: &StoredProjection, layout: Layout) -> Later {
        let (later, experts, count) = (Later::default(), stack.source.clone(), stack.source.count());
        let Some(this) = file else { return later };
        if let Some(found @ Found::Read { file, regions }) = &this.found
            && found.fitting(&stack.name, &layout, count).is_some_and(|r| r.scales == 0)
            && let Some(region) = regions.get(&stack.name)
        {
            let _ = later.set(KeptExperts::new(file, region)); // it is new
        }
        let source = Source::Model { experts, later: later.clone() };
        this.push(Part { name: stack.name.clone(), layout, count, source });
        later
    }

    fn push(&mut self, part: Part) {
        let is_there =
            self.found.as_ref().is_some_and(|f| f.fitting(&part.name, &part.layout, part.count).is_some());
        if !is_there {
            self.missing += (part.count * part.layout.matrix_bytes()) as u64;
        }
        self.parts.push(part);
    }

    /// All is loaded: starts to check the file, or to write a new one if that is worth it, beside the steps of `arbiter`.
    ///
    /// # Errors
    /// If the file is damaged.
    pub fn loaded(&mut self, arbiter: &Arbiter) -> Result<(), Error> {
        let parts = std::mem::take(&mut self.parts);
        if self.found.as_ref().is_some_and(Found::is_lost) {
            return Err(self.damage());
        }
        if self.missing >= self.options.least {
            let (job, notice) = (write::Job::new(&self.options, &self.id, parts), self.options.notice.0);
            let is_worth_it = job.is_worth_it();
            match &is_worth_it {
                Ok(true) => notice(&job.message()),
                Ok(false) => {}
                Err(why) => notice(why),
            }
            if is_worth_it.is_ok() {
                let tables = self.tables.clone();
                self.work = Work::start("octet-pack-write", arbiter, move |pace, stop| {
                    if table::settle(&tables, pace, stop)
                        && let Err(why) = job.run(pace, stop)
                    {
                        notice(&why);
                    }
                });
                return self.settle_without_thread(arbiter);
            }
        }
        if let Some(Found::Mapped { map, regions }) = &mut self.found {
            let all: Vec<Arc<InFile>> = std::mem::take(regions).into_values().collect();
            let (map, tables) = (map.clone(), self.tables.clone());
            self.work = Work::start("octet-pack-check", arbiter, move |pace, stop| {
                settle::run(&map, all, &tables, pace, stop);
            });
        }
        self.settle_without_thread(arbiter)
    }

    /// Copies embedding tables now if the system had no thread left.
    fn settle_without_thread(&self, arbiter: &Arbiter) -> Result<(), Error> {
        if self.work.is_none() {
            table::settle(&self.tables, &mut Pace::new(arbiter), &AtomicBool::new(false));
        }
        self.tables.iter().find_map(|t| t.failure()).map_or(Ok(()), Err)
    }

    /// Whether the file was found to be damaged, and so removed: then all is packed anew, and another one written.
    pub fn discard(&mut self) -> bool {
        if !std::mem::take(&mut self.is_damaged) {
            return false;
        }
        (self.found, self.next, self.missing) = (None, None, 0);
        self.parts.clear();
        self.tables.clear();
        true
    }

    /// The rows of an embedding table of so many bytes, in the model's own file: copied beside the first steps, as that takes longer than
    /// all else at a start. `None` if all is packed anyway, or it cannot be mapped.
    pub fn borrow_table(&mut self, bytes: usize, place: &dyn Fn() -> Option<Piece>) -> Option<Bytes> {
        let Some(Found::Mapped { .. }) = self.found else { return None };
        let table = Arc::new(Table::new(place()?).filter(|t| t.as_ref().len() == bytes)?);
        self.tables.push(table.clone());
        Some(Bytes::from_owner(Rows(table)))
    }

    /// Why steps fail, if the file was damaged while it was in use.
    pub fn failure(&mut self) -> Option<Error> {
        if let Some(why) = self.tables.iter().find_map(|t| t.failure()) {
            return Some(why);
        }
        let is_lost = self.found.as_ref().is_some_and(Found::is_lost);
        is_lost.then(|| self.damage())
    }

    /// Removes the file, so that the next load does without.
    fn damage(&mut self) -> Error {
        let path = self.options.path(&self.id, COMPLETE);
        if !std::mem::replace(&mut self.is_damaged, true) {
            let what = match place::remove(&path, Role::Complete) {
                Ok(true) => "; the file is removed, and all is packed anew".to_string(),
                Ok(false) => String::new(), // it is gone, or something else is there now
                Err(e) => format!("; the file cannot be removed: {e}"),
            };
            let path = path.display();
            (self.options.notice.0)(&format!("{path}: packed weights are damaged or truncated{what}"));
        }
        Error(format!(
            "{}: packed weights were damaged or truncated while they were in use; load the model again",
            path.display()
        ))
    }
}
