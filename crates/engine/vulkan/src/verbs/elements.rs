//! Sums, products and activations of elements, as stages of their own.

use std::sync::Arc;

use octet_compute::Error;
use octet_compute::backend::{Act, Gate, LEVEL_MIN, Times};

use crate::backend::{Buf, Vulkan};
use crate::kernel::Kernel;
use crate::memory::Buffer;
use crate::verbs::Target;

/// Elements of a workgroup of `map.comp`, and workgroups of a row of a grid: every device has 65,535.
const GROUP: usize = 256;
const ROW: usize = 1 << 15;

/// A grid of this many workgroups, or some more.
fn in_rows(groups: usize) -> [u32; 3] {
    [groups.min(ROW) as u32, groups.div_ceil(ROW) as u32, 1]
}

/// Rows at equal distances, as many as there are from the start on, which are one dispatch: the first one, the distance and the number.
fn run(rows: &[u32]) -> Option<(usize, usize, usize)> {
    let first = *rows.first()?;
    let step = rows.get(1).and_then(|next| next.checked_sub(first)).unwrap_or(0);
    let more = rows.windows(2).take_while(|w| step > 0 && w[1].checked_sub(w[0]) == Some(step)).count();
    Some((first as usize, step as usize, 1 + more))
}

/// The number of an activation in `act.glsl`, and the bits of its two parameters.
pub(crate) fn act_of(act: Act) -> (u32, [u32; 2]) {
    match act {
        Act::Silu => (0, [0; 2]),
        Act::Gelu => (1, [0; 2]),
        Act::GeluErf => (2, [0; 2]),
        Act::Relu2 => (3, [0; 2]),
        Act::ClampedSwiglu { alpha, limit } => (4, [alpha.to_bits(), limit.to_bits()]),
        Act::CappedSilu { limit } => (5, [0, limit.to_bits()]),
        Act::Xielu { positive, negative } => (6, [positive.to_bits(), negative.to_bits()]),
    }
}

/// What `map.comp` does.
#[derive(Clone, Copy)]
enum Map {
    /// `y += scale * x`
    Add(f32),
    /// `y *= scale`
    Scale(f32),
    /// `y *= x`
    Multiply,
    /// `y *= gate(x)`
    Gated(Gate),
    /// The same by the first value of a row.
    GatedByOne(Gate),
    /// `y = act(y) * x`
    Activated(Act),
    /// `y = cap(scale * y)`
    Cap(f32, f32),
    /// `y = x`
    Copy,
    /// `y = min(max(y, bounds[0]), bounds[1])`
    Clamp([f32; 2]),
}

/// Where rows begin: the first value, and the step from one to the next.
type Rows = [usize; 2];

impl Vulkan {
    /// Starts the kernel for `len` values in rows of `width`.
    fn map(
        &mut self,
        map: Map,
        [len, width]: [usize; 2],
        (y, y_rows): (&Arc<Buffer>, Rows),
        (x, x_rows): (&Arc<Buffer>, Rows),
    ) -> Result<(), Error> {
        let (mode, act, scale, numbers) = match map {
            Map::Add(scale) => (0, 0, scale, [0; 2]),
            Map::Scale(scale) => (1, 0, scale, [0; 2]),
            Map::Gated(Gate::Sigmoid) => (2, 0, 1.0, [0; 2]),
            Map::Gated(Gate::Softplus) => (9, 0, 1.0, [0; 2]),
            Map::Activated(act) => (3, act_of(act).0, 1.0, act_of(act).1),
            Map::Cap(scale, cap) => (4, 0, scale, [0, cap.to_bits()]),
            Map::Copy => (5, 0, 1.0, [0; 2]),
            Map::Clamp(bounds) => (6, 0, 1.0, bounds.map(f32::to_bits)),
            Map::Multiply => (7, 0, 1.0, [0; 2]),
            Map::GatedByOne(Gate::Sigmoid) => (8, 0, 1.0, [0; 2]),
            Map::GatedByOne(Gate::Softplus) => (10, 0, 1.0, [0; 2]),
        };
        let [len, width, x_at, x_stride, y_at, y_stride] =
            [len, width.max(1), x_rows[0], x_rows[1], y_rows[0], y_rows[1]].map(|n| n as u32);
        let [alpha, limit] = numbers;
        let push = [len, width, x_at, x_stride, y_at, y_stride, scale.to_bits(), alpha, limit];
        let groups = in_rows((len as usize).div_ceil(GROUP));
        self.recorder.dispatch(Kernel::Map, [mode, 0, 0, act], &[y, x], &push, groups)
    }

