//! Figures about an engine. Kept by `engine`, read by the server's metrics.

use std::time::Duration;

use super::speculation;
use crate::cache::CacheStats;

/// Figures about an engine's work since it was opened, and its state now.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Sequences that run, and that wait.
    pub running: usize,
    /// See `running`.
    pub waiting: usize,
    /// Pages, snapshots.
    pub cache: CacheStats,
    /// Tokens of prompts, cached ones included.
    pub prompt_tokens: u64,
    /// Those of requests that may use the cache, and those of them that were cached.
    pub queried_tokens: u64,
    /// See `queried_tokens`.
    pub cached_tokens: u64,
    /// Tokens of prompts that were computed.
    pub computed_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Requests that were finished, cancelled, or failed.
    pub finished: u64,
    /// See `finished`.
    pub cancelled: u64,
    /// See `finished`.
    pub failed: u64,
    /// Sequences that were put back into the queue for want of pages.
    pub preemptions: u64,
    /// Searches of the prefix cache for a prompt that waited.
    pub prompt_searches: u64,
    /// How long a sequence is on the model, the last ones counting most.
    pub service_time: Duration,
    /// Steps of the model, and the time that they took.
    pub steps: u64,
    /// See `steps`.
    pub step_time: Duration,
    /// Bytes of weights, states, keys and values that the steps had to read, those of the drafts included; 0 where nobody counts.
    pub step_bytes: u64,
    /// The last step.
    pub step_time_last: Duration,
    /// The longest step that had an answer's token in it: nobody waited longer for the next word on the model's account.
    pub decode_step_time_max: Duration,
    /// Steps whose logits stayed on the device: their largest ones sufficed.
    pub picked_steps: u64,
    /// Steps that had constrained answers, and the time that these took with their masks.
    pub masked_steps: u64,
    /// See `masked_steps`.
    pub masked_step_time: Duration,
    /// How long masks were computed, beside the steps' own work.
    pub mask_time: Duration,
    /// How long steps waited for masks when the logits were there: what constraints cost.
    pub mask_wait_time: Duration,
    /// Guesses.
    pub speculation: speculation::Stats,
    /// How long it took to make them.
    pub draft_time: Duration,
}
