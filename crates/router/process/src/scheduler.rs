//! What is started, what makes way, and who is let through: plain decisions on plain state. Driven by `processes`, and by tests
//! that turn the clock by hand.
//!
//! Where two servers exclude each other, requests for both could swap them at every request. So a server that others wait for
//! keeps its place for as long as swaps cost (its last load), and serves what comes in that time as one batch; then it takes
//! no more, finishes, and makes way. With nothing to do it makes way after a short pause, in which a client that talks to it
//! may come back. Turns are given in the order in which servers were first waited for, and who made way is last: nobody is
//! passed twice, and no wait is longer than the turns before it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Which servers an entry excludes: llama-swap's groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// The group.
    pub group: String,
    /// One member runs at a time.
    pub swap: bool,
    /// Its members end those of other groups when they start.
    pub exclusive: bool,
    /// Other groups do not end its members.
    pub persistent: bool,
}

/// How long a server that others wait for keeps its place.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// At least, though it loads quicker.
    pub turn_min: Duration,
    /// At most, though it loads slower.
    pub turn_max: Duration,
    /// With nothing to do.
    pub pause: Duration,
    /// Before the second try after a failure; twice as long each time.
    pub backoff_min: Duration,
    /// At most.
    pub backoff_max: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            turn_min: Duration::from_secs(1),
            turn_max: Duration::from_secs(60),
            pause: Duration::from_millis(300),
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(60),
        }
    }
}

/// What a server is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Nothing.
    Stopped,
    /// It was started, and is not ready.
    Starting,
    /// It takes requests.
    Ready,
    /// It was told to end.
    Stopping,
    /// It failed, and is not tried again yet.
    Resting,
}

/// What is to be done now.
#[derive(Debug)]
pub enum Step<W> {
    /// Start this one; then say [`Scheduler::ready`] or [`Scheduler::failed`].
    Start(usize),
    /// End this one; then say [`Scheduler::stopped`].
    Stop(usize),
    /// Let this request through; then say [`Scheduler::done`].
    Grant(usize, W),
}

struct Entry<W> {
    member: Membership,
    limit: usize,
    ttl: Option<Duration>,
    phase: Phase,
    waiting: VecDeque<W>,
    active: usize,
    /// Takes no more: others wait for its place.
    closed: bool,
    /// To be started though nobody waits, where it is in nobody's way.
    wanted: bool,
    /// Ends when its requests have, and is not started again.
    retired: bool,
    /// Its place among those that wait to be started.
    turn: Option<u64>,
    /// When the phase began.
    since: Instant,
    idle_since: Instant,
    load_time: Duration,
    failures: u32,
    rest_until: Instant,
}

impl<W> Entry<W> {
    fn new(member: Membership, limit: usize, ttl: Option<Duration>, now: Instant) -> Self {
        Self {
            member,
            limit: limit.max(1),
            ttl,
            phase: Phase::Stopped,
            waiting: VecDeque::new(),
            active: 0,
            closed: false,
            wanted: false,
            retired: false,
            turn: None,
            since: now,
            idle_since: now,
            load_time: Duration::ZERO,
            failures: 0,
            rest_until: now,
        }
    }

    fn runs(&self) -> bool {
        matches!(self.phase, Phase::Starting | Phase::Ready | Phase::Stopping)
    }

    fn is_idle(&self) -> bool {
        self.active == 0 && self.waiting.is_empty()
    }

    fn enter(&mut self, phase: Phase, now: Instant) {
        self.phase = phase;
        self.since = now;
        self.closed = false;
    }
}

