//! Writes a chat answer as a stream of chunks. Driven by the server and the gateway through [`StreamWriter`].

use serde::Serialize;

use super::super::envelope::{ChunkStream, stop_reason};
use super::super::experts::WireExperts;
use super::super::logprobs::Logprobs;
use super::proof::Proofs;
use super::{FUNCTION_CALL, NAMES, finish_name};
use crate::core::{Event, FinishReason, GenerateRequest, RoutedExperts, TokenLogprob, ToolOrigin};
use crate::dialect::StreamWriter;
use crate::sse;

/// Writes `chat.completion.chunk` events and `[DONE]`.
///
/// The first chunk of a choice has the role, the last its `finish_reason`. Token counts are in a separate chunk without choices, and
/// only if the client requested them, as some clients fail on it. Times are in the last chunk, which is therefore held back until the
/// next event.
#[derive(Debug)]
pub struct ChunkWriter {
    stream: ChunkStream,
    reasoning: bool,
    logprobs: bool,
    /// Choices that have begun, and log-probabilities whose text is not written yet.
    begun: Vec<(u32, Vec<TokenLogprob>)>,
    /// The client sent the deprecated `functions`: an answer's first call is its `function_call`.
    legacy_functions: bool,
    /// Custom tools, and their calls that are not written yet, one per choice.
    custom_tools: Vec<String>,
    custom_calls: Vec<CustomCall>,
    /// Experts of tokens whose text is not written yet, by choice.
    experts: Vec<(u32, RoutedExperts)>,
    /// Reasoning that is not signed so far, by choice.
    thoughts: Vec<(u32, String)>,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: u32,
    delta: Delta<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Logprobs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    routed_experts: Option<WireExperts<'a>>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<&'a str>,
}

impl ChunkChoice<'_> {
    fn new(index: u32) -> Self {
        let delta = Delta::default();
        Self { index, delta, logprobs: None, routed_experts: None, finish_reason: None, stop_reason: None }
    }
}

#[derive(Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    proofs: Option<Proofs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[DeltaCall<'a>; 1]>,
    /// A piece of the call of one of the deprecated `functions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    function_call: Option<DeltaFunction<'a>>,
}

#[derive(Serialize)]
struct DeltaCall<'a> {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<DeltaFunction<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    custom: Option<DeltaCustom<'a>>,
}

#[derive(Serialize)]
struct DeltaCustom<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    input: &'a str,
}

/// A call of a custom tool, whose arguments are collected: a piece of their JSON is not a piece of the text.
#[derive(Debug)]
struct CustomCall {
    choice: u32,
    index: u32,
    arguments: String,
}

#[derive(Serialize)]
struct DeltaFunction<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

impl ChunkWriter {
    /// A stream writer for the answer to `request`.
    pub fn new(request: &GenerateRequest) -> Self {
        Self {
            stream: ChunkStream::new(NAMES, request),
            reasoning: request.shows_reasoning(),
            logprobs: request.logprobs.is_some(),
            begun: Vec::new(),
            legacy_functions: request.has_legacy_functions(),
            custom_tools: request
                .chat()
                .map_or(&[][..], |c| &c.tools)
                .iter()
                .filter(|t| t.origin.custom)
                .map(|t| t.name.clone())
                .collect(),
            custom_calls: Vec::new(),
            experts: Vec::new(),
            thoughts: Vec::new(),
        }
    }

    /// Writes the signature or the encrypted form of the last reasoning.
    fn proofs(&mut self, choice: u32, proofs: Proofs, out: &mut Vec<u8>) {
        self.delta(choice, Delta { proofs: Some(proofs), ..Delta::default() }, out);
    }

    /// The reasoning of a choice since its last signature.
    fn thought(&mut self, choice: u32) -> &mut String {
        let at = self.thoughts.iter().position(|(c, _)| *c == choice).unwrap_or_else(|| {
            self.thoughts.push((choice, String::new()));
            self.thoughts.len() - 1
        });
        &mut self.thoughts[at].1
    }

