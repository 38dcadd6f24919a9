//! Edits of a YAML text that leave the rest of it, comments included, as it is. Used by imports.

use crate::Span;

/// Puts a `#` before a key and all that it holds. `false` where the key shares its line with others (`{a: 1, b: 2}`).
pub(super) fn comment_out(lines: &mut [String], key: &Span) -> bool {
    let (first, column) = (key.line as usize - 1, key.column as usize - 1);
    let Some(line) = lines.get(first) else { return false };
    let indent = |l: &str| l.chars().take_while(|c| *c == ' ').count();
    if indent(line) != column {
        return false;
    }
    let blank = |l: &str| l.trim().is_empty() || l.trim_start().starts_with('#');
    // A list may stand at its key's own column.
    let inside = |l: &str| indent(l) > column || (indent(l) == column && l.trim_start().starts_with("- "));
    let after = lines[first + 1..]
        .iter()
        .position(|l| !blank(l) && !inside(l))
        .map_or(lines.len(), |n| first + 1 + n);
    // What is blank behind it belongs to what follows.
    let end = (first + 1..after).rev().find(|n| !blank(&lines[*n])).map_or(first + 1, |n| n + 1);
    for line in &mut lines[first..end] {
        if !line.trim().is_empty() {
            line.insert_str(column.min(indent(line)), "# ");
        }
    }
    true
}
