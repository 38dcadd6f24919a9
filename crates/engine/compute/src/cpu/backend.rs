//! The CPU backend: packed weights, caches, and the verbs as parallel regions of the team.

use std::time::Instant;

use octet_weights::Matrix;

use super::acts::Acts;
use super::arbiter::{Arbiter, Permit};
use super::huge::HugeVec;
use super::isa::Isa;
use super::kernels::Kernels;
use super::linear::{self, Input, Norm, Output, TOKEN_BLOCK};
use super::pack::{Layout, Packed, ROWS};
use super::profile::{Profile, Verb};
use super::routes::Routes;
use super::team::{Shards, Team};
use super::topology::Topology;
use super::vector::{VectorKernels, attend_scratch_len, gdn_scratch_len, partial_len};
use super::{attend, delta, mlp, moe};
use crate::ExpertCounts;
use crate::backend::*;
use crate::batch::Batch;

/// How the CPU backend runs.
#[derive(Debug, Clone, PartialEq)]
pub struct CpuOptions {
    /// Threads; `None` is one for each physical core that the calling thread may use.
    pub threads: Option<usize>,
    /// Bind each thread to a processor of its own, the calling one during a step (on Linux; elsewhere the system
    /// decides where threads run).
    pub pin: bool,
    /// Instruction set; `None` is the widest that this machine has.
    pub isa: Option<Isa>,
    /// Compute with dequantised f32 weights and f32 activations: exact, large and slow.
    pub exact: bool,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self { threads: None, pin: true, isa: None, exact: false }
    }
}

/// Zeroed f32 values in memory of their own.
pub struct Buf(HugeVec);

impl Buf {
    pub(super) fn zeroed(len: usize) -> Result<Self, Error> {
        let bytes =
            len.checked_mul(4).ok_or_else(|| Error(format!("{len} values do not fit into memory")))?;
        HugeVec::zeroed(bytes).map(Self).map_err(|e| Error(format!("no memory for {bytes} bytes: {e}")))
    }
}

impl std::ops::Deref for Buf {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        if self.0.is_empty() {
            return &[]; // no mapping, and so no aligned pointer
        }
        // SAFETY: mapped memory is aligned to 64 bytes, its length is a multiple of 4, and any bits are an f32.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() / 4) }
    }
}

impl std::ops::DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [f32] {
        if self.0.is_empty() {
            return &mut [];
        }
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() / 4) }
    }
}

/// A packed projection.
pub struct Weight {
    pub(super) packed: Packed,
    pub(super) bias: Option<Vec<f32>>,
}

/// The cache of one layer.
pub(super) enum LayerStore {
    /// Keys and values `[pages, kv_heads, PAGE_TOKENS, head_dim]` in their types, and the bytes of a page of each.
    Kv { keys: HugeVec, values: HugeVec, page: [usize; 2] },
    /// See [`LayerCache::Gdn`].
    Gdn { conv: Buf, conv_len: usize, state: Buf, state_len: usize },
}

/// All layers' caches.
pub struct Cache {
    pub(super) layers: Vec<LayerStore>,
    pub(super) kv: KvTypes,
}

/// Working memory of the verbs, allocated once for the largest step.
pub(super) struct Scratch {
    /// Normalised inputs of projections `[tokens]`.
    pub acts: Acts,
    /// Hidden activations of the dense MLP or of the shared expert `[tokens]`.
    pub hidden_acts: Acts,
    /// Hidden activations of routed experts `[tokens * top_k]`.
    pub expert_acts: Acts,
    /// f32 rows before they are quantised: dense or shared `[tokens, intermediate]`.
    pub hidden: Buf,
    /// Routed `[tokens * top_k, intermediate]`.
    pub expert_hidden: Buf,
    /// `[tokens, experts]`
    pub router: Buf,
    /// Weight of the shared expert `[tokens]`.
    pub shared: Buf,
    /// Experts and weights of each token.
    pub routes: Routes,
    /// Convolved queries, keys and values, and their gates.
    pub delta: delta::DeltaScratch,
    /// `0..`: the tokens of a step, and its assignments, as the kernels take them.
    pub tokens: Vec<u32>,
    pub assignments: Vec<u32>,
    /// Partial results of attention.
    pub partials: Buf,
    pub attend: attend::Plan,
    /// `[threads, per_thread]`
    pub threads: Buf,
    pub per_thread: usize,
}

