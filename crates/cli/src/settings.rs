//! The environment: settings besides flags, and the variables of flags. The only file that reads it; the hub gets its settings from
//! here.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use etcetera::BaseStrategy;
use octet_hub::HubConfig;

use crate::embedded;
use crate::stderr::note;
use crate::usage_error::Usage;

/// Other servers' variables that hold an API key; the first that is set counts. The last is none of llama-server's, but who sets it wants a
/// key.
pub const API_KEYS: [&str; 3] = ["LLAMA_API_KEY", "VLLM_API_KEY", "LLAMA_ARG_API_KEY"];

/// Hints are shown once in this time.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Settings from the environment that are not flags.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Flags from the command line or the environment: they override a configuration file.
    pub given: BTreeSet<String>,
    /// `--offline`: nothing is fetched.
    pub offline: bool,
    /// `OCTET_MODEL`: the default model.
    pub model: Option<String>,
    /// `OCTET_DATA_DIR`, or the system's folder for user data: holds input histories. `None` without a home directory.
    pub data: Option<PathBuf>,
    /// `RUST_LOG`: the log filter.
    pub log: Option<String>,
    /// The terminal displays UTF-8, by the first that is set of `LC_ALL`, `LC_CTYPE` and `LANG`. Always true on Windows.
    pub utf8: bool,
}

impl Settings {
    /// Reads the environment. `given` are the flags that were given.
    pub fn read(given: BTreeSet<String>, offline: bool) -> Result<Self, Usage> {
        let data = || Some(etcetera::choose_base_strategy().ok()?.data_dir().join("octet"));
        Ok(Self {
            given,
            offline,
            model: variable("OCTET_MODEL")?,
            data: set("OCTET_DATA_DIR").map(PathBuf::from).or_else(data),
            log: variable("RUST_LOG")?,
            utf8: cfg!(windows) || speaks_utf8(),
        })
    }

    /// The default model: from the environment, or the built-in one, with a note once a day.
    pub fn default_model(&self) -> String {
        self.model.clone().unwrap_or_else(|| {
            if self.is_first_today("built-in-model") {
                note!("{}", embedded::NOTE);
            }
            embedded::NAME.into()
        })
    }

    /// Whether the hint with this name has not been shown for a day. A file in the data folder says when it was; without one, it is shown
    /// each time.
    pub fn is_first_today(&self, hint: &str) -> bool {
        let Some(folder) = &self.data else { return true };
        let shown = folder.join(hint);
        let age = std::fs::metadata(&shown).and_then(|m| m.modified()).ok().and_then(|at| at.elapsed().ok());
        if age.is_some_and(|age| age < DAY) {
            return false;
        }
        let _ = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&shown, ""));
        true
    }

    /// The hub's settings.
    pub fn hub(&self) -> anyhow::Result<HubConfig> {
        let unreadable = RefCell::new(None);
        let config = HubConfig::from_env(|name| {
            variable(name).unwrap_or_else(|e| {
                unreadable.borrow_mut().get_or_insert(e);
                None
            })
        });
        match unreadable.into_inner() {
            Some(e) => Err(e.into()),
            None => {
                let config = config?;
                Ok(HubConfig { offline: config.offline || self.offline, ..config })
            }
        }
    }
}

/// Folders in which Ollama may keep models: `OLLAMA_MODELS`, the user's, and that of its service.
pub fn ollama_folders() -> Vec<PathBuf> {
    let own = set("OLLAMA_MODELS").map(PathBuf::from);
    let home = etcetera::home_dir().ok().map(|home| home.join(".ollama/models"));
    let service =
        Some(PathBuf::from("/usr/share/ollama/.ollama/models")).filter(|_| cfg!(target_os = "linux"));
    match own {
        Some(folder) => vec![folder],
        None => home.into_iter().chain(service).collect(),
    }
}

/// Folders in which LM Studio keeps models, in newer and older versions.
pub fn lm_studio_folders() -> Vec<PathBuf> {
    let Ok(home) = etcetera::home_dir() else { return Vec::new() };
    [".lmstudio/models", ".cache/lm-studio/models"].map(|folder| home.join(folder)).to_vec()
}

/// Whether this terminal is on another machine, or there is no screen: a browser would open where nobody sees it.
pub fn is_remote() -> bool {
    let over_ssh = ["SSH_CONNECTION", "SSH_TTY"].iter().any(|name| set(name).is_some());
    let no_screen = cfg!(all(unix, not(target_os = "macos")))
        && ["DISPLAY", "WAYLAND_DISPLAY"].iter().all(|name| set(name).is_none());
    over_ssh || no_screen
}

/// A variable that is set and not empty.
pub fn set(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|v| !v.is_empty())
}

/// The same as text.
fn variable(name: &str) -> Result<Option<String>, Usage> {
    set(name).map(|v| v.into_string().map_err(|_| not_text(name))).transpose()
}

/// A variable that a router's configuration refers to.
pub fn lookup(name: &str) -> Option<String> {
    variable(name).unwrap_or_else(|e| {
        note!("{e}; it counts as not set");
        None
    })
}

/// The secret in the variable that a flag names.
pub fn secret(name: &str) -> Result<String, Usage> {
    variable(name)?.ok_or_else(|| Usage(format!("the environment variable {name} is not set")))
}

/// A program on the PATH.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = set("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|p| p.is_absolute() && p.is_file())
}

fn speaks_utf8() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|name| set(name)).unwrap_or_default();
    let locale = locale.to_string_lossy().to_ascii_uppercase();
    locale.ends_with("UTF-8") || locale.ends_with("UTF8")
}

/// A variable that is not valid Unicode.
pub fn not_text(name: &str) -> Usage {
    Usage(format!("the environment variable {name} is not UTF-8"))
}

/// The variable of a flag.
pub fn mirror(long: &str) -> String {
    format!("OCTET_{}", long.to_ascii_uppercase().replace('-', "_"))
}

/// A variable of a flag, Octet's or another server's, that is set but empty. Most flags treat that as unset.
pub fn empty_mirror(long: &str) -> Option<String> {
    let others: &[&str] = match long {
        "api-key" => &API_KEYS,
        "api-key-file" => &["LLAMA_ARG_API_KEY_FILE"],
        _ => &[],
    };
    let mut all = std::iter::once(mirror(long)).chain(others.iter().map(ToString::to_string));
    all.find(|name| std::env::var_os(name).is_some_and(|v| v.is_empty()))
}

/// Variables that may be another server's, if they are not empty; sorted by name.
pub fn others() -> Vec<(String, OsString)> {
    let text = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value));
    let mut all: Vec<_> = std::env::vars_os().filter_map(text).filter(|(_, v)| !v.is_empty()).collect();
    all.retain(|(name, _)| ["LLAMA_", "VLLM_", "OLLAMA_"].iter().any(|p| name.starts_with(p)));
    all.sort_unstable();
    all
}
