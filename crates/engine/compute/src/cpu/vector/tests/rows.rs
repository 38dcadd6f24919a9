//! Tests of `math.rs`, `rows.rs`, `rope.rs` and `route.rs`.

use half::f16;
use octet_weights::GgmlType;
use octet_weights::quant::quantize;
use proptest::prelude::*;

use super::{Values, all, close, sigmoid, silu, wide};
use crate::backend::RopePairing;
use crate::cpu::isa::Isa;
use crate::cpu::vector::rope_angles;
use crate::cpu::vector::simd::{MAX_LANES, Portable, Simd};
use crate::cpu::vector::{VectorKernels, math};

fn rms_norm(x: &[f32], w: &[f32], eps: f32) -> Vec<f64> {
    let mean = wide(x).iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(eps)).sqrt();
    wide(x).iter().zip(wide(w)).map(|(x, w)| x * scale * w).collect()
}

proptest! {
    #[test]
    fn elementwise_steps(n in 0usize..200, seed: u64) {
        let mut r = Values(seed);
        let (a, b) = (r.take(n, 12.0), r.take(n, 3.0));
        for k in all() {
            let mut x = a.clone();
            k.silu_mul(&mut x, &b);
            let want: Vec<_> = wide(&a).iter().zip(wide(&b)).map(|(a, b)| silu(*a) * b).collect();
            close("silu_mul", k.isa(), &x, &want, 1e-6);

            let mut x = a.clone();
            k.add(&mut x, &b);
            prop_assert_eq!(&x, &a.iter().zip(&b).map(|(a, b)| a + b).collect::<Vec<_>>());

            let mut x = a.clone();
            k.add_scaled(&mut x, &b, 0.3);
            let want: Vec<_> = wide(&a).iter().zip(wide(&b)).map(|(a, b)| a + f64::from(0.3f32) * b).collect();
            close("add_scaled", k.isa(), &x, &want, 1e-6);

            let mut x = vec![f32::NAN; n];
            k.gdn_beta(&mut x, &a);
            close("gdn_beta", k.isa(), &x, &wide(&a).iter().map(|x| sigmoid(*x)).collect::<Vec<_>>(), 1e-6);

            let bias = r.take(n, 20.0);
            let rates: Vec<f32> = b.iter().map(|b| -b.abs()).collect();
            k.gdn_decay(&mut x, &a, &bias, &rates);
            let want: Vec<_> = (0..n)
                .map(|i| {
                    let x = f64::from(a[i] + bias[i]);
                    let softplus = x.max(0.0) + (-x.abs()).exp().ln_1p();
                    (f64::from(rates[i]) * softplus).exp()
                })
                .collect();
            close("gdn_decay", k.isa(), &x, &want, 3e-6);
        }
    }

    #[test]
    fn reductions_and_norms(n in 1usize..400, seed: u64) {
        let mut r = Values(seed);
        let (x, w, z) = (r.take(n, 2.0), r.take(n, 1.5), r.take(n, 5.0));
        for k in all() {
            let want: f64 = wide(&x).iter().zip(wide(&w)).map(|(a, b)| a * b).sum();
            close("dot", k.isa(), &[k.dot(&x, &w)], &[want], 1e-5);
            close("sigmoid_dot", k.isa(), &[k.sigmoid_dot(&x, &w)], &[sigmoid(want)], 1e-5);

            let want = rms_norm(&x, &w, 1e-6);
            let mut out = vec![f32::NAN; n];
            k.rms_norm(&x, &w, 1e-6, &mut out);
            close("rms_norm", k.isa(), &out, &want, 1e-6);
            k.gated_rms_norm(&x, &w, 1e-6, &z, &mut out);
            let want: Vec<_> = want.iter().zip(wide(&z)).map(|(y, z)| y * silu(z)).collect();
            close("gated_rms_norm", k.isa(), &out, &want, 2e-6);
        }
    }

    #[test]
    fn half_precision(n in 0usize..80, scale in prop_oneof![Just(1.0f32), Just(1e-6), Just(60000.0)], seed: u64) {
        let x = Values(seed).take(n, scale);
        let want: Vec<u16> = x.iter().map(|x| f16::from_f32(*x).to_bits()).collect();
        for k in all() {
            let mut out = vec![0xffff; n];
            k.to_f16(&x, &mut out);
            prop_assert_eq!(&out, &want, "{}", k.isa().name());
        }
    }

    #[test]
    fn quantised_rows_are_ggmls_bytes(
        blocks in 0usize..9,
        scale in prop_oneof![Just(1.0f32), Just(127.0), Just(1e-7), Just(1e-38), Just(60000.0)],
        coarse: bool,
        seed: u64,
    ) {
        let mut x = Values(seed).take(32 * blocks, scale);
        if coarse {
            // many values right between two steps
            for x in x.chunks_exact_mut(32) {
                x.iter_mut().for_each(|x| *x = (2.0 * *x).round() / 2.0);
                x[7] = 127.0;
            }
        }
        let mut want = vec![0; 34 * blocks];
        quantize(GgmlType::Q8_0, &x, &mut want).expect("Q8_0 has a quantiser");
        for k in all() {
            let mut out = vec![0xff; 34 * blocks];
            k.to_q8_0(&x, &mut out);
            prop_assert_eq!(&out, &want, "{}", k.isa().name());
        }
    }

    #[test]
    fn rotation(
        pairs in 1usize..40, rest in 0usize..40, position in 0u32..300_000, scale in 0.5f32..2.0, norm: bool,
        adjacent: bool, seed: u64
    ) {
        let mut r = Values(seed);
        let n = 2 * pairs + rest;
        let (head, w) = (r.take(n, 2.0), r.take(n, 1.5));
        let freq: Vec<f32> = (0..pairs).map(|j| 1e7f32.powf(-(j as f32) / pairs as f32)).collect();
        let (mut cos, mut sin) = (vec![0.0; pairs], vec![0.0; pairs]);
        rope_angles(position, &freq, scale, &mut cos, &mut sin);
        let pairing = if adjacent { RopePairing::Adjacent } else { RopePairing::Half };
        let mut want = if norm { rms_norm(&head, &w, 1e-5) } else { wide(&head) };
        for (j, f) in freq.iter().enumerate() {
            let (a, b) = if adjacent { (2 * j, 2 * j + 1) } else { (j, j + pairs) };
            let (sin, cos) = f64::from(position as f32 * f).sin_cos();
            let (sin, cos) = (sin * f64::from(scale), cos * f64::from(scale));
            (want[a], want[b]) = (want[a] * cos - want[b] * sin, want[b] * cos + want[a] * sin);
        }
        for k in all() {
            let mut x = head.clone();
            k.norm_rope(&mut x, norm.then_some(&w[..]), 1e-5, &cos, &sin, pairing);
            close("norm_rope", k.isa(), &x, &want, 2e-6);
        }
    }

    #[test]
    fn routing(experts in 1usize..300, top_k in 1usize..12, coarse: bool, norm: bool, seed: u64) {
        let mut logits = Values(seed).take(experts, 6.0);
        if coarse {
            logits.iter_mut().for_each(|x| *x = x.round());
        }
        let top_k = top_k.min(experts);
        let mut order: Vec<usize> = (0..experts).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        order.truncate(top_k);
        let p: Vec<f64> = wide(&logits).iter().map(|x| x.exp()).collect();
        let total: f64 = if norm { order.iter().map(|i| p[*i]).sum() } else { p.iter().sum() };
        for k in all() {
            let (mut chosen, mut weights) = (vec![u32::MAX; top_k], vec![f32::NAN; top_k]);
            k.route(&mut logits.clone(), &mut chosen, &mut weights, norm);
            // Logits an ulp apart may become the same probability; the weights tell whether the choice is as good.
            for (c, o) in chosen.iter().zip(&order) {
                prop_assert!(coarse && *c as usize == *o || (p[*c as usize] / p[*o] - 1.0).abs() < 1e-6);
            }
            let want: Vec<_> = order.iter().map(|i| p[*i] / total).collect();
            close("route", k.isa(), &weights, &want, 2e-6);
        }
    }
}

