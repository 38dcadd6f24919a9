//! An image as a tower reads it: resized, cut into patches, normalised.

use super::plan::{Size, Tower};
use super::resize::resize;
use super::resized::Resized;
use super::{Picture, plan};
use crate::Error;

/// Maximum pixels of a side of a given image.
pub const SIDE_MAX: usize = 16_384;

fn refused(what: String) -> Error {
    Error::Request(what)
}

impl Size {
    /// The size in pixels, both sides multiples of `side`, for an image of this width and height.
    pub fn of(self, [width, height]: [usize; 2], side: usize, patch: usize) -> Result<[usize; 2], Error> {
        let token = side;
        let (w, h, s) = (width as f64, height as f64, side as f64);
        let rounded = |x: f64| ((x / s).round_ties_even() * s) as usize;
        let floored = |x: f64| ((x / s).floor() * s) as usize;
        match self {
            Self::Square(side) => Ok([side, side]),
            Self::Tiles { side, longest } => {
                let [_, large] = tiled([width, height], side, longest);
                let [columns, rows] = large.map(|x| x / side);
                let read = side / token * token;
                Ok([read, read * if columns * rows > 1 { columns * rows + 1 } else { 1 }])
            }
            Self::Grid { side, least, most } => {
                let [columns, rows] = best_grid([width, height], side, least, most);
                let read = side / token * token;
                Ok([read, read * if columns * rows > 1 { columns * rows + 1 } else { 1 }])
            }
            Self::Within(most) => {
                let ratio = (w / most as f64).max(h / most as f64).max(1.0);
                Ok([w, h].map(|x| (((x / ratio).floor() / s).ceil() * s).max(s) as usize))
            }
            Self::Rounded { min, max, grows } => {
                let small = width.min(height);
                if grows && small < side && small > 0 {
                    let scale = (s / h).max(s / w);
                    let size = [w, h].map(|x| (x * scale) as usize);
                    return Self::Rounded { min, max, grows: false }.of(size, side, patch);
                }
                // transformers' limit, too.
                if width.max(height) > 200 * width.min(height) {
                    return Err(refused(format!(
                        "an image of {width} x {height} pixels is too narrow: its sides may differ by a factor of 200"
                    )));
                }
                let by = |pixels: usize| (w * h / pixels as f64).sqrt();
                let (wide, high) = (rounded(w), rounded(h));
                Ok(if wide * high > max {
                    [w, h].map(|x| floored(x / by(max)).max(side))
                } else if wide * high < min {
                    [w, h].map(|x| ((x / by(min) / s).ceil() * s) as usize)
                } else {
                    [wide.max(side), high.max(side)]
                })
            }
            Self::Largest(patches) => {
                let pixels = (patches * patch * patch) as f64;
                let factor = (pixels / (w * h)).sqrt();
                let longest = patches / (side / patch).pow(2) * side;
                Ok(match [floored(factor * w), floored(factor * h)] {
                    [_, 0] => [(width / height * side).clamp(side, longest), side],
                    [0, _] => [side, (height / width * side).clamp(side, longest)],
                    size => size,
                })
            }
        }
    }
}

impl Picture {
    /// Checks its size.
    pub(super) fn check(&self) -> Result<(), Error> {
        let &Self { width, height, ref rgb } = self;
        if width == 0 || height == 0 || width > SIDE_MAX || height > SIDE_MAX {
            let what =
                format!("an image of {width} x {height} pixels; sides of 1 to {SIDE_MAX} are accepted");
            return Err(refused(what));
        }
        if rgb.len() != 3 * width * height {
            let what =
                format!("an image of {width} x {height} pixels has {} bytes, not three a pixel", rgb.len());
            return Err(refused(what));
        }
        Ok(())
    }
}

impl Tower {
    /// Tokens of a row and rows of tokens of an image of this width and height.
    pub fn tokens(&self, size: [usize; 2]) -> Result<[usize; 2], Error> {
        Ok(self.size.of(size, self.side(), self.patch)?.map(|x| x / self.side()))
    }

