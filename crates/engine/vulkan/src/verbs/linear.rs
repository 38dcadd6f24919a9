//! Embedding, norms and projections.

use std::sync::Arc;

use octet_compute::Error;
use octet_compute::backend::{Glu, Norm};
use octet_compute::batch::Batch;

use super::{ROW_TICKETS, Rows, TAIL_TOKENS_MAX};
use crate::backend::{Buf, Embedding, Prologue, Vulkan, Weight};
use crate::kernel::Kernel;
use crate::memory::Buffer;
use crate::record::Dispatch;

/// The operation on rows before a projection; the numbers are those of `norm.comp`.
#[derive(Clone, Copy)]
pub(crate) enum Before<'a> {
    /// None.
    Nothing,
    /// RMS norm with this weight and epsilon.
    Norm(&'a Arc<Buffer>, f32),
    /// `silu(row) * up`.
    Swiglu(&'a Arc<Buffer>),
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
    /// Starts the kernel that prepares `n` rows of `cols` values of `x` for `weights`, in the forms that these read.
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
        let dummy = self.dummy.clone();
        let (mode, w, eps) = match before {
            Before::Nothing => (0, &dummy, 0.0),
            Before::Norm(w, eps) => (1, w, eps),
            Before::Swiglu(up) => (2, up, 0.0),
        };
        let index = match gather {
            Some(_) => self.block()?.words.clone(),
            None => dummy.clone(),
        };
        let push = [cols as u32, u32::from(gather.is_some()), gather.unwrap_or(0), f32::to_bits(eps)];
        let constants = [mode, forms[0].into(), forms[1].into()];
        let buffers = [x, w, &index, &to.quants, &to.scales, &to.floats];
        self.recorder.dispatch(Kernel::Norm, constants, &buffers, &push, [n as u32, 1, 1])
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
        let buffers = [x, &dummy, &dummy, &rows.quants, &rows.scales, &factors];
        let push = [cols as u32, 0, at as u32, eps.to_bits()];
        self.recorder.dispatch(Kernel::Norm, [3, 0, 0], &buffers, &push, [n as u32, 1, 1])
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
        let kernel = self.projection(n, x, w, out, false, experts);
        self.recorder.start(&kernel)
    }

    pub(crate) fn projection(
        &self,
        n: usize,
        x: &Rows,
        w: &Weight,
        out: &Arc<Buffer>,
        add: bool,
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
            add.into(),
            experts.map_or(1, |e| e.pairs_per_row),
            experts.and_then(|e| e.slots_at).unwrap_or(0),
        ];
        let columns = experts.map_or(n.div_ceil(tokens as usize), |e| e.tiles_max) as u32;
        let kind = experts.map_or(0, |_| 1 + u32::from(host.is_some()));
        let constants = [w.ty as u32, tokens, kind];
        let (kernel, rows) = if is_shared(tokens) { (Kernel::LinearTile, 64) } else { (Kernel::Linear, 8) };
        let groups = [w.rows.div_ceil(rows) as u32, columns, 1];
        let buffers = buffers.map(Arc::clone).to_vec();
        Dispatch { kernel, constants, buffers, push: push.to_vec(), groups }
    }

    /// Starts a projection of prepared rows that completes rows: `h[t] += w . x[t]`. Held back until the next kernel is known, which may be
    /// the rows' norm.
    fn project_to_rows(&mut self, n: usize, x: &Rows, w: &Weight, h: &Arc<Buffer>) -> Result<(), Error> {
        let kernel = self.projection(n, x, w, h, true, None);
        if n > TAIL_TOKENS_MAX { self.recorder.start(&kernel) } else { self.recorder.hold(kernel) }
    }

    /// Prepares the RMS norm of `n` rows of `cols` values of `h` for the next stage, and ends this one: as the tail of the stage that
    /// completes these rows, if it was the last one, or as a stage.
    pub(crate) fn norm_stage(
        &mut self,
        n: usize,
        cols: usize,
        h: &Arc<Buffer>,
        norm: (&Arc<Buffer>, f32),
        forms: [bool; 2],
        to: &Rows,
    ) -> Result<(), Error> {
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
        let held = self.recorder.take_held(completes);
        let Some(mut kernel) = held else {
            self.recorder.barrier()?;
            self.prepare_rows(n, cols, h, Before::Norm(norm.0, norm.1), None, forms, to)?;
            return self.recorder.barrier();
        };
        let tickets = self.scratch()?.tickets.clone();
        // Drops the buffers that a kernel without a tail has: those of experts, or placeholders for the tail's.
        let (buffers, push) = if kernel.kernel == Kernel::Linear { (7, 7) } else { (10, 4) };
        kernel.buffers.truncate(buffers);
        kernel.buffers.extend([norm.0, &to.quants, &to.scales, &to.floats, &tickets].map(Arc::clone));
        kernel.push.truncate(push);
        kernel.push.extend([norm.1.to_bits(), u32::from(forms[0]) | u32::from(forms[1]) << 1, ROW_TICKETS]);
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

    pub(crate) fn embed_rows(&mut self, table: &Embedding, tokens: &[u32], out: &Buf) -> Result<(), Error> {
        self.traffic.add((tokens.len() * table.table.row_bytes()) as u64);
        if self.follows {
            return self.embed_picked(table, tokens.len(), out);
        }
        self.before_host_write()?;
        let cols = table.table.cols;
        let first = self.rows_used;
        let rows = self.block()?.rows.clone();
        // one step embeds its tokens, and those of multi-token prediction
        self.rows_used = if self.rows_used == 0 { tokens.len() } else { 0 };
        let prologue = Prologue::Embed(table.table.clone(), first);
        let batch = Batch::of_tokens(tokens);
        self.prepare(&prologue, &batch)?;
        self.prologue.push(prologue);
        self.recorder.barrier()?;
        let bytes = (4 * tokens.len() * cols) as u64;
        self.recorder.copy((&rows, (4 * first * cols) as u64), (&out.buffer, 0), bytes)
    }

    pub(crate) fn norm_linears(
        &mut self,
        n: usize,
        x: &Buf,
        norm: &Norm<Self>,
        weights: &[&Weight],
        out: &[Arc<Buffer>],
    ) -> Result<(), Error> {
        let input = self.input()?;
        self.traffic.add_weights(weights);
        let forms = Self::forms(weights);
        self.norm_stage(n, norm.len, &x.buffer, (&norm.weight.buffer, norm.eps), forms, &input)?;
        weights.iter().zip(out).try_for_each(|(w, out)| self.project(n, &input, w, out, None))
    }

    pub(crate) fn project_add(&mut self, n: usize, x: &Buf, w: &Weight, h: &Buf) -> Result<(), Error> {
        let mut input = self.input()?;
        self.traffic.add_weights(&[w]);
        let prepared = self.prepared.take().is_some_and(|p| Arc::ptr_eq(&p, &x.buffer));
        if w.ty.is_float() {
            input.floats = x.buffer.clone();
        } else if !prepared {
            self.recorder.barrier_beside()?;
            self.prepare_rows(n, w.cols, &x.buffer, Before::Nothing, None, [true, false], &input)?;
        }
        // The kernel that Gated DeltaNet deferred touches neither these rows nor `h`.
        self.recorder.barrier_beside()?;
        self.project_to_rows(n, &input, w, &h.buffer)
    }

    pub(crate) fn dense(
        &mut self,
        n: usize,
        m: &Glu<Weight>,
        norm: &Norm<Self>,
        h: &Buf,
    ) -> Result<(), Error> {
        let input = self.input()?;
        let m_gate = gate_of(m)?;
        self.traffic.add_weights(&[m_gate, &m.up, &m.down]);
        let scratch = self.scratch.as_ref().expect("`input` found it");
        let (gate, up, inner) = (scratch.gate.clone(), scratch.up.clone(), scratch.inner.clone());
        let (norm, forms) = ((&norm.weight.buffer, norm.eps), Self::forms(&[m_gate, &m.up]));
        self.norm_stage(n, m.up.cols, &h.buffer, norm, forms, &input)?;
        if !is_shared(tile(n)) && Self::can_fuse(m_gate, &m.up, &m.down) {
            self.gate_up(n, &input, m_gate, &m.up, &inner, None)?;
        } else {
            self.project(n, &input, m_gate, &gate, None)?;
            self.project(n, &input, &m.up, &up, None)?;
            self.recorder.barrier()?;
            let forms = Self::forms(&[&m.down]);
            self.prepare_rows(n, m.down.cols, &gate, Before::Swiglu(&up), None, forms, &inner)?;
        }
        self.recorder.barrier()?;
        self.project_to_rows(n, &inner, &m.down, &h.buffer)
    }

    /// Whether gate, up and the quantisation of their product are one kernel.
    pub(crate) fn can_fuse(gate: &Weight, up: &Weight, down: &Weight) -> bool {
        let plain = |w: &Weight| !w.ty.is_float() && w.bias.is_none() && w.paged.is_none();
        gate.ty == up.ty && plain(gate) && plain(up) && !down.ty.is_float() && gate.rows.is_multiple_of(32)
    }

    /// Starts the kernel that makes quantised rows `silu(gate . x) * (up . x)`, of tiles that are not shared.
    pub(crate) fn gate_up(
        &mut self,
        n: usize,
        x: &Rows,
        gate: &Weight,
        up: &Weight,
        to: &Rows,
        experts: Option<&Experts<'_>>,
    ) -> Result<(), Error> {
        let dummy = self.dummy.clone();
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
        let push = [gate.rows as u32, gate.cols as u32, n as u32, divide];
        let columns = experts.map_or(n.div_ceil(tokens as usize), |e| e.tiles_max) as u32;
        let constants = [gate.ty as u32, tokens, experts.is_some().into()];
        let groups = [(gate.rows / 32) as u32, columns, 1];
        self.recorder.dispatch(Kernel::GateUp, constants, &buffers, &push, groups)
    }

    pub(crate) fn head(
        &mut self,
        batch: &Batch,
        h: &Buf,
        norm: &Norm<Self>,
        head: &Weight,
        out: &Buf,
    ) -> Result<(), Error> {
        self.use_batch(batch)?;
        self.traffic.add_weights(&[head]);
        let (input, outputs) = (self.input()?, self.block()?.outputs);
        let (n, forms) = (batch.outputs().len(), Self::forms(&[head]));
        if n == batch.len() {
            // They ascend, so they are all rows.
            self.norm_stage(n, head.cols, &h.buffer, (&norm.weight.buffer, norm.eps), forms, &input)?;
        } else {
            let before = Before::Norm(&norm.weight.buffer, norm.eps);
            self.recorder.barrier()?;
            self.prepare_rows(n, head.cols, &h.buffer, before, Some(outputs), forms, &input)?;
            self.recorder.barrier()?;
        }
        self.project(n, &input, head, &out.buffer, None)
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
        let (n, before) = (batch.outputs().len(), Before::Norm(&norm.weight.buffer, norm.eps));
        self.recorder.barrier()?;
        self.prepare_rows(n, norm.len, &h.buffer, before, Some(outputs), [false, true], &to)
    }

    pub(crate) fn norm_rows(&mut self, n: usize, h: &Buf, norm: &Norm<Self>, out: &Buf) -> Result<(), Error> {
        let mut to = self.input()?;
        to.floats = out.buffer.clone();
        self.recorder.barrier()?;
        let before = Before::Norm(&norm.weight.buffer, norm.eps);
        self.prepare_rows(n, norm.len, &h.buffer, before, None, [false, true], &to)
    }
}

/// The gate of a block, which all have that this backend supports.
pub(crate) fn gate_of(g: &Glu<Weight>) -> Result<&Weight, Error> {
    g.gate.as_ref().ok_or_else(|| Error("blocks without a gate are not supported on this device".into()))
}
