//! The part of the parser that takes answers in channels: what each message is.

use super::{Kind, Parser, Zone};
use crate::changes::Change;
use crate::format::ReasoningFormat;
use crate::harmony;

impl Parser {
    /// Processes an event of an answer in channels.
    pub(super) fn message(&mut self, event: harmony::Event<'_>) {
        use harmony::{Event, Kind as Message};
        let raw = self.options.reasoning == ReasoningFormat::None;
        match event {
            Event::Begin(Message::Call(name), _) if self.takes_calls() && self.called(&name).is_some() => {
                self.zone = Zone::Content;
                self.in_harmony_call = true;
                self.has_arguments = false;
                let name = self.called(&name).unwrap_or_default().to_string();
                self.start_call(name);
                self.calls += 1;
            }
            Event::Begin(kind, head) => {
                self.zone = if kind == Message::Reasoning { Zone::Reasoning } else { Zone::Content };
                if raw {
                    head.chars().for_each(|c| self.emit_as(Kind::Raw, c));
                }
            }
            Event::Char(c) if self.in_harmony_call => {
                self.has_arguments |= !c.is_whitespace();
                self.arguments(c.encode_utf8(&mut [0; 4]));
            }
            Event::Char(c) => self.emit(c),
            Event::End(tag) => {
                if raw && !self.in_harmony_call {
                    tag.chars().for_each(|c| self.emit_as(Kind::Raw, c));
                }
                self.end_message();
                self.zone = Zone::Content;
            }
            Event::Mended(tag) if raw && !self.in_harmony_call => {
                tag.chars().for_each(|c| self.emit_as(Kind::Raw, c));
            }
            Event::Mended(_) => self.changes.add(Change::Mended),
            Event::Stray(text) => text.chars().for_each(|c| self.emit(c)),
        }
    }

    /// Ends a call's arguments; one that has none has an empty object.
    pub(super) fn end_message(&mut self) {
        if self.in_harmony_call {
            if !self.has_arguments && !self.cut {
                self.arguments("{}");
            }
            self.end_arguments();
        }
        self.in_harmony_call = false;
    }

    /// The tool that a header names. If the tag between them is missing, a channel follows.
    fn called(&self, name: &str) -> Option<&str> {
        let alone = harmony::CHANNELS.iter().find_map(|channel| name.strip_suffix(channel));
        [Some(name), alone].into_iter().flatten().find_map(|name| self.tool(name)).map(|t| t.name.as_str())
    }
}
