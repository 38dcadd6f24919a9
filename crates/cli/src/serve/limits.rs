//! Sizes the server to what the machine allows, and says so: connections by the limit of open files, memory by control groups and the
//! process's own limits.

use octet_machine::Bound;
use octet_serve::Options;

use crate::memory::SERVER_BYTES;
use crate::units::size;

/// Files that the server itself may have open: models, caches, databases, the log, servers that it started.
const OWN_FILES: u64 = 96;

/// Notes about limits that are lower than wanted. Raises the soft limit of open files as far as needed.
pub fn apply(options: &mut Options) -> Vec<String> {
    let files = octet_machine::raise_open_files(files(options)).and_then(|limit| shrink(options, limit));
    files.into_iter().chain(memory()).collect()
}

/// Connections for each client: a routed request has one to its provider, too.
fn per_client(options: &Options) -> u64 {
    if options.routes.is_some() { 2 } else { 1 }
}

/// Files that all connections need.
fn files(options: &Options) -> u64 {
    let spare = 2 * options.spare_connections as u64;
    OWN_FILES + spare + per_client(options).saturating_mul(options.connections_max as u64)
}

/// Fewer connections, if the process may not have enough files open.
fn shrink(options: &mut Options, limit: u64) -> Option<String> {
    if limit >= files(options) {
        return None;
    }
    let left = limit - OWN_FILES.min(limit / 2);
    let number = |n: u64| usize::try_from(n.max(1)).unwrap_or(usize::MAX);
    options.spare_connections = options.spare_connections.min(number(left / 16));
    let wanted = options.connections_max;
    let rest = left.saturating_sub(2 * options.spare_connections as u64);
    options.connections_max = wanted.min(number(rest / per_client(options)));
    Some(format!(
        "at most {} connections, not {wanted}: this process may have {limit} files open (ulimit -n, LimitNOFILE)",
        options.connections_max
    ))
}

/// What bounds the memory, if it is not the machine's.
fn memory() -> Option<String> {
    let room = octet_machine::memory().filter(|room| room.bound != Bound::Machine)?;
    let (free, own) = (size(room.bytes), size(SERVER_BYTES));
    Some(format!("memory: {free} are free, by {}; the server leaves {own} of them to itself", room.bound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_fit_into_the_open_files() {
        let of = |limit: u64| {
            let mut options = Options::new(Vec::new());
            let note = shrink(&mut options, limit);
            let used = 2 * options.spare_connections + options.connections_max;
            assert!(note.is_none() || limit == 0 || (used as u64) < limit, "{limit}");
            (options.connections_max, note.is_some())
        };
        assert_eq!(of(4096), (1024, false));
        assert_eq!(of(1024 + 128 + 96), (1024, false));
        assert_eq!(of(1024), (812, true));
        assert_eq!(of(256), (140, true));
        let few = of(64);
        assert!((10..64).contains(&few.0) && few.1, "{few:?}");
        assert_eq!(of(0), (1, true));
    }
}
