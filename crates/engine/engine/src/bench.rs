//! Measures the speed of a loaded model: prompt processing and generation, in llama-bench's terms.

use std::time::{Duration, Instant};

use octet_compute::Batch;
use octet_compute::backend::StoreStats;
use octet_compute::batch::PAGE_TOKENS;
use octet_compute::cpu::profile::Profile;
use octet_compute::inspect::StageTime;

use crate::Error;
use crate::cache::{Pool, Sequence};
use crate::models::{Limits, Model};
use crate::sampler::SamplerError;

/// A test: one row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Test {
    /// What is measured.
    pub kind: Kind,
    /// Tokens already in the cache of each sequence.
    pub depth: usize,
    /// Number of concurrent sequences.
    pub sequences: usize,
}

/// The kind of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Prompt processing (`pp`): number of prompt tokens.
    Prompt(usize),
    /// Text generation (`tg`): number of tokens, one per step.
    Generate(usize),
}

impl Test {
    /// Measured tokens of each sequence.
    fn length(&self) -> usize {
        match self.kind {
            Kind::Prompt(n) | Kind::Generate(n) => n,
        }
    }
    /// Measured tokens of all sequences.
    pub fn tokens(&self) -> usize {
        self.sequences * self.length()
    }
    /// llama-bench's name: `pp512`, `tg128 @ d4096`; with suffix `x4` for four concurrent sequences.
    pub fn name(&self) -> String {
        let name = match self.kind {
            Kind::Prompt(n) => format!("pp{n}"),
            Kind::Generate(n) => format!("tg{n}"),
        };
        let name = if self.sequences > 1 { format!("{name} x{}", self.sequences) } else { name };
        if self.depth > 0 { format!("{name} @ d{}", self.depth) } else { name }
    }
    /// Context that each sequence needs, in tokens.
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

/// The result of a test.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The test.
    pub test: Test,
    /// Time of each repetition.
    pub times: Vec<Duration>,
    /// Number of model steps in all repetitions.
    pub steps: usize,
    /// Time and bytes of each verb in all repetitions, if the backend records them.
    pub profile: Option<Profile>,
    /// What was read, in all repetitions, of experts that are not all in memory; `None` if they are.
    pub store: Option<StoreStats>,
    /// Hash of the last logits: equal for builds that compute the same.
    pub logits_hash: u64,
}

impl Outcome {
    /// Tokens per second of each repetition.
    pub fn rates(&self) -> Vec<f64> {
        self.times.iter().map(|t| self.test.tokens() as f64 / t.as_secs_f64()).collect()
    }
}

/// Mean and sample standard deviation.
pub fn mean_sd(x: &[f64]) -> (f64, f64) {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    if x.len() < 2 {
        return (mean, 0.0);
    }
    (mean, (x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt())
}

/// The token ids of a test: valid in any vocabulary, the same in each run, different for each sequence.
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

    /// Tokens of each sequence per step of a prompt.
    fn at_once(&self) -> usize {
        (self.model.limits().batch_tokens / self.seqs.len().max(1)).max(1)
    }

    /// Clears the cache and fills it to the depth of `test`.
    fn begin(&mut self, test: Test) -> Result<(), Error> {
        for seq in &mut self.seqs {
            self.pool.clear(self.model, seq);
        }
        self.feed(test.depth, self.at_once())
    }

    /// Feeds `n` tokens to each sequence, at most `at_once` to each per step; logits are computed for the last one, as for a prompt.
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
                if self.model.config().encoder().is_some() {
                    self.batch.see(past..past + len);
                }
            }
            self.model.step(&self.batch)?;
            self.steps += 1;
        }
        Ok(())
    }
}

/// Runs a test `repetitions` times after one warm-up; `tick` is called after each run. The model must be loaded with the limits of
/// [`Test::make_room`]. Fails if the last logits are not finite.
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
    let (mut steps, mut store) = (0, None::<StoreStats>);
    for run in 0..repetitions + usize::from(warm_up) {
        r.begin(test)?;
        r.model.backend().take_profile();
        let (before, read) = (r.steps, r.model.backend().store_stats().unwrap_or_default());
        let start = Instant::now();
        match test.kind {
            Kind::Prompt(n) => r.feed(n, r.at_once())?,
            Kind::Generate(n) => r.feed(n, 1)?,
        }
        let time = start.elapsed();
        // The speed of a model that computes garbage means nothing.
        SamplerError::check(r.model.last_logits())?;
        if run > 0 || !warm_up {
            times.push(time);
            steps += r.steps - before;
            store = r.model.backend().store_stats().map(|now| store.unwrap_or_default().plus(now, read));
            if let Some(p) = r.model.backend().take_profile() {
                profile.get_or_insert_with(Profile::default).merge(&p);
            }
        }
        tick();
    }
    let logits_hash = hash(r.model.last_logits());
    Ok(Outcome { test, times, steps, profile, store, logits_hash })
}

