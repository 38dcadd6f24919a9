//! Chooses tokens from logits: penalties, temperature, truncation, a random draw. One [`Sampler`] per sequence, called by the engine.
//!
//! Order of steps: `logit_bias`, repetition penalty, presence and frequency penalties, DRY, `top_n_sigma`, temperature,
//! `top_k`, `typical_p`, `top_p`, `min_p`, XTC; a request may name another ([`SamplerParams::order`]). It is that of Hugging
//! Face and (but for `min_p`, which only changes what `top_p` is a share of) of vLLM, where models' recommended settings are
//! tried: temperature stands before the truncation, so a high one widens what `top_p` keeps. llama.cpp has temperature last; at
//! temperature 1 both are the same. `top_p` is a share of what `top_k` left, everywhere.
//!
//! These samplers in their default order, which serve nearly all requests, run over the row of logits itself; everything else is
//! `chain`.

mod chain;
mod dry;
mod error;
mod params;
mod rng;
mod rows;
mod stages;
mod stop;
mod window;

pub use dry::dry_breakers;
pub use error::SamplerError;
pub use params::{PENALTY_LAST_N_MAX, SamplerParams, SamplingDefaults};
pub use stages::{Dry, DynamicTemperature, Mirostat, MirostatVersion, Stage, Xtc};
pub use stop::{Match, StopStrings};

use octet_compute::picks::{PICKS, Pick};

use chain::{Chain, Context};
use dry::Repetitions;
use rng::Rng;
use rows::{Bits, Candidate, Rows, SoftmaxWeight, bit_blocks, pass, top_capacity};
use window::Window;

/// A chosen token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    /// Its id.
    pub id: u32,
    /// Its log-probability, if [`SamplerParams::logprobs`]; see [`Sampler::top_logprobs`].
    pub logprob: Option<f32>,
}

/// Chooses the tokens of one sequence. Allocated by [`Sampler::new`]; steps allocate nothing.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplerParams,
    seed: u64,
    rng: Rng,
    /// One bit per row; none is set after the last.
    sampleable: Vec<Bits>,
    vocab_rows: usize,
    /// `None` without penalties.
    window: Option<Window>,
    /// `None` without DRY.
    repetitions: Option<Repetitions>,
    /// Penalties and DRY, if they come before all other samplers.
    front: Vec<Stage>,
    /// `[vocab_rows]`: logits with biases and the samplers of `front`; empty if there are none.
    adjusted: Vec<f32>,
    /// If the fast path does not apply, or the distribution after sampling is reported.
    chain: Option<Chain>,
    /// The chain chooses the tokens.
    by_chain: bool,
    /// Weights of each block of rows.
    sums: Vec<f64>,
    top: Vec<Candidate>,
    top_logprobs: Vec<(u32, f32)>,
}

/// A bitset with the ids below `n` set: the ids that may be sampled from a vocabulary of `n` tokens, without padding rows.
pub fn bitset_below(n: usize) -> Vec<u32> {
    let mut words = vec![u32::MAX; n / 32];
    if !n.is_multiple_of(32) {
        words.push((1 << (n % 32)) - 1);
    }
    words
}

/// `top_p` tries this many best tokens first, which nearly always suffice for text.
const NUCLEUS_FIRST: usize = 256;