/// Runs the verbs on the processor's cores.
pub struct Cpu {
    pub(super) team: Team,
    pub(super) kernels: Kernels,
    pub(super) vector: VectorKernels,
    pub(super) scratch: Option<Scratch>,
    exact: bool,
    isa: Isa,
    /// Widest input of any projection loaded so far.
    widest: usize,
    pub(super) profile: Profile,
    arbiter: Arbiter,
    /// While a step runs.
    permit: Option<Permit>,
}

impl Cpu {
    /// A backend with its team of threads. Whichever thread runs a step is one of them.
    pub fn new(options: &CpuOptions) -> Result<Self, Error> {
        let isa = options.isa.unwrap_or_else(Isa::detect);
        let missing = || Error(format!("this processor does not have the instruction set {}", isa.name()));
        let topology = Topology::of_this_thread();
        let threads = options.threads.unwrap_or_else(|| topology.default_threads());
        Ok(Self {
            team: Team::new(threads, if options.pin { topology.cpus() } else { &[] })?,
            kernels: Kernels::for_isa(isa).ok_or_else(missing)?,
            vector: VectorKernels::for_isa(isa).ok_or_else(missing)?,
            scratch: None,
            exact: options.exact,
            isa,
            widest: 0,
            profile: Profile::default(),
            arbiter: Arbiter::default(),
            permit: None,
        })
    }

    /// Runs its steps in turn with those of other backends with the same arbiter.
    #[must_use]
    pub fn with_arbiter(self, arbiter: &Arbiter) -> Self {
        Self { arbiter: arbiter.clone(), ..self }
    }

    /// Starts a verb: lets a waiting backend compute first, and returns the time.
    fn begin(&mut self) -> Instant {
        if let Some(permit) = &mut self.permit {
            permit.yield_if_due();
        }
        Instant::now()
    }

    /// For people: instruction set and threads.
    pub fn describe(&self) -> String {
        let exact = if self.exact { ", f32 weights" } else { "" };
        format!("CPU ({}, {} threads{exact})", self.isa.name(), self.team.threads())
    }

    /// What decides results to the last bit: instruction set and precision. Not threads: they only share the work out.
    pub fn numerics(&self) -> String {
        format!("cpu {}{}", self.isa.name(), if self.exact { " exact" } else { "" })
    }

    /// Time and bytes of each verb since the last call.
    pub fn take_profile(&mut self) -> Profile {
        std::mem::take(&mut self.profile)
    }

    /// Bytes per second that the team reads from memory, in each of `passes` passes.
    pub fn measure_bandwidth(&mut self, passes: usize) -> Result<Vec<f64>, Error> {
        super::bandwidth::measure(&mut self.team, &self.vector, passes)
    }

    /// Distance of the kernels' software prefetch, in bytes.
    pub fn prefetch_distance(&self) -> usize {
        self.kernels.prefetch_distance()
    }

    /// Threads of the team.
    pub fn threads(&self) -> usize {
        self.team.threads()
    }

