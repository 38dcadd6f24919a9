//! The state of a deployment at run time: load, speed, failures, cooldown. Keyed by the deployment's id, so it survives a reload. Read by
//! `choose`, changed by the permits of `dispatch` and by `health`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::failure::{ALL_KINDS, Failure, FailureKind};
use crate::limit::{Exhausted, ExpectedTokens, LimitKind, SharedPermit};
use crate::policy::Cooldown;
use crate::prefix::SentBlocks;
use crate::window::{Average, TOKENS_MAX, Window};

/// Limits of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Requests per minute.
    pub rpm: Option<u64>,
    /// Tokens per minute, of prompts and answers.
    pub tpm: Option<u64>,
    /// Concurrent requests.
    pub max_parallel: Option<u32>,
}

/// The other deployments of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Others {
    /// One of them is ready.
    pub are_ready: bool,
    /// There are any.
    pub exist: bool,
}

/// Why a deployment is in cooldown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The kind of its last failure.
    Failed(FailureKind),
    /// A failed health check.
    Unhealthy,
    /// Another process has found out.
    Elsewhere,
}

/// Whether a deployment can get requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Availability {
    /// It can.
    Ready,
    /// Its cooldown is over: it can get one request as a trial.
    Trial,
    /// Its cooldown is over, and its trial is running.
    OnTrial,
    /// It is in cooldown for this long.
    Cooling(Duration),
}

/// The state of a deployment at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeploymentStatus {
    /// Whether it can get requests.
    pub available: Availability,
    /// Running requests.
    pub in_flight: u32,
    /// Requests of the last minute.
    pub requests: u32,
    /// Their tokens.
    pub tokens: u64,
    /// Further tokens that running requests may take.
    pub reserved: u64,
    /// Average time to the first event of a stream, in seconds.
    pub first_s: Option<f64>,
    /// Average time per token of a complete answer, in seconds.
    pub per_token_s: Option<f64>,
    /// The limit that all processes together have reached.
    pub elsewhere: Option<LimitKind>,
    /// It has answered, or passed a health check.
    pub has_answered: bool,
}

#[derive(Debug, Clone, Copy)]
struct Cooling {
    until: Instant,
    reason: Reason,
    on_trial: bool,
}

#[derive(Debug)]
struct Inner {
    in_flight: u32,
    /// Tokens of answers that running requests may take.
    reserved: u64,
    window: Window,
    first: Average,
    per_token: Average,
    cooling: Option<Cooling>,
    has_answered: bool,
    /// All processes together have reached this limit; not asked again before this time.
    elsewhere: Option<(Instant, LimitKind)>,
}

/// The state of one deployment.
#[derive(Debug)]
pub struct State {
    inner: Mutex<Inner>,
    /// For a deployment with many models (`openai/*`): the states of the models that failed. Models without an entry have not failed.
    models: Mutex<HashMap<String, Arc<State>>>,
    has_models: AtomicBool,
    /// The blocks of prompts that were sent here, for `prefix-affinity`.
    sent: Mutex<SentBlocks>,
    /// Notified when a request has ended: others may wait for its place.
    freed: Notify,
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// A new state.
    pub fn new() -> Self {
        Self {
            inner: Mutex::new(Inner {
                in_flight: 0,
                reserved: 0,
                window: Window::new(Instant::now()),
                first: Average::default(),
                per_token: Average::default(),
                cooling: None,
                has_answered: false,
                elsewhere: None,
            }),
            models: Mutex::default(),
            has_models: AtomicBool::new(false),
            sent: Mutex::default(),
            freed: Notify::new(),
        }
    }

