//! Runs the code of an answer against tests, in a process that can do little else (`confine`).

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::json;

use super::check::Verdict;
use super::confine::REFUSED;
use super::parse::{answer, blocks};
use super::suite::Tests;
use crate::endpoint::stream::line;

/// Longest time that code may run, sleeping included.
const TIME_MAX: Duration = Duration::from_secs(20);
/// What code may print before it is stopped.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// How often a running process is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// A Python that can be confined.
#[derive(Debug)]
pub struct Python {
    program: PathBuf,
}

/// What the harness reports.
#[derive(Debug, Deserialize)]
struct Report {
    passed: Vec<String>,
    failed: Vec<(String, String)>,
}

/// How a confined process ended.
#[derive(Debug)]
enum End {
    Reported(Report),
    /// With the reason.
    Stopped(String),
}

impl Python {
    /// Finds Python 3, and sees that the limits hold here.
    ///
    /// # Errors
    /// Why code cannot be run.
    pub fn find() -> anyhow::Result<Self> {
        ensure!(cfg!(target_os = "linux"), "code runs only on Linux, where it can be confined");
        let Some(found) = crate::settings::program("python3") else {
            bail!("there is no python3 on the PATH")
        };
        // What is on the PATH may be a script that starts the real one.
        let ask = "import sys; assert sys.version_info >= (3, 8); print(sys.executable)";
        let asked = Command::new(&found).args(["-I", "-S", "-c", ask]).stdin(Stdio::null()).output();
        let asked = asked.with_context(|| found.display().to_string())?;
        let said = String::from_utf8_lossy(&asked.stdout);
        ensure!(
            asked.status.success() && !said.trim().is_empty(),
            "{} is no Python 3.8 or newer",
            found.display()
        );
        let python = Self { program: said.trim().into() };
        let tests = Tests { defines: "probe".into(), tests: PROBE.into() };
        match python.run("probe = 1", &tests)? {
            End::Reported(report) if report.failed.is_empty() && !report.passed.is_empty() => Ok(python),
            End::Reported(report) => bail!("code cannot be confined here: {:?}", report.failed),
            End::Stopped(why) => bail!("code cannot be confined here: {why}"),
        }
    }

    /// Judges an answer by its code.
    pub fn judge(&self, tests: &Tests, content: &str) -> anyhow::Result<Verdict> {
        let Some(code) = code(answer(content), &tests.defines) else {
            return Ok(Verdict::Failed(format!("defines no {}", tests.defines)));
        };
        Ok(match self.run(code, tests)? {
            End::Reported(report) => match report.failed.first() {
                None if report.passed.is_empty() => Verdict::Failed("ran no test".into()),
                None => Verdict::Passed,
                Some((test, why)) => Verdict::Failed(format!("{}: {}", line(test), line(why))),
            },
            End::Stopped(why) => Verdict::Failed(why),
        })
    }

    fn run(&self, code: &str, tests: &Tests) -> anyhow::Result<End> {
        let folder = tempfile::tempdir()?;
        let nonce = crate::random::secret();
        let mut job = tempfile::tempfile()?;
        job.write_all(json!({"code": code, "tests": tests.tests, "nonce": nonce}).to_string().as_bytes())?;
        job.seek(SeekFrom::Start(0))?;
        let mut command = Command::new(own_program()?);
        command.arg("confined").arg(std::process::id().to_string()).arg(&self.program);
        command.env_clear().current_dir(&folder).stdin(job).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Stopped(command.spawn().context("cannot start a process for code")?);
        let (stdout, stderr) = (process.0.stdout.take(), process.0.stderr.take());
        let output = read(stdout.context("no output")?);
        let errors = read(stderr.context("no output")?);
        let began = Instant::now();
        let status = loop {
            if let Some(status) = process.0.try_wait()? {
                break status;
            }
            if output.is_full() || errors.is_full() {
                return Ok(End::Stopped(format!("prints more than {OUTPUT_BYTES_MAX} bytes")));
            }
            if began.elapsed() > TIME_MAX {
                return Ok(End::Stopped(format!("does not end within {} s", TIME_MAX.as_secs())));
            }
            std::thread::sleep(LOOK);
        };
        let (output, errors) = (output.all(), errors.all());
        let report = output.lines().rev().find_map(|l| serde_json::from_str(l.strip_prefix(&nonce)?).ok());
        Ok(match report {
            Some(report) => End::Reported(report),
            None if status.code() == Some(REFUSED) => bail!("{}", line(&errors)),
            None => End::Stopped(ended(status, &errors)),
        })
    }
}

