//! How many guesses pay: what steps of so many tokens cost, and which guesses have been right lately. Plain arithmetic; called by
//! `speculation` and by the plan of a step.
//!
//! A step of `n` tokens that brings `e` tokens on average is worth `e` divided by its time. A guess is added while that grows. The
//! answer is the same whatever is chosen here.

use std::time::Duration;

/// What kind of guess it is, as far as that says how likely it is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class(u8);

/// Most tokens of a step whose time is remembered by itself.
const STEP_MAX: usize = 64;
/// What a further token adds to a step, in shares of it, until it is known. Low, so that it gets tried.
const SLOPE: f64 = 0.1;
/// Weight of the newest time.
const TIME_WEIGHT: f64 = 0.2;
/// Weight of the newest guess in the rates of an answer, and of all.
const RATE_WEIGHT: f32 = 1.0 / 12.0;
const COMMON_WEIGHT: f32 = 1.0 / 100.0;
/// A guess must promise this much more than none.
const MARGIN: f64 = 1.01;
/// Steps after which the other way is tried once: a guess where there were none, or none where there were some.
const PROBE_STEPS: u32 = 40;

impl Class {
    /// A token that has to come by a grammar, or by the budget for thinking.
    pub const FORCED: Self = Self(0);
    /// Of a known answer, for measurements.
    pub const ORACLE: Self = Self(9);
    const ALL: usize = 10;

    /// Found in the text after `len` tokens that are the same.
    pub fn lookup(len: usize) -> Self {
        Self(match len {
            ..=3 => 1,
            4..=5 => 2,
            6..=9 => 3,
            _ => 4,
        })
    }

    /// Drafted by a model that gave it this probability.
    pub fn drafted(chance: f32) -> Self {
        Self(match chance {
            c if c < 0.3 => 5,
            c if c < 0.6 => 6,
            c if c < 0.9 => 7,
            _ => 8,
        })
    }
}

/// Share of guesses that were right, by class.
#[derive(Debug, Clone, Copy)]
pub struct Rates([f32; Class::ALL]);

impl Default for Rates {
    fn default() -> Self {
        Self([0.95, 0.4, 0.5, 0.65, 0.8, 0.25, 0.45, 0.7, 0.9, 0.8])
    }
}

impl Rates {
    /// How likely a guess of this class is right.
    pub fn of(&self, class: Class) -> f64 {
        f64::from(self.0[usize::from(class.0)])
    }

    fn record(&mut self, class: Class, right: bool, weight: f32) {
        let rate = &mut self.0[usize::from(class.0)];
        *rate += weight * (f32::from(u8::from(right)) - *rate);
    }
}

/// Times of steps by their tokens, in seconds.
#[derive(Debug, Clone)]
struct Costs {
    times: [Option<f64>; STEP_MAX + 1],
}

impl Costs {
    fn record(&mut self, tokens: usize, time: f64) {
        let Some(known) = self.times.get_mut(tokens) else { return };
        *known = Some(match *known {
            // a machine that was busy for a moment says little
            Some(old) => old + TIME_WEIGHT * (time.min(2.0 * old) - old),
            None => time,
        });
    }

    fn estimate(&self, tokens: usize) -> f64 {
        let tokens = tokens.min(STEP_MAX);
        let known = |n: usize| self.times[n].map(|t| (n as f64, t));
        let n = tokens as f64;
        let below = (0..=tokens).rev().find_map(known);
        let above = (tokens..=STEP_MAX).find_map(known);
        match (below, above) {
            (Some((a, t)), Some((b, u))) if a < b => t + (u - t) * (n - a) / (b - a),
            (Some((a, t)), _) => t * (1.0 + SLOPE * (n - a)),
            (None, Some((b, u))) => u / (1.0 + SLOPE * (b - n)),
            (None, None) => 1.0 + SLOPE * n,
        }
    }
}

/// What is known of costs and rates.
#[derive(Debug, Clone)]
pub struct Controller {
    costs: Costs,
    /// Time of a pass of the drafting model, in seconds.
    draft: f64,
    /// Of all answers: what a new one starts with.
    common: Rates,
    /// Nothing is weighed: all guesses are made.
    always: bool,
}

/// What one answer has shown.
#[derive(Debug, Clone, Default)]
pub struct History {
    rates: Option<Rates>,
    /// Steps in a row without guesses that could have had some, and with guesses.
    without: u32,
    with: u32,
    /// The next guess is computed whether it pays or not.
    probing: bool,
}

impl Controller {
    /// One that knows nothing yet; with `always` all guesses are made.
    pub fn new(always: bool) -> Self {
        let costs = Costs { times: [None; STEP_MAX + 1] };
        Self { costs, draft: 0.0, common: Rates::default(), always }
    }

    /// A step of so many tokens, all of answers, took this long.
    pub fn record_step(&mut self, tokens: usize, time: Duration) {
        self.costs.record(tokens, time.as_secs_f64());
    }

    /// A pass of the drafting model took this long.
    pub fn record_draft(&mut self, time: Duration) {
        let time = time.as_secs_f64();
        self.draft = if self.draft == 0.0 { time } else { self.draft + TIME_WEIGHT * (time - self.draft) };
    }

