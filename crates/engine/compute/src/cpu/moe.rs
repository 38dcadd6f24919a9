//! The verb `moe`, a mixture of experts: tokens are grouped by expert, so that an expert's weights are read once a
//! step, and each token's experts are summed in ascending order, the shared one last.

use super::activations::ActView;
use super::choice;
use super::device::Cpu;
use super::glu::GateUp;
use super::kernels::Kernels;
use super::kind::ROWS;
use super::linear::{self, Input, Output, Source, add_bias, form, longest_run, multiply, multiply_groups};
use super::memory::Weight;
use super::routes::Routes;
use super::scratch::Scratch;
use super::team::{Shards, Team, Worker};
use super::vector::VectorKernels;
use crate::backend::{Glu, MAX_TOP_K, Moe, Norm, Out};

/// A mixture of experts. If the router has an input of its own, its logits are in `s.router`.
pub(super) fn moe(
    team: &mut Team,
    kernels: &Kernels,
    vector: &VectorKernels,
    s: &mut Scratch,
    n: usize,
    x: Option<&[f32]>,
    norm: Option<&Norm<Cpu>>,
    m: &Moe<Cpu>,
    out: Out<Cpu>,
) {
    let top_k = m.router.top_k;
    assert!(top_k <= MAX_TOP_K && top_k == s.routes.top_k);
    let layout = m.experts.up.packed.layout();
    let (threads, hidden, inner) = (team.threads(), layout.cols(), layout.rows());
    let shared_inner = m.shared.as_ref().map_or(0, |s| s.glu.up.packed.layout().rows());
    let inputs = |g: &'_ Glu<Weight>| form(g.gate.iter().chain([&g.up]).map(|w| &w.packed));
    let wanted = form([&m.router.weight.packed]).and(inputs(&m.experts));
    let wanted = m.shared.as_ref().map_or(wanted, |s| wanted.and(inputs(&s.glu)));
    let input = Input::new(&mut s.acts, n, n, hidden, threads, wanted);
    let (out, scale, adds) = match out {
        Out::Write(out) => (out, 1.0, false),
        Out::Add(out, scale) => (out, scale, true),
    };
    let step = Step {
        kernels,
        vector,
        m,
        hidden,
        tokens: &s.tokens[..n],
        own: Shards::new(&mut s.threads),
        per_thread: s.per_thread,
        shared_weight: Shards::new(&mut s.shared),
        rows: Shards::new(&mut s.expert_hidden),
        shared_rows: Shards::new(&mut s.hidden),
        x,
        out: Shards::new(out),
        scale,
        adds,
    };
    step.route(team, &input, norm, &mut s.router, &mut s.routes);

    let (routes, assignments) = (&s.routes, &s.assignments[..n * top_k]);
    let shared_rows = if m.shared.is_some() { n } else { 0 };
    let shared_form = form(m.shared.iter().map(|s| &s.glu.down.packed));
    let down_form = form([&m.experts.down.packed]);
    let experts = Input::new(&mut s.expert_acts, n, n * top_k, inner, threads, down_form);
    let shared = Input::new(&mut s.hidden_acts, n, shared_rows, shared_inner, threads, shared_form);
    team.run(|w| {
        step.gate_up(w, routes, &input.view(w));
        step.prefetch_down(w, routes);
        w.barrier();
        // SAFETY: written before the barrier.
        let (rows, shared_rows) = unsafe { (step.rows.all(), step.shared_rows.all()) };
        let (view, shared_view) =
            experts.write_with(&shared, w, kernels, |i, put| match i.checked_sub(n * top_k) {
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
    hidden: usize,
    tokens: &'a [u32],
    /// `[threads, per_thread]`
    own: Shards<'a, f32>,
    per_thread: usize,
    /// Weight of the shared expert `[tokens]`.
    shared_weight: Shards<'a, f32>,
    /// Hidden rows of the assignments, and of the shared expert.
    rows: Shards<'a, f32>,
    shared_rows: Shards<'a, f32>,
    /// The block's input; `None`: what it adds to.
    x: Option<&'a [f32]>,
    out: Shards<'a, f32>,
    /// Factor of the results, which are added to `out`, or written.
    scale: f32,
    adds: bool,
}

impl<'a> Step<'a> {
    /// This thread's working memory.
    #[allow(clippy::mut_from_ref)]
    fn own(&self, w: &Worker) -> &'a mut [f32] {
        // SAFETY: each thread has a part of its own, and no two methods of a region use it at the same time.
        unsafe { self.own.part(w.id * self.per_thread, self.per_thread) }
    }

    /// Normalises the tokens and chooses the experts of each.
    fn route(
        &self,
        team: &mut Team,
        input: &Input,
        norm: Option<&Norm<Cpu>>,
        logits: &mut [f32],
        routes: &mut Routes,
    ) {
        let Self { kernels, vector, m, tokens, hidden, .. } = *self;
        let (n, router) = (tokens.len(), &m.router);
        let logits = Output::new(&router.weight, logits);
        let source = Source { vector, norm, cols: hidden };
        let (chosen, weights) = (Shards::new(&mut routes.chosen), Shards::new(&mut routes.weights));
        team.run(|w| {
            linear::prefetch(w, kernels, [&router.weight]);
            let own = self.own(w);
            // SAFETY: no thread writes `out` in this region.
            let x = self.x.unwrap_or_else(|| unsafe { self.out.read(0, n * hidden) });
            let view = input.write(w, kernels, |t, put| {
                source.row(x, t, own, &|row| {
                    put(row);
                    // If each thread writes all rows for itself, the first one writes this.
                    if let (Some(s), true) = (&m.shared, !input.is_private() || w.id == 0) {
                        let weight = s.gate.as_ref().map_or(1.0, |g| vector.sigmoid_dot(g, row));
                        // SAFETY: one thread writes it (see above), and others read it in a later region.
                        unsafe { self.shared_weight.part(t, 1)[0] = weight };
                    }
                });
            });
            if router.input.is_none() {
                multiply(w, kernels, [&router.weight], &view, tokens, own, |_, g, t, y| logits.put(g, t, y));
            }
            w.barrier();
            for t in w.items(n) {
                // SAFETY: each token is one thread's.
                unsafe {
                    let chosen = chosen.part(t * router.top_k, router.top_k);
                    let weights = weights.part(t * router.top_k, router.top_k);
                    choice::choose(vector, router, logits.row(t), own, chosen, weights);
                }
            }
        });
        routes.group(n);
    }

    /// `act(gate . x) * (up . x)` of every assignment and of the shared expert.
    fn gate_up(&self, w: &Worker, routes: &Routes, view: &ActView) {
        let Self { kernels, vector, m, tokens, .. } = *self;
        let own = self.own(w);
        let pair = |expert: u32| GateUp::new(&m.experts, expert);
        let shared = m.shared.as_ref().map(|s| GateUp::new(&s.glu, 0));
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
                let weights = m.router.weighs_input.then(|| &routes.weight[range.clone()]);
                pair.rows(kernels, vector, groups, first(end), view, tokens, weights, own, |i, g, y| {
                    put(&self.rows, range.start + i, inner, g, y);
                });
                at = end;
            }
            if let (Some(s), true) = (&shared, at < run.end) {
                let (inner, groups) = (s.width(), at - routed..run.end - routed);
                s.rows(kernels, vector, groups, first(run.end), view, tokens, None, own, |t, g, y| {
                    put(&self.shared_rows, t, inner, g, y);
                });
            }
        }
    }

    /// Prefetches what this thread reads first in [`Step::down`].
    fn prefetch_down(&self, w: &Worker, routes: &Routes) {
        let down = &self.m.experts.down.packed;
        let groups = down.layout().groups();
        let first = w.first_item(groups);
        if let (Some(&expert), true) = (routes.used().first(), first < groups) {
            self.kernels.prefetch(Some((down, expert as usize * groups + first)));
        }
    }

    /// Adds the experts' outputs to the residual stream: of each row all experts in order, on one thread.
    fn down(&self, w: &Worker, routes: &Routes, assignments: &[u32], view: &ActView, shared_view: &ActView) {
        let Self { kernels, vector, m, tokens, hidden, scale, .. } = *self;
        let down = &m.experts.down;
        let (own, all) = (self.own(w), down.packed.layout().groups());
        // SAFETY: each group of rows is one thread's.
        let part =
            |g: usize, t: usize| unsafe { self.out.part(t * hidden + g * ROWS, ROWS.min(hidden - g * ROWS)) };
        let add = |g: usize, y: &[f32], t: usize, weight: f32| {
            let out = part(g, t);
            vector.add_scaled(out, &y[..out.len()], scale * weight);
        };
        for groups in w.runs(all, longest_run(&down.packed)) {
            if !self.adds {
                groups.clone().for_each(|g| (0..tokens.len()).for_each(|t| part(g, t).fill(0.0)));
            }
            let first = |expert: &u32| (&down.packed, *expert as usize * all + groups.start);
            let shared_first = m.shared.as_ref().map(|s| (&s.glu.down.packed, groups.start));
            for (i, &expert) in routes.used().iter().enumerate() {
                let next = routes.used().get(i + 1).map(first).or(shared_first);
                let range = routes.of(expert);
                let base = expert as usize * all;
                let bias = down.bias.as_deref().map(|b| &b[expert as usize * hidden..]);
                let (groups, p) = (base + groups.start..base + groups.end, &assignments[range]);
                multiply_groups(kernels, &down.packed, groups, next, view, p, own, |g, p, tile| {
                    add_bias(bias, g - base, tile);
                    for (&p, y) in p.iter().zip(tile.chunks_exact(ROWS)) {
                        let (token, weight) = (routes.token[p as usize], routes.weight[p as usize]);
                        let weight = if m.router.weighs_input { 1.0 } else { weight };
                        add(g - base, y, token as usize, weight);
                    }
                });
            }
            let Some(shared) = &m.shared else { continue };
            // SAFETY: written in the region before.
            let weight = unsafe { self.shared_weight.read(0, tokens.len()) };
            let down = &shared.glu.down;
            let next =
                routes.used().first().map(|&e| (&m.experts.down.packed, e as usize * all + groups.end));
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
    let parts = |g: &Glu<Weight>, of: &dyn Fn(&Weight) -> usize| {
        g.gate.iter().chain([&g.up, &g.down]).map(of).sum::<usize>()
    };
    let one = |w: &Weight| w.packed.layout().groups() * w.packed.layout().group_bytes();
    let whole = |w: &Weight| w.packed.size_bytes();
    let shared =
        m.shared.as_ref().map_or(0, |s| parts(&s.glu, &whole) + s.gate.as_ref().map_or(0, |g| 4 * g.len()));
    s.routes.used().len() * parts(&m.experts, &one) + m.router.weight.packed.size_bytes() + shared
}
