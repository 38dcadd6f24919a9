//! The largest logits of a row, which usually suffice to choose a token. A device finds them, so that the row (1 MB with a large
//! vocabulary) need not be copied to the host. See [`crate::Backend::pick`].

/// Number of logits found per row.
pub const PICKS: usize = 64;

/// One of the largest logits of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pick {
    /// The token.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
}

/// The token with the largest logit, the lower id of equal ones, of picks in the order of their ids. `None` if there are none, or one is not a number.
pub fn best(picks: &[Pick]) -> Option<u32> {
    let mut best: Option<&Pick> = None;
    for p in picks {
        if p.logit.is_nan() {
            return None;
        }
        if best.is_none_or(|b| p.logit > b.logit) {
            best = Some(p);
        }
    }
    best.map(|p| p.id)
}

/// The oracle: the [`PICKS`] largest of `logits` whose bit is set in `sampleable`, bit `i % 32` of word `i / 32` (missing words count as
/// zero). Of equal logits the lower id wins. They are in the order of their ids, without -inf. `None` if one of them is NaN or +inf.
pub fn picks(logits: &[f32], sampleable: &[u32]) -> Option<Vec<Pick>> {
    let may = |i: usize| sampleable.get(i / 32).is_some_and(|w| w >> (i % 32) & 1 == 1);
    let mut all: Vec<Pick> = Vec::new();
    for (i, &logit) in logits.iter().enumerate().filter(|(i, _)| may(*i)) {
        if logit.is_nan() || logit == f32::INFINITY {
            return None;
        }
        if logit > f32::NEG_INFINITY {
            all.push(Pick { id: i as u32, logit });
        }
    }
    // Stable: equal logits stay in the order of their ids.
    all.sort_by(|a, b| b.logit.partial_cmp(&a.logit).expect("numbers"));
    all.truncate(PICKS);
    all.sort_by_key(|p| p.id);
    Some(all)
}