    /// The state of one of its models, if that has failed. Limits, load and health checks belong to the deployment.
    pub fn model(&self, name: Option<&str>) -> Option<Arc<State>> {
        let name = name.filter(|_| self.has_models.load(Ordering::Relaxed))?;
        self.models.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// The state of a model that has just failed. Clients choose the names, so the number of entries is limited: the deployment itself
    /// stands for further models.
    fn failed_model(self: &Arc<Self>, name: &str, now: Instant) -> Arc<State> {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if models.len() >= MODELS_MAX && !models.contains_key(name) {
            models.retain(|_, state| state.next_change(now).is_some_and(|at| at > now));
            if models.len() >= MODELS_MAX {
                return Arc::clone(self);
            }
        }
        self.has_models.store(true, Ordering::Relaxed);
        let new = || Arc::new(State::new());
        Arc::clone(models.entry(name.to_string()).or_insert_with(new))
    }

    // Every change under the lock is complete, so a panic leaves a valid state.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The blocks of prompts that were sent here.
    pub(crate) fn sent(&self) -> MutexGuard<'_, SentBlocks> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notified when a request has ended here.
    pub fn freed(&self) -> &Notify {
        &self.freed
    }

    /// The state for one of its models.
    pub fn live_for(&self, model: Option<&str>, latency_ttl: Duration, now: Instant) -> DeploymentStatus {
        let live = self.live(latency_ttl, now);
        // As in `admit_for`: a trial of the deployment is allowed for a model that is not in cooldown itself.
        let may_ask = |a| matches!(a, Availability::Ready | Availability::Trial);
        let of_model = self.model(model).filter(|_| may_ask(live.available));
        let Some(of_model) = of_model.map(|m| m.lock().available(now)) else { return live };
        let stricter = live.available == Availability::Ready || !may_ask(of_model);
        DeploymentStatus { available: if stricter { of_model } else { live.available }, ..live }
    }

    /// The current state. Speeds measured more than `latency_ttl` ago are left out.
    pub fn live(&self, latency_ttl: Duration, now: Instant) -> DeploymentStatus {
        let mut inner = self.lock();
        let counts = *inner.window.at(now);
        DeploymentStatus {
            available: inner.available(now),
            in_flight: inner.in_flight,
            requests: counts.requests,
            tokens: counts.tokens,
            reserved: inner.reserved,
            first_s: inner.first.get(latency_ttl, now),
            per_token_s: inner.per_token.get(latency_ttl, now),
            has_answered: inner.has_answered,
            elsewhere: inner.elsewhere.filter(|(until, _)| *until > now).map(|(_, limit)| limit),
        }
    }

    /// [`State::admit`] for one of its models.
    pub fn admit_for(
        self: &Arc<Self>,
        model: Option<&str>,
        limits: &Limits,
        tokens: ExpectedTokens,
        now: Instant,
    ) -> Option<Permit> {
        let Some(state) = self.model(model) else { return self.admit(limits, tokens, now) };
        let of_model = state.admit(&Limits::default(), tokens, now)?;
        let mut permit = self.admit(limits, tokens, now)?;
        permit.of_model = Some(Box::new(of_model));
        Some(permit)
    }

    /// A permit for one request; `None` if the capacity was used since the choice.
    pub fn admit(self: &Arc<Self>, limits: &Limits, tokens: ExpectedTokens, now: Instant) -> Option<Permit> {
        let ExpectedTokens { prompt, answer } = tokens;
        let mut inner = self.lock();
        let counts = *inner.window.at(now);
        let full = limits.max_parallel.is_some_and(|most| inner.in_flight >= most)
            || limits.rpm.is_some_and(|most| u64::from(counts.requests) >= most)
            || limits
                .tpm
                .is_some_and(|most| over_tokens(counts.tokens.saturating_add(inner.reserved), prompt, most));
        if full {
            return None;
        }
        let trial = match inner.available(now) {
            Availability::Ready => false,
            Availability::Trial => true,
            Availability::OnTrial | Availability::Cooling(_) => return None,
        };
        if trial && let Some(cooling) = &mut inner.cooling {
            cooling.on_trial = true;
        }
        inner.in_flight += 1;
        let reserved = answer.min(TOKENS_MAX);
        inner.reserved += reserved;
        let second = inner.window.sent(now, prompt);
        let state = Arc::clone(self);
        Some(Permit {
            state,
            of_model: None,
            shared: None,
            trial,
            second,
            guess: prompt,
            reserved,
            began: now,
        })
    }

    /// Releases the cooldown of one of its models.
    pub fn next_change_for(&self, model: Option<&str>, now: Instant) -> Option<Instant> {
        let own = self.model(model).and_then(|m| m.next_change(now));
        own.into_iter().chain(self.next_change(now)).min()
    }

    /// The next time at which the state changes without a request: a cooldown ends, a request leaves the minute's window.
    pub fn next_change(&self, now: Instant) -> Option<Instant> {
        let inner = self.lock();
        if let Some((until, _)) = inner.elsewhere.filter(|(until, _)| *until > now) {
            return Some(until);
        }
        match inner.cooling {
            Some(c) if c.until > now => Some(c.until),
            _ => inner.window.next_expiry(),
        }
    }

    /// Until when all processes together are known to have reached a limit.
    pub(crate) fn exhausted_until(&self, now: Instant) -> Option<Instant> {
        self.lock().elsewhere.map(|(until, _)| until).filter(|until| *until > now)
    }

    /// Another process has found that it, or one of its models, is in cooldown.
    pub fn cooled_elsewhere(self: &Arc<Self>, model: Option<&str>, time: Duration, now: Instant) {
        let state = model.map_or_else(|| Arc::clone(self), |name| self.failed_model(name, now));
        let until = now + time.min(ELSEWHERE_MAX);
        let mut inner = state.lock();
        if inner.cooling.is_none_or(|c| c.until < until) {
            inner.cooling = Some(Cooling { until, reason: Reason::Elsewhere, on_trial: false });
        }
    }

    /// Whether it can get requests for one of its models.
    pub fn is_ready_for(&self, model: Option<&str>, now: Instant) -> bool {
        self.is_ready(now) && self.model(model).is_none_or(|m| m.is_ready(now))
    }

    /// Whether it can get requests.
    pub fn is_ready(&self, now: Instant) -> bool {
        self.lock().available(now) == Availability::Ready
    }

    /// It passed or failed a health check. `spare`: another deployment of its group can take its requests. After a failure it is in
    /// cooldown until `until`; the next check must have passed by then.
    pub fn checked(&self, healthy: bool, spare: bool, until: Instant, now: Instant) {
        let mut inner = self.lock();
        inner.has_answered |= healthy;
        let by_check = matches!(inner.cooling, Some(c) if c.reason == Reason::Unhealthy);
        if healthy && by_check {
            inner.cooling = None;
            drop(inner);
            self.freed.notify_waiters();
        } else if !healthy && (spare || by_check) && (by_check || inner.available(now) == Availability::Ready)
        {
            inner.cooling = Some(Cooling { until, reason: Reason::Unhealthy, on_trial: false });
        }
    }

    /// Why it is in cooldown, if it is.
    pub fn cooling(&self, now: Instant) -> Option<Reason> {
        self.lock().cooling.filter(|c| c.until > now).map(|c| c.reason)
    }
}

/// Whether a prompt of about `tokens` exceeds the limit, given what was used, and what running requests may still use. A request larger than the limit is allowed if nothing else ran in
/// the minute: otherwise it would wait forever.
pub fn over_tokens(used: u64, tokens: u64, most: u64) -> bool {
    used > 0 && used.saturating_add(tokens) > most
}

impl Inner {
    fn available(&self, now: Instant) -> Availability {
        match self.cooling {
            None => Availability::Ready,
            Some(c) if c.until > now => Availability::Cooling(c.until - now),
            Some(c) if c.on_trial => Availability::OnTrial,
            Some(_) => Availability::Trial,
        }
    }

