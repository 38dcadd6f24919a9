//! `x ~ step * q + low` with `q` in `0..=TOP`: the least weighted squares over step and low, for sixteen groups at once.
//!
//! For given `q` the best step and low solve two linear equations; for a given step and low the best `q` are the nearest ones. Each start
//! (a range that leaves out a part of both ends) takes a few such turns, and the start with the least error wins.

use crate::lanes::{Groups, LANES, V, between, inverse, nearest};

/// What a group's error depends on, for given `q`.
#[derive(Clone, Copy)]
pub struct Sums {
    pub w: V,
    pub wx: V,
    pub wxx: V,
    pub wq: V,
    pub wqq: V,
    pub wqx: V,
}

/// A fit of sixteen groups.
#[derive(Clone, Copy)]
pub struct Fit {
    pub step: V,
    pub low: V,
    pub error: V,
}

/// The sums that do not depend on `q`.
#[inline(always)]
pub fn constant<const N: usize>(g: &Groups<N>) -> Sums {
    let mut s = Sums {
        w: [0.0; LANES],
        wx: [0.0; LANES],
        wxx: [0.0; LANES],
        wq: [0.0; LANES],
        wqq: [0.0; LANES],
        wqx: [0.0; LANES],
    };
    for i in 0..N {
        for l in 0..LANES {
            let (x, w) = (g.x[i][l], g.w[i][l]);
            s.w[l] += w;
            s.wx[l] += w * x;
            s.wxx[l] += w * x * x;
        }
    }
    s
}

/// The sums over the nearest `q`.
#[inline(always)]
pub fn assign<const N: usize>(g: &Groups<N>, step: &V, low: &V, top: f32, s: &mut Sums) {
    let mut inv = [0.0; LANES];
    for l in 0..LANES {
        inv[l] = inverse(step[l]);
    }
    let (mut wq, mut wqq, mut wqx) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    for i in 0..N {
        for l in 0..LANES {
            let x = g.x[i][l];
            let q = between(nearest((x - low[l]) * inv[l]), 0.0, top);
            let v = g.w[i][l] * q;
            wq[l] += v;
            wqq[l] += v * q;
            wqx[l] += v * x;
        }
    }
    (s.wq, s.wqq, s.wqx) = (wq, wqq, wqx);
}

/// The best step and low for the sums' `q`, and their error. `negative`: low may not be above 0.
#[inline(always)]
pub fn solve(s: &Sums, negative: bool) -> Fit {
    let mut f = Fit { step: [0.0; LANES], low: [0.0; LANES], error: [0.0; LANES] };
    for l in 0..LANES {
        let det = s.w[l] * s.wqq[l] - s.wq[l] * s.wq[l];
        let r = if det > 0.0 { 1.0 / det } else { 0.0 };
        let step = (s.w[l] * s.wqx[l] - s.wq[l] * s.wx[l]) * r;
        let low = (s.wqq[l] * s.wx[l] - s.wq[l] * s.wqx[l]) * r;
        // without a low, or without a step
        let alone = if s.wqq[l] > 0.0 { s.wqx[l] / s.wqq[l] } else { 0.0 };
        let mean = if s.w[l] > 0.0 { s.wx[l] / s.w[l] } else { 0.0 };
        let mean = if negative && mean > 0.0 { 0.0 } else { mean };
        let one = negative && low > 0.0;
        let none = (det <= 0.0 || det.is_nan()) && !one;
        let step = if one { alone } else { step };
        let low = if one { 0.0 } else { low };
        f.step[l] = if none { 0.0 } else { step };
        f.low[l] = if none { mean } else { low };
        let (a, b) = (f.step[l], f.low[l]);
        f.error[l] = s.wxx[l]
            + a * a * s.wqq[l]
            + b * b * s.w[l]
            + 2.0 * (a * b * s.wq[l] - a * s.wqx[l] - b * s.wx[l]);
    }
    f
}

/// Fits sixteen groups. `cuts`: the parts of the range that the starts leave out, below and above.
#[inline(always)]
pub fn fit<const N: usize>(
    g: &Groups<N>,
    top: f32,
    negative: bool,
    cuts: &[(f32, f32)],
    turns: usize,
) -> Fit {
    let (mut low, mut high) = (g.x[0], g.x[0]);
    for i in 1..N {
        for l in 0..LANES {
            let x = g.x[i][l];
            low[l] = if x < low[l] { x } else { low[l] };
            high[l] = if x > high[l] { x } else { high[l] };
        }
    }
    if negative {
        for l in 0..LANES {
            low[l] = low[l].min(0.0);
            high[l] = high[l].max(low[l]);
        }
    }
    let mut s = constant(g);
    let mut best = Fit { step: [0.0; LANES], low: [0.0; LANES], error: [f32::INFINITY; LANES] };
    for &(below, above) in cuts {
        let (mut step, mut start) = ([0.0; LANES], [0.0; LANES]);
        for l in 0..LANES {
            let range = high[l] - low[l];
            start[l] = low[l] + below * range;
            step[l] = range * (1.0 - below - above) / top;
        }
        for _ in 0..turns {
            assign(g, &step, &start, top, &mut s);
            let f = solve(&s, negative);
            (step, start) = (f.step, f.low);
            keep(&mut best, &f);
        }
    }
    best
}

#[inline(always)]
fn keep(best: &mut Fit, f: &Fit) {
    for l in 0..LANES {
        let better = f.error[l] < best.error[l];
        best.step[l] = if better { f.step[l] } else { best.step[l] };
        best.low[l] = if better { f.low[l] } else { best.low[l] };
        best.error[l] = if better { f.error[l] } else { best.error[l] };
    }
}

/// The nearest `q` of sixteen groups in the order of the values: group `l` begins at `l * N`.
#[inline(always)]
pub fn codes<const N: usize>(g: &Groups<N>, step: &V, low: &V, top: f32, out: &mut [u8]) {
    let mut inv = [0.0; LANES];
    for l in 0..LANES {
        inv[l] = inverse(step[l]);
    }
    for i in 0..N {
        let mut c = [0u8; LANES];
        for l in 0..LANES {
            c[l] = between(nearest((g.x[i][l] - low[l]) * inv[l]), 0.0, top) as i32 as u8;
        }
        for l in 0..LANES {
            out[l * N + i] = c[l];
        }
    }
}
