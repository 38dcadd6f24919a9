//! Images for models: the flags, the tower beside a model's file, and image files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::Args;
use octet_engine::vision::{self, Options, Picture};
use octet_images::Limits;
use serde_json::{Value, json};

use crate::numbers::positive;
use crate::stderr::note;

/// Why a model without a projector reads no images.
const NONE: &str = "it has no projector; --mmproj names one";

/// What reads a model's images.
#[derive(Debug)]
pub enum Sight {
    /// A tower.
    Reads(Options),
    /// Nothing, and why.
    Blind(String),
}

impl Sight {
    /// The tower, and why there is none.
    pub fn split(self) -> (Option<Options>, String) {
        match self {
            Self::Reads(options) => (Some(options), String::new()),
            Self::Blind(why) => (None, why),
        }
    }
}

/// How a model reads images.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Images")]
pub struct ImageFlags {
    /// Projector that reads images for the model: llama.cpp's mmproj file, or a folder with one. Default: one beside the model's file,
    /// or the checkpoint's own.
    #[arg(long, value_name = "FILE", conflicts_with = "no_mmproj")]
    mmproj: Option<PathBuf>,
    /// Load no projector: the model reads no images.
    #[arg(long)]
    no_mmproj: bool,
    /// Minimum number of tokens of an image, where its size decides: smaller ones are enlarged. Default: the projector's own.
    #[arg(long, value_name = "N", value_parser = positive)]
    image_min_tokens: Option<usize>,
    /// Maximum number of tokens of an image: larger ones are reduced. Default: the projector's own, but at most 4096.
    #[arg(long, value_name = "N", value_parser = positive)]
    image_max_tokens: Option<usize>,
}

impl ImageFlags {
    /// The tower for a model: the one that a flag names, or else the one that is found. Says on standard error which ones cannot be used.
    ///
    /// # Errors
    /// If the named one cannot be used.
    pub fn tower(&self, model: &octet_weights::Model) -> anyhow::Result<Sight> {
        match &self.mmproj {
            _ if self.no_mmproj => {
                Ok(Sight::Blind("it was started with --no-mmproj; --mmproj FILE names a projector".into()))
            }
            None => Ok(self.found(model)),
            Some(path) => {
                let options = self.options(octet_weights::Model::open(named(path)?)?);
                let tower = options.checked()?;
                let unfit =
                    |why| anyhow::anyhow!("{}: {why}; without --mmproj one is looked for", path.display());
                vision::belongs(&tower, model).map_err(unfit)?;
                Ok(Sight::Reads(options))
            }
        }
    }

    /// Whether no flag names a tower: it is found beside the model.
    pub fn is_found(&self) -> bool {
        self.mmproj.is_none()
    }

    /// The tower beside a model, if one can be used.
    fn found(&self, model: &octet_weights::Model) -> Sight {
        let origin = Path::new(&model.origin);
        if origin.is_dir() && origin.join("config.json").exists() {
            return self.of_checkpoint(origin);
        }
        if let Some(arch) =
            model.metadata.str("general.architecture").ok().filter(|a| !vision::reads_images(a))
        {
            return Sight::Blind(format!("images are not supported with architecture '{arch}'"));
        }
        let folder = if origin.is_dir() { Some(origin) } else { origin.parent() };
        // One that was made with this file comes before those of other models.
        let own = format!("mmproj-{}", origin.file_name().unwrap_or_default().to_string_lossy());
        let mut paths = folder.map_or_else(Vec::new, projectors);
        paths.sort_by_key(|path| path.file_name().is_none_or(|name| *name != *own));
        let (mut broken, mut foreign) = (Vec::new(), None);
        let mut sight = None;
        for path in paths {
            let options = octet_weights::Model::open(&path).map_err(anyhow::Error::from);
            let options = options.map(|file| self.options(file)).and_then(|o| Ok((o.tower()?, o)));
            let usable = options.and_then(|(tower, options)| match vision::belongs(&tower, model) {
                Err(why) => Ok(Err(why)),
                Ok(()) => options.checked().map(|_| Ok(options)).map_err(anyhow::Error::from),
            });
            match usable {
                Ok(Ok(options)) => {
                    sight = Some(options);
                    break;
                }
                Ok(Err(why)) => {
                    foreign = foreign.or(Some(format!("{} belongs to another model: {why}", path.display())));
                }
                // Its errors name the file.
                Err(e) => broken.push(format!("{e:#}")),
            }
        }
        for why in &broken {
            let then =
                if sight.is_some() { "another projector is used" } else { "the model reads no images" };
            note!("note: {then}: {why}; --no-mmproj silences this");
        }
        match sight {
            Some(options) => Sight::Reads(options),
            None => Sight::Blind(match broken.into_iter().next().or(foreign) {
                Some(why) => format!("{why}; --mmproj names another projector"),
                None => NONE.into(),
            }),
        }
    }

