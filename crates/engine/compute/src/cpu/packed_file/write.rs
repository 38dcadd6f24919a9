//! The thread that writes a file of packed weights while the model is in use.
//!
//! It writes to a file of another name, which is complete and on the drive before it gets its own. If the program ends earlier, the next
//! one goes on where it stopped.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use xxhash_rust::xxh3::xxh3_64;

use super::format::{self, BLOCK, Header, Region};
use super::pace::Pace;
use super::place::{self, Role};
use super::{COMPLETE, Found, KeptExperts, Later, PART, PackedFiles, Part, Source};
use crate::backend::{FileId, StoredExperts};
use crate::cpu::huge::HugeVec;
use crate::cpu::map::HUGE_BYTES;
use crate::cpu::pack::Packed;

/// Bytes of a write: whole huge pages, so that the system's cache keeps them as such, and they are mapped as such.
const WRITE_BYTES: usize = 2 * HUGE_BYTES;
/// After so many bytes, what was written is brought to the drive: else the system would, all at once.
const SYNC_BYTES: usize = 64 << 20;

/// A file to write.
pub(super) struct Job {
    options: PackedFiles,
    id: FileId,
    regions: Vec<Region>,
    sources: Vec<Source>,
    /// Some experts are not in memory: then neither is what was written.
    is_direct: bool,
    /// Where the index begins.
    end: usize,
}

fn not_kept(path: &Path, why: impl std::fmt::Display) -> String {
    format!("packed weights are not kept: {}: {why}", path.display())
}

/// Free bytes of the file system at `dir`; `None` if unknown.
#[cfg(target_os = "linux")]
fn free_bytes(dir: &Path) -> Option<u64> {
    let fs = rustix::fs::statvfs(dir).ok()?;
    fs.f_bavail.checked_mul(fs.f_frsize)
}

#[cfg(not(target_os = "linux"))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

impl Job {
    /// Of parts of which each name occurs once.
    pub fn new(options: &PackedFiles, id: &FileId, parts: Vec<Part>) -> Self {
        let (mut regions, mut sources) = (Vec::<Region>::new(), Vec::new());
        let (mut end, mut is_direct) = (BLOCK, false);
        for Part { name, layout, count, source } in parts {
            if count * layout.matrix_bytes() == 0 || regions.iter().any(|r| r.name == name) {
                continue;
            }
            let scales = match &source {
                Source::Memory(packed) => packed.all_scales().len(),
                Source::Model { .. } => 0,
            };
            is_direct |= matches!(source, Source::Model { .. });
            let at = end.next_multiple_of(BLOCK);
            let region = Region { name, layout, count, scales, at, sums: Vec::new() };
            end = region.factors().end;
            regions.push(region);
            sources.push(source);
        }
        Self { options: options.clone(), id: id.clone(), regions, sources, is_direct, end }
    }

    /// Whether there is room for the file, and the last program has not begun it. Otherwise why not.
    pub fn is_worth_it(&self) -> Result<bool, String> {
        let part = self.path(PART);
        let begun = match place::look(&part, Role::Part) {
            place::Found::Ours(_, header) => header.is_ok_and(|h| h.key == format::key(&self.id)),
            place::Found::Nothing => false,
            place::Found::Other(what) => return Err(not_kept(&part, place::stays(&what))),
        };
        let dir = &self.options.dir;
        std::fs::create_dir_all(dir).map_err(|e| not_kept(dir, e))?;
        remove_orphans(dir);
        let needed = self.end as u64;
        match free_bytes(dir) {
            // As much has to be left.
            Some(free) if !begun && free / 2 < needed => Err(format!(
                "packed weights ({}) are not kept for the next start: {} has {} free, and twice as much is to be",
                size(needed),
                dir.display(),
                size(free)
            )),
            _ => Ok(!begun),
        }
    }

    /// What the user is told.
    pub fn message(&self) -> String {
        format!(
            "packed weights ({}) are written to {}, for quick starts; --no-packed writes none, `octet rm` removes them",
            size(self.end as u64),
            self.path(COMPLETE).display()
        )
    }

    fn path(&self, ending: &str) -> PathBuf {
        self.options.path(&self.id, ending)
    }

