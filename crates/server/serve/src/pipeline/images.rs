//! The images of a request for a local model: their number and sizes, and downloads of those that are given by address. Called by `run`
//! before a prompt is rendered.

use std::sync::Arc;

use octet_api::ApiError;
use octet_api::core::GenerateRequest;
use octet_images::Limits;
use octet_upstream::{has_image_urls, image_url_refused};

use crate::inference::Inference;
use crate::models::Lease;

/// The request with its images. A model that sees none refuses them itself.
///
/// # Errors
/// Too many images, images that are too large, and addresses that are not allowed or do not answer.
pub async fn fetched(
    inference: &Inference,
    lease: &Lease,
    request: Arc<GenerateRequest>,
) -> Result<Arc<GenerateRequest>, ApiError> {
    if !lease.card().info.abilities.vision || request.images().next().is_none() {
        return Ok(request);
    }
    let limits = Limits::default();
    check(&request, &limits)?;
    if !has_image_urls(&request) {
        return Ok(request);
    }
    let Some(images) = &inference.image_urls else {
        let refusal = image_url_refused(&request, "this server");
        return refusal.map_or_else(|| Ok(request), Err);
    };
    let mut with = (*request).clone();
    images.download(&mut with).await?;
    check(&with, &limits)?;
    Ok(Arc::new(with))
}

fn check(request: &GenerateRequest, limits: &Limits) -> Result<(), ApiError> {
    for (n, image) in request.images().enumerate() {
        if n == limits.images {
            let what = format!("'{}' is one image too many: the limit is {} images", image.at, limits.images);
            return Err(ApiError::invalid(image.at.clone(), what));
        }
        if image.size().is_some_and(|bytes| bytes > limits.bytes) {
            let (bytes, max) = (image.size().unwrap_or_default(), limits.bytes);
            let error = octet_images::Error::TooManyBytes { bytes, max };
            return Err(ApiError::invalid(image.at.clone(), format!("the image '{}' {error}", image.at)));
        }
    }
    Ok(())
}
