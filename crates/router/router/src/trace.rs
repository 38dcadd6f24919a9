//! The decisions about a request, as data: for the headers `x-octet-model` and `x-octet-route`, for metrics, and for `octet route explain`.
//! Written by `dispatch` and `cascade`.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use octet_api::core::Usage;
use serde::Serialize;

use crate::choose::Ineligible;

/// Maximum number of stored steps; further ones are counted.
const STEPS_MAX: usize = 256;
/// Maximum length of the header.
const HEADER_BYTES_MAX: usize = 1024;

/// The decisions that led to a request's answer.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Route {
    /// The requested name.
    #[serde(rename = "asked")]
    pub requested_model: String,
    /// The decisions, in order.
    pub steps: Vec<Step>,
    /// The time of each.
    #[serde(skip)]
    pub at: Vec<Instant>,
    /// Number of steps that are not stored.
    pub more: usize,
    /// The answering deployment, once it is known.
    pub answered: Option<Answered>,
    /// The usage of answers that were discarded, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spent: Vec<Spent>,
}

/// The usage of a discarded answer: it failed midway, or its confidence was too low. Its provider bills it anyway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Spent {
    /// The deployment's id.
    pub deployment: String,
    /// The provider's count, if it had arrived.
    #[serde(skip)]
    pub usage: Option<Usage>,
    /// Received pieces, each about a token.
    pub pieces: u64,
}

/// The answering deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answered {
    /// The group.
    pub group: String,
    /// The deployment's id.
    pub deployment: String,
    /// The model's name at the target.
    pub model: String,
}

/// How a name was resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// As a group's name.
    Name,
    /// As an alias.
    Alias,
    /// As a name that matches a wildcard.
    Wildcard,
    /// It is unknown: the default fallbacks.
    Default,
}

/// One decision.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// A name was resolved to a group or a cascade.
    Resolved {
        /// The group or cascade.
        to: String,
        /// How.
        by: By,
    },
    /// A rule of a cascade decided.
    Rule {
        /// Its index, from 0, and the feature that it tests.
        rule: String,
        /// The group that it selects.
        to: String,
    },
    /// A deployment could not be used.
    PassedOver {
        /// Its id.
        deployment: String,
        /// The reason.
        why: Ineligible,
    },
    /// A deployment was chosen.
    Chose {
        /// Its group.
        group: String,
        /// Its id.
        deployment: String,
        /// The reason.
        why: String,
    },
    /// An attempt failed.
    Failed {
        /// The deployment's id, or the group's name if none could be used.
        deployment: String,
        /// `FailureKind::name`.
        kind: &'static str,
        /// The HTTP status, if there was one.
        status: Option<u16>,
        /// The error message.
        message: String,
        /// After how long.
        after_ms: u64,
    },
    /// A deployment is in cooldown.
    Cooled {
        /// Its id.
        deployment: String,
        /// For how long.
        for_ms: u64,
    },
    /// A pause before the next attempt.
    Waited {
        /// How long.
        ms: u64,
        /// For what.
        why: &'static str,
    },
    /// Fallback to another group.
    Fallback {
        /// The group that failed.
        from: String,
        /// The next group.
        to: String,
        /// The reason: `FailureKind::name`, or `unknown_model`.
        why: &'static str,
    },
    /// The fast model's first tokens were measured.
    Confidence {
        /// Their number.
        tokens: u32,
        /// Mean of their log-probabilities.
        logprob: Option<f64>,
        /// Mean margin between the two most probable tokens.
        margin: Option<f64>,
        /// The cascade's signal: `margin.q25`.
        #[serde(skip_serializing_if = "Option::is_none")]
        signal: Option<String>,
        /// Its value.
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<f64>,
        /// A greedy copy of the request was measured.
        probe: bool,
        /// The result: `kept`, `escalated`, or why it could not be measured.
        verdict: &'static str,
    },
    /// The prerouter examined the prompt.
    Prerouted {
        /// The probability that the fast model's answer is right; `None` if it could not be computed.
        probability: Option<f64>,
        /// The group that was chosen.
        to: String,
        /// Whether it is the strong one.
        strong: bool,
    },
    /// The fast model called tools.
    ToolCalls {
        /// The error of a call.
        why: Option<String>,
        /// `kept` or `escalated`.
        verdict: &'static str,
    },
    /// The fast model judged its own answer.
    SelfCheck {
        /// The probability of yes; `None` if it replied something else.
        probability: Option<f64>,
        /// `kept` or `escalated`.
        verdict: &'static str,
    },
    /// The answer broke off and is continued elsewhere.
    Continued {
        /// After this many bytes of text.
        after_bytes: usize,
    },
    /// A copy of the request was sent to a shadow group.
    Shadow {
        /// The group.
        group: String,
        /// `false`: not sent, because the limit was reached.
        sent: bool,
    },
}

