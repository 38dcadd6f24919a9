//! The verb `moe`, a mixture of SwiGLU experts: tokens are grouped by expert, so that an expert's weights are read once a
//! step, and each token's experts are summed in ascending order, the shared one last.

use super::activations::ActView;
use super::device::Cpu;
use super::kernels::Kernels;
use super::kind::ROWS;
use super::linear::{self, Input, Norm, Output, add_bias, form, longest_run, multiply, multiply_groups};
use super::mlp::GateUp;
use super::pack::Packed;
use super::routes::Routes;
use super::scratch::Scratch;
use super::team::{Shards, Team, Worker};
use super::vector::VectorKernels;
use crate::backend::{MAX_TOP_K, Moe, SharedExpert};

/// A mixture of experts.
pub(super) fn moe(
    team: &mut Team,
    kernels: &Kernels,
    vector: &VectorKernels,
    s: &mut Scratch,
    n: usize,
    m: &Moe<Cpu>,
    h: &mut [f32],
) {
    assert!(m.top_k <= MAX_TOP_K && m.top_k == s.routes.top_k);
    let (threads, hidden, inner) = (team.threads(), m.norm.len(), m.gate.layout().rows());
    let shared_inner = m.shared.as_ref().map_or(0, |s| s.gate.packed.layout().rows());
    let wanted = form([&m.router.packed, &m.gate, &m.up]);
    let wanted = m.shared.as_ref().map_or(wanted, |s| wanted.and(form([&s.gate.packed, &s.up.packed])));
    let input = Input::new(&mut s.acts, n, n, hidden, threads, wanted);
    let step = Step {
        kernels,
        vector,
        m,
        tokens: &s.tokens[..n],
        own: Shards::new(&mut s.threads),
        per_thread: s.per_thread,
        shared_weight: Shards::new(&mut s.shared),
        rows: Shards::new(&mut s.expert_hidden),
        shared_rows: Shards::new(&mut s.hidden),
        out: Shards::new(h),
    };
    step.route(team, &input, &mut s.router, &mut s.routes);

    let (routes, assignments) = (&s.routes, &s.assignments[..n * m.top_k]);
    let shared_rows = if m.shared.is_some() { n } else { 0 };
    let shared_form = form(m.shared.iter().map(|s| &s.down.packed));
    let experts = Input::new(&mut s.expert_acts, n, n * m.top_k, inner, threads, form([&m.down]));
    let shared = Input::new(&mut s.hidden_acts, n, shared_rows, shared_inner, threads, shared_form);
    team.run(|w| {
        step.gate_up(w, routes, &input.view(w));
        step.prefetch_down(w, routes);
        w.barrier();
        // SAFETY: written before the barrier.
        let (rows, shared_rows) = unsafe { (step.rows.all(), step.shared_rows.all()) };
        let (view, shared_view) =
            experts.write_with(&shared, w, kernels, |i, put| match i.checked_sub(n * m.top_k) {
                None => put(&rows[i * inner..(i + 1) * inner]),
                Some(t) => put(&shared_rows[t * shared_inner..(t + 1) * shared_inner]),
            });
        step.down(w, routes, assignments, &view, &shared_view);
    });
}

/// One call of the verb, shared by its regions.
struct Step<'a> {
    kernels: &'a Kernels,
    vector: &'a VectorKernels,
    m: &'a Moe<Cpu>,
    tokens: &'a [u32],
    /// `[threads, per_thread]`
    own: Shards<'a, f32>,
    per_thread: usize,
    /// Weight of the shared expert `[tokens]`.
    shared_weight: Shards<'a, f32>,
    /// Hidden rows of the assignments, and of the shared expert.
    rows: Shards<'a, f32>,
    shared_rows: Shards<'a, f32>,
    /// The residual stream.
    out: Shards<'a, f32>,
}

