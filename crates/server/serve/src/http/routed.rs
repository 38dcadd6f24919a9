//! Requests that the router answers, where there is one. Called by the endpoints.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::stream::unfold;
use hyper::HeaderMap;
use hyper::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE, HeaderName};
use octet_api::core::GenerateRequest;
use octet_api::{ApiError, ErrorKind};
use octet_router::{Dialect as Wire, Original, Piece};

use super::body;
use super::call::Call;
use super::error::json;
use super::reply::{Form, KEEP_ALIVE, respond, streamed, write_facts};
use crate::answer_source::{AnswerSource, Facts};
use crate::app::App;
use crate::gateway::read::{self, Own};
use crate::gateway::{Caller, Gateway, Lookup, RequestContext, RoutedRequest};

/// A request for text as an endpoint takes it.
pub struct Asked {
    /// What it is written in.
    pub dialect: Wire,
    /// Reads it.
    pub parse: fn(&[u8]) -> Result<GenerateRequest, ApiError>,
    /// Writes its answer.
    pub form: Form,
}

/// A request for text. Little is read of it where a provider of its dialect answers.
pub async fn asked(gateway: &Arc<Gateway>, c: Call, asked: Asked) -> Result<Response, ApiError> {
    let Asked { dialect, parse, form } = asked;
    let Call { app, trace, caller, headers, body } = c;
    let (mut bytes, mut share) = body.into_parts();
    let mut own = Own::default();
    let peeked = read::peek(&bytes, dialect).map(|peeked| {
        own = peeked.own;
        bytes = peeked.body.unwrap_or_else(|| bytes.clone());
        peeked.request
    });
    let peeked = peeked.filter(|r| gateway.passes(&r.model, dialect));
    let request = match peeked {
        // What nobody here understands goes on as it is, and is not gone on with where it breaks off.
        Some(request) if request.stream && gateway.mends(&request.model) => {
            body::parse_bytes(&app.memory_budget, &mut share, bytes.clone(), parse).await.unwrap_or(request)
        }
        Some(request) => request,
        None => body::parse_bytes(&app.memory_budget, &mut share, bytes.clone(), parse).await?,
    };
    let asker = RequestContext { trace: &trace, caller: &caller, headers: &headers, share, own };
    parsed(&app, gateway, asker, request, Some((dialect, bytes)), form).await
}

/// A request for text that is handed on as it is, if the model's providers speak its dialect.
pub async fn passing(
    app: &Arc<App>,
    gateway: &Arc<Gateway>,
    asker: RequestContext<'_>,
    dialect: Wire,
    body: Bytes,
    form: Form,
) -> Result<Response, ApiError> {
    let Some(read::Peeked { request, .. }) = read::peek(&body, dialect) else {
        return Err(ApiError::invalid("model", "'model' is missing"));
    };
    parsed(app, gateway, asker, request, Some((dialect, body)), form).await
}

/// A request for text that has been read. `original` is it as it came, where it may go on as that.
pub async fn parsed(
    app: &Arc<App>,
    gateway: &Arc<Gateway>,
    asker: RequestContext<'_>,
    request: GenerateRequest,
    original: Option<(Wire, Bytes)>,
    form: Form,
) -> Result<Response, ApiError> {
    let asker = asker.with_tags();
    let cached_as = asker.own.cached_as.as_ref().or(original.as_ref());
    let lookup = cached_as.and_then(|(dialect, body)| {
        gateway.lookup(asker.caller, asker.headers, &request, &asker.own, (*dialect, body), form.stream_type)
    });
    let mut routed_request = enter(app, gateway, asker, request, original.map(json_original))?;
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
    // A stream says that it is alive while nobody has answered yet; then its headers cannot say who did.
    let most = routed_request.request().stream.then_some(KEEP_ALIVE);
    routed_request.decide(most).await?;
    respond(app, routed_request, form).await
}

/// A request whose answer comes in one piece, in its dialect, whoever answers: vectors, counts of tokens.
pub async fn ready(gateway: &Arc<Gateway>, c: Call, dialect: Wire) -> Result<Response, ApiError> {
    let Call { app, trace, caller, headers, body } = c;
    let (body, share) = body.into_parts();
    let asker =
        RequestContext { trace: &trace, caller: &caller, headers: &headers, share, own: Own::default() };
    let (got, facts) = bytes(&app, gateway, asker, dialect, body).await?;
    let mut response = json(200, got);
    write_facts(facts, &mut response);
    Ok(response)
}

