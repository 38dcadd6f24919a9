//! What systemd gives a service: sockets that it listens at, and a socket for the service's state. Without systemd, nothing.

use octet_serve::Reserved;

#[cfg(target_os = "linux")]
use crate::stderr::note;

/// The socket that systemd listens at for this service, if it was started by one (`octet.socket`). Must be called before other threads
/// exist: it changes the environment.
#[cfg(unix)]
pub fn socket() -> anyhow::Result<Option<Reserved>> {
    let listener = listenfd::ListenFd::from_env().take_tcp_listener(0)?;
    listener.map(|listener| Reserved::inherited(listener).map_err(anyhow::Error::from_boxed)).transpose()
}

#[cfg(not(unix))]
pub fn socket() -> anyhow::Result<Option<Reserved>> {
    Ok(None)
}

/// Tells systemd that requests are accepted (`Type=notify`).
pub fn ready() {
    #[cfg(target_os = "linux")]
    if let Err(e) = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]) {
        note!("systemd cannot be notified: {e}");
    }
}

/// Tells systemd that the server finishes its requests and ends.
pub fn stopping() {
    #[cfg(target_os = "linux")]
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
}
