//! Models larger than memory: how many experts of each layer stay in memory, while the others are read from the model's files.

use std::time::Instant;

use octet_compute::cpu::CpuOptions;
use octet_weights::Piece;

use super::{Group, Memory, Report};

/// Memory besides weights and caches that counts where memory is filled: buffers of the threads that read, the tokenizer, padding, the
/// program itself.
const BESIDE_BYTES: u64 = 96 << 20;

impl Report {
    /// Bytes of all routed experts.
    pub fn expert_bytes(&self) -> u64 {
        self.group(Group::RoutedExperts).map_or(0, |g| g.bytes)
    }

    /// Experts of each layer that stay in memory, if `memory`, which counts all, is more than `room`: as many as there is room for. `None` if all
    /// fit, or if those of one token do not, or the model has no experts that can stay in its files.
    pub fn expert_slots(&self, memory: Memory, room: u64) -> Option<usize> {
        let (all, experts) = (memory.total(), self.expert_bytes());
        let moe = self.config.moe.filter(|_| all > room && experts > 0 && self.not_stored.is_none())?;
        let left = room.checked_sub((all - experts).saturating_add(BESIDE_BYTES))?;
        let slots = (u128::from(left) * moe.experts as u128 / u128::from(experts)) as usize;
        (slots >= moe.top_k).then_some(slots.min(moe.experts))
    }

    /// The least memory with which it runs: that for the experts of one token. `None` if its experts cannot stay in its files.
    pub fn least_memory(&self, memory: Memory) -> Option<Memory> {
        let moe = self.config.moe.filter(|_| self.not_stored.is_none() && self.expert_bytes() > 0)?;
        Some(self.with_slots(memory, Some(moe.top_k)))
    }

    /// `memory` with this many experts of each layer; `None` is all.
    pub fn with_slots(&self, memory: Memory, slots: Option<usize>) -> Memory {
        let (Some(slots), Some(moe)) = (slots, self.config.moe) else { return memory };
        let experts = self.expert_bytes();
        let own = (u128::from(experts) * slots as u128).div_ceil(moe.experts.max(1) as u128) as u64;
        Memory {
            weights: memory.weights.saturating_sub(experts).saturating_add(own).saturating_add(BESIDE_BYTES),
            ..memory
        }
    }

    /// Bytes of experts that are not in memory with these options.
    pub fn stored_bytes(&self, cpu: &CpuOptions) -> u64 {
        match (cpu.expert_slots, self.config.moe) {
            (Some(slots), Some(moe)) => {
                let out = moe.experts.saturating_sub(slots);
                (u128::from(self.expert_bytes()) * out as u128 / moe.experts.max(1) as u128) as u64
            }
            _ => 0,
        }
    }
}

/// Reads, and bytes of each, that [`drive_speed`] measures: a few hundredths of a second.
const READS: usize = 32;
const READ_BYTES: usize = 1 << 20;
/// Reads at the same time, as the backend does.
const READERS: usize = 4;

/// Bytes per second that experts are read from the model's files with; `None` if they cannot be.
pub fn drive_speed(model: &octet_weights::Model, report: &Report) -> Option<f64> {
    let routed = |t: &&octet_weights::TensorInfo| {
        t.shape.len() > 1 && Group::of(&t.name, &report.config) == Group::RoutedExperts
    };
    let tensors = || model.tensors().iter().filter(routed);
    let largest = tensors().max_by_key(|t| t.size_bytes())?;
    let bytes = model.unread(&largest.name, &largest.shape).ok()??.bytes;
    let len = READ_BYTES.min(bytes.len());
    // Spread over the tensor, as experts are.
    let places = (bytes.len() - len) / READS;
    let start = Instant::now();
    let all_read = std::thread::scope(|s| {
        let read = |first: usize| {
            let bytes = &bytes;
            s.spawn(move || {
                let mut room = vec![0; Piece::room(len)];
                let mut reads =
                    (first..READS).step_by(READERS).map(|i| bytes.part(i * places..i * places + len));
                reads.all(|piece| piece.is_some_and(|piece| piece.read(&mut room).is_ok()))
            })
        };
        let threads: Vec<_> = (0..READERS).map(read).collect();
        threads.into_iter().all(|thread| thread.join().unwrap_or(false))
    });
    all_read.then(|| (READS * len) as f64 / start.elapsed().as_secs_f64())
}

impl Report {
    /// Tokens per second that a drive of `rate` bytes per second allows with `slots` experts of each layer in memory, if all experts are chosen
    /// equally often. Real models choose some more often, so more of them are in memory.
    pub fn speed_from_drive(&self, slots: usize, rate: f64) -> f64 {
        let Some(moe) = self.config.moe else { return f64::INFINITY };
        let misses = 1.0 - slots.min(moe.experts) as f64 / moe.experts.max(1) as f64;
        let read = self.group(Group::RoutedExperts).map_or(0, |g| g.active_bytes);
        rate / (misses * read as f64)
    }
}