    /// The cooldown after a failure of `kind`; `None` for none.
    fn cools(
        &self,
        failure: &Failure,
        rules: &Cooldown,
        own: Option<Duration>,
        others: Others,
    ) -> Option<Duration> {
        use FailureKind as K;
        let kind = failure.kind;
        if rules.disabled {
            return None;
        }
        let time = failure.retry_after.map_or(own.unwrap_or(rules.time), |t| t.min(COOLING_MAX));
        // Without another deployment, a cooldown refuses requests that the provider may answer by then; only it knows how long that takes.
        if kind == K::RateLimited && !others.exist && failure.retry_after.is_none() {
            return None;
        }
        // The provider itself asked for the pause: other requests would fail, too.
        if matches!(kind, K::RateLimited | K::Authentication) && rules.allowed(kind).is_none() {
            return Some(time);
        }
        let counts = self.window.latest();
        let of_kind = counts.failed[kind as usize];
        let all: u32 =
            ALL_KINDS.iter().filter(|k| rules.counts(**k)).map(|k| counts.failed[*k as usize]).sum();
        let too_many = match rules.allowed(kind) {
            Some(allowed) => of_kind > allowed,
            None if !rules.counts(kind) => false,
            None if kind == K::NotFound => true,
            None => {
                let ended = all + counts.answered;
                rules.allowed_fails.is_some_and(|allowed| all > allowed)
                    || (ended >= rules.requests_min && f64::from(all) > rules.share_max * f64::from(ended))
            }
        };
        let spare = others.are_ready || matches!(kind, K::RateLimited | K::Authentication);
        (too_many && spare).then_some(time)
    }
}

/// How soon other processes are asked again, if it is not known when a place is free.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Maximum number of models of one deployment whose failures are remembered.
const MODELS_MAX: usize = 256;

/// Maximum cooldown that a provider may request.
const COOLING_MAX: Duration = Duration::from_secs(600);

/// Maximum cooldown that another process may announce.
const ELSEWHERE_MAX: Duration = Duration::from_secs(86_400);

/// A request's permit at a deployment; released when dropped.
#[derive(Debug)]
pub struct Permit {
    state: Arc<State>,
    /// The permit of the model's own state.
    of_model: Option<Box<Permit>>,
    /// The same for all processes.
    shared: Option<Box<dyn SharedPermit>>,
    trial: bool,
    second: u64,
    guess: u64,
    /// Tokens of its answer.
    reserved: u64,
    began: Instant,
}

impl Permit {
    /// When the request was sent.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// It was counted for all processes.
    pub(crate) fn share(&mut self, shared: Option<Box<dyn SharedPermit>>) {
        self.shared = shared;
    }

