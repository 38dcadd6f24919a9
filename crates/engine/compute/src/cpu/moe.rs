//! The verbs `mlp` and `moe`: SwiGLU blocks, dense or by experts. In a mixture, tokens are grouped by expert, so that an
//! expert's weights are read once a step, and each token's experts are summed in ascending order, the shared one last.

use super::acts::ActView;
use super::backend::{Cpu, Scratch, Weight};
use super::kernels::Kernels;
use super::linear::{
    Output, TOKEN_BLOCK, add_bias, form, groups_per_chunk, multiply, multiply_groups, norm_rows, plain_rows,
};
use super::pack::ROWS;
use super::team::{Shards, Team};
use super::vector::VectorKernels;
use crate::ExpertCounts;
use crate::backend::{MAX_EXPERTS, MAX_TOP_K, Mlp, Moe, SharedExpert};

/// Where the tokens of a step go.
pub(super) struct Routes {
    top_k: usize,
    /// `[tokens, top_k]`: experts in descending order of probability, and their weights.
    chosen: Vec<u32>,
    weights: Vec<f32>,
    /// Assignments sorted by expert, then by token: `token[p]` goes to the expert whose range in `starts` holds `p`.
    token: Vec<u32>,
    weight: Vec<f32>,
    /// `[experts + 1]`
    starts: Vec<u32>,
    /// Experts with at least one token, ascending.
    used: Vec<u32>,
}

impl Routes {
    pub fn new(tokens: usize, top_k: usize, experts: usize) -> Self {
        let n = tokens * top_k;
        Self {
            top_k,
            chosen: vec![0; n],
            weights: vec![0.0; n],
            token: vec![0; n],
            weight: vec![0.0; n],
            starts: vec![0; experts + 1],
            used: Vec::with_capacity(experts),
        }
    }

    /// Sorts the assignments of `n` tokens by expert (a counting sort: stable, so tokens stay in order).
    fn group(&mut self, n: usize) {
        let k = self.top_k;
        self.starts.fill(0);
        for &e in &self.chosen[..n * k] {
            self.starts[e as usize + 1] += 1;
        }
        self.used.clear();
        for e in 0..self.starts.len() - 1 {
            if self.starts[e + 1] > 0 {
                self.used.push(e as u32);
            }
            self.starts[e + 1] += self.starts[e];
        }
        let mut next = [0u32; MAX_EXPERTS];
        let next = &mut next[..self.starts.len() - 1];
        next.copy_from_slice(&self.starts[..self.starts.len() - 1]);
        for t in 0..n {
            for (&e, &w) in self.chosen[t * k..(t + 1) * k].iter().zip(&self.weights[t * k..]) {
                let p = &mut next[e as usize];
                self.token[*p as usize] = t as u32;
                self.weight[*p as usize] = w;
                *p += 1;
            }
        }
    }

    /// Assignments of an expert.
    fn of(&self, expert: u32) -> std::ops::Range<usize> {
        self.starts[expert as usize] as usize..self.starts[expert as usize + 1] as usize
    }

    /// Adds the last step's tokens to what was counted before.
    pub fn count(&self, layer: usize, counts: &ExpertCounts) {
        for &e in &self.used {
            counts.add(layer, e as usize, self.of(e).len());
        }
    }

    /// Experts with at least one token in the last step.
    pub fn used(&self) -> &[u32] {
        &self.used
    }
}

/// A dense SwiGLU block.
pub(super) fn mlp(
    team: &mut Team,
    kernels: &Kernels,
    vector: &VectorKernels,
    s: &mut Scratch,
    n: usize,
    m: &Mlp<Cpu>,
    h: &mut [f32],
) {
    let (hidden, inner) = (m.norm.len(), m.gate.packed.layout().rows());
    let acts = s.acts.rows(n, hidden);
    let inner_acts = s.hidden_acts.rows(n, inner);
    let (threads, per_thread) = (Shards::new(&mut s.threads), s.per_thread);
    let (tokens, rows) = (&s.tokens[..n], Shards::new(&mut s.hidden));
    let out = Output::new(&m.down, h);
    team.run(|w| {
        // SAFETY: each thread has a part of its own.
        let own = unsafe { threads.part(w.id * per_thread, per_thread) };
        // SAFETY: `h` is only read before the barrier, and only written after two more.
        let x = unsafe { out.read() };
        norm_rows(w, kernels, vector, n, x, &m.norm, m.eps, &acts, form([&m.gate.packed, &m.up.packed]), own);
        w.barrier();
        // SAFETY: written before the barrier.
        let view = unsafe { acts.view() };
        for piece in w.items(gate_up_chunks(&m.gate, w.threads())) {
            gate_up(kernels, vector, &m.gate, &m.up, piece, w.threads(), &view, tokens, own, &rows);
        }
        w.barrier();
        // SAFETY: written before the barrier.
        let x = unsafe { rows.read(0, n * inner) };
        plain_rows(w, kernels, n, x, &inner_acts, form([&m.down.packed]));
        w.barrier();
        // SAFETY: written before the barrier.
        let view = unsafe { inner_acts.view() };
        multiply(w, kernels, [&m.down], &view, tokens, own, |_, g, t, y| out.add(g, t, y));
    });
}

