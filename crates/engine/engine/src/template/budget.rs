//! What renderings may cost: steps, bytes of created texts and lists, work of scanning values, and time. Each rendering of a request has a
//! budget of its own; all probes of a model's load share one.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use minijinja::value::Object;

/// Maximum number of steps: long conversations take thousands, an endless loop is stopped.
pub(super) const FUEL: u64 = 10_000_000;
/// Maximum size of all texts and lists that are created. A prompt of 4 MiB makes a tenth; a text that grows holds three times its size.
pub(super) const MADE_BYTES_MAX: u64 = 1 << 28;
/// Maximum work of scanning values, in blocks of 16 bytes or half an item.
const WORK_MAX: u64 = 1 << 24;
/// Maximum time of a rendering.
const TIME_MAX: Duration = Duration::from_secs(20);
/// Maximum time of all probes of a model's load. Those of llama.cpp's templates take at most 0.3 s, without optimisation.
const PROBES_TIME_MAX: Duration = Duration::from_secs(5);

/// The cost of renderings so far, and when they must end. One thread renders at a time.
#[derive(Debug)]
pub(super) struct Budget {
    steps: AtomicU64,
    made: AtomicU64,
    work: AtomicU64,
    began: Instant,
    /// Nanoseconds between renderings, which do not count.
    pauses: AtomicU64,
    time_max: Duration,
    now_s: i64,
}

/// The time in seconds since 1970.
pub(super) fn now_s() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX))
}

impl Object for Budget {}

/// Adds to a counter, and returns the sum.
fn add(counter: &AtomicU64, n: u64) -> u64 {
    let sum = counter.load(Ordering::Relaxed).saturating_add(n);
    counter.store(sum, Ordering::Relaxed);
    sum
}

impl Budget {
    fn new(time_max: Duration) -> Arc<Self> {
        let [steps, made, work, pauses] = [const { AtomicU64::new(0) }; 4];
        Arc::new(Self { steps, made, work, began: Instant::now(), pauses, time_max, now_s: now_s() })
    }

    /// For one rendering.
    pub fn of_one() -> Arc<Self> {
        Self::new(TIME_MAX)
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Steps that are left.
    pub fn steps_left(&self) -> u64 {
        FUEL.saturating_sub(self.steps())
    }

    /// Sets the number of steps so far.
    pub fn set_steps(&self, steps: u64) {
        self.steps.store(steps, Ordering::Relaxed);
    }

    /// Charges for created bytes; false if they exceed the limit.
    pub fn make(&self, bytes: u64) -> bool {
        add(&self.made, bytes) <= MADE_BYTES_MAX
    }

    /// Charges for work; false if it exceeds the limit.
    pub fn work(&self, n: u64) -> bool {
        add(&self.work, n) <= WORK_MAX
    }

    /// The time that templates see.
    pub fn now_s(&self) -> i64 {
        self.now_s
    }

    /// The time of renderings so far.
    fn elapsed(&self) -> Duration {
        self.began.elapsed().saturating_sub(Duration::from_nanos(self.pauses.load(Ordering::Relaxed)))
    }

    /// The maximum time, if it has passed.
    pub fn time_passed(&self) -> Option<Duration> {
        (self.elapsed() > self.time_max).then_some(self.time_max)
    }

    fn is_spent(&self) -> bool {
        self.steps_left() == 0 || !self.make(0) || !self.work(0) || self.time_passed().is_some()
    }
}

/// The budget of the probes of one template when a model is loaded: as many steps as one rendering may take, and 5 s of rendering. A
/// template that is slow on purpose delays the model no longer than that, and a second or two of the last rendering. All see the same
/// time, since their results are compared.
#[derive(Debug)]
pub struct ProbeBudget {
    shared: Arc<Budget>,
    /// The time of renderings when the last one ended.
    used: Mutex<Duration>,
    missed: Mutex<BTreeSet<&'static str>>,
}

impl Default for ProbeBudget {
    fn default() -> Self {
        Self { shared: Budget::new(PROBES_TIME_MAX), used: Mutex::default(), missed: Mutex::default() }
    }
}

impl ProbeBudget {
    /// What was not probed because the budget was spent, by the names that [`ChatTemplate::probe`](super::ChatTemplate::probe) was given.
    pub fn missed(&self) -> Vec<&'static str> {
        self.missed.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    pub(super) fn shared(&self) -> &Arc<Budget> {
        &self.shared
    }

    /// No probe is rendered any more.
    pub(super) fn is_spent(&self) -> bool {
        self.shared.is_spent()
    }

    /// Leaves out the time since the last rendering.
    fn resume(&self) {
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let pause = self.shared.elapsed().saturating_sub(used);
        add(&self.shared.pauses, u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The result of `render`, a probe of `what`; `None` without a call if the budget is spent.
    pub(super) fn probe<T>(&self, what: &'static str, render: impl FnOnce() -> Option<T>) -> Option<T> {
        self.resume();
        let out = if self.shared.is_spent() { None } else { render() };
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = self.shared.elapsed();
        if out.is_none() && self.shared.is_spent() {
            self.missed.lock().unwrap_or_else(PoisonError::into_inner).insert(what);
        }
        out
    }
}
