//! Requests answered through the router.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::response::Response;
use bytes::BytesMut;
use futures_util::stream::unfold;
use hyper::HeaderMap;
use hyper::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE, HeaderName};
use octet_api::core::GenerateRequest;
use octet_api::{ApiError, ErrorKind};
use octet_router::{Dialect as Wire, Original, Piece};

use super::body;
use super::call::Call;
use super::checked_answer::{Check, CheckedAnswer};
use super::error::json;
use super::hooks::About;
use super::reply::{Form, KEEP_ALIVE, flowing, respond, streamed, write_facts};
use crate::answer_source::{AnswerSource, Facts};
use crate::app::App;
use crate::gateway::read::{self, Own};
use crate::gateway::{Caller, Gateway, Lookup, RequestContext, RoutedRequest, Sender};
use crate::memory_budget::{MemoryPermit, holding};

/// An endpoint that generates text.
pub struct TextEndpoint {
    /// The dialect of its requests.
    pub dialect: Wire,
    /// Parses a request.
    pub parse: fn(&[u8]) -> Result<GenerateRequest, ApiError>,
    /// Writes its answer.
    pub form: Form,
}

/// Answers a request for text. It is read only partly if a provider of its dialect answers.
pub async fn generate(gateway: &Arc<Gateway>, c: Call, endpoint: TextEndpoint) -> Result<Response, ApiError> {
    let TextEndpoint { dialect, parse, form } = endpoint;
    let Call { app, sender, body } = c;
    let (mut bytes, mut share) = body.into_parts();
    let mut own = Own::default();
    let peeked = peek(&mut share, &bytes, dialect).await?.map(|peeked| {
        own = peeked.own;
        bytes = peeked.body.unwrap_or_else(|| bytes.clone());
        peeked.request
    });
    let peeked = peeked.filter(|r| passes(gateway, r, dialect));
    let request = match peeked {
        // A body that cannot be parsed here is forwarded unchanged; its stream cannot be continued if it breaks off.
        Some(request) if request.stream && gateway.continues_streams(&request.model) => {
            body::parse_bytes(&app.memory_budget, &mut share, bytes.clone(), parse).await.unwrap_or(request)
        }
        Some(request) => request,
        None => body::parse_bytes(&app.memory_budget, &mut share, bytes.clone(), parse).await?,
    };
    let context = sender.context(app.memory_budget.shared(share), own);
    parsed(&app, gateway, context, request, Some((dialect, bytes)), form).await
}

/// Whether a client's bytes may be forwarded. A stream that hooks see is parsed, so that it can be changed.
pub fn passes(gateway: &Gateway, request: &GenerateRequest, wire: Wire) -> bool {
    let may_pass = !request.stream || gateway.answer_hooks().is_empty();
    may_pass && gateway.passes(gateway.name(&request.model), wire)
}

/// Reads the fields of a body that routing needs; `None` if they are invalid.
pub async fn peek(
    share: &mut MemoryPermit,
    bytes: &Bytes,
    dialect: Wire,
) -> Result<Option<read::Peeked>, ApiError> {
    body::read_bytes(share, bytes, move |bytes| read::peek(bytes, dialect)).await
}

