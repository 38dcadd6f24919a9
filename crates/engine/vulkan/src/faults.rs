//! Failures of a device as errors, and faults that tests inject into a running backend, as drivers may report them: before each submission
//! and after each wait.

use std::sync::atomic::{AtomicU32, Ordering};

use ash::vk;
use octet_compute::Error;

/// Maximum seconds of a submission. They are counted one by one: if the process is suspended for a while, the device does not count as lost.
pub(crate) const TIME_MAX_S: u32 = 60;

/// The error for what the driver says.
pub(crate) fn failed(what: &str, e: vk::Result) -> Error {
    Error(match e {
        vk::Result::ERROR_DEVICE_LOST => {
            format!("the graphics device was lost while {what}: its driver reset it, or it was removed")
        }
        vk::Result::TIMEOUT => {
            format!("the graphics device did not finish within {TIME_MAX_S} seconds while {what}")
        }
        vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY => format!(
            "the graphics device ran out of memory while {what}: close other programs that use it, or set a smaller --gpu-memory or --ctx-size"
        ),
        e => format!("the graphics device failed while {what}: {e}"),
    })
}

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
