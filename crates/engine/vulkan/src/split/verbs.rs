//! The verbs, each on one of the devices.

use octet_compute::ExpertCounts;
use octet_compute::backend::*;
use octet_compute::batch::Batch;
use octet_compute::picks::Pick;
use octet_weights::Matrix;

use super::state::State;
use super::*;

/// The same norm, with a device's buffers.
fn norm_on(norm: &Norm<Split>, d: usize) -> Norm<Vulkan> {
    Norm {
        weight: norm.weight.on[d].clone(),
        bias: norm.bias.as_ref().map(|b| b.on[d].clone()),
        eps: norm.eps,
        centred: norm.centred,
        len: norm.len,
    }
}

fn opt_norm_on(norm: Option<&Norm<Split>>, d: usize) -> Option<Norm<Vulkan>> {
    norm.map(|n| norm_on(n, d))
}

fn buf_on(buf: Option<&Buf>, d: usize) -> Option<backend::Buf> {
    buf.map(|b| b.on[d].clone())
}

fn attention_on(a: &Attention<Split>, d: usize) -> Attention<Vulkan> {
    let rope = |r: &Rope<Split>| Rope {
        at: r.at,
        dims: r.dims,
        pairing: r.pairing,
        inv_freq: r.inv_freq.on[d].clone(),
        scale: r.scale,
        axes: r.axes.clone(),
    };
    Attention {
        heads: a.heads,
        kv_heads: a.kv_heads,
        k_dim: a.k_dim,
        v_dim: a.v_dim,
        values_in_keys: a.values_in_keys,
        scale: a.scale,
        softcap: a.softcap,
        sinks: buf_on(a.sinks.as_ref(), d),
        gated: a.gated,
        norms: a.norms.each_ref().map(|n| opt_norm_on(n.as_ref(), d)),
        norm_last: a.norm_last,
        rope: a.rope.as_ref().map(rope),
        window: a.window,
        two_way: a.two_way,
        position_scale: a.position_scale,
        value_scale: a.value_scale,
    }
}

fn glu_on(g: &Glu<Weight>) -> Glu<backend::Weight> {
    let gate = g.gate.as_ref().map(|w| w.inner.clone());
    Glu { gate, up: g.up.inner.clone(), down: g.down.inner.clone(), act: g.act }
}

fn moe_on(m: &Moe<Split>, d: usize) -> Moe<Vulkan> {
    let r = &m.router;
    Moe {
        router: Router {
            weight: r.weight.inner.clone(),
            input: opt_norm_on(r.input.as_ref(), d),
            score: r.score,
            choice_bias: buf_on(r.choice_bias.as_ref(), d),
            groups: r.groups,
            experts: r.experts,
            top_k: r.top_k,
            normalise: r.normalise,
            scale: r.scale,
            per_expert: buf_on(r.per_expert.as_ref(), d),
            weighs_input: r.weighs_input,
        },
        experts: glu_on(&m.experts),
        shared: m
            .shared
            .as_ref()
            .map(|s| SharedExpert { gate: buf_on(s.gate.as_ref(), d), glu: glu_on(&s.glu) }),
    }
}

/// Where a verb's result goes, and how.
struct To<'a> {
    buf: &'a mut Buf,
    /// The factor with which it is added; `None`: it replaces what is there.
    add: Option<f32>,
}

impl<'a> To<'a> {
    fn of(out: Out<'a, Split>) -> Self {
        match out {
            Out::Write(buf) => Self { buf, add: None },
            Out::Add(buf, scale) => Self { buf, add: Some(scale) },
        }
    }

    fn state(&self) -> Arc<State> {
        self.buf.state.clone()
    }

    fn on(&mut self, d: usize) -> Out<'_, Vulkan> {
        match self.add {
            None => Out::Write(&mut self.buf.on[d]),
            Some(scale) => Out::Add(&mut self.buf.on[d], scale),
        }
    }
}

impl Split {
    /// The inputs of a verb that writes to `to`, or reads it if there is no `x`.
    fn bring_for(&mut self, d: usize, x: Option<&Buf>, to: &To<'_>) {
        self.bring(d, x.as_slice());
        if x.is_none() || to.add.is_some() {
            self.bring(d, &[&*to.buf]);
        }
    }

