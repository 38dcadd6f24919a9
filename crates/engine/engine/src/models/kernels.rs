//! Compiles a loaded model's kernels, where its backend compiles any: otherwise the first requests would wait for them.

use octet_compute::Batch;
use octet_compute::backend::{Backend, Out, Pass};
use octet_compute::batch::{PAGE_TOKENS, Redo};
use octet_compute::inspect::Inspect;

use super::{Limits, Loaded};
use crate::Error;

/// Steps up to this size are all tried: backends have special kernels for few tokens.
const SMALL_STEP: usize = 17;

/// Numbers of tokens of a step that together need all kernels: all small ones, then each half as many again at most.
fn step_sizes(tokens_max: usize) -> Vec<usize> {
    let powers = (4..usize::BITS - 2).map(|i| 1usize << i).take_while(|n| *n < tokens_max);
    let large = powers.flat_map(|n| [n, n + n / 2]).filter(|n| *n > SMALL_STEP);
    (1..=SMALL_STEP).chain(large).filter(|n| *n < tokens_max).chain([tokens_max]).collect()
}

/// A step of one sequence.
fn step(tokens: usize, outputs: usize) -> Batch {
    let mut batch = Batch::default();
    let pages: Vec<u32> = (0..tokens.div_ceil(PAGE_TOKENS) as u32).collect();
    batch.push(&vec![0; tokens], 0, 0, &pages, outputs);
    batch
}

/// Steps of a model within these limits that together need all kernels.
fn steps(limits: &Limits) -> Vec<Batch> {
    let of = |n: usize| {
        let many = n.min(limits.batch_outputs.max(1));
        [1, many].into_iter().take(if many > 1 { 2 } else { 1 }).map(move |outputs| step(n, outputs))
    };
    step_sizes(limits.batch_tokens.max(1)).into_iter().flat_map(of).collect()
}

impl<B: Backend + Inspect> Loaded<B> {
    /// Compiles the kernels of all steps.
    ///
    /// # Errors
    /// If the device does not support one of them.
    pub(super) fn compile_kernels(&mut self) -> Result<(), Error> {
        let steps = steps(&self.limits);
        let mut redo = Batch::default();
        redo.push_redo(0, Redo::default());
        let has_states = self.shape.slot_bytes() > 0;
        let Self { be, decoder, cache, scratch, counts, mtp, .. } = self;
        let mut pooled = Ok(());
        // A step that fails leaves its error to `compile_kernels`.
        be.compile_kernels(|be| {
            for batch in &steps {
                let _ = be.step(Pass::Trunk, batch, |be| {
                    decoder.forward(be, scratch, cache, counts, batch, None, &mut |_, _, _| {});
                });
                let (Some(block), Some(state)) = (&decoder.mtp, &mut *mtp) else { continue };
                let _ = be.step(Pass::Other, batch, |be| {
                    be.norm_outputs(batch, &scratch.h, &decoder.norm, &mut state.hidden);
                    let (hidden, work) = (&state.hidden, &mut state.work);
                    decoder.fill_mtp(block, be, scratch, cache, batch, hidden, work);
                    decoder.forward_mtp(block, be, scratch, cache, counts, batch, hidden, work, true);
                });
            }
            if B::RUNS_AHEAD {
                let first = &steps[0];
                let _ = be.submit(first, true, |be| {
                    decoder.forward(be, scratch, cache, counts, first, None, &mut |_, _, _| {});
                });
            }
            // The states after the last norm, and what an encoder does with them.
            let _ = be.step(Pass::Other, &Batch::default(), |be| {
                be.norm(1, None, &decoder.norm, Out::Write(&mut scratch.h));
            });
            pooled = decoder.pool.apply(be, &vec![0.0; decoder.hidden]).map(|_| ());
            if has_states {
                let _ = be.step(Pass::Other, &redo, |be| decoder.redo(be, scratch, cache, &redo));
            }
        })?;
        Ok(pooled?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_sizes_grow_by_half_at_most_and_end_with_the_largest() {
        for most in [1, 2, 16, 17, 18, 100, 512, 513, 2048] {
            let sizes = step_sizes(most);
            assert_eq!((sizes[0], sizes[sizes.len() - 1]), (1, most));
            assert!(
                sizes.windows(2).all(|w| w[0] < w[1] && 2 * w[1] <= (3 * w[0]).max(2 * (w[0] + 1))),
                "{sizes:?}"
            );
        }
    }
}
