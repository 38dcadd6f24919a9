//! Experts that are read from where they are stored when a step needs them, into a fixed number of slots for each layer.
//!
//! A step's experts of a layer are known once its router has run. They are computed in *rounds* of ascending numbers: while one round is
//! computed, the next one's experts are read into slots that hold none of this step's, or such that are already computed. In decoding
//! all fit into one round, whose experts that are in memory are computed while the others are read. A packed expert is the same
//! wherever it lies, and each token's experts are summed in ascending order, so no bit of a result depends on what was in memory.
//!
//! In decoding the next layer's experts are guessed ([`Store::foresee`]) and read when nothing else is to be read. A wrong guess costs
//! that, and a slot.

mod readers;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::memory::Weight;
use super::pack::{Layout, Packed};
use super::packed_file::Later;
use crate::backend::{Error, Glu, StoreCounts, StoreStats, StoredProjection};
use readers::{Part, Readers, Slots};

/// No expert, or no slot.
const NONE: u32 = u32::MAX;
/// Experts of a round that are not in memory: enough that the drive is busy, few enough that the first ones are soon computed.
const ROUND_READS: usize = 16;

/// All layers' slots, and the threads that read into them.
pub(super) struct Store {
    layers: Vec<Layer>,
    slots: usize,
    readers: Readers,
    counts: Arc<StoreCounts>,
    /// Number of rounds so far.
    now: u64,
    worth: Worth,
}

/// Whether guesses are worth their reads: a drive that is busy reads a wrong one instead of what is needed.
#[derive(Debug, Default)]
struct Worth {
    /// Recent guesses, and the right ones among them.
    guesses: u32,
    right: u32,
    /// Layers that could have been guessed.
    chances: u32,
}

impl Worth {
    /// Guesses that a judgement needs.
    const FEW: u32 = 64;
    /// Half of the guesses are forgotten at this number.
    const MANY: u32 = 1024;
    /// Where guesses are not worth it, one chance of so many is taken, to see whether they are now.
    const SELDOM: u32 = 61;

    fn take_chance(&mut self) -> bool {
        self.chances = self.chances.wrapping_add(1);
        self.guesses < Self::FEW
            || 2 * self.right >= self.guesses
            || self.chances.is_multiple_of(Self::SELDOM)
    }

    fn add(&mut self, guesses: u32, right: u32) {
        (self.guesses, self.right) = (self.guesses + guesses, self.right + right);
        if self.guesses > Self::MANY {
            (self.guesses, self.right) = (self.guesses / 2, self.right / 2);
        }
    }
}

/// The slots of a layer.
struct Layer {
    files: Arc<Slots>,
    /// The slot of each expert, or [`NONE`].
    place: Vec<u32>,
    slots: Vec<Slot>,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    /// The expert in it, or [`NONE`].
    expert: u32,
    /// The round in which it was used last; 0 is never.
    used: u64,
    mark: Mark,
    /// It was read because it was guessed, and not used since.
    is_guess: bool,
    /// Its last read began because it was guessed.
    is_ahead: bool,
}

/// What the current step wants of a slot's expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// Nothing.
    Idle,
    /// It is, or will be, computed.
    Wanted,
    /// It was computed.
    Done,
}

/// Experts, ascending, and where each is among the packed ones.
#[derive(Debug, Default)]
pub(super) struct Experts {
    pub ids: Vec<u32>,
    pub slots: Vec<u32>,
}

impl Experts {
    fn with_capacity(n: usize) -> Self {
        Self { ids: Vec::with_capacity(n), slots: Vec::with_capacity(n) }
    }
    fn clear(&mut self) {
        self.ids.clear();
        self.slots.clear();
    }
    fn push(&mut self, id: u32, slot: u32) {
        self.ids.push(id);
        self.slots.push(slot);
    }
}

/// Experts that are computed together.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub all: Experts,
    /// Those that were in memory, and the others.
    pub early: Experts,
    pub late: Experts,
}

impl Round {
    /// Room for `n` experts.
    pub fn with_capacity(n: usize) -> Self {
        let room = || Experts::with_capacity(n);
        Self { all: room(), early: room(), late: room() }
    }

