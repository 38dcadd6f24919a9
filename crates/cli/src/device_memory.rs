//! How much of a graphics device's memory a model needs, and how it is made to fit: by a smaller KV cache or context if no flag sets them, or by
//! expert slots. Called before a model is loaded onto a device, and by `octet show`.

use octet_compute::backend::{KvTypes, LayerCache, PageGroup};
use octet_compute::batch::PAGE_TOKENS;
use octet_engine::engine::Options;
use octet_engine::engine::speculation::{self, Mode};
use octet_engine::models::Limits;
use octet_engine::report::{Group, GroupReport, Memory, Report, TypeShare};
use octet_engine::vision;

pub use crate::device_bytes::Split;
use crate::device_bytes::{
    FIXED_BYTES, STAGING_BYTES, images, kv_row_bytes, reads_table, step_bytes, weight_bytes,
};
use crate::units::size;

/// Minimum context that a model is reduced to in order to fit, if no flag sets the context.
const CONTEXT_MIN: usize = 4096;

/// Estimated device memory of a model. The embedding table and snapshots stay in the machine's memory.
pub fn bill(report: &Report, limits: &Limits, exact: bool) -> Memory {
    let cpu = report.memory(&Limits { snapshots: 0, ..limits.clone() }, exact);
    // The block for multi-token prediction counts as speculation. A tied head is listed as a tensor of its own, with the table's type.
    let is_elsewhere =
        |group| matches!(group, Group::Other | Group::Mtp | Group::Embedding | Group::LayerEmbedding);
    let groups = report.groups.iter().filter(|g| !is_elsewhere(g.group));
    let weights = groups.map(|g| group_bytes(g, exact)).fold(0, u64::saturating_add);
    let activations = step_bytes(report, limits, cpu.activations);
    Memory {
        weights,
        kv: kv_bytes(report, limits).fold(0, u64::saturating_add),
        activations: activations.saturating_add(FIXED_BYTES),
        ..cpu
    }
}

/// Bytes of the keys and values of each cache.
pub fn kv_bytes(report: &Report, limits: &Limits) -> impl Iterator<Item = u64> {
    // Pages of windows that the prefix cache keeps are on the device, too.
    let windowed = report.windowed_pages(limits).map_or(limits.pages, |(of, _)| of.pages);
    report.caches.iter().map(move |cache| {
        let pages = if cache.group() == Some(PageGroup::Windowed) { windowed } else { limits.pages };
        (page_bytes(*cache, limits.kv) as u64).saturating_mul(pages as u64)
    })
}

/// The limits of a model on a device, which has a spare slot for steps that are submitted ahead.
pub fn with_spare(limits: Limits) -> Limits {
    Limits { spare_slots: 1, ..limits }
}

/// Bytes of the machine's memory for steps that are submitted ahead: a copy of the embedding table, made when the first one begins if that memory
/// is free then. 0 if the device cannot read the table.
pub fn table_copy(report: &Report) -> u64 {
    let table = report.group(Group::Embedding);
    table.filter(|g| g.types.iter().all(|t| reads_table(t.ty))).map_or(0, |g| g.bytes)
}

/// Bytes of a page of a layer on the device.
fn page_bytes(cache: LayerCache, kv: KvTypes) -> usize {
    match cache {
        LayerCache::Kv { kv_heads, k_dim, v_dim, .. } => {
            kv_heads * PAGE_TOKENS * (kv_row_bytes(kv.keys, k_dim) + kv_row_bytes(kv.values, v_dim))
        }
        _ => 0,
    }
}

/// Bytes of a group's weights on a device.
fn group_bytes(group: &GroupReport, exact: bool) -> u64 {
    type_bytes(&group.types, exact)
}

/// Bytes of weights of these types on a device.
pub fn type_bytes(types: &[TypeShare], exact: bool) -> u64 {
    let of = |ty: octet_weights::GgmlType, bytes: u64| {
        let values = (bytes / ty.block_bytes() as u64).saturating_mul(ty.block_len() as u64);
        weight_bytes(if exact { octet_weights::GgmlType::F32 } else { ty }, values)
    };
    types.iter().map(|t| of(t.ty, t.bytes)).fold(0, u64::saturating_add)
}

