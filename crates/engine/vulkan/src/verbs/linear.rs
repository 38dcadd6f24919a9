//! Embedding, norms and projections.

use std::sync::Arc;

use octet_compute::Error;
use octet_compute::backend::{Act, Glu, Head, Norm, TableRow};
use octet_compute::batch::Batch;

use super::elements::act_of;
use super::{ROW_TICKETS, Rows, TAIL_TOKENS_MAX, Target};
use crate::backend::{Buf, Embedding, Prologue, Vulkan, Weight};
use crate::kernel::Kernel;
use crate::memory::Buffer;
use crate::record::Dispatch;
use crate::weights::DeviceType;

/// The operation on rows before a projection.
#[derive(Clone, Copy)]
pub(crate) enum Before<'a> {
    /// None.
    Nothing,
    /// A norm.
    Norm(&'a Norm<Vulkan>),
    /// An activation.
    Act(Activation<'a>),
}

/// `act(row) * up`, or without `up` `act(row)`.
#[derive(Clone, Copy)]
pub(crate) struct Activation<'a> {
    pub(crate) act: Act,
    pub(crate) up: Option<&'a Arc<Buffer>>,
    /// What rows, and those of `up`, are multiplied by before it.
    pub(crate) factors: Option<&'a Arc<Buffer>>,
}

/// Rows to prepare.
#[derive(Clone, Copy)]
pub(crate) struct Prepare<'a> {
    pub(crate) n: usize,
    pub(crate) cols: usize,
    pub(crate) x: &'a Arc<Buffer>,
    /// From one row of `x` to the next.
    pub(crate) stride: usize,
    pub(crate) before: Before<'a>,
    /// Where in the block the rows' numbers are, if they are not all rows.
    pub(crate) gather: Option<u32>,
    /// Rows of norm weights, which rows take in turn.
    pub(crate) weights: usize,
    /// The forms that are written: 8-bit, f32.
    pub(crate) forms: [bool; 2],
    /// The f32 form is added with this factor; 0: it is written.
    pub(crate) add: f32,
    pub(crate) to: &'a Rows,
}

/// The experts of a projection: tiles, pairs of tokens and experts, and the number of pairs that share a row of the input.
pub(crate) struct Experts<'a> {
    pub(crate) tiles: &'a Arc<Buffer>,
    pub(crate) pairs: &'a Arc<Buffer>,
    pub(crate) pairs_per_row: u32,
    /// Maximum number of tiles.
    pub(crate) tiles_max: usize,
    /// Maximum number of tokens of a tile.
    pub(crate) tile: u32,
    /// The offset of the layer's table of slots, if its experts are in the host's memory.
    pub(crate) slots_at: Option<u32>,
}

/// Maximum number of tokens of a workgroup that does not share weights; for more, `linear_tile.comp` reads them to shared memory.
const PLAIN_TILE_MAX: u32 = 8;

/// Tokens of a workgroup for `n` tokens. To be measured on a card: tiles of 64 reuse weights more, smaller ones occupy more of the device.
pub(crate) fn tile(n: usize) -> u32 {
    match n {
        0 | 1 => 1,
        2 => 2,
        3 | 4 => 4,
        5..32 => PLAIN_TILE_MAX,
        32..256 => 32,
        _ => 64,
    }
}

/// Pairs of a workgroup for `pairs` pairs of tokens and experts; shared tiles only if `is_quantised`. A tile costs the same even if it is
/// mostly empty, so it is not larger than an expert's share.
pub(crate) fn expert_tile(n: usize, pairs: usize, experts: usize, is_quantised: bool) -> u32 {
    match pairs / experts.max(1) {
        48.. if is_quantised => 64,
        24.. if is_quantised => 32,
        8.. if is_quantised => 16,
        _ => tile(n).min(PLAIN_TILE_MAX),
    }
}

/// Whether a workgroup of this many tokens shares the weights that it reads.
pub(crate) fn is_shared(tile: u32) -> bool {
    tile > PLAIN_TILE_MAX
}

