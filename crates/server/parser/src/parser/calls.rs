//! The part of the parser that scans calls, from the first tag to emitting them.

use super::{Call, Parser, Ready, Streamed, Tool, Zone, bare, tag_text};
use crate::changes::Change;
use crate::format::{ReasoningFormat, ToolSyntax};
use crate::integers::Integers;
use crate::tags::{Step, Tag, Token};
use crate::{hermes, native, xml};

/// By this length a call without its first tag has named its tool.
const BARE_BYTES: usize = 256;

impl Parser {
    /// Whether the text is the beginning of a call's markup, or of a tag within a call.
    pub(super) fn begins_call(&self, part: &str) -> bool {
        // A JSON object may be the answer itself.
        let begins = |t: &str| t.starts_with(part) && !t.starts_with('{');
        let section = self.triggers().into_iter().flatten().any(begins) || self.is_mark_part(part);
        let wanted = self.wanted();
        let is_tag = |tag: Tag| wanted.has(tag) && tag.text().starts_with(part);
        if self.call.is_some() {
            return !self.quoted; // of a tag within it
        }
        // Where text has a header, all tags are headers or ends. Without a letter, `>` or `<` is text.
        let header = self.format.text.is_some() && part.contains(char::is_alphabetic);
        section || header || is_tag(Tag::CallOpen) || is_tag(Tag::FunctionOpen)
    }

    /// Begins a section of calls; `later` without its first tag.
    pub(super) fn begin_section(&mut self, later: bool) {
        let Some(plan) = &self.plan else { return };
        self.skip = 0;
        self.quoted = false;
        let (scan, held) = native::Scan::new(plan, later);
        self.held = held;
        self.call = Some(Call::Native(scan.into()));
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

    /// Whether a call without its first tag may begin with this character.
    pub(super) fn may_begin_bare(&self, c: char) -> bool {
        c == '{'
            && self.options.untagged_calls
            && self.format.tools == ToolSyntax::Hermes
            && self.zone == Zone::Content
            && !self.started
            && self.takes_calls()
    }

    /// Begins a call without its first tag.
    pub(super) fn begin_bare(&mut self) {
        self.skip = 0;
        self.quoted = false;
        self.held = "{".into();
        self.call = Some(Call::Hermes(hermes::Scan::bare()));
    }

    /// Whether the held object may be a call: it begins with the name of a tool.
    fn names_tool(&self) -> bool {
        const BEFORE: &str = "{\"name\":\"";
        let longest = self.tools.iter().map(|t| t.name.len()).max().unwrap_or(0) + BEFORE.len();
        let bare: String = self.held.chars().filter(|c| !c.is_whitespace()).take(longest + 1).collect();
        let begins = |text: &str| text.starts_with(&bare) || bare.starts_with(text);
        self.tools.iter().any(|t| begins(&format!("{BEFORE}{}\"", t.name)))
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
            Some(Call::Untagged(scan)) => {
                let Token::Char(c) = token else { return };
                let found = scan.step(&self.heads, c, &self.held);
                return self.untagged(found);
            }
            None => return,
        };
        match step {
            Step::More => {
                self.stream();
                self.quote(token);
                // Other objects are text at once.
                let is_bare = matches!(&self.call, Some(Call::Hermes(scan)) if scan.is_bare());
                if is_bare && self.held.len() < BARE_BYTES && !self.names_tool() {
                    self.give_up(self.held.len());
                }
            }
            Step::Done { end } => {
                self.stream();
                self.complete(end);
            }
            Step::Text { end } => match self.streamed {
                Streamed::Nothing => {
                    let is_close = matches!(token, Token::Tag(Tag::CallClose | Tag::FunctionClose));
                    if is_close && self.drop_tags() || self.is_left_over(token) || self.holds_tags(token) {
                        return;
                    }
                    self.give_up(end);
                }
                // It broke off: what has been emitted stays a call.
                Streamed::To(sent) => {
                    let end = match &self.call {
                        Some(Call::Native(scan)) => scan.end_behind(&self.held, sent),
                        _ => sent,
                    };
                    self.end_of_call(end);
                }
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
                self.start_call(name);
                0
            }
        };
        let Some(Call::Native(scan)) = &self.call else { return };
        let Some((_, span)) = scan.started(&self.held) else { return };
        let end = if span.is_empty() { self.held.len() } else { span.end };
        let from = sent.max(span.start);
        if from < end {
            let text = self.held[from..end].to_string();
            self.arguments(&text);
        }
        self.streamed = Streamed::To(from.max(end));
    }

