//! A syntax derived from a template, compiled for the scanner.

use crate::syntax::{Arguments, CallSyntax, Keys, Nested, Piece, Tagged, tags};

/// The parts of a section of calls, compiled from a syntax once per answer.
#[derive(Debug)]
pub struct Plan {
    pub(super) trigger: String,
    pub(super) at_start: bool,
    /// The beginning of the section, and a call.
    pub(super) first: Vec<Part>,
    /// The separator and a call; empty if there is one call only.
    pub(super) next: Vec<Part>,
    /// The tag that begins later calls, if the first one begins with another.
    pub(super) later: Option<String>,
    /// The end of the section, without white space.
    pub(super) close: String,
    /// The mark before each tag, if arguments are in nested tags.
    pub(super) mark: Option<String>,
    /// How calls begin whose first tags were forgotten: those tags; the text behind them, without white space; and the first character
    /// behind the name, which follows, or `None` if an object follows that has it.
    pub heads: Vec<(String, String, Option<char>)>,
    /// The syntax's tags.
    pub tags: Vec<String>,
}

/// A part of a call.
#[derive(Debug)]
pub enum Part {
    /// This text, without white space.
    Text(String),
    Name,
    /// An id or a number.
    Word,
    Json,
    Object(Keys),
    Tagged(Tagged),
    Nested(Nested),
    Written {
        gemma: bool,
    },
}

/// A text without white space.
pub fn bare(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

fn parts(before: &[Piece], syntax: &CallSyntax) -> Vec<Part> {
    let mut out: Vec<Part> = Vec::new();
    let mut add = |part: Part| match (out.last_mut(), part) {
        (_, Part::Text(text)) if text.is_empty() => {}
        (Some(Part::Text(last)), Part::Text(text)) => last.push_str(&text),
        (_, part) => out.push(part),
    };
    let one = |piece: &Piece| match piece {
        Piece::Text(text) => Part::Text(bare(text)),
        Piece::Name => Part::Name,
        Piece::Id | Piece::Number(_) => Part::Word,
        Piece::Arguments(Arguments::Json) => Part::Json,
        Piece::Arguments(Arguments::Tagged(tagged)) => Part::Tagged(tagged.clone()),
        Piece::Arguments(Arguments::Nested(nested)) => Part::Nested(nested.clone()),
        Piece::Arguments(Arguments::Python) => Part::Written { gemma: false },
        Piece::Arguments(Arguments::Gemma) => Part::Written { gemma: true },
    };
    before.iter().map(one).for_each(&mut add);
    match &syntax.object {
        Some(keys) => {
            add(Part::Object(keys.clone()));
            if let Some(Piece::Text(text)) = syntax.call.last() {
                add(Part::Text(bare(text.rsplit_once('}').map_or("", |(_, behind)| behind))));
            }
        }
        None => syntax.call.iter().map(one).for_each(&mut add),
    }
    out
}

impl Plan {
    pub fn new(syntax: &CallSyntax) -> Self {
        let close = syntax.close.iter().filter_map(|p| match p {
            Piece::Text(text) => Some(bare(text)),
            _ => None,
        });
        let separator = match syntax.separator.as_deref() {
            Some([Piece::Text(text), ..]) => text.trim(),
            _ => "",
        };
        // With a closing tag before it, it would be the last call's end.
        let is_later =
            separator.starts_with('<') && !separator.contains("</") && separator.len() > "<call".len();
        let is_later =
            is_later && !separator.starts_with(syntax.trigger()) && opens_with(&syntax.open, separator);
        Self {
            later: is_later.then(|| separator.to_string()),
            trigger: syntax.trigger().into(),
            at_start: syntax.at_start(),
            first: parts(&syntax.open, syntax),
            next: syntax.separator.as_deref().map_or_else(Vec::new, |s| parts(s, syntax)),
            close: close.collect(),
            mark: syntax.call.iter().find_map(|p| match p {
                Piece::Arguments(Arguments::Nested(nested)) => Some(nested.mark.clone()),
                _ => None,
            }),
            heads: heads(syntax),
            tags: syntax.tags().into_iter().map(str::to_string).collect(),
        }
    }

    /// The text that begins a section.
    pub fn trigger(&self) -> &str {
        &self.trigger
    }

    /// The text that begins one whose first tag was forgotten.
    pub fn later(&self) -> Option<&str> {
        self.later.as_deref()
    }

    /// Whether the next call or the section's end begins with this text and character.
    pub(super) fn goes_on(&self, came: &str, c: char) -> bool {
        let begins = |text: &str| text.strip_prefix(came).is_some_and(|rest| rest.starts_with(c));
        begins(self.later().unwrap_or(&self.trigger)) || begins(&self.close)
    }

    /// Whether it does so only at the beginning of the answer.
    pub fn at_start(&self) -> bool {
        self.at_start
    }
}

/// How calls begin whose first tags were forgotten.
fn heads(syntax: &CallSyntax) -> Vec<(String, String, Option<char>)> {
    let call = syntax.call.iter().filter(|_| syntax.object.is_none());
    let pieces: Vec<&Piece> = syntax.open.iter().chain(call).collect();
    let text = |piece: &&&Piece| matches!(piece, Piece::Text(_));
    let opening: String = pieces
        .iter()
        .take_while(text)
        .filter_map(|piece| if let Piece::Text(text) = piece { Some(text.as_str()) } else { None })
        .collect();
    let opening = opening.trim_start();
    let is_space = |piece: &&&Piece| matches!(piece, Piece::Text(text) if bare(text).is_empty());
    let mut behind = pieces.iter().skip_while(text).filter(|piece| !is_space(piece));
    let behind = match (syntax.object.is_some(), behind.next(), behind.next()) {
        (true, ..) => None,
        (false, Some(Piece::Name), Some(Piece::Text(text))) => bare(text).chars().next(),
        (false, Some(Piece::Name), Some(Piece::Arguments(Arguments::Json))) => Some('{'),
        (false, Some(Piece::Name), Some(Piece::Arguments(Arguments::Tagged(t)))) => {
            bare(&t.open).chars().next()
        }
        (false, ..) => return Vec::new(),
    };
    if syntax.object.is_none() && behind.is_none() {
        return Vec::new();
    }
    let is_first = opening.starts_with(syntax.trigger()) && last_tag(syntax.trigger()).is_some();
    let ends = tags(opening)
        .filter(|_| is_first)
        .map(|tag| tag.as_ptr() as usize - opening.as_ptr() as usize + tag.len());
    ends.map(|end| (opening[..end].to_string(), bare(&opening[end..]), behind)).collect()
}

/// Whether a section's beginning has this tag.
fn opens_with(open: &[Piece], tag: &str) -> bool {
    open.iter().any(|p| matches!(p, Piece::Text(text) if text.contains(tag)))
}

/// The last tag of a text without white space, if it ends with one.
pub fn last_tag(text: &str) -> Option<&str> {
    tags(text).last().filter(|t| text.ends_with(t))
}
