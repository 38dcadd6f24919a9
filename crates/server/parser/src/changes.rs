//! What the parser changed of an answer, for the log. Set by `parser`, read by callers.

/// A kind of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Reasoning was closed where none was open.
    ClosedAgain,
    /// A tag around, before or after a call was repeated, left over or not of the syntax.
    TagBesideCall,
    /// A call's tag was missing or repeated.
    Mended,
    /// A number became an integer.
    Integer,
}

/// The kinds of changes to an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes(u8);

impl Changes {
    pub(crate) fn add(&mut self, change: Change) {
        self.0 |= 1 << change as u8;
    }

    /// Whether nothing was changed.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// What was done, in words: "left out a tag ...".
    pub fn messages(self) -> impl Iterator<Item = &'static str> {
        let all = [
            (Change::ClosedAgain, "left out a tag that closes reasoning where none is open"),
            (Change::TagBesideCall, "left out a tag next to a tool call"),
            (Change::Mended, "accepted a tool call with a missing or repeated tag"),
            (Change::Integer, "wrote a number in a tool call as an integer, as its schema says"),
        ];
        all.into_iter().filter(move |(change, _)| self.0 & 1 << *change as u8 != 0).map(|(_, text)| text)
    }
}
