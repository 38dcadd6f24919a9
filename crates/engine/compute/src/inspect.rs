//! Information about a backend: everything that the engine needs of it besides the verbs. Implemented next to each backend.

use std::time::Duration;

use crate::Error;
use crate::backend::StoreStats;
use crate::cpu::profile::Profile;
use crate::cpu::{Cpu, Probe};
use crate::reference::Reference;

/// A stage of a step on a device: the kernels between two barriers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StageTime {
    /// Names of its kernels, each once.
    pub kernels: Vec<&'static str>,
    /// Workgroups of all of them.
    pub groups: u64,
    /// Bytes of weights, states, keys and values that it reads, as far as it is known which stage reads them. Of routed experts, as
    /// many as its tokens choose at most.
    pub bytes: u64,
    /// From the end of the stage before to its end, on the device.
    pub time: Duration,
}

/// Information about a backend.
pub trait Inspect {
    /// For people: backend, instruction set, threads.
    fn describe(&self) -> String;
    /// Everything that its results depend on to the last bit: kernels and precision, not threads.
    fn numerics(&self) -> String;
    /// Number of threads; `None` if the backend has none.
    fn threads(&self) -> usize;
    /// Time and bytes of each verb since the last call, if the backend measures them.
    fn take_profile(&mut self) -> Option<Profile>;
    /// Bytes per second that it reads from its memory, in each of `runs` runs.
    fn measure_bandwidth(&mut self, runs: usize) -> Result<Vec<f64>, Error>;
    /// A quick measurement of its memory's bandwidth, in bytes per second: tens of milliseconds, for an idle server. `None` if it is not
    /// supported.
    fn quick_bandwidth(&mut self) -> Option<f64> {
        None
    }
    /// Bytes per second of one pass over the memory in `probe`, which is allocated at the first call: for measurements between steps. `None`
    /// if it is not supported.
    fn probe_memory(&mut self, _probe: &mut Option<Probe>) -> Result<Option<f64>, Error> {
        Ok(None)
    }
    /// Bytes of weights, states, keys and values that its steps have read so far; `None` if they are not counted.
    fn bytes_read(&self) -> Option<u64> {
        None
    }
    /// What it has read of experts that are not all in memory; `None` if they are.
    fn store_stats(&self) -> Option<StoreStats> {
        None
    }
    /// Bytes in use of its own memory; `None` if it uses the machine's.
    fn memory_bytes(&self) -> Option<u64> {
        None
    }
    /// Whether the device was lost: nothing runs on it any more.
    fn is_lost(&self) -> bool {
        false
    }
    /// Barriers and kernels of the last step, if steps are recorded.
    fn stages(&self) -> Option<(u32, u32)> {
        None
    }
    /// Measures the stages of steps from now on, or no longer; the steps take longer. False if that is not supported.
    fn time_stages(&mut self, _on: bool) -> Result<bool, Error> {
        Ok(false)
    }
    /// The stages that have ended since the last call, in their order.
    fn take_stages(&mut self) -> Vec<StageTime> {
        Vec::new()
    }
}

impl Inspect for Reference {
    fn describe(&self) -> String {
        "reference (scalar)".into()
    }
    fn numerics(&self) -> String {
        self.describe()
    }
    fn threads(&self) -> usize {
        1
    }
    fn take_profile(&mut self) -> Option<Profile> {
        None
    }
    fn measure_bandwidth(&mut self, _: usize) -> Result<Vec<f64>, Error> {
        Err(Error("the reference backend is not made to be measured".into()))
    }
}

impl Inspect for Cpu {
    fn describe(&self) -> String {
        Cpu::describe(self)
    }
    fn numerics(&self) -> String {
        Cpu::numerics(self)
    }
    fn threads(&self) -> usize {
        Cpu::threads(self)
    }
    fn take_profile(&mut self) -> Option<Profile> {
        Some(Cpu::take_profile(self))
    }
    fn measure_bandwidth(&mut self, runs: usize) -> Result<Vec<f64>, Error> {
        Cpu::measure_bandwidth(self, runs)
    }
    fn quick_bandwidth(&mut self) -> Option<f64> {
        Cpu::quick_bandwidth(self)
    }
    fn probe_memory(&mut self, probe: &mut Option<Probe>) -> Result<Option<f64>, Error> {
        Cpu::probe_memory(self, probe).map(Some)
    }
    fn bytes_read(&self) -> Option<u64> {
        Some(Cpu::bytes_read(self))
    }
    fn store_stats(&self) -> Option<StoreStats> {
        Cpu::store_stats(self)
    }
}