/// Answers a parsed request for text. `original` has its bytes, if they may be forwarded unchanged.
pub async fn parsed(
    app: &Arc<App>,
    gateway: &Arc<Gateway>,
    context: RequestContext,
    request: GenerateRequest,
    original: Option<(Wire, Bytes)>,
    form: Form,
) -> Result<Response, ApiError> {
    let context = context.with_tags();
    let cached_as = context.own.cached_as.as_ref().or(original.as_ref());
    let hooks = gateway.answer_hooks();
    let check = (!hooks.is_empty()).then(|| Check {
        gateway: Arc::clone(gateway),
        hooks,
        about: About::of(gateway, &context.sender),
        asked: cached_as.map(|(_, body)| body.clone()),
        form,
        bytes_max: app.options.body_bytes_max,
    });
    let lookup = match cached_as {
        Some((dialect, body)) => {
            let body = (*dialect, body);
            gateway.lookup(&app.memory_budget, &context, &request, body, form.stream_type).await?
        }
        None => None,
    };
    let original = original.filter(|_| !(request.stream && check.is_some()));
    let original = original.map(|(dialect, body)| Original::new(dialect, body));
    let mut routed_request = start(app, gateway, context, request, original)?;
    if let Some(lookup) = lookup {
        if let Some(answer) = lookup.get().await {
            routed_request.answered_from_cache();
            let body = Body::from(answer);
            let stream = routed_request.request().stream;
            let mut response = if stream { streamed(body, form) } else { json(200, body) };
            write_facts(from_cache(&lookup), &mut response);
            return Ok(response);
        }
        routed_request.keep(lookup);
    }
    // Streams get keep-alives until a deployment answers; the headers are then already sent and cannot name the model.
    let most = routed_request.request().stream.then_some(KEEP_ALIVE);
    routed_request.decide(most).await?;
    let Some(check) = check else { return respond(app, routed_request, form).await };
    let mut checked = CheckedAnswer::new(routed_request, check);
    checked.decide(most).await?;
    respond(app, checked, form).await
}

/// Answers a request whose answer is one piece in its own dialect: embeddings, token counts.
pub async fn ready(gateway: &Arc<Gateway>, c: Call, dialect: Wire) -> Result<Response, ApiError> {
    let Call { app, sender, body } = c;
    let (mut response, facts) = match answered(&app, gateway, sender, dialect, body.into_parts()).await? {
        Answered::Cached(bytes, facts) => (json(200, bytes), facts),
        Answered::By(mut source) => {
            let facts = source.facts();
            let response = if source.flows() { flowing(*source) } else { json(200, collect(*source).await?) };
            (response, facts)
        }
    };
    write_facts(facts, &mut response);
    Ok(response)
}

/// What answers a request whose answer is one piece.
enum Answered {
    /// The response cache.
    Cached(Bytes, Facts),
    /// A deployment.
    By(Box<RoutedRequest>),
}

/// The same, as bytes.
pub async fn bytes(
    app: &Arc<App>,
    gateway: &Arc<Gateway>,
    sender: Sender,
    dialect: Wire,
    parts: (Bytes, MemoryPermit),
) -> Result<(Bytes, Facts), ApiError> {
    match answered(app, gateway, sender, dialect, parts).await? {
        Answered::Cached(bytes, facts) => Ok((bytes, facts)),
        Answered::By(mut source) => {
            let facts = source.facts();
            Ok((collect(*source).await?, facts))
        }
    }
}

/// The pieces of an answer as one.
async fn collect(mut source: RoutedRequest) -> Result<Bytes, ApiError> {
    let (mut first, mut more) = (None, BytesMut::new());
    while let Some(piece) = source.next().await {
        match piece {
            Piece::Raw(bytes) if first.is_none() => first = Some(bytes),
            Piece::Raw(bytes) => more.extend_from_slice(&bytes),
            Piece::Event(octet_api::core::Event::Error(e)) => return Err(e),
            Piece::Event(_) => {}
        }
    }
    let first = first.ok_or_else(|| ApiError::new(ErrorKind::Upstream, "nothing was answered"))?;
    let out = if more.is_empty() { first } else { [first, more.freeze()].concat().into() };
    source.wrote(&out);
    source.finished();
    Ok(out)
}