    /// Packs matrices of one shape into one allocation, all threads at work.
    fn pack(&mut self, matrices: &[Matrix]) -> Result<Packed, Error> {
        let Some(first) = matrices.first() else { return Err(Error("no expert".into())) };
        if let Some(odd) =
            matrices.iter().find(|m| (m.ty, m.rows, m.cols) != (first.ty, first.rows, first.cols))
        {
            let shape = |m: &Matrix| format!("{} [{}, {}]", m.ty, m.rows, m.cols);
            return Err(Error(format!("experts differ: {} and {}", shape(first), shape(odd))));
        }
        let ty = if self.exact { octet_weights::GgmlType::F32 } else { first.ty };
        let layout = Layout::new(ty, first.rows, first.cols)?;
        let mut packed = Packed::zeroed(layout, matrices.len())?;
        let (groups, bytes, exact) = (layout.groups(), layout.group_bytes(), self.exact);
        let shards = Shards::new(packed.bytes_mut());
        self.team.run(|w| {
            for i in w.items(matrices.len() * groups) {
                let (m, group) = (&matrices[i / groups], i % groups);
                // SAFETY: each item is a group of its own.
                let out = unsafe { shards.part(i * bytes, bytes) };
                if exact {
                    let rows = m.slice_rows(group * ROWS, m.rows.min((group + 1) * ROWS));
                    let mut values = vec![0.0f32; rows.rows * rows.cols];
                    rows.ty.dequantize(&rows.data, &mut values);
                    let data = values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
                    let one =
                        Layout::new(ty, rows.rows, rows.cols).expect("a part of a layout that was checked");
                    one.pack_group(&Matrix { ty, data: data.into(), ..rows }, 0, out);
                } else {
                    layout.pack_group(m, group, out);
                }
            }
        });
        Ok(packed)
    }

    fn allocate(&mut self, shape: &CacheShape, step: StepShape) -> Result<Scratch, Error> {
        let (tokens, threads) = (step.tokens, self.team.threads());
        let (routed, room) = (tokens * step.top_k, Input::room(tokens, threads));
        let chunk_rows = step.heads * attend::Plan::chunk_rows(shape.pages, shape.slots);
        let mut per_thread = self.widest.max(2 * TOKEN_BLOCK * ROWS);
        let mut partials = 0;
        for l in &shape.layers {
            match *l {
                LayerCache::Kv { head_dim, .. } => {
                    let queries = attend::TILE_QUERIES.max(step.heads);
                    per_thread = per_thread.max(attend_scratch_len(queries, head_dim));
                    partials = partials.max(chunk_rows * partial_len(head_dim));
                }
                LayerCache::Gdn { k_dim, .. } => per_thread = per_thread.max(gdn_scratch_len(k_dim)),
            }
        }
        let per_thread = per_thread.next_multiple_of(16);
        Ok(Scratch {
            acts: Acts::new(room, self.widest)?,
            hidden_acts: Acts::new(room, step.intermediate)?,
            expert_acts: Acts::new(room * step.top_k, step.expert_intermediate)?,
            hidden: Buf::zeroed(tokens * step.intermediate)?,
            expert_hidden: Buf::zeroed(routed * step.expert_intermediate)?,
            router: Buf::zeroed(tokens * step.experts)?,
            shared: Buf::zeroed(tokens)?,
            tokens: (0..tokens as u32).collect(),
            assignments: (0..routed as u32).collect(),
            routes: Routes::new(tokens, step.top_k, step.experts),
            delta: delta::DeltaScratch::new(shape, tokens)?,
            partials: Buf::zeroed(partials)?,
            attend: attend::Plan::new(tokens, step.heads, shape.pages, shape.slots),
            threads: Buf::zeroed(threads * per_thread)?,
            per_thread,
        })
    }
}

const NO_SCRATCH: &str = "steps are run after `cache` has been called";

impl Backend for Cpu {
    type Buf = Buf;
    type Weight = Weight;
    type Experts = Packed;
    type Embedding = Matrix;
    type Cache = Cache;

