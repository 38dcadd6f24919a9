//! The part of the parser that emits reasoning and text, without the white space that belongs to tags.

use super::{Kind, Parser, Ready, Zone, tag_text};
use crate::format::{ReasoningFormat, ToolSyntax};
use crate::tags::{Tag, Token};

impl Parser {
    /// A tag that changes the zone, with `newlines` before it that belong to it.
    pub(super) fn tag_of_reasoning(&mut self, tag: Tag, newlines: usize) {
        if self.options.reasoning == ReasoningFormat::None {
            self.emit_gap();
            let text = tag_text(&self.format, tag).to_string();
            text.chars().for_each(|c| self.emit_as(Kind::Raw, c));
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

    pub(super) fn enter(&mut self, zone: Zone) {
        let split = self.options.reasoning != ReasoningFormat::None;
        self.zone = zone;
        self.lead = false;
        self.close_due = false;
        self.started = !split; // tags that stay in the content are content
        self.skip = match zone {
            _ if self.format.text.is_some() => 0,
            Zone::Reasoning => 1,
            Zone::Content => 2,
        };
    }

    /// Number of newlines that templates write between text and a call.
    pub(super) fn newlines_before_call(&self) -> usize {
        match self.format.tools {
            _ if self.format.text.is_some() => 0,
            ToolSyntax::Hermes => 1,
            _ => 2,
        }
    }

    /// A character of reasoning or content.
    pub(super) fn text(&mut self, c: char) {
        if !self.mark.is_empty() {
            if Token::Char(c).is_space() {
                return self.mark.push(c);
            }
            self.mark_is_text();
        }
        if self.skip > 0 && c == '\n' {
            self.skip -= 1;
            if self.options.reasoning == ReasoningFormat::None {
                self.emit_as(Kind::Raw, c);
            }
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

    pub(super) fn emit_gap(&mut self) {
        let gap = std::mem::take(&mut self.gap);
        gap.chars().for_each(|c| self.emit(c));
    }

    pub(super) fn emit(&mut self, c: char) {
        let kind = match (self.zone, self.options.reasoning) {
            (Zone::Content, _) => Kind::Text,
            (Zone::Reasoning, ReasoningFormat::None) => Kind::Raw,
            (Zone::Reasoning, ReasoningFormat::Deepseek | ReasoningFormat::Hidden) => Kind::Reasoning,
        };
        self.emit_as(kind, c);
    }

    pub(super) fn emit_as(&mut self, kind: Kind, c: char) {
        if self.prompted > 0 {
            self.prompted -= 1;
            return;
        }
        self.content |= kind != Kind::Reasoning;
        match self.ready.last_mut() {
            Some(Ready::Text(last, text)) if *last == kind => text.push(c),
            _ => self.ready.push(Ready::Text(kind, c.into())),
        }
    }
}
