//! Steps that are submitted before the tokens of the step before are known to the host: the device reads them where `pick` left them, and
//! the embedding table in the host's memory. Two sides of what host and device share alternate: batch blocks, picks and counts of experts.

use std::sync::Arc;

use octet_compute::Error;
use octet_compute::backend::Pass;
use octet_compute::batch::Batch;
use octet_weights::{GgmlType, Matrix};

use crate::backend::{Buf, Embedding, Vulkan};
use crate::kernel::Kernel;
use crate::memory::{Buffer, Place};
use crate::steps::{Flight, REPLAY_TOKENS_MAX};

/// Values that a workgroup of `embed.comp` computes.
const GROUP: usize = 256;
/// Bytes of the machine's memory that stay free beside the copy of a table.
const FREE_MIN: u64 = 512 << 20;
/// The types of tables that `embed.comp` can read, in the order of its numbers.
pub(crate) const TABLE_TYPES: [GgmlType; 7] = [
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q8_0,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
];

/// The number of a type in `embed.comp`; `None` for those that it cannot read.
fn table_type(ty: GgmlType) -> Option<u32> {
    TABLE_TYPES.iter().position(|t| *t == ty).map(|i| i as u32)
}

/// Whether steps can be submitted ahead with an embedding table of this type.
pub fn reads_table(ty: GgmlType) -> bool {
    table_type(ty).is_some()
}

/// A copy of an embedding table where the device can read it. Made for the first step that needs it.
pub(crate) enum Shared {
    Untried,
    /// There was no room for it.
    Refused,
    At(Arc<Buffer>),
}

impl Vulkan {
    /// Whether a step of `rows` tokens can follow another one. Copies the table if it can.
    pub(crate) fn can_follow(&mut self, table: &mut Embedding, rows: usize) -> bool {
        let picked = self.picker.as_ref().map_or(0, |p| p.rows.min(REPLAY_TOKENS_MAX));
        if !self.is_ahead_allowed || !(1..=picked).contains(&rows) || table_type(table.table.ty).is_none() {
            return false;
        }
        if let Shared::Untried = table.shared {
            table.shared = match self.share(&table.table) {
                Ok(buffer) => Shared::At(buffer),
                Err(why) => {
                    if let Some(notice) = self.notice {
                        notice(&format!("steps are not submitted ahead: {why}"));
                    }
                    Shared::Refused
                }
            };
        }
        matches!(table.shared, Shared::At(_))
    }

    fn share(&self, m: &Matrix) -> Result<Arc<Buffer>, Error> {
        let bytes = m.data.len() as u64;
        if let Some(free) = self.free_memory.and_then(|free| free())
            && free < bytes.saturating_add(FREE_MIN)
        {
            let [bytes, free] = [bytes, free].map(|n| n >> 20);
            return Err(Error(format!(
                "a copy of the embedding table takes {bytes} MiB of the machine's memory, and {free} MiB are free"
            )));
        }
        self.copy_table(m)
    }

    /// A copy of a table that the device can read.
    pub(crate) fn copy_table(&self, m: &Matrix) -> Result<Arc<Buffer>, Error> {
        let buffer = self.memory.buffer(m.data.len() as u64, Place::Host)?;
        buffer.write(0, &m.data);
        Ok(buffer)
    }

    /// Submits a step of few tokens. If it `follows` the last one, that may still run: token `i` is what `pick` finds there in row `i`.
    pub(crate) fn submit_step(
        &mut self,
        batch: &Batch,
        follows: bool,
        body: impl FnOnce(&mut Self),
    ) -> Result<(), Error> {
        if follows {
            // The step before needs what was recorded until now, too: it reports the failure.
            self.guard(|be| be.recorder.flush());
            if let Some(e) = &self.fault {
                return Err(Error(e.0.clone()));
            }
        } else {
            self.discard_steps()?;
            if let Some(e) = self.fault.take() {
                return Err(e);
            }
        }
        let before = self.side;
        self.side = if follows { 1 - before } else { 0 };
        self.follows = follows;
        let started = self.start(Pass::Trunk, batch, body);
        self.follows = false;
        match started {
            Ok(flight) => self.flights.push_back(flight),
            Err(e) => {
                self.side = before;
                return Err(e);
            }
        }
        Ok(())
    }

    /// Waits for the oldest submitted step, whose picks and counts are then read. Returns whether it was still running.
    pub(crate) fn wait_for_step(&mut self) -> Result<bool, Error> {
        let ended = match self.fault.take() {
            // Its steps may still run.
            Some(e) => Err(e),
            None => match self.flights.pop_front() {
                Some(flight) => self.end(flight),
                None => Err(Error("no step was submitted".into())),
            },
        };
        if ended.is_err() {
            // If the device is lost, `ended` says so.
            let _ = self.discard_steps();
        }
        ended
    }

    /// Waits until a step has ended.
    pub(crate) fn end(&mut self, flight: Flight) -> Result<bool, Error> {
        let ended = self.recorder.wait_for(flight.number);
        if ended.is_err() && !self.recorder.is_lost {
            self.clear_counts(flight.side)?;
        }
        let was_running = ended?;
        self.read_side = flight.side;
        self.bytes_read += flight.bytes;
        Ok(was_running)
    }

    /// Waits for all submitted steps and drops their results and failures. Fails if the device is lost.
    pub(crate) fn discard_steps(&mut self) -> Result<(), Error> {
        let mut lost = Ok(());
        while let Some(flight) = self.flights.pop_front() {
            // One long wait for a device that hangs is enough.
            let ended = self.recorder.check().and_then(|()| self.recorder.wait_for(flight.number));
            if self.recorder.is_lost {
                lost = lost.and(ended.map(|_| ()));
            } else {
                self.clear_counts(flight.side)?;
            }
        }
        lost
    }

    /// The rows of the tokens that the step before picked.
    pub(crate) fn embed_picked(
        &mut self,
        table: &Embedding,
        rows: usize,
        scale: f32,
        out: &Buf,
    ) -> Result<(), Error> {
        let m = &table.table;
        let Some(ty) = table_type(m.ty) else { return Ok(()) }; // `can_follow` refuses it
        let (picks, shared) = match (&self.picker, &table.shared) {
            (Some(p), Shared::At(shared)) => (p.picks[1 - self.side].clone(), shared.clone()),
            _ if self.is_noting_kernels() => (self.dummy.clone(), self.dummy.clone()),
            _ => return Err(Error("a step cannot follow another one without its picks and a table".into())),
        };
        let push = [m.cols as u32, m.rows as u32, m.row_bytes() as u32, scale.to_bits()];
        let groups = [m.cols.div_ceil(GROUP) as u32, rows as u32, 1];
        self.recorder.barrier()?;
        self.recorder.dispatch(Kernel::Embed, [ty, 0, 0, 0], &[&picks, &shared, &out.buffer], &push, groups)
    }
}
