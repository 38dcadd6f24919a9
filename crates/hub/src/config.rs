//! Settings of the hub, read once by the caller; nothing else in this crate reads the environment.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Error;
use crate::pip::PipConfig;
use crate::values::{expand, is_true};

/// Hugging Face's address, unless `HF_ENDPOINT` is set.
pub const HUGGING_FACE: &str = "https://huggingface.co";

/// A secret, which is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret; white space around it is removed. `None` if nothing is left.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(text.to_string()))
    }

    /// The secret itself, for requests.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

/// Proxies by URL scheme, from `HTTPS_PROXY` and similar variables.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    /// For `http:` addresses.
    pub http: Option<String>,
    /// For `https:` addresses.
    pub https: Option<String>,
    /// Hosts reached directly: comma-separated names (including subdomains), `*` for all.
    pub none: String,
}

impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A proxy's URL may contain a password.
        write!(f, "Proxies(http: {}, https: {})", self.http.is_some(), self.https.is_some())
    }
}

impl Proxies {
    /// The proxy for `url`, if one is set and the host is not excepted.
    pub(crate) fn pick(&self, url: &url::Url) -> Option<&str> {
        let host = url.host_str().unwrap_or_default().to_ascii_lowercase();
        let direct = self.none.split(',').map(str::trim).filter(|s| !s.is_empty()).any(|name| {
            let name = name.to_ascii_lowercase();
            // `host:port` excepts that port only.
            let (name, port) = match name.rsplit_once(':') {
                Some((n, p)) if p.parse::<u16>().is_ok() && !n.contains(':') => {
                    (n.to_string(), p.parse::<u16>().ok())
                }
                _ => (name, None),
            };
            let name = name.trim_start_matches("*.").trim_start_matches('.');
            (name == "*" || host == name || host.ends_with(&format!(".{name}")))
                && port.is_none_or(|p| url.port_or_known_default() == Some(p))
        });
        let proxy = if url.scheme() == "https" { &self.https } else { &self.http };
        proxy.as_deref().filter(|_| !direct)
    }
}

/// Timeouts and retries.
#[derive(Debug, Clone)]
pub struct Patience {
    /// To connect, including name resolution and TLS.
    pub connect: Duration,
    /// Without receiving a byte.
    pub stall: Duration,
    /// Before the first retry; doubled for each further one, to at most 16 times this.
    pub retry_delay: Duration,
    /// Maximum number of consecutive retries without progress.
    pub retries: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            retry_delay: Duration::from_millis(500),
            retries: 5,
        }
    }
}

/// All settings. Made by [`HubConfig::from_env`], or field by field.
#[derive(Debug, Clone)]
pub struct HubConfig {
    /// The URL of Hugging Face or of a mirror, without a trailing slash.
    pub endpoint: url::Url,
    /// The cache folder, in Hugging Face's layout: `~/.cache/huggingface/hub`.
    pub cache: PathBuf,
    /// Sent to [`HubConfig::endpoint`] only.
    pub token: Option<Secret>,
    /// Use no network.
    pub offline: bool,
    /// The Python index, from pip's settings.
    pub pip: PipConfig,
    /// Proxies.
    pub proxies: Proxies,
    /// Timeouts and retries.
    pub patience: Patience,
}

