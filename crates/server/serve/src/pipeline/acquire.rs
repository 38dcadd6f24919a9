//! The model of a request, once it is loaded. Used by `run`, `embed`, `rerank` and the endpoints that count tokens.

use std::sync::Arc;

use octet_api::core::KeepAlive;
use octet_api::{ApiError, ErrorKind};

use super::errors::{draining, timeout};
use crate::app::App;
use crate::models::{AcquireError, Lease};
use crate::ops::Metrics;

/// `Retry-After` while a model is being loaded.
const RETRY_LOADING_S: u64 = 10;

/// The model that a client asks for.
pub async fn acquire(
    app: &Arc<App>,
    name: &str,
    keep_alive: Option<KeepAlive>,
    deadline: Option<tokio::time::Instant>,
) -> Result<Lease, ApiError> {
    acquire_at(app, app.find(name)?, keep_alive, deadline).await
}

/// The model of an index.
pub async fn acquire_at(
    app: &Arc<App>,
    index: usize,
    keep_alive: Option<KeepAlive>,
    deadline: Option<tokio::time::Instant>,
) -> Result<Lease, ApiError> {
    let lease = app.models.acquire(index, keep_alive);
    let lease = match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline, lease).await.map_err(|_| timeout())?,
        None => lease.await,
    };
    lease.map_err(|e| {
        let error = |kind| ApiError::new(kind, e.to_string());
        match &e {
            AcquireError::Failed { .. } | AcquireError::Down { .. } => error(ErrorKind::Internal),
            AcquireError::QueueFull { .. } => {
                app.metrics.refused(&Metrics::model(&app.models.name(index)));
                ApiError { retry_after_s: Some(RETRY_LOADING_S), ..error(ErrorKind::RateLimit) }
            }
            AcquireError::Draining => draining(),
        }
    })
}
