//! The largest logits of each row, found on the device, in memory that the host reads.

use std::sync::Arc;

use octet_compute::Error;
use octet_compute::picks::{PICKS, Pick};

use crate::backend::{Buf, Vulkan};
use crate::kernel::Kernel;
use crate::memory::{Buffer, Place};

/// Logits of a workgroup.
const CHUNK: usize = 4096;
/// Words of a row: the number of logits found, whether one is no number, ids and logits.
pub(crate) const ROW_WORDS: usize = 2 + 2 * PICKS;

/// The buffers of `pick`.
pub(crate) struct Picker {
    pub(crate) rows: usize,
    pub(crate) vocab: usize,
    sampleable: Arc<Buffer>,
    found: Arc<Buffer>,
    /// Of the steps of either side.
    pub(crate) picks: [Arc<Buffer>; 2],
    tickets: Arc<Buffer>,
}

impl Vulkan {
    pub(crate) fn make_picker(
        &mut self,
        rows: usize,
        vocab: usize,
        sampleable: &[u32],
    ) -> Result<bool, Error> {
        let groups = vocab.div_ceil(CHUNK);
        // The last workgroup processes the results of all others as one chunk.
        if groups * PICKS > CHUNK {
            return Ok(false);
        }
        let mut bits = sampleable.to_vec();
        bits.resize(vocab.div_ceil(32), 0);
        let picks = || self.memory.buffer((4 * rows * ROW_WORDS) as u64, Place::Host);
        let picks = [picks()?, picks()?];
        self.picker = Some(Picker {
            rows,
            vocab,
            sampleable: self.words(&bits)?,
            found: self.memory.buffer((8 * rows * groups * (PICKS + 1)) as u64, Place::Device)?,
            picks,
            tickets: self.zeroed(4 * rows as u64)?,
        });
        self.compile_keys(&[(Kernel::Pick, [0; 4])])?;
        // Recorded without it.
        for step in std::mem::take(&mut self.steps) {
            self.recorder.recycle(step.recording);
        }
        Ok(true)
    }

    /// Starts the kernel in its own stage.
    pub(crate) fn pick_rows(&mut self, rows: usize, logits: &Buf) -> Result<(), Error> {
        let Some(p) = self.picker.as_ref().filter(|p| (1..=p.rows).contains(&rows)) else { return Ok(()) };
        let buffers =
            [&logits.buffer, &p.sampleable, &p.found, &p.picks[self.side], &p.tickets].map(Arc::clone);
        let (vocab, groups) = (p.vocab as u32, p.vocab.div_ceil(CHUNK) as u32);
        self.recorder.barrier()?;
        let buffers: Vec<_> = buffers.iter().collect();
        self.recorder.dispatch(Kernel::Pick, [0; 4], &buffers, &[vocab], [groups, rows as u32, 1])
    }

    pub(crate) fn read_picks(&mut self, row: usize, out: &mut Vec<Pick>) -> Result<bool, Error> {
        out.clear();
        self.recorder.flush()?;
        let Some(p) = self.picker.as_ref().filter(|p| row < p.rows) else { return Ok(false) };
        let mut bytes = [0; 4 * ROW_WORDS];
        p.picks[self.read_side].read((4 * row * ROW_WORDS) as u64, &mut bytes);
        let words = bytes.as_chunks::<4>().0;
        let word = |i: usize| u32::from_le_bytes(words[i]);
        // Never more than requested, even if a driver writes garbage.
        let found = if word(1) == 0 { (word(0) as usize).min(PICKS) } else { 1 };
        let pick = |i: usize| Pick { id: word(2 + 2 * i), logit: f32::from_bits(word(3 + 2 * i)) };
        out.extend((0..found).map(pick).filter(|pick| (pick.id as usize) < p.vocab));
        Ok(word(1) == 0)
    }
}
