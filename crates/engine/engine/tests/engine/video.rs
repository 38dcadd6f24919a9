//! Videos as lists of frames against transformers' processor and model: sizes, times, tokens, positions, pixels, embeddings, logits and greedy text.
//! `fixtures/video/make.py` and `towers.py` made the numbers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use octet_engine::models::Limits;
use octet_engine::tokenizer::{Prompt, Tokenizer};
use octet_engine::vision::plan::{Size, Times};
use octet_engine::vision::{Clip, Options, Picture, Reader, Resized, Tower};
use octet_testkit::{Golden, max_abs_diff, shared};

use crate::common::{On, Run, exact_backends, limits, try_load};
use crate::vision::{encoder, feed};

/// Frames of the golden video, a second, and the size of each.
const FRAMES: usize = 5;
const FPS: f64 = 1.5;
const SIZE: [usize; 2] = [100, 70];

fn golden(name: &str) -> Golden {
    Golden::at(&fixtures().join(format!("video/{name}.safetensors")))
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// When so many frames are, at this rate.
fn times(frames: usize, fps: f64) -> Vec<f64> {
    (0..frames).map(|i| i as f64 / fps).collect()
}

fn picture([width, height]: [usize; 2], t: usize) -> Picture {
    let value = |i: usize| {
        let (c, x, y) = (i % 3, i / 3 % width, i / 3 / width);
        (3 * x * x + 5 * x * y + 11 * y + 70 * c + x / 4 * (y / 3) * 17 + 37 * t * (x / 9 + 1)) as u8
    };
    Picture { width, height, rgb: (0..3 * width * height).map(value).collect() }
}

fn tower(file: &Arc<octet_weights::Model>) -> Tower {
    let options = Options { min_tokens: Some(1), ..Options::new(Arc::clone(file)) };
    options.tower().expect("a known tower")
}

fn read(tower: &Tower, size: [usize; 2], times_s: &[f64]) -> Vec<Arc<Resized>> {
    let mut clip = Clip::new(tower, times_s, size).expect("a usable video");
    let mut read = |t: usize| clip.read(&picture(size, t)).expect("a usable frame");
    (0..times_s.len()).filter_map(|t| read(t).map(Arc::new)).collect()
}

/// The values of every fifth patch, as transformers has them: `[3, 2, patch, patch]`.
fn pixels(tower: &Tower, pairs: &[Arc<Resized>]) -> Vec<f32> {
    let (len, area) = (tower.patch_len(), tower.patch * tower.patch);
    // Tokens by rows: ours may follow each other by windows.
    let all = pairs.iter().flat_map(|pair| {
        let mut order: Vec<usize> = (0..pair.patches()).collect();
        order.sort_by_key(|i| {
            let [x, y] = tower.place(pair, *i);
            [y / tower.merge, x / tower.merge, y, x]
        });
        order.into_iter().map(move |i| (pair, i))
    });
    let values = all.step_by(5).flat_map(|(pair, i)| {
        let mut values = vec![0.0; 2 * len];
        tower.patch(pair, i, &mut values);
        let planes: Vec<Vec<f32>> = values.chunks_exact(area).map(<[f32]>::to_vec).collect();
        (0..6).flat_map(|n| planes[n % 2 * 3 + n / 2].clone()).collect::<Vec<f32>>()
    });
    values.collect()
}

/// A text model and its projector.
type Pair = (octet_weights::Model, Arc<octet_weights::Model>);

/// The zoo's Qwen3.5 as GGUF and as a checkpoint.
fn files() -> Option<[Pair; 2]> {
    let open = |name: &str| {
        let path = shared(&format!("zoo/vision/{name}"))?;
        Some(octet_weights::Model::open(path).expect("a reference model opens"))
    };
    let folder = shared("zoo/vision/models/qwen35moe_vl")?;
    let of_folder = octet_weights::hf::open_tower(&folder).expect("it opens").expect("it has a tower");
    Some([
        (open("gguf/qwen35moe_vl.gguf")?, Arc::new(open("gguf/qwen35moe_vl.mmproj.gguf")?)),
        (open("models/qwen35moe_vl")?, Arc::new(of_folder)),
    ])
}

/// A prompt with a video and a picture, as `make.py` has it.
struct Case<'a> {
    text: &'a octet_weights::Model,
    file: &'a Arc<octet_weights::Model>,
    tokenizer: &'a Tokenizer,
    golden: &'a Golden,
    /// Of the names of positions and logits.
    prefix: &'a str,
    fps: f64,
    /// Sizes of a frame and of the picture.
    sizes: [[usize; 2]; 2],
}

