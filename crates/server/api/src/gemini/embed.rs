//! `embedContent` and `batchEmbedContents`, for clients and for providers.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::content::texts;
use crate::ApiError;
use crate::core::{EmbedRequest, Embeddings, MemoryHandle, Part, Prompt, VectorEncoding};
use crate::json::{self, Field, Object, Result};
use crate::reader;
use crate::rules::{Rules, tuning};

/// Fields besides the content. The task type is forwarded to providers that use it.
const RULES: Rules = &[
    ("taskType", tuning("this model makes the same vectors for all tasks")),
    ("title", tuning("this model makes the same vectors with and without a title")),
];

/// Parses the body of an `embedContent`, with `model` in it: one content.
///
/// # Errors
/// Fields that are not supported, of the wrong type or out of range, by name.
pub fn parse(body: &[u8]) -> Result<EmbedRequest> {
    let mut o = json::parse(body)?;
    let model = o.model()?;
    one(o, model)
}

/// Parses the body of a `batchEmbedContents`, with `model` in it: one vector for each of its `requests`.
///
/// # Errors
/// As [`parse`]; also requests with different dimensions or task types.
pub fn parse_batch(body: &[u8]) -> Result<EmbedRequest> {
    let mut o = json::parse(body)?;
    let model = o.model()?;
    let requests = o.require("requests")?;
    let empty = requests.expected("an array of at least one request");
    let mixed = requests.error("must all have the same 'outputDimensionality' and 'taskType'");
    let mut all = requests.list(|f| {
        let mut o = f.object()?;
        o.take("model");
        one(o, model.clone())
    })?;
    o.finish(&[])?;
    all.reverse();
    let mut first = all.pop().ok_or(empty)?;
    for next in all.into_iter().rev() {
        if (next.dimensions, next.extra.get("taskType")) != (first.dimensions, first.extra.get("taskType")) {
            return Err(mixed);
        }
        first.inputs.extend(next.inputs);
    }
    Ok(first)
}

fn one(mut o: Object, model: String) -> Result<EmbedRequest> {
    o.camel_case();
    let content = o.require("content")?;
    let empty = content.error("has no text");
    let parts = texts(content)?;
    let text: Vec<&str> = parts.iter().filter_map(Part::as_text).collect();
    let text = text.join("\n");
    if text.is_empty() {
        return Err(empty);
    }
    let dimensions = o.read("outputDimensionality", |f: Field| f.count(1..=u32::MAX))?;
    let timeout = o.timeout()?;
    let warnings = o.warnings();
    let extra = o.finish(&[RULES])?;
    Ok(EmbedRequest {
        model,
        inputs: vec![Prompt::Text(text)],
        dimensions,
        encoding: VectorEncoding::Float,
        timeout,
        truncate: false,
        keep_alive: None,
        context_length: None,
        user: None,
        extra,
        warnings: warnings.take(),
        memory: MemoryHandle::default(),
    })
}

/// The answer to an `embedContent`.
pub fn response(vectors: &Embeddings) -> Value {
    json!({"embedding": {"values": vectors.vectors.first()}})
}

/// The answer to a `batchEmbedContents`.
pub fn response_batch(vectors: &Embeddings) -> Value {
    let all: Vec<Value> = vectors.vectors.iter().map(|v| json!({"values": v})).collect();
    json!({"embeddings": all})
}

/// The request for a provider whose name of the model is `model`.
///
/// # Errors
/// Inputs that are tokens: only the model's own tokenizer knows them.
pub fn body(request: &EmbedRequest, model: &str) -> Result<Map<String, Value>> {
    let model = if model.starts_with("models/") { model.to_string() } else { format!("models/{model}") };
    let one = |input: &Prompt| {
        let Prompt::Text(text) = input else {
            return Err(ApiError::invalid(
                "input",
                "the provider accepts only texts, but an input is a list of tokens",
            ));
        };
        let mut one = json!({"model": model, "content": {"parts": [{"text": text}]}});
        if let Some(n) = request.dimensions {
            one["outputDimensionality"] = n.into();
        }
        // LiteLLM's clients use another name.
        let task = ["taskType", "task_type", "input_type"].iter().find_map(|key| request.extra.get(*key));
        if let Some(task) = task.filter(|t| t.is_string()) {
            one["taskType"] = task.clone();
        }
        if let Some(title) = request.extra.get("title").filter(|t| t.is_string()) {
            one["title"] = title.clone();
        }
        Ok(one)
    };
    let requests: Vec<Value> = request.inputs.iter().map(one).collect::<Result<_>>()?;
    Ok(Map::from_iter([("requests".to_string(), requests.into())]))
}

