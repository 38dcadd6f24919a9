//! Notes for people: what is true of many entries of a file is said once.

use crate::{Note, printable};

/// Maximum number of names, or of lines, that are listed.
const LISTED_MAX: usize = 6;

/// Begins the text of a note about an entry of `model_list` that is left out: `'NAME' is left out: WHY`.
pub(crate) const LEFT_OUT: &str = " is left out: ";

/// The notes, in their order. Notes with the same key and text become one with all lines; so do entries that are left out for the same
/// reason, with their names.
pub fn grouped(notes: &[Note]) -> Vec<String> {
    let mut groups: Vec<(&str, &str, Vec<&Note>)> = Vec::new();
    for note in notes {
        let (_, text) = halves(note);
        match groups
            .iter_mut()
            .find(|(key, said, of)| *key == note.key && *said == text && of[0].span.file == note.span.file)
        {
            Some((.., of)) => of.push(note),
            None => groups.push((&note.key, text, vec![note])),
        }
    }
    groups.into_iter().map(|(_, text, of)| said(text, &of)).collect()
}

/// The name of an entry that is left out, and the part of a note that others share.
fn halves(note: &Note) -> (Option<&str>, &str) {
    match note.text.split_once(LEFT_OUT).filter(|_| note.key == "model_list") {
        Some((name, reason)) => (Some(name), reason),
        None => (None, &note.text),
    }
}

fn said(text: &str, of: &[&Note]) -> String {
    let [first, others @ ..] = of else { return String::new() };
    if others.is_empty() {
        return first.to_string();
    }
    let mut names: Vec<&str> = Vec::new();
    for name in of.iter().filter_map(|note| halves(note).0) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let subject = match names.as_slice() {
        [] => String::new(),
        [name] => format!("{name}{LEFT_OUT}"),
        names => format!("{} are left out: ", listed(names.iter().map(ToString::to_string).collect())),
    };
    let lines = listed(others.iter().map(|note| note.span.line.to_string()).collect());
    let word = if others.len() == 1 { "line" } else { "lines" };
    let whole = format!("{subject}{text} (also {word} {lines})");
    format!("{}: {}: {}", first.span, printable(&first.key), printable(&whole))
}

/// `a`, `a and b`, `a, b and c`, or the first ones and how many more.
fn listed(items: Vec<String>) -> String {
    let shown = &items[..items.len().min(LISTED_MAX)];
    match items.len() - shown.len() {
        0 => match shown {
            [] => String::new(),
            [one] => one.clone(),
            [before @ .., last] => format!("{} and {last}", before.join(", ")),
        },
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
