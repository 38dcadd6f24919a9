//! Frames of a video, as transformers' processors of Qwen3-VL and Qwen2.5-VL read them: all of one size, two together in the place of an image.
//! A text before each pair says when it is, or its tokens' first coordinate.

use super::Picture;
use super::plan::{FRAMES, Size, Times, Tower, Video};
use super::resize::resize;
use super::resized::{Moment, Resized};
use crate::Error;

fn refused(what: String) -> Error {
    Error::Request(what)
}

/// A video whose frames are read one after the other.
#[derive(Debug)]
pub struct Clip<'a> {
    tower: &'a Tower,
    video: Video,
    /// When each frame is, in seconds, and how many were read.
    times_s: &'a [f64],
    read: usize,
    /// Width and height of a frame as it is given, and as it is read.
    from: [usize; 2],
    to: [usize; 2],
    /// The frames of a pair so far `[frames, height, width, 3]`.
    rgb: Vec<u8>,
}

impl<'a> Clip<'a> {
    /// A video of frames of this width and height, which are so many seconds after its beginning, in order.
    ///
    /// # Errors
    /// If the tower reads no videos, there are too few frames, or they are too narrow.
    pub fn new(tower: &'a Tower, times_s: &'a [f64], from: [usize; 2]) -> Result<Self, Error> {
        let (Some(video), frames) = (tower.video, times_s.len()) else {
            let what = "is a frame of a video, and this model reads no videos; send frames as images";
            return Err(refused(what.into()));
        };
        if frames < FRAMES {
            return Err(refused("a video has at least two frames; send a single one as an image".into()));
        }
        let mut limited = video;
        // No frame has more tokens than an image may have.
        if let Size::Rounded { max, .. } = tower.size {
            let counted = if video.together { frames.min(even(frames)) } else { 1 };
            limited.max = video.max.min(counted * max);
        }
        let to = limited.size(frames, from, tower)?;
        let (tokens, most) = (to[0] / tower.side() * (to[1] / tower.side()), tower.tokens_max());
        if tokens > most {
            let [width, height] = from;
            return Err(refused(format!(
                "frames of {width} x {height} pixels would take {tokens} tokens each; at most {most} are set"
            )));
        }
        Ok(Self { tower, video, times_s, read: 0, from, to, rgb: Vec::new() })
    }

    /// Width and height of a frame as the tower reads it, in pixels.
    pub fn size(&self) -> [usize; 2] {
        self.to
    }

    /// Reads the next frame. The pair that it completes, if it does; the last frame of an odd number is taken twice.
    ///
    /// # Errors
    /// If its size is another than that of the first, or the video has no further one.
    pub fn read(&mut self, picture: &Picture) -> Result<Option<Resized>, Error> {
        picture.check()?;
        let Some(&at_s) = self.times_s.get(self.read) else {
            return Err(refused(format!("the video has {} frames, and a further one follows", self.read)));
        };
        let (size, [width, height]) = ([picture.width, picture.height], self.from);
        if size != self.from {
            return Err(refused(format!(
                "a frame of {} x {} pixels follows one of {width} x {height}; the frames of a video have the same size",
                size[0], size[1]
            )));
        }
        let frame = resize(self.tower.filter, &picture.rgb, self.from, self.to);
        let is_first = self.rgb.is_empty();
        self.read += 1;
        self.rgb.extend_from_slice(&frame);
        if is_first {
            if self.read < self.times_s.len() {
                return Ok(None);
            }
            self.rgb.extend_from_slice(&frame);
        }
        let pair = (self.read - 1) / FRAMES;
        let rgb = std::mem::take(&mut self.rgb);
        let mut hash = blake3::Hasher::new();
        hash.update(b"frames");
        self.to.iter().for_each(|x| {
            hash.update(&(*x as u64).to_le_bytes());
        });
        Ok(Some(Resized {
            grid: self.to.map(|x| x / self.tower.patch),
            tokens: self.to.map(|x| x / self.tower.side()),
            tiles: [0, 0],
            between: 0,
            frames: FRAMES,
            moment: Some(Moment {
                is_first: pair == 0,
                at_s: (self.times_s[FRAMES * pair] + at_s) / 2.0,
                turn: self.turn(pair),
            }),
            hash: hash.update(&rgb).finalize().into(),
            rgb,
        }))
    }

    /// What the first coordinate of a pair's tokens is ahead of the video's. Where all frames are equally far from each other it is transformers',
    /// which computes it in f32 from their rate.
    fn turn(&self, pair: usize) -> u32 {
        let Times::Turned { per_second } = self.video.times else { return 0 };
        let [first, .., last] = self.times_s else { return 0 };
        let step_s = (last - first) / (self.times_s.len() - 1) as f64;
        let is_even = |(i, at_s): (usize, &f64)| (at_s - first - i as f64 * step_s).abs() <= 1e-6;
        if self.times_s.iter().enumerate().all(is_even) {
            let of_pair = per_second as f32 * (FRAMES as f64 * step_s) as f32;
            return (pair as f32 * of_pair) as u32;
        }
        ((self.times_s[FRAMES * pair] - first) * per_second) as u32
    }
}

/// As how many frames so many count. Ties to even, as in Python: five are four.
fn even(frames: usize) -> usize {
    (frames as f64 / FRAMES as f64).round_ties_even() as usize * FRAMES
}

impl Video {
    /// The size in pixels of so many frames of this width and height.
    fn size(&self, frames: usize, [width, height]: [usize; 2], tower: &Tower) -> Result<[usize; 2], Error> {
        let side = tower.side();
        let (small, s) = (width.min(height), side as f64);
        if small == 0 {
            return Err(refused(format!("a frame of {width} x {height} pixels has none")));
        }
        if !self.together {
            let (min, max) = (self.min.min(self.max), self.max);
            return Size::Rounded { min, max, grows: false }.of([width, height], side, tower.patch);
        }
        let mut size = [width, height];
        if small < side {
            let scale = (s / height as f64).max(s / width as f64);
            size = size.map(|x| (x as f64 * scale) as usize);
        }
        if size[0].max(size[1]) > 200 * size[0].min(size[1]) {
            return Err(refused(format!(
                "a frame of {width} x {height} pixels is too narrow: its sides may differ by a factor of 200"
            )));
        }
        let given = frames as f64 * size[0] as f64 * size[1] as f64;
        let [w, h] = size.map(|x| x as f64);
        let rounded = [w, h].map(|x| (x / s).round_ties_even() * s);
        let all = even(frames) as f64 * rounded[0] * rounded[1];
        Ok(if all > self.max as f64 {
            let by = (given / self.max as f64).sqrt();
            [w, h].map(|x| ((x / by / s).floor() * s).max(s) as usize)
        } else if all < self.min as f64 {
            let by = (self.min as f64 / given).sqrt();
            [w, h].map(|x| ((x * by / s).ceil() * s) as usize)
        } else {
            rounded.map(|x| x as usize)
        })
    }

    /// What a prompt has for a video whose pairs of frames are at these times, in the place of [`Video::mark`].
    pub(super) fn text(&self, times_s: impl Iterator<Item = f64>) -> String {
        let pair = |at_s: f64| match self.times {
            Times::Written => format!("<{at_s:.1} seconds>{}", self.text),
            Times::Turned { .. } => self.text.into(),
        };
        times_s.map(pair).collect()
    }
}