/// Pieces of work that [`gate_up`] is cut into.
fn gate_up_chunks(gate: &Weight, threads: usize) -> usize {
    let layout = gate.packed.layout();
    layout.groups().div_ceil(groups_per_chunk(layout.groups(), 2 * layout.group_bytes(), threads))
}

/// One piece of `rows[t] = silu(gate . x) * (up . x)`.
fn gate_up(
    kernels: &Kernels,
    vector: &VectorKernels,
    gate: &Weight,
    up: &Weight,
    piece: usize,
    threads: usize,
    acts: &ActView,
    tokens: &[u32],
    own: &mut [f32],
    rows: &Shards<f32>,
) {
    let layout = gate.packed.layout();
    let chunk = groups_per_chunk(layout.groups(), 2 * layout.group_bytes(), threads);
    let groups = piece * chunk..((piece + 1) * chunk).min(layout.groups());
    let (own, up_tile) = own.split_at_mut(TOKEN_BLOCK * ROWS);
    multiply_groups(kernels, &gate.packed, groups, acts, tokens, own, |g, tokens, tile| {
        let up_tile = &mut up_tile[..tile.len()];
        kernels.group(&up.packed, g, acts, tokens, up_tile);
        add_bias(gate, g, tile);
        add_bias(up, g, up_tile);
        vector.silu_mul(tile, up_tile);
        let (from, len) = (g * ROWS, ROWS.min(layout.rows() - g * ROWS));
        for (&t, y) in tokens.iter().zip(tile.chunks_exact(ROWS)) {
            // SAFETY: each group of each token is computed by one thread.
            unsafe { rows.part(t as usize * layout.rows() + from, len) }.copy_from_slice(&y[..len]);
        }
    });
}

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
    let hidden = m.norm.len();
    let layout = *m.gate.layout();
    let (inner, down) = (layout.rows(), *m.down.layout());
    let shared_inner = m.shared.as_ref().map_or(0, |s| s.gate.packed.layout().rows());
    let acts = s.acts.rows(n, hidden);
    let expert_acts = s.expert_acts.rows(n * m.top_k, inner);
    let shared_acts = s.hidden_acts.rows(n, shared_inner);
    let (threads, per_thread) = (Shards::new(&mut s.threads), s.per_thread);
    let tokens = &s.tokens[..n];
    let (logits, shared_weight) = (Output::new(&m.router, &mut s.router), Shards::new(&mut s.shared));
    let (rows, shared_rows) = (Shards::new(&mut s.expert_hidden), Shards::new(&mut s.hidden));
    let (chosen, weights) = (Shards::new(&mut s.routes.chosen), Shards::new(&mut s.routes.weights));
    let out = Shards::new(h);
    let wanted = form([&m.router.packed, &m.gate, &m.up]);
    let wanted = m.shared.as_ref().map_or(wanted, |s| wanted.and(form([&s.gate.packed, &s.up.packed])));

    // Where each token goes.
    team.run(|w| {
        // SAFETY: each thread has a part of its own.
        let own = unsafe { threads.part(w.id * per_thread, per_thread) };
        // SAFETY: nobody writes `h` in this region.
        let x = unsafe { out.read(0, n * hidden) };
        for t in w.items(n) {
            let row = &mut own[..hidden];
            vector.rms_norm(&x[t * hidden..(t + 1) * hidden], &m.norm, m.eps, row);
            // SAFETY: each token is one thread's, and is read after the barrier.
            unsafe {
                acts.write(kernels, t, row, wanted);
                if let Some(s) = &m.shared {
                    shared_weight.part(t, 1)[0] = vector.sigmoid_dot(&s.router, row);
                }
            }
        }
        w.barrier();
        // SAFETY: written before the barrier.
        let view = unsafe { acts.view() };
        multiply(w, kernels, [&m.router], &view, tokens, own, |_, g, t, y| logits.set(g, t, y));
        w.barrier();
        for t in w.items(n) {
            // SAFETY: each token is one thread's.
            unsafe {
                let chosen = chosen.part(t * m.top_k, m.top_k);
                let weights = weights.part(t * m.top_k, m.top_k);
                vector.route(logits.row(t), chosen, weights);
            }
        }
    });
    s.routes.group(n);
    let routes = &s.routes;
    let down_form = form([&m.down]);
    let shared_form = form(m.shared.iter().map(|s| &s.down.packed));
    let expert_chunk = groups_per_chunk(layout.groups(), 2 * layout.group_bytes(), team.threads());
    let chunks = layout.groups().div_ceil(expert_chunk);
    let shared_chunks = m.shared.as_ref().map_or(0, |s| gate_up_chunks(&s.gate, team.threads()));

    team.run(|w| {
        // SAFETY: each thread has a part of its own.
        let own = unsafe { threads.part(w.id * per_thread, per_thread) };
        // SAFETY: not written in this region.
        let view = unsafe { acts.view() };
        let routed = routes.used.len() * chunks;
        for i in w.items(routed + shared_chunks) {
            if let (Some(s), true) = (&m.shared, i >= routed) {
                gate_up(
                    kernels,
                    vector,
                    &s.gate,
                    &s.up,
                    i - routed,
                    w.threads(),
                    &view,
                    tokens,
                    own,
                    &shared_rows,
                );
                continue;
            }
            let (tile, up_tile) = own.split_at_mut(TOKEN_BLOCK * ROWS);
            let (expert, chunk) = (routes.used[i / chunks], i % chunks);
            let range = routes.of(expert);
            let base = expert as usize * layout.groups();
            for g in chunk * expert_chunk..((chunk + 1) * expert_chunk).min(layout.groups()) {
                for block in range.clone().step_by(TOKEN_BLOCK) {
                    let tokens = &routes.token[block..range.end.min(block + TOKEN_BLOCK)];
                    let len = tokens.len() * ROWS;
                    kernels.group(&m.gate, base + g, &view, tokens, &mut tile[..len]);
                    kernels.group(&m.up, base + g, &view, tokens, &mut up_tile[..len]);
                    vector.silu_mul(&mut tile[..len], &up_tile[..len]);
                    let (from, wide) = (g * ROWS, ROWS.min(inner - g * ROWS));
                    for (i, y) in tile[..len].chunks_exact(ROWS).enumerate() {
                        // SAFETY: each group of each assignment is computed by one thread.
                        unsafe { rows.part((block + i) * inner + from, wide) }.copy_from_slice(&y[..wide]);
                    }
                }
            }
        }
        w.barrier();
        let routed = n * m.top_k;
        for i in w.items(if m.shared.is_some() { routed + n } else { routed }) {
            // SAFETY: written before the barrier; each row is one thread's.
            unsafe {
                if i < routed {
                    expert_acts.write(kernels, i, rows.read(i * inner, inner), down_form);
                } else {
                    let t = i - routed;
                    shared_acts.write(
                        kernels,
                        t,
                        shared_rows.read(t * shared_inner, shared_inner),
                        shared_form,
                    );
                }
            }
        }
        w.barrier();
        // SAFETY: written before the barrier.
        let (view, shared_view) = unsafe { (expert_acts.view(), shared_acts.view()) };
        let used = routes.used.len() + 1;
        let chunk = groups_per_chunk(down.groups(), used.min(m.top_k + 1) * down.group_bytes(), w.threads());
        for groups in w.chunks(down.groups(), chunk) {
            let add = |g: usize, y: &[f32], t: usize, weight: f32| {
                let (from, len) = (g * ROWS, ROWS.min(hidden - g * ROWS));
                // SAFETY: each group of rows is one thread's.
                vector.add_scaled(unsafe { out.part(t * hidden + from, len) }, &y[..len], weight);
            };
            for &expert in &routes.used {
                let range = routes.of(expert);
                let base = expert as usize * down.groups();
                for block in range.clone().step_by(TOKEN_BLOCK) {
                    let assignments = &s.assignments[block..range.end.min(block + TOKEN_BLOCK)];
                    let tile = &mut own[..assignments.len() * ROWS];
                    for g in groups.clone() {
                        kernels.group(&m.down, base + g, &view, assignments, tile);
                        for (&p, y) in assignments.iter().zip(tile.chunks_exact(ROWS)) {
                            add(g, y, routes.token[p as usize] as usize, routes.weight[p as usize]);
                        }
                    }
                }
            }
            let Some(shared) = &m.shared else { continue };
            // SAFETY: written in the region before.
            let weight = unsafe { shared_weight.read(0, n) };
            multiply_groups(
                kernels,
                &shared.down.packed,
                groups,
                &shared_view,
                tokens,
                own,
                |g, tokens, tile| {
                    add_bias(&shared.down, g, tile);
                    for (&t, y) in tokens.iter().zip(tile.chunks_exact(ROWS)) {
                        add(g, y, t as usize, weight[t as usize]);
                    }
                },
            );
        }
    });
}

/// Bytes of weights that the last call with `m` read.
pub(super) fn bytes(s: &Scratch, m: &Moe<Cpu>) -> usize {
    let one = |p: &super::pack::Packed| p.layout().groups() * p.layout().group_bytes();
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
