//! Makes a request acceptable to its model: the one place that applies the table of families ([`Accepts`]) to every request, whatever its
//! dialect, after every choice of a deployment.
//!
//! A field is renamed, lowered, moved, or dropped with a warning where the answer's meaning stays; a field that changes the answer and that
//! the model refuses is dropped only with `drop_params`, and refused by its name otherwise, before anything is sent. What `set_params` and
//! `extra_body` set is sent as it is.

mod bytes;
mod claude;
mod messages;
mod names;
mod params;

use octet_config::{Accepts, Changes, ResponsesFor};
use serde_json::{Map, Value};

use crate::dialect::Dialect;
use crate::failure::{Failure, FailureKind};

pub(crate) use bytes::{apply as apply_bytes, is_deep, uses_responses};
pub(crate) use names::Names;
pub(crate) use params::NOT_OPENAI;

/// What is applied to a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) accepts: &'a Accepts,
    pub(crate) dialect: Dialect,
    pub(crate) changes: &'a Changes,
    /// The configured limit of answers, which takes precedence over the family's.
    pub(crate) output_tokens_max: Option<u32>,
}

/// What happened to a request's fields.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) warnings: Vec<String>,
}

impl Report {
    pub(crate) fn warn(&mut self, field: &str, what: &str) {
        let text = format!("'{field}' {what}");
        if !self.warnings.contains(&text) {
            self.warnings.push(text);
        }
    }
}

impl Rules<'_> {
    /// Whether there is nothing to apply.
    pub(crate) fn is_empty(&self) -> bool {
        match self.dialect {
            // Reasoning that others signed is never sent.
            Dialect::AnthropicMessages | Dialect::AnthropicCountTokens => false,
            Dialect::OpenAiChat
            | Dialect::OpenAiCompletions
            | Dialect::OpenAiResponses
            | Dialect::OpenAiEmbeddings
            | Dialect::Gemini => self.accepts.is_everything() && self.output_tokens_max.is_none(),
            _ => true,
        }
    }

    /// Whether the configuration itself sets a field.
    fn is_set_here(&self, field: &str) -> bool {
        self.changes.extra_body.contains_key(field) || self.changes.edits.set.contains_key(field)
    }

    /// Reports a field that the model refuses and that changes the answer; it must be dropped if this succeeds.
    fn refuse(&self, field: &str, why: &str, report: &mut Report) -> Result<(), Failure> {
        if self.changes.drop_params {
            report.warn(field, &format!("is left out: {why}"));
            return Ok(());
        }
        let what = format!(
            "'{field}' is refused: {why}. Leave it out, or set drop_params: true to have it left out"
        );
        Err(Failure { param: Some(field.into()), ..Failure::new(FailureKind::BadRequest, what) })
    }
}

/// Applies all rules to a body.
///
/// # Errors
/// A field that the model refuses, without `drop_params`; a conversation that it refuses, without `modify_params`.
pub(crate) fn apply(
    rules: &Rules<'_>,
    json: &mut Map<String, Value>,
    report: &mut Report,
) -> Result<(), Failure> {
    if rules.is_empty() {
        return Ok(());
    }
    if rules.dialect != Dialect::AnthropicCountTokens {
        params::apply(rules, json, report)?;
    }
    conversation(rules, json, report)
}

/// Applies the rules of conversations.
fn conversation(
    rules: &Rules<'_>,
    json: &mut Map<String, Value>,
    report: &mut Report,
) -> Result<(), Failure> {
    match rules.dialect {
        Dialect::OpenAiChat => {
            messages::apply(rules.accepts, json, report);
            Ok(())
        }
        Dialect::AnthropicMessages => claude::apply(rules, json, report),
        Dialect::AnthropicCountTokens => {
            claude::foreign_proofs(json);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Whether a chat with tools and this effort must use `/responses`.
pub(crate) fn tools_need_responses(accepts: &Accepts, has_tools: bool, effort: Option<&str>) -> bool {
    accepts.responses == ResponsesFor::Tools && has_tools && effort != Some("none")
}
