//! The model of a request, once it is loaded.

use std::sync::Arc;

use octet_api::core::KeepAlive;
use octet_api::{ApiError, ErrorKind};

use super::deadline::Deadline;
use super::errors::draining;
use crate::inference::Inference;
use crate::models::{AcquireError, Lease};
use crate::ops::Metrics;

/// `Retry-After` while a model is being loaded.
const RETRY_LOADING_S: u64 = 10;

/// The model of an index.
pub async fn acquire(
    inference: &Arc<Inference>,
    index: usize,
    keep_alive: Option<KeepAlive>,
    deadline: Deadline,
) -> Result<Lease, ApiError> {
    let lease = deadline.within(inference.models.acquire(index, keep_alive)).await?;
    lease.map_err(|e| {
        let error = |kind| ApiError::new(kind, e.to_string());
        match &e {
            AcquireError::Failed { .. } | AcquireError::Down { .. } => error(ErrorKind::Internal),
            AcquireError::QueueFull { .. } => {
                inference.metrics.refused(&Metrics::model(&inference.models.name(index)));
                ApiError { retry_after_s: Some(RETRY_LOADING_S), ..error(ErrorKind::RateLimit) }
            }
            AcquireError::Draining => draining(),
        }
    })
}
