//! Makes room for a model that is to be loaded: in the machine's memory, and in that of its graphics device. Both are counted separately: a
//! model is evicted only if it uses some of the memory that is short. Used by the registry.

use std::sync::Arc;
use std::time::Duration;

use humansize::{BINARY, format_size};

use super::{Phase, Registry, State};
use crate::models::Loaded;
use crate::models::memory::OnDevice;

/// A model is evicted only after it was idle for this long: its last client may send another request.
const IDLE_MIN: Duration = Duration::from_millis(500);
/// Minimum turn of a model while others wait.
const TURN_MIN: Duration = Duration::from_secs(5);
/// A turn is at least this multiple of the loading time.
const TURN_LOADS: u32 = 4;
/// Maximum interval at which waiting loads check for memory.
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

enum Victim {
    /// No model can be evicted.
    None,
    /// A model will be evicted soon.
    Wait,
    Model(usize, Arc<Loaded>),
}

fn takes_memory(s: &State) -> bool {
    !matches!(s.phase, Phase::Idle | Phase::Queued)
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl Registry {
    /// Unloads others until there is room for a model.
    pub(super) async fn make_room(self: &Arc<Self>, index: usize) -> Result<(), String> {
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            let Some(short) = self.shortage(index) else { return Ok(()) };
            if self.is_draining() {
                return Err("the server is shutting down".into());
            }
            match self.choose_victim(index, &short) {
                Victim::None => return Err(short.text()),
                Victim::Wait => {
                    let _ = tokio::time::timeout(LOOK_AGAIN, changed.changed()).await;
                }
                Victim::Model(i, loaded) => self.unload(i, loaded).await,
            }
        }
    }

    /// The memory that is too short for model `index`, which is being loaded.
    fn shortage(&self, index: usize) -> Option<Shortage> {
        let card = self.entry(index).card.clone();
        let free = self.free_memory(index);
        if let Some(free) = free.filter(|free| *free < card.memory_bytes) {
            return Some(Shortage { need: card.memory_bytes, free, device: None });
        }
        let device = card.on_device?;
        let free = self.free_on(index, &device).filter(|free| *free < device.bytes)?;
        Some(Shortage { need: device.bytes, free, device: Some(device) })
    }

    /// The machine's memory that it may take; `None` without a limit.
    fn free_memory(&self, index: usize) -> Option<u64> {
        let others = || self.taken_by_others(index, None);
        least((self.memory.free)(), self.memory.limit.map(|limit| limit.saturating_sub(others())))
    }

    /// The same of a device.
    fn free_on(&self, index: usize, device: &OnDevice) -> Option<u64> {
        let others = || self.taken_by_others(index, Some(&device.name));
        least((device.free)(), device.limit.map(|limit| limit.saturating_sub(others())))
    }

    /// The memory of a device, or of the machine, that the models other than `index` take.
    fn taken_by_others(&self, index: usize, device: Option<&str>) -> u64 {
        let entries = self.entries();
        let states = self.lock();
        let all = states.iter().zip(&entries).enumerate();
        let others = all.filter(|(i, (s, _))| *i != index && takes_memory(s));
        others.map(|(_, (_, e))| e.card.bytes_of(device)).sum()
    }

    /// Who has to go for model `index`; takes it out of use.
    fn choose_victim(&self, index: usize, short: &Shortage) -> Victim {
        let device = short.device.as_ref().map(|d| d.name.as_str());
        let entries = self.entries();
        let mut states = self.lock();
        let holds = |i: usize| i != index && entries.get(i).is_some_and(|e| e.card.bytes_of(device) > 0);
        // One that was asked to go is waited for: a second need not go as well.
        let ready =
            states.iter().enumerate().filter(|(i, s)| holds(*i) && matches!(s.phase, Phase::Ready(_)));
        let first = ready.min_by_key(|(_, s)| (!s.leaving, s.users > 0, s.last_used));
        let Some((i, last_used)) = first.map(|(i, s)| (i, s.last_used)) else {
            let mut all = states.iter().enumerate();
            let busy = all.any(|(i, s)| holds(i) && matches!(s.phase, Phase::Unloading));
            return if busy { Victim::Wait } else { Victim::None };
        };
        let s = &mut states[i];
        let Phase::Ready(loaded) = &s.phase else { return Victim::Wait };
        let turn = TURN_MIN.max(loaded.load_time * TURN_LOADS);
        s.leaving |= s.loaded_at.elapsed() >= turn;
        if s.users > 0 || !(s.leaving || last_used.elapsed() >= IDLE_MIN) {
            return Victim::Wait;
        }
        let loaded = Arc::clone(loaded);
        s.phase = Phase::Unloading;
        Victim::Model(i, loaded)
    }
}
