//! Counts the tokens within the penalties' window.

use super::SamplerParams;

/// The count of one token id.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// Number of occurrences in the window.
    count: u32,
    /// Its index in `distinct`, if `count` is not 0.
    slot: u32,
}

/// The tokens of the last `last_n` positions, counted incrementally, so that a step takes time linear in the distinct tokens.
#[derive(Debug, Clone)]
pub(super) struct Window {
    /// `[vocab_rows]`; untouched pages of it use no memory.
    seen: Vec<Seen>,
    /// Ids with a nonzero count.
    distinct: Vec<u32>,
    /// The window as a ring buffer, oldest token at `oldest`; unused for an infinite window.
    ring: Vec<u32>,
    oldest: usize,
    /// `usize::MAX` for an infinite window.
    last_n: usize,
}

impl Window {
    pub fn new(last_n: usize, vocab_rows: usize) -> Self {
        let endless = last_n == usize::MAX;
        Self {
            seen: vec![Seen::default(); vocab_rows],
            distinct: Vec::with_capacity(last_n.min(vocab_rows)),
            ring: Vec::with_capacity(if endless { 0 } else { last_n }),
            oldest: 0,
            last_n,
        }
    }

    pub fn push(&mut self, id: u32) {
        if self.last_n != usize::MAX {
            if self.ring.len() < self.last_n {
                self.ring.push(id);
            } else {
                let gone = std::mem::replace(&mut self.ring[self.oldest], id);
                self.oldest = (self.oldest + 1) % self.last_n;
                self.forget(gone);
            }
        }
        if let Some(seen) = self.seen.get_mut(id as usize) {
            if seen.count == 0 {
                seen.slot = self.distinct.len() as u32;
                self.distinct.push(id);
            }
            seen.count += 1;
        }
    }

    fn forget(&mut self, id: u32) {
        let Some(seen) = self.seen.get_mut(id as usize) else { return };
        seen.count -= 1;
        if seen.count == 0 {
            let slot = seen.slot;
            self.distinct.swap_remove(slot as usize);
            if let Some(&moved) = self.distinct.get(slot as usize) {
                self.seen[moved as usize].slot = slot;
            }
        }
    }

    /// Penalises `logits` `[vocab_rows]` in place: the repetition penalty divides positive and multiplies other logits (CTRL,
    /// arXiv:1909.05858, as in Hugging Face); then `count * frequency + presence` is subtracted (OpenAI).
    pub fn penalize(&self, params: &SamplerParams, logits: &mut [f32]) {
        for &id in &self.distinct {
            logits[id as usize] = self.penalized(params, id, logits[id as usize]);
        }
    }

    /// The same for one token's logit.
    pub fn penalized(&self, params: &SamplerParams, id: u32, logit: f32) -> f32 {
        let count = self.seen[id as usize].count;
        if count == 0 {
            return logit;
        }
        let r = params.repetition_penalty;
        let x = if logit > 0.0 { logit / r } else { logit * r };
        x - (count as f32 * params.frequency_penalty + params.presence_penalty)
    }
}
