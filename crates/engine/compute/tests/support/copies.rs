//! Rows of a matrix that are copied into another one: for the tests of this crate and of other backends.

use octet_compute::backend::*;
use octet_compute::batch::Batch;
use octet_weights::GgmlType;
use proptest::prelude::*;

use crate::layers::Random;

/// Two matrices of any type and shape, and rows to copy from one to the other, each place once.
pub fn copies() -> impl Strategy<Value = (u64, GgmlType, [usize; 3], Vec<(u32, u32)>)> {
    let types = prop::sample::select(GgmlType::ALL);
    (any::<u64>(), types, 1..9usize, 1..100usize, 1..100usize, any::<u64>()).prop_map(
        |(seed, ty, blocks, from, to, order)| {
            let r = &mut Random(order);
            let mut places: Vec<(u32, u32)> =
                (0..to as u32).map(|to| ((r.next().abs() * from as f32) as u32 % from as u32, to)).collect();
            places.retain(|_| r.next() > 0.0);
            places.reverse();
            (seed, ty, [from, to, blocks * ty.block_len().max(8)], places)
        },
    )
}

/// Rows that are copied give the bits of a matrix that was packed with them.
pub fn copies_rows<B: Backend>(
    mut be: B,
    seed: u64,
    ty: GgmlType,
    [from, to, cols]: [usize; 3],
    rows: &[(u32, u32)],
) {
    let r = &mut Random(seed);
    let (a, mut b) = (r.matrix(ty, from, cols), r.matrix(ty, to, cols));
    let source = be.weight(&a, None).unwrap();
    let mut copied = be.weight(&b, None).unwrap();
    let (mut data, n) = (b.data.to_vec(), b.row_bytes());
    for &(row, place) in rows {
        data[place as usize * n..][..n].copy_from_slice(a.row(row as usize));
    }
    b.data = data.into();
    let want = be.weight(&b, None).unwrap();
    let x = be.vector(&r.vec(cols)).unwrap();
    let norm = Norm::rms(be.vector(&r.near_one(cols)).unwrap(), cols, 1e-6);
    let [mut got, mut wanted] = [to, to].map(|n| be.buf(n).unwrap());
    let shape = CacheShape {
        layers: Vec::new(),
        pages: 1,
        windowed: None,
        slots: 1,
        guesses: 0,
        kv: KvType::F32.into(),
    };
    let step = StepShape { tokens: 1, outputs: 1, ..StepShape::default() };
    let _cache = be.cache(&shape, step).unwrap();
    be.copy_rows(&source, &mut copied, rows);
    let mut batch = Batch::default();
    batch.push(&[0], 0, 0, &[0], 1);
    be.step(Pass::Other, &batch, |be| {
        be.project(1, &x, Some(&norm), [&copied, &want], [&mut got, &mut wanted]);
    })
    .unwrap();
    let values = [got, wanted].map(|buf| {
        let mut out = vec![0.0; to];
        be.read(&buf, &mut out);
        out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    });
    assert!(values[0] == values[1], "{ty}, {cols} columns, {rows:?}: {values:?}");
}
