//! What tests make a backend do: leave something out, compute something wrong, fail. Called by the tests of this crate and of others.

use std::sync::Arc;

use crate::backend::Vulkan;
use crate::faults::Faults;

impl Vulkan {
    /// Leaves out one barrier of each step, for the test that validation notices.
    #[doc(hidden)]
    pub fn skip_barrier(&mut self, index: Option<u32>) {
        self.recorder.skip_barrier = index;
    }

    /// Records and never submits: enough for a validation layer to find what recorded commands lack, and far faster. Nothing is computed.
    #[doc(hidden)]
    pub fn record_only(&mut self) {
        self.recorder.is_dry = true;
    }

    /// Submits long steps stage by stage, as where a layer takes too long, for tests.
    #[doc(hidden)]
    pub fn submit_by_stage(&mut self) {
        self.pace.is_forced = true;
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
