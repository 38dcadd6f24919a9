//! Hooks for tests: skip a barrier, compute something wrong, fail.

use std::sync::{Arc, Mutex};

use crate::backend::Vulkan;
use crate::faults::Faults;

impl Vulkan {
    /// Skips one barrier of each step, to test that validation reports it.
    #[doc(hidden)]
    pub fn skip_barrier(&mut self, index: Option<u32>) {
        self.recorder.skip_barrier = index;
    }

    /// Records and never submits. A validation layer still checks the recorded commands, and that is far faster.
    #[doc(hidden)]
    pub fn record_only(&mut self) {
        self.recorder.is_dry = true;
    }

    /// Copies states and pages as on a card with a queue for copies. The software device has one queue, which is both.
    ///
    /// # Errors
    /// If the device has no memory left.
    #[doc(hidden)]
    pub fn use_copy_queue(&mut self) -> Result<(), octet_compute::Error> {
        let queue = self.device.queue.for_copies();
        self.copies = Some(crate::transfer::Copies::new(&self.device, &self.memory, queue)?);
        Ok(())
    }

    /// Numbers of the last submission of steps, and of the last one that was waited for.
    #[doc(hidden)]
    pub fn submissions(&self) -> [u64; 2] {
        self.recorder.numbers()
    }

    /// The submission of steps that the last copy on the queue for copies waited for, on the device.
    #[doc(hidden)]
    pub fn copy_follows(&self) -> Option<u64> {
        self.copies.as_ref().and_then(|copies| copies.recorder.last_after)
    }

    /// Submits long steps stage by stage, as if layers took too long.
    #[doc(hidden)]
    pub fn submit_by_stage(&mut self) {
        self.pace.is_forced = true;
    }

    /// Makes one kernel compute something wrong, to test the self-test. `name` is that of its file.
    #[doc(hidden)]
    pub fn break_kernel(&mut self, name: &str) {
        self.recorder.broken_kernels.push(name.into());
    }

    /// The kernels that were compiled at their first use and not with a model, with their constants. The list grows.
    #[doc(hidden)]
    pub fn late_kernels(&self) -> Arc<Mutex<Vec<String>>> {
        self.recorder.pipelines.late.clone()
    }

    /// Bytes of saved kernels that the driver got when the device was opened.
    #[doc(hidden)]
    pub fn loaded_kernel_bytes(&self) -> usize {
        self.recorder.pipelines.loaded_bytes
    }

    /// Multiplies bytes one by one, as on a device without integer dot products. Called before anything is computed.
    #[doc(hidden)]
    pub fn forgo_dot_products(&mut self) {
        self.recorder.pipelines.dot = false;
    }

    /// Simulates the loss of the device after this many more submissions.
    #[doc(hidden)]
    pub fn lose_device_after(&mut self, submissions: u32) {
        self.recorder.lose_after = Some(submissions);
    }

    /// Submits no step before the one before has ended.
    #[doc(hidden)]
    pub fn never_run_ahead(&mut self) {
        self.is_ahead_allowed = false;
    }

    /// Takes the faults of later submissions and waits from `faults`, on each queue.
    #[doc(hidden)]
    pub fn inject_faults(&mut self, faults: Arc<Faults>) {
        if let Some(copies) = &mut self.copies {
            copies.recorder.faults = Some(faults.clone());
        }
        self.recorder.faults = Some(faults);
    }
}
