//! The verb `moe`, a mixture of experts: tokens are grouped by expert, so that an expert's weights are read once a
//! step, and each token's experts are summed in ascending order, the shared one last. Experts that are not all in memory are computed in
//! rounds, see `store`.

#[cfg(test)]
mod tests;

use std::ops::Range;

use super::activations::{ActView, Activations};
use super::choice;
use super::device::Cpu;
use super::glu::GateUp;
use super::kernels::Kernels;
use super::kind::{Form, ROWS};
use super::linear::{self, Input, Output, Source, add_bias, form, longest_run, multiply, multiply_groups};
use super::memory::Weight;
use super::pack::Packed;
use super::routes::Routes;
use super::scratch::Scratch;
use super::store::{Experts, Round, Store};
use super::team::{Shards, Team, Worker};
use super::vector::VectorKernels;
use crate::backend::{Glu, MAX_TOP_K, Moe, Norm, Out};

/// A mixture of experts. If the router has an input of its own, its logits are in `s.router`. If its experts are not all in memory, `store` is
/// where they are read into, and the layer there.
pub(super) fn moe(
    team: &mut Team,
    kernels: &Kernels,
    vector: &VectorKernels,
    s: &mut Scratch,
    store: Option<(&mut Store, usize)>,
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

    let mut hidden = Hidden {
        routes: &s.routes,
        assignments: &s.assignments[..n * top_k],
        input: &input,
        acts: &mut s.expert_acts,
        shared_acts: &mut s.hidden_acts,
        inner,
        shared_inner,
        forms: [form([&m.experts.down.packed]), form(m.shared.iter().map(|s| &s.glu.down.packed))],
    };
    match store {
        None => {
            let used = Chosen { ids: s.routes.used(), slots: s.routes.used() };
            step.compute(team, &mut hidden, used, used, [true, true]);
            step.set_checked(used.ids);
        }
        Some((store, layer)) => step.compute_stored(team, &mut hidden, store, layer, &mut s.rounds),
    }
}

/// Some experts, ascending, and where each is among the packed ones.
#[derive(Clone, Copy)]
struct Chosen<'a> {
    ids: &'a [u32],
    slots: &'a [u32],
}

impl<'a> From<&'a Experts> for Chosen<'a> {
    fn from(experts: &'a Experts) -> Self {
        Self { ids: &experts.ids, slots: &experts.slots }
    }
}

/// What lies between the two halves of the experts.
struct Hidden<'a, 'b> {
    routes: &'a Routes,
    assignments: &'a [u32],
    /// The experts' input.
    input: &'a Input<'b>,
    acts: &'a mut Activations,
    shared_acts: &'a mut Activations,
    inner: usize,
    shared_inner: usize,
    /// Of the routed experts' hidden rows, and of the shared one's.
    forms: [Form; 2],
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

