//! Edits of a YAML text that keep the rest, including comments.

use std::ops::Range;

use crate::Span;

/// Comments out a key with its value. `false` if the key shares its line with others (`{a: 1, b: 2}`).
pub(super) fn comment_out(lines: &mut [String], key: &Span) -> bool {
    let Some(range) = extent(lines, key, false) else { return false };
    put_hash(&mut lines[range], key);
    true
}

/// The lines of a key, or of a list item from its dash on, with its value. `None` if others share them.
pub(super) fn extent(lines: &[String], part: &Span, item: bool) -> Option<Range<usize>> {
    let (first, column) = ((part.line as usize).checked_sub(1)?, (part.column as usize).checked_sub(1)?);
    let begin: String = lines.get(first)?.chars().take(column).collect();
    if !begin.chars().all(|c| matches!(c, ' ' | '-')) {
        return None;
    }
    // A list may start at its key's column.
    let lists = !item && !begin.contains('-');
    let blank = |l: &str| l.trim().is_empty() || l.trim_start().starts_with('#');
    let is_item = |l: &str| l.trim_start().starts_with("- ") || l.trim() == "-";
    let inside = |l: &str| indent(l) > column || (lists && indent(l) == column && is_item(l));
    let after = lines[first + 1..]
        .iter()
        .position(|l| !blank(l) && !inside(l))
        .map_or(lines.len(), |n| first + 1 + n);
    // Blank lines after it belong to the next key.
    let end = (first + 1..after).rev().find(|n| !blank(&lines[*n])).map_or(first + 1, |n| n + 1);
    Some(first..end)
}

/// Comments out the lines of a part. The dash before an item's first key stays, for the next keys.
pub(super) fn put_hash(lines: &mut [String], part: &Span) {
    let column = (part.column as usize).saturating_sub(1);
    for (i, line) in lines.iter_mut().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let column = if i == 0 { column } else { column.min(indent(line)) };
        let at = line.char_indices().nth(column).map_or(line.len(), |(at, _)| at);
        line.insert_str(at, "# ");
    }
}

fn indent(line: &str) -> usize {
    line.chars().take_while(|c| *c == ' ').count()
}
