//! What becomes of a model whose device is lost: it is loaded again, once. Where the device is lost again soon after that, the model stays down
//! with the reason, instead of being loaded for ever. Used by the registry.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::listing::Unhealthy;
use super::{Phase, Registry, State};

/// A model whose device is lost so soon after it was loaded again stays down.
const AGAIN: Duration = Duration::from_secs(60);

/// How a model's device is.
#[derive(Debug, Default)]
enum Condition {
    #[default]
    Well,
    /// It was lost; `is_due`: nobody has begun to load the model again.
    Lost { why: String, is_due: bool },
    /// It was lost, and the model is not loaded again.
    Down(String),
}

impl Condition {
    fn tell(&self) -> Option<Unhealthy> {
        match self {
            Self::Well => None,
            Self::Lost { why, .. } => Some(Unhealthy { why: why.clone(), is_loading_again: true }),
            Self::Down(why) => Some(Unhealthy { why: why.clone(), is_loading_again: false }),
        }
    }
}

/// How a model's device has fared.
#[derive(Debug, Default)]
pub(super) struct Health {
    losses: u64,
    condition: Condition,
    /// When the model was loaded again after the last loss.
    loaded_again: Option<Instant>,
}

impl Health {
    /// The condition after a loss.
    fn after(&self, why: &str) -> Condition {
        if self.loaded_again.is_some_and(|at| at.elapsed() < AGAIN) {
            return Condition::Down(format!(
                "{why}; it was lost twice within a minute, so the model is not loaded again: look at the driver's messages (dmesg on \
                 Linux), then start the server again, or run the model on the processor with --device cpu"
            ));
        }
        Condition::Lost { why: format!("{why}; the model is loaded again"), is_due: true }
    }

    fn lost(&mut self, why: &str) {
        self.losses += 1;
        self.condition = self.after(why);
    }

    /// The model is loaded.
    pub(super) fn loaded(&mut self, now: Instant) {
        if matches!(self.condition, Condition::Lost { .. }) {
            (self.condition, self.loaded_again) = (Condition::Well, Some(now));
        }
    }

    /// The model cannot be loaded; the next request tries again.
    pub(super) fn failed(&mut self, error: &str) {
        if let Condition::Lost { why, is_due: false } = &mut self.condition {
            *why = format!("its device was lost, and it cannot be loaded again: {error}");
        }
    }

    /// Why the model stays down, where it does.
    pub(super) fn down(&self) -> Option<String> {
        match &self.condition {
            Condition::Down(why) => Some(why.clone()),
            Condition::Well | Condition::Lost { .. } => None,
        }
    }

    /// How it is, given why the device of the running engine is lost, if it is and that was not noticed yet.
    pub(super) fn now(&self, just_lost: Option<&str>) -> Option<Unhealthy> {
        just_lost.map_or_else(|| self.condition.tell(), |why| self.after(why).tell())
    }

    /// How many times the device was lost.
    pub(super) fn losses(&self) -> u64 {
        self.losses
    }
}

impl Registry {
    /// Takes an engine that has ended by itself out of use.
    pub(super) fn notice_end(&self, index: usize, s: &mut State) {
        let Phase::Ready(loaded) = &s.phase else { return };
        if !loaded.handle.is_finished() {
            return;
        }
        let model = self.name(index);
        match loaded.handle.lost() {
            Some(why) => {
                s.health.lost(why);
                match s.health.down() {
                    Some(why) => tracing::error!(model, why, "the model's device is lost"),
                    None => {
                        tracing::error!(model, why, "the model's device is lost; the model is loaded again")
                    }
                }
            }
            None => tracing::error!(model, "the engine ended by itself; the model is loaded again"),
        }
        s.phase = Phase::Idle;
    }

    /// Loads models again whose device was lost, whether somebody asks for them or not: who looks after the server may send nobody to it
    /// until it is well. Runs as long as the server.
    pub async fn reload_lost(self: Arc<Self>) {
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            // engines that were told to end have ended by that
            if !self.is_draining() {
                for (index, s) in self.lock().iter_mut().enumerate() {
                    self.notice_end(index, s);
                    if let Condition::Lost { is_due: due @ true, .. } = &mut s.health.condition {
                        *due = false;
                        self.begin_loading(index, s);
                    }
                }
            }
            // The sender lives as long as `self`.
            let _ = changed.changed().await;
        }
    }
}
