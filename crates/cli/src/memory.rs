//! Compares the memory that a model needs with the free memory. Called before a model is loaded.

use octet_engine::engine::Options;
use octet_engine::engine::speculation::Mode;
use octet_engine::report::{Memory, Report};
use octet_machine::Bound;

use crate::stderr::note;
use crate::units::size;

/// Memory available to this process in bytes, within the limits of its control groups and its own. `None` if unknown.
pub fn available() -> Option<u64> {
    octet_machine::memory().map(|room| room.bytes)
}

/// What bounds it, in brackets, if it is not the machine's memory.
pub fn bound() -> String {
    match octet_machine::memory() {
        Some(room) if room.bound != Bound::Machine => format!(" ({})", room.bound),
        _ => String::new(),
    }
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
        "{} does not fit{twice}: it takes {} ({} of weights, {} for a context of {context}{guesses}) and {} are free{}.\n\
         Close other programs, give {smaller} or take a smaller quantisation; --no-memory-check loads it anyway",
        report.origin,
        size(total),
        size(weights),
        size(total - weights - extra),
        size(free),
        bound(),
    );
    Ok(())
}
