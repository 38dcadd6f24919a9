//! Wraps lines at words, where a terminal would split them.

use unicode_width::UnicodeWidthChar;

/// Text being wrapped. Its last word is held back until it is complete.
#[derive(Debug, Default)]
pub struct Wrap {
    /// Do not wrap: code and tables, to be copied.
    pub verbatim: bool,
    /// Indentation of wrapped lines.
    pub indent: usize,
    /// Columns written of the current line.
    column: usize,
    word: String,
    word_columns: usize,
    /// A part of this word is written, as it is longer than a line: the terminal splits it.
    is_long: bool,
}

impl Wrap {
    /// An empty text, whose wrapped lines have this indentation.
    pub fn indented(indent: usize) -> Self {
        Self { indent, ..Self::default() }
    }

    /// Adds a character, on a terminal of `columns`; writes what is complete.
    pub fn push(&mut self, c: char, columns: usize, out: &mut String) {
        if c == '\n' {
            self.flush(columns, out);
            out.push('\n');
            self.column = 0;
            return;
        }
        let width = c.width().unwrap_or(0);
        if self.verbatim {
            self.flush(columns, out);
            self.put(c, width, out);
        } else if c.is_whitespace() {
            self.flush(columns, out);
            // The terminal would begin the next line with it.
            if self.column < columns {
                self.put(c, width, out);
            }
        } else if width == 2 {
            // Scripts of wide characters may be split anywhere.
            self.flush(columns, out);
            self.break_before(2, columns, out);
            self.put(c, width, out);
        } else {
            self.word.push(c);
            self.word_columns += width;
            if self.word_columns >= columns {
                self.flush(columns, out);
                self.is_long = true;
            }
        }
    }

    /// Adds a control sequence, which has no width.
    pub fn style(&mut self, code: &str) {
        self.word.push_str(code);
    }

    /// Writes held-back text.
    pub fn flush(&mut self, columns: usize, out: &mut String) {
        if self.word.is_empty() {
            self.is_long = false;
            return;
        }
        // A word longer than a line is split by the terminal, wherever it begins.
        if self.word_columns < columns && !self.is_long {
            self.break_before(self.word_columns, columns, out);
        }
        out.push_str(&self.word);
        self.column += self.word_columns;
        if self.column > columns {
            self.column = (self.column - 1) % columns + 1;
        }
        self.is_long = false;
        self.word.clear();
        self.word_columns = 0;
    }

    fn put(&mut self, c: char, width: usize, out: &mut String) {
        out.push(c);
        self.column += width;
    }

    fn break_before(&mut self, width: usize, columns: usize, out: &mut String) {
        if self.column > self.indent && self.column + width > columns {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', self.indent));
            self.column = self.indent;
        }
    }
}

/// A text, which may have control sequences, in lines that fit if this is a terminal. What does not fit into an indented line goes on below
/// it, indented further.
pub fn on(out: &console::Term, text: &str) -> String {
    hanging(out, text, 0)
}

/// The same; lines that are not indented go on after `indent` columns.
pub fn hanging(out: &console::Term, text: &str, indent: usize) -> String {
    let size = if out.is_term() { out.size_checked() } else { None };
    match size.filter(|(_, columns)| *columns > 0) {
        Some((_, columns)) => {
            let columns = columns.into();
            let line = |line| wrapped(line, columns, indent);
            text.split('\n').map(line).collect::<Vec<_>>().join("\n")
        }
        None => text.to_string(),
    }
}

/// How much further an indented line's continuation is indented.
const DEEPER: usize = 2;

/// One line.
fn wrapped(text: &str, columns: usize, indent: usize) -> String {
    let indent = match text.len() - text.trim_start_matches(' ').len() {
        0 => indent,
        own => own + DEEPER,
    };
    let (mut wrap, mut out) = (Wrap { indent: indent.min(columns / 2), ..Wrap::default() }, String::new());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\x1b' {
            wrap.push(c, columns, &mut out);
            continue;
        }
        let mut code = String::from(c);
        for c in chars.by_ref() {
            code.push(c);
            if c.is_ascii_alphabetic() {
                break;
            }
        }
        wrap.style(&code);
    }
    wrap.flush(columns, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(text: &str, columns: usize) -> String {
        let (mut wrap, mut out) = (Wrap::default(), String::new());
        text.chars().for_each(|c| wrap.push(c, columns, &mut out));
        wrap.flush(columns, &mut out);
        out
    }

    #[test]
    fn lines_end_between_words() {
        assert_eq!(wrapped("The sky is blue.", 10), "The sky is\nblue.");
        assert_eq!(wrapped("The sky is blue", 7), "The sky\nis blue");
        assert_eq!(wrapped("one\ntwo three", 6), "one\ntwo \nthree");
        assert_eq!(wrapped("a 0123456789abc d", 10), "a 0123456789abc d", "nothing can be done about it");
        assert_eq!(wrapped("天空は青い", 6), "天空は\n青い");
    }

    #[test]
    fn styles_take_no_room() {
        assert_eq!(
            super::wrapped("\x1b[2m12 tokens, 3 steps\x1b[0m", 12, 0),
            "\x1b[2m12 tokens, 3\nsteps\x1b[0m"
        );
    }

    #[test]
    fn lines_go_on_deeper() {
        assert_eq!(super::wrapped("  total: 3 pages", 10, 4), "  total: 3\n    pages");
        assert_eq!(super::wrapped("INFO it is loaded", 10, 4), "INFO it is\n    loaded");
    }

    #[test]
    fn a_word_is_held_back_until_it_is_whole() {
        let mut wrap = Wrap::default();
        let mut push = |text: &str| {
            let mut out = String::new();
            text.chars().for_each(|c| wrap.push(c, 80, &mut out));
            out
        };
        assert_eq!([push("Why is"), push("n't"), push(" it"), push("\n")], ["Why ", "", "isn't ", "it\n"]);
    }
}
