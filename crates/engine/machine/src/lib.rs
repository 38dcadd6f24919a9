//! What the machine leaves to this process: free memory within the limits of its control groups and its own, and open files; and its
//! names. Used before a model is loaded, by the server to size its connections and to know its own names, and by its metrics.
//!
//! | file | what |
//! |---|---|
//! | `group` | Linux control groups, versions 1 and 2, at any depth |
//! | `names` | what the machine is called |
//! | `process` | the process's own limits: address space, data, open files |

mod group;
mod names;
mod process;

use std::fmt;
use std::path::{Path, PathBuf};

use humansize::{BINARY, format_size};

pub use names::names;
pub use process::{open_files, raise_open_files};

/// Memory that a process can allocate, and what bounds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// Free bytes.
    pub bytes: u64,
    /// What bounds them.
    pub bound: Bound,
}

/// What bounds the memory of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    /// The machine's memory.
    Machine,
    /// The limit of a control group that the process is in, or that contains this one.
    Group {
        /// The group's folder.
        path: PathBuf,
        /// Its limit in bytes.
        limit: u64,
    },
    /// `RLIMIT_AS` (`ulimit -v`).
    AddressSpace {
        /// The limit in bytes.
        limit: u64,
    },
    /// `RLIMIT_DATA` (`ulimit -d`).
    Data {
        /// The limit in bytes.
        limit: u64,
    },
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => f.write_str("the machine's memory"),
            Self::Group { path, limit } => {
                write!(f, "the control group {}, limited to {}", path.display(), format_size(*limit, BINARY))
            }
            Self::AddressSpace { limit } => {
                write!(f, "the address space (ulimit -v), limited to {}", format_size(*limit, BINARY))
            }
            Self::Data { limit } => {
                write!(f, "the process's data (ulimit -d), limited to {}", format_size(*limit, BINARY))
            }
        }
    }
}

/// Memory that this process can allocate now: the least of what is free on the machine, within each of its control groups, and within its
/// own limits. `None` if unknown.
pub fn memory() -> Option<Room> {
    memory_at(Path::new("/"), free_on_machine())
}

/// The same with the system's files below `root`, and `free` bytes on the machine.
fn memory_at(root: &Path, free: Option<u64>) -> Option<Room> {
    let machine = free.map(|bytes| Room { bytes, bound: Bound::Machine });
    let bounds = machine.into_iter().chain(group::room(root)).chain(process::room(root));
    bounds.min_by_key(|room| room.bytes)
}

fn free_on_machine() -> Option<u64> {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    Some(system.available_memory()).filter(|&bytes| bytes > 0)
}

/// Resident memory of this process in bytes, including mapped files. `None` if unknown.
pub fn resident() -> Option<u64> {
    let own = sysinfo::get_current_pid().ok()?;
    let mut system = sysinfo::System::new();
    let what = sysinfo::ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(sysinfo::ProcessesToUpdate::Some(&[own]), false, what);
    system.process(own).map(sysinfo::Process::memory).filter(|&bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_bound_counts() {
        let none = tempfile::tempdir().unwrap();
        let free = |n| memory_at(none.path(), n).map(|room| (room.bytes, room.bound));
        assert_eq!(free(Some(5)), Some((5, Bound::Machine)));
        let here = memory().expect("a test runs on a known system");
        assert!(here.bytes > 0 && !here.bound.to_string().is_empty());
        assert!(resident().is_some_and(|bytes| bytes > 1 << 20));
    }
}
