//! A conversation with a loaded model.

use std::ops::ControlFlow;
use std::sync::Arc;

use octet_engine::engine::{Answer, Engine, Finish, Request};
use octet_engine::sampler::StopStrings;
use octet_engine::template::{ChatInput, ChatTemplate, ProbeBudget};
use octet_engine::tokenizer::{Prompt, Special, Tokenizer};
use octet_engine::vision::Resized;
use octet_parser::{Delta, Format, Options, Parser, Start, Tool, ToolCall, ToolsVariable, derive};
use octet_serve::{AnswerReader, ReaderEnd};
use serde_json::{Map, Value, json};

use super::print::Kind;
use crate::chat::Conversation;
use crate::images;
use crate::maker::Opening;
use crate::stderr::note;

/// A model with its conversation.
pub struct Session {
    pub engine: Engine,
    /// `None` for plain text continuation.
    pub template: Option<ChatTemplate>,
    pub chat: Conversation,
    /// The system message of each new conversation.
    pub system: Option<String>,
    /// How its model's maker begins conversations.
    pub opening: Opening,
    pub request: Request,
    /// Why the model reads no images, if it does not.
    pub blind: String,
    /// Tools that the model may call; empty for none.
    tools: Vec<Tool>,
    /// How the model marks its reasoning and its calls.
    format: Format,
}

/// How a template's model marks its reasoning, found by rendering small chats.
fn format(template: &ChatTemplate, tokenizer: &Tokenizer) -> Format {
    let budget = ProbeBudget::default();
    let render = |messages: &[Value], _: ToolsVariable, tools: &[Value]| {
        let input =
            ChatInput { messages: messages.to_vec(), tools: Some(tools.to_vec()), ..ChatInput::default() };
        template.probe(&input, &budget, "reasoning").map(|prompt| prompt.text)
    };
    let stops: Vec<&str> = tokenizer.eos_ids().iter().filter_map(|&id| tokenizer.token_text(id)).collect();
    let derived = derive(template.source(), &render, &stops);
    if !budget.missed().is_empty() {
        note!("warning: the chat template takes too long; reasoning may appear in the answer");
    }
    Format::derived(template.source(), &derived)
}

/// What a model is asked.
struct Asked {
    /// Tokens.
    prompt: Vec<u32>,
    images: Vec<Arc<Resized>>,
    /// How many of the tokens later turns repeat.
    repeated: usize,
    /// Where the answer begins.
    start: Start,
}

/// The model's reply.
pub struct Reply {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<ToolCall>,
    pub answer: Answer,
}

impl Reply {
    /// As a message for templates, with the reasoning separate, so that they can omit it from later prompts.
    pub fn message(&self) -> Value {
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".into(), self.reasoning.as_str().into());
        }
        message.insert("content".into(), self.content.as_str().into());
        if !self.calls.is_empty() {
            let call = |call: &ToolCall| {
                // Templates read an object.
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
                json!({"id": call_id(call), "type": "function", "function": {"name": call.name, "arguments": arguments}})
            };
            message.insert("tool_calls".into(), self.calls.iter().map(call).collect());
        }
        Value::Object(message)
    }

    /// One line of statistics.
    pub fn summary(&self) -> String {
        let a = &self.answer;
        let seconds = a.generate_time.as_secs_f64();
        // The first token comes with the prompt.
        let rate = match a.tokens.len() {
            0 | 1 => String::new(),
            n => format!(" ({:.1} tokens/s)", (n - 1) as f64 / seconds.max(1e-9)),
        };
        let cached = match a.cached_tokens {
            0 => String::new(),
            n => format!(", {n} of them cached"),
        };
        let guessed = match a.drafted {
            0 => String::new(),
            drafted => format!(
                ", {:.2} a step, {:.0}% of guesses taken",
                a.tokens.len() as f64 / (a.tokens.len() - a.accepted).max(1) as f64,
                100.0 * a.accepted as f64 / drafted as f64
            ),
        };
        format!(
            "{} tokens{rate}{guessed}; prompt of {} tokens{cached}, first token after {:.2} s",
            a.tokens.len(),
            a.prompt_tokens,
            a.prompt_time.as_secs_f64(),
        )
    }
}

/// The id of a call in the conversation.
pub fn call_id(call: &ToolCall) -> String {
    format!("call_{}", call.index)
}

impl Session {
    /// A session with the conversation `chat`, whose tools the model may call.
    pub fn new(
        engine: Engine,
        template: Option<ChatTemplate>,
        chat: Conversation,
        (system, opening): (Option<String>, Opening),
        mut request: Request,
        tools: Vec<Tool>,
    ) -> Self {
        let format = template.as_ref().map(|t| format(t, engine.tokenizer())).unwrap_or_default();
        // Control tokens of tags are shown, so that reasoning can be recognised.
        let shown = format.shown_tags(!tools.is_empty()).into_iter();
        request.shown_tokens = shown.filter_map(|tag| engine.tokenizer().special_id(tag)).collect();
        Self { engine, template, chat, system, opening, request, blind: String::new(), tools, format }
    }