    /// An image at the size that the tower reads.
    ///
    /// # Errors
    /// If it has no pixels or too many, is too narrow, or would have more tokens than the tower's most.
    pub fn resize(&self, picture: &Picture) -> Result<Resized, Error> {
        picture.check()?;
        let &Picture { width, height, ref rgb } = picture;
        let size = self.size.of([width, height], self.side(), self.patch)?;
        let (grid, tokens) = (size.map(|x| x / self.patch), size.map(|x| x / self.side()));
        let most = self.tokens_max();
        if tokens[0] * tokens[1] > most {
            return Err(refused(format!(
                "an image of {width} x {height} pixels would take {} tokens; at most {most} are set",
                tokens[0] * tokens[1]
            )));
        }
        let (rgb, tiles) = match self.size {
            Size::Tiles { side, longest } => self.cut(rgb, [width, height], side, longest),
            Size::Grid { side, least, most } => {
                let grid = best_grid([width, height], side, least, most);
                let to = |size| resize(self.filter, rgb, [width, height], size);
                self.tiles(&to(grid.map(|n| n * side)), grid, side, || to([side; 2]))
            }
            _ => (resize(self.filter, rgb, [width, height], size), [0, 0]),
        };
        let mut hash = blake3::Hasher::new();
        size.iter().for_each(|x| {
            hash.update(&(*x as u64).to_le_bytes());
        });
        let hash = hash.update(&rgb).finalize().into();
        Ok(Resized { grid, tokens, tiles, between: 0, frames: 1, moment: None, rgb, hash })
    }

    /// The tiles of an image and the whole, one below the other, and columns and rows of tiles; see [`Size::Tiles`]. It is resized in steps,
    /// as transformers' processor does it.
    fn cut(&self, rgb: &[u8], from: [usize; 2], side: usize, longest: usize) -> (Vec<u8>, [usize; 2]) {
        let [first, large] = tiled(from, side, longest);
        let rgb = resize(self.filter, rgb, from, first);
        let rgb = resize(self.filter, &rgb, first, large);
        self.tiles(&rgb, large.map(|x| x / side), side, || resize(self.filter, &rgb, large, [side, side]))
    }

    /// The tiles of a resized image and then `whole`, one below the other; and `grid`, their columns and rows. Only the tile, if there is one.
    fn tiles(
        &self,
        rgb: &[u8],
        grid: [usize; 2],
        side: usize,
        whole: impl Fn() -> Vec<u8>,
    ) -> (Vec<u8>, [usize; 2]) {
        // Pixels behind the last whole token of a tile are not read.
        let read = side / self.side() * self.side();
        let tile = |rgb: &[u8], width: usize, [x, y]: [usize; 2], all: &mut Vec<u8>| {
            for y in y..y + read {
                all.extend_from_slice(&rgb[3 * (y * width + x)..][..3 * read]);
            }
        };
        let [columns, rows] = grid;
        let mut all = Vec::new();
        for i in 0..columns * rows {
            tile(rgb, columns * side, [i % columns * side, i / columns * side], &mut all);
        }
        if columns * rows == 1 {
            return (all, [0, 0]);
        }
        tile(&whole(), side, [0, 0], &mut all);
        (all, grid)
    }

    /// Column and row of token `i`, where the patches of tokens follow each other.
    fn token(&self, image: &Resized, i: usize) -> [usize; 2] {
        let columns = image.tokens[0];
        let Some(window) = self.window else { return [i % columns, i / columns] };
        let (first, [width, _], at) = window_of(image.tokens, window, i);
        let inside = i - first;
        [at[0] + inside % width, at[1] + inside / width]
    }

