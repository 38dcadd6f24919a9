//! Loads a decoder from packed weights that were kept, as far as there are some.

use octet_compute::backend::{Backend, FileId};
use octet_weights::{Mapped, Model};

use super::Limits;
use super::decoder::Decoder;
use super::loader::{GoesOn, Loader, Progress};
use super::plan::Plan;
use crate::Error;

/// Changes with what the loader makes of a model's tensors before they are packed.
const VERSION: u32 = 1;
/// Of each file, so many places of so many bytes count.
const PLACES: usize = 16;
const PLACE_BYTES: usize = 4096;

/// Loads a decoder; without what was kept if that is damaged.
pub(super) fn load<B: Backend>(
    model: &Model,
    be: &mut B,
    plan: &Plan,
    limits: &Limits,
    progress: Progress<'_>,
    goes_on: GoesOn<'_>,
) -> Result<Decoder<B>, Error> {
    if let Some(id) = id(model) {
        be.begin_load(&id);
    }
    let mtp = limits.mtp.then_some(limits.draft_vocab);
    let mut loaded = |be: &mut B| {
        let decoder = Loader::new(model, be, plan, &mut *progress).while_it(goes_on).decoder(mtp);
        // First: what was missing may be an error of its own.
        model.check_files()?;
        let decoder = decoder?;
        be.end_load()?;
        Ok(decoder)
    };
    match loaded(be) {
        Err(_) if be.discard_kept() => loaded(be),
        done => done,
    }
}

/// What identifies a model's files; `None` if it is not in files.
fn id(model: &Model) -> Option<FileId> {
    let files = model.files();
    let path = files.first()?.stamp.as_ref()?.path.clone();
    let mut h = blake3::Hasher::new();
    h.update(b"octet packed").update(&VERSION.to_le_bytes());
    for file in files {
        let stamp = file.stamp.as_ref()?;
        h.update(&stamp.size.to_le_bytes())
            .update(&stamp.modified_ns.to_le_bytes())
            .update(&stamp.inode.to_le_bytes());
        sample(file, &mut h);
    }
    // They change packed weights.
    if let Ok(Some(factors)) = model.metadata.opt_str("octet.row_factors") {
        h.update(factors.as_bytes());
    }
    for t in model.tensors() {
        h.update(format!("{:?} {:?} {:?};", t.name, t.ty, t.shape).as_bytes());
    }
    Some(FileId { key: h.finalize().into(), path })
}

/// Hashes some of a file's bytes, its beginning and end among them: another file may have been given the same time.
fn sample(file: &Mapped, h: &mut blake3::Hasher) {
    let last = file.bytes.len().saturating_sub(PLACE_BYTES);
    for i in 0..PLACES {
        let at = (last as u128 * i as u128 / (PLACES - 1) as u128) as usize;
        h.update(&file.bytes[at..file.bytes.len().min(at + PLACE_BYTES)]);
    }
}
