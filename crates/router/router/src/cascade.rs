//! Sends easy requests to a fast group and hard ones to a strong one, by the request's features and by the fast model's confidence
//! (`confidence`).

use std::sync::Arc;

use octet_api::core::{Event, GenerateRequest};
use octet_config::{Cascade, Condition, Confidence, Rule, Side};
use octet_upstream::blocking::{INLINE_BYTES_MAX, spawn_blocking};
use tokio::time::{Instant, timeout_at};

use crate::attempt::{AttemptError, OpenAnswer};
use crate::confidence::Meter;
use crate::dispatch::Job;
use crate::failure::FailureKind;
use crate::remote::generates;
use crate::self_check;
use crate::size::{Size, has_code, has_images, last_user_text, system_text};
use crate::table::{Group, Resolved, Table};
use crate::target::{Piece, Target};
use crate::trace::{Spent, Step};

/// The features that conditions test.
#[derive(Debug, Clone, Copy)]
struct Look<'a> {
    /// The request.
    request: &'a GenerateRequest,
    /// Its size.
    size: Size,
    /// Its prompt's tokens, if they were counted.
    tokens: Option<u64>,
    /// Lower-case names, and values.
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

/// Whether a rule tests the number of tokens.
fn counts_tokens(cascade: &Cascade) -> bool {
    let mut all = cascade.rules.iter().flat_map(|r| &r.when);
    all.any(|c| matches!(c, Condition::MinTokens(_) | Condition::MaxTokens(_)))
}

/// The first rule whose conditions all hold, by its index.
fn rule(rules: &[Rule], look: &Look<'_>) -> Option<usize> {
    rules.iter().position(|r| !r.when.is_empty() && r.when.iter().all(|c| look.holds(c)))
}

impl<T: Target> Job<T> {
    /// Routes to the fast group or the strong one.
    pub(crate) async fn cascade(
        &mut self,
        table: &Arc<Table<T>>,
        cascade: &Cascade,
    ) -> Result<OpenAnswer<T>, AttemptError> {
        let (side, watch) = self.rule(table, cascade).await;
        let to_strong = side == Side::Strong || watch && self.prerouted(table, cascade).await;
        let (false, Resolved::Group { group, name, .. }) = (to_strong, table.resolve(&cascade.fast)) else {
            return self.groups(table, &cascade.strong).await;
        };
        let mut result = self.watched(table, (group, name), cascade.confidence.filter(|_| watch)).await;
        let why = match &mut result {
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
            // An answer with low confidence is better than none.
            (Err(AttemptError::Failed(failure)), None) if Instant::now() < self.deadline => {
                self.fallback(&cascade.strong, &cascade.fast, failure.kind.name());
                self.group(table, group, name, true).await
            }
            (other, _) => other,
        }
    }

    /// The fast group's answer, if its confidence is high enough.
    async fn watched(
        &mut self,
        table: &Arc<Table<T>>,
        (group, name): (&Arc<Group<T>>, &str),
        rules: Option<Confidence>,
    ) -> Result<OpenAnswer<T>, AttemptError> {
        // Only a single answer is measured. Embeddings and counts have no tokens to measure.
        let has_text = self.call.original.as_ref().is_none_or(|o| generates(o.dialect));
        let rules = rules.filter(|_| has_text && self.request.n == 1);
        self.watch = rules;
        self.hold_whole = rules.is_some_and(|r| r.self_check.is_some());
        let result = self.group(table, group, name, false).await;
        (self.watch, self.hold_whole) = (None, false);
        let (meter, probe) = (self.meter.take(), self.probe.take());
        let Some(rules) = rules.filter(|_| !matches!(result, Err(AttemptError::Failed(_)))) else {
            return result;
        };
        if let Some(meter) = probe.as_ref().or(meter.as_ref()).filter(|_| rules.measures_tokens()) {
            self.trace.step(measured(&rules, meter, probe.is_some()));
        }
        if let Some(why) = meter.as_ref().and_then(Meter::called) {
            let (why, verdict) = (why.map(String::from), if why.is_some() { "escalated" } else { "kept" });
            self.trace.step(Step::ToolCalls { why, verdict });
        }
        match (result, rules.self_check) {
            (Ok(answer), Some(least)) => self.checked(table, (group, name), answer, least).await,
            (result, _) => result,
        }
    }