/// All servers, by number. `W` is a request that waits.
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

    /// Adds an entry, in a place that is free or a new one, and gives its number. `ttl`: how long it stays with nothing to do.
    pub fn add(&mut self, member: Membership, limit: usize, ttl: Option<Duration>, now: Instant) -> usize {
        let entry = Entry::new(member, limit, ttl, now);
        let free = self.entries.iter().position(|e| e.retired && !e.runs() && e.waiting.is_empty());
        match free {
            Some(i) => {
                self.entries[i] = entry;
                i
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        }
    }

    /// Takes an entry out: what runs and what waits is finished, then it ends.
    pub fn retire(&mut self, i: usize) {
        self.entries[i].retired = true;
        self.entries[i].wanted = false;
    }

    /// Starts it once it would be in nobody's way, though nobody waits for it.
    pub fn want(&mut self, i: usize) {
        self.entries[i].wanted = true;
    }

    /// A request waits for it.
    pub fn ask(&mut self, i: usize, request: W) {
        self.entries[i].waiting.push_back(request);
    }

    /// Forgets requests whose clients have left.
    pub fn forget(&mut self, has_left: impl Fn(&W) -> bool) {
        for entry in &mut self.entries {
            entry.waiting.retain(|w| !has_left(w));
        }
    }

    /// A request is over.
    pub fn done(&mut self, i: usize, now: Instant) {
        let entry = &mut self.entries[i];
        entry.active = entry.active.saturating_sub(1);
        if entry.active == 0 {
            entry.idle_since = now;
        }
    }

    /// It takes requests now.
    pub fn ready(&mut self, i: usize, now: Instant) {
        let entry = &mut self.entries[i];
        if entry.phase != Phase::Starting {
            return; // told to end meanwhile
        }
        entry.wanted = false; // a crash may want it again
        entry.load_time = now.saturating_duration_since(entry.since);
        entry.idle_since = now;
        entry.enter(Phase::Ready, now);
    }

    /// It has ended as it was told to.
    pub fn stopped(&mut self, i: usize, now: Instant) {
        let entry = &mut self.entries[i];
        entry.active = 0;
        entry.failures = 0;
        entry.enter(Phase::Stopped, now);
    }

    /// It did not get ready: gives the requests that waited for it, to be refused.
    pub fn failed(&mut self, i: usize, now: Instant) -> Vec<W> {
        self.rest(i, now);
        self.entries[i].waiting.drain(..).collect()
    }

    /// It ended by itself. Requests that wait go on waiting for the next start, which is at once if it had run for long.
    pub fn crashed(&mut self, i: usize, now: Instant) {
        let entry = &mut self.entries[i];
        let has_run = now.saturating_duration_since(entry.since);
        // Nothing ends what has no ttl, but a crash: it is started again.
        entry.wanted |= entry.ttl.is_none() && !entry.retired;
        if has_run >= self.patience.backoff_max {
            entry.failures = 0;
            entry.active = 0;
            entry.enter(Phase::Stopped, now);
        } else {
            self.rest(i, now);
        }
    }

    fn rest(&mut self, i: usize, now: Instant) {
        let entry = &mut self.entries[i];
        let doubled = self.patience.backoff_min.saturating_mul(1 << entry.failures.min(16));
        entry.failures = entry.failures.saturating_add(1);
        entry.rest_until = now + doubled.min(self.patience.backoff_max);
        entry.active = 0;
        entry.enter(Phase::Resting, now);
    }

    /// How long it is not tried again yet.
    pub fn rests_for(&self, i: usize, now: Instant) -> Option<Duration> {
        let entry = &self.entries[i];
        let left = entry.rest_until.saturating_duration_since(now);
        (entry.phase == Phase::Resting && !left.is_zero()).then_some(left)
    }

    /// What it is doing, how many requests run, and how many wait.
    pub fn state(&self, i: usize) -> (Phase, usize, usize) {
        let entry = &self.entries[i];
        (entry.phase, entry.active, entry.waiting.len())
    }

    /// Tells a server to end though it is in nobody's way. It is started again when it is asked for.
    pub fn unload(&mut self, i: usize, now: Instant) -> bool {
        let entry = &mut self.entries[i];
        entry.wanted = false;
        let stops = matches!(entry.phase, Phase::Ready | Phase::Starting);
        if stops {
            entry.enter(Phase::Stopping, now);
        }
        stops
    }

    /// Whether `a` cannot start while `b` runs.
    fn evicts(&self, a: usize, b: usize) -> bool {
        let (a, b) = (&self.entries[a].member, &self.entries[b].member);
        if a.group == b.group { a.swap } else { a.exclusive && !b.persistent }
    }

    /// Decides what is to be done now, and when to ask again if nothing happens until then.
    pub fn next(&mut self, now: Instant, steps: &mut Vec<Step<W>>) -> Option<Instant> {
        let mut again = Again(None);
        for entry in &mut self.entries {
            entry.closed = false;
            if entry.phase == Phase::Resting {
                if entry.rest_until <= now {
                    entry.enter(Phase::Stopped, now);
                } else if entry.wanted || !entry.waiting.is_empty() {
                    again.at(entry.rest_until);
                }
            }
            let waits = !entry.runs() && !entry.waiting.is_empty();
            if waits && entry.turn.is_none() {
                self.turns += 1;
                entry.turn = Some(self.turns);
            } else if !waits && entry.phase != Phase::Stopping {
                entry.turn = None;
            }
        }
        self.start(now, steps, &mut again);
        for (i, entry) in self.entries.iter_mut().enumerate() {
            if entry.phase != Phase::Ready {
                continue;
            }
            while !entry.closed
                && entry.active < entry.limit
                && let Some(request) = entry.waiting.pop_front()
            {
                entry.active += 1;
                steps.push(Step::Grant(i, request));
            }
            let ttl = if entry.retired { Some(Duration::ZERO) } else { entry.ttl };
            if let Some(ttl) = ttl.filter(|_| entry.is_idle()) {
                let at = entry.idle_since + ttl;
                if at <= now {
                    entry.enter(Phase::Stopping, now);
                    steps.push(Step::Stop(i));
                } else {
                    again.at(at);
                }
            }
        }
        again.0
    }

    /// Starts what waits and is free to, and makes room for what is not, each in its turn.
    fn start(&mut self, now: Instant, steps: &mut Vec<Step<W>>, again: &mut Again) {
        let is_startable = |e: &Entry<W>| e.phase == Phase::Stopped && (!e.waiting.is_empty() || e.wanted);
        let mut order: Vec<usize> =
            (0..self.entries.len()).filter(|i| is_startable(&self.entries[*i])).collect();
        // What nobody waits for has no turn, and comes last.
        order.sort_by_key(|i| self.entries[*i].turn.unwrap_or(u64::MAX));
        let mut before: Vec<usize> = Vec::new();
        for x in order {
            // Who waits longer is not overtaken by those that would be in the way.
            let overtakes = before.iter().any(|b| self.evicts(*b, x) || self.evicts(x, *b));
            let rivals: Vec<usize> = (0..self.entries.len())
                .filter(|y| *y != x && self.entries[*y].runs() && self.evicts(x, *y))
                .collect();
            if !overtakes && rivals.is_empty() {
                self.entries[x].turn = None;
                self.entries[x].enter(Phase::Starting, now);
                steps.push(Step::Start(x));
                continue;
            }
            if self.entries[x].turn.is_none() {
                continue; // in nobody's way
            }
            before.push(x);
            if !overtakes {
                for y in rivals {
                    self.make_way(y, now, steps, again);
                }
            }
        }
    }

    /// Ends a server that another waits for, if its turn is over.
    fn make_way(&mut self, y: usize, now: Instant, steps: &mut Vec<Step<W>>, again: &mut Again) {
        let (patience, entry) = (self.patience, &mut self.entries[y]);
        if entry.phase != Phase::Ready {
            return; // it says when it gets ready, or has ended
        }
        let turn = entry.load_time.clamp(patience.turn_min, patience.turn_max.max(patience.turn_min));
        let mut until = entry.since + turn;
        if entry.is_idle() {
            until = until.min(entry.idle_since + patience.pause);
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
