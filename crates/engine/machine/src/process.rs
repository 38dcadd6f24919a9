//! The limits of the process itself: its address space, its data, its open files.

use std::path::Path;

#[cfg(unix)]
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

use crate::{Bound, Room};

/// Address space for the stacks of threads: that of a chat template's rendering (512 MiB), and those of all others.
#[cfg(unix)]
const STACKS: u64 = 640 << 20;

/// What the process's own limits leave, one for each that is set.
#[cfg(unix)]
pub fn room(root: &Path) -> impl Iterator<Item = Room> {
    let soft = |which| limits(which).and_then(|(soft, _)| soft);
    rooms(&used(root).unwrap_or_default(), soft(Resource::RLIMIT_AS), soft(Resource::RLIMIT_DATA))
}

/// A soft and a hard limit; `None` for one that is infinite.
#[cfg(unix)]
fn limits(which: Resource) -> Option<(Option<u64>, Option<u64>)> {
    let finite = |n: u64| Some(n).filter(|n| *n != RLIM_INFINITY);
    getrlimit(which).ok().map(|(soft, hard)| (finite(soft), finite(hard)))
}

#[cfg(not(unix))]
pub fn room(_root: &Path) -> impl Iterator<Item = Room> {
    std::iter::empty()
}

/// Bytes that count against the limits.
#[cfg(unix)]
#[derive(Debug, Default, PartialEq, Eq)]
struct Used {
    address_space: u64,
    data: u64,
}

#[cfg(unix)]
fn rooms(used: &Used, address_space: Option<u64>, data: Option<u64>) -> impl Iterator<Item = Room> + use<> {
    // While a model is loaded, its file is mapped beside what is made of it. Stacks of threads are reserved, too.
    let space = address_space.map(|limit| {
        let bytes = limit.saturating_sub(used.address_space).saturating_sub(STACKS) / 2;
        Room { bytes, bound: Bound::AddressSpace { limit } }
    });
    let data = data.map(|limit| {
        let bytes = limit.saturating_sub(used.data);
        Room { bytes, bound: Bound::Data { limit } }
    });
    space.into_iter().chain(data)
}

/// `VmSize` and `VmData` of `/proc/self/status`, which are in KiB.
#[cfg(unix)]
fn used(root: &Path) -> Option<Used> {
    let text = std::fs::read_to_string(root.join("proc/self/status")).ok()?;
    let bytes = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.saturating_mul(1024))
    };
    Some(Used { address_space: bytes("VmSize:")?, data: bytes("VmData:")? })
}

/// How many files and connections the process may have open; `None` if that is unlimited or unknown.
#[cfg(unix)]
pub fn open_files() -> Option<u64> {
    limits(Resource::RLIMIT_NOFILE)?.0
}

/// Raises the soft limit of open files to `wanted`, as far as the hard limit allows, and returns it; `None` if it is unlimited.
#[cfg(unix)]
pub fn raise_open_files(wanted: u64) -> Option<u64> {
    let (soft, hard) = limits(Resource::RLIMIT_NOFILE)?;
    let soft = soft?;
    let raised = hard.map_or(wanted, |hard| hard.min(wanted));
    if raised <= soft {
        return Some(soft);
    }
    // Where the system refuses, the old limit stays.
    let _ = setrlimit(Resource::RLIMIT_NOFILE, raised, hard.unwrap_or(RLIM_INFINITY));
    open_files()
}

/// Unknown.
#[cfg(not(unix))]
pub fn open_files() -> Option<u64> {
    None
}

/// Unknown.
#[cfg(not(unix))]
pub fn raise_open_files(_wanted: u64) -> Option<u64> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn limits_leave_what_is_not_used() {
        let used = Used { address_space: 10, data: 4 };
        let and_stacks = |limit: Option<u64>| limit.map(|n| n + STACKS);
        let left =
            |space, data| rooms(&used, and_stacks(space), data).map(|room| room.bytes).collect::<Vec<_>>();
        assert_eq!(left(None, None), []);
        assert_eq!(left(Some(110), Some(100)), [50, 96]);
        assert_eq!(left(Some(5), Some(3)), [0, 0]);
    }

    #[test]
    fn files_are_raised_to_at_most_the_hard_limit() {
        let Some(before) = open_files() else { return };
        assert_eq!(raise_open_files(1), Some(before), "never lowered");
        assert!(raise_open_files(before + 1).is_none_or(|now| now >= before));
    }

    #[test]
    fn what_is_used_is_read() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(used(root.path()), None);
        std::fs::create_dir_all(root.path().join("proc/self")).unwrap();
        let text =
            "Name:\toctet\nVmPeak:\t  900 kB\nVmSize:\t     100 kB\nVmData:\t      30 kB\nVmStk: 1 kB\n";
        std::fs::write(root.path().join("proc/self/status"), text).unwrap();
        assert_eq!(used(root.path()), Some(Used { address_space: 100 << 10, data: 30 << 10 }));
    }
}
