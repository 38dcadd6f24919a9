//! Information about several devices.

use octet_compute::cpu::profile::Profile;
use octet_compute::inspect::{Inspect, StageTime};

use super::*;

impl Split {
    /// The slower of two bandwidths: the devices run one after the other.
    fn slower(a: f64, b: f64) -> f64 {
        a.min(b)
    }
}

impl Inspect for Split {
    fn describe(&self) -> String {
        let all: Vec<String> = self.devices.iter().map(Vulkan::describe).collect();
        all.join(" + ")
    }
    fn numerics(&self) -> String {
        let all: Vec<String> = self.devices.iter().map(Vulkan::numerics).collect();
        if all.iter().all(|n| *n == all[0]) {
            // Where a layer runs changes no bit.
            return all[0].clone();
        }
        let parts = all.iter().zip(&self.ends).map(|(n, end)| format!("{n}, to layer {end}"));
        parts.collect::<Vec<_>>().join("; ")
    }
    fn threads(&self) -> usize {
        1
    }
    fn take_profile(&mut self) -> Option<Profile> {
        None
    }
    fn measure_bandwidth(&mut self, runs: usize) -> Result<Vec<f64>, Error> {
        let all = self.each(|_, be| be.measure_bandwidth(runs))?;
        let slowest = |run: usize| all.iter().filter_map(|of| of.get(run).copied()).reduce(Self::slower);
        Ok((0..runs).filter_map(slowest).collect())
    }
    fn quick_bandwidth(&mut self) -> Option<f64> {
        let all: Option<Vec<f64>> = self.devices.iter_mut().map(Inspect::quick_bandwidth).collect();
        all?.into_iter().reduce(Self::slower)
    }
    fn memory_bytes(&self) -> Option<u64> {
        Some(self.devices.iter().map(Vulkan::memory_bytes).sum())
    }
    fn bytes_read(&self) -> Option<u64> {
        Some(self.devices.iter().map(|be| be.bytes_read).sum())
    }
    fn is_lost(&self) -> bool {
        self.devices.iter().any(|be| be.recorder.is_lost)
    }
    fn time_stages(&mut self, on: bool) -> Result<bool, Error> {
        self.forget_steps();
        let all = self.each(|_, be| be.time_stages(on))?;
        Ok(all.iter().all(|is_timed| *is_timed))
    }
    fn take_stages(&mut self) -> Vec<StageTime> {
        self.devices.iter_mut().flat_map(Inspect::take_stages).collect()
    }
    fn stages(&self) -> Option<(u32, u32)> {
        Some(self.last_step)
    }
}
