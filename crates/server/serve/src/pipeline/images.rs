//! The images of a request for a local model: their number and sizes, downloads of those that are given by address, and their pixels.

use std::sync::Arc;

use octet_api::core::{Frame, GenerateRequest, Image};
use octet_api::{ApiError, ErrorKind};
use octet_engine::vision::{Picture, Resized};
use octet_images::Limits;
use octet_upstream::{has_image_urls, image_url_refused};

use crate::inference::Inference;
use crate::models::{Lease, Loaded};

/// Pixels of all frames of a video: small as a model reads them, they would take minutes to decode.
const VIDEO_PIXELS_MAX: usize = 1 << 30;

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

/// The images of a prompt at the size that the model reads, which together have at most `tokens_max` tokens; of videos pairs of frames. Called on
/// a blocking thread.
///
/// # Errors
/// What is no image, or too large; images for a model that sees none.
pub fn read(model: &Loaded, images: &[Image], tokens_max: usize) -> Result<Vec<Arc<Resized>>, ApiError> {
    let mut read = Vec::with_capacity(images.len());
    let mut tokens = 0;
    let times_s: Vec<f64> = images.iter().map(|i| i.frame.map_or(0.0, |frame| frame.at_s)).collect();
    let mut clip = None;
    for (i, image) in images.iter().enumerate() {
        let at = &image.at;
        let refused = |what: String| ApiError::invalid(at.clone(), what);
        let Some(reader) = &model.handle.rules().images else {
            return Err(refused(format!("'{at}' is an image, and this model reads text only; send text")));
        };
        let decoded = octet_images::decode(&image.bytes()?, &Limits::default());
        let picture = decoded.map_err(|e| refused(format!("the image '{at}' {e}")))?;
        let octet_images::Picture { width, height, rgb } = picture;
        let picture = Picture { width: width as usize, height: height as usize, rgb };
        let failed = |e| refused(format!("'{at}': {e}"));
        let resized = match image.frame {
            None => reader.resize(&picture).map_err(failed)?,
            Some(Frame { number, .. }) => {
                if number == 0 {
                    let (count, size) = (frames(&images[i..]), [picture.width, picture.height]);
                    if size[0].saturating_mul(size[1]).saturating_mul(count) > VIDEO_PIXELS_MAX {
                        let [width, height] = size;
                        return Err(refused(format!(
                            "'{at}' is the first of {count} frames of {width} x {height} pixels; all together may have \
                             {VIDEO_PIXELS_MAX}: send smaller ones"
                        )));
                    }
                    clip = Some(reader.clip(&times_s[i..i + count], size).map_err(failed)?);
                }
                let Some(clip) = &mut clip else {
                    return Err(refused(format!("'{at}' is a frame of a video that has no first one")));
                };
                // The second one of a pair completes it.
                let Some(pair) = clip.read(&picture).map_err(failed)? else { continue };
                Arc::new(pair)
            }
        };
        tokens += resized.prompt_len();
        if tokens > tokens_max {
            let what =
                format!("with '{at}' the images have {tokens} tokens, and there is room for {tokens_max}");
            return Err(ApiError {
                param: Some(at.clone()),
                ..ApiError::new(ErrorKind::ContextLength, what)
            });
        }
        read.push(resized);
    }
    Ok(read)
}

/// How many frames the video has that begins here.
fn frames(images: &[Image]) -> usize {
    let mut rest = images.iter().skip(1).map(|image| image.frame);
    1 + rest.by_ref().take_while(|frame| frame.is_some_and(|f| f.number > 0)).count()
}

/// The tokens of a prompt with all those of its images, to count and show them.
pub fn spread(model: &Loaded, tokens: Vec<u32>, images: &[Arc<Resized>]) -> Vec<u32> {
    let Some(reader) = &model.handle.rules().images else { return tokens };
    reader.spread(&tokens, images)
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
