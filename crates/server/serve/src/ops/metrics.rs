//! Metrics in Prometheus' text format: vLLM's names and buckets, so that its dashboards work, and Octet's own as `octet:*`. Counted by
//! `pipeline::run`; gauges are read from the engines on each scrape.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use octet_compute::batch::PAGE_TOKENS;
use octet_engine::cache::CacheStats;
use octet_engine::scheduler::Handle;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry as Exposed;

use super::experts::ExpertMetrics;
use super::history;
use super::routes::RouteMetrics;
use super::speculation::SpeculationMetrics;
use super::stored::StoreMetrics;
use crate::models::Registry;

/// The model label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Model {
    model_name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Finished {
    model_name: String,
    finished_reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CacheConfig {
    model_name: String,
    block_size: u64,
    num_gpu_blocks: u64,
    cache_dtype: String,
    enable_prefix_caching: &'static str,
}

type Count = Family<Model, Counter>;
type Level = Family<Model, Gauge>;
type Share = Family<Model, Gauge<f64, AtomicU64>>;
type Times = Family<Model, Histogram, fn() -> Histogram>;

const TTFT_S: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const ITL_S: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const E2E_S: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];

/// All metrics.
pub struct Metrics {
    exposed: Exposed,
    counts: Counts,
    levels: Levels,
    shares: Shares,
    latencies: Latencies,
    finished: Family<Finished, Counter>,
    cache_config: Family<CacheConfig, Gauge>,
    memory: Gauge,
    experts: ExpertMetrics,
    speculation: SpeculationMetrics,
    stored: StoreMetrics,
    /// Metrics of the router.
    pub routes: RouteMetrics,
}

/// Counters of requests and tokens.
struct Counts {
    queries: Count,
    hits: Count,
    prompt_tokens: Count,
    generation_tokens: Count,
    computed: Count,
    refused: Count,
}

/// Integer gauges, read from the engines.
struct Levels {
    running: Level,
    waiting: Level,
    pages_idle: Level,
    snapshots: Level,
    snapshot_bytes: Level,
    snapshots_taken: Level,
    snapshot_hits: Level,
    snapshots_evicted: Level,
    disk_files: Level,
    disk_bytes: Level,
    disk_hits: Level,
    disk_tokens: Level,
    disk_errors: Level,
    disk_dropped: Level,
    preemptions: Level,
    steps: Level,
    steps_ahead: Level,
    steps_dropped: Level,
    encoded_images: Level,
    step_bytes: Level,
    bandwidth: Level,
    healthy: Level,
    losses: Level,
    memory: Level,
    device_memory: Level,
    masked_steps: Level,
}

/// Gauges of ratios and times.
struct Shares {
    kv_usage: Share,
    loaded: Share,
    worst_step: Share,
    step_seconds: Share,
    masked_step_seconds: Share,
    mask_seconds: Share,
    mask_wait_seconds: Share,
}

/// Histograms of request times.
struct Latencies {
    ttft: Times,
    itl: Times,
    e2e: Times,
    queued: Times,
    prefill: Times,
    decode: Times,
}

impl Counts {
    fn new(exposed: &mut Exposed) -> Self {
        let mut count = |name: &str, help: &str| {
            let family = Count::default();
            exposed.register(name, help, family.clone());
            family
        };
        Self {
            queries: count(
                "vllm:prefix_cache_queries",
                "Prompt tokens that were looked up in the prefix cache",
            ),
            hits: count("vllm:prefix_cache_hits", "Prompt tokens that were found in the prefix cache"),
            prompt_tokens: count("vllm:prompt_tokens", "Prompt tokens, including cached ones"),
            generation_tokens: count("vllm:generation_tokens", "Generated tokens"),
            computed: count("octet:prompt_tokens_computed", "Prompt tokens that were computed"),
            refused: count("octet:requests_refused", "Requests that were refused for lack of capacity"),
        }
    }
}

