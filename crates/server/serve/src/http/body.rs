//! Bodies of requests: read with limits for length and time, within one memory budget for all of them, and only where
//! they say that they are JSON. Used by all endpoints that take one.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::Response;
use http_body::Body as _;
use hyper::HeaderMap;
use hyper::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, ORIGIN,
};
use octet_api::{ApiError, ErrorKind, shortened};
use serde_json::Value;
use serde_json::value::RawValue;

use super::error::UNSUPPORTED_MEDIA_TYPE;
use crate::connections::{Activity, BodyError};
use crate::memory_budget::{MemoryBudget, MemoryPermit};
use crate::observed::observed;

/// Browsers say with it where a request comes from.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// When a client may come again whose connection was needed.
const RETRY_S: u64 = 1;
/// Longer bodies are read where they hold nobody up.
const PARSE_INLINE_MAX: usize = 256 << 10;

/// The model that a path names; it beats the one that the body names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathModel(pub String);

/// A body that has come, with its memory permit.
#[derive(Debug)]
pub struct Held {
    bytes: Vec<u8>,
    share: MemoryPermit,
    memory_budget: MemoryBudget,
}

impl Held {
    /// Whether the object has a field of its own.
    pub fn has(&self, field: &str) -> bool {
        serde_json::from_slice::<HashMap<Cow<'_, str>, &RawValue>>(&self.bytes)
            .is_ok_and(|o| o.contains_key(field))
    }

    /// The model that it names.
    pub fn model(&self) -> Option<String> {
        #[derive(serde::Deserialize)]
        struct Named {
            model: String,
        }
        serde_json::from_slice::<Named>(&self.bytes).ok().map(|named| named.model)
    }

    /// The bytes and their memory permit, which must live as long as they do.
    pub fn into_parts(self) -> (Bytes, MemoryPermit) {
        (self.bytes.into(), self.share)
    }

    /// The same body with the model that the path names.
    pub fn naming(self, model: &PathModel) -> Self {
        self.saying(&[("model", model.0.as_str().into())])
    }

    /// The same body with these fields.
    pub fn saying(self, fields: &[(&str, Value)]) -> Self {
        Self { bytes: with_fields(self.bytes, fields), ..self }
    }

    fn push(&mut self, data: &[u8], bytes_max: usize) -> Result<(), ApiError> {
        let len = self.bytes.len() + data.len();
        if len > bytes_max {
            return Err(too_large(bytes_max));
        }
        self.memory_budget.take_body(&mut self.share, len)?;
        self.bytes.extend_from_slice(data);
        Ok(())
    }
}

/// A body with what the path says in it. What is no object is left for the endpoint to complain about.
fn with_fields(body: Vec<u8>, said: &[(&str, Value)]) -> Vec<u8> {
    let Ok(mut fields) = serde_json::from_slice::<BTreeMap<String, &RawValue>>(&body) else {
        return body;
    };
    let raw = |value: &Value| serde_json::value::to_raw_value(value).ok();
    let values: Vec<_> = said.iter().filter_map(|(name, value)| Some((*name, raw(value)?))).collect();
    for (name, value) in &values {
        fields.insert((*name).into(), value);
    }
    serde_json::to_vec(&fields).unwrap_or_else(|_| body.clone())
}

/// The body of a request.
pub async fn read(
    request: Request,
    bytes_max: usize,
    memory_budget: &MemoryBudget,
) -> Result<Held, ApiError> {
    let (head, body) = request.into_parts();
    check_type(&head.headers)?;
    let length = head.headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|n| n > bytes_max as u64) {
        return Err(too_large(bytes_max));
    }
    gather(body, bytes_max, memory_budget).await
}

async fn gather(mut body: Body, bytes_max: usize, memory_budget: &MemoryBudget) -> Result<Held, ApiError> {
    let mut held =
        Held { bytes: Vec::new(), share: MemoryPermit::default(), memory_budget: memory_budget.clone() };
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|e| broken(&e))?;
        // Trailers say nothing to us.
        if let Ok(data) = frame.into_data() {
            held.push(&data, bytes_max)?;
        }
    }
    Ok(held)
}