    fn buf(&mut self, len: usize) -> Result<Buf, Error> {
        Buf::zeroed(len)
    }
    fn vector(&mut self, values: &[f32]) -> Result<Buf, Error> {
        let mut b = Buf::zeroed(values.len())?;
        b.copy_from_slice(values);
        Ok(b)
    }
    fn weight(&mut self, m: &Matrix, bias: Option<&[f32]>) -> Result<Weight, Error> {
        self.widest = self.widest.max(m.cols);
        Ok(Weight { packed: self.pack(std::slice::from_ref(m))?, bias: bias.map(<[f32]>::to_vec) })
    }
    fn experts(&mut self, m: &[Matrix]) -> Result<Packed, Error> {
        self.widest = self.widest.max(m.first().map_or(0, |m| m.cols));
        self.pack(m)
    }
    fn embedding(&mut self, m: &Matrix) -> Result<Matrix, Error> {
        Ok(m.clone())
    }
    fn cache(&mut self, shape: &CacheShape, step: StepShape) -> Result<Cache, Error> {
        shape.check()?;
        self.scratch = Some(self.allocate(shape, step)?);
        let layer = |l: &LayerCache| match *l {
            LayerCache::Kv { .. } => {
                let page = l.page_parts(shape.kv);
                let zeroed = |page: usize| {
                    let bytes =
                        page.checked_mul(shape.pages).ok_or_else(|| Error("a cache too large".into()))?;
                    HugeVec::zeroed(bytes)
                        .map_err(|e| Error(format!("no memory for {bytes} bytes of cache: {e}")))
                };
                Ok(LayerStore::Kv { keys: zeroed(page[0])?, values: zeroed(page[1])?, page })
            }
            LayerCache::Gdn { conv_rows, channels, v_heads, k_dim, v_dim } => {
                let (conv_len, state_len) = (conv_rows * channels, v_heads * k_dim * v_dim);
                let (conv, state) =
                    (Buf::zeroed(shape.slots * conv_len)?, Buf::zeroed(shape.slots * state_len)?);
                Ok(LayerStore::Gdn { conv, conv_len, state, state_len })
            }
        };
        Ok(Cache { layers: shape.layers.iter().map(layer).collect::<Result<_, Error>>()?, kv: shape.kv })
    }

    fn read(&mut self, src: &Buf, out: &mut [f32]) {
        out.copy_from_slice(&src[..out.len()]);
    }
    fn borrow<'a>(&'a self, buf: &'a Buf) -> Option<&'a [f32]> {
        Some(buf)
    }
    fn reset_slot(&mut self, cache: &mut Cache, slot: usize) {
        for l in &mut cache.layers {
            if let LayerStore::Gdn { conv, conv_len, state, state_len } = l {
                conv[slot * *conv_len..][..*conv_len].fill(0.0);
                state[slot * *state_len..][..*state_len].fill(0.0);
            }
        }
    }
    fn copy_slot(&mut self, cache: &mut Cache, from: usize, to: usize) {
        for l in &mut cache.layers {
            if let LayerStore::Gdn { conv, conv_len, state, state_len } = l {
                conv.copy_within(from * *conv_len..(from + 1) * *conv_len, to * *conv_len);
                state.copy_within(from * *state_len..(from + 1) * *state_len, to * *state_len);
            }
        }
    }
    fn copy_page(&mut self, cache: &mut Cache, from: usize, to: usize) {
        for l in &mut cache.layers {
            if let LayerStore::Kv { keys, values, page } = l {
                for (buf, page) in [(keys, page[0]), (values, page[1])] {
                    buf.copy_within(from * page..(from + 1) * page, to * page);
                }
            }
        }
    }
    fn save_slot(&mut self, cache: &Cache, slot: usize, mut out: &mut [u8]) {
        for l in &cache.layers {
            if let LayerStore::Gdn { conv, conv_len, state, state_len } = l {
                for (buf, len) in [(conv, 4 * conv_len), (state, 4 * state_len)] {
                    let (now, rest) = out.split_at_mut(len);
                    now.copy_from_slice(&buf.0[slot * len..(slot + 1) * len]);
                    out = rest;
                }
            }
        }
    }
    fn load_slot(&mut self, cache: &mut Cache, slot: usize, mut data: &[u8]) {
        for l in &mut cache.layers {
            if let LayerStore::Gdn { conv, conv_len, state, state_len } = l {
                for (buf, len) in [(conv, 4 * *conv_len), (state, 4 * *state_len)] {
                    let (now, rest) = data.split_at(len);
                    buf.0[slot * len..(slot + 1) * len].copy_from_slice(now);
                    data = rest;
                }
            }
        }
    }
    fn save_page(&mut self, cache: &Cache, page: usize, mut out: &mut [u8]) {
        for l in &cache.layers {
            if let LayerStore::Kv { keys, values, page: [k, v] } = l {
                for (buf, len) in [(keys, k), (values, v)] {
                    let (now, rest) = out.split_at_mut(*len);
                    now.copy_from_slice(&buf[page * len..(page + 1) * len]);
                    out = rest;
                }
            }
        }
    }
    fn load_page(&mut self, cache: &mut Cache, page: usize, mut data: &[u8]) {
        for l in &mut cache.layers {
            if let LayerStore::Kv { keys, values, page: [k, v] } = l {
                for (buf, len) in [(keys, k), (values, v)] {
                    let (now, rest) = data.split_at(*len);
                    buf[page * *len..(page + 1) * *len].copy_from_slice(now);
                    data = rest;
                }
            }
        }
    }

