//! Where images lie in a prompt: a mark for each becomes as many tokens as it has, whose ids are made from the image's hash. So the prefix
//! cache tells images apart, and finds the same one again, by comparing tokens.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::Picture;
use super::fit::RENAMED;
use super::plan::{Layout, Times, Tower};
use super::resized::Resized;
use super::video::Clip;
use crate::Error;
use crate::tokenizer::{Prompt, Special, Tokenizer};

/// Ids of images' tokens have this bit; no vocabulary is as large.
const IMAGE: u32 = 1 << 31;

/// Whether an id is that of a token of an image.
pub(crate) fn is_image(id: u32) -> bool {
    id >= IMAGE
}

/// Reads images for prompts: what checks of requests need of a tower. Shared by all submitters.
#[derive(Debug)]
pub struct Reader {
    /// The tower.
    pub tower: Tower,
    /// The token that stands for an image.
    pub token: u32,
    /// The token that stands for two frames of a video, if the model reads these.
    pub video: Option<u32>,
    /// What the model reads as the id of an image's tokens.
    filler: u32,
    /// Texts within images.
    texts: Texts,
    /// Hash of the tower and what affects its results.
    key: [u8; 32],
    /// Maximum number of tokens of a step.
    batch_tokens: usize,
}

/// Tokens of the texts within images.
#[derive(Debug)]
enum Texts {
    None,
    Rows([u32; 2]),
    Tiles {
        /// Before each tile and before the whole, and the names of rows and columns.
        begin: u32,
        names: Vec<Vec<u32>>,
        whole: u32,
        /// Between rows, and before the whole.
        line: Vec<u32>,
        lines: Vec<u32>,
    },
}

/// Some tokens of an image, and the text around them.
struct Run {
    before: Vec<u32>,
    tokens: Range<usize>,
    after: Vec<u32>,
}

/// An image in a sequence, or a part of one.
#[derive(Debug, Clone)]
pub struct Place {
    /// Position of its first token.
    pub start: usize,
    /// The image.
    pub image: Arc<Resized>,
    /// Which of its tokens.
    pub tokens: Range<usize>,
    /// Names its embeddings.
    pub key: [u8; 32],
    /// The first coordinate of its tokens, and that of their first row and column.
    time: usize,
    turn: usize,
    /// The coordinates of what follows.
    next: usize,
}

impl Place {
    /// The positions of its tokens.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.tokens.len()
    }
}

/// The images of a sequence or their parts, in order.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// Those images.
    pub all: Vec<Place>,
    /// Coordinates differ from positions.
    turns: bool,
    /// The tokens of an image are computed in one step.
    pub together: bool,
    /// See [`Reader`].
    filler: u32,
}

impl Reader {
    /// For a model with this tokenizer, that computes up to `batch_tokens` tokens in a step. `key` is a hash of what affects results.
    ///
    /// # Errors
    /// If the tokenizer has no token for images.
    pub fn new(
        tower: Tower,
        tokenizer: &Tokenizer,
        filler: Option<u32>,
        batch_tokens: usize,
        key: [u8; 32],
    ) -> Result<Self, Error> {
        let names = [&[tower.prompt.token][..], &RENAMED].concat();
        let token = names.iter().find_map(|name| tokenizer.special_id(name));
        let token = token.ok_or_else(|| {
            Error::Request(format!(
                "the model has no token {}, which stands for an image",
                tower.prompt.token
            ))
        })?;
        let texts = Texts::new(&tower, tokenizer)?;
        let video = tower.video.and_then(|video| tokenizer.special_id(video.token));
        Ok(Self { tower, token, video, filler: filler.unwrap_or(token), texts, key, batch_tokens })
    }