    /// The first `len` values of `to` are a verb's result.
    fn wrote_to(&mut self, d: usize, to: &To<'_>, len: usize) {
        match to.add {
            None => self.wrote(d, &to.state(), len),
            Some(_) => self.changed(d, &to.state(), len),
        }
    }

    /// The device for a verb without weights.
    fn place_for(&self, x: Option<&Buf>, to: &To<'_>) -> usize {
        match x {
            None => self.place_of(&[&to.buf.state]),
            Some(x) if to.add.is_some() => self.place_of(&[&x.state, &to.buf.state]),
            Some(x) => self.place_of(&[&x.state]),
        }
    }

    /// Tokens that a recurrent layer reads: none where it only processes accepted guesses.
    fn bring_tokens(&mut self, d: usize, batch: &Batch, inputs: &[&Buf]) {
        self.bring(d, if batch.is_empty() { &[] } else { inputs });
    }

    fn wrote_tokens(&mut self, d: usize, batch: &Batch, out: &Buf, width: usize) {
        if !batch.is_empty() {
            self.wrote(d, &out.state, batch.len() * width);
        }
    }
}

impl Backend for Split {
    type Buf = Buf;
    type Weight = Weight;
    type Experts = Weight;
    type Embedding = backend::Embedding;
    type Cache = Cache;

    fn buf(&mut self, len: usize) -> Result<Buf, Error> {
        Ok(Buf { on: self.each(|_, be| be.buf(len))?, state: State::new(false) })
    }
    fn vector(&mut self, values: &[f32]) -> Result<Buf, Error> {
        Ok(Buf { on: self.each(|_, be| be.vector(values))?, state: State::new(true) })
    }
    fn weight(&mut self, m: &Matrix, bias: Option<&[f32]>) -> Result<Weight, Error> {
        let device = self.loading;
        let inner = self.devices[device].weight(m, bias).map_err(|e| self.named(device, &e))?;
        Ok(Weight { device, inner })
    }
    fn experts(&mut self, m: &[Matrix], bias: Option<&[f32]>) -> Result<Weight, Error> {
        let device = self.loading;
        let inner = self.devices[device].experts(m, bias).map_err(|e| self.named(device, &e))?;
        Ok(Weight { device, inner })
    }
    fn stage_next(&mut self, stage: Stage) {
        self.loading = self.of_stage(stage);
    }
    fn cache_next(&mut self, index: usize) {
        if self.caches.len() <= index {
            self.caches.resize(index + 1, None);
        }
        self.caches[index] = Some(self.loading);
    }
    fn supports(&self, part: Part) -> bool {
        // Streams lie beside each other on all devices, and whole texts take room for activations on each.
        !matches!(part, Part::Streams | Part::Encoder) && self.devices[0].supports(part)
    }
    fn embedding(&mut self, m: &Matrix) -> Result<backend::Embedding, Error> {
        self.devices[0].embedding(m)
    }
    fn cache(&mut self, shape: &CacheShape, step: StepShape) -> Result<Cache, Error> {
        self.caches_of(shape, step)
    }

