//! Parses the names of models that users type.

use std::fmt;
use std::path::PathBuf;

use url::Url;

use crate::Error;
use crate::catalog::{self, CatalogEntry};

/// A model by any kind of name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// A local file or folder.
    Path(PathBuf),
    /// A repository on Hugging Face, or one model of it.
    Hub(HubRef),
    /// A GGUF file at any URL.
    Url(Url),
    /// A short name, which may have several sources.
    Short(ShortRef),
}

/// `hf:user/repo[@revision][:QUANT | /file.gguf]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubRef {
    /// `user/repo`.
    pub repo: String,
    /// Branch, tag or commit.
    pub revision: String,
    /// The model in the repository.
    pub select: Select,
}

/// The selection of a model in a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Select {
    /// The default: a GGUF with about 4 bits, or else the safetensors of the whole repository.
    Default,
    /// A GGUF by its quantisation, ignoring case.
    Quant(String),
    /// A file by its path in the repository.
    File(String),
}

/// `name[:quant]` of the [catalogue](crate::catalog).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShortRef {
    /// The entry.
    pub known: &'static CatalogEntry,
    /// A quantisation that replaces the entry's own.
    pub quant: Option<String>,
}

/// The default branch.
pub const MAIN: &str = "main";

const OTHERS: &str = "hf:user/repo:QUANT, https://host/file.gguf, or a path";

impl Reference {
    /// Parses what a user typed. Accesses the disk only to distinguish a path from a short name.
    pub fn parse(given: &str) -> Result<Self, Error> {
        let text = given.trim();
        let wrong = |why: String| Error::Reference { given: given.into(), why };
        if text.is_empty() {
            return Err(wrong(format!("no model is named; expected a short name, {OTHERS}")));
        }
        if let Some(rest) = text.strip_prefix("hf:").or_else(|| text.strip_prefix("hf.co/")) {
            return HubRef::parse(rest.trim_start_matches("//")).map(Self::Hub);
        }
        if text.starts_with("http://") || text.starts_with("https://") {
            return parse_url(text);
        }
        // A path takes precedence if the text can only be one, or if it exists.
        let path = PathBuf::from(text);
        let pathlike =
            text.starts_with(['.', '/', '~', '\\']) || text.to_ascii_lowercase().ends_with(".gguf");
        if pathlike || path.exists() {
            return Ok(Self::Path(path));
        }
        if text.contains(['/', '\\']) {
            return Err(wrong(format!(
                "no such file or folder; a repository on Hugging Face is written hf:{text}"
            )));
        }
        ShortRef::parse(text)
            .map(Self::Short)
            .ok_or_else(|| wrong(format!("unknown model. Short names: {}. Also: {OTHERS}", catalog::names())))
    }
}

impl HubRef {
    fn parse(rest: &str) -> Result<Self, Error> {
        let wrong = |why: &str| Error::Reference {
            given: format!("hf:{rest}"),
            why: format!("{why}; expected hf:user/repo, hf:user/repo:QUANT or hf:user/repo/file.gguf"),
        };
        let mut parts = rest.splitn(3, '/');
        let user = parts.next().unwrap_or_default();
        let repo = parts.next().ok_or_else(|| wrong("names no repository"))?;
        let file = parts.next().filter(|f| !f.is_empty());
        // Revisions with slashes (`refs/pr/1`) cannot be distinguished from files and are not supported.
        let (repo, quant) = if file.is_none() { split(repo, ':') } else { (repo, None) };
        let (repo, revision) = split(repo, '@');
        for name in [user, repo] {
            let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if name.is_empty() || !name.chars().all(fine) || name.starts_with('.') || name.contains("--") {
                return Err(wrong("is not a repository name"));
            }
        }
        let select = match (quant, file) {
            (Some(""), _) => return Err(wrong("names no quantisation after the colon")),
            (Some(quant), _) => Select::Quant(quant.to_string()),
            (None, Some(file)) if !file.to_ascii_lowercase().ends_with(".gguf") => {
                return Err(wrong("names a file that is not a .gguf"));
            }
            (None, Some(file)) if !is_safe(file) => {
                return Err(wrong("names a file outside of the repository"));
            }
            (None, Some(file)) => Select::File(file.to_string()),
            (None, None) => Select::Default,
        };
        let revision = revision.unwrap_or(MAIN);
        if !is_safe(revision) {
            return Err(wrong("is not a revision name"));
        }
        Ok(Self { repo: format!("{user}/{repo}"), revision: revision.into(), select })
    }
}