impl Vulkan {
    /// Starts the kernel that prepares `n` rows of `cols` values of `x` for projections, in the forms that these read.
    pub(crate) fn prepare_rows(
        &mut self,
        n: usize,
        cols: usize,
        x: &Arc<Buffer>,
        before: Before<'_>,
        gather: Option<u32>,
        forms: [bool; 2],
        to: &Rows,
    ) -> Result<(), Error> {
        self.prepare_as(&Prepare {
            n,
            cols,
            x,
            stride: cols,
            before,
            gather,
            weights: 1,
            forms,
            add: 0.0,
            to,
        })
    }

    pub(crate) fn prepare_as(&mut self, p: &Prepare<'_>) -> Result<(), Error> {
        let dummy = self.dummy.clone();
        // Numbers as in `norm.comp`.
        let (mode, w, bias, eps, act) = match p.before {
            Before::Nothing => (0, &dummy, None, 0.0, Act::Silu),
            Before::Norm(n) => {
                let mode = if n.centred { 4 } else { 1 };
                (mode, &n.weight.buffer, n.bias.as_ref().map(|b| &b.buffer), n.eps, Act::Silu)
            }
            Before::Act(Activation { act, up: Some(up), factors }) => (2, up, factors, 0.0, act),
            Before::Act(Activation { act, up: None, factors }) => (5, &dummy, factors, 0.0, act),
        };
        let index = match p.gather {
            Some(_) => self.block()?.words.clone(),
            None => dummy.clone(),
        };
        let (act, [alpha, limit]) = act_of(act);
        let push = [
            p.cols as u32,
            p.gather.is_some().into(),
            p.gather.unwrap_or(0),
            eps.to_bits(),
            p.stride as u32,
            p.weights as u32,
            bias.is_some().into(),
            p.add.to_bits(),
            alpha,
            limit,
        ];
        let floats = if p.forms[1] { 1 + u32::from(p.add != 0.0) } else { 0 };
        let constants = [mode, p.forms[0].into(), floats, act];
        let buffers = [p.x, w, &index, &p.to.quants, &p.to.scales, &p.to.floats, bias.unwrap_or(&dummy)];
        self.recorder.dispatch(Kernel::Norm, constants, &buffers, &push, [p.n as u32, 1, 1])
    }

    /// Starts the kernel that writes the norm's factor of each of `n` rows to `factors[at..]`.
    pub(crate) fn norm_factors(
        &mut self,
        n: usize,
        cols: usize,
        x: &Arc<Buffer>,
        eps: f32,
        at: usize,
    ) -> Result<(), Error> {
        let (dummy, factors, rows) = (self.dummy.clone(), self.scratch()?.factors.clone(), self.input()?);
        let buffers = [x, &dummy, &dummy, &rows.quants, &rows.scales, &factors, &dummy];
        let push = [cols as u32, 0, at as u32, eps.to_bits(), cols as u32, 1, 0, 0, 0, 0];
        self.recorder.dispatch(Kernel::Norm, [3, 0, 0, 0], &buffers, &push, [n as u32, 1, 1])
    }

    /// Starts a projection of prepared rows: `out[t] = w . x[t]`.
    pub(crate) fn project(
        &mut self,
        n: usize,
        x: &Rows,
        w: &Weight,
        out: &Arc<Buffer>,
        experts: Option<&Experts<'_>>,
    ) -> Result<(), Error> {
        let kernel = self.projection(n, x, w, out, 0.0, experts);
        self.recorder.start(&kernel)
    }

    /// Invocations of a workgroup of the kernels for few tokens: four share a stripe of 8 rows, but for narrow floats (`linear.glsl`).
    fn threads(&self, ty: DeviceType) -> u32 {
        if self.shares_stripes && ty.narrow(1).is_none() { 256 } else { 64 }
    }

