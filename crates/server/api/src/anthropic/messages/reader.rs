//! Parses a provider's answer to a messages request, whole or streamed.
//!
//! Lenient: unknown events, blocks and fields are skipped, as the API's versioning rules ask.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::stop_reason;
use super::usage::WireUsage;
use crate::ApiError;
use crate::anthropic::{UNSIGNED, error};
use crate::core::{Event, FinishReason};
use crate::dialect::broken_off;
use crate::reader::{Reader, Translate, read, unreadable};
use crate::sse::SseDecoder;

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Wire {
    MessageStart {
        message: Message,
    },
    ContentBlockStart {
        index: u32,
        content_block: Block,
    },
    ContentBlockDelta {
        index: u32,
        delta: Delta,
    },
    ContentBlockStop {
        index: u32,
    },
    MessageDelta {
        delta: Stop,
        #[serde(default)]
        usage: Option<WireUsage>,
    },
    MessageStop,
    Error {
        error: Value,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    id: String,
    #[serde(default)]
    model: String,
    #[serde(default)]
    content: Vec<Block>,
    #[serde(default)]
    usage: WireUsage,
    #[serde(flatten)]
    stop: Stop,
}

#[derive(Deserialize)]
struct Stop {
    #[serde(default)]
    stop_reason: Option<String>,
    #[serde(default)]
    stop_sequence: Option<String>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    Thinking {
        #[serde(default)]
        thinking: String,
        #[serde(default)]
        signature: Option<String>,
    },
    RedactedThinking {
        data: String,
    },
    Text {
        #[serde(default)]
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
        #[serde(default)]
        input: Map<String, Value>,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Delta {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
    #[serde(other)]
    Unknown,
}

/// The call in progress.
#[derive(Debug)]
struct OpenCall {
    /// The provider's index of the block.
    block: u32,
    /// Our index of the call.
    index: u32,
    any_arguments: bool,
}

/// Translates events of the dialect.
#[derive(Debug, Default)]
pub struct Translator {
    usage: WireUsage,
    calls: u32,
    call: Option<OpenCall>,
    finished: bool,
}

impl Translator {
    fn event(&mut self, event: Wire, out: &mut Vec<Event>) -> Result<(), ApiError> {
        match event {
            Wire::MessageStart { message } => self.start(&message, out),
            Wire::ContentBlockStart { index, content_block } => self.block(index, content_block, out),
            Wire::ContentBlockDelta { index, delta } => self.delta(index, delta, out),
            Wire::ContentBlockStop { index } => self.block_end(index, out),
            Wire::MessageDelta { delta, usage } => {
                if let Some(usage) = usage {
                    self.usage.update(usage);
                }
                self.stop(delta, out);
            }
            Wire::Error { error } => {
                return Err(error::from_value(&serde_json::json!({"error": error}), None));
            }
            Wire::MessageStop | Wire::Unknown => {}
        }
        Ok(())
    }

    fn start(&mut self, message: &Message, out: &mut Vec<Event>) {
        self.usage.update(message.usage.clone());
        out.push(Event::Started {
            id: message.id.clone(),
            model: message.model.clone(),
            created_s: 0, // this dialect does not say
            usage: Some(self.usage.to_usage()),
        });
    }

    fn block(&mut self, number: u32, block: Block, out: &mut Vec<Event>) {
        match block {
            Block::Thinking { thinking, signature } => {
                if !thinking.is_empty() {
                    out.push(Event::Reasoning { choice: 0, text: thinking });
                }
                out.extend(signature.and_then(signed));
            }
            Block::RedactedThinking { data } => out.push(Event::RedactedReasoning { choice: 0, data }),
            Block::Text { text } => {
                if !text.is_empty() {
                    out.push(Event::Text { choice: 0, text });
                }
            }
            Block::ToolUse { id, name, input } => {
                let index = self.calls;
                self.calls += 1;
                out.push(Event::ToolCallStart { choice: 0, index, id, name });
                let any_arguments = !input.is_empty();
                if any_arguments {
                    let text = Value::from(input).to_string();
                    out.push(Event::ToolCallArguments { choice: 0, index, text });
                }
                self.call = Some(OpenCall { block: number, index, any_arguments });
            }
            Block::Unknown => {}
        }
    }

    fn delta(&mut self, number: u32, delta: Delta, out: &mut Vec<Event>) {
        match delta {
            Delta::Thinking { thinking } if !thinking.is_empty() => {
                out.push(Event::Reasoning { choice: 0, text: thinking });
            }
            Delta::Signature { signature } => out.extend(signed(signature)),
            Delta::Text { text } if !text.is_empty() => out.push(Event::Text { choice: 0, text }),
            Delta::InputJson { partial_json: text } if !text.is_empty() => {
                // Skipped blocks have arguments, too.
                if let Some(call) = self.call.as_mut().filter(|c| c.block == number) {
                    call.any_arguments = true;
                    out.push(Event::ToolCallArguments { choice: 0, index: call.index, text });
                }
            }
            _ => {}
        }
    }

    fn block_end(&mut self, number: u32, out: &mut Vec<Event>) {
        if self.call.as_ref().is_some_and(|c| c.block == number) {
            self.call_end(out);
        }
    }

    /// A call without arguments gets an empty object: clients of other dialects expect one.
    fn call_end(&mut self, out: &mut Vec<Event>) {
        if let Some(call) = self.call.take().filter(|c| !c.any_arguments) {
            out.push(Event::ToolCallArguments { choice: 0, index: call.index, text: "{}".into() });
        }
    }

    fn stop(&mut self, stop: Stop, out: &mut Vec<Event>) {
        let Some(name) = stop.stop_reason else { return };
        if !std::mem::replace(&mut self.finished, true) {
            let reason: FinishReason = stop_reason(&name, stop.stop_sequence);
            out.push(Event::Finished { choice: 0, reason });
        }
        out.push(Event::Usage(self.usage.to_usage()));
    }
}

impl Translate for Translator {
    fn piece(&mut self, json: &[u8], out: &mut Vec<Event>) -> Result<bool, ApiError> {
        let wire: Wire = read(json)?;
        let last = matches!(wire, Wire::MessageStop);
        self.event(wire, out)?;
        Ok(last)
    }

    fn end(&mut self, _out: &mut Vec<Event>) -> Result<(), ApiError> {
        if self.finished { Ok(()) } else { Err(broken_off()) }
    }
}

fn signed(signature: String) -> Option<Event> {
    let real = !signature.is_empty() && signature != UNSIGNED;
    real.then_some(Event::ReasoningSignature { choice: 0, signature })
}

/// The events of a whole answer.
///
/// # Errors
/// A body that is not an answer, or an error with status 200.
pub fn events(body: &[u8]) -> Result<Vec<Event>, ApiError> {
    let value: Value = read(body)?;
    if value["type"] == "error" {
        return Err(error::from_value(&value, None));
    }
    let mut message: Message = serde_json::from_value(value).map_err(|e| unreadable(&e, body))?;
    let mut out = Vec::new();
    let mut t = Translator::default();
    t.start(&message, &mut out);
    for (i, block) in std::mem::take(&mut message.content).into_iter().enumerate() {
        t.block(i as u32, block, &mut out);
        t.call_end(&mut out);
    }
    t.stop(message.stop, &mut out);
    t.end(&mut out)?;
    Ok(out)
}

/// Parses a stream of message events.
pub type MessageReader = Reader<SseDecoder, Translator>;
