//! The thread team that runs every parallel region of the CPU backend.
//!
//! One job at a time runs on all threads, including the caller's. Threads that wait for a job or for each other spin briefly and then
//! sleep. A decode step has some hundreds of jobs a few microseconds apart, and a wake-up by the system takes longer than many of them. A
//! thread that waits longer waits for one that the system does not run, and spinning could keep that one from running. Publishing a job
//! allocates nothing and takes no lock.

use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::thread::JoinHandle;

use super::topology::Pinned;
use super::word::Word;
use crate::backend::Error;

/// Maximum number of threads of a team: more than the cores of any machine.
pub const MAX_THREADS: usize = 1024;

/// Spins of a worker that waits for a job before it sleeps: about 300 microseconds.
const JOB_SPINS: u32 = 20_000;
/// Spins of a thread that waits in a barrier, or at the end of a job, before it sleeps: about 60 microseconds.
const BARRIER_SPINS: u32 = 4_000;

type Job = *const (dyn Fn(&Worker) + Sync);

/// A counter on a cache line of its own.
#[repr(align(128))]
#[derive(Default)]
struct Line<T>(T);

struct Shared {
    threads: usize,
    /// Number of jobs published so far; workers watch it.
    epoch: Word,
    /// The job of this epoch. Written before `epoch` changes, read after a change was observed.
    job: Line<std::cell::UnsafeCell<Option<Job>>>,
    /// Workers that still run this epoch's job.
    running: Word,
    /// Items taken from each thread's share, in phases of even and of odd number: those not in use are zeroed for the next phase.
    taken: [Vec<Line<AtomicU64>>; 2],
    arrived: Line<AtomicUsize>,
    /// Number of phases begun so far, over all jobs.
    phase: Word,
    panicked: AtomicBool,
    stop: AtomicBool,
}

// SAFETY: `job` is written only by the owner of the team while no worker reads it (`running` is 0) and read only after
// an acquire load of `epoch` that follows the write.
unsafe impl Sync for Shared {}
// SAFETY: the job pointer is used only while `Team::run` keeps the closure alive, and the closure is `Sync`.
unsafe impl Send for Shared {}

/// Threads that run jobs together.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// The processor reserved for the calling thread.
    cpu: Option<usize>,
}

/// One thread's view of the job that it is running.
pub struct Worker<'a> {
    /// This thread's number; the caller of [`Team::run`] is 0.
    pub id: usize,
    phase: Cell<u32>,
    shared: &'a Shared,
}