impl Levels {
    fn new(exposed: &mut Exposed) -> Self {
        let mut level = |name: &str, help: &str| {
            let family = Level::default();
            exposed.register(name, help, family.clone());
            family
        };
        Self {
            running: level("vllm:num_requests_running", "Running sequences"),
            waiting: level(
                "vllm:num_requests_waiting",
                "Waiting sequences, including those that wait for the model to be loaded",
            ),
            pages_idle: level(
                "octet:kv_pages_idle",
                "KV cache pages that no running sequence uses, kept for later prompts",
            ),
            snapshots: level("octet:snapshots", "Snapshots of recurrent states in memory"),
            snapshot_bytes: level("octet:snapshot_bytes", "Bytes of the snapshots in memory"),
            snapshots_taken: level("octet:snapshots_taken", "Snapshots taken since the model was loaded"),
            snapshot_hits: level(
                "octet:snapshot_hits",
                "Prompts that resumed from a snapshot since the model was loaded",
            ),
            snapshots_evicted: level(
                "octet:snapshots_evicted",
                "Snapshots evicted since the model was loaded",
            ),
            disk_files: level("octet:cache_disk_files", "Files of the disk cache"),
            disk_bytes: level("octet:cache_disk_bytes", "Bytes of the disk cache"),
            disk_hits: level(
                "octet:cache_disk_hits",
                "Prompts that resumed from the disk cache since the model was loaded",
            ),
            disk_tokens: level(
                "octet:cache_disk_tokens",
                "Prompt tokens that were read from the disk cache instead of computed",
            ),
            disk_errors: level(
                "octet:cache_disk_errors",
                "Files of the disk cache that were damaged, missing or could not be written",
            ),
            disk_dropped: level(
                "octet:cache_disk_dropped",
                "States that were dropped instead of written to the disk cache",
            ),
            preemptions: level(
                "octet:preemptions",
                "Sequences preempted for lack of KV cache pages since the model was loaded",
            ),
            steps: level("octet:steps", "Steps since the model was loaded"),
            steps_ahead: level(
                "octet:steps_ahead",
                "Steps that a graphics device began before the host had chosen their tokens",
            ),
            steps_dropped: level(
                "octet:steps_dropped",
                "Steps ahead that were discarded: not needed, or begun with other tokens than the host chose",
            ),
            encoded_images: level(
                "octet:encoded_images",
                "Images whose embeddings were computed since the model was loaded, instead of found",
            ),
            step_bytes: level(
                "octet:step_bytes",
                "Bytes that steps had to read since the model was loaded: weights, states, keys and values",
            ),
            bandwidth: level(
                "octet:memory_bandwidth_bytes",
                "Memory bandwidth of the device; measured when the model is idle for the first time",
            ),
            healthy: level("octet:model_healthy", "1, or 0 while the model's device is lost"),
            losses: level("octet:device_losses", "Number of times that the model's device was lost"),
            memory: level(
                "octet:model_memory_bytes",
                "Memory of this machine that the model takes; 0 while it is not loaded",
            ),
            device_memory: level(
                "octet:model_device_memory_bytes",
                "Memory of a graphics device that the model takes; 0 while it is not loaded, or on the processor",
            ),
            masked_steps: level(
                "octet:masked_steps",
                "Steps with constrained answers since the model was loaded",
            ),
        }
    }
}

