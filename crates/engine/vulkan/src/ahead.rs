//! Steps that are submitted before the tokens of the step before are known to the host: the device reads them where `pick` left them, and the
//! embedding table in the host's memory. Two sides of what host and device share alternate: batch blocks, picks and counts of experts.
//! Called by `backend`.

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

/// The number of a type in `embed.comp`; `None` for those that it cannot read.
fn table_type(ty: GgmlType) -> Option<u32> {
    let types = [
        GgmlType::F32,
        GgmlType::F16,
        GgmlType::BF16,
        GgmlType::Q8_0,
        GgmlType::Q4_K,
        GgmlType::Q5_K,
        GgmlType::Q6_K,
    ];
    types.iter().position(|t| *t == ty).map(|i| i as u32)
}

impl Vulkan {
    /// Copies an embedding table to memory of the host that the device can read. `None` if a kernel cannot read it, or there is no room:
    /// then no step is submitted ahead.
    pub(crate) fn shared_table(&mut self, m: &Matrix) -> Option<Arc<Buffer>> {
        self.table = None;
        let ty = table_type(m.ty)?;
        let buffer = self.memory.buffer(m.data.len() as u64, Place::Host).ok()?;
        buffer.write(0, &m.data);
        self.table = Some(ty);
        Some(buffer)
    }

    pub(crate) fn runs_ahead(&self, rows: usize) -> bool {
        let most = self.picker.as_ref().map_or(0, |p| p.rows.min(REPLAY_TOKENS_MAX));
        self.is_ahead_allowed && self.table.is_some() && (1..=most).contains(&rows)
    }

    /// Submits a step of few tokens. If it `follows` the last one, that may still run: token `i` is what `pick` finds there in row `i`.
    pub(crate) fn submit_step(
        &mut self,
        batch: &Batch,
        follows: bool,
        body: impl FnOnce(&mut Self),
    ) -> Result<(), Error> {
        if let Some(e) = self.fault.take() {
            self.abandon_flights();
            return Err(e);
        }
        if !follows {
            self.land()?;
        }
        self.side = if follows { 1 - self.side } else { 0 };
        self.follows = follows;
        let started = self.start(Pass::Trunk, batch, body);
        self.follows = false;
        match started {
            Ok(flight) => self.flights.push_back(flight),
            Err(e) => {
                self.abandon_flights();
                return Err(e);
            }
        }
        Ok(())
    }

    /// Waits for the oldest submitted step, whose picks and counts are then read.
    pub(crate) fn wait_for_step(&mut self) -> Result<(), Error> {
        let Some(flight) = self.flights.pop_front() else { return Ok(()) };
        let done = self.end(flight);
        if done.is_err() {
            self.abandon_flights();
        }
        done
    }

    /// Waits until a step has ended.
    pub(crate) fn end(&mut self, flight: Flight) -> Result<(), Error> {
        self.recorder.wait_for(flight.number)?;
        self.read_side = flight.side;
        self.bytes_read += flight.bytes;
        Ok(())
    }

    /// Waits for all that was submitted. Results of steps that nobody waits for are dropped.
    pub(crate) fn land(&mut self) -> Result<(), Error> {
        while !self.flights.is_empty() {
            self.wait_for_step()?;
        }
        Ok(())
    }

    /// After a failure: the host may write again to what these steps read.
    pub(crate) fn abandon_flights(&mut self) {
        self.flights.clear();
        // The failure itself is reported.
        let _ = self.recorder.wait_for_all();
    }

    /// The rows of the tokens that the step before picked.
    pub(crate) fn embed_picked(&mut self, table: &Embedding, rows: usize, out: &Buf) -> Result<(), Error> {
        let (Some(p), Some(shared)) = (&self.picker, &table.shared) else {
            return Err(Error("a step cannot follow another one without its picks and a table".into()));
        };
        let (m, picks) = (&table.table, p.picks[1 - self.side].clone());
        let push = [m.cols as u32, m.rows as u32, m.row_bytes() as u32];
        let groups = [m.cols.div_ceil(GROUP) as u32, rows as u32, 1];
        let constants = [table_type(m.ty).unwrap_or(0), 0, 0];
        self.recorder.barrier()?;
        self.recorder.dispatch(Kernel::Embed, constants, &[&picks, shared, &out.buffer], &push, groups)
    }
}
