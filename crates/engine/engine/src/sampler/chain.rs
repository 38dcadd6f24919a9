//! The general sampler chain: any samplers in any order over a list of candidates. [`super::Sampler`] uses it if its own faster path
//! does not apply: for samplers other than temperature, `top_k`, `top_p` and `min_p`, for another order, or to report the distribution
//! after sampling.
//!
//! Each follows its published definition (see [`super::stages`]), and is compared with llama.cpp's in `tests/engine/samplers.rs`.

use super::SamplerParams;
use super::dry::Repetitions;
use super::rows::{Candidate, Rows, exp, pass};
use super::stages::{Mirostat, MirostatVersion, Stage, Xtc};
use super::window::Window;

/// A remaining token.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Left {
    id: u32,
    logit: f32,
    /// Its probability; set by [`Chain::softmax`].
    p: f32,
}

/// The remaining tokens, and mirostat's state. Allocated by [`Chain::new`].
#[derive(Debug, Clone)]
pub(super) struct Chain {
    stages: Vec<Stage>,
    list: Vec<Left>,
    /// `list` is sorted: best first, lower ids first among equals.
    sorted: bool,
    /// Mirostat's current bound of the surprise, in bits.
    mu: f32,
    /// `list` is of the current token.
    is_fresh: bool,
}

/// Inputs of the samplers besides the logits.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub params: &'a SamplerParams,
    pub window: Option<&'a Window>,
    pub repetitions: Option<&'a Repetitions>,
    /// Uniform in `[0, 1)`: decides whether XTC applies.
    pub chance: f64,
    /// Size of the vocabulary, for mirostat.
    pub vocab: usize,
}

/// Number of tokens to which mirostat fits Zipf's law.
const ZIPF_TOKENS: usize = 100;
/// `top_p` tries this many best tokens before it sorts all.
const NUCLEUS_FIRST: usize = 256;

impl Chain {
    /// For logits of `vocab_rows` rows. `stages` are the samplers that are on.
    pub fn new(stages: Vec<Stage>, params: &SamplerParams, vocab_rows: usize) -> Self {
        let most = match stages.first() {
            Some(Stage::TopK) => vocab_rows.min(params.top_k as usize),
            _ => vocab_rows,
        };
        let mu = params.mirostat.map_or(0.0, |m| 2.0 * m.tau);
        Self { stages, list: Vec::with_capacity(most), sorted: false, mu, is_fresh: false }
    }

    /// Whether its first sampler is `top_k`, which needs a buffer for [`Rows::top`].
    pub fn begins_with_top_k(&self) -> bool {
        self.stages.first() == Some(&Stage::TopK)
    }

    /// Runs the samplers. At least one token remains.
    pub fn run(&mut self, rows: Rows<'_>, top: &mut Vec<Candidate>, context: Context<'_>) {
        self.list.clear();
        let list = &mut self.list;
        let mut from = 0;
        if self.stages.first() == Some(&Stage::TopK) {
            rows.top(context.params.top_k as usize, top);
            list.extend(top.iter().map(|c| Left { id: c.id(), logit: c.logit(), p: 0.0 }));
            (from, self.sorted) = (1, true);
        } else {
            rows.each(|id, logit| list.push(Left { id, logit, p: 0.0 }));
            self.sorted = false;
        }
        for i in from..self.stages.len() {
            self.step(self.stages[i], context);
        }
        if let Some(m) = context.params.mirostat {
            self.cut_by_surprise(m.version, context.vocab);
        }
        self.softmax();
        self.is_fresh = true;
    }

    /// The token at which the cumulative probability exceeds `random` in `[0, 1)`.
    pub fn draw(&self, random: f64) -> Option<u32> {
        let total: f64 = self.list.iter().map(|c| f64::from(c.p)).sum();
        pass(self.list.iter().map(|c| c.p), random * total).map(|i| self.list[i].id)
    }

    /// Updates mirostat with the chosen token.
    pub fn accept(&mut self, id: u32, mirostat: Mirostat) {
        if std::mem::take(&mut self.is_fresh)
            && let Some(chosen) = self.list.iter().find(|c| c.id == id)
        {
            self.mu -= mirostat.eta * (-chosen.p.log2() - mirostat.tau);
        }
    }

    /// The log-probability of a token in the remaining distribution; -inf if it was removed.
    pub fn logprob(&self, id: u32) -> f32 {
        self.list.iter().find(|c| c.id == id).map_or(f32::NEG_INFINITY, |c| c.p.ln())
    }