/// Bytes of all routed experts on a device.
fn expert_bytes(report: &Report) -> u64 {
    report.group(Group::RoutedExperts).map_or(0, |g| group_bytes(g, false))
}

/// Number of experts of each layer that a device with `room` bytes keeps in its memory, with all of them in the machine's: `None` if all fit
/// on the device. Fails with the number of bytes needed if no expert fits beside the rest of the model.
pub fn expert_slots(report: &Report, limits: &Limits, room: u64) -> Result<Option<usize>, u64> {
    let all = bill(report, limits, false).total();
    if all <= room {
        return Ok(None);
    }
    let experts = expert_bytes(report);
    let rest = all.saturating_sub(experts);
    let moe = report.config.moe.filter(|_| experts > 0 && room > rest).ok_or(all)?;
    let slots = (u128::from(room - rest) * moe.experts as u128 / u128::from(experts)) as usize;
    // at least the experts of one token
    if slots < moe.top_k { Err(all) } else { Ok(Some(slots)) }
}

impl Split {
    /// With `slots` experts of each layer in the device's memory, and all of them in the machine's. `None`: all are in the device's.
    pub fn new(report: &Report, limits: &Limits, slots: Option<usize>, exact: bool) -> Self {
        let all = bill(report, limits, exact).total();
        let bytes = |group| report.group(group).map_or(0, |g| g.bytes);
        let table = bytes(Group::Embedding).saturating_add(bytes(Group::LayerEmbedding));
        let snapshots = report.state_bytes().saturating_mul(limits.snapshots as u64);
        let logits = match report.config.encoder() {
            None => 4 * (report.config.vocab * limits.batch_outputs) as u64,
            // The states, and rows of the embedding tables.
            Some(_) => 12 * (report.config.hidden * limits.batch_tokens) as u64,
        };
        let machine = table.saturating_add(snapshots).saturating_add(logits + STAGING_BYTES);
        match (slots, report.config.moe) {
            (Some(slots), Some(moe)) => {
                let experts = expert_bytes(report);
                let own = (u128::from(experts) * slots as u128 / moe.experts.max(1) as u128) as u64;
                Self { device: all.saturating_sub(experts) + own, machine: machine.saturating_add(experts) }
            }
            _ => Self { device: all, machine },
        }
    }
}

/// Memory available for a model; `None` if it is unknown, or not checked.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    pub device: Option<u64>,
    pub machine: Option<u64>,
}

impl Room {
    fn holds(self, split: Split) -> bool {
        self.device.is_none_or(|room| split.device <= room)
            && self.machine.is_none_or(|room| split.machine <= room)
    }

    /// Missing bytes of the device and of the machine, in an order that compares the device's first.
    fn shortage(self, split: Split) -> (u64, u64) {
        let missing = |bytes: u64, room: Option<u64>| room.map_or(0, |room| bytes.saturating_sub(room));
        (missing(split.device, self.device), missing(split.machine, self.machine))
    }
}

/// A model that is to be loaded onto a device, and the sizes that it gets if there is room.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    pub report: &'a Report,
    /// As the user set them.
    pub options: &'a Options,
    /// Numbers of contexts in the KV cache to try in turn if no flag sets its tokens. Not empty.
    pub contexts: &'a [usize],
    /// Bytes of snapshots if no flag sets them; `None` is what one conversation needs.
    pub snapshots: Option<u64>,
}

/// A model on a device: its sizes, all filled in.
#[derive(Debug, Clone)]
pub struct Placement {
    pub options: Options,
    pub limits: Limits,
    /// Experts of each layer in the device's memory; `None` is all.
    pub slots: Option<usize>,
    /// Memory of the model and the draft model.
    pub split: Split,
    /// The draft model's part.
    pub draft: Split,
    /// What was reduced to fit, as messages for the user. Empty if nothing was.
    pub smaller: Vec<String>,
    /// The layers of each of several devices, and their memory, for the user. Empty for one device.
    pub layers: Vec<String>,
}

