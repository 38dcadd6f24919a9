//! What a checkpoint's processors say of images and videos, as metadata of its tower: limits of pixels, means and deviations. Which file counts
//! is as in transformers.

use super::dir::Dir;
use super::json::Fields;
use super::sidecars::json_file;
use super::tower_kinds::{Kind, Limit};
use crate::{Error, Metadata, Value};

/// Settings of both processors, as transformers 5 saves them.
const ALL: &str = "processor_config.json";
const IMAGES: &str = "preprocessor_config.json";
const VIDEOS: &str = "video_preprocessor_config.json";

/// Reads the processors' files of a checkpoint with this `vision_config`.
pub(super) fn read(kind: &Kind, dir: &Dir, vision: &Fields, metadata: &mut Metadata) -> Result<(), Error> {
    let [all, images, videos] = [ALL, IMAGES, VIDEOS].map(|name| json_file(dir, name));
    let (all, images, videos) = (all?, images?, videos?);
    let [all, images, videos] = [&all, &images, &videos].map(|(path, map)| Fields::new(path, map));
    let mut put = |key: &str, value: Value| {
        metadata.insert(&format!("clip.vision.{key}"), value);
    };

    let of_images = all.opt_object("image_processor")?.unwrap_or_else(|| images.clone());
    agrees(kind, &of_images, vision)?;
    limits(kind.limits, kind.frames, &of_images, &mut put)?;
    let mut normal = Vec::new();
    for (field, default) in NORMAL.into_iter().zip(kind.normal) {
        let values = numbers(&of_images, field)?.unwrap_or(default.to_vec());
        normal.push(values.clone());
        put(field, Value::Floats(values));
    }

    if kind.video_limits.is_empty() {
        return Ok(());
    }
    let own = if dir.has(VIDEOS) { videos } else { images };
    let of_videos = all.opt_object("video_processor")?.unwrap_or(own);
    agrees(kind, &of_videos, vision)?;
    limits(kind.video_limits, 1, &of_videos, &mut put)?;
    for ((field, default), of_images) in NORMAL.into_iter().zip(kind.normal).zip(normal) {
        let values = numbers(&of_videos, field)?.unwrap_or(default.to_vec());
        if values != of_images {
            let what =
                format!("is {values:?}, and that of images is {of_images:?}; both must be the same here");
            return Err(of_videos.bad(field, what));
        }
    }
    if of_videos.opt_bool("cap_pixels_per_frame")? == Some(true) {
        return Err(of_videos.bad("cap_pixels_per_frame", "is true, which is not supported; set it to false"));
    }
    Ok(())
}

const NORMAL: [&str; 2] = ["image_mean", "image_std"];

fn numbers(fields: &Fields, field: &str) -> Result<Option<Vec<f64>>, Error> {
    let Some(values) = fields.opt_array(field)? else { return Ok(None) };
    let number =
        |v: &serde_json::Value| v.as_f64().ok_or_else(|| fields.bad(field, "is not an array of numbers"));
    values.iter().map(number).collect::<Result<_, _>>().map(Some)
}

/// Fails if a processor cuts patches in another way than the tower reads them.
fn agrees(kind: &Kind, fields: &Fields, vision: &Fields) -> Result<(), Error> {
    for (field, of_tower, default) in kind.patches {
        let tower = vision.opt_u32(of_tower)?.unwrap_or(*default);
        if let Some(n) = fields.opt_u32(field)?.filter(|n| *n != tower) {
            let what = format!(
                "is {n}, and vision_config.{of_tower} of config.json is {tower}; correct the wrong one"
            );
            return Err(fields.bad(field, what));
        }
    }
    Ok(())
}

/// Limits, the lower one first where there are two; they count the pixels of so many frames.
fn limits(
    limits: &[Limit],
    frames: u32,
    fields: &Fields,
    put: &mut dyn FnMut(&str, Value),
) -> Result<(), Error> {
    let size = fields.opt_object("size")?;
    let mut before: Option<(&str, u32)> = None;
    for (key, field, old) in limits {
        // Older fields go first.
        let (owner, name, value) = match (fields.opt_u32(old)?, &size) {
            (None, Some(size)) => (size, *field, size.opt_u32(field)?),
            (value, _) => (fields, *old, value),
        };
        let Some(n) = value else { continue };
        if let Some((lower, least)) = before.filter(|(_, least)| *least > n) {
            return Err(owner.bad(name, format!("is {n}, which is below '{lower}', {least}")));
        }
        before = Some((name, n));
        put(key, Value::U64((n / frames).into()));
    }
    Ok(())
}
