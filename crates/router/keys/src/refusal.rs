//! Why a request is refused. Created by `account` and `store`, sent to the client by the router.

use crate::Usd;
use crate::calendar::iso_minute;
use crate::profile::OwnerKind;

/// The limit of [`Refusal::Answers`], if it is a budget.
pub(crate) const BUDGET: &str = "budget";

/// Why a request is refused. The text is for the client: it names neither the key nor other keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The key does not exist.
    #[error("this API key is not known; check it for missing characters, or ask for a new one")]
    Unknown,
    /// It was revoked.
    #[error("this API key was revoked; ask for a new one")]
    Revoked,
    /// It is blocked.
    #[error("this API key is blocked; ask whoever runs this server")]
    Blocked,
    /// The key's user or team is refused.
    #[error("{}", .refusal.to_string().replace("this API key", &format!("the {} of this API key", .kind.name())))]
    Owner {
        /// User or team.
        kind: OwnerKind,
        /// The reason.
        refusal: Box<Refusal>,
    },
    /// It has expired.
    #[error("this API key expired on {}; ask for a new one", iso_minute(*.at))]
    Expired {
        /// When, in seconds since 1970 UTC.
        at: i64,
    },
    /// The model is not allowed.
    #[error("this API key may not use the model '{model}'; it may use {}", .allowed.join(", "))]
    Model {
        /// The requested model.
        model: String,
        /// The allowed ones.
        allowed: Vec<String>,
    },
    /// Too many requests per minute.
    #[error("this API key is limited to {limit} requests a minute; try again in {retry_after_s} s")]
    Requests {
        /// The limit.
        limit: u64,
        /// Seconds until the next request is possible.
        retry_after_s: u64,
    },
    /// Too many tokens per minute.
    #[error("this API key is limited to {limit} tokens a minute; try again in {retry_after_s} s")]
    Tokens {
        /// The limit.
        limit: u64,
        /// Seconds until the next request is possible.
        retry_after_s: u64,
    },
    /// Too many concurrent requests.
    #[error("this API key is limited to {limit} requests at a time; try again when one has ended")]
    Parallel {
        /// The limit.
        limit: u64,
    },
    /// The budget is spent, or reserved by running requests.
    #[error(
        "the budget of this API key ({limit}) is used up: {spent} spent, {reserved} reserved by running requests; {}",
        .resets.map_or("it does not reset".into(), |at| format!("it resets on {}", iso_minute(at)))
    )]
    Budget {
        /// The budget.
        limit: Usd,
        /// What is spent of it.
        spent: Usd,
        /// Reserved by running requests.
        reserved: Usd,
        /// When it is reset, in seconds since 1970 UTC.
        resets: Option<i64>,
    },
    /// The request is for several answers, and not all fit.
    #[error(
        "the answers that the request asks for may exceed the {limit} of this API key; ask for fewer, or for shorter ones with a \
         smaller max_tokens"
    )]
    Answers {
        /// The limit.
        limit: &'static str,
    },
    /// The same for the global budget.
    #[error(
        "the answers that the request asks for may exceed the budget of this server; ask for fewer, or for shorter ones with a \
         smaller max_tokens"
    )]
    TotalAnswers,
    /// The global budget is spent, or reserved by running requests.
    #[error(
        "the budget of this server is used up; {}",
        .resets.map_or("it does not reset".into(), |at| format!("it resets on {}", iso_minute(at)))
    )]
    Total {
        /// When it is reset, in seconds since 1970 UTC.
        resets: Option<i64>,
    },
    /// Spend cannot be written, and there is a global budget.
    #[error("this server has a budget, and what requests cost cannot be recorded at the moment: {why}")]
    TotalUnwritable {
        /// The reason.
        why: String,
    },
    /// Spend cannot be written, and the key has a budget.
    #[error("this API key has a budget, and what it spends cannot be recorded at the moment: {why}")]
    Unwritable {
        /// The reason.
        why: String,
    },
}

impl Refusal {
    /// The HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Self::Unknown | Self::Revoked | Self::Blocked | Self::Expired { .. } => 401,
            Self::Owner { refusal, .. } => refusal.status(),
            Self::Model { .. } => 403,
            Self::Requests { .. } | Self::Tokens { .. } | Self::Parallel { .. } => 429,
            Self::Budget { .. } | Self::Total { .. } | Self::Answers { .. } | Self::TotalAnswers => 429,
            Self::Unwritable { .. } | Self::TotalUnwritable { .. } => 503,
        }
    }

    /// Whether it is about a budget, which a request that costs nothing may pass.
    pub fn is_budget(&self) -> bool {
        match self {
            Self::Owner { refusal, .. } => refusal.is_budget(),
            Self::Answers { limit } => *limit == BUDGET,
            Self::Budget { .. } | Self::Unwritable { .. } => true,
            Self::Total { .. } | Self::TotalAnswers | Self::TotalUnwritable { .. } => true,
            _ => false,
        }
    }

    /// Its name in metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unknown => "unknown_key",
            Self::Revoked => "revoked",
            Self::Blocked => "blocked",
            Self::Expired { .. } => "expired",
            Self::Owner { refusal, .. } => refusal.reason(),
            Self::Model { .. } => "model",
            Self::Requests { .. } => "rpm",
            Self::Tokens { .. } => "tpm",
            Self::Parallel { .. } => "parallel",
            Self::Budget { .. } | Self::Answers { .. } => "budget",
            Self::Total { .. } | Self::TotalAnswers => "total_budget",
            Self::Unwritable { .. } | Self::TotalUnwritable { .. } => "not_recorded",
        }
    }

    /// The code that OpenAI's clients know.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unknown | Self::Revoked | Self::Blocked | Self::Expired { .. } => "invalid_api_key",
            Self::Owner { refusal, .. } => refusal.code(),
            Self::Model { .. } => "model_not_allowed",
            Self::Requests { .. } | Self::Tokens { .. } | Self::Parallel { .. } => "rate_limit_exceeded",
            Self::Budget { .. } | Self::Total { .. } | Self::Answers { .. } | Self::TotalAnswers => {
                "insufficient_quota"
            }
            Self::Unwritable { .. } | Self::TotalUnwritable { .. } => "usage_not_recorded",
        }
    }

    /// Seconds for `Retry-After`, if waiting helps and the time is known.
    pub fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::Requests { retry_after_s, .. } | Self::Tokens { retry_after_s, .. } => Some(*retry_after_s),
            Self::Parallel { .. } | Self::Unwritable { .. } | Self::TotalUnwritable { .. } => Some(1),
            Self::Owner { refusal, .. } => refusal.retry_after_s(),
            _ => None,
        }
    }
}
