//! Measures this machine's memory bandwidth, the limit of a decode step.

use std::time::Instant;

use super::huge::HugeVec;
use super::team::Team;
use super::vector::VectorKernels;
use crate::backend::Error;

/// Far more than any cache of one socket.
pub(super) const BYTES: usize = 1 << 30;
/// More than nearly all caches, and small enough to allocate beside a served model.
pub(super) const FEW_BYTES: usize = 256 << 20;
/// Bytes that a thread takes at a time.
const CHUNK: usize = 1 << 20;
/// Bytes of one call of the reading kernel.
const PIECE: usize = 4 << 10;

/// Reads `bytes` of memory with the whole team, `passes` times, and returns the bytes per second of each pass. Reads like decoding: pinned
/// threads, the same kind of memory as weights, one stream per thread.
///
/// A pass is slower if the machine was busy, so the best one is the memory's bandwidth.
pub(super) fn measure(
    team: &mut Team,
    vector: &VectorKernels,
    bytes: usize,
    passes: usize,
) -> Result<Vec<f64>, Error> {
    let _pinned = team.pin_caller();
    let memory = written(bytes)?;
    Ok((0..passes).map(|_| bytes as f64 / read(team, vector, &memory)).collect())
}

/// Memory that was written: all pages never written are the same page of zeros. As f32 it holds small numbers.
fn written(bytes: usize) -> Result<HugeVec, Error> {
    let mut memory = HugeVec::zeroed(bytes)
        .map_err(|e| Error(format!("no {} MiB of memory to measure its bandwidth with: {e}", bytes >> 20)))?;
    memory.fill(60);
    Ok(memory)
}

/// Memory to read between steps: on a shared machine the bandwidth changes within a second.
pub struct Probe(HugeVec);

impl Probe {
    pub(super) fn new() -> Result<Self, Error> {
        written(FEW_BYTES).map(Self)
    }

    /// Bytes per second of one pass.
    pub(super) fn read(&self, team: &mut Team, vector: &VectorKernels) -> f64 {
        FEW_BYTES as f64 / read(team, vector, &self.0)
    }
}

/// Seconds that the team needs to read `memory` once.
pub(super) fn read(team: &mut Team, vector: &VectorKernels, memory: &[u8]) -> f64 {
    assert!(memory.as_ptr().cast::<f32>().is_aligned());
    // SAFETY: aligned (checked), and any bits are an f32.
    let values: &[f32] = unsafe { std::slice::from_raw_parts(memory.as_ptr().cast(), memory.len() / 4) };
    let start = Instant::now();
    team.run(|w| {
        for r in w.chunks(values.len(), CHUNK / 4) {
            for piece in values[r].chunks(PIECE / 4) {
                // Both operands are the same memory, so it is read once.
                std::hint::black_box(vector.dot(piece, piece));
            }
        }
    });
    start.elapsed().as_secs_f64()
}