    pub(crate) fn projection(
        &self,
        n: usize,
        x: &Rows,
        w: &Weight,
        out: &Arc<Buffer>,
        add: f32,
        experts: Option<&Experts<'_>>,
    ) -> Dispatch {
        let dummy = self.dummy.clone();
        let input = if w.ty.is_float() { &x.floats } else { &x.quants };
        let largest = if w.ty.is_float() { PLAIN_TILE_MAX } else { u32::MAX };
        let tokens = experts.map_or(tile(n).min(largest), |e| e.tile);
        let (tiles, pairs) = experts.map_or((&dummy, &dummy), |e| (e.tiles, e.pairs));
        let host = w.paged.as_ref();
        let slots = self.scratch.as_ref().map_or_else(|| dummy.clone(), |s| s.slots.clone());
        let buffers = [
            &w.quants,
            &w.high,
            &w.scales,
            input,
            &x.scales,
            w.bias.as_ref().unwrap_or(&dummy),
            out,
            tiles,
            pairs,
            host.map_or(&dummy, |p| &p.quants),
            host.map_or(&dummy, |p| &p.high),
            host.map_or(&dummy, |p| &p.scales),
            host.map_or(&dummy, |_| &slots),
        ];
        let push = [
            w.rows as u32,
            w.cols as u32,
            n as u32,
            w.cols as u32,
            w.rows as u32,
            w.bias.is_some().into(),
            add.to_bits(),
            experts.map_or(1, |e| e.pairs_per_row),
            experts.and_then(|e| e.slots_at).unwrap_or(0),
        ];
        let columns = experts.map_or(n.div_ceil(tokens as usize), |e| e.tiles_max) as u32;
        let kind = experts.map_or(0, |_| 1 + u32::from(host.is_some()));
        let constants = [w.ty as u32, tokens, kind, self.threads(w.ty)];
        let (kernel, rows) = if is_shared(tokens) { (Kernel::LinearTile, 64) } else { (Kernel::Linear, 8) };
        let groups = [w.rows.div_ceil(rows) as u32, columns, 1];
        let buffers = buffers.map(Arc::clone).to_vec();
        Dispatch { kernel, constants, buffers, push: push.to_vec(), groups }
    }

    /// Starts a projection of prepared rows that completes rows: `h[t] (+)= w . x[t]`. Held back until the next kernel is known, which may be
    /// the rows' norm.
    fn project_to_rows(&mut self, n: usize, x: &Rows, w: &Weight, to: Target<'_, Buf>) -> Result<(), Error> {
        let kernel = self.projection(n, x, w, &to.buf.buffer, to.add, None);
        if n > TAIL_TOKENS_MAX { self.recorder.start(&kernel) } else { self.recorder.hold(kernel) }
    }

    /// Prepares `n` rows of `cols` values of `h`, or their norm, for the next stage, and ends this one. An RMS norm is the tail of the stage that
    /// completes these rows, if it was the last one.
    pub(crate) fn norm_stage(
        &mut self,
        n: usize,
        cols: usize,
        h: &Arc<Buffer>,
        norm: Option<&Norm<Self>>,
        forms: [bool; 2],
        to: &Rows,
    ) -> Result<(), Error> {
        self.prepared = None;
        // The index of the rows among a kernel's buffers, and the number of rows.
        let completes = |d: &Dispatch| match d.kernel {
            Kernel::Linear => {
                Arc::ptr_eq(&d.buffers[6], h) && d.push[0] == cols as u32 && d.push[2] == n as u32
            }
            Kernel::Down => {
                Arc::ptr_eq(&d.buffers[9], h) && d.push[0] == cols as u32 && d.groups[1] == n as u32
            }
            _ => false,
        };
        let rms = norm.filter(|n| !n.centred && n.bias.is_none());
        let held = rms.and_then(|norm| Some((norm, self.recorder.take_held(completes)?)));
        let Some((norm, mut kernel)) = held else {
            self.recorder.barrier()?;
            let before = norm.map_or(Before::Nothing, Before::Norm);
            self.prepare_rows(n, cols, h, before, None, forms, to)?;
            return self.recorder.barrier();
        };
        let tickets = self.scratch()?.tickets.clone();
        // Drops the buffers that a kernel without a tail has: those of experts, or placeholders for the tail's.
        let (buffers, push) = if kernel.kernel == Kernel::Linear { (7, 7) } else { (10, 5) };
        kernel.buffers.truncate(buffers);
        kernel
            .buffers
            .extend([&norm.weight.buffer, &to.quants, &to.scales, &to.floats, &tickets].map(Arc::clone));
        kernel.push.truncate(push);
        kernel.push.extend([norm.eps.to_bits(), u32::from(forms[0]) | u32::from(forms[1]) << 1, ROW_TICKETS]);
        match kernel.kernel {
            Kernel::Linear => kernel.kernel = Kernel::LinearNorm,
            _ => kernel.constants[1] = 1,
        }
        self.recorder.hold(kernel)?;
        self.recorder.barrier()
    }

