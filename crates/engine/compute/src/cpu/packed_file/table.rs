//! An embedding table in the model's own file. A start from packed weights would wait longest for a copy of it, and a step reads a few of
//! its rows: until it is copied, beside the first steps, they are read where they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

use octet_weights::Piece;

use super::pace::{COPY_REST, Pace};
use crate::backend::Error;
use crate::cpu::map::{FileMap, HUGE_BYTES};

/// Copied at once.
const CHUNK: usize = 8 * HUGE_BYTES;

/// A mapped table.
pub(super) struct Table {
    place: Piece,
    /// The file up to a huge page behind the table.
    map: FileMap,
    range: std::ops::Range<usize>,
    /// There was no memory for a copy: it is compared with the file as it was before each step.
    is_uncopied: AtomicBool,
}

/// Its rows, as long as somebody needs them.
pub(super) struct Rows(pub Arc<Table>);

/// Copies tables to memory; false if the thread is to `stop`. Steps wait for the file's pages until then: this rests less than other work.
pub(super) fn settle(tables: &[Arc<Table>], pace: &mut Pace, stop: &AtomicBool) -> bool {
    let rest = std::mem::replace(&mut pace.rest, COPY_REST);
    let goes_on = tables.iter().all(|table| table.settle(pace, stop));
    pace.rest = rest;
    goes_on
}

impl Table {
    /// `None` if the file ends right behind the table, or cannot be mapped.
    pub fn new(place: Piece) -> Option<Self> {
        let (file, range) = place.place();
        let range = usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?;
        let len = range.end.checked_next_multiple_of(HUGE_BYTES)?;
        if file.metadata().ok()?.len() < len as u64 {
            return None;
        }
        let map = FileMap::new(file, len).ok()?;
        Some(Self { map, range, place, is_uncopied: AtomicBool::new(false) })
    }

    /// Copies it to memory; false if the thread is to `stop`. If the file was changed before that, steps fail.
    pub fn settle(&self, pace: &mut Pace, stop: &AtomicBool) -> bool {
        let (first, end) = (self.range.start / HUGE_BYTES * HUGE_BYTES, self.map.len());
        for at in (first..end).step_by(CHUNK) {
            let mut goes_on = true;
            let mut turn = || {
                goes_on = pace.turn(stop);
                goes_on
            };
            // Without memory for a copy, the rest is read where it is.
            if self.map.copy(at..(at + CHUNK).min(end), &mut turn).is_err() {
                self.is_uncopied.store(goes_on, Release);
                return goes_on;
            }
        }
        if self.place.check().is_err() {
            self.map.lose();
        }
        true
    }

    /// Why steps fail, if a row was not what it was when the model was opened.
    pub fn failure(&self) -> Option<Error> {
        let is_changed = self.is_uncopied.load(Acquire) && self.place.check().is_err();
        if !is_changed && !self.map.is_lost() {
            return None;
        }
        let what = "the model's file was changed right after it was opened, while embeddings were read from it; load the model again";
        Some(Error(self.place.check().err().map_or_else(|| what.into(), |e| e.to_string())))
    }
}

impl AsRef<[u8]> for Table {
    fn as_ref(&self) -> &[u8] {
        self.map.bytes(self.range.clone())
    }
}

impl AsRef<[u8]> for Rows {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().as_ref()
    }
}
