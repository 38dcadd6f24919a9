//! Steps whose states start in other slots than they end in.

use octet_compute::backend::Backend;
use octet_compute::batch::{Batch, Redo};
use proptest::prelude::*;

use crate::layers::*;

/// Certain tokens, guesses, and how many of them are accepted, of each step.
pub fn steps() -> impl Strategy<Value = Vec<(usize, usize, usize)>> {
    let step =
        (1..20usize, 0..GUESSES, 0..GUESSES).prop_map(|(n, guesses, right)| (n, guesses, right.min(guesses)));
    prop::collection::vec(step, 2..5)
}

/// Steps that start in another slot give the bits of steps in place: their logits, the new state, and the kept inputs of guesses. The slot that
/// they start in stays as it is.
pub fn starts_in_another_slot<B: Backend>(m: &mut Layers<B>, steps: &[(usize, usize, usize)]) {
    let (mut past, mut redo, mut from) = (0, Redo::default(), 2);
    for (i, &(certain, guesses, right)) in steps.iter().enumerate() {
        let span = tokens(0, past + certain + guesses).split_off(past);
        let to = 5 - from;
        let before = save(m, from);
        let results = [(from, to), (0, 0)].map(|(from, to)| {
            let mut batch = Batch::default();
            batch.push(&tokens(1, 3), 0, 1, &pages(1), 0);
            batch.push(&span, past, to, &pages(0), span.len());
            batch.speculate(guesses, redo);
            batch.start_from(from);
            let logits = m.logits(&batch);
            m.be.reset_slot(&mut m.cache, 1);
            (logits, save(m, to))
        });
        assert!(results[0].0 == results[1].0, "step {i}: logits");
        assert!(results[0].1 == results[1].1, "step {i}: state");
        assert!(save(m, from) == before, "step {i}: the state that it started with");
        assert!(results[0].1 != before, "step {i}: nothing was computed");
        past += certain + right;
        (redo, from) = (Redo { first: 0, len: right }, to);
    }
}

/// The state of a slot.
fn save<B: Backend>(m: &mut Layers<B>, slot: usize) -> Vec<u8> {
    let s = &m.shape;
    let values = s.k_heads * s.repeat * s.gdn_dim;
    let mut out = vec![0; 4 * (3 * (2 * s.k_heads * s.gdn_dim + values) + values * s.gdn_dim)];
    m.be.save_slot(&m.cache, slot, &mut out);
    out
}