    /// Writes the file. If that fails, there is none.
    pub fn run(self, pace: &mut Pace, stop: &AtomicBool) -> Result<(), String> {
        let part = self.path(PART);
        let (options, id) = (self.options.clone(), self.id.clone());
        let experts = self.write(&part, pace, stop).map_err(|e| {
            let left = match place::remove(&part, Role::Part) {
                Err(e) => format!("; it cannot be removed: {e}"),
                Ok(_) => String::new(), // of no use, or not ours
            };
            not_kept(&part, e) + &left
        })?;
        // From now on experts are read from there.
        if experts.is_empty() {
            return Ok(());
        }
        if let Ok(Found::Read { file, regions }) = Found::read(&options, &id) {
            for (name, later) in experts {
                if let Some(region) = regions.get(&name) {
                    let _ = later.set(KeptExperts::new(&file, region)); // it was empty, or is the same
                }
            }
        }
        Ok(())
    }

    /// Returns the experts that are now in the file; none if the program ends, or another process writes it.
    fn write(mut self, part: &Path, pace: &mut Pace, stop: &AtomicBool) -> io::Result<Vec<(String, Later)>> {
        let mut file = place::open_part(part)?;
        match file.try_lock() {
            Ok(()) => {}
            // Another process writes it.
            Err(TryLockError::WouldBlock) => return Ok(Vec::new()),
            Err(TryLockError::Error(e)) => return Err(e),
        }
        let plan = xxh3_64(&format::index(&self.regions));
        let begun = Header {
            key: format::key(&self.id),
            index_sum: plan,
            path: self.id.path.to_string_lossy().into(),
            ..Header::default()
        };
        let old = Header::read(&mut file)?;
        if old.as_ref().is_some_and(|h| h.is_complete) {
            return Ok(Vec::new()); // another process has completed it meanwhile, and given it its name
        }
        let done = old.filter(|h| Header { bytes: 0, ..h.clone() } == begun).map_or(0, |h| h.bytes as usize);
        if done == 0 {
            file.set_len(0)?;
        }
        let direct = if self.is_direct { open_direct(&file, part) } else { None };
        let buffer = HugeVec::zeroed(WRITE_BYTES)?;
        let keeps = !self.is_direct;
        let mut out =
            Sink { file, direct, keeps, begun, pace, stop, buffer, filled: 0, at: 0, done, synced: done };
        out.put(&out.begun.bytes())?;
        for (region, source) in self.regions.iter_mut().zip(&self.sources) {
            out.pad(region.at)?;
            let goes_on = match source {
                Source::Memory(packed) => write_packed(packed, region, &mut out)?,
                Source::Model { experts, .. } => write_experts(experts.as_ref(), region, &mut out)?,
            };
            if !goes_on {
                return Ok(Vec::new());
            }
        }
        let index = format::index(&self.regions);
        let end = self.end + index.len();
        out.put(&index)?;
        out.pad(format::file_bytes(end))?;
        out.flush()?;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let header = Header {
            is_complete: true,
            bytes: format::file_bytes(end) as u64,
            index_at: self.end as u64,
            index_bytes: index.len() as u64,
            index_sum: xxh3_64(&index),
            // Of whole seconds, and even ones: as much as file systems keep.
            written_s: since.as_secs() / 2 * 2,
            ..out.begun.clone()
        };
        let Sink { mut file, .. } = out;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&header.bytes())?;
        let mut permissions = file.metadata()?.permissions();
        permissions.set_readonly(true);
        file.set_permissions(permissions)?;
        file.set_modified(header.time())?;
        file.sync_all()?;
        let complete = self.path(COMPLETE);
        if let place::Found::Other(what) = place::look(&complete, Role::Complete) {
            return Err(io::Error::other(format!("{}: {}", complete.display(), place::stays(&what))));
        }
        if !place::is_at(&file, part)? {
            return Err(io::Error::other("another file was put in its place"));
        }
        std::fs::rename(part, complete)?;
        let all = self.regions.into_iter().zip(self.sources);
        let experts = all.filter_map(|(region, source)| match source {
            Source::Model { later, .. } => Some((region.name, later)),
            Source::Memory(_) => None,
        });
        Ok(experts.collect())
    }
}

/// Writes packed matrices and notes their checksums; false if the program ends.
fn write_packed(packed: &Packed, region: &mut Region, out: &mut Sink) -> io::Result<bool> {
    for matrix in 0..region.count {
        if let Some(checks) = packed.checks() {
            checks.check(matrix);
        }
    }
    for i in 0..region.groups() {
        if i % region.turn() == 0 && !out.pace.turn(out.stop) {
            return Ok(false);
        }
        let group = packed.group(i);
        region.sums.push(xxh3_64(group));
        out.put(group)?;
    }
    let factors: Vec<u8> = packed.all_scales().iter().flat_map(|s| s.to_le_bytes()).collect();
    if !factors.is_empty() {
        region.sums.push(xxh3_64(&factors));
        out.put(&factors)?;
    }
    Ok(true)
}

