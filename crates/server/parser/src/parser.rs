//! The parser: classifies each character of an answer and emits what is certain. Called wherever answers are shown or served.
//!
//! Decisions are made at characters and tags, never at the end of a piece, so splits do not matter. Work is linear: text that turns
//! out not to be a call is parsed again, but calls hardly overlap (a call's value is never searched for others).

mod calls;

use std::sync::Arc;

use serde_json::Value;

use crate::format::{Format, ReasoningFormat, ToolSyntax};
use crate::message::{Delta, Message};
use crate::tags::{Found, Tag, Tags, Token};
use crate::text::Start;
use crate::{harmony, hermes, native, xml};

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// The function's name.
    pub name: String,
    /// JSON schema of its arguments; `null` if there is none.
    pub parameters: Value,
}

/// How to parse an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Where reasoning is returned.
    pub reasoning: ReasoningFormat,
    /// If false, the answer's first call is its last; further ones are text. The caller should end the answer there.
    pub parallel_tool_calls: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { reasoning: ReasoningFormat::default(), parallel_tool_calls: true }
    }
}

/// Parses a whole answer.
pub fn parse(
    format: Format,
    start: Start,
    tools: impl Into<Arc<[Tool]>>,
    options: Options,
    text: &str,
) -> Message {
    let mut message = Message::default();
    let mut parser = Parser::new(format, start, tools, options);
    parser.push(text, &mut |delta| message.add(delta));
    parser.finish(&mut |delta| message.add(delta));
    message
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Zone {
    Reasoning,
    Content,
}

#[derive(Debug)]
enum Call {
    Xml(xml::Scan),
    Hermes(hermes::Scan),
    Native(Box<native::Scan>),
}

/// How much of a call's arguments has been emitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Streamed {
    /// Nothing: it may not be a call.
    Nothing,
    /// All up to this byte of the held text.
    To(usize),
}

/// Output that is certain and not emitted yet.
#[derive(Debug)]
enum Ready {
    Text(Zone, String),
    Call { index: usize, name: String },
    Arguments(String),
}

/// Parses one answer, given in pieces.
#[derive(Debug)]
pub struct Parser {
    format: Format,
    tools: Arc<[Tool]>,
    options: Options,
    /// The call scanner's parts, for a syntax derived from a template.
    plan: Option<Arc<native::Plan>>,
    /// The parser of messages in channels.
    harmony: Option<harmony::Reader>,
    /// The current message is a call's arguments.
    in_harmony_call: bool,

    zone: Zone,
    /// Only white space so far: `<think>` may follow.
    lead: bool,
    /// Text has come since the zone or the last call.
    started: bool,
    /// Newlines that still belong to the tag before.
    skip: u8,
    /// A call ended the reasoning, and no text has come since: `</think>` may follow.
    close_due: bool,
    /// Skip functions inside a call's values.
    nesting: bool,
    calls: usize,
    /// There is content.
    content: bool,

    /// White space that may belong to the next tag.
    gap: String,
    /// The beginning of a possible tag.
    part: String,
    /// The text of a call so far, from its first tag.
    held: String,
    call: Option<Call>,
    streamed: Streamed,
    /// The call names no given tool: it is scanned for its end only, and its values are emitted as they come.
    quoted: bool,
    /// Number of characters to come that the prompt has written: the beginning of a header, if the answer does not continue it.
    prompted: usize,
    /// The answer was cut.
    cut: bool,
    /// Texts to parse again, with positions; the last first.
    again: Vec<(String, usize)>,
    ready: Vec<Ready>,
    /// Characters processed, for tests.
    steps: usize,
}

/// A tag in this model's syntax.
fn tag_text(format: &Format, tag: Tag) -> &str {
    match (tag, &format.reasoning, &format.text) {
        (Tag::ThinkOpen, Some(tags), _) => &tags.open,
        (Tag::ThinkClose, Some(tags), _) => &tags.close,
        (Tag::TextOpen, _, Some(tags)) => &tags.open,
        (Tag::TextClose, _, Some(tags)) => &tags.close,
        (Tag::AnswerClose, _, Some(tags)) => &tags.end,
        _ => tag.text(),
    }
}

