//! Chooses the processors of a team's threads.

use std::collections::HashSet;

/// Processors that a thread may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// One of each physical core first, then their siblings; empty if the system does not report them.
    cpus: Vec<usize>,
    /// Number of physical cores among them.
    cores: usize,
}

impl Topology {
    /// The processors of the calling thread.
    pub fn of_this_thread() -> Self {
        let siblings = |cpu: usize| {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            // If the system does not report cores, each processor counts as one.
            (cpu, std::fs::read_to_string(path).unwrap_or_else(|_| cpu.to_string()))
        };
        let cpus: Vec<_> = os::allowed().into_iter().map(siblings).collect();
        Self::from_siblings(&cpus)
    }

    /// Processors by number, each with the list of those that share its core.
    fn from_siblings(cpus: &[(usize, String)]) -> Self {
        let mut seen = HashSet::new();
        let (mut first, rest): (Vec<_>, Vec<_>) = cpus.iter().partition(|c| seen.insert(c.1.as_str()));
        let cores = first.len();
        first.extend(rest);
        Self { cpus: first.into_iter().map(|c| c.0).collect(), cores }
    }

    /// The processors to bind threads to, in this order: threads of one core share its vector units and caches, so a
    /// core gets a second one only when every core has one.
    pub fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    /// One thread a physical core, and no more than a container's quota of processor time.
    pub fn default_threads(&self) -> usize {
        let allowed = std::thread::available_parallelism().map_or(1, |n| n.get());
        if self.cores == 0 { allowed } else { allowed.min(self.cores) }
    }
}

pub use os::Pinned;

#[cfg(target_os = "linux")]
mod os {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    /// Numbers of the processors that the calling thread may use; empty if there are more than fit a `CpuSet`.
    pub(super) fn allowed() -> Vec<usize> {
        let Ok(mask) = sched_getaffinity(None) else { return Vec::new() };
        (0..CpuSet::MAX_CPU).filter(|&cpu| mask.is_set(cpu)).collect()
    }

    /// Keeps the calling thread on one processor until it is dropped.
    #[must_use]
    pub struct Pinned {
        before: Option<CpuSet>,
        /// Not `Send`: it belongs to this thread.
        _not_send: std::marker::PhantomData<*const ()>,
    }

    impl Pinned {
        /// Binds the calling thread to `cpu`. If the system refuses (the processor was removed, a sandbox forbids the call), the thread runs
        /// unpinned: perhaps slower, with the same results.
        pub fn to(cpu: usize) -> Self {
            let mut one = CpuSet::new();
            one.set(cpu);
            let before = sched_getaffinity(None).ok().filter(|_| sched_setaffinity(None, &one).is_ok());
            Self { before, _not_send: std::marker::PhantomData }
        }
    }

    impl Drop for Pinned {
        fn drop(&mut self) {
            if let Some(before) = &self.before {
                // If none of the old processors is left, the system has already chosen others.
                let _ = sched_setaffinity(None, before);
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod os {
    pub(super) fn allowed() -> Vec<usize> {
        Vec::new()
    }

    /// Elsewhere the system decides where threads run.
    #[must_use]
    pub struct Pinned;

    impl Pinned {
        /// Does nothing.
        pub fn to(_: usize) -> Self {
            Self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_core_comes_before_any_sibling() {
        let check = |siblings: &[(usize, &str)], cpus: &[usize], cores: usize| {
            let cpu = |&(cpu, siblings): &(usize, &str)| (cpu, siblings.to_string());
            let t = Topology::from_siblings(&siblings.iter().map(cpu).collect::<Vec<_>>());
            assert_eq!(t, Topology { cpus: cpus.to_vec(), cores });
        };
        check(&[(0, "0"), (1, "1")], &[0, 1], 2);
        check(&[(0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")], &[0, 2, 1, 3], 2);
        check(&[(0, "0,2"), (1, "1,3"), (2, "0,2"), (3, "1,3")], &[0, 1, 2, 3], 2);
        // two fast cores of two threads each, two slow ones of one
        check(&[(0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3"), (4, "4"), (5, "5")], &[0, 2, 4, 5, 1, 3], 4);
        // what a process may use need not hold a core's first thread
        check(&[(1, "0-1"), (3, "2-3"), (2, "2-3")], &[1, 3, 2], 2);
        check(&[], &[], 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_threads_affinity_is_restored() {
        let before = Topology::of_this_thread();
        for &cpu in before.cpus() {
            let pinned = Pinned::to(cpu);
            assert_eq!(Topology::of_this_thread().cpus(), [cpu]);
            drop(pinned);
            assert_eq!(Topology::of_this_thread(), before);
        }
    }
}
