//! Threads that read experts and pack them into slots, while the team computes others.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::backend::{Error, StoreCounts, StoredExperts};
use crate::cpu::pack::Packed;
use crate::cpu::packed_file::Later;

/// Reads at the same time: a drive answers several of a megabyte faster than one after the other, and meanwhile others are packed.
pub(super) const READERS: usize = 4;

/// In a slot's state: a read of its expert failed, or was dropped. The bits below are the number of reads that are not finished.
const FAILED: u32 = 1 << 31;

/// One projection: where its experts are, and the memory of the slots.
pub(super) struct Part {
    pub source: Arc<dyn StoredExperts>,
    /// The same packed, in a file, if there is one.
    pub kept: Later,
    pub packed: Packed,
}

/// A layer's projections and slots.
pub(super) struct Slots {
    pub parts: Vec<Part>,
    state: Box<[AtomicU32]>,
}

impl Slots {
    pub fn new(parts: Vec<Part>, slots: usize) -> Self {
        Self { parts, state: (0..slots).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Whether a read into this slot is not finished.
    pub fn is_pending(&self, slot: u32) -> bool {
        self.state[slot as usize].load(Acquire) & !FAILED > 0
    }

    /// Whether a read into this slot has failed since it was last read into.
    pub fn has_failed(&self, slot: u32) -> bool {
        self.state[slot as usize].load(Acquire) & FAILED > 0
    }
}

/// A projection of an expert that is to be read into a slot, which nobody else uses until that is done.
struct Job {
    slots: Arc<Slots>,
    part: usize,
    expert: u32,
    slot: u32,
    /// Nobody needs it yet: if it fails, that counts only in its slot.
    is_guess: bool,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Guesses, read when there are no other jobs.
    ahead: VecDeque<Job>,
    /// Jobs that there may be at the same time: those of all slots.
    most: usize,
    is_stopping: bool,
    /// The first failure of what was needed since the last call of [`Readers::take_failure`].
    failure: Option<String>,
}

struct Shared {
    queue: Mutex<Queue>,
    /// There is a job, or the threads are to end.
    added: Condvar,
    /// All reads of a slot are done.
    done: Condvar,
    counts: Arc<StoreCounts>,
}

/// The threads.
pub(super) struct Readers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Starts the threads.
    pub fn new(counts: Arc<StoreCounts>) -> Result<Self, Error> {
        let shared =
            Arc::new(Shared { queue: Mutex::default(), added: Condvar::new(), done: Condvar::new(), counts });
        let mut readers = Self { shared, threads: Vec::with_capacity(READERS) };
        for id in 0..READERS {
            let shared = Arc::clone(&readers.shared);
            let start = std::thread::Builder::new().name(format!("octet-read-{id}"));
            // On an error `readers` is dropped, which ends the threads that did start.
            let handle = start
                .spawn(move || shared.work())
                .map_err(|e| Error(format!("the system started only {id} threads that read weights: {e}")))?;
            readers.threads.push(handle);
        }
        Ok(readers)
    }

    /// Makes room for `more` further reads in the queue, so that a step allocates nothing. Called while nothing is read.
    pub fn reserve(&self, more: usize) {
        let mut queue = self.shared.lock();
        queue.most += more;
        let most = queue.most;
        // Exactly: a queue that doubles with each of a model's layers would exceed any memory.
        queue.jobs.reserve_exact(most);
        queue.ahead.reserve_exact(most);
    }

    /// Reads all projections of `expert` into `slot`, which nobody may use until they are there. A guess is read after all others.
    pub fn read(&self, slots: &Arc<Slots>, expert: u32, slot: u32, is_guess: bool) {
        slots.state[slot as usize].store(slots.parts.len() as u32, Release);
        let mut queue = self.shared.lock();
        let job = |part| Job { slots: slots.clone(), part, expert, slot, is_guess };
        let jobs = if is_guess { &mut queue.ahead } else { &mut queue.jobs };
        jobs.extend((0..slots.parts.len()).map(job));
        drop(queue);
        self.shared.added.notify_all();
    }

    /// Of the guesses that are not read yet, those of the experts `used` of these slots are read now. The others are dropped: their slots count as
    /// failed. A guess that fails is read once more by who needs it.
    pub fn settle(&self, slots: &Arc<Slots>, used: &[u32]) {
        let mut queue = self.shared.lock();
        while let Some(job) = queue.ahead.pop_front() {
            if Arc::ptr_eq(&job.slots, slots) && used.binary_search(&job.expert).is_ok() {
                queue.jobs.push_back(job);
            } else {
                let state = &job.slots.state[job.slot as usize];
                state.fetch_or(FAILED, AcqRel);
                state.fetch_sub(1, AcqRel);
            }
        }
    }

    /// Waits until nothing is read into these slots.
    pub fn wait_all(&self, slots: &Slots) {
        let mut queue = self.shared.lock();
        while (0..slots.state.len() as u32).any(|slot| slots.is_pending(slot)) {
            queue = self.shared.done.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until all reads into `which` slots are finished.
    pub fn wait(&self, slots: &Slots, which: &[u32]) {
        let is_pending = || which.iter().any(|&slot| slots.is_pending(slot));
        if !is_pending() {
            return;
        }
        let start = Instant::now();
        let mut queue = self.shared.lock();
        while is_pending() {
            queue = self.shared.done.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        self.shared.counts.stall_ns.fetch_add(start.elapsed().as_nanos() as u64, Relaxed);
    }

    /// Why reads that were needed have failed since the last call, if some have.
    pub fn take_failure(&self) -> Option<String> {
        self.shared.lock().failure.take()
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.is_stopping = true;
        queue.jobs.clear();
        queue.ahead.clear();
        drop(queue);
        self.shared.added.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // panics of reads are caught
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A queue is valid even if a thread panicked.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut room = Vec::new();
        while let Some(job) = self.next() {
            let read = std::panic::catch_unwind(AssertUnwindSafe(|| self.read(&job, &mut room)));
            let failure = match read {
                Ok(done) => done.err().map(|e| e.0),
                Err(_) => Some("reading an expert panicked; the message stands in the log".into()),
            };
            let state = &job.slots.state[job.slot as usize];
            if failure.is_some() {
                state.fetch_or(FAILED, AcqRel);
            }
            let failure = failure.filter(|_| !job.is_guess);
            let is_last = state.fetch_sub(1, AcqRel) & !FAILED == 1;
            if is_last || failure.is_some() {
                let mut queue = self.lock();
                if queue.failure.is_none() {
                    queue.failure = failure;
                }
            }
            if is_last {
                self.done.notify_all();
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = self.lock();
        loop {
            if queue.is_stopping {
                return None;
            }
            let job = queue.jobs.pop_front();
            match job.or_else(|| queue.ahead.pop_front()) {
                Some(job) => return Some(job),
                None => queue = self.added.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Reads a projection as it was packed before, or reads and packs it.
    fn read(&self, job: &Job, room: &mut Vec<u8>) -> Result<(), Error> {
        let Part { source, kept, packed } = &job.slots.parts[job.part];
        let (layout, expert, start) = (packed.layout(), job.expert as usize, Instant::now());
        let count = |bytes: usize| {
            self.counts.read_ns.fetch_add(start.elapsed().as_nanos() as u64, Relaxed);
            self.counts.reads.fetch_add(1, Relaxed);
            self.counts.bytes.fetch_add(bytes as u64, Relaxed);
        };
        // SAFETY: until the slot's state is 0 nobody else uses it, and each of its reads has a projection of its own.
        let out = unsafe { packed.matrix_to_pack(job.slot as usize) };
        if kept.get().is_some_and(|kept| kept.read(expert, out, room)) {
            count(out.len());
            return Ok(());
        }
        if room.len() < source.room() {
            *room = vec![0; source.room()];
        }
        let at = source.read(expert, room)?;
        count(at.len());
        let matrix = room.get(at).filter(|m| m.len() == layout.rows() * layout.row_bytes());
        let matrix = matrix.ok_or_else(|| Error("a read expert has another size than the others".into()))?;
        layout.pack_matrix(matrix, out);
        Ok(())
    }
}
