//! The team of threads that runs every parallel region of the CPU backend. Called by the verbs in `cpu/`.
//!
//! One job at a time, on all threads, the caller's included. Between jobs the threads spin for a moment and then
//! park: a decode step is some hundreds of jobs a few microseconds apart, and a wake-up by the kernel costs more than
//! many of them. Handing out a job allocates nothing and takes no lock.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};
use std::thread::{JoinHandle, Thread};

use super::topology::Pinned;
use crate::backend::Error;

/// Most threads of a team: more than any machine has cores.
pub const MAX_THREADS: usize = 1024;

/// Turns a thread spins for the next job before it parks: some tens of microseconds.
const SPINS_BEFORE_PARK: u32 = 20_000;
/// Turns a thread spins in a barrier before it lets others run: more threads than free cores must not stand still.
const SPINS_BEFORE_YIELD: u32 = 4_000;

type Job = *const (dyn Fn(&Worker) + Sync);

/// A counter on a cache line of its own.
#[repr(align(128))]
#[derive(Default)]
struct Line<T>(T);

struct Shared {
    threads: usize,
    /// Number of jobs published so far; workers watch it.
    epoch: Line<AtomicU32>,
    /// The job of this epoch. Written before `epoch` moves, read after it was seen to have moved.
    job: Line<std::cell::UnsafeCell<Option<Job>>>,
    /// Workers that still run this epoch's job.
    running: Line<AtomicUsize>,
    /// Next item of the current phase.
    next: Line<AtomicUsize>,
    arrived: Line<AtomicUsize>,
    phase: Line<AtomicU32>,
    parked: Vec<Line<AtomicBool>>,
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
    workers: Vec<(Thread, Option<JoinHandle<()>>)>,
    /// The processor that is kept for the calling thread.
    cpu: Option<usize>,
}

/// One thread's view of the job that it is running.
pub struct Worker<'a> {
    /// This thread's number; the caller of [`Team::run`] is 0.
    pub id: usize,
    shared: &'a Shared,
}

impl Team {
    /// A team of `threads` threads, the calling one included. Thread `i` is bound to processor `cpus[i]`, the calling one
    /// only while it holds what [`Team::pin_caller`] returns; with fewer processors than threads none is.
    ///
    /// # Errors
    /// No thread at all, more than [`MAX_THREADS`], or more than the system starts.
    pub fn new(threads: usize, cpus: &[usize]) -> Result<Self, Error> {
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(Error(format!("{threads} threads: there can be 1 to {MAX_THREADS}")));
        }
        let cpu = |id: usize| cpus.get(id).copied().filter(|_| cpus.len() >= threads);
        let shared = Arc::new(Shared {
            threads,
            epoch: Line::default(),
            job: Line(std::cell::UnsafeCell::new(None)),
            running: Line::default(),
            next: Line::default(),
            arrived: Line::default(),
            phase: Line::default(),
            parked: (1..threads).map(|_| Line::default()).collect(),
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
            let handle = start
                .map_err(|e| Error(format!("{threads} threads: the system starts no more than {id}: {e}")))?;
            team.workers.push((handle.thread().clone(), Some(handle)));
        }
        Ok(team)
    }

    /// Keeps the calling thread on its own processor until the result is dropped: two threads of the team that share
    /// one run at half the speed. Not for longer than a step: what this thread starts or counts later must not see one
    /// processor alone.
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
    /// When the job panicked on some thread.
    pub fn run(&mut self, job: impl Fn(&Worker) + Sync) {
        let s = &*self.shared;
        s.next.0.store(0, Relaxed);
        if s.threads > 1 {
            let job: &(dyn Fn(&Worker) + Sync) = &job;
            // SAFETY: only the lifetime is erased; no worker uses the pointer after `running` is back at 0, which this
            // function waits for, even if the job panics on this thread.
            let job: Job = unsafe { std::mem::transmute(job) };
            // SAFETY: no worker reads the cell now (see `Shared`).
            unsafe { *s.job.0.get() = Some(job) };
            s.running.0.store(s.threads - 1, Relaxed);
            s.epoch.0.fetch_add(1, SeqCst);
            for ((thread, _), parked) in self.workers.iter().zip(&s.parked) {
                if parked.0.load(SeqCst) {
                    thread.unpark();
                }
            }
        }
        let own = std::panic::catch_unwind(AssertUnwindSafe(|| job(&Worker { id: 0, shared: s })));
        if own.is_err() {
            s.panicked.store(true, SeqCst); // releases workers that wait for this thread in a barrier
        }
        let mut spins = 0;
        while s.running.0.load(Acquire) != 0 {
            relax(&mut spins);
        }
        if let Err(panic) = own {
            std::panic::resume_unwind(panic);
        }
        assert!(!s.panicked.load(SeqCst), "a thread of the team panicked; its message stands above");
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.shared.epoch.0.fetch_add(1, SeqCst);
        for (thread, handle) in &mut self.workers {
            thread.unpark();
            if let Some(h) = handle.take() {
                // A worker never panics outside a job, and panics of jobs are caught.
                let _ = h.join();
            }
        }
    }
}

