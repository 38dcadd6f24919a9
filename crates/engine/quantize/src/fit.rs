//! The best mix of types for a size: by the error that each type makes in each tensor, measured on a sample of its rows.
//!
//! The error of a tensor is that of its outputs, relative to them: `sum(w (x - y)^2) / sum(w x^2)` with the importance `w` of the columns.
//! All tensors begin with their smallest type; then always that tensor gets a larger one where this reduces the error most for each byte,
//! as long as it fits.

use octet_weights::{GgmlType as T, Model, TensorInfo};

use crate::importance::Importance;
use crate::mix::is_quantised;
use crate::{Error, quantize};

/// Types that are tried, by bits a weight.
const LADDER: &[T] = &[
    T::IQ2_XXS,
    T::IQ2_S,
    T::Q2_K,
    T::IQ3_XXS,
    T::IQ3_S,
    T::IQ4_XS,
    T::Q4_K,
    T::Q5_K,
    T::Q6_K,
    T::Q8_0,
    T::BF16,
];
/// For rows that are no multiple of 256.
const SHORT_LADDER: &[T] = &[T::IQ4_NL, T::Q5_0, T::Q5_1, T::Q8_0, T::BF16];
/// Without a matrix of importance the types below 3 bits are of little use.
const LEAST_WITHOUT: f64 = 2.6;
/// Rows of a tensor that are measured.
const SAMPLE: usize = 96;

/// A type that a tensor may get.
#[derive(Debug, Clone, Copy)]
struct Choice {
    ty: T,
    bytes: u64,
    error: f64,
}

/// Chooses types of the tensors that are quantised, by name, so that all tensors together have at most `limit` bytes. `progress` gets the tensors measured so far and their number.
pub(crate) fn fit(
    model: &Model,
    importance: Option<&Importance>,
    limit: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<(String, T)>, Error> {
    let tensors: Vec<&TensorInfo> = model.tensors().iter().filter(|t| is_quantised(t)).collect();
    let others: u64 = model.tensors().iter().filter(|t| !is_quantised(t)).map(|t| 4 * t.len() as u64).sum();
    let mut hulls = Vec::with_capacity(tensors.len());
    for (i, t) in tensors.iter().enumerate() {
        hulls.push(hull(choices(model, t, importance)?));
        progress(i as u64 + 1, tensors.len() as u64);
    }
    let mut chosen = vec![0usize; tensors.len()];
    let mut bytes = others + hulls.iter().map(|h| h[0].bytes).sum::<u64>();
    if bytes > limit {
        return Err(Error::Fit { limit, least: bytes });
    }
    // Along a hull each step reduces the error by less for each byte, so the steps of all tensors can be taken in order.
    let mut steps: Vec<(f64, usize, usize)> = Vec::new();
    for (i, h) in hulls.iter().enumerate() {
        for (k, pair) in h.windows(2).enumerate() {
            steps.push(((pair[0].error - pair[1].error) / (pair[1].bytes - pair[0].bytes) as f64, i, k + 1));
        }
    }
    steps.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.2.cmp(&b.2)));
    for (_, i, k) in steps {
        let more = hulls[i][k].bytes - hulls[i][k - 1].bytes;
        // A tensor whose step did not fit takes no later one.
        if chosen[i] + 1 == k && bytes + more <= limit {
            (chosen[i], bytes) = (k, bytes + more);
        }
    }
    Ok(tensors.iter().zip(&hulls).zip(&chosen).map(|((t, h), &k)| (t.name.clone(), h[k].ty)).collect())
}

/// The error of each type that the tensor may have.
fn choices(model: &Model, info: &TensorInfo, importance: Option<&Importance>) -> Result<Vec<Choice>, Error> {
    let tensor = model.tensor(&info.name, &info.shape)?;
    let matrix = tensor.matrix();
    let columns = matrix.cols;
    let matrices = if info.shape.len() > 2 { info.shape[0] } else { 1 };
    let weights = match importance {
        Some(all) => all.weights(&info.name, matrices, columns)?,
        None => None,
    };
    let rows_each = (matrix.rows / matrices).max(1);
    let count = SAMPLE.min(matrix.rows);
    let rows: Vec<usize> = (0..count).map(|i| i * matrix.rows / count).collect();
    let mut values = vec![0.0; columns];
    let mut sample = Vec::with_capacity(count * columns);
    for &r in &rows {
        matrix.dequantize_row(r, &mut values);
        sample.extend_from_slice(&values);
    }
    model.release(&info.name);
    let ladder = if columns.is_multiple_of(256) { LADDER } else { SHORT_LADDER };
    let bits = |ty: T| 8.0 * ty.block_bytes() as f64 / ty.block_len() as f64;
    let possible = ladder.iter().copied().filter(|ty| columns.is_multiple_of(ty.block_len()));
    let wanted = possible.filter(|ty| weights.is_some() || bits(*ty) >= LEAST_WITHOUT);
    let mut all = Vec::new();
    for ty in wanted {
        let mut blocks = vec![0; columns / ty.block_len() * ty.block_bytes()];
        let (mut off, mut whole) = (0.0, 0.0);
        for (&r, x) in rows.iter().zip(sample.chunks_exact(columns)) {
            let of_matrix = r / rows_each * columns;
            let w = weights.as_ref().map(|w| &w[of_matrix..of_matrix + columns]);
            quantize(ty, x, columns, w, &mut blocks);
            ty.dequantize(&blocks, &mut values);
            for (i, (x, y)) in x.iter().zip(&values).enumerate() {
                let w = w.map_or(1.0, |w| f64::from(w[i]));
                off += w * f64::from(x - y).powi(2);
                whole += w * f64::from(*x).powi(2);
            }
        }
        let error = if whole > 0.0 { off / whole } else { 0.0 };
        all.push(Choice { ty, bytes: TensorInfo { ty, ..info.clone() }.size_bytes(), error });
    }
    if all.is_empty() {
        let ty = T::F16;
        all.push(Choice { ty, bytes: TensorInfo { ty, ..info.clone() }.size_bytes(), error: 0.0 });
    }
    Ok(all)
}

/// The lower convex hull of errors over bytes: types that no mix of two others beats.
fn hull(mut all: Vec<Choice>) -> Vec<Choice> {
    all.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(a.error.total_cmp(&b.error)));
    let mut hull: Vec<Choice> = Vec::new();
    for c in all {
        if hull.last().is_some_and(|last| c.error >= last.error || c.bytes == last.bytes) {
            continue;
        }
        let slope = |a: &Choice, b: &Choice| (a.error - b.error) / (b.bytes - a.bytes) as f64;
        while let [.., a, b] = &hull[..] {
            if slope(a, b) > slope(b, &c) {
                break;
            }
            hull.pop();
        }
        hull.push(c);
    }
    hull
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hull_has_no_type_that_two_others_beat() {
        let c = |bytes, error| Choice { ty: T::Q4_K, bytes, error };
        let hull = hull(vec![c(30, 0.2), c(10, 1.0), c(20, 0.9), c(40, 0.3), c(50, 0.1)]);
        let points: Vec<(u64, f64)> = hull.iter().map(|c| (c.bytes, c.error)).collect();
        assert_eq!(points, [(10, 1.0), (30, 0.2), (50, 0.1)]);
    }
}
