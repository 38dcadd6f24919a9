//! Reranking by an encoder that is trained to score a query and a document together, or by a model that answers "yes" or "no" whether a
//! document meets a query (Qwen3-Reranker; Zhang et al., arXiv:2506.05176): the score is the probability of "yes" among these two.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use futures_util::{StreamExt, stream};
use octet_api::core::{Chat, Message, Part, Reasoning, Role};
use octet_api::llama::rerank::{Ranking, RerankRequest};
use octet_api::{ApiError, ErrorKind};
use octet_engine::detokenizer::{ControlTokens, decode};
use octet_engine::engine::{Constraint, Event, Request};
use octet_engine::sampler::SamplerParams;
use octet_engine::tokenizer::Special;
use uuid::Uuid;

use super::acquire::acquire;
use super::deadline::Deadline;
use super::one_by_one::{submit, texts_at_once};
use super::prompt::{self, Job, Purpose};
use crate::inference::Inference;
use crate::models::{Lease, Loaded};
use crate::ops::Trace;

/// The default instruction.
const INSTRUCTION: &str = "Given a search query, find passages that answer it";
/// The prompt for models whose file has none.
const JUDGE: &str = "Decide whether the document meets the query under the given instruction. Answer with \"yes\" or \"no\" only.";

/// Allows only these tokens, once.
#[derive(Clone)]
struct OneOf(Vec<u32>);

impl Constraint for OneOf {
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), String> {
        allowed.fill(0);
        for id in &self.0 {
            if let Some(word) = allowed.get_mut(*id as usize / 32) {
                *word |= 1 << (id % 32);
            }
        }
        Ok(())
    }
    fn accept(&mut self, _: u32) -> Result<(), String> {
        Ok(())
    }
    fn is_finished(&self) -> bool {
        true
    }
    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// The scores of a request's documents by the model of that index.
pub async fn rank(
    inference: &Arc<Inference>,
    trace: &Trace,
    index: usize,
    request: Arc<RerankRequest>,
) -> Result<Ranking, ApiError> {
    let deadline = Deadline::new(inference.timeout, request.timeout);
    let lease = acquire(inference, index, None, deadline).await?;
    trace.note(|f| f.model.clone_from(&lease.card().info.id));
    let mut out = Ranking { id: Uuid::new_v4().to_string(), ..Ranking::default() };
    let one = |i| deadline.within(one(inference, &lease, &request, i));
    let each: Vec<_> = (0..request.documents.len()).map(one).collect();
    let mut answers = stream::iter(each).buffered(texts_at_once(&lease));
    while let Some(answer) = answers.next().await {
        let (tokens, score) = answer??;
        out.prompt_tokens += tokens as u64;
        out.scores.push(score);
        trace.note(|f| f.prompt = out.prompt_tokens);
    }
    drop(answers);
    Ok(out)
}

/// A request for one token, one of these, with the log-probabilities of two.
fn choosing(prompt: Vec<u32>, tokens: Vec<u32>) -> Request {
    Request {
        prompt,
        max_tokens: Some(1),
        ignore_eos: true,
        constraint: Some(Box::new(OneOf(tokens))),
        sampling: SamplerParams {
            logprobs: Some(2),
            post_sampling: true,
            seed: Some(0),
            ..SamplerParams::default()
        },
        ..Request::default()
    }
}

/// Number of prompt tokens and score of one document.
async fn one(
    inference: &Arc<Inference>,
    lease: &Lease,
    request: &Arc<RerankRequest>,
    i: usize,
) -> Result<(usize, f64), ApiError> {
    let asked = Arc::clone(request);
    let bytes = request.query.len() + request.documents[i].len();
    let make = move |model: &Loaded, gone: &AtomicBool| {
        if let Some(encoder) = model.handle.info().config.encoder() {
            let pair = pair(model, &asked, &asked.documents[i], gone)?;
            let n = pair.prompt.len();
            return match encoder.ranks {
                true => Ok((Request { pooling: Some(encoder.pooling), ..pair }, (n, 0))),
                false => Err(cannot("it has vectors for texts; use /v1/embeddings")),
            };
        }
        let (yes, no) = (word(model, "yes")?, word(model, "no")?);
        let prompt = tokens(model, &asked, &asked.documents[i], gone)?;
        let n = prompt.len();
        Ok((choosing(prompt, vec![yes, no]), (n, yes)))
    };
    let ((tokens, yes), mut answered) = submit(inference, lease, (i, bytes), make).await?;
    let mut score = None;
    while let Some(event) = answered.next().await? {
        match event {
            Event::Token { logprob: Some(l), .. } => {
                let of_yes = l.top.iter().find(|(id, _)| *id == yes);
                score = Some(of_yes.map_or(0.0, |(_, logprob)| f64::from(*logprob).exp()));
            }
            // Log-odds, which training and other servers turn into a probability, too.
            Event::Embedding(v) => score = v.first().map(|x| 1.0 / (1.0 + f64::from(-x).exp())),
            _ => {}
        }
    }
    let score = score.ok_or_else(|| ApiError::new(ErrorKind::Internal, "the engine gave no score"))?;
    Ok((tokens, score))
}

