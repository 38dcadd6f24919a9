//! Measures the times of steps with guesses on this machine after a model was loaded, so that no answer is slowed by it.

use std::time::{Duration, Instant};

use octet_compute::Batch;
use octet_compute::batch::{PAGE_TOKENS, Redo};

use super::controller::Controller;
use crate::Error;
use crate::models::Model;

/// Numbers of tokens of the measured steps; times between them are interpolated.
pub(super) const SIZES: [usize; 5] = [1, 2, 3, 5, 9];
/// The slot and the page used.
pub(super) const SLOT: usize = 0;
pub(super) const PAGE: u32 = 0;
/// Runs of each size; the shortest counts, as another program may have slowed the others.
const RUNS: usize = 3;
/// Time limit. For a large model at least steps of one and two tokens are measured; the others are extrapolated at first.
const BUDGET: Duration = Duration::from_millis(250);

/// Measures steps with up to `most` guesses.
pub(super) fn steps(model: &mut dyn Model, most: usize, control: &mut Controller) -> Result<(), Error> {
    let limits = model.limits();
    let room = limits.batch_tokens.min(limits.batch_outputs).min(PAGE_TOKENS).min(1 + most);
    let vocab = model.config().vocab;
    let mut batch = Batch::with_capacity(room, 1, 1);
    let start = Instant::now();
    for n in SIZES.into_iter().filter(|&n| n <= room) {
        if n > 2 && start.elapsed() > BUDGET {
            break;
        }
        // Different tokens, as in a text: they are routed to different experts.
        let tokens: Vec<u32> = (0..n).map(|i| ((100 + 7919 * i) % vocab) as u32).collect();
        batch.clear();
        batch.push(&tokens, 0, SLOT, &[PAGE], n);
        batch.speculate(n - 1, Redo::default());
        // The very first step finds weights and buffers cold.
        if n == 1 {
            model.step(&batch)?;
        }
        let mut least = Duration::MAX;
        for _ in 0..RUNS {
            let start_run = Instant::now();
            model.step(&batch)?;
            least = least.min(start_run.elapsed());
            if start.elapsed() > BUDGET {
                break;
            }
        }
        control.record_step(n, least);
    }
    Ok(())
}

/// The shortest of a few runs.
pub(super) fn least(mut run: impl FnMut() -> Result<(), Error>) -> Result<Duration, Error> {
    run()?;
    let mut least = Duration::MAX;
    for _ in 0..RUNS {
        let start = Instant::now();
        run()?;
        least = least.min(start.elapsed());
    }
    Ok(least)
}

/// Resets the model's state.
pub(super) fn reset(model: &mut dyn Model) {
    model.reset_slot(SLOT);
    model.expert_counts().clear();
    // No request has run yet.
    let _ = model.backend().take_profile();
}