/// Sizes to try.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    context: usize,
    /// Contexts in the KV cache.
    contexts: usize,
    /// With the block for multi-token prediction, if it was requested.
    with_block: bool,
    /// With expert slots: the minimum number of each layer.
    pub slots_min: Option<usize>,
}

impl Wanted<'_> {
    /// The largest sizes that fit. If none do, fails with the minimum that the model needs: dense weights, expert slots and the
    /// smallest context.
    ///
    /// If memory is short, sizes are reduced in this order: a smaller KV cache, no block for multi-token prediction, experts in the
    /// machine's memory, a smaller context. A size that a flag sets is kept. The tower that reads images is on the device if only the KV cache
    /// becomes smaller for it, else on the processor.
    pub fn place(&self, room: Room) -> anyhow::Result<Result<Placement, Split>> {
        let Some(vision) = &self.options.vision else { return self.place_with(room) };
        let with = |on_device| {
            let vision = Some(vision::Options { on_device, ..vision.clone() });
            Wanted { options: &Options { vision, ..self.options.clone() }, ..*self }.place_with(room)
        };
        let beside = with(false)?;
        let block = |p: &Placement| p.options.speculation.mode;
        Ok(match (with(true)?, beside) {
            (Ok(there), Ok(beside))
                if there.slots.is_some()
                    || there.options.context != beside.options.context
                    || block(&there) != block(&beside) =>
            {
                Ok(beside)
            }
            (Ok(there), _) => Ok(there),
            (Err(_), beside) => beside,
        })
    }

    /// The same with the tower where the options say.
    fn place_with(&self, room: Room) -> anyhow::Result<Result<Placement, Split>> {
        self.report.check_kv(self.options.for_config(&self.report.config).kv)?;
        let draft = self.draft()?;
        let mut least = None;
        for size in self.sizes() {
            let mut placement = self.sized(size, draft.as_ref())?;
            if let Some(fewest) = size.slots_min {
                let vision = self.options.vision.as_ref();
                let tower = vision.map_or(0, |v| images(v, self.options.cpu.exact).device);
                let others = placement.draft.device.saturating_add(tower);
                let left = room.device.map_or(u64::MAX, |b| b.saturating_sub(others));
                let slots = expert_slots(self.report, &placement.limits, left);
                placement.slots = Some(slots.ok().flatten().unwrap_or(fewest));
                placement.split = self.split(&placement);
            }
            if room.holds(placement.split) {
                placement.smaller = self.smaller(size, placement.slots);
                self.add_snapshots(&mut placement, room)?;
                return Ok(Ok(placement));
            }
            let short = room.shortage(placement.split);
            if least.is_none_or(|(least, _)| short < least) {
                least = Some((short, placement.split));
            }
        }
        let (_, least) = least.expect("at least one size was tried");
        Ok(Err(least))
    }

    /// The same for one of `of` models that use a device. It gets an equal share, so that all stay loaded together. It gets all of `room` if that
    /// gives it a longer context or room for its experts.
    pub fn place_among(&self, room: Room, of: usize) -> anyhow::Result<Result<Placement, Split>> {
        let whole = self.place(room)?;
        if of < 2 {
            return Ok(whole);
        }
        let share = self.place(Room { device: room.device.map(|bytes| bytes / of as u64), ..room })?;
        Ok(match (share, whole) {
            (Ok(share), Ok(whole))
                if share.slots.is_none() && share.options.context == whole.options.context =>
            {
                Ok(share)
            }
            (_, whole) => whole,
        })
    }

    /// The requested sizes, without a check.
    pub fn unchecked(&self) -> anyhow::Result<Placement> {
        let room = Room { device: None, machine: None };
        self.place(room)?.map_err(|_| anyhow::anyhow!("a model without a memory limit always fits"))
    }

    /// The draft model, which is on the same device.
    fn draft(&self) -> anyhow::Result<Option<(&octet_weights::Model, Report)>> {
        let draft = self.options.draft_model();
        draft.map(|model| Ok((model, Report::new(model)?))).transpose()
    }

    fn split(&self, p: &Placement) -> Split {
        let own = Split::new(self.report, &p.limits, p.slots, self.options.cpu.exact);
        let none = Split { device: 0, machine: 0 };
        let of_images = self.options.vision.as_ref().map_or(none, |v| images(v, self.options.cpu.exact));
        let sum =
            |part: fn(&Split) -> u64| [own, p.draft, of_images].iter().map(part).fold(0, u64::saturating_add);
        Split { device: sum(|s| s.device), machine: sum(|s| s.machine) }
    }

    /// The sizes to try, in turn.
    pub fn sizes(&self) -> Vec<Size> {
        let first = self.options.context_for(self.report.config.context_length);
        let smaller = |context: &usize| {
            let half = context / 2;
            (self.options.context.is_none() && half >= CONTEXT_MIN).then_some(half)
        };
        // The block was not requested by name, so it may stay out.
        let is_optional = self.options.speculation.mode == Mode::Auto && self.report.config.mtp_layers > 0;
        let blocks: &[bool] = if is_optional { &[true, false] } else { &[true] };
        // A device holds at least the experts of one token.
        let moe = self.report.config.moe.filter(|m| !self.options.cpu.exact && m.top_k < m.experts);
        let few = &self.contexts[self.contexts.len() - 1..];
        let mut sizes = Vec::new();
        for context in std::iter::successors(Some(first), smaller) {
            let mut add = |with_block, contexts: &[usize], slots_min| {
                sizes.extend(contexts.iter().map(|&contexts| Size {
                    context,
                    contexts,
                    with_block,
                    slots_min,
                }));
            };
            blocks.iter().for_each(|&with_block| add(with_block, self.contexts, None));
            if let Some(moe) = moe {
                blocks.iter().for_each(|&with_block| add(with_block, few, Some(moe.top_k)));
            }
        }
        sizes
    }

    pub fn sized(
        &self,
        size: Size,
        draft: Option<&(&octet_weights::Model, Report)>,
    ) -> anyhow::Result<Placement> {
        let o = self.options;
        let mut speculation = o.speculation.clone();
        if !size.with_block {
            speculation = speculation::Options { mode: Mode::Lookup, ..speculation };
        }
        let kv_tokens = size.context.saturating_mul(self.at_once(size.contexts));
        let options = Options {
            context: Some(size.context),
            kv_tokens: o.kv_tokens.or(Some(kv_tokens)),
            speculation,
            ..o.clone()
        };
        let options = options.for_config(&self.report.config);
        let made_for = self.report.config.context_length;
        let limits = with_spare(options.limits(made_for, self.report.state_bytes())?);
        let draft = match draft {
            // The draft model's cache grows with the model's.
            Some((model, report)) => {
                Split::new(report, &options.draft_limits(made_for, model)?, None, o.cpu.exact)
            }
            None => Split { device: 0, machine: 0 },
        };
        let mut placement =
            Placement { options, limits, slots: None, split: draft, draft, smaller: vec![], layers: vec![] };
        placement.split = self.split(&placement);
        Ok(placement)
    }

    /// No more contexts than concurrent requests.
    fn at_once(&self, contexts: usize) -> usize {
        contexts.min(self.options.max_seqs).max(1)
    }

    /// What was reduced, as messages for the user.
    pub fn smaller(&self, size: Size, slots: Option<usize>) -> Vec<String> {
        let mut out = Vec::new();
        let first = self.options.context_for(self.report.config.context_length);
        if size.context < first {
            out.push(format!(
                "the context is {} tokens instead of {first} (--ctx-size sets it)",
                size.context
            ));
        }
        let (most, contexts) = (self.at_once(self.contexts[0]), self.at_once(size.contexts));
        if self.options.kv_tokens.is_none() && contexts < most {
            let (holds, wanted) = (size.context * contexts, first * most);
            out.push(format!("the KV cache holds {holds} tokens instead of {wanted} (--kv-tokens sets it)"));
        }
        if !size.with_block {
            out.push("the block for multi-token prediction is not loaded".into());
        }
        if let (Some(slots), Some(moe)) = (slots, self.report.config.moe) {
            out.push(format!(
                "the experts are in the machine's memory, and the device keeps the {slots} most recently used ones of the {} of each layer",
                moe.experts
            ));
        }
        out
    }

    /// Snapshots are in the machine's memory. They get the wanted bytes within what is left there, and never less than one conversation needs.
    pub fn add_snapshots(&self, placement: &mut Placement, room: Room) -> anyhow::Result<()> {
        let slot = self.report.state_bytes();
        let (None, Some(wanted), true) = (self.options.snapshot_memory, self.snapshots, slot > 0) else {
            return Ok(());
        };
        let own = slot.saturating_mul(placement.limits.snapshots as u64);
        let left = room.machine.map_or(wanted, |bytes| bytes.saturating_sub(placement.split.machine));
        let bytes = wanted.min(left.saturating_add(own));
        if bytes <= own {
            return Ok(());
        }
        placement.options.snapshot_memory = Some(bytes);
        let limits = placement.options.limits(self.report.config.context_length, slot)?;
        placement.limits = with_spare(limits);
        let device = placement.split.device;
        placement.split = Split { device, ..self.split(placement) };
        Ok(())
    }
}

