//! Ranges of a model file, read when they are needed instead of mapped: for weights that do not stay in memory. Made by `source`.
//!
//! Where the file system allows it, reads go past the system's page cache: it would be a second cache of the same bytes, and would push
//! other programs' memory out. Unlike a mapping, a read reports a file that was truncated, or a disk that is gone.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::stamp::Stamp;
use crate::{Error, GgmlType};

/// Offsets, lengths and addresses of direct reads are multiples of this: the largest block size in use.
const ALIGN: usize = 4096;

/// A file from which ranges are read, by several threads at the same time.
pub(crate) struct RangeFile {
    name: String,
    file: File,
    stamp: Stamp,
    /// Reads bypass the page cache.
    is_direct: bool,
}

/// Consecutive bytes of a file.
#[derive(Clone)]
pub struct Piece {
    file: Arc<RangeFile>,
    range: Range<u64>,
}

/// A tensor whose bytes are read from a file when they are needed.
#[derive(Clone)]
pub struct Unread {
    /// Its type.
    pub ty: GgmlType,
    /// Its bytes.
    pub bytes: Piece,
}

impl RangeFile {
    /// Opens the file that `stamp` describes, which messages call `name`.
    pub(crate) fn open(name: &str, stamp: &Stamp) -> Result<Self, Error> {
        let io = |e| Error::io(name, e);
        let plain = |file: File, is_direct| Self { name: name.into(), file, stamp: stamp.clone(), is_direct };
        if let Some(file) = open_direct(&stamp.path) {
            let direct = plain(file, true);
            // Some file systems accept the flag and fail later.
            let mut room = vec![0; 3 * ALIGN];
            if direct.check().is_ok() && direct.read_at(&(0..stamp.size.min(1)), &mut room).is_ok() {
                return Ok(direct);
            }
        }
        let opened = plain(open_plain(&stamp.path).map_err(io)?, false);
        opened.check()?;
        Ok(opened)
    }

    /// Fails if this is not the file that was opened first, or it has changed since.
    fn check(&self) -> Result<(), Error> {
        let meta = self.file.metadata().map_err(|e| Error::io(&self.name, e))?;
        let now = Stamp::new(self.stamp.path.clone(), &meta).map_err(|e| Error::io(&self.name, e))?;
        let is_same = (now.size, now.modified_ns, now.inode)
            == (self.stamp.size, self.stamp.modified_ns, self.stamp.inode);
        if is_same {
            return Ok(());
        }
        let what = match now.size == self.stamp.size {
            true => "was changed after it was opened".to_string(),
            false => format!("had {} bytes when it was opened, and has {} now", self.stamp.size, now.size),
        };
        Err(Error::format(
            &self.name,
            format!("{what}; weights are read from it as long as it is in use: load the model again"),
        ))
    }

    /// Reads `range` into `room`, and returns where it lies there.
    fn read_at(&self, range: &Range<u64>, room: &mut [u8]) -> Result<Range<usize>, Error> {
        let align = ALIGN as u64;
        let from = range.start / align * align;
        let len = (range.end.next_multiple_of(align) - from) as usize;
        let pad = room.as_ptr().align_offset(ALIGN);
        let room_len = room.len();
        let into = pad.checked_add(len).and_then(|end| room.get_mut(pad..end));
        let into = into.ok_or_else(|| {
            Error::format(&self.name, format!("a read of {len} bytes into memory for {room_len}"))
        })?;
        let needed = (range.end - from) as usize;
        self.fill(into, needed, from)?;
        Ok(pad + (range.start - from) as usize..pad + needed)
    }

    /// Reads at least `needed` bytes from `from` into `into`.
    fn fill(&self, into: &mut [u8], needed: usize, from: u64) -> Result<(), Error> {
        let mut done = 0;
        while done < needed {
            match read_some(&self.file, &mut into[done..], from + done as u64) {
                Ok(0) => {
                    let what = format!(
                        "ends at byte {}, within weights that are read from it; load the model again",
                        from + done as u64
                    );
                    return Err(Error::format(&self.name, what));
                }
                Ok(n) => done += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io(&self.name, e)),
            }
        }
        if !self.is_direct {
            self.drop_cached(from, into.len() as u64);
        }
        Ok(())
    }

    /// Drops what was just read from the page cache; a hint only.
    fn drop_cached(&self, from: u64, len: u64) {
        #[cfg(target_os = "linux")]
        let _ = rustix::fs::fadvise(
            &self.file,
            from,
            std::num::NonZeroU64::new(len),
            rustix::fs::Advice::DontNeed,
        );
        #[cfg(not(target_os = "linux"))]
        let _ = (from, len);
    }
}

impl Piece {
    pub(crate) fn new(file: Arc<RangeFile>, range: Range<u64>) -> Self {
        Self { file, range }
    }

    /// The file, and where it lies there: for a backend that maps it.
    pub fn place(&self) -> (&File, Range<u64>) {
        (&self.file.file, self.range.clone())
    }

    /// # Errors
    /// If the file was changed since the model was opened.
    pub fn check(&self) -> Result<(), Error> {
        self.file.check()
    }

    /// All bytes of the file that `stamp` describes, which messages call `name`.
    ///
    /// # Errors
    /// If it cannot be opened, or is not that file any more.
    pub fn of_file(name: &str, stamp: &Stamp) -> Result<Self, Error> {
        Ok(Self { file: Arc::new(RangeFile::open(name, stamp)?), range: 0..stamp.size })
    }

    /// Its number of bytes.
    pub fn len(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }

    /// True if it has none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// A part of it; `None` if it does not lie within.
    pub fn part(&self, part: Range<usize>) -> Option<Self> {
        let is_inside = part.start <= part.end && part.end <= self.len();
        let at = self.range.start;
        let range = at + part.start as u64..at + part.end as u64;
        is_inside.then(|| Self { file: self.file.clone(), range })
    }

    /// Bytes of memory that [`Piece::read`] needs at most for `len` bytes: reads begin and end with whole blocks.
    pub fn room(len: usize) -> usize {
        len.saturating_add(3 * ALIGN)
    }

    /// Reads its bytes into `room`, which has at least [`Piece::room`] bytes, and returns where they lie there.
    ///
    /// # Errors
    /// If the file was changed since it was opened, is shorter than it was, or cannot be read.
    pub fn read(&self, room: &mut [u8]) -> Result<Range<usize>, Error> {
        self.file.check()?;
        self.file.read_at(&self.range, room)
    }

    /// Reads its bytes to `out`, which is as long: without a copy if both are aligned to blocks, else by way of `room`, which grows as needed.
    ///
    /// # Errors
    /// As [`Piece::read`], and if `out` has another length.
    pub fn read_to(&self, out: &mut [u8], room: &mut Vec<u8>) -> Result<(), Error> {
        if out.len() != self.len() {
            let what = format!("a read of {} bytes into memory for {}", self.len(), out.len());
            return Err(Error::format(&self.file.name, what));
        }
        let at = [out.as_ptr() as usize, out.len(), self.range.start as usize];
        if at.iter().all(|n| n.is_multiple_of(ALIGN)) {
            self.file.check()?;
            return self.file.fill(out, self.len(), self.range.start);
        }
        if room.len() < Self::room(out.len()) {
            *room = vec![0; Self::room(out.len())];
        }
        let at = self.read(room)?;
        out.copy_from_slice(&room[at]);
        Ok(())
    }
}

/// Opens a file. If a pipe is there by now, this does not wait for a writer.
fn open_plain(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    #[cfg(target_os = "linux")]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    options.read(true).open(path)
}

/// Opens a file so that reads bypass the page cache; `None` where that is not supported.
#[cfg(target_os = "linux")]
fn open_direct(path: &Path) -> Option<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::DIRECT;
    rustix::fs::open(path, flags, Mode::empty()).ok().map(File::from)
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_: &Path) -> Option<File> {
    None
}

#[cfg(unix)]
fn read_some(file: &File, into: &mut [u8], at: u64) -> std::io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, into, at)
}

#[cfg(windows)]
fn read_some(file: &File, into: &mut [u8], at: u64) -> std::io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, into, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> Arc<RangeFile> {
        Arc::new(RangeFile::open("x", &Stamp::of(path).unwrap()).unwrap())
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_pipe_in_its_place_is_an_error_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, b"a model").unwrap();
        let stamp = Stamp::of(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let said = RangeFile::open("x", &stamp).err().map(|e| e.to_string());
        assert!(said.is_some_and(|s| s.starts_with("x: ")));
    }

    #[test]
    fn reads_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let bytes: Vec<u8> = (0..3 * ALIGN + 77).map(|i| (i * 31 % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = open(&path);
        for range in [0..0, 0..1, 5..ALIGN, ALIGN - 1..2 * ALIGN + 1, 3 * ALIGN..bytes.len(), 0..bytes.len()]
        {
            let piece = Piece::new(file.clone(), range.start as u64..range.end as u64);
            let mut room = vec![0; Piece::room(range.len())];
            let at = piece.read(&mut room).unwrap();
            assert_eq!(room[at], bytes[range]);
        }
        // Into memory of any alignment.
        let mut room = Vec::new();
        for (from, len) in [(0, ALIGN), (ALIGN, 2 * ALIGN), (7, ALIGN), (ALIGN, 100), (0, 0)] {
            let mut memory = vec![0; len + 2 * ALIGN];
            let first = memory.as_ptr().align_offset(ALIGN);
            for at in [first, first + 64] {
                let piece = Piece::new(file.clone(), from as u64..(from + len) as u64);
                piece.read_to(&mut memory[at..at + len], &mut room).unwrap();
                assert_eq!(memory[at..at + len], bytes[from..from + len]);
                assert!(piece.read_to(&mut memory[at..at + len + 1], &mut room).is_err());
            }
        }
        let whole = Piece::of_file("x", &Stamp::of(&path).unwrap()).unwrap();
        assert_eq!(whole.len(), bytes.len());
        let piece = Piece::new(file, 10..20);
        assert_eq!(piece.part(2..10).map(|p| p.range), Some(12..20));
        assert!(piece.part(2..11).is_none() && piece.read(&mut []).is_err());
    }

    #[test]
    fn a_file_that_changes_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, vec![1; 20_000]).unwrap();
        let piece = Piece::new(open(&path), 9000..19_000);
        let mut room = vec![0; Piece::room(piece.len())];
        assert!(piece.read(&mut room).is_ok());
        // Replaced by a rename: the open file is still the old one.
        let other = dir.path().join("y");
        std::fs::write(&other, vec![2; 20_000]).unwrap();
        std::fs::rename(&other, &path).unwrap();
        let at = piece.read(&mut room).unwrap();
        assert!(room[at].iter().all(|b| *b == 1));
        let piece = Piece::new(open(&path), 9000..19_000);
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(9500).unwrap();
        let said = piece.read(&mut room).unwrap_err().to_string();
        assert!(said.contains("had 20000 bytes") && said.contains("9500 now"), "{said}");
        // Another file at the path when it is opened later.
        let stamp = Stamp::of(&path).unwrap();
        std::fs::write(&other, vec![2; 30_000]).unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert!(RangeFile::open("x", &stamp).is_err());
    }
}