impl Case<'_> {
    /// Compares it with transformers.
    fn check(&self) {
        let Self { text, file, golden, prefix, .. } = self;
        let tower = tower(file);
        let mut images = read(&tower, self.sizes[0], &times(FRAMES, self.fps));
        let [columns, rows] = images[0].grid.map(|n| n as u32);
        assert_eq!(golden.ids("grid").expect("a grid"), [images.len() as u32, rows, columns]);
        let worst = max_abs_diff(&pixels(&tower, &images), &golden.f32("pixels").expect("pixels"));
        assert!(worst <= 0.01 / 127.5, "pixels differ by {worst}");

        let video = images.len();
        images.push(Arc::new(tower.resize(&picture(self.sizes[1], 9)).expect("a usable image")));
        let reader = Reader::new(tower.clone(), self.tokenizer, None, 256, [0; 32])
            .expect("it has a token for images");
        let ids = golden.ids("ids").expect("a prompt");
        let written = String::from_utf8(golden.bytes("text").expect("a text")).expect("UTF-8");
        let mut rendered = Prompt { text: written, barriers: Vec::new() };
        reader.surround(&mut rendered, &images);
        let mut prompt = self.tokenizer.encode_prompt(&rendered).expect("it is tokenized");
        assert_eq!(reader.spread(&prompt, &images), ids, "tokens");
        let places = reader.read(&mut prompt, &mut [], &images).expect("as many places");
        assert_eq!(prompt.len(), ids.len());
        let turns: Vec<[u32; 3]> = (0..ids.len()).map(|p| places.turn(p)).collect();
        let turns: Vec<u32> = (0..3).flat_map(|axis| turns.iter().map(move |t| t[axis])).collect();
        assert_eq!(turns, golden.ids(&format!("{prefix}position_ids")).expect("positions"));

        for on in [On::Reference, *exact_backends().last().expect("a backend")] {
            let mut encoder = encoder(file, tower.clone(), on);
            let embeds: Vec<Vec<f32>> =
                images.iter().map(|i| encoder.encode(Arc::clone(i)).expect("it computes")).collect();
            let worst = max_abs_diff(&embeds[..video].concat(), &golden.f32("embeds").expect("embeddings"));
            assert!(worst <= 2e-4, "{on:?}: embeddings differ by {worst}");
            let mut all = ids.clone();
            let mut run = Run::new(try_load(text, on, Limits { pages: 12, ..limits() }).expect("a model"));
            let vocab = run.model.config().vocab;
            let mut logits = feed(&mut run, &ids, &places, &embeds.concat(), 0..ids.len());
            let theirs = golden.f32(&format!("{prefix}logits")).expect("logits");
            let worst = max_abs_diff(&logits[logits.len() - theirs.len()..], &theirs);
            assert!(worst <= 3e-4, "{on:?}: logits differ by {worst}");
            for want in golden.ids("greedy_ids").unwrap_or_default() {
                let id = crate::common::argmax(&logits[logits.len() - vocab..]);
                assert_eq!(id, want, "{on:?}: greedy text");
                all.push(id);
                logits = feed(&mut run, &all, &places, &embeds.concat(), all.len() - 1..all.len());
            }
        }
    }
}

