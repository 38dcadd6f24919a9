//! Chooses the number of guesses that pays, from the times of steps by their number of tokens, the cost of drafting, and recent
//! acceptance rates. Plain arithmetic; called by `speculation` and by the plan of a step.
//!
//! The value of a step of `n` tokens that yields `e` tokens on average is `e` divided by its time. Guesses are added while the value
//! grows. The choice does not change the answer.
//!
//! Expectations can be wrong, so each answer also has a balance: the time that its guesses have saved, minus the cost of the guesses and
//! their drafts. An answer that lost more than a small share of its time gets no guesses until that share has grown.

use std::time::Duration;

/// The class of a guess, from which its probability is estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class(u8);

/// Maximum number of tokens of a step whose time is recorded separately.
const STEP_MAX: usize = 64;
/// Assumed cost of a further token, as a share of a step, until it is measured. Low, so that it is tried.
const SLOPE: f64 = 0.1;
/// Weight of the newest time.
const TIME_WEIGHT: f64 = 0.2;
/// Weight of the newest guess in the rates of an answer, and of all.
const RATE_WEIGHT: f32 = 1.0 / 12.0;
const COMMON_WEIGHT: f32 = 1.0 / 100.0;
/// Guesses must be expected to be faster by this factor.
const MARGIN: f64 = 1.01;
/// Number of steps after which the alternative is tried once: a guess if there were none, or none if there were some.
const PROBE_STEPS: u32 = 40;
/// Each failed trial doubles the number of steps before the next one, up to this.
const PROBE_STEPS_MAX: u32 = 640;
/// Maximum loss of an answer by guesses: this share of its time, and this share of a step.
const LOSS_SHARE: f64 = 0.01;
const LOSS_STEPS: f64 = 0.5;
/// Maximum balance, in steps: older savings do not count when guesses begin to fail.
const SAVED_STEPS: f64 = 3.0;
/// Acceptance rate of a good block for multi-token prediction. A block that would not pay even at this rate is not used.
const GOOD_RATE: f64 = 0.9;
/// The minimum speedup at that rate.
const GOOD_GAIN: f64 = 1.05;
/// Maximum share of a step for computing the block's keys and values, which is done with or without guesses.
const FILL_SHARE_MAX: f64 = 0.01;

impl Class {
    /// A token forced by a grammar, or by the thinking budget.
    pub const FORCED: Self = Self(0);
    /// A token of a recorded answer, for measurements.
    pub const ORACLE: Self = Self(9);
    /// The first draft after a step, before it is computed.
    const NEXT: Self = Self(10);
    /// A draft after others, before it is computed.
    const LATER: Self = Self(11);
    const ALL: usize = 12;

    /// Found in the text after `len` equal tokens.
    pub fn lookup(len: usize) -> Self {
        Self(match len {
            ..=3 => 1,
            4..=5 => 2,
            6..=9 => 3,
            _ => 4,
        })
    }

    /// Drafted by a model with this probability.
    pub fn drafted(chance: f32) -> Self {
        Self(match chance {
            c if c < 0.3 => 5,
            c if c < 0.6 => 6,
            c if c < 0.9 => 7,
            _ => 8,
        })
    }

    /// The draft at position `place` of a step, from 0 on, before it is computed.
    pub fn expected(place: usize) -> Self {
        if place == 0 { Self::NEXT } else { Self::LATER }
    }

    /// Whether it is drafted by a model.
    fn is_drafted(self) -> bool {
        (5..=9).contains(&self.0)
    }
}

/// Acceptance rates by class.
#[derive(Debug, Clone, Copy)]
pub struct Rates([f32; Class::ALL]);

impl Default for Rates {
    fn default() -> Self {
        Self([0.95, 0.4, 0.5, 0.65, 0.8, 0.25, 0.45, 0.7, 0.9, 0.8, 0.7, 0.6])
    }
}

impl Rates {
    /// The probability that a guess of this class is right.
    pub fn of(&self, class: Class) -> f64 {
        f64::from(self.0[usize::from(class.0)])
    }

    fn record(&mut self, class: Class, right: bool, weight: f32) {
        let rate = &mut self.0[usize::from(class.0)];
        *rate += weight * (f32::from(u8::from(right)) - *rate);
    }
}

/// Times of steps by their number of tokens, in seconds.
#[derive(Debug, Clone)]
struct Costs {
    times: [Option<f64>; STEP_MAX + 1],
}

