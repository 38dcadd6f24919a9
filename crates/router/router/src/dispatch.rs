//! Routes one request to a deployment that answers it: groups, retries, fallbacks, cascades. Created by `router`, driven by `reply`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use octet_api::core::GenerateRequest;
use octet_config::{Confidence, Side, Strategy};
use tokio::time::{Instant, sleep, timeout_at};

use crate::attempt::{AttemptError, OpenAnswer, too_late};
use crate::choose::{Candidate, Ineligible, Pick, Requirements, choose, unfit};
use crate::confidence::Meter;
use crate::failure::{Failure, FailureKind, is_of_the_request};
use crate::limit::ExpectedTokens;
use crate::prefix::{BLOCK_TOKENS, blocks};
use crate::request::Call;
use crate::retry::{Next, RetryState};
use crate::shadow::{CopyGuard, Shadows};
use crate::size::{Size, answer_tokens, prefix};
use crate::state::{Others, Permit};
use crate::table::{Deployment, Group, Resolved, Table};
use crate::tags;
use crate::target::{Sent, Target};
use crate::trace::{By, Step, Trace};
use crate::turn::{Freed, Queued, Turn, admitted, left_out, unavailable, wait_until};

/// Tokens that a chat template may add to a prompt: prompts shorter than a window by more are not counted.
const TEMPLATE_TOKENS: u64 = 4096;

