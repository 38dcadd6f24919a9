//! Turns a request into engine requests, one per prompt, and chooses how answers are parsed. Called by `run` on a blocking thread:
//! templates, tokenizers and grammars take time.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use octet_api::core::{Applied, Chat, GenerateRequest, Input, ResponseFormat, ToolChoice};
use octet_api::{ApiError, ErrorKind};
use octet_engine::detokenizer::ControlTokens;
use octet_engine::engine::{LineLimits, Pooling, Request, ThinkingBudget};
use octet_engine::sampler::StopStrings;
use octet_engine::tokenizer::Special;
use octet_parser::{Format, Options, Parser, ReasoningFormat, Start, Tool};
use serde_json::Value;

use super::answer_reader::{AnswerReader, ReaderEnd};
use super::constraint::{Form, constraint};
use super::prompt::{self, Job, Purpose, Rendered, effort_budget};
use super::sampling::{sampling, settings};
use crate::models::Loaded;

/// The engine requests, and how their answers are parsed.
pub struct Plan {
    /// One for each prompt.
    pub requests: Vec<Request>,
    /// Texts and tokens of the prompts, if the answer repeats them.
    pub echo: Vec<(String, Vec<u32>)>,
    /// Tokens of all prompts.
    pub prompt_tokens: usize,
    /// How a conversation's answers are parsed; `None` returns plain text.
    pub reader: Option<Reader>,
    /// Requested parts of the format that are not enforced.
    pub unenforced: Vec<String>,
    /// The request field that asks for the format.
    pub form: Option<String>,
    /// The prompts and settings as applied, if the client wants them.
    pub applied: Option<Box<Applied>>,
}

/// How answers are parsed.
#[derive(Clone)]
pub struct Reader {
    /// The syntax.
    pub format: Format,
    /// Whether they begin within reasoning.
    pub start: Start,
    /// The tools that may be called.
    pub tools: Arc<[Tool]>,
    /// Where reasoning is sent, and the maximum number of calls.
    pub options: Options,
    /// The prompt ends behind reasoning.
    pub is_after_reasoning: bool,
    /// The client's stop texts.
    pub stops: StopStrings,
    /// Number of tokens in which they do not count.
    pub min_tokens: usize,
}

impl Reader {
    /// A reader of one answer.
    pub fn read(&self) -> AnswerReader {
        let parser = Parser::new(self.format.clone(), self.start, self.tools.clone(), self.options);
        let parser = if self.is_after_reasoning { parser.after_reasoning() } else { parser };
        AnswerReader::new(parser, self.stops.clone(), self.min_tokens)
    }

    /// Whether answers may end before the model ends them.
    fn ends_answers(&self) -> bool {
        !self.stops.is_empty() || !self.options.parallel_tool_calls && !self.tools.is_empty()
    }
}

/// The text that the model is made to write when its thinking budget is used up.
const THOUGHT_ENOUGH: &str = "\n\nThat is as long as I can think about it. I answer now.";

/// Settings of the server.
#[derive(Debug, Clone, Copy)]
pub struct Defaults {
    /// Where reasoning is sent.
    pub reasoning: ReasoningFormat,
    /// Report why prompts were not in the cache.
    pub explain_miss: bool,
}

/// Renders the prompts of a request. `gone` is set when its client disconnects.
pub fn render(
    model: &Loaded,
    request: &GenerateRequest,
    gone: &AtomicBool,
) -> Result<Vec<Rendered>, ApiError> {
    check(model, request)?;
    let job = Job { purpose: Purpose::Prompt, gone };
    match &request.input {
        Input::Chat(chat) => Ok(vec![prompt::chat(model, chat, job)?]),
        Input::Completion(completion) => {
            let one = |p| match &completion.infill {
                Some(infill) => prompt::infill(model, p, infill, request.max_tokens, job),
                None => prompt::plain(model, p, job),
            };
            completion.prompts.iter().map(one).collect()
        }
    }
}

/// A completion prompt of at least this many tokens gets a snapshot before its last token, which costs one more step, so that a
/// repetition can resume there. A shorter one gets it at its second occurrence.
const AGAIN_MIN: usize = 128;

/// Plans a request from its rendered prompts.
pub fn plan(
    model: &Loaded,
    name: &str,
    request: &GenerateRequest,
    rendered: Vec<Rendered>,
    defaults: Defaults,
) -> Result<Plan, ApiError> {
    let prompts: Vec<String> =
        if request.report.applied { rendered.iter().map(|r| r.text.clone()).collect() } else { Vec::new() };
    let mut plan = plan_input(model, name, request, rendered, defaults)?;
    if request.report.applied
        && let Some(first) = plan.requests.first()
    {
        let settings = settings(request, first);
        plan.applied = Some(Box::new(Applied { prompts, settings }));
    }
    Ok(plan)
}

