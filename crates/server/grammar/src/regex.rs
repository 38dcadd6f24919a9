//! Regular expressions of clients.
//!
//! llguidance's terminals match as a whole and have no anchors, while clients write `^...$`; and a schema's pattern may match
//! anywhere. So anchors at the edges are removed here.

use std::fmt::Write;

use llguidance::regex_to_lark;
use regex_syntax::Parser;
use regex_syntax::hir::{Hir, HirKind, Look};

use crate::limits::{PRINTED_BYTES_MAX, REGEX_BYTES_MAX};

/// Refuses patterns that are too long.
pub fn check_len(pattern: &str) -> Result<(), String> {
    match pattern.len() {
        0..=REGEX_BYTES_MAX => Ok(()),
        len => Err(format!("a regex has {len} bytes; the maximum is {REGEX_BYTES_MAX}")),
    }
}

/// Whether nothing matches it, not even the empty text.
pub fn is_empty(pattern: &str) -> bool {
    Parser::new().parse(pattern).is_ok_and(|hir| hir.properties().minimum_len().is_none())
}

/// Refuses invalid regular expressions.
pub fn check(pattern: &str) -> Result<Hir, String> {
    check_len(pattern)?;
    Parser::new().parse(pattern).map_err(|e| match e {
        regex_syntax::Error::Parse(e) => wrong(e.kind(), pattern, e.span().start.offset),
        regex_syntax::Error::Translate(e) => wrong(e.kind(), pattern, e.span().start.offset),
        _ => "it cannot be parsed".into(),
    })
}

/// The error and its position: regex-syntax's own message repeats the whole pattern.
fn wrong(kind: impl std::fmt::Display, pattern: &str, at: usize) -> String {
    match pattern.get(at..).unwrap_or_default() {
        "" => format!("{kind}, at its end"),
        rest => format!("{kind}, at '{}'", rest.chars().take(40).collect::<String>().escape_debug()),
    }
}

/// `pattern` for matching as a whole, without anchors, to be put between slashes in a grammar.
pub fn whole(pattern: &str) -> Result<String, String> {
    let hir = check(pattern)?;
    // A literal newline may end a comment, which an escaped one does not.
    if hir.properties().look_set().is_empty() && !pattern.contains('\n') {
        return Ok(slashed(pattern));
    }
    let bare = match hir.into_kind() {
        HirKind::Alternation(all) => Hir::alternation(all.into_iter().map(|h| bare(h).0).collect()),
        kind => bare(from(kind)).0,
    };
    Ok(slashed(&print(bare)?))
}

/// A schema's pattern, which matches anywhere, as one for the whole text.
pub fn search(pattern: &str) -> Result<String, String> {
    check_len(pattern)?;
    // JavaScript's meaning of \d and \w.
    let hir = check(&regex_to_lark(pattern, "dw"))?;
    let parts = match hir.into_kind() {
        HirKind::Alternation(all) => all,
        kind => vec![from(kind)],
    };
    let any = "(?s:.*)";
    let mut out = Vec::new();
    for part in parts {
        let (part, start, end) = bare(part);
        out.push(format!(
            "{}(?:{}){}",
            if start { "" } else { any },
            print(part)?,
            if end { "" } else { any }
        ));
    }
    Ok(slashed(&out.join("|")))
}

/// Escapes slashes. A lone backslash at the end, which would be lost, is refused by [`check`].
fn slashed(pattern: &str) -> String {
    regex_to_lark(pattern, "")
}

/// Without anchors at the edges; and whether there was one at the start, and at the end.
fn bare(hir: Hir) -> (Hir, bool, bool) {
    let (start, end) = anchors(&hir);
    (without(hir, start, end), start, end)
}

/// Whether a match begins at the start, and ends at the end, by anchors at the edges: `^$|^a$` is parsed as `^(?:$|a$)`.
fn anchors(hir: &Hir) -> (bool, bool) {
    match hir.kind() {
        HirKind::Look(look) => (*look == Look::Start, *look == Look::End),
        HirKind::Concat(all) => {
            (all.first().is_some_and(|h| anchors(h).0), all.last().is_some_and(|h| anchors(h).1))
        }
        HirKind::Alternation(all) => {
            let each = all.iter().map(anchors);
            each.fold((true, true), |both, one| (both.0 && one.0, both.1 && one.1))
        }
        HirKind::Capture(group) => anchors(&group.sub),
        _ => (false, false),
    }
}

/// Without the anchors that [`anchors`] finds at these edges.
fn without(hir: Hir, start: bool, end: bool) -> Hir {
    if !start && !end {
        return hir;
    }
    match hir.into_kind() {
        HirKind::Look(Look::Start) if start => Hir::empty(),
        HirKind::Look(Look::End) if end => Hir::empty(),
        HirKind::Concat(mut all) => {
            let is = |look: Look| move |h: &&Hir| *h.kind() == HirKind::Look(look);
            if start {
                all.drain(..all.iter().take_while(is(Look::Start)).count());
                let first = all.first_mut().filter(|h| anchors(h).0);
                if let Some(h) = first {
                    *h = without(std::mem::replace(h, Hir::empty()), true, false);
                }
            }
            if end {
                all.truncate(all.len() - all.iter().rev().take_while(is(Look::End)).count());
                let last = all.last_mut().filter(|h| anchors(h).1);
                if let Some(h) = last {
                    *h = without(std::mem::replace(h, Hir::empty()), false, true);
                }
            }
            Hir::concat(all)
        }
        HirKind::Alternation(all) => {
            Hir::alternation(all.into_iter().map(|h| without(h, start, end)).collect())
        }
        HirKind::Capture(group) => without(*group.sub, start, end),
        kind => from(kind),
    }
}

