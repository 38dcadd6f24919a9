//! Easy requests to a fast group, hard ones to a strong one, by what a request looks like. (By how sure the fast one is:
//! `confidence`.) Called by `dispatch`.

use std::sync::Arc;

use octet_api::core::GenerateRequest;
use octet_config::{Cascade, Condition, Rule, Side};
use tokio::time::Instant;

use crate::attempt::{AttemptError, OpenAnswer};
use crate::dispatch::Job;
use crate::failure::FailureKind;
use crate::remote::generates;
use crate::size::{Size, has_code, has_images, last_user_text, system_text};
use crate::table::{Resolved, Table};
use crate::target::Target;
use crate::trace::Step;

/// What conditions look at.
#[derive(Debug, Clone, Copy)]
struct Look<'a> {
    /// The request.
    request: &'a GenerateRequest,
    /// Its size.
    size: Size,
    /// Its prompt's tokens, where they were counted.
    tokens: Option<u64>,
    /// Names in small letters, and values.
    headers: &'a [(String, String)],
}

impl Look<'_> {
    fn holds(&self, condition: &Condition) -> bool {
        let tokens = self.tokens.unwrap_or(self.size.tokens());
        let messages = self.request.chat().map_or(1, |c| c.messages.len());
        match condition {
            Condition::MinTokens(n) => tokens >= *n,
            Condition::MaxTokens(n) => tokens <= *n,
            Condition::MinMessages(n) => messages >= *n as usize,
            Condition::MaxMessages(n) => messages <= *n as usize,
            Condition::Tools(yes) => self.request.chat().is_some_and(|c| !c.tools.is_empty()) == *yes,
            Condition::Code(yes) => has_code(self.request) == *yes,
            Condition::Images(yes) => has_images(self.request) == *yes,
            Condition::Header(wanted) => {
                let fits = |v: &str| wanted.value.as_ref().is_none_or(|p| p.is_match(v));
                self.headers.iter().any(|(n, v)| *n == wanted.name && fits(v))
            }
            Condition::System(wanted) => wanted.is_match(&system_text(self.request)),
            Condition::User(wanted) => wanted.is_match(&last_user_text(self.request)),
        }
    }
}

/// Whether a rule asks for tokens.
fn counts_tokens(cascade: &Cascade) -> bool {
    let mut all = cascade.rules.iter().flat_map(|r| &r.when);
    all.any(|c| matches!(c, Condition::MinTokens(_) | Condition::MaxTokens(_)))
}

/// The first rule all of whose conditions hold.
fn rule<'a>(cascade: &'a Cascade, look: &Look<'_>) -> Option<&'a Rule> {
    cascade.rules.iter().find(|r| !r.when.is_empty() && r.when.iter().all(|c| look.holds(c)))
}

impl<T: Target> Job<T> {
    /// A fast group or a strong one.
    pub(crate) async fn cascade(
        &mut self,
        table: &Arc<Table<T>>,
        cascade: &Cascade,
    ) -> Result<OpenAnswer<T>, AttemptError> {
        let (side, watch) = self.rule(table, cascade).await;
        if side == Side::Strong {
            return self.groups(table, &cascade.strong).await;
        }
        let Resolved::Group { group, name, .. } = table.resolve(&cascade.fast) else {
            return self.groups(table, &cascade.strong).await;
        };
        // What is measured is the one answer. Vectors and counts have no tokens to be sure of.
        let has_text = self.call.original.as_ref().is_none_or(|o| generates(o.dialect));
        self.watch = cascade.confidence.filter(|_| watch && has_text && self.request.n == 1);
        let result = self.group(table, group, name, false).await;
        self.watch = None;
        let measured = self.meter.take();
        if let Some(meter) = measured.filter(|_| !matches!(result, Err(AttemptError::Failed(_)))) {
            self.trace.step(Step::Confidence {
                tokens: meter.tokens(),
                logprob: meter.mean_logprob(),
                margin: meter.mean_margin(),
                verdict: meter.verdict().name(),
            });
        }
        let why = match &result {
            Ok(_) => return result,
            Err(AttemptError::Unsure) => None,
            Err(AttemptError::Failed(failure)) => {
                if failure.kind == FailureKind::ContextWindow {
                    self.window_above = group.window_tokens();
                }
                self.fallback(&cascade.fast, &cascade.strong, failure.kind.name());
                Some(failure.clone())
            }
        };
        let strong = self.groups(table, &cascade.strong).await;
        match (strong, why) {
            // An unsure answer is better than none.
            (Err(AttemptError::Failed(failure)), None) if Instant::now() < self.deadline => {
                self.fallback(&cascade.strong, &cascade.fast, failure.kind.name());
                self.group(table, group, name, true).await
            }
            (other, _) => other,
        }
    }

    /// What the rules say: which side, and whether the fast one is watched.
    pub(crate) async fn rule(&mut self, table: &Arc<Table<T>>, cascade: &Cascade) -> (Side, bool) {
        let mut tokens = None;
        if counts_tokens(cascade)
            && let Resolved::Group { group, .. } = table.resolve(&cascade.fast)
            && let Some(d) = group.deployments.first()
        {
            tokens = d.target.count_tokens(&self.request).await;
            if let Some(n) = tokens {
                self.counts.insert(d.id().to_string(), n);
            }
        }
        let (request, headers) = (&*self.call.request, &self.call.headers[..]);
        let Some(rule) = rule(cascade, &Look { request, size: self.size, tokens, headers }) else {
            return (Side::Fast, true);
        };
        let to = if rule.to == Side::Fast { &cascade.fast } else { &cascade.strong };
        self.trace.step(Step::Rule { rule: rule.name.clone(), to: to.clone() });
        (rule.to, rule.check)
    }
}