impl Shares {
    fn new(exposed: &mut Exposed) -> Self {
        let mut share = |name: &str, help: &str| {
            let family = Share::default();
            exposed.register(name, help, family.clone());
            family
        };
        Self {
            kv_usage: share(
                "vllm:kv_cache_usage_perc",
                "Share of the KV cache that running sequences use, 0 to 1",
            ),
            loaded: share("octet:model_loaded", "Loading progress of the model, 0 to 1"),
            worst_step: share(
                "octet:decode_step_seconds_max",
                "Longest step that generated a token, in seconds",
            ),
            step_seconds: share(
                "octet:step_seconds",
                "Time of all steps since the model was loaded, in seconds",
            ),
            masked_step_seconds: share(
                "octet:masked_step_seconds",
                "Time of steps with constrained answers, including masks, in seconds",
            ),
            mask_seconds: share(
                "octet:mask_seconds",
                "Time to compute masks, in parallel with steps, in seconds",
            ),
            mask_wait_seconds: share(
                "octet:mask_wait_seconds",
                "Time that steps waited for masks, in seconds",
            ),
        }
    }
}

impl Latencies {
    fn new(exposed: &mut Exposed) -> Self {
        let mut times = |name: &str, help: &str, new: fn() -> Histogram| {
            let family = Times::new_with_constructor(new);
            exposed.register(name, help, family.clone());
            family
        };
        let long: fn() -> Histogram = || Histogram::new(E2E_S);
        Self {
            ttft: times("vllm:time_to_first_token_seconds", "Time to first token in seconds", || {
                Histogram::new(TTFT_S)
            }),
            itl: times("vllm:inter_token_latency_seconds", "Time between output tokens in seconds", || {
                Histogram::new(ITL_S)
            }),
            e2e: times("vllm:e2e_request_latency_seconds", "Request latency in seconds", long),
            queued: times("vllm:request_queue_time_seconds", "Time in the queue in seconds", long),
            prefill: times(
                "vllm:request_prefill_time_seconds",
                "Time from scheduling to the first token in seconds",
                long,
            ),
            decode: times(
                "vllm:request_decode_time_seconds",
                "Time from the first to the last token in seconds",
                long,
            ),
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut exposed = Exposed::default();
        let memory = Gauge::default();
        exposed.register(
            "process_resident_memory_bytes",
            "Resident memory of the server in bytes",
            memory.clone(),
        );
        let finished = Family::<Finished, Counter>::default();
        exposed.register("vllm:request_success", "Completed requests", finished.clone());
        let cache_config = Family::<CacheConfig, Gauge>::default();
        exposed.register("vllm:cache_config_info", "KV cache configuration", cache_config.clone());
        Self {
            counts: Counts::new(&mut exposed),
            levels: Levels::new(&mut exposed),
            shares: Shares::new(&mut exposed),
            latencies: Latencies::new(&mut exposed),
            finished,
            cache_config,
            memory,
            experts: ExpertMetrics::new(&mut exposed),
            speculation: SpeculationMetrics::new(&mut exposed),
            stored: StoreMetrics::new(&mut exposed),
            routes: RouteMetrics::new(&mut exposed),
            exposed,
        }
    }
}

/// Figures of one finished request, for [`Metrics::request`].
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestCost {
    /// Tokens of prompts, and those of them that came from the cache.
    pub prompt_tokens: u64,
    /// See `prompt_tokens`.
    pub cached_tokens: u64,
    /// Time in the queue.
    pub queued: Duration,
    /// From there to the first token.
    pub prefill: Duration,
    /// From there to the last token.
    pub decode: Duration,
    /// Total time.
    pub total: Duration,
}

impl Metrics {
    /// The label of a model.
    pub fn model(name: &str) -> Model {
        Model { model_name: name.into() }
    }

    /// Counts a request that was refused because the queue was full.
    pub fn refused(&self, model: &Model) {
        self.counts.refused.get_or_create(model).inc();
    }

    /// Records the first token of a request.
    pub fn first_token(&self, model: &Model, after: Duration) {
        self.latencies.ttft.get_or_create(model).observe(after.as_secs_f64());
        self.counts.generation_tokens.get_or_create(model).inc();
    }

    /// Records another token and the time since the one before it.
    pub fn token(&self, model: &Model, after: Duration) {
        self.latencies.itl.get_or_create(model).observe(after.as_secs_f64());
        self.counts.generation_tokens.get_or_create(model).inc();
    }

