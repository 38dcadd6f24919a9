//! Servers that are started on demand, where the system has what that takes. Used by `target` and `gateway`.

use octet_config::Config;
use octet_router::{Failure, FailureKind};

/// All of them.
#[cfg(unix)]
#[derive(Debug, Clone)]
pub struct Servers(octet_process::Processes);

/// A place at one.
#[cfg(unix)]
pub type Lease = octet_process::Lease;

#[cfg(unix)]
impl Servers {
    /// Those of a configuration; none is started. Belongs into a runtime of tokio's.
    pub fn new(config: &Config) -> Result<Self, String> {
        let all = octet_process::Processes::new(config.processes.clone(), &config.process_settings);
        all.map(Self).map_err(|e| e.to_string())
    }

    /// Takes another configuration; where it cannot, nothing changes.
    pub fn reload(&self, config: &Config) -> Result<(), String> {
        self.0.reload(config.processes.clone(), &config.process_settings).map_err(|e| e.to_string())
    }

    /// Starts those that are to be there from the beginning.
    pub fn preload(&self, config: &Config) -> Result<(), String> {
        self.0.preload(&config.process_settings.preload).map_err(|e| e.to_string())
    }

    /// Waits until a server takes a request.
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

    /// Whether a server takes requests.
    pub fn is_ready(&self, id: &str) -> bool {
        self.0.status().iter().any(|s| s.id == id && s.phase == octet_process::Phase::Ready)
    }

    /// Ends all, and waits until they have.
    pub async fn shutdown(&self) {
        self.0.shutdown().await;
    }
}

/// None: they need a Unix.
#[cfg(not(unix))]
#[derive(Debug, Clone)]
pub struct Servers;

/// A place at none.
#[cfg(not(unix))]
#[derive(Debug)]
pub enum Lease {}

#[cfg(not(unix))]
impl Lease {
    /// Where it listens.
    pub fn base_url(&self) -> &str {
        match *self {}
    }
}

#[cfg(not(unix))]
const NEEDS_UNIX: &str =
    "servers are started on Linux and macOS only; start it yourself, and name it by its api_base";

#[cfg(not(unix))]
impl Servers {
    /// Refuses a configuration that has any.
    pub fn new(config: &Config) -> Result<Self, String> {
        if config.processes.is_empty() { Ok(Self) } else { Err(NEEDS_UNIX.into()) }
    }

    /// The same.
    pub fn reload(&self, config: &Config) -> Result<(), String> {
        Self::new(config).map(drop)
    }

    /// There is none.
    pub fn preload(&self, _: &Config) -> Result<(), String> {
        Ok(())
    }

    /// There is none.
    pub fn is_ready(&self, _: &str) -> bool {
        false
    }

    /// There is none.
    pub async fn lease(&self, _: &str) -> Result<Lease, Failure> {
        Err(Failure::new(FailureKind::NotFound, NEEDS_UNIX))
    }

    /// There is none.
    pub async fn shutdown(&self) {}
}
