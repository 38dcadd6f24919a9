//! Scans calls in a syntax derived from a template. Used by `parser`.
//!
//! White space in the syntax's own text may be missing or added. All decisions are made by character, so splits of the answer do not
//! matter, and each character is processed once.

use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;

use crate::json::{Progress, Scanner};
use crate::nested::NestedScan;
use crate::object::{NAME_BYTES_MAX, ObjectScan};
use crate::syntax::{Arguments, CallSyntax, Keys, Nested, Piece, Tagged};
use crate::tagged::TaggedScan;
use crate::tags::Step;
use crate::written;

/// The parts of a section of calls, compiled from a syntax once per answer.
#[derive(Debug)]
pub struct Plan {
    trigger: String,
    at_start: bool,
    /// The beginning of the section, and a call.
    first: Vec<Part>,
    /// The separator and a call; empty if there is one call only.
    next: Vec<Part>,
    /// The end of the section, without white space.
    close: String,
}

#[derive(Debug)]
enum Part {
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

fn bare(text: &str) -> String {
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
        Self {
            trigger: syntax.trigger().into(),
            at_start: syntax.at_start(),
            first: parts(&syntax.open, syntax),
            next: syntax.separator.as_deref().map_or_else(Vec::new, |s| parts(s, syntax)),
            close: close.collect(),
        }
    }

    /// The text that begins a section.
    pub fn trigger(&self) -> &str {
        &self.trigger
    }

    /// Whether it does so only at the beginning of the answer.
    pub fn at_start(&self) -> bool {
        self.at_start
    }
}

#[derive(Debug)]
enum At {
    /// Number of bytes of the text matched.
    Text(usize),
    /// In a name or an id.
    Word,
    /// Before or in an object.
    Json(Option<Scanner>),
    Object(ObjectScan),
    Tagged(TaggedScan),
    Nested(NestedScan),
    Written(written::Scan),
    /// After a call: the text so far, without white space.
    Between(String),
}

/// Scans a section of calls, one after the other.
#[derive(Debug)]
pub struct Scan {
    plan: Arc<Plan>,
    /// Matching `first`, not `next`.
    is_first: bool,
    /// A call is allowed.
    may_come: bool,
    part: usize,
    at: At,
    /// Start of the current part.
    from: usize,
    /// The range of the function's name, if complete.
    name: Range<usize>,
    /// The scanner of the complete arguments, and their range.
    given: Option<(At, Range<usize>)>,
    /// Text up to here is text if this is not a call.
    opened: usize,
}

impl Scan {
    /// After the trigger, which is held.
    pub fn new(plan: &Arc<Plan>) -> Self {
        let mut scan = Self {
            plan: Arc::clone(plan),
            is_first: true,
            may_come: true,
            part: 0,
            at: At::Text(0),
            from: 0,
            name: 0..0,
            given: None,
            // The trigger may begin again within itself: `>>>` at the second character of `>>>>`.
            opened: plan.trigger.chars().next().map_or(0, char::len_utf8),
        };
        scan.enter(0);
        // The trigger is text of the syntax, or begins an object.
        let mut end = 0;
        for c in plan.trigger.chars() {
            end += c.len_utf8();
            scan.step(c, &plan.trigger[..end]);
        }
        scan
    }

    fn parts(&self) -> &[Part] {
        if self.is_first { &self.plan.first } else { &self.plan.next }
    }

    /// What may follow a complete call, if anything of the syntax can: the end of the section, and another call if one `may_come`.
    pub fn between(self, may_come: bool) -> Option<Self> {
        let may = !self.plan.close.is_empty() || may_come && !self.plan.next.is_empty();
        may.then(|| Self {
            is_first: false,
            may_come,
            at: At::Between(String::new()),
            part: 0,
            from: 0,
            name: 0..0,
            given: None,
            opened: 0,
            ..self
        })
    }

    /// Whether it is between calls.
    pub fn is_between(&self) -> bool {
        matches!(self.at, At::Between(_))
    }

    /// Begins the current part at byte `from`.
    fn enter(&mut self, from: usize) {
        self.from = from;
        self.at = match self.parts().get(self.part) {
            Some(Part::Name | Part::Word) => At::Word,
            Some(Part::Json) => At::Json(None),
            Some(Part::Object(keys)) => At::Object(ObjectScan::new(keys)),
            Some(Part::Tagged(tagged)) => At::Tagged(TaggedScan::new(tagged)),
            Some(Part::Nested(nested)) => At::Nested(NestedScan::new(nested)),
            Some(Part::Written { gemma }) => At::Written(written::Scan::new(*gemma)),
            Some(Part::Text(_)) | None => At::Text(0),
        };
    }

    /// Continues after a part that ended at byte `end`.
    fn pass(&mut self, end: usize) -> Step {
        let at = std::mem::replace(&mut self.at, At::Text(0));
        if !matches!(at, At::Text(_) | At::Word | At::Between(_)) {
            self.given = Some((at, self.from..end));
        }
        self.part += 1;
        self.enter(end);
        if self.part < self.parts().len() { Step::More } else { Step::Done { end } }
    }

