//! Simple Markdown on a terminal: headings, bold, code and lists, styled and wrapped while the text is streamed. Not a library: those
//! render whole documents, and here each piece is written when it arrives and cannot be changed.

use crate::wrap::Wrap;

const BOLD: &str = "\x1b[1m";
const BOLD_END: &str = "\x1b[22m";
const CODE: &str = "\x1b[36m";
const CODE_END: &str = "\x1b[39m";
const DIM: &str = "\x1b[2m";
const DIM_END: &str = "\x1b[22m";

/// The kind of the current line.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Line {
    /// Undecided; its first characters are held back.
    Start(String),
    Text,
    Heading,
    /// A table, code, or a code fence: not wrapped, to be copied. With the style that ends with the line.
    Verbatim(&'static str),
}

/// What a line begins with.
#[derive(Debug, PartialEq, Eq)]
enum Begin {
    Text,
    Heading,
    /// Width of the list marker with spaces around it.
    Item(usize),
    Table,
    Code,
    /// Opens or closes a code block; the fence character.
    Fence(char),
}

/// Text being formatted.
#[derive(Debug)]
pub struct Markdown {
    /// Apply styles. Otherwise the text is only wrapped.
    styled: bool,
    wrap: Wrap,
    line: Line,
    /// The character of the open fence.
    fence: Option<char>,
    bold: bool,
    /// Number of backticks of an open code span; 0 outside.
    code: usize,
    /// A run of markers whose meaning depends on the next character, and its length.
    run: (char, usize),
    /// The previous character.
    last: char,
}

impl Markdown {
    pub fn new(styled: bool) -> Self {
        Self {
            styled,
            wrap: Wrap::default(),
            line: Line::Start(String::new()),
            fence: None,
            bold: false,
            code: 0,
            run: (' ', 0),
            last: ' ',
        }
    }

    /// Adds text; returns what can be written, on a terminal of `columns`.
    pub fn push(&mut self, text: &str, columns: usize) -> String {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            if c == '\n' {
                self.end_line(columns, &mut out);
                continue;
            }
            match &mut self.line {
                Line::Start(head) => {
                    head.push(c);
                    if let Some(begin) = begin(head, self.fence) {
                        let head = std::mem::take(head);
                        self.begin(begin, &head, columns, &mut out);
                    }
                }
                Line::Text | Line::Heading => self.inline(c, columns, &mut out),
                Line::Verbatim(_) => self.wrap.push(c, columns, &mut out),
            }
        }
        out
    }

    /// Returns the held-back rest at the end.
    pub fn finish(mut self, columns: usize) -> String {
        let mut out = String::new();
        self.close(columns, &mut out);
        self.wrap.flush(columns, &mut out);
        out
    }

    /// Processes the first characters of a line once its kind is known.
    fn begin(&mut self, begin: Begin, head: &str, columns: usize, out: &mut String) {
        self.line = match begin {
            Begin::Text => {
                self.line = Line::Text;
                head.chars().for_each(|c| self.inline(c, columns, out));
                return;
            }
            Begin::Heading if self.styled => {
                self.wrap.style(BOLD);
                Line::Heading
            }
            Begin::Heading => Line::Text,
            Begin::Item(width) => {
                self.wrap.indent = if width * 2 < columns { width } else { 0 };
                Line::Text
            }
            Begin::Table => Line::Verbatim(""),
            Begin::Code if self.styled => Line::Verbatim(CODE_END),
            Begin::Code => Line::Verbatim(""),
            Begin::Fence(mark) => {
                self.fence = if self.fence.is_some() { None } else { Some(mark) };
                Line::Verbatim(if self.styled { DIM_END } else { "" })
            }
        };
        if let Line::Verbatim(end) = self.line {
            self.wrap.verbatim = true;
            self.wrap.style(match end {
                CODE_END => CODE,
                DIM_END => DIM,
                _ => "",
            });
        }
        for c in head.chars() {
            let bullet = self.styled && matches!(begin, Begin::Item(_)) && matches!(c, '-' | '*' | '+');
            self.wrap.push(if bullet { '•' } else { c }, columns, out);
            self.last = c;
        }
    }

    /// Processes a character of a text line.
    fn inline(&mut self, c: char, columns: usize, out: &mut String) {
        if self.run.0 != c {
            self.decide(c, columns, out);
        }
        if self.styled && (c == '`' || (c == '*' && self.code == 0)) {
            self.run = (c, self.run.1 + 1);
            return;
        }
        self.wrap.push(c, columns, out);
        self.last = c;
    }

    /// Decides the meaning of the markers before `next`: as in CommonMark, except that opened markers are assumed to be closed later.
    fn decide(&mut self, next: char, columns: usize, out: &mut String) {
        let (mark, n) = std::mem::replace(&mut self.run, (' ', 0));
        match mark {
            '`' if self.code == 0 => {
                self.code = n;
                return self.wrap.style(CODE);
            }
            '`' if self.code == n => {
                self.code = 0;
                return self.wrap.style(CODE_END);
            }
            '*' if (2..=3).contains(&n) && self.line != Line::Heading => {
                if self.bold && !self.last.is_whitespace() {
                    self.bold = false;
                    return self.wrap.style(BOLD_END);
                }
                if !self.bold && !next.is_whitespace() && !self.last.is_alphanumeric() {
                    self.bold = true;
                    return self.wrap.style(BOLD);
                }
            }
            // A heading is bold anyway.
            '*' if self.line == Line::Heading && n == 2 => return,
            _ => {}
        }
        for _ in 0..n {
            self.wrap.push(mark, columns, out);
            self.last = mark;
        }
    }

    /// Ends all styles of a line.
    fn close(&mut self, columns: usize, out: &mut String) {
        if let Line::Start(head) = &mut self.line {
            let head = std::mem::take(head);
            self.line = Line::Text;
            // Too short to be anything but text.
            head.chars().for_each(|c| self.wrap.push(c, columns, out));
        }
        self.decide(' ', columns, out);
        if self.code > 0 {
            self.wrap.style(CODE_END);
        }
        if self.bold || self.line == Line::Heading {
            self.wrap.style(BOLD_END);
        }
        if let Line::Verbatim(end) = self.line {
            self.wrap.style(end);
        }
        (self.code, self.bold, self.last) = (0, false, ' ');
    }

    fn end_line(&mut self, columns: usize, out: &mut String) {
        self.close(columns, out);
        self.wrap.push('\n', columns, out);
        (self.wrap.verbatim, self.wrap.indent) = (false, 0);
        self.line = Line::Start(String::new());
    }
}

