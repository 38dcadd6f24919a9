//! Loads what few models have besides a decoder's blocks: [`super::pool`].

use octet_compute::backend::Backend;

use super::loader::Loader;
use super::plan;
use super::pool::{Added, Dense, PerLayer, Pool, Rows};
use crate::Error;

impl<B: Backend> Loader<'_, B> {
    /// Embeddings that are added to those of tokens.
    pub(super) fn added(&mut self, embed: &plan::Embed) -> Result<Vec<Added<B>>, Error> {
        let mut all = Vec::new();
        if let Some(t) = &embed.positions {
            all.push(Added { table: self.table(t)?.0, rows: Rows::Positions, width: t.shape[1] });
        }
        if let Some(t) = &embed.types {
            let rows = Rows::Types(t.shape[0] as u32);
            all.push(Added { table: self.table(t)?.0, rows, width: t.shape[1] });
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