impl ShortRef {
    fn parse(text: &str) -> Option<Self> {
        if let Some(known) = catalog::find(text) {
            return Some(Self { known, quant: None });
        }
        let (name, quant) = text.rsplit_once(':')?;
        // A quantisation may only follow a full name: `smollm2:q8_0` would be an unknown size.
        let known = catalog::find(name).filter(|k| k.name.eq_ignore_ascii_case(name))?;
        (!quant.is_empty()).then(|| Self { known, quant: Some(quant.to_string()) })
    }

    /// The repository of the name. A pinned file is requested by its commit.
    pub fn hub(&self) -> HubRef {
        match self.pinned() {
            Some(p) => HubRef {
                repo: self.known.repo.into(),
                revision: p.revision.into(),
                select: Select::File(p.file.into()),
            },
            None => HubRef {
                repo: self.known.repo.into(),
                revision: MAIN.into(),
                select: Select::Quant(self.quant.clone().unwrap_or_else(|| self.known.quant.into())),
            },
        }
    }

    /// The exact file, if the name (with this quantisation) has one.
    pub fn pinned(&self) -> Option<&'static catalog::Pinned> {
        let own = self.quant.as_ref().is_none_or(|q| q.eq_ignore_ascii_case(self.known.quant));
        self.known.pinned.as_ref().filter(|_| own)
    }
}

fn split(text: &str, at: char) -> (&str, Option<&str>) {
    text.split_once(at).map_or((text, None), |(a, b)| (a, Some(b)))
}

