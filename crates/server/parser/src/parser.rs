//! The parser: classifies each character of an answer and emits what is certain. Called wherever answers are shown or served.
//!
//! Decisions are made at characters and tags, never at the end of a piece, so splits do not matter. Work is linear: text that turns
//! out not to be a call is parsed again, but calls hardly overlap (a call's value is never searched for others).

mod bare;
mod calls;
mod channels;
mod content;
mod markup;

use std::sync::Arc;

use crate::changes::{Change, Changes};
use crate::format::{Format, ReasoningFormat, ToolSyntax};
use crate::frames::Frames;
use crate::integers::Integers;
use crate::message::{Delta, Message, Tool};
use crate::tags::{Found, Tag, Tags, Token};
use crate::text::Start;
use crate::{harmony, hermes, native, xml};
use markup::{Mark, Marks};

/// How to parse an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Where reasoning is returned.
    pub reasoning: ReasoningFormat,
    /// If false, the answer's first call is its last; further ones are text. The caller should end the answer there.
    pub parallel_tool_calls: bool,
    /// Whether a call without its first tag is one. Where a format is asked for the answer's text, it is that text.
    pub untagged_calls: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { reasoning: ReasoningFormat::default(), parallel_tool_calls: true, untagged_calls: true }
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
    /// One whose first tag was forgotten.
    Untagged(bare::Scan),
}

/// How much of a call's arguments has been emitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Streamed {
    /// Nothing: it may not be a call.
    Nothing,
    /// All up to this byte of the held text.
    To(usize),
}

/// What a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reasoning,
    /// The answer's own text.
    Text,
    /// Reasoning and its tags in the content.
    Raw,
}

/// Output that is certain and not emitted yet.
#[derive(Debug)]
enum Ready {
    Text(Kind, String),
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
    /// Restores the control tokens of answers in frames.
    frames: Option<Frames>,
    /// The current message is a call's arguments.
    in_harmony_call: bool,
    /// It has arguments.
    has_arguments: bool,

    zone: Zone,
    /// Only white space so far: `<think>` may follow.
    lead: bool,
    /// Text has come since the zone or the last call.
    started: bool,
    /// Newlines that still belong to the tag before.
    skip: u8,
    /// Reasoning or a call ended, and no text has come since: `</think>` may follow, and is not text.
    close_due: bool,
    /// Skip functions inside a call's values. If not, a call ends wherever its tags say so.
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
    /// How calls without their first tag begin.
    heads: bare::Heads,
    /// Number of bytes before the current call that the model did not write.
    made_up: usize,
    /// A call that could not be read was text: so are the tags that close it.
    is_unread: bool,
    /// The call names no given tool: it is scanned for its end only, and its values are emitted as they come.
    quoted: bool,
    /// Number of characters to come that the prompt has written: the beginning of a header, if the answer does not continue it.
    prompted: usize,
    /// The answer was cut.
    cut: bool,
    /// Tags that are markup next to a call, and text elsewhere.
    marks: Marks,
    /// Such a tag, and the white space after it: it is markup if a call follows.
    mark: String,
    /// It began like a call: if it is text, so are the tags that close it.
    mark_began_call: bool,
    /// Writes the current call's arguments.
    integers: Integers,
    changes: Changes,
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
        let tools: Arc<[Tool]> = tools.into();
        let names: Vec<&str> = tools.iter().map(|t| t.name.as_str()).collect();
        let heads = plan.as_ref().map(|plan| bare::Heads::of(plan, &names)).unwrap_or_default();
        let mut parser = Self {
            marks: Marks::of(&format),
            mark: String::new(),
            mark_began_call: false,
            integers: Integers::default(),
            changes: Changes::default(),
            format,
            plan,
            harmony,
            frames: None,
            in_harmony_call: false,
            has_arguments: false,
            tools,
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
            heads,
            made_up: 0,
            is_unread: false,
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
        let opening = parser.format.text.as_ref().map(|tags| tags.open.as_str());
        parser.frames = opening.and_then(|open| Frames::new(open, start.in_reasoning, start.header));
        let header = parser.format.text.as_ref().and_then(|t| t.open.get(..start.header)).map(str::to_string);
        for c in header.unwrap_or_default().chars() {
            parser.prompted += 1;
            parser.char(c);
        }
        parser
    }

