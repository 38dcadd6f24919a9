//! A whole answer, collected from its events. Used for answers that are not streamed: each dialect writes one from it.

use super::{
    Applied, Event, FinishReason, Message, Part, ReasoningPart, Role, RoutedExperts, Timings, TokenLogprob,
    ToolCall, Usage,
};
use crate::ApiError;

/// The collected events of one request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// As in `Event::Started`.
    pub id: String,
    /// As in `Event::Started`.
    pub model: String,
    /// As in `Event::Started`.
    pub created_s: u64,
    /// Ascending by index.
    pub choices: Vec<Choice>,
    /// The last count.
    pub usage: Option<Usage>,
    /// Times.
    pub timings: Option<Timings>,
    /// The prompts and settings as applied, if requested.
    pub applied: Option<Box<Applied>>,
    /// Set if the request failed; the other fields then hold what came before.
    pub error: Option<ApiError>,
}

/// One of the answers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Choice {
    /// Its index.
    pub index: u32,
    /// Its content, in order.
    pub blocks: Vec<Block>,
    /// Log-probabilities of all tokens.
    pub logprobs: Vec<TokenLogprob>,
    /// Ids of all tokens, if requested.
    pub tokens: Vec<u32>,
    /// Experts of all tokens, if requested.
    pub experts: Option<RoutedExperts>,
    /// `None` if it did not finish.
    pub finish: Option<FinishReason>,
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Block {
    /// Reasoning.
    Reasoning {
        /// The text.
        text: String,
        /// The provider's signature.
        signature: Option<String>,
    },
    /// Encrypted reasoning, which only its provider can read.
    Redacted(String),
    /// Text.
    Text(String),
    /// A tool call.
    ToolCall {
        /// Its index, from 0.
        index: u32,
        /// Its id.
        id: String,
        /// The tool's name.
        name: String,
        /// A JSON object as text, unless the answer was truncated or the provider wrote something else.
        arguments: String,
    },
}

impl Answer {
    /// Collects all events.
    pub fn from_events<'a>(events: impl IntoIterator<Item = &'a Event>) -> Self {
        let mut answer = Self::default();
        events.into_iter().for_each(|e| answer.push(e));
        answer
    }

    /// Adds an event.
    pub fn push(&mut self, event: &Event) {
        match event {
            Event::Started { id, model, created_s, usage } => {
                self.id.clone_from(id);
                self.model.clone_from(model);
                self.created_s = *created_s;
                self.usage = usage.or(self.usage);
            }
            Event::Reasoning { choice, text } => match self.blocks(*choice).last_mut() {
                Some(Block::Reasoning { text: all, signature: None }) => all.push_str(text),
                _ => self.blocks(*choice).push(Block::Reasoning { text: text.clone(), signature: None }),
            },
            Event::ReasoningSignature { choice, signature } => match self.blocks(*choice).last_mut() {
                Some(Block::Reasoning { signature: s @ None, .. }) => *s = Some(signature.clone()),
                _ => {
                    let signature = Some(signature.clone());
                    self.blocks(*choice).push(Block::Reasoning { text: String::new(), signature });
                }
            },
            Event::RedactedReasoning { choice, data } => {
                self.blocks(*choice).push(Block::Redacted(data.clone()));
            }
            Event::Text { choice, text } => match self.blocks(*choice).last_mut() {
                Some(Block::Text(all)) => all.push_str(text),
                _ => self.blocks(*choice).push(Block::Text(text.clone())),
            },
            Event::ToolCallStart { choice, index, id, name } => {
                self.blocks(*choice).push(Block::ToolCall {
                    index: *index,
                    id: id.clone(),
                    name: name.clone(),
                    arguments: String::new(),
                });
            }
            Event::ToolCallArguments { choice, index, text } => {
                let call = self.blocks(*choice).iter_mut().rev().find_map(|b| match b {
                    Block::ToolCall { index: i, arguments, .. } if i == index => Some(arguments),
                    _ => None,
                });
                if let Some(arguments) = call {
                    arguments.push_str(text);
                }
            }
            Event::Logprobs { choice, tokens } => {
                self.choice(*choice).logprobs.extend(tokens.iter().cloned());
            }
            Event::Tokens { choice, ids } => self.choice(*choice).tokens.extend(ids),
            Event::RoutedExperts { choice, tokens } => {
                self.choice(*choice).experts.get_or_insert_default().extend(tokens);
            }
            Event::Progress { .. } => {}
            Event::Applied(applied) => self.applied = Some(applied.clone()),
            Event::Finished { choice, reason } => self.choice(*choice).finish = Some(reason.clone()),
            Event::Usage(usage) => self.usage = Some(*usage),
            Event::Timings(timings) => self.timings = Some(*timings),
            Event::Error(error) => self.error = Some(error.clone()),
        }
    }

    fn choice(&mut self, index: u32) -> &mut Choice {
        let at = match self.choices.binary_search_by_key(&index, |c| c.index) {
            Ok(at) => at,
            Err(at) => {
                self.choices.insert(at, Choice { index, ..Choice::default() });
                at
            }
        };
        &mut self.choices[at]
    }

    fn blocks(&mut self, index: u32) -> &mut Vec<Block> {
        &mut self.choice(index).blocks
    }
}

impl Choice {
    /// The answer as an assistant message of the continued conversation.
    pub fn to_message(&self) -> Message {
        let mut m = Message::empty(Role::Assistant);
        for block in &self.blocks {
            match block.clone() {
                Block::Reasoning { text, signature } => {
                    m.reasoning.push(ReasoningPart::Text { text, signature })
                }
                Block::Redacted(data) => m.reasoning.push(ReasoningPart::Redacted(data)),
                Block::Text(text) => m.content.push(Part::text(text)),
                Block::ToolCall { id, name, arguments, .. } => {
                    m.tool_calls.push(ToolCall { id, name, arguments, cache: None });
                }
            }
        }
        m
    }

    /// The text, without reasoning and calls.
    pub fn text(&self) -> String {
        self.blocks
            .iter()
            .filter_map(|b| if let Block::Text(t) = b { Some(t.as_str()) } else { None })
            .collect()
    }

    /// The reasoning; `None` if none is readable.
    pub fn reasoning(&self) -> Option<String> {
        let mut out: Option<String> = None;
        for block in &self.blocks {
            if let Block::Reasoning { text, .. } = block {
                out.get_or_insert_default().push_str(text);
            }
        }
        out
    }

    /// Id, name and arguments of the calls.
    pub fn tool_calls(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.blocks.iter().filter_map(|b| match b {
            Block::ToolCall { id, name, arguments, .. } => {
                Some((id.as_str(), name.as_str(), arguments.as_str()))
            }
            _ => None,
        })
    }
}
