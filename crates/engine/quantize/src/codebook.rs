//! `x ~ step * entry`, a group of 4 or 8 values at a time, with the entries of a codebook.
//!
//! Which entry is nearest depends on the weights. The nearest level of each value is a cell of space; for each cell a table has the
//! entries next to its middle, and only these are compared.

use std::sync::LazyLock;

use octet_weights::quant::iq_grids;

/// Entries that are compared.
const NEAR: usize = 8;

/// A codebook.
pub struct Grid<const D: usize> {
    entries: Vec<[f32; D]>,
    /// Borders between the levels, with space for seven.
    borders: Vec<f32>,
    near: Vec<[u16; NEAR]>,
}

/// The groups' entries for one step.
#[derive(Clone, Copy, Default)]
pub struct Sums {
    /// `sum(w x entry)`
    pub wxg: f32,
    /// `sum(w entry^2)`
    pub wgg: f32,
}

impl Sums {
    /// By how much `step` reduces the error.
    #[inline(always)]
    pub fn gain(&self, step: f32) -> f32 {
        step * (2.0 * self.wxg - step * self.wgg)
    }
}

impl<const D: usize> Grid<D> {
    fn new(levels: &[f32], entries: Vec<[f32; D]>) -> Self {
        let borders: Vec<f32> = levels.windows(2).map(|l| 0.5 * (l[0] + l[1])).collect();
        let cells = levels.len().pow(D as u32);
        let near = (0..cells)
            .map(|cell| {
                let mut rest = cell;
                let middle: [f32; D] = std::array::from_fn(|_| {
                    let level = levels[rest % levels.len()];
                    rest /= levels.len();
                    level
                });
                let mut found = [(f32::INFINITY, 0u16); NEAR];
                for (i, entry) in entries.iter().enumerate() {
                    let distance: f32 = entry.iter().zip(&middle).map(|(a, b)| (a - b) * (a - b)).sum();
                    if distance < found[NEAR - 1].0 {
                        let at = found.partition_point(|f| f.0 <= distance);
                        found.copy_within(at..NEAR - 1, at + 1);
                        found[at] = (distance, i as u16);
                    }
                }
                found.map(|f| f.1)
            })
            .collect();
        Self { entries, borders, near }
    }

    /// The entry nearest to `y`, and its distance.
    #[inline(always)]
    fn nearest(&self, y: &[f32; D], w: &[f32; D]) -> (u16, f32) {
        let levels = self.borders.len() + 1;
        let mut cell = 0;
        for j in (0..D).rev() {
            let level: usize = self.borders.iter().map(|b| usize::from(y[j] > *b)).sum();
            cell = cell * levels + level;
        }
        let mut best = (0, f32::INFINITY);
        for &i in &self.near[cell] {
            let entry = &self.entries[usize::from(i)];
            let mut distance = [0.0; D];
            for j in 0..D {
                let off = y[j] - entry[j];
                distance[j] = w[j] * off * off;
            }
            let distance = total(&distance);
            if distance < best.1 {
                best = (i, distance);
            }
        }
        best
    }

    /// The entry of one group for the step `1 / inv`, with `shift` added to entries; its sums are added.
    #[inline(always)]
    pub fn assign(&self, x: &[f32; D], w: &[f32; D], inv: f32, shift: f32, sums: &mut Sums) -> (u16, f32) {
        let mut y = [0.0; D];
        for j in 0..D {
            y[j] = x[j] * inv - shift;
        }
        let (index, distance) = self.nearest(&y, w);
        let entry = &self.entries[usize::from(index)];
        let (mut wxg, mut wgg) = ([0.0; D], [0.0; D]);
        for j in 0..D {
            let g = entry[j] + shift;
            wxg[j] = w[j] * x[j] * g;
            wgg[j] = w[j] * g * g;
        }
        sums.wxg += total(&wxg);
        sums.wgg += total(&wgg);
        (index, distance)
    }
}

/// The sum, by halves, so that it is a few vector operations.
#[inline(always)]
fn total<const D: usize>(v: &[f32; D]) -> f32 {
    let mut v = *v;
    let mut n = D / 2;
    while n > 0 {
        for j in 0..n {
            v[j] += v[j + n];
        }
        n /= 2;
    }
    v[0]
}

fn floats<const D: usize>(grid: &[[u8; D]], less: f32) -> Vec<[f32; D]> {
    grid.iter().map(|e| e.map(|v| f32::from(v) - less)).collect()
}

const LEVELS_2: [f32; 3] = [8.0, 25.0, 43.0];

/// IQ2_XXS.
pub static IQ2_XXS: LazyLock<Grid<8>> =
    LazyLock::new(|| Grid::new(&LEVELS_2, floats(&iq_grids::IQ2_XXS, 0.0)));
/// IQ2_XS.
pub static IQ2_XS: LazyLock<Grid<8>> = LazyLock::new(|| Grid::new(&LEVELS_2, floats(&iq_grids::IQ2_XS, 0.0)));
/// IQ2_S.
pub static IQ2_S: LazyLock<Grid<8>> = LazyLock::new(|| Grid::new(&LEVELS_2, floats(&iq_grids::IQ2_S, 0.0)));
/// IQ3_XXS.
pub static IQ3_XXS: LazyLock<Grid<4>> = LazyLock::new(|| {
    Grid::new(&[4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0], floats(&iq_grids::IQ3_XXS, 0.0))
});
/// IQ3_S.
pub static IQ3_S: LazyLock<Grid<4>> =
    LazyLock::new(|| Grid::new(&[1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0], floats(&iq_grids::IQ3_S, 0.0)));
/// IQ1_S and IQ1_M: trits.
pub static IQ1: LazyLock<Grid<8>> =
    LazyLock::new(|| Grid::new(&[-1.0, 0.0, 1.0], floats(&iq_grids::IQ1, 1.0)));