/// Why no more of a body comes; `connections` says how long one is waited for.
pub fn broken(e: &(dyn std::error::Error + 'static)) -> ApiError {
    let mut causes = std::iter::successors(Some(e), |e| e.source());
    let why = causes.find_map(|e| e.downcast_ref::<BodyError>());
    match why {
        Some(slow @ BodyError::Slow) => ApiError::new(ErrorKind::Timeout, slow.to_string()),
        Some(taken @ BodyError::MadeWay) => {
            let error = ApiError::new(ErrorKind::Overloaded, taken.to_string());
            ApiError { retry_after_s: Some(RETRY_S), ..error }
        }
        Some(broken) => ApiError::new(ErrorKind::InvalidRequest, broken.to_string()),
        None => ApiError::new(ErrorKind::InvalidRequest, format!("the body broke off: {e}")),
    }
}

fn too_large(bytes_max: usize) -> ApiError {
    ApiError::new(
        ErrorKind::TooLarge,
        format!("the body is longer than the {bytes_max} bytes that the server takes"),
    )
}

/// What programs send that mean nothing by it: curl's `-d`, and several libraries' bytes.
const UNTYPED: [&str; 4] =
    ["application/x-www-form-urlencoded", "application/octet-stream", "text/plain", "text/json"];

/// A web page must say that a body is JSON: browsers send other types to any address without asking it first, and name the page in `Origin`.
/// Others need not say (litellm's client for Ollama does not), or may say what means nothing.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let unsupported = |what: String| {
        let error = ApiError::new(ErrorKind::InvalidRequest, what);
        Err(ApiError { code: Some(UNSUPPORTED_MEDIA_TYPE.into()), ..error })
    };
    if let Some(encoding) = headers.get(CONTENT_ENCODING).filter(|e| !e.is_empty() && *e != "identity") {
        let sent = shortened(encoding.to_str().unwrap_or(""));
        return unsupported(format!("the body's content encoding is '{sent}'; send it without compression"));
    }
    let is_page = headers.contains_key(ORIGIN) || headers.contains_key(FETCH_SITE);
    let sent = match headers.get(CONTENT_TYPE) {
        Some(sent) => sent.to_str().unwrap_or(""),
        None if is_page => "",
        None => return Ok(()),
    };
    let kind = sent.split(';').next().unwrap_or("").trim();
    let is_json = kind.eq_ignore_ascii_case("application/json")
        || kind.get(kind.len().saturating_sub(5)..).is_some_and(|end| end.eq_ignore_ascii_case("+json"));
    if is_json || !is_page && UNTYPED.iter().any(|t| kind.eq_ignore_ascii_case(t)) {
        return Ok(());
    }
    unsupported(format!(
        "the content type is '{}'; send JSON, with the header 'content-type: application/json'",
        shortened(sent)
    ))
}

/// Reads a body by its dialect's rules. The memory permit that comes with it must live as long as what was read.
pub async fn parse<T: Send + 'static>(
    body: Held,
    with: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, MemoryPermit), ApiError> {
    let Held { bytes, mut share, memory_budget } = body;
    Ok((parse_bytes(&memory_budget, &mut share, bytes.into(), with).await?, share))
}

/// The same of bytes that are kept beside what is made of them, with their permit of `memory_budget`.
pub async fn parse_bytes<T: Send + 'static>(
    memory_budget: &MemoryBudget,
    share: &mut MemoryPermit,
    bytes: Bytes,
    with: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if bytes.len() <= PARSE_INLINE_MAX {
        memory_budget.take_values(share, &bytes)?;
        return with(&bytes);
    }
    let (memory_budget, mut own) = (memory_budget.clone(), std::mem::take(share));
    let read = tokio::task::spawn_blocking(move || {
        let parsed = memory_budget.take_values(&mut own, &bytes).and_then(|()| with(&bytes));
        (parsed, own)
    });
    let (parsed, own) = read.await.map_err(|e| ApiError::new(ErrorKind::Internal, e.to_string()))?;
    *share = own;
    parsed
}

/// Around all endpoints: where `answer` comes before all of its request has come, the connection ends behind it.
pub async fn part<F: Future<Output = Response>>(
    request: Request,
    answer: impl FnOnce(Request) -> F,
) -> Response {
    let connection = request.extensions().get::<Arc<Activity>>().cloned();
    let whole = Arc::new(AtomicBool::new(request.body().is_end_stream()));
    let came = Arc::clone(&whole);
    let request =
        request.map(|inner| Body::new(observed(inner, move || came.store(true, Ordering::Relaxed))));
    let mut response = answer(request).await;
    if !whole.load(Ordering::Relaxed) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        if let Some(connection) = connection {
            connection.set_unread();
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_s_model_beats_the_body_s() {
        let with =
            |body: &str| String::from_utf8(with_fields(body.into(), &[("model", "m\"".into())])).unwrap();
        assert_eq!(with(r#"{"a": 1.0,"model":"x"}"#), r#"{"a":1.0,"model":"m\""}"#);
        assert_eq!(with("[1]"), "[1]");
    }
}
