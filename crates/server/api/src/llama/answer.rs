//! Writes a whole answer of `/completion` and `/infill`, and the parts that its stream shares.

use serde_json::{Map, Value, json};

use crate::core::{
    Answer, Applied, Choice, FinishReason, GenerateRequest, Timings, TokenLogprob, TopLogprob, Usage,
};
use crate::openai::{WireTimings, finite};

/// The response body: an object, or an array if there are several prompts or answers. (For an answer with an `error`, use
/// [`error::body`](crate::openai::error::body).)
pub fn response(request: &GenerateRequest, answer: &Answer) -> Vec<u8> {
    let one = |choice: &Choice| {
        let mut out = fields(request, answer, choice);
        if request.logprobs.is_some() {
            let probs = probabilities(&choice.logprobs, request.report.post_sampling);
            out.insert("completion_probabilities".into(), probs);
        }
        Value::Object(wanted(out, &request.report.fields))
    };
    let all: Vec<Value> = answer.choices.iter().map(one).collect();
    let body = if let [only] = all.as_slice() { only.clone() } else { Value::Array(all) };
    body.to_string().into_bytes()
}

fn fields(request: &GenerateRequest, answer: &Answer, choice: &Choice) -> Map<String, Value> {
    let text = choice.text();
    let applied = answer.applied.as_deref();
    let tokens: &[u32] = if request.report.whole_tokens { &choice.tokens } else { &[] };
    let counts = Counts {
        usage: answer.usage.unwrap_or_default(),
        predicted: (answer.choices.len() > 1).then_some(choice.tokens.len() as u64),
    };
    let finish = choice.finish.as_ref().unwrap_or(&FinishReason::Length);
    let mut out = Map::new();
    out.insert("index".into(), choice.index.into());
    out.insert("content".into(), text.as_str().into());
    out.insert("tokens".into(), json!(tokens));
    out.extend(last(&answer.model, choice.index, request.n, finish, &counts, applied));
    out.insert("has_new_line".into(), text.contains('\n').into());
    out.insert("timings".into(), times(&answer.timings.unwrap_or_default()));
    out
}

/// Tokens counted.
pub(super) struct Counts {
    pub usage: Usage,
    /// Those of this answer, if it is one of several.
    pub predicted: Option<u64>,
}

/// The final fields of an answer, streamed or not.
pub(super) fn last(
    model: &str,
    choice: u32,
    n: u32,
    finish: &FinishReason,
    counts: &Counts,
    applied: Option<&Applied>,
) -> Map<String, Value> {
    let (stop_type, stopping_word) = match finish {
        FinishReason::Stop | FinishReason::ToolCalls | FinishReason::ContentFilter => ("eos", ""),
        FinishReason::StopSequence(text) => ("word", text.as_str()),
        FinishReason::Length => ("limit", ""),
    };
    let usage = &counts.usage;
    let predicted = counts.predicted.unwrap_or(usage.completion_tokens);
    let prompt = applied.and_then(|a| a.prompts.get((choice / n.max(1)) as usize));
    let out = json!({
        "id_slot": 0,
        "stop": true,
        "model": model,
        "tokens_predicted": predicted,
        "tokens_evaluated": usage.prompt_tokens,
        "generation_settings": applied.map(|a| a.settings.clone()).unwrap_or_default(),
        "prompt": prompt.map_or("", String::as_str),
        "truncated": false,
        "stop_type": stop_type,
        "stopping_word": stopping_word,
        "tokens_cached": usage.prompt_tokens + predicted,
    });
    if let Value::Object(out) = out { out } else { Map::new() }
}

/// `timings`.
pub(super) fn times(timings: &Timings) -> Value {
    serde_json::to_value(WireTimings::from(timings)).unwrap_or_default()
}

/// `completion_probabilities`: log-probabilities of the model, or probabilities after all samplers.
pub(super) fn probabilities(tokens: &[TokenLogprob], post_sampling: bool) -> Value {
    let (one, all) = if post_sampling { ("prob", "top_probs") } else { ("logprob", "top_logprobs") };
    let number = |x: f32| if post_sampling { x.exp() } else { finite(x) };
    let top =
        |t: &TopLogprob| json!({"id": t.id, "token": t.token, "bytes": t.bytes, (one): number(t.logprob)});
    let token = |t: &TokenLogprob| {
        let top: Vec<Value> = t.top.iter().map(top).collect();
        let own = number(t.logprob.unwrap_or(0.0));
        json!({"id": t.id, "token": t.token, "bytes": t.bytes, (one): own, (all): top})
    };
    tokens.iter().map(token).collect()
}

/// The requested fields of an answer; a nested one is named by its path.
pub(super) fn wanted(all: Map<String, Value>, paths: &[String]) -> Map<String, Value> {
    if paths.is_empty() {
        return all;
    }
    let all = Value::Object(all);
    let find = |path: &str| path.split('/').try_fold(&all, |value, key| value.get(key)).cloned();
    paths.iter().filter_map(|path| Some((path.clone(), find(path)?))).collect()
}
