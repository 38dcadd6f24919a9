//! Plans the memory of a served model: sized to the free and allowed memory if the user sets no sizes, and printed before loading.

use octet_compute::batch::PAGE_TOKENS;
use octet_engine::engine::Options;
use octet_engine::engine::speculation::{self, Mode};
use octet_engine::models::Limits;
use octet_engine::report::{Memory, Report};

use crate::device_memory::{Placement, Split, Wanted, bill, table_copy};
use crate::memory::OnDisk;
use crate::units::{count, parameters, size};

/// Sizes to try in turn if the user sets none: contexts in the KV cache, and bytes of snapshots. Finally snapshots get what one or more
/// contexts leave, at least what one conversation needs.
const TRIED: [(usize, u64); 3] = [(4, 2 << 30), (2, 1 << 30), (1, 1 << 30)];
/// Then a further context is added only if the snapshots keep room for one per this number of tokens of the KV cache.
const SNAPSHOT_TOKENS: usize = 512;

/// The sizes of a model on a device if there is room for them.
pub fn wanted<'a>(report: &'a Report, options: &'a Options) -> Wanted<'a> {
    Wanted { report, options, contexts: &[TRIED[0].0, TRIED[1].0, TRIED[2].0], snapshots: Some(TRIED[0].1) }
}

/// A model's options and their memory.
pub struct MemoryPlan {
    /// The options to open the engine with.
    pub options: Options,
    limits: Limits,
    /// Memory of the draft model.
    draft: u64,
    context: usize,
    /// The size it was reduced to, to fit.
    shrunk: Option<u64>,
    /// What stays on disk, as a message for the user.
    stored: Option<String>,
    /// Memory that it needs on a device and on the machine, and what was reduced to fit.
    on_device: Option<(Split, Vec<String>)>,
    /// The layers of each of several devices.
    layers: Vec<String>,
}

impl MemoryPlan {
    /// Completes `options`. `room` is the memory for it; `None` disables the check. If experts stay on disk, steps have more tokens if they
    /// `may_grow`.
    pub fn new(
        report: &Report,
        options: &Options,
        room: Option<u64>,
        may_grow: bool,
    ) -> anyhow::Result<Self> {
        let options = &options.for_config(&report.config);
        report.check_kv(options.kv)?;
        let made_for = report.config.context_length;
        let context = options.context_for(made_for);
        let with = |contexts: usize, snapshots: Option<u64>| -> anyhow::Result<(Self, u64)> {
            let options = Options {
                kv_tokens: options.kv_tokens.or(Some(context * contexts.min(options.max_seqs))),
                snapshot_memory: options.snapshot_memory.or(snapshots),
                ..options.clone()
            };
            let limits = options.limits(made_for, report.snapshot_bytes(options.kv))?;
            let draft = options.draft_memory(made_for)?;
            let (shrunk, stored, on_device, layers) = (None, None, None, Vec::new());
            let plan = Self { options, limits, draft, context, shrunk, stored, on_device, layers };
            let total = plan.total(report);
            Ok((plan, total))
        };
        // More than one for each page of the KV cache would never be used: states of a tiny model are tiny.
        let useful = |contexts: usize| {
            let pages = context.saturating_mul(contexts.min(options.max_seqs)) / PAGE_TOKENS;
            report.snapshot_bytes(options.kv).saturating_mul(pages as u64).max(1)
        };
        for (i, (contexts, snapshots)) in TRIED.into_iter().enumerate() {
            let (bill, total) = with(contexts, Some(snapshots.min(useful(contexts))))?;
            if room.is_none_or(|room| total <= room) {
                return Ok(Self { shrunk: room.filter(|_| i > 0), ..bill });
            }
        }
        let (least, total) = with(1, None)?;
        // The block was not requested by name, so it is the first to be dropped.
        if options.speculation.mode == Mode::Auto && least.limits.mtp && room.is_some_and(|room| total > room)
        {
            let speculation = speculation::Options { mode: Mode::Lookup, ..options.speculation.clone() };
            return Self::new(report, &Options { speculation, ..options.clone() }, room, may_grow);
        }
        // Experts that do not fit stay on disk; caches are then as small as they can be.
        if let Some(room) = room.filter(|_| options.cpu.expert_slots.is_none() && !options.cpu.exact) {
            let with = |batch_tokens| -> anyhow::Result<Self> {
                let options = Options { batch_tokens, ..least.options.clone() };
                let limits = options.limits(made_for, report.snapshot_bytes(options.kv))?;
                let shrunk = Some(room);
                Ok(Self {
                    options,
                    limits,
                    shrunk,
                    stored: None,
                    on_device: None,
                    layers: Vec::new(),
                    ..least
                })
            };
            let needs = |tokens| Ok(with(tokens)?.memory(report));
            if let Some(on_disk) = OnDisk::within(report, room, options.batch_tokens, may_grow, needs)? {
                let mut plan = with(on_disk.step_tokens)?;
                plan.options.cpu.expert_slots = Some(on_disk.slots);
                return Ok(plan);
            }
        }
        let slot = report.snapshot_bytes(options.kv);
        let mut out = least;
        for (contexts, _) in TRIED.into_iter().rev() {
            let (smallest, total) = with(contexts, None)?;
            let own = slot.saturating_mul(smallest.limits.snapshots as u64);
            let left = room.unwrap_or(0).saturating_sub(total).saturating_add(own).min(TRIED[2].1);
            let states = (left / slot.max(1)) as usize;
            let useful = context.saturating_mul(contexts) / SNAPSHOT_TOKENS;
            if contexts > 1 && (room.is_some_and(|room| total > room) || states < useful) {
                break;
            }
            let more = states > smallest.limits.snapshots;
            (out, _) = with(contexts, more.then_some(left))?;
        }
        Ok(Self { shrunk: room, ..out })
    }