/// Message for the user: why a model does not fit on a device. `least` is the minimum that it needs.
pub fn shortage(device: &str, least: Split, room: Room, limit: Option<u64>) -> String {
    if let Some(free) = room.machine.filter(|free| *free < least.machine) {
        return format!(
            "on {device} it needs at least {} of the machine's memory, for the parts that are not on the device, and {} are free",
            size(least.machine),
            size(free)
        );
    }
    let free = room.device.unwrap_or(0);
    let free = match limit {
        Some(limit) if limit <= free => format!("--gpu-memory allows {}", size(limit)),
        _ => format!("{} are free", size(free)),
    };
    format!("it needs at least {} of the memory of {device}, and {free}", size(least.device))
}

#[cfg(test)]
mod tests {
    use octet_synth::{Mix, tiny};

    use super::*;

    fn report(name: &str) -> Report {
        Report::new(&tiny(name, Mix::Q4KM).unwrap()).unwrap()
    }

    #[test]
    fn experts_that_do_not_fit_get_slots() {
        let report = report("qwen35moe");
        let limits = Limits::single(1000);
        let all = bill(&report, &limits, false).total();
        let experts = expert_bytes(&report);
        assert_eq!(expert_slots(&report, &limits, all), Ok(None));
        // 8 experts, of which a token takes 3
        assert_eq!(expert_slots(&report, &limits, all - 1), Ok(Some(7)));
        assert_eq!(expert_slots(&report, &limits, all - experts / 2), Ok(Some(4)));
        assert_eq!(expert_slots(&report, &limits, all - experts * 6 / 8), Err(all));
        assert_eq!(expert_slots(&report, &limits, 1000), Err(all));
        let dense = self::report("llama");
        assert!(expert_slots(&dense, &limits, 1000).is_err());
    }

