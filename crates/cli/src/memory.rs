//! Compares the memory that a model needs with the free memory. Called before a model is loaded.

use octet_compute::cpu::CpuOptions;
use octet_engine::engine::Options;
use octet_engine::engine::speculation::Mode;
use octet_engine::report::{Memory, Report};
use octet_machine::Bound;

use crate::stderr::note;
use crate::units::{size, tokens};

/// Memory available to this process in bytes, within the limits of its control groups and its own. `None` if unknown.
pub fn available() -> Option<u64> {
    octet_machine::memory().map(|room| room.bytes)
}

/// Of that memory, what a server leaves to itself: it takes some between the plan of a model and its load.
pub const SERVER_BYTES: u64 = 64 << 20;

/// What bounds it, in brackets, if it is not the machine's memory.
pub fn bound() -> String {
    match octet_machine::memory() {
        Some(room) if room.bound != Bound::Machine => format!(" ({})", room.bound),
        _ => String::new(),
    }
}

/// The memory of a model opened with `options`, including its draft model and the tower that reads images.
pub fn needed(report: &Report, options: &Options) -> anyhow::Result<Memory> {
    let made_for = report.config.context_length;
    let limits = options.limits(made_for, report.snapshot_bytes(options.kv))?;
    let memory = report.with_slots(report.memory(&limits, options.cpu.exact), options.cpu.expert_slots);
    let memory = memory.with_draft(options.draft_memory(made_for)?);
    Ok(with_images(memory, options.vision.as_ref()))
}

/// The memory of a model on the processor with the tower that reads its images, if there is one.
pub fn with_images(memory: Memory, vision: Option<&octet_engine::vision::Options>) -> Memory {
    let [tower, work] = vision.map_or([0; 2], |vision| [vision.file.size_bytes(), vision.work_bytes()]);
    Memory { weights: memory.weights + tower, activations: memory.activations + work, ..memory }
}

/// Numbers of a prompt's tokens that are computed at once if experts are on disk, and the user gives none: each expert is then read once for
/// all of them. With more, other requests would wait long for the end of a step.
const PROMPT_TOKENS: [usize; 2] = [2048, 1024];

/// A model with a part of its experts on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnDisk {
    /// Experts of each layer that stay in memory.
    pub slots: usize,
    /// Maximum number of tokens of a step.
    pub step_tokens: usize,
}

impl OnDisk {
    /// What fits into `room`; `None` if all does, or nothing. `needs` is the memory with steps of that many tokens. Steps have more than `least`
    /// tokens, if they may and that takes at most a quarter of the experts from memory.
    pub fn within(
        report: &Report,
        room: u64,
        least: usize,
        may_grow: bool,
        needs: impl Fn(usize) -> anyhow::Result<Memory>,
    ) -> anyhow::Result<Option<Self>> {
        let with = |step_tokens| -> anyhow::Result<Option<Self>> {
            let slots = report.expert_slots(needs(step_tokens)?, room);
            Ok(slots.map(|slots| Self { slots, step_tokens }))
        };
        let Some(few) = with(least)? else { return Ok(None) };
        for tokens in PROMPT_TOKENS.into_iter().filter(|&n| may_grow && n > least) {
            if let Some(many) = with(tokens)?.filter(|many| 4 * many.slots >= 3 * few.slots) {
                return Ok(Some(many));
            }
        }
        Ok(Some(few))
    }
}