fn plan_input(
    model: &Loaded,
    name: &str,
    request: &GenerateRequest,
    rendered: Vec<Rendered>,
    defaults: Defaults,
) -> Result<Plan, ApiError> {
    match &request.input {
        Input::Chat(chat) => {
            // There is exactly one.
            let rendered = rendered.into_iter().next().unwrap_or_default();
            check_room(model, request, &rendered)?;
            plan_chat(model, name, request, chat, rendered, defaults)
        }
        Input::Completion(completion) => {
            rendered.iter().try_for_each(|r| check_room(model, request, r))?;
            let prompt_tokens = rendered.iter().map(Rendered::token_count).sum();
            let echo = if completion.echo {
                rendered.iter().map(|r| (r.text.clone(), r.tokens.clone())).collect()
            } else {
                Vec::new()
            };
            let Form { follow, unenforced, param: form } =
                constraint(model, name, request, Start::default())?;
            let requests = rendered.into_iter().map(|r| {
                let mut out = engine_request(model, request, r, defaults);
                out.constraint.clone_from(&follow);
                out.continues = true;
                if completion.infill.is_some() {
                    out.stop_token_ids.extend(prompt::infill_ends(model));
                }
                if completion.echo {
                    out.prompt_logprobs = request.logprobs.map(|n| n as usize);
                }
                // No message ends there, and the same prompt may come again; its last token is always computed.
                if out.prompt_logprobs.is_none() && out.prompt.len() >= AGAIN_MIN {
                    out.checkpoints.push(out.prompt.len() - 1);
                }
                out
            });
            let requests = requests.collect();
            Ok(Plan { requests, echo, prompt_tokens, reader: None, unenforced, form, applied: None })
        }
    }
}

/// Checks that the engine would make, too, but with the names of this request's fields.
fn check(model: &Loaded, request: &GenerateRequest) -> Result<(), ApiError> {
    let rules = model.handle.rules();
    if rules.is_encoder {
        let what = "this model reads texts and cannot write any: it is for /v1/embeddings or /v1/rerank";
        return Err(ApiError::invalid("model", what));
    }
    if request.n as usize > rules.max_seqs {
        let what = format!(
            "'n' is {}, which exceeds the maximum of {} concurrent answers (--parallel)",
            request.n, rules.max_seqs
        );
        return Err(ApiError::invalid("n", what));
    }
    let known = |id: u32| (id as usize) < rules.vocab;
    let unknown = |param: &str, id: u32| {
        let what =
            format!("'{param}' has the token id {id}, which is not in the vocabulary of {}", rules.vocab);
        Err(ApiError::invalid(param, what))
    };
    if let Some(id) = request.stop_token_ids.iter().find(|id| !known(**id)) {
        return unknown("stop_token_ids", *id);
    }
    if let Some((id, _)) = request.sampling.logit_bias.iter().find(|(id, _)| !known(*id)) {
        return unknown("logit_bias", *id);
    }
    Ok(())
}

/// Refuses an answer whose minimum length exceeds the context.
fn check_room(model: &Loaded, request: &GenerateRequest, rendered: &Rendered) -> Result<(), ApiError> {
    let rules = model.handle.rules();
    let (prompt, context) = (rendered.token_count(), rules.context.min(rules.capacity));
    // If there is no room at all, the engine refuses with the numbers.
    let room = context.saturating_sub(prompt);
    match request.min_tokens {
        Some(min) if room > 0 && min as usize > room => {
            let what = format!(
                "'min_tokens' is {min}, but the context of {context} tokens has room for {room} behind the prompt's {prompt}"
            );
            Err(ApiError::invalid("min_tokens", what))
        }
        _ => Ok(()),
    }
}

fn plan_chat(
    model: &Loaded,
    name: &str,
    request: &GenerateRequest,
    chat: &Chat,
    rendered: Rendered,
    defaults: Defaults,
) -> Result<Plan, ApiError> {
    let calls = chat.tool_choice != ToolChoice::None && !chat.tools.is_empty();
    let tool = |t: &octet_api::core::Tool| Tool {
        name: t.name.clone(),
        parameters: Value::Object(t.parameters.clone()),
    };
    let tools: Arc<[Tool]> = if calls { chat.tools.iter().map(tool).collect() } else { Arc::new([]) };
    let parallel = chat.parallel_tool_calls.unwrap_or(true);
    let reader = Reader {
        format: model.format.clone(),
        start: rendered.start,
        options: Options {
            reasoning: defaults.reasoning,
            parallel_tool_calls: parallel,
            untagged_calls: matches!(request.response_format, ResponseFormat::Text),
        },
        is_after_reasoning: model.format.ends_reasoning(&rendered.text),
        stops: StopStrings::new(stops(model, request).0.to_vec())
            .map_err(|e| ApiError::invalid("stop", e.to_string()))?,
        min_tokens: request.min_tokens.unwrap_or(0) as usize,
        tools,
    };
    let prompt_tokens = rendered.token_count();
    let Form { follow, unenforced, param: form } = constraint(model, name, request, rendered.start)?;
    let thinking = if rendered.start.in_reasoning { thinking(model, chat)? } else { None };
    let mut out = engine_request(model, request, rendered, defaults);
    out.constraint = follow;
    out.thinking = thinking;
    // Clients rewrite calls and leave out reasoning, so later prompts diverge from this answer there.
    out.snapshot_before = model.call_begin.into_iter().collect();
    out.snapshot_after = model.think_end.into_iter().collect();
    out.continues = chat.continue_final;
    // The reader finds them: they count only in the answer's own text.
    out.stop.clear();
    if reader.ends_answers() {
        let reader = reader.clone();
        out.end = Some(Box::new(ReaderEnd::new(move || reader.read())));
    }
    let shown = reader.format.shown_tags(!reader.tools.is_empty());
    out.shown_tokens = shown.into_iter().filter_map(|tag| model.tokenizer().special_id(tag)).collect();
    let (requests, reader) = (vec![out], Some(reader));
    Ok(Plan { requests, echo: Vec::new(), prompt_tokens, reader, unenforced, form, applied: None })
}

