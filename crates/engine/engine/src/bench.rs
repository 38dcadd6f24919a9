//! How fast a loaded model is: prompt processing and generation, in llama-bench's terms. Called by `octet bench`.

use std::time::{Duration, Instant};

use octet_compute::Batch;
use octet_compute::batch::PAGE_TOKENS;
use octet_compute::cpu::profile::Profile;

use crate::Error;
use crate::cache::{Pool, Sequence};
use crate::models::{Limits, Model};
use crate::sampler::SamplerError;

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Test {
    /// What is timed.
    pub kind: Kind,
    /// Tokens that are in the cache before, of each sequence.
    pub depth: usize,
    /// Sequences that do so at the same time.
    pub sequences: usize,
}

/// What a test times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Prompt processing: tokens of the prompt (`pp`).
    Prompt(usize),
    /// Text generation: tokens, one a step (`tg`).
    Generate(usize),
}

impl Test {
    /// Tokens of each sequence that are timed.
    fn length(&self) -> usize {
        match self.kind {
            Kind::Prompt(n) | Kind::Generate(n) => n,
        }
    }
    /// Tokens that are timed, of all sequences.
    pub fn tokens(&self) -> usize {
        self.sequences * self.length()
    }
    /// llama-bench's name: `pp512`, `tg128 @ d4096`; with `x4` behind it where four sequences run together.
    pub fn name(&self) -> String {
        let name = match self.kind {
            Kind::Prompt(n) => format!("pp{n}"),
            Kind::Generate(n) => format!("tg{n}"),
        };
        let name = if self.sequences > 1 { format!("{name} x{}", self.sequences) } else { name };
        if self.depth > 0 { format!("{name} @ d{}", self.depth) } else { name }
    }
    /// Tokens of context that each sequence needs.
    pub fn context(&self) -> usize {
        self.depth.saturating_add(self.length())
    }
    /// Raises `limits` to what the test needs.
    pub fn make_room(&self, limits: &mut Limits) {
        limits.pages = limits.pages.max(self.sequences.saturating_mul(self.context().div_ceil(PAGE_TOKENS)));
        limits.slots = limits.slots.max(self.sequences);
        limits.batch_outputs = limits.batch_outputs.max(self.sequences);
        limits.batch_tokens = limits.batch_tokens.max(self.sequences);
    }
}

/// What one test measured.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The test.
    pub test: Test,
    /// Time of each repetition.
    pub times: Vec<Duration>,
    /// Steps of the model in all repetitions.
    pub steps: usize,
    /// Time and bytes of each verb in all repetitions, where the backend keeps count.
    pub profile: Option<Profile>,
    /// Fingerprint of the last logits: two builds that compute the same print the same.
    pub logits_hash: u64,
}

impl Outcome {
    /// Tokens per second of each repetition.
    pub fn rates(&self) -> Vec<f64> {
        self.times.iter().map(|t| self.test.tokens() as f64 / t.as_secs_f64()).collect()
    }
}

/// Mean and standard deviation (of the sample) of some figures.
pub fn mean_sd(x: &[f64]) -> (f64, f64) {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    if x.len() < 2 {
        return (mean, 0.0);
    }
    (mean, (x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt())
}

/// Token ids that a test feeds: within any vocabulary, the same in every run, and others in each sequence.
fn token(i: usize, sequence: usize, vocab: usize) -> u32 {
    ((7 * i + 131 * sequence + 11) % 1000.min(vocab)) as u32
}

struct Runner<'a> {
    model: &'a mut dyn Model,
    pool: Pool,
    seqs: Vec<Sequence>,
    batch: Batch,
    steps: usize,
}

impl<'a> Runner<'a> {
    fn new(model: &'a mut dyn Model, test: Test) -> Result<Self, Error> {
        let mut pool = Pool::new(model);
        let seqs =
            (0..test.sequences).map(|_| pool.sequence(model, test.context())).collect::<Result<_, _>>()?;
        let pages = test.sequences * test.context().div_ceil(PAGE_TOKENS);
        let batch = Batch::with_capacity(model.limits().batch_tokens, test.sequences, pages);
        Ok(Self { model, pool, seqs, batch, steps: 0 })
    }

    /// Tokens of each sequence in a step of a prompt.
    fn at_once(&self) -> usize {
        (self.model.limits().batch_tokens / self.seqs.len().max(1)).max(1)
    }

    /// Forgets what was fed, and feeds what is in the cache before `test`.
    fn begin(&mut self, test: Test) -> Result<(), Error> {
        for seq in &mut self.seqs {
            self.pool.clear(self.model, seq);
        }
        self.feed(test.depth, self.at_once())
    }

