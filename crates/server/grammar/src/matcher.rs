//! Matches one answer, token by token. Called by the engine: a mask before each token, then the chosen token.

use std::sync::Arc;

use llguidance::Matcher as Inner;

use crate::watchdog::Watch;
use crate::{Error, Vocabulary};

/// The error for a grammar with no allowed token.
pub(crate) const NOTHING: &str = "nothing matches it: no token may come next, and it may not end either";
/// llguidance's name of that state.
const DEAD_END: &str = "NoExtensionBias";

/// The free part of an answer before its grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Free {
    /// The token after which the grammar begins.
    pub end: Option<u32>,
    /// The token with which the grammar begins.
    pub call: Option<u32>,
    /// The answer may end without the grammar.
    pub may_end: bool,
}

/// The state of one answer under a constraint. A clone is independent: for several answers with a common prefix, or for drafts that
/// may be rejected.
///
/// After an error of the constraint, all further calls return it.
pub struct Matcher {
    vocabulary: Arc<Vocabulary>,
    inner: Inner,
    watch: Watch,
    /// The current free part; `None` once the grammar has begun.
    free: Option<Free>,
    /// Special tokens are never allowed.
    plain: bool,
    /// The last token ended the answer.
    ended: bool,
}

impl Matcher {
    pub(crate) fn new(vocabulary: Arc<Vocabulary>, inner: Inner, free: Option<Free>, plain: bool) -> Self {
        let watch = vocabulary.watchdog.watch(inner.cancellation_handle().unwrap_or_default());
        Self { vocabulary, inner, watch, free, plain, ended: false }
    }

    /// Sets the bits of the tokens that may come next, bit `id % 32` of `bits[id / 32]`, and clears all others. If the answer must
    /// end, these are its end tokens.
    ///
    /// Fails if the constraint cannot be matched further (it became too complex).
    pub fn mask(&mut self, bits: &mut [u32]) -> Result<(), Error> {
        if self.ended {
            bits.fill(0);
            self.vocabulary.eos().iter().for_each(|&id| put(bits, id, true));
            return Ok(());
        }
        if let Some(free) = self.free {
            copy(&self.vocabulary.everything, bits);
            self.vocabulary.eos().iter().for_each(|&id| put(bits, id, free.may_end));
            return Ok(());
        }
        let inner = &mut self.inner;
        let mask =
            self.watch.over(|| inner.compute_mask_or_eos()).map_err(|e| self.failed(&e.to_string()))?;
        copy(mask.as_slice(), bits);
        if self.plain {
            bits.iter_mut().zip(&self.vocabulary.plain).for_each(|(b, plain)| *b &= plain);
            let may_end = self.may_end()?;
            self.vocabulary.eos().iter().for_each(|&id| put(bits, id, may_end));
            if bits.iter().all(|b| *b == 0) {
                return Err(Error::Step(NOTHING.into()));
            }
        }
        Ok(())
    }

    /// Adds the chosen token. Fails without changes if the constraint does not allow it; or if the constraint cannot be matched
    /// further.
    pub fn accept(&mut self, id: u32) -> Result<(), Error> {
        let refused = |why: &str| Err(Error::Token { id, why: why.into() });
        if self.ended {
            return refused("the answer is over");
        }
        if self.vocabulary.eos().contains(&id) && self.may_end()? {
            self.ended = true;
            return Ok(());
        }
        if self.is_finished() {
            return refused("only the end of the answer can come");
        }
        if let Some(free) = self.free {
            if self.vocabulary.eos().contains(&id) {
                return refused("the answer cannot end in the reasoning");
            }
            if free.call != Some(id) {
                self.free = self.free.filter(|f| f.end != Some(id));
                return Ok(());
            }
        }
        let inner = &mut self.inner;
        let taken =
            self.watch.over(|| inner.try_consume_tokens(&[id])).map_err(|e| self.failed(&e.to_string()))?;
        if taken == 0 {
            return refused("no continuation matches");
        }
        self.free = None;
        // A grammar may contain the end token itself.
        self.ended = self.vocabulary.eos().contains(&id);
        Ok(())
    }

    /// Whether the answer may end here.
    pub fn may_end(&mut self) -> Result<bool, Error> {
        if self.ended {
            return Ok(true);
        }
        if let Some(free) = self.free {
            return Ok(free.may_end);
        }
        let inner = &mut self.inner;
        self.watch.over(|| inner.is_accepting()).map_err(|e| self.failed(&e.to_string()))
    }

    /// Whether only the end can follow, or the answer has ended.
    pub fn is_finished(&self) -> bool {
        self.ended || self.free.is_none() && self.inner.is_stopped() && !self.inner.is_error()
    }

    /// The tokens that must come next: they can be processed at once, without sampling. The caller passes each to [`Matcher::accept`].
    /// Empty if there is a choice.
    pub fn forced(&mut self) -> Vec<u32> {
        if self.free.is_some() || self.is_finished() {
            return Vec::new();
        }
        let inner = &mut self.inner;
        self.watch.over(|| inner.compute_ff_tokens())
    }

    fn failed(&self, said: &str) -> Error {
        let said = said.trim_end_matches("<non-verbose/>").trim();
        if self.inner.is_cancelled() {
            return Error::Step("it took too long to find out which tokens may come next".into());
        }
        if said.contains(DEAD_END) {
            return Error::Step(NOTHING.into());
        }
        Error::Step(said.lines().next().unwrap_or_default().chars().take(300).collect())
    }
}

impl Clone for Matcher {
    fn clone(&self) -> Self {
        let inner = self.inner.clone();
        let watch = self.watch.another(inner.cancellation_handle().unwrap_or_default());
        Self { vocabulary: self.vocabulary.clone(), inner, watch, ..*self }
    }
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher").field("free", &self.free).field("ended", &self.ended).finish()
    }
}

/// Copies a bit set; clears the rest of `to`.
fn copy(from: &[u32], to: &mut [u32]) {
    let len = from.len().min(to.len());
    to[..len].copy_from_slice(&from[..len]);
    to[len..].fill(0);
}

fn put(bits: &mut [u32], id: u32, on: bool) {
    if let Some(word) = bits.get_mut(id as usize / 32) {
        let bit = 1 << (id % 32);
        *word = if on { *word | bit } else { *word & !bit };
    }
}