/// Makes a model fit into `room` bytes, if it can be: without the block for multi-token prediction if that was not requested by name, then with a
/// part of its experts on disk, and with larger steps if they `may_grow`.
pub fn shrink(
    report: &Report,
    options: &mut Options,
    room: Option<u64>,
    may_grow: bool,
) -> anyhow::Result<()> {
    let Some(room) = room.filter(|_| options.cpu.expert_slots.is_none()) else { return Ok(()) };
    if needed(report, options)?.total() <= room {
        return Ok(());
    }
    let mut less = options.clone();
    if less.speculation.mode == Mode::Auto && report.config.mtp_layers > 0 {
        less.speculation.mode = Mode::Lookup;
    }
    if needed(report, &less)?.total() > room && !less.cpu.exact {
        let needs = |batch_tokens| needed(report, &Options { batch_tokens, ..less.clone() });
        if let Some(on_disk) = OnDisk::within(report, room, less.batch_tokens, may_grow, needs)? {
            less.batch_tokens = on_disk.step_tokens;
            less.cpu.expert_slots = Some(on_disk.slots);
        }
    }
    if needed(report, &less)?.total() <= room {
        if less.speculation.mode != options.speculation.mode {
            note!(
                "note: there is not enough memory for the block for multi-token prediction: it is not loaded"
            );
        }
        *options = less;
    }
    Ok(())
}

/// What stays on disk, what memory holds, and the speed to expect; `None` if all is in memory.
pub fn stored(model: &octet_weights::Model, report: &Report, cpu: &CpuOptions) -> Option<String> {
    let (slots, moe) = (cpu.expert_slots?, report.config.moe?);
    let held = report.expert_bytes() - report.stored_bytes(cpu);
    let limit = octet_engine::report::drive_speed(model, report).map(|rate| {
        format!(
            "; the drive's {:.1} GB/s allow about {} tokens/s, more where experts repeat",
            rate / 1e9,
            tokens(report.speed_from_drive(slots, rate))
        )
    });
    Some(format!(
        "{} of experts stay on disk: memory holds {} ({slots} of the {} experts of each layer){}",
        size(report.stored_bytes(cpu)),
        size(held),
        moe.experts,
        limit.unwrap_or_default()
    ))
}

/// Fails if a model does not fit as many times as it is loaded, with a context of `context`. `smaller` names the flags that reduce the
/// size.
pub fn check(report: &Report, needs: &[Memory], context: usize, smaller: &str) -> anyhow::Result<()> {
    check_within(available(), None, report, needs, context, smaller)
}

/// The same if `free` bytes are free, and `limit` are allowed; `None` is no limit.
pub fn check_within(
    free: Option<u64>,
    limit: Option<u64>,
    report: &Report,
    needs: &[Memory],
    context: usize,
    smaller: &str,
) -> anyhow::Result<()> {
    let Some(room) = free.into_iter().chain(limit).min() else { return Ok(()) };
    let total = needs.iter().map(|b| b.total()).fold(0, u64::saturating_add);
    let weights = needs.iter().map(|b| b.weights).fold(0, u64::saturating_add);
    let twice = if needs.len() > 1 { " (loaded with and without --exact)" } else { "" };
    let extra = needs.iter().map(|b| b.speculation).fold(0, u64::saturating_add);
    let guesses = match extra {
        0 => String::new(),
        n => format!(", {} for speculation, which --speculative off saves", size(n)),
    };
    let allowed = match limit {
        Some(limit) if limit == room => format!("--memory-limit allows {}", size(limit)),
        _ => format!("{} are free{}", size(room), bound()),
    };
    let on_disk = match (needs, report.config.moe) {
        (_, None) => String::new(),
        ([one], Some(_)) if report.not_stored.is_none() => {
            report.least_memory(*one).map_or(String::new(), |least| {
                format!(". With most experts on disk it takes at least {}", size(least.total()))
            })
        }
        _ => report
            .not_stored
            .as_ref()
            .map_or(String::new(), |why| format!(". Its experts cannot stay on disk: {why}")),
    };
    anyhow::ensure!(
        total <= room,
        "{} does not fit{twice}: it takes {} ({} of weights, {} for a context of {context}{guesses}) and {allowed}{on_disk}.\n\
         Close other programs, give {smaller} or take a smaller quantisation; --no-memory-check loads it anyway",
        report.origin,
        size(total),
        size(weights),
        size(total - weights - extra),
    );
    Ok(())
}
