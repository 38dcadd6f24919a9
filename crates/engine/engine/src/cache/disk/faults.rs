//! What goes wrong with the cache's folder: says each kind once, with what to do about it, and when to try again. Used by
//! `disk`.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long nothing is written after a failure: twice as long after each.
const WAIT_MIN: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(60);

/// What went wrong, as far as it makes a difference for who is to mend it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// No room on the disk, or none for this user.
    Full,
    /// The folder cannot be written to.
    Denied,
    /// The folder or a file is not there any more.
    Gone,
    /// A file is not what was written.
    Damaged,
    /// Anything else: the disk itself, most likely.
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

/// What has gone wrong so far.
#[derive(Debug)]
pub struct DiskFaults {
    dir: PathBuf,
    /// What was said: whether of writing, and the kind.
    said: Vec<(bool, Kind)>,
    pub(super) wait: Duration,
    pub(super) until: Option<Instant>,
}

impl DiskFaults {
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, said: Vec::new(), wait: WAIT_MIN, until: None }
    }

    /// True while nothing is to be written.
    pub fn holds_off(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Lets the next write be tried now.
    pub fn try_again(&mut self) {
        self.until = None;
    }

    /// Something was written; what was on its way when another failed does not count.
    pub fn wrote(&mut self, now: Instant) {
        if !self.holds_off(now) {
            (self.wait, self.until) = (WAIT_MIN, None);
        }
    }

    /// Something could not be written; what there is to say, if it was not said before.
    pub fn not_written(&mut self, e: &io::Error, now: Instant) -> Option<String> {
        // Those that were on their way together count as one.
        if !self.holds_off(now) {
            self.until = Some(now + self.wait);
            self.wait = (2 * self.wait).min(WAIT_MAX);
        }
        let kind = Kind::of(e);
        let todo = match kind {
            Kind::Full => {
                "what was used least makes way for now; make room on that disk, or give the cache less of it \
                 (--cache-disk-size)"
            }
            Kind::Denied => "make it writable for this user, or give another folder (--cache-disk)",
            Kind::Gone => {
                "it cannot be made again either; make it, or start again with another (--cache-disk)"
            }
            Kind::Damaged | Kind::Failed => "look after that disk, or give another folder (--cache-disk)",
        };
        self.say(true, kind, format!("cannot be written to: {e}; {todo}"))
    }

    /// Something could not be read; what there is to say, if it was not said before.
    pub fn not_read(&mut self, e: &io::Error) -> Option<String> {
        let kind = Kind::of(e);
        let todo = match kind {
            // another process that shares the folder needed the room
            Kind::Gone => return None,
            Kind::Denied => "let this user read them, or give another folder (--cache-disk)",
            _ => "if it happens again, look after that disk",
        };
        let what = format!("has a file that cannot be read: {e}; what it held is computed again; {todo}");
        self.say(false, kind, what)
    }

    fn say(&mut self, write: bool, kind: Kind, what: String) -> Option<String> {
        if self.said.contains(&(write, kind)) {
            return None;
        }
        self.said.push((write, kind));
        Some(format!("the folder for cached prompts, {}, {what}. This is said once", self.dir.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_said_once_and_failures_are_retried_ever_later() {
        let mut faults = DiskFaults::new("/some/where".into());
        let full = || io::Error::from(ErrorKind::StorageFull);
        let mut now = Instant::now();
        assert!(!faults.holds_off(now));
        let said = faults.not_written(&full(), now).expect("it is said");
        assert!(said.contains("/some/where") && said.contains("--cache-disk-size"), "{said}");
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            // others of the same moment change nothing
            assert_eq!(faults.not_written(&full(), now), None);
            assert!(faults.holds_off(now + Duration::from_millis(seconds * 1000 - 1)));
            now += Duration::from_secs(seconds);
            assert!(!faults.holds_off(now), "{seconds}");
            assert_eq!(faults.not_written(&full(), now), None);
        }
        faults.wrote(now);
        assert!(faults.holds_off(now), "it was on its way");
        now += WAIT_MAX;
        faults.wrote(now);
        assert!(faults.not_written(&ErrorKind::ReadOnlyFilesystem.into(), now).is_some());
        assert!(faults.holds_off(now) && !faults.holds_off(now + WAIT_MIN));
        // reading is another matter
        assert!(faults.not_read(&ErrorKind::UnexpectedEof.into()).is_some());
        assert_eq!(faults.not_read(&ErrorKind::InvalidData.into()), None);
        assert_eq!(faults.not_read(&ErrorKind::NotFound.into()), None);
    }
}
