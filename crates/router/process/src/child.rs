//! A server as a process group that ends as a whole.
//!
//! The group's leader is not the server but a guard, a few lines of shell that wait for the end of a pipe that Octet holds. When Octet
//! ends in any way, including SIGKILL, the kernel closes the pipe, and the guard terminates the group: first with SIGTERM, then with
//! SIGKILL. (PR_SET_PDEATHSIG only exists on Linux, signals only the server and not its children, and fires when the thread ends that
//! started it.) While the guard lives, no other group can get its number. Only a process that leaves the group, like a daemon,
//! escapes.

use std::io::{self, PipeWriter};
use std::os::unix::process::CommandExt;
use std::process::{Child as Process, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::sync::watch;

use crate::log::Log;

/// $1: seconds between SIGTERM and SIGKILL.
const GUARD: &str = "trap '' TERM INT HUP; read -r _; kill -TERM 0; sleep \"$1\"; kill -KILL 0";

/// Time limit for reading a server's last lines after its end. They may never end if a process that has left the group holds the pipe.
const LAST_WORDS_TIME_MAX: Duration = Duration::from_secs(2);

/// A server to start.
pub struct Start<'a> {
    pub cmd: &'a [String],
    pub env: &'a [(String, String)],
    /// Time between SIGTERM and SIGKILL if Octet ends first.
    pub grace: Duration,
    pub log: Arc<Log>,
}

/// A running server. Dropping it terminates it.
pub struct Child {
    pid: u32,
    group: Arc<Group>,
    gone: watch::Receiver<bool>,
    exited: watch::Receiver<Option<String>>,
}

/// The group's number while it is valid, and the pipe whose end the guard waits for.
struct Group(Mutex<Option<(Pid, ChildStdin)>>);

impl Group {
    /// Sends a signal to the whole group, if it still exists.
    fn signal(&self, signal: Signal) {
        let group = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((group, _)) = &*group
            && let Err(e) = killpg(*group, signal)
            && e != nix::errno::Errno::ESRCH
        {
            tracing::warn!("{signal} cannot be sent to group {group}: {e}");
        }
    }

    /// Kills what is left of the group, and forgets its number.
    fn close(&self) {
        self.signal(Signal::SIGKILL);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Lets the guard terminate the group.
    fn release(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn guard(grace: Duration) -> io::Result<(Process, ChildStdin)> {
    let mut guard = Command::new("/bin/sh")
        .args(["-c", GUARD, "octet-guard", &grace.as_secs().max(1).to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|e| {
            io::Error::new(e.kind(), format!("/bin/sh, which ends it should Octet be killed: {e}"))
        })?;
    match guard.stdin.take() {
        Some(stdin) => Ok((guard, stdin)),
        None => {
            let _ = guard.kill(); // it has no pipe to wait for, and ends in any case
            let _ = guard.wait();
            Err(io::Error::other("the guard has no pipe"))
        }
    }
}

impl Child {
    /// Starts a server.
    pub fn start(start: &Start<'_>) -> io::Result<Self> {
        let Some((program, arguments)) = start.cmd.split_first() else {
            return Err(io::Error::other("its cmd is empty"));
        };
        let (output, input) = io::pipe()?;
        let (mut guard, pipe) = guard(start.grace)?;
        let pid = Pid::from_raw(guard.id().cast_signed());
        let group = Arc::new(Group(Mutex::new(Some((pid, pipe)))));
        let server = command(program, arguments, start.env, input)
            .and_then(|mut c| c.process_group(pid.as_raw()).spawn());
        let mut server = match server {
            Ok(server) => server,
            Err(e) => {
                group.close();
                let _ = guard.wait(); // killed
                return Err(match e.kind() {
                    io::ErrorKind::NotFound => {
                        io::Error::new(e.kind(), format!("there is no program '{program}'"))
                    }
                    kind => io::Error::new(kind, format!("'{program}': {e}")),
                });
            }
        };
        let (tell, gone) = watch::channel(false);
        let (say, exited) = watch::channel(None);
        let child = Self { pid: server.id(), group: group.clone(), gone, exited };
        let log = start.log.clone();
        let (reads, has_read) = mpsc::channel::<()>();
        // A thread, not a task: no SIGCHLD handler is needed, and a server that is not waited for would become a zombie.
        std::thread::Builder::new().name("octet-log".into()).spawn(move || {
            log.fill(output);
            drop(reads);
        })?;
        std::thread::Builder::new().name("octet-wait".into()).spawn(move || {
            let status = server.wait();
            group.close();
            let _ = guard.wait(); // killed with the group
            tell.send_replace(true);
            // The log shows the cause to those who learn of the end, so it is read first. Receiving fails when all is read.
            let _ = has_read.recv_timeout(LAST_WORDS_TIME_MAX);
            say.send_replace(Some(match status {
                Ok(status) => ended(status),
                Err(e) => format!("it cannot be waited for: {e}"),
            }));
        })?;
        Ok(child)
    }

    /// The server's process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until it has ended and its group is killed.
    pub async fn gone(&self) {
        // An error means that the reporting thread has ended, and with it the server.
        let _ = self.gone.clone().wait_for(|gone| *gone).await;
    }

    /// The same, and until its output is in the log, for at most two seconds; returns how it ended.
    pub async fn exited(&self) -> String {
        let mut exited = self.exited.clone();
        match exited.wait_for(Option::is_some).await {
            Ok(how) => how.clone().unwrap_or_default(),
            Err(_) => "its end was not seen".into(),
        }
    }

    /// Terminates it (SIGTERM).
    pub fn terminate(&self) {
        self.group.signal(Signal::SIGTERM);
    }

    /// Kills it (SIGKILL).
    pub fn kill(&self) {
        self.group.signal(Signal::SIGKILL);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.group.release();
    }
}

fn command(
    program: &str,
    arguments: &[String],
    env: &[(String, String)],
    output: PipeWriter,
) -> io::Result<Command> {
    let mut command = Command::new(program);
    let environment = env.iter().map(|(name, value)| (name, value));
    command.args(arguments).envs(environment).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    Ok(command)
}

/// `it ended with exit status 1`, `it was killed by signal 11 (SIGSEGV)`.
fn ended(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with exit status {code}"),
        (None, Some(number)) => {
            let name = Signal::try_from(number).map_or(String::new(), |s| format!(" ({s})"));
            format!("it was killed by signal {number}{name}")
        }
        (None, None) => "it ended".into(),
    }
}

/// Runs a command to its end, for at most `limit`; its output goes to the log. Blocks.
pub fn run(cmd: &[String], env: &[(String, String)], log: &Arc<Log>, limit: Duration) -> io::Result<String> {
    let Some((program, arguments)) = cmd.split_first() else { return Err(io::Error::other("it is empty")) };
    let (output, input) = io::pipe()?;
    let mut child = command(program, arguments, env, input)?.process_group(0).spawn()?;
    let lines = log.clone();
    std::thread::Builder::new().name("octet-log".into()).spawn(move || lines.fill(output))?;
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(ended(status));
        }
        if Instant::now() >= deadline {
            // Not waited for yet, so the number is still valid.
            let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
            child.wait()?;
            return Err(io::Error::other(format!("it took more than {} s", limit.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
