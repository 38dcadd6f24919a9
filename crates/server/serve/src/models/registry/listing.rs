//! The registry's view for lists, health checks and metrics: loading progress and health of each model.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use octet_api::core::{self, ModelInfo};
use octet_process::swap::Phase;

use super::Registry;
use super::health::Unhealthy;
use super::host::Model;
use crate::models::Loaded;

impl Model {
    /// Why the device of its engine is lost, if that is not recorded yet.
    fn just_lost(&self) -> Option<&str> {
        self.loaded.as_ref()?.handle.lost()
    }

    fn unhealthy(&self) -> Option<Unhealthy> {
        self.health.now(self.just_lost())
    }
}

impl Registry {
    /// The model's engine, if it is loaded.
    pub fn loaded(&self, index: usize) -> Option<Arc<Loaded>> {
        self.pool.read(|scheduler, models| match scheduler.state(index).0 {
            Phase::Ready => models.all[index].loaded.clone(),
            _ => None,
        })
    }

    /// Loading progress of a model, from 0 to 1.
    pub fn progress(&self, index: usize) -> f64 {
        self.pool.read(|scheduler, models| match scheduler.state(index).0 {
            Phase::Ready => 1.0,
            Phase::Starting => models.all[index].progress.share(),
            Phase::Stopped | Phase::Stopping | Phase::Resting => 0.0,
        })
    }

    /// The error of the last attempt to load a model, if it failed.
    pub fn failure(&self, index: usize) -> Option<String> {
        self.pool.read(|_, models| models.all[index].failed.clone())
    }

    /// Why a model is unhealthy, if it is, and whether it is being loaded again.
    pub fn unhealthy(&self, index: usize) -> Option<Unhealthy> {
        self.pool.read(|_, models| models.all[index].unhealthy())
    }

    /// Number of times a model's device was lost.
    pub fn losses(&self, index: usize) -> u64 {
        self.pool.read(|_, models| {
            let model = &models.all[index];
            model.health.losses() + u64::from(model.just_lost().is_some())
        })
    }

    /// Requests that use a model or wait for one.
    pub fn busy(&self) -> usize {
        self.pool.read(|scheduler, models| {
            let requests = |i| {
                let (_, active, waiting) = scheduler.state(i);
                active + waiting
            };
            (0..models.count()).map(requests).sum()
        })
    }

    /// Number of requests that wait for a model to be loaded.
    pub fn waiting(&self, index: usize) -> usize {
        self.pool.read(|scheduler, _| scheduler.state(index).2)
    }

    /// All models as lists show them.
    pub fn list(&self) -> Vec<ModelInfo> {
        (0..self.count()).map(|i| self.info(i)).collect()
    }

    /// One model as lists show it.
    pub fn info(&self, index: usize) -> ModelInfo {
        self.pool.read(|scheduler, models| {
            let model = &models.all[index];
            let card = &model.entry.card;
            let mut info = card.info.clone();
            if scheduler.state(index).0 == Phase::Ready {
                let left = scheduler.ends_at(index).map(|at| at.saturating_duration_since(Instant::now()));
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                info.loaded = Some(core::Loaded {
                    memory_bytes: card.memory_bytes + card.accelerator_bytes(),
                    accelerator_bytes: card.accelerator_bytes(),
                    expires_s: left.map(|left| (now + left).as_secs()),
                });
            }
            info.unhealthy = model.unhealthy().map(|u| u.why);
            info
        })
    }
}
