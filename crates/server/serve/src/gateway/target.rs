//! The target of a deployment: another server, a model in this process, or a server that is started on demand. Created by `gateway` for each
//! deployment of a configuration; called by the router.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use hyper::{HeaderMap, Method};
use octet_api::core::{
    EmbedRequest, Embeddings, Event, GenerateRequest, MemoryHandle, Prompt, Usage, VectorEncoding,
};
use octet_api::{ApiError, ErrorKind, gemini, ollama, openai};
use octet_config::{Changes, ProcessTarget, Provider};
use octet_router::{
    AnswerMemory, Ask, Dialect, Events, Failure, FailureKind, Original, Piece, Remote, Sent, Size,
    bytes_with_images, from_api,
};
use octet_upstream::{Client, Endpoint, Overrides, Raw, Settings, Timeouts, Upload};
use serde_json::{Map, Value};

use super::mock::MockTarget;
use super::read;
use super::servers::{Lease, Servers};
use crate::blocking::run_sized;
use crate::inference::Inference;
use crate::memory_budget::MemoryPermit;
use crate::ops::Trace;
use crate::pipeline::{Deadline, Job, Purpose, Run, acquire, chat_prompt, embed};

/// A target. Cheap to clone.
#[derive(Debug, Clone)]
#[allow(clippy::enum_variant_names)] // each has the name of its type
pub enum Target {
    /// Another server.
    RemoteTarget(RemoteTarget),
    /// A model in this process.
    LocalTarget(LocalTarget),
    /// A server that is started on demand.
    OnDemandTarget(Arc<OnDemandTarget>),
    /// An answer from the configuration.
    MockTarget(Arc<MockTarget>),
}

/// A model on another server.
#[derive(Debug, Clone)]
pub struct RemoteTarget {
    client: Client,
    endpoint: Endpoint,
    remote: Remote,
}

/// The endpoint of a model on another server.
pub fn endpoint(
    remote: octet_config::Remote,
    params: Map<String, Value>,
    max_tokens: Option<u64>,
) -> Result<Endpoint, String> {
    let max_tokens = max_tokens.and_then(|n| u32::try_from(n).ok());
    let settings = Settings { params, timeouts: UNTIMED, max_tokens, ..Settings::new(remote) };
    Endpoint::new(settings).map_err(|e| e.to_string())
}

/// No time limits: the router enforces them, and an endpoint's own would end long answers.
const UNTIMED: Timeouts = Timeouts { whole: None, first_chunk: None, idle: None };

impl RemoteTarget {
    /// A model that is reached through `client`. `max_tokens` is the default for providers that require a limit.
    pub fn new(
        client: &Client,
        remote: octet_config::Remote,
        params: Map<String, Value>,
        max_tokens: Option<u64>,
    ) -> Result<Self, String> {
        let endpoint = endpoint(remote, params, max_tokens)?;
        let remote = Remote::new(client.clone(), endpoint.clone());
        Ok(Self { client: client.clone(), endpoint, remote })
    }

    /// Whether a client's bytes can be forwarded unchanged.
    pub fn speaks(&self, dialect: Dialect) -> bool {
        self.endpoint.speaks(dialect)
    }

    /// The provider's API.
    pub fn provider(&self) -> Provider {
        self.endpoint.provider()
    }

    /// Whether both have the same key and address.
    pub fn is_same_account(&self, other: &Self) -> bool {
        let (a, b) = (&self.endpoint.settings().remote, &other.endpoint.settings().remote);
        (&a.api_base, &a.api_key, &a.organization) == (&b.api_base, &b.api_key, &b.organization)
    }

    /// Forwards a request that is not for a model.
    pub async fn relay(
        &self,
        method: Method,
        path: &str,
        upload: Option<&Arc<Upload>>,
        headers: &HeaderMap,
    ) -> Result<Raw, Failure> {
        self.client.relay(&self.endpoint, method, path, upload, headers).await
    }

