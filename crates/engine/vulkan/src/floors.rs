//! Measures the device's limits: the bandwidth of its memory, and the time of an empty stage.

use std::time::Instant;

use octet_compute::Error;

use crate::backend::Vulkan;
use crate::kernel::Kernel;
use crate::memory::Place;

/// Maximum number of bytes to read: far more than any cache holds.
const BYTES_MAX: u64 = 1 << 30;
/// Maximum and minimum number of bytes that a quick measurement reads. Fewer would come from caches.
const FEW_BYTES: u64 = 256 << 20;
const FEW_BYTES_MIN: u64 = 64 << 20;
/// Runs of a quick measurement.
const FEW_RUNS: usize = 4;
/// Words that a thread reads: `bandwidth.comp`.
const WORDS_PER_THREAD: u64 = 64;
/// Threads of a workgroup there.
const THREADS: u64 = 256;
/// Stages of the recording that measures the time of one.
const STAGES: u32 = 256;

impl Vulkan {
    /// Measures how many bytes per second kernels read from the device's memory, in each of `runs` runs.
    pub(crate) fn bandwidth(&mut self, runs: usize) -> Result<Vec<f64>, Error> {
        self.bandwidth_of(BYTES_MAX, runs)
    }

    /// Returns the best of a few runs over less memory. `None` if too little memory is free, or if the device fails, which the next step
    /// reports.
    pub(crate) fn few_runs(&mut self) -> Option<f64> {
        if self.memory.free_bytes() / 2 < FEW_BYTES_MIN {
            return None;
        }
        let rates = self.bandwidth_of(FEW_BYTES, FEW_RUNS);
        if rates.is_err() {
            self.recorder.abandon();
        }
        rates.ok()?.into_iter().reduce(f64::max)
    }

    fn bandwidth_of(&mut self, bytes_max: u64, runs: usize) -> Result<Vec<f64>, Error> {
        let of = (self.device.buffer_bytes_max / 2).min(bytes_max).min(self.memory.free_bytes() / 2);
        let each = 4 * WORDS_PER_THREAD * THREADS;
        // Every device supports 65,535 workgroups.
        let groups = (of / each).clamp(1, 65_535);
        let (from, sink) = (self.zeroed(groups * each)?, self.memory.buffer(4 * groups, Place::Device)?);
        let mut rates = Vec::with_capacity(runs);
        for run in 0..=runs {
            self.recorder.flush()?;
            self.recorder.dispatch(Kernel::Bandwidth, [0; 4], &[&from, &sink], &[], [groups as u32, 1, 1])?;
            let recording = self.recorder.finish()?.ok_or_else(|| Error("nothing was recorded".into()))?;
            let start = Instant::now();
            let done = self.recorder.run(&recording);
            let seconds = start.elapsed().as_secs_f64();
            self.recorder.recycle(recording);
            done?;
            // The first run compiles the kernel.
            if run > 0 {
                rates.push((groups * each) as f64 / seconds);
            }
        }
        Ok(rates)
    }

    /// Seconds of an almost empty stage: one workgroup and a barrier, in a recording of many.
    ///
    /// # Errors
    /// If the device fails.
    pub fn stage_seconds(&mut self) -> Result<f64, Error> {
        let (from, sink) =
            (self.zeroed(4 * WORDS_PER_THREAD * THREADS)?, self.memory.buffer(4, Place::Device)?);
        let (mut least_one, mut least_many) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..4 {
            let mut run = |stages: u32| -> Result<f64, Error> {
                self.recorder.flush()?;
                for _ in 0..stages {
                    self.recorder.dispatch(Kernel::Bandwidth, [0; 4], &[&from, &sink], &[], [1, 1, 1])?;
                    self.recorder.barrier()?;
                }
                let recording =
                    self.recorder.finish()?.ok_or_else(|| Error("nothing was recorded".into()))?;
                let start = Instant::now();
                let done = self.recorder.run(&recording);
                let seconds = start.elapsed().as_secs_f64();
                self.recorder.recycle(recording);
                done.map(|()| seconds)
            };
            (least_one, least_many) = (least_one.min(run(1)?), least_many.min(run(1 + STAGES)?));
        }
        // Without the time of a submission.
        Ok((least_many - least_one).max(0.0) / f64::from(STAGES))
    }
}
