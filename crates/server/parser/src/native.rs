//! Scans calls in a syntax derived from a template.
//!
//! White space in the syntax's own text may be missing or added. Tags may be forgotten or repeated, as far as the call is still clear. All
//! decisions are made by character, so splits of the answer do not matter, and each character is processed once.

mod mend;
mod plan;

use std::ops::Range;
use std::sync::Arc;

use crate::json::{Progress, Scanner};
use crate::message::Tool;
use crate::nested::{Around, NestedScan, start_of};
use crate::object::{NAME_BYTES_MAX, ObjectScan};
use crate::syntax::tags;
use crate::tagged::TaggedScan;
use crate::tags::Step;
use crate::written;
pub use plan::Plan;
use plan::{Part, last_tag};

#[derive(Debug)]
enum At {
    /// Number of bytes of the text matched.
    Text(usize),
    /// In a tag that comes twice: number of its bytes matched, and of the text of the part.
    Twice {
        tag: String,
        matched: usize,
        text: Option<usize>,
    },
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
    /// The word before the name.
    word: Range<usize>,
    /// The name may have taken in the id beside it.
    is_joined: bool,
    /// The beginning of the next tag, if the call ended before it.
    came: Option<String>,
    /// Text up to here is text if this is not a call.
    opened: usize,
    /// A tag was missing or repeated.
    is_mended: bool,
    /// Gemma's arguments are between round brackets.
    is_round: bool,
}

