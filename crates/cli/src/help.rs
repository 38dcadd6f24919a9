//! Examples and explanations behind a command's help, fitted to the terminal.

use std::fmt::Write;

use crate::wrap::Wrap;

/// Columns where standard output is no terminal, and at most.
const COLUMNS_MAX: usize = 100;
/// Indentation of what explains the command above it.
const INDENT: &str = "      ";

/// A command's help texts, and those of its subcommands, in the width of the terminal.
pub fn fit(command: clap::Command) -> clap::Command {
    fit_to(command, columns())
}

fn fit_to(mut command: clap::Command, columns: usize) -> clap::Command {
    if let Some(text) = command.get_after_help().map(ToString::to_string) {
        command = command.after_help(fitted(&text, columns));
    }
    command.mut_subcommands(|sub| fit_to(sub, columns))
}

/// The width of standard output.
pub fn columns() -> usize {
    let terminal = console::Term::stdout();
    let size = if terminal.is_term() { terminal.size_checked() } else { None };
    size.map_or(COLUMNS_MAX, |(_, columns)| usize::from(columns).clamp(20, COLUMNS_MAX))
}

/// A text whose lines fit: paragraphs are wrapped at words. Indented lines stay as they are; if one of a block is too long and the block has
/// explanations after its commands, these go below them.
pub fn fitted(text: &str, columns: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut out = String::new();
    for block in lines.chunk_by(|a, b| kind(a) == kind(b)) {
        if kind(block[0]) == Kind::Paragraph {
            paragraph(&block.join(" "), columns, &mut out);
        } else if block.iter().all(|line| width(line) <= columns) {
            block.iter().for_each(|line| push(line, &mut out));
        } else {
            block.iter().for_each(|line| example(line, columns, &mut out));
        }
    }
    out.truncate(out.trim_end().len());
    out
}

#[derive(PartialEq, Clone, Copy)]
enum Kind {
    Empty,
    Paragraph,
    Indented,
}

fn kind(line: &str) -> Kind {
    match line.chars().next() {
        None => Kind::Empty,
        Some(' ') => Kind::Indented,
        // A heading is a paragraph of its own.
        Some(_) => Kind::Paragraph,
    }
}

fn width(line: &str) -> usize {
    unicode_width::UnicodeWidthStr::width(line)
}

fn push(line: &str, out: &mut String) {
    let _ = writeln!(out, "{line}"); // a text takes everything
}

fn paragraph(text: &str, columns: usize, out: &mut String) {
    let mut wrap = Wrap::default();
    text.chars().for_each(|c| wrap.push(c, columns, out));
    wrap.flush(columns, out);
    out.push('\n');
}

/// An indented line: what stands behind two or more spaces explains the command before them.
fn example(line: &str, columns: usize, out: &mut String) {
    let text = line.trim_start();
    let own = &line[..line.len() - text.len()];
    // Only an explanation, of the command in the line before.
    if own.len() > INDENT.len() {
        return below(text, columns, out);
    }
    match text.split_once("  ") {
        None => command(own, text, columns, out),
        Some((text, what)) => {
            command(own, text, columns, out);
            below(what.trim_start(), columns, out);
        }
    }
}

/// A command that is too long for a line goes on in the next one, before a flag, as a shell reads it. Quoted text is not split.
fn command(own: &str, text: &str, columns: usize, out: &mut String) {
    let mut line = format!("{own}{text}");
    if width(&line) > columns && !text.contains(['\'', '"']) {
        line = String::new();
        for part in text
            .split(" -")
            .enumerate()
            .map(|(i, part)| if i == 0 { part.to_string() } else { format!("-{part}") })
        {
            if line.is_empty() {
                line = format!("{own}{part}");
            } else if width(&line) + 1 + width(&part) + " \\".len() > columns {
                push(&format!("{line} \\"), out);
                line = format!("{own}    {part}");
            } else {
                line += &format!(" {part}");
            }
        }
    }
    push(&line, out);
}

fn below(text: &str, columns: usize, out: &mut String) {
    let mut lines = String::new();
    paragraph(text, columns - INDENT.len(), &mut lines);
    lines.lines().for_each(|line| push(&format!("{INDENT}{}", line.trim_end()), out));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explanations_go_below_where_they_do_not_fit() {
        let text = "Examples:\n  octet plan --ram 16GiB   for 16 GiB\n  octet plan               for this one\n\nEach line is\na command.";
        assert_eq!(
            fitted(text, 80),
            "Examples:\n  octet plan --ram 16GiB   for 16 GiB\n  octet plan               for this one\n\nEach line is a command."
        );
        let long = "Examples:\n  octet keys create a --rpm 60 --expires 90d";
        let split = "Examples:\n  octet keys create a --rpm 60 \\\n      --expires 90d";
        assert_eq!(fitted(long, 32), split);
        let narrow = "Examples:\n  octet plan --ram 16GiB\n      for 16 GiB\n  octet plan\n      for this one\n\nEach line is a command.";
        assert_eq!(fitted(text, 30), narrow);
    }

    /// Commands themselves may be longer: they are copied.
    #[test]
    fn every_help_fits_eighty_columns() {
        fn check(command: &clap::Command) {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in text.lines().filter(|l| !l.starts_with("  ") || l.starts_with(INDENT)) {
                assert!(width(line) <= 80 || line.contains('{'), "{}: {line}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&fit_to(crate::commands::command(), 80));
    }
}