    /// The tokens of a prompt with all those of its images, to count and show them.
    pub fn spread(&self, prompt: &[u32], images: &[Arc<Resized>]) -> Vec<u32> {
        let marks = self.marks(images);
        let mut images = images.iter();
        let mut tokens = Vec::with_capacity(prompt.len());
        for &id in prompt {
            match marks.contains(&Some(id)).then(|| images.next()).flatten() {
                None => tokens.push(id),
                Some(image) => {
                    for Run { before, tokens: run, after } in self.texts.runs(image) {
                        tokens.extend(before.into_iter().chain(run.map(|_| id)).chain(after));
                    }
                }
            }
        }
        tokens
    }

    /// The tokens in whose places these images come.
    fn marks(&self, images: &[Arc<Resized>]) -> [Option<u32>; 2] {
        // Elsewhere that of videos is a token as others.
        let has_videos = images.iter().any(|image| image.moment.is_some());
        [Some(self.token), self.video.filter(|_| has_videos)]
    }

    /// Changes a rendered chat template to what the tower's models read: what surrounds each image is part of the text, and so are the
    /// times of videos' frames. Marks within texts of messages stay as they are.
    pub fn surround(&self, rendered: &mut Prompt, images: &[Arc<Resized>]) {
        let rules = self.tower.prompt;
        if rules.mark != rules.text {
            replace(rendered, rules.mark, || Some(rules.text.into()));
        }
        let Some(video) = self.tower.video else { return };
        let mut moments = images.iter().filter_map(|image| image.moment).peekable();
        replace(rendered, video.mark, || {
            let first = moments.next()?;
            let mut times_s = vec![first.at_s];
            times_s.extend(std::iter::from_fn(|| moments.next_if(|m| !m.is_first)).map(|m| m.at_s));
            Some(video.text(times_s.into_iter()).into())
        });
    }

    /// A video of frames of this width and height, which are so many seconds after its beginning, in order.
    ///
    /// # Errors
    /// If the model reads no videos, there are too few frames, or they are too narrow.
    pub fn clip<'a>(&'a self, times_s: &'a [f64], size: [usize; 2]) -> Result<Clip<'a>, Error> {
        Clip::new(&self.tower, times_s, size)
    }

    /// An image at the size that the tower reads.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn resize(&self, picture: &Picture) -> Result<Arc<Resized>, Error> {
        let mut image = self.tower.resize(picture)?;
        let texts = |run: &Run| run.before.len() + run.after.len();
        image.between = self.texts.runs(&image).iter().map(texts).sum();
        Ok(Arc::new(image))
    }

    /// Puts images into a prompt: each [`Reader::token`] becomes the tokens of the next image. `checkpoints` are positions that move.
    ///
    /// # Errors
    /// If there are not as many tokens as images, or an image has more tokens than a step may have.
    pub fn read(
        &self,
        prompt: &mut Vec<u32>,
        checkpoints: &mut [usize],
        images: &[Arc<Resized>],
    ) -> Result<Places, Error> {
        let marks = self.marks(images);
        let count = prompt.iter().filter(|id| marks.contains(&Some(**id))).count();
        if count != images.len() {
            let none = match count {
                0 => format!(
                    ": the chat template writes no {} for an image; --chat-template FILE uses another template",
                    self.tower.prompt.mark
                ),
                _ => String::new(),
            };
            return Err(Error::Request(format!(
                "the prompt has {count} places for images, and {} images come with it{none}",
                images.len()
            )));
        }
        let Tower { prompt: rules, .. } = self.tower;
        let mut places =
            Places { all: Vec::new(), turns: rules.turns, together: rules.together, filler: self.filler };
        let mut images = images.iter();
        let (mut tokens, mut moved, mut extra) = (Vec::with_capacity(prompt.len()), Vec::new(), 0);
        let mut turns = Turns::default();
        for &id in prompt.iter() {
            moved.push(tokens.len());
            let Some(image) = marks.contains(&Some(id)).then(|| images.next()).flatten() else {
                tokens.push(id);
                continue;
            };
            if (id == self.token) == image.moment.is_some() {
                let what = "the prompt has its images and its videos in another order than they come";
                return Err(Error::Request(what.into()));
            }
            if self.tower.prompt.together && image.len() > self.batch_tokens {
                return Err(Error::Request(format!(
                    "an image takes {} tokens, which are computed in one step; at most {} are (--batch-size)",
                    image.len(),
                    self.batch_tokens
                )));
            }
            let (start, (key, ids)) = (tokens.len(), self.name(image));
            let (time, turn) = turns.of(image, start, self.in_turned_video(image));
            for Run { before, tokens: run, after } in self.texts.runs(image) {
                tokens.extend(before);
                let start = tokens.len();
                tokens.extend(ids[run.clone()].iter().copied().chain(after));
                let (image, next) = (Arc::clone(image), turns.next);
                places.all.push(Place { start, image, tokens: run, key, time, turn, next });
            }
            turns.end = tokens.len();
            extra += tokens.len() - start - 1;
        }
        moved.push(prompt.len() + extra);
        checkpoints.iter_mut().for_each(|c| *c = moved.get(*c).copied().unwrap_or(*c + extra));
        *prompt = tokens;
        Ok(places)
    }

    /// Whether an image is a pair of frames of a video whose tokens have its time, and not the first.
    fn in_turned_video(&self, image: &Resized) -> bool {
        let is_turned = self.tower.video.is_some_and(|video| video.times != Times::Written);
        is_turned && image.moment.is_some_and(|moment| !moment.is_first)
    }

    /// What names the embeddings of an image, and the ids of its tokens.
    fn name(&self, image: &Resized) -> ([u8; 32], Vec<u32>) {
        let mut hash = blake3::Hasher::new();
        let mut name = hash.update(&self.key).update(&image.hash).finalize_xof();
        let mut key = [0; 32];
        name.fill(&mut key);
        // The same frames at another time have other coordinates.
        if self.in_turned_video(image)
            && let Some(moment) = image.moment
        {
            name = hash.update(&moment.turn.to_le_bytes()).finalize_xof();
        }
        let mut bytes = vec![0; 4 * image.len()];
        name.fill(&mut bytes);
        (key, bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b) | IMAGE).collect())
    }
}