    /// Compares groups of rows with their checksums, unless that was done with their whole expert. Right after they were multiplied, they
    /// are in this thread's cache: so memory is read once. If they are wrong, the step fails at its end.
    fn check<'p>(&self, parts: impl IntoIterator<Item = &'p Packed>, expert: u32, groups: Range<usize>) {
        for part in parts {
            if let Some(checks) = part.checks().filter(|checks| !checks.is_checked(expert as usize)) {
                let base = expert as usize * part.layout().groups();
                checks.check_groups(base + groups.start..base + groups.end);
            }
        }
    }

    /// All groups of the experts `used` were compared.
    fn set_checked(&self, used: &[u32]) {
        let e = &self.m.experts;
        let checks = e.gate.iter().chain([&e.up, &e.down]).filter_map(|w| w.packed.checks());
        checks.for_each(|checks| used.iter().for_each(|&expert| checks.set_checked(expert as usize)));
    }

    /// Computes the experts `all`, of which `late` have no hidden rows yet, and adds their outputs. With the `[first, last]` ones of a step,
    /// the shared expert is the last one.
    fn compute(
        &self,
        team: &mut Team,
        hidden: &mut Hidden,
        late: Chosen,
        all: Chosen,
        [first, last]: [bool; 2],
    ) {
        let Hidden { routes, assignments, input, inner, shared_inner, forms, .. } = *hidden;
        let (n, threads) = (self.tokens.len(), team.threads());
        // The assignments of these experts lie side by side.
        let from = all.ids.first().map_or(0, |&e| routes.of(e).start);
        let count = all.ids.last().map_or(0, |&e| routes.of(e).end) - from;
        let shared_rows = if self.m.shared.is_some() && last { n } else { 0 };
        let experts = Input::new(hidden.acts, n, count, inner, threads, forms[0]);
        let shared = Input::new(hidden.shared_acts, n, shared_rows, shared_inner, threads, forms[1]);
        team.run(|w| {
            self.gate_up(w, routes, late, last, &input.view(w));
            self.prefetch_down(w, all);
            w.barrier();
            // SAFETY: written before the barrier.
            let (rows, shared_rows) = unsafe { (self.rows.all(), self.shared_rows.all()) };
            let (view, shared_view) =
                experts.write_with(&shared, w, self.kernels, |i, put| match i.checked_sub(count) {
                    None => put(&rows[(from + i) * inner..(from + i + 1) * inner]),
                    Some(t) => put(&shared_rows[t * shared_inner..(t + 1) * shared_inner]),
                });
            self.down(w, routes, all, from, assignments, &view, &shared_view, [first, last]);
        });
    }

    /// Computes all experts of the step, whose weights are read into the slots of `layer`.
    fn compute_stored(
        &self,
        team: &mut Team,
        hidden: &mut Hidden,
        store: &mut Store,
        layer: usize,
        rounds: &mut [Round; 2],
    ) {
        let (routes, input) = (hidden.routes, hidden.input);
        let used = routes.used();
        let [now, next] = rounds;
        store.begin(layer, used);
        let (mut at, mut end) = (0, store.plan(layer, used, true, now));
        while at < end {
            // What is there is computed while the rest is read.
            if !now.early.ids.is_empty() && !now.late.ids.is_empty() {
                team.run(|w| self.gate_up(w, routes, (&now.early).into(), false, &input.view(w)));
            }
            let late = if now.late.ids.is_empty() { &now.early } else { &now.late };
            let mut planned = store.plan(layer, &used[end..], false, next);
            store.wait(layer, now);
            self.compute(team, hidden, late.into(), (&now.all).into(), [at == 0, end == used.len()]);
            store.done(layer, now);
            if planned == 0 {
                planned = store.plan(layer, &used[end..], true, next);
            }
            (at, end) = (end, end + planned);
            std::mem::swap(now, next);
        }
    }

    /// `act(gate . x) * (up . x)` of every assignment of these experts, and of the shared expert if it is `with_shared`.
    fn gate_up(&self, w: &Worker, routes: &Routes, experts: Chosen, with_shared: bool, view: &ActView) {
        let Self { kernels, vector, m, tokens, .. } = *self;
        let own = self.own(w);
        let pair = |i: usize| GateUp::new(&m.experts, experts.ids[i], experts.slots[i]);
        let shared = m.shared.as_ref().filter(|_| with_shared).map(|s| GateUp::new(&s.glu, 0, 0));
        // The groups of all experts, one after the other, then those of the shared one.
        let of_expert = m.experts.up.packed.layout().groups();
        let routed = experts.ids.len() * of_expert;
        let all = routed + shared.as_ref().map_or(0, GateUp::groups);
        let first = |at: usize| match (&shared, at < routed) {
            (_, true) => pair(at / of_expert).first(at % of_expert),
            (Some(s), false) => s.first(at - routed),
            (None, false) => None,
        };
        kernels.prefetch(first(w.first_item(all)));
        let put = |rows: &Shards<f32>, i: usize, inner: usize, g: usize, y: &[f32]| {
            // SAFETY: each group of each assignment, or token, is computed by one thread.
            unsafe { rows.part(i * inner + g * ROWS, y.len()) }.copy_from_slice(y);
        };
        for run in w.runs(all, longest_run(&m.experts.up.packed)) {
            let mut at = run.start;
            while at < run.end && at < routed {
                let (i, group) = (at / of_expert, at % of_expert);
                let end = run.end.min(at - group + of_expert);
                let (pair, range, groups) = (pair(i), routes.of(experts.ids[i]), group..group + end - at);
                let (inner, tokens) = (pair.width(), &routes.token[range.clone()]);
                let weights = m.router.weighs_input.then(|| &routes.weight[range.clone()]);
                pair.rows(
                    kernels,
                    vector,
                    groups.clone(),
                    first(end),
                    view,
                    tokens,
                    weights,
                    own,
                    |i, g, y| {
                        put(&self.rows, range.start + i, inner, g, y);
                    },
                );
                self.check(pair.parts(), experts.ids[i], groups);
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
    fn prefetch_down(&self, w: &Worker, experts: Chosen) {
        let down = &self.m.experts.down.packed;
        let groups = down.layout().groups();
        let first = w.first_item(groups);
        if let (Some(&slot), true) = (experts.slots.first(), first < groups) {
            self.kernels.prefetch(Some((down, slot as usize * groups + first)));
        }
    }

    /// Adds the experts' outputs to the residual stream: of each row all experts in order, on one thread. Row 0 of `view` is assignment
    /// `from`.
    fn down(
        &self,
        w: &Worker,
        routes: &Routes,
        experts: Chosen,
        from: usize,
        assignments: &[u32],
        view: &ActView,
        shared_view: &ActView,
        [first_round, last_round]: [bool; 2],
    ) {
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
            if !self.adds && first_round {
                groups.clone().for_each(|g| (0..tokens.len()).for_each(|t| part(g, t).fill(0.0)));
            }
            let first = |slot: &u32| (&down.packed, *slot as usize * all + groups.start);
            let shared = m.shared.as_ref().filter(|_| last_round);
            let shared_first = shared.map(|s| (&s.glu.down.packed, groups.start));
            for (i, (&expert, &slot)) in experts.ids.iter().zip(experts.slots).enumerate() {
                let next = experts.slots.get(i + 1).map(first).or(shared_first);
                let range = routes.of(expert);
                let base = slot as usize * all;
                let bias = down.bias.as_deref().map(|b| &b[expert as usize * hidden..]);
                let p = &assignments[range.start - from..range.end - from];
                let of_expert = base + groups.start..base + groups.end;
                multiply_groups(kernels, &down.packed, of_expert, next, view, p, own, |g, p, tile| {
                    add_bias(bias, g - base, tile);
                    for (&p, y) in p.iter().zip(tile.chunks_exact(ROWS)) {
                        let p = from + p as usize;
                        let (token, weight) = (routes.token[p], routes.weight[p]);
                        let weight = if m.router.weighs_input { 1.0 } else { weight };
                        add(g - base, y, token as usize, weight);
                    }
                });
                self.check([&down.packed], expert, groups.clone());
            }
            let Some(shared) = shared else { continue };
            // SAFETY: written in the region before.
            let weight = unsafe { self.shared_weight.read(0, tokens.len()) };
            let down = &shared.glu.down;
            let next =
                experts.slots.first().map(|&e| (&m.experts.down.packed, e as usize * all + groups.end));
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
