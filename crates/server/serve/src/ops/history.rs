//! Some metrics of each model over the last hour, sampled every ten seconds, so that a page shows the past when it is opened. Filled
//! by a task of `server`, read by `http::status`.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

/// Sampling interval.
pub const INTERVAL: Duration = Duration::from_secs(10);
/// Number of samples in an hour.
const SAMPLES: usize = 360;
/// The sampled metrics, by their names in `/metrics`.
pub const SERIES: [&str; 22] = [
    "vllm:generation_tokens_total",
    "octet:prompt_tokens_computed_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "octet:snapshot_bytes",
    "octet:cache_disk_bytes",
    "octet:steps",
    "octet:step_seconds",
    "octet:step_bytes",
    "octet:memory_bandwidth_bytes",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "process_resident_memory_bytes",
    // 0 unless experts stay on disk: then `/metrics` has them, too.
    "octet:expert_hits_total",
    "octet:expert_guesses_right_total",
    "octet:expert_misses_total",
    "octet:expert_reads_total",
    "octet:expert_read_bytes_total",
    "octet:expert_read_seconds_total",
];

/// One sample: the values of [`SERIES`].
pub type Values = [f64; SERIES.len()];

/// The samples of one model, a ring buffer.
#[derive(Debug)]
struct Ring {
    samples: Vec<(Instant, Values)>,
    /// The next position to overwrite when it is full.
    next: usize,
}

/// The samples of all models, by index.
#[derive(Debug, Default)]
pub struct History(Mutex<Vec<Ring>>);

impl History {
    /// Adds a sample of the `index`th model, replacing the oldest when full.
    pub fn push(&self, index: usize, at: Instant, values: Values) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while all.len() <= index {
            all.push(Ring { samples: Vec::with_capacity(SAMPLES), next: 0 });
        }
        let ring = &mut all[index];
        if ring.samples.len() < SAMPLES {
            ring.samples.push((at, values));
        } else {
            ring.samples[ring.next] = (at, values);
            ring.next = (ring.next + 1) % SAMPLES;
        }
    }

    /// The samples of the `index`th model, the oldest first: age in seconds, and the values of each series.
    pub fn json(&self, index: usize, now: Instant) -> Value {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let samples: Vec<&(Instant, Values)> = match all.get(index) {
            Some(ring) => ring.samples[ring.next..].iter().chain(&ring.samples[..ring.next]).collect(),
            None => Vec::new(),
        };
        let age = |at: Instant| (now.saturating_duration_since(at).as_secs_f64() * 1000.0).round() / 1000.0;
        let ages: Vec<f64> = samples.iter().map(|s| age(s.0)).collect();
        let series: Map<String, Value> = SERIES
            .iter()
            .enumerate()
            .map(|(i, name)| ((*name).into(), samples.iter().map(|s| s.1[i]).collect::<Vec<_>>().into()))
            .collect();
        json!({"interval_s": INTERVAL.as_secs(), "ages_s": ages, "series": series})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_hour_is_kept() {
        let (history, start) = (History::default(), Instant::now());
        for i in 0..SAMPLES + 5 {
            let mut values = [0.0; SERIES.len()];
            values[9] = i as f64;
            history.push(1, start + INTERVAL * i as u32, values);
        }
        let now = start + INTERVAL * (SAMPLES as u32 + 4) + Duration::from_millis(1500);
        let told = history.json(1, now);
        let (ages, steps) = (&told["ages_s"], &told["series"]["octet:steps"]);
        let [ages, steps] = [ages, steps].map(|v| v.as_array().expect("a list"));
        assert_eq!((ages.len(), steps.len()), (SAMPLES, SAMPLES));
        assert_eq!((ages[0].as_f64(), ages[SAMPLES - 1].as_f64()), (Some(3591.5), Some(1.5)));
        assert_eq!((steps[0].as_f64(), steps[SAMPLES - 1].as_f64()), (Some(5.0), Some(364.0)));
        for (index, name) in [(0, "a model without samples"), (7, "no model")] {
            assert_eq!(history.json(index, now)["ages_s"], json!([]), "{name}");
        }
    }
}
