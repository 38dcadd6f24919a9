//! LiteLLM's config.yaml: it is understood as it is; keys that have no meaning here become comments.

use super::lines::comment_out;
use super::{Imported, with_notes};
use crate::source::Source;
use crate::{Problems, load, sections};

/// Translates it.
pub(super) fn import(file: &str, text: &str, source: &dyn Source) -> Result<Imported, Problems> {
    let (problems, notes) = load::look(file, text, source)?;
    let mut lines: Vec<String> = text.lines().map(String::from).collect();
    let mut said = Vec::new();
    for note in notes {
        let is_key = sections::is_warned(&note.key);
        let gone = is_key && *note.span.file == *file && comment_out(&mut lines, &note.span);
        let what = if gone { " (now a comment)" } else { "" };
        said.push(format!("line {}: {}{what}: {}", note.span.line, note.key, note.text));
    }
    said.extend(problems.iter().map(|p| format!("TO DO, line {}: {}", p.span.line, p.text)));
    let mut yaml = lines.join("\n");
    yaml.push('\n');
    Ok(with_notes("LiteLLM's file", said, &yaml))
}
