//! Loads what few models have besides a decoder's usual blocks: [`super::pool`], [`super::streams`].

use octet_compute::backend::{self as verbs, Backend, TableRow, Times};

use super::decoder::Op;
use super::loader::Loader;
use super::plan;
use super::pool::{Added, Dense, PerLayer, Pool};
use super::streams::{Layer, Streams};
use crate::Error;

impl<B: Backend> Loader<'_, B> {
    /// Embeddings that are added to those of tokens.
    pub(super) fn added(&mut self, embed: &plan::Embed) -> Result<Vec<Added<B>>, Error> {
        let mut all = Vec::new();
        if let Some(t) = &embed.positions {
            all.push(Added { table: self.table(t)?.0, row: TableRow::Position, width: t.shape[1] });
        }
        if let Some(t) = &embed.types {
            all.push(Added { table: self.table(t)?.0, row: TableRow::Type, width: t.shape[1] });
        }
        Ok(all)
    }

    /// Embeddings of each layer.
    pub(super) fn per_layer(&mut self, p: &plan::PerLayer) -> Result<PerLayer<B>, Error> {
        // The projection's factor does not change its norm, but for epsilon.
        let norm = plan::Norm { eps: p.norm.eps / (p.scales[1] * p.scales[1]), ..p.norm.clone() };
        Ok(PerLayer {
            width: p.width,
            table: self.table(&p.table)?.0,
            project: self.matrix(&p.project)?,
            norm: self.norm(&norm)?,
            scales: p.scales,
        })
    }

    /// A feed-forward block with sparse activations.
    pub(super) fn sparse_glu(&mut self, g: &plan::Glu, deviations: f32) -> Result<Op<B>, Error> {
        let Some(gate) = &g.gate else {
            let what = "has few values above its deviations; such a projection has a gate beside it";
            return Err(octet_weights::Error::tensor(&self.model.origin, &g.up.name, what).into());
        };
        Ok(Op::SparseGlu {
            gate: self.matrix(gate)?,
            up: self.matrix(&g.up)?,
            down: self.matrix(&g.down)?,
            times: Times::ActivatedAbove { deviations, act: g.act },
            inner: g.inner,
        })
    }

    /// Residual streams beside that of the blocks.
    pub(super) fn streams(&mut self, s: &plan::Streams) -> Result<Streams<B>, Error> {
        let (count, width) = (s.count, self.plan.hidden);
        let (expand, merge) = (self.stack(&s.expand)?, self.stack(&s.merge)?);
        let layer = |a: &plan::AltUp| {
            Ok(Layer {
                router: self.matrix(&a.router)?,
                norm: self.norm(&a.norm)?,
                update: verbs::AltUp {
                    streams: count,
                    width,
                    predict: self.vector(&a.predict)?,
                    correct: self.vector(&a.correct)?,
                    scale: self.vector(&a.scale)?,
                },
                gate: self.matrix(&a.gate)?,
                out: self.matrix(&a.out)?,
                act: a.act,
                post: self.norm(&a.post)?,
            })
        };
        let layers = s.layers.iter().map(layer).collect::<Result<_, Error>>()?;
        Ok(Streams { count, width, expand, merge, layers })
    }

    /// The layers after pooling; none in a model that is no encoder.
    pub(super) fn pool(&mut self, pool: Option<&plan::Pool>) -> Result<Pool<B>, Error> {
        let mut layers = Vec::new();
        for l in pool.iter().flat_map(|p| &p.layers) {
            let norm = self.opt_norm(l.norm.as_ref())?;
            layers.push((Dense { matrix: self.matrix(&l.matrix)?, act: l.act, norm }, l.matrix.shape[0]));
        }
        Ok(Pool { layers })
    }
}