    /// A checkpoint's own tower.
    fn of_checkpoint(&self, folder: &Path) -> Sight {
        let usable = |file| {
            let options = self.options(file);
            options.checked().map(|_| options).map_err(|e| e.to_string())
        };
        match octet_weights::hf::open_tower(folder).map_err(|e| e.to_string()).map(|t| t.map(usable)) {
            Ok(None) => Sight::Blind(NONE.into()),
            Ok(Some(Ok(options))) => Sight::Reads(options),
            Ok(Some(Err(why))) | Err(why) => {
                note!("note: the model reads no images: {why}; --no-mmproj silences this");
                Sight::Blind(why)
            }
        }
    }

    /// The tower of a published model that is not on this machine, by its short name, from what is known of its shape.
    pub fn known(&self, name: &str) -> Option<Options> {
        let short = name.split(':').take(2).collect::<Vec<_>>().join(":");
        let file = octet_synth::projector(&short).ok().flatten().filter(|_| !self.no_mmproj)?;
        Some(self.options(file))
    }

    fn options(&self, file: octet_weights::Model) -> Options {
        Options {
            min_tokens: self.image_min_tokens,
            max_tokens: self.image_max_tokens,
            ..Options::new(Arc::new(file))
        }
    }
}

/// The file that `--mmproj` names.
fn named(path: &Path) -> anyhow::Result<PathBuf> {
    if !path.is_dir() {
        return Ok(path.to_path_buf());
    }
    let none = || format!("{}: there is no mmproj file in it", path.display());
    projectors(path).into_iter().next().with_context(none)
}

/// Projector files of a folder, best first: as good as full precision, then full precision, then smaller ones.
fn projectors(folder: &Path) -> Vec<PathBuf> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let names = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
    let mut found: Vec<String> = names.filter(|name| octet_hub::is_projector(name)).collect();
    found.sort_by_key(|name| (octet_hub::projector_rank(name), name.clone()));
    found.into_iter().map(|name| folder.join(name)).collect()
}

/// An image file as a part of a message in OpenAI's form: a data URL with its bytes.
///
/// # Errors
/// If there is no such file, or it is no image, or too large.
pub fn part(path: &Path) -> anyhow::Result<Value> {
    let limits = Limits::default();
    let name = || path.display().to_string();
    let size = std::fs::metadata(path).with_context(name)?;
    anyhow::ensure!(size.is_file(), "{}: it is no file", path.display());
    let bytes = usize::try_from(size.len()).unwrap_or(usize::MAX);
    anyhow::ensure!(bytes <= limits.bytes, "{}: it has more than {} MiB", path.display(), limits.bytes >> 20);
    let file = std::fs::read(path).with_context(name)?;
    let (format, ..) =
        octet_images::size(&file, &limits).map_err(|e| anyhow::anyhow!("{}: it {e}", path.display()))?;
    let kind = format!("{format}").to_ascii_lowercase();
    let url = format!("data:image/{kind};base64,{}", BASE64.encode(&file));
    Ok(json!({"type": "image_url", "image_url": {"url": url}}))
}

/// Whether messages have images.
pub fn are_in(messages: &[Value]) -> bool {
    messages.iter().any(|m| m["content"].as_array().is_some_and(|parts| parts.iter().any(is_image)))
}

/// Whether a part of a message is an image.
pub fn is_image(part: &Value) -> bool {
    part["type"] == "image_url"
}

/// Checks an image in a conversation's file.
///
/// # Errors
/// If it is none, or has no bytes with it.
pub fn check(part: &Value) -> anyhow::Result<()> {
    picture(part).map(|_| ())
}

/// Takes the images out of messages, in order: templates see only where one is.
///
/// # Errors
/// If one cannot be decoded.
pub fn take(messages: &mut [Value]) -> anyhow::Result<Vec<Picture>> {
    let mut pictures = Vec::new();
    for message in messages {
        for part in message["content"].as_array_mut().into_iter().flatten().filter(|part| is_image(part)) {
            pictures.push(picture(part)?);
            *part = json!({"type": "image"});
        }
    }
    Ok(pictures)
}

fn picture(part: &Value) -> anyhow::Result<Picture> {
    let url = part["image_url"]["url"].as_str().context("an image_url without a url")?;
    let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    let (_, data) = data.context("an image_url that is no data URL with base64")?;
    let bytes = BASE64.decode(data).context("an image that is not base64")?;
    let image =
        octet_images::decode(&bytes, &Limits::default()).map_err(|e| anyhow::anyhow!("an image {e}"))?;
    Ok(Picture { width: image.width as usize, height: image.height as usize, rgb: image.rgb })
}

