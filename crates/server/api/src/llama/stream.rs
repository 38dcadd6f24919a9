//! `/completion` and `/infill` as a stream of events. Driven by the server through [`StreamWriter`].

use serde_json::{Map, Value, json};

use super::answer::{Counts, last, probabilities, times, wanted};
use crate::core::{Applied, Event, FinishReason, GenerateRequest, Timings, TokenLogprob, Usage};
use crate::dialect::{StreamWriter, broken_off};
use crate::openai::error;
use crate::sse;

/// Writes one event per piece of text, then one for the end of each answer with all fields of a whole answer except its text. There is
/// no `[DONE]`.
#[derive(Debug)]
pub struct Writer {
    post_sampling: bool,
    timings_per_token: bool,
    fields: Vec<String>,
    /// Number of answers per prompt.
    n: u32,
    model: String,
    applied: Option<Box<Applied>>,
    choices: Vec<Progress>,
    usage: Usage,
    timings: Timings,
    failed: bool,
}

/// The state of an answer.
#[derive(Debug, Default)]
struct Progress {
    choice: u32,
    /// Tokens and their log-probabilities whose text is not written yet.
    ids: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
    predicted: u64,
    has_new_line: bool,
    finish: Option<FinishReason>,
}

impl Writer {
    /// A writer of the answer to `request`.
    pub fn new(request: &GenerateRequest) -> Self {
        Self {
            post_sampling: request.report.post_sampling,
            timings_per_token: request.report.timings_per_token,
            fields: request.report.fields.clone(),
            n: request.n,
            model: String::new(),
            applied: None,
            choices: Vec::new(),
            usage: Usage::default(),
            timings: Timings::default(),
            failed: false,
        }
    }

    fn choice(&mut self, choice: u32) -> &mut Progress {
        let at = self.choices.iter().position(|p| p.choice == choice).unwrap_or_else(|| {
            self.choices.push(Progress { choice, ..Progress::default() });
            self.choices.len() - 1
        });
        &mut self.choices[at]
    }

    /// A piece of an answer, with the pending tokens and log-probabilities.
    fn piece(&mut self, choice: u32, text: &str, extra: Option<(&str, Value)>, out: &mut Vec<u8>) {
        let prompt_tokens = self.usage.prompt_tokens;
        let (post_sampling, timings) =
            (self.post_sampling, self.timings_per_token.then(|| times(&self.timings)));
        let p = self.choice(choice);
        p.has_new_line |= text.contains('\n');
        let mut piece = json!({
            "index": choice,
            "content": text,
            "tokens": std::mem::take(&mut p.ids),
            "stop": false,
            "id_slot": 0,
            "tokens_predicted": p.predicted,
            "tokens_evaluated": prompt_tokens,
        });
        if !p.logprobs.is_empty() {
            piece["completion_probabilities"] =
                probabilities(&std::mem::take(&mut p.logprobs), post_sampling);
        }
        if let Some(timings) = timings {
            piece["timings"] = timings;
        }
        if let Some((name, value)) = extra {
            piece[name] = value;
        }
        sse::write_json(out, None, &piece);
    }

    fn fail(&mut self, e: &crate::ApiError, out: &mut Vec<u8>) {
        self.failed = true;
        sse::write_json(out, None, &error::body(e));
    }
}

impl StreamWriter for Writer {
    fn write(&mut self, event: &Event, out: &mut Vec<u8>) {
        if self.failed {
            return;
        }
        match event {
            Event::Started { model, usage, .. } => {
                self.model.clone_from(model);
                self.usage = usage.unwrap_or_default();
            }
            Event::Applied(applied) => self.applied = Some(applied.clone()),
            Event::Progress { done, total, cached, ms } => {
                let progress = json!({"total": total, "cache": cached, "processed": done, "time_ms": ms});
                self.piece(0, "", Some(("prompt_progress", progress)), out);
            }
            Event::Tokens { choice, ids } => {
                let p = self.choice(*choice);
                p.ids.extend(ids);
                p.predicted += ids.len() as u64;
            }
            Event::Logprobs { choice, tokens } => {
                self.choice(*choice).logprobs.extend(tokens.iter().cloned())
            }
            Event::Text { choice, text } => self.piece(*choice, text, None, out),
            Event::Finished { choice, reason } => self.choice(*choice).finish = Some(reason.clone()),
            Event::Usage(usage) => self.usage = *usage,
            Event::Timings(timings) => self.timings = *timings,
            Event::Error(e) => self.fail(e, out),
            // Plain text has no reasoning or calls, and experts cannot be requested here.
            Event::RoutedExperts { .. }
            | Event::Reasoning { .. }
            | Event::ReasoningSignature { .. }
            | Event::RedactedReasoning { .. }
            | Event::ToolCallStart { .. }
            | Event::ToolCallArguments { .. } => {}
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.failed {
            return;
        }
        if self.choices.is_empty() || self.choices.iter().any(|p| p.finish.is_none()) {
            return self.fail(&broken_off(), out);
        }
        let is_one = self.choices.len() == 1;
        self.choices.sort_by_key(|p| p.choice);
        for p in &self.choices {
            let Some(finish) = &p.finish else { continue };
            let counts = Counts { usage: self.usage, predicted: (!is_one).then_some(p.predicted) };
            let mut all = Map::new();
            all.insert("index".into(), p.choice.into());
            all.insert("content".into(), "".into());
            all.insert("tokens".into(), json!(p.ids));
            all.extend(last(&self.model, p.choice, self.n, finish, &counts, self.applied.as_deref()));
            all.insert("has_new_line".into(), p.has_new_line.into());
            all.insert("timings".into(), times(&self.timings));
            if !p.logprobs.is_empty() {
                all.insert("completion_probabilities".into(), probabilities(&p.logprobs, self.post_sampling));
            }
            sse::write_json(out, None, &wanted(all, &self.fields));
        }
    }

    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        sse::write_comment(out, "keep-alive");
    }
}