    fn clear(&mut self) {
        self.all.clear();
        self.early.clear();
        self.late.clear();
    }
}

impl Store {
    /// An empty store with so many slots for each layer.
    pub fn new(slots: usize) -> Result<Self, Error> {
        let counts = Arc::<StoreCounts>::default();
        Ok(Self {
            layers: Vec::new(),
            slots,
            readers: Readers::new(counts.clone())?,
            counts,
            now: 0,
            worth: Worth::default(),
        })
    }

    /// What was read so far.
    pub fn stats(&self) -> StoreStats {
        self.counts.stats(self.slots)
    }

    /// Memory for the slots of a further layer. `kept` says where its experts are packed already.
    pub fn add(
        &mut self,
        experts: Glu<StoredProjection>,
        kept: &mut dyn FnMut(&StoredProjection, Layout) -> Later,
    ) -> Result<Glu<Weight>, Error> {
        let (id, slots, count) = (self.layers.len(), self.slots, experts.up.source.count());
        if slots == 0 || slots > count || count >= NONE as usize {
            return Err(Error(format!("{slots} slots for {count} experts")));
        }
        let mut parts = Vec::with_capacity(3);
        let mut add = |p: StoredProjection| {
            let (ty, rows, cols) = p.source.shape();
            if p.source.count() != count {
                return Err(Error(format!("{} experts, and {count}", p.source.count())));
            }
            let layout = Layout::new(ty, rows, cols)?;
            let packed = Packed::zeroed(layout, slots)?;
            let kept = kept(&p, layout);
            parts.push(Part { source: p.source, kept, packed: packed.shared() });
            Ok(Weight { packed, bias: p.bias, watched: None, stored: Some(id) })
        };
        let gate = experts.gate.map(&mut add).transpose()?;
        let weights = Glu { gate, up: add(experts.up)?, down: add(experts.down)?, act: experts.act };
        self.readers.reserve(parts.len() * slots);
        self.layers.push(Layer {
            files: Arc::new(Slots::new(parts, slots)),
            place: vec![NONE; count],
            slots: vec![
                Slot { expert: NONE, used: 0, mark: Mark::Idle, is_guess: false, is_ahead: false };
                slots
            ],
        });
        Ok(weights)
    }

    /// Begins a step of `layer`, which needs the experts `used`.
    pub fn begin(&mut self, layer: usize, used: &[u32]) {
        let layer = &mut self.layers[layer];
        self.readers.settle(&layer.files, used);
        for at in 0..layer.slots.len() as u32 {
            layer.slots[at as usize].mark = Mark::Idle;
            // Guesses that were not read any more, or not well.
            if layer.files.has_failed(at) {
                layer.replace(at, NONE);
            }
        }
        let (mut hits, mut guessed) = (0, 0);
        for &expert in used {
            if let Some(slot) = layer.slots.get_mut(layer.place[expert as usize] as usize) {
                slot.mark = Mark::Wanted;
                match std::mem::take(&mut slot.is_guess) {
                    true => guessed += 1,
                    false => hits += 1,
                }
            }
        }
        self.counts.hits.fetch_add(hits, Relaxed);
        self.counts.guessed.fetch_add(guessed, Relaxed);
        self.worth.add(0, guessed as u32);
        self.counts.misses.fetch_add(used.len() as u64 - hits - guessed, Relaxed);
    }

    /// Whether the next layer's experts are to be guessed.
    pub fn is_guessing(&mut self) -> bool {
        self.worth.take_chance()
    }

    /// Starts to read `experts`, which `layer` will probably need, when nothing else is to be read.
    pub fn foresee(&mut self, layer: usize, experts: &[u32]) {
        let Self { layers, readers, now, counts, worth, .. } = self;
        let layer = &mut layers[layer];
        *now += 1;
        for &expert in experts {
            let mut at = layer.place[expert as usize];
            if at == NONE {
                let free = (0u32..)
                    .zip(&layer.slots)
                    .filter(|(at, s)| s.used < *now && !layer.files.is_pending(*at));
                let Some((oldest, _)) = free.min_by_key(|(_, slot)| slot.used) else { return };
                at = oldest;
                layer.replace(at, expert);
                let slot = &mut layer.slots[at as usize];
                (slot.is_guess, slot.is_ahead) = (true, true);
                readers.read(&layer.files, expert, at, true);
                counts.guesses.fetch_add(1, Relaxed);
                worth.add(1, 0);
            }
            layer.slots[at as usize].used = *now;
        }
    }

