//! Where a layer's experts are in the model's files, for those that are read when a step needs them.

use std::ops::Range;
use std::sync::Arc;

use octet_compute::backend::StoredExperts;
use octet_weights::{GgmlType, Model, Piece};

use super::plan::{Glu, Plan, Tensor};
use crate::Error;

/// The projections of a layer's experts.
pub(super) struct Projections {
    pub gate: Option<Arc<dyn StoredExperts>>,
    pub up: Arc<dyn StoredExperts>,
    pub down: Arc<dyn StoredExperts>,
    /// Names of their tensors.
    pub names: Vec<String>,
}

/// One projection of all experts: a piece of a file each.
struct Stored {
    ty: GgmlType,
    rows: usize,
    cols: usize,
    pieces: Vec<Piece>,
}

impl StoredExperts for Stored {
    fn shape(&self) -> (GgmlType, usize, usize) {
        (self.ty, self.rows, self.cols)
    }
    fn count(&self) -> usize {
        self.pieces.len()
    }
    fn room(&self) -> usize {
        Piece::room(self.pieces.first().map_or(0, Piece::len))
    }
    fn read(&self, expert: usize, room: &mut [u8]) -> Result<Range<usize>, octet_compute::Error> {
        self.pieces[expert].read(room).map_err(|e| octet_compute::Error(e.to_string()))
    }
}

/// The name of the tensor with the gate and the up projection of all experts, one after the other, if the file has it.
pub(super) fn fused(model: &Model, gate: &Tensor) -> Option<String> {
    let name = format!("{}.weight", gate.name.replace("ffn_gate_exps", "ffn_gate_up_exps"));
    model.info(&name).is_some().then_some(name)
}

/// Why a model's experts cannot be read from its files when they are needed: the first tensor that is not there as it is used.
pub(crate) fn obstacle(model: &Model, plan: &Plan, is_routed: impl Fn(&str) -> bool) -> Option<String> {
    let experts = || model.tensors().iter().filter(|t| is_routed(&t.name) && t.shape.len() > 1);
    let is_fused = |name: &str| name.contains("ffn_gate_up_exps");
    if plan.alternating && experts().any(|t| is_fused(&t.name)) {
        return Some("rows of two projections alternate".into());
    }
    if let Some(bias) = experts().find(|t| is_fused(&t.name) && t.name.ends_with(".bias")) {
        return Some(format!("'{}' is of two projections", bias.name));
    }
    experts()
        .find(|t| !model.is_plain(&t.name))
        .map(|t| format!("'{}' is converted when it is loaded", t.name))
}

/// Where the experts of a layer are. Fails if they are not in files as they are used.
pub(super) fn projections(model: &Model, plan: &Plan, g: &Glu) -> Result<Projections, Error> {
    let mut names = Vec::new();
    let fused = g.gate.as_ref().and_then(|gate| Some((gate, fused(model, gate)?)));
    let (gate, up) = match (fused, &g.gate) {
        (Some((gate, name)), _) => {
            let [experts, inner, hidden] = gate.shape[..] else {
                unreachable!("a stack has three dimensions")
            };
            if plan.alternating {
                return Err(unsupported(model, &name));
            }
            let half = |second: usize| {
                parts(model, &name, [experts, 2 * inner, hidden], second * inner..(second + 1) * inner)
            };
            names.push(name.clone());
            (Some(half(0)?), half(1)?)
        }
        (None, Some(gate)) => (Some(stack(model, gate, &mut names)?), stack(model, &g.up, &mut names)?),
        (None, None) => (None, stack(model, &g.up, &mut names)?),
    };
    let down = stack(model, &g.down, &mut names)?;
    Ok(Projections { gate, up, down, names })
}

/// A projection of all experts: a stack, or a tensor for each.
fn stack(model: &Model, t: &Tensor, names: &mut Vec<String>) -> Result<Arc<dyn StoredExperts>, Error> {
    let [count, rows, cols] = t.shape[..] else { unreachable!("a stack has three dimensions") };
    let stacked = format!("{}.weight", t.name);
    if !t.parts.is_empty() {
        return Err(unsupported(model, &stacked));
    }
    let single = |e: usize| format!("{}.{e}.weight", t.name.trim_end_matches("_exps"));
    if model.info(&stacked).is_some() || model.info(&single(0)).is_none() {
        names.push(stacked.clone());
        return parts(model, &stacked, [count, rows, cols], 0..rows);
    }
    let mut ty = None;
    let mut pieces = Vec::with_capacity(count);
    for name in (0..count).map(single) {
        let found = model.unread(&name, &[rows, cols])?.ok_or_else(|| unsupported(model, &name))?;
        if *ty.get_or_insert(found.ty) != found.ty {
            let what = format!("is stored as {}; the experts before it are not", found.ty);
            return Err(octet_weights::Error::tensor(&model.origin, &name, what).into());
        }
        pieces.push(found.bytes);
        names.push(name);
    }
    let ty = ty.ok_or_else(|| unsupported(model, &stacked))?;
    Ok(Arc::new(Stored { ty, rows, cols, pieces }))
}

/// The rows `which` of each matrix of a stack `[count, rows, cols]`.
fn parts(
    model: &Model,
    name: &str,
    shape: [usize; 3],
    which: Range<usize>,
) -> Result<Arc<dyn StoredExperts>, Error> {
    let [count, rows, cols] = shape;
    let whole = model.unread(name, &shape)?.ok_or_else(|| unsupported(model, name))?;
    let row = cols / whole.ty.block_len() * whole.ty.block_bytes();
    let piece = |e: usize| whole.bytes.part((e * rows + which.start) * row..(e * rows + which.end) * row);
    let pieces = (0..count).map(piece).collect::<Option<Vec<_>>>().ok_or_else(|| unsupported(model, name))?;
    Ok(Arc::new(Stored { ty: whole.ty, rows: which.len(), cols, pieces }))
}

fn unsupported(model: &Model, name: &str) -> Error {
    let what = "is not in the file as it is used, so its experts have to be in memory: they do not fit";
    octet_weights::Error::tensor(&model.origin, name, what).into()
}