    fn borrow<'a>(&'a self, _: &'a Buf) -> Option<&'a [f32]> {
        None // It is in the devices' memory.
    }
    fn read(&mut self, src: &Buf, out: &mut [f32]) {
        let d = self.place_of(&[&src.state]);
        self.devices[d].read(&src.on[d], out);
    }
    fn reset_slot(&mut self, cache: &mut Cache, slot: usize) {
        self.devices.iter_mut().zip(&mut cache.on).for_each(|(be, on)| be.reset_slot(on, slot));
    }
    fn copy_slot(&mut self, cache: &mut Cache, from: usize, to: usize) {
        self.devices.iter_mut().zip(&mut cache.on).for_each(|(be, on)| be.copy_slot(on, from, to));
    }
    fn copy_page(&mut self, cache: &mut Cache, group: PageGroup, from: usize, to: usize) {
        self.devices.iter_mut().zip(&mut cache.on).for_each(|(be, on)| be.copy_page(on, group, from, to));
    }
    fn copy_rows(&mut self, from: &Weight, to: &mut Weight, rows: &[(u32, u32)]) {
        // Both are heads.
        assert_eq!(from.device, to.device, "rows are copied on one device");
        self.devices[from.device].copy_rows(&from.inner, &mut to.inner, rows);
    }
    fn save_slot(&mut self, cache: &Cache, slot: usize, out: &mut [u8]) {
        cache.gather(cache.slot_bytes(), out, |d, part| self.devices[d].save_slot(&cache.on[d], slot, part));
    }
    fn load_slot(&mut self, cache: &mut Cache, slot: usize, data: &[u8]) {
        let mut parts = Vec::with_capacity(cache.on.len());
        cache.scatter(cache.slot_bytes(), data, |d, part| parts.push((d, part.to_vec())));
        for (d, part) in parts {
            self.devices[d].load_slot(&mut cache.on[d], slot, &part);
        }
    }
    fn save_page(&mut self, cache: &Cache, group: PageGroup, page: usize, out: &mut [u8]) {
        let read = |d: usize, part: &mut [u8]| self.devices[d].save_page(&cache.on[d], group, page, part);
        cache.gather(cache.page_bytes(group), out, read);
    }
    fn load_page(&mut self, cache: &mut Cache, group: PageGroup, page: usize, data: &[u8]) {
        let mut parts = Vec::with_capacity(cache.on.len());
        cache.scatter(cache.page_bytes(group), data, |d, part| parts.push((d, part.to_vec())));
        for (d, part) in parts {
            self.devices[d].load_page(&mut cache.on[d], group, page, &part);
        }
    }

    fn step(&mut self, pass: Pass, batch: &Batch, body: impl FnOnce(&mut Self)) -> Result<(), Error> {
        self.run_step(pass, batch, body)
    }
    fn compile_kernels(&mut self, steps: impl FnOnce(&mut Self)) -> Result<(), Error> {
        if self.devices[0].lazy_kernels {
            return Ok(());
        }
        self.each(|_, be| be.begin_noting())?;
        steps(self);
        self.each(|_, be| be.compile_noted())?;
        Ok(())
    }
    fn has_failed(&self) -> bool {
        self.is_failed()
    }
    fn records_routes(&self) -> bool {
        true
    }
    fn count_experts(&mut self, counts: &ExpertCounts) {
        self.devices.iter_mut().for_each(|be| be.count_experts(counts));
    }
    fn prepare_picks(&mut self, rows: usize, vocab: usize, sampleable: &[u32]) -> Result<bool, Error> {
        // Recorded without it.
        self.forget_steps();
        let last = self.last();
        let made = self.devices[last].prepare_picks(rows, vocab, sampleable);
        made.map_err(|e| self.named(last, &e))
    }
    fn pick(&mut self, rows: usize, logits: &Buf) {
        let d = self.last();
        self.bring(d, &[logits]);
        self.devices[d].pick(rows, &logits.on[d]);
    }
    fn picks(&mut self, row: usize, out: &mut Vec<Pick>) -> bool {
        let last = self.last();
        self.devices[last].picks(row, out)
    }

    fn embed(&mut self, batch: &Batch, table: &backend::Embedding, row: TableRow, scale: f32, out: &mut Buf) {
        self.bring(0, &[]);
        self.devices[0].embed(batch, table, row, scale, &mut out.on[0]);
        self.wrote(0, &out.state, batch.len() * table.table.cols);
    }

    fn place(&mut self, to: &[u32], width: usize, x: &Buf, place: [usize; 2], out: Out<Self>) {
        let mut out = To::of(out);
        // The other rows stay as they are.
        let d = self.place_of(&[&x.state, &out.buf.state]);
        self.bring(d, &[x, &*out.buf]);
        self.devices[d].place(to, width, &x.on[d], place, out.on(d));
        let rows = to.iter().max().map_or(0, |row| *row as usize + 1);
        self.changed(d, &out.state(), rows * width);
    }

