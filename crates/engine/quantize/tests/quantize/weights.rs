//! Weights of two distributions, the same on every machine.

pub const ROWS: usize = 128;
pub const COLUMNS: usize = 2048;

/// Values from 0 up to 1.
pub fn random(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Normal values by Box and Muller.
fn normal_value(random: &mut impl FnMut() -> f64) -> f64 {
    (-2.0 * (1.0 - random()).ln()).sqrt() * (std::f64::consts::TAU * random()).cos()
}

/// Normal weights.
pub fn normal() -> Vec<f32> {
    let mut r = random(1);
    (0..ROWS * COLUMNS).map(|_| normal_value(&mut r) as f32).collect()
}

/// Student's t with 4 degrees of freedom, rows of different size, and 16 columns that are eight times as large.
pub fn heavy() -> Vec<f32> {
    let mut r = random(2);
    let mut x = Vec::with_capacity(ROWS * COLUMNS);
    for _ in 0..ROWS {
        let size = 0.02 * (0.5 * normal_value(&mut r)).exp();
        for c in 0..COLUMNS {
            let chi = -2.0 * ((1.0 - r()).ln() + (1.0 - r()).ln());
            let outlier = if c % 128 == 77 { 8.0 } else { 1.0 };
            x.push((size * outlier * normal_value(&mut r) / (chi / 4.0).sqrt()) as f32);
        }
    }
    x
}

/// Log-normal weights of the columns.
pub fn importance() -> Vec<f32> {
    let mut r = random(3);
    (0..COLUMNS).map(|_| (1.5 * normal_value(&mut r)).exp() as f32).collect()
}