    #[test]
    fn what_no_flag_sets_is_sized_to_the_devices_memory() {
        let report = report("qwen35moe");
        let speculation = speculation::Options::off();
        let options = Options { context: Some(1000), max_seqs: 8, speculation, ..Options::default() };
        let wanted =
            Wanted { report: &report, options: &options, contexts: &[4, 2, 1], snapshots: Some(1 << 20) };
        let place = |device| wanted.place(Room { device: Some(device), machine: None }).unwrap();
        let all = wanted.unchecked().unwrap();
        assert_eq!((all.options.kv_tokens, all.slots, all.smaller.len()), (Some(4000), None, 0));
        let need = |kv: usize| {
            wanted.sized(Size { context: 1000, contexts: kv, with_block: true, slots_min: None }, None)
        };
        let need = |kv| need(kv).unwrap().split.device;
        assert!(need(4) > need(2) && need(2) > need(1) && all.split.device == need(4));
        assert_eq!(place(need(4)).unwrap().options.kv_tokens, Some(4000));
        let some = place(need(4) - 1).unwrap();
        assert_eq!((some.options.kv_tokens, some.slots), (Some(2000), None));
        assert!(some.split.device < need(4) && some.smaller[0].contains("2000 tokens instead of 4000"));
        // then experts go to the machine's memory
        let few = place(need(1) - expert_bytes(&report) / 2).unwrap();
        assert_eq!((few.options.kv_tokens, few.slots), (Some(1000), Some(4)));
        assert!(few.split.device < need(1) && few.split.machine > all.split.machine, "{few:?}");
        // a context that a flag sets stays as it is
        let least = place(1000).unwrap_err();
        assert!(place(least.device).is_ok_and(|p| p.slots == Some(3)) && place(least.device - 1).is_err());
        // and so does a number of tokens
        let own = Options { kv_tokens: Some(3000), ..options.clone() };
        let own = Wanted { options: &own, ..wanted }.place(Room { device: Some(need(2)), machine: None });
        assert_eq!(own.unwrap().unwrap().options.kv_tokens, Some(3000));
    }

