//! Experts that stay where they are stored, and are read when a step needs them.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use octet_weights::GgmlType;

use super::Error;

/// One projection of all experts of a layer, each of which can be read by itself, by several threads at the same time.
pub trait StoredExperts: Send + Sync {
    /// Type, rows and columns of each.
    fn shape(&self) -> (GgmlType, usize, usize);
    /// Number of experts.
    fn count(&self) -> usize;
    /// Bytes of memory that [`StoredExperts::read`] needs.
    fn room(&self) -> usize;
    /// Reads an expert's rows, in the file's layout, into `room`; returns where they are there.
    ///
    /// # Errors
    /// If they cannot be read, or are no longer what they were.
    fn read(&self, expert: usize, room: &mut [u8]) -> Result<Range<usize>, Error>;
}

/// What identifies a model's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileId {
    /// Changes whenever any weight does.
    pub key: [u8; 32],
    /// The path of its file, or of the first of its files.
    pub path: PathBuf,
}

/// A projection that is read when it is needed, and the biases of all experts `[experts, rows]`, which stay in memory.
pub struct StoredProjection {
    /// The name of the stack, for what is kept of it ([`super::Backend::begin_load`]).
    pub name: String,
    /// Where it is.
    pub source: Arc<dyn StoredExperts>,
    /// Biases, if there are some.
    pub bias: Option<Vec<f32>>,
}

/// Reads of stored experts so far. Any thread may look at it.
#[derive(Debug, Default)]
pub struct StoreCounts {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) guesses: AtomicU64,
    pub(crate) guessed: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) read_ns: AtomicU64,
    pub(crate) stall_ns: AtomicU64,
}

/// The values of [`StoreCounts`] at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreStats {
    /// Experts of each layer that stay in memory.
    pub slots: usize,
    /// Experts of a layer that a step needed, and that were in memory.
    pub hits: u64,
    /// Those that were not, and were not guessed.
    pub misses: u64,
    /// Experts that were read before their layer's router had chosen, and those among them that it then chose.
    pub guesses: u64,
    /// See `guesses`.
    pub guessed: u64,
    /// Bytes of experts that were read.
    pub bytes: u64,
    /// Reads: a projection of an expert each.
    pub reads: u64,
    /// Time of all reads together, in nanoseconds; several run at the same time.
    pub read_ns: u64,
    /// Time that steps waited for reads, in nanoseconds.
    pub stall_ns: u64,
}

impl StoreStats {
    /// These and what was counted between `before` and `now`.
    #[must_use]
    pub fn plus(self, now: Self, before: Self) -> Self {
        Self {
            slots: now.slots,
            hits: self.hits + now.hits - before.hits,
            misses: self.misses + now.misses - before.misses,
            guesses: self.guesses + now.guesses - before.guesses,
            guessed: self.guessed + now.guessed - before.guessed,
            bytes: self.bytes + now.bytes - before.bytes,
            reads: self.reads + now.reads - before.reads,
            read_ns: self.read_ns + now.read_ns - before.read_ns,
            stall_ns: self.stall_ns + now.stall_ns - before.stall_ns,
        }
    }

    /// The share of experts that were in memory when a step needed them.
    pub fn hit_share(&self) -> f64 {
        self.hits as f64 / (self.hits + self.guessed + self.misses).max(1) as f64
    }
}

impl StoreCounts {
    /// Their current values.
    pub fn stats(&self, slots: usize) -> StoreStats {
        let of = |n: &AtomicU64| n.load(Relaxed);
        StoreStats {
            slots,
            hits: of(&self.hits),
            misses: of(&self.misses),
            guesses: of(&self.guesses),
            guessed: of(&self.guessed),
            bytes: of(&self.bytes),
            reads: of(&self.reads),
            read_ns: of(&self.read_ns),
            stall_ns: of(&self.stall_ns),
        }
    }
}