    fn step(&mut self, _: Pass, _: &Batch, body: impl FnOnce(&mut Self)) -> Result<(), Error> {
        self.permit = Some(self.arbiter.acquire());
        let _pinned = self.team.pin_caller();
        body(self);
        self.permit = None;
        Ok(())
    }

    fn embed(&mut self, table: &Matrix, tokens: &[u32], out: &mut Buf) {
        let start = self.begin();
        let out = Shards::new(out);
        self.team.run(|w| {
            for t in w.items(tokens.len()) {
                // SAFETY: each token is one thread's.
                table.dequantize_row(tokens[t] as usize, unsafe { out.part(t * table.cols, table.cols) });
            }
        });
        self.profile.add(Verb::Embed, start, tokens.len() * table.row_bytes());
    }

    fn norm_linear<const N: usize>(
        &mut self,
        n: usize,
        x: &Buf,
        norm: &Buf,
        eps: f32,
        w: [&Weight; N],
        out: [&mut Buf; N],
    ) {
        let start = self.begin();
        let Self { team, kernels, vector, scratch, .. } = self;
        let s = scratch.as_mut().expect(NO_SCRATCH);
        let form = linear::form(w.map(|w| &w.packed));
        let input = Input::new(&mut s.acts, n, n, norm.len(), team.threads(), form);
        let (threads, per_thread, tokens) = (Shards::new(&mut s.threads), s.per_thread, &s.tokens[..n]);
        let mut out = out.into_iter();
        let outputs = w.map(|w| Output::new(w, out.next().expect("an output for each weight")));
        let norm = Norm { vector, weights: norm, eps };
        team.run(|worker| {
            linear::prefetch(worker, kernels, w);
            // SAFETY: each thread has a part of its own.
            let own = unsafe { threads.part(worker.id * per_thread, per_thread) };
            let view = input.write(worker, kernels, |t, put| norm.row(x, t, own, put));
            linear::multiply(worker, kernels, w, &view, tokens, own, |i, g, t, y| outputs[i].set(g, t, y));
        });
        self.profile.add(Verb::NormLinear, start, w.iter().map(|w| w.packed.size_bytes()).sum());
    }

    fn rope_store(
        &mut self,
        batch: &Batch,
        a: &Attention<Self>,
        layer: usize,
        cache: &mut Cache,
        q: &mut Buf,
        k: &mut Buf,
        v: &Buf,
    ) {
        let start = self.begin();
        let kv = cache.kv;
        attend::rope_store(&mut self.team, &self.vector, batch, a, kv, &mut cache.layers[layer], q, k, v);
        self.profile.add(Verb::RopeStore, start, 0);
    }

    fn attend(
        &mut self,
        batch: &Batch,
        a: &Attention<Self>,
        layer: usize,
        cache: &Cache,
        q: &Buf,
        out: &mut Buf,
    ) {
        let start = self.begin();
        let s = self.scratch.as_mut().expect(NO_SCRATCH);
        let store = &cache.layers[layer];
        attend::attend(&mut self.team, &self.vector, s, batch, a, cache.kv, store, q, out);
        self.profile.add(Verb::Attend, start, attend::bytes(batch, a, cache.kv));
    }

    fn gdn(
        &mut self,
        batch: &Batch,
        g: &Gdn<Self>,
        layer: usize,
        cache: &mut Cache,
        qkv: &Buf,
        z: &Buf,
        b: &Buf,
        alpha: &Buf,
        out: &mut Buf,
    ) {
        let start = self.begin();
        let s = self.scratch.as_mut().expect(NO_SCRATCH);
        let inputs = delta::Inputs { qkv, z, b, alpha };
        delta::gdn(&mut self.team, &self.vector, s, batch, g, &mut cache.layers[layer], &inputs, out);
        self.profile.add(Verb::Gdn, start, delta::bytes(batch, g));
    }