impl Step {
    /// For a step of a cascade: the deciding part, and its decision.
    pub fn decision(&self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Self::Rule { .. } => ("rule", "matched"),
            Self::Prerouted { probability: None, .. } => ("prerouter", "unknown"),
            Self::Prerouted { strong: true, .. } => ("prerouter", "strong"),
            Self::Prerouted { .. } => ("prerouter", "fast"),
            Self::Confidence { verdict, .. } => ("confidence", verdict),
            Self::ToolCalls { verdict, .. } => ("tool_calls", verdict),
            Self::SelfCheck { verdict, .. } => ("self_check", verdict),
            _ => return None,
        })
    }
}

impl Route {
    /// One line of ASCII for a header: `coder>fast:a3b!timeout>fast:a3b-2`.
    pub fn header(&self) -> String {
        let mut out = String::with_capacity(128);
        // Writing to a String cannot fail.
        let _ = write!(out, "{}", Ascii(&self.requested_model));
        for step in &self.steps {
            let _ = match step {
                Step::Resolved { to, by: By::Name } if *to == self.requested_model => Ok(()),
                Step::Resolved { to, .. } => write!(out, ">{}", Ascii(to)),
                Step::Rule { rule, to } => write!(out, ">rule({})={}", Ascii(rule), Ascii(to)),
                Step::Chose { group, deployment, .. } if group == deployment => {
                    write!(out, ">{}", Ascii(deployment))
                }
                Step::Chose { group, deployment, .. } => {
                    write!(out, ">{}:{}", Ascii(group), Ascii(deployment))
                }
                Step::Failed { kind, status, .. } => match status {
                    Some(status) => write!(out, "!{kind}({status})"),
                    None => write!(out, "!{kind}"),
                },
                Step::Fallback { to, .. } => write!(out, ">fallback={}", Ascii(to)),
                Step::Confidence { signal: Some(signal), value: Some(value), verdict, .. } => {
                    write!(out, ">confidence({signal}={value:.3})={verdict}")
                }
                Step::Prerouted { probability, to, .. } => match probability {
                    Some(p) => write!(out, ">prerouter({p:.2})={}", Ascii(to)),
                    None => write!(out, ">prerouter=unknown"),
                },
                Step::ToolCalls { verdict, .. } => write!(out, ">tool_calls={verdict}"),
                Step::SelfCheck { probability: Some(p), verdict } => {
                    write!(out, ">self_check({p:.2})={verdict}")
                }
                Step::SelfCheck { verdict, .. } => write!(out, ">self_check={verdict}"),
                Step::Confidence { logprob, margin, verdict, .. } => match (logprob, margin) {
                    (Some(l), Some(m)) => write!(out, ">confidence({l:.2},{m:.2})={verdict}"),
                    (Some(l), None) => write!(out, ">confidence({l:.2})={verdict}"),
                    _ => write!(out, ">confidence={}", verdict.replace(' ', "_")),
                },
                Step::Continued { after_bytes } => write!(out, ">continued({after_bytes})"),
                Step::PassedOver { .. } | Step::Cooled { .. } | Step::Waited { .. } | Step::Shadow { .. } => {
                    Ok(())
                }
            };
        }
        if out.len() > HEADER_BYTES_MAX {
            // All of it is ASCII.
            out.truncate(HEADER_BYTES_MAX - 3);
            out.push_str("...");
        }
        out
    }

    /// How many attempts failed.
    pub fn failures(&self) -> usize {
        self.steps.iter().filter(|s| matches!(s, Step::Failed { .. })).count()
    }

    /// Whether another group than the first answers.
    pub fn fell_back(&self) -> bool {
        self.steps.iter().any(|s| matches!(s, Step::Fallback { .. }))
    }
}

/// Names come from configurations and clients: characters that a header cannot hold become `_`.
struct Ascii<'a>(&'a str);

impl std::fmt::Display for Ascii<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const CHARS_MAX: usize = 128;
        // Most names need no change.
        if self.0.len() <= CHARS_MAX && self.0.bytes().all(|b| b.is_ascii_graphic()) {
            return f.write_str(self.0);
        }
        let may_stand = |c: char| if c.is_ascii_graphic() { c } else { '_' };
        self.0.chars().take(CHARS_MAX).try_for_each(|c| f.write_char(may_stand(c)))
    }
}

/// A route in progress, shared between a request and its reply.
#[derive(Debug, Clone, Default)]
pub struct Trace(Arc<Mutex<Route>>);

impl Trace {
    /// An empty route.
    pub fn new(requested_model: &str) -> Self {
        Self(Arc::new(Mutex::new(Route { requested_model: requested_model.to_string(), ..Route::default() })))
    }

    /// Adds a decision.
    pub fn step(&self, step: Step) {
        self.with(|route| {
            if route.steps.len() < STEPS_MAX {
                route.steps.push(step);
                route.at.push(Instant::now());
            } else {
                route.more += 1;
            }
        });
    }

    /// Adds the usage of a discarded answer.
    pub fn spent(&self, spent: Spent) {
        self.with(|route| route.spent.push(spent));
    }

    /// Sets the answering deployment.
    pub fn answered(&self, deployment: Answered) {
        self.with(|route| route.answered = Some(deployment));
    }

    /// A copy of the route so far.
    pub fn route(&self) -> Route {
        self.with(|route| route.clone())
    }

    /// Reads the route so far.
    pub fn with<R>(&self, look: impl FnOnce(&mut Route) -> R) -> R {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