    /// A guess was right, or not.
    pub fn record_guess(&mut self, history: &mut History, class: Class, right: bool) {
        self.common.record(class, right, COMMON_WEIGHT);
        history.rates.get_or_insert(self.common).record(class, right, RATE_WEIGHT);
    }

    /// What `history` says of a class.
    pub fn rate(&self, history: &History, class: Class) -> f64 {
        history.rates.unwrap_or(self.common).of(class)
    }

    /// Whether a further pass of a drafting model pays, for one more guess after those that are there, in a step that has `others`
    /// tokens besides. The new one is expected to be right as often as `class`.
    pub fn pays_to_draft(&self, history: &History, others: usize, there: &[Class], class: Class) -> bool {
        if self.always {
            return true;
        }
        let (mut chance, mut brings) = (1.0, 1.0 + others as f64);
        for c in there {
            chance *= self.rate(history, *c);
            brings += chance;
        }
        chance *= self.rate(history, class);
        let tokens = others + 1 + there.len();
        let (before, after) = (self.costs.estimate(tokens), self.costs.estimate(tokens + 1) + self.draft);
        (brings + chance) / after > MARGIN * brings / before
    }

    /// True once in a while where no guess paid for long: conditions change. Then one is computed whether it pays or not.
    pub fn probes(history: &mut History) -> bool {
        history.without += 1;
        history.probing |= history.without.is_multiple_of(PROBE_STEPS);
        history.probing
    }

    /// How many of these guesses to compute in a step that has `tokens` tokens already, which bring `brings`. Adds what is chosen to
    /// both.
    pub fn choose(
        &self,
        history: &mut History,
        guesses: &[Class],
        most: usize,
        tokens: &mut usize,
        brings: &mut f64,
    ) -> usize {
        if self.always {
            return guesses.len().min(most);
        }
        let value = |brings: f64, tokens: usize| brings / self.costs.estimate(tokens);
        let (mut best, mut best_value) = (0, MARGIN * value(*brings, *tokens));
        let (mut chance, mut sum, mut best_sum) = (1.0, *brings, *brings);
        for (i, class) in guesses.iter().take(most).enumerate() {
            chance *= self.rate(history, *class);
            sum += chance;
            let value = value(sum, *tokens + i + 1);
            if value > best_value {
                (best, best_value, best_sum) = (i + 1, value, sum);
            }
        }
        if best > 0 {
            (history.with, history.without) = (history.with + 1, 0);
            if history.with.is_multiple_of(PROBE_STEPS) {
                return 0;
            }
        } else if !guesses.is_empty() && most > 0 && (history.probing || Self::probes(history)) {
            history.probing = false;
            (best, best_sum) = (1, *brings + self.rate(history, guesses[0]));
        }
        *tokens += best;
        *brings = best_sum;
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of one answer whose guesses are right with this chance, where a step of `n` tokens takes `time(n)`: tokens a unit of
    /// time, and without guesses.
    fn run(chance: f64, most: usize, time: impl Fn(usize) -> f64) -> (f64, f64) {
        let (mut c, mut history) = (Controller::new(false), History::default());
        let class = Class::drafted(0.95);
        let (mut taken, mut spent, mut seed) = (0.0, 0.0, 7u64);
        for _ in 0..4000 {
            let (mut tokens, mut brings) = (1, 1.0);
            let k = c.choose(&mut history, &vec![class; most], most, &mut tokens, &mut brings);
            c.record_step(1 + k, Duration::from_secs_f64(time(1 + k)));
            (taken, spent) = (taken + 1.0, spent + time(1 + k));
            for _ in 0..k {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let right = (seed >> 40) as f64 / (1u64 << 24) as f64 <= chance;
                c.record_guess(&mut history, class, right);
                taken += f64::from(u8::from(right));
                if !right {
                    break;
                }
            }
        }
        (taken / spent, 1.0 / time(1))
    }

    #[test]
    fn guesses_that_pay_are_made() {
        let (with, without) = run(0.8, 1, |n| 1.0 + 0.3 * (n - 1) as f64);
        assert!(with > 1.34 * without, "{with} {without}");
        let (with, without) = run(0.9, 8, |n| 1.0 + 0.02 * (n - 1) as f64);
        assert!(with > 4.0 * without, "{with} {without}");
    }

    #[test]
    fn guesses_that_do_not_pay_cost_next_to_nothing() {
        // each token as dear as the first: nothing pays
        for (chance, slope) in [(0.8, 1.0), (0.0, 0.3), (0.2, 0.4), (0.95, 1.2)] {
            for most in [1, 4, 8] {
                let (with, without) = run(chance, most, |n| 1.0 + slope * (n - 1) as f64);
                assert!(with > 0.97 * without, "{chance} {slope} {most}: {with} {without}");
            }
        }
    }

    #[test]
    fn answers_share_a_step() {
        let mut c = Controller::new(false);
        // up to 4 tokens cost the same, more are dear
        for n in 1..=16 {
            c.record_step(n, Duration::from_secs_f64(if n <= 4 { 1.0 } else { n as f64 }));
        }
        let (mut tokens, mut brings) = (2, 2.0);
        let k: Vec<usize> = (0..2)
            .map(|_| c.choose(&mut History::default(), &[Class::FORCED; 8], 8, &mut tokens, &mut brings))
            .collect();
        assert_eq!(k, [2, 0]);
        assert!(tokens == 4 && brings > 3.5);
    }
}
