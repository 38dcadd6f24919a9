//! Tags that come twice, or are missing.

use std::ops::Range;

use super::plan::{Part, bare, last_tag};
use super::{At, Scan, is_word};
use crate::json::Progress;
use crate::message::Tool;
use crate::syntax::tags;

/// The ranges of the tags in a text.
fn places(text: &str) -> impl Iterator<Item = Range<usize>> {
    let start = text.as_ptr() as usize;
    tags(text).map(move |tag| {
        let at = tag.as_ptr() as usize - start;
        at..at + tag.len()
    })
}

impl Scan {
    /// Goes on with the part behind the current one, which is missing.
    pub(super) fn skip_text(&mut self, begun: usize) {
        self.is_mended = true;
        self.part += 1;
        self.enter(begun);
    }

    /// A character that does not fit here, where `n` bytes of a text are matched or another part begins: it may begin the last tag again.
    pub(super) fn begins_twice(&mut self, n: Option<usize>, c: char) -> Progress {
        let text = match (n, self.part.checked_sub(1).and_then(|before| self.parts().get(before))) {
            (None, Some(Part::Text(text))) => text.as_str(),
            (None, _) => return Progress::Bad,
            (Some(n), _) => match self.parts().get(self.part) {
                Some(Part::Text(text)) => &text[..n],
                _ => return Progress::Bad,
            },
        };
        // The beginning of the next tag may also be the repeated one's.
        let end = |tag: &str| tag.as_ptr() as usize - text.as_ptr() as usize + tag.len();
        let next = tags(text).last().map_or(0, end);
        let (before, came) = (&text[..next], format!("{}{c}", &text[next..]));
        // What is behind the tag in its text comes again, too.
        let is_again = n.is_none() && next < text.len();
        match last_tag(before) {
            Some(tag) if tag.starts_with(&came) && tag.len() > came.len() => {
                let (tag, text) = (tag.to_string(), n.map(|_| next).or(is_again.then_some(next)));
                self.part -= usize::from(is_again);
                self.at = At::Twice { tag, matched: came.len(), text };
                Progress::More
            }
            _ => Progress::Bad,
        }
    }

    pub(super) fn twice(&mut self, c: char, end: usize) -> Progress {
        let At::Twice { tag, matched, text } = &mut self.at else { return Progress::Bad };
        if !tag[*matched..].starts_with(c) {
            // Not that tag, but the next one is missing.
            let begun = tag[..*matched].to_string();
            let n = *text;
            return n.map_or(Progress::Bad, |n| self.skip_tag_with(n, begun, c));
        }
        *matched += c.len_utf8();
        if *matched == tag.len() {
            (self.is_mended, self.opened) = (true, end);
            match *text {
                Some(n) => self.at = At::Text(n),
                None => self.enter(end),
            }
        }
        Progress::More
    }

    /// A character that does not fit where `n` bytes of the current text are matched: it, or with it a tag that has begun, may go on behind
    /// a tag that was forgotten. `Before` if it belongs to the next part, or if the call [is over](Self::is_over).
    pub(super) fn skip_tag(&mut self, n: usize, c: char) -> Progress {
        let Some(Part::Text(text)) = self.parts().get(self.part) else { return Progress::Bad };
        let Some(tag) = places(text).find(|tag| tag.contains(&n)) else { return Progress::Bad };
        let begun = text[tag.start..n].to_string();
        self.skip_tag_with(n, begun, c)
    }

