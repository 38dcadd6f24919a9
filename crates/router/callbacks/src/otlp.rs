//! Records as OpenTelemetry spans: one per request, by the conventions for generative AI, with a child span per tried deployment.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use prost::Message;

use crate::record::{Error, Record};

/// A request to `/v1/traces`, in protobuf.
pub fn body(batch: &[Arc<Record>], service: &str) -> Vec<u8> {
    let mut spans = Vec::new();
    for record in batch {
        request(record, &mut spans);
    }
    let scope = InstrumentationScope {
        name: "octet".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..Default::default()
    };
    let resource = Resource { attributes: vec![text("service.name", service)], ..Default::default() };
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..Default::default() }];
    let resource_spans = vec![ResourceSpans { resource: Some(resource), scope_spans, ..Default::default() }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}

/// The spans of a request: its own, and one per attempt.
fn request(r: &Record, out: &mut Vec<Span>) {
    let context = &r.context;
    out.push(Span {
        trace_id: context.trace.to_vec(),
        span_id: context.span.to_vec(),
        parent_span_id: context.parent.map_or_else(Vec::new, |p| p.to_vec()),
        name: format!("{} {}", r.operation, r.requested_model),
        kind: SpanKind::Server.into(),
        start_time_unix_nano: nanos(r.began),
        end_time_unix_nano: nanos(r.began + r.took),
        attributes: attributes(r),
        status: Some(status(r.error.as_ref())),
        ..Default::default()
    });
    for (n, attempt) in r.attempts.iter().enumerate() {
        let mut attributes = vec![
            text("gen_ai.operation.name", r.operation),
            text("octet.deployment", &attempt.deployment),
            text("octet.group", &attempt.group),
            count("octet.attempt", n as u64 + 1),
        ];
        error(attempt.error.as_ref(), &mut attributes);
        let began = r.began + attempt.after;
        out.push(Span {
            trace_id: context.trace.to_vec(),
            span_id: below(context.span, n).to_vec(),
            parent_span_id: context.span.to_vec(),
            name: format!("attempt {}", attempt.deployment),
            kind: SpanKind::Client.into(),
            start_time_unix_nano: nanos(began),
            end_time_unix_nano: nanos(began + attempt.took),
            attributes,
            status: Some(status(attempt.error.as_ref())),
            ..Default::default()
        });
    }
}

/// The attributes of a request's own span.
fn attributes(r: &Record) -> Vec<KeyValue> {
    let mut attributes = vec![
        text("gen_ai.operation.name", r.operation),
        text("gen_ai.request.model", &r.requested_model),
        flag("gen_ai.request.stream", r.stream),
        text("octet.request.id", &r.id),
        number("gen_ai.usage.cost", r.cost),
        flag("octet.response_cache.hit", r.cached),
    ];
    if let Some(answered) = &r.answered {
        attributes.extend([
            text("gen_ai.provider.name", &answered.provider),
            text("gen_ai.system", &answered.provider),
            text("gen_ai.response.model", &answered.model),
            text("octet.deployment", &answered.deployment),
            text("octet.group", &answered.group),
        ]);
    }
    if let Some((input, cached, output)) = r.usage {
        attributes.extend([
            count("gen_ai.usage.input_tokens", input),
            count("gen_ai.usage.output_tokens", output),
            count("gen_ai.usage.cache_read.input_tokens", cached),
        ]);
    }
    attributes.extend(r.max_tokens.map(|n| count("gen_ai.request.max_tokens", n.into())));
    attributes.extend(r.temperature.map(|t| number("gen_ai.request.temperature", t)));
    attributes.extend(r.first.map(|t| number("gen_ai.response.time_to_first_chunk", t.as_secs_f64())));
    caller(r, &mut attributes);
    for (name, value) in &r.metadata {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_string);
        attributes.push(text(&format!("metadata.{name}"), &value));
    }
    error(r.error.as_ref(), &mut attributes);
    attributes
}

/// User, key, team and tags. Langfuse has its own names for users and tags.
fn caller(r: &Record, attributes: &mut Vec<KeyValue>) {
    attributes.extend(r.user.iter().flat_map(|user| [text("user.id", user), text("langfuse.user.id", user)]));
    if let Some((id, name)) = &r.key {
        attributes.extend([text("octet.key.id", id), text("octet.key.name", name)]);
    }
    let (user, team) = &r.owner;
    attributes.extend(user.as_ref().map(|user| text("octet.user.id", user)));
    attributes.extend(team.as_ref().map(|team| text("octet.team.id", team)));
    if !r.tags.is_empty() {
        let values = r.tags.iter().map(|tag| any(Any::StringValue(tag.clone()))).collect::<Vec<_>>();
        for name in ["octet.tags", "langfuse.trace.tags"] {
            attributes.push(pair(name, Any::ArrayValue(ArrayValue { values: values.clone() })));
        }
    }
}

/// The id of the `n`th child span, derived from its parent's.
fn below(span: [u8; 8], n: usize) -> [u8; 8] {
    let step = (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    u64::from_be_bytes(span).wrapping_add(step).max(1).to_be_bytes()
}

fn error(error: Option<&Error>, attributes: &mut Vec<KeyValue>) {
    let Some(error) = error else { return };
    attributes.push(text("error.type", &error.kind));
    attributes.extend(error.status.map(|status| count("http.response.status_code", status.into())));
}

fn status(error: Option<&Error>) -> Status {
    match error {
        Some(e) => Status { message: e.message.clone(), code: StatusCode::Error.into() },
        None => Status { message: String::new(), code: StatusCode::Ok.into() },
    }
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn any(value: Any) -> AnyValue {
    AnyValue { value: Some(value) }
}

fn pair(key: &str, value: Any) -> KeyValue {
    KeyValue { key: key.into(), value: Some(any(value)), ..Default::default() }
}

fn text(key: &str, value: &str) -> KeyValue {
    pair(key, Any::StringValue(value.into()))
}

fn count(key: &str, value: u64) -> KeyValue {
    pair(key, Any::IntValue(i64::try_from(value).unwrap_or(i64::MAX)))
}

fn number(key: &str, value: f64) -> KeyValue {
    pair(key, Any::DoubleValue(value))
}

fn flag(key: &str, value: bool) -> KeyValue {
    pair(key, Any::BoolValue(value))
}
