//! Parses gpt-oss' answers: messages with headers that name a channel or the called tool. Used by `parser`.
//!
//! `<|channel|>analysis<|message|>` begins reasoning, `<|channel|>final<|message|>` the answer; `to=functions.NAME` in a header makes
//! the message the arguments of a call. `<|end|>` ends a message, `<|start|>assistant` begins the next one. (OpenAI's "harmony"
//! format.)

/// The kind of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Reasoning.
    Reasoning,
    /// Part of the answer.
    Content,
    /// The arguments of a call of this function.
    Call(String),
}

/// A parse event.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A message begins, after this header.
    Begin(Kind, &'a str),
    /// A character of the message.
    Char(char),
    /// The message ended with this tag.
    End(&'a str),
    /// A tag that came twice.
    Repeated(&'a str),
    /// Text that looked like a header without a message.
    Stray(&'a str),
}

/// The tag that ends a header.
pub const MESSAGE: &str = "<|message|>";
/// The tags that end a message; `<|channel|>` is the next header's, whose beginning was forgotten.
const ENDS: [&str; 5] = ["<|end|>", "<|call|>", "<|return|>", "<|start|>", CHANNEL];
/// The tag before a channel's name.
const CHANNEL: &str = "<|channel|>";
/// Maximum length of a header in bytes.
const HEAD_BYTES_MAX: usize = 512;

/// An incremental parser of an answer.
#[derive(Debug, Default)]
pub struct Reader {
    /// After a header.
    in_message: bool,
    head: String,
    /// The beginning of a possible tag.
    part: String,
    /// A message has ended before.
    later: bool,
}

impl Reader {
    /// Processes the next character.
    pub fn step(&mut self, c: char, emit: &mut impl FnMut(Event<'_>)) {
        self.part.push(c);
        while let Some(first) = self.part.chars().next() {
            let ends: &[&str] = if self.in_message { &ENDS } else { &[] };
            let mut tags = ends.iter().chain([&MESSAGE]);
            match tags.find(|t| t.starts_with(&self.part)) {
                // The tag twice.
                Some(&MESSAGE) if self.in_message && self.part == MESSAGE => {
                    self.part.clear();
                    return emit(Event::Repeated(MESSAGE));
                }
                Some(tag) if **tag == self.part => {
                    self.part.clear();
                    return self.tag(tag, emit);
                }
                Some(_) => return,
                None => {}
            }
            self.part.drain(..first.len_utf8());
            if self.in_message {
                emit(Event::Char(first));
                continue;
            }
            self.head.push(first);
            if self.head.len() > HEAD_BYTES_MAX {
                emit(Event::Stray(&std::mem::take(&mut self.head)));
                self.in_message = true;
            }
        }
    }

    /// Ends the answer; if it was `cut`, a partial tag or header is dropped.
    pub fn finish(&mut self, cut: bool, emit: &mut impl FnMut(Event<'_>)) {
        let part = std::mem::take(&mut self.part);
        if cut && (self.later || self.in_message) {
            return;
        }
        if self.in_message {
            part.chars().for_each(|c| emit(Event::Char(c)));
        } else {
            let head = std::mem::take(&mut self.head) + &part;
            // Between messages there are only headers.
            let is_tag = head.contains("<|") || cut && head == "<";
            if !is_tag && head.trim() != "assistant" {
                emit(Event::Stray(&head));
            }
        }
    }

    fn tag(&mut self, tag: &str, emit: &mut impl FnMut(Event<'_>)) {
        if self.in_message {
            // A header is shown with its own tag.
            emit(Event::End(if tag == CHANNEL { "" } else { tag }));
            self.head.clear();
            if tag == CHANNEL {
                self.head.push_str(tag);
            }
            self.later = true;
        } else {
            let head = std::mem::take(&mut self.head);
            emit(Event::Begin(kind(&head), &head));
        }
        self.in_message = !self.in_message;
    }
}

/// The kind of the message with this header.
fn kind(head: &str) -> Kind {
    let words = || head.split(|c: char| c.is_whitespace() || c == '<').filter(|w| !w.is_empty());
    if let Some(name) = words().find_map(|w| w.strip_prefix("to=functions.")) {
        return Kind::Call(name.into());
    }
    let channel = head.split_once("<|channel|>").map(|(_, rest)| rest.trim_start());
    if channel.is_some_and(|c| c.starts_with("analysis")) { Kind::Reasoning } else { Kind::Content }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_give_the_kind_of_messages() {
        let call = Kind::Call("get_weather".into());
        for (head, want) in [
            ("<|channel|>analysis", Kind::Reasoning),
            ("<|start|>assistant<|channel|>final", Kind::Content),
            ("<|channel|>commentary", Kind::Content),
            ("<|channel|>commentary to=functions.get_weather <|constrain|>json", call.clone()),
            ("<|channel|>analysis to=functions.get_weather code", call.clone()),
            (" to=functions.get_weather<|channel|>commentary json", call),
            ("", Kind::Content),
        ] {
            assert_eq!(kind(head), want, "{head}");
        }
    }
}
