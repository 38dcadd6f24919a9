//! What answers by the models of this process need. Created by `App`; used by the pipeline, and by the gateway's targets for these models.

use std::sync::Arc;
use std::time::Duration;

use octet_parser::ReasoningFormat;
use octet_upstream::ImageFetcher;

use crate::models::Registry;
use crate::ops::{Metrics, RequestLog};
use crate::pipeline::BlockingPool;
use crate::warnings::Warnings;

/// The models, and what all requests for them share.
pub struct Inference {
    /// The models.
    pub models: Arc<Registry>,
    /// Current metrics.
    pub metrics: Metrics,
    /// The last requests of the router.
    pub requests: Arc<RequestLog>,
    /// Runs CPU-heavy work of requests.
    pub blocking_pool: BlockingPool,
    /// How warnings are reported.
    pub warnings: Warnings,
    /// Downloads images that requests give by address; `None` if that is not allowed.
    pub image_urls: Option<ImageFetcher>,
    /// Maximum time of a request, from its last byte to the last byte of its answer; `None` for no limit.
    pub timeout: Option<Duration>,
    /// Where reasoning is sent.
    pub reasoning: ReasoningFormat,
}
