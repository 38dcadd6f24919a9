//! Types of checkpoints, which a device holds as small as the file does: products against the scalar oracle, with and without factors of the
//! rows, and the same bits for a token in every batch.

use octet_compute::backend::*;
use octet_compute::batch::Batch;
use octet_compute::inspect::Inspect;
use octet_compute::reference::Reference;
use octet_vulkan::{Vulkan, VulkanOptions, device_bytes};
use octet_weights::GgmlType::{self, *};
use octet_weights::{Matrix, quant};

/// Types that meet f32 activations, and those that meet 8-bit ones.
const FLOATS: [GgmlType; 7] = [F8_E4M3, F8_128, F8_32, NF4, FP4, Q1_0, Q2_0];
const INTS: [GgmlType; 10] = [NVFP4, MXFP4, Q4_1, Q5_0, Q5_1, I4_Z, I8_Z, I8_M, Q8_0, Q4_0];

const ROWS: usize = 11;
const TOKENS: usize = 9;

/// Random blocks, and factors of the rows where `scaled`. Rows of E4M3 without blocks are no whole words.
fn matrix(ty: GgmlType, scaled: bool) -> Matrix {
    let cols = if ty == F8_E4M3 { 333 } else { 512 };
    let mut data = vec![0; ROWS * cols / ty.block_len() * ty.block_bytes()];
    quant::random_blocks(ty, &mut 7, 0.05, &mut data);
    let scales = scaled.then(|| (0..ROWS).map(|r| 1.0 / (3.0 + r as f64)).collect());
    Matrix { scales, ..Matrix::new(ty, ROWS, cols, data.into()) }
}

/// Rows of activations, times each of `matrices` in one step of `n` of them; and the bytes that it read, if they are counted.
fn products<B: Backend + Inspect>(mut be: B, matrices: &[Matrix], n: usize) -> Vec<(Vec<f32>, u64)> {
    let shape = CacheShape {
        layers: Vec::new(),
        pages: 1,
        windowed: None,
        slots: 1,
        guesses: 0,
        kv: KvType::F32.into(),
    };
    let weights: Vec<_> = matrices.iter().map(|m| be.weight(m, None).unwrap()).collect();
    let step = StepShape { tokens: TOKENS, outputs: TOKENS, ..StepShape::default() };
    let _cache = be.cache(&shape, step).unwrap();
    let run = |(m, w): (&Matrix, &B::Weight)| {
        let values: Vec<f32> = (0..n * m.cols).map(|i| ((i * 37 % 101) as f32 - 50.0) / 30.0).collect();
        let x = be.vector(&values).unwrap();
        let norm = Norm::rms(be.vector(&vec![1.0; m.cols]).unwrap(), m.cols, 1e-6);
        let mut out = be.buf(n * ROWS).unwrap();
        let mut batch = Batch::default();
        batch.push(&vec![0; n], 0, 0, &[0], n);
        let before = be.bytes_read();
        be.step(Pass::Other, &batch, |be| be.project(n, &x, Some(&norm), [w], [&mut out])).unwrap();
        let mut values = vec![0.0; n * ROWS];
        be.read(&out, &mut values);
        (values, be.bytes_read().zip(before).map_or(0, |(after, before)| after - before))
    };
    matrices.iter().zip(&weights).map(run).collect()
}

#[test]
fn products_equal_the_oracle_in_every_batch() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let device = |shared| {
        Vulkan::new(&VulkanOptions { index, shared_stripes: Some(shared), ..VulkanOptions::default() })
            .expect("it opens")
    };
    let all = || FLOATS.into_iter().chain(INTS);
    // no file has factors beside minimums in f16
    let scaled = all().filter(|ty| !matches!(ty, Q4_1 | Q5_1)).map(|ty| matrix(ty, true));
    let matrices: Vec<Matrix> = all().map(|ty| matrix(ty, false)).chain(scaled).collect();
    let want = products(Reference, &matrices, TOKENS);
    let got = products(device(true), &matrices, TOKENS);
    let alone = products(device(true), &matrices, 1);
    let by_one = products(device(false), &matrices, 1);
    let alike = alone.iter().zip(&by_one);
    for (((m, (want, _)), (got, bytes)), ((alone, _), (by_one, _))) in
        matrices.iter().zip(&want).zip(&got).zip(alike)
    {
        let size = want.iter().fold(0f32, |most, x| most.max(x.abs()));
        let worst = want.iter().zip(got).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
        let bound = if FLOATS.contains(&m.ty) { 2e-6 } else { 0.02 };
        let scaled = m.scales.is_some();
        assert!(worst <= bound * size, "{}, factors {scaled}: off by {worst} of {size}", m.ty);
        assert!(alone[..] == got[..ROWS], "{}, factors {scaled}: a token alone has other bits", m.ty);
        assert!(alone == by_one, "{}, factors {scaled}: other bits where stripes are not shared", m.ty);
        // As small as in the file, but for words that are not full. A plan counts as much.
        let (file, planned) = (m.data.len() as u64, device_bytes(m.ty, (ROWS * m.cols) as u64));
        assert!(100 * bytes <= 112 * file, "{}: {bytes} bytes of {file}", m.ty);
        assert!(100 * bytes <= 103 * planned, "{}: {bytes} bytes, {planned} were planned", m.ty);
    }
}