#[test]
fn frames_are_read_as_by_transformers() {
    let (golden, Some(files)) = (golden("golden"), files()) else { return };
    assert_eq!(golden.ids("greedy_ids").expect("greedy text").len(), 8);
    for (text, file) in &files {
        let tokenizer = &Tokenizer::from_metadata(&text.metadata).expect("a tokenizer");
        let case =
            Case { text, file, tokenizer, golden: &golden, prefix: "", fps: FPS, sizes: [SIZE, [50, 34]] };
        case.check();
    }
}

/// The same of a checkpoint of `fixtures/towers` at these rates.
fn check_checkpoint(name: &str, rates: &[(&str, f64)]) {
    let Some([(with_tokenizer, _), _]) = files() else { return };
    let tokenizer = &Tokenizer::from_metadata(&with_tokenizer.metadata).expect("a tokenizer");
    let (folder, golden) = (fixtures().join("towers").join(name), &golden(name));
    let text = &octet_weights::Model::open(&folder).expect("it opens");
    let file = &Arc::new(octet_weights::hf::open_tower(&folder).expect("it opens").expect("it has a tower"));
    for &(prefix, fps) in rates {
        Case { text, file, tokenizer, golden, prefix, fps, sizes: [[50, 34], [21, 45]] }.check();
    }
}

#[test]
fn frames_for_qwen3_vl_with_what_later_layers_get() {
    check_checkpoint("qwen3_vl", &[("", 1.5)]);
}

#[test]
fn frames_for_qwen2_5_vl_have_their_times_as_coordinates() {
    check_checkpoint("qwen2_5_vl", &[("", 6.0), ("slow.", 0.5)]);
}

#[test]
fn the_same_frames_at_other_times_are_other_tokens() {
    let Some([(with_tokenizer, _), _]) = files() else { return };
    let tokenizer = Tokenizer::from_metadata(&with_tokenizer.metadata).expect("a tokenizer");
    let projector = fixtures().join("towers/qwen2_5_vl/mmproj.gguf");
    let file = Arc::new(octet_weights::Model::open(projector).expect("it opens"));
    let tower = tower(&file);
    // llama.cpp's files do not have it.
    assert_eq!(tower.video.expect("it reads videos").times, Times::Turned { per_second: 2.0 });
    let reader =
        Reader::new(tower.clone(), &tokenizer, None, 256, [0; 32]).expect("it has a token for images");
    let video = reader.video.expect("a token");
    let of = |times_s: &[f64]| {
        let images = read(&tower, [16, 16], times_s);
        let mut prompt = vec![1, video, video, video, 2];
        let places = reader.read(&mut prompt, &mut [], &images).expect("as many places");
        let first = |i: usize| places.turn(places.all[i].start);
        let turns = [first(0), first(1), first(2), places.turn(prompt.len() - 1)];
        (prompt, places.all.iter().map(|p| p.key).collect::<Vec<_>>(), turns)
    };
    let (prompt, keys, turns) = of(&times(5, 1.0));
    assert_eq!(turns, [[1; 3], [5, 1, 1], [9, 1, 1], [10; 3]]);
    let (later, same, turns) = of(&[0.0, 1.0, 2.0, 3.0, 20.0]);
    // Uneven frames are where they are; embeddings stay.
    assert_eq!(turns, [[1; 3], [5, 1, 1], [41, 1, 1], [42; 3]]);
    assert_eq!(keys, same);
    let differ: Vec<bool> = prompt.iter().zip(&later).map(|(a, b)| a != b).collect();
    let each = (prompt.len() - 2) / 3;
    assert_eq!(differ, (0..prompt.len()).map(|i| i > 2 * each && i <= 3 * each).collect::<Vec<_>>());
    // A video that begins later has the same coordinates.
    assert_eq!(of(&[7.0, 8.0, 9.0, 10.0, 11.0]).0, prompt);
}