/// Its own executable, also where an update has replaced the file.
fn own_program() -> anyhow::Result<PathBuf> {
    let link = PathBuf::from("/proc/self/exe");
    if link.exists() { Ok(link) } else { Ok(std::env::current_exe()?) }
}

/// Why a process ended without a report.
fn ended(status: std::process::ExitStatus, errors: &str) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return format!("is ended by signal {signal}, as where a limit of time or memory is reached");
    }
    let last = errors.lines().next_back().unwrap_or_default();
    format!("ends before its tests do ({status}): {}", line(last))
}

/// A process that ends with this.
struct Stopped(Child);

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The beginning of an output, read on a thread of its own.
struct Output {
    is_full: Arc<AtomicBool>,
    /// Also returns the pipe: as long as it is open, a process that writes more waits.
    thread: std::thread::JoinHandle<(Vec<u8>, Box<dyn Read + Send>)>,
}

fn read(mut from: impl Read + Send + 'static) -> Output {
    let is_full = Arc::new(AtomicBool::new(false));
    let full = is_full.clone();
    let thread = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What an ended process wrote is complete, or what it wrote last does not matter.
        let _ = from.by_ref().take(OUTPUT_BYTES_MAX as u64).read_to_end(&mut bytes);
        full.store(bytes.len() == OUTPUT_BYTES_MAX, Ordering::Relaxed);
        (bytes, Box::new(from) as Box<dyn Read + Send>)
    });
    Output { is_full, thread }
}

impl Output {
    /// Whether as much was written as is read.
    fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// The output of a process that has ended.
    fn all(self) -> String {
        // The thread does not panic.
        self.thread.join().map(|(bytes, _)| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}

/// The code that defines a name: the last block that does, or the whole answer.
fn code<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let defines = |code: &str| {
        let starts = [format!("class {name}"), format!("def {name}"), format!("{name} =")];
        code.lines().any(|l| starts.iter().any(|s| l.starts_with(s.as_str())))
    };
    let of_blocks = blocks(text).into_iter().rfind(|code| defines(code));
    of_blocks.or_else(|| Some(text).filter(|t| !t.contains("```") && defines(t)))
}

/// What confined code must not be able to do.
const PROBE: &str = r#"
def fails(what):
    try:
        what()
    except (OSError, RuntimeError):
        return True
    return False

def test_limits():
    import os, _socket, resource
    assert fails(_socket.socket), "it reaches the network"
    assert fails(os.fork), "it starts processes"
    assert fails(lambda: open("file", "w")), "it writes files"
    assert fails(lambda: os.kill(os.getppid(), 0)), "it sends signals"
    assert resource.getrlimit(resource.RLIMIT_AS)[0] > 0, "its memory has no limit"
    assert not os.environ.get("HOME"), "it sees the environment"
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_in_an_answer() {
        let two = "Here:\n```python\nclass A:\n    pass\n```\nUse it:\n```python\na = A()\n```\n";
        assert_eq!(code(two, "A"), Some("class A:\n    pass\n"));
        assert_eq!(code("class A: pass", "A"), Some("class A: pass"));
        assert_eq!(code("```\ndef f(): return 1", "f"), Some("def f(): return 1"));
        assert_eq!(code("def g(): pass", "f"), None);
    }
}
