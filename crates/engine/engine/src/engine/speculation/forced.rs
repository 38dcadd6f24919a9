//! Guesses that are certain: the end of reasoning whose budget is used up, and the only tokens that a grammar allows. A drafter of
//! `speculation`.

use super::controller::{Class, Controller};
use super::{Drafter, Work};
use crate::Error;

pub(super) struct Forced;

impl Drafter for Forced {
    fn draft(&mut self, work: &mut Work<'_>, _: &mut Controller) -> Result<(), Error> {
        for r in work.running.iter_mut().filter(|r| r.choice.guesses.is_open()) {
            let most = r.choice.guesses.most;
            let mut forced = std::mem::take(&mut r.choice.guesses.ids);
            r.choice.forced_tokens(most, &mut forced);
            let guesses = &mut r.choice.guesses;
            forced.truncate(most);
            guesses.classes.extend(forced.iter().map(|_| Class::FORCED));
            guesses.ids = forced;
        }
        Ok(())
    }
}