    /// Processes the character at the end of the held text.
    pub fn step(&mut self, c: char, held: &str) -> Step {
        let (begun, end) = (held.len() - c.len_utf8(), held.len());
        // If a call breaks off within its arguments, all of it is text: parsing it again for each tag in it would not be linear.
        let in_arguments = matches!(
            self.at,
            At::Json(Some(_)) | At::Object(_) | At::Tagged(_) | At::Nested(_) | At::Written(_)
        );
        let failed = Step::Text { end: if in_arguments { begun.max(self.opened) } else { self.opened } };
        // The character after a word or arguments belongs to the next part.
        loop {
            let progress = match &mut self.at {
                At::Between(_) => match self.between_calls(c, end) {
                    Some(step) => return step,
                    None => continue,
                },
                At::Text(_) | At::Json(None) if c.is_whitespace() => Progress::More,
                At::Text(n) => {
                    let parts = if self.is_first { &self.plan.first } else { &self.plan.next };
                    match parts.get(self.part) {
                        Some(Part::Text(text)) if text[*n..].starts_with(c) => {
                            *n += c.len_utf8();
                            if *n < text.len() { Progress::More } else { Progress::Done }
                        }
                        _ => Progress::Bad,
                    }
                }
                At::Word => self.word(c, &held[..begun]),
                At::Json(None) if c != '{' => Progress::Bad,
                At::Json(scanner) => scanner.get_or_insert_with(Scanner::new).step(c),
                At::Object(scan) => scan.step(c, held),
                At::Written(scan) => scan.step(c),
                At::Tagged(scan) => scan.step(c, held),
                At::Nested(scan) => scan.step(c, held),
            };
            let tag = match &self.at {
                At::Tagged(scan) => Some(scan.came()),
                At::Nested(scan) => Some(scan.came()),
                _ => None,
            };
            if let Some(tag) = tag.filter(|_| progress == Progress::Before) {
                // A partial tag belongs to the next part.
                let came = tag.strip_suffix(c).unwrap_or_default().to_string();
                self.pass(begun);
                match self.parts().get(self.part) {
                    Some(Part::Text(text)) if text.starts_with(&came) => self.at = At::Text(came.len()),
                    _ => return failed,
                }
                continue;
            }
            match progress {
                Progress::More => return Step::More,
                Progress::Bad => return failed,
                Progress::Done => return self.pass(end),
                Progress::Before => {
                    if let Step::Done { end } = self.pass(begun) {
                        return Step::Done { end };
                    }
                }
            }
        }
    }

    /// A character after `held`, in or after a name or an id.
    fn word(&mut self, c: char, held: &str) -> Progress {
        let word = held[self.from..].trim_start();
        if is_word(c) || word.is_empty() && c.is_whitespace() {
            return Progress::More;
        }
        if word.is_empty() {
            return Progress::Bad;
        }
        if matches!(self.parts().get(self.part), Some(Part::Name)) {
            self.name = held.len() - word.len()..held.len();
        }
        Progress::Before
    }

    /// Processes a character between calls; `None` if it belongs to the next call.
    fn between_calls(&mut self, c: char, end: usize) -> Option<Step> {
        let At::Between(came) = &mut self.at else { return None };
        if c.is_whitespace() {
            return Some(Step::More);
        }
        came.push(c);
        let (first, close) = (self.plan.next.first().filter(|_| self.may_come), self.plan.close.as_str());
        let next = match first {
            Some(Part::Text(text)) => text.as_str(),
            _ => "",
        };
        let step = if !close.is_empty() && close == came {
            Step::Skip { end }
        } else if !next.is_empty() && next == came {
            self.pass(end)
        } else if close.starts_with(came.as_str()) || next.starts_with(came.as_str()) {
            Step::More
        } else {
            let begins = match first {
                Some(Part::Name) => is_word(c),
                Some(Part::Object(_)) => c == '{',
                _ => false,
            };
            if begins && came.chars().count() == 1 {
                self.enter(end - c.len_utf8());
                return None;
            }
            Step::Text { end: 0 }
        };
        Some(step)
    }

    /// At the end of the answer: where the call ends, if only the text after it is missing.
    pub fn finish(&mut self, held: &str) -> Option<usize> {
        let is_last = self.part + 1 == self.parts().len();
        match &self.at {
            At::Text(_) if is_last && self.given.is_some() => Some(held.len()),
            At::Tagged(scan) if scan.may_end() => self.end_with(held.len()),
            At::Nested(scan) if scan.may_end() => self.end_with(held.len()),
            _ => None,
        }
    }

    /// Ends the arguments, and the call, at byte `end`.
    fn end_with(&mut self, end: usize) -> Option<usize> {
        self.pass(end);
        Some(end)
    }

    /// A call whose name and arguments have begun, if the arguments are JSON: the name, and the range of the arguments so far.
    pub fn started(&self, held: &str) -> Option<(String, Range<usize>)> {
        if self.name.len() > NAME_BYTES_MAX {
            return None;
        }
        let json = |from: usize, to: usize| from + held[from..].find('{').unwrap_or(0)..to;
        match (&self.at, &self.given) {
            (At::Json(Some(_)), _) => Some((held[self.name.clone()].into(), json(self.from, held.len()))),
            (_, Some((At::Json(_), span))) => {
                Some((held[self.name.clone()].into(), json(span.start, span.end)))
            }
            (At::Object(scan), _) | (_, Some((At::Object(scan), _))) => scan.started(held),
            _ => None,
        }
    }

    /// Name and arguments of a complete call; `schema` returns the parameters of a tool by name.
    pub fn call<'a>(
        &self,
        held: &str,
        schema: impl Fn(&str) -> Option<&'a Value>,
    ) -> Option<(String, String)> {
        let (at, span) = self.given.as_ref()?;
        let name = &held[self.name.clone()];
        let arguments = match at {
            At::Object(scan) => return scan.call(held).filter(|(name, _)| schema(name).is_some()),
            At::Json(_) => held[span.clone()].trim().to_string(),
            At::Written(scan) => scan.object(&held[span.clone()])?,
            At::Tagged(scan) => scan.object(held, schema(name)?),
            At::Nested(scan) => scan.object(held, schema(name)?),
            At::Text(_) | At::Word | At::Between(_) => return None,
        };
        schema(name)?;
        Some((name.into(), arguments))
    }
}

/// Characters of names and ids.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/')
}