    /// The answer, unless the model itself judges it wrong.
    async fn checked(
        &mut self,
        table: &Arc<Table<T>>,
        (group, name): (&Arc<Group<T>>, &str),
        mut answer: OpenAnswer<T>,
        least: f64,
    ) -> Result<OpenAnswer<T>, AttemptError> {
        let events = answer.begun.held.iter().filter_map(event);
        let text: String = events
            .filter_map(|e| if let Event::Text { text, .. } = e { Some(&**text) } else { None })
            .collect();
        let calls =
            answer.begun.held.iter().filter_map(event).any(|e| matches!(e, Event::ToolCallStart { .. }));
        let Some(question) = self_check::question(&self.request, &text).filter(|_| !calls) else {
            return Ok(answer);
        };
        // The answer is complete: its permit is free for the question.
        let usage = answer.usage();
        if let Some(permit) = answer.permit.take() {
            permit.answered(usage.map(|u| (u.total_tokens(), u.completion_tokens)), false, Instant::now());
        }
        let (size, counts) = (Size::of(&question), std::mem::take(&mut self.counts));
        let (request, size) = (
            std::mem::replace(&mut self.request, Arc::new(question)),
            std::mem::replace(&mut self.size, size),
        );
        self.hold_whole = true;
        let reply = self.group(table, group, name, false).await;
        (self.request, self.size, self.counts, self.hold_whole) = (request, size, counts, false);
        let probability = reply.ok().and_then(|reply| {
            let probability = self_check::probability(reply.begun.held.iter().filter_map(event));
            let (deployment, usage) = (reply.deployment.id().into(), reply.usage());
            let pieces = usage.map_or(1, |u| u.completion_tokens);
            self.trace.spent(Spent { deployment, usage, pieces });
            reply.settle(false);
            probability
        });
        let is_wrong = probability.is_some_and(|p| p < least);
        let verdict = if is_wrong { "escalated" } else { "kept" };
        self.trace.step(Step::SelfCheck { probability, verdict });
        if is_wrong {
            let pieces = usage.map_or(0, |u| u.completion_tokens);
            self.trace.spent(Spent { deployment: answer.deployment.id().into(), usage, pieces });
            return Err(AttemptError::Unsure);
        }
        Ok(answer)
    }

    /// Whether the prerouter predicts, from the prompt alone, that the fast model's answer would be wrong.
    async fn prerouted(&mut self, table: &Arc<Table<T>>, cascade: &Cascade) -> bool {
        let Some(prerouter) = &cascade.prerouter else { return false };
        let has_text = self.call.original.as_ref().is_none_or(|o| generates(o.dialect));
        let text = last_user_text(&self.call.request);
        if !has_text || text.trim().is_empty() {
            return false;
        }
        let by = prerouter.embed.as_ref().unwrap_or(&cascade.fast);
        let mut probability = None;
        if let Resolved::Group { group, .. } = table.resolve(by)
            && let Some(d) = group.deployments.iter().find(|d| d.target.is_local())
            && let Ok(Some(vector)) = timeout_at(self.deadline, d.target.embed(&text)).await
        {
            probability = prerouter.probability(&vector);
            if probability.is_none() && table.is_first_mismatch(&cascade.name) {
                let (ours, theirs) = (vector.len(), prerouter.weights.len());
                tracing::warn!(
                    cascade = cascade.name,
                    "the prerouter has {theirs} weights, but the embedding of '{by}' has {ours} dimensions: calibrate again"
                );
            }
        }
        let is_unlikely = probability.is_some_and(|p| p < prerouter.threshold);
        let to = if is_unlikely { &cascade.strong } else { &cascade.fast }.clone();
        self.trace.step(Step::Prerouted { probability, to, strong: is_unlikely });
        is_unlikely
    }

    /// The result of the rules: which side, and whether the fast one is measured.
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
        let (size, rules) = (self.size, &cascade.rules);
        let found = if size.bytes <= INLINE_BYTES_MAX as u64 {
            rule(rules, &Look { request: &self.call.request, size, tokens, headers: &self.call.headers })
        } else {
            // Patterns take long on long texts.
            let (rules, call) = (rules.clone(), self.call.clone());
            let find =
                move || rule(&rules, &Look { request: &call.request, size, tokens, headers: &call.headers });
            spawn_blocking(find).await.unwrap_or_else(|e| {
                tracing::error!(cascade = cascade.name, "its rules could not be applied: {e}");
                None
            })
        };
        let Some(rule) = found.map(|at| &rules[at]) else { return (Side::Fast, true) };
        let to = if rule.to == Side::Fast { &cascade.fast } else { &cascade.strong };
        self.trace.step(Step::Rule { rule: rule.name.clone(), to: to.clone() });
        (rule.to, rule.check)
    }
}

/// The trace's text for a measurement.
fn measured(rules: &Confidence, meter: &Meter, probe: bool) -> Step {
    Step::Confidence {
        tokens: meter.tokens(),
        logprob: meter.mean_logprob(),
        margin: meter.mean_margin(),
        signal: rules.signal.map(|t| t.signal.to_string()),
        value: rules.signal.and_then(|t| meter.value(t.signal)),
        probe,
        verdict: meter.measured().name(),
    }
}

fn event(piece: &Piece) -> Option<&Event> {
    match piece {
        Piece::Event(event) => Some(event),
        Piece::Raw(_) => None,
    }
}
