//! How fast the matrix kernels are on this machine: `cargo run --release -p octet-compute --example kernels
//! [--no-streams] [TYPE...]`.
//!
//! - stream: one token times a matrix much larger than the caches, GB/s of packed weights with one thread and with two,
//!   beside the same memory merely read. Decode is as fast as memory where the two agree.
//! - cached: the same over a matrix that stays in the L2 cache, GB/s: what the arithmetic alone would allow.
//! - tokens: one thread, GMAC/s with that many tokens a call, over 2 MB of weights.
//! - pack: GB/s of file bytes packed by one thread.

use std::hint::black_box;
use std::time::Instant;

use octet_compute::cpu::acts::{ActView, Acts, Form};
use octet_compute::cpu::huge::HugeVec;
use octet_compute::cpu::isa::Isa;
use octet_compute::cpu::kernels::Kernels;
use octet_compute::cpu::pack::{Layout, Packed, ROWS};
use octet_weights::quant::random_blocks;
use octet_weights::{GgmlType, Matrix};

const COLS: usize = 2048;
const STREAM_BYTES: usize = 400 << 20;
const CACHED_BYTES: usize = 512 << 10;
const BATCH_BYTES: usize = 2 << 20;
const STREAM_SECONDS: f64 = 0.5;
const BUSY_SECONDS: f64 = 0.1;
const BATCHES: [usize; 6] = [2, 4, 8, 16, 64, 512];
const DEFAULT: [GgmlType; 16] = [
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::Q8_0,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::IQ4_NL,
    GgmlType::IQ4_XS,
    GgmlType::MXFP4,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::BF16,
    GgmlType::F16,
    GgmlType::F32,
];

fn main() {
    let streams = !std::env::args().any(|a| a == "--no-streams");
    let named: Vec<GgmlType> = std::env::args().skip(1).filter_map(|a| GgmlType::from_name(&a)).collect();
    let types = if named.is_empty() { DEFAULT.to_vec() } else { named };

    let mut buffer = HugeVec::zeroed(STREAM_BYTES).expect("memory");
    buffer.fill(1);
    let read = |threads| {
        best(STREAM_SECONDS, || in_threads(threads, |t| read_all(share(&buffer, t, threads))))
            / STREAM_BYTES as f64
    };
    println!("reading alone: {:.1} GB/s with one thread, {:.1} with two\n", 1e-9 / read(1), 1e-9 / read(2));
    drop(buffer);

    print!("| type   | isa         | stream 1 | stream 2 | cached |");
    BATCHES.iter().for_each(|n| print!(" {n:3} tok |"));
    println!(
        " pack |\n|--------|-------------|---------:|---------:|-------:|{}-----:|",
        "--------:|".repeat(BATCHES.len())
    );
    for ty in types {
        let stream = weights(ty, if streams { STREAM_BYTES } else { CACHED_BYTES });
        let cached = weights(ty, CACHED_BYTES);
        let batch = weights(ty, BATCH_BYTES);
        for isa in Isa::ALL.into_iter().rev() {
            let Some(kernels) = Kernels::for_isa(isa) else { continue };
            let stream_rate = |threads| {
                if !streams {
                    return f64::NAN;
                }
                let s = best(STREAM_SECONDS, || {
                    in_threads(threads, |t| times_one(&kernels, &stream, t, threads))
                });
                stream.size_bytes() as f64 / s * 1e-9
            };
            let one = best(BUSY_SECONDS, || times_one(&kernels, &cached, 0, 1));
            print!(
                "| {:6} | {:11} | {:8.1} | {:8.1} | {:6.1} |",
                ty.name(),
                isa.name(),
                stream_rate(1),
                stream_rate(2),
                cached.size_bytes() as f64 / one * 1e-9
            );
            for n in BATCHES {
                print!(" {:7.1} |", macs_per_second(&kernels, &batch, n) * 1e-9);
            }
            println!(" {:4.1} |", pack_rate(ty));
        }
    }
}