    /// The patches of the window of patch `i`.
    pub fn window_of(&self, image: &Resized, i: usize) -> std::ops::Range<usize> {
        let each = self.merge * self.merge;
        if let Some(side) = self.tile() {
            let patches = (side / self.patch).pow(2);
            return i / patches * patches..(i / patches + 1) * patches;
        }
        let Some(window) = self.window else { return 0..image.patches() };
        let (first, [width, height], _) = window_of(image.tokens, window, i / each);
        first * each..(first + width * height) * each
    }

    /// Column and row of patch `i`.
    pub fn place(&self, image: &Resized, i: usize) -> [usize; 2] {
        let columns = image.grid[0];
        if !self.by_token {
            return [i % columns, i / columns];
        }
        let (token, inside) = (i / (self.merge * self.merge), i % (self.merge * self.merge));
        let [tx, ty] = self.token(image, token);
        [tx * self.merge + inside % self.merge, ty * self.merge + inside / self.merge]
    }

    /// Values of a patch of one frame.
    pub fn patch_len(&self) -> usize {
        3 * self.patch * self.patch
    }

    /// Writes the values of patch `i`, `[frames, 3, patch, patch]`, or `[patch, patch, 3]` where the projection reads them so, normalised.
    pub fn patch(&self, image: &Resized, i: usize, out: &mut [f32]) {
        let frame = image.rgb.len() / image.frames;
        for (rgb, out) in image.rgb.chunks_exact(frame).zip(out.chunks_exact_mut(self.patch_len())) {
            self.patch_of(rgb, image, i, out);
        }
    }

    /// The same of one frame.
    fn patch_of(&self, rgb: &[u8], image: &Resized, i: usize, out: &mut [f32]) {
        let ([x, y], side) = (self.place(image, i), self.patch);
        let stride = 3 * image.grid[0] * side;
        let [mean, std] = self.normal.map(|n| n.map(|v| 255.0 * v));
        if self.embed.channels_last {
            for (row, out) in out.chunks_exact_mut(3 * side).enumerate() {
                let values = &rgb[(y * side + row) * stride + 3 * x * side..];
                for (i, (out, v)) in out.iter_mut().zip(values).enumerate() {
                    *out = (f32::from(*v) - mean[i % 3]) / std[i % 3];
                }
            }
            return;
        }
        for (row, out) in out.chunks_exact_mut(side).enumerate() {
            let (c, row) = (row / side, row % side);
            let from = (y * side + row) * stride + 3 * x * side + c;
            let values = rgb[from..].iter().step_by(3);
            out.iter_mut().zip(values).for_each(|(out, v)| *out = (f32::from(*v) - mean[c]) / std[c]);
        }
    }

    /// What is added to patch `i`: the values of `table`, as [`plan::Positions`] says.
    pub fn add_position(&self, table: &[f32], image: &Resized, i: usize, out: &mut [f32]) {
        let ([x, y], hidden) = (self.place(image, i), out.len());
        let mut add = |row: usize, factor: f32| {
            let row = &table[row * hidden..][..hidden];
            out.iter_mut().zip(row).for_each(|(out, v)| *out += factor * v);
        };
        match self.positions {
            plan::Positions::None => {}
            // Of a square, or of each tile.
            plan::Positions::Fixed { .. } => {
                let first = usize::from(self.class.is_some());
                add(first + y % image.grid[0] * image.grid[0] + x, 1.0);
            }
            plan::Positions::Cubic { side, .. } => {
                let [columns, rows] = [(x, 0), (y, 1)].map(|(at, axis)| cubic(side, image.grid[axis], at));
                for (y, dy) in rows {
                    columns.iter().for_each(|(x, dx)| add(y * side + x, dy * dx));
                }
            }
            plan::Positions::Axes { count, pairs, .. } => {
                let [x, y] = [x, y].map(|at| at.min(count - 1));
                add(if pairs { 2 * x } else { x }, 1.0);
                add(if pairs { 2 * y + 1 } else { count + y }, 1.0);
            }
            plan::Positions::Stretched { side, .. } => {
                let [(x0, x1, dx), (y0, y1, dy)] = [(x, 0), (y, 1)].map(|(at, axis)| {
                    let at = linspace(side, image.grid[axis], at);
                    let low = (at as usize).min(side - 1);
                    (low, (low + 1).min(side - 1), at - low as f32)
                });
                add(y0 * side + x0, (1.0 - dy) * (1.0 - dx));
                add(y0 * side + x1, (1.0 - dy) * dx);
                add(y1 * side + x0, dy * (1.0 - dx));
                add(y1 * side + x1, dy * dx);
            }
        }
    }
}