    /// The `n` most probable remaining tokens with log-probabilities, best first.
    pub fn best(&mut self, n: usize) -> impl Iterator<Item = (u32, f32)> {
        self.sort();
        self.list.iter().take(n).map(|c| (c.id, c.p.ln()))
    }

    fn step(&mut self, stage: Stage, context: Context<'_>) {
        let Context { params, .. } = context;
        let least = params.min_keep.max(1);
        match stage {
            Stage::Penalties => {
                let Some(window) = context.window else { return };
                self.relabel(|c| window.penalized(params, c.id, c.logit));
            }
            Stage::Dry => {
                let Some(found) = context.repetitions else { return };
                self.relabel(|c| c.logit - found.penalty(c.id));
            }
            Stage::TopNSigma => self.top_n_sigma(params.top_n_sigma),
            Stage::Temperature if params.dynamic_temperature.range > 0.0 => self.dynamic_temperature(params),
            Stage::Temperature => self.temperature(params.temperature),
            Stage::TopK => self.keep_best(params.top_k as usize),
            Stage::TypicalP => self.typical(params.typical_p, least),
            Stage::TopP => self.top_p(params.top_p, least),
            Stage::MinP => self.min_p(params.min_p, least),
            Stage::Xtc => {
                if context.chance < f64::from(params.xtc.probability) {
                    self.exclude_top(params.xtc, least);
                }
            }
        }
    }

    fn relabel(&mut self, logit: impl Fn(&Left) -> f32) {
        self.list.iter_mut().for_each(|c| c.logit = logit(c));
        self.sorted = false;
    }

