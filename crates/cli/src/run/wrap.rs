//! Breaks lines between words where the terminal would break them within one. Called by `run::print`.

use unicode_width::UnicodeWidthChar;

/// A text on its way to a terminal. The word that it ends with is held back until it is whole.
#[derive(Debug, Default)]
pub struct Wrap {
    /// Columns of what was given out of the line.
    column: usize,
    word: String,
    word_columns: usize,
    /// A part of this word is out, for it is longer than a line: the terminal breaks it.
    is_long: bool,
    /// The first characters of the line, without spaces in front: as many as a fence has.
    head: String,
    /// Between two fences: lines of code stay as they are, to be copied.
    fenced: bool,
}

/// Begins and ends code in Markdown.
const FENCE: &str = "```";

impl Wrap {
    /// What of the text can be written now, on a terminal of `columns`.
    pub fn push(&mut self, text: &str, columns: usize) -> String {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            if c == '\n' {
                self.end_word(columns, &mut out);
                out.push('\n');
                self.fenced ^= self.head == FENCE;
                self.head.clear();
                self.column = 0;
                continue;
            }
            if self.head.len() < FENCE.len() && !(self.head.is_empty() && c == ' ') {
                self.head.push(c);
            }
            let width = c.width().unwrap_or(0);
            if self.fenced || self.head == FENCE {
                self.end_word(columns, &mut out);
                self.put(c, width, &mut out);
            } else if c.is_whitespace() {
                self.end_word(columns, &mut out);
                // The terminal would begin the next line with it.
                if self.column < columns {
                    self.put(c, width, &mut out);
                }
            } else if width == 2 {
                // Scripts of wide characters break anywhere.
                self.end_word(columns, &mut out);
                self.break_before(2, columns, &mut out);
                self.put(c, width, &mut out);
            } else {
                self.word.push(c);
                self.word_columns += width;
                if self.word_columns >= columns {
                    self.end_word(columns, &mut out);
                    self.is_long = true;
                }
            }
        }
        out
    }

    /// What was held back.
    pub fn flush(&mut self, columns: usize) -> String {
        let mut out = String::new();
        self.end_word(columns, &mut out);
        out
    }

    fn put(&mut self, c: char, width: usize, out: &mut String) {
        out.push(c);
        self.column += width;
    }

    fn break_before(&mut self, width: usize, columns: usize, out: &mut String) {
        if self.column > 0 && self.column + width > columns {
            out.push('\n');
            self.column = 0;
        }
    }

    fn end_word(&mut self, columns: usize, out: &mut String) {
        if self.word.is_empty() {
            self.is_long = false;
            return;
        }
        // A word that is longer than a line is broken by the terminal wherever it begins.
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
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wrapped(pieces: &[&str], columns: usize) -> String {
        let mut wrap = Wrap::default();
        let mut out: String = pieces.iter().map(|p| wrap.push(p, columns)).collect();
        out += &wrap.flush(columns);
        out
    }

    #[test]
    fn lines_end_between_words() {
        assert_eq!(wrapped(&["The sky is blue."], 10), "The sky is\nblue.");
        assert_eq!(wrapped(&["The s", "ky is bl", "ue"], 7), "The sky\nis blue");
        assert_eq!(wrapped(&["one\ntwo three"], 6), "one\ntwo \nthree");
        assert_eq!(wrapped(&["a 0123456789abc d"], 10), "a 0123456789abc d", "nothing can be done about it");
        assert_eq!(wrapped(&["天空は青い"], 6), "天空は\n青い");
        assert_eq!(
            wrapped(&["x\n```\na long line of code\n```\na long line"], 8),
            "x\n```\na long line of code\n```\na long \nline"
        );
    }

    #[test]
    fn a_word_is_held_back_until_it_is_whole() {
        let mut wrap = Wrap::default();
        assert_eq!(wrap.push("Why is", 80), "Why ");
        assert_eq!(wrap.push("n't", 80), "");
        assert_eq!(wrap.push(" it", 80), "isn't ");
        assert_eq!(wrap.flush(80), "it");
    }

    proptest! {
        #[test]
        fn nothing_is_lost_however_it_is_cut(text in "[a-zé天 \n`]{0,200}", cut in 0usize..50, columns in 4usize..30) {
            let whole = wrapped(&[&text], columns);
            let mut at = cut.min(text.len());
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            prop_assert_eq!(&wrapped(&[&text[..at], &text[at..]], columns), &whole);
            let bare = |s: &str| s.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            prop_assert_eq!(bare(&whole), bare(&text));
        }
    }
}