fn from(kind: HirKind) -> Hir {
    match kind {
        HirKind::Empty => Hir::empty(),
        HirKind::Literal(l) => Hir::literal(l.0),
        HirKind::Class(c) => Hir::class(c),
        HirKind::Look(l) => Hir::look(l),
        HirKind::Repetition(r) => Hir::repetition(r),
        HirKind::Capture(c) => Hir::capture(c),
        HirKind::Concat(all) => Hir::concat(all),
        HirKind::Alternation(all) => Hir::alternation(all),
    }
}

/// A text that cannot become longer than [`PRINTED_BYTES_MAX`]: a class of two characters may be thousands written out.
struct Limited(String);

impl Write for Limited {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        if self.0.len() + s.len() > PRINTED_BYTES_MAX {
            return Err(std::fmt::Error);
        }
        self.0.push_str(s);
        Ok(())
    }
}

fn print(hir: Hir) -> Result<String, String> {
    match hir.properties().look_set().iter().next() {
        None => {
            let mut out = Limited(String::new());
            let too_long =
                |_| format!("a regex has more than {PRINTED_BYTES_MAX} bytes with its classes written out");
            write!(out, "{hir}").map_err(too_long)?;
            Ok(out.0)
        }
        Some(Look::Start | Look::End) => Err("anchors are only supported at its start and its end".into()),
        Some(look) => Err(format!("{look:?} is not supported: no word boundaries, no anchors of lines")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_at_the_edges_are_removed() {
        assert_eq!(whole("a/b").unwrap(), "a\\/b");
        for pattern in ["^ab$", "^ab", "ab$", "^^ab$$", "(^ab$)", "^(?:ab)$"] {
            assert_eq!(whole(pattern).unwrap(), "(?:ab)", "{pattern}");
        }
        assert_eq!(whole("^a|b$").unwrap(), "[ab]");
        assert_eq!((whole("").unwrap(), whole("^$").unwrap()), (String::new(), "(?:)".into()));
        assert_eq!(whole("(?x)a # comment\n b").unwrap(), "(?:ab)");
    }

    #[test]
    fn a_search_matches_around() {
        for (pattern, yes, no) in [
            ("a", &["a", "xay", "\na\n"][..], &["b", ""][..]),
            ("^a", &["a", "ab"], &["ba"]),
            ("a$", &["a", "ba"], &["ab"]),
            ("^a|b$", &["ax", "xb"], &["xax", "bx"]),
            ("^(a|b)$", &["a", "b"], &["ab"]),
            ("(^a|b$)", &[], &[]),
            ("^$|^ab$", &["", "ab"], &["a", "abab"]),
            ("^(?:a$|bc$)", &["a", "bc"], &["ab", "bca"]),
            // zod's base64
            (
                "^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$",
                &["", "YWJj", "YQ==", "YWI="],
                &["Y", "YQ=", "YQ==YQ=="],
            ),
            ("^\\d+$", &["12"], &["٣", "1a"]),
            ("", &["", "x"], &[]),
        ] {
            let Ok(full) = search(pattern) else {
                assert!(yes.is_empty(), "{pattern}");
                continue;
            };
            let full = ::regex::Regex::new(&format!("^(?:{full})$")).unwrap();
            assert!(yes.iter().all(|t| full.is_match(t)), "{pattern}: {full}");
            assert!(!no.iter().any(|t| full.is_match(t)), "{pattern}: {full}");
        }
    }

    #[test]
    fn unsupported_constructs_are_named() {
        for (pattern, part) in [
            ("(?=a)b", "look-around"),
            ("(a)\\1", "backreferences"),
            ("a^b", "start and its end"),
            ("\\bword\\b", "WordUnicode"),
            ("(?m)^a$", "StartLF"),
            ("(", "unclosed group"),
            ("a\\", "incomplete escape"),
            ("[z-a]", "invalid character class range"),
        ] {
            let said = whole(pattern).unwrap_err();
            assert!(said.contains(part), "{pattern}: {said}");
        }
        let deep = |anchor: &str| format!("{}a{}", format!("({anchor}").repeat(90), ")".repeat(90));
        assert_eq!(whole(&deep("^")).unwrap(), "a");
        assert!(whole(&deep("b^")).unwrap_err().contains("start and its end"));
        for pattern in [format!("^{}$", r"\W".repeat(8000)), format!("(a{}$)", r"\PL".repeat(5000))] {
            let said = [whole(&pattern).unwrap_err(), search(&pattern).unwrap_err()];
            assert!(said.iter().all(|said| said.contains("bytes")), "{said:?}");
        }
        assert!(whole(&"a".repeat(REGEX_BYTES_MAX + 1)).unwrap_err().contains("the maximum is"));
    }
}