    fn max(&self) -> f32 {
        match self.list.first() {
            Some(first) if self.sorted => first.logit,
            _ => self.list.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max),
        }
    }

    /// Computes the probabilities.
    fn softmax(&mut self) {
        let max = self.max();
        let mut total = 0.0;
        for c in &mut self.list {
            c.p = exp(c.logit - max);
            total += f64::from(c.p);
        }
        self.list.iter_mut().for_each(|c| c.p = (f64::from(c.p) / total) as f32);
    }

    fn sort(&mut self) {
        if !self.sorted {
            self.list.sort_unstable_by(better_first);
            self.sorted = true;
        }
    }

    fn keep_best(&mut self, n: usize) {
        let n = n.max(1);
        if !self.sorted && n < self.list.len() {
            self.list.select_nth_unstable_by(n, better_first);
        }
        self.list.truncate(n);
        self.sort();
    }

    fn top_n_sigma(&mut self, n: f32) {
        let count = self.list.len() as f64;
        let mean = self.list.iter().map(|c| f64::from(c.logit)).sum::<f64>() / count;
        let variance = self.list.iter().map(|c| (f64::from(c.logit) - mean).powi(2)).sum::<f64>() / count;
        let least = f64::from(self.max()) - f64::from(n) * variance.sqrt();
        self.list.retain(|c| f64::from(c.logit) >= least);
    }

    fn temperature(&mut self, temperature: f32) {
        if temperature == 0.0 {
            return self.keep_best(1);
        }
        // Relative to the largest one, and at most f32's maximum: infinity times 0 would be NaN.
        let (max, inverse) = (self.max(), (1.0 / temperature).min(f32::MAX));
        self.list.iter_mut().for_each(|c| c.logit = (c.logit - max) * inverse);
    }

    fn dynamic_temperature(&mut self, params: &SamplerParams) {
        let d = params.dynamic_temperature;
        if self.list.len() < 2 {
            return;
        }
        self.softmax();
        let share = self.entropy() / (self.list.len() as f64).ln();
        let (low, high) = ((params.temperature - d.range).max(0.0), params.temperature + d.range);
        self.temperature(low + (high - low) * (share.clamp(0.0, 1.0) as f32).powf(d.exponent));
    }

    /// The entropy in nats.
    fn entropy(&self) -> f64 {
        self.list.iter().filter(|c| c.p > 0.0).map(|c| -f64::from(c.p) * f64::from(c.p).ln()).sum()
    }

    /// Keeps the tokens whose surprise is nearest to the entropy. Sorted by probability they are adjacent, so the kept range grows
    /// from where the surprise crosses the entropy, towards the nearer side.
    fn typical(&mut self, share: f32, least: usize) {
        self.sort();
        self.softmax();
        let entropy = self.entropy();
        let distance = |c: &Left| (-f64::from(c.p).ln() - entropy).abs();
        let mut to = self.list.partition_point(|c| -f64::from(c.p).ln() < entropy);
        let mut from = to;
        let mut sum = 0.0;
        while to - from < self.list.len() && (sum <= f64::from(share) || to - from < least) {
            let left = from.checked_sub(1).map(|i| &self.list[i]);
            let right = self.list.get(to);
            let goes_left = match (left, right) {
                (Some(l), Some(r)) => distance(l) <= distance(r),
                (l, _) => l.is_some(),
            };
            let i = if goes_left { from - 1 } else { to };
            sum += f64::from(self.list[i].p);
            (from, to) = if goes_left { (i, to) } else { (from, i + 1) };
        }
        self.list.truncate(to);
        self.list.drain(..from);
    }

    fn top_p(&mut self, share: f32, least: usize) {
        self.softmax();
        let first = NUCLEUS_FIRST.max(least);
        if !self.sorted && self.list.len() > 4 * first {
            let (best, ..) = self.list.select_nth_unstable_by(first, better_first);
            best.sort_unstable_by(better_first);
            if let Some(len) = nucleus(best, share, least) {
                self.list.truncate(len);
                self.sorted = true;
                return;
            }
        }
        self.sort();
        let len = nucleus(&self.list, share, least).unwrap_or(self.list.len());
        self.list.truncate(len);
    }

    fn min_p(&mut self, share: f32, least: usize) {
        let bound = self.max() + share.ln();
        let enough = |c: &Left| c.logit >= bound;
        if least > 1 && self.list.iter().filter(|c| enough(c)).count() < least {
            return self.keep_best(least);
        }
        self.list.retain(enough);
    }

    fn exclude_top(&mut self, xtc: Xtc, least: usize) {
        self.softmax();
        let is_top = |c: &Left| c.p >= xtc.threshold;
        let top = self.list.iter().filter(|c| is_top(c)).count();
        // One of them must stay.
        if top < 2 || self.list.len() - (top - 1) < least {
            return;
        }
        let kept = self.list.iter().filter(|c| is_top(c)).max_by(|a, b| better_first(a, b)).map(|c| c.id);
        self.list.retain(|c| !is_top(c) || Some(c.id) == kept);
    }

    fn cut_by_surprise(&mut self, version: MirostatVersion, vocab: usize) {
        self.softmax();
        match version {
            MirostatVersion::V1 => {
                let n = ZIPF_TOKENS.min(self.list.len());
                if !self.sorted && n < self.list.len() {
                    let (best, ..) = self.list.select_nth_unstable_by(n, better_first);
                    best.sort_unstable_by(better_first);
                } else {
                    self.sort();
                }
                let s = zipf_exponent(&self.list[..n]);
                let epsilon = s - 1.0;
                let k = (epsilon * f64::from(self.mu).exp2() / (1.0 - (vocab as f64).powf(-epsilon)))
                    .powf(1.0 / s);
                // A single token has no slope.
                self.keep_best(if k.is_nan() { 1 } else { k as usize });
            }
            MirostatVersion::V2 => {
                let mu = self.mu;
                if self.list.iter().any(|c| -c.p.log2() <= mu) {
                    self.list.retain(|c| -c.p.log2() <= mu);
                } else {
                    self.keep_best(1);
                }
            }
        }
    }
}

fn better_first(a: &Left, b: &Left) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Length of the shortest prefix with this total probability; `None` if there is none.
fn nucleus(best: &[Left], share: f32, least: usize) -> Option<usize> {
    let mut sum = 0.0;
    let enough = |(i, c): (usize, &Left)| {
        sum += f64::from(c.p);
        sum >= f64::from(share) && i + 1 >= least
    };
    best.iter().enumerate().position(enough).map(|i| i + 1)
}

/// The exponent of Zipf's law, by least squares over `ln p(i) - ln p(i + 1)` (mirostat's equation 30).
fn zipf_exponent(best: &[Left]) -> f64 {
    let (mut tb, mut tt) = (0.0, 0.0);
    for (i, pair) in best.windows(2).enumerate() {
        let t = ((i + 2) as f64 / (i + 1) as f64).ln();
        tb += t * (f64::from(pair[0].p) / f64::from(pair[1].p)).ln();
        tt += t * t;
    }
    tb / tt
}