#[test]
fn routing_of_broken_logits_stays_in_range() {
    for k in all() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for n in [8, 37] {
                let (mut chosen, mut weights) = ([u32::MAX; 8], [0.0; 8]);
                k.route(&mut vec![bad; n], &mut chosen, &mut weights, n == 8);
                let mut seen = chosen.to_vec();
                seen.sort_unstable();
                seen.dedup();
                assert!(seen.len() == 8 && seen[7] < n as u32, "{chosen:?}");
            }
        }
    }
}

#[test]
fn half_precision_never_overflows() {
    for k in all() {
        let mut out = [0; 5];
        k.to_f16(&[1e9, -1e9, f32::INFINITY, f32::NEG_INFINITY, f32::NAN], &mut out);
        let (max, min) = (f16::MAX.to_bits(), f16::MIN.to_bits());
        assert_eq!(out[..4], [max, min, max, min]);
        assert!(f16::from_bits(out[4]).is_nan());
    }
}

#[test]
fn quantised_rows_are_always_finite() {
    for k in all() {
        for bad in [1e9, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let (mut x, mut out, mut back) = ([1.0; 64], [0; 68], [0.0; 64]);
            x[40] = bad;
            k.to_q8_0(&x, &mut out);
            GgmlType::Q8_0.dequantize(&out, &mut back);
            assert!(back.iter().all(|x| x.is_finite()), "{}: {bad}", k.isa().name());
            assert!((back[3] - 1.0).abs() < 1e-3, "another block is not touched");
        }
    }
}