impl Team {
    /// A team of `threads` threads, the calling one included. Thread `i` is bound to processor `cpus[i]`, the calling one
    /// only while it holds what [`Team::pin_caller`] returns; with fewer processors than threads none is.
    ///
    /// # Errors
    /// Zero threads, more than [`MAX_THREADS`], or more than the system can start.
    pub fn new(threads: usize, cpus: &[usize]) -> Result<Self, Error> {
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(Error(format!("{threads} threads: there can be 1 to {MAX_THREADS}")));
        }
        let cpu = |id: usize| cpus.get(id).copied().filter(|_| cpus.len() >= threads);
        let shared = Arc::new(Shared {
            threads,
            epoch: Word::default(),
            job: Line(std::cell::UnsafeCell::new(None)),
            running: Word::default(),
            taken: [(); 2].map(|()| (0..threads).map(|_| Line::default()).collect()),
            arrived: Line::default(),
            phase: Word::default(),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let mut team = Self { shared, workers: Vec::with_capacity(threads - 1), cpu: cpu(0) };
        for id in 1..threads {
            let (shared, cpu) = (Arc::clone(&team.shared), cpu(id));
            let start = std::thread::Builder::new().name(format!("octet-{id}")).spawn(move || {
                let _pinned = cpu.map(Pinned::to);
                work(&shared, id);
            });
            // On an error `team` is dropped, which ends the threads that did start.
            let handle =
                start.map_err(|e| Error(format!("{threads} threads: the system started only {id}: {e}")))?;
            team.workers.push(handle);
        }
        Ok(team)
    }

    /// Pins the calling thread to its own processor until the result is dropped: two threads of the team on one processor run at half the
    /// speed. Only for the length of a step: threads that this thread starts later, and counts of processors, must not be limited to one.
    pub fn pin_caller(&self) -> Option<Pinned> {
        self.cpu.map(Pinned::to)
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Runs `job` on every thread and returns when all have finished it.
    ///
    /// # Panics
    /// If the job panicked on some thread.
    pub fn run(&mut self, job: impl Fn(&Worker) + Sync) {
        let s = &*self.shared;
        // No worker reads it now; each does after it has observed the epoch.
        s.phase.reset(s.phase.get().wrapping_add(1));
        if s.threads > 1 {
            let job: &(dyn Fn(&Worker) + Sync) = &job;
            // SAFETY: only the lifetime is erased; no worker uses the pointer after `running` is back at 0, which this
            // function waits for, even if the job panics on this thread.
            let job: Job = unsafe { std::mem::transmute(job) };
            // SAFETY: no worker reads the cell now (see `Shared`).
            unsafe { *s.job.0.get() = Some(job) };
            s.running.reset(s.threads as u32 - 1);
            s.epoch.add(1);
        }
        let own = std::panic::catch_unwind(AssertUnwindSafe(|| Worker::run(s, 0, job)));
        if own.is_err() {
            s.panic();
        }
        s.running.wait(BARRIER_SPINS, |running| running == 0);
        if let Err(panic) = own {
            std::panic::resume_unwind(panic);
        }
        assert!(!s.panicked.load(SeqCst), "a thread of the team panicked; its message stands above");
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.shared.epoch.add(1);
        for handle in self.workers.drain(..) {
            // A worker never panics outside a job, and panics of jobs are caught.
            let _ = handle.join();
        }
    }
}

impl Shared {
    /// Releases threads that wait in a barrier for one that panicked.
    fn panic(&self) {
        self.panicked.store(true, SeqCst);
        self.phase.wake();
    }
}

fn work(s: &Shared, id: usize) {
    let mut seen = 0;
    loop {
        s.epoch.wait(JOB_SPINS, |epoch| epoch != seen);
        seen = s.epoch.get();
        if s.stop.load(SeqCst) {
            return;
        }
        // SAFETY: written before the epoch that was just seen, and alive until `running` is decremented below.
        let job = unsafe { &*(*s.job.0.get()).expect("a job is published with its epoch") };
        if std::panic::catch_unwind(AssertUnwindSafe(|| Worker::run(s, id, job))).is_err() {
            s.panic();
        }
        s.running.add(u32::MAX); // one less
    }
}

impl Worker<'_> {
    /// Runs a job as thread `id`.
    fn run(shared: &Shared, id: usize, job: impl Fn(&Worker)) {
        let worker = Worker { id, phase: Cell::new(shared.phase.get()), shared };
        job(&worker);
        worker.leave_phase();
    }

    /// Number of threads that run this job.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// The taken items of the shares of this phase.
    fn taken(&self) -> &[Line<AtomicU64>] {
        &self.shared.taken[self.phase.get() as usize % 2]
    }

    /// Resets this thread's share for the next phase. Threads that took from it in the phase before this one have passed the
    /// barrier since.
    fn leave_phase(&self) {
        let next = self.phase.get().wrapping_add(1);
        self.phase.set(next);
        self.taken()[self.id].0.store(0, Relaxed);
    }

    /// Waits until every thread has called this; what they wrote before is visible afterwards. Also starts a new phase for
    /// [`Worker::items`].
    pub fn barrier(&self) {
        let s = self.shared;
        let phase = self.phase.get();
        self.leave_phase();
        if s.threads == 1 {
            s.phase.reset(self.phase.get());
            return;
        }
        if s.arrived.0.fetch_add(1, AcqRel) == s.threads - 1 {
            s.arrived.0.store(0, Relaxed);
            s.phase.set(self.phase.get());
            return;
        }
        s.phase.wait(BARRIER_SPINS, |now| now != phase || s.panicked.load(SeqCst));
        assert!(s.phase.get() != phase, "another thread of the team panicked");
    }

    /// Items `0..count` of this phase, each for one thread: first its own share in ascending order, so that it reads
    /// memory in one stream, then items that it steals from the end of other shares.
    ///
    /// Called once per phase, with the same count on every thread.
    pub fn items(&self, count: usize) -> impl Iterator<Item = usize> + '_ {
        let share = move |id| share(count, id, self.threads());
        self.pieces(move |id| share(id).len()).map(move |(id, i)| share(id).start + i)
    }