    /// The same, for the tag at byte `n`, where `begun` has come before `c`.
    fn skip_tag_with(&mut self, n: usize, begun: String, c: char) -> Progress {
        let Some(Part::Text(text)) = self.parts().get(self.part) else { return Progress::Bad };
        let Some(tag) = places(text).find(|tag| tag.contains(&n)) else { return Progress::Bad };
        let rest = &text[tag.end..];
        let came = format!("{begun}{c}");
        if !rest.is_empty() {
            // The mark before a tag that is missing may be that of the next one.
            let mark = self.plan.mark.as_deref().filter(|mark| text[..tag.start].ends_with(mark));
            let behind_mark = mark.and_then(|mark| rest.strip_prefix(mark));
            // Two tags beside each other are lost together: they are control tokens.
            let second = tags(rest).next().filter(|tag| rest.starts_with(tag));
            let behind_second = second.map(|tag| &rest[tag.len()..]).filter(|rest| !rest.is_empty());
            let rests = [Some(rest), behind_mark, behind_second];
            let Some(rest) = rests.into_iter().flatten().find(|rest| rest.starts_with(&came)) else {
                return Progress::Bad;
            };
            let (is_last, matched) = (rest == came, text.len() - rest.len() + came.len());
            self.is_mended = true;
            self.at = At::Text(matched);
            return if is_last { Progress::Done } else { Progress::More };
        }
        let is_alone = begun.is_empty();
        let behind = |part: usize| match self.parts().get(part) {
            Some(Part::Text(text)) => text.starts_with(&came) && text.len() > came.len(),
            _ => false,
        };
        match self.parts().get(self.part + 1) {
            // Behind an id or a name that the word before took in.
            Some(Part::Name | Part::Word) if behind(self.part + 2) => {
                if self.name.is_empty() {
                    self.name = self.word.clone();
                }
                self.is_joined = true;
                self.part += 2;
                self.at = At::Text(came.len());
            }
            Some(Part::Name | Part::Word) if is_alone && is_word(c) => return Progress::Before,
            Some(Part::Json | Part::Object(_)) if is_alone && c == '{' => return Progress::Before,
            Some(Part::Tagged(tagged)) if bare(&tagged.open).starts_with(&came) => {
                self.skip_text(0);
                if let At::Tagged(scan) = &mut self.at {
                    scan.resume(came);
                }
            }
            None if self.given.is_some() && self.plan.goes_on(&begun, c) => {
                self.came = Some(begun);
                self.is_mended = true;
                return Progress::Before;
            }
            _ => return Progress::Bad,
        }
        self.is_mended = true;
        Progress::More
    }

    /// Whether the call ended before what came, as its last tag was forgotten.
    pub(super) fn is_over(&self) -> bool {
        self.came.is_some()
    }

    /// Behind arguments, before which `came` and then `c` came: how much of the current text is matched, of which a tag may be missing.
    pub(super) fn behind_arguments(&mut self, came: &str, c: char, is_whole: bool) -> Option<usize> {
        let Some(Part::Text(text)) = self.parts().get(self.part) else { return None };
        let goes_on = |from: &usize| text[*from..].strip_prefix(came).is_some_and(|rest| rest.starts_with(c));
        let skipped = places(text).map(|tag| tag.end).take(usize::from(is_whole));
        let from = std::iter::once(0).chain(skipped).find(goes_on)?;
        let matched = from + came.len();
        self.is_mended |= from > 0;
        Some(matched)
    }

    /// Whether the tag with the name came twice: `came` and `c` begin it again, or are all of it. Then the name is read again, from byte `end`.
    pub(super) fn begin_name_again(&mut self, came: &str, c: char, end: usize) -> bool {
        let parts = self.parts();
        let Some(name) = parts.iter().position(|p| matches!(p, Part::Name)) else { return false };
        let Some(Part::Text(text)) = name.checked_sub(1).and_then(|at| parts.get(at)) else { return false };
        let from = places(text).last().map_or(0, |tag| tag.end);
        let again = &text[from..];
        let came = format!("{came}{c}");
        if !again.starts_with('<') || !again.starts_with(&came) {
            return false;
        }
        let is_whole = again.len() == came.len();
        self.is_mended = true;
        if is_whole {
            self.part = name;
            self.enter(end);
            return true;
        }
        self.part = name - 1;
        self.at = At::Text(from + came.len());
        true
    }

    /// Whether the tag before the arguments came twice: `came` and `c` begin it again.
    pub(super) fn begin_tag_again(&mut self, came: &str, c: char) -> bool {
        let Some(Part::Text(text)) = self.part.checked_sub(1).and_then(|at| self.parts().get(at)) else {
            return false;
        };
        let came = format!("{came}{c}");
        let Some(tag) = last_tag(text).filter(|tag| tag.starts_with(&came) && tag.len() > came.len()) else {
            return false;
        };
        self.at = At::Twice { tag: tag.into(), matched: came.len(), text: None };
        true
    }

    /// The called tool, and what its name took in behind it. If a tag was forgotten, the name may have taken in what is behind or before.
    pub(super) fn tool<'t, 'h>(&self, held: &'h str, tools: &'t [Tool]) -> Option<(&'t Tool, &'h str)> {
        let name = &held[self.name.clone()];
        let exact = tools.iter().find(|t| t.name == name);
        let took_key = matches!(&self.given, Some((At::Tagged(scan), _)) if scan.has_key_in_name());
        if exact.is_some() || !(self.is_joined || took_key) {
            return exact.map(|t| (t, ""));
        }
        let first = tools.iter().filter(|t| name.starts_with(&t.name)).max_by_key(|t| t.name.len());
        let last = tools.iter().filter(|t| name.ends_with(&t.name)).max_by_key(|t| t.name.len());
        let first = first.map(|t| (t, &name[t.name.len()..]));
        first.or(last.filter(|_| !took_key).map(|t| (t, ""))).filter(|(t, _)| !t.name.is_empty())
    }
}