impl HubConfig {
    /// Default settings with a given cache folder.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Self {
            endpoint: url::Url::parse(HUGGING_FACE).expect("a constant that parses"),
            cache: cache.into(),
            token: None,
            offline: false,
            pip: PipConfig::default(),
            proxies: Proxies::default(),
            patience: Patience::default(),
        }
    }

    /// Settings from the environment. `lookup` returns a variable's value; the token's file and pip's files are read here.
    ///
    /// Understood: `HF_ENDPOINT`, `HF_HUB_CACHE` (and the older `HUGGINGFACE_HUB_CACHE`), `HF_HOME`, `HF_TOKEN` (and
    /// `HUGGING_FACE_HUB_TOKEN`), `HF_TOKEN_PATH`, `HF_HUB_OFFLINE`, `HF_HUB_DOWNLOAD_TIMEOUT`, `XDG_CACHE_HOME`,
    /// `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY` (upper or lower case), and all of [`PipConfig`].
    pub fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let get = |name: &str| lookup(name).filter(|v| !v.trim().is_empty());
        let either = |name: &str| get(&name.to_ascii_lowercase()).or_else(|| get(name));
        let home = get(if cfg!(windows) { "USERPROFILE" } else { "HOME" }).map(PathBuf::from);
        let home = home.as_deref();

        let hf_home = get("HF_HOME").map(|p| expand(&p, home)).or_else(|| {
            let cache = get("XDG_CACHE_HOME").map(|p| expand(&p, home)).or(home.map(|h| h.join(".cache")));
            cache.map(|c| c.join("huggingface"))
        });
        let cache = get("HF_HUB_CACHE")
            .or_else(|| get("HUGGINGFACE_HUB_CACHE"))
            .map(|p| expand(&p, home))
            .or_else(|| hf_home.as_ref().map(|h| h.join("hub")))
            .ok_or_else(|| Error::Setting {
                setting: "HF_HUB_CACHE".into(),
                what: "there is no home folder for models; set HF_HUB_CACHE to a folder".into(),
            })?;
        let token_file = get("HF_TOKEN_PATH")
            .map(|p| expand(&p, home))
            .or_else(|| hf_home.as_ref().map(|h| h.join("token")));
        let token = match get("HF_TOKEN").or_else(|| get("HUGGING_FACE_HUB_TOKEN")) {
            Some(token) => Secret::new(&token),
            None => token_file.map(|path| read_token(&path)).transpose()?.flatten(),
        };

        let endpoint = get("HF_ENDPOINT").unwrap_or_else(|| HUGGING_FACE.into());
        let mut patience = Patience::default();
        if let Some(seconds) = get("HF_HUB_DOWNLOAD_TIMEOUT") {
            let seconds = seconds.trim().parse::<u64>().ok().filter(|s| *s > 0).ok_or_else(|| {
                setting("HF_HUB_DOWNLOAD_TIMEOUT", format!("'{seconds}' is not a number of seconds above 0"))
            })?;
            patience.stall = Duration::from_secs(seconds);
        }
        let all = either("ALL_PROXY");
        Ok(Self {
            endpoint: parse_endpoint(&endpoint)?,
            cache,
            token,
            offline: get("HF_HUB_OFFLINE").map(|v| flag("HF_HUB_OFFLINE", &v)).transpose()?.unwrap_or(false),
            pip: PipConfig::from_env(&lookup, home),
            proxies: Proxies {
                http: either("HTTP_PROXY").or_else(|| all.clone()),
                https: either("HTTPS_PROXY").or(all),
                none: either("NO_PROXY").unwrap_or_default(),
            },
            patience,
        })
    }
}

fn setting(name: &str, what: String) -> Error {
    Error::Setting { setting: name.into(), what }
}

fn parse_endpoint(text: &str) -> Result<url::Url, Error> {
    let url = url::Url::parse(text.trim().trim_end_matches('/')).map_err(|e| {
        setting("HF_ENDPOINT", format!("is not a valid URL: {e}; expected something like {HUGGING_FACE}"))
    })?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(setting(
            "HF_ENDPOINT",
            format!("must begin with https:// or http://, like {HUGGING_FACE}"),
        ));
    }
    Ok(url)
}

/// A missing file means no token; an unreadable one is an error, as a gated model would then fail without a visible reason.
fn read_token(path: &Path) -> Result<Option<Secret>, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Secret::new(&text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io(path, e)),
    }
}