    /// The plan of a model on a device.
    pub fn on_device(report: &Report, placement: Placement) -> Self {
        let Placement { options, limits, split, draft, smaller, layers, .. } = placement;
        let made_for = report.config.context_length;
        Self {
            draft: draft.device,
            context: options.context_for(made_for),
            options,
            limits,
            shrunk: None,
            stored: None,
            on_device: Some((split, smaller)),
            layers,
        }
    }

    /// With a message about what stays on disk.
    pub fn with_stored(self, stored: Option<String>) -> Self {
        Self { stored, ..self }
    }

    /// Memory that it needs on a device and on the machine, if it runs on a device.
    pub fn split(&self) -> Option<Split> {
        self.on_device.as_ref().map(|(split, _)| *split)
    }

    /// Whether the model fits with its own context.
    pub fn fits(&self, report: &Report) -> bool {
        self.shrunk.is_none_or(|room| self.total(report) <= room)
    }

    fn total(&self, report: &Report) -> u64 {
        self.memory(report).total()
    }

    fn memory(&self, report: &Report) -> Memory {
        let of = match &self.on_device {
            None => {
                let all = report.memory(&self.limits, self.options.cpu.exact);
                let all = report.with_slots(all, self.options.cpu.expert_slots);
                crate::memory::with_images(all, self.options.vision.as_ref())
            }
            Some(_) => bill(report, &self.limits, self.options.cpu.exact),
        };
        of.with_draft(self.draft)
    }

    /// Fails if it does not fit into `free` bytes of memory; `None` is no limit.
    pub fn check(&self, report: &Report, free: Option<u64>) -> anyhow::Result<()> {
        let smaller = "a smaller --ctx-size, --parallel, --kv-tokens or --cache-ram";
        crate::memory::check_within(free, None, report, &[self.memory(report)], self.context, smaller)
    }

    /// The plan for the user.
    pub fn text(&self, name: &str, report: &Report) -> String {
        let m = self.memory(report);
        let slot = report.state_bytes();
        let kv_tokens = (self.limits.pages - 1) * PAGE_TOKENS;
        let mut out = format!(
            "{name}: {} with {} parameters on {}\n  weights      {:>12}\n  KV cache     {:>12}  {kv_tokens} tokens in {}\n",
            report.config.architecture.name,
            parameters(report.parameters),
            self.options.device.as_ref().map_or("the processor", |d| d.name()),
            size(m.weights),
            size(m.kv),
            self.limits.kv,
        );
        if slot > 0 {
            let of = |n: usize| size(slot.saturating_mul(n as u64));
            let spare = if self.limits.spare_slots > 0 { " and a spare one" } else { "" };
            out += &format!(
                "  states       {:>12}  {} sequences{spare}, {} each\n  snapshots    {:>12}  at most {} states{}\n",
                of(self.limits.slots + self.limits.spare_slots),
                self.limits.slots,
                size(slot),
                of(self.limits.snapshots),
                self.limits.snapshots,
                self.options
                    .disk
                    .as_ref()
                    .map_or(String::new(), |d| format!(", and {} on disk", size(d.bytes))),
            );
        }
        if slot == 0 && m.states > 0 {
            let kept = count(self.limits.snapshots, "window");
            out += &format!("  snapshots    {:>12}  at most {kept} of earlier positions\n", size(m.states));
        }
        if m.speculation > 0 {
            out += &format!("  speculation  {:>12}\n", size(m.speculation));
        }
        out += &format!("  activations  {:>12}\n", size(m.activations));
        out += &match self.split() {
            None => format!(
                "  total        {:>12}  at most: caches are allocated as they fill\n",
                size(m.total())
            ),
            Some(split) => format!(
                "  device       {:>12}  allocated at the start\n  host memory  {:>12}  at most\n",
                size(split.device),
                size(split.machine)
            ),
        };
        self.layers.iter().for_each(|line| out += &format!("  {line}\n"));
        match table_copy(report) {
            ahead if ahead > 0 && self.limits.spare_slots > 0 => {
                out += &format!("  steps ahead  {:>12}  additional host memory, if available\n", size(ahead));
            }
            _ => {}
        }
        let contexts = match kv_tokens / self.context.max(1) {
            0 => "less than one full context".to_string(),
            n => count(n, "full context"),
        };
        out += &format!(
            "  context: {} tokens per request; the KV cache holds {contexts}; at most {}",
            self.context,
            count(self.limits.slots, "concurrent request"),
        );
        self.notes(report, &mut out);
        out
    }

