//! Writes an answer as a stream of message events. Driven by the server and the gateway through [`StreamWriter`].

use serde::Serialize;
use serde_json::json;

use super::usage::WireUsage;
use super::{stop_name, stop_sequence};
use crate::ApiError;
use crate::anthropic::{UNSIGNED, error};
use crate::core::{Event, FinishReason, GenerateRequest};
use crate::dialect::{StreamWriter, broken_off, with_prefix};
use crate::sse;

/// Writes `message_start`, the blocks (each `content_block_start`, deltas, `content_block_stop`), `message_delta` and `message_stop`.
/// Only the first choice is written: the dialect has one.
#[derive(Debug)]
pub struct MessageWriter {
    reasoning: bool,
    started: bool,
    /// The index of the open block, or of the next one if none is open.
    block: u32,
    open: Option<Open>,
    /// A call without arguments so far: their beginning decides the kind of the block.
    call: Option<Call>,
    usage: WireUsage,
    finish: Option<FinishReason>,
    failed: bool,
}

/// The open block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Thinking {
        signed: bool,
    },
    Text,
    Call(u32),
    /// A call whose arguments are not an object, which `tool_use` cannot hold: written as text.
    Said(u32),
}

#[derive(Debug)]
struct Call {
    index: u32,
    id: String,
    name: String,
}

#[derive(Serialize)]
struct BlockDelta<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    index: u32,
    delta: Delta<'a>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Delta<'a> {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'a str },
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: &'a str },
}

impl MessageWriter {
    /// A writer of the answer to `request`.
    pub fn new(request: &GenerateRequest) -> Self {
        Self {
            reasoning: request.shows_reasoning(),
            started: false,
            block: 0,
            open: None,
            call: None,
            usage: WireUsage { input_tokens: Some(0), output_tokens: Some(0), ..WireUsage::default() },
            finish: None,
            failed: false,
        }
    }

    fn start(&mut self, id: &str, model: &str, out: &mut Vec<u8>) {
        self.started = true;
        let message = json!({
            "id": with_prefix("msg_", id), "type": "message", "role": "assistant", "model": model, "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": self.usage,
        });
        sse::write_json(out, Some("message_start"), &json!({"type": "message_start", "message": message}));
    }

    fn open(&mut self, open: Open, block: &serde_json::Value, out: &mut Vec<u8>) {
        self.close(out);
        self.begin(open, block, out);
    }

    fn begin(&mut self, open: Open, block: &serde_json::Value, out: &mut Vec<u8>) {
        self.open = Some(open);
        let name = "content_block_start";
        sse::write_json(out, Some(name), &json!({"type": name, "index": self.block, "content_block": block}));
    }

    fn delta(&self, delta: Delta<'_>, out: &mut Vec<u8>) {
        let kind = "content_block_delta";
        sse::write_json(out, Some(kind), &BlockDelta { kind, index: self.block, delta });
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if let Some(call) = self.call.take() {
            self.call(&call, out);
        }
        let Some(open) = self.open else { return };
        match open {
            Open::Thinking { signed: false } => self.delta(Delta::Signature { signature: UNSIGNED }, out),
            Open::Said(_) => self.delta(Delta::Text { text: ")" }, out),
            Open::Thinking { signed: true } | Open::Text | Open::Call(_) => {}
        }
        self.open = None;
        let name = "content_block_stop";
        sse::write_json(out, Some(name), &json!({"type": name, "index": self.block}));
        self.block += 1;
    }

    fn call(&mut self, Call { index, id, name }: &Call, out: &mut Vec<u8>) {
        let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
        self.begin(Open::Call(*index), &block, out);
    }

    fn arguments(&mut self, index: u32, text: &str, out: &mut Vec<u8>) {
        if let Some(call) = self.call.take_if(|c| c.index == index) {
            match text.trim_start().chars().next() {
                None => {
                    self.call = Some(call);
                    return;
                }
                Some('{') => self.call(&call, out),
                Some(_) => {
                    self.begin(Open::Said(index), &json!({"type": "text", "text": ""}), out);
                    self.delta(Delta::Text { text: &format!("{}(", call.name) }, out);
                }
            }
        }
        match self.open {
            Some(Open::Call(open)) if open == index => {
                self.delta(Delta::InputJson { partial_json: text }, out);
            }
            Some(Open::Said(open)) if open == index => self.delta(Delta::Text { text }, out),
            _ => self.fail(&ApiError::upstream("the answer mixes the arguments of several calls"), out),
        }
    }

    fn thinking(&mut self, out: &mut Vec<u8>) {
        if self.open != Some(Open::Thinking { signed: false }) {
            let block = json!({"type": "thinking", "thinking": "", "signature": ""});
            self.open(Open::Thinking { signed: false }, &block, out);
        }
    }

    fn fail(&mut self, e: &ApiError, out: &mut Vec<u8>) {
        self.failed = true;
        sse::write_json(out, Some("error"), &error::body(e, None));
    }
}

impl StreamWriter for MessageWriter {
    fn write(&mut self, event: &Event, out: &mut Vec<u8>) {
        if self.failed {
            return;
        }
        match event {
            Event::Started { id, model, usage, .. } => {
                if let Some(usage) = usage {
                    self.usage = usage.into();
                }
                self.start(id, model, out);
            }
            Event::Reasoning { choice: 0, text } if self.reasoning => {
                self.thinking(out);
                self.delta(Delta::Thinking { thinking: text }, out);
            }
            Event::ReasoningSignature { choice: 0, signature } if self.reasoning => {
                self.thinking(out);
                self.open = Some(Open::Thinking { signed: true });
                self.delta(Delta::Signature { signature }, out);
            }
            Event::RedactedReasoning { choice: 0, data } if self.reasoning => {
                self.open(Open::Text, &json!({"type": "redacted_thinking", "data": data}), out);
                self.close(out);
            }
            Event::Text { choice: 0, text } if !text.is_empty() => {
                if self.open != Some(Open::Text) {
                    self.open(Open::Text, &json!({"type": "text", "text": ""}), out);
                }
                self.delta(Delta::Text { text }, out);
            }
            Event::ToolCallStart { choice: 0, index, id, name } => {
                self.close(out);
                self.call = Some(Call { index: *index, id: id.clone(), name: name.clone() });
            }
            Event::ToolCallArguments { choice: 0, index, text } => self.arguments(*index, text, out),
            Event::Finished { choice: 0, reason } => {
                self.close(out);
                self.finish = Some(reason.clone());
            }
            Event::Usage(usage) => self.usage = usage.into(),
            Event::Error(e) => self.fail(e, out),
            // Events that this dialect cannot express, or that were not requested.
            _ => {}
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.failed {
            return;
        }
        let Some(reason) = self.finish.take() else {
            self.fail(&broken_off(), out);
            return;
        };
        let delta = json!({"stop_reason": stop_name(&reason), "stop_sequence": stop_sequence(&reason)});
        let message = json!({"type": "message_delta", "delta": delta, "usage": self.usage});
        sse::write_json(out, Some("message_delta"), &message);
        sse::write_json(out, Some("message_stop"), &json!({"type": "message_stop"}));
    }

    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        // Clients accept nothing before the first event, not even a ping.
        if self.started {
            sse::write_json(out, Some("ping"), &json!({"type": "ping"}));
        } else {
            sse::write_comment(out, "keep-alive");
        }
    }
}
