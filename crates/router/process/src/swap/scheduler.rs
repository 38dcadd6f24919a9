//! Decides which entries start, which are evicted, and which requests are admitted: pure decisions on plain state. Driven by `pool`,
//! and by tests with their own clock. An entry is a model or a server.
//!
//! If two entries do not fit together, alternating requests could swap them each time. So an entry that others wait for keeps running
//! for a turn, which lasts as long as loading it does or a multiple of that, and serves the requests of that time as a batch; then it
//! accepts no more, finishes, and is evicted. If idle, it is evicted after a short pause, in which its client may send the next
//! request. Turns are in the order in which entries were first waited for, and the evicted entry comes last: no request is overtaken
//! twice, and no wait exceeds the turns before it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Which entries fit together.
pub trait Rules {
    /// Why none can start.
    type Error;

    /// Whether `x`, which is stopped, fits beside `running`: all other entries that are not stopped.
    fn fits(&mut self, x: usize, running: &[Running]) -> Fit<Self::Error>;

    /// Whether a start of `later` could delay that of `earlier`, which waits.
    fn overtakes(&mut self, later: usize, earlier: usize) -> bool;
}

/// An entry that is not stopped.
#[derive(Debug, Clone, Copy)]
pub struct Running {
    /// The entry.
    pub index: usize,
    /// `Starting`, `Ready` or `Stopping`.
    pub phase: Phase,
    /// No request uses it or waits for it.
    pub is_idle: bool,
    /// It accepts no requests: its turn is over.
    pub is_closed: bool,
    /// When a request was last admitted or finished.
    pub last_used: Instant,
}

/// Whether an entry fits beside those that run.
#[derive(Debug)]
pub enum Fit<E> {
    /// It may start.
    Yes,
    /// Others have to end first.
    Blocked {
        /// Entries to evict: each that is ready is stopped when its turn is over. After any change, [`Rules::fits`] is asked again.
        by: Vec<usize>,
        /// Ask again after this time, even if nothing changes here.
        again: Option<Duration>,
    },
    /// Evicting others does not help.
    Never(E),
    /// Not known yet: the caller finds out, and then has the scheduler decide again. Entries that accept no requests stay so until then.
    Unknown,
}

/// How long an entry that others wait for keeps running.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// A turn lasts this many times as long as the entry took to load.
    pub turn_loads: u32,
    /// Minimum turn, even if it loads faster.
    pub turn_min: Duration,
    /// Maximum turn, even if it loads slower.
    pub turn_max: Duration,
    /// The pause of an idle entry before it is evicted.
    pub pause: Duration,
    /// How long an entry keeps its place in the queue after all its waiting clients have left: they may try again.
    pub keep_place: Duration,
    /// Delay before the second attempt after a failure; doubled each time. Zero: an entry that is started without requests, as
    /// [`Scheduler::want`] does, is retried at once.
    pub backoff_min: Duration,
    /// Maximum of that delay.
    pub backoff_max: Duration,
}

/// The state of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Not running.
    Stopped,
    /// Started, and not ready.
    Starting,
    /// Accepts requests.
    Ready,
    /// Requested to stop.
    Stopping,
    /// Failed, and not retried yet.
    Resting,
}

/// A step to carry out.
#[derive(Debug)]
pub enum Step<W, E> {
    /// Start this entry; then call [`Scheduler::ready`] or [`Scheduler::failed`].
    Start(usize),
    /// End this entry; then call [`Scheduler::stopped`].
    Stop(usize),
    /// Admit this request; then call [`Scheduler::done`].
    Grant(usize, W),
    /// This entry will not fit: refuse these requests.
    Refuse(usize, Vec<W>, E),
}

struct Entry<W> {
    limit: usize,
    ttl: Option<Duration>,
    phase: Phase,
    waiting: VecDeque<W>,
    active: usize,
    /// Accepts no more requests: others wait for it to end.
    closed: bool,
    /// Whether that held before the present decision.
    was_closed: bool,
    /// Start it without requests, when it evicts no other.
    wanted: bool,
    /// Ends after its requests, and is not started again.
    retired: bool,
    /// Its position among those waiting to be started.
    turn: Option<u64>,
    /// Until then it keeps that without requests.
    place_until: Option<Instant>,
    /// Start of the phase.
    since: Instant,
    /// When a request was last admitted or finished.
    last_used: Instant,
    /// Number of ends: admissions before the last one count no more.
    generation: u64,
    load_time: Duration,
    failures: u32,
    rest_until: Instant,
}