    fn project<const N: usize>(
        &mut self,
        n: usize,
        x: &Buf,
        norm: Option<&Norm<Self>>,
        w: [&Weight; N],
        out: [&mut Buf; N],
    ) {
        let d = w.first().map_or(self.at, |w| w.device);
        self.bring(d, &[x]);
        let norm = opt_norm_on(norm, d);
        let states = out.each_ref().map(|o| o.state.clone());
        let (inner, to) = (w.map(|w| &w.inner), out.map(|o| &mut o.on[d]));
        Backend::project(&mut self.devices[d], n, &x.on[d], norm.as_ref(), inner, to);
        for (state, w) in states.iter().zip(w) {
            self.wrote(d, state, n * w.inner.rows);
        }
    }

    fn linear(&mut self, n: usize, x: &Buf, w: &Weight, out: Out<Self>) {
        let (d, mut out) = (w.device, To::of(out));
        self.bring_for(d, Some(x), &out);
        self.devices[d].linear(n, &x.on[d], &w.inner, out.on(d));
        self.wrote_to(d, &out, n * w.inner.rows);
    }

    fn per_head(&mut self, n: usize, x: &Buf, w: &Weight, rest: usize, out: &mut Buf) {
        let d = w.device;
        self.bring(d, &[x]);
        self.devices[d].per_head(n, &x.on[d], &w.inner, rest, &mut out.on[d]);
        self.wrote(d, &out.state, n * w.inner.count * (w.inner.rows + rest));
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
        let d = self.of_cache(layer);
        self.bring(d, &[&*q]);
        let a = attention_on(a, d);
        let Some((k, v)) = kv else {
            self.devices[d].rope_store(batch, &a, layer, &mut cache.on[d], &mut q.on[d], None);
            return self.changed(d, &q.state, 0);
        };
        self.bring(d, &[&*k]);
        if !a.values_in_keys {
            self.bring(d, &[v]);
        }
        let on = Some((&mut k.on[d], &v.on[d]));
        self.devices[d].rope_store(batch, &a, layer, &mut cache.on[d], &mut q.on[d], on);
        self.changed(d, &q.state, 0);
        self.changed(d, &k.state, 0);
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
        let d = self.of_cache(layer);
        self.bring(d, &[q]);
        let a = attention_on(a, d);
        self.devices[d].attend(batch, &a, layer, &cache.on[d], &q.on[d], &mut out.on[d]);
        self.wrote(d, &out.state, batch.len() * a.heads * a.v_dim);
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
        let d = self.of_cache(layer);
        self.bring_tokens(d, batch, qkv);
        self.bring_tokens(d, batch, &[z, b, alpha]);
        let inner = Gdn {
            k_heads: g.k_heads,
            v_heads: g.v_heads,
            k_dim: g.k_dim,
            v_dim: g.v_dim,
            conv_kernel: g.conv_kernel,
            order: g.order,
            conv: g.conv.on[d].clone(),
            row_decay: g.row_decay,
            dt_bias: g.dt_bias.on[d].clone(),
            a: g.a.on[d].clone(),
            sigmoid_gate: g.sigmoid_gate,
            norm: g.norm.on[d].clone(),
            eps: g.eps,
        };
        let qkv: Vec<&backend::Buf> = qkv.iter().map(|b| &b.on[d]).collect();
        let [z, b, alpha] = [z, b, alpha].map(|b| &b.on[d]);
        let (be, cache) = (&mut self.devices[d], &mut cache.on[d]);
        be.gdn(batch, &inner, layer, cache, &qkv, z, b, alpha, &mut out.on[d]);
        self.wrote_tokens(d, batch, out, g.v_heads * g.v_dim);
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
        let d = self.of_cache(layer);
        self.bring_tokens(d, batch, &[z, xbc, dt]);
        let inner = Ssm {
            groups: s.groups,
            heads: s.heads,
            dim: s.dim,
            state: s.state,
            taps: s.taps,
            conv: s.conv.on[d].clone(),
            conv_bias: buf_on(s.conv_bias.as_ref(), d),
            dt_bias: s.dt_bias.on[d].clone(),
            a: s.a.on[d].clone(),
            d: s.d.on[d].clone(),
            norm: opt_norm_on(s.norm.as_ref(), d),
        };
        let [z, xbc, dt] = [z, xbc, dt].map(|b| &b.on[d]);
        self.devices[d].ssm(batch, &inner, layer, &mut cache.on[d], z, xbc, dt, &mut out.on[d]);
        self.wrote_tokens(d, batch, out, s.heads * s.dim);
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
        let d = self.of_cache(layer);
        self.bring_tokens(d, batch, &[bcx]);
        let inner = ShortConv { width: s.width, taps: s.taps, conv: s.conv.on[d].clone() };
        let (be, cache) = (&mut self.devices[d], &mut cache.on[d]);
        be.short_conv(batch, &inner, layer, cache, &bcx.on[d], &mut out.on[d]);
        self.wrote_tokens(d, batch, out, s.width);
    }

