//! The tags that structure an answer, found in a text that comes by characters. Used by `parser` and the scanners of calls.

/// A tag. None begins like another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    ThinkOpen,
    ThinkClose,
    CallOpen,
    CallClose,
    FunctionOpen,
    FunctionClose,
    ParameterOpen,
    ParameterClose,
}

impl Tag {
    const ALL: [Self; 8] = [
        Self::ThinkOpen,
        Self::ThinkClose,
        Self::CallOpen,
        Self::CallClose,
        Self::FunctionOpen,
        Self::FunctionClose,
        Self::ParameterOpen,
        Self::ParameterClose,
    ];

    /// Its text, where reasoning stands between the usual tags.
    pub fn text(self) -> &'static str {
        match self {
            Self::ThinkOpen => "<think>",
            Self::ThinkClose => "</think>",
            Self::CallOpen => "<tool_call>",
            Self::CallClose => "</tool_call>",
            Self::FunctionOpen => "<function=",
            Self::FunctionClose => "</function>",
            Self::ParameterOpen => "<parameter=",
            Self::ParameterClose => "</parameter>",
        }
    }
}

/// Which tags mean something where the parser is; all others are text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tags(u8);

impl Tags {
    pub const NONE: Self = Self(0);

    pub fn with(self, tag: Tag) -> Self {
        Self(self.0 | 1 << tag as u8)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn has(self, tag: Tag) -> bool {
        self.0 & (1 << tag as u8) != 0
    }

    /// What `text` is or may become. `name` is what each tag looks like.
    pub fn find<'a>(self, text: &str, name: impl Fn(Tag) -> &'a str) -> Found {
        let mut all = Tag::ALL.into_iter().filter(|t| self.has(*t) && name(*t).starts_with(text));
        match all.next() {
            Some(tag) if name(tag) == text => Found::Tag(tag),
            Some(_) => Found::Part,
            None => Found::Nothing,
        }
    }
}

/// What a text is that begins like a tag.
pub enum Found {
    Tag(Tag),
    /// The beginning of a tag.
    Part,
    Nothing,
}

/// What an answer consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    Char(char),
    Tag(Tag),
}

impl Token {
    /// What templates and JSON take for white space.
    pub fn is_space(self) -> bool {
        matches!(self, Self::Char(' ' | '\t' | '\n' | '\r'))
    }
}

/// How far the scanner of a call is, once it saw a token. Positions are bytes of the held text, which begins with the
/// call's first tag and ends with the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It may yet become a call.
    More,
    /// A call up to `end`; the rest is read again.
    Done { end: usize },
    /// No call: text up to `end`, tags in it included; the rest is read again.
    Text { end: usize },
    /// What ends a section of calls, up to `end`: neither text nor call; the rest is read again.
    Skip { end: usize },
}
