//! The images of prompts: encodes them between steps, keeps embeddings for later prompts, and gives them to the model.
//!
//! A prompt with an image is computed up to it, and goes on when its embeddings are there. Meanwhile other sequences run: an image is encoded
//! in pieces, at least one with each step.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use octet_compute::Batch;

use super::choice::Choice;
use super::plan::Plan;
use super::{Engine, JobId, Options, Running};
use crate::Error;
use crate::cache::{Contents, fingerprint};
use crate::models::Model;
use crate::tokenizer::Tokenizer;
use crate::vision::{self, Encoder, PIECE_TOKENS, Reader, Resized};

/// How long pieces are computed before new requests are looked at, where nothing else runs.
const ALONE: Duration = Duration::from_millis(100);

/// Patches of a piece, at least: shorter ones read weights too often.
const PIECE_MIN: usize = 16;

/// Products a second of a few cores: what is expected of the first image.
const SLOW: f64 = 3e10;

/// Names the embeddings of an image.
type Name = [u8; 32];

/// Encodes images for a model.
pub(super) struct Images {
    pub reader: Arc<Reader>,
    encoder: Box<dyn Encoder>,
    kept: Kept,
    /// The image that the encoder has begun.
    current: Option<Name>,
    /// Products a second in the slowest piece of the last image, and of the current one.
    pace: [f64; 2],
    /// The longest that a piece should take.
    piece_time_max: Duration,
    /// The first image that a sequence waits for, and its request.
    wanted: Option<(Name, Arc<Resized>, JobId)>,
}

impl Images {
    /// Loads the tower, if there is one.
    pub fn open(
        file: &octet_weights::Model,
        options: &Options,
        tokenizer: &Tokenizer,
        model: &mut dyn Model,
    ) -> Result<Option<Self>, Error> {
        let Some(vision) = &options.vision else { return Ok(None) };
        let refused = |what: String| Err(Error::Request(format!("{}: {what}", vision.file.origin)));
        let (tower, hidden) = (vision.tower()?, model.config().hidden);
        if tower.out != hidden {
            return refused(format!(
                "its embeddings have {} values, and those of {} have {hidden}; it belongs to another model",
                tower.out, file.origin
            ));
        }
        if tower.deep.len() > model.config().layers {
            return refused(format!("it adds to {} layers, and the model has fewer", tower.deep.len()));
        }
        let [takes, together] = model.takes_images();
        if !takes || tower.prompt.together && !together {
            let device = model.backend().describe();
            let which =
                if takes { "images whose tokens see each other in both directions" } else { "images" };
            return refused(format!(
                "{which} are not supported on {device}; use --device cpu, or --no-mmproj"
            ));
        }
        let device = options.device.as_ref().filter(|_| vision.on_device);
        let on_device = device.and_then(|device| {
            let loaded = device.load_tower(&vision.file, tower.clone());
            loaded
                .inspect_err(|e| {
                    let file = &vision.file.origin;
                    tracing::warn!("{file} does not load on the device: {e}; the processor encodes images");
                })
                .ok()
        });
        let there = if on_device.is_some() { ", with its tower" } else { "" };
        let encoder = match on_device {
            Some(encoder) => encoder,
            None => vision::open(&vision.file, tower.clone(), &options.cpu, &options.arbiter)?,
        };
        let key = match &options.disk {
            // Embeddings are part of what is stored: they name the tower.
            Some(disk) => {
                let contents = Contents::new(&vision.file, &disk.dir);
                let numerics = model.backend().numerics() + there;
                fingerprint(contents, &numerics, options.kv, &mut |_| {})?
            }
            None => Name::default(),
        };
        // Embeddings of layers have no image's: those of padding stand there, as in training.
        let padding = file.metadata.opt_u32("tokenizer.ggml.padding_token_id")?;
        let has_layers = model.config().plan.embed.per_layer.is_some();
        let filler = padding.filter(|id| has_layers && (*id as usize) < model.config().vocab);
        let reader = Reader::new(tower, tokenizer, filler, model.limits().batch_tokens, key)?;
        Ok(Some(Self {
            reader: Arc::new(reader),
            encoder,
            kept: Kept { most: vision.cache_bytes, ..Kept::default() },
            current: None,
            pace: [SLOW; 2],
            piece_time_max: options.step_time_max / 4,
            wanted: None,
        }))
    }

    /// Whether the device that encodes them was lost.
    pub fn is_lost(&self) -> bool {
        self.encoder.is_lost()
    }

    /// Before [`Images::ready`] is asked for the sequences of a step.
    pub fn begin_step(&mut self) {
        self.wanted = None;
    }

    /// How many tokens of a sequence can be computed after `computed`: up to the first image without embeddings, which is then encoded.
    pub fn ready(&mut self, computed: usize, job: JobId, choice: &mut Choice) -> usize {
        let Choice { places, embeddings, tokens, .. } = choice;
        for (place, found) in places.all.iter().zip(embeddings) {
            if place.range().end <= computed || found.is_some() {
                continue;
            }
            *found = self.kept.get(&place.key);
            if found.is_none() {
                self.wanted.get_or_insert_with(|| (place.key, Arc::clone(&place.image), job));
                return place.start.saturating_sub(computed);
            }
        }
        tokens.len() - computed
    }