#[derive(Deserialize)]
struct Wire {
    embeddings: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    values: Vec<f32>,
}

/// The vectors of an answer. Gemini does not count tokens here.
///
/// # Errors
/// A body that is not an answer.
pub fn read(body: &[u8]) -> Result<Embeddings> {
    let wire: Wire = reader::read(body)?;
    let vectors = wire.embeddings.into_iter().map(|v| v.values).collect();
    Ok(Embeddings { vectors, ..Embeddings::default() })
}

/// Maximum number of texts per request for a model on Vertex AI.
fn at_once(model: &str) -> usize {
    if model.contains("gemini") { 1 } else { 250 }
}

/// The requests for a model on Vertex AI (`predict`), each with as many of the texts as it accepts.
///
/// # Errors
/// Inputs that are tokens.
pub fn vertex_bodies(request: &EmbedRequest, model: &str) -> Result<Vec<Map<String, Value>>> {
    let named =
        |names: &[&str]| names.iter().find_map(|name| request.extra.get(*name)).filter(|v| v.is_string());
    let instance = |input: &Prompt| {
        let Prompt::Text(text) = input else {
            return Err(ApiError::invalid(
                "input",
                "the provider accepts only texts, but an input is a list of tokens",
            ));
        };
        let mut one = json!({"content": text});
        if let Some(task) = named(&["task_type", "taskType", "input_type"]) {
            one["task_type"] = task.clone();
        }
        if let Some(title) = named(&["title"]) {
            one["title"] = title.clone();
        }
        Ok(one)
    };
    let instances: Vec<Value> = request.inputs.iter().map(instance).collect::<Result<_>>()?;
    let body = |instances: &[Value]| {
        let mut parameters = json!({"autoTruncate": request.truncate});
        if let Some(n) = request.dimensions {
            parameters["outputDimensionality"] = n.into();
        }
        Map::from_iter([("instances".to_string(), instances.into()), ("parameters".to_string(), parameters)])
    };
    Ok(instances.chunks(at_once(model)).map(body).collect())
}

/// Parses the vectors of one such answer.
///
/// # Errors
/// A body that is not an answer.
pub fn read_vertex(body: &[u8]) -> Result<Embeddings> {
    #[derive(Deserialize)]
    struct Wire {
        predictions: Vec<Prediction>,
    }
    #[derive(Deserialize)]
    struct Prediction {
        embeddings: Counted,
    }
    #[derive(Deserialize)]
    struct Counted {
        values: Vec<f32>,
        #[serde(default)]
        statistics: Statistics,
    }
    #[derive(Deserialize, Default)]
    struct Statistics {
        #[serde(default)]
        token_count: f64,
    }
    let wire: Wire = reader::read(body)?;
    let tokens: f64 = wire.predictions.iter().map(|p| p.embeddings.statistics.token_count).sum();
    let vectors = wire.predictions.into_iter().map(|p| p.embeddings.values).collect();
    Ok(Embeddings { vectors, prompt_tokens: tokens.max(0.0) as u64, ..Embeddings::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::embeddings;

    #[test]
    fn vectors_of_vertex_ai() {
        let body =
            json!({"model": "m", "input": ["a", "b"], "dimensions": 2, "task_type": "RETRIEVAL_QUERY"});
        let request = embeddings::parse(body.to_string().as_bytes()).expect("a request");
        let all = vertex_bodies(&request, "text-embedding-005").expect("texts");
        let instance = |text: &str| json!({"content": text, "task_type": "RETRIEVAL_QUERY"});
        let parameters = json!({"autoTruncate": false, "outputDimensionality": 2});
        assert_eq!(
            Value::from(all),
            json!([{"instances": [instance("a"), instance("b")], "parameters": parameters}])
        );
        assert_eq!(vertex_bodies(&request, "gemini-embedding-001").expect("texts").len(), 2);
        let answer = br#"{"predictions": [{"embeddings": {"statistics": {"truncated": false, "token_count": 6}, "values": [0.5, -0.5]}}]}"#;
        let read = read_vertex(answer).expect("vectors");
        assert_eq!((read.vectors, read.prompt_tokens), (vec![vec![0.5, -0.5]], 6));
    }
}