/// Coordinates within a prompt.
#[derive(Default)]
struct Turns {
    /// The position behind the last image, and its coordinates.
    end: usize,
    next: usize,
    /// Those of the last image's first row and column.
    turn: usize,
}

impl Turns {
    /// The first coordinate of the tokens of an image at position `start`, and that of their first row and column. Further pairs of a video
    /// (`goes_on`) have the rows and columns of the first.
    fn of(&mut self, image: &Resized, start: usize, goes_on: bool) -> (usize, usize) {
        if !goes_on {
            self.turn = self.next + start - self.end;
            self.next = self.turn;
        }
        let later = if goes_on { image.moment.map_or(0, |moment| moment.turn as usize) } else { 0 };
        let size = image.tokens[0].max(image.tokens[1]).max(later + 1);
        // After a video, all three go on from the largest, as in transformers before 5.3, where models were trained.
        self.next = self.next.max(self.turn + size);
        (self.turn + later, self.turn)
    }
}

/// Replaces each `mark` of a rendered template by what `by` returns, as long as it does. What only looks like one, in the text of a message, has
/// a barrier within it.
fn replace(rendered: &mut Prompt, mark: &str, mut by: impl FnMut() -> Option<Cow<'static, str>>) {
    if !rendered.text.contains(mark) {
        return;
    }
    let Prompt { text, barriers } = std::mem::take(rendered);
    let mut barriers = barriers.into_iter().peekable();
    let mut from = 0;
    for (at, _) in text.match_indices(mark) {
        while let Some(barrier) = barriers.next_if(|b| *b <= at) {
            rendered.barriers.push(rendered.text.len() + barrier - from);
        }
        rendered.text.push_str(&text[from..at]);
        from = at;
        if barriers.peek().is_none_or(|b| *b >= at + mark.len())
            && let Some(text) = by()
        {
            rendered.text.push_str(&text);
            from = at + mark.len();
        }
    }
    rendered.barriers.extend(barriers.map(|b| rendered.text.len() + b - from));
    rendered.text.push_str(&text[from..]);
}

