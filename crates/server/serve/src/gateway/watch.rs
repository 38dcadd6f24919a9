//! Detects changes of the configuration's files.
//!
//! The files are polled instead of watched by the system: that works on every file system, and if an editor replaces the file. A file that
//! is being written is read when it has been the same twice.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::Gateway;

/// A state of the files: modification time and size of each.
pub type FileStates = Vec<Option<(SystemTime, u64)>>;

/// The state of each file.
pub fn file_states(files: &[PathBuf]) -> FileStates {
    let state = |file: &PathBuf| {
        let meta = std::fs::metadata(file).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    };
    files.iter().map(state).collect()
}

/// Reloads the configuration whenever its files have changed. Never returns while the runtime runs.
pub async fn files(gateway: Arc<Gateway>, every: Duration) {
    let mut current = gateway.current();
    let (mut loaded, mut before) = (current.file_states.clone(), current.file_states.clone());
    loop {
        tokio::time::sleep(every).await;
        let Some(now) = poll(&current.files).await else { return };
        let settled = now == std::mem::replace(&mut before, now.clone());
        if !settled || now == loaded {
            continue;
        }
        loaded = now;
        reload(&gateway).await;
        let new = gateway.current();
        if new.files != current.files {
            (loaded, before) = (new.file_states.clone(), new.file_states.clone());
        }
        current = new;
    }
}

/// `None` if the runtime shuts down.
async fn poll(files: &[PathBuf]) -> Option<FileStates> {
    let files = files.to_vec();
    crate::blocking::spawn_blocking(move || file_states(&files)).await.ok()
}

/// Reloads the configuration, and logs the result.
pub async fn reload(gateway: &Arc<Gateway>) {
    let this = Arc::clone(gateway);
    match crate::blocking::spawn_blocking(move || this.reload()).await {
        Ok(Ok(())) => tracing::info!("the configuration was reloaded"),
        Ok(Err(why)) => {
            tracing::error!("the configuration was not reloaded; the old one stays in use: {why}")
        }
        Err(e) => tracing::error!("the configuration was not reloaded; the old one stays in use: {e}"),
    }
}
