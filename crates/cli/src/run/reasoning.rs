//! Tells what a model thinks from what it answers, while the text comes. Called by `run::session`.

/// A tag before which, and behind which, the kinds of text lie.
const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// What a piece of text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Before `</think>`.
    Reasoning,
    /// The answer.
    Content,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing but white space has come; the text may yet begin with `<think>`.
    Start,
    /// `skip` is set until the first character that is no white space.
    In { kind: Kind, skip: bool },
}

/// Splits a text that comes in pieces. Only a text that begins with `<think>`, or whose prompt ends with it, has
/// reasoning: `</think>` anywhere else is text.
#[derive(Debug)]
pub struct Splitter {
    state: State,
    held: String,
}

impl Splitter {
    /// `opened` where the prompt ends with `<think>`.
    pub fn new(opened: bool) -> Self {
        let state = if opened { State::In { kind: Kind::Reasoning, skip: true } } else { State::Start };
        Self { state, held: String::new() }
    }

    /// Takes a piece; hands out what is certain.
    pub fn push(&mut self, text: &str, emit: &mut dyn FnMut(Kind, &str)) {
        self.held.push_str(text);
        loop {
            match self.state {
                State::Start => {
                    let begun = self.held.trim_start();
                    if OPEN.starts_with(begun) && begun != OPEN {
                        return; // white space, or the beginning of the tag
                    }
                    let (kind, rest) = match begun.strip_prefix(OPEN) {
                        Some(rest) => (Kind::Reasoning, rest.to_string()),
                        None => (Kind::Content, std::mem::take(&mut self.held)),
                    };
                    self.held = rest;
                    self.state = State::In { kind, skip: kind == Kind::Reasoning };
                }
                State::In { kind, skip: true } => {
                    let begun = self.held.trim_start().to_string();
                    self.held = begun;
                    if self.held.is_empty() {
                        return;
                    }
                    self.state = State::In { kind, skip: false };
                }
                State::In { kind: Kind::Content, .. } => {
                    if !self.held.is_empty() {
                        emit(Kind::Content, &std::mem::take(&mut self.held));
                    }
                    return;
                }
                State::In { kind: Kind::Reasoning, .. } => match self.held.find(CLOSE) {
                    Some(at) => {
                        let reasoning = self.held[..at].trim_end();
                        if !reasoning.is_empty() {
                            emit(Kind::Reasoning, reasoning);
                        }
                        self.held.drain(..at + CLOSE.len());
                        self.state = State::In { kind: Kind::Content, skip: true };
                    }
                    None => {
                        let certain = self.held.len() - uncertain(&self.held);
                        if certain > 0 {
                            let text: String = self.held.drain(..certain).collect();
                            emit(Kind::Reasoning, &text);
                        }
                        return;
                    }
                },
            }
        }
    }

    /// The text is over: hands out the rest.
    pub fn finish(&mut self, emit: &mut dyn FnMut(Kind, &str)) {
        let kind = match self.state {
            State::Start => Kind::Content,
            State::In { kind, .. } => kind,
        };
        let rest = std::mem::take(&mut self.held);
        if !rest.is_empty() {
            emit(kind, &rest);
        }
    }
}

/// Bytes at the end that may be the beginning of white space and `</think>`.
fn uncertain(text: &str) -> usize {
    let tag = (1..CLOSE.len()).rev().find(|&n| text.ends_with(&CLOSE[..n])).unwrap_or(0);
    let rest = &text[..text.len() - tag];
    tag + rest.len() - rest.trim_end().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits `text` given in pieces of `n` bytes (all ASCII) into reasoning and content.
    fn split(opened: bool, text: &str, n: usize) -> (String, String) {
        let (mut reasoning, mut content) = (String::new(), String::new());
        let mut emit = |kind, text: &str| match kind {
            Kind::Reasoning => reasoning.push_str(text),
            Kind::Content => content.push_str(text),
        };
        let mut s = Splitter::new(opened);
        for piece in text.as_bytes().chunks(n) {
            s.push(std::str::from_utf8(piece).unwrap(), &mut emit);
        }
        s.finish(&mut emit);
        (reasoning, content)
    }

    #[test]
    fn texts_are_split_wherever_the_pieces_end() {
        let cases = [
            (true, "\nIt is 4.\n</think>\n\n4.\n", "It is 4.", "4.\n"),
            (false, "<think>\nIt is 4.\n</think>\n\n4.", "It is 4.", "4."),
            (false, "<think>\n\n</think>\n\n4.", "", "4."),
            (false, "4. </think> is a tag.", "", "4. </think> is a tag."),
            (false, "  4.", "", "  4."),
            (false, "<thinking> is no tag", "", "<thinking> is no tag"),
            (true, "a < b </thin k", "a < b </thin k", ""),
            (true, "x</think>y</think>z", "x", "y</think>z"),
            (true, "cut short", "cut short", ""),
            (false, "<thi", "", "<thi"),
        ];
        for (opened, text, reasoning, content) in cases {
            for n in 1..=text.len() {
                assert_eq!(split(opened, text, n), (reasoning.into(), content.into()), "{text:?} by {n}");
            }
        }
    }
}
