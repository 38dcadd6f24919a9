//! Statistics of an engine. Updated by `engine`, read by the server's metrics.

use std::time::Duration;

use octet_compute::backend::StoreStats;

use super::{Engine, MIXED_TOKENS_MIN, speculation};
use crate::cache::CacheStats;

/// Counters since the engine was opened, and its current state.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Number of running and waiting sequences.
    pub running: usize,
    /// See `running`.
    pub waiting: usize,
    /// Pages and snapshots.
    pub cache: CacheStats,
    /// Prompt tokens, cached ones included.
    pub prompt_tokens: u64,
    /// Prompt tokens of requests that may use the cache, and the cached ones among them.
    pub queried_tokens: u64,
    /// See `queried_tokens`.
    pub cached_tokens: u64,
    /// Prompt tokens that were computed.
    pub computed_tokens: u64,
    /// Images that were encoded.
    pub encoded_images: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Number of requests that finished, were cancelled, or failed.
    pub finished: u64,
    /// See `finished`.
    pub cancelled: u64,
    /// See `finished`.
    pub failed: u64,
    /// Sequences that were preempted because pages ran out.
    pub preemptions: u64,
    /// Lookups of waiting prompts in the prefix cache.
    pub prompt_searches: u64,
    /// Average time that a sequence runs, weighted towards recent ones.
    pub service_time: Duration,
    /// Number of model steps, and their total time. A step that was submitted ahead and ended before anyone waited for it counts like the last one
    /// before it.
    pub steps: u64,
    /// See `steps`.
    pub step_time: Duration,
    /// Bytes of weights, states, keys and values that the steps read, including drafts; 0 if not counted.
    pub step_bytes: u64,
    /// Time of the last step.
    pub step_time_last: Duration,
    /// Time of the longest step with an answer's token.
    pub decode_step_time_max: Duration,
    /// Number of steps that read back only the largest logits of each row.
    pub picked_steps: u64,
    /// Number of steps that were submitted before the one before had ended and whose results were used; and of such whose results were dropped: they
    /// took other tokens than the host then chose, or all their answers had ended.
    pub steps_ahead: u64,
    /// See `steps_ahead`.
    pub steps_dropped: u64,
    /// Steps with constrained answers, and their total time including masks.
    pub masked_steps: u64,
    /// See `masked_steps`.
    pub masked_step_time: Duration,
    /// Time to compute masks, in parallel with steps.
    pub mask_time: Duration,
    /// Time that steps waited for masks after their logits were ready: the cost of constraints.
    pub mask_wait_time: Duration,
    /// Speculative decoding.
    pub speculation: speculation::Stats,
    /// Time to make guesses.
    pub draft_time: Duration,
    /// What was read of experts that are not all in memory; `None` if they are.
    pub store: Option<StoreStats>,
}

impl Engine {
    /// Adapts the prompts' share of mixed steps to the time of steps.
    pub(super) fn record_time(&mut self, time: Duration, is_measured: bool) {
        self.stats.steps += 1;
        self.stats.step_time += time;
        if !is_measured {
            return;
        }
        self.stats.step_time_last = time;
        let p = &self.plan;
        if p.decodes == 0 {
            return;
        }
        if p.prefills == 0 {
            self.speculation.control.record_step(self.batch.len(), time);
        }
        // Answers wait for images, too.
        let time = time + self.encode_time;
        self.stats.decode_step_time_max = self.stats.decode_step_time_max.max(time);
        if p.prefills == 0 {
            return;
        }
        let (time, most) = (time.as_secs_f64().max(1e-9), self.step_time_max.as_secs_f64());
        let batch_tokens = self.model.limits().batch_tokens;
        if time > most {
            let fewer = p.prefills as f64 * (most / time).max(0.25);
            self.mixed_tokens = self.mixed_tokens.min(fewer as usize);
        } else if p.prefills * 8 >= self.mixed_tokens * 7 && time < 0.8 * most {
            self.mixed_tokens += self.mixed_tokens / 4 + 1;
        }
        self.mixed_tokens = self.mixed_tokens.clamp(MIXED_TOKENS_MIN.min(batch_tokens), batch_tokens);
    }
}
