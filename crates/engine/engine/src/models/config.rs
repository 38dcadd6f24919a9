//! A model's plan, and its dimensions for people and for the rest of the engine. Read before any tensor is touched.

use std::sync::Arc;

use octet_compute::backend::LayerCache;
use octet_weights::Model;

use super::architectures::{Architecture, architecture};
pub use super::keys::CONTEXT_MAX;
use super::keys::Keys;
use super::plan::{Attention, Delta, Op, Plan, Pool};
use super::unread;
use crate::Error;

/// Mixture-of-experts dimensions of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MoeConfig {
    /// Experts of each layer that has some.
    pub experts: usize,
    /// Experts that one token is routed to.
    pub top_k: usize,
    /// Intermediate size of one expert.
    pub intermediate: usize,
    /// Intermediate size of the shared expert; 0 without one.
    pub shared_intermediate: usize,
}

/// A model's plan and what is often asked of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Its architecture.
    pub architecture: &'static Architecture,
    /// Decoder layers, without blocks for multi-token prediction.
    pub layers: usize,
    /// Multi-token-prediction blocks of the plan (0 or 1).
    pub mtp_layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding table, padding included.
    pub vocab: usize,
    /// Maximum context.
    pub context_length: usize,
    /// Mixture of experts, if the model is one.
    pub moe: Option<MoeConfig>,
    /// Whether each layer is recurrent.
    pub recurrent: Vec<bool>,
    /// The forward pass.
    pub plan: Arc<Plan>,
}

impl Config {
    /// Reads the plan of `model`. Fails for an unknown architecture, and for keys that would change the output and are not supported.
    pub fn read(model: &Model) -> Result<Self, Error> {
        let architecture = architecture(model)?;
        let k = Keys::new(model, architecture.name)?;
        let plan = (architecture.plan)(&k)?;
        let positions = plan.embed.positions.as_ref().map_or(usize::MAX, |table| table.shape[0]);
        let context_length = k.size("context_length", CONTEXT_MAX)?.min(positions);
        let head_dim = attention(&plan).map_or(1, |a| a.k_dim);
        unread::refuse(&k, head_dim, context_length)?;
        let mut recurrent = vec![false; plan.layers];
        for (layer, op) in plan.ops().filter(|(_, op)| matches!(op.cache(), LayerCache::State { .. })) {
            debug_assert!(layer < plan.layers, "{op:?}");
            recurrent[layer] = true;
        }
        Ok(Self {
            architecture,
            layers: plan.layers,
            mtp_layers: usize::from(plan.mtp.is_some()),
            hidden: plan.hidden,
            vocab: plan.vocab,
            context_length,
            moe: moe(&plan),
            recurrent,
            plan: Arc::new(plan),
        })
    }

    /// What an encoder has in place of logits: its model gives vectors or scores of texts, and reads each in one step.
    pub fn encoder(&self) -> Option<&Pool> {
        self.plan.pool.as_ref()
    }

    /// Whether there is no longer context than [`Config::context_length`]: positions are learned.
    pub fn has_context_max(&self) -> bool {
        self.plan.embed.positions.is_some()
    }

    /// Length of the vectors that embeddings have.
    pub fn embedding_length(&self) -> usize {
        let last = self.encoder().and_then(|pool| pool.layers.last());
        last.map_or(self.hidden, |layer| layer.matrix.shape[0])
    }

    /// The first attention of the model, if it has one.
    pub fn attention(&self) -> Option<&Attention> {
        attention(&self.plan)
    }

    /// The first layer of Gated DeltaNet, if it has one.
    pub fn delta(&self) -> Option<&Delta> {
        self.plan.ops().find_map(|(_, op)| if let Op::Delta(d) = op { Some(&**d) } else { None })
    }

    /// Key/value heads of each layer; 0 for those without attention.
    pub fn kv_heads(&self) -> Vec<usize> {
        let mut heads = vec![0; self.layers];
        for (layer, op) in self.plan.ops() {
            if let (Op::Attention(a), Some(n)) = (op, heads.get_mut(layer)) {
                *n = a.kv_heads;
            }
        }
        heads
    }

    /// Width of the widest dense feed-forward block; 0 without one.
    pub fn intermediate(&self) -> usize {
        let width = |op: &Op| if let Op::Glu(g) | Op::SparseGlu(g, _) = op { g.inner } else { 0 };
        self.plan.ops().map(|(_, op)| width(op)).max().unwrap_or(0)
    }
}

fn attention(plan: &Plan) -> Option<&Attention> {
    plan.ops().find_map(|(_, op)| if let Op::Attention(a) = op { Some(&**a) } else { None })
}

fn moe(plan: &Plan) -> Option<MoeConfig> {
    plan.ops().find_map(|(_, op)| match op {
        Op::Moe(m) => Some(MoeConfig {
            experts: m.router.experts,
            top_k: m.router.top_k,
            intermediate: m.experts.inner,
            shared_intermediate: m.shared.as_ref().map_or(0, |(_, g)| g.inner),
        }),
        _ => None,
    })
}

/// The context that a model was trained for.
pub fn context_length(model: &octet_weights::Model) -> Result<usize, Error> {
    Ok(Config::read(model)?.context_length)
}
