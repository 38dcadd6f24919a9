//! Restores the control tokens of answers in frames, as Kimi K3 writes them: `<|open|>NAME<|sep|>...<|close|>NAME<|sep|>`, where the name
//! of a call and of an argument has attributes.
//!
//! A token may be missing or come twice, as text is in some frames only: elsewhere a name without its token is clear. What comes out is
//! the answer with each token once. From where an answer is no sequence of frames, it comes out as it is.

const OPEN: &str = "<|open|>";
const CLOSE: &str = "<|close|>";
const SEP: &str = "<|sep|>";
const TOKENS: [&str; 3] = [OPEN, CLOSE, SEP];
/// What opens a frame with attributes, of which each has two.
const CALL: &str = "call tool=\"";
const ARGUMENT: &str = "argument key=\"";
/// Number of quotation marks of two attributes.
const QUOTES: usize = 4;
/// Maximum length of a name with its attributes in bytes.
const NAME_BYTES_MAX: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    Think,
    Response,
    Tools,
    Call,
    Argument,
}

impl Frame {
    const ALL: [Self; 5] = [Self::Think, Self::Response, Self::Tools, Self::Call, Self::Argument];

    fn name(self) -> &'static str {
        match self {
            Self::Think => "think",
            Self::Response => "response",
            Self::Tools => "tools",
            Self::Call => "call",
            Self::Argument => "argument",
        }
    }

    fn has_text(self) -> bool {
        matches!(self, Self::Think | Self::Response | Self::Argument)
    }

    /// The frame that this opens: its name, with attributes if it has some.
    fn opened_by(name: &str) -> Option<Self> {
        if name.starts_with(CALL) || name.starts_with(ARGUMENT) {
            let of = if name.starts_with(CALL) { Self::Call } else { Self::Argument };
            return (name.matches('"').count() == QUOTES && name.ends_with('"')).then_some(of);
        }
        let plain = [Self::Think, Self::Response, Self::Tools];
        plain.into_iter().find(|frame| frame.name() == name)
    }
}

/// The frame around all others.
const MESSAGE: &str = "message";

#[derive(Debug, PartialEq, Eq)]
enum At {
    /// Between frames: the text so far, which is a name whose token is missing.
    Between(String),
    /// Behind the token that opens or closes a frame: the name so far.
    Name { is_open: bool, name: String },
    /// In a frame's text: white space at its beginning, and its end if that may be a name whose token is missing.
    Text { lead: String, tail: String, has_begun: bool },
    /// These are no frames.
    Off,
}

impl At {
    fn between() -> Self {
        Self::Between(String::new())
    }

    fn text() -> Self {
        Self::Text { lead: String::new(), tail: String::new(), has_begun: false }
    }
}

/// An answer's frames.
#[derive(Debug)]
pub struct Frames {
    at: At,
    /// The open frames, the innermost last.
    around: Vec<Frame>,
    /// The beginning of a possible token.
    part: String,
    /// A token was missing or repeated.
    is_mended: bool,
}

impl Frames {
    /// `header` opens the frame of text; `None` if these are no frames, or the prompt ends within a token.
    pub fn new(header: &str, in_reasoning: bool, begun: usize) -> Option<Self> {
        if header != format!("{OPEN}{}{SEP}", Frame::Response.name()) || begun > 0 && begun < header.len() {
            return None;
        }
        let around = match (in_reasoning, begun) {
            (true, _) => vec![Frame::Think],
            (false, 0) => Vec::new(),
            (false, _) => vec![Frame::Response],
        };
        let at = if around.is_empty() { At::between() } else { At::text() };
        Some(Self { at, around, part: String::new(), is_mended: false })
    }

    /// Whether a token was missing or repeated.
    pub fn is_mended(&self) -> bool {
        self.is_mended
    }

    /// Processes the next character, and adds to `out` what is certain.
    pub fn step(&mut self, c: char, out: &mut String) {
        if self.at == At::Off {
            return out.push(c);
        }
        self.part.push(c);
        while let Some(first) = self.part.chars().next() {
            match TOKENS.into_iter().find(|token| token.starts_with(&self.part)) {
                Some(token) if token == self.part => {
                    self.part.clear();
                    return self.token(token, out);
                }
                Some(_) => return,
                None => {}
            }
            self.part.drain(..first.len_utf8());
            self.plain(first, out);
        }
    }

    /// Ends the answer: adds what is left, as it was written; of a whole closing tag also its last token.
    pub fn finish(&mut self, out: &mut String) {
        let is_whole = |name: &str| name == MESSAGE || Frame::ALL.iter().any(|frame| frame.name() == name);
        if matches!(&self.at, At::Name { is_open: false, name } if is_whole(name)) && self.part.is_empty() {
            self.end_name(true, out);
        }
        self.flush(out);
        out.push_str(&std::mem::take(&mut self.part));
    }

    /// Adds what is held, as it was written.
    fn flush(&mut self, out: &mut String) {
        match std::mem::replace(&mut self.at, At::Off) {
            At::Between(text) => out.push_str(&text),
            At::Name { is_open, name } => {
                out.push_str(if is_open { OPEN } else { CLOSE });
                out.push_str(&name);
            }
            At::Text { lead, tail, .. } => {
                out.push_str(&lead);
                out.push_str(&tail);
            }
            At::Off => {}
        }
    }