/// Reads the experts of a stack one by one, and does the same with them.
fn write_experts(experts: &dyn StoredExperts, region: &mut Region, out: &mut Sink) -> io::Result<bool> {
    let (mut room, mut packed) = (vec![0; experts.room()], vec![0; region.matrix_bytes()]);
    let layout = region.layout;
    for expert in 0..region.count {
        if !out.pace.turn(out.stop) {
            return Ok(false);
        }
        let at = experts.read(expert, &mut room).map_err(io::Error::other)?;
        let matrix = room.get(at).filter(|m| m.len() == layout.rows() * layout.row_bytes());
        layout.pack_matrix(matrix.ok_or(io::ErrorKind::UnexpectedEof)?, &mut packed);
        region.sums.extend(packed.chunks_exact(layout.group_bytes()).map(xxh3_64));
        out.put(&packed)?;
    }
    Ok(true)
}

/// Opens a file again so that writes go past the system's page cache; `None` where that is not supported.
#[cfg(target_os = "linux")]
fn open_direct(file: &File, path: &Path) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = libc::O_DIRECT | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let direct = OpenOptions::new().write(true).custom_flags(flags).open(path).ok()?;
    let is_same = [file, &direct].iter().all(|f| place::is_at(f, path).unwrap_or(false));
    is_same.then_some(direct)
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_: &File, _: &Path) -> Option<File> {
    None
}

/// A file that is written from its beginning in large pieces, but for what is written already.
struct Sink<'a> {
    file: File,
    /// The same for writes past the system's cache, as long as that works.
    direct: Option<File>,
    /// The system's cache may keep what is written.
    keeps: bool,
    /// Its header, with how far it is done.
    begun: Header,
    pace: &'a mut Pace,
    stop: &'a AtomicBool,
    buffer: HugeVec,
    /// Bytes in the buffer.
    filled: usize,
    /// Where the buffer belongs.
    at: usize,
    done: usize,
    synced: usize,
}

impl Sink<'_> {
    /// Adds bytes.
    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(WRITE_BYTES - self.filled));
            self.buffer[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = rest;
            if self.filled == WRITE_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Zeros up to byte `to`.
    fn pad(&mut self, to: usize) -> io::Result<()> {
        let zeros = [0; BLOCK];
        let mut left = to - (self.at + self.filled);
        while left > 0 {
            let n = left.min(BLOCK);
            self.put(&zeros[..n])?;
            left -= n;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let end = self.at + self.filled;
        if end > self.done {
            self.write_buffer()?;
            // What must not stay in the system's cache, must not wait there either.
            let most = if self.keeps || self.direct.is_some() { SYNC_BYTES } else { WRITE_BYTES };
            if end - self.synced >= most {
                self.file.sync_data()?;
                self.begun.bytes = end as u64;
                self.file.seek(SeekFrom::Start(0))?;
                self.file.write_all(&self.begun.bytes())?;
                self.synced = end;
                if !self.keeps {
                    self.drop_cached();
                }
            }
        }
        (self.at, self.filled) = (end, 0);
        Ok(())
    }

    fn write_buffer(&mut self) -> io::Result<()> {
        let bytes = &self.buffer[..self.filled];
        if let Some(direct) = self.direct.as_mut().filter(|_| self.filled.is_multiple_of(BLOCK)) {
            direct.seek(SeekFrom::Start(self.at as u64))?;
            match direct.write_all(bytes) {
                // Some file systems accept the flag and fail later.
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => self.direct = None,
                done => return done,
            }
        }
        self.file.seek(SeekFrom::Start(self.at as u64))?;
        self.file.write_all(bytes)
    }

    /// Drops what is on the drive from the system's cache; a hint.
    fn drop_cached(&self) {
        #[cfg(target_os = "linux")]
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
    }
}

/// Removes files whose model is gone.
fn remove_orphans(dir: &Path) {
    for kept in PackedFiles::list(dir) {
        if !kept.model.exists() {
            let _ = std::fs::remove_file(kept.path); // the next one tries again
        }
    }
}

/// `19.7 GiB`
fn size(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
}
