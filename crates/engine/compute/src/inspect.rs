//! What a backend tells about itself: all that the engine needs of it beyond the verbs. Implemented beside each backend.

use crate::Error;
use crate::cpu::profile::Profile;
use crate::cpu::{Cpu, Probe};
use crate::reference::Reference;

/// What a backend can tell about itself.
pub trait Inspect {
    /// For people: backend, instruction set, threads.
    fn describe(&self) -> String;
    /// What decides its results to the last bit: kernels and precision, not threads.
    fn numerics(&self) -> String;
    /// Threads, where the backend has some.
    fn threads(&self) -> usize;
    /// Time and bytes of each verb since the last call, where the backend keeps count.
    fn take_profile(&mut self) -> Option<Profile>;
    /// Bytes per second that it reads from its memory, in each of `runs` runs.
    fn measure_bandwidth(&mut self, runs: usize) -> Result<Vec<f64>, Error>;
    /// A quick look at what its memory gives, in bytes per second: tens of milliseconds, for a server at rest. `None` where that is not
    /// to be had.
    fn quick_bandwidth(&mut self) -> Option<f64> {
        None
    }
    /// Bytes per second of one pass over some memory, which `probe` keeps: to be measured in turn with steps. `None` where the backend has
    /// no such way.
    fn probe_memory(&mut self, _probe: &mut Option<Probe>) -> Result<Option<f64>, Error> {
        Ok(None)
    }
    /// Bytes of weights, states, keys and values that its steps had to read so far; `None` where nobody counts.
    fn bytes_read(&self) -> Option<u64> {
        None
    }
    /// Bytes in use of a memory of its own; `None` where it shares the machine's.
    fn memory_bytes(&self) -> Option<u64> {
        None
    }
    /// The device was lost: nothing will run on it any more.
    fn is_lost(&self) -> bool {
        false
    }
    /// Barriers and kernels of the last step, where steps are recorded.
    fn stages(&self) -> Option<(u32, u32)> {
        None
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
}
