//! Checks that modules of a crate do not import each other in circles, direct or through others. See also `tidy`.
//!
//! What is an import: a path that begins with `crate`, `self`, `super` or a module declared in the file, in code that is no test. A name that a
//! module re-exports or imports leads on to where it comes from. A module and those inside it count as one another's own: a parent names its
//! children, and children use what their parent holds for them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Circles that stay: the crate, its modules, and why.
const ALLOWED: &[(&str, &[&str], &str)] = &[
    (
        "api",
        &["json", "rules"],
        "a path carries the warnings about its body; a rule places what it refuses by its path",
    ),
    (
        "engine",
        &["cache::lease", "cache::tiers"],
        "a lease waits for the loading that the tiers began for it",
    ),
    (
        "engine",
        &["engine::choice", "engine::options", "engine::request", "engine::speculation"],
        "a request makes its choices, and a choice is made from a request and the guesses for it",
    ),
    (
        "engine",
        &["sampler::params", "sampler::stages"],
        "stages check their fields as the parameters do that hold them",
    ),
    ("engine", &["scheduler::handle", "scheduler::work"], "two ends of one channel"),
    (
        "engine",
        &["template::bounds", "template::limits", "template::python"],
        "each counts what the others make",
    ),
    ("synth", &["error", "known", "mix", "shape", "tiny"], "errors list the names that are known"),
    (
        "vulkan",
        &["ahead", "backend", "experts", "picks", "steps", "traffic", "transfer"],
        "parts of one backend, each with methods on it",
    ),
];

type Name = Vec<String>;

/// A path of one import, from the crate's root, and the name that it has in its module, if it gets one.
#[derive(Debug)]
struct Import {
    path: Name,
    name: Option<String>,
}

/// The imports of one file, from its tokens.
#[derive(Debug, Default)]
struct File {
    declared: BTreeSet<String>,
    imports: Vec<(Name, Option<String>)>,
}

fn ident(token: Option<&TokenTree>) -> Option<String> {
    match token? {
        TokenTree::Ident(i) => Some(i.to_string()),
        _ => None,
    }
}

fn is_punct(token: Option<&TokenTree>, c: char) -> bool {
    matches!(token, Some(TokenTree::Punct(p)) if p.as_char() == c)
}

impl File {
    /// Reads all tokens but those of tests.
    fn read(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            if is_punct(tokens.get(at), '#')
                && matches!(tokens.get(at + 1), Some(TokenTree::Group(g)) if g.stream().to_string().replace(' ', "") == "cfg(test)")
            {
                at = end_of_item(&tokens, at + 2);
                continue;
            }
            match &tokens[at] {
                TokenTree::Group(group) => self.read(group.stream()),
                TokenTree::Ident(word) if word == "use" => {
                    let end =
                        (at..tokens.len()).find(|i| is_punct(tokens.get(*i), ';')).unwrap_or(tokens.len());
                    self.tree(&[], &tokens[at + 1..end]);
                    at = end;
                }
                TokenTree::Ident(word) if word == "mod" && is_punct(tokens.get(at + 2), ';') => {
                    self.declared.extend(ident(tokens.get(at + 1)));
                }
                TokenTree::Ident(_) if !follows_colons(&tokens, at) => {
                    let (path, end) = path(&tokens, at);
                    if path.len() > 1 {
                        self.imports.push((path, None));
                        at = end - 1;
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// `a::{b, c::d as e}` of a `use`.
    fn tree(&mut self, prefix: &[String], tokens: &[TokenTree]) {
        let mut path = prefix.to_vec();
        let mut renamed = None;
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Ident(word) if word == "as" => {
                    renamed = ident(tokens.get(at + 1));
                    at += 1;
                }
                TokenTree::Ident(word) => path.push(word.to_string()),
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    for part in inner.split(|t| is_punct(Some(t), ',')).filter(|p| !p.is_empty()) {
                        self.tree(&path, part);
                    }
                    return;
                }
                _ => {}
            }
            at += 1;
        }
        if path.last().is_some_and(|l| l == "self") && path.len() > 1 {
            path.pop();
        }
        let name = renamed.or_else(|| path.last().cloned());
        self.imports.push((path, name));
    }
}

/// `a::b::c` from here on, and where it ends.
fn path(tokens: &[TokenTree], at: usize) -> (Name, usize) {
    let mut out: Name = ident(tokens.get(at)).into_iter().collect();
    let mut end = at + 1;
    while is_punct(tokens.get(end), ':') && is_punct(tokens.get(end + 1), ':') {
        let Some(next) = ident(tokens.get(end + 2)) else { break };
        out.push(next);
        end += 3;
    }
    (out, end)
}

fn follows_colons(tokens: &[TokenTree], at: usize) -> bool {
    at > 0 && is_punct(tokens.get(at - 1), ':') && at > 1 && is_punct(tokens.get(at - 2), ':')
}

/// Where the item ends that begins here: behind its block or its semicolon.
fn end_of_item(tokens: &[TokenTree], from: usize) -> usize {
    let ends = |t: &TokenTree| {
        is_punct(Some(t), ';') || matches!(t, TokenTree::Group(g) if g.delimiter() == Delimiter::Brace)
    };
    tokens[from..].iter().position(ends).map_or(tokens.len(), |i| from + i + 1)
}

/// The modules of a crate, and where they lie.
fn modules(source: &Path) -> BTreeMap<Name, PathBuf> {
    fn walk(dir: &Path, at: &Name, out: &mut BTreeMap<Name, PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
            let path = entry.expect("a folder can be listed").path();
            let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let inner: Name = at.iter().cloned().chain([stem.clone()]).collect();
            if path.is_dir() {
                walk(&path, &inner, out);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let is_root = at.is_empty() && (stem == "lib" || stem == "main");
                out.insert(if is_root || stem == "mod" { at.clone() } else { inner }, path);
            }
        }
    }
    let mut out = BTreeMap::new();
    walk(source, &Name::new(), &mut out);
    out
}

