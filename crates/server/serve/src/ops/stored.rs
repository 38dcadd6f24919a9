//! Metrics of experts that are read from the model's files when they are needed.

use std::sync::atomic::Ordering;

use octet_compute::backend::StoreStats;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry as Exposed;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Model {
    model_name: String,
}

type Seconds = Family<Model, Counter<f64, std::sync::atomic::AtomicU64>>;

/// The metrics. Only models whose experts are not all in memory have them. Reloading a model resets its counters.
#[derive(Default)]
pub struct StoreMetrics {
    slots: Family<Model, Gauge>,
    hits: Family<Model, Counter>,
    misses: Family<Model, Counter>,
    guesses: Family<Model, Counter>,
    guessed: Family<Model, Counter>,
    reads: Family<Model, Counter>,
    bytes: Family<Model, Counter>,
    read_seconds: Seconds,
    stall_seconds: Seconds,
}

impl StoreMetrics {
    /// Registers the metrics.
    pub fn new(exposed: &mut Exposed) -> Self {
        let new = Self::default();
        exposed.register(
            "octet:expert_slots",
            "Experts of each layer that stay in memory, if not all do",
            new.slots.clone(),
        );
        let mut count = |name: &str, help: &str, family: &Family<Model, Counter>| {
            exposed.register(name, help, family.clone());
        };
        count("octet:expert_hits", "Experts that a step needed and that were in memory", &new.hits);
        count(
            "octet:expert_misses",
            "Experts that a step needed and that were read from the disk",
            &new.misses,
        );
        count("octet:expert_guesses", "Experts that were read before their router had chosen", &new.guesses);
        count("octet:expert_guesses_right", "Those among them that it then chose", &new.guessed);
        count("octet:expert_reads", "Reads of experts: one for each projection", &new.reads);
        count("octet:expert_read_bytes", "Bytes of experts that were read from the disk", &new.bytes);
        let mut time = |name: &str, help: &str, family: &Seconds| {
            exposed.register(name, help, family.clone());
        };
        time(
            "octet:expert_read_seconds",
            "Time of all reads of experts; several run at once",
            &new.read_seconds,
        );
        time("octet:expert_stall_seconds", "Time that steps waited for reads of experts", &new.stall_seconds);
        new
    }

    /// Updates them with a model's counts.
    pub fn show(&self, model_name: &str, stats: &StoreStats) {
        let model = &Model { model_name: model_name.into() };
        self.slots.get_or_create(model).set(i64::try_from(stats.slots).unwrap_or(i64::MAX));
        let set = |family: &Family<Model, Counter>, n: u64| {
            family.get_or_create(model).inner().store(n, Ordering::Relaxed);
        };
        set(&self.hits, stats.hits);
        set(&self.misses, stats.misses);
        set(&self.guesses, stats.guesses);
        set(&self.guessed, stats.guessed);
        set(&self.reads, stats.reads);
        set(&self.bytes, stats.bytes);
        let seconds = |family: &Seconds, ns: u64| {
            let bits = (ns as f64 / 1e9).to_bits();
            family.get_or_create(model).inner().store(bits, Ordering::Relaxed);
        };
        seconds(&self.read_seconds, stats.read_ns);
        seconds(&self.stall_seconds, stats.stall_ns);
    }
}