/// An average that is robust against a machine that is busy for a moment.
fn mean(old: Option<f64>, time: f64) -> f64 {
    old.map_or(time, |old| old + TIME_WEIGHT * (time.min(2.0 * old) - old))
}

impl Costs {
    fn record(&mut self, tokens: usize, time: f64) {
        if let Some(known) = self.times.get_mut(tokens) {
            *known = Some(mean(*known, time));
        }
    }

    fn estimate(&self, tokens: usize) -> f64 {
        let tokens = tokens.min(STEP_MAX);
        let known = |n: usize| self.times[n].map(|t| (n as f64, t));
        let n = tokens as f64;
        let below = (0..=tokens).rev().find_map(known);
        let above = (tokens..=STEP_MAX).find_map(known);
        match (below, above) {
            (Some((a, t)), Some((b, u))) if a < b => t + (u - t) * (n - a) / (b - a),
            (Some((a, t)), _) => {
                // Extrapolated from the one before.
                let before = (0..a as usize).rev().find_map(known);
                let slope = before.map_or(SLOPE * t, |(z, s)| ((t - s) / (a - z)).max(0.0));
                t + slope * (n - a)
            }
            (None, Some((b, u))) => u / (1.0 + SLOPE * (b - n)),
            (None, None) => 1.0 + SLOPE * n,
        }
    }
}

/// Estimates of costs and rates.
#[derive(Debug, Clone)]
pub struct Controller {
    costs: Costs,
    /// Time of a pass of the drafting model, in seconds.
    draft: Option<f64>,
    /// Time of the block for multi-token prediction for a token without a draft, in seconds.
    fill: Option<f64>,
    /// Rates over all answers, with which a new answer starts.
    common: Rates,
    /// All guesses are computed.
    always: bool,
}

/// The history of one answer.
#[derive(Debug, Clone, Default)]
pub struct History {
    rates: Option<Rates>,
    /// Consecutive steps without guesses that could have had some, and with guesses.
    without: u32,
    with: u32,
    /// Consecutive failed trials of guesses that were not expected to pay.
    failed_trials: u32,
    /// Whether the next guess is a trial.
    probing: bool,
    /// This answer's share of the time of its steps, and of the last one, in seconds.
    time: f64,
    step: f64,
    /// The balance: time saved by guesses minus their cost.
    saved: f64,
}

/// The tokens of a step.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shared {
    /// Tokens of answers, without guesses.
    pub answers: usize,
    /// Guesses of all answers.
    pub guesses: usize,
}

impl Controller {
    /// Without measurements; with `always`, all guesses are computed.
    pub fn new(always: bool) -> Self {
        let costs = Costs { times: [None; STEP_MAX + 1] };
        Self { costs, draft: None, fill: None, common: Rates::default(), always }
    }

    /// Whether all guesses are computed, so that no measurements are needed.
    pub fn is_blind(&self) -> bool {
        self.always
    }

    /// Records the time of a step of `tokens` tokens, all of answers.
    pub fn record_step(&mut self, tokens: usize, time: Duration) {
        self.costs.record(tokens, time.as_secs_f64());
    }

    /// Records the time of a pass of the drafting model.
    pub fn record_draft(&mut self, time: Duration) {
        self.draft = Some(mean(self.draft, time.as_secs_f64()));
    }

    /// Records the time of the block for multi-token prediction for a token without a draft.
    pub fn record_fill(&mut self, time: Duration) {
        self.fill = Some(mean(self.fill, time.as_secs_f64()));
    }

    /// The times of steps by their number of tokens, of a pass of the drafting model, and of a token without a draft in the block.
    pub fn costs(&self, tokens: usize) -> [Duration; 3] {
        let times = [self.costs.estimate(tokens), self.draft.unwrap_or(0.0), self.fill.unwrap_or(0.0)];
        times.map(Duration::from_secs_f64)
    }

    /// Whether a good block for multi-token prediction would make answers faster here, with all its costs.
    pub fn block_can_pay(&self) -> bool {
        let (one, two) = (self.costs.estimate(1), self.costs.estimate(2));
        let (draft, fill) = (self.draft.unwrap_or(0.0), self.fill.unwrap_or(0.0));
        fill <= FILL_SHARE_MAX * one && (1.0 + GOOD_RATE) * one > GOOD_GAIN * (two + draft + fill)
    }

