//! How many guesses pay: what steps of so many tokens cost, what drafting costs, and which guesses have been right lately. Plain
//! arithmetic; called by `speculation` and by the plan of a step.
//!
//! A step of `n` tokens that brings `e` tokens on average is worth `e` divided by its time. A guess is added while that grows. The
//! answer is the same whatever is chosen here.
//!
//! Expectations can be wrong, so each answer has an account as well: what its guesses have saved, less what they and their drafts have
//! cost. An answer that lost more than a small share of its time gets no guesses until that share has grown.

use std::time::Duration;

/// What kind of guess it is, as far as that says how likely it is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class(u8);

/// Most tokens of a step whose time is remembered by itself.
const STEP_MAX: usize = 64;
/// What a further token adds to a step, as a share of it, until it is known. Low, so that it gets tried.
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
/// Each guess that is tried in vain doubles the steps before the next one, up to this.
const PROBE_STEPS_MAX: u32 = 640;
/// What an answer may lose by guesses: this share of its time, and this share of a step.
const LOSS_SHARE: f64 = 0.01;
const LOSS_STEPS: f64 = 0.5;
/// Steps' worth of savings that still count when guesses begin to fail.
const SAVED_STEPS: f64 = 3.0;
/// A good block for multi-token prediction is right this often. One that would not pay even then is not used.
const GOOD_RATE: f64 = 0.9;
/// What it must bring then at least.
const GOOD_GAIN: f64 = 1.05;
/// Most of a step that a block's keys and values may take, which are written whether it guesses or not.
const FILL_SHARE_MAX: f64 = 0.01;

impl Class {
    /// A token that has to come by a grammar, or by the budget for thinking.
    pub const FORCED: Self = Self(0);
    /// Of a known answer, for measurements.
    pub const ORACLE: Self = Self(9);
    /// The first draft after a step, before it is made.
    const NEXT: Self = Self(10);
    /// A draft that follows others, before it is made.
    const LATER: Self = Self(11);
    const ALL: usize = 12;

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

    /// The draft for `place` of a step, from 0 on, before it is made.
    pub fn expected(place: usize) -> Self {
        if place == 0 { Self::NEXT } else { Self::LATER }
    }

    /// A model drafted it, or would have.
    fn is_drafted(self) -> bool {
        (5..=9).contains(&self.0)
    }
}

/// Share of guesses that were right, by class.
#[derive(Debug, Clone, Copy)]
pub struct Rates([f32; Class::ALL]);

impl Default for Rates {
    fn default() -> Self {
        Self([0.95, 0.4, 0.5, 0.65, 0.8, 0.25, 0.45, 0.7, 0.9, 0.8, 0.7, 0.6])
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

/// An average that a machine that was busy for a moment moves little.
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
                // as it went from the one before
                let before = (0..a as usize).rev().find_map(known);
                let slope = before.map_or(SLOPE * t, |(z, s)| ((t - s) / (a - z)).max(0.0));
                t + slope * (n - a)
            }
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
    draft: Option<f64>,
    /// What a token costs the block for multi-token prediction where it drafts nothing, in seconds.
    fill: Option<f64>,
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
    /// Guesses in a row that were tried, did not pay, and were wrong.
    in_vain: u32,
    /// The next guess is computed whether it pays or not.
    probing: bool,
    /// Time of its steps as far as it is this answer's, and of the last one, in seconds.
    time: f64,
    step: f64,
    /// What guesses saved, less what they cost.
    saved: f64,
}

/// A step, as far as it is guesses.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shared {
    /// Tokens of answers, guesses left out.
    pub answers: usize,
    /// Guesses of all answers.
    pub guesses: usize,
}

impl Controller {
    /// One that knows nothing yet; with `always` all guesses are made.
    pub fn new(always: bool) -> Self {
        let costs = Costs { times: [None; STEP_MAX + 1] };
        Self { costs, draft: None, fill: None, common: Rates::default(), always }
    }

    /// All guesses are made, so nothing need be known.
    pub fn is_blind(&self) -> bool {
        self.always
    }

    /// A step of so many tokens, all of answers, took this long.
    pub fn record_step(&mut self, tokens: usize, time: Duration) {
        self.costs.record(tokens, time.as_secs_f64());
    }

    /// A pass of the drafting model took this long.
    pub fn record_draft(&mut self, time: Duration) {
        self.draft = Some(mean(self.draft, time.as_secs_f64()));
    }

    /// The block for multi-token prediction took this long for a token without drafting.
    pub fn record_fill(&mut self, time: Duration) {
        self.fill = Some(mean(self.fill, time.as_secs_f64()));
    }

    /// What a step of so many tokens takes, a pass of the drafting model, and a token that the block only takes note of.
    pub fn costs(&self, tokens: usize) -> [Duration; 3] {
        let times = [self.costs.estimate(tokens), self.draft.unwrap_or(0.0), self.fill.unwrap_or(0.0)];
        times.map(Duration::from_secs_f64)
    }

