//! Whether a file has all tensors of a plan, in their shapes. Reads headers only.

use std::collections::HashSet;

use octet_weights::Model;

use super::{stored_shape, unused};
use crate::Error;
use crate::models::config::Config;
use crate::models::plan::*;
use crate::models::stored;

/// Fails if a text model would not load for what is in its file: a tensor is missing, has another shape, or is not used.
///
/// # Errors
/// Names the tensor. Values are not read, so those that cannot be used are not found.
pub fn check(model: &Model) -> Result<(), Error> {
    let plan = Config::read(model)?.plan;
    let mut found = Found::new(model);
    found.used.extend(plan.aside.iter().cloned());
    found.plan(&plan)?;
    unused::refuse(model, &plan, |name| found.used.contains(name))
}

/// The tensors of a plan that were found.
pub(crate) struct Found<'a> {
    model: &'a Model,
    /// Their names.
    pub used: HashSet<String>,
}

impl<'a> Found<'a> {
    pub fn new(model: &'a Model) -> Self {
        Self { model, used: HashSet::new() }
    }

    /// A tensor of this shape.
    pub fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<(), Error> {
        let origin = &self.model.origin;
        let missing =
            || octet_weights::Error::tensor(origin, name, format!("is missing; expected shape {shape:?}"));
        self.model.info(name).ok_or_else(missing)?.expect_shape(origin, shape)?;
        self.used.insert(name.to_string());
        Ok(())
    }

    /// As many values, in a shape that loaders accept.
    pub fn values(&mut self, name: &str, shape: &[usize]) -> Result<(), Error> {
        self.tensor(name, &stored_shape(self.model, name, shape))
    }

    pub fn vector(&mut self, t: &Tensor) -> Result<(), Error> {
        if matches!(t.change, Change::Constant(_)) { Ok(()) } else { self.values(&t.name, &t.shape) }
    }

    /// The bias beside `stem`, if the file has one.
    pub fn bias(&mut self, stem: &str, shape: &[usize]) -> Result<(), Error> {
        let name = format!("{stem}.bias");
        if self.model.info(&name).is_some() { self.values(&name, shape) } else { Ok(()) }
    }

    pub fn matrix(&mut self, t: &Tensor) -> Result<(), Error> {
        self.tensor(&format!("{}.weight", t.name), &[t.whole(), t.shape[1]])?;
        self.bias(&t.name, &[t.whole()])
    }

    pub fn norm(&mut self, n: &Norm) -> Result<(), Error> {
        self.vector(&n.weight)?;
        n.bias.as_ref().map_or(Ok(()), |bias| self.vector(bias))
    }

    pub fn glu(&mut self, g: &Glu) -> Result<(), Error> {
        self.matrices(g.gate.iter().chain([&g.up, &g.down]))
    }