/// The sizes that an image is brought to one after the other: its longer side as long as `longest`, then both whole squares of `side`.
fn tiled(size: [usize; 2], side: usize, longest: usize) -> [[usize; 2]; 2] {
    let of = |size: [usize; 2], long: usize, round: &dyn Fn(usize) -> usize| {
        let aspect = size[0] as f64 / size[1] as f64;
        if size[0] >= size[1] {
            [long, round((long as f64 / aspect) as usize)]
        } else {
            [round((long as f64 * aspect) as usize), long]
        }
    };
    let first = of(size, longest, &|x| (x + x % 2).max(1));
    let up = |x: usize| x.div_ceil(side).max(1) * side;
    [first, of(first, up(first[0].max(first[1])), &up)]
}

/// Columns and rows of the tiles of an image, see [`Size::Grid`]. Of equally good ones those with more tiles, while these are at most twice as
/// large as the image.
fn best_grid([width, height]: [usize; 2], side: usize, least: usize, most: usize) -> [usize; 2] {
    let ratio = width as f64 / height as f64;
    let (mut best, mut nearest) = ([1, 1], f64::INFINITY);
    for count in least..=most {
        for columns in (1..=count).filter(|n| count.is_multiple_of(*n)) {
            let grid = [columns, count / columns];
            let off = (ratio - grid[0] as f64 / grid[1] as f64).abs();
            let fits = (width * height) as f64 > 0.5 * (side * side * count) as f64;
            if off < nearest || off == nearest && fits {
                (best, nearest) = (grid, off);
            }
        }
    }
    best
}

/// The window of token `i`, of squares of `side` tokens by rows, those at the right and lower edges cut: its first token, its width and
/// height, its column and row.
fn window_of([columns, rows]: [usize; 2], side: usize, i: usize) -> (usize, [usize; 2], [usize; 2]) {
    let band = i / (side * columns);
    let y = band * side;
    let height = side.min(rows - y);
    let column = (i - y * columns) / (side * height);
    let x = column * side;
    (y * columns + x * height, [side.min(columns - x), height], [x, y])
}

/// The places in a row of `side` values, and their weights, of value `at` of `count` that the row is stretched to: `grid_sample` without
/// aligned corners, which repeats the first and the last.
fn cubic(side: usize, count: usize, at: usize) -> [(usize, f32); 4] {
    // From -1 to 1, as transformers computes it, and back.
    let to = (at as f32 + 0.5) / count as f32 * 2.0 - 1.0;
    let from = ((to + 1.0) * side as f32 - 1.0) / 2.0;
    let (low, t) = (from.floor(), from - from.floor());
    const A: f32 = -0.75;
    let near = |x: f32| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f32| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let weights = [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)];
    std::array::from_fn(|i| ((low + i as f32 - 1.0).clamp(0.0, (side - 1) as f32) as usize, weights[i]))
}

/// Number `i` of `count` numbers evenly from 0 to `side - 1`, as PyTorch computes them: from both ends.
fn linspace(side: usize, count: usize, i: usize) -> f32 {
    if count == 1 {
        return 0.0;
    }
    let (end, last) = ((side - 1) as f32, count - 1);
    let step = end / last as f32;
    if i < count / 2 { step * i as f32 } else { end - step * (last - i) as f32 }
}