    async fn generate(&self, ask: Ask<'_>) -> Result<Answer, Failure> {
        let template = self.endpoint.model();
        let filled = template.contains('*').then(|| self.endpoint.with_model(ask.fill(template)));
        let endpoint = filled.as_ref().unwrap_or(&self.endpoint);
        let foreign = ask.original.filter(|o| !endpoint.forwards(o.dialect, &o.body));
        if let Some(o) = foreign.filter(|o| read::is_embedding(o.dialect)) {
            return self.embed(ask, o).await;
        }
        if let Some(o) = foreign.filter(|o| read::is_count(o.dialect)) {
            let request = read::parse(o, &ask.request.memory, read::to_count).await?;
            // This provider has no endpoint that counts tokens.
            let mut counted = read::counted(o.dialect, Size::of(&request).tokens());
            counted["estimated"] = true.into();
            return Ok(Answer::Ready(Some(counted.to_string().into()), None));
        }
        if let Some(Dialect::Passed(passed)) = foreign.map(|o| o.dialect) {
            let what = format!("{} has no {}", self.endpoint.provider().name(), passed.path());
            return Err(Failure::new(FailureKind::BadRequest, what));
        }
        let whole;
        let mut ask = ask;
        if let Some(o) = foreign.filter(|o| read::generates(o.dialect)) {
            whole = read::whole(ask.request, Some(o)).await?;
            ask.request = &whole;
        }
        let answer = octet_router::Target::generate(&self.remote, ask).await?;
        Ok(Answer::RemoteTarget(Box::new(answer)))
    }

    /// Embeddings for a request in another dialect.
    async fn embed(&self, ask: Ask<'_>, original: &Arc<Original>) -> Result<Answer, Failure> {
        let memory = &ask.request.memory;
        let request = read::parse(original, memory, read::embedding).await?;
        let request = Arc::new(EmbedRequest { memory: memory.clone(), ..request });
        let endpoint = self.endpoint.with_model(ask.fill(self.endpoint.model()).into_owned());
        let mut vectors = self.client.embed(&endpoint, &request).await?;
        vectors.model.clone_from(&request.model);
        Ok(Answer::vectors(original.dialect, &request, &vectors))
    }
}

/// A model in this process.
#[derive(Clone)]
pub struct LocalTarget {
    inference: Arc<Inference>,
    index: usize,
    name: Arc<str>,
    window_tokens: u64,
    ours: Arc<Overrides>,
    /// Requests for embeddings may change how long the model stays loaded.
    may_keep: bool,
}

impl std::fmt::Debug for LocalTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalTarget")
            .field("index", &self.index)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A permit that only states the request's size: the request itself holds its memory.
fn uncounted(request: &GenerateRequest) -> MemoryPermit {
    let mut share = MemoryPermit::default();
    share.body_bytes = size_bytes(request);
    share
}

fn size_bytes(request: &GenerateRequest) -> usize {
    usize::try_from(Size::of(request).bytes).unwrap_or(usize::MAX)
}

impl LocalTarget {
    /// The model with this index; `ours` changes its requests. `may_keep`: any caller may change how long it stays loaded.
    pub fn new(inference: &Arc<Inference>, index: usize, ours: Overrides, may_keep: bool) -> Self {
        let info = inference.models.info(index);
        Self {
            inference: Arc::clone(inference),
            index,
            name: info.id.into(),
            window_tokens: info.context_length.into(),
            ours: Arc::new(ours),
            may_keep,
        }
    }

    /// Its index in the registry.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The request with the configuration's changes.
    async fn changed(&self, request: &Arc<GenerateRequest>) -> Result<Arc<GenerateRequest>, ApiError> {
        if self.ours.is_nothing() {
            return Ok(Arc::clone(request));
        }
        let (ours, request) = (Arc::clone(&self.ours), Arc::clone(request));
        run_sized(bytes_with_images(&request), move || {
            let mut changed = (*request).clone();
            ours.apply(&mut changed);
            Arc::new(changed)
        })
        .await
    }

    async fn generate(&self, ask: Ask<'_>) -> Result<Answer, Failure> {
        match ask.original {
            Some(o) if let Dialect::Passed(passed) = o.dialect => {
                let what =
                    format!("'{}' is a model in this process, which has no {}", self.name, passed.path());
                Err(from_api(&ApiError::invalid("model", what)))
            }
            Some(o) if read::is_embedding(o.dialect) => self.embed(o, &ask.request.memory).await,
            Some(o) if read::is_count(o.dialect) => self.count(o, &ask.request.memory).await,
            original => {
                let whole = read::whole(ask.request, original).await?;
                self.run(&whole).await.map_err(|e| from_api(&e))
            }
        }
    }

