//! Decides which servers start, which are evicted, and which requests are admitted: pure decisions on plain state. Driven by
//! `processes`, and by tests with their own clock.
//!
//! If two servers exclude each other, alternating requests could swap them each time. So a server that others wait for keeps running
//! for as long as a swap takes (its last load), and serves the requests of that time as a batch; then it accepts no more, finishes,
//! and is evicted. If idle, it is evicted after a short pause, in which its client may send the next request. Turns are in the order
//! in which servers were first waited for, and the evicted server comes last: no request is overtaken twice, and no wait exceeds the
//! turns before it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The servers that an entry excludes: llama-swap's groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// The group.
    pub group: String,
    /// One member runs at a time.
    pub swap: bool,
    /// Starting a member stops members of other groups.
    pub exclusive: bool,
    /// Other groups do not stop its members.
    pub persistent: bool,
}

/// How long a server that others wait for keeps running.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Minimum turn, even if it loads faster.
    pub turn_min: Duration,
    /// Maximum turn, even if it loads slower.
    pub turn_max: Duration,
    /// The pause of an idle server before it is evicted.
    pub pause: Duration,
    /// Delay before the second attempt after a failure; doubled each time.
    pub backoff_min: Duration,
    /// Maximum of that delay.
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

/// The state of a server.
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
pub enum Step<W> {
    /// Start this server; then call [`Scheduler::ready`] or [`Scheduler::failed`].
    Start(usize),
    /// End this server; then call [`Scheduler::stopped`].
    Stop(usize),
    /// Admit this request; then call [`Scheduler::done`].
    Grant(usize, W),
}

struct Entry<W> {
    member: Membership,
    limit: usize,
    ttl: Option<Duration>,
    phase: Phase,
    waiting: VecDeque<W>,
    active: usize,
    /// Accepts no more requests: others wait for it to end.
    closed: bool,
    /// Start it without requests, when it evicts no other.
    wanted: bool,
    /// Ends after its requests, and is not started again.
    retired: bool,
    /// Its position among those waiting to be started.
    turn: Option<u64>,
    /// Start of the phase.
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

/// All servers, by index. `W` is a waiting request.
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

    /// Removes an entry: running and waiting requests are finished, then it ends.
    pub fn retire(&mut self, i: usize) {
        self.entries[i].retired = true;
        self.entries[i].wanted = false;
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
    pub fn forget(&mut self, has_left: impl Fn(&W) -> bool) {
        for entry in &mut self.entries {
            entry.waiting.retain(|w| !has_left(w));
        }
    }

    /// A request has finished.
    pub fn done(&mut self, i: usize, now: Instant) {
        let entry = &mut self.entries[i];
        entry.active = entry.active.saturating_sub(1);
        if entry.active == 0 {
            entry.idle_since = now;
        }
    }

    /// The server accepts requests.
    pub fn ready(&mut self, i: usize, now: Instant) {
        let entry = &mut self.entries[i];
        if entry.phase != Phase::Starting {
            return; // it is already stopping
        }
        entry.wanted = false; // a crash may want it again
        entry.load_time = now.saturating_duration_since(entry.since);
        entry.idle_since = now;
        entry.enter(Phase::Ready, now);
    }

    /// The server has stopped as requested.
    pub fn stopped(&mut self, i: usize, now: Instant) {
        let entry = &mut self.entries[i];
        entry.active = 0;
        entry.failures = 0;
        entry.enter(Phase::Stopped, now);
    }

    /// The server failed to become ready: returns the requests that waited for it, to be refused.
    pub fn failed(&mut self, i: usize, now: Instant) -> Vec<W> {
        self.rest(i, now);
        self.entries[i].waiting.drain(..).collect()
    }

    /// The server ended by itself. Waiting requests wait for the next start, which is at once if it had run for long.
    pub fn crashed(&mut self, i: usize, now: Instant) {
        let entry = &mut self.entries[i];
        let has_run = now.saturating_duration_since(entry.since);
        // A server without a ttl ends only by a crash: it is restarted.
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

    /// Ends a server although no other needs its place. The next request starts it again.
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

    /// Decides the next steps, and when to decide again if nothing happens until then.
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

    /// Starts waiting servers that may run, and evicts others for the rest, in order of turns.
    fn start(&mut self, now: Instant, steps: &mut Vec<Step<W>>, again: &mut Again) {
        let is_startable = |e: &Entry<W>| e.phase == Phase::Stopped && (!e.waiting.is_empty() || e.wanted);
        let mut order: Vec<usize> =
            (0..self.entries.len()).filter(|i| is_startable(&self.entries[*i])).collect();
        // Servers without waiting requests have no turn, and come last.
        order.sort_by_key(|i| self.entries[*i].turn.unwrap_or(u64::MAX));
        let mut before: Vec<usize> = Vec::new();
        for x in order {
            // A server that has waited longer is not overtaken by those that exclude it.
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
                continue; // no request waits for it, so it evicts nothing
            }
            before.push(x);
            if !overtakes {
                for y in rivals {
                    self.preempt(y, now, steps, again);
                }
            }
        }
    }

    /// Stops a server that another waits for, if its turn is over.
    fn preempt(&mut self, y: usize, now: Instant, steps: &mut Vec<Step<W>>, again: &mut Again) {
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