    /// The prompt has ended the reasoning before the answer: `</think>` at the answer's beginning is not text.
    pub fn after_reasoning(self) -> Self {
        Self { close_due: true, ..self }
    }

    /// Whether an answer can have one call only, and it is complete.
    pub fn has_last_call(&self) -> bool {
        self.calls > 0 && !self.options.parallel_tool_calls && !self.in_harmony_call
    }

    /// What was changed of the answer so far.
    pub fn changes(&self) -> Changes {
        self.changes
    }

    /// Whether the next text is reasoning, as far as is certain.
    pub fn in_reasoning(&self) -> bool {
        self.zone == Zone::Reasoning
    }

    /// Adds a piece, and emits what is certain.
    pub fn push(&mut self, text: &str, emit: &mut impl FnMut(Delta<'_>)) {
        self.push_scoped(text, &mut |delta, _| emit(delta));
    }

    /// Like [`Parser::push`]; also tells whether a delta is the answer's own text, and not reasoning that stays in the content, or its
    /// tags ([`ReasoningFormat::None`]).
    pub fn push_scoped(&mut self, text: &str, emit: &mut impl FnMut(Delta<'_>, bool)) {
        if let Some(mut reader) = self.harmony.take() {
            text.chars().for_each(|c| reader.step(c, &mut |event| self.message(event)));
            self.harmony = Some(reader);
            return self.emit_ready(emit);
        }
        match self.frames.take() {
            None => self.chars(text),
            Some(mut frames) => {
                let mut restored = String::new();
                text.chars().for_each(|c| frames.step(c, &mut restored));
                self.restored(&frames, &restored);
                self.frames = Some(frames);
            }
        }
        self.emit_ready(emit);
    }

    fn chars(&mut self, text: &str) {
        for c in text.chars() {
            self.char(c);
            self.read_again();
        }
    }

    /// Processes what an answer in frames is so far.
    fn restored(&mut self, frames: &Frames, restored: &str) {
        if frames.is_mended() {
            self.changes.add(Change::Mended);
        }
        self.chars(restored);
    }

    /// Ends the answer: emits the rest.
    pub fn finish(self, emit: &mut impl FnMut(Delta<'_>)) {
        self.finish_scoped(false, &mut |delta, _| emit(delta));
    }

    /// Ends an answer that was cut, at its maximum length for example. A call that has begun and is not emitted yet is dropped: half
    /// of its markup is not text.
    pub fn finish_cut(self, emit: &mut impl FnMut(Delta<'_>)) {
        self.finish_scoped(true, &mut |delta, _| emit(delta));
    }

    /// Ends the answer like [`Parser::finish`], or if it was `cut` like [`Parser::finish_cut`], with deltas as in
    /// [`Parser::push_scoped`]. Returns what was changed of the answer.
    pub fn finish_scoped(mut self, cut: bool, emit: &mut impl FnMut(Delta<'_>, bool)) -> Changes {
        self.cut = cut;
        if let Some(mut reader) = self.harmony.take() {
            reader.finish(cut, &mut |event| self.message(event));
            self.end_message();
            self.emit_ready(emit);
            return self.changes;
        }
        if let Some(mut frames) = self.frames.take() {
            let mut rest = String::new();
            frames.finish(&mut rest);
            self.restored(&frames, &rest);
        }
        loop {
            if !self.part.is_empty() {
                let part = std::mem::take(&mut self.part);
                if self.format.text.as_ref().is_some_and(|t| t.open.trim_end() == part) {
                    self.token(Token::Tag(Tag::TextOpen));
                } else if cut && self.begins_call(&part) {
                    self.gap.clear();
                    self.mark.clear();
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
        self.end_mark();
        if self.started || self.calls == 0 {
            self.emit_gap();
        }
        self.emit_ready(emit);
        self.changes
    }

    fn emit_ready(&mut self, emit: &mut impl FnMut(Delta<'_>, bool)) {
        for ready in self.ready.drain(..) {
            match ready {
                Ready::Text(Kind::Reasoning, _) if self.options.reasoning == ReasoningFormat::Hidden => {}
                Ready::Text(Kind::Reasoning, text) => emit(Delta::Reasoning(&text), false),
                Ready::Text(kind, text) => emit(Delta::Content(&text), kind == Kind::Text),
                Ready::Call { index, name } => emit(Delta::Call { index, name: &name }, false),
                Ready::Arguments(text) => emit(Delta::Arguments(&text), false),
            }
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
        let begins_tag = c == '<' || self.format.begins_tag(c);
        let is_own = |text: Option<&str>| text.is_some_and(|t| t.starts_with(c));
        if self.part.is_empty()
            && !begins_tag
            && !self.triggers().into_iter().any(is_own)
            && !self.begins_mark(c)
        {
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
            Found::Nothing => self.other_tag(),
        }
    }

    /// `part` is none of the tags that are wanted: it may begin a section of calls, or be a mark next to a call.
    fn other_tag(&mut self) {
        let triggers = self.triggers();
        let begun = triggers.into_iter().position(|t| t.is_some_and(|t| self.part.starts_with(t)));
        if let Some(which) = begun {
            let rest = self.part.split_off(triggers[which].map_or(0, str::len));
            self.part.clear();
            if !rest.is_empty() {
                self.again.push((rest, 0));
            }
            return self.begin_section(which > 0);
        }
        if triggers.into_iter().flatten().any(|t| t.starts_with(&self.part)) {
            return;
        }
        match self.find_mark() {
            Mark::Part => {}
            Mark::Whole => {
                let part = std::mem::take(&mut self.part);
                self.found_mark(part);
            }
            Mark::None => {
                let mark = self.mark_before();
                let mut part = std::mem::take(&mut self.part);
                let Some(length) = mark else { return self.no_tag(part) };
                self.again.push((part.split_off(length), 0));
                self.found_mark(part);
            }
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

    /// The texts that begin a section of calls, in a syntax derived from a template: its own, and the one that begins later calls, as
    /// the first tag may be forgotten.
    fn triggers(&self) -> [Option<&str>; 2] {
        let Some(plan) = self.plan.as_ref().filter(|_| self.call.is_none() && self.takes_calls()) else {
            return [None; 2];
        };
        let begun = self.in_reasoning() || self.content || self.started || self.calls > 0;
        if begun && plan.at_start() && self.format.text.is_none() {
            return [None; 2];
        }
        [Some(plan.trigger()), plan.later()]
    }

    /// Whether a tag may follow, to which preceding white space belongs.
    fn awaits_tags(&self) -> bool {
        !self.wanted().is_empty() || self.triggers()[0].is_some()
    }

    /// The tags that are recognised now.
    fn wanted(&self) -> Tags {
        match &self.call {
            Some(Call::Xml(scan)) => return scan.wanted(),
            Some(Call::Hermes(scan)) => return scan.wanted(),
            Some(Call::Native(_) | Call::Untagged(_)) => return Tags::NONE,
            None => {}
        }
        let mut tags = Tags::NONE;
        let may_open = self.lead && self.mark.is_empty() || self.format.text.is_some();
        if may_open && self.format.reasoning.is_some() {
            tags = tags.with(Tag::ThinkOpen);
        }
        if self.format.text.is_some() {
            tags = tags.with(Tag::TextOpen).with(Tag::TextClose).with(Tag::AnswerClose);
        }
        let may_close = self.close_due && self.mark.is_empty() && self.format.reasoning.is_some();
        if self.in_reasoning() || may_close || self.format.text.is_some() {
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
        if !matches!(token, Token::Char(_) | Token::Tag(Tag::CallOpen | Tag::FunctionOpen)) {
            self.mark_is_text();
        }
        match token {
            Token::Char(c) if self.may_begin_bare(c) => self.begin_bare(),
            Token::Char(c) if self.may_begin_untagged(c) => self.begin_untagged(c),
            Token::Char(c) => self.text(c),
            Token::Tag(Tag::ThinkOpen) => {
                self.tag_of_reasoning(Tag::ThinkOpen, 0);
                self.enter(Zone::Reasoning);
            }
            Token::Tag(Tag::ThinkClose) => {
                if !self.in_reasoning() && self.options.reasoning != ReasoningFormat::None {
                    self.changes.add(Change::ClosedAgain);
                }
                self.tag_of_reasoning(Tag::ThinkClose, 1);
                self.enter(Zone::Content);
                self.close_due = true;
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
}

#[cfg(test)]
mod tests;