impl Texts {
    fn new(tower: &Tower, tokenizer: &Tokenizer) -> Result<Self, Error> {
        let id = |name: &str| {
            let what =
                || Error::Request(format!("the model has no token {name}, which images have within them"));
            tokenizer.special_id(name).ok_or_else(what)
        };
        let text = |text: &str| {
            let failed = |e| Error::Request(format!("the tokenizer cannot read {text:?}: {e}"));
            tokenizer.encode(text, Special::Parse).map_err(failed)
        };
        Ok(match tower.prompt.layout {
            Layout::Whole => Self::None,
            Layout::Rows([between, last]) => Self::Rows([id(between)?, id(last)?]),
            Layout::Tiles => {
                let most = tower.tiles_max();
                let names = (0..most * most)
                    .map(|i| text(&format!("<row_{}_col_{}>", i / most + 1, i % most + 1)))
                    .collect::<Result<_, _>>()?;
                Self::Tiles {
                    begin: id("<fake_token_around_image>")?,
                    names,
                    whole: id("<global-img>")?,
                    line: text("\n")?,
                    lines: text("\n\n")?,
                }
            }
        })
    }

    /// The parts of an image's tokens, in order.
    fn runs(&self, image: &Resized) -> Vec<Run> {
        let len = image.len();
        match self {
            Self::None => vec![Run { before: Vec::new(), tokens: 0..len, after: Vec::new() }],
            Self::Rows([between, last]) => {
                let [columns, rows] = image.tokens;
                let run = |row| Run {
                    before: Vec::new(),
                    tokens: row * columns..(row + 1) * columns,
                    after: vec![if row + 1 == rows { *last } else { *between }],
                };
                (0..rows).map(run).collect()
            }
            Self::Tiles { begin, names, whole, line, lines } => {
                let [columns, rows] = image.tiles;
                let (count, side) = (columns * rows, names.len().isqrt());
                let each = len / (count + 1);
                let tile = |i: usize| {
                    let (row, column) = (i / columns, i % columns);
                    let ends = column + 1 == columns && row + 1 < rows;
                    Run {
                        before: [&[*begin], &names[row * side + column][..]].concat(),
                        tokens: i * each..(i + 1) * each,
                        after: if ends { line.clone() } else { Vec::new() },
                    }
                };
                let mut before = if count > 0 { lines.clone() } else { Vec::new() };
                before.extend([*begin, *whole]);
                let last = Run { before, tokens: count * each..len, after: vec![*begin] };
                (0..count).map(tile).chain([last]).collect()
            }
        }
    }
}

impl Places {
    /// Without any image.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// What the model reads as the id of a token.
    pub fn id(&self, id: u32) -> u32 {
        if is_image(id) { self.filler } else { id }
    }

    /// The image that has a token in `range`, the first if several have.
    pub fn first_in(&self, range: Range<usize>) -> Option<&Place> {
        self.all.iter().find(|p| p.range().start < range.end && range.start < p.range().end)
    }

    /// The image whose tokens lie on both sides of `position`.
    pub fn around(&self, position: usize) -> Option<&Place> {
        self.all.iter().find(|p| p.start < position && position < p.range().end)
    }

    /// Whether coordinates differ from positions.
    pub fn has_turns(&self) -> bool {
        self.turns && !self.is_empty()
    }

    /// Time, row and column of the token at `position`.
    pub fn turn(&self, position: usize) -> [u32; 3] {
        let before = self.all.partition_point(|p| p.start <= position);
        let Some(place) = before.checked_sub(1).map(|i| &self.all[i]).filter(|_| self.turns) else {
            return [position as u32; 3];
        };
        if position < place.range().end {
            let (at, columns) = (position - place.start, place.image.tokens[0]);
            return [place.time, place.turn + at / columns, place.turn + at % columns].map(|x| x as u32);
        }
        [(place.next + position - place.range().end) as u32; 3]
    }
}
