//! The tags of an answer, found incrementally.

/// A tag. No tag is a prefix of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    ThinkOpen,
    ThinkClose,
    TextOpen,
    TextClose,
    AnswerClose,
    CallOpen,
    CallClose,
    FunctionOpen,
    FunctionClose,
    ParameterOpen,
    ParameterClose,
}

impl Tag {
    const ALL: [Self; 11] = [
        Self::ThinkOpen,
        Self::ThinkClose,
        Self::TextOpen,
        Self::TextClose,
        Self::AnswerClose,
        Self::CallOpen,
        Self::CallClose,
        Self::FunctionOpen,
        Self::FunctionClose,
        Self::ParameterOpen,
        Self::ParameterClose,
    ];

    /// Its text, with the usual tags of reasoning; most families have none around text.
    pub fn text(self) -> &'static str {
        match self {
            Self::ThinkOpen => "<think>",
            Self::ThinkClose => "</think>",
            Self::TextOpen | Self::TextClose | Self::AnswerClose => "",
            Self::CallOpen => "<tool_call>",
            Self::CallClose => "</tool_call>",
            Self::FunctionOpen => "<function=",
            Self::FunctionClose => "</function>",
            Self::ParameterOpen => "<parameter=",
            Self::ParameterClose => "</parameter>",
        }
    }
}

/// The tags that are recognised in the current state; all others are text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tags(u16);

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

    /// Classifies `text`, given the text of each tag.
    pub fn find<'a>(self, text: &str, name: impl Fn(Tag) -> &'a str) -> Found {
        let mut all = Tag::ALL.into_iter().filter(|t| self.has(*t) && name(*t).starts_with(text));
        match all.next() {
            Some(tag) if name(tag) == text => Found::Tag(tag),
            Some(_) => Found::Part,
            None => Found::Nothing,
        }
    }
}

/// The classification of a text that begins like a tag.
pub enum Found {
    Tag(Tag),
    /// The beginning of a tag.
    Part,
    Nothing,
}

/// A token of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    Char(char),
    Tag(Tag),
}

impl Token {
    /// White space in templates and JSON.
    pub fn is_space(self) -> bool {
        matches!(self, Self::Char(' ' | '\t' | '\n' | '\r'))
    }
}

/// The result of a call scanner after a token. Positions are bytes of the held text, which begins with the call's first tag and ends
/// with the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It may still be a call.
    More,
    /// A call up to `end`; the rest is parsed again.
    Done { end: usize },
    /// Not a call: text up to `end`, including tags; the rest is parsed again.
    Text { end: usize },
    /// The end of a section of calls, up to `end`: neither text nor call; the rest is parsed again.
    Skip { end: usize },
}