    /// Emits the beginning of a call of one of the tools.
    pub(super) fn start_call(&mut self, name: String) {
        if !self.mark.is_empty() {
            self.mark.clear();
            self.changes.add(Change::TagBesideCall);
        }
        (self.made_up, self.is_unread, self.mark_began_call) = (0, false, false);
        self.integers = Integers::of(self.tools.iter().position(|t| t.name == name));
        self.ready.push(Ready::Call { index: self.calls, name });
    }

    /// Emits more of the call's arguments.
    pub(super) fn arguments(&mut self, text: &str) {
        let out = match self.ready.last_mut() {
            Some(Ready::Arguments(last)) => last,
            _ => {
                self.ready.push(Ready::Arguments(String::new()));
                let Some(Ready::Arguments(last)) = self.ready.last_mut() else { return };
                last
            }
        };
        self.integers.push(&self.tools, text, out);
        self.arguments_given();
    }

    /// Emits what was held of the call's arguments, which are complete or break off.
    pub(super) fn end_arguments(&mut self) {
        let rest = self.integers.flush();
        if !rest.is_empty() {
            self.ready.push(Ready::Arguments(rest));
        }
        self.arguments_given();
    }

    fn arguments_given(&mut self) {
        if matches!(self.ready.last(), Some(Ready::Arguments(text)) if text.is_empty()) {
            self.ready.pop(); // a number is not complete yet
        }
        if self.integers.has_changed() {
            self.changes.add(Change::Integer);
        }
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
        // All of the answer is in it.
        let is_alone = self.calls == 0 && !self.content && self.mark.is_empty();
        let (end, nested) = match &mut self.call {
            Some(Call::Xml(scan)) => (scan.finish(), scan.may_end_otherwise()),
            Some(Call::Hermes(scan)) => (scan.finish(&self.held, is_alone), false),
            // The unclosed end of a section is dropped.
            Some(Call::Native(scan)) if scan.is_between() => return self.skip_section(self.held.len()),
            Some(Call::Native(_)) if self.streamed != Streamed::Nothing => {
                return self.end_of_call(self.held.len());
            }
            Some(Call::Native(scan)) => (scan.finish(&self.held), false),
            Some(Call::Untagged(scan)) => {
                return match scan.whole(&self.held).filter(|_| is_alone) {
                    Some(missing) => self.untagged(bare::Found::Call(missing)),
                    None => self.give_up(self.held.len()),
                };
            }
            None => return,
        };
        match end {
            Some(end) => self.complete(end),
            None if nested && self.nesting && !self.quoted => {
                // A value contained what looked like a function or like the call's end. From here on, tags in values end it.
                self.nesting = false;
                self.call = None;
                let held = std::mem::take(&mut self.held);
                self.again.push((held, 0));
            }
            // Tags that are left over behind a call.
            None if self.drop_tags() => {}
            None if self.cut && !self.quoted && !self.held.starts_with('{') => {
                self.call = None;
                self.held.clear();
                self.made_up = 0;
                self.gap.clear();
                self.mark.clear();
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
                tool.and_then(|t| Some((t.name.clone(), scan.arguments(&self.held, &t.parameters)?)))
            }
            Some(Call::Hermes(scan)) => scan.call(&self.held).filter(|(name, _)| self.tool(name).is_some()),
            Some(Call::Native(scan)) => scan.call(&self.held, &self.tools),
            Some(Call::Untagged(_)) | None => return,
        };
        let Some((name, arguments)) = call else { return self.give_up(end) };
        let is_mended = match &self.call {
            Some(Call::Xml(scan)) => scan.is_mended(),
            Some(Call::Hermes(scan)) => scan.is_mended(),
            Some(Call::Native(scan)) => scan.is_mended(),
            Some(Call::Untagged(_)) | None => false,
        };
        if is_mended {
            self.changes.add(Change::Mended);
        }
        self.start_call(name);
        self.arguments(&arguments);
        self.end_of_call(end);
    }

    /// The emitted call ends at byte `end` of the held text; the rest is parsed again.
    fn end_of_call(&mut self, end: usize) {
        self.end_arguments();
        self.calls += 1;
        self.prompted = 0;
        self.streamed = Streamed::Nothing;
        if self.in_reasoning() {
            self.zone = Zone::Content;
            if self.options.reasoning != ReasoningFormat::None {
                self.gap.clear();
            }
        }
        self.close_due = true;
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
    pub(super) fn give_up(&mut self, end: usize) {
        let is_untagged = match &self.call {
            Some(Call::Hermes(scan)) => scan.is_bare(),
            call => matches!(call, Some(Call::Untagged(_))),
        };
        self.call = None;
        self.mark_is_text();
        let end = self.without_made_up(end);
        self.is_unread |= !is_untagged && end > 0;
        let rest = self.held.split_off(end);
        for c in std::mem::take(&mut self.held).chars() {
            self.text(c);
        }
        self.again.push((rest, 0));
    }
}