    /// Computes pieces of the wanted image for `time`, at least one, until it is complete, which is returned.
    fn work(&mut self, time: Duration) -> Result<bool, Error> {
        let Some((name, image, _)) = &self.wanted else { return Ok(false) };
        let (begin, name) = (Instant::now(), *name);
        let work = self.encoder.tower().work(image.patches());
        let most = (self.piece_time_max.as_secs_f64() * self.pace[0] / work) as usize;
        let most = most.clamp(PIECE_MIN, PIECE_TOKENS);
        if self.current != Some(name) {
            self.current = None;
            self.encoder.start(Arc::clone(image), most)?;
            self.current = Some(name);
            self.pace[1] = f64::INFINITY;
        }
        let mut before = begin;
        loop {
            let embeddings = self.encoder.advance()?;
            let now = Instant::now();
            let took = (now - before).as_secs_f64().max(1e-9);
            self.pace[1] = self.pace[1].min(work * most.min(image.patches()) as f64 / took);
            before = now;
            if let Some(embeddings) = embeddings {
                self.current = None;
                self.pace[0] = self.pace[1];
                self.kept.insert(name, Arc::new(embeddings));
                return Ok(true);
            }
            if begin.elapsed() >= time {
                return Ok(false);
            }
        }
    }
}

impl Engine {
    /// Encodes a part of the image that a sequence waits for. Takes the time that a step with answers leaves of
    /// [`Options::step_time_max`].
    pub(super) fn encode_images(&mut self) {
        self.encode_time = Duration::ZERO;
        let begin = Instant::now();
        let Some(images) = &mut self.images else { return };
        let time = match self.batch.is_empty() {
            true => ALONE,
            false => self.step_time_max.saturating_sub(self.stats.step_time_last) / 2,
        };
        match images.work(time) {
            Ok(is_complete) => self.stats.encoded_images += u64::from(is_complete),
            Err(e) if images.is_lost() => {
                self.device_failed(&e);
                self.batch.clear();
            }
            Err(e) => {
                images.current = None;
                if let Some((_, _, job)) = images.wanted.take() {
                    self.fail(job, e);
                }
            }
        }
        self.encode_time = begin.elapsed();
    }
}

/// Gives the newest span of `batch`, tokens `range` of a sequence that begin at `first` there, what the sequence's images need.
pub(super) fn place(choice: &Choice, batch: &mut Batch, first: usize, range: Range<usize>) {
    let places = &choice.places;
    if places.is_empty() {
        return;
    }
    if places.has_turns() {
        batch.turn(range.clone().map(|p| places.turn(p)));
    }
    for (place, embeddings) in places.all.iter().zip(&choice.embeddings) {
        let tokens = place.range().start.max(range.start)..place.range().end.min(range.end);
        if tokens.is_empty() {
            continue;
        }
        if places.together {
            batch.see(place.range());
        }
        let Some(embeddings) = embeddings else {
            unreachable!("images are encoded before they are computed")
        };
        let width = embeddings.len() / place.image.len();
        for position in tokens {
            let row = &embeddings[(place.tokens.start + position - place.start) * width..][..width];
            batch.give(first + position - range.start, row);
        }
    }
}

/// Changes the shares of a step of `budget` tokens such that none ends within an image whose tokens are computed together.
pub(super) fn keep_together(plan: &mut Plan, running: &[Running], budget: usize) {
    for (i, r) in running.iter().enumerate() {
        let (computed, share) = (r.lease.computed, plan.shares[i]);
        let cut = r.choice.places.around(computed + share).filter(|_| r.choice.places.together && share > 0);
        let Some(place) = cut else { continue };
        let used: usize = plan.shares.iter().sum();
        let whole = place.range().end - computed;
        plan.shares[i] = if place.start > computed {
            place.start - computed
        } else if used - share + whole <= budget {
            whole
        } else {
            0
        };
        plan.prefills = plan.prefills + plan.shares[i] - share;
    }
}

/// Embeddings of the last images.
#[derive(Default)]
struct Kept {
    all: HashMap<Name, (Arc<Vec<f32>>, u64)>,
    bytes: u64,
    most: u64,
    clock: u64,
}

impl Kept {
    fn get(&mut self, name: &Name) -> Option<Arc<Vec<f32>>> {
        self.clock += 1;
        let (embeddings, used) = self.all.get_mut(name)?;
        *used = self.clock;
        Some(Arc::clone(embeddings))
    }

    /// Adds one, and drops those that were not used for the longest time. At least the newest one stays.
    fn insert(&mut self, name: Name, embeddings: Arc<Vec<f32>>) {
        let size = |e: &Arc<Vec<f32>>| 4 * e.len() as u64;
        self.clock += 1;
        self.bytes += size(&embeddings);
        if let Some((old, _)) = self.all.insert(name, (embeddings, self.clock)) {
            self.bytes -= size(&old);
        }
        while self.bytes > self.most && self.all.len() > 1 {
            let Some(oldest) = self.all.iter().min_by_key(|(_, (_, used))| *used).map(|(n, _)| *n) else {
                return;
            };
            if let Some((old, _)) = self.all.remove(&oldest) {
                self.bytes -= size(&old);
            }
        }
    }
}
