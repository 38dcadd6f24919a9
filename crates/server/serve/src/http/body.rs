//! Request bodies: reads them with limits on length and time and within a shared memory budget, and refuses those that claim not to be
//! JSON.

use std::collections::BTreeMap;
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
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::error::UNSUPPORTED_MEDIA_TYPE;
use crate::blocking::run_sized;
use crate::connections::{Activity, BodyError};
use crate::fields::{FIELDS_MAX, Fields};
use crate::memory_budget::{MemoryBudget, MemoryPermit};
use crate::observed::observed;

/// Sent by browsers: the relation between the page and this server.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// `Retry-After` for a client whose connection was evicted.
const RETRY_S: u64 = 1;

/// A model named by the path; it takes precedence over the body's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathModel(pub String);

/// A complete body, with its memory permit.
#[derive(Debug)]
pub struct BufferedBody {
    bytes: Bytes,
    share: MemoryPermit,
    memory_budget: MemoryBudget,
}

impl BufferedBody {
    /// Whether the JSON object has this field.
    pub async fn has(&mut self, field: &'static str) -> Result<bool, ApiError> {
        let has = move |bytes: &Bytes| has_field(bytes, field);
        read_bytes(&mut self.share, &self.bytes, has).await
    }

    /// The value of the field `model`.
    pub async fn model(&mut self) -> Result<Option<String>, ApiError> {
        #[derive(serde::Deserialize)]
        struct Named {
            model: String,
        }
        let model = |bytes: &Bytes| serde_json::from_slice::<Named>(bytes).ok().map(|named| named.model);
        read_bytes(&mut self.share, &self.bytes, model).await
    }

    /// The bytes and their memory permit, which must live as long as they do.
    pub fn into_parts(self) -> (Bytes, MemoryPermit) {
        (self.bytes, self.share)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Another body instead, within the same limits of memory.
    pub fn replaced(mut self, bytes: Bytes) -> Result<Self, ApiError> {
        self.memory_budget.take_body(&mut self.share, bytes.len())?;
        self.bytes = bytes;
        Ok(self)
    }

    /// The same body with the path's model.
    pub async fn with_model(self, model: PathModel) -> Result<Self, ApiError> {
        self.with_fields(vec![("model", model.0.into())]).await
    }

    /// The same body with these fields set.
    pub async fn with_fields(mut self, fields: Vec<(&'static str, Value)>) -> Result<Self, ApiError> {
        let insert = move |bytes: &Bytes| insert_fields(bytes, &fields);
        if let Some(bytes) = read_bytes(&mut self.share, &self.bytes, insert).await?? {
            self.bytes = bytes.into();
        }
        Ok(self)
    }
}

/// Whether a body is an object with this field. Nothing else of it is stored.
fn has_field(body: &[u8], field: &str) -> bool {
    struct Has<'f>(&'f str);
    impl<'de> Visitor<'de> for Has<'_> {
        type Value = bool;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
            let mut has = false;
            while let Some(name) = map.next_key::<String>()? {
                has |= name == self.0;
                map.next_value::<IgnoredAny>()?;
            }
            Ok(has)
        }
    }
    let mut body = serde_json::Deserializer::from_slice(body);
    body.deserialize_map(Has(field)).is_ok_and(|has| has && body.end().is_ok())
}

/// A body with these fields set. `None` for a body that is not an object: the endpoint refuses it.
fn insert_fields(body: &[u8], added: &[(&str, Value)]) -> Result<Option<Vec<u8>>, ApiError> {
    let Ok(Fields(fields)) = serde_json::from_slice(body) else { return Ok(None) };
    let fields = fields.ok_or_else(|| {
        ApiError::new(ErrorKind::InvalidRequest, format!("the body has more than {FIELDS_MAX} fields"))
    })?;
    let mut fields = BTreeMap::from_iter(fields);
    let raw = |value: &Value| serde_json::value::to_raw_value(value).ok();
    let values: Vec<_> = added.iter().filter_map(|(name, value)| Some((*name, raw(value)?))).collect();
    for (name, value) in &values {
        fields.insert((*name).into(), value);
    }
    Ok(serde_json::to_vec(&fields).ok())
}

/// Reads the body of a request.
pub async fn read(
    request: Request,
    bytes_max: usize,
    memory_budget: &MemoryBudget,
) -> Result<BufferedBody, ApiError> {
    let (head, body) = request.into_parts();
    check_type(&head.headers)?;
    let length = head.headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|n| n > bytes_max as u64) {
        return Err(too_large(bytes_max));
    }
    gather(body, bytes_max, memory_budget).await
}

async fn gather(
    mut body: Body,
    bytes_max: usize,
    memory_budget: &MemoryBudget,
) -> Result<BufferedBody, ApiError> {
    let (mut bytes, mut share) = (Vec::new(), MemoryPermit::default());
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|e| broken(&e))?;
        // Trailers are ignored.
        if let Ok(data) = frame.into_data() {
            let len = bytes.len() + data.len();
            if len > bytes_max {
                return Err(too_large(bytes_max));
            }
            memory_budget.take_body(&mut share, len)?;
            bytes.extend_from_slice(&data);
        }
    }
    Ok(BufferedBody { bytes: bytes.into(), share, memory_budget: memory_budget.clone() })
}