    /// Notes about a context beyond the model's, and about caches that were reduced.
    fn notes(&self, report: &Report, out: &mut String) {
        let made_for = report.config.context_length;
        if self.context > made_for {
            *out += &format!(
                "\n  note: the model was trained for {made_for} tokens; answers may be poor beyond that"
            );
        }
        for what in self.on_device.iter().flat_map(|(_, smaller)| smaller) {
            *out += &format!("\n  to fit, {what}");
        }
        if let Some(stored) = &self.stored {
            *out += &format!("\n  {stored}");
        }
        if let Some(room) = self.shrunk {
            *out += &format!(
                "\n  KV cache and snapshots were reduced to fit into {} (--kv-tokens and --cache-ram set them)",
                size(room)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use octet_synth::{Mix, tiny};

    use super::*;

    #[test]
    fn what_the_user_leaves_open_is_sized_to_the_memory() {
        let report = Report::new(&tiny("qwen35moe", Mix::Q4KM).unwrap()).unwrap();
        let options = Options { context: Some(1000), max_seqs: 8, ..Options::default() };
        let bill = |free| MemoryPlan::new(&report, &options, free, true).unwrap();
        let (roomy, tight) = (bill(None), bill(Some(0)));
        assert_eq!(roomy.options.kv_tokens, Some(4000));
        // Not 2 GiB of states that nothing could refer to.
        assert!(
            roomy.limits.snapshots > 10 && roomy.limits.snapshots <= 4000 / PAGE_TOKENS,
            "{}",
            roomy.limits.snapshots
        );
        assert_eq!((tight.options.kv_tokens, tight.options.snapshot_memory), (Some(1000), None));
        let text = roomy.text("tiny", &report);
        assert!(
            text.contains("4032 tokens in f16") && text.contains("4 full contexts; at most 8 concurrent"),
            "{text}"
        );
        assert!(!text.contains("trained for"), "{text}");
        let made_for = report.config.context_length;
        let long = Options { context: Some(made_for + 1), ..options.clone() };
        let text = MemoryPlan::new(&report, &long, None, true).unwrap().text("tiny", &report);
        assert!(text.contains(&format!("trained for {made_for} tokens")), "{text}");
        // The remaining memory is for snapshots, and a second context.
        let least = tight.total(&report);
        let room = least + 10 * report.state_bytes() + 1;
        let some = bill(Some(room));
        assert_eq!((some.options.kv_tokens, some.limits.snapshots), (Some(2000), 10));
        assert!(some.total(&report) <= room && some.fits(&report) && !tight.fits(&report));
        let text = some.text("tiny", &report);
        assert!(text.contains("reduced to fit into"), "{text}");
        // If states are small, further contexts come before thousands of them.
        let room = least + 1000 * report.state_bytes();
        let some = bill(Some(room));
        assert_eq!(some.options.kv_tokens, Some(4000));
        assert!(some.total(&report) <= room && some.limits.snapshots > 10);
        let own = Options { kv_tokens: Some(2000), snapshot_memory: Some(1), ..options.clone() };
        let own = MemoryPlan::new(&report, &own, Some(0), true).unwrap().options;
        assert_eq!((own.kv_tokens, own.snapshot_memory), (Some(2000), Some(1)));
    }
}
