//! What was decided about a request, as data: for the headers `x-octet-model` and `x-octet-route`, for metrics, and for
//! `octet route explain`. Written by `dispatch` and `cascade`.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use octet_api::core::Usage;
use serde::Serialize;

use crate::choose::Ineligible;

/// Most steps that are kept; what comes then is counted.
const STEPS_MAX: usize = 256;
/// Longest value of the header.
const HEADER_BYTES_MAX: usize = 1024;

/// How a request found its answer.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Route {
    /// The name that the client asked for.
    pub asked: String,
    /// What was decided, in order.
    pub steps: Vec<Step>,
    /// When that was.
    #[serde(skip)]
    pub at: Vec<Instant>,
    /// Steps that were left out.
    pub more: usize,
    /// Who answers, once that is known.
    pub answered: Option<Answered>,
    /// What answers took that were begun and thrown away, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spent: Vec<Spent>,
}

/// What an answer took that was begun and thrown away: it failed in the middle, or its model was not sure enough. Its provider bills it
/// all the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Spent {
    /// Whose it was: the deployment's id.
    pub deployment: String,
    /// What the provider counted, where it had done so by then.
    #[serde(skip)]
    pub usage: Option<Usage>,
    /// Pieces that had come, each about a token.
    pub pieces: u64,
}

/// Who answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answered {
    /// The group.
    pub group: String,
    /// The deployment's id.
    pub deployment: String,
    /// The model's name there.
    pub model: String,
}

/// How a name was understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// A group has this name.
    Name,
    /// An alias.
    Alias,
    /// A name with stars.
    Wildcard,
    /// Nobody knows it: the default fallbacks.
    Default,
}

/// One decision.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// A name led to a group or a cascade.
    Resolved {
        /// The group or cascade.
        to: String,
        /// How.
        by: By,
    },
    /// A cascade's rule decided.
    Rule {
        /// Which, from 0, and what it looks at.
        rule: String,
        /// The group that it names.
        to: String,
    },
    /// A deployment could not be asked.
    PassedOver {
        /// Its id.
        deployment: String,
        /// Why.
        why: Ineligible,
    },
    /// A deployment was asked.
    Chose {
        /// Its group.
        group: String,
        /// Its id.
        deployment: String,
        /// Why this one.
        why: String,
    },
    /// It failed.
    Failed {
        /// Its id, or its group's name where none could be asked.
        deployment: String,
        /// `FailureKind::name`.
        kind: &'static str,
        /// The HTTP status, where there was one.
        status: Option<u16>,
        /// What was wrong.
        message: String,
        /// After how long.
        after_ms: u64,
    },
    /// It is left alone for a while.
    Cooled {
        /// Its id.
        deployment: String,
        /// How long.
        for_ms: u64,
    },
    /// A pause before the next attempt.
    Waited {
        /// How long.
        ms: u64,
        /// For what.
        why: &'static str,
    },
    /// Another group's turn.
    Fallback {
        /// Who failed.
        from: String,
        /// Who is next.
        to: String,
        /// Why: `FailureKind::name`, or `unknown_model`.
        why: &'static str,
    },
    /// The fast model's first tokens were looked at.
    Confidence {
        /// How many.
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
        /// What was made of it: `kept`, `escalated`, or why it could not be measured.
        verdict: &'static str,
    },
    /// The prompt was looked at before anybody was asked.
    Prerouted {
        /// That the fast model's answer is right; `None` where it could not be computed.
        probability: Option<f64>,
        /// The group that is asked.
        to: String,
        /// It is the strong one.
        strong: bool,
    },
    /// The fast model called tools.
    ToolCalls {
        /// What is wrong with a call.
        why: Option<String>,
        /// `kept` or `escalated`.
        verdict: &'static str,
    },
    /// The fast model was asked whether its answer is right.
    SelfCheck {
        /// How probable its yes was; `None` where it said something else.
        probability: Option<f64>,
        /// `kept` or `escalated`.
        verdict: &'static str,
    },
    /// The answer broke off, and goes on elsewhere.
    Continued {
        /// After so much text.
        after_bytes: usize,
    },
    /// The request was also sent to a group whose answer nobody sees.
    Shadow {
        /// The group.
        group: String,
        /// `false`: there was no room for it.
        sent: bool,
    },
}

impl Step {
    /// For a step of a cascade: what decided, and what it decided.
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
        let _ = write!(out, "{}", Ascii(&self.asked));
        for step in &self.steps {
            let _ = match step {
                Step::Resolved { to, by: By::Name } if *to == self.asked => Ok(()),
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

/// Names come from configurations and clients: what a header cannot carry becomes `_`.
struct Ascii<'a>(&'a str);

impl std::fmt::Display for Ascii<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const CHARS_MAX: usize = 128;
        // Most are as they should be.
        if self.0.len() <= CHARS_MAX && self.0.bytes().all(|b| b.is_ascii_graphic()) {
            return f.write_str(self.0);
        }
        let may_stand = |c: char| if c.is_ascii_graphic() { c } else { '_' };
        self.0.chars().take(CHARS_MAX).try_for_each(|c| f.write_char(may_stand(c)))
    }
}

/// A route that is being written, shared between a request and who answers it.
#[derive(Debug, Clone, Default)]
pub struct Trace(Arc<Mutex<Route>>);

impl Trace {
    /// Nothing is decided yet.
    pub fn new(asked: &str) -> Self {
        Self(Arc::new(Mutex::new(Route { asked: asked.to_string(), ..Route::default() })))
    }

    /// One more decision.
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

    /// An answer was thrown away that had taken something.
    pub fn spent(&self, spent: Spent) {
        self.with(|route| route.spent.push(spent));
    }

    /// Who answers.
    pub fn answered(&self, who: Answered) {
        self.with(|route| route.answered = Some(who));
    }

    /// What is known so far.
    pub fn route(&self) -> Route {
        self.with(|route| route.clone())
    }

    /// Looks at it.
    pub fn with<R>(&self, look: impl FnOnce(&mut Route) -> R) -> R {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
