//! Measures the first tokens of a greedy copy of a request while the answer itself is held back: randomness and temperature affect the
//! answer's tokens, but not the measurement, and `octet route calibrate` measures the same.

use std::pin::pin;
use std::sync::Arc;

use octet_api::core::{GenerateRequest, Reporting};
use octet_config::Confidence;
use tokio::time::{Instant, timeout_at};

use crate::attempt::{AttemptError, AttemptParams, FailedAttempt, PartialUsage, StartedAnswer, attempt};
use crate::confidence::{HOLD_MAX, Meter, Verdict};
use crate::signal;
use crate::target::{Ask, Events, Piece, Target};

/// Whether the answer's own tokens equal those of a greedy copy, with the model's own log-probabilities.
pub fn is_greedy(request: &GenerateRequest) -> bool {
    let s = &request.sampling;
    let plain = s.more.mirostat.is_none_or(|n| n == 0) && s.more.dynatemp_range.is_none_or(|r| r == 0.0);
    s.temperature == Some(0.0) && plain && !request.report.post_sampling
}

/// The same request, greedy, with log-probabilities.
pub fn greedy(request: &GenerateRequest, rules: &Confidence) -> GenerateRequest {
    let mut copy = GenerateRequest { report: Reporting::default(), ..request.clone() };
    copy.sampling.temperature = Some(0.0);
    copy.sampling.seed = None;
    copy.sampling.more.mirostat = None;
    copy.sampling.more.dynatemp_range = Some(0.0);
    copy.sampling.more.xtc_probability = Some(0.0);
    copy.logprobs = Some(top(rules));
    copy.stream = true;
    copy
}

/// Number of top tokens that are measured.
pub fn top(rules: &Confidence) -> u32 {
    rules.signal.map_or(2, |t| signal::top(t.signal))
}

/// An attempt with a measurement beside it.
pub async fn attempt_beside<T: Target>(
    target: &T,
    orders: AttemptParams<'_, T>,
    probe: (Arc<GenerateRequest>, &mut Meter),
) -> Result<StartedAnswer<T::Events>, FailedAttempt> {
    let (request, meter) = probe;
    let deadline = orders.deadline;
    let ask = Ask {
        request: &request,
        name: orders.name,
        group: &orders.group.name,
        original: None,
        traceparent: orders.traceparent,
        resumed: false,
    };
    let result = {
        let mut measured = pin!(measure(target, ask, meter));
        let mut answer = pin!(attempt(target, orders));
        tokio::select! {
            // The answer starts first: the copy reuses the prompt that it computes.
            biased;
            begun = &mut answer => match begun {
                Err(failed) => Some(Err(failed)),
                Ok(begun) => {
                    let by = deadline.min(Instant::now() + HOLD_MAX);
                    match timeout_at(by, measured).await {
                        Ok(Verdict::Escalated) => None,
                        _ => Some(Ok(begun)),
                    }
                }
            },
            verdict = &mut measured => match verdict {
                Verdict::Escalated => None,
                _ => Some(answer.await),
            },
        }
    };
    meter.give_up();
    match result {
        Some(result) => result,
        None => {
            // Both were generated concurrently.
            let took = PartialUsage { usage: None, pieces: u64::from(meter.tokens()) };
            Err(FailedAttempt { error: AttemptError::Unsure, took: Some(took) })
        }
    }
}

/// Measures until there is a result. A failed probe has none: its answer is kept.
async fn measure<T: Target>(target: &T, ask: Ask<'_>, meter: &mut Meter) -> Verdict {
    let Ok(mut events) = target.generate(ask).await else {
        meter.skip("the probe failed");
        return meter.verdict();
    };
    while meter.verdict() == Verdict::Watching {
        match events.next().await {
            Some(Ok(Piece::Event(event))) => drop(meter.observe(&event)),
            Some(Ok(Piece::Raw(_)) | Err(_)) | None => meter.skip("the probe failed"),
        }
    }
    meter.verdict()
}