    /// Writes a piece of a choice, after the role chunk if it is the first.
    fn delta(&mut self, choice: u32, delta: Delta<'_>, out: &mut Vec<u8>) {
        let waiting = self.begin(choice, out);
        let logprobs = (!waiting.is_empty()).then(|| Logprobs::new(&waiting));
        let experts = self.take_experts(choice);
        let routed_experts = experts.as_ref().map(WireExperts::new);
        let piece = ChunkChoice { delta, logprobs, routed_experts, ..ChunkChoice::new(choice) };
        let timings = self.stream.take_timings(self.stream.timings_per_token);
        self.stream.write(piece, timings.as_ref(), out);
    }

    /// Takes the pending experts of this choice.
    fn take_experts(&mut self, choice: u32) -> Option<RoutedExperts> {
        let at = self.experts.iter().position(|(c, _)| *c == choice)?;
        Some(self.experts.swap_remove(at).1)
    }

    /// Writes the role chunk, once per choice. Returns the pending log-probabilities.
    fn begin(&mut self, choice: u32, out: &mut Vec<u8>) -> Vec<TokenLogprob> {
        if let Some((_, waiting)) = self.begun.iter_mut().find(|(c, _)| *c == choice) {
            return std::mem::take(waiting);
        }
        self.begun.push((choice, Vec::new()));
        let delta = Delta { role: Some("assistant"), content: Some(""), ..Delta::default() };
        let first = ChunkChoice { delta, ..ChunkChoice::new(choice) };
        self.stream.write(first, None, out);
        Vec::new()
    }

    /// Writes the text of a choice's last call, if it is of a custom tool.
    fn end_custom(&mut self, choice: u32, out: &mut Vec<u8>) {
        let Some(at) = self.custom_calls.iter().position(|c| c.choice == choice) else { return };
        let CustomCall { index, arguments, .. } = self.custom_calls.remove(at);
        let input = ToolOrigin::input(&arguments);
        let custom = Some(DeltaCustom { name: None, input: &input });
        let call = DeltaCall { index, id: None, kind: None, function: None, custom };
        self.delta(choice, Delta { tool_calls: Some([call]), ..Delta::default() }, out);
    }

    /// Writes the held-back last chunk of a choice.
    fn release(&mut self, last: bool, out: &mut Vec<u8>) {
        let Some((index, reason)) = self.stream.finish.take() else { return };
        let waiting = self.begin(index, out);
        let experts = self.take_experts(index);
        let choice = ChunkChoice {
            logprobs: (!waiting.is_empty()).then(|| Logprobs::new(&waiting)),
            routed_experts: experts.as_ref().map(WireExperts::new),
            finish_reason: Some(match reason {
                FinishReason::ToolCalls if self.legacy_functions => FUNCTION_CALL,
                ref reason => finish_name(reason),
            }),
            stop_reason: stop_reason(&reason),
            ..ChunkChoice::new(index)
        };
        let timings = self.stream.take_timings(last && !self.stream.include_usage);
        self.stream.write(choice, timings.as_ref(), out);
    }

    /// Writes a piece of a `function_call`. Further calls of an answer have no place there.
    fn function_call(&mut self, choice: u32, index: u32, piece: DeltaFunction<'_>, out: &mut Vec<u8>) {
        if index == 0 {
            self.delta(choice, Delta { function_call: Some(piece), ..Delta::default() }, out);
        }
    }