    /// The forms of their input that these weights read: 8-bit, f32.
    pub(crate) fn forms(weights: &[&Weight]) -> [bool; 2] {
        [weights.iter().any(|w| !w.ty.is_float()), weights.iter().any(|w| w.ty.is_float())]
    }

    pub(crate) fn input(&self) -> Result<Rows, Error> {
        Ok(self.scratch()?.input.clone())
    }

    pub(crate) fn embed_rows(
        &mut self,
        batch: &Batch,
        table: &Embedding,
        row: TableRow,
        scale: f32,
        out: &Buf,
    ) -> Result<(), Error> {
        self.recorder.traffic.add((batch.len() * table.table.row_bytes()) as u64);
        if self.follows {
            return self.embed_picked(table, batch.len(), scale, out);
        }
        self.before_host_write()?;
        let (rows, values) = (self.block()?.rows.clone(), batch.len() * table.table.cols);
        let first = self.take_rows(values, rows.bytes as usize / 4)?;
        let prologue = Prologue::Embed(table.table.clone(), row, first, scale);
        self.prepare(&prologue, batch)?;
        self.prologue.push(prologue);
        self.recorder.barrier()?;
        self.recorder.copy((&rows, 4 * first as u64), (&out.buffer, 0), 4 * values as u64)
    }

    pub(crate) fn norm_linears(
        &mut self,
        n: usize,
        x: &Buf,
        norm: Option<&Norm<Self>>,
        weights: &[&Weight],
        out: &[Arc<Buffer>],
    ) -> Result<(), Error> {
        let input = self.input()?;
        let (cols, forms) = (weights.first().map_or(0, |w| w.cols), Self::forms(weights));
        self.norm_stage(n, cols, &x.buffer, norm, forms, &input)?;
        self.recorder.traffic.add_weights(weights);
        weights.iter().zip(out).try_for_each(|(w, out)| self.project(n, &input, w, out, None))
    }

    pub(crate) fn project_add(
        &mut self,
        n: usize,
        x: &Buf,
        w: &Weight,
        to: Target<'_, Buf>,
    ) -> Result<(), Error> {
        let mut input = self.input()?;
        let prepared = self.prepared.take().is_some_and(|p| Arc::ptr_eq(&p, &x.buffer));
        if w.ty.is_float() {
            input.floats = x.buffer.clone();
        } else if !prepared {
            self.recorder.barrier_beside()?;
            self.prepare_rows(n, w.cols, &x.buffer, Before::Nothing, None, [true, false], &input)?;
        }
        // The kernel that a recurrent layer deferred touches neither these rows nor the target.
        self.recorder.barrier_beside()?;
        self.recorder.traffic.add_weights(&[w]);
        self.project_to_rows(n, &input, w, to)
    }

