//! The error of each type, against that of llama.cpp's encoders on the very same weights (ggml's own `ggml_quantize_chunk`, as built into
//! xllamacpp 2026.10.11549; what lacks there is from quantize.md's normal weights).

use octet_quantize::{TYPES, quantize};
use octet_weights::GgmlType as T;

use crate::weights::{COLUMNS, heavy, importance, normal};

/// llama.cpp's relative RMSE: of normal weights; of heavy-tailed ones; of these with an importance matrix, weighted.
const THEIRS: &[(T, f64, f64, f64)] = &[
    (T::Q8_0, 0.00535, 0.00905, 0.00805),
    (T::Q4_0, 0.08582, 0.13753, 0.11181),
    (T::Q4_1, 0.07823, 0.10143, 0.06813),
    (T::Q5_0, 0.04275, 0.07178, 0.06086),
    (T::Q5_1, 0.03781, 0.04896, 0.03310),
    (T::Q2_K, 0.29618, 0.34745, 0.21875),
    (T::Q3_K, 0.15067, 0.18908, 0.14291),
    (T::Q4_K, 0.07128, 0.09484, 0.07172),
    (T::Q5_K, 0.03616, 0.04759, 0.03747),
    (T::Q6_K, 0.01775, 0.02709, 0.02120),
    (T::IQ4_NL, 0.07619, 0.10858, 0.08476),
    (T::IQ4_XS, 0.07677, 0.11011, 0.08785),
    (T::MXFP4, 0.11508, 0.15119, 0.15010),
    (T::NVFP4, 0.09504, 0.09307, 0.08193),
    (T::TQ1_0, 0.80854, 0.77342, 0.70142),
    (T::TQ2_0, 0.80854, 0.77342, 0.70142),
    (T::IQ3_S, 0.16658, 0.23562, 0.15723),
    (T::IQ3_XXS, 0.21343, 0.29518, 0.17469),
    (T::IQ2_S, 0.26497, 0.44096, 0.29091),
    (T::IQ2_XS, 0.29994, 0.43513, 0.31004),
    (T::IQ2_XXS, 0.34367, 0.55428, 0.38919),
    (T::IQ1_S, 0.48612, 0.63709, 0.45536),
    (T::IQ1_M, 0.45096, 0.59502, 0.36121),
    (T::Q1_0, 0.60133, f64::INFINITY, f64::INFINITY),
    (T::Q2_0, 0.71792, f64::INFINITY, f64::INFINITY),
];

/// RMSE relative to the root mean square, with each column's squares weighted.
fn error(ty: T, x: &[f32], importance: Option<&[f32]>) -> f64 {
    let mut blocks = vec![0; x.len() / ty.block_len() * ty.block_bytes()];
    quantize(ty, x, COLUMNS, importance, &mut blocks);
    let mut y = vec![0.0; x.len()];
    ty.dequantize(&blocks, &mut y);
    let (mut off, mut all) = (0.0, 0.0);
    for (i, (x, y)) in x.iter().zip(&y).enumerate() {
        let w = importance.map_or(1.0, |w| f64::from(w[i % COLUMNS]));
        off += w * f64::from(x - y).powi(2);
        all += w * f64::from(*x).powi(2);
    }
    (off / all).sqrt()
}

#[test]
fn errors_are_no_larger_than_llama_cpps() {
    let (normal, heavy, importance) = (normal(), heavy(), importance());
    let mut worse = Vec::new();
    for &(ty, on_normal, on_heavy, weighted) in THEIRS {
        let ours = [error(ty, &normal, None), error(ty, &heavy, None), error(ty, &heavy, Some(&importance))];
        println!("{ty:8} {ours:.5?} of {on_normal} {on_heavy} {weighted}");
        if ours.iter().zip([on_normal, on_heavy, weighted]).any(|(ours, theirs)| *ours > theirs + 5e-6) {
            worse.push((ty, ours));
        }
    }
    assert!(worse.is_empty(), "{worse:?}");
}

#[test]
fn all_types_are_judged() {
    for ty in TYPES.iter().filter(|t| ![T::F32, T::F16, T::BF16].contains(t)) {
        assert!(THEIRS.iter().any(|row| row.0 == *ty), "{ty}");
    }
}

/// Zeros, one value among zeros, tiny and huge values, equal values: finite blocks that come back about right.
#[test]
fn odd_rows_come_back() {
    type Row = (&'static str, Box<dyn Fn(usize) -> f32>);
    let rows: [Row; 6] = [
        ("zeros", Box::new(|_| 0.0)),
        ("one", Box::new(|i| if i == 40 { 1.0 } else { 0.0 })),
        ("tiny", Box::new(|i| 1e-5 * ((i * 37 % 101) as f32 - 50.0))),
        ("huge", Box::new(|i| 600.0 * ((i * 37 % 101) as f32 - 50.0))),
        ("equal", Box::new(|_| -0.75)),
        ("positive", Box::new(|i| 3.0 + (i % 7) as f32)),
    ];
    for &ty in TYPES {
        for (name, value) in &rows {
            let x: Vec<f32> = (0..512).map(value).collect();
            for importance in
                [None, Some(vec![0.0; 512]), Some((0..512).map(|i| (i % 5) as f32).collect::<Vec<_>>())]
            {
                let mut blocks = vec![0; x.len() / ty.block_len() * ty.block_bytes()];
                quantize(ty, &x, 512, importance.as_deref(), &mut blocks);
                let mut y = vec![0.0; x.len()];
                ty.dequantize(&blocks, &mut y);
                assert!(y.iter().all(|v| v.is_finite()), "{ty} {name}");
                let all: f32 = x.iter().map(|v| v * v).sum();
                let off: f32 = x.iter().zip(&y).map(|(a, b)| (a - b) * (a - b)).sum();
                // One bit cannot hold an outlier among zeros; everything else is nearer than zeros are.
                if importance.is_none() {
                    assert!(off <= 1.01 * all, "{ty} {name}: {off} of {all}");
                }
            }
        }
    }
}

/// Other row lengths than whole batches give what the rows give one by one.
#[test]
fn rows_do_not_depend_on_their_neighbours() {
    let x = &heavy()[..768 * 3];
    for &ty in TYPES.iter().filter(|ty| ty.block_len() <= 256) {
        let row_bytes = 768 / ty.block_len() * ty.block_bytes();
        let mut together = vec![0; 3 * row_bytes];
        quantize(ty, x, 768, None, &mut together);
        for (x, row) in x.chunks(768).zip(together.chunks(row_bytes)) {
            let mut alone = vec![0; row_bytes];
            quantize(ty, x, 768, None, &mut alone);
            assert!(alone == row, "{ty}");
        }
    }
}
