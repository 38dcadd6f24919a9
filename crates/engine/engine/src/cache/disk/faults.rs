//! Failures of the cache's folder: reports each kind once, with what to do, and backs off before retries.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// First pause before writing again after a failure; doubled after each further one.
const WAIT_MIN: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The kind of a failure, by what the user can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The disk or the user's quota is full.
    Full,
    /// The folder is not writable.
    Denied,
    /// The folder or a file was deleted.
    Gone,
    /// A file is damaged.
    Damaged,
    /// Another error, probably of the disk.
    Failed,
}

impl Kind {
    pub fn of(e: &io::Error) -> Self {
        match e.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::Full,
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Self::Denied,
            ErrorKind::NotFound => Self::Gone,
            ErrorKind::InvalidData | ErrorKind::UnexpectedEof => Self::Damaged,
            _ => Self::Failed,
        }
    }
}

/// Failures so far.
#[derive(Debug)]
pub struct DiskFaults {
    dir: PathBuf,
    /// Reported failures: whether of a write, and the kind.
    said: Vec<(bool, Kind)>,
    pub(super) wait: Duration,
    pub(super) until: Option<Instant>,
}

impl DiskFaults {
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, said: Vec::new(), wait: WAIT_MIN, until: None }
    }

    /// True while writing is paused.
    pub fn in_backoff(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Ends the pause.
    pub fn try_again(&mut self) {
        self.until = None;
    }

    /// Records a successful write. Writes that were queued before a failure do not end the pause.
    pub fn wrote(&mut self, now: Instant) {
        if !self.in_backoff(now) {
            (self.wait, self.until) = (WAIT_MIN, None);
        }
    }

    /// Records a failed write; returns a message, unless it was reported before.
    pub fn not_written(&mut self, e: &io::Error, now: Instant) -> Option<String> {
        // Failures of writes that were queued together count once.
        if !self.in_backoff(now) {
            self.until = Some(now + self.wait);
            self.wait = (2 * self.wait).min(WAIT_MAX);
        }
        let kind = Kind::of(e);
        let todo = match kind {
            Kind::Full => {
                "the least used entries are deleted for now; free space on that disk, or give the cache less of it \
                 (--cache-disk-size)"
            }
            Kind::Denied => "make it writable for this user, or give another folder (--cache-disk)",
            Kind::Gone => {
                "it cannot be made again either; make it, or start again with another (--cache-disk)"
            }
            Kind::Damaged | Kind::Failed => "look after that disk, or give another folder (--cache-disk)",
        };
        self.report_once(true, kind, format!("cannot be written to: {e}; {todo}"))
    }

    /// Records a failed read; returns a message, unless it was reported before.
    pub fn not_read(&mut self, e: &io::Error) -> Option<String> {
        let kind = Kind::of(e);
        let todo = match kind {
            // Another process that shares the folder has deleted the file to make room.
            Kind::Gone => return None,
            Kind::Denied => "let this user read them, or give another folder (--cache-disk)",
            _ => "if it happens again, look after that disk",
        };
        let what = format!("has a file that cannot be read: {e}; what it held is computed again; {todo}");
        self.report_once(false, kind, what)
    }

    fn report_once(&mut self, write: bool, kind: Kind, what: String) -> Option<String> {
        if self.said.contains(&(write, kind)) {
            return None;
        }
        self.said.push((write, kind));
        Some(format!("the folder for cached prompts, {}, {what}. This is reported once", self.dir.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_logged_once_and_retries_back_off() {
        let mut faults = DiskFaults::new("/some/where".into());
        let full = || io::Error::from(ErrorKind::StorageFull);
        let mut now = Instant::now();
        assert!(!faults.in_backoff(now));
        let said = faults.not_written(&full(), now).expect("it is said");
        assert!(said.contains("/some/where") && said.contains("--cache-disk-size"), "{said}");
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            // others of the same moment change nothing
            assert_eq!(faults.not_written(&full(), now), None);
            assert!(faults.in_backoff(now + Duration::from_millis(seconds * 1000 - 1)));
            now += Duration::from_secs(seconds);
            assert!(!faults.in_backoff(now), "{seconds}");
            assert_eq!(faults.not_written(&full(), now), None);
        }
        faults.wrote(now);
        assert!(faults.in_backoff(now), "it was on its way");
        now += WAIT_MAX;
        faults.wrote(now);
        assert!(faults.not_written(&ErrorKind::ReadOnlyFilesystem.into(), now).is_some());
        assert!(faults.in_backoff(now) && !faults.in_backoff(now + WAIT_MIN));
        // reading is another matter
        assert!(faults.not_read(&ErrorKind::UnexpectedEof.into()).is_some());
        assert_eq!(faults.not_read(&ErrorKind::InvalidData.into()), None);
        assert_eq!(faults.not_read(&ErrorKind::NotFound.into()), None);
    }
}