    /// Answers the conversation without changing it.
    pub fn answer(
        &mut self,
        on_text: &mut dyn FnMut(Kind, &str) -> ControlFlow<()>,
    ) -> anyhow::Result<Reply> {
        let Asked { prompt, images, repeated, start } = self.prompt()?;
        // Without tools, calls are shown as text. Stop texts count in the answer's own text only, so the reader finds them.
        let stops = StopStrings::new(self.request.stop.clone())?;
        let reads_to_the_end = stops.is_empty();
        let make = {
            let (format, tools, min) = (self.format.clone(), self.tools.clone(), self.request.min_tokens);
            move || {
                let parser = Parser::new(format.clone(), start, tools.clone(), Options::default());
                AnswerReader::new(parser, stops.clone(), min)
            }
        };
        let mut reader = make();
        let (mut reasoning, mut content, mut calls) = (String::new(), String::new(), Vec::new());
        let mut emit = |delta: Delta<'_>| match delta {
            Delta::Reasoning(text) => {
                reasoning.push_str(text);
                on_text(Kind::Reasoning, text)
            }
            Delta::Content(text) => {
                content.push_str(text);
                on_text(Kind::Content, text)
            }
            Delta::Call { index, name } => {
                calls.push(ToolCall { index, name: name.into(), arguments: String::new() });
                ControlFlow::Continue(())
            }
            Delta::Arguments(text) => {
                if let Some(call) = calls.last_mut() {
                    call.arguments.push_str(text);
                }
                ControlFlow::Continue(())
            }
        };
        let mut request = Request { prompt, images, checkpoints: vec![repeated], ..self.request.clone() };
        request.stop.clear();
        if !reads_to_the_end {
            request.end = Some(Box::new(ReaderEnd::new(make)));
        }
        let answer = self.engine.generate(request, &mut |text| {
            let mut flow = ControlFlow::Continue(());
            let mut has_text = false;
            reader.token(text, &mut |delta, _| {
                has_text = true;
                let next = emit(delta);
                if flow.is_continue() {
                    flow = next;
                }
            });
            // Checks for an interrupt even without new text.
            if has_text { flow } else { emit(Delta::Content("")) }
        })?;
        reader.finish(answer.finish == Finish::Length, &mut |delta, _| {
            let _ = emit(delta); // the answer is over either way
        });
        Ok(Reply { reasoning, content, calls, answer })
    }

    /// Fails if the template could not continue this conversation.
    pub fn check(&self, chat: &Conversation) -> anyhow::Result<()> {
        let Some(template) = &self.template else { return Ok(()) };
        let mut chat = chat.clone();
        // Many templates accept only conversations that end with a question.
        if !chat.is_waiting() {
            chat.push("user", "?");
        }
        let mut input = chat.input(true);
        self.take_images(&mut input)?;
        template.render(&input)?;
        Ok(())
    }

    /// Fails if the model reads no images.
    pub fn sees(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.engine.rules().images.is_some(), "the model reads no images: {}", self.blind);
        Ok(())
    }

    /// Takes the images out of a template's input.
    fn take_images(&self, input: &mut ChatInput) -> anyhow::Result<Vec<Arc<Resized>>> {
        let images = images::take(&mut input.messages)?;
        let Some(reader) = &self.engine.rules().images else {
            return if images.is_empty() { Ok(Vec::new()) } else { self.sees().map(|()| Vec::new()) };
        };
        Ok(images.iter().map(|image| reader.resize(image)).collect::<Result<_, _>>()?)
    }

    /// Clears the conversation, not the settings.
    pub fn clear(&mut self) {
        let variables = std::mem::take(&mut self.chat.variables);
        // Those of MCP servers stay; those of a conversation that was loaded do not.
        let tools = self.chat.tools.take().filter(|_| !self.tools.is_empty());
        let (system, opening) = (self.system.clone(), self.opening.messages.clone());
        self.chat = Conversation { system, opening, variables, tools, ..Default::default() };
    }

    /// Whether an answer ended because the context is full.
    pub fn is_full(&self, reply: &Reply) -> bool {
        let a = &reply.answer;
        a.finish == Finish::Length && a.prompt_tokens + a.tokens.len() >= self.engine.context()
    }

    fn prompt(&self) -> anyhow::Result<Asked> {
        let tokenizer = self.engine.tokenizer();
        let Some(template) = &self.template else {
            let text: String = self.chat.messages.iter().filter_map(|m| m["content"].as_str()).collect();
            let mut ids = tokenizer.prefix().to_vec();
            ids.extend(tokenizer.encode(&text, Special::Parse)?);
            let all = ids.len();
            return Ok(Asked { prompt: ids, images: Vec::new(), repeated: all, start: Start::default() });
        };
        let mut input = self.chat.input(true);
        let images = self.take_images(&mut input)?;
        let surround = |prompt: &mut Prompt| {
            if let Some(reader) = &self.engine.rules().images {
                reader.surround(prompt, &images);
            }
        };
        let mut prompt = template.render(&input)?;
        surround(&mut prompt);
        let ids = tokenizer.encode_prompt(&prompt)?;
        // Some templates render only conversations that end with a question; then nothing is known to repeat.
        input.add_generation_prompt = false;
        let mut without = template.render(&input).unwrap_or(Prompt::default());
        surround(&mut without);
        let repeated = tokenizer.encode_prompt(&without)?;
        let repeated = ids.iter().zip(&repeated).take_while(|(a, b)| a == b).count();
        Ok(Asked { prompt: ids, images, repeated, start: self.format.start(&prompt.text) })
    }

    /// The conversation and its model, as a file.
    pub fn save(&self, model: &str) -> Value {
        let mut file = json!({"model": model});
        if let (Value::Object(file), Value::Object(chat)) = (&mut file, self.chat.save()) {
            file.extend(chat);
        }
        file
    }
}
