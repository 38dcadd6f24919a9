//! Ends of an answer that depend on its lines, as editors' plugins ask for: the code that fits at the cursor, and not after the user has
//! typed on. The definitions are llama.cpp's.

use std::time::Duration;

/// Limits that depend on an answer's lines. The default has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineLimits {
    /// The answer ends at a line after the first that begins with fewer spaces and tabs than this.
    pub indent: usize,
    /// The answer ends with the first line that is complete this long after the first token.
    pub time: Option<Duration>,
}

/// Where an answer's text is in its lines.
#[derive(Debug, Clone)]
pub struct Lines {
    limits: LineLimits,
    /// A line is complete.
    later: bool,
    /// Spaces and tabs at the beginning of the current line; `None` after them.
    margin: Option<usize>,
    ended: bool,
}

impl Lines {
    pub fn new(limits: LineLimits) -> Self {
        Self { limits, later: false, margin: Some(0), ended: false }
    }

    /// The answer ended by an indentation: no text may follow.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Reads text at which the answer does not end.
    pub fn skip(&mut self, text: &str) {
        for c in text.chars() {
            self.step(c);
        }
    }

    fn step(&mut self, c: char) {
        match (c, self.margin) {
            (' ' | '\t', Some(n)) => self.margin = Some(n + 1),
            ('\n', _) => (self.later, self.margin) = (true, Some(0)),
            _ => self.margin = None,
        }
    }

    /// Reads the answer's next text, `elapsed` after the first token. Returns how many bytes of it belong to the answer, and whether
    /// the answer ends.
    pub fn push(&mut self, text: &str, elapsed: Duration) -> (usize, bool) {
        for (at, c) in text.char_indices() {
            // An empty line has no indentation either.
            let is_short = self.later && self.margin.is_some_and(|n| n < self.limits.indent);
            if is_short && !matches!(c, ' ' | '\t') {
                self.ended = true;
                return (at, true);
            }
            self.step(c);
        }
        let is_late = self.limits.time.is_some_and(|time| elapsed > time);
        (text.len(), is_late && text.contains('\n'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(indent: usize, pieces: &[&str]) -> (String, bool) {
        let mut lines = Lines::new(LineLimits { indent, time: None });
        let mut out = String::new();
        for piece in pieces {
            let (bytes, ends) = lines.push(piece, Duration::MAX);
            out.push_str(&piece[..bytes]);
            if ends {
                return (out, true);
            }
        }
        (out, false)
    }

    #[test]
    fn an_answer_ends_at_a_line_that_is_less_indented() {
        let text = "if x:\n    a()\n\tb()\n  é()\nreturn";
        // The first line continues the user's, whatever its indentation.
        assert_eq!(run(0, &[text]), (text.into(), false));
        assert_eq!(run(1, &[text]), ("if x:\n    a()\n\tb()\n  é()\n".into(), true));
        assert_eq!(run(2, &[text]), ("if x:\n    a()\n\t".into(), true));
        assert_eq!(run(5, &[text]), ("if x:\n    ".into(), true));
        assert_eq!(run(2, &["a\n    b\n\n    c"]), ("a\n    b\n".into(), true));
        let mut lines = Lines::new(LineLimits { indent: 1, time: None });
        lines.skip("a\n");
        assert_eq!(lines.push("b", Duration::ZERO), (0, true));
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        for indent in 0..6 {
            assert_eq!(run(indent, &letters), run(indent, &[text]), "{indent}");
        }
    }

    #[test]
    fn an_answer_ends_with_the_first_line_after_the_time() {
        let limits = LineLimits { indent: 0, time: Some(Duration::from_millis(500)) };
        let mut lines = Lines::new(limits);
        assert_eq!(lines.push("a\nb", Duration::from_millis(400)), (3, false));
        assert_eq!(lines.push("b", Duration::from_millis(600)), (1, false));
        assert_eq!(lines.push("c\n", Duration::from_millis(700)), (2, true));
        assert_eq!(Lines::new(LineLimits::default()).push("c\n", Duration::MAX), (2, false));
    }
}