    /// Counts a finished answer.
    pub fn finished(&self, model: &Model, finished_reason: &'static str) {
        let labels = Finished { model_name: model.model_name.clone(), finished_reason };
        self.finished.get_or_create(&labels).inc();
    }

    /// A request came to its end.
    pub fn request(&self, model: &Model, took: &RequestCost) {
        self.counts.prompt_tokens.get_or_create(model).inc_by(took.prompt_tokens);
        self.counts.queries.get_or_create(model).inc_by(took.prompt_tokens);
        self.counts.hits.get_or_create(model).inc_by(took.cached_tokens);
        self.counts
            .computed
            .get_or_create(model)
            .inc_by(took.prompt_tokens - took.cached_tokens.min(took.prompt_tokens));
        let seconds = [
            (&self.latencies.e2e, took.total),
            (&self.latencies.queued, took.queued),
            (&self.latencies.prefill, took.prefill),
            (&self.latencies.decode, took.decode),
        ];
        for (times, time) in seconds {
            times.get_or_create(model).observe(time.as_secs_f64());
        }
    }

    /// All metrics as text.
    pub fn text(&self, models: &Registry) -> Result<String, std::fmt::Error> {
        for (i, info) in models.list().iter().enumerate() {
            self.read_engine(models, i, &Self::model(&info.id));
        }
        self.memory.set(i64::try_from(octet_machine::resident().unwrap_or(0)).unwrap_or(i64::MAX));
        let mut out = String::new();
        encode(&mut out, &self.exposed)?;
        Ok(out)
    }

    /// The current values of [`history::SERIES`] for a model.
    pub fn sample(&self, models: &Registry, index: usize) -> history::Values {
        let loaded = models.loaded(index);
        let stats = loaded.as_ref().map(|l| l.handle.stats()).unwrap_or_default();
        let label = Self::model(&models.name(index));
        let count = |family: &Count| family.get_or_create(&label).get() as f64;
        let (cache, store) = (stats.cache, stats.store.unwrap_or_default());
        [
            count(&self.counts.generation_tokens),
            count(&self.counts.computed),
            count(&self.counts.queries),
            count(&self.counts.hits),
            stats.running as f64,
            (stats.waiting + models.waiting(index)) as f64,
            cache.pages_used as f64 / cache.pages.max(1) as f64,
            cache.snapshot_bytes as f64,
            cache.disk.bytes as f64,
            stats.steps as f64,
            stats.step_time.as_secs_f64(),
            stats.step_bytes as f64,
            loaded.as_ref().and_then(|l| l.handle.bandwidth()).unwrap_or(0) as f64,
            stats.speculation.drafted as f64,
            stats.speculation.accepted as f64,
            octet_machine::resident().unwrap_or(0) as f64,
            store.hits as f64,
            store.guessed as f64,
            store.misses as f64,
            store.reads as f64,
            store.bytes as f64,
            store.read_ns as f64 / 1e9,
        ]
    }

