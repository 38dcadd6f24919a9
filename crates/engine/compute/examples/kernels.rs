//! For work on the matrix kernels: how fast each is here, on one thread. `cargo run --release -p octet-compute --example
//! kernels [TYPE...]`; what the verbs make of them, `octet bench --profile` tells.
//!
//! - stream: one token times a matrix much larger than the caches, GB/s of packed weights: what decoding sees.
//! - cached: the same over a matrix that stays in the second-level cache: what the arithmetic alone would allow.
//! - tokens: GMAC/s with that many tokens at once, over 2 MiB of weights: what a prompt sees.

use std::hint::black_box;
use std::time::Instant;

use octet_compute::cpu::acts::Acts;
use octet_compute::cpu::isa::Isa;
use octet_compute::cpu::kernels::Kernels;
use octet_compute::cpu::pack::{Layout, Packed, ROWS};
use octet_weights::quant::random_blocks;
use octet_weights::{GgmlType, Matrix};

const COLS: usize = 2048;
const STREAM_BYTES: usize = 400 << 20;
const CACHED_BYTES: usize = 512 << 10;
const BATCH_BYTES: usize = 2 << 20;
const BATCHES: [usize; 4] = [2, 8, 64, 512];

fn main() {
    use GgmlType::*;
    let named: Vec<GgmlType> = std::env::args().skip(1).filter_map(|a| GgmlType::from_name(&a)).collect();
    let types = if named.is_empty() { vec![Q4_K, Q5_K, Q6_K, Q8_0, Q4_0, BF16, F32] } else { named };
    println!("type   isa            stream   cached   {BATCHES:3?} tokens");
    for ty in types {
        let (stream, cached, batch) =
            (weights(ty, STREAM_BYTES), weights(ty, CACHED_BYTES), weights(ty, BATCH_BYTES));
        for isa in Isa::ALL {
            let Some(kernels) = Kernels::for_isa(isa) else { continue };
            let rate = |w: &Packed| w.size_bytes() as f64 / seconds(&kernels, w, 1) * 1e-9;
            print!("{:6} {:11} {:9.1}{:9.1}  ", ty.name(), isa.name(), rate(&stream), rate(&cached));
            for n in BATCHES {
                let macs = batch.layout().groups() * ROWS * COLS * n;
                print!("{:7.1}", macs as f64 / seconds(&kernels, &batch, n) * 1e-9);
            }
            println!();
        }
    }
}

/// A packed matrix of about this size: a few random rows, over and over.
fn weights(ty: GgmlType, bytes: usize) -> Packed {
    let mut data = vec![0; 16 * ROWS * COLS / ty.block_len() * ty.block_bytes()];
    random_blocks(ty, &mut 1, 0.02, &mut data);
    let few = Matrix { ty, rows: 16 * ROWS, cols: COLS, data: data.into() };
    let few_layout = Layout::new(ty, few.rows, COLS).expect("whole blocks");
    let layout = Layout::new(ty, bytes / few_layout.group_bytes() * ROWS, COLS).expect("whole blocks");
    let mut packed = Packed::zeroed(layout, 1).expect("memory");
    for (g, out) in packed.groups_mut().enumerate() {
        few_layout.pack_group(&few, g % 16, out);
    }
    packed
}

/// Seconds of all of `w` times `n` tokens: the fastest of at least three runs, so that what else the machine does at
/// times leaves no mark.
fn seconds(kernels: &Kernels, w: &Packed, n: usize) -> f64 {
    let mut acts = Acts::new(n, COLS).expect("memory");
    let rows = acts.rows(n, COLS);
    for t in 0..n {
        let x: Vec<f32> = (0..COLS).map(|i| ((i * 7 + t) % 31) as f32 - 15.0).collect();
        // SAFETY: this thread alone has them, and writes them before it reads them.
        unsafe { rows.write(kernels, t, &x, w.layout().kind().acts()) };
    }
    // SAFETY: as above.
    let view = unsafe { rows.view() };
    let tokens: Vec<u32> = (0..n as u32).collect();
    let mut out = vec![0.0; n * ROWS];
    let (start, mut best, mut runs) = (Instant::now(), f64::INFINITY, 0);
    while runs < 3 || start.elapsed().as_secs_f64() < 0.2 {
        let run = Instant::now();
        for g in 0..w.layout().groups() {
            kernels.group(w, g, &view, &tokens, &mut out);
            black_box(&out);
        }
        best = best.min(run.elapsed().as_secs_f64());
        runs += 1;
    }
    best
}