impl Parser {
    /// A parser of one answer. Without `tools` no calls are recognised.
    pub fn new(format: Format, start: Start, tools: impl Into<Arc<[Tool]>>, options: Options) -> Self {
        let plan = match &format.tools {
            ToolSyntax::Native(syntax) => Some(Arc::new(native::Plan::new(syntax))),
            ToolSyntax::None | ToolSyntax::Qwen3Coder | ToolSyntax::Hermes | ToolSyntax::Harmony => None,
        };
        let harmony = (format.tools == ToolSyntax::Harmony).then(harmony::Reader::default);
        let mut parser = Self {
            format,
            plan,
            harmony,
            in_harmony_call: false,
            tools: tools.into(),
            options,
            zone: Zone::Content,
            lead: !start.in_reasoning,
            started: false,
            skip: 0,
            close_due: false,
            nesting: true,
            calls: 0,
            content: false,
            gap: String::new(),
            part: String::new(),
            held: String::new(),
            call: None,
            streamed: Streamed::Nothing,
            quoted: false,
            prompted: 0,
            cut: false,
            again: Vec::new(),
            ready: Vec::new(),
            steps: 0,
        };
        if start.in_reasoning {
            parser.enter(Zone::Reasoning);
        }
        let header = parser.format.text.as_ref().and_then(|t| t.open.get(..start.header)).map(str::to_string);
        for c in header.unwrap_or_default().chars() {
            parser.prompted += 1;
            parser.char(c);
        }
        parser
    }

    /// Whether the next text is reasoning, as far as is certain.
    pub fn in_reasoning(&self) -> bool {
        self.zone == Zone::Reasoning
    }