    #[test]
    fn a_context_that_no_flag_sets_is_halved_where_there_is_no_room() {
        let mut report = report("llama");
        report.config.context_length = 1 << 20;
        let options = Options::default();
        let wanted = Wanted { report: &report, options: &options, contexts: &[1], snapshots: None };
        let place = |device| wanted.place(Room { device: Some(device), machine: None }).unwrap();
        let all = wanted.unchecked().unwrap();
        assert_eq!((all.options.context, all.smaller.len()), (Some(16_384), 0));
        let half = place(all.split.device - 1).unwrap();
        assert_eq!(half.options.context, Some(8192));
        assert!(half.smaller[0].contains("8192 tokens instead of 16384"), "{:?}", half.smaller);
        let least = place(0).unwrap_err();
        assert_eq!(place(least.device).unwrap().options.context, Some(4096));
        let text = shortage("vulkan:0", least, Room { device: Some(1), machine: None }, Some(1));
        assert!(text.contains("--gpu-memory allows"), "{text}");
    }

    #[test]
    fn a_share_of_the_device_counts_where_it_does_not_cut_the_context() {
        let mut report = report("llama");
        report.config.context_length = 1 << 20;
        let options = Options { max_seqs: 2, ..Options::default() };
        let wanted = Wanted { report: &report, options: &options, contexts: &[2, 1], snapshots: None };
        let place = |device, of| {
            let placed =
                wanted.place_among(Room { device: Some(device), machine: None }, of).unwrap().unwrap();
            (placed.options.context.unwrap(), placed.options.kv_tokens.unwrap())
        };
        let all = wanted.unchecked().unwrap().split.device;
        assert_eq!(place(2 * all, 2), (16_384, 32_768));
        // a smaller cache lets both stay
        assert_eq!((place(2 * all - 2, 2), place(2 * all - 2, 1)), ((16_384, 16_384), (16_384, 32_768)));
        // half a context does not
        let one = Wanted { contexts: &[1], ..wanted }.unchecked().unwrap().split.device;
        assert_eq!(place(2 * one, 2), (16_384, 16_384));
        assert_eq!(place(2 * one - 2, 2), place(2 * one - 2, 1));
    }