    /// All processes together have reached a limit: nothing was sent.
    pub(crate) fn refused(self, exhausted: Exhausted, now: Instant) {
        let mut inner = self.state.lock();
        inner.window.withdrawn(now, self.second, self.guess);
        // How soon a running request of another process ends is unknown.
        let wait = exhausted.retry_after.max(LOOK_AGAIN);
        inner.elsewhere = Some((now + wait, exhausted.limit));
    }

    /// Records the first event of a stream.
    pub fn first_event(&self, now: Instant) {
        self.state.lock().first.add(now.saturating_duration_since(self.began), now);
    }

    /// Records a complete answer. `tokens`: of prompt and answer, and of the answer alone, if counted. `whole`: it arrived in one piece.
    pub fn answered(mut self, tokens: Option<(u64, u64)>, whole: bool, now: Instant) {
        if let Some(of_model) = self.of_model.take() {
            of_model.answered(None, false, now);
        }
        if let (Some(shared), Some((all, _))) = (&mut self.shared, tokens) {
            shared.answered(all);
        }
        let mut inner = self.state.lock();
        inner.window.answered(now);
        inner.has_answered = true;
        if let Some((all, of_answer)) = tokens {
            inner.window.correct(now, self.second, self.guess, all);
            if whole && of_answer > 0 {
                let per_token = now.saturating_duration_since(self.began).div_f64(of_answer as f64);
                inner.per_token.add(per_token, now);
            }
        }
        if self.trial || inner.cooling.is_some_and(|c| c.until <= now) {
            inner.cooling = None;
            inner.window.forgive();
        }
        drop(inner);
        self.trial = false;
    }

