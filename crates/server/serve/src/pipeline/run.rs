//! Runs one request: waits for its model, plans, submits, and yields its answer's events. Driven by `http`.
//!
//! The run is dropped when the client disconnects; the engine then finds its event channel closed and cancels the request.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use octet_api::core::{Applied, Event, FinishReason, GenerateRequest, Input, MemoryHandle, Timings, Usage};
use octet_api::{ApiError, Warning};
use octet_engine::engine::{self, EventSink, Request, SubmitError};
use octet_engine::scheduler::QueueSlot;
use octet_router::Piece;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use uuid::Uuid;

use super::acquire::acquire;
use super::answer::{Choice, prompt_logprobs};
use super::deadline::Deadline;
use super::errors::{answer_error, internal, submit_error};
use super::images;
use super::plan::{Defaults, Plan, Reader, plan, render};
use crate::answer_source::{AnswerSource, Facts};
use crate::blocking::spawn_blocking;
use crate::inference::Inference;
use crate::models::{Lease, Loaded};
use crate::ops::{Metrics, Model, RequestCost, Trace};
use crate::warnings::messages;

/// An event of the engine, with the index of its prompt.
pub(super) struct PromptEvent {
    pub prompt: usize,
    /// When the engine sent it: the task that reads it may be late.
    pub at: Instant,
    pub event: engine::Event,
}

/// Sends the engine's events to the task that reads them; their number is bounded by the answer's length.
pub(super) struct Sink {
    pub prompt: usize,
    pub to: UnboundedSender<PromptEvent>,
}

