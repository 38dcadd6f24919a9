//! Compares the memory that a model needs with the free memory. Called before a model is loaded.

use octet_engine::engine::Options;
use octet_engine::engine::speculation::Mode;
use octet_engine::report::{Memory, Report};

use crate::stderr::note;
use crate::units::size;

/// Memory available to this process in bytes, within its cgroup's limits. `None` if unknown.
pub fn available() -> Option<u64> {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let free = Some(system.available_memory()).filter(|&bytes| bytes > 0)?;
    // A cgroup's usage includes the file cache, which can be reclaimed; the processes' own memory cannot.
    let group = system.cgroup_limits().map(|c| c.total_memory.saturating_sub(c.rss));
    Some(group.map_or(free, |g| free.min(g)))
}

/// Resident memory of this process in bytes, including mapped files. `None` if unknown.
pub fn of_this_process() -> Option<u64> {
    let own = sysinfo::get_current_pid().ok()?;
    let mut system = sysinfo::System::new();
    let what = sysinfo::ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(sysinfo::ProcessesToUpdate::Some(&[own]), false, what);
    system.process(own).map(sysinfo::Process::memory).filter(|&bytes| bytes > 0)
}

/// The memory of a model opened with `options`, including its draft model.
pub fn needed(report: &Report, options: &Options) -> anyhow::Result<Memory> {
    let made_for = report.config.context_length;
    let limits = options.limits(made_for, report.state_bytes())?;
    Ok(report.memory(&limits, options.cpu.exact).with_draft(options.draft_memory(made_for)?))
}

/// Disables the block for multi-token prediction if it was not requested by name and the model fits only without it.
pub fn shrink(report: &Report, options: &mut Options) -> anyhow::Result<()> {
    if options.speculation.mode != Mode::Auto || report.config.mtp_layers == 0 {
        return Ok(());
    }
    let Some(free) = available() else { return Ok(()) };
    let mut less = options.clone();
    less.speculation.mode = Mode::Lookup;
    if needed(report, options)?.total() > free && needed(report, &less)?.total() <= free {
        note!("note: there is not enough memory for the block for multi-token prediction: it is not loaded");
        *options = less;
    }
    Ok(())
}

/// Fails if a model does not fit as many times as it is loaded, with a context of `context`. `smaller` names the flags that reduce the
/// size.
pub fn check(report: &Report, needs: &[Memory], context: usize, smaller: &str) -> anyhow::Result<()> {
    check_within(available(), report, needs, context, smaller)
}

/// The same if `free` bytes are free; `None` is no limit.
pub fn check_within(
    free: Option<u64>,
    report: &Report,
    needs: &[Memory],
    context: usize,
    smaller: &str,
) -> anyhow::Result<()> {
    let Some(free) = free else { return Ok(()) };
    let total = needs.iter().map(|b| b.total()).fold(0, u64::saturating_add);
    let weights = needs.iter().map(|b| b.weights).fold(0, u64::saturating_add);
    let twice = if needs.len() > 1 { " (loaded with and without --exact)" } else { "" };
    let extra = needs.iter().map(|b| b.speculation).fold(0, u64::saturating_add);
    let guesses = match extra {
        0 => String::new(),
        n => format!(", {} for speculation, which --speculative off saves", size(n)),
    };
    anyhow::ensure!(
        total <= free,
        "{} does not fit{twice}: it takes {} ({} of weights, {} for a context of {context}{guesses}) and {} are free.\n\
         Close other programs, give {smaller} or take a smaller quantisation; --no-memory-check loads it anyway",
        report.origin,
        size(total),
        size(weights),
        size(total - weights - extra),
        size(free),
    );
    Ok(())
}
