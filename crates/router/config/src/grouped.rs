//! Notes for people: what is true of several keys or entries of a file is said once.

use crate::{Note, printable};

/// Maximum number of names, or of lines, that are listed.
const LISTED_MAX: usize = 6;

/// Part of the text of a note about an entry of `model_list`: `'NAME' is left out: WHY`.
pub(crate) const LEFT_OUT: &str = " is left out: ";

/// The notes, in their order. Notes about keys of one section with the same text become one with all keys and lines; so do entries that
/// are left out for the same reason, with their names.
pub fn grouped(notes: &[Note]) -> Vec<String> {
    let mut groups: Vec<Group> = Vec::new();
    for note in notes {
        let parts = Parts::of(note);
        let same = |g: &&mut Group| {
            g.parts.section == parts.section
                && g.parts.text == parts.text
                && g.parts.entry.is_some() == parts.entry.is_some()
                && g.notes[0].span.file == note.span.file
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.add(note, parts),
            None => groups.push(Group { names: vec![parts.name()], notes: vec![note], parts }),
        }
    }
    groups.iter().map(Group::said).collect()
}

/// What a note is about, and what it says.
struct Parts<'a> {
    /// `general_settings` of `general_settings.ui`, or nothing.
    section: &'a str,
    /// The key without its section.
    key: &'a str,
    /// The entry that is left out, in quotes.
    entry: Option<&'a str>,
    text: &'a str,
}

impl<'a> Parts<'a> {
    fn of(note: &'a Note) -> Self {
        let (section, key) = note.key.rsplit_once('.').unwrap_or(("", &note.key));
        match note.text.split_once(LEFT_OUT).filter(|_| note.key == "model_list") {
            Some((entry, text)) => Self { section, key, entry: Some(entry), text },
            None => Self { section, key, entry: None, text: &note.text },
        }
    }

    fn name(&self) -> &'a str {
        self.entry.unwrap_or(self.key)
    }
}

struct Group<'a> {
    parts: Parts<'a>,
    /// Different ones, in the order of the file.
    names: Vec<&'a str>,
    notes: Vec<&'a Note>,
}

impl<'a> Group<'a> {
    fn add(&mut self, note: &'a Note, parts: Parts<'a>) {
        if !self.names.contains(&parts.name()) {
            self.names.push(parts.name());
        }
        self.notes.push(note);
    }

    fn said(&self) -> String {
        let [first, others @ ..] = self.notes.as_slice() else { return String::new() };
        if others.is_empty() {
            return first.to_string();
        }
        let Parts { section, text, entry, .. } = self.parts;
        let names = listed(self.names.iter().map(ToString::to_string).collect());
        let subject = match (entry, self.names.len(), section) {
            (Some(_), 1, _) => format!("model_list: {names}{LEFT_OUT}"),
            (Some(_), ..) => format!("model_list: {names} are left out: "),
            (None, _, "") => format!("{names}: "),
            (None, ..) => format!("{section}.{names}: "),
        };
        let lines = listed(others.iter().map(|note| note.span.line.to_string()).collect());
        let word = if others.len() == 1 { "line" } else { "lines" };
        format!("{}: {}", first.span, printable(&format!("{subject}{text} (also {word} {lines})")))
    }
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