impl EventSink for Sink {
    fn send(&mut self, event: engine::Event) -> ControlFlow<()> {
        match self.to.send(PromptEvent { prompt: self.prompt, at: Instant::now(), event }) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn is_closed(&self) -> bool {
        self.to.is_closed()
    }
}

/// A running request.
pub struct Run {
    inference: Arc<Inference>,
    /// Released as soon as the engine is done: the client may read slowly.
    lease: Option<Lease>,
    waited: Duration,
    trace: Trace,
    label: Model,
    /// The model's name as the client wrote it.
    name: String,
    /// The request. Its messages, prompts and memory are kept only if the answer is stored, or reports the conversation.
    pub request: Arc<GenerateRequest>,
    to: UnboundedSender<PromptEvent>,
    events: UnboundedReceiver<PromptEvent>,
    /// The first prompt's queue slot, until it is submitted.
    place: Option<QueueSlot>,
    /// Prompts not submitted yet, and how many are with the engine now.
    later: VecDeque<(usize, Request)>,
    with_engine: usize,
    /// The answers, ordered by prompt.
    choices: Vec<Choice>,
    n: usize,
    echo: Vec<(String, Vec<u32>)>,
    /// The repeated prompts get log-probabilities.
    scored: bool,
    /// Events that are ready for the client.
    ready: VecDeque<Event>,
    /// Why the prompt was not in the cache.
    pub miss: Option<String>,
    /// Fields of the request that have no effect.
    pub warnings: Vec<String>,
    /// The request field that asks for the constraint.
    form: Option<String>,
    /// The prompts and settings as applied, until they are reported.
    applied: Option<Box<Applied>>,
    /// Tokens of each prompt that are done, and all of them.
    progress: Vec<(usize, usize)>,
    /// When the engine took the first prompt up.
    admitted_at: Option<Instant>,
    deadline: Deadline,
    usage: Usage,
    took: RequestCost,
    /// Draft tokens that were computed, and those that were right.
    draft: Option<(u64, u64)>,
    last_token: Option<Instant>,
    /// When the first token came, and how many there are.
    first_token_at: Option<Instant>,
    generated: u64,
    /// The answer has begun, and come to its end.
    started: bool,
    over: bool,
}

/// Most prompts of one request that are with the engine at a time, as times of what runs at once.
const PROMPTS_AHEAD: usize = 2;
/// How long to wait where the queue is full of others' requests.
pub const QUEUE_PAUSE: Duration = Duration::from_millis(50);

/// A request with its plan.
struct Planned {
    request: Arc<GenerateRequest>,
    plan: Plan,
    /// Parts of the request that were left out of the prompt.
    left_out: Vec<Warning>,
}

/// Reserves a slot in the queue of a model.
fn reserve(inference: &Inference, lease: &Lease, label: &Model) -> Result<QueueSlot, ApiError> {
    lease.model().handle.reserve().map_err(|e| {
        if matches!(e, SubmitError::QueueFull { .. }) {
            inference.metrics.refused(label);
        }
        submit_error(&e)
    })
}

/// Renders, tokenizes and plans a request on blocking threads. Its body had `body_bytes`.
async fn planned(
    inference: &Inference,
    (model, name): (Arc<Loaded>, String),
    (request, body_bytes): (Arc<GenerateRequest>, usize),
    defaults: Defaults,
) -> Result<Planned, ApiError> {
    let of = Arc::clone(&model);
    let rendered = inference.blocking_pool.run(body_bytes, move |gone| {
        let mut request = request;
        let rendered = render(&of, &request, gone)?;
        // The router keeps the request for other deployments.
        if let Some(ours) = Arc::get_mut(&mut request).filter(|r| !r.store && !r.report.conversation) {
            forget_input(ours);
            ours.memory = MemoryHandle::default();
        }
        Ok((request, rendered))
    });
    let (request, mut rendered) = rendered.await?;
    let left_out: Vec<Warning> = rendered.iter_mut().flat_map(|r| std::mem::take(&mut r.warnings)).collect();
    inference.warnings.note(&left_out)?;
    // Not on the pool: others need not wait while a grammar is compiled, and compilations have their own limit.
    let asked = Arc::clone(&request);
    let plan = spawn_blocking(move || plan(&model, &name, &asked, rendered, defaults));
    let plan = plan.await.map_err(|e| internal(&e.to_string()))??;
    Ok(Planned { request, plan, left_out })
}

impl Run {
    /// Waits for the model of that index, plans the request, whose body had `body_bytes`, and queues it.
    pub async fn start(
        inference: &Arc<Inference>,
        trace: &Trace,
        index: usize,
        (request, body_bytes): (Arc<GenerateRequest>, usize),
        explain_miss: bool,
    ) -> Result<Self, ApiError> {
        let deadline = Deadline::new(inference.timeout, request.timeout);
        inference.warnings.note(&request.warnings)?;
        let lease = acquire(inference, index, request.keep_alive, deadline).await?;
        let request = images::fetched(inference, &lease, request).await?;
        let name = lease.card().info.id.clone();
        let label = Metrics::model(&name);
        trace.note(|f| f.model.clone_from(&name));
        let explain_miss = explain_miss || tracing::enabled!(tracing::Level::DEBUG);
        let defaults = Defaults { reasoning: inference.reasoning, explain_miss };
        let place = reserve(inference, &lease, &label)?;
        let planning = planned(inference, (Arc::clone(lease.model()), name), (request, body_bytes), defaults);
        let planned = deadline.within(planning).await??;
        let mut run = Self::new(inference, trace, label, lease, planned);
        run.deadline = deadline;
        run.place = Some(place);
        run.trace.note(|f| f.prompt = run.usage.prompt_tokens);
        run.submit()?;
        if run.request.stream && deadline.is_clients() {
            run.begin().await?;
        }
        Ok(run)
    }

    /// A planned request of which nothing has been queued.
    fn new(inference: &Arc<Inference>, trace: &Trace, label: Model, lease: Lease, planned: Planned) -> Self {
        let Planned { request, plan, left_out } = planned;
        let Plan { requests, echo, prompt_tokens, reader, unenforced, form, applied } = plan;
        let n = request.n as usize;
        let choice = |i: usize| {
            let index = u32::try_from(i).unwrap_or(u32::MAX);
            Choice::new(index, reader.as_ref(), request.logprobs.is_some(), request.report.tokens)
        };
        let choices = (0..requests.len() * n).map(choice).collect();
        let (to, events) = unbounded_channel();
        let requests_progress = requests.iter().map(|r| (0, r.prompt.len())).collect();
        Self {
            inference: Arc::clone(inference),
            trace: trace.clone(),
            label,
            name: if request.model.is_empty() { lease.card().info.id.clone() } else { request.model.clone() },
            to,
            events,
            place: None,
            later: requests.into_iter().enumerate().collect(),
            with_engine: 0,
            choices,
            n,
            scored: !echo.is_empty() && request.logprobs.is_some(),
            echo,
            ready: VecDeque::new(),
            miss: None,
            warnings: messages(&request.warnings)
                .chain(messages(&left_out))
                .map(str::to_string)
                .chain(unenforced)
                .collect(),
            form,
            applied,
            progress: requests_progress,
            deadline: Deadline::default(),
            usage: Usage {
                prompt_tokens: prompt_tokens as u64,
                cached_tokens: Some(0),
                reasoning_tokens: reader.as_ref().filter(|r| reasons(r)).map(|_| 0),
                ..Usage::default()
            },
            took: RequestCost::default(),
            draft: None,
            last_token: None,
            admitted_at: None,
            first_token_at: None,
            generated: 0,
            over: false,
            started: false,
            waited: lease.waited,
            lease: Some(lease),
            request,
        }
    }

