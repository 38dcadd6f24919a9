//! Divides the tokens of a step among sequences.
//!
//! Each answer gets its one token. Prompts share the rest of the budget: half of it goes to the oldest, so that none starves, the
//! other half to the one with the least left, so that a short question does not wait behind a long document; what these cannot use
//! goes to the others in turn.

/// A sequence's demand for a step.
#[derive(Debug, Clone, Copy)]
pub struct Want {
    /// Tokens not computed yet, at least 1. Exactly 1 means that an answer needs its next token.
    pub tokens: usize,
    /// Maximum that may be computed now: up to the next checkpoint, or none.
    pub most: usize,
    /// All of its tokens need a row of logits.
    pub scored: bool,
}

/// The limits of a step.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Tokens in total.
    pub tokens: usize,
    /// Prompt tokens beside answers.
    pub mixed: usize,
    /// Rows of logits beyond one per sequence, shared by scored prompts.
    pub rows: usize,
}

/// The shares of one step, in reused buffers.
#[derive(Debug, Default)]
pub struct Plan {
    pub wants: Vec<Want>,
    /// Tokens of each sequence.
    pub shares: Vec<usize>,
    /// Number of sequences that get an answer's token.
    pub decodes: usize,
    /// Number of prompt tokens.
    pub prefills: usize,
}

impl Plan {
    pub fn with_capacity(seqs: usize) -> Self {
        Self { wants: Vec::with_capacity(seqs), shares: Vec::with_capacity(seqs), ..Self::default() }
    }

    /// The same for texts that are computed as a whole: in the order of admission, those for which there is room. None has more than `budget` tokens.
    pub fn share_whole(&mut self, budget: usize) {
        let mut left = budget;
        self.shares.clear();
        self.shares.extend(self.wants.iter().map(|w| {
            let n = if w.tokens <= left { w.tokens } else { 0 };
            left -= n;
            n
        }));
        (self.decodes, self.prefills) = (0, budget - left);
    }

    /// Computes `shares` for `wants`, in the order of admission.
    pub fn share(&mut self, budget: Budget) {
        let decode = |w: &Want| w.tokens == 1;
        self.shares.clear();
        self.shares.extend(self.wants.iter().map(|w| usize::from(decode(w))));
        self.decodes = self.shares.iter().sum();
        let mut left = budget.tokens.saturating_sub(self.decodes);
        if self.decodes > 0 {
            left = left.min(budget.mixed);
        }
        let mut rows = budget.rows;
        let before = left;
        let prefills =
            || self.wants.iter().enumerate().filter(|(_, w)| !decode(w) && w.most > 0).map(|(i, _)| i);
        let oldest = prefills().next();
        let shortest = prefills().min_by_key(|&i| self.wants[i].tokens);
        let half = left.div_ceil(2);
        let first = [oldest.map(|i| (i, half)), shortest.map(|i| (i, usize::MAX))];
        for (i, most) in first.into_iter().flatten().chain((0..self.wants.len()).map(|i| (i, usize::MAX))) {
            let w = &self.wants[i];
            let mut n = (w.most.min(w.tokens) - self.shares[i]).min(most).min(left);
            if w.scored {
                n = n.min(rows);
                rows -= n;
            }
            self.shares[i] += n;
            left -= n;
        }
        self.prefills = before - left;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BUDGET: Budget = Budget { tokens: 512, mixed: 64, rows: 8 };

    fn shares(wants: &[usize]) -> Vec<usize> {
        let mut plan = Plan::default();
        plan.wants.extend(wants.iter().map(|&tokens| Want { tokens, most: tokens, scored: false }));
        plan.share(BUDGET);
        plan.shares
    }

    #[test]
    fn prompts_share_what_answers_leave() {
        assert_eq!(shares(&[1, 1]), [1, 1]);
        assert_eq!(shares(&[2000]), [512]);
        assert_eq!(shares(&[1, 2000]), [1, 64]);
        // half for the oldest, the shortest first of the others
        assert_eq!(shares(&[2000, 1000, 100]), [412, 0, 100]);
        assert_eq!(shares(&[2000, 1000, 300]), [256, 0, 256]);
        assert_eq!(shares(&[100, 2000, 3000]), [100, 412, 0]);
        assert_eq!(shares(&[1, 2000, 10, 1]), [1, 54, 10, 1]);
    }

    #[test]
    fn whole_texts_are_not_cut() {
        let mut plan = Plan::default();
        plan.wants.extend([300, 300, 1, 211, 1].map(|tokens| Want { tokens, most: tokens, scored: false }));
        plan.share_whole(512);
        assert_eq!(plan.shares, [300, 0, 1, 211, 0]);
        assert_eq!((plan.decodes, plan.prefills), (0, 512));
    }

    #[test]
    fn checkpoints_and_scores_limit_a_prompts_step() {
        let mut plan = Plan::default();
        plan.wants.extend([
            Want { tokens: 900, most: 40, scored: false },
            Want { tokens: 900, most: 900, scored: true },
            Want { tokens: 900, most: 900, scored: false },
        ]);
        plan.share(BUDGET);
        assert_eq!(plan.shares, [40, 8, 464]);
    }

    proptest! {
        #[test]
        fn every_step_makes_progress_within_its_budget(
            wants in prop::collection::vec((1usize..3000, 1usize..3000, any::<bool>()), 1..20),
            tokens in 20usize..600, mixed in 1usize..600, rows in 1usize..40,
        ) {
            let mut plan = Plan::default();
            plan.wants.extend(wants.iter().map(|&(tokens, most, scored)| Want { tokens, most: most.min(tokens), scored }));
            plan.share(Budget { tokens, mixed, rows });
            let sum: usize = plan.shares.iter().sum();
            prop_assert!(sum > 0 && sum <= tokens);
            prop_assert_eq!(sum, plan.decodes + plan.prefills);
            prop_assert!(plan.decodes == 0 || plan.prefills <= mixed);
            let scored = plan.wants.iter().zip(&plan.shares).filter(|(w, _)| w.scored && w.tokens > 1);
            prop_assert!(scored.map(|(_, n)| n).sum::<usize>() <= rows);
            for (w, &n) in plan.wants.iter().zip(&plan.shares) {
                prop_assert!(n <= w.most);
                prop_assert!(w.tokens > 1 || n == 1);
            }
            // the oldest prompt always gets on
            let oldest = plan.wants.iter().position(|w| w.tokens > 1);
            prop_assert!(oldest.is_none_or(|i| plan.shares[i] > 0));
        }
    }
}