/// Image files that a text names as words of their own, as terminals write dropped files, and the text without them.
pub fn dropped(text: &str) -> (Vec<PathBuf>, String) {
    let is_image = |word: &str| {
        let end = word.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
        ["png", "jpg", "jpeg", "webp", "gif"].contains(&end.as_str()) && Path::new(word).is_file()
    };
    let (mut files, mut rest) = (Vec::new(), Vec::new());
    for word in text.split(' ') {
        let bare = word.trim_matches(['\'', '"']);
        let bare = bare.strip_prefix("file://").unwrap_or(bare);
        if is_image(bare) { files.push(PathBuf::from(bare)) } else { rest.push(word) }
    }
    if files.is_empty() { (files, text.to_string()) } else { (files, rest.join(" ").trim().to_string()) }
}

/// A tower in a line: `reads images with mmproj-F16.gguf (qwen3vl_merger): 0.84 GiB, up to 4096 tokens an image`. If its model runs on a
/// `device`, also where the tower runs.
pub fn describe(options: &Options, device: Option<&str>) -> String {
    let (kind, most) = match options.tower() {
        Ok(tower) => (tower.kind, tower.tokens_max()),
        Err(_) => ("unknown", vision::TOKENS_MAX),
    };
    let [bytes, work] = [options.file.size_bytes(), options.work_bytes()].map(crate::units::size);
    let file = &options.file.origin;
    let place = match device {
        Some(device) if options.on_device => format!("on {device} "),
        Some(_) => "on the processor ".to_string(),
        None => String::new(),
    };
    format!(
        "reads images {place}with {file} ({kind}): {bytes}, up to {work} more for images, {most} tokens each at most"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_files_are_taken_out_of_a_text() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("shot.PNG");
        std::fs::write(&file, "").unwrap();
        let file = file.display();
        let (files, text) = dropped(&format!("What is '{file}' here? none.png"));
        assert_eq!((files.len(), text.as_str()), (1, "What is here? none.png"));
        let (files, text) = dropped("  no  image here.png ");
        assert_eq!((files.len(), text.as_str()), (0, "  no  image here.png "));
    }

    /// It is there if only the KV cache becomes smaller for it.
    #[test]
    fn towers_are_on_the_device_where_there_is_room() {
        use crate::device_bytes::images as memory;
        use crate::device_memory::{Room, Wanted};
        let model = octet_synth::tiny("llama", "q8_0".parse().unwrap()).unwrap();
        let report = octet_engine::report::Report::new(&model).unwrap();
        let known = |name: &str| ImageFlags::default().known(name).unwrap();
        let placed = |vision: Option<Options>, device: Option<u64>| {
            let options = octet_engine::engine::Options { vision, max_seqs: 4, ..Default::default() };
            let wanted = Wanted { report: &report, options: &options, contexts: &[4, 1], snapshots: None };
            wanted.place(Room { device, machine: None }).unwrap().unwrap()
        };
        for name in ["qwen3.5:4b", "gemma3:4b"] {
            let (alone, whole) = (placed(None, None), placed(Some(known(name)), None));
            let vision = whole.options.vision.clone().unwrap();
            let own = memory(&vision, false);
            let weights = vision.file.size_bytes();
            assert!(vision.on_device && own.device > weights && weights > 600 << 20, "{name}: {own:?}");
            assert_eq!(whole.split.device, alone.split.device + own.device, "{name}");
            assert_eq!(whole.split.machine, alone.split.machine + own.machine, "{name}");
            let less = placed(Some(known(name)), Some(whole.split.device - 1));
            assert!(less.options.vision.unwrap().on_device && !less.smaller.is_empty(), "{name}");
            // No room for both.
            let beside = placed(Some(known(name)), Some(alone.split.device));
            let (vision, bytes) = (beside.options.vision.unwrap(), beside.split.machine);
            assert!(!vision.on_device && beside.smaller.is_empty(), "{name}");
            assert_eq!(bytes, alone.split.machine + weights + vision.work_bytes(), "{name}");
            assert!(describe(&vision, Some("vulkan:0")).starts_with("reads images on the processor with"));
        }
    }

    #[test]
    fn images_leave_their_places_in_messages() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("dot.gif");
        // One white pixel.
        let gif = b"GIF89a\x01\0\x01\0\x80\0\0\xff\xff\xff\0\0\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;";
        std::fs::write(&file, gif).unwrap();
        let image = part(&file).unwrap();
        assert!(is_image(&image) && check(&image).is_ok());
        let text = json!({"type": "text", "text": "What is this?"});
        let mut messages =
            [json!({"role": "user", "content": [image, text.clone()]}), json!({"content": "x"})];
        let pictures = take(&mut messages).unwrap();
        assert_eq!(pictures, [Picture { width: 1, height: 1, rgb: vec![255; 3] }]);
        assert_eq!(messages[0]["content"], json!([{"type": "image"}, text]));
        assert!(part(dir.path()).is_err() && part(Path::new("none.png")).is_err());
        std::fs::write(&file, "GIF89a").unwrap();
        assert!(part(&file).unwrap_err().to_string().contains("dot.gif: it"));
    }
}