struct Crate {
    modules: BTreeMap<Name, Vec<Import>>,
}

impl Crate {
    fn read(source: &Path) -> Self {
        let mut all = BTreeMap::new();
        for (module, path) in modules(source) {
            let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let mut file = File::default();
            file.read(text.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display())));
            let from_root = |(path, name): (Name, Option<String>)| {
                let mut base = module.clone();
                let mut rest = &path[..];
                match path[0].as_str() {
                    "crate" => {
                        base.clear();
                        rest = &rest[1..];
                    }
                    "self" => rest = &rest[1..],
                    "super" => {}
                    first if file.declared.contains(first) => {}
                    _ => return None, // another crate
                }
                while rest.first().is_some_and(|w| w == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
                base.extend(rest.iter().cloned());
                Some(Import { path: base, name })
            };
            all.insert(module.clone(), file.imports.into_iter().filter_map(from_root).collect());
        }
        Self { modules: all }
    }

    /// The module that a path leads to, by way of re-exports.
    fn resolve(&self, path: &[String], depth: usize) -> Name {
        let known = (0..=path.len()).rev().find(|n| self.modules.contains_key(&path[..*n])).unwrap_or(0);
        let (module, rest) = path.split_at(known);
        if let (Some(first), true) = (rest.first(), depth < 8)
            && let Some(import) = self.modules[module].iter().find(|i| i.name.as_ref() == Some(first))
            && import.path != path
        {
            let on: Name = import.path.iter().chain(&rest[1..]).cloned().collect();
            return self.resolve(&on, depth + 1);
        }
        module.to_vec()
    }

    /// Which modules import which, parents and children left out.
    fn edges(&self) -> BTreeMap<&Name, BTreeSet<Name>> {
        let of = |(module, imports): (&'_ Name, &Vec<Import>)| {
            let to = imports.iter().map(|i| self.resolve(&i.path, 0));
            to.filter(|to| !to.starts_with(module) && !module.starts_with(to)).collect()
        };
        self.modules.iter().map(|(m, i)| (m, of((m, i)))).collect()
    }

    /// Sets of modules that all lead to one another.
    fn circles(&self) -> Vec<Vec<String>> {
        let edges = self.edges();
        let reached: BTreeMap<&Name, BTreeSet<&Name>> = edges
            .keys()
            .map(|from| {
                let (mut seen, mut todo) = (BTreeSet::new(), vec![*from]);
                while let Some(next) = todo.pop() {
                    todo.extend(edges[next].iter().filter(|to| seen.insert(*to)));
                }
                (*from, seen)
            })
            .collect();
        let mut out: Vec<Vec<String>> = Vec::new();
        for (module, seen) in &reached {
            let circle: Vec<String> = seen
                .iter()
                .filter(|other| reached[**other].contains(*module))
                .map(|m| m.join("::"))
                .collect();
            if circle.len() > 1 && !out.contains(&circle) {
                out.push(circle);
            }
        }
        out
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a crate lies in crates/").to_path_buf()
}

#[test]
fn modules_do_not_import_each_other_in_circles() {
    let (mut found, mut used) = (Vec::new(), BTreeSet::new());
    let mut read = 0;
    for folder in ["crates", "crates/engine", "crates/server", "crates/router"] {
        for entry in std::fs::read_dir(root().join(folder)).expect("a folder of crates") {
            let path = entry.expect("a folder can be listed").path();
            if !path.join("Cargo.toml").exists() {
                continue;
            }
            read += 1;
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            for circle in Crate::read(&path.join("src")).circles() {
                let allowed = ALLOWED.iter().position(|(c, modules, _)| {
                    *c == name && circle.iter().all(|m| modules.contains(&m.as_str()))
                });
                match allowed {
                    Some(which) => drop(used.insert(which)),
                    None => found.push(format!("{}: {}", path.display(), circle.join(", "))),
                }
            }
        }
    }
    assert!(read > 10, "the crates are where this test looks for them");
    assert!(found.is_empty(), "these modules import each other:\n  {}", found.join("\n  "));
    let gone = (0..ALLOWED.len()).find(|i| !used.contains(i)).map(|i| ALLOWED[i]);
    assert!(gone.is_none(), "{gone:?} is no circle any more: take it off the list");
}

/// The test finds imports in all forms: a path in the code, a name that the root re-exports, `super`, and a list in braces.
#[test]
fn circles_are_seen() {
    let crate_of = |files: &[(&str, &str)]| {
        let dir = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
            std::fs::write(path, text).expect("it can be written");
        }
        Crate::read(dir.path()).circles()
    };
    let root = ("lib.rs", "mod a; mod b; pub use a::A; pub use b::B;");
    let two = vec![vec!["a".to_string(), "b".into()]];
    assert_eq!(crate_of(&[root, ("a.rs", "use crate::B;"), ("b.rs", "fn f() { crate::a::f(); }")]), two);
    assert_eq!(
        crate_of(&[root, ("a.rs", "use super::{b::{self as x}};"), ("b.rs", "use crate::A as Y;")]),
        two
    );
    let test = "#[cfg(test)] mod tests { use crate::a; }";
    assert!(crate_of(&[root, ("a.rs", "use crate::B;"), ("b.rs", test)]).is_empty(), "tests may");
    let inner = [("lib.rs", "mod a;"), ("a/mod.rs", "mod c; use c::C;"), ("a/c.rs", "use super::A;")];
    assert!(crate_of(&inner).is_empty(), "a parent and its child may");
}
