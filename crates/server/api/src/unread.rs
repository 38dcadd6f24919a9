//! Content that this server does not read, such as sounds and files by their ids: refused in the message to be answered, replaced by a
//! text elsewhere. Collected while a conversation is parsed, by the dialects that have such content.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use crate::ApiError;

/// What was found in one body.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unread(Rc<RefCell<Vec<Found>>>);

#[derive(Debug)]
struct Found {
    /// Its path.
    at: String,
    what: &'static str,
    /// The error if it is in the message to be answered.
    refusal: ApiError,
    /// The index of its message, once it is known.
    message: Option<usize>,
}

impl Unread {
    /// Notes `what` at a path, and returns the text that replaces it.
    pub(crate) fn found(&self, at: String, what: &'static str, refusal: ApiError) -> String {
        self.0.borrow_mut().push(Found { at, what, refusal, message: None });
        format!("[Here was {what}. This model reads text only.]")
    }

    /// Says that what was found since the last call is in this message.
    pub(crate) fn place(&self, message: usize) {
        // Those without a message are the last.
        for found in self.0.borrow_mut().iter_mut().rev().take_while(|found| found.message.is_none()) {
            found.message = Some(message);
        }
    }

    /// Refuses what is in no message.
    pub(crate) fn refuse_unplaced(&self) -> Result<(), ApiError> {
        let mut all = self.0.borrow_mut();
        match all.iter().position(|found| found.message.is_none()) {
            Some(at) => Err(all.swap_remove(at).refusal),
            None => Ok(()),
        }
    }

    /// Refuses what is in the messages to be answered. Returns the paths of the rest, and what is there.
    pub(crate) fn settle(&self, asked: &Range<usize>) -> Result<Vec<(String, &'static str)>, ApiError> {
        let settle = |found: Found| match found.message {
            Some(message) if !asked.contains(&message) => Ok((found.at, found.what)),
            _ => Err(found.refusal),
        };
        self.0.take().into_iter().map(settle).collect()
    }
}
