//! Faults that tests inject into a running backend: what a driver reports once in a while. Read by `record` before each submission.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ash::vk;

use crate::backend::Vulkan;

/// What happens to the next submission.
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
    /// The next submission fails like this.
    pub fn inject(&self, fault: Fault) {
        self.0.store(1 + fault as u32, Ordering::Release);
    }

    /// The fault of this submission.
    pub(crate) fn take(&self) -> Option<vk::Result> {
        match self.0.swap(0, Ordering::AcqRel) {
            0 => None,
            n if n == 1 + Fault::Lost as u32 => Some(vk::Result::ERROR_DEVICE_LOST),
            _ => Some(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY),
        }
    }
}

impl Vulkan {
    /// Leaves out one barrier of each step, for the test that validation notices.
    #[doc(hidden)]
    pub fn skip_barrier(&mut self, index: Option<u32>) {
        self.recorder.skip_barrier = index;
    }

    /// Makes one kernel compute something wrong, for the test that the self-test notices: the file's name of it.
    #[doc(hidden)]
    pub fn break_kernel(&mut self, name: &str) {
        self.recorder.break_kernel = Some(name.into());
    }

    /// Multiplies bytes one by one, as on a device without integer dot products, for tests. Called before anything is computed.
    #[doc(hidden)]
    pub fn forgo_dot_products(&mut self) {
        self.recorder.pipelines.dot = false;
    }

    /// Behaves as if the device were lost after this many more submissions, for tests.
    #[doc(hidden)]
    pub fn lose_device_after(&mut self, submissions: u32) {
        self.recorder.lose_after = Some(submissions);
    }

    /// Fails as it is told to from now on, for tests.
    #[doc(hidden)]
    pub fn inject_faults(&mut self, faults: Arc<Faults>) {
        self.recorder.faults = Some(faults);
    }
}
