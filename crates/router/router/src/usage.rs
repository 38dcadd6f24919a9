//! Which token counts of a provider are believed: those that the request and the model's context allow. Billing and limits use an estimate
//! instead of others, or one absurd count would use up a key's budget. Created by `ask` for each answer.

use octet_api::core::{GenerateRequest, Usage};

use crate::size::answers;

/// The longest context of any model, if a deployment's is unknown.
const CONTEXT_MAX: u64 = 1 << 24;
/// How many tokens more than requested an answer may have: end tokens, and what a server generates several at a time.
const ANSWER_SPARE: u64 = 64;

/// Upper bounds of an answer's token counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageBounds {
    prompt: u64,
    /// Of all answers together, without and with reasoning: not every provider's limit includes it.
    answer: u64,
    with_reasoning: u64,
}

impl UsageBounds {
    /// The bounds for a request of `bytes` to a model with a context of `window` tokens, if that is known.
    pub fn of(request: &GenerateRequest, bytes: u64, window: Option<u64>) -> Self {
        let context = window.unwrap_or(CONTEXT_MAX);
        let answers = answers(request);
        let each = request.max_tokens.map_or(context, |most| u64::from(most) + ANSWER_SPARE);
        Self {
            // A token is at least a byte. Images and stored conversations are not in the body, but in the context.
            prompt: context.max(bytes),
            answer: answers.saturating_mul(each),
            with_reasoning: answers.saturating_mul(context.max(each)),
        }
    }

    /// Whether an answer can have used this.
    pub fn allow(&self, usage: &Usage) -> bool {
        let reasoning = usage.reasoning_tokens.unwrap_or(0);
        usage.prompt_tokens <= self.prompt
            && usage.completion_tokens <= self.with_reasoning
            && usage.completion_tokens.saturating_sub(reasoning) <= self.answer
    }
}

#[cfg(test)]
mod tests {
    use octet_api::core::{Completion, Input};

    use super::*;

    #[test]
    fn counts_within_request_and_context_are_believed() {
        let mut request = GenerateRequest::new("m", Input::Completion(Completion::default()));
        (request.n, request.max_tokens) = (3, Some(100));
        let bounds = |window| UsageBounds::of(&request, 5000, window);
        let usage = |prompt_tokens, completion_tokens, reasoning: u64| Usage {
            prompt_tokens,
            completion_tokens,
            reasoning_tokens: Some(reasoning),
            ..Usage::default()
        };
        for (window, counts, believed) in [
            (Some(8192), (20, 300, 0), true),
            (Some(8192), (8192, 301, 0), true),
            (Some(8192), (20, 1 << 63, 0), false),
            (Some(8192), (1 << 63, 300, 0), false),
            (Some(8192), (9000, 300, 0), false),
            // Longer than the context that is configured, which is a mistake there.
            (Some(1000), (5000, 300, 0), true),
            (Some(8192), (20, 1000, 0), false),
            (Some(8192), (20, 1000, 900), true),
            (Some(8192), (20, 100_000, 99_900), false),
            (None, (1 << 20, 300, 0), true),
            (None, (u64::MAX, 300, 0), false),
        ] {
            let (prompt, completion, reasoning) = counts;
            let found = bounds(window).allow(&usage(prompt, completion, reasoning));
            assert_eq!(found, believed, "{window:?} {counts:?}");
        }
        request.max_tokens = None;
        assert!(UsageBounds::of(&request, 0, Some(8192)).allow(&usage(0, 3 * 8192, 0)));
    }
}
