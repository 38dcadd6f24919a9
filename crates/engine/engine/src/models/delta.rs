//! Gated DeltaNet and Kimi Delta Attention of a layer: its projections, and the verb `gdn` on them.

use octet_compute::Batch;
use octet_compute::backend::{Backend, Gdn, Norm};

/// A layer with its weights.
pub struct Delta<B: Backend> {
    /// The recurrence.
    pub spec: Gdn<B>,
    /// The first projections.
    pub input: Input<B>,
    /// The projection of the output's gate.
    pub z: B::Weight,
    /// Of `beta` `[v_heads, hidden]`.
    pub beta: B::Weight,
    /// Of the decays.
    pub alpha: B::Weight,
    /// The last projection.
    pub out: B::Weight,
    /// The index of its cache.
    pub cache: usize,
}

/// Projections of queries, keys and values.
#[allow(missing_docs)]
pub enum Input<B: Backend> {
    Together(B::Weight),
    /// Kimi Delta Attention: one each, and projections of low rank before those of the gate and of the decays.
    Apart {
        qkv: [B::Weight; 3],
        down: [B::Weight; 2],
    },
}

/// Buffers of a step: queries, or all channels of the convolution; what else goes into the verb; and its output.
#[allow(missing_docs)]
pub struct Buffers<'a, B: Backend> {
    pub qkv: &'a mut B::Buf,
    pub k: &'a mut B::Buf,
    pub v: &'a mut B::Buf,
    pub z: &'a mut B::Buf,
    pub beta: &'a mut B::Buf,
    pub alpha: &'a mut B::Buf,
    pub out: &'a mut B::Buf,
}

impl<B: Backend> Delta<B> {
    /// All inputs of the verb, from `norm(h)`.
    pub fn project(&self, be: &mut B, n: usize, h: &B::Buf, norm: Option<&Norm<B>>, s: &mut Buffers<'_, B>) {
        let Self { z, beta, alpha, .. } = self;
        match &self.input {
            Input::Together(qkv) => {
                let outs = [&mut *s.qkv, &mut *s.z, &mut *s.beta, &mut *s.alpha];
                be.project(n, h, norm, [qkv, z, beta, alpha], outs);
            }
            Input::Apart { qkv: [q, k, v], down: [down_z, down_alpha] } => {
                // Results of low rank lie where nothing else does yet.
                let outs = [&mut *s.qkv, &mut *s.k, &mut *s.v, &mut *s.beta, &mut *s.alpha, &mut *s.out];
                be.project(n, h, norm, [q, k, v, beta, down_z, down_alpha], outs);
                be.project(n, s.alpha, None, [z], [&mut *s.z]);
                be.project(n, s.out, None, [alpha], [&mut *s.alpha]);
            }
        }
    }

    /// The verb.
    pub fn recur(&self, be: &mut B, batch: &Batch, cache: &mut B::Cache, s: Buffers<'_, B>) {
        let apart = [&*s.qkv, &*s.k, &*s.v];
        let qkv = if matches!(self.input, Input::Apart { .. }) { &apart[..] } else { &apart[..1] };
        be.gdn(batch, &self.spec, self.cache, cache, qkv, s.z, s.beta, s.alpha, s.out);
    }
}