    /// Adds a piece, and emits what is certain.
    pub fn push(&mut self, text: &str, emit: &mut impl FnMut(Delta<'_>)) {
        if let Some(mut reader) = self.harmony.take() {
            text.chars().for_each(|c| reader.step(c, &mut |event| self.message(event)));
            self.harmony = Some(reader);
            return self.emit_ready(emit);
        }
        for c in text.chars() {
            self.char(c);
            self.read_again();
        }
        self.emit_ready(emit);
    }

    /// Ends the answer: emits the rest.
    pub fn finish(self, emit: &mut impl FnMut(Delta<'_>)) {
        self.end(false, emit);
    }

    /// Ends an answer that was cut, at its maximum length for example. A call that has begun and is not emitted yet is dropped: half
    /// of its markup is not text.
    pub fn finish_cut(self, emit: &mut impl FnMut(Delta<'_>)) {
        self.end(true, emit);
    }

    fn end(mut self, cut: bool, emit: &mut impl FnMut(Delta<'_>)) {
        self.cut = cut;
        if let Some(mut reader) = self.harmony.take() {
            reader.finish(cut, &mut |event| self.message(event));
            return self.emit_ready(emit);
        }
        loop {
            if !self.part.is_empty() {
                let part = std::mem::take(&mut self.part);
                if self.format.text.as_ref().is_some_and(|t| t.open.trim_end() == part) {
                    self.token(Token::Tag(Tag::TextOpen));
                } else if cut && self.begins_call(&part) {
                    self.gap.clear();
                } else {
                    self.no_tag(part);
                }
            } else if self.call.is_some() {
                self.end_call();
            } else {
                break;
            }
            self.read_again();
        }
        if self.started || self.calls == 0 {
            self.emit_gap();
        }
        self.emit_ready(emit);
    }

    fn emit_ready(&mut self, emit: &mut impl FnMut(Delta<'_>)) {
        for ready in self.ready.drain(..) {
            match ready {
                Ready::Text(Zone::Reasoning, _) if self.options.reasoning == ReasoningFormat::Hidden => {}
                Ready::Text(Zone::Reasoning, text) => emit(Delta::Reasoning(&text)),
                Ready::Text(Zone::Content, text) => emit(Delta::Content(&text)),
                Ready::Call { index, name } => emit(Delta::Call { index, name: &name }),
                Ready::Arguments(text) => emit(Delta::Arguments(&text)),
            }
        }
    }

    /// Processes an event of an answer in channels.
    fn message(&mut self, event: harmony::Event<'_>) {
        use harmony::{Event, Kind};
        let raw = self.options.reasoning == ReasoningFormat::None;
        match event {
            Event::Begin(Kind::Call(name), _) if self.takes_calls() && self.tool(&name).is_some() => {
                self.zone = Zone::Content;
                self.in_harmony_call = true;
                self.ready.push(Ready::Call { index: self.calls, name });
                self.calls += 1;
            }
            Event::Begin(kind, head) => {
                self.zone = if kind == Kind::Reasoning { Zone::Reasoning } else { Zone::Content };
                if raw {
                    head.chars().chain(harmony::MESSAGE.chars()).for_each(|c| self.emit(c));
                }
            }
            Event::Char(c) if self.in_harmony_call => match self.ready.last_mut() {
                Some(Ready::Arguments(text)) => text.push(c),
                _ => self.ready.push(Ready::Arguments(c.into())),
            },
            Event::Char(c) => self.emit(c),
            Event::End(tag) => {
                if raw && !self.in_harmony_call {
                    tag.chars().for_each(|c| self.emit(c));
                }
                self.in_harmony_call = false;
                self.zone = Zone::Content;
            }
            Event::Stray(text) => text.chars().for_each(|c| self.emit(c)),
        }
    }

    /// Parses held text again before new text.
    fn read_again(&mut self) {
        while let Some((text, at)) = self.again.last_mut() {
            match text[*at..].chars().next() {
                Some(c) => {
                    *at += c.len_utf8();
                    self.char(c);
                }
                None => {
                    self.again.pop();
                }
            }
        }
    }

    fn char(&mut self, c: char) {
        self.steps += 1;
        let trigger = self.trigger();
        let begins_tag = c == '<' || self.format.begins_tag(c);
        if self.part.is_empty() && !begins_tag && !trigger.is_some_and(|t| t.starts_with(c)) {
            return self.token(Token::Char(c));
        }
        self.part.push(c);
        // A tag may begin with the text that begins calls: the longer one counts.
        match self.wanted().find(&self.part, |tag| tag_text(&self.format, tag)) {
            Found::Part => {}
            Found::Tag(tag) => {
                self.part.clear();
                self.token(Token::Tag(tag));
            }
            Found::Nothing => match self.trigger() {
                Some(trigger) if self.part.starts_with(trigger) => {
                    let rest = self.part.split_off(trigger.len());
                    self.part.clear();
                    if !rest.is_empty() {
                        self.again.push((rest, 0));
                    }
                    self.begin_section();
                }
                Some(trigger) if trigger.starts_with(&self.part) => {}
                _ => {
                    let part = std::mem::take(&mut self.part);
                    self.no_tag(part);
                }
            },
        }
    }

    /// `part` begins like a tag and is not one: its first character is text, and the rest is parsed again.
    fn no_tag(&mut self, mut part: String) {
        let Some(first) = part.chars().next() else { return };
        let rest = part.split_off(first.len_utf8());
        if !rest.is_empty() {
            self.again.push((rest, 0));
        }
        self.token(Token::Char(first));
    }

    /// The text that begins a section of calls, in a syntax derived from a template.
    fn trigger(&self) -> Option<&str> {
        let plan = self.plan.as_ref()?;
        let begun = self.in_reasoning() || self.content || self.started || self.calls > 0;
        let here = !begun || !plan.at_start() || self.format.text.is_some();
        (here && self.call.is_none() && self.takes_calls()).then_some(plan.trigger())
    }

    /// Whether a tag may follow, to which preceding white space belongs.
    fn awaits_tags(&self) -> bool {
        !self.wanted().is_empty() || self.trigger().is_some()
    }

    /// The tags that are recognised now.
    fn wanted(&self) -> Tags {
        match &self.call {
            Some(Call::Xml(scan)) => return scan.wanted(),
            Some(Call::Hermes(scan)) => return scan.wanted(),
            Some(Call::Native(_)) => return Tags::NONE,
            None => {}
        }
        let mut tags = Tags::NONE;
        if (self.lead || self.format.text.is_some()) && self.format.reasoning.is_some() {
            tags = tags.with(Tag::ThinkOpen);
        }
        if self.format.text.is_some() {
            tags = tags.with(Tag::TextOpen).with(Tag::TextClose).with(Tag::AnswerClose);
        }
        if self.in_reasoning() || self.close_due || self.format.text.is_some() {
            tags = tags.with(Tag::ThinkClose);
        }
        if self.takes_calls() && self.plan.is_none() {
            tags = tags.with(Tag::CallOpen);
            if self.format.tools == ToolSyntax::Qwen3Coder && !self.in_reasoning() {
                tags = tags.with(Tag::FunctionOpen);
            }
        }
        tags
    }

    fn takes_calls(&self) -> bool {
        let enough = self.calls > 0 && !self.options.parallel_tool_calls;
        self.format.tools != ToolSyntax::None && !self.tools.is_empty() && !enough
    }

    fn token(&mut self, token: Token) {
        if self.call.is_some() {
            return self.in_call(token);
        }
        match token {
            Token::Char(c) => self.text(c),
            Token::Tag(Tag::ThinkOpen) => {
                self.tag_of_reasoning(Tag::ThinkOpen, 0);
                self.enter(Zone::Reasoning);
            }
            Token::Tag(Tag::ThinkClose) => {
                self.tag_of_reasoning(Tag::ThinkClose, 1);
                self.enter(Zone::Content);
            }
            Token::Tag(Tag::TextOpen | Tag::TextClose | Tag::AnswerClose) => {
                self.prompted = 0;
                if self.started {
                    self.emit_gap();
                }
                self.gap.clear();
                self.enter(Zone::Content);
            }
            Token::Tag(tag) => self.begin_call(tag),
        }
    }

    /// A tag that changes the zone, with `newlines` before it that belong to it.
    fn tag_of_reasoning(&mut self, tag: Tag, newlines: usize) {
        if self.options.reasoning == ReasoningFormat::None {
            self.emit_gap();
            let text = tag_text(&self.format, tag).to_string();
            text.chars().for_each(|c| self.emit(c));
            self.prompted = 0;
            self.gap.clear();
            return;
        }
        self.prompted = 0;
        if self.started {
            let kept = self.gap.len() - newlines.min(self.gap.len());
            self.gap.truncate(kept);
            self.emit_gap();
        }
        self.gap.clear();
    }

    fn enter(&mut self, zone: Zone) {
        let split = self.options.reasoning != ReasoningFormat::None;
        self.zone = zone;
        self.lead = false;
        self.close_due = false;
        self.started = !split; // tags that stay in the content are content
        self.skip = match zone {
            _ if !split || self.format.text.is_some() => 0,
            Zone::Reasoning => 1,
            Zone::Content => 2,
        };
    }

    /// Number of newlines that templates write between text and a call.
    fn newlines_before_call(&self) -> usize {
        match self.format.tools {
            _ if self.format.text.is_some() => 0,
            ToolSyntax::Hermes => 1,
            _ => 2,
        }
    }

    /// A character of reasoning or content.
    fn text(&mut self, c: char) {
        if self.skip > 0 && c == '\n' {
            self.skip -= 1;
            return;
        }
        self.skip = 0;
        let space = Token::Char(c).is_space();
        if !self.started && space && (self.calls > 0 || self.awaits_tags()) {
            self.gap.push(c);
            return;
        }
        if self.started && c == '\n' && self.awaits_tags() {
            // All held characters are newlines.
            if self.gap.len() < self.newlines_before_call() {
                self.gap.push(c);
            } else {
                self.emit(c);
            }
            return;
        }
        if !self.started && self.calls > 0 && !self.content {
            self.gap.clear(); // white space behind calls, and no text before them
        }
        self.emit_gap();
        self.emit(c);
        if !space {
            self.started = true;
            self.lead = false;
            self.close_due = false;
        }
    }

    fn emit_gap(&mut self) {
        let gap = std::mem::take(&mut self.gap);
        gap.chars().for_each(|c| self.emit(c));
    }

    fn emit(&mut self, c: char) {
        if self.prompted > 0 {
            self.prompted -= 1;
            return;
        }
        let zone = match self.options.reasoning {
            ReasoningFormat::Deepseek | ReasoningFormat::Hidden => self.zone,
            ReasoningFormat::None => Zone::Content,
        };
        self.content |= zone == Zone::Content;
        match self.ready.last_mut() {
            Some(Ready::Text(last, text)) if *last == zone => text.push(c),
            _ => self.ready.push(Ready::Text(zone, c.into())),
        }
    }
}

#[cfg(test)]
mod tests;
