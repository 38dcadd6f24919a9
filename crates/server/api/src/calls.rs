//! Puts the tool calls of one choice in order.
//!
//! Events have one call after the other, and clients act on a call when it is complete. So a call that begins while another one is
//! incomplete is held back, and a call is complete only if its arguments are, if the provider says so, or at the answer's end.

use std::collections::HashMap;

use crate::ApiError;
use crate::core::Event;

/// The calls of one choice.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    choice: u32,
    all: Vec<Call>,
    /// The positions of the last calls with a number, or an id.
    by_number: HashMap<u64, usize>,
    by_id: HashMap<String, usize>,
    highest_number: Option<u64>,
    /// The calls before this one are complete.
    open: usize,
    /// Other events that came while a call was incomplete.
    held: Vec<Event>,
}

#[derive(Debug, Default)]
struct Call {
    /// The provider's id, if it sent one.
    id: Option<String>,
    name: String,
    /// Arguments that are not emitted yet.
    pending: String,
    scan: Scan,
    is_started: bool,
    has_arguments: bool,
    /// The provider said so.
    is_done: bool,
}

impl Calls {
    /// The calls of this choice.
    pub fn of(choice: u32) -> Self {
        Self { choice, ..Self::default() }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The position of the last call with this number.
    pub fn position(&self, number: u64) -> Option<usize> {
        self.by_number.get(&number).copied()
    }

    /// The position of the call with this id.
    pub fn with_id(&self, id: &str) -> Option<usize> {
        self.by_id.get(id).copied()
    }

    /// The position of the last call.
    pub fn last(&self) -> Option<usize> {
        self.all.len().checked_sub(1)
    }

    /// A number that no call has.
    pub fn next_number(&self) -> u64 {
        self.highest_number.map_or(0, |n| n.saturating_add(1))
    }

    /// Whether the call at this position has another id.
    pub fn has_other_id(&self, at: usize, id: &str) -> bool {
        self.all[at].id.as_deref().is_some_and(|known| known != id)
    }

    /// Begins a call; returns its position.
    pub fn begin(&mut self, number: u64, id: Option<String>, name: String) -> usize {
        let at = self.all.len();
        self.by_number.insert(number, at);
        if let Some(id) = &id {
            self.by_id.insert(id.clone(), at);
        }
        self.highest_number = self.highest_number.max(Some(number));
        self.all.push(Call { id, name, ..Call::default() });
        at
    }

    /// Adds a piece of a name. Some servers repeat the whole name instead.
    pub fn extend_name(&mut self, at: usize, piece: &str) {
        let call = &mut self.all[at];
        if !call.is_started && call.name != piece {
            call.name.push_str(piece);
        }
    }

    /// Adds a piece of a call's arguments. `answer`: the answer's id, for calls without one.
    ///
    /// # Errors
    /// More arguments for a complete call; arguments of a call without a name.
    pub fn arguments(
        &mut self,
        at: usize,
        text: &str,
        answer: &str,
        out: &mut Vec<Event>,
    ) -> Result<(), ApiError> {
        if at < self.open {
            if text.trim().is_empty() {
                return Ok(());
            }
            return Err(ApiError::upstream("the provider adds arguments to a call that was complete"));
        }
        let call = &mut self.all[at];
        call.pending.push_str(text);
        call.scan.push(text);
        self.advance(answer, out)
    }

    /// The provider says that a call is complete.
    ///
    /// # Errors
    /// As [`Calls::arguments`].
    pub fn complete(&mut self, at: usize, answer: &str, out: &mut Vec<Event>) -> Result<(), ApiError> {
        self.all[at].is_done = true;
        self.advance(answer, out)
    }

    /// Emits an event that is not of a call: after the call that is being written.
    pub fn emit(&mut self, event: Event, out: &mut Vec<Event>) {
        if let Some(call) = self.all.get(self.open).filter(|call| call.is_started && call.scan.is_over()) {
            debug_assert!(call.pending.is_empty(), "pieces of the first incomplete call are emitted");
            self.open += 1;
        }
        if self.open < self.all.len() {
            self.held.push(event);
        } else {
            out.push(event);
        }
    }

    /// The answer ends. A call without arguments gets an empty object, as clients of all dialects expect one, unless the answer was
    /// truncated: then it is left out.
    ///
    /// # Errors
    /// A call without a name.
    pub fn finish(&mut self, truncated: bool, answer: &str, out: &mut Vec<Event>) -> Result<(), ApiError> {
        if truncated {
            let open = self.open;
            let mut at = 0;
            self.all.retain(|call| {
                at += 1;
                at <= open || call.has_arguments || !call.pending.is_empty()
            });
        }
        self.all.iter_mut().for_each(|call| call.is_done = true);
        self.advance(answer, out)?;
        out.append(&mut self.held);
        Ok(())
    }

    /// Emits what is in order.
    fn advance(&mut self, answer: &str, out: &mut Vec<Event>) -> Result<(), ApiError> {
        let choice = self.choice;
        while self.open < self.all.len() {
            let position = self.open;
            // The last call stays open while nothing follows it: blanks may.
            let is_followed = position + 1 < self.all.len() || !self.held.is_empty();
            let index = position as u32;
            let call = &mut self.all[position];
            if !call.is_started && (call.is_done || !call.pending.is_empty()) {
                if call.name.is_empty() {
                    return Err(ApiError::upstream(
                        "the provider's answer calls a tool without saying which",
                    ));
                }
                call.is_started = true;
                let id = call.id.clone().unwrap_or_else(|| format!("call_{answer}_{choice}_{index}"));
                out.push(Event::ToolCallStart { choice, index, id, name: call.name.clone() });
            }
            if !call.pending.is_empty() {
                call.has_arguments = true;
                let text = std::mem::take(&mut call.pending);
                out.push(Event::ToolCallArguments { choice, index, text });
            }
            let is_over = call.is_done || (is_followed && call.scan.is_over());
            if !is_over {
                return Ok(());
            }
            if !call.has_arguments {
                out.push(Event::ToolCallArguments { choice, index, text: "{}".into() });
            }
            self.open += 1;
            out.append(&mut self.held);
        }
        Ok(())
    }
}

/// Finds the end of a JSON object or list that comes in pieces.
#[derive(Debug, Default)]
struct Scan {
    depth: u32,
    has_begun: bool,
    in_string: bool,
    is_escaped: bool,
}

impl Scan {
    fn push(&mut self, text: &str) {
        for byte in text.bytes() {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.in_string => self.is_escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => (self.depth, self.has_begun) = (self.depth.saturating_add(1), true),
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    fn is_over(&self) -> bool {
        self.has_begun && self.depth == 0 && !self.in_string
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::core::Answer;

    fn called(out: &[Event]) -> Vec<(String, String)> {
        let answer = Answer::from_events(out);
        let calls = answer.choices.iter().flat_map(|c| c.tool_calls());
        calls.map(|(_, name, arguments)| (name.to_string(), arguments.to_string())).collect()
    }

    #[test]
    fn a_truncated_answer_has_no_call_that_never_had_arguments() {
        for (truncated, expected) in
            [(true, vec![("a", "{\"x\":")]), (false, vec![("a", "{\"x\":"), ("b", "{}")])]
        {
            let (mut calls, mut out) = (Calls::of(0), Vec::new());
            let a = calls.begin(0, None, "a".into());
            calls.arguments(a, "{\"x\":", "", &mut out).unwrap();
            calls.begin(1, None, "b".into());
            calls.finish(truncated, "", &mut out).unwrap();
            let expected: Vec<_> =
                expected.into_iter().map(|(n, a)| (n.to_string(), a.to_string())).collect();
            assert_eq!(called(&out), expected);
        }
    }

    #[test]
    fn text_between_the_pieces_of_a_call_comes_after_it() {
        let (mut calls, mut out) = (Calls::of(0), Vec::new());
        let text = |text: &str| Event::Text { choice: 0, text: text.into() };
        let a = calls.begin(0, None, "a".into());
        calls.arguments(a, "{", "", &mut out).unwrap();
        calls.emit(text("between"), &mut out);
        calls.arguments(a, "}", "", &mut out).unwrap();
        calls.emit(text("after"), &mut out);
        calls.finish(false, "", &mut out).unwrap();
        let texts = out.iter().filter_map(|e| match e {
            Event::Text { text, .. } | Event::ToolCallArguments { text, .. } => Some(text.as_str()),
            _ => None,
        });
        assert_eq!(texts.collect::<Vec<_>>(), ["{", "}", "between", "after"]);
    }

    proptest! {
        /// However the pieces of several calls are mixed, each call has its own arguments, and no call begins within another.
        #[test]
        fn pieces_in_any_order_make_the_same_calls(
            texts in prop::collection::vec(prop::sample::select(vec![
                "{}", r#"{"a":"}{\"["}"#, r#"{"a":[1,{"b":2}]}"#, "", "no json", r#"{"a":1} "#,
            ]), 1..5),
            order in prop::collection::vec(0usize..5, 0..80),
        ) {
            let (mut calls, mut out) = (Calls::of(0), Vec::new());
            let mut left: Vec<_> = texts.iter().map(|t| t.chars().collect::<Vec<_>>().into_iter()).collect();
            for (i, _) in texts.iter().enumerate() {
                calls.begin(i as u64, None, format!("f{i}"));
            }
            let whole = (0..texts.len()).flat_map(|i| std::iter::repeat_n(i, 40));
            for i in order.into_iter().filter(|i| *i < texts.len()).chain(whole) {
                if let Some(c) = left[i].next() {
                    calls.arguments(i, &c.to_string(), "", &mut out).unwrap();
                }
            }
            calls.finish(false, "", &mut out).unwrap();
            let expected: Vec<_> = texts.iter().enumerate().map(|(i, t)| {
                // Blanks after the end of a complete call may be left out.
                (format!("f{i}"), if t.is_empty() { "{}".into() } else { t.trim().to_string() })
            }).collect();
            let got: Vec<_> = called(&out).into_iter().map(|(n, a)| (n, a.trim().to_string())).collect();
            prop_assert_eq!(got, expected);
        }
    }
}
