//! How the keys of a section are declared: what is honoured, warned about, refused. Read by `fields`, `schema` and the tests.

/// The keys that may stand in one mapping of the file.
#[derive(Debug)]
pub struct Section {
    /// As errors and documents call it: `router_settings`.
    pub name: &'static str,
    /// What it is for.
    pub doc: &'static str,
    /// Keys that do something.
    pub keys: &'static [Key],
    /// Keys that have no meaning here, by the reason: the user is told. A star at the end stands for any text.
    pub warned: &'static [(&'static [&'static str], &'static str)],
    /// Keys that can not be ignored safely, by the reason: the file is refused.
    pub refused: &'static [(&'static [&'static str], &'static str)],
    /// Whether other keys may stand there (names that the user chooses).
    pub open: bool,
}

/// A key that does something.
#[derive(Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Other names of the same.
    pub aliases: &'static [&'static str],
    /// What it holds.
    pub kind: Kind,
    /// What it does, in a line.
    pub doc: &'static str,
}

/// What a key holds.
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
    /// Any mapping; goes on as it stands.
    Json,
    /// Anything; goes on as it stands.
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
    Key { name, aliases: &[], kind, doc }
}

impl Key {
    /// The same with other names.
    pub(crate) const fn or(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    /// Whether it goes by this name.
    pub fn is(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}

impl Section {
    /// The key of this name, if it does something.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|k| k.is(name))
    }

    /// Why a key is ignored.
    pub fn warning(&self, name: &str) -> Option<&'static str> {
        why(self.warned, name)
    }

    /// Why a key is refused.
    pub fn refusal(&self, name: &str) -> Option<&'static str> {
        why(self.refused, name)
    }

    /// All names that are known.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let done = self.keys.iter().flat_map(|k| std::iter::once(k.name).chain(k.aliases.iter().copied()));
        let rest = self.warned.iter().chain(self.refused).flat_map(|(names, _)| names.iter().copied());
        done.chain(rest)
    }
}

/// What is said of `name` in a list of names by reason.
fn why(all: &[(&[&str], &'static str)], name: &str) -> Option<&'static str> {
    let is = |known: &&str| known.strip_suffix('*').map_or(*known == name, |begin| name.starts_with(begin));
    all.iter().find(|(names, _)| names.iter().any(is)).map(|(_, why)| *why)
}