    pub(crate) fn add_elements(
        &mut self,
        len: usize,
        x: Option<&Buf>,
        scale: f32,
        out: &Buf,
    ) -> Result<(), Error> {
        let dummy = self.dummy.clone();
        let (map, x) = x.map_or((Map::Scale(scale), &dummy), |x| (Map::Add(scale), &x.buffer));
        self.recorder.barrier()?;
        self.map(map, [len, len], (&out.buffer, [0; 2]), (x, [0; 2]))
    }

    /// Rows of `x` go to rows `to` of a buffer of rows of `width` values; where they begin is as for [`octet_compute::Backend::place`].
    pub(crate) fn place_rows(
        &mut self,
        to: &[u32],
        width: usize,
        x: &Buf,
        [at, stride]: Rows,
        out: Target<'_, Buf>,
    ) -> Result<(), Error> {
        let map = if out.add == 0.0 { Map::Copy } else { Map::Add(out.add) };
        self.prepared = None;
        self.recorder.barrier()?;
        let mut first = 0;
        while let Some((row, step, rows)) = run(&to[first..]) {
            let y = (&out.buf.buffer, [row * width, step * width]);
            self.map(map, [rows * width, width], y, (&x.buffer, [first * stride + at, stride]))?;
            first += rows;
        }
        Ok(())
    }

    pub(crate) fn multiply_rows(
        &mut self,
        n: usize,
        width: usize,
        times: Times,
        x: &Buf,
        y: &Buf,
        place: Rows,
    ) -> Result<(), Error> {
        let map = match times {
            Times::Itself => Map::Multiply,
            Times::Gated(gate) => Map::Gated(gate),
            Times::GatedByOne(gate) => Map::GatedByOne(gate),
            Times::Activated(act) => Map::Activated(act),
            Times::ActivatedAbove { deviations, act } => {
                return self.map_rows([n, width], (0, deviations, act), x, y, place);
            }
            Times::Levelled => {
                return self.map_rows([n, width], (1, LEVEL_MIN, Act::Silu), x, y, place);
            }
        };
        self.prepared = None;
        self.recorder.barrier()?;
        self.map(map, [n * width, width], (&x.buffer, [0, width]), (&y.buffer, place))
    }

    /// Products that depend on whole rows: the mode of `rows.comp`, its number and the activation.
    fn map_rows(
        &mut self,
        [n, width]: [usize; 2],
        (mode, number, act): (u32, f32, Act),
        x: &Buf,
        y: &Buf,
        [at, stride]: Rows,
    ) -> Result<(), Error> {
        let (act, [alpha, limit]) = act_of(act);
        let [rows, width, at, stride] = [n, width, at, stride].map(|n| n as u32);
        let push = [rows, width, at, stride, number.to_bits(), alpha, limit];
        self.prepared = None;
        self.recorder.barrier()?;
        let buffers = [&x.buffer, &y.buffer];
        self.recorder.dispatch(Kernel::Rows, [mode, 0, 0, act], &buffers, &push, in_rows(n))
    }

    pub(crate) fn clamp_elements(&mut self, len: usize, bounds: [f32; 2], x: &Buf) -> Result<(), Error> {
        let dummy = self.dummy.clone();
        self.prepared = None;
        self.recorder.barrier()?;
        self.map(Map::Clamp(bounds), [len, len], (&x.buffer, [0; 2]), (&dummy, [0; 2]))
    }

    /// `y = cap(scale * y)` of `len` values; 0 for no cap.
    pub(crate) fn cap(&mut self, len: usize, scale: f32, cap: f32, y: &Buf) -> Result<(), Error> {
        let dummy = self.dummy.clone();
        self.recorder.barrier()?;
        self.map(Map::Cap(scale, cap), [len, len], (&y.buffer, [0; 2]), (&dummy, [0; 2]))
    }

    /// Copies `width` values of each of `n` rows, in the current stage.
    pub(crate) fn copy_parts(
        &mut self,
        [n, width]: [usize; 2],
        to: (&Arc<Buffer>, Rows),
        from: (&Arc<Buffer>, Rows),
    ) -> Result<(), Error> {
        self.map(Map::Copy, [n * width, width], to, from)
    }
}