fn thinking(model: &Loaded, chat: &Chat) -> Result<Option<ThinkingBudget>, ApiError> {
    let source = model.template.as_ref().map_or("", |t| t.source());
    let reasoning = &chat.reasoning;
    let by_effort = reasoning.effort.filter(|_| !source.contains("reasoning_effort")).and_then(effort_budget);
    let off = reasoning.enabled == Some(false) && !source.contains("enable_thinking");
    // The server's default limits only thinking that can be limited.
    let default = model.reasoning_budget.filter(|_| model.think_end.is_some());
    let budget = if off { Some(0) } else { reasoning.budget_tokens.or(by_effort).or(default) };
    let Some(budget) = budget else { return Ok(None) };
    let tag = model.format.reasoning.clone().unwrap_or_default().close;
    let Some(close) = model.think_end else {
        let what = format!("this model's vocabulary has no {tag}, so its thinking cannot be limited");
        return Err(ApiError::invalid("thinking", what));
    };
    let last = if budget == 0 { "" } else { THOUGHT_ENOUGH };
    let end = model.tokenizer().encode(&format!("{last}\n{tag}\n\n"), Special::Parse);
    let end = end.map_err(|e| ApiError::new(ErrorKind::Internal, e.to_string()))?;
    Ok(Some(ThinkingBudget { max_tokens: budget as usize, close, end }))
}

/// The texts and tokens that end an answer: the client's, or else those that the model's maker set.
fn stops<'a>(model: &'a Loaded, request: &'a GenerateRequest) -> (&'a [String], &'a [u32]) {
    match request.stop.is_empty() && request.stop_token_ids.is_empty() {
        true => (&model.stops.0, &model.stops.1),
        false => (&request.stop, &request.stop_token_ids),
    }
}

fn engine_request(
    model: &Loaded,
    request: &GenerateRequest,
    rendered: Rendered,
    defaults: Defaults,
) -> Request {
    let rules = model.handle.rules();
    // An answer ends at the context's end, whatever was requested. The engine refuses a prompt that leaves no room, with the number that
    // was requested.
    let room = rules.context.min(rules.capacity).saturating_sub(rendered.token_count());
    let room = if room == 0 { usize::MAX } else { room };
    let (stops, stop_ids) = stops(model, request);
    Request {
        prompt: rendered.tokens,
        images: rendered.images,
        checkpoints: rendered.checkpoints,
        max_tokens: request.max_tokens.or(model.predict).map(|n| (n as usize).min(room)),
        min_tokens: request.min_tokens.unwrap_or(0) as usize,
        sampling: sampling(model, request),
        stop: stops.to_vec(),
        stop_token_ids: stop_ids.to_vec(),
        ignore_eos: request.ignore_eos,
        lines: LineLimits {
            indent: request.lines.indent as usize,
            time: request.lines.time_ms.map(|ms| Duration::from_millis(ms.into())),
        },
        n: request.n as usize,
        control_tokens: ControlTokens::Hide,
        cache: request.cache.prompt.unwrap_or(true),
        cache_salt: request.cache.salt.clone(),
        explain_miss: defaults.explain_miss,
        routes: request.report.experts,
        ..Request::default()
    }
}

/// The engine request for an embedding. `cut` shortens a text that is too long.
pub fn embedding(
    model: &Loaded,
    prompt: &octet_api::core::Prompt,
    pooling: Pooling,
    cut: bool,
    gone: &AtomicBool,
) -> Result<Request, ApiError> {
    let purpose = if cut { Purpose::CutPrompt } else { Purpose::Prompt };
    let rules = model.handle.rules();
    if model.handle.info().config.encoder().is_some_and(|e| e.ranks) {
        let what = "this model scores pairs of texts and has no vectors: it is for /v1/rerank";
        return Err(ApiError::invalid("model", what));
    }
    let mut tokens = prompt::plain(model, prompt, Job { purpose, gone })?.tokens;
    let tokens_max = if cut { rules.context.min(rules.capacity) } else { usize::MAX };
    if matches!(prompt, octet_api::core::Prompt::Text(_)) {
        // Models were trained to read a text with all tokens around it, such as Qwen3-Embedding's last one.
        let tokenizer = model.tokenizer();
        tokens = tokenizer.frame_cut(&tokens[tokenizer.prefix().len()..], tokens_max).tokens;
    }
    tokens.truncate(tokens_max);
    Ok(Request { prompt: tokens, pooling: Some(pooling), max_tokens: Some(0), ..Request::default() })
}
