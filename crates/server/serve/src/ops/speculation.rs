//! Metrics of speculative decoding, named as vLLM names them.

use std::sync::atomic::Ordering;

use octet_engine::engine::speculation::Stats;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry as Exposed;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Model {
    model_name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Position {
    model_name: String,
    position: u64,
}

/// The metrics. Reloading a model resets its counters, like a restart of the server.
#[derive(Default)]
pub struct SpeculationMetrics {
    drafts: Family<Model, Counter>,
    drafted: Family<Model, Counter>,
    accepted: Family<Model, Counter>,
    accepted_at: Family<Position, Counter>,
}

impl SpeculationMetrics {
    /// Registers the metrics.
    pub fn new(exposed: &mut Exposed) -> Self {
        let new = Self::default();
        let mut count = |name: &str, help: &str, family: &Family<Model, Counter>| {
            exposed.register(name, help, family.clone());
        };
        count("vllm:spec_decode_num_drafts", "Steps of an answer with draft tokens", &new.drafts);
        count("vllm:spec_decode_num_draft_tokens", "Draft tokens that were computed", &new.drafted);
        count("vllm:spec_decode_num_accepted_tokens", "Draft tokens that were accepted", &new.accepted);
        exposed.register(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens that were accepted, by position in the step, from 0",
            new.accepted_at.clone(),
        );
        new
    }

    /// Updates them with a model's counts.
    pub fn show(&self, model_name: &str, stats: &Stats) {
        let model = Model { model_name: model_name.into() };
        let set = |counter: &Counter, n: u64| counter.inner().store(n, Ordering::Relaxed);
        set(&self.drafts.get_or_create(&model), stats.drafts);
        set(&self.drafted.get_or_create(&model), stats.drafted);
        set(&self.accepted.get_or_create(&model), stats.accepted);
        // The first position exists from the start: a counter that appears later breaks a dashboard's rate.
        let used = stats.accepted_at.iter().rposition(|n| *n > 0).map_or(1, |last| last + 1);
        for (i, n) in stats.accepted_at.iter().take(used).enumerate() {
            let at = Position { model_name: model_name.into(), position: i as u64 };
            set(&self.accepted_at.get_or_create(&at), *n);
        }
    }
}
