//! The thread that writes a file of packed weights while the model is in use. Used by `packed_file`.
//!
//! It writes to a file of another name, which is complete and on the drive before it gets its own. If the program ends earlier, the next
//! one goes on where it stopped.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::SystemTime;

use xxhash_rust::xxh3::xxh3_64;

use super::format::{self, BLOCK, Header, Region};
use super::{COMPLETE, PART, PackedFiles, Part, file_name};
use crate::backend::FileId;
use crate::cpu::map::HUGE_BYTES;
use crate::cpu::pack::Packed;

/// Bytes of a write: whole huge pages, so that the system's cache keeps them as such, and they are mapped as such.
const WRITE_BYTES: usize = 2 * HUGE_BYTES;
/// After so many bytes, what was written is brought to the drive: else the system would, all at once.
const SYNC_BYTES: usize = 64 << 20;

/// A file to write.
pub(super) struct Job {
    dir: PathBuf,
    id: FileId,
    regions: Vec<Region>,
    sources: Vec<Packed>,
    /// Where the index begins.
    end: usize,
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
    pub fn new(dir: &Path, id: &FileId, parts: Vec<Part>) -> Self {
        let (mut regions, mut sources) = (Vec::<Region>::new(), Vec::new());
        let mut end = BLOCK;
        for Part { name, packed } in parts {
            if packed.size_bytes() == 0 || regions.iter().any(|r| r.name == name) {
                continue;
            }
            let (layout, count, scales) = (*packed.layout(), packed.count(), packed.all_scales().len());
            let at = end.next_multiple_of(BLOCK);
            let region = Region { name, layout, count, scales, at, sums: Vec::new() };
            end = region.factors().end;
            regions.push(region);
            sources.push(packed);
        }
        Self { dir: dir.into(), id: id.clone(), regions, sources, end }
    }

    /// Whether there is room for the file, and the last program has not begun it. Otherwise why not.
    pub fn is_worth_it(&self) -> Result<bool, String> {
        let part = self.path(PART);
        let begun = format::header_of(&part).is_some_and(|h| h.key == format::key(&self.id));
        std::fs::create_dir_all(&self.dir)
            .map_err(|e| format!("packed weights are not kept: {}: {e}", self.dir.display()))?;
        remove_orphans(&self.dir);
        let needed = self.end as u64;
        match free_bytes(&self.dir) {
            // As much has to be left.
            Some(free) if !begun && free / 2 < needed => Err(format!(
                "packed weights ({}) are not kept for the next start: {} has {} free, and twice as much is to be",
                size(needed),
                self.dir.display(),
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
        self.dir.join(file_name(&self.id, ending))
    }

    /// Writes the file. If that fails, there is none.
    pub fn run(self, stop: &AtomicBool) -> Result<(), String> {
        let part = self.path(PART);
        self.write(&part, stop).map_err(|e| {
            let _ = std::fs::remove_file(&part); // of no use
            format!("packed weights are not kept: {}: {e}", part.display())
        })
    }

    fn write(mut self, part: &Path, stop: &AtomicBool) -> io::Result<()> {
        let mut open = OpenOptions::new();
        open.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut open, 0o600);
        let mut file = open.open(part)?;
        match file.try_lock() {
            Ok(()) => {}
            // Another process writes it.
            Err(TryLockError::WouldBlock) => return Ok(()),
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
            return Ok(()); // another process has completed it meanwhile, and given it its name
        }
        let done = old.filter(|h| Header { bytes: 0, ..h.clone() } == begun).map_or(0, |h| h.bytes as usize);
        if done == 0 {
            file.set_len(0)?;
        }
        let mut out =
            Sink { file, begun, stop, buffer: Vec::with_capacity(WRITE_BYTES), at: 0, done, synced: done };
        out.put(&out.begun.bytes())?;
        for (region, source) in self.regions.iter_mut().zip(&self.sources) {
            out.pad(region.at)?;
            if !write_packed(source, region, &mut out)? {
                return Ok(());
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
        std::fs::rename(part, self.path(COMPLETE))
    }
}

/// Writes packed matrices and notes their checksums; false if the program ends.
fn write_packed(packed: &Packed, region: &mut Region, out: &mut Sink) -> io::Result<bool> {
    for matrix in 0..region.count {
        if let Some(checks) = packed.checks() {
            checks.check(matrix);
        }
    }
    for i in 0..region.pieces() {
        let range = region.piece(i);
        let piece = &packed.bytes()[range.start - region.at..range.end - region.at];
        region.sums.push(xxh3_64(piece));
        if out.put(piece)? {
            return Ok(false);
        }
    }
    let factors: Vec<u8> = packed.all_scales().iter().flat_map(|s| s.to_le_bytes()).collect();
    if !factors.is_empty() {
        region.sums.push(xxh3_64(&factors));
        out.put(&factors)?;
    }
    Ok(true)
}

/// A file that is written from its beginning in large pieces, but for what is written already.
struct Sink<'a> {
    file: File,
    /// Its header, with how far it is done.
    begun: Header,
    stop: &'a AtomicBool,
    buffer: Vec<u8>,
    /// Where the buffer belongs.
    at: usize,
    done: usize,
    synced: usize,
}

impl Sink<'_> {
    /// Adds bytes; true if the program ends.
    fn put(&mut self, mut bytes: &[u8]) -> io::Result<bool> {
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(WRITE_BYTES - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            bytes = rest;
            if self.buffer.len() == WRITE_BYTES {
                self.flush()?;
            }
        }
        Ok(self.stop.load(Acquire))
    }

    /// Zeros up to byte `to`.
    fn pad(&mut self, to: usize) -> io::Result<()> {
        let zeros = [0; BLOCK];
        let mut left = to - (self.at + self.buffer.len());
        while left > 0 {
            let n = left.min(BLOCK);
            self.put(&zeros[..n])?;
            left -= n;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let end = self.at + self.buffer.len();
        if end > self.done {
            self.file.seek(SeekFrom::Start(self.at as u64))?;
            self.file.write_all(&self.buffer)?;
            if end - self.synced >= SYNC_BYTES {
                self.file.sync_data()?;
                self.begun.bytes = end as u64;
                self.file.seek(SeekFrom::Start(0))?;
                self.file.write_all(&self.begun.bytes())?;
                self.synced = end;
            }
        }
        self.at = end;
        self.buffer.clear();
        Ok(())
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