impl<W> Entry<W> {
    fn new(limit: usize, ttl: Option<Duration>, now: Instant) -> Self {
        Self {
            limit: limit.max(1),
            ttl,
            phase: Phase::Stopped,
            waiting: VecDeque::new(),
            active: 0,
            closed: false,
            was_closed: false,
            wanted: false,
            retired: false,
            turn: None,
            place_until: None,
            since: now,
            last_used: now,
            generation: 0,
            load_time: Duration::ZERO,
            failures: 0,
            rest_until: now,
        }
    }

    fn runs(&self) -> bool {
        matches!(self.phase, Phase::Starting | Phase::Ready | Phase::Stopping)
    }

    /// Requests wait for it to be started, or have done so a short time ago.
    fn is_waited_for(&self) -> bool {
        !self.runs() && (!self.waiting.is_empty() || self.place_until.is_some())
    }

    fn is_idle(&self) -> bool {
        self.active == 0 && self.waiting.is_empty()
    }

    /// It runs no more, and whoever was admitted counts no more.
    fn end(&mut self, phase: Phase, now: Instant) {
        self.active = 0;
        self.generation += 1;
        self.enter(phase, now);
    }

    fn enter(&mut self, phase: Phase, now: Instant) {
        self.phase = phase;
        self.since = now;
        self.closed = false;
    }
}

/// All entries, by index. `W` is a waiting request.
pub struct Scheduler<W> {
    entries: Vec<Entry<W>>,
    patience: Patience,
    turns: u64,
}

impl<W> Scheduler<W> {
    /// None yet.
    pub fn new(patience: Patience) -> Self {
        Self { entries: Vec::new(), patience, turns: 0 }
    }