    /// Queues prompts as far as there is room.
    fn submit(&mut self) -> Result<(), ApiError> {
        let Some(lease) = &self.lease else { return Ok(()) };
        let handle = &lease.model().handle;
        let ahead = PROMPTS_AHEAD * handle.rules().max_seqs;
        while self.with_engine < ahead && !self.later.is_empty() {
            let place = match self.place.take().map_or_else(|| handle.reserve(), Ok) {
                // Asked for again.
                Err(SubmitError::QueueFull { .. }) => return Ok(()),
                place => place.map_err(|e| submit_error(&e))?,
            };
            let Some((prompt, request)) = self.later.pop_front() else { return Ok(()) };
            let sink = Box::new(Sink { prompt, to: self.to.clone() });
            handle.submit_in(place, request, sink).map_err(|e| submit_error(&e))?;
            self.with_engine += 1;
        }
        Ok(())
    }

    /// Waits for the first token of a stream, which the client's own limit is for: before it, an error can still have a status.
    async fn begin(&mut self) -> Result<(), ApiError> {
        while self.first_token_at.is_none() && !self.over {
            self.pump().await;
        }
        self.deadline = self.deadline.begun();
        match self.ready.back() {
            Some(Event::Error(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Waits until the engine has taken the request up: then `miss` is known.
    pub async fn admitted(&mut self) {
        while self.ready.is_empty() && !self.over {
            self.pump().await;
        }
    }

    /// The next event; `None` after the last. Can be given up and called again.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.over {
                return None;
            }
            self.pump().await;
        }
    }

    /// The next event, if it is there already.
    pub fn try_next(&mut self) -> Option<Event> {
        while self.ready.is_empty() && !self.over {
            match self.events.try_recv() {
                Ok(told) => self.handle_event(told),
                Err(_) => break,
            }
        }
        self.ready.pop_front()
    }

    async fn pump(&mut self) {
        // With nothing of ours in the engine nobody will tell that there is room.
        if self.with_engine == 0 && !self.later.is_empty() {
            tokio::time::sleep(QUEUE_PAUSE).await;
            return self.deadline.check().and_then(|()| self.submit()).unwrap_or_else(|e| self.fail(e));
        }
        match self.deadline.within(self.events.recv()).await {
            Err(e) => self.fail(e),
            Ok(Some(told)) => self.handle_event(told),
            // We hold a sender ourselves.
            Ok(None) => self.fail(internal("the engine does not answer")),
        }
    }

    fn handle_event(&mut self, PromptEvent { prompt, at, event }: PromptEvent) {
        let Some(lease) = &self.lease else { return };
        let model = Arc::clone(lease.model());
        let tokenizer = model.tokenizer();
        let mut out = Vec::new();
        match event {
            engine::Event::Admitted { cached_tokens, miss, .. } => {
                self.admit(prompt, at, cached_tokens, miss.as_deref(), &mut out);
            }
            engine::Event::PromptLogprobs(scores) => {
                if let Some((text, tokens)) = self.echo.get(prompt) {
                    let logprobs = prompt_logprobs(tokenizer, tokens, &scores);
                    for choice in &mut self.choices[prompt * self.n..(prompt + 1) * self.n] {
                        choice.echo(text, logprobs.clone(), &mut out);
                    }
                }
            }
            engine::Event::PromptProgress { done, .. } => self.advance(prompt, at, done, &mut out),
            engine::Event::Embedding(_) => {}
            engine::Event::Token { choice, id, text, logprob, routes } => {
                self.count_token(at);
                if self.request.report.timings_per_token {
                    out.push(Event::Timings(self.running_times()));
                }
                self.choices[prompt * self.n + choice as usize].token(
                    tokenizer,
                    id,
                    &text,
                    logprob.as_ref(),
                    routes.as_deref(),
                    &mut out,
                );
            }
            engine::Event::Done { choice, finish, stop, usage, timings } => {
                let c = &mut self.choices[prompt * self.n + choice as usize];
                let changes = c.done(tokenizer, finish, stop, &mut out);
                changes.messages().for_each(|what| self.inference.warnings.note_change(what));
                self.inference.metrics.finished(&self.label, c.finish.as_ref().map_or("abort", finish_name));
                if let Some(n) = &mut self.usage.reasoning_tokens {
                    *n += c.reasoning_tokens;
                }
                self.add_cost(&usage, &timings);
                if self.choices[prompt * self.n..(prompt + 1) * self.n].iter().all(|c| c.finish.is_some()) {
                    self.with_engine -= 1;
                }
            }
            engine::Event::Failed(e) => {
                self.ready.extend(out);
                let error = answer_error(&e, &self.request, self.form.as_deref());
                return self.fail(error);
            }
        }
        self.ready.extend(out);
        if self.choices.iter().all(|c| c.finish.is_some()) {
            self.finish();
        } else if !self.later.is_empty()
            && let Err(e) = self.submit()
        {
            self.fail(e);
        }
    }

    /// The engine has begun with a prompt.
    fn admit(
        &mut self,
        prompt: usize,
        at: Instant,
        cached: usize,
        miss: Option<&engine::MissReport>,
        out: &mut Vec<Event>,
    ) {
        self.usage.cached_tokens = Some(self.usage.cached_tokens.unwrap_or(0) + cached as u64);
        if let Some(report) = miss {
            tracing::debug!(id = &*self.trace.id, "{}", report.line());
            self.miss = Some(report.line());
        }
        if !std::mem::replace(&mut self.started, true) {
            let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            out.push(Event::Started {
                id: Uuid::new_v4().simple().to_string(),
                model: self.name.clone(),
                created_s: created.as_secs(),
                usage: Some(self.usage),
            });
            out.extend(self.applied.take().map(Event::Applied));
        }
        self.admitted_at.get_or_insert(at);
        self.advance(prompt, at, cached, out);
        if let Some((text, _)) = self.echo.get(prompt)
            && !self.scored
        {
            let text = text.clone();
            for choice in &mut self.choices[prompt * self.n..(prompt + 1) * self.n] {
                choice.echo(&text, Vec::new(), out);
            }
        }
    }

    /// Adds the tokens and times of a finished choice.
    fn add_cost(&mut self, usage: &engine::Usage, timings: &engine::Timings) {
        self.usage.completion_tokens += usage.completion_tokens as u64;
        self.took.queued = self.took.queued.max(timings.queued);
        self.took.prefill = self.took.prefill.max(timings.prompt);
        self.took.decode = self.took.decode.max(timings.generation);
        if timings.drafted > 0 {
            let (drafted, accepted) = self.draft.get_or_insert((0, 0));
            *drafted += timings.drafted as u64;
            *accepted += timings.accepted as u64;
        }
    }

    /// Records and reports the progress of a prompt.
    fn advance(&mut self, prompt: usize, at: Instant, done: usize, out: &mut Vec<Event>) {
        let Some(began) = self.admitted_at.filter(|_| self.request.report.progress) else { return };
        if let Some(p) = self.progress.get_mut(prompt) {
            p.0 = done;
        }
        let sum = |f: fn(&(usize, usize)) -> usize| self.progress.iter().map(f).sum::<usize>() as u64;
        out.push(Event::Progress {
            done: sum(|p| p.0),
            total: sum(|p| p.1),
            cached: self.usage.cached_tokens.unwrap_or(0),
            ms: at.saturating_duration_since(began).as_secs_f64() * 1e3,
        });
    }

    /// Times up to now.
    fn running_times(&self) -> Timings {
        let between = |a: Option<Instant>, b: Option<Instant>| {
            a.zip(b).map_or(0.0, |(a, b)| b.saturating_duration_since(a).as_secs_f64() * 1e3)
        };
        let cached = self.usage.cached_tokens.unwrap_or(0);
        Timings {
            cache_n: cached,
            prompt_n: self.usage.prompt_tokens.saturating_sub(cached),
            prompt_ms: between(self.admitted_at, self.first_token_at),
            predicted_n: self.generated,
            predicted_ms: between(self.first_token_at, self.last_token),
            load_ms: self.waited.as_secs_f64() * 1e3,
            total_ms: self.trace.began.elapsed().as_secs_f64() * 1e3,
            draft: None,
        }
    }

    /// Counts a token that was made `at` this time.
    fn count_token(&mut self, at: Instant) {
        self.generated += 1;
        self.first_token_at.get_or_insert(at);
        match self.last_token.replace(at) {
            None => {
                let after = at.saturating_duration_since(self.trace.began);
                self.inference.metrics.first_token(&self.label, after);
                self.trace.note(|f| f.ttft = Some(after));
            }
            Some(last) => self.inference.metrics.token(&self.label, at.saturating_duration_since(last)),
        }
    }

    fn finish(&mut self) {
        self.over = true;
        self.lease = None;
        let total = self.trace.began.elapsed();
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        let cached = self.usage.cached_tokens.unwrap_or(0);
        let timings = Timings {
            cache_n: cached,
            prompt_n: self.usage.prompt_tokens.saturating_sub(cached),
            prompt_ms: ms(self.took.prefill),
            predicted_n: self.usage.completion_tokens,
            predicted_ms: ms(self.took.decode),
            load_ms: ms(self.waited),
            total_ms: ms(total),
            draft: self.draft,
        };
        self.took = RequestCost {
            prompt_tokens: self.usage.prompt_tokens,
            cached_tokens: cached,
            total,
            ..self.took
        };
        self.inference.metrics.request(&self.label, &self.took);
        self.trace.note(|f| {
            f.cached = cached;
            f.completion = self.usage.completion_tokens;
            // The first token comes with the prompt.
            let seconds = self.took.decode.as_secs_f64();
            let after_first = self.usage.completion_tokens.saturating_sub(self.choices.len() as u64);
            f.rate = (after_first > 0 && seconds > 0.0).then(|| after_first as f64 / seconds);
        });
        self.ready.push_back(Event::Usage(self.usage));
        self.ready.push_back(Event::Timings(timings));
    }

    fn fail(&mut self, error: ApiError) {
        self.over = true;
        self.lease = None;
        self.trace.note(|f| f.error = Some(error.message.clone()));
        self.ready.push_back(Event::Error(error));
        // Nobody listens to what may still come.
        self.events.close();
    }
}

impl AnswerSource for Run {
    fn request(&self) -> Arc<GenerateRequest> {
        Arc::clone(&self.request)
    }

