//! `--draft-oracle`: guesses that are right with a given probability, to measure the benefit of a drafter of that quality. It records the
//! first answer to each prompt, and guesses when the prompt is repeated. Only for measurements.

use std::collections::HashMap;

use super::controller::{Class, Controller};
use super::{Drafter, Guesses, Work};
use crate::Error;
use crate::engine::choice::Choice;

/// The recorded answers, and the probability.
#[derive(Debug)]
pub struct Oracle {
    chance: f64,
    answers: HashMap<Vec<u32>, Vec<u32>>,
    random: u64,
}

impl Oracle {
    /// Guesses that are right with probability `chance`, 0 to 1.
    pub fn new(chance: f64) -> Self {
        Self { chance, answers: HashMap::new(), random: 0x5eed }
    }

    fn is_right(&mut self) -> bool {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.random >> 11) as f64) < self.chance * (1u64 << 53) as f64
    }
}

impl Drafter for Oracle {
    /// Replaces the guesses of another drafter, so that its cost counts; without one, adds its own.
    fn draft(&mut self, work: &mut Work<'_>, _: &mut Controller) -> Result<(), Error> {
        let (drafts, vocab) = (work.model.has_mtp(), work.model.config().vocab as u32);
        for i in 0..work.running.len() {
            let choice = &mut work.running[i].choice;
            let (prompt, answer) = choice.tokens.split_at(choice.prompt);
            let Guesses { ids, classes, most, .. } = &mut choice.guesses;
            let n = if drafts { ids.len() } else { *most };
            ids.clear();
            classes.clear();
            let Some(known) = self.answers.get(prompt).and_then(|known| known.get(answer.len()..)) else {
                continue;
            };
            ids.extend_from_slice(&known[..n.min(known.len())]);
            for id in ids.iter_mut() {
                classes.push(Class::ORACLE);
                if !self.is_right() {
                    *id = (*id + 1) % vocab;
                }
            }
        }
        Ok(())
    }

    fn finished(&mut self, choice: &Choice) {
        let (prompt, answer) = choice.tokens.split_at(choice.prompt);
        self.answers.entry(prompt.to_vec()).or_insert_with(|| answer.to_vec());
    }
}