    fn matrices<'t>(&mut self, all: impl IntoIterator<Item = &'t Tensor>) -> Result<(), Error> {
        all.into_iter().try_for_each(|t| self.matrix(t))
    }

    fn vectors<'t>(&mut self, all: impl IntoIterator<Item = &'t Tensor>) -> Result<(), Error> {
        all.into_iter().try_for_each(|t| self.vector(t))
    }

    fn norms<'t>(&mut self, all: impl IntoIterator<Item = &'t Norm>) -> Result<(), Error> {
        all.into_iter().try_for_each(|n| self.norm(n))
    }

    /// All projections of experts or heads, in one tensor or in one for each.
    fn stack(&mut self, t: &Tensor) -> Result<(), Error> {
        let name = format!("{}.weight", t.name);
        // Heads whose rows are taken out of one matrix: the shape is that of their parts.
        if !t.parts.is_empty() {
            let shape = self.model.info(&name).map(|i| i.shape.clone()).unwrap_or(vec![t.whole()]);
            return self.tensor(&name, &shape);
        }
        let single = |e: usize| format!("{}.{e}.weight", t.name.trim_end_matches("_exps"));
        if self.model.info(&name).is_some() || self.model.info(&single(0)).is_none() {
            self.tensor(&name, &t.shape)?;
        } else {
            (0..t.shape[0]).try_for_each(|e| self.tensor(&single(e), &t.shape[1..]))?;
        }
        self.bias(&t.name, &t.shape[..2])
    }

    fn experts(&mut self, g: &Glu) -> Result<(), Error> {
        match g.gate.as_ref().and_then(|gate| Some((gate, stored::fused(self.model, gate)?))) {
            Some((gate, fused)) => {
                self.tensor(&fused, &[gate.shape[0], 2 * gate.shape[1], gate.shape[2]])?;
                self.bias(fused.trim_end_matches(".weight"), &[gate.shape[0], 2 * gate.shape[1]])?;
            }
            None => g.gate.iter().chain([&g.up]).try_for_each(|t| self.stack(t))?,
        }
        self.stack(&g.down)
    }

    pub fn block(&mut self, b: &Block) -> Result<(), Error> {
        for branch in &b.branches {
            self.norms(branch.pre.iter().chain(&branch.post))?;
            self.op(&branch.op)?;
        }
        self.norms(b.post.iter().chain(&b.norm))
    }

    fn op(&mut self, op: &Op) -> Result<(), Error> {
        match op {
            Op::Attention(a) => self.attention(a),
            Op::Glu(g) | Op::SparseGlu(g, _) => self.glu(g),
            Op::LowRank { down, up } => self.matrices([down, up]),
            Op::Norm(norm) => self.norm(norm),
            Op::PerLayer { gate, out, .. } => self.matrices([gate, out]),
            Op::ShortConv(s) => {
                self.matrices([&s.bcx, &s.out])?;
                self.vector(&s.conv)
            }
            Op::Ssm(s) => {
                self.matrices([&s.z, &s.xbc, &s.dt, &s.out])?;
                self.vectors([&s.conv, &s.dt_bias, &s.a, &s.d].into_iter().chain(&s.conv_bias))?;
                self.norms(&s.norm)
            }
            Op::Delta(d) => {
                self.matrices(d.qkv.iter().chain(d.down.iter().flatten()))?;
                self.matrices([&d.z, &d.beta, &d.alpha, &d.out])?;
                self.vectors(d.conv.iter().chain([&d.dt_bias, &d.a, &d.norm.weight]))
            }
            Op::Moe(m) => {
                let r = &m.router;
                self.matrix(&r.matrix)?;
                self.norms(&r.input)?;
                self.vectors(r.choice_bias.iter().chain(&r.per_expert))?;
                self.experts(&m.experts)?;
                let Some((gate, glu)) = &m.shared else { return Ok(()) };
                self.vectors(gate)?;
                self.glu(glu)
            }
        }
    }

    fn attention(&mut self, a: &Attention) -> Result<(), Error> {
        match &a.project {
            Project::Direct { q, k, v } => self.matrices(std::iter::once(q).chain(k).chain(v))?,
            Project::Latent { down_q, q, down_kv, heads_k, heads_v, .. } => {
                if let Some((down, norm)) = down_q {
                    self.matrix(down)?;
                    self.norm(norm)?;
                }
                self.matrices([q, down_kv])?;
                self.stack(heads_k)?;
                self.stack(heads_v)?;
            }
        }
        self.matrix(&a.out)?;
        self.matrices(a.gate.iter().map(|(gate, _)| gate))?;
        self.vectors(&a.sinks)?;
        self.norms(a.norms.iter().flatten())
    }

    fn plan(&mut self, p: &Plan) -> Result<(), Error> {
        let e = &p.embed;
        for t in [Some(&e.table), e.positions.as_ref(), e.types.as_ref()].into_iter().flatten() {
            self.tensor(&format!("{}.weight", t.name), &t.shape)?;
        }
        self.norms(&e.norm)?;
        if let Some(l) = &e.per_layer {
            self.tensor(&format!("{}.weight", l.table.name), &l.table.shape)?;
            self.matrix(&l.project)?;
            self.norm(&l.norm)?;
        }
        p.blocks.iter().try_for_each(|b| self.block(b))?;
        if let Some(s) = &p.streams {
            self.stack(&s.expand)?;
            self.stack(&s.merge)?;
            for a in &s.layers {
                self.matrices([&a.router, &a.gate, &a.out])?;
                self.norms([&a.norm, &a.post])?;
                self.vectors([&a.predict, &a.correct, &a.scale])?;
            }
        }
        if p.pool.is_none() {
            self.matrices(&p.head.matrix)?;
        }
        self.norm(&p.head.norm)?;
        for l in p.pool.iter().flat_map(|p| &p.layers) {
            self.matrix(&l.matrix)?;
            self.norms(&l.norm)?;
        }
        Ok(())
    }
}