/// The same as bytes.
pub async fn bytes(
    app: &Arc<App>,
    gateway: &Arc<Gateway>,
    asker: RequestContext<'_>,
    dialect: Wire,
    body: Bytes,
) -> Result<(Bytes, Facts), ApiError> {
    let Some(read::Peeked { request, own, body: left }) = read::peek(&body, dialect) else {
        // To say what is wrong with it.
        let original = Original { dialect, headers: HeaderMap::new(), body, upload: None };
        let request = read::check(&original);
        return Err(request.err().unwrap_or_else(|| ApiError::invalid("model", "'model' is missing")));
    };
    let request = GenerateRequest { stream: false, ..request };
    let (asker, body) = (RequestContext { own, ..asker }.with_tags(), left.unwrap_or(body));
    let lookup = gateway.lookup(asker.caller, asker.headers, &request, &asker.own, (dialect, &body), "");
    let mut routed_request = enter(app, gateway, asker, request, Some(json_original((dialect, body))))?;
    if let Some(lookup) = lookup {
        if let Some(answer) = lookup.get().await {
            routed_request.answered_from_cache();
            return Ok((answer, from_cache(&lookup)));
        }
        routed_request.keep(lookup);
    }
    routed_request.decide(None).await?;
    let facts = routed_request.facts();
    let mut out = None;
    while let Some(piece) = routed_request.next().await {
        match piece {
            Piece::Raw(bytes) => out = Some(bytes),
            Piece::Event(octet_api::core::Event::Error(e)) => return Err(e),
            Piece::Event(_) => {}
        }
    }
    let out = out.ok_or_else(|| ApiError::new(ErrorKind::Upstream, "nothing was answered"))?;
    routed_request.wrote(&out);
    routed_request.finished();
    Ok((out, facts))
}

/// What is known of an answer from the cache of responses.
fn from_cache(lookup: &Lookup) -> Facts {
    Facts { route: Some("cache".into()), response_cache: Some((lookup.key(), true)), ..Facts::default() }
}

/// A request as it came, without its headers.
fn json_original((dialect, body): (Wire, Bytes)) -> Original {
    Original { dialect, headers: HeaderMap::new(), body, upload: None }
}

/// A request that nobody here understands: it goes on as it is, and so does what is answered, in the pieces in which it comes.
pub async fn unread(
    app: &Arc<App>,
    gateway: &Arc<Gateway>,
    asker: RequestContext<'_>,
    request: GenerateRequest,
    original: Original,
) -> Result<Response, ApiError> {
    // Handed out as it comes.
    let request = GenerateRequest { stream: true, ..request };
    let mut routed_request = enter(app, gateway, asker.with_tags(), request, Some(original))?;
    routed_request.decide(None).await?;
    let facts = routed_request.facts();
    let headers = routed_request.headers().cloned().unwrap_or_default();
    let mut response = as_it_comes(&headers, routed_request, |mut routed_request| async move {
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

/// Headers of another server's answer that are its client's business.
const PASSED_ON: [HeaderName; 4] =
    [CONTENT_TYPE, CONTENT_DISPOSITION, CACHE_CONTROL, HeaderName::from_static("openai-processing-ms")];

/// An answer of which nothing is read.
pub fn as_it_comes<S, F, R>(headers: &HeaderMap, source: S, next: F) -> Response
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

/// `original` gets the asker's headers.
fn enter(
    app: &Arc<App>,
    gateway: &Arc<Gateway>,
    asker: RequestContext<'_>,
    request: GenerateRequest,
    original: Option<Original>,
) -> Result<RoutedRequest, ApiError> {
    let model = match request.model.as_str() {
        "" => app.sole_name(asker.caller)?,
        name => gateway.name(name).to_string(),
    };
    // How long a model stays is everybody's affair: no virtual key changes it.
    let keep_alive = request.keep_alive.filter(|_| matches!(asker.caller, Caller::Trusted));
    let request = Arc::new(GenerateRequest { model, keep_alive, ..request });
    let headers = || asker.headers.clone();
    let original = original.map(|o| Original { headers: headers(), ..o });
    RoutedRequest::enter(app, gateway, asker, &request, original)
}