/// True for a relative path without `..` and the like, on every operating system. Servers choose file names, too, and they are printed: none
/// has characters that control a terminal or turn the direction of text.
pub(crate) fn is_safe(path: &str) -> bool {
    let controls = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    !path.is_empty()
        && !path.contains(['\\', ':'])
        && !path.contains(controls)
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

/// URLs of Hugging Face's pages are repositories; any other must be a GGUF file.
fn parse_url(text: &str) -> Result<Reference, Error> {
    let wrong = |why: String| Error::Reference { given: redacted(text), why };
    let url = Url::parse(text).map_err(|e| wrong(format!("is not a valid URL: {e}")))?;
    if matches!(url.host_str(), Some("huggingface.co" | "hf.co" | "www.huggingface.co")) {
        let parts: Vec<&str> = url.path().trim_matches('/').split('/').collect();
        return match parts.as_slice() {
            [user, repo] => HubRef::parse(&format!("{user}/{repo}")),
            [user, repo, "tree", revision] => HubRef::parse(&format!("{user}/{repo}@{revision}")),
            [user, repo, "resolve" | "blob", revision, file @ ..] if !file.is_empty() => {
                HubRef::parse(&format!("{user}/{repo}@{revision}/{}", file.join("/")))
            }
            _ => Err(wrong("is not the URL of a model on Hugging Face".into())),
        }
        .map(Reference::Hub);
    }
    let file = file_name(&url);
    if !file.to_ascii_lowercase().ends_with(".gguf") {
        return Err(wrong("the address must end in the name of a .gguf file".into()));
    }
    if !is_safe(&file) {
        return Err(wrong("the address ends in no usable file name".into()));
    }
    Ok(Reference::Url(url))
}

/// The last part of a URL's path, decoded.
pub(crate) fn file_name(url: &Url) -> String {
    let last = url.path_segments().and_then(|mut s| s.next_back()).unwrap_or_default();
    percent_encoding::percent_decode_str(last).decode_utf8_lossy().into_owned()
}

/// An invalid URL may still contain a password.
fn redacted(text: &str) -> String {
    Url::parse(text).map_or_else(|_| "https://…".into(), |url| crate::error::redacted(&url))
}

impl fmt::Display for HubRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repo)?;
        if self.revision != MAIN {
            write!(f, "@{}", self.revision)?;
        }
        match &self.select {
            Select::Default => Ok(()),
            Select::Quant(quant) => write!(f, ":{quant}"),
            Select::File(file) => write!(f, "/{file}"),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Hub(hub) => hub.fmt(f),
            Self::Url(url) => f.write_str(&crate::error::redacted(url)),
            Self::Short(short) => {
                f.write_str(short.known.name)?;
                short.quant.as_ref().map_or(Ok(()), |q| write!(f, ":{q}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(given: &str, expect: &str) {
        let parsed = Reference::parse(given).unwrap_or_else(|e| panic!("{given}: {e}"));
        let kind = match parsed {
            Reference::Path(_) => "path",
            Reference::Hub(_) => "hub",
            Reference::Url(_) => "url",
            Reference::Short(_) => "short",
        };
        assert_eq!(format!("{kind} {parsed}"), expect, "{given}");
    }

    #[test]
    fn every_form_is_understood() {
        for (given, expect) in [
            ("smollm2:135m", "short smollm2:135m"),
            ("smollm2", "short smollm2:135m"),
            (" Qwen3.6:35B-A3B ", "short qwen3.6:35b-a3b"),
            ("qwen3.6:35b-a3b:q8_0", "short qwen3.6:35b-a3b:q8_0"),
            ("hf:user/repo", "hub hf:user/repo"),
            ("hf:user/repo:Q4_K_M", "hub hf:user/repo:Q4_K_M"),
            ("hf.co/user/repo:q8_0", "hub hf:user/repo:q8_0"),
            ("hf:user/repo@v1:Q4_K_M", "hub hf:user/repo@v1:Q4_K_M"),
            ("hf:user/repo/Q4/model-00001-of-00002.gguf", "hub hf:user/repo/Q4/model-00001-of-00002.gguf"),
            ("https://huggingface.co/user/repo", "hub hf:user/repo"),
            ("https://huggingface.co/user/repo/tree/main", "hub hf:user/repo"),
            ("https://huggingface.co/u/r/blob/main/a/b.gguf", "hub hf:u/r/a/b.gguf"),
            ("https://huggingface.co/u/r/resolve/abc/b.gguf?download=true", "hub hf:u/r@abc/b.gguf"),
            ("https://me:pw@host/x.gguf?sig=1", "url https://host/x.gguf"),
            ("./model", "path ./model"),
            ("~/model", "path ~/model"),
            ("/abs/model.bin", "path /abs/model.bin"),
            ("model.GGUF", "path model.GGUF"),
            ("src", "path src"), // exists where tests run
        ] {
            check(given, expect);
        }
    }

    #[test]
    fn errors_say_what_is_known() {
        for (given, part) in [
            ("", "no model is named"),
            ("gpt5", "smollm2:135m"),
            ("smollm2:q8_0", "qwen3.6:35b-a3b"),
            ("user/repo", "hf:user/repo"),
            ("hf:user", "hf:user/repo:QUANT"),
            ("hf:user/repo:", "no quantisation"),
            ("hf:user/repo/file.txt", "not a .gguf"),
            ("hf:../repo", "not a repository name"),
            ("hf:user/repo/../../x.gguf", "outside"),
            ("hf:user/repo@..:Q4", "revision"),
            ("https://host/page.html", ".gguf"),
            ("https://huggingface.co/docs", "not the URL of a model"),
        ] {
            let e = Reference::parse(given).expect_err(given).to_string();
            assert!(e.contains(part), "{given}: {e}");
        }
        assert!(!Reference::parse("https://me:pw@host/x").unwrap_err().to_string().contains("pw"));
    }

    #[test]
    fn a_pinned_name_is_asked_for_by_commit() {
        let Reference::Short(short) = Reference::parse("smollm2:135m").unwrap() else { panic!() };
        assert!(short.hub().revision.starts_with("ab810cf") && short.pinned().is_some());
        let Reference::Short(other) = Reference::parse("smollm2:135m:q8_0").unwrap() else { panic!() };
        assert_eq!(other.hub().select, Select::Quant("q8_0".into()));
        assert!(other.pinned().is_none());
    }

    #[test]
    fn unsafe_paths_are_seen() {
        for bad in ["", "/etc/x", "../x", "a/../b", "a//b", "a\\b", "C:x", ".", "a/."] {
            assert!(!is_safe(bad), "{bad}");
        }
        for bad in ["a\u{1b}[2J.gguf", "a\n.gguf", "a\u{7f}", "a\u{9b}x", "a\u{202e}fugg.gguf", "a\u{2066}b"]
        {
            assert!(!is_safe(bad), "{bad:?}");
        }
        assert!(is_safe("Q4/model..v1.gguf") && is_safe("Zürich/模型.gguf"));
    }

    proptest::proptest! {
        #[test]
        fn any_text_gives_an_answer(text in ".{0,60}") {
            let _ = Reference::parse(&text);
            let _ = Reference::parse(&format!("hf:{text}"));
            let _ = Reference::parse(&format!("https://{text}"));
        }
    }
}
