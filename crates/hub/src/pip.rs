//! pip's settings on this machine: indexes, certificates, proxy. Read by `wheel.rs`, so that a model on a Python index is found
//! wherever `pip install` would work.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::values::{expand, is_true};

/// pip's default index.
pub const DEFAULT_INDEX: &str = "https://pypi.org/simple";

/// pip's settings that concern downloads. Sources, the later ones winning: pip's files (global, user, virtual
/// environment, `PIP_CONFIG_FILE`), then the `PIP_*` variables; in files, `[install]` and `[download]` win over `[global]`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PipConfig {
    /// `index-url`; `None` means [`DEFAULT_INDEX`].
    pub index_url: Option<String>,
    /// `extra-index-url`, in order.
    pub extra_index_urls: Vec<String>,
    /// `no-index`: use none.
    pub no_index: bool,
    /// `cert`: a file of certificates to trust instead of the system's.
    pub cert: Option<PathBuf>,
    /// `trusted-host`: `host` or `host:port` whose certificate is not checked.
    pub trusted_hosts: Vec<String>,
    /// `proxy`, instead of the general ones.
    pub proxy: Option<String>,
    /// A pip file that could not be read: reported when the index is needed.
    pub problem: Option<String>,
}

impl fmt::Debug for PipConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // URLs may contain passwords.
        write!(
            f,
            "PipConfig(index-url: {}, extra: {}, no-index: {}, cert: {:?}, trusted: {:?})",
            self.index_url.is_some(),
            self.extra_index_urls.len(),
            self.no_index,
            self.cert,
            self.trusted_hosts
        )
    }
}

/// (section, option) -> value.
type Options = BTreeMap<(String, String), String>;

impl PipConfig {
    /// Reads pip's files and variables as pip does.
    pub fn from_env(lookup: &impl Fn(&str) -> Option<String>, home: Option<&Path>) -> Self {
        let get = |name: &str| lookup(name).filter(|v| !v.trim().is_empty());
        let mut options = Options::new();
        let mut problem = None;
        for path in files(&get, home) {
            match std::fs::read_to_string(&path) {
                Ok(text) => options.extend(parse(&text)),
                Err(e)
                    if matches!(
                        e.kind(),
                        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                    ) => {}
                Err(e) => problem = Some(format!("{}: {e}", path.display())),
            }
        }
        let value = |option: &str| {
            let variable = format!("PIP_{}", option.replace('-', "_").to_ascii_uppercase());
            get(&variable).or_else(|| {
                ["install", "download", "global"].iter().find_map(|section| {
                    options
                        .get(&(section.to_string(), option.to_string()))
                        .filter(|v| !v.trim().is_empty())
                        .cloned()
                })
            })
        };
        let words = |option: &str| -> Vec<String> {
            value(option).unwrap_or_default().split_whitespace().map(str::to_string).collect()
        };
        Self {
            index_url: value("index-url").map(|v| v.trim().to_string()),
            extra_index_urls: words("extra-index-url"),
            no_index: value("no-index").is_some_and(|v| is_true(&v)),
            cert: value("cert").map(|p| expand(p.trim(), home)),
            trusted_hosts: words("trusted-host"),
            proxy: value("proxy").map(|v| v.trim().to_string()),
            problem,
        }
    }

    /// Every index to ask, in order.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = &str> {
        let first = self.index_url.as_deref().unwrap_or(DEFAULT_INDEX);
        std::iter::once(first)
            .chain(self.extra_index_urls.iter().map(String::as_str))
            .filter(|_| !self.no_index)
    }

    /// Whether the certificate of `url`'s host is not checked, as the user configured.
    pub(crate) fn trusts(&self, url: &url::Url) -> bool {
        let host = url.host_str().unwrap_or_default();
        let with_port = format!("{host}:{}", url.port_or_known_default().unwrap_or_default());
        self.trusted_hosts.iter().any(|t| t.eq_ignore_ascii_case(host) || t.eq_ignore_ascii_case(&with_port))
    }
}

/// pip's configuration files, the weakest first.
fn files(get: &impl Fn(&str) -> Option<String>, home: Option<&Path>) -> Vec<PathBuf> {
    let explicit = get("PIP_CONFIG_FILE").map(|p| expand(&p, home));
    if explicit.as_deref().is_some_and(|p| p == Path::new(if cfg!(windows) { "nul" } else { "/dev/null" })) {
        return Vec::new(); // pip's way to say: no files at all
    }
    let name = if cfg!(windows) { "pip.ini" } else { "pip.conf" };
    let mut files = Vec::new();
    if cfg!(windows) {
        files.extend(get("ProgramData").map(|p| Path::new(&p).join("pip").join(name)));
    } else {
        let dirs = get("XDG_CONFIG_DIRS").unwrap_or_else(|| "/etc/xdg".into());
        files.extend(dirs.split(':').filter(|d| !d.is_empty()).map(|d| Path::new(d).join("pip").join(name)));
        if cfg!(target_os = "macos") {
            files.push(PathBuf::from("/Library/Application Support/pip/pip.conf"));
        }
        files.push(PathBuf::from("/etc/pip.conf"));
    }
    // An existing named file replaces the user's own.
    if !explicit.as_ref().is_some_and(|p| p.exists()) {
        if let Some(home) = home {
            files.push(home.join(if cfg!(windows) { "pip" } else { ".pip" }).join(name));
        }
        let config = if cfg!(windows) {
            get("APPDATA").map(PathBuf::from)
        } else {
            get("XDG_CONFIG_HOME").map(|p| expand(&p, home)).or(home.map(|h| h.join(".config")))
        };
        files.extend(config.map(|c| c.join("pip").join(name)));
        if cfg!(target_os = "macos") {
            files.extend(home.map(|h| h.join("Library/Application Support/pip").join(name)));
        }
    }
    files.extend(get("VIRTUAL_ENV").or_else(|| get("CONDA_PREFIX")).map(|p| Path::new(&p).join(name)));
    files.extend(explicit);
    files
}

