//! Compares what a model takes with the memory that is free, before it is loaded. Called wherever a model is loaded.

use octet_engine::models::Limits;
use octet_engine::report::Report;

use crate::units::binary;

/// Bytes that this process may still take, the limits of its cgroup included. `None` where the system does not say.
pub fn available() -> Option<u64> {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let free = Some(system.available_memory()).filter(|&bytes| bytes > 0)?;
    // What a cgroup counts as used holds the file cache too, which makes way; what processes hold does not.
    let group = system.cgroup_limits().map(|c| c.total_memory.saturating_sub(c.rss));
    Some(group.map_or(free, |g| free.min(g)))
}

/// Fails where a model of these limits does not fit; they are for a context of `context`. `smaller` says which flags
/// make it so.
pub fn check(
    report: &Report,
    limits: &Limits,
    context: usize,
    exact: bool,
    smaller: &str,
) -> anyhow::Result<()> {
    let Some(free) = available() else { return Ok(()) };
    let bill = report.memory(limits, exact);
    anyhow::ensure!(
        bill.total() <= free,
        "{} does not fit: it takes {} ({} of weights, {} for a context of {context}) and {} are free.\n\
         Close other programs, give {smaller} or take a smaller quantisation; --no-memory-check loads it anyway",
        report.origin,
        binary(bill.total()),
        binary(bill.weights),
        binary(bill.total() - bill.weights),
        binary(free),
    );
    Ok(())
}
