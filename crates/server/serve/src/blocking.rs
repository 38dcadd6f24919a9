//! Work on blocking threads, with this server's errors.

use octet_api::{ApiError, ErrorKind};
use octet_upstream::blocking;
pub use octet_upstream::blocking::spawn_blocking;

/// Runs `work`, which reads or writes `bytes` bytes: in the caller's task, or on a blocking thread if they are many.
pub async fn run_sized<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    blocking::run_sized(bytes, work).await.map_err(|e| ApiError::new(ErrorKind::Internal, e.to_string()))
}