/// A fallback that was not tried yet: the failed group, the group to try, and why.
type QueuedFallback = (String, String, &'static str);

/// The result of dispatching, and the job to continue with if the answer breaks off.
pub type Outcome<T> = (Box<Job<T>>, Result<Box<OpenAnswer<T>>, Failure>);

/// A request that is being dispatched.
#[derive(Debug)]
pub struct Job<T: Target> {
    pub(crate) table: Arc<Table<T>>,
    pub(crate) call: Call,
    pub(crate) trace: Trace,
    pub(crate) deadline: Instant,
    /// The deadline is the client's own.
    pub(crate) is_impatient: bool,
    rng: fastrand::Rng,
    pub(crate) size: Size,
    session: Option<String>,
    prefix: Option<u64>,
    /// The hashes of the prompt's blocks, if a group needed them.
    blocks: Option<Arc<[u64]>>,
    /// What is sent: the client's request, or the continuation of an answer.
    pub(crate) request: Arc<GenerateRequest>,
    /// Tokens of the prompt by deployment, if they were counted.
    pub(crate) counts: HashMap<String, u64>,
    /// A context of this many tokens was too short.
    pub(crate) window_above: Option<u64>,
    /// The confidence that the next model must have, and the measurement.
    pub(crate) watch: Option<Confidence>,
    pub(crate) meter: Option<Meter>,
    /// The measurement of a greedy copy of the request, if that is measured instead.
    pub(crate) probe: Option<Meter>,
    /// Nothing of the answer is sent to the client before it is complete.
    pub(crate) hold_whole: bool,
    /// A copy of a request, which gets one attempt.
    pub(crate) is_shadow: bool,
    shadowed: bool,
    shadows: Shadows,
    pub(crate) following: Option<CopyGuard>,
    /// Where to start, instead of the requested name.
    start: Option<String>,
    /// What the client has already received, and from which deployment.
    pub(crate) broken: Option<(Sent, Vec<String>)>,
}

impl<T: Target> Job<T> {
    /// A new request.
    pub(crate) fn new(table: Arc<Table<T>>, shadows: Shadows, rng: fastrand::Rng, call: Call) -> Self {
        let most = table.policy.timeout.min(call.timeout.unwrap_or(Duration::MAX)).min(TIMEOUT_MAX);
        let patience = call.patience.filter(|own| *own < most);
        let session = call.session(table.policy.sticky.as_ref());
        Self {
            deadline: Instant::now() + patience.unwrap_or(most),
            is_impatient: patience.is_some(),
            trace: Trace::new(&call.request.model),
            rng,
            size: Size::of(&call.request),
            session,
            prefix: None,
            blocks: None,
            request: Arc::clone(&call.request),
            table,
            call,
            counts: HashMap::new(),
            window_above: None,
            watch: None,
            meter: None,
            probe: None,
            hold_whole: false,
            is_shadow: false,
            shadowed: false,
            shadows,
            following: None,
            start: None,
            broken: None,
        }
    }

    /// A copy of this request for `group`.
    fn shadow(&mut self, group: &str) -> Self {
        let copy =
            Self::new(Arc::clone(&self.table), self.shadows.clone(), self.rng.fork(), self.call.clone());
        Self { is_shadow: true, start: Some(group.into()), ..copy }
    }

    /// Continues an answer that broke off at `deployment` of `group`.
    pub(crate) fn resume(&mut self, request: GenerateRequest, sent: Sent, group: String, deployment: String) {
        self.trace.step(Step::Continued { after_bytes: sent.text.len() });
        self.request = Arc::new(request);
        let mut by = self.broken.take().map_or_else(Vec::new, |(_, by)| by);
        by.push(deployment);
        self.broken = Some((sent, by));
        self.start = Some(group);
        self.watch = None;
        self.counts.clear();
        self.size = Size::of(&self.request);
    }

    /// Pieces that were sent to the client before the answer broke off.
    pub(crate) fn pieces_before(&self) -> u32 {
        self.broken.as_ref().map_or(0, |(sent, _)| sent.pieces)
    }

    /// Finds a deployment that answers. Boxed: a shadow copy is a request within a request.
    pub(crate) fn boxed(self) -> Pin<Box<dyn Future<Output = Outcome<T>> + Send>> {
        let mut job = Box::new(self);
        Box::pin(async move {
            let result = job.find().await;
            (job, result.map(Box::new))
        })
    }

    async fn find(&mut self) -> Result<OpenAnswer<T>, Failure> {
        let table = Arc::clone(&self.table);
        let requested = self.start.clone().unwrap_or_else(|| self.call.request.model.clone());
        let found = match table.resolve(&requested) {
            Resolved::Group { group, by, .. } => {
                self.resolved(group.name.as_str(), by);
                self.groups(&table, &requested).await
            }
            Resolved::Cascade { cascade, by } => {
                self.resolved(&cascade.name, by);
                self.cascade(&table, cascade).await
            }
            Resolved::Unknown => {
                let what = format!("there is no model '{requested}'; models are: {}", table.known());
                let unknown = Failure {
                    param: Some("model".into()),
                    code: Some("model_not_found".into()),
                    ..Failure::new(FailureKind::NotFound, what)
                };
                self.default(&table, &requested, unknown).await
            }
        };
        found.map_err(|error| match error {
            AttemptError::Failed(failure) => failure,
            AttemptError::Unsure => {
                Failure::new(FailureKind::Server, "no model's confidence in its answer was high enough")
            }
        })
    }

    pub(crate) fn resolved(&self, to: &str, by: By) {
        if self.broken.is_none() {
            self.trace.step(Step::Resolved { to: to.into(), by });
        }
    }

    /// The name is unknown: the default fallbacks answer, if there are any.
    async fn default(
        &mut self,
        table: &Arc<Table<T>>,
        requested: &str,
        unknown: Failure,
    ) -> Result<OpenAnswer<T>, AttemptError> {
        let mut to = table.policy.fallbacks.default.iter();
        let Some(first) = to.find(|to| self.call.may_use(to)) else { return Err(unknown.into()) };
        self.fallback(requested, first, "unknown_model");
        self.groups(table, first).await
    }

    pub(crate) fn fallback(&self, from: &str, to: &str, why: &'static str) {
        self.trace.step(Step::Fallback { from: from.into(), to: to.into(), why });
    }

    /// The group of this name, then its fallbacks.
    pub(crate) async fn groups(
        &mut self,
        table: &Arc<Table<T>>,
        first: &str,
    ) -> Result<OpenAnswer<T>, AttemptError> {
        let fallbacks = &table.policy.fallbacks;
        let mut left = if self.is_shadow { 0 } else { fallbacks.max };
        let mut known: HashSet<String> = HashSet::from([first.to_string()]);
        let mut queue: VecDeque<QueuedFallback> = VecDeque::new();
        let mut reported: Option<Failure> = None;
        let mut current = first.to_string();
        loop {
            let (group, name) = match table.resolve(&current) {
                Resolved::Group { group, name, .. } => (group, name),
                // As a fallback a cascade uses only its rules.
                Resolved::Cascade { cascade, .. } => {
                    let (side, _) = self.rule(table, cascade).await;
                    let to = if side == Side::Fast { &cascade.fast } else { &cascade.strong }.clone();
                    if known.insert(cascade.strong.clone()) && side == Side::Fast {
                        queue.push_front((to.clone(), cascade.strong.clone(), "cascade"));
                    }
                    current = to;
                    continue;
                }
                // Checked when the table was built.
                Resolved::Unknown => {
                    let what = format!("'{current}' is not a group");
                    return Err(reported.unwrap_or(Failure::new(FailureKind::NotFound, what)).into());
                }
            };
            let from = group.name.as_str();
            known.insert(from.to_string());
            let requested = self.call.options.fallbacks.as_deref().filter(|_| current == first);
            let others = requested.unwrap_or_else(|| fallbacks.after(from, FailureKind::RateLimited));
            let alone = left == 0
                || queue.is_empty() && others.iter().all(|n| known.contains(n) || !self.call.may_use(n));
            let failure = match self.group(table, group, name, alone && !self.is_shadow).await {
                Err(AttemptError::Failed(failure)) => failure,
                done => return done,
            };
            if failure.kind == FailureKind::ContextWindow {
                self.window_above = self.window_above.max(group.window_tokens());
            }
            self.queue_fallbacks(table, from, failure.kind, current == first, &mut known, &mut queue);
            let failure = reported.get_or_insert(failure).clone();
            match queue.pop_front() {
                Some((from, to, why)) if left > 0 && !self.is_spent() && Instant::now() < self.deadline => {
                    left -= 1;
                    self.fallback(&from, &to, why);
                    current = to;
                }
                _ => return Err(failure.into()),
            }
        }
    }

    /// Appends the fallbacks for a failure of the group `from`: those of the request if the group `is_first`, else the configured ones.
    fn queue_fallbacks(
        &self,
        table: &Table<T>,
        from: &str,
        kind: FailureKind,
        is_first: bool,
        known: &mut HashSet<String>,
        queue: &mut VecDeque<QueuedFallback>,
    ) {
        let requested = self.call.options.fallbacks.as_deref().filter(|_| is_first);
        for to in requested.unwrap_or_else(|| table.policy.fallbacks.after(from, kind)) {
            if !matches!(table.resolve(to), Resolved::Unknown)
                && known.insert(to.clone())
                && self.call.may_use(to)
            {
                queue.push_back((from.to_string(), to.clone(), kind.name()));
            }
        }
    }

    /// Tries the deployments of a group until one answers, or a further attempt cannot succeed. `alone`: no other group could answer, so
    /// the request waits for a permit.
    pub(crate) async fn group(
        &mut self,
        table: &Arc<Table<T>>,
        group: &Arc<Group<T>>,
        name: &str,
        alone: bool,
    ) -> Result<OpenAnswer<T>, AttemptError> {
        if group.deployments.is_empty() {
            return Err(self.record_failure(group.name.as_str(), left_out(group)).into());
        }
        self.count_tokens(table, group).await;
        let mut retries = RetryState::new(group.deployments.len());
        let mut queued = Queued::default();
        let mut traced = false;
        loop {
            if Instant::now() >= self.deadline {
                return Err(retries.last.take().unwrap_or_else(|| too_late(self.is_impatient)).into());
            }
            // First come, first served.
            if alone && queued.turn.is_none() && group.waiting.load(Ordering::Relaxed) > 0 {
                queued.turn = self.line_up(group).await;
                continue;
            }
            let choice = self.pick(table, group, name, &retries, !std::mem::replace(&mut traced, true));
            let next =
                retries.next(choice, (group, name), &table.policy, alone, self.deadline, &mut self.rng);
            match next {
                Next::Try(pick) => {
                    let d = &group.deployments[pick.index];
                    // Other requests may have been faster.
                    let Some(permit) = self.admit(group, name, d) else {
                        tokio::task::yield_now().await;
                        continue;
                    };
                    let tokens = self.expected_tokens(d);
                    let Some(permit) = admitted(table, d, permit, tokens).await else { continue };
                    queued.admitted();
                    retries.trying(d.terms.order);
                    self.chose(group, d, pick.why);
                    match self.attempt(table, group, d, name, permit).await {
                        Err(AttemptError::Failed(failure)) => {
                            let allowed = self.retries(table, group, d, failure.kind);
                            if (is_of_the_request(failure.kind) && allowed == 0) || self.is_spent() {
                                return Err(failure.into());
                            }
                            retries.failed(pick.index, failure, allowed);
                        }
                        done => return done,
                    }
                }
                Next::ChooseAgain => {}
                Next::Pause(time) => {
                    self.waited(time, "retry");
                    sleep(time).await;
                }
                Next::GiveUp => {
                    return Err(retries.last.take().unwrap_or_else(|| too_late(self.is_impatient)).into());
                }
                Next::NoneEligible(reasons) => {
                    self.wait_for_permit(table, (group, name), &reasons, alone, &mut queued).await?;
                }
            }
        }
    }

    /// The tokens that the request may take at this deployment.
    fn expected_tokens(&self, d: &Deployment<T>) -> ExpectedTokens {
        let prompt = self.counts.get(d.id()).copied().unwrap_or(self.size.tokens());
        let is_limited = d.terms.limits.tpm.is_some();
        let answer = if is_limited { answer_tokens(&self.request, d.terms.output_tokens) } else { 0 };
        ExpectedTokens { prompt, answer }
    }

    /// A permit of a deployment, if it is within its limits.
    fn admit(&self, group: &Group<T>, name: &str, d: &Deployment<T>) -> Option<Permit> {
        d.state.admit_for(group.model(name), &d.terms.limits, self.expected_tokens(d), Instant::now())
    }

    /// How often a failed deployment may be retried.
    fn retries(&self, table: &Table<T>, group: &Group<T>, d: &Deployment<T>, kind: FailureKind) -> u32 {
        if self.is_shadow {
            return 0;
        }
        let by_policy = table.policy.retries.after(kind, group.name.as_str(), d.retries);
        self.call.options.retries.unwrap_or(by_policy)
    }

    /// Waits until a permit of the group is released. Fails if waiting is not worthwhile.
    async fn wait_for_permit<'g>(
        &self,
        table: &Table<T>,
        (group, name): (&'g Group<T>, &str),
        reasons: &[Ineligible],
        alone: bool,
        queued: &mut Queued<'g>,
    ) -> Result<(), AttemptError> {
        // Listens first, then checks again: a permit may have been released in between.
        let Some(listening) = queued.freed.take() else {
            if alone && queued.turn.is_none() {
                queued.turn = self.line_up(group).await;
            }
            queued.freed = Some(Freed::of(group));
            return Ok(());
        };
        let now = Instant::now();
        let most = *queued.until.get_or_insert(self.deadline.min(now + table.policy.wait_max));
        match wait_until(group, name, reasons, most, self.deadline, now) {
            Some(until) if alone => {
                let _ = timeout_at(until, listening.any()).await;
                self.waited(Instant::now() - now, "place");
                Ok(())
            }
            _ => Err(self.record_failure(group.name.as_str(), unavailable(group, name, reasons, now)).into()),
        }
    }

    /// Whether the request cannot be sent to another deployment.
    fn is_spent(&self) -> bool {
        self.call.original.as_ref().is_some_and(|original| original.is_spent())
    }

    /// Waits until all earlier requests have a permit or have given up. `None` if that takes longer than the request's time limit.
    async fn line_up<'g>(&self, group: &'g Group<T>) -> Option<Turn<'g>> {
        let mut turn = Turn::new(&group.waiting);
        let began = Instant::now();
        let held = timeout_at(self.deadline, group.line.lock()).await.ok()?;
        let waited = Instant::now() - began;
        if !waited.is_zero() {
            self.waited(waited, "turn");
        }
        turn.held = Some(held);
        Some(turn)
    }

    fn waited(&self, time: Duration, why: &'static str) {
        self.trace.step(Step::Waited { ms: ms(time), why });
    }

    /// Records the failure of a group of which no deployment was tried.
    pub(crate) fn record_failure(&self, group: &str, failure: Failure) -> Failure {
        self.trace.step(Step::Failed {
            deployment: group.into(),
            kind: failure.kind.name(),
            status: None,
            message: failure.message.clone(),
            after_ms: 0,
        });
        failure
    }

    /// Counts the prompt for deployments whose window it may exceed.
    pub(crate) async fn count_tokens(&mut self, table: &Table<T>, group: &Group<T>) {
        for d in &group.deployments {
            let Some(window) = d.terms.window_tokens else { continue };
            let near = self.size.tokens_max() + TEMPLATE_TOKENS > window;
            if near
                && (table.policy.check_context || d.target.window_tokens().is_some())
                && !self.counts.contains_key(d.id())
                && let Some(tokens) = d.target.count_tokens(&self.request).await
            {
                self.counts.insert(d.id().to_string(), tokens);
            }
        }
    }

    /// Chooses a deployment. `trace_unfit`: records those that cannot be used in the trace.
    pub(crate) fn pick(
        &mut self,
        table: &Table<T>,
        group: &Group<T>,
        name: &str,
        retries: &RetryState,
        trace_unfit: bool,
    ) -> Result<Pick, Vec<Ineligible>> {
        let now = Instant::now();
        if group.strategy == Strategy::PrefixAffinity && self.prefix.is_none() {
            self.prefix = prefix(&self.call.request);
        }
        let affine = group.deployments.len() > 1 && group.strategy == Strategy::PrefixAffinity;
        let sent =
            affine.then(|| Arc::clone(self.blocks.get_or_insert_with(|| blocks(&self.call.request).into())));
        let mut all = Vec::with_capacity(group.deployments.len());
        for (i, d) in group.deployments.iter().enumerate() {
            all.push(Candidate {
                terms: &d.terms,
                live: d.state.live_for(group.model(name), table.policy.latency_ttl, now),
                load: d.target.load(),
                cached_tokens: sent.as_ref().map(|blocks| {
                    let known = || d.state.sent().matched(blocks) as u64 * BLOCK_TOKENS;
                    d.target.cached_tokens(&self.request).unwrap_or_else(known)
                }),
                prompt_tokens: self.counts.get(d.id()).copied(),
                out: self.out((table, group), retries, i, d),
            });
        }
        let demand = Requirements {
            strategy: group.strategy,
            tokens: self.size.tokens(),
            tokens_min: if table.policy.check_context { self.size.tokens_min() } else { 0 },
            stream: self.request.stream,
            latency_buffer: table.policy.latency_buffer,
            session: self.session.as_deref(),
            prefix: self.prefix,
            check_context: true,
            window_above: self.window_above,
        };
        if trace_unfit {
            for (c, why) in all.iter().filter_map(|c| unfit(c, &demand).map(|why| (c, why))) {
                self.trace.step(Step::PassedOver { deployment: c.terms.id.clone(), why });
            }
        }
        choose(&all, &demand, &mut self.rng)
    }

    fn out(
        &self,
        (table, group): (&Table<T>, &Group<T>),
        retries: &RetryState,
        index: usize,
        d: &Deployment<T>,
    ) -> Option<Ineligible> {
        if retries.is_out(index, d.terms.order) {
            return Some(Ineligible::Tried);
        }
        if let Some((sent, by)) = &self.broken {
            if by.iter().any(|id| id == d.id()) {
                return Some(Ineligible::Tried);
            }
            if !d.target.continues(sent) {
                return Some(Ineligible::CannotContinue);
            }
        }
        if !table.policy.tags.is_none_or(|filter| tags::admits(filter, group, d, &self.call.tags)) {
            return Some(Ineligible::Tags);
        }
        // A copy is never sent where it could delay other requests.
        (self.is_shadow && d.target.load().is_some_and(|n| n > 0)).then_some(Ineligible::NotIdle)
    }

    fn chose(&mut self, group: &Group<T>, d: &Deployment<T>, why: &str) {
        self.trace.step(Step::Chose {
            group: group.name.as_str().into(),
            deployment: d.id().into(),
            why: why.into(),
        });
        if let Some(blocks) = self.blocks.as_ref().filter(|_| group.strategy == Strategy::PrefixAffinity) {
            d.state.sent().record(blocks);
        }
        let Some(shadow) = d.shadow.as_ref().filter(|_| !self.is_shadow && !self.shadowed) else { return };
        self.shadowed = true;
        // A streamed upload can be sent only once.
        if self.call.original.as_ref().is_some_and(|o| o.upload.is_some()) {
            return;
        }
        if self.rng.f64() < shadow.share {
            let copy = self.shadow(&shadow.group).boxed();
            // It is complete: a copy is requested without streaming.
            let answered = async { copy.await.1.map(|opened| opened.settle(true)) };
            self.following = self.shadows.send(answered);
            let sent = self.following.is_some();
            self.trace.step(Step::Shadow { group: shadow.group.clone(), sent });
        }
    }
}