    /// Records whether a guess at position `place` of a step was accepted.
    pub fn record_guess(&mut self, history: &mut History, class: Class, place: usize, right: bool) {
        let rates = history.rates.get_or_insert(self.common);
        let expected = Some(Class::expected(place)).filter(|_| class.is_drafted());
        for class in [Some(class), expected].into_iter().flatten() {
            self.common.record(class, right, COMMON_WEIGHT);
            rates.record(class, right, RATE_WEIGHT);
        }
        history.failed_trials = if right { 0 } else { history.failed_trials };
    }

    /// Records a step in which an answer had `guesses` guesses, of which `right` were accepted.
    pub fn settle(&self, history: &mut History, step: Shared, guesses: usize, right: usize) {
        let answers = step.answers.max(1);
        let plain = self.costs.estimate(answers);
        let token = plain / answers as f64;
        let more = (self.costs.estimate(answers + step.guesses) - plain).max(0.0);
        let own = more * guesses as f64 / step.guesses.max(1) as f64;
        (history.step, history.time) = (token, history.time + token);
        history.saved = (history.saved + right as f64 * token - own).min(SAVED_STEPS * token);
    }

    /// Charges an answer for its share of a model's pass for `answers` answers.
    pub fn charge(&self, history: &mut History, answers: usize) {
        history.saved -= self.draft.unwrap_or(0.0) / answers.max(1) as f64;
    }

    /// Whether guesses have cost this answer too much.
    fn has_lost(&self, history: &History) -> bool {
        !self.always && history.saved < -(LOSS_SHARE * history.time + LOSS_STEPS * history.step)
    }

    /// The rate of a class in `history`.
    pub fn rate(&self, history: &History, class: Class) -> f64 {
        history.rates.unwrap_or(self.common).of(class)
    }

    /// Tokens per second of a step that has `others` tokens besides those of one answer, with as many of these guesses as pay, each of
    /// which takes `each` seconds to draft.
    fn worth(
        &self,
        history: &History,
        others: usize,
        guesses: impl Iterator<Item = Class>,
        each: f64,
    ) -> f64 {
        let (mut chance, mut brings) = (1.0, 1.0 + others as f64);
        let mut best = brings / self.costs.estimate(others + 1);
        for (i, class) in guesses.enumerate() {
            chance *= self.rate(history, class);
            brings += chance;
            let n = i + 1;
            best = best.max(brings / (self.costs.estimate(others + 1 + n) + n as f64 * each));
        }
        best
    }

    /// Whether guesses without a cost are as valuable as those that a model would draft.
    pub fn beats_drafts(&self, history: &History, others: usize, guesses: &[Class], most: usize) -> bool {
        let drafts = (0..most).map(Class::expected);
        self.worth(history, others, guesses.iter().copied(), 0.0)
            >= self.worth(history, others, drafts, self.draft.unwrap_or(0.0))
    }

    /// Whether a further pass of a drafting model pays, for one more guess after the present ones, in a step with `others` other
    /// tokens.
    pub fn pays_to_draft(&self, history: &History, others: usize, there: &[Class]) -> bool {
        if self.always {
            return true;
        }
        if self.has_lost(history) {
            return false;
        }
        let (mut chance, mut brings) = (1.0, 1.0 + others as f64);
        for c in there {
            chance *= self.rate(history, *c);
            brings += chance;
        }
        chance *= self.rate(history, Class::expected(there.len()));
        let tokens = others + 1 + there.len();
        let draft = self.draft.unwrap_or(0.0);
        let (before, after) = (self.costs.estimate(tokens), self.costs.estimate(tokens + 1) + draft);
        (brings + chance) / after > MARGIN * brings / before
    }

    /// True at times if no guess has paid for long: then one is computed as a trial, as conditions change.
    pub fn probes(&self, history: &mut History) -> bool {
        history.without += 1;
        let steps = (PROBE_STEPS << history.failed_trials.min(8)).min(PROBE_STEPS_MAX);
        if history.without >= steps && !self.has_lost(history) {
            history.without = 0;
            history.failed_trials += 1; // Reset by an accepted guess.
            history.probing = true;
        }
        history.probing
    }

    /// The number of these guesses that makes such a step most valuable, and what it is then expected to yield; see [`Controller::choose`].
    fn best(&self, history: &History, guesses: &[Class], tokens: usize, brings: f64) -> (usize, f64) {
        let value = |brings: f64, tokens: usize| brings / self.costs.estimate(tokens);
        let (mut best, mut best_value) = (0, MARGIN * value(brings, tokens));
        let (mut chance, mut sum, mut best_sum) = (1.0, brings, brings);
        for (i, class) in guesses.iter().enumerate() {
            chance *= self.rate(history, *class);
            sum += chance;
            let value = value(sum, tokens + i + 1);
            if value > best_value {
                (best, best_value, best_sum) = (i + 1, value, sum);
            }
        }
        (best, best_sum)
    }