    async fn run(&self, request: &Arc<GenerateRequest>) -> Result<Answer, ApiError> {
        let request = self.changed(request).await?;
        let asked = (Arc::clone(&request), size_bytes(&request));
        let run = Run::start(&self.inference, &Trace::default(), self.index, asked, false).await?;
        Ok(Answer::LocalTarget(Box::new(run)))
    }

    async fn embed(&self, original: &Arc<Original>, memory: &MemoryHandle) -> Result<Answer, Failure> {
        let request = read::parse(original, memory, read::embedding).await?;
        // The caller is not known here.
        let keep_alive = request.keep_alive.filter(|_| self.may_keep);
        let request = Arc::new(EmbedRequest { keep_alive, memory: memory.clone(), ..request });
        let vectors =
            embed(&self.inference, &Trace::default(), self.index, Arc::clone(&request), false).await;
        let vectors = vectors.map_err(|e| from_api(&e))?;
        Ok(Answer::vectors(original.dialect, &request, &vectors))
    }

    /// The embedding of a text, as from `/v1/embeddings`; text beyond the context is cut off.
    async fn vector(&self, text: &str) -> Option<Vec<f32>> {
        let request = EmbedRequest {
            model: self.name.to_string(),
            inputs: vec![Prompt::Text(text.into())],
            dimensions: None,
            encoding: VectorEncoding::Float,
            truncate: true,
            timeout: None,
            keep_alive: None,
            context_length: None,
            user: None,
            extra: Map::new(),
            warnings: Vec::new(),
            memory: MemoryHandle::default(),
        };
        match embed(&self.inference, &Trace::default(), self.index, Arc::new(request), false).await {
            Ok(mut vectors) => vectors.vectors.pop(),
            Err(e) => {
                tracing::warn!(model = &*self.name, "no embedding for the prerouter: {}", e.message);
                None
            }
        }
    }

    async fn count(&self, original: &Arc<Original>, memory: &MemoryHandle) -> Result<Answer, Failure> {
        let request = read::parse(original, memory, read::to_count).await?;
        let request = Arc::new(GenerateRequest { memory: memory.clone(), ..request });
        let tokens = self.tokens(&request).await.map_err(|e| from_api(&e))?;
        Ok(Answer::Ready(Some(read::counted(original.dialect, tokens).to_string().into()), None))
    }

    /// The exact number of tokens of a conversation's prompt.
    async fn tokens(&self, request: &Arc<GenerateRequest>) -> Result<u64, ApiError> {
        let lease = acquire(&self.inference, self.index, None, Deadline::default()).await?;
        let (model, request) = (Arc::clone(lease.model()), self.changed(request).await?);
        let counted =
            self.inference.blocking_pool.run_unqueued(uncounted(&request), move |gone| {
                match request.chat() {
                    Some(chat) => {
                        Ok(chat_prompt(&model, chat, Job { purpose: Purpose::Count, gone })?.tokens.len())
                    }
                    None => Err(ApiError::new(ErrorKind::InvalidRequest, "'messages' is missing")),
                }
            });
        Ok(counted.await? as u64)
    }
}

/// A server that is started on demand.
#[derive(Debug)]
pub struct OnDemandTarget {
    servers: Servers,
    client: Client,
    target: ProcessTarget,
    params: Map<String, Value>,
    max_tokens: Option<u64>,
    /// Its base URL and target at the last request; a restart may choose another port.
    far: Mutex<Option<(String, RemoteTarget)>>,
}

impl OnDemandTarget {
    /// Whether the server is running.
    pub fn is_ready(&self) -> bool {
        self.servers.is_ready(&self.target.process)
    }

    /// A server of `servers`.
    pub fn new(
        servers: &Servers,
        client: &Client,
        target: ProcessTarget,
        params: Map<String, Value>,
        max_tokens: Option<u64>,
    ) -> Self {
        Self {
            servers: servers.clone(),
            client: client.clone(),
            target,
            params,
            max_tokens,
            far: Mutex::default(),
        }
    }

