//! Decides which long steps are submitted stage by stage instead of layer by layer: those whose layers take too long.

use std::time::Duration;

/// A layer that takes longer is submitted in parts: drivers reset a device after 2 s or more.
const LAYER_MAX: Duration = Duration::from_millis(200);
/// After this many faster steps in a row, layers are submitted whole again.
const FAST_STEPS: u32 = 16;

/// The times of recent layers.
pub(crate) struct Pace {
    /// Steps of at least this many tokens are submitted stage by stage.
    from: usize,
    /// The time of the current step's slowest layer.
    longest: Duration,
    /// Sizes that ran before, as bits of powers of two. In the first run memory is paged in, and drivers finish compiling kernels.
    seen: u64,
    /// Tokens of the last step, if it was slow. One may have been a stall.
    slow: Option<usize>,
    /// Fast steps in a row, of those that are cut.
    fast: u32,
    /// Submit all steps stage by stage: for tests.
    pub(crate) is_forced: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Self { from: usize::MAX, longest: Duration::ZERO, seen: 0, slow: None, fast: 0, is_forced: false }
    }
}

impl Pace {
    /// Whether a step of this many tokens is submitted stage by stage.
    pub(crate) fn is_by_stage(&self, tokens: usize) -> bool {
        self.is_forced || tokens >= self.from
    }

    /// Records the time of a layer: of all its submissions together.
    pub(crate) fn end_layer(&mut self, took: Duration) {
        self.longest = self.longest.max(took);
    }

    /// Records the end of a step of this many tokens.
    pub(crate) fn end_step(&mut self, tokens: usize) {
        let longest = std::mem::take(&mut self.longest);
        let size = 1 << tokens.max(1).ilog2();
        if longest.is_zero() {
            // It was not submitted layer by layer.
        } else if self.seen & size == 0 {
            self.seen |= size;
        } else if longest > LAYER_MAX {
            if let Some(before) = self.slow {
                self.from = self.from.min(tokens).min(before);
            }
            (self.slow, self.fast) = (Some(tokens), 0);
        } else {
            // A step of fewer tokens may be fast beside slow ones.
            self.slow = self.slow.filter(|slow| tokens < *slow);
            self.fast += u32::from(tokens >= self.from);
            if self.fast == FAST_STEPS {
                (self.from, self.fast) = (usize::MAX, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a step of two layers, the second of which takes `ms`.
    fn step(pace: &mut Pace, tokens: usize, ms: u64) -> bool {
        let is_by_stage = pace.is_by_stage(tokens);
        pace.end_layer(Duration::from_millis(1));
        pace.end_layer(Duration::from_millis(ms));
        pace.end_step(tokens);
        is_by_stage
    }

    #[test]
    fn two_slow_steps_in_a_row_are_cut_and_a_stall_is_not() {
        let mut pace = Pace::default();
        // the first of its size
        step(&mut pace, 512, 900);
        step(&mut pace, 512, 900);
        assert!(!pace.is_by_stage(512), "one stall");
        step(&mut pace, 512, 100);
        step(&mut pace, 512, 300);
        assert!(!pace.is_by_stage(512), "one more, later");
        // a short step says nothing about long ones, nor does a decode step, which is one submission
        step(&mut pace, 20, 5);
        step(&mut pace, 20, 5);
        pace.end_step(1);
        step(&mut pace, 600, 300);
        assert!(pace.is_by_stage(512) && pace.is_by_stage(4096) && !pace.is_by_stage(511));
    }

    #[test]
    fn steps_that_became_fast_are_whole_again() {
        let mut pace = Pace::default();
        (0..3).for_each(|_| assert!(!step(&mut pace, 512, 300)));
        for _ in 1..FAST_STEPS {
            assert!(step(&mut pace, 512, 100));
            // smaller ones do not count
            assert!(!step(&mut pace, 300, 1));
        }
        step(&mut pace, 512, 300);
        (0..FAST_STEPS).for_each(|_| assert!(step(&mut pace, 512, 100)));
        assert!(!pace.is_by_stage(512));
        // a slow one alone does not bring it back
        step(&mut pace, 512, 300);
        assert!(!pace.is_by_stage(512));
    }
}
