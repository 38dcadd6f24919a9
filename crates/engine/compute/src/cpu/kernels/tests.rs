//! Every kernel against the scalar oracle: rows dequantised by `octet_weights`, times activations as they were
//! quantised, summed in f64. And what the scheduler relies on: a result does not depend on the rest of the list.

use octet_weights::quant::random_blocks;
use octet_weights::{GgmlType, Matrix};
use proptest::prelude::*;

use super::Kernels;
use crate::cpu::activations::{ActView, Activations};
use crate::cpu::isa::Isa;
use crate::cpu::kind::{Form, Kind, ROWS};
use crate::cpu::pack::Packed;

fn all_kernels() -> impl Iterator<Item = Kernels> {
    Isa::ALL.into_iter().filter_map(Kernels::for_isa)
}

fn random_matrix(ty: GgmlType, rows: usize, cols: usize, mut seed: u64) -> Matrix {
    let mut data = vec![0; rows * cols / ty.block_len() * ty.block_bytes()];
    random_blocks(ty, &mut seed, 1.0, &mut data);
    let scales = seed.is_multiple_of(3).then(|| (0..rows).map(|r| 0.1 + (r * 7 % 5) as f64 / 3.0).collect());
    Matrix { scales, ..Matrix::new(ty, rows, cols, data.into()) }
}

/// Numbers of very different sizes, some of them zero.
fn random_values(n: usize, seed: u64) -> Vec<f32> {
    let mut data = vec![0; 4 * n];
    let mut state = seed ^ 0x5eed;
    random_blocks(GgmlType::F32, &mut state, 1.0, &mut data);
    let mut values: Vec<f32> = data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    for (i, block) in values.chunks_mut(32).enumerate() {
        let size = [1.0, 1e-3, 30.0, 0.0, 1e-33, 1e-10, 1e9][(seed as usize).wrapping_add(i * i) % 7];
        block.iter_mut().for_each(|v| *v *= size);
    }
    values
}

/// Activations of `tokens` rows in both forms.
fn acts(kernels: &Kernels, tokens: usize, cols: usize, x: &[f32]) -> Activations {
    let mut acts = Activations::new(tokens, cols).unwrap();
    let rows = acts.rows(tokens, cols);
    for t in 0..tokens {
        let x = &x[t * cols..(t + 1) * cols];
        // SAFETY: one thread.
        unsafe { rows.write(|x, out| kernels.quantise(x, out), t, x, Form::INTS.and(Form::FLOATS)) };
    }
    acts
}

fn view(acts: &mut Activations, tokens: usize, cols: usize) -> ActView<'_> {
    // SAFETY: no thread writes them any more.
    unsafe { acts.rows(tokens, cols).view() }
}

/// The activations that the kernel of `kind` reads.
fn seen(view: &ActView<'_>, kind: Kind, token: usize) -> Vec<f64> {
    if kind.form().floats {
        return view.floats(token)[..view.cols()].iter().map(|&v| f64::from(v)).collect();
    }
    view.blocks(token)
        .iter()
        .flat_map(|b| b.q.map(|q| f64::from(b.d) * f64::from(q)))
        .take(view.cols())
        .collect()
}

/// Runs every group and returns `[tokens][rows]`.
fn product(kernels: &Kernels, w: &Packed, acts: &ActView<'_>, tokens: &[u32]) -> Vec<f32> {
    let rows = w.layout().rows();
    let mut all = vec![f32::NAN; tokens.len() * rows];
    let mut out = vec![f32::NAN; tokens.len() * ROWS];
    for g in 0..w.layout().groups() {
        kernels.group(w, g, None, acts, tokens, &mut out);
        for (i, out) in out.chunks(ROWS).enumerate() {
            let n = ROWS.min(rows - g * ROWS);
            all[i * rows + g * ROWS..][..n].copy_from_slice(&out[..n]);
            assert!(out[n..].iter().all(|&v| v == 0.0), "padded rows are zero");
        }
    }
    all
}

