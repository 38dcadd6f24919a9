//! One attempt at one deployment, with the confidence measurement of a cascade.

use std::sync::Arc;

use octet_api::core::GenerateRequest;
use tokio::time::Instant;

use crate::attempt::{AttemptError, AttemptParams, FailedAttempt, OpenAnswer, PartialUsage, attempt};
use crate::confidence::Meter;
use crate::dispatch::{Job, TIMEOUT_MAX, blame};
use crate::probe::{attempt_beside, greedy, is_greedy, top};
use crate::reply::may_be_continued;
use crate::state::Permit;
use crate::table::{Deployment, Group, Table};
use crate::target::Target;
use crate::trace::Spent;
use crate::usage::UsageBounds;

impl<T: Target> Job<T> {
    /// One attempt at one deployment.
    pub(crate) async fn attempt(
        &mut self,
        table: &Table<T>,
        group: &Arc<Group<T>>,
        d: &Arc<Deployment<T>>,
        name: &str,
        permit: Permit,
    ) -> Result<OpenAnswer<T>, AttemptError> {
        let policy = &table.policy;
        let streams = self.request.stream && !self.is_shadow && !self.hold_whole;
        let by_stream = d.stream_timeout.or(policy.stream_timeout).filter(|_| streams);
        let most = by_stream.or(d.timeout).unwrap_or(TIMEOUT_MAX).min(TIMEOUT_MAX);
        let (request, probe) = self.prepared(d);
        let same = Arc::ptr_eq(&request, &self.call.request);
        let read = self.hold_whole || table.continues_streams(group) && may_be_continued(&request);
        let original = self.call.original.clone().filter(|_| same && !read);
        let params = AttemptParams {
            request: &request,
            original: original.as_ref(),
            traceparent: self.call.traceparent.as_deref(),
            resumed: self.broken.is_some(),
            name,
            group,
            deadline: self.deadline.min(permit.began() + most),
            is_impatient: self.is_impatient && self.deadline <= permit.began() + most,
            idle: policy.idle,
            whole: !streams,
            meter: self.meter.as_mut(),
        };
        let result = match (probe, &mut self.probe) {
            (Some(probe), Some(meter)) => attempt_beside(&d.target, params, (probe, meter)).await,
            _ => attempt(&d.target, params).await,
        };
        let now = Instant::now();
        let bytes = self.call.original.as_ref().map_or(0, |o| o.body.len() as u64).max(self.size.bytes);
        let bounds = UsageBounds::of(&self.call.request, bytes, d.terms.window_tokens);
        // A remote provider bills both.
        if let Some(meter) = self.probe.as_ref().filter(|m| !d.target.is_local() && m.tokens() > 0) {
            let pieces = meter.tokens().into();
            self.trace.spent(Spent { deployment: d.id().into(), usage: None, pieces });
        }
        match result {
            Ok(begun) => {
                if let Some(first) = begun.first.filter(|_| streams) {
                    permit.first_event(first);
                }
                let (deployment, group, name) = (Arc::clone(d), Arc::clone(group), name.to_string());
                Ok(OpenAnswer { begun, deployment, group, name, permit: Some(permit), bounds })
            }
            Err(FailedAttempt { error, took }) => {
                if let Some(PartialUsage { usage, pieces }) = took {
                    let usage = usage.filter(|usage| bounds.allow(usage));
                    self.trace.spent(Spent { deployment: d.id().into(), usage, pieces });
                }
                match &error {
                    AttemptError::Unsure => permit.answered(None, false, now),
                    AttemptError::Failed(failure) => {
                        blame(&self.trace, table, group, (d, name), permit, failure)
                    }
                }
                Err(error)
            }
        }
    }

    /// The request as it is sent: with log-probabilities if they are measured. With a greedy copy of it if that is measured instead.
    fn prepared(&mut self, d: &Deployment<T>) -> (Arc<GenerateRequest>, Option<Arc<GenerateRequest>>) {
        (self.meter, self.probe) = (None, None);
        let Some(rules) = &self.watch else { return (Arc::clone(&self.request), None) };
        let mut meter = Meter::new(rules).checking(&self.request);
        let mut request = GenerateRequest::clone(&self.request);
        // Or nothing could be measured before all is there.
        request.stream = true;
        request.include_usage = true;
        let mut probe = None;
        if !rules.measures_tokens() {
            meter.skip("the threshold measures no tokens");
        } else if !d.target.has_logprobs() {
            meter.skip("the model returns no log-probabilities");
        } else if rules.probe.unwrap_or(d.target.is_local()) && !is_greedy(&request) {
            meter.skip("its greedy copy is measured");
            self.probe = Some(Meter::new(rules));
            probe = Some(Arc::new(greedy(&request, rules)));
        } else {
            request.logprobs = Some(request.logprobs.unwrap_or(0).max(top(rules)));
        }
        let as_it_is = request.logprobs == self.request.logprobs && meter.is_idle() && probe.is_none();
        self.meter = Some(meter);
        if as_it_is { (Arc::clone(&self.request), None) } else { (Arc::new(request), probe) }
    }
}
