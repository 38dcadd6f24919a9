//! A PostgreSQL server for a test: Debian's package `postgresql`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to start on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server with an empty database, which is deleted at the end.
pub struct Postgres {
    programs: PathBuf,
    folder: tempfile::TempDir,
    port: u16,
    child: Child,
}

/// PostgreSQL refuses to run as root: then Debian's own user runs it.
fn program(folder: &Path, name: &str) -> Command {
    let path = folder.join(name);
    let mut command = if is_root() {
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--"]).arg(path);
        command
    } else {
        Command::new(path)
    };
    command.current_dir("/").stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[cfg(unix)]
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

#[cfg(not(unix))]
fn is_root() -> bool {
    false
}

fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    versions.filter_map(|v| Some(v.ok()?.path().join("bin"))).find(|bin| bin.join("initdb").exists())
}

impl Postgres {
    /// Starts one; `None` (reported on standard error) where PostgreSQL is not installed.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start() -> Option<Self> {
        let Some(programs) = programs() else {
            crate::skipped("needs PostgreSQL (Debian's package postgresql)");
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        if is_root() {
            let given = Command::new("chown").arg("postgres").arg(folder.path()).status();
            assert!(given.is_ok_and(|status| status.success()), "the folder can be given to postgres");
        }
        let mut init = program(&programs, "initdb");
        init.args(["--username=octet", "--auth=trust", "--no-sync", "-D"]).arg(folder.path().join("data"));
        assert!(init.status().is_ok_and(|status| status.success()), "initdb works");
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
        let port = free.expect("a port").port();
        let child = run(&programs, folder.path(), port);
        let server = Self { programs, folder, port, child };
        server.wait();
        Some(server)
    }

    /// The database's address, with a parameter of LiteLLM's client.
    pub fn url(&self) -> String {
        format!("{}?connection_limit=5", self.plain_url())
    }

    /// The same without parameters.
    pub fn plain_url(&self) -> String {
        format!("postgresql://octet:secret@127.0.0.1:{}/postgres", self.port)
    }

    fn wait(&self) {
        let port = self.port.to_string();
        let began = Instant::now();
        let is_ready = || {
            let mut asked = Command::new(self.programs.join("pg_isready"));
            asked.args(["-q", "-h", "127.0.0.1", "-p", &port]).status().is_ok_and(|status| status.success())
        };
        while !is_ready() {
            assert!(began.elapsed() < PATIENCE, "the server does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Stops it as a power cut does: without a last word to anybody.
    ///
    /// # Panics
    /// If it cannot be stopped.
    pub fn kill(&mut self) {
        let mut stop = program(&self.programs, "pg_ctl");
        stop.args(["stop", "-m", "immediate", "-D"]).arg(self.folder.path().join("data"));
        assert!(stop.status().is_ok_and(|status| status.success()), "it can be stopped");
        let _ = self.child.wait();
    }

    /// Starts it again, with its data.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        self.child = run(&self.programs, self.folder.path(), self.port);
        self.wait();
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let mut stop = program(&self.programs, "pg_ctl");
        let _ = stop.args(["stop", "-m", "immediate", "-D"]).arg(self.folder.path().join("data")).status();
        let _ = self.child.wait();
    }
}

fn run(programs: &Path, folder: &Path, port: u16) -> Child {
    let mut server = program(programs, "postgres");
    server.arg("-D").arg(folder.join("data")).arg("-k").arg(folder);
    server.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-c", "fsync=off"]).spawn().expect("it is there")
}