/// Python's INI dialect: `[section]`, `key = value` or `key: value`, comments in lines of their own, and a value
/// that continues in indented lines.
fn parse(text: &str) -> Options {
    let mut options = Options::new();
    let mut section = String::new();
    let mut last: Option<(String, String)> = None;
    for line in text.trim_start_matches('\u{feff}').lines() {
        let content = line.trim();
        if content.is_empty() || content.starts_with(['#', ';']) {
            continue;
        }
        if line.starts_with([' ', '\t'])
            && let Some(value) = last.as_ref().and_then(|key| options.get_mut(key))
        {
            value.push('\n');
            value.push_str(content);
        } else if let Some(name) = content.strip_prefix('[').and_then(|c| c.strip_suffix(']')) {
            section = name.trim().to_string();
            last = None;
        } else if let Some(at) = content.find(['=', ':']) {
            let option = content[..at].trim().to_ascii_lowercase().replace('_', "-");
            let key = (section.clone(), option.trim_start_matches("--").to_string());
            options.insert(key.clone(), content[at + 1..].trim().to_string());
            last = Some(key);
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Home folder with files (path, text) in it, plus variables; `~` in a value is the home folder.
    fn config(files: &[(&str, &str)], vars: &[(&str, &str)]) -> PipConfig {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_str().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let lookup = |name: &str| {
            // Keeps this machine's own files out of the test.
            let own = if name == "XDG_CONFIG_DIRS" { Some(format!("{home}/xdg")) } else { None };
            vars.iter().find(|(k, _)| *k == name).map(|(_, v)| v.replace('~', home)).or(own)
        };
        PipConfig::from_env(&lookup, Some(dir.path()))
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn sources_win_in_pips_order() {
        let index = |files: &[(&str, &str)], vars: &[(&str, &str)]| {
            config(files, vars).indexes().map(str::to_string).collect::<Vec<_>>()
        };
        let global = ("xdg/pip/pip.conf", "[global]\nindex-url = https://global/simple\n");
        let legacy = (".pip/pip.conf", "[global]\nindex-url = https://legacy/simple\n");
        let user = (".config/pip/pip.conf", "[global]\nindex_url: https://user/simple\n");
        let venv = ("venv/pip.conf", "[global]\nindex-url=https://venv/simple\n");
        let named = ("named.conf", "[global]\nindex-url = https://named/simple\n");
        let in_venv = ("VIRTUAL_ENV", "~/venv");
        for (files, vars, expect) in [
            (&[][..], &[][..], &[DEFAULT_INDEX][..]),
            (&[global], &[], &["https://global/simple"]),
            (&[global, legacy], &[], &["https://legacy/simple"]),
            (&[global, legacy, user], &[], &["https://user/simple"]),
            (&[global, user, venv], &[in_venv], &["https://venv/simple"]),
            (
                &[global, user, venv, named],
                &[in_venv, ("PIP_CONFIG_FILE", "~/named.conf")],
                &["https://named/simple"],
            ),
            (&[user], &[("PIP_CONFIG_FILE", "/dev/null")], &[DEFAULT_INDEX]),
            (&[user], &[("PIP_INDEX_URL", "https://me:pw@env/simple")], &["https://me:pw@env/simple"]),
            (&[user], &[("PIP_INDEX_URL", " ")], &["https://user/simple"]),
            (
                &[],
                &[("PIP_EXTRA_INDEX_URL", "https://a/s  https://b/s")],
                &[DEFAULT_INDEX, "https://a/s", "https://b/s"],
            ),
            (&[], &[("PIP_NO_INDEX", "1")], &[]),
            // A section of the command wins over [global], wherever it is in the file.
            (&[("xdg/pip/pip.conf", "[install]\nindex-url = https://i/s\n"), user], &[], &["https://i/s"]),
        ] {
            assert_eq!(index(files, vars), expect, "{files:?} {vars:?}");
        }
    }

    #[test]
    #[cfg(unix)]
    fn every_setting_is_read() {
        let text = "# company\n[global]\ntimeout = 60\nextra-index-url =\n    https://one/simple\n  # not this\n\
                    \thttps://two/simple\n\ntrusted-host = one two:8443\ncert = ~/ca.pem\nproxy = http://p:3128\n\
                    [list]\nformat = columns\n";
        let c = config(&[(".config/pip/pip.conf", text)], &[]);
        assert_eq!(c.extra_index_urls, ["https://one/simple", "https://two/simple"]);
        assert_eq!(c.trusted_hosts, ["one", "two:8443"]);
        assert!(c.cert.unwrap().ends_with("ca.pem"));
        assert_eq!(c.proxy.as_deref(), Some("http://p:3128"));
        assert_eq!(c.problem, None);
    }

    #[test]
    fn trusted_hosts_match_with_and_without_port() {
        let c = PipConfig { trusted_hosts: vec!["one".into(), "two:8443".into()], ..Default::default() };
        for (url, expect) in [
            ("https://one/x", true),
            ("https://ONE:444/x", true),
            ("https://two/x", false),
            ("https://two:8443/x", true),
            ("https://three/x", false),
        ] {
            assert_eq!(c.trusts(&url::Url::parse(url).unwrap()), expect, "{url}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "[\\[\\]=:# \ta-z\n\r\u{e9}]{0,200}") {
            parse(&text);
        }
    }
}