    /// Its weights are those of a device, and its cache holds as many tokens as the model's.
    #[test]
    fn a_draft_model_is_billed_as_it_is_loaded() {
        let report = report("qwen35moe");
        let small = std::sync::Arc::new(tiny("llama", Mix::Q4KM).unwrap());
        let (made_for, draft) = (report.config.context_length, Report::new(&small).unwrap());
        let speculation = speculation::Options {
            mode: Mode::Draft,
            draft: Some(small.clone()),
            ..speculation::Options::default()
        };
        let options = Options { context: Some(1000), max_seqs: 8, speculation, ..Options::default() };
        let none = Options { speculation: speculation::Options::off(), ..options.clone() };
        let wanted = Wanted { report: &report, options: &options, contexts: &[4, 1], snapshots: None };
        let all = wanted.unchecked().unwrap();
        assert_eq!(all.options.kv_tokens, Some(4000));
        let limits = all.options.draft_limits(made_for, &small).unwrap();
        assert_eq!(all.draft.device, bill(&draft, &limits, false).total());
        assert!(limits.pages > 4000 / PAGE_TOKENS && all.split.device > all.draft.device);
        let without = Wanted { options: &none, ..wanted }.unchecked().unwrap();
        assert_eq!(without.draft, Split { device: 0, machine: 0 });
        // it shrinks with the model's cache
        let room = Room { device: Some(all.split.device - 1), machine: None };
        let less = wanted.place(room).unwrap().unwrap();
        assert_eq!((less.options.kv_tokens, less.slots), (Some(1000), None));
        assert!(less.draft.device < all.draft.device && less.split.device < all.split.device);
    }

    /// A model that fits without the copy of the table is not made smaller for it, and a draft model has neither copy nor spare slot.
    #[test]
    fn what_only_steps_ahead_need_refuses_no_model() {
        let report = report("qwen35moe");
        let table = report.group(Group::Embedding).unwrap().bytes;
        assert!(table > 0 && table_copy(&report) == if cfg!(feature = "vulkan") { table } else { 0 });
        let (limits, states) = (Limits::single(64), |limits: &Limits| bill(&report, limits, false).states);
        assert_eq!(states(&with_spare(limits.clone())), 2 * states(&limits));
        let machine = Split::new(&report, &limits, None, false).machine;
        assert_eq!(machine, table + 4 * report.config.vocab as u64 + STAGING_BYTES);
        let mut unread = report;
        let table = unread.groups.iter_mut().find(|g| g.group == Group::Embedding).unwrap();
        table.types[0].ty = octet_weights::GgmlType::Q4_1;
        assert_eq!(table_copy(&unread), 0);
    }

    #[test]
    fn snapshots_are_sized_to_the_machines_memory() {
        let report = report("qwen35moe");
        let options = Options { context: Some(1000), ..Options::default() };
        let wanted = Wanted { report: &report, options: &options, contexts: &[1], snapshots: Some(1 << 30) };
        let place = |machine| wanted.place(Room { device: None, machine: Some(machine) }).unwrap();
        let many = wanted.unchecked().unwrap();
        let few = place(many.split.machine - 1).unwrap();
        assert!(few.limits.snapshots < many.limits.snapshots && few.split.machine < many.split.machine);
        let least = place(0).unwrap_err();
        assert_eq!(place(least.machine).unwrap().limits.snapshots, 3);
        let text = shortage("vulkan:0", least, Room { device: None, machine: Some(0) }, None);
        assert!(text.contains("of the machine's memory"), "{text}");
    }

    /// Half of gpt-oss's layers have a window of 128 tokens: a running sequence needs three pages of these layers, whatever its context.
    #[test]
    fn layers_with_a_window_have_pages_of_their_own() {
        let shape = octet_synth::known::shape("gpt-oss-20b").unwrap();
        let model = octet_synth::synthetic(&shape, Mix::Mxfp4Moe, Some(2), 0).unwrap();
        let report = Report::new(&model).unwrap();
        let limits = Limits { pages: 1000, slots: 1, ..Limits::single(64) };
        let kv = |page_groups| bill(&report, &Limits { page_groups, ..limits.clone() }, false).kv;
        let (pages, _) = report.windowed_pages(&Limits { page_groups: true, ..limits.clone() }).unwrap();
        assert!(pages.pages < 10, "{}", pages.pages);
        assert_eq!(kv(true) * 2000, kv(false) * (1000 + pages.pages as u64));
    }

    /// A tied head takes the table's bytes once on the device.
    #[test]
    fn a_tied_head_counts_once() {
        let tied = report("qwen35");
        let head = tied.group(Group::LmHead).unwrap();
        let weights = bill(&tied, &Limits::single(64), false).weights;
        assert!(tied.tied == (head.bytes == 0) && weights < tied.bytes * 2, "{weights} of {}", tied.bytes);
    }
}
