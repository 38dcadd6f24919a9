//! Targets that do as a test says, and configurations around them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use octet_api::ApiError;
use octet_api::core::{
    Chat, Event, FinishReason, GenerateRequest, Input, Message, Part, Role, TokenLogprob, TopLogprob, Usage,
};
use octet_config as config;
use octet_config::{Config, GroupName};
use octet_router::{
    Ask, Call, Events, Failure, FailureKind, Piece, Reply, Route, Router, Sent, Step, Target,
};
use tokio::time::sleep;

/// What a target does, in turn.
#[derive(Debug, Clone)]
pub enum Do {
    /// Nothing, for this many milliseconds.
    Wait(u64),
    Say(Event),
    /// Bytes in the client's own dialect.
    Raw(&'static str),
    /// Before it answers (first in a script), or in the middle.
    Fail(Failure),
    Hang,
    /// The connection is closed, whatever is still missing.
    End,
}

pub type Script = Vec<Do>;

type Write = dyn Fn(&str, &GenerateRequest) -> Script + Send + Sync;

/// Writes a target's script for a request.
#[derive(Clone)]
struct Improvise(Arc<Write>);

impl std::fmt::Debug for Improvise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Improvise")
    }
}

/// How a target is, apart from what it does.
#[derive(Debug, Clone, Default)]
pub struct Nature {
    pub continues: bool,
    pub tokens: Option<u64>,
    pub load: Option<u32>,
    pub no_logprobs: bool,
    pub local: bool,
    pub vector: Option<Vec<f32>>,
    pub sick: bool,
}

/// All targets of a test, and their requests.
#[derive(Debug, Default)]
pub struct World {
    pub requests: Mutex<Vec<Received>>,
    scripts: Mutex<HashMap<String, VecDeque<Script>>>,
    natures: Mutex<HashMap<String, Nature>>,
    improvised: Mutex<Option<Improvise>>,
    pub at_work: AtomicUsize,
    pub at_work_most: AtomicUsize,
    pub cancelled: AtomicUsize,
}

#[derive(Debug, Clone)]
pub struct Received {
    pub deployment: String,
    pub request: Arc<GenerateRequest>,
    pub model: String,
    /// It may be forwarded unchanged.
    pub original: bool,
}

impl World {
    /// The deployment runs these, one script per request; the last one repeats.
    pub fn script(&self, deployment: &str, scripts: impl IntoIterator<Item = Script>) {
        self.scripts.lock().unwrap().insert(deployment.into(), scripts.into_iter().collect());
    }

    /// All targets do this.
    pub fn improvise(&self, how: impl Fn(&str, &GenerateRequest) -> Script + Send + Sync + 'static) {
        *self.improvised.lock().unwrap() = Some(Improvise(Arc::new(how)));
    }

    pub fn nature(&self, deployment: &str, nature: Nature) {
        self.natures.lock().unwrap().insert(deployment.into(), nature);
    }

    /// The targets of the requests, in order.
    pub fn deployments(&self) -> Vec<String> {
        self.requests.lock().unwrap().iter().map(|r| r.deployment.clone()).collect()
    }

    pub fn last(&self) -> Received {
        self.requests.lock().unwrap().last().unwrap().clone()
    }

    fn of(&self, deployment: &str) -> Nature {
        self.natures.lock().unwrap().get(deployment).cloned().unwrap_or_default()
    }

