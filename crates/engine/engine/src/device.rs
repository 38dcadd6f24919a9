//! The device for a model: a backend's settings behind one call, so that the engine names no backend. Made by the caller.

use std::sync::Arc;

use octet_compute::backend::Backend;
use octet_compute::cpu::{Arbiter, Cpu, CpuOptions};
use octet_compute::inspect::Inspect;

use crate::Error;
use crate::models::loader::{GoesOn, Progress};
use crate::models::{Limits, Model, load_while};
use crate::vision::{self, Encoder, Tower};

type Open = dyn Fn(&octet_weights::Model, Limits, Progress<'_>, GoesOn<'_>) -> Result<Box<dyn Model>, Error>
    + Send
    + Sync;
type OpenTower = dyn Fn(&octet_weights::Model, Tower) -> Result<Box<dyn Encoder>, Error> + Send + Sync;

/// Loads models onto a device.
#[derive(Clone)]
pub struct Device {
    name: Arc<str>,
    open: Arc<Open>,
    open_tower: Arc<OpenTower>,
    runs_ahead: bool,
}

impl Device {
    /// A device by its name, for messages, and a function that opens a backend on it. Each model gets its own backend.
    pub fn new<B: Backend + Inspect>(
        name: &str,
        open: impl Fn() -> Result<B, octet_compute::Error> + Send + Sync + 'static,
    ) -> Self {
        let open = Arc::new(open);
        let own = Arc::clone(&open);
        let load =
            move |file: &octet_weights::Model,
                  limits: Limits,
                  progress: Progress<'_>,
                  goes_on: GoesOn<'_>| { load_while(file, own()?, limits, progress, goes_on) };
        let tower = move |file: &octet_weights::Model, tower| vision::open_on(open()?, file, tower);
        Self {
            name: name.into(),
            open: Arc::new(load),
            open_tower: Arc::new(tower),
            runs_ahead: B::RUNS_AHEAD,
        }
    }

    /// The processor. Models with the same arbiter compute one at a time.
    pub fn cpu(options: CpuOptions, arbiter: Arbiter) -> Self {
        Self::new("cpu", move || Ok(Cpu::new(&options)?.with_arbiter(&arbiter)))
    }

    /// Its name: `cpu`, `vulkan:0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it has steps that are submitted before the one before has ended.
    pub fn runs_ahead(&self) -> bool {
        self.runs_ahead
    }

    /// Loads a model.
    ///
    /// # Errors
    /// If the file is damaged or of an unknown architecture, or the device lacks memory or cannot be opened.
    pub fn load(
        &self,
        file: &octet_weights::Model,
        limits: Limits,
        progress: Progress<'_>,
    ) -> Result<Box<dyn Model>, Error> {
        self.load_while(file, limits, progress, &|| true)
    }

    /// The same, as long as it is to go on.
    ///
    /// # Errors
    /// The same, and [`Error::LoadGivenUp`].
    pub fn load_while(
        &self,
        file: &octet_weights::Model,
        limits: Limits,
        progress: Progress<'_>,
        goes_on: GoesOn<'_>,
    ) -> Result<Box<dyn Model>, Error> {
        (self.open)(file, limits, progress, goes_on)
    }

    /// Loads the tower of a projector, into a backend of its own.
    ///
    /// # Errors
    /// If the file is damaged, or the device lacks memory or a part, or cannot be opened.
    pub fn load_tower(&self, file: &octet_weights::Model, tower: Tower) -> Result<Box<dyn Encoder>, Error> {
        (self.open_tower)(file, tower)
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
