//! Measures each matrix kernel on this machine, with weights in the cache and in memory.

use std::hint::black_box;
use std::time::Instant;

use octet_weights::quant::random_blocks;
use octet_weights::{GgmlType, Matrix};

use super::activations::Activations;
use super::bandwidth;
use super::device::Cpu;
use super::kind::ROWS;
use super::pack::{Layout, Packed};
use super::team::Team;
use crate::backend::Error;

/// Columns of the matrices: a common size of hidden states.
const COLS: usize = 2048;
/// Bytes of weights that fit the L2 cache of any core.
const CACHED_BYTES: usize = 128 << 10;
/// Bytes of weights that no cache of one socket holds; also of a plain read.
pub const MEMORY_BYTES: usize = 512 << 20;
/// Duration of a pass over weights in the cache, in seconds.
const PASS_SECONDS: f64 = 5e-3;
/// Number of passes, of which the best one counts.
const PASSES: usize = 5;

/// Bytes of packed weights per second of one kernel, over all threads.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelSpeed {
    /// From the L1 and L2 caches, for each requested number of tokens.
    pub cached: Vec<f64>,
    /// From memory, for one token.
    pub memory: f64,
    /// A plain read of as much memory, between the passes over the weights.
    pub plain: f64,
}

impl Cpu {
    /// Measures the kernel of a type: from the cache for each number of `tokens`, and from memory for one token, with `bytes` of weights
    /// ([`MEMORY_BYTES`], or less on machines with small caches).
    ///
    /// # Errors
    /// No memory, or a type whose blocks are larger than a row of the matrices.
    pub fn measure_kernel(
        &mut self,
        ty: GgmlType,
        tokens: &[usize],
        bytes: usize,
    ) -> Result<KernelSpeed, Error> {
        let (small, large) = (weights(ty, CACHED_BYTES)?, weights(ty, bytes)?);
        let team = &mut self.team;
        let _pinned = team.pin_caller();
        let kernels = self.kernels;
        let run = |team: &mut Team, w: &Packed, tokens: usize, rounds: Option<usize>| {
            let mut acts = Activations::new(tokens, COLS)?;
            let rows = acts.rows(tokens, COLS);
            for t in 0..tokens {
                let x: Vec<f32> = (0..COLS).map(|i| ((i * 7 + t) % 31) as f32 - 15.0).collect();
                // SAFETY: this thread alone has the rows, and writes them before any reads them.
                unsafe { rows.write(|x, out| kernels.quantise(x, out), t, &x, w.layout().kind().form()) };
            }
            // SAFETY: as above.
            let view = unsafe { rows.view() };
            let list: Vec<u32> = (0..tokens as u32).collect();
            let groups = w.layout().groups();
            let start = Instant::now();
            team.run(|worker| {
                let mut out = vec![0.0; tokens * ROWS];
                let mut group = |g| {
                    kernels.group(w, g, None, &view, &list, &mut out);
                    black_box(&out);
                };
                match rounds {
                    Some(rounds) => (0..rounds * groups).for_each(|i| group(i % groups)),
                    None => worker.items(groups).for_each(group),
                }
            });
            Ok::<f64, Error>(start.elapsed().as_secs_f64())
        };
        let mut cached = Vec::new();
        for &tokens in tokens {
            let one = run(team, &small, tokens, Some(8))? / 8.0;
            let rounds = (PASS_SECONDS / one.max(1e-9)).ceil() as usize;
            let mut best = f64::INFINITY;
            for _ in 0..PASSES {
                best = best.min(run(team, &small, tokens, Some(rounds))?);
            }
            cached.push((rounds * team.threads() * small.size_bytes()) as f64 / best);
        }
        let (mut memory, mut plain) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..PASSES {
            memory = memory.min(run(team, &large, 1, None)?);
            plain = plain.min(bandwidth::read(team, &self.vector, large.bytes()));
        }
        let rate = |seconds: f64| large.size_bytes() as f64 / seconds;
        Ok(KernelSpeed { cached, memory: rate(memory), plain: rate(plain) })
    }
}

/// The current clock of the calling thread's processor in cycles per second, if it can be measured: by a chain of operations whose
/// latency is the same on all x86-64 processors (3 cycles for a product, 1 for an exclusive or).
pub fn clock() -> Option<f64> {
    const STEPS: usize = 1 << 20;
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    let best = (0..PASSES).map(|_| {
        let start = Instant::now();
        let mut x = black_box(1u64);
        for _ in 0..STEPS {
            x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5555;
        }
        black_box(x);
        start.elapsed().as_secs_f64()
    });
    Some(4.0 * STEPS as f64 / best.fold(f64::INFINITY, f64::min))
}

/// A packed matrix of about this many bytes: a few random rows, repeated.
fn weights(ty: GgmlType, bytes: usize) -> Result<Packed, Error> {
    const FEW: usize = 4;
    let mut data = vec![0; FEW * ROWS * COLS / ty.block_len() * ty.block_bytes()];
    random_blocks(ty, &mut 1, 0.02, &mut data);
    let few = Packed::pack(&Matrix::new(ty, FEW * ROWS, COLS, data.into()))?;
    let groups = (bytes / few.layout().group_bytes()).max(1);
    let mut packed = Packed::zeroed(Layout::new(ty, groups * ROWS, COLS)?, 1)?;
    for (g, out) in packed.groups_mut().enumerate() {
        out.copy_from_slice(few.group(g % FEW));
    }
    Ok(packed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CpuOptions;

    #[test]
    fn measurements_are_rates() {
        let mut cpu = Cpu::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
        let speed = cpu.measure_kernel(GgmlType::Q8_0, &[1, 4], 1 << 20).unwrap();
        assert_eq!(speed.cached.len(), 2);
        let rates = speed.cached.iter().chain([&speed.memory, &speed.plain]);
        assert!(rates.clone().all(|r| r.is_finite() && *r > 0.0), "{speed:?}");
        if let Some(clock) = clock() {
            assert!(clock.is_finite() && clock > 0.0);
        }
    }
}