/// Upper bound of all times: a year.
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Records a deployment's failure, and starts its cooldown if it is due.
pub fn blame<T>(
    trace: &Trace,
    table: &Table<T>,
    group: &Group<T>,
    (d, name): (&Deployment<T>, &str),
    permit: Permit,
    failure: &Failure,
) {
    let model = group.model(name);
    let now = Instant::now();
    trace.step(Step::Failed {
        deployment: d.terms.id.clone(),
        kind: failure.kind.name(),
        status: failure.status,
        message: failure.message.clone(),
        after_ms: ms(now - permit.began()),
    });
    let deciding = group.cooling.lock().unwrap_or_else(PoisonError::into_inner);
    let spare =
        group.deployments.iter().any(|o| o.terms.id != d.terms.id && o.state.is_ready_for(model, now));
    let others = Others { are_ready: spare, exist: group.deployments.len() > 1 };
    let time = permit.failed_for(model, failure, &table.policy.cooldown, d.cooldown, others, now);
    drop(deciding);
    if let Some(time) = time {
        if let Some(shared) = &table.shared {
            let model = model.filter(|_| failure.kind != FailureKind::Connect);
            shared.cooled(&d.terms.id, model, time);
        }
        tracing::warn!(
            deployment = d.terms.id,
            group = group.name.as_str(),
            seconds = time.as_secs_f64(),
            "in cooldown after: {}",
            failure.message
        );
        trace.step(Step::Cooled { deployment: d.terms.id.clone(), for_ms: ms(time) });
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