    /// Adds an entry at a free or new index, which is returned. `ttl`: how long it runs when idle.
    /// `limit`: how many requests it serves at once.
    pub fn add(&mut self, limit: usize, ttl: Option<Duration>, now: Instant) -> usize {
        let entry = Entry::new(limit, ttl, now);
        let free = self.entries.iter().position(|e| e.retired && !e.runs() && e.waiting.is_empty());
        match free {
            Some(i) => {
                let generation = self.entries[i].generation;
                self.entries[i] = Entry { generation, ..entry };
                i
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        }
    }

    /// Removes an entry: running and waiting requests are finished, then it ends.
    pub fn retire(&mut self, i: usize) {
        let entry = &mut self.entries[i];
        (entry.retired, entry.wanted, entry.place_until) = (true, false, None);
    }

    /// Starts it without requests, as soon as that evicts no other.
    pub fn want(&mut self, i: usize) {
        self.entries[i].wanted = true;
    }

    /// A request waits for it.
    pub fn ask(&mut self, i: usize, request: W) {
        self.entries[i].waiting.push_back(request);
    }

    /// Removes requests whose clients have left.
    pub fn forget(&mut self, has_left: impl Fn(&W) -> bool, now: Instant) {
        for entry in self.entries.iter_mut().filter(|e| !e.waiting.is_empty()) {
            entry.waiting.retain(|w| !has_left(w));
            if entry.waiting.is_empty() && entry.turn.is_some() && !entry.runs() && !entry.retired {
                entry.place_until = Some(now + self.patience.keep_place);
            }
        }
    }

    /// Changes how long an entry runs when idle.
    pub fn set_ttl(&mut self, i: usize, ttl: Option<Duration>) {
        self.entries[i].ttl = ttl;
    }

    /// When an entry ends if it is not used until then; `None` if it does not, or the time cannot be represented.
    pub fn ends_at(&self, i: usize) -> Option<Instant> {
        let entry = &self.entries[i];
        entry.ttl.and_then(|ttl| entry.last_used.checked_add(ttl))
    }

    /// Changes with each end of the entry; see [`Scheduler::done`].
    pub fn generation(&self, i: usize) -> u64 {
        self.entries[i].generation
    }

    /// A request has finished that was admitted in this generation.
    pub fn done(&mut self, i: usize, generation: u64, now: Instant) {
        let entry = &mut self.entries[i];
        if entry.generation == generation {
            entry.active = entry.active.saturating_sub(1);
            entry.last_used = now;
        }
    }

    /// The entry accepts requests.
    pub fn ready(&mut self, i: usize, now: Instant) {
        let entry = &mut self.entries[i];
        if entry.phase != Phase::Starting {
            return; // it is already stopping
        }
        entry.wanted = false; // a crash may want it again
        entry.load_time = now.saturating_duration_since(entry.since);
        entry.last_used = now;
        entry.enter(Phase::Ready, now);
    }

    /// The entry has ended as requested, or ended by itself and starts again when a request waits.
    pub fn stopped(&mut self, i: usize, now: Instant) {
        let entry = &mut self.entries[i];
        entry.failures = 0;
        entry.end(Phase::Stopped, now);
    }

    /// The entry failed to become ready: returns the requests that waited for it, to be refused.
    pub fn failed(&mut self, i: usize, now: Instant) -> Vec<W> {
        self.rest(i, now);
        self.entries[i].waiting.drain(..).collect()
    }

    /// The entry ended by itself. Waiting requests wait for the next start, which is at once if it had run for long.
    pub fn crashed(&mut self, i: usize, now: Instant) {
        let entry = &mut self.entries[i];
        let has_run = now.saturating_duration_since(entry.since);
        // An entry without a ttl ends only by a crash: it is restarted.
        entry.wanted |= entry.ttl.is_none() && !entry.retired;
        if has_run >= self.patience.backoff_max {
            entry.failures = 0;
            entry.end(Phase::Stopped, now);
        } else {
            self.rest(i, now);
        }
    }

    fn rest(&mut self, i: usize, now: Instant) {
        let entry = &mut self.entries[i];
        let doubled = self.patience.backoff_min.saturating_mul(1 << entry.failures.min(16));
        entry.failures = entry.failures.saturating_add(1);
        entry.rest_until = now + doubled.min(self.patience.backoff_max);
        entry.end(Phase::Resting, now);
    }

    /// How long it will not be retried.
    pub fn rests_for(&self, i: usize, now: Instant) -> Option<Duration> {
        let entry = &self.entries[i];
        let left = entry.rest_until.saturating_duration_since(now);
        (entry.phase == Phase::Resting && !left.is_zero()).then_some(left)
    }

    /// Its phase, and the numbers of running and waiting requests.
    pub fn state(&self, i: usize) -> (Phase, usize, usize) {
        let entry = &self.entries[i];
        (entry.phase, entry.active, entry.waiting.len())
    }

    /// Ends an entry although no other needs its room: the caller stops it if this returns true. The next request starts it again.
    pub fn unload(&mut self, i: usize, now: Instant) -> bool {
        let entry = &mut self.entries[i];
        entry.wanted = false;
        let stops = matches!(entry.phase, Phase::Ready | Phase::Starting);
        if stops {
            entry.enter(Phase::Stopping, now);
        }
        stops
    }

    /// The entries that are not stopped, but `x`.
    fn running(&self, x: usize) -> Vec<Running> {
        let all = self.entries.iter().enumerate().filter(|(i, e)| *i != x && e.runs());
        all.map(|(index, e)| Running {
            index,
            phase: e.phase,
            is_idle: e.is_idle(),
            is_closed: e.was_closed,
            last_used: e.last_used,
        })
        .collect()
    }

    /// Decides the next steps, and when to decide again if nothing happens until then.
    pub fn next<R: Rules>(
        &mut self,
        rules: &mut R,
        now: Instant,
        steps: &mut Vec<Step<W, R::Error>>,
    ) -> Option<Instant> {
        let mut again = Again(None);
        for entry in &mut self.entries {
            entry.was_closed = std::mem::take(&mut entry.closed);
            if entry.phase == Phase::Resting {
                if entry.rest_until <= now {
                    entry.enter(Phase::Stopped, now);
                } else if entry.wanted || !entry.waiting.is_empty() {
                    again.at(entry.rest_until);
                }
            }
            entry.place_until = entry.place_until.filter(|until| *until > now && entry.waiting.is_empty());
            entry.place_until.iter().for_each(|until| again.at(*until));
            let waits = entry.is_waited_for();
            if waits && entry.turn.is_none() {
                self.turns += 1;
                entry.turn = Some(self.turns);
            } else if !waits && entry.phase != Phase::Stopping {
                entry.turn = None;
            }
        }
        self.start(rules, now, steps, &mut again);
        for (i, entry) in self.entries.iter_mut().enumerate() {
            if entry.phase != Phase::Ready {
                continue;
            }
            while !entry.closed
                && entry.active < entry.limit
                && let Some(request) = entry.waiting.pop_front()
            {
                entry.active += 1;
                entry.last_used = now;
                steps.push(Step::Grant(i, request));
            }
            let ttl = if entry.retired { Some(Duration::ZERO) } else { entry.ttl };
            // A time that cannot be represented does not come.
            let Some(at) = ttl.filter(|_| entry.is_idle()).and_then(|ttl| entry.last_used.checked_add(ttl))
            else {
                continue;
            };
            if at <= now {
                entry.enter(Phase::Stopping, now);
                steps.push(Step::Stop(i));
            } else {
                again.at(at);
            }
        }
        again.0
    }

    /// Starts waiting entries that may run, and evicts others for the rest, in order of turns.
    fn start<R: Rules>(
        &mut self,
        rules: &mut R,
        now: Instant,
        steps: &mut Vec<Step<W, R::Error>>,
        again: &mut Again,
    ) {
        let is_startable = |e: &Entry<W>| e.phase == Phase::Stopped && (e.is_waited_for() || e.wanted);
        let mut order: Vec<usize> =
            (0..self.entries.len()).filter(|i| is_startable(&self.entries[*i])).collect();
        // Entries without waiting requests have no turn, and come last.
        order.sort_by_key(|i| self.entries[*i].turn.unwrap_or(u64::MAX));
        let mut before: Vec<usize> = Vec::new();
        for x in order {
            let is_waited_for = self.entries[x].turn.is_some();
            // An entry that has waited longer is not overtaken by those that could delay it.
            if before.iter().any(|earlier| rules.overtakes(x, *earlier)) {
                before.extend(is_waited_for.then_some(x));
                continue;
            }
            match rules.fits(x, &self.running(x)) {
                Fit::Yes => {
                    (self.entries[x].turn, self.entries[x].place_until) = (None, None);
                    self.entries[x].enter(Phase::Starting, now);
                    steps.push(Step::Start(x));
                }
                // An entry that no request waits for evicts nothing.
                Fit::Blocked { .. } | Fit::Never(_) | Fit::Unknown if !is_waited_for => {}
                Fit::Blocked { by, again: look } => {
                    before.push(x);
                    look.iter().for_each(|look| again.at(now + *look));
                    for y in by {
                        self.preempt(y, now, steps, again);
                    }
                }
                Fit::Unknown => {
                    before.push(x);
                    let ready = self.entries.iter_mut().filter(|e| e.phase == Phase::Ready);
                    ready.for_each(|e| e.closed |= e.was_closed);
                }
                Fit::Never(why) => {
                    (self.entries[x].turn, self.entries[x].place_until) = (None, None);
                    steps.push(Step::Refuse(x, self.entries[x].waiting.drain(..).collect(), why));
                }
            }
        }
    }

    /// Stops an entry that another waits for, if its turn is over.
    fn preempt<E>(&mut self, y: usize, now: Instant, steps: &mut Vec<Step<W, E>>, again: &mut Again) {
        let (patience, entry) = (self.patience, &mut self.entries[y]);
        if entry.phase != Phase::Ready {
            return; // it says when it gets ready, or has ended
        }
        let turn = entry.load_time.saturating_mul(patience.turn_loads);
        let turn = turn.clamp(patience.turn_min, patience.turn_max.max(patience.turn_min));
        let mut until = entry.since + turn;
        if entry.is_idle() {
            until = until.min(entry.last_used + patience.pause);
        }
        if now < until {
            again.at(until);
            return;
        }
        entry.closed = true;
        if entry.active == 0 {
            entry.enter(Phase::Stopping, now);
            steps.push(Step::Stop(y));
            if !entry.waiting.is_empty() {
                self.turns += 1;
                self.entries[y].turn = Some(self.turns);
            }
        }
    }
}

/// The earliest of several times.
struct Again(Option<Instant>);

impl Again {
    fn at(&mut self, time: Instant) {
        self.0 = Some(self.0.map_or(time, |t| t.min(time)));
    }
}
