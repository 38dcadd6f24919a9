//! Recovery from a lost device: the model is loaded again. If that fails several times, or the device is lost again soon after, the model
//! stays down with the reason.

use std::time::{Duration, Instant};

/// A model whose device is lost again within this time after a reload stays down.
const AGAIN: Duration = Duration::from_secs(60);

/// Pauses between attempts to reload a model after a device loss: the driver may need time to recover.
const PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(16)];

const WHAT_TO_DO: &str = "look at the driver's messages (dmesg on Linux), then load the model again (POST /api/generate with nothing but \
                          its name) or start the server again, or run the model on the processor with --device cpu";

/// Why a model cannot answer: its device was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unhealthy {
    /// The reason, and what to do.
    pub why: String,
    /// The model is being loaded again.
    pub is_loading_again: bool,
}

/// The health of a model's device.
#[derive(Debug, Default)]
enum Condition {
    #[default]
    Well,
    /// The device was lost. The model is loaded again at `next`; `None` if it is being loaded. `failed` attempts so far.
    Lost { why: String, next: Option<Instant>, failed: usize },
    /// The device was lost, and the model is not loaded again.
    Down(String),
}

impl Condition {
    fn unhealthy(&self) -> Option<Unhealthy> {
        match self {
            Self::Well => None,
            Self::Lost { why, .. } => Some(Unhealthy { why: why.clone(), is_loading_again: true }),
            Self::Down(why) => Some(Unhealthy { why: why.clone(), is_loading_again: false }),
        }
    }
}

/// The history of a model's device.
#[derive(Debug, Default)]
pub(super) struct Health {
    losses: u64,
    condition: Condition,
    /// When the model was reloaded after the last loss.
    loaded_again: Option<Instant>,
}

impl Health {
    /// The condition after a loss.
    fn after(&self, why: &str) -> Condition {
        if self.loaded_again.is_some_and(|at| at.elapsed() < AGAIN) {
            return Condition::Down(format!(
                "{why}; it was lost twice within a minute, so the model is not loaded again: {WHAT_TO_DO}"
            ));
        }
        let why = format!("{why}; the model is loaded again");
        Condition::Lost { why, next: Some(Instant::now()), failed: 0 }
    }

    fn lost(&mut self, why: &str) {
        self.losses += 1;
        self.condition = self.after(why);
    }

    /// Records that the engine of `model` has ended by itself: its device was lost for that reason, or it panicked.
    pub(super) fn ended(&mut self, model: &str, lost: Option<&str>) {
        let Some(why) = lost else {
            tracing::error!(model, "the engine ended by itself; the model is loaded again");
            return;
        };
        self.lost(why);
        match self.down() {
            Some(why) => tracing::error!(model, why, "the model's device is lost"),
            None => tracing::error!(model, why, "the model's device is lost; the model is loaded again"),
        }
    }

    /// Records that the model is loaded.
    pub(super) fn loaded(&mut self, now: Instant) {
        if matches!(self.condition, Condition::Lost { .. }) {
            (self.condition, self.loaded_again) = (Condition::Well, Some(now));
        }
    }

    /// Records that loading failed; it is tried again after a pause, up to a limit. Attempts by requests in between do not count.
    pub(super) fn failed(&mut self, error: &str, now: Instant) {
        let Condition::Lost { why, next, failed } = &mut self.condition else { return };
        *why = format!("its device was lost, and it cannot be loaded again: {error}");
        if next.is_some() {
            return;
        }
        match PAUSES.get(*failed) {
            Some(pause) => (*next, *failed) = (Some(now + *pause), *failed + 1),
            None => {
                let why = format!("{why}; that was tried {} times: {WHAT_TO_DO}", *failed + 1);
                self.condition = Condition::Down(why);
            }
        }
    }

    /// Whether the model should be reloaded now; if so, marks it as loading.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        match &mut self.condition {
            Condition::Lost { next, .. } => next.take_if(|at| *at <= now).is_some(),
            Condition::Well | Condition::Down(_) => false,
        }
    }

    /// The time of the next reload, if one is planned.
    pub(super) fn next(&self) -> Option<Instant> {
        match self.condition {
            Condition::Lost { next, .. } => next,
            Condition::Well | Condition::Down(_) => None,
        }
    }

    /// Why the model stays down, if it does.
    pub(super) fn down(&self) -> Option<String> {
        match &self.condition {
            Condition::Down(why) => Some(why.clone()),
            Condition::Well | Condition::Lost { .. } => None,
        }
    }

    /// Somebody asks for a model that stays down: it is loaded again, as after the first loss.
    pub(super) fn revive(&mut self, now: Instant) {
        if let Condition::Down(why) = &self.condition {
            let why = format!("{why}; it is loaded again, as requested");
            (self.condition, self.loaded_again) = (Condition::Lost { why, next: Some(now), failed: 0 }, None);
        }
    }

    /// How it is, given why the device of the running engine is lost, if it is and that was not noticed yet.
    pub(super) fn now(&self, just_lost: Option<&str>) -> Option<Unhealthy> {
        just_lost.map_or_else(|| self.condition.unhealthy(), |why| self.after(why).unhealthy())
    }

    /// Number of device losses.
    pub(super) fn losses(&self) -> u64 {
        self.losses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_cannot_be_loaded_again_is_tried_with_growing_pauses_and_then_down() {
        let mut health = Health::default();
        let mut now = Instant::now();
        health.failed("no file", now);
        assert_eq!((health.now(None), health.next()), (None, None), "its device was never lost");
        health.lost("the device is lost");
        now += Duration::from_secs(1);
        for pause in PAUSES {
            assert!(health.is_due(now) && !health.is_due(now), "one tries at a time");
            health.failed("no such device", now);
            let told = health.now(None).expect("it is not well");
            assert!(told.is_loading_again && told.why.contains("no such device"), "{told:?}");
            assert_eq!(health.next(), Some(now + pause));
            // a request that tries it meanwhile changes nothing of that
            health.failed("still none", now);
            assert_eq!(health.next(), Some(now + pause));
            assert!(!health.is_due(now));
            now += pause;
        }
        assert!(health.is_due(now));
        health.failed("no such device", now);
        assert_eq!((health.next(), health.is_due(now + AGAIN)), (None, false));
        let told = health.now(None).expect("it is not well");
        assert_eq!(health.down(), Some(told.why.clone()));
        assert!(!told.is_loading_again);
        for part in ["no such device", "tried 4 times", "--device cpu"] {
            assert!(told.why.contains(part), "{part}: {told:?}");
        }
    }

    #[test]
    fn a_model_that_is_loaded_at_a_later_try_is_well() {
        let mut health = Health::default();
        health.lost("the device is lost");
        let now = Instant::now();
        assert!(health.is_due(now));
        health.failed("no such device", now);
        assert!(health.is_due(now + PAUSES[0]));
        health.loaded(now + PAUSES[0]);
        assert_eq!((health.now(None), health.next(), health.losses()), (None, None, 1));
    }
}