    /// A projection of each head's first values; `rest` values of each are copied.
    pub(crate) fn product_by_heads(
        &mut self,
        n: usize,
        x: &Buf,
        w: &Weight,
        rest: usize,
        out: &Buf,
    ) -> Result<(), Error> {
        let (heads, x_width, y_width) = (w.count, w.cols + rest, w.rows + rest);
        let (dummy, rows) = (self.dummy.clone(), self.scratch()?.heads.clone());
        self.recorder.traffic.add(w.bytes() * heads as u64);
        self.prepared = None;
        self.recorder.barrier()?;
        // In a stage before the product, which writes the same buffer.
        if rest > 0 {
            let (to, from) = ([w.rows, y_width], [w.cols, x_width]);
            self.copy_parts([n * heads, rest], (&out.buffer, to), (&x.buffer, from))?;
        }
        let is_float = w.ty.is_float();
        let (input, stride) = if is_float { (&x.buffer, x_width) } else { (&rows.quants, w.cols) };
        if !is_float {
            self.prepare_as(&Prepare {
                n: n * heads,
                cols: w.cols,
                x: &x.buffer,
                stride: x_width,
                before: Before::Nothing,
                gather: None,
                weights: 1,
                forms: [true, false],
                add: 0.0,
                to: &rows,
            })?;
        }
        self.recorder.barrier()?;
        let tokens = tile(n).min(PLAIN_TILE_MAX);
        let push = [w.rows, w.cols, n, stride, y_width, 0, 0].map(|n| n as u32);
        let buffers = [&w.quants, &w.high, &w.scales, input, &rows.scales, &dummy, &out.buffer];
        let groups = [w.rows.div_ceil(8) as u32, n.div_ceil(tokens as usize) as u32, heads as u32];
        self.recorder.dispatch(
            Kernel::PerHead,
            [w.ty as u32, tokens, 0, self.threads(w.ty)],
            &buffers,
            &push,
            groups,
        )
    }

    pub(crate) fn dense(
        &mut self,
        n: usize,
        x: &Buf,
        norm: Option<&Norm<Self>>,
        m: &Glu<Weight>,
        to: Target<'_, Buf>,
    ) -> Result<(), Error> {
        let input = self.input()?;
        let inner = self.scratch()?.inner.clone();
        let forms = Self::forms(&m.gate.iter().chain([&m.up]).collect::<Vec<_>>());
        self.norm_stage(n, m.up.cols, &x.buffer, norm, forms, &input)?;
        self.recorder.traffic.add_weights(&[&m.up]);
        m.gate.iter().for_each(|gate| self.recorder.traffic.add_weights(&[gate]));
        if !self.gate_and_up(n, &input, m)? {
            self.recorder.barrier()?;
            self.activate(n, m)?;
        }
        self.recorder.barrier()?;
        self.recorder.traffic.add_weights(&[&m.down]);
        self.project_to_rows(n, &inner, &m.down, to)
    }

    /// Starts the first projections of a dense block. Returns whether that also prepares the last one's input; else [`Vulkan::activate`]
    /// does, in a later stage.
    pub(crate) fn gate_and_up(&mut self, n: usize, x: &Rows, m: &Glu<Weight>) -> Result<bool, Error> {
        let scratch = self.scratch()?;
        let (gate, up, inner) = (scratch.gate.clone(), scratch.up.clone(), scratch.inner.clone());
        if !is_shared(tile(n)) && Self::can_fuse(m) {
            self.gate_up(n, x, m, &inner, None)?;
            return Ok(true);
        }
        if let Some(w) = &m.gate {
            self.project(n, x, w, &gate, None)?;
        }
        self.project(n, x, &m.up, &up, None)?;
        Ok(false)
    }

    /// Starts the kernel that prepares the input of a dense block's last projection.
    pub(crate) fn activate(&mut self, n: usize, m: &Glu<Weight>) -> Result<(), Error> {
        let scratch = self.scratch()?;
        let (gate, up, inner) = (scratch.gate.clone(), scratch.up.clone(), scratch.inner.clone());
        let forms = Self::forms(&[&m.down]);
        let (x, up) = if m.gate.is_some() { (&gate, Some(&up)) } else { (&up, None) };
        let before = Before::Act(Activation { act: m.act, up, factors: None });
        self.prepare_rows(n, m.down.cols, x, before, None, forms, &inner)
    }

    /// Whether gate, up and the quantisation of their product are one kernel.
    pub(crate) fn can_fuse(g: &Glu<Weight>) -> bool {
        let plain = |w: &Weight| !w.ty.is_float() && w.bias.is_none() && w.paged.is_none();
        g.gate.as_ref().is_some_and(|gate| {
            gate.ty == g.up.ty
                && plain(gate)
                && plain(&g.up)
                && !g.down.ty.is_float()
                && gate.rows.is_multiple_of(32)
        })
    }