    fn read_engine(&self, models: &Registry, index: usize, label: &Model) {
        let loaded = models.loaded(index);
        let stats = loaded.as_ref().map(|l| l.handle.stats()).unwrap_or_default();
        let card = loaded.as_ref().map(|_| models.card(index));
        let on_device = card.as_ref().is_some_and(|c| c.on_device.is_some());
        let memory = card.map_or((0, 0), |c| (c.memory_bytes, c.accelerator_bytes()));
        for (level, n) in [
            (&self.levels.running, stats.running as u64),
            (&self.levels.waiting, (stats.waiting + models.waiting(index)) as u64),
            (&self.levels.healthy, u64::from(models.unhealthy(index).is_none())),
            (&self.levels.preemptions, stats.preemptions),
            (&self.levels.steps, stats.steps),
            (&self.levels.steps_ahead, stats.steps_ahead),
            (&self.levels.steps_dropped, stats.steps_dropped),
            (&self.levels.encoded_images, stats.encoded_images),
            (&self.levels.step_bytes, stats.step_bytes),
            (&self.levels.bandwidth, loaded.as_ref().map_or(0, |l| bandwidth(&l.handle, on_device))),
            (&self.levels.masked_steps, stats.masked_steps),
            (&self.levels.losses, models.losses(index)),
            (&self.levels.memory, memory.0),
            (&self.levels.device_memory, memory.1),
        ] {
            set(level, label, n);
        }
        self.read_cache(&stats.cache, label);
        self.shares.loaded.get_or_create(label).set(models.progress(index));
        for (share, time) in [
            (&self.shares.worst_step, stats.decode_step_time_max),
            (&self.shares.step_seconds, stats.step_time),
            (&self.shares.masked_step_seconds, stats.masked_step_time),
            (&self.shares.mask_seconds, stats.mask_time),
            (&self.shares.mask_wait_seconds, stats.mask_wait_time),
        ] {
            share.get_or_create(label).set(time.as_secs_f64());
        }
        self.speculation.show(&label.model_name, &stats.speculation);
        if let Some(store) = &stats.store {
            self.stored.show(&label.model_name, store);
        }
        if let Some(loaded) = loaded {
            self.read_loaded(&loaded.handle, label);
        }
    }

    /// The state of a model's KV cache and snapshots.
    fn read_cache(&self, cache: &CacheStats, label: &Model) {
        for (level, n) in [
            (&self.levels.pages_idle, cache.pages_idle as u64),
            (&self.levels.snapshots, cache.snapshots as u64),
            (&self.levels.disk_files, cache.disk.files as u64),
            (&self.levels.snapshot_bytes, cache.snapshot_bytes),
            (&self.levels.snapshots_taken, cache.taken),
            (&self.levels.snapshot_hits, cache.hits),
            (&self.levels.snapshots_evicted, cache.evicted),
            (&self.levels.disk_bytes, cache.disk.bytes),
            (&self.levels.disk_hits, cache.disk.hits),
            (&self.levels.disk_tokens, cache.disk.tokens),
            (&self.levels.disk_errors, cache.disk.errors),
            (&self.levels.disk_dropped, cache.disk.dropped),
        ] {
            set(level, label, n);
        }
        let share = if cache.pages > 0 { cache.pages_used as f64 / cache.pages as f64 } else { 0.0 };
        self.shares.kv_usage.get_or_create(label).set(share);
    }

    /// The cache's configuration and the experts of a loaded model.
    fn read_loaded(&self, handle: &Handle, label: &Model) {
        let cache = &handle.info().cache;
        let config = CacheConfig {
            model_name: label.model_name.clone(),
            block_size: PAGE_TOKENS as u64,
            num_gpu_blocks: cache.pages as u64,
            cache_dtype: cache.kv.to_string(),
            enable_prefix_caching: "True",
        };
        self.cache_config.get_or_create(&config).set(1);
        if let Some(usage) = handle.experts() {
            self.experts.show(&label.model_name, &usage);
        }
    }
}

/// Sets a level of a model.
fn set(level: &Level, label: &Model, n: u64) {
    level.get_or_create(label).set(i64::try_from(n).unwrap_or(i64::MAX));
}

/// The machine's memory that must be free for its bandwidth to be measured.
const FREE_BYTES_MIN: u64 = 1 << 30;

/// Bytes per second that a model's memory gives; 0 while that is not known. Asks for it where there is memory to spare; a device looks at its own memory.
fn bandwidth(handle: &Handle, on_device: bool) -> u64 {
    handle.bandwidth().unwrap_or_else(|| {
        if on_device {
            handle.request_bandwidth();
            return 0;
        }
        if octet_machine::memory().is_some_and(|room| room.bytes >= FREE_BYTES_MIN) {
            handle.request_bandwidth();
        }
        0
    })
}
