//! The part of the parser that scans calls, from the first tag to emitting them. Used by `parser`.

use super::{Call, Parser, Ready, Streamed, Tool, Zone, tag_text};
use crate::format::{ReasoningFormat, ToolSyntax};
use crate::tags::{Step, Tag, Token};
use crate::{hermes, native, xml};

impl Parser {
    /// Whether the text is the beginning of a call's markup, or of a tag within a call.
    pub(super) fn begins_call(&self, part: &str) -> bool {
        // A JSON object may be the answer itself.
        let section = self.trigger().is_some_and(|t| t.starts_with(part) && !t.starts_with('{'));
        let wanted = self.wanted();
        let is_tag = |tag: Tag| wanted.has(tag) && tag.text().starts_with(part);
        if self.call.is_some() {
            return !self.quoted; // of a tag within it
        }
        // Where text has a header, all tags are headers or ends. Without a letter, `>` or `<` is text.
        let header = self.format.text.is_some() && part.contains(char::is_alphabetic);
        section || header || is_tag(Tag::CallOpen) || is_tag(Tag::FunctionOpen)
    }

    pub(super) fn begin_section(&mut self) {
        let Some(plan) = &self.plan else { return };
        self.skip = 0;
        self.quoted = false;
        self.held = plan.trigger().into();
        self.call = Some(Call::Native(native::Scan::new(plan).into()));
    }

    pub(super) fn begin_call(&mut self, tag: Tag) {
        self.skip = 0;
        self.quoted = false;
        self.held = tag.text().into();
        self.call = Some(match self.format.tools {
            ToolSyntax::Hermes => Call::Hermes(hermes::Scan::new(self.held.len())),
            ToolSyntax::Qwen3Coder | ToolSyntax::None | ToolSyntax::Native(_) | ToolSyntax::Harmony => {
                Call::Xml(xml::Scan::new(tag, self.in_reasoning(), self.nesting))
            }
        });
    }

    pub(super) fn in_call(&mut self, token: Token) {
        let from = self.held.len();
        match token {
            Token::Char(c) => self.held.push(c),
            Token::Tag(tag) => self.held.push_str(tag_text(&self.format, tag)),
        }
        let step = match &mut self.call {
            Some(Call::Xml(scan)) => scan.step(token, from..self.held.len()),
            Some(Call::Hermes(scan)) => scan.step(token, self.held.len()),
            Some(Call::Native(scan)) => match token {
                Token::Char(c) => scan.step(c, &self.held),
                Token::Tag(_) => return, // No token is expected here.
            },
            None => return,
        };
        match step {
            Step::More => {
                self.stream();
                self.quote(token);
            }
            Step::Done { end } => {
                self.stream();
                self.complete(end);
            }
            Step::Text { end } => match self.streamed {
                Streamed::Nothing => self.give_up(end),
                // It broke off: what has been emitted stays a call.
                Streamed::To(sent) => self.end_of_call(sent),
            },
            Step::Skip { end } => self.skip_section(end),
        }
    }

    /// Emits a call's arguments as far as they are certain.
    fn stream(&mut self) {
        let Some(Call::Native(scan)) = &self.call else { return };
        let sent = match self.streamed {
            Streamed::To(sent) => sent,
            Streamed::Nothing => {
                let Some(name) = scan.started(&self.held).map(|(name, _)| name) else { return };
                if self.tool(&name).is_none() {
                    return;
                }
                self.ready.push(Ready::Call { index: self.calls, name });
                0
            }
        };
        let Some((_, span)) = scan.started(&self.held) else { return };
        let end = if span.is_empty() { self.held.len() } else { span.end };
        let from = sent.max(span.start);
        if from < end {
            let text = &self.held[from..end];
            match self.ready.last_mut() {
                Some(Ready::Arguments(last)) => last.push_str(text),
                _ => self.ready.push(Ready::Arguments(text.into())),
            }
        }
        self.streamed = Streamed::To(from.max(end));
    }

