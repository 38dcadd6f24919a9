//! Compares what a model takes with the memory that is free, before it is loaded. Called wherever a model is loaded.

use octet_engine::models::Limits;
use octet_engine::report::Report;

use crate::units::size;

/// Bytes that this process may still take, the limits of its cgroup included. `None` where the system does not say.
pub fn available() -> Option<u64> {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let free = Some(system.available_memory()).filter(|&bytes| bytes > 0)?;
    // What a cgroup counts as used holds the file cache too, which makes way; what processes hold does not.
    let group = system.cgroup_limits().map(|c| c.total_memory.saturating_sub(c.rss));
    Some(group.map_or(free, |g| free.min(g)))
}

/// Bytes of memory that this process holds, the pages of mapped files that it has read included. `None` where the system does not say.
pub fn of_this_process() -> Option<u64> {
    let own = sysinfo::get_current_pid().ok()?;
    let mut system = sysinfo::System::new();
    let what = sysinfo::ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(sysinfo::ProcessesToUpdate::Some(&[own]), false, what);
    system.process(own).map(sysinfo::Process::memory).filter(|&bytes| bytes > 0)
}

/// Fails where a model does not fit as often as it is to be loaded: with limits for a context of `context`, and `true`
/// where in f32. `smaller` says which flags make it so.
pub fn check(report: &Report, loads: &[(Limits, bool)], context: usize, smaller: &str) -> anyhow::Result<()> {
    let Some(free) = available() else { return Ok(()) };
    let bills: Vec<_> = loads.iter().map(|(limits, exact)| report.memory(limits, *exact)).collect();
    let total = bills.iter().map(|b| b.total()).fold(0, u64::saturating_add);
    let weights = bills.iter().map(|b| b.weights).fold(0, u64::saturating_add);
    let twice = if loads.len() > 1 { " (loaded with and without --exact)" } else { "" };
    anyhow::ensure!(
        total <= free,
        "{} does not fit{twice}: it takes {} ({} of weights, {} for a context of {context}) and {} are free.\n\
         Close other programs, give {smaller} or take a smaller quantisation; --no-memory-check loads it anyway",
        report.origin,
        size(total),
        size(weights),
        size(total - weights),
        size(free),
    );
    Ok(())
}
