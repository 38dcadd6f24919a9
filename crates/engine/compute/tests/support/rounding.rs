//! A backend's results beside the oracle's, and how far they may be from them where activations are rounded to 8 bits.

use octet_compute::backend::{Backend, TableRow};
use octet_compute::batch::Batch;
use octet_compute::reference::Reference;
use octet_weights::{GgmlType, Matrix};

use crate::layers::*;

/// Noise of embeddings, in units of their size. It moves what follows about twice as far as the rounding of all activations does.
const NOISE: f32 = 1.0 / 32.0;
/// Up to so many times what the noise makes of the oracle, a backend's difference is rounding.
const TIMES: f32 = 3.0;
/// Relative. Any difference up to here is rounding.
const ALWAYS: f32 = 0.1;

/// What [`Layers::run`] returns, of each batch.
pub type Passes = Vec<Vec<Vec<f32>>>;

/// The results of a backend and the oracle's: each part, from the experts on without the tokens that the router sent elsewhere.
pub struct Compared {
    pub parts: Vec<(Vec<f32>, Vec<f32>)>,
    /// Tokens that went to the same experts.
    pub same: usize,
    pub tokens: usize,
}

pub fn compare(got: &Passes, want: &Passes, shape: &Shape) -> Compared {
    let mut parts = vec![(Vec::new(), Vec::new()); want[0].len()];
    let (mut all_same, mut tokens) = (0, 0);
    for (got, want) in got.iter().zip(want) {
        let same = same_experts(&got[MOE - 1], &want[MOE - 1], shape);
        all_same += same.iter().filter(|s| **s).count();
        tokens += same.len();
        for (part, (all_got, all_want)) in parts.iter_mut().enumerate() {
            let keep = if part < MOE { vec![true; same.len()] } else { same.clone() };
            all_got.extend(rows(&got[part], &keep));
            all_want.extend(rows(&want[part], &keep));
        }
    }
    Compared { parts, same: all_same, tokens }
}

/// How far each part of a pass may be from the oracle's `want`, relatively, where quantised weights meet 8-bit activations.
///
/// Some shapes amplify any difference: a head of the recurrence whose output nearly vanishes is normalised to full size. How much they do so, the oracle
/// shows itself, with embeddings that are a little different.
pub fn bounds(shape: &Shape, batches: &[Batch], want: &Passes) -> Vec<f32> {
    let mut moved = disturbed(shape);
    let moved = batches.iter().map(|b| moved.run(b)).collect();
    // NaN if all tokens went elsewhere: `max` passes over it
    let bound = |(moved, want): &(Vec<f32>, Vec<f32>)| (TIMES * relative(moved, want)).max(ALWAYS);
    compare(&moved, want, shape).parts.iter().map(bound).collect()
}

/// The oracle with noise on its embeddings.
fn disturbed(shape: &Shape) -> Layers<Reference> {
    let mut oracle = layers(Reference, shape);
    let (be, hidden) = (&mut oracle.be, shape.hidden());
    let mut table = be.buf(VOCAB * hidden).unwrap();
    let all = Batch::of_tokens(&(0..VOCAB as u32).collect::<Vec<_>>());
    be.embed(&all, &oracle.embedding, TableRow::Id, 1.0, &mut table);
    let mut values = vec![0.0; VOCAB * hidden];
    be.read(&table, &mut values);
    let (r, size) = (&mut Random(shape.seed), NOISE / (hidden as f32).sqrt());
    let data: Vec<u8> = values.iter().flat_map(|v| (v + size * r.next()).to_le_bytes()).collect();
    let noisy = Matrix::new(GgmlType::F32, VOCAB, hidden, data.into());
    oracle.embedding = be.embedding(&noisy).unwrap();
    oracle
}
