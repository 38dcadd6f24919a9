//! What this machine's memory gives: the limit that a decode step is measured against. Called by `octet bench`.

use std::time::Instant;

use super::huge::HugeVec;
use super::team::Team;
use super::vector::VectorKernels;
use crate::backend::Error;

/// Far more than any cache of one socket holds.
const BYTES: usize = 1 << 30;
/// What a thread reads at a time.
const CHUNK: usize = 1 << 20;
/// Values of one call of the kernel: its two operands lie in one chunk, this far apart.
const HALF: usize = CHUNK / 8;

/// Reads memory with the whole team, `runs` times; bytes per second of each run.
pub(super) fn measure(team: &mut Team, vector: &VectorKernels, runs: usize) -> Result<Vec<f64>, Error> {
    let mut memory = HugeVec::zeroed(BYTES)
        .map_err(|e| Error(format!("no {} MiB of memory to measure its bandwidth with: {e}", BYTES >> 20)))?;
    let _pinned = team.pin_caller();
    // Written first: pages that were never written are all the same page of zeros.
    memory.fill(1);
    // SAFETY: mapped memory is aligned to 64 bytes, and any bits are an f32.
    let values: &[f32] = unsafe { std::slice::from_raw_parts(memory.as_ptr().cast(), memory.len() / 4) };
    Ok((0..runs)
        .map(|_| {
            let start = Instant::now();
            team.run(|w| {
                for r in w.chunks(values.len(), 2 * HALF) {
                    let (a, b) = values[r].split_at(HALF);
                    std::hint::black_box(vector.dot(a, b));
                }
            });
            BYTES as f64 / start.elapsed().as_secs_f64()
        })
        .collect())
}