/// A packed matrix of about this size: a few random rows, over and over.
fn weights(ty: GgmlType, bytes: usize) -> Packed {
    let few = matrix(ty, 16 * ROWS);
    let few_layout = Layout::new(ty, few.rows, COLS).expect("whole blocks");
    let groups = bytes / few_layout.group_bytes();
    let layout = Layout::new(ty, groups * ROWS, COLS).expect("whole blocks");
    let mut packed = Packed::zeroed(layout, 1).expect("memory");
    for (g, out) in packed.groups_mut().enumerate() {
        few_layout.pack_group(&few, g % 16, out);
    }
    packed
}

fn matrix(ty: GgmlType, rows: usize) -> Matrix {
    let mut data = vec![0; rows * COLS / ty.block_len() * ty.block_bytes()];
    random_blocks(ty, &mut 1, 0.02, &mut data);
    Matrix { ty, rows, cols: COLS, data: data.into() }
}

fn with_acts<R>(kernels: &Kernels, tokens: usize, form: Form, f: impl FnOnce(&ActView<'_>) -> R) -> R {
    let mut acts = Acts::new(tokens, COLS).expect("memory");
    let rows = acts.rows(tokens, COLS);
    for t in 0..tokens {
        let x: Vec<f32> = (0..COLS).map(|i| ((i * 7 + t) % 31) as f32 - 15.0).collect();
        // SAFETY: this thread alone has them, and writes them before it reads them.
        unsafe { rows.write(kernels, t, &x, form) };
    }
    // SAFETY: as above.
    f(&unsafe { rows.view() })
}

/// One token times thread `t`'s share of the groups.
fn times_one(kernels: &Kernels, w: &Packed, t: usize, threads: usize) {
    let groups = w.layout().groups();
    with_acts(kernels, 1, w.layout().kind().acts(), |acts| {
        let mut out = [0.0; ROWS];
        for g in groups * t / threads..groups * (t + 1) / threads {
            kernels.group(w, g, acts, &[0], &mut out);
            black_box(&out);
        }
    });
}

fn macs_per_second(kernels: &Kernels, w: &Packed, n: usize) -> f64 {
    let tokens: Vec<u32> = (0..n as u32).collect();
    let mut out = vec![0.0; n * ROWS];
    // Runs of less than a millisecond, so that the best of them was not disturbed on a busy machine.
    let groups = (1024 / n).clamp(1, w.layout().groups());
    let seconds = with_acts(kernels, n, w.layout().kind().acts(), |acts| {
        best(BUSY_SECONDS, || {
            for g in 0..groups {
                kernels.group(w, g, acts, &tokens, &mut out);
                black_box(&out);
            }
        })
    });
    (groups * ROWS * COLS * n) as f64 / seconds
}

fn pack_rate(ty: GgmlType) -> f64 {
    let m = matrix(ty, 4 * ROWS);
    let mut packed = Packed::pack(&m).expect("memory");
    let layout = *packed.layout();
    let seconds = best(BUSY_SECONDS, || {
        packed.groups_mut().enumerate().for_each(|(g, out)| layout.pack_group(&m, g, out))
    });
    m.data.len() as f64 / seconds * 1e-9
}

fn read_all(bytes: &[u8]) {
    let words = bytes.as_chunks::<8>().0;
    let mut sums = [0u64; 32];
    for w in words.chunks_exact(32) {
        for (s, w) in sums.iter_mut().zip(w) {
            *s = s.wrapping_add(u64::from_ne_bytes(*w));
        }
    }
    black_box(sums);
}

fn share(bytes: &[u8], t: usize, threads: usize) -> &[u8] {
    &bytes[bytes.len() / threads * t..bytes.len() / threads * (t + 1)]
}

fn in_threads(threads: usize, f: impl Fn(usize) + Sync) {
    std::thread::scope(|s| {
        let f = &f;
        for t in 1..threads {
            s.spawn(move || f(t));
        }
        f(0);
    });
}

/// Seconds of the fastest run, of as many as fit into some seconds and at least three.
fn best(seconds: f64, mut f: impl FnMut()) -> f64 {
    let (start, mut best, mut runs) = (Instant::now(), f64::INFINITY, 0);
    while runs < 3 || start.elapsed().as_secs_f64() < seconds {
        let run = Instant::now();
        f();
        best = best.min(run.elapsed().as_secs_f64());
        runs += 1;
    }
    best
}
