//! How the keys of a section are declared, and the rule for unknown and unsupported keys.
//!
//! The rule ([`Section::verdict`]), for every mapping of the file:
//!
//! - A key with an effect is read.
//! - A key without effect here is ignored with a note. So is an unknown key, as in LiteLLM.
//! - An unsupported key that protects something (guardrails, allowed addresses, spending limits) is an error,
//!   unless the user names it in `--ignore-unsupported`; so is one without which answers would change.
//! - A misspelt key that protects something (keys, budgets, limits, allowed models) is an error: ignoring it would grant access.

use crate::problem::mistyped;

/// The keys of one mapping of the file.
#[derive(Debug)]
pub struct Section {
    /// Its name in errors and docs: `router_settings`.
    pub name: &'static str,
    /// Its purpose.
    pub doc: &'static str,
    /// Keys with an effect.
    pub keys: &'static [Key],
    /// Keys without effect here, by the reason, which is reported. A `*` at the end stands for any text.
    pub warned: &'static [(&'static [&'static str], &'static str)],
    /// Keys that cannot be ignored safely, by the reason: the file is refused unless the user says otherwise.
    pub refused: &'static [(&'static [&'static str], &'static str)],
    /// Whether other keys are allowed (names that the user chooses).
    pub open: bool,
}

/// A key with an effect.
#[derive(Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Other names.
    pub aliases: &'static [&'static str],
    /// The kind of its value.
    pub kind: Kind,
    /// Its effect, in a line.
    pub doc: &'static str,
    /// Whether it protects something: a key, a budget, a limit, the models that may be used.
    pub guards: bool,
}

/// How a key is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is read.
    Honoured,
    /// It is ignored with a note, for this reason.
    Ignored(&'static str),
    /// It is an error for this reason, unless the user accepts that it is not enforced.
    Unsupported(&'static str),
    /// It is an error: it is unknown, and probably a misspelling of this key, which protects something.
    Mistyped(&'static str),
    /// It is unknown, and ignored with a note; this is a similar key.
    Unknown(Option<&'static str>),
    /// It is one of the names that the user chooses.
    Open,
}

/// The kind of a value.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// A text.
    Text,
    /// A text that is not printed: itself, `os.environ/NAME`, or `file:PATH`.
    Secret,
    /// true or false.
    Bool,
    /// A whole number, 0 or more.
    Count,
    /// A number.
    Number,
    /// A time: seconds, or `30s`, `5m`, `2h`, `7d`.
    Seconds,
    /// A size in bytes: `24GiB`, `500M`.
    Size,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A list of texts, or one text.
    Texts,
    /// A mapping of texts to texts.
    TextMap,
    /// Any mapping; passed on unchanged.
    Json,
    /// Any value; passed on unchanged.
    Any,
    /// Lists of groups by group: `[{a: [b, c]}]`.
    Fallbacks,
    /// A mapping with these keys.
    Section(&'static Section),
    /// A list of such mappings.
    List(&'static Section),
    /// A mapping of names to such mappings.
    MapOf(&'static Section),
}

/// Declares a key.
pub(crate) const fn key(name: &'static str, kind: Kind, doc: &'static str) -> Key {
    Key { name, aliases: &[], kind, doc, guards: false }
}

impl Key {
    /// Declares a key with other names.
    pub(crate) const fn or(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    /// Declares a key that protects something.
    pub(crate) const fn guard(self) -> Self {
        Self { guards: true, ..self }
    }

    /// All its names.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }

    /// Whether it has this name.
    pub fn is(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}

impl Section {
    /// The key of this name, if it has an effect.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|k| k.is(name))
    }

    /// How a key of this name is handled.
    pub fn verdict(&self, name: &str) -> Verdict {
        if self.key(name).is_some() {
            return Verdict::Honoured;
        }
        if let Some(why) = self.warning(name) {
            return Verdict::Ignored(why);
        }
        if let Some(why) = self.refusal(name) {
            return Verdict::Unsupported(why);
        }
        let guards = self.keys.iter().filter(|k| k.guards).flat_map(Key::names);
        let refused = self.refused.iter().flat_map(|(names, _)| names.iter().copied());
        if let Some(near) = mistyped(name, guards.chain(refused)) {
            return Verdict::Mistyped(near);
        }
        let near = mistyped(name, self.keys.iter().flat_map(Key::names));
        if self.open && near.is_none() { Verdict::Open } else { Verdict::Unknown(near) }
    }

    /// Why a key is ignored.
    pub fn warning(&self, name: &str) -> Option<&'static str> {
        why(self.warned, name)
    }

    /// Why a key is refused.
    pub fn refusal(&self, name: &str) -> Option<&'static str> {
        why(self.refused, name)
    }

    /// All known names.
    #[cfg(test)]
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let done = self.keys.iter().flat_map(Key::names);
        let rest = self.warned.iter().chain(self.refused).flat_map(|(names, _)| names.iter().copied());
        done.chain(rest)
    }
}

/// The reason of `name` in a list of names by reason.
fn why(all: &[(&[&str], &'static str)], name: &str) -> Option<&'static str> {
    let is = |known: &&str| known.strip_suffix('*').map_or(*known == name, |begin| name.starts_with(begin));
    all.iter().find(|(names, _)| names.iter().any(is)).map(|(_, why)| *why)
}
