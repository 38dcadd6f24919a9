//! Copies of states and pages in the host's memory, in the CPU's layout. All parts of a copy share submissions.

use octet_compute::Error;
use octet_compute::backend::{KvType, PageGroup};

use crate::backend::Vulkan;
use crate::cache::{Cache, LayerStore, PagePart, device_row_bytes};
use crate::transfer::Part;
use crate::weights;

/// The states of a slot, layer by layer.
fn slot_parts(cache: &Cache, slot: usize) -> Vec<Part> {
    let of = |layer: &LayerStore| {
        let LayerStore::State { conv, conv_bytes, state, state_bytes, .. } = layer else { return None };
        let part = |buffer, bytes: u64| Part { buffer, at: slot as u64 * bytes, bytes: bytes as usize };
        Some([part(conv.clone(), *conv_bytes), part(state.clone(), *state_bytes)])
    };
    cache.layers.iter().filter_map(of).flatten().collect()
}

/// A page of these keys or values.
fn page_part((buffer, ty, rows, dim): &PagePart, page: usize) -> Part {
    let bytes = rows * device_row_bytes(*ty, *dim);
    Part { buffer: buffer.clone(), at: (page * bytes) as u64, bytes }
}

impl Vulkan {
    pub(crate) fn download_slot(&mut self, cache: &Cache, slot: usize, out: &mut [u8]) -> Result<(), Error> {
        self.save_parts(&slot_parts(cache, slot), out)
    }

    pub(crate) fn upload_slot(&mut self, cache: &Cache, slot: usize, data: &[u8]) -> Result<(), Error> {
        self.upload_parts(&slot_parts(cache, slot), data)
    }

    pub(crate) fn download_page(
        &mut self,
        cache: &Cache,
        group: PageGroup,
        page: usize,
        out: &mut [u8],
    ) -> Result<(), Error> {
        let all = cache.page_parts(group);
        let parts: Vec<Part> = all.iter().map(|p| page_part(p, page)).collect();
        let mut bytes = vec![0; parts.iter().map(|p| p.bytes).sum()];
        self.save_parts(&parts, &mut bytes)?;
        let (mut from, mut to) = (&bytes[..], out);
        for (_, ty, rows, dim) in &all {
            let (device, own) = (device_row_bytes(*ty, *dim), ty.row_bytes(*dim));
            let (now, later) = from.split_at(rows * device);
            let (out, rest) = to.split_at_mut(rows * own);
            match ty {
                KvType::Q8_0 => {
                    let rows = now.chunks_exact(device).zip(out.chunks_exact_mut(own));
                    rows.for_each(|(from, to)| weights::q8_row_to_blocks(from, to));
                }
                _ => out.copy_from_slice(now),
            }
            (from, to) = (later, rest);
        }
        Ok(())
    }

    pub(crate) fn upload_page(
        &mut self,
        cache: &Cache,
        group: PageGroup,
        page: usize,
        data: &[u8],
    ) -> Result<(), Error> {
        let all = cache.page_parts(group);
        let parts: Vec<Part> = all.iter().map(|p| page_part(p, page)).collect();
        let mut bytes = vec![0; parts.iter().map(|p| p.bytes).sum()];
        let (mut from, mut to) = (data, &mut bytes[..]);
        for (_, ty, rows, dim) in &all {
            let (device, own) = (device_row_bytes(*ty, *dim), ty.row_bytes(*dim));
            let (now, later) = from.split_at(rows * own);
            let (out, rest) = to.split_at_mut(rows * device);
            match ty {
                KvType::Q8_0 => {
                    let rows = now.chunks_exact(own).zip(out.chunks_exact_mut(device));
                    rows.for_each(|(from, to)| weights::q8_row_from_blocks(from, to));
                }
                _ => out.copy_from_slice(now),
            }
            (from, to) = (later, rest);
        }
        self.upload_parts(&parts, &bytes)
    }
}