    fn far(&self, base_url: &str) -> Result<RemoteTarget, Failure> {
        let mut known = self.far.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, far)) = known.as_ref().filter(|(base, _)| base == base_url) {
            return Ok(far.clone());
        }
        let remote = octet_config::Remote {
            provider: Provider::OpenAiCompatible,
            model: self.target.model.clone(),
            api_base: format!("{}/v1", base_url.trim_end_matches('/')),
            api_key: None,
            organization: None,
            api_version: None,
            extra_headers: Vec::new(),
            continues: self.target.continues,
            responses: octet_config::ResponsesUse::None,
            auth: octet_config::Auth::Key,
            family: String::new(),
            changes: self.target.changes.clone(),
        };
        let far = RemoteTarget::new(&self.client, remote, self.params.clone(), self.max_tokens)
            .map_err(|e| Failure::new(FailureKind::Server, e))?;
        *known = Some((base_url.to_string(), far.clone()));
        Ok(far)
    }

    async fn generate(&self, ask: Ask<'_>) -> Result<Answer, Failure> {
        let lease = self.servers.lease(&self.target.process).await?;
        let far = self.far(lease.base_url())?;
        Ok(match far.generate(ask).await? {
            Answer::RemoteTarget(answer) => Answer::OnDemandTarget { answer, _lease: lease },
            other => other,
        })
    }
}

impl octet_router::Target for Target {
    type Events = Answer;

    async fn generate(&self, ask: Ask<'_>) -> Result<Answer, Failure> {
        match self {
            Self::RemoteTarget(far) => far.generate(ask).await,
            Self::LocalTarget(here) => here.generate(ask).await,
            Self::OnDemandTarget(started) => started.generate(ask).await,
            Self::MockTarget(mock) => mock.generate(&ask).map(Answer::Mock),
        }
    }

    fn model(&self) -> &str {
        match self {
            Self::RemoteTarget(far) => far.endpoint.model(),
            Self::LocalTarget(here) => &here.name,
            Self::OnDemandTarget(started) => &started.target.model,
            Self::MockTarget(mock) => &mock.model,
        }
    }

    async fn count_tokens(&self, request: &Arc<GenerateRequest>) -> Option<u64> {
        let Self::LocalTarget(here) = self else { return None };
        // A model is not loaded to count.
        here.inference.models.loaded(here.index)?;
        here.tokens(request).await.ok()
    }

    fn window_tokens(&self) -> Option<u64> {
        match self {
            Self::LocalTarget(here) => Some(here.window_tokens),
            Self::RemoteTarget(_) | Self::OnDemandTarget(_) | Self::MockTarget(_) => None,
        }
    }

    fn is_local(&self) -> bool {
        matches!(self, Self::LocalTarget(_))
    }

    async fn embed(&self, text: &str) -> Option<Vec<f32>> {
        match self {
            Self::LocalTarget(here) => here.vector(text).await,
            Self::RemoteTarget(_) | Self::OnDemandTarget(_) | Self::MockTarget(_) => None,
        }
    }

    fn has_logprobs(&self) -> bool {
        match self {
            Self::RemoteTarget(far) => octet_router::Target::has_logprobs(&far.remote),
            Self::LocalTarget(_) | Self::OnDemandTarget(_) => true,
            Self::MockTarget(_) => false,
        }
    }

    fn continues(&self, sent: &Sent) -> bool {
        match self {
            Self::RemoteTarget(far) => octet_router::Target::continues(&far.remote, sent),
            // Reasoning alone cannot be continued: templates close it.
            Self::LocalTarget(_) => !sent.text.is_empty(),
            Self::OnDemandTarget(started) => started.target.continues && sent.is_begun(),
            Self::MockTarget(_) => false,
        }
    }

    fn may_continue(&self) -> bool {
        match self {
            Self::RemoteTarget(far) => octet_router::Target::may_continue(&far.remote),
            Self::LocalTarget(_) => true,
            Self::OnDemandTarget(started) => started.target.continues,
            Self::MockTarget(_) => false,
        }
    }

    fn load(&self) -> Option<u32> {
        let Self::LocalTarget(here) = self else { return None };
        let models = &here.inference.models;
        let stats = models.loaded(here.index).map(|l| l.handle.stats());
        let with_engine = stats.map_or(0, |s| s.running + s.waiting);
        u32::try_from(with_engine + models.waiting(here.index)).ok()
    }

    async fn check(&self) -> Result<(), Failure> {
        match self {
            Self::RemoteTarget(far) => octet_router::Target::check(&far.remote).await,
            // It need not be loaded or running, and is not started for a health check. If a start failed, that request began its
            // cooldown; an old failure must not prolong it, or it would never be tried again.
            Self::LocalTarget(_) | Self::OnDemandTarget(_) | Self::MockTarget(_) => Ok(()),
        }
    }
}

