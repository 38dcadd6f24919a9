//! Expert usage: complete as JSON for `GET /experts` and `octet perplexity --experts`, and a few figures per layer as metrics: one
//! metric per expert of a large model would be ten thousand.

use std::sync::atomic::AtomicU64;

use octet_engine::experts::{ExpertUsage, LayerUsage};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry as Exposed;
use serde_json::{Value, json};

/// Numbers of most used experts of a layer whose share is reported, as divisors: 8, 32 and 128 of 256.
const PARTS: [usize; 3] = [32, 8, 2];
/// Parts of all experts of all layers, in percent, whose share of all choices is reported.
const COVERED: [usize; 6] = [5, 10, 25, 50, 75, 90];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Layer {
    model_name: String,
    layer: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MostUsed {
    model_name: String,
    layer: u64,
    most_used: u64,
}

/// The metrics.
#[derive(Default)]
pub struct ExpertMetrics {
    share: Family<MostUsed, Gauge<f64, AtomicU64>>,
    effective: Family<Layer, Gauge<f64, AtomicU64>>,
}

impl ExpertMetrics {
    /// Registers the metrics.
    pub fn new(exposed: &mut Exposed) -> Self {
        let new = Self::default();
        exposed.register(
            "octet:expert_usage_share",
            "Share of a layer's choices that its most used experts took since the model was loaded",
            new.share.clone(),
        );
        exposed.register(
            "octet:experts_effective",
            "Effective number of experts: exp of the entropy of the layer's choices",
            new.effective.clone(),
        );
        new
    }

    /// Updates them with a model's counts.
    pub fn show(&self, model_name: &str, usage: &ExpertUsage) {
        for l in &usage.layers {
            let (model_name, layer) = (model_name.to_string(), l.layer as u64);
            for n in parts(l) {
                let labels = MostUsed { model_name: model_name.clone(), layer, most_used: n as u64 };
                self.share.get_or_create(&labels).set(l.top_share(n));
            }
            self.effective.get_or_create(&Layer { model_name, layer }).set(l.effective());
        }
    }
}

/// Numbers of a layer's experts whose share is reported, ascending.
fn parts(layer: &LayerUsage) -> Vec<usize> {
    let mut parts = PARTS.map(|part| (layer.tokens.len() / part).max(1)).to_vec();
    parts.dedup();
    parts
}

/// All counts as JSON.
pub fn experts_json(usage: &ExpertUsage) -> Value {
    let all = usage.experts() * usage.layers.len();
    let covered = |percent: &usize| {
        let experts = (all * percent).div_ceil(100);
        json!({"percent_of_experts": percent, "experts": experts, "share": usage.coverage(experts)})
    };
    let layer = |l: &LayerUsage| {
        let most = |n: usize| json!({"experts": n, "share": l.top_share(n)});
        json!({
            "layer": l.layer,
            "tokens": usage.tokens(l),
            "most_used": parts(l).into_iter().map(most).collect::<Vec<_>>(),
            "effective_experts": l.effective(),
            "unused_experts": l.unused(),
            "counts": l.tokens,
        })
    };
    json!({
        "experts": usage.experts(),
        "experts_per_token": usage.per_token,
        "coverage": COVERED.iter().map(covered).collect::<Vec<_>>(),
        "layers": usage.layers.iter().map(layer).collect::<Vec<_>>(),
    })
}
