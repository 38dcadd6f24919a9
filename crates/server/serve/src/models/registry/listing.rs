//! The registry's view for lists, health checks and metrics: loading progress and health of each model.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use octet_api::core::{self, ModelInfo};

use super::{Phase, Registry, State};
use crate::models::Loaded;

/// Why a model cannot answer: its device was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unhealthy {
    /// The reason, and what to do.
    pub why: String,
    /// The model is being loaded again.
    pub is_loading_again: bool,
}

/// Why the device of a running engine is lost, if that is not recorded yet.
fn just_lost(s: &State) -> Option<&str> {
    match &s.phase {
        Phase::Ready(loaded) => loaded.handle.lost(),
        _ => None,
    }
}

fn unhealthy(s: &State) -> Option<Unhealthy> {
    s.health.now(just_lost(s))
}

impl Registry {
    /// The model's engine, if it is loaded.
    pub fn loaded(&self, index: usize) -> Option<Arc<Loaded>> {
        match &self.lock()[index].phase {
            Phase::Ready(loaded) => Some(Arc::clone(loaded)),
            _ => None,
        }
    }

    /// Loading progress of a model, from 0 to 1.
    pub fn progress(&self, index: usize) -> f64 {
        match &self.lock()[index].phase {
            Phase::Ready(_) => 1.0,
            Phase::Loading(progress) => progress.share(),
            Phase::Idle | Phase::Queued | Phase::Unloading => 0.0,
        }
    }

    /// The error of the last attempt to load a model, if it failed.
    pub fn failure(&self, index: usize) -> Option<String> {
        self.lock()[index].failed.as_ref().map(|f| f.1.clone())
    }

    /// Why a model is unhealthy, if it is, and whether it is being loaded again.
    pub fn unhealthy(&self, index: usize) -> Option<Unhealthy> {
        unhealthy(&self.lock()[index])
    }

    /// Number of times a model's device was lost.
    pub fn losses(&self, index: usize) -> u64 {
        let s = &self.lock()[index];
        s.health.losses() + u64::from(just_lost(s).is_some())
    }

    /// Requests that use a model or wait for one.
    pub fn busy(&self) -> usize {
        self.lock().iter().map(|s| s.users + s.waiting).sum()
    }

    /// Number of requests that wait for a model to be loaded.
    pub fn waiting(&self, index: usize) -> usize {
        self.lock()[index].waiting
    }

    /// All models as lists show them.
    pub fn list(&self) -> Vec<ModelInfo> {
        (0..self.count()).map(|i| self.info(i)).collect()
    }

    /// One model as lists show it.
    pub fn info(&self, index: usize) -> ModelInfo {
        let entry = self.entry(index);
        let mut info = entry.card.info.clone();
        let states = self.lock();
        let s = &states[index];
        if let Phase::Ready(_) = &s.phase {
            let keep = s.keep_alive.unwrap_or(entry.spec.keep_alive);
            let left = keep.map(|k| k.saturating_sub(s.last_used.elapsed()));
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            info.loaded = Some(core::Loaded {
                memory_bytes: entry.card.memory_bytes + entry.card.accelerator_bytes(),
                accelerator_bytes: entry.card.accelerator_bytes(),
                expires_s: left.map(|l| (now + l).as_secs()),
            });
        }
        info.unhealthy = unhealthy(s).map(|u| u.why);
        info
    }
}