    /// Starts the kernel that makes quantised rows `act(gate . x) * (up . x)`, of tiles that are not shared. Only where [`Vulkan::can_fuse`].
    pub(crate) fn gate_up(
        &mut self,
        n: usize,
        x: &Rows,
        g: &Glu<Weight>,
        to: &Rows,
        experts: Option<&Experts<'_>>,
    ) -> Result<(), Error> {
        let (dummy, up) = (self.dummy.clone(), &g.up);
        let gate = g.gate.as_ref().unwrap_or(up);
        let tokens = experts.map_or(tile(n), |e| e.tile);
        let (tiles, pairs) = experts.map_or((&dummy, &dummy), |e| (e.tiles, e.pairs));
        let buffers = [
            &gate.quants,
            &gate.high,
            &gate.scales,
            &up.quants,
            &up.high,
            &up.scales,
            &x.quants,
            &x.scales,
            &to.quants,
            &to.scales,
            tiles,
            pairs,
        ];
        let divide = experts.map_or(1, |e| e.pairs_per_row);
        let (act, [alpha, limit]) = act_of(g.act);
        let push = [gate.rows as u32, gate.cols as u32, n as u32, divide, alpha, limit];
        let columns = experts.map_or(n.div_ceil(tokens as usize), |e| e.tiles_max) as u32;
        let constants = [gate.ty as u32, tokens, experts.is_some().into(), act];
        let groups = [(gate.rows / 32) as u32, columns, 1];
        self.recorder.dispatch(Kernel::GateUp, constants, &buffers, &push, groups)
    }

    pub(crate) fn head(
        &mut self,
        batch: &Batch,
        h: &Buf,
        head: &Head<'_, Self>,
        out: &Buf,
    ) -> Result<(), Error> {
        let (norm, w) = (head.norm, head.weight);
        self.use_batch(batch)?;
        self.recorder.traffic.add_weights(&[w]);
        let (input, outputs) = (self.input()?, self.block()?.outputs);
        let (n, forms) = (batch.outputs().len(), Self::forms(&[w]));
        if n == batch.len() {
            // They ascend, so they are all rows.
            self.norm_stage(n, w.cols, &h.buffer, Some(norm), forms, &input)?;
        } else {
            self.recorder.barrier()?;
            self.prepare_rows(n, w.cols, &h.buffer, Before::Norm(norm), Some(outputs), forms, &input)?;
            self.recorder.barrier()?;
        }
        self.project(n, &input, w, &out.buffer, None)?;
        match (head.scale, head.softcap) {
            (1.0, None) => Ok(()),
            (scale, cap) => self.cap(n * w.rows, scale, cap.unwrap_or(0.0), out),
        }
    }

    pub(crate) fn norm_outputs(
        &mut self,
        batch: &Batch,
        h: &Buf,
        norm: &Norm<Self>,
        out: &Buf,
    ) -> Result<(), Error> {
        self.use_batch(batch)?;
        let (mut to, outputs) = (self.input()?, self.block()?.outputs);
        to.floats = out.buffer.clone();
        let n = batch.outputs().len();
        self.recorder.barrier()?;
        self.prepare_rows(n, norm.len, &h.buffer, Before::Norm(norm), Some(outputs), [false, true], &to)
    }

    pub(crate) fn norm_rows(
        &mut self,
        n: usize,
        x: &Buf,
        norm: &Norm<Self>,
        to: Target<'_, Buf>,
    ) -> Result<(), Error> {
        let mut rows = self.input()?;
        rows.floats = to.buf.buffer.clone();
        self.recorder.barrier()?;
        self.prepare_as(&Prepare {
            n,
            cols: norm.len,
            x: &x.buffer,
            stride: norm.len,
            before: Before::Norm(norm),
            gather: None,
            weights: 1,
            forms: [false, true],
            add: to.add,
            to: &rows,
        })
    }
}