/// Routes a request whose answer is one piece.
async fn answered(
    app: &Arc<App>,
    gateway: &Arc<Gateway>,
    sender: Sender,
    dialect: Wire,
    (body, mut share): (Bytes, MemoryPermit),
) -> Result<Answered, ApiError> {
    let peeked = peek(&mut share, &body, dialect).await?;
    let Some(read::Peeked { request, own, body: left }) = peeked else {
        // Parsed fully to report what is wrong.
        let check = move |body: &[u8]| read::check(dialect, body);
        let request = body::parse_bytes(&app.memory_budget, &mut share, body, check).await;
        return Err(request.err().unwrap_or_else(|| ApiError::invalid("model", "'model' is missing")));
    };
    let request = GenerateRequest { stream: false, ..request };
    let context = sender.context(app.memory_budget.shared(share), own).with_tags();
    let body = left.unwrap_or(body);
    let lookup = gateway.lookup(&app.memory_budget, &context, &request, (dialect, &body), "").await?;
    let mut routed_request = start(app, gateway, context, request, Some(Original::new(dialect, body)))?;
    if let Some(lookup) = lookup {
        if let Some(answer) = lookup.get().await {
            routed_request.answered_from_cache();
            return Ok(Answered::Cached(answer, from_cache(&lookup)));
        }
        routed_request.keep(lookup);
    }
    routed_request.decide(None).await?;
    Ok(Answered::By(Box::new(routed_request)))
}

/// Facts about an answer from the response cache.
fn from_cache(lookup: &Lookup) -> Facts {
    Facts { route: Some("cache".into()), response_cache: Some((lookup.key(), true)), ..Facts::default() }
}

/// Forwards a request that cannot be parsed here, and streams the answer back unread.
pub async fn unread(
    app: &Arc<App>,
    gateway: &Arc<Gateway>,
    context: RequestContext,
    request: GenerateRequest,
    original: Original,
) -> Result<Response, ApiError> {
    // The answer is streamed as it arrives.
    let request = GenerateRequest { stream: true, ..request };
    let mut routed_request = start(app, gateway, context.with_tags(), request, Some(original))?;
    routed_request.decide(None).await?;
    let facts = routed_request.facts();
    let headers = routed_request.headers().cloned().unwrap_or_default();
    let mut response = stream_unread(&headers, routed_request, |mut routed_request| async move {
        let piece = routed_request.next().await?;
        let piece = match piece {
            Piece::Raw(bytes) => Ok(bytes),
            Piece::Event(octet_api::core::Event::Error(e)) => Err(std::io::Error::other(e.message)),
            Piece::Event(_) => Ok(Bytes::new()),
        };
        Some((piece, routed_request))
    });
    write_facts(facts, &mut response);
    Ok(response)
}

/// Headers of a provider's answer that are passed on to the client.
const PASSED_ON: [HeaderName; 4] =
    [CONTENT_TYPE, CONTENT_DISPOSITION, CACHE_CONTROL, HeaderName::from_static("openai-processing-ms")];

/// Streams an answer without reading it.
pub fn stream_unread<S, F, R>(headers: &HeaderMap, source: S, next: F) -> Response
where
    S: Send + 'static,
    F: FnMut(S) -> R + Send + 'static,
    R: Future<Output = Option<(Result<Bytes, std::io::Error>, S)>> + Send + 'static,
{
    let mut response = Response::new(Body::from_stream(unfold(source, next)));
    for name in PASSED_ON {
        if let Some(value) = headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

/// Starts a request; `original` gets the client's headers. Both hold the memory permit: threads may still work on copies of them when the
/// client has disconnected.
fn start(
    app: &Arc<App>,
    gateway: &Arc<Gateway>,
    context: RequestContext,
    request: GenerateRequest,
    original: Option<Original>,
) -> Result<RoutedRequest, ApiError> {
    let model = match request.model.as_str() {
        "" => app.sole_name(&context.sender.caller)?,
        name => gateway.name(name).to_string(),
    };
    // Keep-alive affects all clients: virtual keys cannot change it.
    let keep_alive = request.keep_alive.filter(|_| matches!(context.sender.caller, Caller::Trusted));
    let memory = context.memory.clone();
    let original =
        original.map(|original| Original { body: holding(original.body.clone(), &memory), ..original });
    let request = Arc::new(GenerateRequest { model, keep_alive, memory, ..request });
    RoutedRequest::start(gateway, context, &request, original)
}
