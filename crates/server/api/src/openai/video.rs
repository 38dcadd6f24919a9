//! Videos in messages: lists of frames, in the forms of Qwen's and vLLM's APIs. They become images with a place in a video. A video that is
//! encoded is refused by name.

use crate::breakpoint::breakpoint;
use crate::core::{Frame, Image, ImageSource, Part, data_url};
use crate::json::{Field, Object, Result};
use crate::rules::{Rules, echo};

/// Frames a second, if the client does not say: as in Qwen's API.
const FPS: f64 = 2.0;

/// Maximum frames of one video: as many as the images of a request.
const FRAMES_MAX: usize = 256;

/// When the last frame may be, in seconds.
const TIME_MAX_S: f64 = 1e6;

/// What is said of an encoded video.
const ENCODED: &str = ": videos are not decoded here; send its frames as {\"type\": \"video\", \"video\": [image, image, ...], \"fps\": 2}, each a \
     data URL of a PNG, JPEG or WebP";

/// Further fields of a video.
const PART: Rules = &[("annotations", echo()), ("provider_specific_fields", echo())];

/// Whether a part of a message is a video.
pub(super) fn is_one(f: &Field) -> bool {
    let kind = f.value().get("type").and_then(|kind| kind.as_str());
    matches!(kind, Some("video" | "video_url" | "input_video"))
}

/// The frames of a video; of one that is encoded, the text that replaces it where it is not asked about.
///
/// Its frames are `fps` in a second, or at `times`, seconds from its beginning.
pub(super) fn parts(f: Field) -> Result<Vec<Part>> {
    let mut o = f.object()?;
    let kind = o.require("type")?;
    let Some(sources) = frames(&mut o)? else {
        return Ok(vec![Part::text(o.unread("a video", kind.unsupported(ENCODED)))]);
    };
    let times_s = times(&mut o, sources.len())?;
    let mut cache = breakpoint(&mut o)?;
    o.finish(&[PART])?;
    let last = sources.len() - 1;
    let part = |(number, ((at, source), at_s)): (usize, ((String, ImageSource), f64))| {
        let frame = Some(Frame { number, at_s });
        let cache = if number == last { cache.take() } else { None };
        Part::Image { image: Image { source, detail: None, at, frame }, cache }
    };
    Ok(sources.into_iter().zip(times_s).enumerate().map(part).collect())
}

/// A frame with its path.
type Source = (String, ImageSource);

/// The frames of a part, at least one. `None` if it is no list of frames.
fn frames(o: &mut Object) -> Result<Option<Vec<Source>>> {
    let Some(f) = o.take_any(&["video", "video_url"])? else { return Ok(None) };
    if !f.is_object() {
        return list(f);
    }
    // {"url": ...} of vLLM.
    let mut video = f.object()?;
    let Some(f) = video.take("url") else { return Ok(None) };
    let frames = list(f)?;
    if frames.is_some() {
        video.finish(&[])?;
    }
    Ok(frames)
}

/// An array of frames, or a data URL of the type `video/jpeg`, in which vLLM's clients separate images by commas.
fn list(f: Field) -> Result<Option<Vec<Source>>> {
    let count = |count: usize| match count {
        0 => Err(f.error("has no frames")),
        1..=FRAMES_MAX => Ok(()),
        _ => Err(f.error(format_args!("has {count} frames; at most {FRAMES_MAX} are read"))),
    };
    if let Some(frames) = f.value().as_array() {
        count(frames.len())?;
        return f.list(frame).map(Some);
    }
    let url = f.as_str().filter(|url| !url.is_empty()).ok_or_else(|| f.expected("an array of images"))?;
    let Some((Some("video/jpeg"), data)) = data_url(url) else { return Ok(None) };
    count(data.split(',').count())?;
    let frame = |(i, data): (usize, &str)| {
        let source = ImageSource::jpeg(&f, data)?;
        Ok((format!("{}[{i}]", f.path()), source))
    };
    data.split(',').enumerate().map(frame).collect::<Result<_>>().map(Some)
}

/// A frame of an array.
fn frame(f: Field) -> Result<Source> {
    let at = f.path();
    if !f.is_object() {
        return Ok((at, picture(f)?));
    }
    let mut o = f.object()?;
    let source = picture(o.require("url")?)?;
    o.finish(&[])?;
    Ok((at, source))
}

/// An image: a data URL of another type is none.
fn picture(f: Field) -> Result<ImageSource> {
    let at = f.at();
    match ImageSource::url(f)? {
        ImageSource::Base64 { media_type: Some(kind), .. } if !kind.starts_with("image/") => {
            Err(at(kind.into()).expected("an image"))
        }
        source => Ok(source),
    }
}

/// When each of `count` frames is, in seconds.
fn times(o: &mut Object, count: usize) -> Result<Vec<f64>> {
    let fps = o.take_any(&["fps", "sample_fps"])?;
    if let Some(f) = o.take("times") {
        let at = f.at();
        let times_s = f.list(|f| f.number(0.0..=TIME_MAX_S))?;
        let wrong = at(serde_json::Value::Null);
        if times_s.len() != count {
            return Err(wrong.error(format_args!("has {} times for {count} frames", times_s.len())));
        }
        if !times_s.is_sorted() {
            return Err(wrong.error("has a frame that is before the one that precedes it"));
        }
        if let Some(fps) = fps {
            fps.warn("is ignored: 'times' is beside it");
        }
        return Ok(times_s);
    }
    let fps = match fps {
        Some(f) => {
            let at = f.at();
            let fps = f.number(0.0..=1000.0)?;
            if fps <= 0.0 {
                return Err(at(fps.into()).expected("a number above 0"));
            }
            if (count - 1) as f64 / fps > TIME_MAX_S {
                return Err(at(fps.into()).error(format_args!("puts a frame behind {TIME_MAX_S} seconds")));
            }
            fps
        }
        None => {
            o.warn("has neither 'fps' nor 'times': two frames a second are assumed");
            FPS
        }
    };
    Ok((0..count).map(|i| i as f64 / fps).collect())
}
