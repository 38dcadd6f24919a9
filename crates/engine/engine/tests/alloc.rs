//! A decode step allocates nothing: counted by the allocator itself, on every kind of layer.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use octet_compute::Batch;
use octet_compute::backend::KvType;
use octet_compute::batch::{PAGE_TOKENS, Redo};
use octet_compute::cpu::{Cpu, CpuOptions};
use octet_engine::cache::Pool;
use octet_engine::models::{self, DraftVocab, Guess, Limits, Rows};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Threads that have allocated so far.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Which of them this one is; `None` before its first allocation.
    static THREAD: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Counts an allocation of any thread but the process's first: that is the test harness's own, which says after a minute
/// that a test still runs.
fn count() {
    let thread = THREAD.try_with(|t| {
        let n = t.get().unwrap_or_else(|| THREADS.fetch_add(1, Ordering::SeqCst));
        t.set(Some(n));
        n
    });
    if thread.is_ok_and(|n| n > 0) {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
    }
}

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_decode_step_allocates_nothing() {
    // On a thread that is not the harness's, however that runs its tests.
    std::thread::scope(|scope| scope.spawn(decode).join()).expect("the steps are done");
}

fn decode() {
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    let kept = std::hint::black_box(Box::new(before));
    assert!(ALLOCATIONS.load(Ordering::SeqCst) > *kept, "the counter counts");
    let types = [KvType::F16, KvType::Q8_0];
    for (i, architecture) in octet_synth::TINY_ARCHITECTURES.iter().enumerate() {
        let file = octet_synth::tiny(architecture, octet_synth::Mix::Q4KM)
            .expect("a tiny model of a known architecture");
        let context = 20 * PAGE_TOKENS;
        let cpu =
            Cpu::new(&CpuOptions { threads: Some(2), pin: false, ..CpuOptions::default() }).expect("a CPU");
        let limits = Limits {
            kv: types[i % 2].into(),
            slots: 4,
            spare_slots: 0,
            batch_outputs: 4,
            guesses: 3,
            mtp: true,
            draft_vocab: DraftVocab { first: 16, recent: 32 },
            ..Limits::single(context)
        };
        let mut model = models::load(&file, cpu, limits, &mut |_, _| {}).expect("a tiny model loads");
        let mut pool = Pool::new(&*model);
        let mut seq = pool.sequence(&mut *model, context).expect("room");
        let mut batch = Batch::with_capacity(512, 4, context / PAGE_TOKENS);
        let vocab = model.config().vocab as u32;
        let mut step = |n: usize| {
            pool.reserve(&mut seq, n).expect("room");
            let past = seq.tokens.len();
            seq.tokens.extend((past..past + n).map(|i| i as u32 % vocab));
            batch.clear();
            batch.push(&seq.tokens[past..], past, seq.slot, &seq.pages, 1);
            model.step(&batch).expect("a CPU does not fail");
        };
        step(500);
        step(500); // enough context that attention is shared out among threads
        step(1);
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        for _ in 0..70 {
            step(1); // across the border of a page
        }
        assert_eq!(ALLOCATIONS.load(Ordering::SeqCst) - before, 0, "{architecture}");

        // with guesses, of which one is right, and those of the model's own block
        let mut redo = Redo::default();
        let (mut fill, mut draft) = (Rows::with_capacity(512, 4, 20), Rows::with_capacity(4, 4, 20));
        let mut out = [Guess::default()];
        let mut rare = 0;
        let mut guess = || {
            pool.reserve(&mut seq, 4).expect("room");
            let past = seq.tokens.len();
            seq.tokens.extend([1, 2, 3, 4]);
            batch.clear();
            batch.push(&seq.tokens[past..], past, seq.slot, &seq.pages, 4);
            batch.speculate(3, redo);
            model.step(&batch).expect("a CPU does not fail");
            redo = Redo { first: 0, len: 1 };
            seq.tokens.truncate(past + 2);
            for (rows, n) in [(&mut fill, past..past + 1), (&mut draft, past + 1..past + 2)] {
                rows.from.clear();
                rows.batch.clear();
                rows.from.push_row(n.start - past);
                rows.batch.push(&[5], n.start, seq.slot, &seq.pages, 1);
            }
            // tokens that already have a row, and tokens that need one
            model.note(&seq.tokens[past - 40..]);
            rare = (rare + 1) % vocab;
            model.note(&[rare]);
            model.draft(&fill, &draft, &mut out).expect("a CPU does not fail");
        };
        guess();
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        (0..30).for_each(|_| guess());
        assert_eq!(ALLOCATIONS.load(Ordering::SeqCst) - before, 0, "{architecture} with guesses");
    }
}
