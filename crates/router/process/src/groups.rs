//! Which servers run together: llama-swap's groups.

use std::sync::Arc;

use octet_config::{Process, ProcessGroup, ProcessSettings};

use crate::Error;

/// The group of entries without a group.
const UNGROUPED: &str = "(default)";

/// An entry's place among the groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// The group.
    group: String,
    /// One member runs at a time.
    swap: bool,
    /// Starting a member stops members of other groups.
    exclusive: bool,
    /// Other groups do not stop its members.
    persistent: bool,
}

impl Membership {
    /// Whether this entry cannot start while `other` runs.
    pub fn evicts(&self, other: &Self) -> bool {
        if self.group == other.group { self.swap } else { self.exclusive && !other.persistent }
    }
}

/// Entries with their groups.
pub fn entries(
    processes: Vec<Process>,
    settings: &ProcessSettings,
) -> Result<Vec<(Arc<Process>, Membership)>, Error> {
    let mut entries = Vec::with_capacity(processes.len());
    for process in processes {
        let invalid = |why: &str| Err(Error::Invalid { id: process.id.clone(), why: why.into() });
        if process.cmd.is_empty() {
            return invalid("its cmd is empty; write the program and its arguments");
        }
        if entries.iter().any(|(p, _): &(Arc<Process>, _)| p.id == process.id) {
            return invalid("there are two entries of that name");
        }
        let names = |g: &&ProcessGroup| g.members.contains(&process.id);
        let member = match settings.groups.iter().find(names) {
            Some(g) => Membership {
                group: g.id.clone(),
                swap: g.swap,
                exclusive: g.exclusive,
                persistent: g.persistent,
            },
            None => Membership { group: UNGROUPED.into(), swap: true, exclusive: true, persistent: false },
        };
        entries.push((Arc::new(process), member));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_decide_which_servers_run_together() {
        let alone = Membership { group: UNGROUPED.into(), swap: true, exclusive: true, persistent: false };
        let together =
            Membership { group: "together".into(), swap: false, exclusive: false, persistent: false };
        let kept = Membership { group: "kept".into(), persistent: true, ..together.clone() };
        let evicted = |by: &Membership| [&alone, &together, &kept].map(|other| by.evicts(other));
        assert_eq!(evicted(&alone), [true, true, false]);
        assert_eq!(evicted(&together), [false; 3]);
        assert_eq!(evicted(&kept), [false; 3]);
    }
}