    /// Writes the start of a call. A custom tool's input follows at its end.
    fn start_call(&mut self, choice: u32, index: u32, id: &str, name: &str, out: &mut Vec<u8>) {
        if self.legacy_functions {
            let piece = DeltaFunction { name: Some(name), arguments: "" };
            return self.function_call(choice, index, piece, out);
        }
        let mut call =
            DeltaCall { index, id: Some(id), kind: Some("function"), function: None, custom: None };
        if self.custom_tools.iter().any(|tool| tool == name) {
            self.custom_calls.push(CustomCall { choice, index, arguments: String::new() });
            call.kind = Some("custom");
            call.custom = Some(DeltaCustom { name: Some(name), input: "" });
        } else {
            call.function = Some(DeltaFunction { name: Some(name), arguments: "" });
        }
        self.delta(choice, Delta { tool_calls: Some([call]), ..Delta::default() }, out);
    }

    /// Writes a part of a call's arguments, or collects it for a custom tool.
    fn continue_call(&mut self, choice: u32, index: u32, text: &str, out: &mut Vec<u8>) {
        if let Some(call) = self.custom_calls.iter_mut().find(|c| c.choice == choice) {
            call.arguments.push_str(text);
            return;
        }
        let piece = DeltaFunction { name: None, arguments: text };
        if self.legacy_functions {
            return self.function_call(choice, index, piece, out);
        }
        let function = Some(piece);
        let call = DeltaCall { index, id: None, kind: None, function, custom: None };
        self.delta(choice, Delta { tool_calls: Some([call]), ..Delta::default() }, out);
    }
}

impl StreamWriter for ChunkWriter {
    fn write(&mut self, event: &Event, out: &mut Vec<u8>) {
        if self.stream.has_failed() {
            return;
        }
        if !matches!(event, Event::Usage(_) | Event::Timings(_)) {
            self.release(false, out);
        }
        match event {
            Event::Reasoning { choice, text } if self.reasoning => {
                self.thought(*choice).push_str(text);
                self.delta(*choice, Delta { reasoning_content: Some(text), ..Delta::default() }, out);
            }
            Event::ReasoningSignature { choice, signature } if self.reasoning => {
                let mut proofs = Proofs::default();
                proofs.signed(&std::mem::take(self.thought(*choice)), signature);
                self.proofs(*choice, proofs, out);
            }
            Event::RedactedReasoning { choice, data } if self.reasoning => {
                let mut proofs = Proofs::default();
                proofs.encrypted(data);
                self.proofs(*choice, proofs, out);
            }
            Event::Text { choice, text } => {
                self.delta(*choice, Delta { content: Some(text), ..Delta::default() }, out);
            }
            Event::ToolCallStart { choice, index, id, name } => {
                self.end_custom(*choice, out);
                self.start_call(*choice, *index, id, name, out);
            }
            Event::ToolCallArguments { choice, index, text } => {
                self.continue_call(*choice, *index, text, out);
            }
            Event::Logprobs { choice, tokens } if self.logprobs => {
                let mut waiting = self.begin(*choice, out);
                waiting.extend(tokens.iter().cloned());
                if let Some((_, w)) = self.begun.iter_mut().find(|(c, _)| c == choice) {
                    *w = waiting;
                }
            }
            Event::RoutedExperts { choice, tokens } => {
                match self.experts.iter_mut().find(|(c, _)| c == choice) {
                    Some((_, waiting)) => waiting.extend(tokens),
                    None => self.experts.push((*choice, tokens.clone())),
                }
            }
            Event::Finished { choice, .. } => {
                self.end_custom(*choice, out);
                self.stream.record(event, out);
            }
            Event::Started { .. }
            | Event::Progress { .. }
            | Event::Usage(_)
            | Event::Timings(_)
            | Event::Error(_) => self.stream.record(event, out),
            // They were not requested.
            Event::ReasoningSignature { .. }
            | Event::RedactedReasoning { .. }
            | Event::Reasoning { .. }
            | Event::Logprobs { .. }
            | Event::Tokens { .. }
            | Event::Applied(_) => {}
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if !self.stream.has_failed() {
            self.release(true, out);
        }
        self.stream.end(out);
    }

    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        sse::write_comment(out, "keep-alive");
    }
}