/// The error for a body that could not be read to its end.
pub fn broken(e: &(dyn std::error::Error + 'static)) -> ApiError {
    let mut causes = std::iter::successors(Some(e), |e| e.source());
    let why = causes.find_map(|e| e.downcast_ref::<BodyError>());
    match why {
        Some(slow @ BodyError::Slow) => ApiError::new(ErrorKind::ClientTimeout, slow.to_string()),
        Some(evicted @ BodyError::Evicted) => {
            let error = ApiError::new(ErrorKind::Overloaded, evicted.to_string());
            ApiError { retry_after_s: Some(RETRY_S), ..error }
        }
        Some(broken) => ApiError::new(ErrorKind::InvalidRequest, broken.to_string()),
        None => ApiError::new(ErrorKind::InvalidRequest, format!("the request body ended early: {e}")),
    }
}

fn too_large(bytes_max: usize) -> ApiError {
    ApiError::new(
        ErrorKind::TooLarge,
        format!("the request body exceeds the maximum size of {bytes_max} bytes"),
    )
}

/// Content types that clients send by default, whatever the body: curl's `-d`, and several libraries for bytes.
const UNTYPED: [&str; 4] =
    ["application/x-www-form-urlencoded", "application/octet-stream", "text/plain", "text/json"];

/// Web pages must declare JSON: for other types browsers send the request without a preflight. Pages are recognised by `Origin`. Other
/// clients may omit the type (litellm's client for Ollama does) or send a default one.
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

/// Parses a body by its dialect's rules. The returned memory permit must live as long as the result.
pub async fn parse<T: Send + 'static>(
    body: BufferedBody,
    with: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, MemoryPermit), ApiError> {
    let BufferedBody { bytes, mut share, memory_budget } = body;
    Ok((parse_bytes(&memory_budget, &mut share, bytes, with).await?, share))
}

/// The same for bytes that are kept beside the result, with their permit.
pub async fn parse_bytes<T: Send + 'static>(
    memory_budget: &MemoryBudget,
    share: &mut MemoryPermit,
    bytes: Bytes,
    with: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let len = bytes.len();
    parse_of(memory_budget, share, bytes, len, with).await
}

/// The same where `with` may read `len` bytes, some of them from elsewhere.
pub async fn parse_of<T: Send + 'static>(
    memory_budget: &MemoryBudget,
    share: &mut MemoryPermit,
    bytes: Bytes,
    len: usize,
    with: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let memory_budget = memory_budget.clone();
    read_with(share, len, move |share| {
        memory_budget.take_values(share, &bytes)?;
        with(&bytes)
    })
    .await?
}

/// Reads a body that is kept beside the result.
pub async fn read_bytes<T: Send + 'static>(
    share: &mut MemoryPermit,
    bytes: &Bytes,
    read: impl FnOnce(&Bytes) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let bytes = bytes.clone();
    read_with(share, bytes.len(), move |_| read(&bytes)).await
}

/// Runs `read`, which reads `len` bytes: here, or on a blocking thread if they are many. That keeps the memory permit until it is done,
/// even if the client disconnects.
async fn read_with<T: Send + 'static>(
    share: &mut MemoryPermit,
    len: usize,
    read: impl FnOnce(&mut MemoryPermit) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let mut own = std::mem::take(share);
    let read = move || {
        let out = read(&mut own);
        (out, own)
    };
    let (out, own) = run_sized(len, read).await?;
    *share = own;
    Ok(out)
}

/// Middleware: if `answer` is ready before the whole request has arrived, the connection is closed after it.
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
        let with = |body: &str| insert_fields(body.as_bytes(), &[("model", "m\"".into())]).unwrap();
        let expected = br#"{"a":1.0,"model":"m\""}"#;
        assert_eq!(with(r#"{"a": 1.0,"model":"x"}"#).as_deref(), Some(&expected[..]));
        assert_eq!(with("[1]"), None);
    }

    #[test]
    fn outermost_fields_are_counted_before_they_take_memory() {
        let body = |n: usize| {
            let fields: Vec<_> = (0..n).map(|i| format!("\"{i}\": 1")).collect();
            format!("{{{}}}", fields.join(","))
        };
        let set = |n| insert_fields(body(n).as_bytes(), &[("model", "m".into())]);
        assert!(set(FIELDS_MAX).unwrap().is_some());
        let many = set(FIELDS_MAX + 1).unwrap_err();
        assert!(many.kind == ErrorKind::InvalidRequest && many.message.contains("4096 fields"), "{many}");
        let many = body(FIELDS_MAX + 1);
        assert!(has_field(many.as_bytes(), "4096") && !has_field(many.as_bytes(), "4097"));
        for not in ["[\"a\"]", "{\"a\": 1", "{\"a\": 1} x", "{\"b\": {\"a\": 1}}"] {
            assert!(!has_field(not.as_bytes(), "a"), "{not}");
        }
        assert!(has_field(br#"{"\u0061": 1}"#, "a"));
    }
}
