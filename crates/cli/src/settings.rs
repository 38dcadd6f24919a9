//! The environment: what comes from it beside flags, and the names of the variables that mirror flags. No other file reads it; the hub
//! gets it from here.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use etcetera::BaseStrategy;
use octet_hub::HubConfig;

use crate::Usage;
use crate::inside;
use crate::stderr::note;

/// What comes from the environment and is no flag.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Flags that stand on the command line or come from the environment: they beat a configuration file.
    pub given: BTreeSet<String>,
    /// `OCTET_MODEL`: the model where none is named.
    pub model: Option<String>,
    /// `OCTET_DATA_DIR`, or the system's folder for a user's data: what was typed in chats is kept there. `None` where
    /// there is no home directory.
    pub data: Option<PathBuf>,
    /// `RUST_LOG`: what the server writes to its log.
    pub log: Option<String>,
    /// The terminal shows UTF-8, as `LC_ALL`, `LC_CTYPE` or `LANG` says; the first that is set counts. Windows has none of them.
    pub utf8: bool,
}

impl Settings {
    /// Reads the environment. `given` are the flags that somebody gave.
    pub fn read(given: BTreeSet<String>) -> Result<Self, Usage> {
        let data = || Some(etcetera::choose_base_strategy().ok()?.data_dir().join("octet"));
        Ok(Self {
            given,
            model: variable("OCTET_MODEL")?,
            data: set("OCTET_DATA_DIR").map(PathBuf::from).or_else(data),
            log: variable("RUST_LOG")?,
            utf8: cfg!(windows) || speaks_utf8(),
        })
    }

    /// The model where none is named: that of the environment, or else the one inside, which is said.
    pub fn default_model(&self) -> String {
        self.model.clone().unwrap_or_else(|| {
            note!("{}", inside::NOTE);
            inside::NAME.into()
        })
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
            None => Ok(config?),
        }
    }
}

/// A variable that is set, and not to nothing.
pub fn set(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|v| !v.is_empty())
}

/// The same as text.
fn variable(name: &str) -> Result<Option<String>, Usage> {
    set(name).map(|v| v.into_string().map_err(|_| not_text(name))).transpose()
}

/// A variable that a router's configuration names.
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

fn speaks_utf8() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|name| set(name)).unwrap_or_default();
    let locale = locale.to_string_lossy().to_ascii_uppercase();
    locale.ends_with("UTF-8") || locale.ends_with("UTF8")
}

/// A variable that holds no text.
pub fn not_text(name: &str) -> Usage {
    Usage(format!("the environment variable {name} is not UTF-8"))
}

/// The variable that mirrors a flag.
pub fn mirror(long: &str) -> String {
    format!("OCTET_{}", long.to_ascii_uppercase().replace('-', "_"))
}

/// The mirror of a flag, where it is set to nothing. To most flags that is as good as unset.
pub fn empty_mirror(long: &str) -> Option<String> {
    Some(mirror(long)).filter(|name| std::env::var_os(name).is_some_and(|v| v.is_empty()))
}