impl<'a> Step<'a> {
    /// This thread's working memory.
    #[allow(clippy::mut_from_ref)]
    fn own(&self, w: &Worker) -> &'a mut [f32] {
        // SAFETY: each thread has a part of its own, and no two methods of a region use it at the same time.
        unsafe { self.own.part(w.id * self.per_thread, self.per_thread) }
    }

    /// Normalises the tokens and chooses the experts of each.
    fn route(&self, team: &mut Team, input: &Input, logits: &mut [f32], routes: &mut Routes) {
        let Self { kernels, vector, m, tokens, .. } = *self;
        let (n, hidden) = (tokens.len(), m.norm.len());
        let logits = Output::new(&m.router, logits);
        let norm = Norm { vector, weights: &m.norm, eps: m.eps };
        let (chosen, weights) = (Shards::new(&mut routes.chosen), Shards::new(&mut routes.weights));
        team.run(|w| {
            linear::prefetch(w, kernels, [&m.router]);
            let own = self.own(w);
            // SAFETY: no thread writes `h` in this region.
            let x = unsafe { self.out.read(0, n * hidden) };
            let view = input.write(w, kernels, |t, put| {
                norm.row(x, t, own, &|row| {
                    put(row);
                    // If each thread writes all rows for itself, the first one writes this.
                    if let (Some(s), true) = (&m.shared, !input.is_private() || w.id == 0) {
                        let weight = vector.sigmoid_dot(&s.router, row);
                        // SAFETY: one thread writes it (see above), and others read it in a later region.
                        unsafe { self.shared_weight.part(t, 1)[0] = weight };
                    }
                });
            });
            multiply(w, kernels, [&m.router], &view, tokens, own, |_, g, t, y| logits.set(g, t, y));
            w.barrier();
            for t in w.items(n) {
                // SAFETY: each token is one thread's.
                unsafe {
                    let chosen = chosen.part(t * m.top_k, m.top_k);
                    vector.route(logits.row(t), chosen, weights.part(t * m.top_k, m.top_k), m.norm_top_k);
                }
            }
        });
        routes.group(n);
    }

    /// `silu(gate . x) * (up . x)` of every assignment and of the shared expert.
    fn gate_up(&self, w: &Worker, routes: &Routes, view: &ActView) {
        let Self { kernels, vector, m, tokens, .. } = *self;
        let own = self.own(w);
        let pair = |expert: u32| GateUp::of_expert(&m.gate, &m.up, expert);
        let shared = m.shared.as_ref().map(|s| GateUp::new(&s.gate, &s.up));
        // The groups of all experts in use, one after the other, then those of the shared one.
        let of_expert = pair(0).groups();
        let routed = routes.used().len() * of_expert;
        let all = routed + shared.as_ref().map_or(0, GateUp::groups);
        let first = |at: usize| match (&shared, at < routed) {
            (_, true) => pair(routes.used()[at / of_expert]).first(at % of_expert),
            (Some(s), false) => s.first(at - routed),
            (None, false) => None,
        };
        kernels.prefetch(first(w.first_item(all)));
        let put = |rows: &Shards<f32>, i: usize, inner: usize, g: usize, y: &[f32]| {
            // SAFETY: each group of each assignment, or token, is computed by one thread.
            unsafe { rows.part(i * inner + g * ROWS, y.len()) }.copy_from_slice(y);
        };
        for run in w.runs(all, pair(0).longest_run()) {
            let mut at = run.start;
            while at < run.end && at < routed {
                let (expert, group) = (routes.used()[at / of_expert], at % of_expert);
                let end = run.end.min(at - group + of_expert);
                let (pair, range, groups) = (pair(expert), routes.of(expert), group..group + end - at);
                let (inner, tokens) = (pair.width(), &routes.token[range.clone()]);
                pair.rows(kernels, vector, groups, first(end), view, tokens, own, |i, g, y| {
                    put(&self.rows, range.start + i, inner, g, y);
                });
                at = end;
            }
            if let (Some(s), true) = (&shared, at < run.end) {
                let (inner, groups) = (s.width(), at - routed..run.end - routed);
                s.rows(kernels, vector, groups, first(run.end), view, tokens, own, |t, g, y| {
                    put(&self.shared_rows, t, inner, g, y);
                });
            }
        }
    }

    /// Prefetches what this thread reads first in [`Step::down`].
    fn prefetch_down(&self, w: &Worker, routes: &Routes) {
        let (down, groups) = (&self.m.down, self.m.down.layout().groups());
        let first = w.first_item(groups);
        if let (Some(&expert), true) = (routes.used().first(), first < groups) {
            self.kernels.prefetch(Some((down, expert as usize * groups + first)));
        }
    }

    /// Adds the experts' outputs to the residual stream: of each row all experts in order, on one thread.
    fn down(&self, w: &Worker, routes: &Routes, assignments: &[u32], view: &ActView, shared_view: &ActView) {
        let Self { kernels, vector, m, tokens, .. } = *self;
        let (own, hidden, all) = (self.own(w), m.norm.len(), m.down.layout().groups());
        let add = |g: usize, y: &[f32], t: usize, weight: f32| {
            let (from, len) = (g * ROWS, ROWS.min(hidden - g * ROWS));
            // SAFETY: each group of rows is one thread's.
            vector.add_scaled(unsafe { self.out.part(t * hidden + from, len) }, &y[..len], weight);
        };
        for groups in w.runs(all, longest_run(&m.down)) {
            let first = |expert: &u32| (&m.down, *expert as usize * all + groups.start);
            let shared_first = m.shared.as_ref().map(|s| (&s.down.packed, groups.start));
            for (i, &expert) in routes.used().iter().enumerate() {
                let next = routes.used().get(i + 1).map(first).or(shared_first);
                let range = routes.of(expert);
                let groups = expert as usize * all + groups.start..expert as usize * all + groups.end;
                multiply_groups(
                    kernels,
                    &m.down,
                    groups,
                    next,
                    view,
                    &assignments[range],
                    own,
                    |g, p, tile| {
                        for (&p, y) in p.iter().zip(tile.chunks_exact(ROWS)) {
                            let (token, weight) = (routes.token[p as usize], routes.weight[p as usize]);
                            add(g - expert as usize * all, y, token as usize, weight);
                        }
                    },
                );
            }
            let Some(shared) = &m.shared else { continue };
            // SAFETY: written in the region before.
            let weight = unsafe { self.shared_weight.read(0, tokens.len()) };
            let down = &shared.down;
            let next = routes.used().first().map(|&e| (&m.down, e as usize * all + groups.end));
            let next = next.filter(|_| groups.end < all);
            multiply_groups(kernels, &down.packed, groups, next, shared_view, tokens, own, |g, t, tile| {
                add_bias(down.bias.as_deref(), g, tile);
                for (&t, y) in t.iter().zip(tile.chunks_exact(ROWS)) {
                    add(g, y, t as usize, weight[t as usize]);
                }
            });
        }
    }
}

/// Bytes of weights that the last call with `m` read.
pub(super) fn bytes(s: &Scratch, m: &Moe<Cpu>) -> usize {
    let one = |p: &Packed| p.layout().groups() * p.layout().group_bytes();
    let shared = |s: &SharedExpert<Cpu>| {
        s.gate.packed.size_bytes()
            + s.up.packed.size_bytes()
            + s.down.packed.size_bytes()
            + 4 * s.router.len()
    };
    s.routes.used().len() * (one(&m.gate) + one(&m.up) + one(&m.down))
        + m.router.packed.size_bytes()
        + m.shared.as_ref().map_or(0, shared)
}