    /// Items `0..count` in runs of up to `longest`; otherwise like [`Worker::items`]. Towards the end of a share runs are shorter, so that no
    /// thread waits long for the last one.
    pub fn runs(&self, count: usize, longest: usize) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        let share = move |id| share(count, id, self.threads());
        self.pieces(move |id| runs_of(share(id).len(), longest)).map(move |(id, i)| {
            let (share, run) = (share(id), run_of(share(id).len(), longest, i));
            share.start + run.start..share.start + run.end
        })
    }

    /// Pieces of each thread's share, which has `count(thread)` of them, as `(thread, piece)`.
    fn pieces(&self, count: impl Fn(usize) -> usize) -> impl Iterator<Item = (usize, usize)> {
        let threads = self.threads();
        let (taken, mut turn) = (self.taken(), 0);
        std::iter::from_fn(move || {
            while turn < threads {
                let id = (self.id + turn) % threads;
                if let Some(i) = take(&taken[id].0, count(id), turn > 0) {
                    return Some((id, i));
                }
                turn += 1;
            }
            None
        })
    }

    /// The first item that [`Worker::items`] gives this thread, unless others steal it.
    pub fn first_item(&self, count: usize) -> usize {
        share(count, self.id, self.threads()).start
    }

    /// Items `0..count` in chunks of `chunk`, each for one thread: see [`Worker::items`].
    pub fn chunks(&self, count: usize, chunk: usize) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        self.items(count.div_ceil(chunk)).map(move |i| i * chunk..((i + 1) * chunk).min(count))
    }
}

/// Thread `id`'s even share of `0..count`. The first threads have the larger shares, so that a single item goes to the thread that
/// starts the job.
fn share(count: usize, id: usize, threads: usize) -> std::ops::Range<usize> {
    (count * id).div_ceil(threads)..(count * (id + 1)).div_ceil(threads)
}

/// Number of runs of a share of `len` items: each is `longest` while two such runs are left, then half of the rest.
fn runs_of(len: usize, longest: usize) -> usize {
    let whole = (len / longest).saturating_sub(1);
    whole + (usize::BITS - (len - whole * longest).leading_zeros()) as usize
}

/// The items of run `i`.
fn run_of(len: usize, longest: usize, i: usize) -> std::ops::Range<usize> {
    let whole = (len / longest).saturating_sub(1);
    if i < whole {
        return i * longest..(i + 1) * longest;
    }
    let rest = len - whole * longest;
    // The number of items left before and after it.
    let [from, to] = [i - whole, i - whole + 1].map(|halvings| len - (rest >> halvings));
    from..to
}

/// Takes an item of a share of `len`, from its start or from its end. `taken` counts both in its two halves: if their sum was below
/// `len`, there was an item left to take.
fn take(taken: &AtomicU64, len: usize, from_end: bool) -> Option<usize> {
    let split = |taken: u64| ((taken & u64::from(u32::MAX)) as usize, (taken >> 32) as usize);
    let (front, back) = split(taken.load(Relaxed));
    if front + back >= len {
        return None; // without a write, which would take the line from the others
    }
    let (front, back) = split(taken.fetch_add(if from_end { 1 << 32 } else { 1 }, Relaxed));
    (front + back < len).then(|| if from_end { len - 1 - back } else { front })
}

