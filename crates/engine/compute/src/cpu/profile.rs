//! Time and bytes of each verb, for `octet bench --profile`. Written by every verb of the CPU backend.

use std::time::{Duration, Instant};

/// The verbs that are measured separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Verb {
    Embed,
    Project,
    RopeStore,
    Attend,
    Gdn,
    Ssm,
    ShortConv,
    Linear,
    Glu,
    Moe,
    Logits,
}

impl Verb {
    /// All of them, in the order of a forward pass.
    pub const ALL: [Self; 11] = [
        Self::Embed,
        Self::Project,
        Self::RopeStore,
        Self::Attend,
        Self::Gdn,
        Self::Ssm,
        Self::ShortConv,
        Self::Linear,
        Self::Glu,
        Self::Moe,
        Self::Logits,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Project => "project",
            Self::RopeStore => "rope_store",
            Self::Attend => "attend",
            Self::Gdn => "gdn",
            Self::Ssm => "ssm",
            Self::ShortConv => "short_conv",
            Self::Linear => "linear",
            Self::Glu => "glu",
            Self::Moe => "moe",
            Self::Logits => "logits",
        }
    }
}

/// Sums over all calls of one verb.
#[derive(Debug, Clone, Copy, Default)]
pub struct Entry {
    /// Calls.
    pub calls: u64,
    /// Wall-clock time.
    pub time: Duration,
    /// Bytes of weights, states and keys/values that the calls read or wrote, each counted once per call.
    pub bytes: u64,
}

/// Sums since they were last taken, of all verbs but `norm`: no step of generation runs it.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    entries: [Entry; Verb::ALL.len()],
}

impl Profile {
    pub(super) fn add(&mut self, verb: Verb, since: Instant, bytes: usize) {
        let e = &mut self.entries[verb as usize];
        e.calls += 1;
        e.time += since.elapsed();
        e.bytes += bytes as u64;
    }

    /// Adds the sums of another profile.
    pub fn merge(&mut self, other: &Self) {
        for (a, b) in self.entries.iter_mut().zip(&other.entries) {
            a.calls += b.calls;
            a.time += b.time;
            a.bytes += b.bytes;
        }
    }

    /// The sums of all verbs together.
    pub fn total(&self) -> Entry {
        self.entries.iter().fold(Entry::default(), |a, e| Entry {
            calls: a.calls + e.calls,
            time: a.time + e.time,
            bytes: a.bytes + e.bytes,
        })
    }

    /// The sums of one verb.
    pub fn entry(&self, verb: Verb) -> Entry {
        self.entries[verb as usize]
    }
}