/// The token of an answer word.
fn word(model: &Loaded, text: &str) -> Result<u32, ApiError> {
    match model.tokenizer().encode(text, Special::Text).as_deref() {
        Ok([id]) => Ok(*id),
        _ => Err(cannot(&format!(
            "\"{text}\" is not one token of its vocabulary; use one like Qwen3-Reranker or bge-reranker"
        ))),
    }
}

/// The error for a model that does not rank.
fn cannot(why: &str) -> ApiError {
    ApiError::invalid("model", format!("this model cannot rank: {why}"))
}

/// The query and a document as an encoder reads them.
fn pair(
    model: &Loaded,
    request: &RerankRequest,
    document: &str,
    gone: &AtomicBool,
) -> Result<Request, ApiError> {
    let encode =
        |text: &str, purpose| prompt::text(model, "documents", text, Special::Text, Job { purpose, gone });
    let query = encode(&request.query, Purpose::Prompt)?;
    let most = request.document_tokens_max;
    let mut document = encode(document, if most.is_some() { Purpose::CutPrompt } else { Purpose::Prompt })?;
    document.truncate(most.unwrap_or(usize::MAX));
    let input = model.tokenizer().frame(&query, Some(&document));
    Ok(Request { prompt: input.tokens, types: input.segments, max_tokens: Some(0), ..Request::default() })
}

/// The prompt for one document: from the model's own template if its file has one, else a conversation in the form of Qwen3-Reranker,
/// with empty reasoning.
fn tokens(
    model: &Loaded,
    request: &RerankRequest,
    document: &str,
    gone: &AtomicBool,
) -> Result<Vec<u32>, ApiError> {
    let job = Job { purpose: Purpose::Prompt, gone };
    let encode = |text: &str, special| prompt::text(model, "documents", text, special, job);
    let cut;
    let document = match request.document_tokens_max {
        // Each byte is a token at most.
        Some(most) if document.len() > most => {
            let counted = Job { purpose: Purpose::CutPrompt, gone };
            let ids = prompt::text(model, "documents", document, Special::Text, counted)?;
            if ids.len() > most {
                cut = decode(model.tokenizer(), &ids[..most], ControlTokens::Show);
                cut.as_str()
            } else {
                document
            }
        }
        _ => document,
    };
    if let Some(template) = &model.rerank_template {
        // Only the template's own text may contain control tokens.
        let mut out = Vec::new();
        let mut rest = template.as_str();
        while let Some(at) = rest.find('{') {
            let place = [("{query}", &*request.query), ("{document}", document)]
                .into_iter()
                .find(|(name, _)| rest[at..].starts_with(name));
            let end = at + place.map_or(1, |(name, _)| name.len());
            out.extend(encode(&rest[..if place.is_some() { at } else { end }], Special::Parse)?);
            if let Some((_, text)) = place {
                out.extend(encode(text, Special::Text)?);
            }
            rest = &rest[end..];
        }
        out.extend(encode(rest, Special::Parse)?);
        return Ok(out);
    }
    let instruction = request.instruction.as_deref().unwrap_or(INSTRUCTION);
    let asked = format!("<Instruct>: {instruction}\n<Query>: {}\n<Document>: {document}", request.query);
    let message = |role, text: &str| Message { content: vec![Part::text(text)], ..Message::empty(role) };
    let chat = Chat {
        messages: vec![message(Role::System, JUDGE), message(Role::User, &asked)],
        reasoning: Reasoning { enabled: Some(false), ..Reasoning::default() },
        ..Chat::default()
    };
    let rendered = prompt::plain_chat(model, &chat, job)?;
    let mut tokens = rendered.tokens;
    let octet_parser::ReasoningTags { open, close } = model.format.reasoning.clone().unwrap_or_default();
    if rendered.start.in_reasoning || !rendered.text.trim_end().ends_with(&close) && model.think_end.is_some()
    {
        let open = if rendered.start.in_reasoning { "" } else { &open };
        let empty = &format!("{open}\n\n{close}\n\n");
        tokens.extend(encode(empty, Special::Parse)?);
    }
    Ok(tokens)
}