/// `exp` and `softplus` of some values, lane by lane.
fn exp_softplus<S: Simd>(s: S, x: &[f32]) -> Vec<(f32, f32)> {
    let mut out = Vec::new();
    for x in x.chunks_exact(S::LANES) {
        let (mut e, mut p) = ([0.0; MAX_LANES], [0.0; MAX_LANES]);
        s.write(&mut e, math::exp(s, s.read(x)));
        s.write(&mut p, math::softplus(s, s.read(x)));
        out.extend((0..S::LANES).map(|i| (e[i], p[i])));
    }
    out
}

fn exp_softplus_on(isa: Isa, x: &[f32]) -> Vec<(f32, f32)> {
    match isa {
        Isa::Portable => exp_softplus(Portable, x),
        // SAFETY: only instruction sets that this machine has are tested.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::AvxVnni => exp_softplus(unsafe { crate::cpu::vector::simd::Avx2::new() }, x),
        // SAFETY: likewise.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => exp_softplus(unsafe { crate::cpu::vector::simd::Avx512::new() }, x),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonI8mm => exp_softplus(crate::cpu::vector::simd::Neon, x),
        #[allow(unreachable_patterns)]
        _ => unreachable!("not available here"),
    }
}

/// Distance of `got` from `want` in units of the last place of `want`'s f32.
fn ulps(got: f32, want: f64) -> f64 {
    let near = want as f32;
    let ulp = f64::from(f32::from_bits(near.abs().to_bits() + 1)) - f64::from(near.abs());
    (f64::from(got) - want).abs() / ulp
}

#[test]
fn exp_and_softplus_over_their_whole_range() {
    // Every exponent and both signs, many mantissas; and a fine walk through where the result is finite.
    let mut x: Vec<f32> = (0..1u32 << 17).map(|i| f32::from_bits(i << 15)).filter(|x| !x.is_nan()).collect();
    x.extend((0..200_000).map(|i| -105.0 + i as f32 * (194.0 / 200_000.0)));
    x.truncate(x.len() / MAX_LANES * MAX_LANES);
    for k in all() {
        let (mut worst_exp, mut worst_softplus) = (0.0f64, 0.0f64);
        for (&x, (e, p)) in x.iter().zip(exp_softplus_on(k.isa(), &x)) {
            let wide = f64::from(x);
            if (wide.exp() as f32).is_infinite() {
                assert!(e.is_infinite() && e > 0.0, "exp({x}) is {e}");
            } else {
                worst_exp = worst_exp.max(ulps(e, wide.exp()));
            }
            if x.is_finite() {
                worst_softplus = worst_softplus.max(ulps(p, wide.max(0.0) + (-wide.abs()).exp().ln_1p()));
            }
        }
        assert!(worst_exp < 2.0, "{}: exp is off by {worst_exp} ulp", k.isa().name());
        assert!(worst_softplus < 4.0, "{}: softplus is off by {worst_softplus} ulp", k.isa().name());
        let ends: Vec<f32> = [f32::NEG_INFINITY, f32::NAN, f32::INFINITY, 0.0].repeat(MAX_LANES / 4);
        let got = exp_softplus_on(k.isa(), &ends);
        assert!(got[0].0.to_bits() == 0 && got[1].0.is_nan() && got[2].0 == f32::INFINITY && got[3].0 == 1.0);
        assert!(got[0].1 == 0.0 && got[1].1.is_nan() && got[2].1 == f32::INFINITY);
    }
}

#[test]
fn kernels_are_refused_where_the_machine_lacks_them() {
    assert!(Isa::ALL.into_iter().all(|isa| VectorKernels::for_isa(isa).is_some() == isa.available()));
    assert!(Isa::detect().available());
}