    fn linear_add(&mut self, n: usize, x: &Buf, w: &Weight, h: &mut Buf) {
        let start = self.begin();
        let Self { team, kernels, scratch, .. } = self;
        let s = scratch.as_mut().expect(NO_SCRATCH);
        let (cols, form) = (w.packed.layout().cols(), linear::form([&w.packed]));
        let input = Input::new(&mut s.acts, n, n, cols, team.threads(), form);
        let (threads, per_thread, tokens) = (Shards::new(&mut s.threads), s.per_thread, &s.tokens[..n]);
        let output = Output::new(w, h);
        team.run(|worker| {
            linear::prefetch(worker, kernels, [w]);
            let view = input.write(worker, kernels, |t, put| put(&x[t * cols..(t + 1) * cols]));
            // SAFETY: each thread has a part of its own.
            let own = unsafe { threads.part(worker.id * per_thread, per_thread) };
            linear::multiply(worker, kernels, [w], &view, tokens, own, |_, g, t, y| output.add(g, t, y));
        });
        self.profile.add(Verb::LinearAdd, start, w.packed.size_bytes());
    }

    fn mlp(&mut self, n: usize, m: &Mlp<Self>, h: &mut Buf) {
        let start = self.begin();
        let s = self.scratch.as_mut().expect(NO_SCRATCH);
        mlp::mlp(&mut self.team, &self.kernels, &self.vector, s, n, m, h);
        let bytes = m.gate.packed.size_bytes() + m.up.packed.size_bytes() + m.down.packed.size_bytes();
        self.profile.add(Verb::Mlp, start, bytes);
    }

    fn moe(&mut self, n: usize, m: &Moe<Self>, layer: usize, counts: &ExpertCounts, h: &mut Buf) {
        let start = self.begin();
        let s = self.scratch.as_mut().expect(NO_SCRATCH);
        moe::moe(&mut self.team, &self.kernels, &self.vector, s, n, m, h);
        s.routes.count(layer, counts);
        let bytes = moe::bytes(s, m);
        self.profile.add(Verb::Moe, start, bytes);
    }

    fn logits(&mut self, batch: &Batch, h: &Buf, norm: &Buf, eps: f32, head: &Weight, out: &mut Buf) {
        let start = self.begin();
        let Self { team, kernels, vector, scratch, .. } = self;
        let s = scratch.as_mut().expect(NO_SCRATCH);
        let (n, hidden) = (batch.outputs().len(), norm.len());
        let form = linear::form([&head.packed]);
        let input = Input::new(&mut s.acts, n, n, hidden, team.threads(), form);
        let (threads, per_thread, tokens) = (Shards::new(&mut s.threads), s.per_thread, &s.tokens[..n]);
        let output = Output::new(head, out);
        let norm = Norm { vector, weights: norm, eps };
        team.run(|w| {
            linear::prefetch(w, kernels, [head]);
            // SAFETY: each thread has a part of its own.
            let own = unsafe { threads.part(w.id * per_thread, per_thread) };
            let view = input.write(w, kernels, |i, put| norm.row(h, batch.outputs()[i] as usize, own, put));
            linear::multiply(w, kernels, [head], &view, tokens, own, |_, g, t, y| output.set(g, t, y));
        });
        self.profile.add(Verb::Logits, start, head.packed.size_bytes());
    }

    fn norm(&mut self, n: usize, h: &Buf, norm: &Buf, eps: f32, out: &mut Buf) {
        let (vector, len) = (&self.vector, norm.len());
        let out = Shards::new(out);
        self.team.run(|w| {
            for t in w.items(n) {
                // SAFETY: each token is one thread's.
                vector.rms_norm(&h[t * len..(t + 1) * len], norm, eps, unsafe { out.part(t * len, len) });
            }
        });
    }
}