    /// Whether a good block for multi-token prediction would make answers faster here, with all that it costs.
    pub fn block_can_pay(&self) -> bool {
        let (one, two) = (self.costs.estimate(1), self.costs.estimate(2));
        let (draft, fill) = (self.draft.unwrap_or(0.0), self.fill.unwrap_or(0.0));
        fill <= FILL_SHARE_MAX * one && (1.0 + GOOD_RATE) * one > GOOD_GAIN * (two + draft + fill)
    }

    /// A guess for `place` of a step was right, or not.
    pub fn record_guess(&mut self, history: &mut History, class: Class, place: usize, right: bool) {
        let rates = history.rates.get_or_insert(self.common);
        let expected = Some(Class::expected(place)).filter(|_| class.is_drafted());
        for class in [Some(class), expected].into_iter().flatten() {
            self.common.record(class, right, COMMON_WEIGHT);
            rates.record(class, right, RATE_WEIGHT);
        }
        history.in_vain = if right { 0 } else { history.in_vain };
    }

    /// A step is over, in which an answer had `guesses` guesses, of which `right` were right.
    pub fn settle(&self, history: &mut History, step: Shared, guesses: usize, right: usize) {
        let answers = step.answers.max(1);
        let plain = self.costs.estimate(answers);
        let token = plain / answers as f64;
        let more = (self.costs.estimate(answers + step.guesses) - plain).max(0.0);
        let own = more * guesses as f64 / step.guesses.max(1) as f64;
        (history.step, history.time) = (token, history.time + token);
        history.saved = (history.saved + right as f64 * token - own).min(SAVED_STEPS * token);
    }

    /// A model made a pass for `answers` answers, of which this is one.
    pub fn charge(&self, history: &mut History, answers: usize) {
        history.saved -= self.draft.unwrap_or(0.0) / answers.max(1) as f64;
    }

    /// True where guesses have cost this answer too much.
    fn has_lost(&self, history: &History) -> bool {
        !self.always && history.saved < -(LOSS_SHARE * history.time + LOSS_STEPS * history.step)
    }

    /// What `history` says of a class.
    pub fn rate(&self, history: &History, class: Class) -> f64 {
        history.rates.unwrap_or(self.common).of(class)
    }

    /// Tokens a second of a step that has `others` tokens besides those of one answer, with as many of these guesses as pay, each of
    /// which takes `each` seconds to make.
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

    /// True where guesses that cost nothing are worth as much as those that a model would draft.
    pub fn beats_drafts(&self, history: &History, others: usize, guesses: &[Class], most: usize) -> bool {
        let drafts = (0..most).map(Class::expected);
        self.worth(history, others, guesses.iter().copied(), 0.0)
            >= self.worth(history, others, drafts, self.draft.unwrap_or(0.0))
    }

    /// Whether a further pass of a drafting model pays, for one more guess after those that are there, in a step that has `others`
    /// tokens besides.
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

    /// True once in a while where no guess paid for long: conditions change. Then one is computed whether it pays or not.
    pub fn probes(&self, history: &mut History) -> bool {
        history.without += 1;
        let steps = (PROBE_STEPS << history.in_vain.min(8)).min(PROBE_STEPS_MAX);
        if history.without >= steps && !self.has_lost(history) {
            history.without = 0;
            history.in_vain += 1; // until it is right
            history.probing = true;
        }
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
        let most = if self.has_lost(history) { 0 } else { most };
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
            history.probing = false;
            if history.with.is_multiple_of(PROBE_STEPS) {
                return 0;
            }
        } else if let Some(first) = guesses.first().filter(|_| most > 0) {
            if history.probing || self.probes(history) {
                history.probing = false;
                (best, best_sum) = (1, *brings + self.rate(history, *first));
            } else if first.is_drafted() {
                // it was drafted in vain
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

    /// What a drafter costs: a pass of it, and a token that it takes note of.
    #[derive(Clone, Copy, Default)]
    struct Drafter {
        pass: f64,
        fill: f64,
    }

    /// An answer of `steps` steps whose guesses are right with this chance, where a step of `n` tokens takes `time(n)`: tokens a unit
    /// of time, and without guesses.
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
    fn guesses_that_pay_are_made() {
        let (with, without) = run(0.8, 1, 4000, |n| 1.0 + 0.3 * (n - 1) as f64, FREE);
        assert!(with > 1.34 * without, "{with} {without}");
        let (with, without) = run(0.9, 8, 4000, |n| 1.0 + 0.02 * (n - 1) as f64, FREE);
        assert!(with > 4.0 * without, "{with} {without}");
        // the 40-layer model's bytes: a further token 570 of 1978 MB, a draft 80, a token's keys and values 6
        let block = Drafter { pass: 0.04, fill: 0.003 };
        let (with, without) = run(0.8, 1, 4000, |n| 1.0 + 0.29 * (n - 1) as f64, block);
        assert!(with > 1.3 * without, "{with} {without}");
    }

    #[test]
    fn guesses_that_do_not_pay_cost_next_to_nothing() {
        // each token as dear as the first: nothing pays
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
    fn a_block_that_cannot_pay_is_known_by_its_costs() {
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
    fn what_is_free_is_weighed_against_drafts() {
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
    fn times_between_and_beyond_those_that_are_known_follow_them() {
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
