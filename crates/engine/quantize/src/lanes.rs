//! Sixteen groups of values side by side: every loop over [`LANES`] is one or two vector operations, without sums across a register.

/// Groups that are fitted at once.
pub const LANES: usize = 16;
/// One number of each group.
pub type V = [f32; LANES];

/// Values and weights of sixteen groups of `N` values, transposed: `x[i][l]` is value `i` of group `l`.
pub struct Groups<const N: usize> {
    pub x: [V; N],
    pub w: [V; N],
}

impl<const N: usize> Groups<N> {
    /// From consecutive groups; what is missing at the end is 0 with a weight of 1.
    #[inline(always)]
    pub fn load(x: &[f32], w: Option<&[f32]>) -> Self {
        let mut g = Self { x: [[0.0; LANES]; N], w: [[1.0; LANES]; N] };
        transpose(x, &mut g.x);
        if let Some(w) = w {
            transpose(w, &mut g.w);
        }
        g
    }
}

#[inline(always)]
fn transpose<const N: usize>(from: &[f32], to: &mut [V; N]) {
    for (l, group) in from.as_chunks::<N>().0.iter().take(LANES).enumerate() {
        for i in 0..N {
            to[i][l] = group[i];
        }
    }
}

/// The nearest whole number, of equals the even one; `|x|` below 2^22. Two additions, where a call of a library function would take
/// longer than all the rest.
#[inline(always)]
pub fn nearest(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23
    (x + SHIFT) - SHIFT
}

/// `x` between `low` and `high`; not a number becomes `low`.
#[inline(always)]
pub fn between(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > low { x } else { low };
    if x < high { x } else { high }
}

/// `1 / x`, and 0 for 0.
#[inline(always)]
pub fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}
