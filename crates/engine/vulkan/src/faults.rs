//! Faults that tests inject into a running backend, as drivers may report them. Read by `record` before each submission and after each wait.

use std::sync::atomic::{AtomicU32, Ordering};

use ash::vk;

/// The fault of the next submission or wait, whichever comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The device is lost.
    Lost,
    /// The device has no memory left. It has some afterwards.
    OutOfMemory,
}

/// A place for one fault. It may be shared with the thread that runs the model.
#[derive(Debug, Default)]
pub struct Faults(AtomicU32);

impl Faults {
    /// The next submission fails like this, or the next wait for one if that comes first.
    pub fn inject(&self, fault: Fault) {
        self.0.store(1 + fault as u32, Ordering::Release);
    }

    /// The fault of this submission or wait.
    pub(crate) fn take(&self) -> Option<vk::Result> {
        match self.0.swap(0, Ordering::AcqRel) {
            0 => None,
            n if n == 1 + Fault::Lost as u32 => Some(vk::Result::ERROR_DEVICE_LOST),
            _ => Some(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY),
        }
    }
}
