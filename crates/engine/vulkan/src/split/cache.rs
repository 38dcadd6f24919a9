//! The caches of the layers of several devices. What is saved of them is in the order of the layers, as one device saves it.

use octet_compute::backend::{Backend, CacheShape, LayerCache, PageGroup, StepShape};

use super::*;

/// KV pages and state slots of all layers, each on the device of its layer.
pub struct Cache {
    pub(super) on: Vec<backend::Cache>,
    runs: Vec<Run>,
}

/// Caches that follow each other and are on one device.
struct Run {
    device: usize,
    /// Bytes of a slot's states, and of a page of each group, in the host's layout.
    slot_bytes: usize,
    page_bytes: [usize; 2],
}

impl Run {
    fn page_bytes(&self, group: PageGroup) -> usize {
        self.page_bytes[usize::from(group == PageGroup::Windowed)]
    }
}

impl Cache {
    /// Puts together what `read` gives of each device.
    pub(super) fn gather(
        &self,
        bytes_of: impl Fn(usize) -> usize,
        out: &mut [u8],
        mut read: impl FnMut(usize, &mut [u8]),
    ) {
        let mut parts = self.parts(&bytes_of);
        parts.iter_mut().enumerate().filter(|(_, p)| !p.is_empty()).for_each(|(i, part)| read(i, part));
        let (mut from, mut at) = (vec![0; parts.len()], 0);
        for (i, run) in self.runs.iter().enumerate() {
            let (n, first) = (bytes_of(i), from[run.device]);
            out[at..at + n].copy_from_slice(&parts[run.device][first..first + n]);
            (from[run.device], at) = (first + n, at + n);
        }
    }

    /// The inverse of [`Cache::gather`].
    pub(super) fn scatter(
        &self,
        bytes_of: impl Fn(usize) -> usize,
        data: &[u8],
        mut write: impl FnMut(usize, &[u8]),
    ) {
        let mut parts = self.parts(&bytes_of);
        let (mut to, mut at) = (vec![0; parts.len()], 0);
        for (i, run) in self.runs.iter().enumerate() {
            let (n, first) = (bytes_of(i), to[run.device]);
            parts[run.device][first..first + n].copy_from_slice(&data[at..at + n]);
            (to[run.device], at) = (first + n, at + n);
        }
        parts.iter().enumerate().filter(|(_, p)| !p.is_empty()).for_each(|(i, part)| write(i, part));
    }

    /// Memory for the part of each device.
    fn parts(&self, bytes_of: &impl Fn(usize) -> usize) -> Vec<Vec<u8>> {
        let mut bytes = vec![0; self.on.len()];
        self.runs.iter().enumerate().for_each(|(i, run)| bytes[run.device] += bytes_of(i));
        bytes.into_iter().map(|n| vec![0; n]).collect()
    }

    /// Bytes of a slot's states in each run.
    pub(super) fn slot_bytes(&self) -> impl Fn(usize) -> usize {
        move |run| self.runs[run].slot_bytes
    }

    /// Bytes of a page in each run.
    pub(super) fn page_bytes(&self, group: PageGroup) -> impl Fn(usize) -> usize {
        move |run| self.runs[run].page_bytes(group)
    }
}

impl Split {
    /// See [`Backend::cache`].
    pub(super) fn caches_of(&mut self, shape: &CacheShape, step: StepShape) -> Result<Cache, Error> {
        let owner: Vec<usize> = (0..shape.layers.len()).map(|i| self.of_cache(i)).collect();
        let on = self.each(|device, be| {
            let own = |(l, of): (&LayerCache, &usize)| if *of == device { *l } else { LayerCache::None };
            let layers = shape.layers.iter().zip(&owner).map(own).collect();
            be.cache(&CacheShape { layers, ..shape.clone() }, step)
        })?;
        self.reserve_rows(step.tokens)?;
        let mut runs: Vec<Run> = Vec::new();
        for (layer, device) in shape.layers.iter().zip(owner) {
            if runs.last().is_none_or(|run| run.device != device) {
                runs.push(Run { device, slot_bytes: 0, page_bytes: [0; 2] });
            }
            if let Some(run) = runs.last_mut() {
                run.slot_bytes += layer.slot_bytes();
                let group = usize::from(layer.group() == Some(PageGroup::Windowed));
                run.page_bytes[group] += layer.page_bytes(shape.kv);
            }
        }
        Ok(Cache { on, runs })
    }
}
