//! Loads stacks of matrices: the projections of a layer's experts, or of attention's heads.

use octet_compute::backend::{self as verbs, Backend};
use octet_weights::{GgmlType, Matrix};

use super::loader::Loader;
use super::plan::{self, Change, Tensor};
use super::stored;
use crate::Error;

/// The name of a stack's tensor.
fn stacked(t: &Tensor) -> String {
    format!("{}.weight", t.name)
}

impl<B: Backend> Loader<'_, B> {
    /// The slots for a layer's `experts` experts, if there is not memory for all. The block for multi-token prediction has all in memory.
    pub(super) fn slots(&self, experts: usize) -> Option<usize> {
        self.be.expert_slots().filter(|slots| *slots < experts && !self.in_mtp)
    }

    /// A layer's experts, which stay in the file.
    pub(super) fn stored_experts(&mut self, g: &plan::Glu) -> Result<verbs::Glu<B::Experts>, Error> {
        let all = stored::projections(self.model, self.plan, g)?;
        let biases = |t: &Tensor, s: &mut Self| s.bias(&t.name, &t.shape[..2]);
        let gate = match (all.gate, &g.gate) {
            (Some(source), Some(t)) => {
                Some(verbs::StoredProjection { name: stacked(t), source, bias: biases(t, self)? })
            }
            _ => None,
        };
        let up = verbs::StoredProjection { name: stacked(&g.up), source: all.up, bias: biases(&g.up, self)? };
        let bias = biases(&g.down, self)?;
        let down = verbs::StoredProjection { name: stacked(&g.down), source: all.down, bias };
        let experts = self.be.stored_experts(verbs::Glu { gate, up, down, act: g.act });
        let experts = self.named(&g.up.name, experts)?;
        all.names.iter().for_each(|name| self.done(name));
        Ok(experts)
    }

    /// Gate and up projections of all experts: two stacks, one fused stack, or a tensor for each expert.
    pub(super) fn gate_and_up(&mut self, g: &plan::Glu) -> Result<(Option<B::Experts>, B::Experts), Error> {
        let Some(gate) = &g.gate else { return Ok((None, self.stack(&g.up)?)) };
        let Some(fused) = stored::fused(self.model, gate) else {
            let gate = self.stack(gate)?;
            return Ok((Some(gate), self.stack(&g.up)?));
        };
        let (experts, inner, hidden) = (gate.shape[0], gate.shape[1], gate.shape[2]);
        let shape = [experts, 2 * inner, hidden];
        let biases = self.bias(fused.trim_end_matches(".weight"), &shape[..2])?;
        let ty = self.type_of(&fused, &shape)?;
        let alternating = self.plan.alternating;
        let mut part = |second: usize| {
            // Rows of the gate, then those of the other projection; or by turns.
            let (first, step) = if alternating { (second, 2) } else { (second * inner, 1) };
            let rows = |e: usize| (0..inner).map(move |r| 2 * e * inner + first + step * r);
            let bias = biases.as_ref().map(|b| (0..experts).flat_map(rows).map(|r| b[r]).collect::<Vec<_>>());
            let name = stacked([gate, &g.up][second]);
            if let Some(kept) = self.kept(&name, ty, [experts, inner, hidden], bias.as_deref())? {
                return Ok(kept);
            }
            let m = self.model.tensor(&fused, &shape)?.matrix();
            let one = |e: usize| match alternating {
                true => m.select_rows(&rows(e).collect::<Vec<_>>()),
                false => m.slice_rows(2 * e * inner + first, 2 * e * inner + first + inner),
            };
            let m: Vec<Matrix> = (0..experts).map(one).collect();
            self.be.name_next(&name);
            let w = self.be.experts(&m, bias.as_deref());
            self.named(&fused, w)
        };
        let both = (Some(part(0)?), part(1)?);
        self.done(&fused);
        Ok(both)
    }

    /// One projection of all experts or heads `[count, rows, cols]`: a stack, or a tensor for each.
    pub(super) fn stack(&mut self, t: &Tensor) -> Result<B::Experts, Error> {
        let [count, rows, cols] = t.shape[..] else { unreachable!("a stack has three dimensions") };
        if !t.parts.is_empty() {
            return self.stack_of_rows(t, [count, rows, cols]);
        }
        let name = stacked(t);
        let stem = t.name.trim_end_matches("_exps");
        let single = |e: usize| format!("{stem}.{e}.weight");
        let is_stacked = self.model.info(&name).is_some() || self.model.info(&single(0)).is_none();
        let names: Vec<String> =
            if is_stacked { vec![name.clone()] } else { (0..count).map(single).collect() };
        let shape: &[usize] = if is_stacked { &[count, rows, cols] } else { &[rows, cols] };
        let bias = self.bias(&t.name, &[count, rows])?;
        let types = names.iter().map(|n| self.type_of(n, shape)).collect::<Result<Vec<_>, Error>>()?;
        let ty = types[0].filter(|_| types.iter().all(|t| *t == types[0]));
        if let Some(kept) = self.kept(&name, ty, [count, rows, cols], bias.as_deref())? {
            names.iter().for_each(|name| self.done(name));
            return Ok(kept);
        }
        let m: Vec<Matrix> = if is_stacked {
            let m = self.model.tensor(&name, shape)?.matrix();
            (0..count).map(|e| m.slice_rows(e * rows, (e + 1) * rows)).collect()
        } else {
            let one = |name: &String| Ok(self.model.tensor(name, shape)?.matrix());
            names.iter().map(one).collect::<Result<_, octet_weights::Error>>()?
        };
        self.be.name_next(&name);
        let w = self.be.experts(&m, bias.as_deref());
        drop(m);
        let w = self.named(&name, w)?;
        names.iter().for_each(|name| self.done(name));
        Ok(w)
    }

    /// A stack of experts that was kept; `ty` is the type of all, if they have one.
    fn kept(
        &mut self,
        name: &str,
        ty: Option<GgmlType>,
        shape: [usize; 3],
        bias: Option<&[f32]>,
    ) -> Result<Option<B::Experts>, Error> {
        let Some(ty) = ty else { return Ok(None) };
        self.be.name_next(name);
        let kept = self.be.kept_experts(name, ty, shape, bias);
        self.named(name, kept)
    }

    /// A stack whose matrices are rows of one tensor, transposed if the plan says.
    fn stack_of_rows(&mut self, t: &Tensor, [count, rows, cols]: [usize; 3]) -> Result<B::Experts, Error> {
        let name = format!("{}.weight", t.name);
        let is_transposed = t.change == Change::Transpose;
        let stored = if is_transposed { rows } else { cols };
        let whole = self.model.tensor(&name, &[t.whole(), stored])?.matrix();
        let runs = t.runs();
        debug_assert_eq!(runs.len(), count, "a run of rows for each matrix");
        let m: Vec<Matrix> = runs
            .iter()
            .map(|r| whole.slice_rows(r.start, r.end))
            .map(|m| if is_transposed { m.transposed() } else { m })
            .collect();
        let w = self.be.experts(&m, None);
        let w = self.named(&name, w)?;
        self.done(&name);
        Ok(w)
    }
}