    fn facts(&mut self) -> Facts {
        let warnings = std::mem::take(&mut self.warnings);
        Facts { warnings, cache_miss: self.miss.take(), ..Facts::default() }
    }

    fn owner(&self) -> Option<&Arc<str>> {
        None
    }

    fn is_remote(&self) -> bool {
        false
    }

    async fn next(&mut self) -> Option<Piece> {
        Self::next(self).await.map(Piece::Event)
    }

    fn try_next(&mut self) -> Option<Piece> {
        Self::try_next(self).map(Piece::Event)
    }
}

/// What has become tokens is not needed any more.
fn forget_input(request: &mut GenerateRequest) {
    match &mut request.input {
        Input::Chat(chat) => chat.messages = Vec::new(),
        Input::Completion(completion) => completion.prompts = Vec::new(),
    }
}

fn reasons(reader: &Reader) -> bool {
    reader.format.reasoning.is_some()
}

fn finish_name(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop | FinishReason::StopSequence(_) => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::ContentFilter => "abort",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_the_time_at_which_the_engine_sent_it() {
        let (to, mut events) = unbounded_channel();
        let sent = Sink { prompt: 0, to }.send(engine::Event::PromptProgress { done: 1, total: 2 });
        let read_at = Instant::now();
        assert!(sent.is_continue() && events.try_recv().unwrap().at <= read_at);
    }
}