    /// Records a failure of one of the deployment's models, which has its own failure count and cooldown. A connection failure counts for
    /// all models.
    pub fn failed_for(
        mut self,
        model: Option<&str>,
        failure: &Failure,
        rules: &Cooldown,
        own_time: Option<Duration>,
        others: Others,
        now: Instant,
    ) -> Option<Duration> {
        let model = model.filter(|_| failure.kind != FailureKind::Connect);
        let Some(name) = model else { return self.failed(failure, rules, own_time, others, now) };
        let of_model = match self.of_model.take() {
            Some(permit) => *permit,
            None => {
                let state = self.state.failed_model(name, now);
                if Arc::ptr_eq(&state, &self.state) {
                    return self.failed(failure, rules, own_time, others, now);
                }
                state.lock().in_flight += 1;
                let second = state.lock().window.sent(now, 0);
                Permit {
                    state,
                    of_model: None,
                    shared: None,
                    trial: false,
                    second,
                    guess: 0,
                    reserved: 0,
                    began: self.began,
                }
            }
        };
        of_model.failed(failure, rules, own_time, others, now)
    }

    /// Records a failure. Returns the cooldown, if there is one.
    pub fn failed(
        mut self,
        failure: &Failure,
        rules: &Cooldown,
        own_time: Option<Duration>,
        others: Others,
        now: Instant,
    ) -> Option<Duration> {
        let mut inner = self.state.lock();
        inner.window.failed(now, failure.kind);
        if failure.kind == FailureKind::Timeout {
            // Otherwise a deployment that always hangs would keep its good average.
            inner.first.add(now.saturating_duration_since(self.began), now);
        }
        let is_alone =
            failure.kind == FailureKind::RateLimited && !others.exist && failure.retry_after.is_none();
        let time = if self.trial && rules.counts(failure.kind) && !rules.disabled && !is_alone {
            Some(failure.retry_after.map_or(own_time.unwrap_or(rules.time), |t| t.min(COOLING_MAX)))
        } else {
            inner.cools(failure, rules, own_time, others)
        };
        if is_alone && self.trial {
            // It answers, and nobody asked for a pause.
            inner.cooling = None;
        }
        if let Some(time) = time {
            let until = now + time;
            let longer = inner.cooling.filter(|c| c.until > until);
            inner.cooling =
                longer.or(Some(Cooling { until, reason: Reason::Failed(failure.kind), on_trial: false }));
            self.trial = false;
        }
        drop(inner);
        time
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut inner = self.state.lock();
        inner.in_flight -= 1;
        inner.reserved -= self.reserved;
        // A trial without a result: the next request is the trial.
        if self.trial
            && let Some(cooling) = &mut inner.cooling
        {
            cooling.on_trial = false;
        }
        drop(inner);
        self.state.freed.notify_waiters();
    }
}

/// The states of all deployments, by id.
#[derive(Debug, Default)]
pub struct States {
    by_id: Mutex<HashMap<String, Arc<State>>>,
}

impl States {
    /// The state of `id`; new if it does not exist.
    pub fn get(&self, id: &str) -> Arc<State> {
        let mut all = self.by_id.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = all.get(id) {
            return Arc::clone(state);
        }
        let state = Arc::new(State::new());
        all.insert(id.to_string(), Arc::clone(&state));
        state
    }

    /// Removes all other states.
    pub fn keep(&self, is_known: impl Fn(&str) -> bool) {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner).retain(|id, _| is_known(id));
    }
}
