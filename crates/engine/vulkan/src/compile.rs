//! Compiles the kernels of a model's steps before the first request needs them.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use octet_compute::Error;

use crate::backend::Vulkan;
use crate::pipeline::PipelineKey;

/// Compiling that takes longer is announced.
const NOTICE_AFTER: Duration = Duration::from_secs(1);

impl Vulkan {
    /// Compiles the kernels that `steps` uses. It calls [`octet_compute::backend::Backend::step`] as for real steps, but nothing is computed.
    pub(crate) fn compile_kernels(&mut self, steps: impl FnOnce(&mut Self)) -> Result<(), Error> {
        self.begin_noting()?;
        steps(self);
        self.compile_noted()
    }

    /// From now on, verbs only note their kernels.
    pub(crate) fn begin_noting(&mut self) -> Result<(), Error> {
        self.recorder.flush()?;
        self.recorder.wanted = Some(HashSet::new());
        Ok(())
    }

    /// Compiles the kernels that were noted. Verbs compute again.
    pub(crate) fn compile_noted(&mut self) -> Result<(), Error> {
        self.recorder.abandon();
        let wanted = self.recorder.wanted.take().unwrap_or_default();
        if let Some(e) = self.fault.take() {
            return Err(e);
        }
        let mut keys: Vec<PipelineKey> = wanted.into_iter().collect();
        // The same order each time.
        keys.sort_by_key(|(kernel, constants)| (kernel.name(), *constants));
        self.compile_keys(&keys)
    }

    pub(crate) fn compile_keys(&mut self, keys: &[PipelineKey]) -> Result<(), Error> {
        let (start, name, notice) = (Instant::now(), self.describe(), self.notice);
        let mut is_announced = false;
        let before = self.recorder.pipelines.count();
        self.recorder.pipelines.compile_all(keys, &mut |done, all| {
            if !is_announced && done < all && start.elapsed() > NOTICE_AFTER {
                is_announced = true;
                if let Some(notice) = notice {
                    notice(&format!("compiling kernels for {name}: {done} of {all} done"));
                }
            }
        })?;
        if self.recorder.pipelines.count() > before {
            self.save_kernels();
        }
        Ok(())
    }

    /// Saves all kernels that are compiled so far. A failure is reported.
    pub(crate) fn save_kernels(&self) {
        let Some(cache) = &self.kernel_cache else { return };
        let saved = match self.recorder.pipelines.cached() {
            Ok(data) => cache.save(&data).map_err(|e| format!("{}: {e}", cache.path().display())),
            Err(e) => Err(format!("the driver does not return them: {e}")),
        };
        if let (Err(why), Some(notice)) = (saved, self.notice) {
            notice(&format!("compiled kernels cannot be saved: {why}"));
        }
    }

    /// Runs a step's `body` to note its kernels.
    pub(crate) fn note_kernels(&mut self, body: impl FnOnce(&mut Self)) {
        self.begin_noted_step();
        body(self);
        self.end_noted_step();
    }

    pub(crate) fn begin_noted_step(&mut self) {
        self.prologue.clear();
        self.rows_used = 0;
        self.prepared = None;
        self.in_step = true;
    }

    pub(crate) fn end_noted_step(&mut self) {
        self.in_step = false;
        // A kernel that was held or put off.
        self.guard(|be| be.recorder.flush());
    }

    /// Whether steps only note their kernels.
    pub(crate) fn is_noting_kernels(&self) -> bool {
        self.recorder.wanted.is_some()
    }
}
