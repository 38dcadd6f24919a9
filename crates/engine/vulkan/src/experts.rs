//! Experts in the host's memory, and a cache of slots for some of them in the device's own. The device manages it: kernels choose the slots
//! (resolve.comp), copy experts to them (fill.comp), and read those that got none from the host's memory. The host takes no part, and
//! no bit depends on where an expert lies.
//!
//! The table of a layer: slot of each expert, expert of each slot, step in which each slot was last used, number of steps.

use std::sync::Arc;

use octet_compute::Error;
use octet_compute::backend::{Moe, StepShape};
use octet_weights::Matrix;

use crate::backend::{Vulkan, Weight};
use crate::kernel::Kernel;
use crate::memory::{Buffer, Place};
use crate::pack;

/// An expert without a slot, a slot without an expert.
const NONE: u32 = u32::MAX;

/// All experts of one projection in the host's memory.
#[derive(Clone)]
pub(crate) struct Paged {
    pub(crate) quants: Arc<Buffer>,
    pub(crate) high: Arc<Buffer>,
    pub(crate) scales: Arc<Buffer>,
    /// Words of an expert in each plane.
    each: [usize; 3],
    slots: usize,
}

/// Words of a layer's table.
fn table_words(experts: usize, slots: usize) -> usize {
    experts + 2 * slots + 1
}

impl Vulkan {
    /// Packs experts into the host's memory, with room for `slots` of them in the device's.
    pub(crate) fn paged_experts(
        &mut self,
        all: &[Matrix],
        slots: usize,
        bias: Option<&[f32]>,
    ) -> Result<Weight, Error> {
        let slots = slots.max(1);
        // the slots' first content does not matter; two at least, so that they are packed as stacks are
        let mut weight = self.pack(&all[..slots.max(2).min(all.len())], bias)?;
        let mut host: [Option<Arc<Buffer>>; 3] = [None, None, None];
        let mut each = [0; 3];
        for (e, m) in all.iter().enumerate() {
            let planes = pack::pack(std::slice::from_ref(m), weight.ty);
            for (plane, words) in [planes.quants, planes.high, planes.scales].into_iter().enumerate() {
                if e == 0 {
                    each[plane] = words.len();
                    host[plane] = Some(match words.len() {
                        0 => self.dummy.clone(),
                        n => self.memory.buffer((4 * n * all.len()) as u64, Place::Host)?,
                    });
                }
                if let (Some(buffer), false) = (&host[plane], words.is_empty()) {
                    buffer.write_words((4 * e * each[plane]) as u64, &words);
                }
            }
        }
        let [Some(quants), Some(high), Some(scales)] = host else {
            return Err(Error("a stack of experts is empty".into()));
        };
        // Empty planes are bound for writing, too, and two kernels of a stage must not seem to write to the same buffer.
        if each[1] == 0 {
            weight.high = self.zeroed(16)?;
        }
        if each[0] == 0 {
            weight.quants = self.zeroed(16)?;
        }
        weight.paged = Some(Paged { quants, high, scales, each, slots });
        Ok(weight)
    }

    /// Makes the tables of all layers, without any expert in a slot.
    pub(crate) fn slot_tables(&mut self, step: &StepShape, layers: usize) -> Result<(), Error> {
        let Some(slots) = self.expert_slots.map(|s| s.max(1)).filter(|s| *s < step.experts) else {
            return Ok(());
        };
        let mut words = vec![NONE; table_words(step.experts, slots)];
        words[step.experts + slots..].fill(0);
        let table = self.words(&words.repeat(layers))?;
        let fills = self.zeroed(4 * (1 + 2 * slots) as u64)?;
        if let Some(scratch) = &mut self.scratch {
            (scratch.slots, scratch.fills) = (table, fills);
        }
        Ok(())
    }

    /// The stages that copy a step's experts to slots. Returns the offset of the layer's table.
    pub(crate) fn resolve_experts(
        &mut self,
        m: &Moe<Self>,
        layer: usize,
        tiles_max: usize,
    ) -> Result<u32, Error> {
        let scratch = self.scratch()?;
        let (tiles, table, fills) = (scratch.tiles.clone(), scratch.slots.clone(), scratch.fills.clone());
        let slots = m.experts.up.paged.as_ref().map_or(1, |p| p.slots);
        let at = (layer * table_words(m.router.experts, slots)) as u32;
        let push = [m.router.experts as u32, slots as u32, at];
        self.recorder.dispatch(Kernel::Resolve, [0; 4], &[&tiles, &table, &fills], &push, [1, 1, 1])?;
        self.recorder.barrier()?;
        for w in m.experts.gate.iter().chain([&m.experts.up, &m.experts.down]) {
            let Some(p) = &w.paged else { continue };
            let buffers = [&p.quants, &p.high, &p.scales, &w.quants, &w.high, &w.scales, &fills];
            let push = [(p.each[0] / 4) as u32, p.each[1] as u32, p.each[2] as u32];
            let groups = [
                p.each.iter().max().map_or(1, |n| n.div_ceil(4 * 256 * 4)) as u32,
                tiles_max.min(slots) as u32,
                1,
            ];
            self.recorder.dispatch(Kernel::Fill, [0; 4], &buffers, &push, groups)?;
        }
        self.recorder.barrier()?;
        Ok(at)
    }
}