/// A target's answer.
pub enum Answer {
    /// From another server.
    RemoteTarget(Box<<Remote as octet_router::Target>::Events>),
    /// From a server that was started on demand; `_lease` keeps it running.
    OnDemandTarget {
        /// The answer.
        answer: Box<<Remote as octet_router::Target>::Events>,
        /// Keeps the server running.
        _lease: Lease,
    },
    /// From a model in this process.
    LocalTarget(Box<Run>),
    /// Complete, in the client's dialect.
    Ready(Option<Bytes>, Option<Usage>),
    /// The events of an answer from the configuration.
    Mock(VecDeque<Event>),
}

impl Answer {
    fn vectors(dialect: Dialect, request: &EmbedRequest, vectors: &Embeddings) -> Self {
        let body = match dialect {
            Dialect::OllamaEmbed => ollama::embed::response(vectors),
            Dialect::GeminiEmbed => gemini::embed::response(vectors).to_string().into_bytes(),
            Dialect::GeminiBatchEmbed => gemini::embed::response_batch(vectors).to_string().into_bytes(),
            _ => openai::embeddings::response(request, vectors),
        };
        let usage = Usage { prompt_tokens: vectors.prompt_tokens, ..Usage::default() };
        Self::Ready(Some(body.into()), Some(usage))
    }
}

impl Events for Answer {
    async fn next(&mut self) -> Option<Result<Piece, Failure>> {
        match self {
            Self::RemoteTarget(answer) | Self::OnDemandTarget { answer, .. } => answer.next().await,
            Self::LocalTarget(run) => run.next().await.map(|e| Ok(Piece::Event(e))),
            Self::Ready(bytes, _) => bytes.take().map(|b| Ok(Piece::Raw(b))),
            Self::Mock(events) => events.pop_front().map(|e| Ok(Piece::Event(e))),
        }
    }

    fn try_next(&mut self) -> Option<Result<Piece, Failure>> {
        match self {
            Self::RemoteTarget(answer) | Self::OnDemandTarget { answer, .. } => answer.try_next(),
            Self::LocalTarget(run) => run.try_next().map(|e| Ok(Piece::Event(e))),
            Self::Ready(bytes, _) => bytes.take().map(|b| Ok(Piece::Raw(b))),
            Self::Mock(events) => events.pop_front().map(|e| Ok(Piece::Event(e))),
        }
    }

    fn is_remote(&self) -> bool {
        matches!(self, Self::RemoteTarget(_) | Self::OnDemandTarget { .. })
    }

    fn flows(&self) -> bool {
        match self {
            Self::RemoteTarget(answer) | Self::OnDemandTarget { answer, .. } => answer.flows(),
            Self::LocalTarget(_) | Self::Ready(..) | Self::Mock(_) => false,
        }
    }

    fn memory(&self) -> Option<AnswerMemory> {
        match self {
            Self::RemoteTarget(answer) | Self::OnDemandTarget { answer, .. } => answer.memory(),
            Self::LocalTarget(_) | Self::Ready(..) | Self::Mock(_) => None,
        }
    }

    fn warnings(&self) -> &[String] {
        match self {
            Self::RemoteTarget(answer) | Self::OnDemandTarget { answer, .. } => answer.warnings(),
            Self::LocalTarget(run) => &run.warnings,
            Self::Ready(..) | Self::Mock(_) => &[],
        }
    }

    fn usage(&self) -> Option<Usage> {
        match self {
            Self::RemoteTarget(answer) | Self::OnDemandTarget { answer, .. } => answer.usage(),
            Self::LocalTarget(_) | Self::Mock(_) => None,
            Self::Ready(_, usage) => *usage,
        }
    }

    fn headers(&self) -> Option<&HeaderMap> {
        match self {
            Self::RemoteTarget(answer) | Self::OnDemandTarget { answer, .. } => answer.headers(),
            Self::LocalTarget(_) | Self::Ready(..) | Self::Mock(_) => None,
        }
    }
}

/// The configuration's changes of requests for a model in this process. Logs parameters that have no effect there.
pub fn ours(name: &str, changes: &Changes, params: &Map<String, Value>) -> Overrides {
    let ours = Overrides::new(changes, params);
    let unknown: Vec<&str> = ours.unknown().collect();
    if !unknown.is_empty() {
        tracing::warn!(
            model = name,
            "these parameters have no effect on a model in this process: {}",
            unknown.join(", ")
        );
    }
    ours
}
