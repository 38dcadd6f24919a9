//! Loads a model into a backend.

use std::sync::Arc;

use octet_compute::Batch;
use octet_compute::backend::Backend;
use octet_compute::inspect::Inspect;
use octet_compute::picks::PICKS;

use super::config::Config;
use super::loader::{GoesOn, Progress};
use super::{Limits, Loaded, Model, derive, kept, mtp};
use crate::Error;

/// Loads a model into `be`. Fails if the file has tensors that are not used here: the model would run, with wrong results.
pub fn load<B: Backend + Inspect>(
    model: &octet_weights::Model,
    be: B,
    limits: Limits,
    progress: Progress<'_>,
) -> Result<Box<dyn Model>, Error> {
    load_while(model, be, limits, progress, &|| true)
}

/// As [`load`], as long as it is to go on: else [`Error::LoadGivenUp`].
pub fn load_while<B: Backend + Inspect>(
    model: &octet_weights::Model,
    mut be: B,
    limits: Limits,
    progress: Progress<'_>,
    goes_on: GoesOn<'_>,
) -> Result<Box<dyn Model>, Error> {
    let config = Config::read(model)?;
    // Checked before gigabytes are packed.
    derive::check_kv(&model.origin, &config.plan, limits.kv)?;
    if limits.pages > u32::MAX as usize {
        let what = format!("a cache of {} pages is more than can be numbered", limits.pages);
        return Err(octet_compute::Error(what).into());
    }
    if let Some(part) = derive::parts(&config.plan).into_iter().find(|p| !be.supports(*p)) {
        let what = format!("{}: {part} are not supported on this device; use --device cpu", model.origin);
        return Err(octet_compute::Error(what).into());
    }
    let decoder = kept::load(model, &mut be, &config.plan, &limits, progress, goes_on)?;
    let windowed = derive::windowed_pages(&config.plan, &limits);
    let shape = derive::cache_shape(decoder.caches.clone(), &limits, windowed);
    let step = derive::step_shape(&config.plan, limits.batch_tokens, limits.batch_outputs);
    let cache = be.cache(&shape, step)?;
    let widths = derive::widths(&config.plan);
    let scratch = decoder.scratch(&mut be, widths, limits.batch_tokens, limits.batch_outputs)?;
    let block = decoder.mtp.as_ref();
    let mtp = block.map(|block| mtp::State::new(&mut be, &limits, &config, block)).transpose()?;
    let counts = Arc::new(decoder.expert_counts(&be, &step));
    // Needed only if they are copied from the backend's own memory.
    let has_logits = decoder.head.is_some() && be.borrow(&scratch.logits).is_none();
    let logits = vec![0.0; if has_logits { limits.batch_outputs * config.vocab } else { 0 }];
    // An encoder's states are always read.
    let states = limits.batch_tokens * config.hidden;
    let normed = config.encoder().map(|_| be.buf(states)).transpose()?;
    let mut loaded = Loaded {
        be,
        decoder,
        cache,
        scratch,
        counts,
        mtp,
        redo: Batch::with_capacity(0, 1, 0),
        picked: Vec::with_capacity(PICKS),
        is_ahead: false,
        normed,
        logits,
        states: Vec::new(),
        states_current: false,
        outputs: 0,
        tokens: 0,
        config,
        shape,
        limits,
    };
    loaded.compile_kernels()?;
    Ok(Box::new(loaded))
}
