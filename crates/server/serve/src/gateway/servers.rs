//! Servers that are started on demand, on systems that support it.

use octet_config::Config;
use octet_router::{Failure, FailureKind};

/// The servers.
#[cfg(unix)]
#[derive(Debug, Clone)]
pub struct Servers(octet_process::Processes);

/// Keeps a server running while a request uses it.
#[cfg(unix)]
pub type Lease = octet_process::Lease;

#[cfg(unix)]
impl Servers {
    /// The servers of a configuration; starts none. Must be called inside a tokio runtime.
    pub fn new(config: &Config) -> Result<Self, String> {
        let all = octet_process::Processes::new(config.processes.clone(), &config.process_settings);
        all.map(Self).map_err(|e| e.to_string())
    }

    /// Applies another configuration. If that fails, nothing changes.
    pub fn reload(&self, config: &Config) -> Result<(), String> {
        self.0.reload(config.processes.clone(), &config.process_settings).map_err(|e| e.to_string())
    }

    /// Starts the servers in `preload`.
    pub fn preload(&self, config: &Config) -> Result<(), String> {
        self.0.preload(&config.process_settings.preload).map_err(|e| e.to_string())
    }

    /// Waits until a server can take a request.
    pub async fn lease(&self, id: &str) -> Result<Lease, Failure> {
        use octet_process::Error;
        self.0.lease(id).await.map_err(|e| {
            let (kind, retry_after) = match &e {
                Error::Unknown(_) => (FailureKind::NotFound, None),
                Error::QueueFull { .. } => (FailureKind::RateLimited, None),
                Error::Resting { retry_after, .. } => (FailureKind::Server, Some(*retry_after)),
                _ => (FailureKind::Server, None),
            };
            Failure { retry_after, ..Failure::new(kind, e.to_string()) }
        })
    }

    /// Whether a server is running.
    pub fn is_ready(&self, id: &str) -> bool {
        self.0.status().iter().any(|s| s.id == id && s.phase == octet_process::Phase::Ready)
    }

    /// Stops all, and waits for their end.
    pub async fn shutdown(&self) {
        self.0.shutdown().await;
    }
}

/// Empty: it needs Unix.
#[cfg(not(unix))]
#[derive(Debug, Clone)]
pub struct Servers;

/// Cannot exist.
#[cfg(not(unix))]
#[derive(Debug)]
pub enum Lease {}

#[cfg(not(unix))]
impl Lease {
    /// Its base URL.
    pub fn base_url(&self) -> &str {
        match *self {}
    }
}

#[cfg(not(unix))]
const NEEDS_UNIX: &str =
    "servers can be started on Linux and macOS only; start it yourself, and set its api_base";

#[cfg(not(unix))]
impl Servers {
    /// Fails if the configuration has any.
    pub fn new(config: &Config) -> Result<Self, String> {
        if config.processes.is_empty() { Ok(Self) } else { Err(NEEDS_UNIX.into()) }
    }

    /// Fails if the configuration has any.
    pub fn reload(&self, config: &Config) -> Result<(), String> {
        Self::new(config).map(drop)
    }

    /// Does nothing: there are none.
    pub fn preload(&self, _: &Config) -> Result<(), String> {
        Ok(())
    }

    /// Does nothing: there are none.
    pub fn is_ready(&self, _: &str) -> bool {
        false
    }

    /// Does nothing: there are none.
    pub async fn lease(&self, _: &str) -> Result<Lease, Failure> {
        Err(Failure::new(FailureKind::NotFound, NEEDS_UNIX))
    }

    /// Does nothing: there are none.
    pub async fn shutdown(&self) {}
}
