//! Resizing with antialiasing, to the bit as PyTorch resizes tensors of bytes on a processor, which transformers' processors use: columns
//! first, then rows, with weights as 16-bit integers and bytes between the two.

use super::plan::Filter;

/// The weights of one output place: the first input, and the others after it.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

impl Filter {
    /// Half its width.
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }
    /// The kernel; the cubic one is Keys's with a = -1/2, that of Lanczos has three lobes.
    fn at(self, x: f64) -> f64 {
        let x = x.abs();
        match self {
            Self::Bilinear if x < 1.0 => 1.0 - x,
            Self::Bicubic if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            Self::Bicubic if x < 2.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
            Self::Lanczos if x < 3.0 => sinc(x) * sinc(x / 3.0),
            _ => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    let x = x * std::f64::consts::PI;
    if x == 0.0 { 1.0 } else { x.sin() / x }
}

/// The weights of all output places, and the bits of their fractions: as many as the largest leaves in 16 bits.
fn taps(filter: Filter, from: usize, to: usize) -> (Vec<Taps>, u32) {
    let scale = from as f64 / to as f64;
    let (support, inverse) = (filter.support() * scale.max(1.0), 1.0 / scale.max(1.0));
    let exact: Vec<(usize, Vec<f64>)> = (0..to)
        .map(|i| {
            let centre = scale * (i as f64 + 0.5);
            let first = (centre - support + 0.5).max(0.0) as usize;
            let end = ((centre + support + 0.5) as usize).min(from);
            let at = |j: usize| filter.at((j as f64 - centre + 0.5) * inverse);
            let mut weights: Vec<f64> = (first..end).map(at).collect();
            let sum: f64 = weights.iter().sum();
            if sum != 0.0 {
                weights.iter_mut().for_each(|w| *w /= sum);
            }
            (first, weights)
        })
        .collect();
    let largest = exact.iter().flat_map(|(_, w)| w).fold(0.0f64, |m, w| m.max(*w));
    let fits = |bits: &u32| (0.5 + largest * f64::from(1u32 << (bits + 1))) as i64 >= 1 << 15;
    let bits = (0..22).find(fits).unwrap_or(22);
    let whole = |w: f64| {
        let w = w * f64::from(1u32 << bits);
        (if w < 0.0 { w - 0.5 } else { w + 0.5 }) as i32
    };
    let integer = |(first, w): (usize, Vec<f64>)| Taps { first, weights: w.into_iter().map(whole).collect() };
    (exact.into_iter().map(integer).collect(), bits)
}

/// The sum of weighted bytes that lie `stride` apart, rounded.
fn weighted(taps: &Taps, bits: u32, bytes: &[u8], stride: usize) -> u8 {
    let values = bytes.iter().step_by(stride).zip(&taps.weights);
    let sum: i32 = (1 << bits >> 1) + values.map(|(b, w)| i32::from(*b) * w).sum::<i32>();
    (sum >> bits).clamp(0, 255) as u8
}

/// `rgb` `[height, width, 3]` as `[to_height, to_width, 3]`.
pub fn resize(
    filter: Filter,
    rgb: &[u8],
    [width, height]: [usize; 2],
    [to_width, to_height]: [usize; 2],
) -> Vec<u8> {
    let mut columns = Vec::new();
    let mut rows = rgb;
    if to_width != width {
        let (taps, bits) = taps(filter, width, to_width);
        columns = Vec::with_capacity(height * to_width * 3);
        for row in rgb.chunks_exact(3 * width) {
            for t in &taps {
                columns.extend((0..3).map(|c| weighted(t, bits, &row[3 * t.first + c..], 3)));
            }
        }
        rows = &columns;
    }
    if to_height == height {
        return if columns.is_empty() { rgb.to_vec() } else { columns };
    }
    let (taps, bits) = taps(filter, height, to_height);
    let stride = 3 * to_width;
    let mut out = Vec::with_capacity(to_height * stride);
    let mut sums = vec![0i32; stride];
    for t in &taps {
        sums.fill(1 << bits >> 1);
        for (row, w) in rows.chunks_exact(stride).skip(t.first).zip(&t.weights) {
            sums.iter_mut().zip(row).for_each(|(sum, b)| *sum += i32::from(*b) * w);
        }
        out.extend(sums.iter().map(|sum| (sum >> bits).clamp(0, 255) as u8));
    }
    out
}