    fn plain(&mut self, c: char, out: &mut String) {
        match &mut self.at {
            At::Off => out.push(c),
            At::Text { lead, has_begun, .. } if !*has_begun && c.is_whitespace() => lead.push(c),
            At::Text { lead, tail, has_begun } => {
                out.push_str(&std::mem::take(lead));
                *has_begun = true;
                let name = self.around.last().map_or("", |frame| frame.name());
                tail.push(c);
                if !name.starts_with(tail.as_str()) {
                    tail.pop();
                    out.push_str(&std::mem::take(tail));
                    if name.starts_with(c) { tail.push(c) } else { out.push(c) }
                }
            }
            // Nothing is looked at again: there may be many. No name has white space.
            At::Between(text)
                if c.is_whitespace() && (text.is_empty() || text.ends_with(char::is_whitespace)) =>
            {
                text.push(c);
            }
            At::Between(text) => {
                text.push(c);
                let name = text.trim_start().to_string();
                if [CALL, ARGUMENT].contains(&name.as_str()) {
                    self.is_mended = true;
                    self.at = At::Name { is_open: true, name };
                } else if !self.may_begin(&name) {
                    self.flush(out);
                }
            }
            At::Name { is_open, name } => {
                let begun = name.trim_start();
                let tools = Frame::Tools.name();
                // Behind a whole name its last token is missing, or several are.
                let behind = if *is_open { Frame::opened_by(begun) } else { None };
                if behind.is_some() && begun != tools {
                    self.end_name(true, out);
                    return self.plain(c, out);
                }
                name.push(c);
                let is_long = name.len() > NAME_BYTES_MAX;
                if is_long || c == '\n' && !name.trim().is_empty() {
                    return self.flush(out);
                }
                let within = name.trim_start().strip_prefix(tools).filter(|_| *is_open).map(str::to_string);
                if let Some(within) = within.filter(|w| *w == CALL) {
                    *name = tools.into();
                    self.end_name(true, out);
                    self.is_mended = true;
                    self.at = At::Name { is_open: true, name: within };
                }
            }
        }
    }

    /// Whether a text between frames may be a name whose token is missing.
    fn may_begin(&self, text: &str) -> bool {
        let inner = match self.around.last() {
            Some(Frame::Tools) => vec![CALL, Frame::Tools.name()],
            Some(Frame::Call) => vec![ARGUMENT, Frame::Call.name()],
            Some(_) => Vec::new(),
            None => vec![Frame::Think.name(), Frame::Response.name(), Frame::Tools.name(), MESSAGE],
        };
        text.is_empty() || inner.iter().any(|name| name.starts_with(text))
    }

    fn token(&mut self, token: &str, out: &mut String) {
        match &mut self.at {
            At::Off => out.push_str(token),
            At::Text { lead, tail, has_begun } => {
                let name = self.around.last().map_or("", |frame| frame.name());
                if token == SEP && tail == name {
                    self.is_mended = true;
                    tail.clear();
                    self.close(name, SEP, out);
                } else if token == SEP && !*has_begun {
                    self.is_mended = true; // twice
                    lead.clear();
                } else if token == SEP {
                    self.flush(out);
                    out.push_str(token);
                } else {
                    out.push_str(&std::mem::take(lead));
                    out.push_str(&std::mem::take(tail));
                    if token == OPEN {
                        self.around.pop(); // its end is missing
                    }
                    self.at = At::Name { is_open: token == OPEN, name: String::new() };
                }
            }
            At::Name { name, is_open } if name.trim().is_empty() => {
                self.is_mended = true; // twice
                name.clear();
                if token != SEP {
                    *is_open = token == OPEN;
                }
            }
            At::Name { .. } => {
                self.end_name(token == SEP, out);
                if token != SEP {
                    self.is_mended = true;
                    self.token(token, out);
                }
            }
            At::Between(text) => {
                let name = text.trim().to_string();
                self.is_mended |= !name.is_empty() || token == SEP;
                if !name.is_empty() {
                    let is_open = self.around.is_empty() && Frame::opened_by(&name).is_some();
                    self.at = At::Name { is_open, name };
                    self.end_name(token == SEP, out);
                    if token != SEP {
                        self.token(token, out);
                    }
                    return;
                }
                text.clear();
                if token != SEP {
                    self.at = At::Name { is_open: token == OPEN, name };
                }
            }
        }
    }

    /// A name is complete, and with it the tag; `has_end`: so it was written. An unknown one comes out as it was.
    fn end_name(&mut self, has_end: bool, out: &mut String) {
        let end = if has_end { SEP } else { "" };
        let At::Name { is_open, name } = &self.at else { return };
        let (is_open, name) = (*is_open, name.trim_start().to_string());
        if !is_open {
            return self.close(&name, end, out);
        }
        let Some(frame) = Frame::opened_by(&name) else {
            self.flush(out);
            return out.push_str(end);
        };
        self.around.push(frame);
        out.push_str(&format!("{OPEN}{name}{SEP}"));
        self.at = if frame.has_text() { At::text() } else { At::between() };
    }

    /// Closes the frame of this name and those in it; or several, if the tokens between their names are missing. `end`: of an unknown name.
    fn close(&mut self, name: &str, end: &str, out: &mut String) {
        let mut rest = name;
        while !rest.is_empty() {
            let depth = self.around.iter().rposition(|frame| rest.starts_with(frame.name()));
            let closed = match depth {
                Some(depth) => self.around[depth].name(),
                None if rest == MESSAGE => MESSAGE,
                // One that is closed already, or none.
                None => match Frame::ALL.into_iter().find(|frame| frame.name() == rest) {
                    Some(frame) => frame.name(),
                    None => {
                        self.at = At::Off;
                        return out.push_str(&format!("{CLOSE}{rest}{end}"));
                    }
                },
            };
            self.around.truncate(depth.unwrap_or(self.around.len()));
            self.is_mended |= closed.len() < rest.len();
            out.push_str(&format!("{CLOSE}{closed}{SEP}"));
            rest = &rest[closed.len()..];
        }
        self.at = match self.around.last() {
            Some(frame) if frame.has_text() => At::text(),
            _ => At::between(),
        };
    }
}