/// An invalid flag may have been meant to disable the network, so it is an error.
fn flag(name: &str, text: &str) -> Result<bool, Error> {
    let no = matches!(text.trim().to_ascii_lowercase().as_str(), "0" | "off" | "no" | "false" | "n" | "f");
    if !no && !is_true(text) {
        return Err(setting(name, format!("'{text}' is neither yes nor no; set it to 1 or 0")));
    }
    Ok(!no)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(vars: &[(&str, &str)]) -> Result<HubConfig, Error> {
        let vars: Vec<(String, String)> = vars.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        HubConfig::from_env(|name| vars.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone()))
    }

    #[test]
    #[cfg(unix)]
    fn the_cache_folder_is_where_other_tools_have_it() {
        for (vars, expect) in [
            (&[("HOME", "/h")][..], "/h/.cache/huggingface/hub"),
            (&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("HOME", "/h"), ("HF_HOME", "~/models")], "/h/models/hub"),
            (&[("HOME", "/h"), ("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/c")], "/c"),
            (&[("HOME", "/h"), ("HF_HUB_CACHE", "")], "/h/.cache/huggingface/hub"),
            (&[("HUGGINGFACE_HUB_CACHE", "/old")], "/old"),
        ] {
            assert_eq!(from(vars).unwrap().cache, PathBuf::from(expect), "{vars:?}");
        }
        assert!(from(&[]).unwrap_err().to_string().contains("HF_HUB_CACHE"));
    }

    #[test]
    fn the_token_comes_from_the_variable_or_the_file_and_is_never_printed() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_str().unwrap();
        assert_eq!(from(&[("HF_HOME", home)]).unwrap().token, None);
        std::fs::write(dir.path().join("token"), "hf_file\n").unwrap();
        let config = from(&[("HF_HOME", home)]).unwrap();
        assert_eq!(config.token.as_ref().unwrap().expose(), "hf_file");
        assert!(!format!("{config:?}").contains("hf_file"));
        let config = from(&[("HF_HOME", home), ("HF_TOKEN", " hf_var ")]).unwrap();
        assert_eq!(config.token.unwrap().expose(), "hf_var");
    }

    #[test]
    fn endpoint_offline_and_timeouts() {
        let base = ("HF_HUB_CACHE", "/c");
        assert_eq!(from(&[base]).unwrap().endpoint.as_str(), "https://huggingface.co/");
        assert_eq!(
            from(&[base, ("HF_ENDPOINT", "https://m.example/hf/")]).unwrap().endpoint.as_str(),
            "https://m.example/hf"
        );
        assert!(from(&[base, ("HF_ENDPOINT", "m.example")]).is_err());
        for (value, expect) in
            [("1", true), ("ON", true), ("yes", true), ("0", false), ("", false), ("no", false)]
        {
            assert_eq!(from(&[base, ("HF_HUB_OFFLINE", value)]).unwrap().offline, expect, "{value}");
        }
        let e = from(&[base, ("HF_HUB_OFFLINE", "maybe")]).unwrap_err().to_string();
        assert!(e.contains("HF_HUB_OFFLINE") && e.contains("maybe"), "{e}");
        assert_eq!(
            from(&[base, ("HF_HUB_DOWNLOAD_TIMEOUT", "7")]).unwrap().patience.stall,
            Duration::from_secs(7)
        );
        assert!(from(&[base, ("HF_HUB_DOWNLOAD_TIMEOUT", "soon")]).is_err());
    }

    #[test]
    fn proxies_by_scheme_and_exception() {
        let config = from(&[
            ("HF_HUB_CACHE", "/c"),
            ("https_proxy", "http://me:secret@p:1"),
            ("ALL_PROXY", "http://all:2"),
            ("NO_PROXY", "localhost, .corp.example,10.0.0.1:8080"),
        ])
        .unwrap();
        let pick = |u: &str| config.proxies.pick(&url::Url::parse(u).unwrap()).map(str::to_string);
        assert_eq!(pick("https://huggingface.co/x").as_deref(), Some("http://me:secret@p:1"));
        assert_eq!(pick("http://huggingface.co/x").as_deref(), Some("http://all:2"));
        for direct in ["http://localhost/", "https://pypi.corp.example/simple", "http://10.0.0.1:8080/"] {
            assert_eq!(pick(direct), None, "{direct}");
        }
        assert!(pick("http://10.0.0.1:8081/").is_some());
        assert!(pick("http://notcorp.example/").is_some());
        assert!(!format!("{config:?}").contains("secret"));
    }
}