    /// Chooses the next experts to compute, beginning with `wanted[0]`, and starts to read those that are not in memory. Returns their number: at
    /// least 1 if `must`, which requires that no other round is being computed.
    pub fn plan(&mut self, layer: usize, wanted: &[u32], must: bool, round: &mut Round) -> usize {
        let Self { layers, readers, now, .. } = self;
        let layer = &mut layers[layer];
        *now += 1;
        round.clear();
        for (i, &expert) in wanted.iter().enumerate() {
            let mut at = layer.place[expert as usize];
            if at != NONE && layer.files.is_pending(at) {
                round.late.push(expert, at);
            } else if at != NONE {
                round.early.push(expert, at);
            } else {
                if round.late.ids.len() == ROUND_READS {
                    return i;
                }
                let must = must && i == 0;
                if must && layer.victim(expert, must).is_none() {
                    readers.wait_all(&layer.files); // for guesses
                }
                let Some(victim) = layer.victim(expert, must) else { return i };
                at = victim;
                layer.replace(at, expert);
                readers.read(&layer.files, expert, at, false);
                round.late.push(expert, at);
            }
            round.all.push(expert, at);
            let slot = &mut layer.slots[at as usize];
            (slot.used, slot.mark) = (*now, Mark::Wanted);
        }
        wanted.len()
    }

    /// Waits until a round's experts are in memory. If a read fails, its slot holds anything: the step fails at its end.
    pub fn wait(&mut self, layer: usize, round: &Round) {
        let layer = &mut self.layers[layer];
        self.readers.wait(&layer.files, &round.late.slots);
        // What failed when it was only a guess, is needed now.
        let mut again = false;
        for (&expert, &at) in round.late.ids.iter().zip(&round.late.slots) {
            if std::mem::take(&mut layer.slots[at as usize].is_ahead) && layer.files.has_failed(at) {
                self.readers.read(&layer.files, expert, at, false);
                again = true;
            }
        }
        if again {
            self.readers.wait(&layer.files, &round.late.slots);
        }
        for &at in &round.late.slots {
            if layer.files.has_failed(at) {
                layer.replace(at, NONE);
            }
        }
    }

    /// A round was computed: its slots may be read into.
    pub fn done(&mut self, layer: usize, round: &Round) {
        let layer = &mut self.layers[layer];
        round.all.slots.iter().for_each(|&at| layer.slots[at as usize].mark = Mark::Done);
    }

    /// Why a read has failed since the last call, if one has.
    pub fn take_failure(&mut self) -> Option<String> {
        self.readers.take_failure()
    }
}

impl Layer {
    /// A slot for `expert`: that used longest ago of those that hold no expert of this step, else one that is already computed. If there
    /// `must` be one, else that of the last expert of this step.
    fn victim(&self, expert: u32, must: bool) -> Option<u32> {
        let slots = || (0u32..).zip(&self.slots).filter(|(at, _)| !self.files.is_pending(*at));
        let idle = slots().filter(|(_, slot)| slot.mark == Mark::Idle).min_by_key(|(_, slot)| slot.used);
        let found = idle.or_else(|| slots().find(|(_, slot)| slot.mark == Mark::Done));
        let last =
            || slots().filter(|(_, s)| s.expert != NONE && s.expert > expert).max_by_key(|(_, s)| s.expert);
        found.or_else(|| last().filter(|_| must)).map(|(at, _)| at)
    }

    /// Puts `expert` into slot `at`.
    fn replace(&mut self, at: u32, expert: u32) {
        let slot = &mut self.slots[at as usize];
        if expert == NONE {
            slot.used = 0;
        }
        if slot.expert != NONE {
            self.place[slot.expert as usize] = NONE;
        }
        (slot.expert, slot.is_guess, slot.is_ahead) = (expert, false, false);
        if expert != NONE {
            self.place[expert as usize] = at;
        }
    }
}