impl Sampler {
    /// A sampler for logits of `vocab_rows` rows. Bit `i % 32` of `sampleable[i / 32]` says whether id `i` may be sampled (padding may
    /// not); missing words count as zero. `seed_if_none` is used if the settings have no seed.
    pub fn new(
        params: SamplerParams,
        vocab_rows: usize,
        sampleable: &[u32],
        seed_if_none: u64,
    ) -> Result<Self, SamplerError> {
        params.validate(vocab_rows)?;
        let (params, mut stages) = params.in_effect();
        let sampleable = bit_blocks(sampleable, vocab_rows);
        if sampleable.iter().flatten().all(|w| *w == 0) {
            return Err(SamplerError::NothingAllowed);
        }
        let window = params.penalizes().then(|| Window::new(params.penalty_last_n, vocab_rows));
        let repetitions = params.repeats().then(|| Repetitions::new(&params.dry));
        let in_front = stages.iter().take_while(|s| matches!(s, Stage::Penalties | Stage::Dry)).count();
        let front: Vec<Stage> = stages.drain(..in_front).collect();
        let adjusts = !front.is_empty() || !params.logit_bias.is_empty();
        let by_chain = !is_plain(&params, &stages);
        let chain = (by_chain || params.post_sampling).then(|| Chain::new(stages, &params, vocab_rows));
        let greedy = params.temperature == 0.0;
        let most = match params.top_k {
            0 if greedy || params.top_p == 1.0 || by_chain => 0,
            0 => vocab_rows,
            k if !by_chain || chain.as_ref().is_some_and(Chain::begins_with_top_k) => k as usize,
            _ => 0,
        };
        let logprobs = params.logprobs.unwrap_or(0);
        let seed = params.seed.unwrap_or(seed_if_none);
        Ok(Self {
            seed,
            rng: Rng::new(seed),
            vocab_rows,
            window,
            repetitions,
            front,
            chain,
            by_chain,
            adjusted: vec![0.0; if adjusts { vocab_rows } else { 0 }],
            sums: vec![0.0; sampleable.len()],
            sampleable,
            top: Vec::with_capacity(top_capacity(most.max(logprobs), vocab_rows)),
            top_logprobs: Vec::with_capacity(logprobs),
            params,
        })
    }

    /// The settings it was made with.
    pub fn params(&self) -> &SamplerParams {
        &self.params
    }

    /// The seed: the same request with it gives the same text.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Records a token of the sequence, of prompt or answer, for penalties, DRY and mirostat. Ids beyond the logits' rows (of images,
    /// for instance) count in the window, and have no logit to penalise.
    pub fn accept(&mut self, id: u32) {
        if let Some(window) = &mut self.window {
            window.push(id);
        }
        if let Some(repetitions) = &mut self.repetitions {
            repetitions.push(id);
        }
        if let (Some(chain), Some(mirostat)) = (&mut self.chain, self.params.mirostat) {
            chain.accept(id, mirostat);
        }
    }

    /// Chooses a token from `logits` `[vocab_rows]` among those that `allowed` permits, a bitset as in [`Sampler::new`]. If the caller
    /// uses it, it must call [`Sampler::accept`].
    ///
    /// Fails if a permitted logit is NaN or +inf, or no token is permitted; the sampler stays usable.
    pub fn sample(&mut self, logits: &[f32], allowed: Option<&[u32]>) -> Result<Sampled, SamplerError> {
        self.top_logprobs.clear();
        if logits.len() != self.vocab_rows {
            return Err(SamplerError::Logits { got: logits.len(), expected: self.vocab_rows });
        }
        let id = self.choose(logits, allowed)?;
        let logprob = match self.params.logprobs {
            None => None,
            Some(n) => Some(match &mut self.chain {
                Some(chain) if self.params.post_sampling => {
                    self.top_logprobs.extend(chain.best(n));
                    chain.logprob(id)
                }
                _ => self.fill_logprobs(logits, id, n)?,
            }),
        };
        Ok(Sampled { id, logprob })
    }

    /// The log-probability of `id` in a row of logits `[vocab_rows]`, and in [`Sampler::top_logprobs`] those of the most probable
    /// tokens, as [`Sampler::sample`] would report them.
    pub fn score(&mut self, logits: &[f32], id: u32) -> Result<f32, SamplerError> {
        self.top_logprobs.clear();
        if logits.len() != self.vocab_rows || id as usize >= self.vocab_rows {
            return Err(SamplerError::Logits { got: logits.len(), expected: self.vocab_rows });
        }
        self.fill_logprobs(logits, id, self.params.logprobs.unwrap_or(0))
    }

    /// The most probable tokens of the last step, best first; empty unless [`SamplerParams::logprobs`] asks.
    ///
    /// Log-probabilities are those of the model: the log-softmax of its logits, before biases, penalties, temperature,
    /// truncation and grammars, over all rows that may ever be sampled (vLLM's `raw_logprobs`). With
    /// [`SamplerParams::post_sampling`] they are those of what the samplers left.
    pub fn top_logprobs(&self) -> &[(u32, f32)] {
        &self.top_logprobs
    }

