//! Runs one server from start to end, in a task spawned by `processes`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Uri;
use octet_config::Process;
use tokio::sync::Notify;

use crate::check;
use crate::child::{self, Child, Start};
use crate::log::Log;

/// The inputs of a start.
pub struct Job {
    pub process: Arc<Process>,
    /// `cmd`, with its port.
    pub cmd: Vec<String>,
    /// `cmdStop`, with its port.
    pub cmd_stop: Option<Vec<String>>,
    /// The address at which it will listen.
    pub base_url: Arc<str>,
    /// Time limit to become ready.
    pub ready_within: Duration,
    pub log: Arc<Log>,
    /// Signalled when it should end.
    pub stop: Arc<Notify>,
}

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// It failed before it was ready.
    Failed(String),
    /// It ended by itself after that.
    Crashed(String),
    /// It ended as requested.
    Stopped,
}

/// A report to the caller.
pub enum Event {
    Started(u32),
    Ready,
}

/// Runs a server until it ends.
pub async fn run(job: &Job, tell: impl Fn(Event)) -> End {
    let uri = match &job.process.check_endpoint {
        None => None,
        Some(path) => match check::address(&job.base_url, path) {
            Ok(uri) => Some(uri),
            Err(why) => return End::Failed(why),
        },
    };
    let child = match start(job).await {
        Ok(child) => child,
        Err(e) => return End::Failed(e.to_string()),
    };
    tell(Event::Started(child.pid()));
    if let Some(uri) = uri {
        let mut last = String::from("it was not checked yet");
        let limit = job.ready_within;
        let is_ready = tokio::select! {
            biased;
            how = child.exited() => return End::Failed(how),
            () = job.stop.notified() => None,
            ready = tokio::time::timeout(limit, until_ready(&uri, &mut last)) => Some(ready.is_ok()),
        };
        match is_ready {
            None => {
                stop(&child, job).await;
                return End::Stopped;
            }
            Some(false) => {
                stop(&child, job).await;
                return End::Failed(format!("{uri} was not ready in {} s: {last}", limit.as_secs()));
            }
            Some(true) => {}
        }
    }
    tell(Event::Ready);
    tokio::select! {
        biased;
        how = child.exited() => End::Crashed(how),
        () = job.stop.notified() => {
            stop(&child, job).await;
            End::Stopped
        }
    }
}

fn environment(process: &Process) -> Vec<(String, String)> {
    process.env.iter().map(|(name, value)| (name.clone(), value.expose().to_string())).collect()
}

async fn start(job: &Job) -> std::io::Result<Child> {
    let (cmd, env, log) = (job.cmd.clone(), environment(&job.process), job.log.clone());
    let grace = job.process.unload_timeout;
    let started =
        tokio::task::spawn_blocking(move || Child::start(&Start { cmd: &cmd, env: &env, grace, log }));
    started.await.map_err(std::io::Error::other)?
}

/// Checks until the server is ready; `last` has the last other result.
async fn until_ready(uri: &Uri, last: &mut String) {
    let mut pause = Duration::from_millis(20);
    while let Err(why) = check::ask(uri).await {
        *last = why;
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// Ends the server: with `cmdStop` or SIGTERM, and with SIGKILL after a timeout.
async fn stop(child: &Child, job: &Job) {
    let limit = job.process.unload_timeout;
    let begun = Instant::now();
    match &job.cmd_stop {
        None => child.terminate(),
        Some(cmd) => {
            let pid = child.pid().to_string();
            let cmd: Vec<String> = cmd.iter().map(|word| word.replace("${PID}", &pid)).collect();
            let (env, log) = (environment(&job.process), job.log.clone());
            let ran = tokio::task::spawn_blocking(move || child::run(&cmd, &env, &log, limit));
            let failed = match ran.await {
                Ok(Ok(_)) => None,
                Ok(Err(e)) => Some(e.to_string()),
                Err(e) => Some(e.to_string()),
            };
            if let Some(why) = failed {
                tracing::warn!("process '{}': cmdStop failed, so it gets SIGTERM: {why}", job.process.id);
                child.terminate();
            }
        }
    }
    let left = limit.saturating_sub(begun.elapsed());
    if tokio::time::timeout(left, child.gone()).await.is_err() {
        tracing::warn!("process '{}' did not end in {} s, and is killed", job.process.id, limit.as_secs());
        child.kill();
        child.gone().await;
    }
}
