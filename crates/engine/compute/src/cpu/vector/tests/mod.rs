//! Every kernel on every instruction set of this machine against a plain f64 computation, and the guarantees of equal bits.

mod attention;
mod gdn;
mod golden;
mod rows;

use super::VectorKernels;
use crate::cpu::isa::Isa;

/// The kernels of every instruction set that this machine has.
fn all() -> impl Iterator<Item = VectorKernels> {
    Isa::ALL.into_iter().filter_map(VectorKernels::for_isa)
}

/// A generator of test values: splitmix64.
struct Values(u64);

impl Values {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In `-scale..scale`.
    fn one(&mut self, scale: f32) -> f32 {
        ((self.next() >> 40) as f32 / (1u32 << 23) as f32 - 1.0) * scale
    }

    fn take(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.one(scale)).collect()
    }
}

/// Panics unless each value is within `tolerance` of `want`, relative to 1 or to the value where that is larger.
fn close(what: &str, isa: Isa, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*g) - w).abs() / w.abs().max(1.0);
        assert!(error <= tolerance, "{what}, {}: [{i}] is {g}, not {w}", isa.name());
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}
