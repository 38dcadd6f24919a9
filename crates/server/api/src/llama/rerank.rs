//! Reranking: `/rerank`, `/v1/rerank`, `/v2/rerank` in Jina's and Cohere's forms, and `texts` in that of text-embeddings-inference.

use std::time::Duration;

use serde_json::{Value, json};

use crate::ApiError;
use crate::json::{self, Field, Object, Result};
use crate::openai::at_most;
use crate::rules::{Rules, Warning, only, tuning};

/// Maximum number of documents per request; Cohere's recommended limit.
const DOCUMENTS_MAX: usize = 1000;

/// See [`rules`](crate::rules) for what the rules mean.
const RULES: Rules = &[
    ("truncate", tuning("a document that does not fit is refused, never cut")),
    ("truncation_direction", tuning("a document that does not fit is refused, never cut")),
    ("truncate_prompt_tokens", only("[-1]", "a document that does not fit is refused, never cut")),
    ("max_chunks_per_doc", tuning("a document is ranked as a whole")),
    ("rank_fields", only(r#"[["text"]]"#, "send the text that is to be ranked")),
];

/// A query and the documents to rank.
#[derive(Debug, Clone, PartialEq)]
pub struct RerankRequest {
    /// The model's name as the client knows it.
    pub model: String,
    /// The query.
    pub query: String,
    /// The documents; at least one.
    pub documents: Vec<String>,
    /// The task, instead of the model's default.
    pub instruction: Option<String>,
    /// Return only this many of the best.
    pub top_n: Option<usize>,
    /// Rank only this many tokens of each document, from its beginning.
    pub document_tokens_max: Option<usize>,
    /// Return the documents' texts.
    pub return_documents: bool,
    /// Use the form of text-embeddings-inference: a bare array.
    pub bare: bool,
    /// Return log-odds instead of probabilities.
    pub raw_scores: bool,
    /// The client's own limit of the time until the answer.
    pub timeout: Option<Duration>,
    /// Accepted fields that have no effect.
    pub warnings: Vec<Warning>,
}

/// The answer to a [`RerankRequest`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ranking {
    /// A unique id.
    pub id: String,
    /// The probability that each document answers the query, in the order of the request.
    pub scores: Vec<f64>,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
}

/// Parses the body. The model may be omitted.
///
/// # Errors
/// Fields that are missing, of the wrong type or out of range, by name.
pub fn parse(body: &[u8]) -> Result<RerankRequest> {
    let mut o = json::parse(body)?;
    let model = o.model()?;
    let query = text(o.require("query")?)?;
    let bare = !o.has("documents") && o.has("texts");
    let documents = o.require(if bare { "texts" } else { "documents" })?;
    let empty = documents.expected("an array of at least one document");
    let documents = at_most(documents, DOCUMENTS_MAX)?.list(text)?;
    if documents.is_empty() {
        return Err(empty);
    }
    let mut switch = |name: &'static str| Ok(o.read(name, switch)?.unwrap_or(false));
    let return_documents = switch("return_documents")? | switch("return_text")?;
    let raw_scores = switch("raw_scores")?;
    // The second is Voyage's name.
    let top_n = o.take_any(&["top_n", "top_k"])?.map(|f| f.count(0..=u32::MAX)).transpose()?;
    let document_tokens_max = o.read("max_tokens_per_doc", |f| f.count(1..=u32::MAX))?;
    let instruction = instruction(&mut o)?;
    let timeout = o.timeout()?;
    let warnings = o.warnings();
    o.finish(&[RULES])?;
    Ok(RerankRequest {
        timeout,
        warnings: warnings.take(),
        model,
        query,
        documents,
        instruction,
        top_n: top_n.map(|n| n as usize),
        document_tokens_max: document_tokens_max.map(|n| n as usize),
        return_documents,
        bare,
        raw_scores,
    })
}

/// A boolean, also as a text: RAGFlow sends `"true"`.
fn switch(f: Field) -> Result<bool> {
    match f.as_str() {
        Some("true") => Ok(true),
        Some("false") => Ok(false),
        _ => f.bool(),
    }
}

fn instruction(o: &mut Object) -> Result<Option<String>> {
    o.take_any(&["instruction", "instruct"])?.map(Field::string).transpose()
}

/// A text, or an object with one.
fn text(f: Field) -> Result<String> {
    if f.is_object() { f.object()?.require("text")?.string() } else { f.string() }
}

/// The response body: the best documents first; of equal ones the earlier.
///
/// # Errors
/// If the numbers of scores and documents differ.
pub fn response(request: &RerankRequest, ranking: &Ranking) -> Result<Vec<u8>> {
    if ranking.scores.len() != request.documents.len() {
        return Err(ApiError::new(crate::ErrorKind::Internal, "not every document has a score"));
    }
    let mut order: Vec<usize> = (0..ranking.scores.len()).collect();
    order.sort_by(|a, b| ranking.scores[*b].total_cmp(&ranking.scores[*a]).then(a.cmp(b)));
    order.truncate(request.top_n.unwrap_or(usize::MAX));
    let score = |i: usize| {
        let p = ranking.scores[i];
        if request.raw_scores { (p / (1.0 - p)).ln().clamp(-100.0, 100.0) } else { p }
    };
    let one = |i: usize| {
        let text = request.return_documents.then(|| request.documents[i].as_str());
        if request.bare {
            let mut out = json!({"index": i, "score": score(i)});
            if let Some(text) = text {
                out["text"] = text.into();
            }
            return out;
        }
        let mut out = json!({"index": i, "relevance_score": score(i)});
        if let Some(text) = text {
            out["document"] = json!({"text": text});
        }
        out
    };
    let results: Vec<Value> = order.into_iter().map(one).collect();
    let tokens = ranking.prompt_tokens;
    let body = if request.bare {
        Value::Array(results)
    } else {
        json!({
            "id": ranking.id,
            "object": "list",
            "model": request.model,
            "results": results,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "meta": {
                "api_version": {"version": "2"},
                "billed_units": {"search_units": 1},
                "tokens": {"input_tokens": tokens},
            },
        })
    };
    Ok(body.to_string().into_bytes())
}
