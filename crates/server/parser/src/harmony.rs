//! Parses gpt-oss' answers: messages with headers that name a channel or the called tool.
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
    /// A message begins, after this header with its last tag.
    Begin(Kind, &'a str),
    /// A character of the message.
    Char(char),
    /// The message ended with this tag.
    End(&'a str),
    /// A tag that came twice; or empty, one that was forgotten.
    Mended(&'a str),
    /// Text that looked like a header without a message.
    Stray(&'a str),
}

/// The tag that ends a header.
const MESSAGE: &str = "<|message|>";
/// The tag before a channel's name.
const CHANNEL: &str = "<|channel|>";
/// The tag before the type of a message's content.
const CONSTRAIN: &str = "<|constrain|>";
/// The tag before a header.
const START: &str = "<|start|>";
/// The tag behind a call.
const CALL: &str = "<|call|>";
/// The tags that end a message; `<|channel|>` is the next header's, whose beginning was forgotten.
const ENDS: [&str; 5] = ["<|end|>", CALL, "<|return|>", START, CHANNEL];
/// The channels.
pub const CHANNELS: [&str; 3] = ["analysis", "commentary", "final"];
/// The beginning of a recipient that is a tool of the request.
const RECIPIENT: &str = "to=functions.";
/// Types of content before JSON that begins without a tag.
const TYPES: [&str; 2] = ["json", "code"];
/// Maximum length of a header in bytes.
const HEAD_BYTES_MAX: usize = 512;

/// A header so far. Its last tag may be forgotten: then the message begins at the first character that no header has, or at a word that
/// is neither a role, a recipient, a channel nor, if nothing but the tag follows it, a type of content.
#[derive(Debug, Default)]
struct Head {
    text: String,
    /// Where the current word begins.
    word: Option<usize>,
    /// Where a word begins that is a type of content, or of the message's text.
    loose: Option<usize>,
    /// A channel's name comes next.
    before_channel: bool,
    /// A type of content comes next.
    before_type: bool,
    has_channel: bool,
    has_recipient: bool,
}

impl Head {
    /// Adds a character; true if it is of the message, whose tag was forgotten.
    fn push(&mut self, c: char) -> bool {
        if !(c.is_alphanumeric() || c.is_whitespace() || "_-.=:/".contains(c)) {
            self.end_word();
            return true;
        }
        if c.is_whitespace() {
            self.end_word();
        } else if self.word.is_none() {
            if self.loose.is_some() {
                return true;
            }
            self.word = Some(self.text.len());
        }
        self.text.push(c);
        false
    }

    /// Adds a tag of a header.
    fn push_tag(&mut self, tag: &str) {
        self.end_word();
        self.before_channel = tag == CHANNEL;
        self.before_type = tag == CONSTRAIN;
        self.text.push_str(tag);
    }

    fn end_word(&mut self) {
        let Some(from) = self.word.take() else { return };
        let word = &self.text[from..];
        let (before_channel, before_type) = (self.before_channel, self.before_type);
        (self.before_channel, self.before_type) = (false, false);
        if before_channel {
            self.has_channel = true;
            let channel = CHANNELS.iter().find(|c| word.starts_with(*c)).map_or(0, |c| c.len());
            match &word[channel..] {
                "" => {}
                rest if rest.starts_with("to=") => self.has_recipient |= rest.starts_with(RECIPIENT),
                _ => self.loose = Some(from + channel),
            }
        } else if word.starts_with("to=") {
            self.has_recipient |= word.starts_with(RECIPIENT);
        } else if !before_type && (word != "assistant" || self.has_channel) {
            self.loose = Some(from);
        }
    }

    /// Drops a word that may be the beginning of a role or of a recipient.
    fn drop_partial_word(&mut self) {
        let Some(word) = self.word.map(|from| &self.text[from..]) else { return };
        let begins = |words: &[&str]| words.iter().any(|w| w.starts_with(word));
        let is_partial = if self.before_channel { begins(&CHANNELS) } else { begins(&["assistant", "to="]) };
        if is_partial && self.text.contains("<|") {
            self.word = None;
        }
    }

    /// Where the message begins whose tag was forgotten, if the character `next` follows.
    fn message_at(&self, next: Option<char>) -> usize {
        let is_json = matches!(next, Some('{' | '['));
        let is_type = |word: &str| TYPES.iter().any(|t| word.trim_end().eq_ignore_ascii_case(t));
        match self.loose {
            // No header has begun.
            _ if !self.has_recipient && !self.text.contains("<|") => 0,
            Some(at) if is_json && (self.has_recipient || is_type(&self.text[at..])) => self.text.len(),
            Some(at) => at,
            None => self.text.len(),
        }
    }
}

/// An incremental parser of an answer.
#[derive(Debug, Default)]
pub struct Reader {
    /// After a header.
    in_message: bool,
    head: Head,
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
            let others: &[&str] = if self.in_message { &[MESSAGE] } else { &[MESSAGE, CONSTRAIN] };
            let mut tags = ENDS.iter().chain(others);
            match tags.find(|t| t.starts_with(&self.part)) {
                // The tag twice.
                Some(&MESSAGE) if self.in_message && self.part == MESSAGE => {
                    self.part.clear();
                    return emit(Event::Mended(MESSAGE));
                }
                Some(tag) if **tag == self.part => {
                    self.part.clear();
                    return if self.in_message { self.end(tag, emit) } else { self.tag_in_head(tag, emit) };
                }
                Some(_) => return,
                None => {}
            }
            self.part.drain(..first.len_utf8());
            if !self.in_message && self.head.push(first) {
                self.begin_untagged(Some(first), emit);
            }
            if self.in_message {
                emit(Event::Char(first));
            } else if self.head.text.len() > HEAD_BYTES_MAX {
                self.head.end_word();
                self.begin_untagged(None, emit);
            }
        }
    }

    /// Ends the answer; if it was `cut`, a partial tag or header is dropped.
    pub fn finish(&mut self, cut: bool, emit: &mut impl FnMut(Event<'_>)) {
        let part = Some(std::mem::take(&mut self.part)).filter(|_| !cut).unwrap_or_default();
        if !self.in_message {
            if cut {
                self.head.drop_partial_word();
            }
            self.head.end_word();
            if self.head.loose.is_some() && !self.head.has_recipient {
                self.begin_untagged(None, emit);
            }
        }
        if self.in_message {
            part.chars().for_each(|c| emit(Event::Char(c)));
        } else if self.head.has_recipient && !cut {
            // The token that ends calls is not shown: one without arguments.
            let head = std::mem::take(&mut self.head).text;
            emit(Event::Mended(""));
            emit(Event::Begin(kind(&head), &head));
        } else if !(cut && (self.later || self.head.has_recipient)) {
            let head = std::mem::take(&mut self.head).text + &part;
            // Between messages there are only headers.
            if !head.contains("<|") && head.trim() != "assistant" {
                emit(Event::Stray(&head));
            }
        }
    }

    /// A message begins without its tag, before the character `next`. What has a recipient is a call only if JSON follows.
    fn begin_untagged(&mut self, next: Option<char>, emit: &mut impl FnMut(Event<'_>)) {
        let head = std::mem::take(&mut self.head);
        self.in_message = true;
        if head.loose.is_none() && next.is_none() {
            return emit(Event::Stray(&head.text));
        }
        let is_text = head.has_recipient && next != Some('{');
        let (head, text) = head.text.split_at(head.message_at(next));
        if head.contains("<|") {
            emit(Event::Mended(""));
        }
        emit(Event::Begin(if is_text { Kind::Content } else { kind(head) }, head));
        text.chars().for_each(|c| emit(Event::Char(c)));
    }

    /// A tag in a header.
    fn tag_in_head(&mut self, tag: &str, emit: &mut impl FnMut(Event<'_>)) {
        self.head.end_word();
        match tag {
            MESSAGE => {
                let head = std::mem::take(&mut self.head).text + tag;
                emit(Event::Begin(kind(&head), &head));
                self.in_message = true;
            }
            // A type of content, or text.
            _ if self.head.loose.is_some() && !self.head.has_recipient && tag != CONSTRAIN => {
                self.begin_untagged(None, emit);
                self.end(tag, emit);
            }
            CONSTRAIN | CHANNEL => self.head.push_tag(tag),
            // A call without arguments.
            CALL if self.head.has_recipient => {
                let head = std::mem::take(&mut self.head).text;
                emit(Event::Mended(""));
                emit(Event::Begin(kind(&head), &head));
                self.end(tag, emit);
            }
            // A header without a message.
            _ => {
                self.end_head();
                if tag == START {
                    self.head.push_tag(tag);
                }
            }
        }
    }

    /// The message ends with this tag.
    fn end(&mut self, tag: &str, emit: &mut impl FnMut(Event<'_>)) {
        // A header is shown with its own tag.
        emit(Event::End(if tag == CHANNEL { "" } else { tag }));
        self.end_head();
        if tag == CHANNEL {
            self.head.push_tag(tag);
        }
    }

    fn end_head(&mut self) {
        self.head = Head::default();
        (self.in_message, self.later) = (false, true);
    }
}

/// The kind of the message with this header.
fn kind(head: &str) -> Kind {
    let words = || head.split(|c: char| c.is_whitespace() || c == '<').filter(|w| !w.is_empty());
    // A channel may be before it without a space.
    let named = words().find_map(|w| {
        w.split_once(RECIPIENT)
            .filter(|(before, _)| before.is_empty() || CHANNELS.iter().any(|c| before.ends_with(c)))
    });
    if let Some((_, name)) = named {
        return Kind::Call(name.into());
    }
    let channel = head.rsplit_once(CHANNEL).map(|(_, rest)| rest.trim_start());
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