fn check(kernels: &Kernels, m: &Matrix, view: &ActView<'_>, tokens: &[u32]) -> Result<(), TestCaseError> {
    let packed = Packed::pack(m).unwrap();
    let got = product(kernels, &packed, view, tokens);
    let mut w = vec![0.0; m.cols];
    for r in 0..m.rows {
        m.dequantize_row(r, &mut w);
        for (i, &t) in tokens.iter().enumerate() {
            let x = seen(view, packed.layout().kind(), t as usize);
            let terms = w.iter().zip(&x).map(|(&w, x)| f64::from(w) * x);
            let (sum, size) = terms.fold((0.0, 0.0), |(s, a), v| (s + v, a + v.abs()));
            let got = f64::from(got[i * m.rows + r]);
            // Minimums are large compared with the values, so the last bits may differ.
            let tolerance = 4e-6 * size + 1e-30;
            prop_assert!(
                (got - sum).abs() <= tolerance,
                "{} {} {}x{} row {r} token {t}: {got}, expected {sum} within {tolerance}",
                kernels.isa().name(),
                m.ty,
                m.rows,
                m.cols
            );
        }
    }
    Ok(())
}

fn types() -> impl Strategy<Value = GgmlType> {
    proptest::sample::select(GgmlType::ALL)
}

