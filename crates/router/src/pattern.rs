//! Names with stars: `*`, `anthropic/*`. Matched by `table`; what a star stood for goes into the deployment's own name.

/// A name in which each `*` stands for any text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
}

impl Pattern {
    /// A pattern; `None` if there is no star in it.
    pub fn new(text: &str) -> Option<Self> {
        text.contains('*').then(|| Self { text: text.to_string() })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// How much of a name it says: of two patterns that match, the one with more goes first.
    pub fn literal_bytes(&self) -> usize {
        self.text.bytes().filter(|b| *b != b'*').count()
    }

    /// What the stars stand for in `name`, if it matches. Each takes as much as it can.
    pub fn captures<'a>(&self, name: &'a str) -> Option<Vec<&'a str>> {
        let parts: Vec<&str> = self.text.split('*').collect();
        let [first, middle @ .., last] = parts.as_slice() else { return None };
        let mut rest = name.strip_prefix(first)?.strip_suffix(last)?;
        let mut captured = Vec::with_capacity(middle.len() + 1);
        for part in middle.iter().rev() {
            let at = rest.rfind(part)?;
            captured.push(&rest[at + part.len()..]);
            rest = &rest[..at];
        }
        captured.push(rest);
        captured.reverse();
        Some(captured)
    }
}

/// The deployment's name, with what the stars of the group's name stood for in place of its own.
pub fn fill(name: &str, captures: &[String]) -> String {
    let mut captures = captures.iter();
    let mut out = String::with_capacity(name.len() + 16);
    for c in name.chars() {
        match (c, captures.as_slice().first()) {
            ('*', Some(text)) => {
                out.push_str(text);
                captures.next();
            }
            _ => out.push(c),
        }
    }
    out
}