    fn next(&self, deployment: &str) -> Script {
        let mut scripts = self.scripts.lock().unwrap();
        match scripts.get_mut(deployment) {
            Some(all) if all.len() > 1 => all.pop_front().unwrap(),
            Some(all) => all[0].clone(),
            None => says(deployment),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Mock {
    pub deployment: String,
    pub world: Arc<World>,
    model: String,
}

#[derive(Debug)]
pub struct Playing {
    script: VecDeque<Do>,
    ended: bool,
    world: Arc<World>,
}

impl Target for Mock {
    type Events = Playing;

    async fn generate(&self, ask: Ask<'_>) -> Result<Playing, Failure> {
        let model = ask.fill(&self.model).into_owned();
        self.world.requests.lock().unwrap().push(Received {
            deployment: self.deployment.clone(),
            request: Arc::clone(ask.request),
            model,
            original: ask.original.is_some(),
        });
        let n = self.world.at_work.fetch_add(1, Ordering::SeqCst) + 1;
        self.world.at_work_most.fetch_max(n, Ordering::SeqCst);
        let improvised = self.world.improvised.lock().unwrap().clone();
        let script = match improvised {
            Some(how) => how.0(&self.deployment, ask.request).into(),
            None => self.world.next(&self.deployment).into(),
        };
        let mut playing = Playing { script, ended: false, world: Arc::clone(&self.world) };
        loop {
            match playing.script.front() {
                Some(Do::Wait(_)) => playing.wait().await,
                Some(Do::Fail(_)) => {
                    playing.ended = true;
                    let Some(Do::Fail(f)) = playing.script.pop_front() else { unreachable!() };
                    return Err(f);
                }
                _ => return Ok(playing),
            }
        }
    }

    fn model(&self) -> &str {
        &self.model
    }

    async fn count_tokens(&self, _request: &Arc<GenerateRequest>) -> Option<u64> {
        self.world.of(&self.deployment).tokens
    }

    fn has_logprobs(&self) -> bool {
        !self.world.of(&self.deployment).no_logprobs
    }

    fn is_local(&self) -> bool {
        self.world.of(&self.deployment).local
    }

    async fn embed(&self, _text: &str) -> Option<Vec<f32>> {
        self.world.of(&self.deployment).vector
    }

    fn continues(&self, _sent: &Sent) -> bool {
        self.world.of(&self.deployment).continues
    }

    fn load(&self) -> Option<u32> {
        self.world.of(&self.deployment).load
    }

    async fn check(&self) -> Result<(), Failure> {
        match self.world.of(&self.deployment).sick {
            true => Err(Failure::new(FailureKind::Connect, "refused")),
            false => Ok(()),
        }
    }
}

impl Playing {
    /// Can be given up: a wait that was begun is a wait that is over, which no test minds.
    async fn wait(&mut self) {
        if let Some(Do::Wait(ms)) = self.script.front() {
            sleep(Duration::from_millis(*ms)).await;
            self.script.pop_front();
        }
    }
}

impl Events for Playing {
    async fn next(&mut self) -> Option<Result<Piece, Failure>> {
        assert!(!self.ended, "no reads after the end");
        loop {
            match self.script.front() {
                Some(Do::Wait(_)) => self.wait().await,
                Some(Do::Hang) => std::future::pending().await,
                Some(Do::Raw(_)) => {
                    let Some(Do::Raw(text)) = self.script.pop_front() else { unreachable!() };
                    return Some(Ok(Piece::Raw(text.into())));
                }
                Some(Do::Say(_)) => {
                    let Some(Do::Say(event)) = self.script.pop_front() else { unreachable!() };
                    return Some(Ok(event.into()));
                }
                Some(Do::Fail(_)) => {
                    self.ended = true;
                    let Some(Do::Fail(f)) = self.script.pop_front() else { unreachable!() };
                    return Some(Err(f));
                }
                Some(Do::End) | None => {
                    self.ended = true;
                    return None;
                }
            }
        }
    }
}

impl Drop for Playing {
    fn drop(&mut self) {
        self.world.at_work.fetch_sub(1, Ordering::SeqCst);
        if !self.ended {
            self.world.cancelled.fetch_add(1, Ordering::SeqCst);
        }
    }
}

pub fn started(deployment: &str) -> Do {
    Do::Say(Event::Started {
        id: format!("id-{deployment}"),
        model: deployment.into(),
        created_s: 1,
        usage: None,
    })
}

pub fn text(text: &str) -> Do {
    Do::Say(Event::Text { choice: 0, text: text.into() })
}

pub fn finished() -> Do {
    Do::Say(Event::Finished { choice: 0, reason: FinishReason::Stop })
}

pub fn usage(prompt_tokens: u64, completion_tokens: u64) -> Do {
    Do::Say(Event::Usage(Usage { prompt_tokens, completion_tokens, ..Usage::default() }))
}

pub fn fail(kind: FailureKind) -> Do {
    Do::Fail(Failure::new(kind, format!("it is {}", kind.name())))
}

pub fn limited(retry_after_s: u64) -> Do {
    let retry_after = Some(Duration::from_secs(retry_after_s));
    Do::Fail(Failure {
        retry_after,
        status: Some(429),
        ..Failure::new(FailureKind::RateLimited, "slow down")
    })
}

/// A whole answer: its own name.
pub fn says(deployment: &str) -> Script {
    vec![started(deployment), text(deployment), finished(), usage(10, 1)]
}

/// Log-probabilities of a token and of the next best, and the token.
pub fn sure(token: &str, logprob: f32, second: f32) -> [Do; 2] {
    let top = [logprob, second].map(|logprob| TopLogprob {
        id: None,
        token: "t".into(),
        bytes: b"t".into(),
        logprob,
    });
    let one = TokenLogprob {
        id: None,
        token: token.into(),
        bytes: token.into(),
        logprob: Some(logprob),
        top: top.into(),
    };
    [Do::Say(Event::Logprobs { choice: 0, tokens: vec![one] }), text(token)]
}

pub fn name(text: &str) -> GroupName {
    GroupName::new(text).unwrap()
}

/// A deployment with this id in this group.
pub fn deployment(group: &str, id: &str) -> config::Deployment {
    config::Deployment {
        tags: Vec::new(),
        id: id.into(),
        group: name(group),
        target: config::Target::Remote(config::Remote {
            provider: config::Provider::OpenAiCompatible,
            model: format!("{id}-model"),
            api_base: "http://127.0.0.1:1/v1".into(),
            api_key: None,
            organization: None,
            api_version: None,
            extra_headers: Vec::new(),
            continues: false,
            responses: config::ResponsesUse::None,
            auth: config::Auth::Key,
            family: String::new(),
            changes: config::Changes::default(),
        }),
        weight: None,
        order: None,
        rpm: None,
        tpm: None,
        max_parallel_requests: None,
        timeout: None,
        stream_timeout: None,
        cooldown_time: None,
        num_retries: None,
        shadow: None,
        params: serde_json::Map::new(),
        info: config::ModelInfo::default(),
        span: span(),
    }
}

/// A configuration of these deployments: group and id.
pub fn config(deployments: &[(&str, &str)]) -> Config {
    let deployments = deployments.iter().map(|(group, id)| deployment(group, id)).collect();
    let mut config = Config { deployments, ..Config::default() };
    config.router.timeout = Duration::from_secs(600);
    config
}

pub fn fallback(group: &str, to: &[&str]) -> config::Fallback {
    config::Fallback { group: name(group), to: to.iter().map(|t| t.to_string()).collect() }
}

pub fn mock(world: &Arc<World>, d: &config::Deployment) -> Result<Mock, String> {
    let config::Target::Remote(remote) = &d.target else { return Err("only remote ones".into()) };
    Ok(Mock { deployment: d.id.clone(), world: Arc::clone(world), model: remote.model.clone() })
}

/// A router of `config` in a new world.
pub fn router(config: &Config) -> (Arc<Router<Mock>>, Arc<World>) {
    let world = Arc::new(World::default());
    let router = Router::new(config, 7, |d| mock(&world, d)).unwrap();
    (Arc::new(router), world)
}

pub fn request(model: &str, stream: bool) -> GenerateRequest {
    let chat = Chat { messages: vec![Message::text(Role::User, "Tell me.")], ..Chat::default() };
    GenerateRequest { stream, ..GenerateRequest::new(model, Input::Chat(chat)) }
}

pub fn call(model: &str) -> Call {
    Call::new(request(model, true))
}

/// All events of a reply. Nothing follows an error or the end.
pub async fn all(reply: &mut Reply<Mock>) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(piece) = reply.next().await {
        let Piece::Event(event) = piece else { panic!("{piece:?}") };
        events.push(event);
    }
    assert!(reply.next().await.is_none(), "it stays over");
    events
}

/// What a client makes of events: the text, or the error. Holds them to the order that is promised.
pub fn read(events: &[Event]) -> Result<String, ApiError> {
    let errors = events.iter().filter(|e| matches!(e, Event::Error(_))).count();
    if let Some(Event::Error(e)) = events.last() {
        assert_eq!(errors, 1, "{events:?}");
        let finished = events.iter().any(|e| matches!(e, Event::Finished { .. }));
        assert!(!finished, "what is finished does not fail: {events:?}");
        return Err(e.clone());
    }
    assert_eq!(errors, 0, "nothing follows an error: {events:?}");
    let count = |is: fn(&Event) -> bool| events.iter().filter(|e| is(e)).count();
    assert_eq!(count(|e| matches!(e, Event::Started { .. })), 1, "{events:?}");
    assert!(matches!(events[0], Event::Started { .. }), "{events:?}");
    assert_eq!(count(|e| matches!(e, Event::Finished { .. })), 1, "{events:?}");
    Ok(said(events))
}

pub fn said(events: &[Event]) -> String {
    events
        .iter()
        .filter_map(|e| if let Event::Text { text, .. } = e { Some(text.as_str()) } else { None })
        .collect()
}

/// Sends a streaming request and reads its answer.
pub async fn ask(router: &Arc<Router<Mock>>, model: &str) -> Result<String, ApiError> {
    let mut reply = router.send(call(model));
    let events = all(&mut reply).await;
    read(&events)
}

/// The text of the assistant message that a request continues.
pub fn prefix_of(request: &GenerateRequest) -> Option<String> {
    let chat = request.chat()?;
    let last = chat.messages.last().filter(|m| chat.continue_final && m.role == Role::Assistant)?;
    Some(
        last.content
            .iter()
            .map(|p| if let Part::Text { text, .. } = p { text.as_str() } else { "" })
            .collect(),
    )
}

/// What is known of a deployment.
pub fn status(router: &Router<Mock>, id: &str) -> octet_router::health::Status {
    router.status().into_iter().find(|s| s.deployment == id).unwrap()
}

pub fn span() -> config::Span {
    config::Span { file: "octet.yaml".into(), line: 1, column: 1 }
}

/// Whether an answer of a cascade's fast group was dropped for what one of the checks found; `None` if none was checked.
pub fn escalated(route: &Route) -> Option<bool> {
    let verdicts = route.steps.iter().filter_map(|s| match s {
        Step::Confidence { verdict, .. }
        | Step::ToolCalls { verdict, .. }
        | Step::SelfCheck { verdict, .. } => Some(*verdict == "escalated"),
        _ => None,
    });
    verdicts.reduce(|any, one| any || one)
}