    /// Whether any of these guesses would be computed in a step of `answers` answers, which then must not begin without them. Counts
    /// the step as one without guesses: at times one is a trial.
    pub fn wants_guess(&self, history: &mut History, guesses: &[Class], answers: usize) -> bool {
        if self.always || guesses.is_empty() {
            return !guesses.is_empty();
        }
        !self.has_lost(history)
            && (self.best(history, guesses, answers, answers as f64).0 > 0 || self.probes(history))
    }

    /// The number of these guesses to compute in a step that already has `tokens` tokens and is expected to yield `brings`. Adds the
    /// chosen ones to both.
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
        let most = if self.has_lost(history) { 0 } else { most };
        let (mut best, mut best_sum) =
            self.best(history, &guesses[..guesses.len().min(most)], *tokens, *brings);
        if best > 0 {
            (history.with, history.without) = (history.with + 1, 0);
            history.probing = false;
            if history.with.is_multiple_of(PROBE_STEPS) {
                return 0;
            }
        } else if let Some(first) = guesses.first().filter(|_| most > 0) {
            if history.probing || self.probes(history) {
                history.probing = false;
                (best, best_sum) = (1, *brings + self.rate(history, *first));
            } else if first.is_drafted() {
                // Its draft is wasted.
                history.rates.get_or_insert(self.common).record(Class::NEXT, false, RATE_WEIGHT);
            }
        }
        *tokens += best;
        *brings = best_sum;
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The costs of a drafter: of a pass, and of a token without a draft.
    #[derive(Clone, Copy, Default)]
    struct Drafter {
        pass: f64,
        fill: f64,
    }

    /// Simulates an answer of `steps` steps whose guesses are right with this probability, with steps of `n` tokens taking `time(n)`. Returns
    /// the tokens per unit of time with guesses, and without.
    fn run(chance: f64, most: usize, steps: usize, time: impl Fn(usize) -> f64, by: Drafter) -> (f64, f64) {
        let mut c = Controller::new(false);
        for n in [1, 2, 3, 5, 9] {
            c.record_step(n, Duration::from_secs_f64(time(n)));
        }
        let seconds = Duration::from_secs_f64;
        c.record_draft(seconds(by.pass));
        c.record_fill(seconds(by.fill));
        let by = if c.block_can_pay() { by } else { Drafter { fill: 0.0, ..by } };
        let drafts = by.fill > 0.0 || by.pass == 0.0;
        let mut history = History::default();
        let class = Class::drafted(0.95);
        let (mut taken, mut spent, mut seed) = (0.0, 0.0, 7u64);
        for _ in 0..steps {
            let mut classes = Vec::new();
            spent += by.fill;
            while drafts && classes.len() < most {
                let pays = by.pass == 0.0 || c.pays_to_draft(&history, 0, &classes);
                if !(pays || classes.is_empty() && c.probes(&mut history)) {
                    break;
                }
                spent += by.pass;
                c.charge(&mut history, 1);
                classes.push(class);
            }
            let (mut tokens, mut brings) = (1, 1.0);
            let k = c.choose(&mut history, &classes, most, &mut tokens, &mut brings);
            c.record_step(1 + k, seconds(time(1 + k)));
            (taken, spent) = (taken + 1.0, spent + time(1 + k));
            let mut rights = 0;
            for place in 0..k {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let right = (seed >> 40) as f64 / (1u64 << 24) as f64 <= chance;
                c.record_guess(&mut history, class, place, right);
                rights += usize::from(right);
                if !right {
                    break;
                }
            }
            taken += rights as f64;
            c.settle(&mut history, Shared { answers: 1, guesses: k }, k, rights);
        }
        (taken / spent, 1.0 / time(1))
    }

    const FREE: Drafter = Drafter { pass: 0.0, fill: 0.0 };

