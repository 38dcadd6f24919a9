//! Sees that the configuration's file has changed. Run by `gateway` beside the requests.
//!
//! The files are looked at again and again, and not watched by the system: that works on every file system, and where an editor puts
//! a new file in the old one's place. What is being written is left alone until it has been the same twice.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::Gateway;

/// What tells one state of a file from another.
pub type Seen = Vec<Option<(SystemTime, u64)>>;

/// The state of each file.
pub fn look(files: &[PathBuf]) -> Seen {
    let seen = |file: &PathBuf| {
        let meta = std::fs::metadata(file).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    };
    files.iter().map(seen).collect()
}

/// Takes the configuration again whenever its files have changed, for ever.
pub async fn files(gateway: Arc<Gateway>, every: Duration) {
    let mut current = gateway.current();
    let (mut taken, mut before) = (current.seen.clone(), current.seen.clone());
    loop {
        tokio::time::sleep(every).await;
        let Some(now) = looked(&current.files).await else { return };
        let settled = now == std::mem::replace(&mut before, now.clone());
        if !settled || now == taken {
            continue;
        }
        taken = now;
        again(&gateway).await;
        let new = gateway.current();
        if new.files != current.files {
            (taken, before) = (new.seen.clone(), new.seen.clone());
        }
        current = new;
    }
}

/// `None` where the runtime ends.
async fn looked(files: &[PathBuf]) -> Option<Seen> {
    let files = files.to_vec();
    tokio::task::spawn_blocking(move || look(&files)).await.ok()
}

/// Takes the configuration again, and says how that went.
pub async fn again(gateway: &Arc<Gateway>) {
    let this = Arc::clone(gateway);
    match tokio::task::spawn_blocking(move || this.reload()).await {
        Ok(Ok(())) => tracing::info!("the configuration was read again and is in force"),
        Ok(Err(why)) => tracing::error!("the configuration stays as it was: {why}"),
        Err(e) => tracing::error!("the configuration stays as it was: {e}"),
    }
}