impl Scan {
    /// After the text that begins a section, or without its first tag the `later` one; and that text, which is held.
    pub fn new(plan: &Arc<Plan>, later: bool) -> (Self, String) {
        let trigger = plan.later.as_deref().filter(|_| later).unwrap_or(&plan.trigger);
        let mut scan = Self {
            plan: Arc::clone(plan),
            is_first: !later,
            may_come: true,
            part: 0,
            at: At::Text(0),
            from: 0,
            name: 0..0,
            word: 0..0,
            given: None,
            is_joined: false,
            came: None,
            // The trigger may begin again within itself: `>>>` at the second character of `>>>>`.
            opened: trigger.chars().next().map_or(0, char::len_utf8),
            is_mended: later,
            is_round: false,
        };
        scan.enter(0);
        // The trigger is text of the syntax, or begins an object.
        let mut end = 0;
        for c in trigger.chars() {
            end += c.len_utf8();
            scan.step(c, &trigger[..end]);
        }
        (scan, trigger.to_string())
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
            word: 0..0,
            given: None,
            is_joined: false,
            came: None,
            opened: 0,
            is_round: false,
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
            Some(Part::Tagged(tagged)) => {
                let behind = self.text_behind();
                let again = self.plan.later().unwrap_or(&self.plan.trigger);
                // What ends the answer may follow the section's end.
                let close = tags(&self.plan.close).next().unwrap_or(&self.plan.close);
                At::Tagged(TaggedScan::new(tagged, behind, again, close))
            }
            Some(Part::Nested(nested)) => At::Nested(NestedScan::new(nested, self.around())),
            Some(Part::Written { gemma }) => At::Written(written::Scan::new(*gemma, self.is_round)),
            Some(Part::Text(_)) | None => At::Text(0),
        };
    }

    /// The text behind the current part.
    fn text_behind(&self) -> &str {
        match self.parts().get(self.part + 1) {
            Some(Part::Text(text)) => text,
            _ => "",
        }
    }

    /// The texts around a call of nested tags.
    fn around(&self) -> Around {
        let again = match self.plan.next.first() {
            Some(Part::Text(text)) => text.as_str(),
            _ => "",
        };
        // What ends the answer may follow the section's end.
        let close = self.plan.close.as_str();
        let is_mark = |tag: &&str| Some(*tag) == self.plan.mark.as_deref();
        let end = tags(close).find(|tag| !is_mark(tag));
        let end = end.map_or(close.len(), |tag| tag.as_ptr() as usize - close.as_ptr() as usize + tag.len());
        Around { behind: self.text_behind().into(), again: again.into(), close: close[..end].into() }
    }

    /// Continues after a part that ended at byte `end`.
    fn pass(&mut self, end: usize) -> Step {
        let at = std::mem::replace(&mut self.at, At::Text(0));
        if !matches!(at, At::Text(_) | At::Twice { .. } | At::Word | At::Between(_)) {
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
                    let n = *n;
                    match self.text(n, c) {
                        Progress::Before if self.is_over() => {
                            let came = self.came.take().unwrap_or_default();
                            return Step::Done { end: start_of(&held[..begun], &came) };
                        }
                        Progress::Before => {
                            self.skip_text(begun);
                            continue;
                        }
                        progress => progress,
                    }
                }
                At::Twice { .. } => self.twice(c, end),
                At::Word => match self.word(c, &held[..begun]) {
                    Progress::Bad => self.begins_twice(None, c),
                    progress => progress,
                },
                At::Json(None) if c != '{' => match self.begins_twice(None, c) {
                    Progress::Bad if self.begin_name_again("", c, end) => Progress::More,
                    progress => progress,
                },
                At::Object(scan) if !scan.has_begun() && c != '{' && !c.is_whitespace() => {
                    self.begins_twice(None, c)
                }
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
                let is_whole = self.may_end();
                if !is_whole && (self.begin_name_again(&came, c, end) || self.begin_tag_again(&came, c)) {
                    return Step::More;
                }
                self.pass(begun);
                match self.behind_arguments(&came, c, is_whole) {
                    Some(n) => self.at = At::Text(n),
                    // The tag that ends the call was forgotten.
                    None if is_whole
                        && self.part + 1 == self.parts().len()
                        && self.plan.goes_on(&came, c) =>
                    {
                        self.is_mended = true;
                        return Step::Done { end: start_of(&held[..begun], &came) };
                    }
                    None => return failed,
                }
                continue;
            }
            let cut_at = match &self.at {
                _ if progress != Progress::Done => None,
                At::Tagged(scan) => scan.cut_at(),
                At::Nested(scan) => scan.cut_at(),
                _ => None,
            };
            if let Some(end) = cut_at {
                self.is_mended = true;
                self.pass(end.start);
                return Step::Done { end: end.end };
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

    /// A character of the current part's text, of which `n` bytes are matched; `Before` if the text is missing.
    fn text(&mut self, n: usize, c: char) -> Progress {
        let parts = if self.is_first { &self.plan.first } else { &self.plan.next };
        let Some(Part::Text(text)) = parts.get(self.part) else { return Progress::Bad };
        let c = match (c, parts.get(self.part + 1)) {
            // Gemma sometimes writes Python's brackets.
            ('(', Some(Part::Written { gemma: true })) if text[n..] == *"{" => {
                (self.is_round, self.is_mended) = (true, true);
                '{'
            }
            (')', _) if self.is_round && n == 0 => '}',
            _ => c,
        };
        if text[n..].starts_with(c) {
            let n = n + c.len_utf8();
            if n == text.len() {
                return Progress::Done;
            }
            self.at = At::Text(n);
            return Progress::More;
        }
        // The section's first tag was forgotten, and begins like the one of later calls.
        if let (true, 0, Some(Part::Text(next))) = (self.is_first, self.part, self.plan.next.first())
            && next.starts_with(&text[..n])
            && next[n..].starts_with(c)
            && n + c.len_utf8() < next.len()
        {
            (self.is_first, self.is_mended) = (false, true);
            self.at = At::Text(n + c.len_utf8());
            return Progress::More;
        }
        // A tag between a name and its arguments was forgotten.
        if n == 0 && self.part > 0 && c == '{' && matches!(parts.get(self.part + 1), Some(Part::Json)) {
            return Progress::Before;
        }
        match self.begins_twice(Some(n), c) {
            Progress::Bad => self.skip_tag(n, c),
            progress => progress,
        }
    }

    /// Whether the arguments are complete, and nothing else has begun.
    fn may_end(&self) -> bool {
        match &self.at {
            At::Tagged(scan) => scan.may_end(),
            At::Nested(scan) => scan.may_end(),
            _ => false,
        }
    }

    /// The end of a call that breaks off behind arguments which end at byte `from`: text that its syntax has before a tag is the call's.
    pub fn end_behind(&self, held: &str, from: usize) -> usize {
        let (At::Text(matched), Some(Part::Text(text))) = (&self.at, self.parts().get(self.part)) else {
            return from;
        };
        let before =
            tags(text).next().map_or(text.len(), |tag| tag.as_ptr() as usize - text.as_ptr() as usize);
        let rest = held[from..].trim_start();
        match self.given.is_some() && *matched >= before && rest.starts_with(&text[..before]) {
            true => held.len() - rest.len() + before,
            false => from,
        }
    }

    /// The beginning of a tag with which the section began, if no arguments have come.
    pub fn unused_trigger(&self) -> Option<&str> {
        let trigger = self.plan.trigger();
        let is_tag = trigger.starts_with(['<', '[', ']']) && trigger.len() > 2;
        let has_arguments = match &self.at {
            At::Json(scanner) => scanner.is_some(),
            At::Object(scan) => scan.has_begun(),
            At::Tagged(_) | At::Nested(_) | At::Written(_) | At::Between(_) => true,
            At::Text(_) | At::Twice { .. } | At::Word => self.given.is_some(),
        };
        (is_tag && self.is_first && !has_arguments && self.name.is_empty()).then_some(trigger)
    }

    /// Whether that is a whole tag, and nothing of a call has come.
    pub fn has_trigger_alone(&self) -> bool {
        let trigger = self.plan.trigger();
        last_tag(trigger) == Some(trigger) && self.name.is_empty() && self.part < 2
    }

    /// Whether a tag was missing or repeated.
    pub fn is_mended(&self) -> bool {
        let of_arguments = match &self.given {
            Some((At::Tagged(scan), _)) => scan.is_mended(),
            Some((At::Nested(scan), _)) => scan.is_mended(),
            _ => false,
        };
        self.is_mended || of_arguments
    }

    /// A character after `held`, in or after a name or an id.
    fn word(&mut self, c: char, held: &str) -> Progress {
        // Not all that is held, for each character of it: there may be much white space before a name.
        let has_begun = held[self.from..].chars().next_back().is_some_and(|c| !c.is_whitespace());
        if !has_begun && c.is_whitespace() {
            return Progress::More;
        }
        let word = held[self.from..].trim_start();
        if is_word(c) {
            return Progress::More;
        }
        if word.is_empty() {
            return Progress::Bad;
        }
        let range = held.len() - word.len()..held.len();
        match self.parts().get(self.part) {
            Some(Part::Name) => self.name = range,
            _ => self.word = range,
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
        let mark = self.plan.mark.as_deref().unwrap_or_default();
        if let Some(rest) = came.strip_prefix(mark).filter(|rest| !mark.is_empty() && !rest.is_empty())
            && mark.starts_with(rest)
        {
            (*came, self.is_mended) = (rest.to_string(), true); // twice
            return Some(Step::More);
        }
        let (first, close) = (self.plan.next.first().filter(|_| self.may_come), self.plan.close.as_str());
        let next = match first {
            Some(Part::Text(text)) => text.as_str(),
            _ => "",
        };
        // A mark before a tag may be missing.
        let (bare_close, bare_next) = match came.starts_with('<') {
            true => (without_mark(close, mark), without_mark(next, mark)),
            false => (close, next),
        };
        let step = if !close.is_empty() && bare_close == came {
            Step::Skip { end }
        } else if !next.is_empty() && bare_next == came {
            self.is_mended |= bare_next != next;
            self.pass(end)
        } else if bare_close.starts_with(came.as_str()) || bare_next.starts_with(came.as_str()) {
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
            // The tag before a name was forgotten.
            let matched = came.len() - c.len_utf8();
            let is_behind = matches!(self.plan.next.get(1), Some(Part::Name)) && self.may_come && is_word(c);
            let is_last = last_tag(next).is_some_and(|tag| matched + tag.len() == next.len());
            if is_behind && is_last && matched > 0 && next.starts_with(&came[..matched]) {
                self.skip_text(end - c.len_utf8());
                return None;
            }
            Step::Text { end: 0 }
        };
        Some(step)
    }

    /// At the end of the answer: where the call ends, if only the text after it is missing.
    pub fn finish(&mut self, held: &str) -> Option<usize> {
        let is_last = self.part + 1 == self.parts().len();
        self.is_mended = true;
        match &mut self.at {
            At::Text(_) if is_last && self.given.is_some() => Some(held.len()),
            At::Tagged(scan) if scan.may_end() => self.end_with(held.len()),
            At::Tagged(scan) => {
                let end = scan.finish(held)?;
                self.end_with(end)?;
                Some(held.len())
            }
            At::Nested(scan) if scan.may_end() => self.end_with(held.len()),
            At::Nested(scan) => {
                let end = scan.finish()?;
                self.end_with(end)?;
                Some(held.len())
            }
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

    /// Name and arguments of a complete call of one of the tools.
    pub fn call(&self, held: &str, tools: &[Tool]) -> Option<(String, String)> {
        let (at, span) = self.given.as_ref()?;
        if let At::Object(scan) = at {
            return scan.call(held).filter(|(name, _)| tools.iter().any(|t| t.name == *name));
        }
        let (tool, rest) = self.tool(held, tools)?;
        let arguments = match at {
            At::Json(_) => held[span.clone()].trim().to_string(),
            At::Written(scan) => scan.object(&held[span.clone()])?,
            At::Tagged(scan) => scan.object(held, &tool.parameters, rest)?,
            At::Nested(scan) => scan.object(held, &tool.parameters)?,
            At::Object(_) | At::Text(_) | At::Twice { .. } | At::Word | At::Between(_) => return None,
        };
        Some((tool.name.clone(), arguments))
    }
}

/// A text without the mark before its first tag.
fn without_mark<'a>(text: &'a str, mark: &str) -> &'a str {
    text.strip_prefix(mark).unwrap_or(text)
}

/// Characters of names and ids.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/')
}