    #[test]
    fn a_step_without_guesses_may_go_ahead_where_none_pays() {
        let guesses = [Class::lookup(3)];
        let wants = |c: &Controller, h: &mut History| c.wants_guess(h, &guesses, 1);
        let costs = |two: f64| {
            let mut c = Controller::new(false);
            c.record_step(1, Duration::from_secs(1));
            c.record_step(2, Duration::from_secs_f64(two));
            c
        };
        assert!(wants(&costs(1.01), &mut History::default()));
        assert!(!costs(1.01).wants_guess(&mut History::default(), &[], 1), "there is none");
        // Where none pays, one is tried at times.
        let (dear, mut history) = (costs(1.9), History::default());
        let wanted = (1..=PROBE_STEPS).map(|_| wants(&dear, &mut history)).collect::<Vec<_>>();
        assert_eq!(wanted.iter().position(|w| *w), Some(PROBE_STEPS as usize - 1));
        assert_eq!(dear.choose(&mut history, &guesses, 1, &mut 1, &mut 1.0), 1, "the next step has it");
        assert!(!wants(&dear, &mut history));
        assert!(wants(&Controller::new(true), &mut History::default()), "all are computed");
    }

    #[test]
    fn worthwhile_guesses_are_made() {
        let (with, without) = run(0.8, 1, 4000, |n| 1.0 + 0.3 * (n - 1) as f64, FREE);
        assert!(with > 1.34 * without, "{with} {without}");
        let (with, without) = run(0.9, 8, 4000, |n| 1.0 + 0.02 * (n - 1) as f64, FREE);
        assert!(with > 4.0 * without, "{with} {without}");
        // The 40-layer model in bytes: a further token 570 of 1978 MB, a draft 80, a token's keys and values 6.
        let block = Drafter { pass: 0.04, fill: 0.003 };
        let (with, without) = run(0.8, 1, 4000, |n| 1.0 + 0.29 * (n - 1) as f64, block);
        assert!(with > 1.3 * without, "{with} {without}");
    }

    #[test]
    fn guesses_without_a_gain_cost_almost_nothing() {
        // Each token costs as much as the first: nothing pays.
        for (chance, slope) in [(0.8, 1.0), (0.0, 0.3), (0.2, 0.4), (0.95, 1.2), (0.3, 0.05), (0.0, 0.02)] {
            for most in [1, 4, 8] {
                for (pass, fill) in [(0.0, 0.0), (0.04, 0.003), (0.3, 0.009), (0.3, 0.1), (1.0, 0.005)] {
                    for steps in [60, 200, 4000] {
                        let by = Drafter { pass, fill };
                        let (with, without) = run(chance, most, steps, |n| 1.0 + slope * (n - 1) as f64, by);
                        let ratio = with / without;
                        assert!(ratio > 0.97, "{chance} {slope} {most} {pass} {fill} {steps}: {ratio}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_block_without_a_gain_is_detected_by_its_costs() {
        let block = |two: f64, draft: f64, fill: f64| {
            let mut c = Controller::new(false);
            c.record_step(1, Duration::from_secs_f64(1.0));
            c.record_step(2, Duration::from_secs_f64(two));
            c.record_draft(Duration::from_secs_f64(draft));
            c.record_fill(Duration::from_secs_f64(fill));
            c.block_can_pay()
        };
        assert!(block(1.3, 0.05, 0.003));
        assert!(!block(1.3, 0.05, 0.03), "its keys and values take too long");
        assert!(!block(1.3, 0.6, 0.003), "its drafts do");
        assert!(!block(1.9, 0.05, 0.003), "the second token does");
    }

    #[test]
    fn free_guesses_are_compared_with_drafts() {
        let mut c = Controller::new(false);
        for (n, time) in [(1, 1.0), (2, 1.3), (3, 1.6)] {
            c.record_step(n, Duration::from_secs_f64(time));
        }
        c.record_draft(Duration::from_secs_f64(0.05));
        let history = History::default();
        assert!(!c.beats_drafts(&history, 0, &[Class::lookup(3)], 8));
        assert!(c.beats_drafts(&history, 0, &[Class::lookup(12); 8], 8));
    }

    #[test]
    fn times_are_interpolated_and_extrapolated() {
        let mut costs = Costs { times: [None; STEP_MAX + 1] };
        assert!(costs.estimate(2) > costs.estimate(1));
        costs.record(1, 1.0);
        assert!((costs.estimate(3) - 1.2).abs() < 1e-9);
        costs.record(5, 3.0);
        assert!((costs.estimate(2) - 1.5).abs() < 1e-9 && (costs.estimate(7) - 4.0).abs() < 1e-9);
    }

    #[test]
    fn answers_share_a_step() {
        let mut c = Controller::new(false);
        // Up to 4 tokens cost the same, more are expensive.
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
