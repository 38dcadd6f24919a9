//! Whether there is room for a model: in the machine's memory, and in that of its graphics device. Both are counted separately: a model is
//! evicted only if it uses some of the memory that is short, and the least recently used one first. Used by `octet_turns`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use humansize::{BINARY, format_size};
use octet_turns::{Phase, Room, Rules, Running};

use super::AcquireError;
use super::host::Models;
use crate::models::memory::{FreeMemory, OnDevice};

/// Maximum interval at which waiting loads check for memory: other programs may have freed some.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// A lack of memory.
struct Shortage {
    need: u64,
    free: u64,
    /// The device with too little memory; `None` is the machine.
    device: Option<OnDevice>,
}

impl Shortage {
    fn text(&self) -> String {
        let (need, free) = (format_size(self.need, BINARY), format_size(self.free, BINARY));
        let smaller = "give a smaller --ctx-size, --parallel, --kv-tokens";
        match &self.device {
            None => format!(
                "it takes {need} and the system has {free} free; close other programs, or {smaller} or --cache-ram"
            ),
            Some(d) => format!(
                "it takes {need} of the memory of {}, which has {free} free; close other programs that use it, {smaller} or --gpu-memory, \
                 or run the model with --device cpu",
                d.name
            ),
        }
    }
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl Rules for Models {
    type Error = AcquireError;

    /// One model is loaded at a time. Loaded models count against the memory limit, and so does the one being loaded; queued ones do not.
    fn room(&self, x: usize, running: &[Running]) -> Room<AcquireError> {
        let wait_for = |y: &Running| Room::Taken { by: vec![y.index], again: Some(LOOK_AGAIN) };
        if let Some(loading) = running.iter().find(|r| r.phase == Phase::Starting) {
            return wait_for(loading);
        }
        let short = match self.shortage(x, running) {
            Ok(None) => return Room::Free,
            Ok(Some(short)) => short,
            Err(why) => return Room::Never(self.all[x].refusal(&why)),
        };
        let device = short.device.as_ref().map(|d| d.name.as_str());
        let holders = || running.iter().filter(|r| self.bytes_of(r, device) > 0);
        // One that is on its way out is waited for: a second need not go as well.
        let leaving = holders().find(|r| r.phase == Phase::Stopping);
        let first = || holders().min_by_key(|r| (!r.is_closed, !r.is_idle, r.last_used));
        match leaving.or_else(first) {
            Some(y) => wait_for(y),
            None => Room::Never(self.all[x].refusal(&short.text())),
        }
    }

    /// Whatever starts takes memory.
    fn overtakes(&self, _: usize, _: usize) -> bool {
        true
    }
}

impl Models {
    /// Bytes that a model takes of a device, or of the machine.
    fn bytes_of(&self, model: &Running, device: Option<&str>) -> u64 {
        self.all[model.index].entry.card.bytes_of(device)
    }

    /// The memory that is too short for a model beside those that run.
    fn shortage(&self, x: usize, running: &[Running]) -> Result<Option<Shortage>, String> {
        let others = |device| running.iter().map(|r| self.bytes_of(r, device)).sum::<u64>();
        let card = &self.all[x].entry.card;
        let free = measure(&self.memory.free, self.memory.limit, || others(None))?;
        if let Some(free) = free.filter(|free| *free < card.memory_bytes) {
            return Ok(Some(Shortage { need: card.memory_bytes, free, device: None }));
        }
        let Some(device) = &card.on_device else { return Ok(None) };
        let free = measure(&device.free, device.limit, || others(Some(&device.name)))?;
        let short = free.filter(|free| *free < device.bytes);
        Ok(short.map(|free| Shortage { need: device.bytes, free, device: Some(device.clone()) }))
    }
}

/// The memory that a model may take beside others; `None` without a limit.
fn measure(
    free: &FreeMemory,
    limit: Option<u64>,
    others: impl FnOnce() -> u64,
) -> Result<Option<u64>, String> {
    // A panic here would leave all requests waiting.
    let measured = catch_unwind(AssertUnwindSafe(|| free()));
    let measured = measured.map_err(|_| "an internal error; the log says more")?;
    Ok(least(measured, limit.map(|limit| limit.saturating_sub(others()))))
}
