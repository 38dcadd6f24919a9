//! `mock_response`: a deployment that gives every request the same answer, or the same error, for tests of clients and of fallbacks. Created
//! by `gateway`; called by the router.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use octet_api::core::{Event, FinishReason, Usage};
use octet_router::{Ask, Failure, FailureKind, Size, answers};

use super::read;

/// A deployment without a provider.
#[derive(Debug)]
pub struct MockTarget {
    text: String,
    /// Its model, for headers.
    pub model: String,
}

/// The texts with which LiteLLM fails instead of answering.
const ERRORS: &[(&str, FailureKind)] = &[
    ("litellm.RateLimitError", FailureKind::RateLimited),
    ("litellm.InternalServerError", FailureKind::Server),
    ("litellm.ContextWindowExceededError", FailureKind::ContextWindow),
    ("litellm.ContentPolicyViolationError", FailureKind::ContentPolicy),
    ("litellm.Timeout", FailureKind::Timeout),
];

/// Approximate bytes per token.
const BYTES_PER_TOKEN: u64 = 4;

impl MockTarget {
    /// Answers with `text`.
    pub fn new(text: &str, model: &str) -> Self {
        Self { text: text.into(), model: model.into() }
    }

    /// The events of its answer.
    pub fn generate(&self, ask: &Ask<'_>) -> Result<VecDeque<Event>, Failure> {
        if let Some((name, kind)) = ERRORS.iter().find(|(name, _)| self.text.starts_with(name)) {
            return Err(Failure::new(*kind, format!("mock_response: {name}")));
        }
        if ask.original.is_some_and(|o| !read::generates(o.dialect)) {
            let what = "a deployment with mock_response answers only requests for text";
            return Err(Failure::new(FailureKind::BadRequest, what));
        }
        let many = u32::try_from(answers(ask.request)).unwrap_or(u32::MAX).min(CHOICES_MAX);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut events = VecDeque::from([Event::Started {
            id: format!("{:032x}", fastrand::u128(..)),
            model: ask.request.model.clone(),
            created_s: now.as_secs(),
            usage: None,
        }]);
        for choice in 0..many {
            events.push_back(Event::Text { choice, text: self.text.clone() });
            events.push_back(Event::Finished { choice, reason: FinishReason::Stop });
        }
        events.push_back(Event::Usage(Usage {
            prompt_tokens: Size::of(ask.request).tokens(),
            completion_tokens: u64::from(many) * (self.text.len() as u64).div_ceil(BYTES_PER_TOKEN),
            ..Usage::default()
        }));
        Ok(events)
    }
}

/// Maximum number of answers.
const CHOICES_MAX: u32 = 128;
