//! The verbs on a CPU: parallel regions of the team.

use octet_weights::{GgmlType, Matrix, Piece};

use super::device::Cpu;
use super::huge::HugeVec;
use super::linear::{Input, Output, Source};
use super::memory::{Buf, Cache, LayerStore, Weight};
use super::packed_file::PackedFile;
use super::profile::Verb;
use super::scratch::Scratch;
use super::{attend, choice, delta, glu, linear, moe, recurrent, rows};
use super::{store::Store, team::Shards};
use crate::{ExpertCounts, backend::*, batch::Batch};

/// Steps of more tokens use nearly all experts, and a layer reads its own in time.
const FORESEEN_TOKENS: usize = 4;
const NO_SCRATCH: &str = "`cache` is called before verbs";

/// Values that a thread changes at a time, where each is changed by itself.
const PART: usize = 4096;

impl Backend for Cpu {
    type Buf = Buf;
    type Weight = Weight;
    type Experts = Weight;
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
        self.experts(std::slice::from_ref(m), bias)
    }
    fn experts(&mut self, m: &[Matrix], bias: Option<&[f32]>) -> Result<Weight, Error> {
        let packed = self.pack(m)?;
        Ok(self.weight_of(packed, bias))
    }
    fn begin_load(&mut self, id: &FileId) {
        let maps = self.expert_slots.is_none();
        self.packed_file = self.packed_files.as_ref().and_then(|files| PackedFile::open(files, id, maps));
    }
    fn kept_weight(
        &mut self,
        name: &str,
        ty: GgmlType,
        [rows, cols]: [usize; 2],
        bias: Option<&[f32]>,
    ) -> Result<Option<Weight>, Error> {
        self.kept(name, ty, [1, rows, cols], bias, false)
    }
    fn kept_experts(
        &mut self,
        name: &str,
        ty: GgmlType,
        shape: [usize; 3],
        bias: Option<&[f32]>,
    ) -> Result<Option<Weight>, Error> {
        self.kept(name, ty, shape, bias, true)
    }
    fn end_load(&mut self) -> Result<(), Error> {
        self.packed_file.as_mut().map_or(Ok(()), |file| file.loaded(&self.arbiter))
    }
    fn discard_kept(&mut self) -> bool {
        self.packed_file.as_mut().is_some_and(PackedFile::discard)
    }
    fn name_next(&mut self, name: &str) {
        if let Some(watch) = &mut self.watch {
            watch.name(name);
        }
    }
    fn expert_slots(&self) -> Option<usize> {
        self.expert_slots.filter(|_| !self.exact)
    }
    fn stored_experts(&mut self, experts: Glu<StoredProjection>) -> Result<Glu<Weight>, Error> {
        let Some(slots) = Backend::expert_slots(self) else {
            return Err(Error("all experts are to be in memory".into()));
        };
        let store = match &mut self.store {
            Some(store) => store,
            none => none.insert(Store::new(slots)?),
        };
        let widths = [&experts.up, &experts.down].map(|p| p.source.shape().2);
        self.widest = widths.into_iter().fold(self.widest, usize::max);
        store.add(experts, &mut |p, layout| PackedFile::experts(&mut self.packed_file, p, layout))
    }
    fn foresee(&mut self, n: usize, x: &Buf, norm: Option<&Norm<Self>>, m: &Moe<Self>) {
        let Some(layer) = m.experts.up.stored.filter(|_| n <= FORESEEN_TOKENS) else { return };
        if !self.store.as_mut().is_some_and(Store::is_guessing) {
            return;
        }
        let norm = m.router.input.as_ref().or(norm);
        let mut logits = std::mem::replace(&mut self.scratch.as_mut().expect(NO_SCRATCH).router, Buf::none());
        self.project(n, x, norm, [&m.router.weight], [&mut logits]);
        let Self { vector, scratch, store, .. } = self;
        let (s, Some(store)) = (scratch.as_mut().expect(NO_SCRATCH), store) else { return };
        let (experts, k) = (m.router.experts, m.router.top_k);
        for logits in logits.chunks_exact_mut(experts).take(n) {
            let (mut chosen, mut weights) = ([0; MAX_TOP_K], [0.0; MAX_TOP_K]);
            let room = &mut s.threads[..s.per_thread];
            choice::choose(vector, &m.router, logits, room, &mut chosen[..k], &mut weights[..k]);
            store.foresee(layer, &chosen[..k]);
        }
        s.router = logits;
    }
    fn embedding(&mut self, m: &Matrix) -> Result<Matrix, Error> {
        self.copy(m).map_err(|e| Error(format!("no memory for {} bytes of embeddings: {e}", m.data.len())))
    }
    fn embedding_in_file(&mut self, m: &Matrix, place: &dyn Fn() -> Option<Piece>) -> Option<Matrix> {
        let data = self.packed_file.as_mut()?.borrow_table(m.data.len(), place)?;
        Some(Matrix { data, ..m.clone() })
    }
    fn cache(&mut self, shape: &CacheShape, step: StepShape) -> Result<Cache, Error> {
        shape.check()?;
        self.scratch = Some(Scratch::new(shape, step, self.team.threads(), self.widest)?);
        let layer = |l: &LayerCache| match *l {
            LayerCache::Kv { group, .. } => {
                let page = l.page_parts(shape.kv);
                let zeroed = |page: usize| {
                    let bytes = page
                        .checked_mul(shape.pages_of(group))
                        .ok_or_else(|| Error("a cache too large".into()))?;
                    HugeVec::zeroed(bytes)
                        .map_err(|e| Error(format!("no memory for {bytes} bytes of cache: {e}")))
                };
                Ok(LayerStore::Kv { keys: zeroed(page[0])?, values: zeroed(page[1])?, page, group })
            }
            LayerCache::State { conv: conv_len, state: state_len, inputs } => {
                let (conv, state) =
                    (Buf::zeroed(shape.slots * conv_len)?, Buf::zeroed(shape.slots * state_len)?);
                let kept_rows = shape.guesses;
                let kept = Buf::zeroed(shape.slots * shape.guesses * inputs)?;
                Ok(LayerStore::State { conv, conv_len, state, state_len, kept, kept_rows })
            }
            LayerCache::None => Ok(LayerStore::None),
        };
        Ok(Cache { layers: shape.layers.iter().map(layer).collect::<Result<_, Error>>()?, kv: shape.kv })
    }

    fn read(&mut self, src: &Buf, out: &mut [f32]) {
        out.copy_from_slice(&src[..out.len()]);
    }
    fn borrow<'a>(&'a self, buf: &'a Buf) -> Option<&'a [f32]> {
        Some(buf)
    }
    fn share(&mut self, buf: &Buf, count: usize, work: &(dyn Fn(usize, &[f32]) + Sync)) -> bool {
        self.team.run(|w| w.items(count).for_each(|i| work(i, buf)));
        true
    }
    fn reset_slot(&mut self, cache: &mut Cache, slot: usize) {
        for l in &mut cache.layers {
            if let LayerStore::State { conv, conv_len, state, state_len, .. } = l {
                conv[slot * *conv_len..][..*conv_len].fill(0.0);
                state[slot * *state_len..][..*state_len].fill(0.0);
            }
        }
    }
    fn copy_slot(&mut self, cache: &mut Cache, from: usize, to: usize) {
        for l in &mut cache.layers {
            if let LayerStore::State { conv, conv_len, state, state_len, .. } = l {
                conv.copy_within(from * *conv_len..(from + 1) * *conv_len, to * *conv_len);
                state.copy_within(from * *state_len..(from + 1) * *state_len, to * *state_len);
            }
        }
    }
    fn copy_page(&mut self, cache: &mut Cache, group: PageGroup, from: usize, to: usize) {
        for l in cache.layers.iter_mut().filter(|l| l.is_in(group)) {
            if let LayerStore::Kv { keys, values, page, .. } = l {
                for (buf, page) in [(keys, page[0]), (values, page[1])] {
                    buf.copy_within(from * page..(from + 1) * page, to * page);
                }
            }
        }
    }
    fn copy_rows(&mut self, from: &Weight, to: &mut Weight, rows: &[(u32, u32)]) {
        rows.iter().for_each(|&(a, b)| to.packed.copy_row(&from.packed, a as usize, b as usize));
    }
    fn save_slot(&mut self, cache: &Cache, slot: usize, mut out: &mut [u8]) {
        for l in &cache.layers {
            if let LayerStore::State { conv, conv_len, state, state_len, .. } = l {
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
            if let LayerStore::State { conv, conv_len, state, state_len, .. } = l {
                for (buf, len) in [(conv, 4 * *conv_len), (state, 4 * *state_len)] {
                    let (now, rest) = data.split_at(len);
                    buf.0[slot * len..(slot + 1) * len].copy_from_slice(now);
                    data = rest;
                }
            }
        }
    }
    fn save_page(&mut self, cache: &Cache, group: PageGroup, page: usize, mut out: &mut [u8]) {
        for l in cache.layers.iter().filter(|l| l.is_in(group)) {
            if let LayerStore::Kv { keys, values, page: [k, v], .. } = l {
                for (buf, len) in [(keys, k), (values, v)] {
                    let (now, rest) = out.split_at_mut(*len);
                    now.copy_from_slice(&buf[page * len..(page + 1) * len]);
                    out = rest;
                }
            }
        }
    }
    fn load_page(&mut self, cache: &mut Cache, group: PageGroup, page: usize, mut data: &[u8]) {
        for l in cache.layers.iter_mut().filter(|l| l.is_in(group)) {
            if let LayerStore::Kv { keys, values, page: [k, v], .. } = l {
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
        let unread = self.store.as_mut().and_then(Store::take_failure).map(Error);
        let failed = unread.or_else(|| self.packed_file.as_mut().and_then(PackedFile::failure));
        failed.map_or(Ok(()), Err)
    }

    fn embed(&mut self, batch: &Batch, table: &Matrix, row: TableRow, scale: f32, out: &mut Buf) {
        let start = self.begin();
        let (vector, out) = (&self.vector, Shards::new(out));
        self.team.run(|w| {
            for t in w.items(batch.len()) {
                // SAFETY: each token is one thread's.
                let values = unsafe { out.part(t * table.cols, table.cols) };
                table.dequantize_row(row.of(batch, t, table.rows), values);
                if scale != 1.0 {
                    vector.scale_and_cap(values, scale, None);
                }
            }
        });
        self.profile.add(Verb::Embed, start, batch.len() * table.row_bytes());
    }

    fn place(&mut self, to: &[u32], width: usize, x: &Buf, place: [usize; 2], out: Out<Self>) {
        rows::place(&self.vector, to, width, x, place, out);
    }

    fn project<const N: usize>(
        &mut self,
        n: usize,
        x: &Buf,
        norm: Option<&Norm<Self>>,
        w: [&Weight; N],
        out: [&mut Buf; N],
    ) {
        let start = self.begin();
        let Self { team, kernels, vector, scratch, watch, .. } = self;
        if let Some(watch) = watch {
            watch.rows(vector, norm, 0..n, x, w);
        }
        let s = scratch.as_mut().expect(NO_SCRATCH);
        let (cols, form) = (w[0].packed.layout().cols(), linear::form(w.map(|w| &w.packed)));
        let input = Input::new(&mut s.acts, n, n, cols, team.threads(), form);
        let (threads, per_thread, tokens) = (Shards::new(&mut s.threads), s.per_thread, &s.tokens[..n]);
        let mut out = out.into_iter();
        let outputs = w.map(|w| Output::new(w, out.next().expect("an output for each weight")));
        let source = Source { vector, norm, cols };
        team.run(|worker| {
            linear::prefetch(worker, kernels, w);
            // SAFETY: each thread has a part of its own.
            let own = unsafe { threads.part(worker.id * per_thread, per_thread) };
            let view = input.write(worker, kernels, |t, put| source.row(x, t, own, put));
            linear::multiply(worker, kernels, w, &view, tokens, own, |i, g, t, y| outputs[i].put(g, t, y));
        });
        self.profile.add(Verb::Project, start, w.iter().map(|w| w.packed.size_bytes()).sum());
    }

    fn linear(&mut self, n: usize, x: &Buf, w: &Weight, out: Out<Self>) {
        let start = self.begin();
        let Self { team, kernels, vector, scratch, watch, .. } = self;
        if let Some(watch) = watch {
            watch.rows(vector, None, 0..n, x, [w]);
        }
        let s = scratch.as_mut().expect(NO_SCRATCH);
        let (cols, form) = (w.packed.layout().cols(), linear::form([&w.packed]));
        let input = Input::new(&mut s.acts, n, n, cols, team.threads(), form);
        let (threads, per_thread, tokens) = (Shards::new(&mut s.threads), s.per_thread, &s.tokens[..n]);
        let output = Output::to(w, out);
        team.run(|worker| {
            linear::prefetch(worker, kernels, [w]);
            let view = input.write(worker, kernels, |t, put| put(&x[t * cols..(t + 1) * cols]));
            // SAFETY: each thread has a part of its own.
            let own = unsafe { threads.part(worker.id * per_thread, per_thread) };
            linear::multiply(worker, kernels, [w], &view, tokens, own, |_, g, t, y| output.put(g, t, y));
        });
        self.profile.add(Verb::Linear, start, w.packed.size_bytes());
    }

    fn per_head(&mut self, n: usize, x: &Buf, w: &Weight, rest: usize, out: &mut Buf) {
        let start = self.begin();
        let s = self.scratch.as_mut().expect(NO_SCRATCH);
        linear::per_head(&mut self.team, &self.kernels, s, n, x, w, rest, out);
        self.profile.add(Verb::Project, start, w.packed.size_bytes());
    }

    fn rope_store(
        &mut self,
        batch: &Batch,
        a: &Attention<Self>,
        layer: usize,
        cache: &mut Cache,
        q: &mut Buf,
        kv: Option<(&mut Buf, &Buf)>,
    ) {
        let start = self.begin();
        let (ty, store) = (cache.kv, &mut cache.layers[layer]);
        let kv = kv.map(|(k, v)| (&mut k[..], &v[..]));
        attend::rope_store(&mut self.team, &self.vector, batch, a, ty, store, q, kv);
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
        qkv: &[&Buf],
        z: &Buf,
        b: &Buf,
        alpha: &Buf,
        out: &mut Buf,
    ) {
        let start = self.begin();
        let s = self.scratch.as_mut().expect(NO_SCRATCH);
        let inputs = delta::Inputs { qkv: delta::Channels::new(g, qkv), z, b, alpha };
        delta::gdn(&mut self.team, &self.vector, s, batch, g, &mut cache.layers[layer], &inputs, out);
        self.profile.add(Verb::Gdn, start, delta::bytes(batch, g));
    }

    fn ssm(
        &mut self,
        batch: &Batch,
        s: &Ssm<Self>,
        layer: usize,
        cache: &mut Cache,
        z: &Buf,
        xbc: &Buf,
        dt: &Buf,
        out: &mut Buf,
    ) {
        let start = self.begin();
        let scratch = self.scratch.as_mut().expect(NO_SCRATCH);
        let store = &mut cache.layers[layer];
        recurrent::ssm(&mut self.team, &self.vector, scratch, batch, s, store, [z, xbc, dt], out);
        let state = s.heads * s.dim * s.state + (s.taps - 1) * s.channels();
        self.profile.add(Verb::Ssm, start, 2 * 4 * state * batch.spans().len());
    }

    fn short_conv(
        &mut self,
        batch: &Batch,
        s: &ShortConv<Self>,
        layer: usize,
        cache: &mut Cache,
        bcx: &Buf,
        out: &mut Buf,
    ) {
        let start = self.begin();
        let scratch = self.scratch.as_mut().expect(NO_SCRATCH);
        let store = &mut cache.layers[layer];
        recurrent::short_conv(&mut self.team, &self.vector, scratch, batch, s, store, bcx, out);
        self.profile.add(Verb::ShortConv, start, 2 * 4 * (s.taps - 1) * s.width * batch.spans().len());
    }

    fn multiply(
        &mut self,
        n: usize,
        width: usize,
        times: Times,
        x: &mut Buf,
        y: &Buf,
        [at, stride]: [usize; 2],
    ) {
        let (vector, x) = (&self.vector, Shards::new(x));
        self.team.run(|w| {
            for t in w.items(n) {
                // SAFETY: each token is one thread's.
                let row = unsafe { x.part(t * width, width) };
                glu::multiply_row(vector, times, row, &y[t * stride + at..]);
            }
        });
    }

    fn glu(&mut self, n: usize, x: Option<&Buf>, norm: Option<&Norm<Self>>, g: &Glu<Weight>, out: Out<Self>) {
        let start = self.begin();
        let s = self.scratch.as_mut().expect(NO_SCRATCH);
        if let Some(watch) = &mut self.watch {
            watch.before(&self.vector, norm, n, x.map(|x| &x[..]), &out, g.up.packed.layout().cols());
        }
        glu::glu(&mut self.team, &self.kernels, &self.vector, s, n, x.map(|x| &x[..]), norm, g, out);
        if let Some(watch) = &mut self.watch {
            watch.glu(n, g, s);
        }
        let parts = g.gate.iter().chain([&g.up, &g.down]);
        self.profile.add(Verb::Glu, start, parts.map(|w| w.packed.size_bytes()).sum());
    }

    fn records_routes(&self) -> bool {
        true
    }

    fn moe(
        &mut self,
        n: usize,
        x: Option<&Buf>,
        norm: Option<&Norm<Self>>,
        m: &Moe<Self>,
        layer: usize,
        counts: &ExpertCounts,
        out: Out<Self>,
    ) {
        let start = self.begin();
        if let Some(own) = &m.router.input {
            self.route_apart(n, x, own, &m.router.weight, &out);
        }
        let s = self.scratch.as_mut().expect(NO_SCRATCH);
        if let Some(watch) = &mut self.watch {
            watch.before(&self.vector, norm, n, x.map(|x| &x[..]), &out, m.experts.up.packed.layout().cols());
        }
        let store = self.store.as_mut().zip(m.experts.up.stored);
        moe::moe(&mut self.team, &self.kernels, &self.vector, s, store, n, x.map(|x| &x[..]), norm, m, out);
        if let Some(watch) = &mut self.watch {
            watch.moe(n, m, s);
        }
        s.routes.count(layer, counts);
        if counts.is_traced() {
            let shared = m.shared.as_ref().map(|_| &s.shared[..n]);
            s.routes.record(layer, n, shared, counts);
        }
        let bytes = moe::bytes(s, m);
        self.profile.add(Verb::Moe, start, bytes);
    }

    fn logits(&mut self, batch: &Batch, h: &Buf, head: &Head<Self>, out: &mut Buf) {
        let start = self.begin();
        let Self { team, kernels, vector, scratch, watch, .. } = self;
        if let Some(watch) = watch {
            watch.rows(
                vector,
                Some(head.norm),
                batch.outputs().iter().map(|&i| i as usize),
                h,
                [head.weight],
            );
        }
        let s = scratch.as_mut().expect(NO_SCRATCH);
        let (n, w) = (batch.outputs().len(), head.weight);
        let (cols, form) = (w.packed.layout().cols(), linear::form([&w.packed]));
        let input = Input::new(&mut s.acts, n, n, cols, team.threads(), form);
        let (threads, per_thread, tokens) = (Shards::new(&mut s.threads), s.per_thread, &s.tokens[..n]);
        let output = Output::new(w, out);
        let source = Source { vector, norm: Some(head.norm), cols };
        let changes = head.scale != 1.0 || head.softcap.is_some();
        team.run(|worker| {
            linear::prefetch(worker, kernels, [w]);
            // SAFETY: each thread has a part of its own.
            let own = unsafe { threads.part(worker.id * per_thread, per_thread) };
            let rows = batch.outputs();
            let view = input.write(worker, kernels, |i, put| source.row(h, rows[i] as usize, own, put));
            linear::multiply(worker, kernels, [w], &view, tokens, own, |_, g, t, y| {
                output.put(g, t, y);
                if changes {
                    output.each(g, t, y, |out, _| vector.scale_and_cap(out, head.scale, head.softcap));
                }
            });
        });
        self.profile.add(Verb::Logits, start, w.packed.size_bytes());
    }

    fn norm_outputs(&mut self, batch: &Batch, h: &Buf, norm: &Norm<Self>, out: &mut Buf) {
        let (vector, len, rows) = (&self.vector, norm.len, batch.outputs());
        let out = Shards::new(out);
        self.team.run(|w| {
            for i in w.items(rows.len()) {
                let from = rows[i] as usize * len;
                // SAFETY: each row is one thread's.
                linear::norm_row(vector, norm, &h[from..from + len], unsafe { out.part(i * len, len) });
            }
        });
    }

    fn norm(&mut self, n: usize, x: Option<&Buf>, norm: &Norm<Self>, out: Out<Self>) {
        let s = self.scratch.as_mut().expect(NO_SCRATCH);
        rows::norm(&mut self.team, &self.vector, s, n, x, norm, out);
    }

    fn add(&mut self, len: usize, x: Option<&Buf>, scale: f32, out: &mut Buf) {
        let (vector, out) = (&self.vector, Shards::new(out));
        self.team.run(|w| {
            for i in w.items(len.div_ceil(PART)) {
                let (from, n) = (i * PART, PART.min(len - i * PART));
                // SAFETY: each part is one thread's.
                let out = unsafe { out.part(from, n) };
                match x {
                    Some(x) => vector.add_scaled(out, &x[from..from + n], scale),
                    None => vector.scale_and_cap(out, scale, None),
                }
            }
        });
    }

    fn clamp(&mut self, len: usize, [min, max]: [f32; 2], x: &mut Buf) {
        let x = Shards::new(x);
        self.team.run(|w| {
            for i in w.items(len.div_ceil(PART)) {
                // SAFETY: each part is one thread's.
                let part = unsafe { x.part(i * PART, PART.min(len - i * PART)) };
                part.iter_mut().for_each(|x| *x = x.max(min).min(max));
            }
        });
    }

    fn predict_streams(
        &mut self,
        n: usize,
        a: &AltUp<Self>,
        routed: &Buf,
        h: &mut Buf,
        rest: &mut Buf,
        kept: &mut Buf,
    ) {
        rows::streams(&mut self.team, n, a, routed, [h, rest, kept], rows::predict);
    }

    fn correct_streams(
        &mut self,
        n: usize,
        a: &AltUp<Self>,
        routed: &Buf,
        h: &mut Buf,
        rest: &mut Buf,
        kept: &mut Buf,
    ) {
        rows::streams(&mut self.team, n, a, routed, [h, rest, kept], rows::correct);
    }
}

impl Cpu {
    /// Writes the logits of a router that normalises the block's input by itself to its scratch memory.
    fn route_apart(&mut self, n: usize, x: Option<&Buf>, norm: &Norm<Self>, w: &Weight, out: &Out<Self>) {
        let s = self.scratch.as_mut().expect(NO_SCRATCH);
        let mut logits = std::mem::replace(&mut s.router, Buf::none());
        let x = match (x, out) {
            (Some(x), _) => x,
            (None, Out::Write(out)) => out,
            (None, Out::Add(out, _)) => out,
        };
        self.project(n, x, Some(norm), [w], [&mut logits]);
        self.scratch.as_mut().expect(NO_SCRATCH).router = logits;
    }
}
