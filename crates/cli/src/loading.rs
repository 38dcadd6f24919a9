//! Loads an opened model, if it fits into memory.

use std::io::IsTerminal;

use octet_engine::engine::{Engine, Options};
use octet_engine::report::Report;
use octet_engine::score::Scorer;

use crate::args::EngineArgs;
use crate::device::{Among, least};
use crate::device_memory::{Split, Wanted};
use crate::images::ImageFlags;
use crate::progress::Bar;
use crate::settings::Settings;
use crate::stderr::note;

/// Loads a model for generation, if it fits, with a tower for images. Without one, the text says why; if `has_images`, that is an error.
pub fn load(
    model: &octet_weights::Model,
    args: &EngineArgs,
    (images, has_images): (&ImageFlags, bool),
    settings: &Settings,
) -> anyhow::Result<(Engine, String)> {
    let mut options = args.options(settings)?;
    let (vision, blind) = images.tower(model)?.split();
    options.vision = vision;
    check(model, args, std::slice::from_mut(&mut options))?;
    anyhow::ensure!(!has_images || options.vision.is_some(), "the model reads no images: {blind}");
    if let Some(vision) = options.vision.as_ref().filter(|_| std::io::stderr().is_terminal()) {
        let device = options.device.as_ref().map(|device| device.name());
        note!("{}", crate::images::describe(vision, device));
    }
    let bar = Bar::bytes("loading");
    let engine = Engine::open(model, &options, &mut |done, all| bar.update(done, all))?;
    Ok((engine, blind))
}

/// Loads a model once for each of `variants` for scoring, if they fit together.
pub fn load_to_score(
    model: &octet_weights::Model,
    args: &EngineArgs,
    variants: &mut [Options],
) -> anyhow::Result<Vec<Scorer>> {
    // A text that is scored keeps all of its pages.
    variants.iter_mut().for_each(|options| options.page_groups = false);
    check(model, args, variants)?;
    let bar = Bar::bytes("loading");
    let mut open = |options| Scorer::open(model, options, &mut |done, all| bar.update(done, all));
    Ok(variants.iter().map(&mut open).collect::<Result<_, _>>()?)
}

/// Chooses the devices, and fails if the models do not fit.
fn check(model: &octet_weights::Model, args: &EngineArgs, variants: &mut [Options]) -> anyhow::Result<()> {
    let report = Report::new(model)?;
    variants.iter_mut().for_each(|options| *options = options.for_config(&report.config));
    let made_for = report.config.context_length;
    let context = variants.first().map_or(0, |options| options.context_for(made_for));
    if context > made_for {
        note!("note: the model was trained for {made_for} tokens; answers may be poor beyond that");
    }
    let is_checked = !args.memory.no_memory_check;
    let limit = args.limit.memory_limit;
    // Once: what this command does meanwhile takes some, too.
    let free = crate::memory::available().filter(|_| is_checked);
    // They stay loaded together.
    let mut taken = Split { device: 0, machine: 0 };
    let is_alone = variants.len() == 1;
    for options in &mut *variants {
        let wanted = Wanted { report: &report, options, contexts: &[1], snapshots: None };
        let machine = least(free, limit).map(|bytes| bytes.saturating_sub(taken.machine));
        let among = Among { of: 1, taken: taken.device };
        if let Some(placed) = args.device.place(&wanted, among, machine, is_checked)? {
            taken.device += placed.split.device;
            taken.machine += placed.split.machine;
            for what in placed.smaller {
                note!("note: {what}");
            }
            *options = placed.options;
        } else if is_alone {
            crate::memory::shrink(&report, options, least(free, limit), args.steps_may_grow())?;
        }
    }
    // Devices check their own memory.
    let needs = variants.iter().filter(|o| o.device.is_none());
    let needs = needs.map(|o| crate::memory::needed(&report, o)).collect::<anyhow::Result<Vec<_>>>()?;
    crate::memory::check_within(free, limit, &report, &needs, context, "a smaller --ctx-size")?;
    let on_disk = variants.iter().filter(|o| o.device.is_none());
    for what in on_disk.filter_map(|o| crate::memory::stored(model, &report, &o.cpu)) {
        note!("note: {what}");
    }
    Ok(())
}
