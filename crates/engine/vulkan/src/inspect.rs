//! Information about the backend.

use octet_compute::Error;
use octet_compute::cpu::profile::Profile;
use octet_compute::inspect::{Inspect, StageTime};

use crate::backend::Vulkan;
use crate::timer::Timer;

impl Inspect for Vulkan {
    fn describe(&self) -> String {
        Vulkan::describe(self)
    }
    fn numerics(&self) -> String {
        Vulkan::numerics(self)
    }
    fn threads(&self) -> usize {
        1
    }
    fn take_profile(&mut self) -> Option<Profile> {
        None
    }
    fn measure_bandwidth(&mut self, runs: usize) -> Result<Vec<f64>, Error> {
        self.bandwidth(runs)
    }
    fn quick_bandwidth(&mut self) -> Option<f64> {
        self.few_runs()
    }
    fn memory_bytes(&self) -> Option<u64> {
        Some(Vulkan::memory_bytes(self))
    }
    fn bytes_read(&self) -> Option<u64> {
        Some(self.bytes_read)
    }
    fn is_lost(&self) -> bool {
        self.recorder.is_lost
    }
    fn time_stages(&mut self, on: bool) -> Result<bool, Error> {
        self.recorder.flush()?;
        self.recorder.wait_for_all()?;
        // Recordings are made with timestamps, or without.
        while let Some(step) = self.steps.pop_front() {
            self.recorder.recycle(step.recording);
        }
        self.recorder.timer = if on { Timer::new(self.device.clone())? } else { None };
        Ok(self.recorder.timer.is_some())
    }
    fn take_stages(&mut self) -> Vec<StageTime> {
        self.recorder.timer.as_mut().map(|t| std::mem::take(&mut t.ended)).unwrap_or_default()
    }
    fn stages(&self) -> Option<(u32, u32)> {
        Some(self.last_step())
    }
}
