//! The recent rare tokens of running answers, which get rows in the draft head.

/// Marks a token that the head always has.
const ALWAYS: u16 = u16::MAX;
/// Marks a token without a row.
const NOWHERE: u16 = u16::MAX - 1;

/// Assigns tokens to rows. When all rows are taken, one is replaced whose token has not come since the last round of a clock, as in
/// page replacement: nearly least recently used, without an ordered list.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// The row of each token of the vocabulary.
    place: Vec<u16>,
    /// The token of each assigned row.
    ids: Vec<u32>,
    /// The token has come since the clock passed; and its row must be copied.
    seen: Vec<bool>,
    new: Vec<bool>,
    hand: usize,
    places: usize,
    /// Index of the first row.
    first: u32,
    changes: Vec<(u32, u32)>,
}

impl Recent {
    /// `places` rows after the rows of `always`.
    pub fn new(vocab: usize, always: &[u32], places: usize) -> Self {
        let places = places.min(usize::from(NOWHERE));
        let mut place = vec![NOWHERE; vocab];
        always.iter().for_each(|&id| place[id as usize] = ALWAYS);
        Self {
            place,
            ids: Vec::with_capacity(places),
            seen: vec![false; places],
            new: vec![false; places],
            hand: 0,
            places,
            first: always.len() as u32,
            changes: Vec::with_capacity(places),
        }
    }

    /// The tokens with rows, in order of rows.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Records that `id` is in the text.
    pub fn note(&mut self, id: u32) {
        let Some(&place) = self.place.get(id as usize) else { return };
        match place {
            ALWAYS => {}
            NOWHERE => self.assign_row(id),
            place => self.seen[usize::from(place)] = true,
        }
    }

    fn assign_row(&mut self, id: u32) {
        let place = if self.ids.len() < self.places {
            self.ids.push(id);
            self.ids.len() - 1
        } else if self.places == 0 {
            return;
        } else {
            while std::mem::take(&mut self.seen[self.hand]) {
                self.hand = (self.hand + 1) % self.places;
            }
            let place = self.hand;
            self.hand = (place + 1) % self.places;
            self.place[self.ids[place] as usize] = NOWHERE;
            self.ids[place] = id;
            place
        };
        self.place[id as usize] = place as u16;
        (self.seen[place], self.new[place]) = (true, true);
    }

    /// Changes since the last call: tokens and their rows. Each row occurs once.
    pub fn changes(&mut self) -> &[(u32, u32)] {
        self.changes.clear();
        for (place, (&id, new)) in self.ids.iter().zip(&mut self.new).enumerate() {
            if std::mem::take(new) {
                self.changes.push((id, self.first + place as u32));
            }
        }
        &self.changes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// After each update, every row is the token in the table, and the last token has a row.
        #[test]
        fn rows_follow_the_text(
            places in 0..20usize,
            calls in prop::collection::vec(prop::collection::vec(0..60u32, 0..40), 0..20),
        ) {
            let always: Vec<u32> = (0..10).chain([55]).collect();
            let mut recent = Recent::new(50, &always[..10], places);
            let mut rows: HashMap<u32, u32> = HashMap::new();
            for tokens in calls {
                tokens.iter().for_each(|&id| recent.note(id));
                let changes = recent.changes().to_vec();
                let mut places_once: Vec<u32> = changes.iter().map(|c| c.1).collect();
                places_once.sort_unstable();
                places_once.dedup();
                prop_assert_eq!(places_once.len(), changes.len());
                rows.extend(changes.iter().map(|&(id, row)| (row, id)));
                for (place, &id) in recent.ids().iter().enumerate() {
                    prop_assert_eq!(rows.get(&(10 + place as u32)), Some(&id));
                }
                prop_assert!(recent.ids().len() <= places);
                prop_assert!(recent.changes().is_empty());
                if let Some(last) = tokens.iter().rev().find(|id| (10..50).contains(*id)).filter(|_| places > 0) {
                    prop_assert!(recent.ids().contains(last));
                }
            }
        }
    }

    #[test]
    fn frequent_tokens_stay() {
        let mut recent = Recent::new(1000, &[], 4);
        for i in 0..500 {
            recent.note(7);
            recent.note(500 + i);
        }
        assert!(recent.ids().contains(&7) && recent.ids().contains(&999));
    }
}
