//! Where a model is loaded to: a backend's settings behind one call, so that the engine names no backend. Made by the caller.

use std::sync::Arc;

use octet_compute::backend::Backend;
use octet_compute::cpu::{Arbiter, Cpu, CpuOptions};
use octet_compute::inspect::Inspect;

use super::loader::Progress;
use super::{Limits, Model, load};
use crate::Error;

type Open =
    dyn Fn(&octet_weights::Model, Limits, Progress<'_>) -> Result<Box<dyn Model>, Error> + Send + Sync;

/// Loads models onto one device.
#[derive(Clone)]
pub struct Device {
    name: Arc<str>,
    open: Arc<Open>,
}

impl Device {
    /// A device by its name, for messages, and what opens a backend on it. A backend is opened for each model.
    pub fn new<B: Backend + Inspect>(
        name: &str,
        open: impl Fn() -> Result<B, octet_compute::Error> + Send + Sync + 'static,
    ) -> Self {
        let open = Arc::new(move |file: &octet_weights::Model, limits: Limits, progress: Progress<'_>| {
            load(file, open()?, limits, progress)
        });
        Self { name: name.into(), open }
    }

    /// The processor. Models that share an arbiter compute one at a time.
    pub fn cpu(options: CpuOptions, arbiter: Arbiter) -> Self {
        Self::new("cpu", move || Ok(Cpu::new(&options)?.with_arbiter(&arbiter)))
    }

    /// Its name: `cpu`, `vulkan:0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Loads a model.
    ///
    /// # Errors
    /// When the file is damaged or of an unknown architecture, or the device has no room or cannot be opened.
    pub fn load(
        &self,
        file: &octet_weights::Model,
        limits: Limits,
        progress: Progress<'_>,
    ) -> Result<Box<dyn Model>, Error> {
        (self.open)(file, limits, progress)
    }
}

impl Default for Device {
    fn default() -> Self {
        Self::cpu(CpuOptions::default(), Arbiter::default())
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}