/// What a line begins with, if decided; `fence` is the open fence.
fn begin(head: &str, fence: Option<char>) -> Option<Begin> {
    let text = head.trim_start_matches([' ', '\t']);
    let indent = head.len() - text.len();
    let fences = fence.map_or(vec!['`', '~'], |mark| vec![mark]);
    for mark in fences {
        if text.chars().all(|c| c == mark) {
            return if text.len() == 3 { Some(Begin::Fence(mark)) } else { None };
        }
    }
    if fence.is_some() {
        return Some(Begin::Code);
    }
    let marker = text.trim_end_matches(' ');
    let has_space = marker.len() < text.len();
    let digits = marker.trim_end_matches(['.', ')']);
    let is_number = !digits.is_empty() && digits.len() < 10 && digits.bytes().all(|b| b.is_ascii_digit());
    match marker {
        "-" | "*" | "+" if has_space => Some(Begin::Item(indent + text.len())),
        "-" | "*" | "+" => None,
        "#" | "##" | "###" | "####" | "#####" | "######" if has_space => Some(Begin::Heading),
        "#" | "##" | "###" | "####" | "#####" | "######" => None,
        "|" => Some(Begin::Table),
        _ if is_number && marker.len() == digits.len() + 1 && has_space => {
            Some(Begin::Item(indent + text.len()))
        }
        _ if is_number && marker.len() <= digits.len() + 1 && !has_space => None,
        _ => Some(Begin::Text),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(pieces: &[&str], columns: usize, styled: bool) -> String {
        let mut markdown = Markdown::new(styled);
        let mut out: String = pieces.iter().map(|p| markdown.push(p, columns)).collect();
        out += &markdown.finish(columns);
        out.replace(BOLD, "<b>")
            .replace(BOLD_END, "</b>")
            .replace(CODE, "<c>")
            .replace(CODE_END, "</c>")
            .replace(DIM, "<d>")
    }

    #[test]
    fn markers_become_styles() {
        let show = |text: &str| shown(&[text], 80, true);
        assert_eq!(show("A **fat** fox"), "A <b>fat</b> fox");
        assert_eq!(show("## A *long* **title**\ntext"), "<b>## A *long* title</b>\ntext");
        assert_eq!(show("use `a ** b`, or ``c`d``."), "use <c>a ** b</c>, or <c>c`d</c>.");
        assert_eq!(show("- one\n  * two\n3. three"), "• one\n  • two\n3. three");
        assert_eq!(
            show("```rust\nlet **x**;\n```\n**y**"),
            "<d>```rust</b>\n<c>let **x**;</c>\n<d>```</b>\n<b>y</b>"
        );
        assert_eq!(show("| a | **b** |"), "| a | **b** |");
    }

    #[test]
    fn what_is_no_markdown_stays() {
        for text in [
            "2**3 is 8",
            "a * b ** c",
            "#hash",
            "-x",
            "1.5 m",
            "5",
            "***",
            "* ",
            "2024 was",
            "---\n\n",
            "####### x",
            "__init__",
        ] {
            assert_eq!(shown(&[text], 80, true).replace('•', "*"), text);
        }
    }

    #[test]
    fn what_is_open_ends_with_its_line() {
        assert_eq!(shown(&["**a\nb `c\nd"], 80, true), "<b>a</b>\nb <c>c</c>\nd");
        assert_eq!(shown(&["## a"], 80, true), "<b>## a</b>");
    }

    #[test]
    fn lines_of_an_item_begin_below_its_text() {
        assert_eq!(shown(&["- one two three"], 9, true), "• one two\n  three");
        assert_eq!(shown(&["10. one two"], 9, false), "10. one \n    two");
        assert_eq!(shown(&["- one two\nthree four"], 9, true), "• one two\nthree \nfour");
        assert_eq!(
            shown(&["x\n```\na long line of code\n```\na long line"], 8, false),
            "x\n```\na long line of code\n```\na long \nline"
        );
    }

    proptest! {
        #[test]
        fn nothing_is_lost_however_it_is_cut(text in "([a-zé天 *`\n#|~-]|[0-9]\\. |\\*\\*){0,60}", cut in 0usize..80, columns in 10usize..30, styled: bool) {
            let whole = shown(&[&text], columns, styled);
            let mut at = cut.min(text.len());
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            prop_assert_eq!(&shown(&[&text[..at], &text[at..]], columns, styled), &whole);
            let mut plain = whole;
            for style in ["<b>", "</b>", "<c>", "</c>", "<d>"] {
                plain = plain.replace(style, "");
            }
            let bare = |s: &str| s.chars().filter(|c| !(c.is_whitespace() || styled && "*`•-".contains(*c))).collect::<String>();
            prop_assert_eq!(bare(&plain), bare(&text));
        }
    }
}
