//! Packed experts that are read from a file when a step needs them, as not all are in memory. Opened by `packed_file`, used by `store`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, OnceLock};

use octet_weights::{Piece, Stamp};
use xxhash_rust::xxh3::xxh3_64;

use super::Notice;
use super::format::Region;
use super::place::{self, Role};
use crate::backend::Error;

/// Experts that are in the file, or will be when it is written.
pub(in crate::cpu) type Later = Arc<OnceLock<KeptExperts>>;

/// A file whose matrices are read one by one.
pub(super) struct OpenFile {
    path: PathBuf,
    whole: Piece,
    notice: Notice,
    is_lost: AtomicBool,
}

impl OpenFile {
    /// The file that `stamp` describes.
    pub fn new(path: PathBuf, stamp: &Stamp, notice: Notice) -> Result<Self, octet_weights::Error> {
        let whole = Piece::of_file(&path.display().to_string(), stamp)?;
        Ok(Self { path, whole, notice, is_lost: AtomicBool::new(false) })
    }

    /// It is used no more, and the next load writes another one.
    fn lose(&self, why: &Error) {
        if !self.is_lost.swap(true, AcqRel) {
            let what = match place::remove(&self.path, Role::Complete) {
                Ok(true) => "; it is removed".to_string(),
                Ok(false) => String::new(), // it is gone, or something else is there now
                Err(e) => format!("; it cannot be removed: {e}"),
            };
            (self.notice.0)(&format!("{why}{what}; experts are read from the model's own file from now on"));
        }
    }
}

/// One projection of all experts of a layer.
pub(in crate::cpu) struct KeptExperts {
    file: Arc<OpenFile>,
    region: Arc<Region>,
    /// Which were compared with their checksums.
    checked: Box<[AtomicBool]>,
}

impl KeptExperts {
    pub(super) fn new(file: &Arc<OpenFile>, region: &Arc<Region>) -> Self {
        let checked = (0..region.count).map(|_| AtomicBool::new(false)).collect();
        Self { file: file.clone(), region: region.clone(), checked }
    }

    /// Reads a packed expert to `out`, which has its length; `room` is memory for that. False if the file cannot be used, now or any more:
    /// then `out` holds anything.
    pub fn read(&self, expert: usize, out: &mut [u8], room: &mut Vec<u8>) -> bool {
        if self.file.is_lost.load(Acquire) {
            return false;
        }
        match self.try_read(expert, out, room) {
            Ok(()) => true,
            Err(why) => {
                self.file.lose(&why);
                false
            }
        }
    }

    fn try_read(&self, expert: usize, out: &mut [u8], room: &mut Vec<u8>) -> Result<(), Error> {
        let (region, path) = (&self.region, self.file.path.display());
        let groups = region.layout.groups();
        let at = region.at + expert * region.matrix_bytes();
        let piece = self.file.whole.part(at..at + region.matrix_bytes());
        let piece = piece.ok_or_else(|| Error(format!("{path}: it has no expert {expert}")))?;
        piece.read_to(out, room).map_err(|e| Error(e.to_string()))?;
        // Afterwards only a write to the file can change it, which `Piece` notices.
        if !self.checked[expert].load(Acquire) {
            let is_right = |i: usize| {
                let range = region.group(i);
                xxh3_64(&out[range.start - at..range.end - at]) == region.sums[i]
            };
            if !(expert * groups..(expert + 1) * groups).all(is_right) {
                return Err(Error(format!("{path}: packed weights are damaged")));
            }
            self.checked[expert].store(true, Release);
        }
        Ok(())
    }
}