    fn multiply(&mut self, n: usize, width: usize, times: Times, x: &mut Buf, y: &Buf, place: [usize; 2]) {
        let d = self.place_of(&[&x.state, &y.state]);
        self.bring(d, &[&*x, y]);
        self.devices[d].multiply(n, width, times, &mut x.on[d], &y.on[d], place);
        self.changed(d, &x.state, n * width);
    }

    fn clamp(&mut self, len: usize, bounds: [f32; 2], x: &mut Buf) {
        let d = self.place_of(&[&x.state]);
        self.bring(d, &[&*x]);
        self.devices[d].clamp(len, bounds, &mut x.on[d]);
        self.changed(d, &x.state, len);
    }

    fn glu(&mut self, n: usize, x: Option<&Buf>, norm: Option<&Norm<Self>>, g: &Glu<Weight>, out: Out<Self>) {
        let (d, mut out) = (g.up.device, To::of(out));
        self.bring_for(d, x, &out);
        let norm = opt_norm_on(norm, d);
        self.devices[d].glu(n, x.map(|x| &x.on[d]), norm.as_ref(), &glu_on(g), out.on(d));
        self.wrote_to(d, &out, n * g.down.inner.rows);
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
        let (d, mut out) = (m.router.weight.device, To::of(out));
        self.bring_for(d, x, &out);
        let norm = opt_norm_on(norm, d);
        let moe = moe_on(m, d);
        self.devices[d].moe(n, x.map(|x| &x.on[d]), norm.as_ref(), &moe, layer, counts, out.on(d));
        self.wrote_to(d, &out, n * m.experts.down.inner.rows);
    }

    fn logits(&mut self, batch: &Batch, h: &Buf, head: &Head<Self>, out: &mut Buf) {
        let d = head.weight.device;
        self.bring(d, &[h]);
        let norm = norm_on(head.norm, d);
        let weight = &head.weight.inner;
        let inner = Head { norm: &norm, weight, scale: head.scale, softcap: head.softcap };
        self.devices[d].logits(batch, &h.on[d], &inner, &mut out.on[d]);
        self.wrote(d, &out.state, batch.outputs().len() * weight.rows);
    }

    fn norm_outputs(&mut self, batch: &Batch, h: &Buf, norm: &Norm<Self>, out: &mut Buf) {
        let d = self.place_of(&[&h.state]);
        self.bring(d, &[h]);
        let be = &mut self.devices[d];
        Backend::norm_outputs(be, batch, &h.on[d], &norm_on(norm, d), &mut out.on[d]);
        self.wrote(d, &out.state, batch.outputs().len() * norm.len);
    }

    fn norm(&mut self, n: usize, x: Option<&Buf>, norm: &Norm<Self>, out: Out<Self>) {
        let mut out = To::of(out);
        let d = self.place_for(x, &out);
        self.bring_for(d, x, &out);
        self.devices[d].norm(n, x.map(|x| &x.on[d]), &norm_on(norm, d), out.on(d));
        self.wrote_to(d, &out, n * norm.len);
    }

    fn add(&mut self, len: usize, x: Option<&Buf>, scale: f32, out: &mut Buf) {
        let out = To { buf: out, add: Some(scale) };
        let d = self.place_for(x, &out);
        self.bring_for(d, x, &out);
        self.devices[d].add(len, x.map(|x| &x.on[d]), scale, &mut out.buf.on[d]);
        self.changed(d, &out.state(), len);
    }
}
