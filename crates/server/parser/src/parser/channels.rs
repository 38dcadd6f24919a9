//! The part of the parser that takes answers in channels: what each message is. Used by `parser`.

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
            Event::Begin(Message::Call(name), _) if self.takes_calls() && self.tool(&name).is_some() => {
                self.zone = Zone::Content;
                self.in_harmony_call = true;
                self.start_call(name);
                self.calls += 1;
            }
            Event::Begin(kind, head) => {
                self.zone = if kind == Message::Reasoning { Zone::Reasoning } else { Zone::Content };
                if raw {
                    head.chars().chain(harmony::MESSAGE.chars()).for_each(|c| self.emit_as(Kind::Raw, c));
                }
            }
            Event::Char(c) if self.in_harmony_call => self.arguments(c.encode_utf8(&mut [0; 4])),
            Event::Char(c) => self.emit(c),
            Event::End(tag) => {
                if raw && !self.in_harmony_call {
                    tag.chars().for_each(|c| self.emit_as(Kind::Raw, c));
                }
                if self.in_harmony_call {
                    self.end_arguments();
                }
                self.in_harmony_call = false;
                self.zone = Zone::Content;
            }
            Event::Repeated(tag) if raw && !self.in_harmony_call => {
                tag.chars().for_each(|c| self.emit_as(Kind::Raw, c));
            }
            Event::Repeated(_) => self.changes.add(Change::Mended),
            Event::Stray(text) => text.chars().for_each(|c| self.emit(c)),
        }
    }
}