    /// Feeds `n` tokens to each sequence, at most `at_once` to each in a step; logits of its last one are computed as
    /// a prompt's are.
    fn feed(&mut self, n: usize, at_once: usize) -> Result<(), Error> {
        let vocab = self.model.config().vocab;
        for seq in &mut self.seqs {
            self.pool.reserve(seq, n)?;
        }
        let mut left = n;
        while left > 0 {
            let len = left.min(at_once);
            left -= len;
            self.batch.clear();
            let outputs = usize::from(left == 0 || at_once == 1);
            for (i, seq) in self.seqs.iter_mut().enumerate() {
                let past = seq.tokens.len();
                seq.tokens.extend((past..past + len).map(|t| token(t, i, vocab)));
                self.batch.push(&seq.tokens[past..], past, seq.slot, &seq.pages, outputs);
            }
            self.model.step(&self.batch)?;
            self.steps += 1;
        }
        Ok(())
    }
}

/// Runs a test `repetitions` times after one warm-up; `tick` is called after each run. The model was loaded with the
/// room that [`Test::make_room`] asks for. Fails where its last logits are not numbers.
pub fn run(
    model: &mut dyn Model,
    test: Test,
    repetitions: usize,
    warm_up: bool,
    tick: &mut dyn FnMut(),
) -> Result<Outcome, Error> {
    let mut r = Runner::new(model, test)?;
    let mut times = Vec::new();
    let mut profile: Option<Profile> = None;
    let mut steps = 0;
    for run in 0..repetitions + usize::from(warm_up) {
        r.begin(test)?;
        r.model.backend().take_profile();
        let before = r.steps;
        let start = Instant::now();
        match test.kind {
            Kind::Prompt(n) => r.feed(n, r.at_once())?,
            Kind::Generate(n) => r.feed(n, 1)?,
        }
        let time = start.elapsed();
        // A model that computes garbage is fast for nothing.
        SamplerError::check(r.model.last_logits())?;
        if run > 0 || !warm_up {
            times.push(time);
            steps += r.steps - before;
            if let Some(p) = r.model.backend().take_profile() {
                profile.get_or_insert_with(Profile::default).merge(&p);
            }
        }
        tick();
    }
    let logits_hash = hash(r.model.last_logits());
    Ok(Outcome { test, times, steps, profile, logits_hash })
}

/// How near steps come to what the memory gives at the same time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// Bytes per second of a step over those of plain reads right before and after it: median over the steps, and the quarters below and
    /// above which a quarter of them lie.
    pub median: f64,
    /// See [`Share::median`].
    pub quartiles: [f64; 2],
    /// Bytes per second of the plain reads, the median.
    pub memory: f64,
}

/// Steps that are measured for [`share`], at most.
const SHARE_STEPS: usize = 48;

/// Generates as `test` says, and reads memory before and after each step: on a machine that is shared, what memory gives changes from
/// one second to the next, and a limit that was measured before says little. `None` for prompts, and for backends that cannot measure it.
pub fn share(model: &mut dyn Model, test: Test) -> Result<Option<Share>, Error> {
    let Kind::Generate(n) = test.kind else { return Ok(None) };
    let mut probe = None;
    let mut r = Runner::new(model, test)?;
    r.begin(test)?;
    let Some(mut before) = r.model.backend().probe_memory(&mut probe)? else { return Ok(None) };
    let (mut shares, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..n.min(SHARE_STEPS) {
        r.model.backend().take_profile();
        let start = Instant::now();
        r.feed(1, 1)?;
        let seconds = start.elapsed().as_secs_f64();
        let Some(profile) = r.model.backend().take_profile() else { return Ok(None) };
        let Some(after) = r.model.backend().probe_memory(&mut probe)? else { return Ok(None) };
        let memory = (before + after) / 2.0;
        shares.push(profile.total().bytes as f64 / seconds / memory);
        plain.push(memory);
        before = after;
    }
    shares.sort_by(f64::total_cmp);
    plain.sort_by(f64::total_cmp);
    let at = |x: &[f64], quarters: usize| x[(x.len() - 1) * quarters / 4];
    Ok(Some(Share {
        median: at(&shares, 2),
        quartiles: [at(&shares, 1), at(&shares, 3)],
        memory: at(&plain, 2),
    }))
}

/// The beginning of BLAKE3 over the bits of the logits.
fn hash(logits: &[f32]) -> u64 {
    let bytes: Vec<u8> = logits.iter().flat_map(|x| x.to_le_bytes()).collect();
    let hash = blake3::hash(&bytes);
    u64::from_le_bytes(std::array::from_fn(|i| hash.as_bytes()[i]))
}