    /// Whether [`Sampler::sample_largest`] can choose as [`Sampler::sample`] does: where nothing but the largest logits counts, as they are.
    pub fn needs_few(&self) -> bool {
        let (p, few) = (&self.params, 1..=PICKS as u32);
        p.logprobs.is_none()
            && self.adjusted.is_empty()
            && self.chain.is_none()
            && (p.temperature == 0.0 || few.contains(&p.top_k))
    }

    /// What [`Sampler::sample`] chooses from a row of logits of which these are the [`PICKS`] largest that are sampleable, in any order. Only where
    /// [`Sampler::needs_few`].
    pub fn sample_largest(&mut self, largest: &[Pick]) -> Result<Sampled, SamplerError> {
        self.top_logprobs.clear();
        self.top.clear();
        self.top.extend(largest.iter().map(|p| Candidate::new(p.id, p.logit)));
        self.top.sort_unstable();
        let best = *self.top.first().ok_or(SamplerError::NothingAllowed)?;
        if !best.logit().is_finite() {
            return Err(SamplerError::NotFinite { id: best.id(), value: best.logit() });
        }
        if self.params.temperature == 0.0 {
            return Ok(Sampled { id: best.id(), logprob: None });
        }
        let random = self.rng.next();
        self.top.truncate(self.params.top_k as usize);
        let weigh = self.weigh(best.logit());
        let kept = nucleus_of_top(&self.params, weigh, &self.top);
        let id = draw(kept, weigh, random).ok_or(SamplerError::NothingAllowed)?;
        Ok(Sampled { id, logprob: None })
    }

    fn weigh(&self, max: f32) -> SoftmaxWeight {
        // At most f32's largest number: infinity times the best token's 0 would be NaN.
        let temperature_inv = (1.0 / self.params.temperature).min(f32::MAX);
        SoftmaxWeight { max, temperature_inv, floor: self.params.min_p }
    }

    fn choose(&mut self, logits: &[f32], allowed: Option<&[u32]>) -> Result<u32, SamplerError> {
        self.adjust(logits);
        let logits = if self.adjusted.is_empty() { logits } else { &self.adjusted };
        let rows = Rows { logits, sampleable: &self.sampleable, allowed };
        let (best, max) = rows.best()?;
        let is_greedy = self.params.temperature == 0.0 && !self.by_chain;
        let weigh = self.weigh(max);
        // One random number per token, whatever the samplers.
        let random = if is_greedy { 0.0 } else { self.rng.next() };
        if let Some(chain) = &mut self.chain {
            let context = Context {
                params: &self.params,
                window: self.window.as_ref(),
                repetitions: self.repetitions.as_ref(),
                chance: self.rng.second(),
                vocab: self.vocab_rows,
            };
            chain.run(rows, &mut self.top, context);
            if self.by_chain {
                return chain.draw(random).ok_or(SamplerError::NothingAllowed);
            }
        }
        if is_greedy {
            return Ok(best);
        }
        let id = if self.params.top_k == 0 && self.params.top_p == 1.0 {
            let total = rows.sum(weigh, &mut self.sums);
            rows.at_sum(weigh, &self.sums, random * total)
        } else {
            let kept = truncate(&self.params, rows, weigh, &mut self.top, &mut self.sums);
            draw(kept, weigh, random)
        };
        // The best token has weight 1, so there is one.
        id.ok_or(SamplerError::NothingAllowed)
    }

    /// Computes `adjusted`, if needed.
    fn adjust(&mut self, logits: &[f32]) {
        if let Some(repetitions) = &mut self.repetitions {
            repetitions.find();
        }
        if self.adjusted.is_empty() {
            return;
        }
        self.adjusted.copy_from_slice(logits);
        for &(id, bias) in &self.params.logit_bias {
            self.adjusted[id as usize] += bias;
        }
        for stage in &self.front {
            match (stage, &self.window, &self.repetitions) {
                (Stage::Penalties, Some(window), _) => window.penalize(&self.params, &mut self.adjusted),
                (Stage::Dry, _, Some(repetitions)) => repetitions.apply(&mut self.adjusted),
                _ => {}
            }
        }
    }