/// A slice that several threads write disjoint parts of.
#[derive(Clone, Copy)]
pub struct Shards<'a, T> {
    start: *mut T,
    len: usize,
    of: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `part`, whose contract makes the parts disjoint.
unsafe impl<T: Send> Sync for Shards<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shards<'_, T> {}

impl<'a, T> Shards<'a, T> {
    /// Lets several threads write disjoint parts of `slice`.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), of: std::marker::PhantomData }
    }

    /// Length of the whole slice.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for an empty slice.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the part `from..from + len`, for kernels that take pointers and strides.
    ///
    /// # Panics
    /// If the part does not lie within the slice.
    pub fn ptr(&self, from: usize, len: usize) -> *mut T {
        assert!(from <= self.len && len <= self.len - from, "part {from}+{len} of {}", self.len);
        self.start.wrapping_add(from)
    }

    /// The whole slice, for reading.
    ///
    /// # Safety
    /// As for [`Shards::read`].
    pub unsafe fn all(&self) -> &'a [T] {
        // SAFETY: the caller's.
        unsafe { self.read(0, self.len) }
    }

    /// The part `from..from + len`, for reading.
    ///
    /// # Safety
    /// Between two barriers no thread may write to it.
    pub unsafe fn read(&self, from: usize, len: usize) -> &'a [T] {
        // SAFETY: in bounds, and not written by this function's contract.
        unsafe { std::slice::from_raw_parts(self.ptr(from, len), len) }
    }

    /// The part `from..from + len`.
    ///
    /// # Safety
    /// Between two barriers no other thread may use an overlapping part.
    ///
    /// # Panics
    /// When the part does not lie within the slice.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, from: usize, len: usize) -> &'a mut [T] {
        // SAFETY: in bounds; disjoint by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.ptr(from, len), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn every_item_runs_once_in_every_phase() {
        for threads in [1, 2, 3, 7] {
            let mut team = Team::new(threads, &[]).unwrap();
            let mut cells = vec![0u64; 1000];
            for round in 1..=50 {
                let shards = Shards::new(&mut cells);
                let sum = AtomicU64::new(0);
                team.run(|w| {
                    for r in w.chunks(1000, 13) {
                        // SAFETY: chunks do not overlap.
                        unsafe { shards.part(r.start, r.len()) }.iter_mut().for_each(|x| *x += 1);
                    }
                    w.barrier();
                    for i in w.items(1000) {
                        // SAFETY: items are distinct, and a barrier lies after the writes.
                        sum.fetch_add(unsafe { shards.part(i, 1) }[0], Relaxed);
                    }
                });
                assert_eq!(sum.into_inner(), 1000 * round);
            }
        }
    }

    #[test]
    fn runs_cover_everything_once_and_become_shorter() {
        for (len, longest) in (0..70).flat_map(|len| [1, 2, 3, 8, 100].map(|longest| (len, longest))) {
            let runs: Vec<_> = (0..runs_of(len, longest)).map(|i| run_of(len, longest, i)).collect();
            assert_eq!(runs.iter().cloned().flatten().collect::<Vec<_>>(), (0..len).collect::<Vec<_>>());
            assert!(runs.iter().all(|r| (1..=longest).contains(&r.len())), "{len}, {longest}: {runs:?}");
            assert!(runs.is_sorted_by(|a, b| a.len() >= b.len()), "{len}, {longest}: {runs:?}");
            assert!(runs.last().is_none_or(|r| r.len() == 1), "{len}, {longest}: {runs:?}");
        }
    }

    #[test]
    fn every_item_is_in_one_run() {
        for threads in [1, 2, 3] {
            let mut team = Team::new(threads, &[]).unwrap();
            let seen: Vec<AtomicUsize> = (0..145).map(|_| AtomicUsize::new(0)).collect();
            for round in 1..=20 {
                team.run(|w| {
                    for i in w.runs(seen.len(), 8).flatten() {
                        seen[i].fetch_add(1, Relaxed);
                    }
                });
                assert!(seen.iter().all(|n| n.load(Relaxed) == round));
            }
        }
    }

    #[test]
    fn shares_cover_everything_once() {
        for (count, threads) in [(0, 3), (1, 3), (2, 3), (10, 3), (10, 1), (64, 7)] {
            let all: Vec<usize> = (0..threads).flat_map(|id| share(count, id, threads)).collect();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
        assert_eq!(share(1, 0, 2), 0..1);
    }

    #[test]
    fn unfinished_items_are_stolen() {
        let mut team = Team::new(2, &[]).unwrap();
        let (begun, done) = (AtomicBool::new(false), AtomicUsize::new(0));
        let order = std::sync::Mutex::new(Vec::new());
        team.run(|w| {
            let mut items = w.items(10);
            if w.id == 0 {
                // The first item takes until the other thread has done all the rest.
                assert_eq!(items.next(), Some(0));
                begun.store(true, Release);
                while done.load(Acquire) < 9 {
                    std::thread::yield_now();
                }
                assert_eq!(items.next(), None);
            } else {
                while !begun.load(Acquire) {
                    std::thread::yield_now();
                }
                for i in items {
                    order.lock().unwrap().push(i);
                    done.fetch_add(1, Release);
                }
            }
        });
        // Its own share forwards, then the other one's backwards.
        assert_eq!(order.into_inner().unwrap(), [5, 6, 7, 8, 9, 4, 3, 2, 1]);
    }

    #[test]
    fn sleeping_threads_wake_up() {
        let mut team = Team::new(2, &[]).unwrap();
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let count = AtomicUsize::new(0);
            team.run(|_| {
                count.fetch_add(1, Relaxed);
            });
            assert_eq!(count.into_inner(), 2);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_without_a_deadlock() {
        for who in [0, 1] {
            let mut team = Team::new(2, &[]).unwrap();
            let result = std::panic::catch_unwind(AssertUnwindSafe(|| {
                team.run(|w| {
                    assert_ne!(w.id, who, "expected by this test");
                    w.barrier();
                });
            }));
            assert!(result.is_err());
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn every_team_finds_all_processors_and_binds_its_threads() {
        use crate::cpu::topology::Topology;
        use std::sync::Mutex;

        let before = Topology::of_this_thread();
        let (cpus, threads) = (before.cpus(), before.cpus().len().min(3));
        let check = |team: &mut Team| {
            let seen = Mutex::new(vec![Vec::new(); threads]);
            let pinned = team.pin_caller();
            team.run(|w| seen.lock().unwrap()[w.id] = Topology::of_this_thread().cpus().to_vec());
            drop(pinned);
            let want: Vec<_> = cpus[..threads].iter().map(|&cpu| vec![cpu]).collect();
            assert_eq!(seen.into_inner().unwrap(), want);
            assert_eq!(Topology::of_this_thread(), before);
            assert_eq!(Topology::of_this_thread().default_threads(), before.default_threads());
        };
        let mut first = Team::new(threads, cpus).unwrap();
        check(&mut first);
        let mut beside = Team::new(threads, Topology::of_this_thread().cpus()).unwrap();
        check(&mut beside);
        check(&mut first);
        drop((first, beside));
        check(&mut Team::new(threads, Topology::of_this_thread().cpus()).unwrap());

        // more threads than processors: each may run on all of them
        let mut team = Team::new(cpus.len() + 1, cpus).unwrap();
        let pinned = team.pin_caller();
        team.run(|_| assert_eq!(Topology::of_this_thread(), before));
        drop(pinned);
    }

    #[test]
    fn a_team_of_no_thread_or_too_many_is_refused() {
        for threads in [0, MAX_THREADS + 1, 100_000, usize::MAX] {
            let e = Team::new(threads, &[]).err().expect("an error").to_string();
            assert!(e.starts_with(&format!("{threads} threads")), "{e}");
        }
    }
}