/// Kernels that a step runs in one or several stages.
#[derive(Debug, Clone, PartialEq)]
pub struct Stages {
    /// Names of the kernels of such a stage.
    pub kernels: Vec<&'static str>,
    /// Number of such stages in a step.
    pub count: usize,
    /// Workgroups of them all.
    pub groups: u64,
    /// Bytes that they read: see [`StageTime::bytes`].
    pub bytes: u64,
    /// Their time in a step: the median over the steps.
    pub time: Duration,
}

/// Number of steps measured for [`stages`].
const STAGE_STEPS: usize = 9;

/// Times of the stages of a step, the longest first, for devices that measure them. The steps are recorded apart from those of [`run`], as
/// timestamps between stages take time. `None` if the device cannot.
pub fn stages(model: &mut dyn Model, test: Test) -> Result<Option<Vec<Stages>>, Error> {
    let mut r = Runner::new(model, test)?;
    r.begin(test)?;
    if !r.model.backend().time_stages(true)? {
        return Ok(None);
    }
    let (steps, tokens, at_once) = match test.kind {
        Kind::Prompt(n) => (1, n.min(r.at_once()), r.at_once()),
        Kind::Generate(n) => (n.min(STAGE_STEPS), 1, 1),
    };
    let mut all: Vec<Vec<Stages>> = Vec::new();
    let mut done = Ok(());
    for _ in 0..steps {
        r.model.backend().take_stages();
        done = done.and_then(|()| r.feed(tokens, at_once));
        let mut step: Vec<Stages> = Vec::new();
        for stage in r.model.backend().take_stages() {
            let StageTime { kernels, groups, bytes, time } = stage;
            match step.iter_mut().find(|s| s.kernels == kernels) {
                Some(s) => {
                    (s.count, s.groups, s.bytes, s.time) =
                        (s.count + 1, s.groups + groups, s.bytes + bytes, s.time + time);
                }
                None => step.push(Stages { kernels, count: 1, groups, bytes, time }),
            }
        }
        all.push(step);
    }
    r.model.backend().time_stages(false)?;
    done?;
    let Some(last) = all.last() else { return Ok(None) };
    let median = |of: &Stages| {
        let of = |step: &Vec<Stages>| step.iter().find(|s| s.kernels == of.kernels).map(|s| s.time);
        let mut times: Vec<Duration> = all.iter().filter_map(of).collect();
        times.sort_unstable();
        times[times.len() / 2]
    };
    let mut out: Vec<Stages> = last.iter().map(|s| Stages { time: median(s), ..s.clone() }).collect();
    out.sort_by_key(|s| std::cmp::Reverse(s.time));
    Ok(Some(out))
}

/// How much of the memory bandwidth available at the same time steps reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// Bytes per second of a step divided by those of plain reads right before and after it: median over the steps, and the first and
    /// third quartile.
    pub median: f64,
    /// See [`Share::median`].
    pub quartiles: [f64; 2],
    /// Median bandwidth of the plain reads in bytes per second.
    pub memory: f64,
}

/// Maximum number of steps measured for [`share`].
const SHARE_STEPS: usize = 48;

/// Generates as in `test`, and measures plain reads before and after each step: on a shared machine the bandwidth changes from second
/// to second, so an earlier measurement says little. `None` for prompts, and for backends that cannot measure it.
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

/// The first bytes of BLAKE3 over the bits of the logits.
fn hash(logits: &[f32]) -> u64 {
    let bytes: Vec<u8> = logits.iter().flat_map(|x| x.to_le_bytes()).collect();
    let hash = blake3::hash(&bytes);
    u64::from_le_bytes(std::array::from_fn(|i| hash.as_bytes()[i]))
}