    fn fill_logprobs(&mut self, logits: &[f32], id: u32, n: usize) -> Result<f32, SamplerError> {
        let rows = Rows { logits, sampleable: &self.sampleable, allowed: None };
        let (_, max) = rows.best()?;
        let weigh = SoftmaxWeight { max, temperature_inv: 1.0, floor: 0.0 };
        let log_sum = f64::from(max) + rows.sum(weigh, &mut self.sums).ln();
        let logprob = |logit: f32| (f64::from(logit) - log_sum) as f32;
        rows.top(n, &mut self.top);
        self.top_logprobs.extend(self.top.iter().map(|c| (c.id(), logprob(c.logit()))));
        Ok(logprob(logits[id as usize]))
    }
}

/// Whether only temperature, `top_k`, `top_p` and `min_p` are on, in this order.
fn is_plain(params: &SamplerParams, stages: &[Stage]) -> bool {
    let mut plain = [Stage::Temperature, Stage::TopK, Stage::TopP, Stage::MinP].iter();
    let in_order = stages.iter().all(|s| plain.any(|p| p == s));
    in_order && params.min_keep < 2 && params.dynamic_temperature.range == 0.0 && params.mirostat.is_none()
}

/// Applies `top_k` and `top_p`; at least one token remains. `min_p` is part of the weights, which are 0 below it.
fn truncate<'a>(
    params: &SamplerParams,
    rows: Rows<'_>,
    weigh: SoftmaxWeight,
    top: &'a mut Vec<Candidate>,
    sums: &mut [f64],
) -> &'a [Candidate] {
    // top_p's total includes tokens that min_p removes later.
    let unfloored = SoftmaxWeight { floor: 0.0, ..weigh };
    let weight = |c: &Candidate| f64::from(unfloored.of(c.logit()));
    let (floor, top_p) = (f64::from(weigh.floor), f64::from(params.top_p));
    if params.top_k > 0 {
        rows.top(params.top_k as usize, top);
        return nucleus_of_top(params, weigh, top);
    }
    let share = rows.sum(unfloored, sums) * top_p;
    rows.top(NUCLEUS_FIRST, top);
    let len = nucleus(top.iter().map(weight), share, floor).unwrap_or_else(|| {
        rows.all(top);
        nucleus_of_many(top, weight, share)
    });
    &top[..len]
}

/// Applies `top_p` and `min_p` to the tokens that `top_k` kept, best first.
fn nucleus_of_top<'a>(params: &SamplerParams, weigh: SoftmaxWeight, top: &'a [Candidate]) -> &'a [Candidate] {
    let unfloored = SoftmaxWeight { floor: 0.0, ..weigh };
    let weights = || top.iter().map(|c| f64::from(unfloored.of(c.logit())));
    let share = weights().sum::<f64>() * f64::from(params.top_p);
    let len = nucleus(weights(), share, f64::from(weigh.floor)).unwrap_or(top.len());
    &top[..len]
}

/// Draws a token by weight; `random` is in 0..1.
fn draw(kept: &[Candidate], weigh: SoftmaxWeight, random: f64) -> Option<u32> {
    let weights = || kept.iter().map(|c| weigh.of(c.logit()));
    let total: f64 = weights().map(f64::from).sum();
    pass(weights(), random * total).map(|i| kept[i].id())
}

/// Moves the best of `all` that sum to `share` to the front, unordered, and returns their number. Bisects, in time linear in `all`;
/// sorting takes several times as long.
fn nucleus_of_many(all: &mut [Candidate], weight: impl Fn(&Candidate) -> f64, share: f64) -> usize {
    let (mut from, mut to, mut sum) = (0, all.len(), 0.0);
    while to - from > NUCLEUS_FIRST {
        let half = (to - from) / 2;
        all[from..to].select_nth_unstable(half);
        let better: f64 = all[from..from + half].iter().map(&weight).sum();
        if sum + better >= share {
            to = from + half;
        } else {
            sum += better;
            from += half;
        }
    }
    let rest = &mut all[from..to];
    rest.sort_unstable();
    from + nucleus(rest.iter().map(&weight), share - sum, 0.0).unwrap_or(rest.len())
}

/// Length of the shortest prefix of the descending `weights` that sums to `share`, or of those of at least `floor`, whichever is
/// shorter; `None` if neither ends within them.
fn nucleus(weights: impl Iterator<Item = f64>, share: f64, floor: f64) -> Option<usize> {
    let mut sum = 0.0;
    for (i, w) in weights.enumerate() {
        if w < floor {
            return Some(i);
        }
        sum += w;
        if sum >= share {
            return Some(i + 1);
        }
    }
    None
}