/// A type, rows, columns that fit it, number of tokens, seed.
fn shapes() -> impl Strategy<Value = (GgmlType, usize, usize, usize, u64)> {
    (types(), 1usize..40, 1usize..12, 1usize..6, any::<u64>()).prop_map(|(ty, rows, blocks, tokens, seed)| {
        let cols = match ty.block_len() {
            1 => blocks * 7,
            32 => blocks * 32,
            n => (blocks % 3 + 1) * n,
        };
        (ty, rows, cols, tokens, seed)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_kernel_equals_the_oracle((ty, rows, cols, tokens, seed) in shapes()) {
        let m = random_matrix(ty, rows, cols, seed);
        let x = random_values(tokens * cols, seed);
        for kernels in all_kernels() {
            let mut acts = acts(&kernels, tokens, cols, &x);
            let list: Vec<u32> = (0..tokens as u32).rev().collect();
            check(&kernels, &m, &view(&mut acts, tokens, cols), &list)?;
        }
    }

    #[test]
    fn a_result_does_not_depend_on_the_rest_of_the_list((ty, rows, cols, _, seed) in shapes(), n in 1usize..80) {
        let m = random_matrix(ty, rows, cols, seed);
        let packed = Packed::pack(&m).unwrap();
        const TOKENS: usize = 7;
        let x = random_values(TOKENS * cols, seed);
        for kernels in all_kernels() {
            let mut acts = acts(&kernels, TOKENS, cols, &x);
            let view = view(&mut acts, TOKENS, cols);
            let list: Vec<u32> = (0..n as u64).map(|i| (seed.rotate_left(i as u32) % TOKENS as u64) as u32).collect();
            let together = product(&kernels, &packed, &view, &list);
            for t in 0..TOKENS as u32 {
                let alone = product(&kernels, &packed, &view, &[t]);
                for (i, _) in list.iter().enumerate().filter(|(_, l)| **l == t) {
                    let together = &together[i * rows..(i + 1) * rows];
                    prop_assert!(together.iter().zip(&alone).all(|(a, b)| a.to_bits() == b.to_bits()), "{ty} {}", kernels.isa().name());
                }
            }
        }
    }

    /// Quants at their limits, all of one sign: the largest integer sums there are.
    #[test]
    fn extreme_quants_do_not_saturate(ty in types(), fill in prop::sample::select(&[0u8, 0x7f, 0x80, 0xff][..]), negative: bool) {
        let blocks = 256 / ty.block_len();
        let mut m = random_matrix(ty, 17, 256, 1);
        if ty.block_len() > 1 {
            // All bits of each block are equal, except those of the scales, which must keep the result finite.
            let mut data = m.data.to_vec();
            let sane = data.clone();
            let mut values = vec![0.0; ty.block_len()];
            for (b, (block, sane)) in data.chunks_mut(ty.block_bytes()).zip(sane.chunks(ty.block_bytes())).enumerate() {
                block.fill(fill);
                for i in 0..block.len() {
                    // Fill as many bytes as possible: restore a valid byte if the block is not finite.
                    ty.dequantize(block, &mut values);
                    if values.iter().all(|v| v.is_finite() && v.abs() < 1e4) { break; }
                    let at = scale_bytes(ty, i);
                    block[at] = sane[at];
                }
                prop_assert!(b < 17 * blocks);
            }
            m.data = data.into();
        }
        let x = vec![if negative { -1.0 } else { 1.0 }; 256];
        for kernels in all_kernels() {
            let mut acts = acts(&kernels, 1, 256, &x);
            let view = view(&mut acts, 1, 256);
            prop_assert!(ty.block_len() == 1 || view.blocks(0).iter().all(|b| b.q.iter().all(|q| q.abs() == 127)));
            check(&kernels, &m, &view, &[0])?;
        }
    }

    #[test]
    fn quantised_rows_are_within_half_a_quant(len in 1usize..100, seed: u64) {
        let x = random_values(len, seed);
        let mut first = None;
        for kernels in all_kernels() {
            let mut acts = acts(&kernels, 1, len, &x);
            let blocks = view(&mut acts, 1, len).blocks(0).to_vec();
            for (b, x) in blocks.iter().zip(x.chunks(32)) {
                let largest = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                prop_assert!((b.d - largest / 127.0).abs() <= 1e-6 * largest);
                for (&q, &x) in b.q.iter().zip(x) {
                    prop_assert!((f32::from(q) * b.d - x).abs() <= 0.5001 * b.d, "{x}: {q} of {}", b.d);
                }
                prop_assert!(b.q[x.len()..].iter().all(|&q| q == 0));
                let sum = |q: &[i8]| q.iter().map(|&q| i32::from(q)).sum::<i32>();
                prop_assert_eq!(b.neg_sums, [-128 * sum(&b.q[..16]), -128 * sum(&b.q[16..])]);
                prop_assert_eq!(b.d_sum, b.d * sum(&b.q) as f32);
            }
            prop_assert_eq!(first.get_or_insert(blocks.clone()), &blocks, "the same on every instruction set");
        }
    }
}

/// The `i`th byte of a block that may belong to a scale: `d` is at the start or at the end.
fn scale_bytes(ty: GgmlType, i: usize) -> usize {
    let n = ty.block_bytes();
    match i {
        0..4 => i,
        4..8 => n - (i - 3),
        _ => i - 4,
    }
}

#[test]
fn a_nan_is_kept() {
    let m = random_matrix(GgmlType::Q8_0, 1, 64, 3);
    let packed = Packed::pack(&m).unwrap();
    for kernels in all_kernels() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = random_values(64, 4);
            x[40] = bad;
            let mut acts = acts(&kernels, 1, 64, &x);
            let mut out = [0.0; ROWS];
            kernels.group(&packed, 0, None, &view(&mut acts, 1, 64), &[0], &mut out);
            assert!(!out[0].is_finite(), "{}", out[0]);
        }
    }
}

#[test]
fn packed_weights_are_no_larger_than_the_file() {
    for &ty in GgmlType::ALL {
        let m = random_matrix(ty, 64, 4096, 5);
        assert_eq!(Packed::pack(&m).unwrap().size_bytes(), m.data.len(), "{ty}");
    }
}

#[test]
fn empty_shapes_are_fine() {
    for (rows, cols) in [(0, 32), (5, 0), (0, 0)] {
        let m = Matrix::new(GgmlType::Q4_0, rows, cols, Default::default());
        let packed = Packed::pack(&m).unwrap();
        for kernels in all_kernels() {
            let mut acts = acts(&kernels, 1, cols, &vec![1.0; cols]);
            let out = product(&kernels, &packed, &view(&mut acts, 1, cols), &[0]);
            assert_eq!(out, vec![0.0; rows]);
        }
    }
}
