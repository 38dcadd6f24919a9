//! Long answers in one piece: those that are forwarded are sent on as they arrive, those that are translated share one budget of memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use octet_api::{ApiError, ErrorKind};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::body::Body;
use crate::failure::{Failure, FailureKind};

/// Answers of this size are read completely before anything is sent on, so that another attempt can replace one that breaks off.
pub(crate) const SHORT_BYTES: usize = 1 << 20;
/// Maximum size of an answer that is translated.
pub(crate) const TRANSLATED_BYTES_MAX: usize = 64 << 20;
/// Memory of all long answers that are translated, in answers of maximum size.
const LONGEST_AT_ONCE: usize = 2;
/// How long an answer waits for memory; until then it is not read on.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// `Retry-After` if it waits in vain.
const RETRY_S: u64 = 5;

/// The memory of all long answers that are translated.
#[derive(Debug, Clone)]
pub(crate) struct AnswerBudget(Arc<Semaphore>);

/// An answer's share of that memory, released with its last copy.
#[derive(Debug, Clone)]
pub struct AnswerMemory(#[allow(dead_code)] Arc<OwnedSemaphorePermit>); // held, not read

impl AnswerBudget {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(LONGEST_AT_ONCE * TRANSLATED_BYTES_MAX)))
    }

    /// Reads an answer that is translated. A long one gets memory for the longest one first, and returns what it does not need: answers
    /// that got only a part could wait for each other.
    pub(crate) async fn whole(&self, mut body: Body) -> Result<(Bytes, Option<AnswerMemory>), Failure> {
        let (mut all, ended) = body.beginning(SHORT_BYTES).await?;
        if ended {
            return Ok((all.into(), None));
        }
        let share = u32::try_from(TRANSLATED_BYTES_MAX).unwrap_or(u32::MAX);
        let waiting = tokio::time::timeout(WAIT_MAX, Arc::clone(&self.0).acquire_many_owned(share));
        // The semaphore is never closed.
        let Ok(Ok(mut permit)) = waiting.await else {
            let what = "the memory for long answers is in use; try again";
            let error =
                ApiError { retry_after_s: Some(RETRY_S), ..ApiError::new(ErrorKind::Overloaded, what) };
            return Err(Failure::memory(error));
        };
        while let Some(piece) = body.next().await {
            all.extend_from_slice(&piece?);
            if all.len() > TRANSLATED_BYTES_MAX {
                let what = format!(
                    "the answer is longer than {} MiB, and must be translated",
                    TRANSLATED_BYTES_MAX >> 20
                );
                return Err(Failure::new(FailureKind::Protocol, what));
            }
        }
        drop(permit.split(TRANSLATED_BYTES_MAX - all.len()));
        Ok((all.into(), Some(AnswerMemory(Arc::new(permit)))))
    }
}