#[test]
fn sizes_and_times_of_frames_are_those_of_transformers() {
    let (golden, Some([(text, file), _])) = (golden("golden"), files()) else { return };
    let mut tower = tower(&file);
    // Without the limit of a single image.
    tower.size = Size::Rounded { min: 1, max: 1 << 30, grows: false };
    for case in golden.ids("sizes").expect("sizes").chunks_exact(5) {
        let [frames, height, width, high, wide] = [0, 1, 2, 3, 4].map(|i| case[i] as usize);
        let times_s = times(frames, FPS);
        let clip = Clip::new(&tower, &times_s, [width, height]).expect("a usable video");
        assert_eq!(clip.size(), [wide, high], "{frames} frames of {width} x {height}");
    }
    let times_s: Vec<f64> = golden
        .bytes("times")
        .expect("times")
        .as_chunks::<8>()
        .0
        .iter()
        .map(|b| f64::from_le_bytes(*b))
        .collect();
    let images = read(&tower, [64, 64], &times_s);
    let tokenizer = Tokenizer::from_metadata(&text.metadata).expect("a tokenizer");
    let video = tower.video.expect("it reads videos");
    let reader = Reader::new(tower, &tokenizer, None, 256, [0; 32]).expect("it has a token for images");
    let mark = video.mark;
    let mut rendered = Prompt { text: format!("A{mark}B{mark}"), barriers: vec![mark.len() + 6] };
    reader.surround(&mut rendered, &images);
    let stamps = String::from_utf8(golden.bytes("stamps").expect("texts")).expect("UTF-8");
    let want: String = stamps.lines().map(|stamp| format!("{stamp}{}", video.text)).collect();
    // What a user typed stays: it has a barrier within it.
    assert_eq!(rendered.text, format!("A{want}B{mark}"));
    assert_eq!(rendered.barriers, [want.len() + 6]);
}

#[test]
fn videos_that_cannot_be_read_are_refused() {
    let Some([(text, file), _]) = files() else { return };
    let tower = tower(&file);
    let tokenizer = Tokenizer::from_metadata(&text.metadata).expect("a tokenizer");
    let reader =
        Reader::new(tower.clone(), &tokenizer, None, 256, [0; 32]).expect("it has a token for images");
    let refused = |frames, size, why: &str| {
        let e = reader.clip(&times(frames, 1.0), size).expect_err("it is refused").to_string();
        assert!(e.contains(why), "{e}");
    };
    // Larger ones are reduced, also of an odd number.
    for frames in 2..40 {
        reader.clip(&times(frames, 1.0), [2560, 1920]).expect("a usable video");
    }
    refused(1, [64, 64], "at least two frames");
    refused(2, [32, 9000], "too narrow");
    refused(2, [64, 0], "has none");
    let mut clip = reader.clip(&[0.0, 1.0], SIZE).expect("a usable video");
    assert!(clip.read(&picture(SIZE, 0)).expect("a frame").is_none());
    let e = clip.read(&picture([64, 64], 0)).expect_err("it is refused").to_string();
    assert!(e.contains("64 x 64 pixels follows one of 100 x 70"), "{e}");
    assert!(clip.read(&picture(SIZE, 1)).expect("a frame").is_some());
    let e = clip.read(&picture(SIZE, 2)).expect_err("it is refused").to_string();
    assert!(e.contains("has 2 frames, and a further one follows"), "{e}");
    let without = Tower { video: None, ..tower.clone() };
    let e = Clip::new(&without, &[0.0, 1.0], SIZE).expect_err("it is refused").to_string();
    assert!(e.contains("reads no videos; send frames as images"), "{e}");
    // Images are not taken for frames.
    let pairs = read(&tower, [64, 64], &[0.0, 1.0]);
    let image = Arc::new(tower.resize(&picture([64, 64], 0)).expect("a usable image"));
    let mut prompt = vec![1, reader.video.expect("a token"), reader.token];
    let e = reader.read(&mut prompt, &mut [], &[image, Arc::clone(&pairs[0])]).expect_err("it is refused");
    assert!(e.to_string().contains("in another order"), "{e}");
    // Alone the token is a token as others.
    let mut prompt = vec![1, reader.video.expect("a token")];
    assert!(reader.read(&mut prompt, &mut [], &[]).expect("no images").is_empty());
    assert_eq!(prompt.len(), 2);
}