    /// Skips the end of a section of calls, which is neither text nor call.
    fn skip_section(&mut self, end: usize) {
        self.call = None;
        self.again.push((self.held.split_off(end), 0));
        self.held.clear();
    }

    /// Emits the content of a call without a tool, until its end may begin.
    fn quote(&mut self, token: Token) {
        let Some(Call::Xml(scan)) = &self.call else { return };
        if !scan.in_value() {
            return;
        }
        if token == Token::Char('>') && !self.quoted {
            self.quoted = self.tool(scan.name(&self.held)).is_none();
        }
        if self.quoted {
            for c in std::mem::take(&mut self.held).chars() {
                self.text(c);
            }
        }
    }

    pub(super) fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|t| t.name == name)
    }

    /// The answer ended within a call.
    pub(super) fn end_call(&mut self) {
        let (end, nested) = match &mut self.call {
            Some(Call::Xml(scan)) => (scan.finish(), scan.nested()),
            Some(Call::Hermes(scan)) => (scan.finish(), false),
            // The unclosed end of a section is dropped.
            Some(Call::Native(scan)) if scan.is_between() => return self.skip_section(self.held.len()),
            Some(Call::Native(_)) if self.streamed != Streamed::Nothing => {
                return self.end_of_call(self.held.len());
            }
            Some(Call::Native(scan)) => (scan.finish(&self.held), false),
            None => return,
        };
        match end {
            Some(end) => self.complete(end),
            None if nested && self.nesting && !self.quoted => {
                // A value contained what looked like a function and was not. From here on, functions in values are ignored.
                self.nesting = false;
                self.call = None;
                let held = std::mem::take(&mut self.held);
                self.again.push((held, 0));
            }
            None if self.cut && !self.quoted && !self.held.starts_with('{') => {
                self.call = None;
                self.held.clear();
                self.gap.clear();
            }
            None => self.give_up(self.held.len()),
        }
    }

    /// The call ends at byte `end` of the held text; the rest is parsed again.
    fn complete(&mut self, end: usize) {
        if self.streamed != Streamed::Nothing {
            return self.end_of_call(end);
        }
        let call = match &self.call {
            Some(Call::Xml(_)) if self.quoted => None,
            Some(Call::Xml(scan)) => {
                let tool = self.tool(scan.name(&self.held));
                tool.map(|t| (t.name.clone(), scan.arguments(&self.held, &t.parameters)))
            }
            Some(Call::Hermes(scan)) => scan.call(&self.held).filter(|(name, _)| self.tool(name).is_some()),
            Some(Call::Native(scan)) => scan.call(&self.held, |name| self.tool(name).map(|t| &t.parameters)),
            None => return,
        };
        let Some((name, arguments)) = call else { return self.give_up(end) };
        self.ready.extend([Ready::Call { index: self.calls, name }, Ready::Arguments(arguments)]);
        self.end_of_call(end);
    }

    /// The emitted call ends at byte `end` of the held text; the rest is parsed again.
    fn end_of_call(&mut self, end: usize) {
        self.calls += 1;
        self.prompted = 0;
        self.streamed = Streamed::Nothing;
        if self.in_reasoning() {
            self.zone = Zone::Content;
            if self.options.reasoning != ReasoningFormat::None {
                self.gap.clear();
                self.close_due = true;
            }
        }
        self.lead = false;
        self.started = false;
        self.call = match self.call.take() {
            Some(Call::Native(scan)) => {
                scan.between(self.takes_calls()).map(|scan| Call::Native(scan.into()))
            }
            _ => None,
        };
        self.again.push((self.held.split_off(end), 0));
        self.held.clear();
    }

    /// The held text up to byte `end` is text; the rest is parsed again.
    fn give_up(&mut self, end: usize) {
        self.call = None;
        let rest = self.held.split_off(end);
        for c in std::mem::take(&mut self.held).chars() {
            self.text(c);
        }
        self.again.push((rest, 0));
    }
}
