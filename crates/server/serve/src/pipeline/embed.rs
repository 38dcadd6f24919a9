//! Embeddings.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use futures_util::{StreamExt, stream};
use octet_api::core::{EmbedRequest, Embeddings, Prompt};
use octet_api::{ApiError, ErrorKind};
use octet_engine::engine::{Event, Pooling};
use uuid::Uuid;

use super::acquire::acquire;
use super::deadline::Deadline;
use super::one_by_one::{submit, texts_at_once};
use super::plan::embedding;
use crate::inference::Inference;
use crate::models::{Lease, Loaded};
use crate::ops::Trace;

/// The vectors of a request's texts by the model of that index, normalised to length 1 unless `raw`.
pub async fn embed(
    inference: &Arc<Inference>,
    trace: &Trace,
    index: usize,
    request: Arc<EmbedRequest>,
    raw: bool,
) -> Result<Embeddings, ApiError> {
    let deadline = Deadline::new(inference.timeout, request.timeout);
    inference.warnings.note(&request.warnings)?;
    let lease = acquire(inference, index, request.keep_alive, deadline).await?;
    let pooling: Pooling = lease.card().pooling;
    let mut out = Embeddings {
        id: Uuid::new_v4().simple().to_string(),
        model: if request.model.is_empty() { lease.card().info.id.clone() } else { request.model.clone() },
        load_ms: lease.waited.as_secs_f64() * 1e3,
        ..Embeddings::default()
    };
    trace.note(|f| f.model.clone_from(&lease.card().info.id));
    let one = |i| deadline.within(one(inference, &lease, &request, i, pooling));
    let each: Vec<_> = (0..request.inputs.len()).map(one).collect();
    let mut answers = stream::iter(each).buffered(texts_at_once(&lease));
    while let Some(answer) = answers.next().await {
        let (tokens, mut vector) = answer??;
        out.prompt_tokens += tokens as u64;
        if !raw {
            normalise(&mut vector);
        }
        out.vectors.push(vector);
        trace.note(|f| f.prompt = out.prompt_tokens);
    }
    drop(answers);
    if let Some(dimensions) = request.dimensions {
        out.shorten(dimensions)?;
    }
    out.total_ms = trace.began.elapsed().as_secs_f64() * 1e3;
    Ok(out)
}

/// Number of tokens and vector of one text.
async fn one(
    inference: &Arc<Inference>,
    lease: &Lease,
    request: &Arc<EmbedRequest>,
    i: usize,
    pooling: Pooling,
) -> Result<(usize, Vec<f32>), ApiError> {
    let asked = Arc::clone(request);
    let bytes = match &request.inputs[i] {
        Prompt::Text(text) => text.len(),
        Prompt::Tokens(_) | Prompt::Mixed(_) => 0,
    };
    let make = move |model: &Loaded, gone: &AtomicBool| {
        let ours = embedding(model, &asked.inputs[i], pooling, asked.truncate, gone)?;
        let tokens = ours.prompt.len();
        Ok((ours, tokens))
    };
    let (tokens, mut answered) = submit(inference, lease, (i, bytes), make).await?;
    let mut vector = None;
    while let Some(event) = answered.next().await? {
        if let Event::Embedding(v) = event {
            vector = Some(v);
        }
    }
    let vector = vector.ok_or_else(|| ApiError::new(ErrorKind::Internal, "the engine gave no vector"))?;
    Ok((tokens, vector))
}

fn normalise(v: &mut [f32]) {
    let length = v.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        v.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
}
