//! Whether there is room for a model: in the machine's memory, and in that of its graphics device. Both are counted separately: a model is
//! evicted only if it uses some of the memory that is short, and the least recently used one first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use humansize::{BINARY, format_size};
use octet_process::swap::{Fit, Phase, Rules, Running};

use super::AcquireError;
use super::free::Measured;
use super::host::{INTERNAL, Models};
use crate::blocking::spawn_blocking;
use crate::models::memory::OnDevice;

/// The time after which the free memory is measured again: other programs may have freed some.
const MEASURE_AGAIN: Duration = Duration::from_millis(500);

/// Time limit for measuring it: a driver may hang after its device was lost.
const MEASURE_MAX: Duration = Duration::from_secs(30);

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

    /// Loaded models count against the memory limit, and so do those being loaded; queued ones do not. Models are loaded side by side if
    /// there is room for all that the others may still take; otherwise one after the other, so that none is refused for what another
    /// has taken only in part.
    fn fits(&mut self, x: usize, running: &[Running]) -> Fit<AcquireError> {
        let loading = running.iter().find(|r| r.phase == Phase::Starting);
        let Some(free) = self.free_now(x) else { return Fit::Unknown };
        let short = match free.map(|free| self.shortage(x, free, running)) {
            Ok(None) => return Fit::Yes,
            Ok(Some(short)) => match loading {
                Some(loading) => return Fit::Blocked { by: vec![loading.index], again: None },
                None => short,
            },
            Err(why) => return Fit::Never(self.all[x].refusal(&why)),
        };
        let device = short.device.as_ref().map(|d| d.name.as_str());
        let holders = || running.iter().filter(|r| self.bytes_of(r, device) > 0);
        // One that is being unloaded is waited for: a second need not be unloaded as well.
        let leaving = holders().find(|r| r.phase == Phase::Stopping);
        let first = || holders().min_by_key(|r| (!r.is_closed, !r.is_idle, r.last_used));
        match leaving.or_else(first) {
            Some(y) => Fit::Blocked { by: vec![y.index], again: Some(MEASURE_AGAIN) },
            None => Fit::Never(self.all[x].refusal(&short.text())),
        }
    }

    /// Whatever is loaded takes memory.
    fn overtakes(&mut self, _: usize, _: usize) -> bool {
        true
    }
}

impl Models {
    /// The free memory for a model; `None` until it is measured.
    fn free_now(&mut self, x: usize) -> Option<Result<[Option<u64>; 2], String>> {
        let is_fresh = |m: &Measured| m.model == x && m.at.elapsed() < MEASURE_AGAIN;
        if let Some(free) = self.free.measured.as_ref().filter(|m| is_fresh(m)).map(|m| m.free.clone()) {
            if free.is_err() {
                self.free.measured = None; // it is reported once
            }
            return Some(free);
        }
        if self.free.measuring != Some(x)
            && let Some(pool) = self.pool.upgrade()
        {
            self.free.measuring = Some(x);
            let machine = Arc::clone(&self.memory.free);
            let device = self.all[x].entry.card.on_device.as_ref().map(|d| Arc::clone(&d.free));
            let (owner, change) = (Arc::clone(&pool), self.free.changes);
            pool.spawn(async move {
                let measure = move || [machine(), device.and_then(|free| free())];
                let free = match tokio::time::timeout(MEASURE_MAX, spawn_blocking(measure)).await {
                    Ok(measured) => measured.map_err(|_| INTERNAL.into()),
                    Err(_) => Err(format!(
                        "the free memory is not known: that took more than {} s; look at the driver's messages (dmesg on Linux)",
                        MEASURE_MAX.as_secs()
                    )),
                };
                owner.change(|_, models| {
                    if models.free.changes == change && models.free.measuring == Some(x) {
                        models.free.measuring = None;
                        models.free.measured = Some(Measured { model: x, at: Instant::now(), free });
                    }
                });
            });
        }
        None
    }

    /// Bytes that a model takes of a device, or of the machine.
    fn bytes_of(&self, model: &Running, device: Option<&str>) -> u64 {
        self.all[model.index].entry.card.bytes_of(device)
    }

    /// The memory that is too short for a model beside those that run.
    fn shortage(
        &self,
        x: usize,
        [machine, device]: [Option<u64>; 2],
        running: &[Running],
    ) -> Option<Shortage> {
        let left = |limit: Option<u64>, device| {
            let others = || running.iter().map(|r| self.bytes_of(r, device)).sum::<u64>();
            limit.map(|limit| limit.saturating_sub(others()))
        };
        // How much of its memory a model has taken that is being loaded is not known.
        let unloaded = |free: Option<u64>, device| {
            let loading = running.iter().filter(|r| r.phase == Phase::Starting);
            let pending = loading.map(|r| self.bytes_of(r, device)).sum::<u64>();
            free.map(|free| free.saturating_sub(pending))
        };
        let card = &self.all[x].entry.card;
        let free = least(unloaded(machine, None), left(self.memory.limit, None));
        if let Some(free) = free.filter(|free| *free < card.memory_bytes) {
            return Some(Shortage { need: card.memory_bytes, free, device: None });
        }
        let on = card.on_device.as_ref()?;
        let free = least(unloaded(device, Some(&on.name)), left(on.limit, Some(&on.name)))
            .filter(|free| *free < on.bytes)?;
        Some(Shortage { need: on.bytes, free, device: Some(on.clone()) })
    }
}