fn relax(spins: &mut u32) {
    *spins += 1;
    if *spins < SPINS_BEFORE_YIELD {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

fn work(s: &Shared, id: usize) {
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while s.epoch.0.load(Acquire) == seen {
            spins += 1;
            if spins < SPINS_BEFORE_PARK {
                std::hint::spin_loop();
                continue;
            }
            // Either this thread sees the new epoch here, or the publisher sees `parked` and unparks it.
            let parked = &s.parked[id - 1].0;
            parked.store(true, SeqCst);
            while s.epoch.0.load(SeqCst) == seen {
                std::thread::park();
            }
            parked.store(false, SeqCst);
        }
        seen = s.epoch.0.load(Acquire);
        if s.stop.load(SeqCst) {
            return;
        }
        // SAFETY: written before the epoch that was just seen, and alive until `running` is decremented below.
        let job = unsafe { &*(*s.job.0.get()).expect("a job is published with its epoch") };
        if std::panic::catch_unwind(AssertUnwindSafe(|| job(&Worker { id, shared: s }))).is_err() {
            s.panicked.store(true, SeqCst);
        }
        s.running.0.fetch_sub(1, Release);
    }
}

impl Worker<'_> {
    /// Number of threads that run this job.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Waits until every thread has come here; what they wrote before is visible after. Also starts a new phase for
    /// [`Worker::items`].
    pub fn barrier(&self) {
        let s = self.shared;
        if s.threads == 1 {
            s.next.0.store(0, Relaxed);
            return;
        }
        let phase = s.phase.0.load(Relaxed);
        if s.arrived.0.fetch_add(1, AcqRel) == s.threads - 1 {
            s.arrived.0.store(0, Relaxed);
            s.next.0.store(0, Relaxed);
            s.phase.0.store(phase.wrapping_add(1), Release);
            return;
        }
        let mut spins = 0;
        while s.phase.0.load(Acquire) == phase {
            relax(&mut spins);
            if spins % 1024 == 0 && s.panicked.load(Relaxed) {
                panic!("another thread of the team panicked");
            }
        }
    }

    /// Items `0..count` of this phase, each handed to one thread, in order, to whichever is free.
    pub fn items(&self, count: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::from_fn(move || Some(self.shared.next.0.fetch_add(1, Relaxed)).filter(|&i| i < count))
    }

    /// Items `0..count` in chunks of `chunk` that each go to one thread: see [`Worker::items`].
    pub fn chunks(&self, count: usize, chunk: usize) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        self.items(count.div_ceil(chunk)).map(move |i| i * chunk..((i + 1) * chunk).min(count))
    }

    /// This thread's even share of `0..count`.
    pub fn share(&self, count: usize) -> std::ops::Range<usize> {
        count * self.id / self.threads()..count * (self.id + 1) / self.threads()
    }
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
    /// Shares `slice` out.
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

    /// Where the part `from..from + len` starts, for kernels that take pointers and strides.
    ///
    /// # Panics
    /// When the part does not lie within the slice.
    pub fn ptr(&self, from: usize, len: usize) -> *mut T {
        assert!(from <= self.len && len <= self.len - from, "part {from}+{len} of {}", self.len);
        self.start.wrapping_add(from)
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
    use std::sync::atomic::AtomicU64;

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
    fn shares_cover_everything_once() {
        let mut team = Team::new(3, &[]).unwrap();
        let seen = AtomicU64::new(0);
        team.run(|w| w.share(10).for_each(|i| assert_eq!(seen.fetch_or(1 << i, Relaxed) & (1 << i), 0)));
        assert_eq!(seen.into_inner(), (1 << 10) - 1);
    }

    #[test]
    fn threads_that_went_to_sleep_wake_up() {
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
    fn a_panic_reaches_the_caller_and_not_a_deadlock() {
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
