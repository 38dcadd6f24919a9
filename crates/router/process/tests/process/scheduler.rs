//! The scheduler against random arrivals, loads and services, with a clock that is turned by hand.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use octet_process::swap::{Fit, Patience, Phase, Rules, Running, Scheduler, Step};
use proptest::prelude::*;

/// What fits together.
trait Fits: Rules<Error = &'static str> {
    /// Whether `starting` may start beside those that take room.
    fn fits(&self, starting: usize, beside: &[usize]) -> bool;

    /// Whether the rules have to find something out, which takes a millisecond.
    fn asks(&mut self) -> bool {
        false
    }
}

/// Entries of one group exclude each other.
struct Groups(Vec<&'static str>);

impl Rules for Groups {
    type Error = &'static str;

    fn fits(&mut self, x: usize, running: &[Running]) -> Fit<Self::Error> {
        let by: Vec<usize> = running.iter().map(|r| r.index).filter(|y| self.0[*y] == self.0[x]).collect();
        if by.is_empty() { Fit::Yes } else { Fit::Blocked { by, again: None } }
    }

    fn overtakes(&mut self, later: usize, earlier: usize) -> bool {
        self.0[later] == self.0[earlier]
    }
}

impl Fits for Groups {
    fn fits(&self, starting: usize, beside: &[usize]) -> bool {
        beside.iter().all(|y| self.0[*y] != self.0[starting])
    }
}

/// Entries that share a memory: one is loaded at a time, and the least recently used one makes room.
struct Shared {
    sizes: Vec<u64>,
    all: u64,
    /// It answers every other question at once; before that it does not know.
    is_known: bool,
    asks: bool,
}

impl Rules for Shared {
    type Error = &'static str;

    fn fits(&mut self, x: usize, running: &[Running]) -> Fit<Self::Error> {
        if let Some(loading) = running.iter().find(|r| r.phase == Phase::Starting) {
            return Fit::Blocked { by: vec![loading.index], again: None };
        }
        self.is_known = !self.is_known;
        if self.is_known {
            self.asks = true;
            return Fit::Unknown;
        }
        let taken: u64 = running.iter().map(|r| self.sizes[r.index]).sum();
        if taken + self.sizes[x] <= self.all {
            return Fit::Yes;
        }
        if let Some(leaving) = running.iter().find(|r| r.phase == Phase::Stopping) {
            return Fit::Blocked { by: vec![leaving.index], again: None };
        }
        let first = running.iter().min_by_key(|r| (!r.is_closed, !r.is_idle, r.last_used));
        first.map_or(Fit::Never("too large"), |r| Fit::Blocked { by: vec![r.index], again: None })
    }

    fn overtakes(&mut self, _: usize, _: usize) -> bool {
        true
    }
}

impl Fits for Shared {
    fn asks(&mut self) -> bool {
        std::mem::take(&mut self.asks)
    }

    fn fits(&self, starting: usize, beside: &[usize]) -> bool {
        beside.iter().chain([&starting]).map(|i| self.sizes[*i]).sum::<u64>() <= self.all
    }
}

fn patience() -> Patience {
    Patience {
        turn_loads: 1,
        keep_place: Duration::from_millis(200),
        turn_min: Duration::from_millis(1000),
        turn_max: Duration::from_millis(10_000),
        pause: Duration::from_millis(300),
        backoff_min: Duration::from_millis(500),
        backoff_max: Duration::from_millis(4000),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Ready(usize),
    Stopped(usize),
    Done(usize, u64),
    Arrive(usize, u64),
    Leave(u64),
    Known,
}

/// A machine on which all takes its time, in milliseconds.
struct World<R> {
    scheduler: Scheduler<u64>,
    rules: R,
    start: Instant,
    now: u64,
    events: Vec<(u64, What)>,
    load: Vec<u64>,
    service: u64,
    limit: usize,
    left: Vec<u64>,
    arrived: HashMap<u64, u64>,
    served: HashMap<u64, u64>,
    refused: Vec<u64>,
    starts: Vec<(u64, usize)>,
}

impl<R: Fits> World<R> {
    fn new(rules: R, load: Vec<u64>, service: u64, limit: usize, ttl: Option<u64>) -> Self {
        let start = Instant::now();
        let mut scheduler = Scheduler::new(patience());
        for _ in &load {
            scheduler.add(limit, ttl.map(Duration::from_millis), start);
        }
        Self {
            scheduler,
            rules,
            start,
            now: 0,
            events: Vec::new(),
            load,
            service,
            limit,
            left: Vec::new(),
            arrived: HashMap::new(),
            served: HashMap::new(),
            refused: Vec::new(),
            starts: Vec::new(),
        }
    }

    fn time(&self) -> Instant {
        self.start + Duration::from_millis(self.now)
    }

    /// Lets all happen, until nothing more does or the time is over.
    fn run(&mut self, until: u64) {
        let mut steps = Vec::new();
        loop {
            let again = loop {
                let time = self.time();
                let again = self.scheduler.next(&mut self.rules, time, &mut steps);
                if self.rules.asks() {
                    self.events.push((self.now + 1, What::Known));
                }
                if steps.is_empty() {
                    break again;
                }
                for step in steps.drain(..) {
                    match step {
                        Step::Start(i) => {
                            let takes_room = |j: &usize| {
                                *j != i
                                    && !matches!(self.scheduler.state(*j).0, Phase::Stopped | Phase::Resting)
                            };
                            let beside: Vec<usize> = (0..self.load.len()).filter(takes_room).collect();
                            assert!(self.rules.fits(i, &beside), "{i} beside {beside:?} at {}", self.now);
                            self.starts.push((self.now, i));
                            self.events.push((self.now + self.load[i], What::Ready(i)));
                        }
                        Step::Stop(i) => self.events.push((self.now + 50, What::Stopped(i))),
                        Step::Grant(i, request) => {
                            assert!(!self.left.contains(&request), "a cancelled request is forgotten");
                            assert!(self.scheduler.state(i).1 <= self.limit);
                            assert!(self.served.insert(request, self.now).is_none());
                            let generation = self.scheduler.generation(i);
                            self.events.push((self.now + self.service, What::Done(i, generation)));
                        }
                        Step::Refuse(_, requests, _) => self.refused.extend(requests),
                    }
                }
            };
            let next_event = self.events.iter().map(|(t, _)| *t).min();
            let again = again.map(|t| t.duration_since(self.start).as_micros().div_ceil(1000) as u64);
            let Some(next) = next_event.into_iter().chain(again).min().filter(|t| *t <= until) else {
                self.now = until;
                break;
            };
            assert!(next >= self.now);
            assert!(
                next > self.now || next_event == Some(next),
                "it asks again without a reason, at {}",
                self.now
            );
            self.now = next;
            let now = self.time();
            // In the order in which they were thought of.
            let (due, later) = std::mem::take(&mut self.events).into_iter().partition(|(t, _)| *t <= next);
            self.events = later;
            for (_, what) in due {
                match what {
                    What::Known => {}
                    What::Ready(i) => self.scheduler.ready(i, now),
                    What::Stopped(i) => self.scheduler.stopped(i, now),
                    What::Done(i, generation) => self.scheduler.done(i, generation, now),
                    What::Arrive(i, request) => {
                        self.arrived.insert(request, self.now);
                        self.scheduler.ask(i, request);
                    }
                    What::Leave(request) => {
                        if !self.served.contains_key(&request) {
                            self.left.push(request);
                            let left = self.left.clone();
                            self.scheduler.forget(|w| left.contains(w), now);
                        }
                    }
                }
            }
        }
    }

    /// Requests that arrive at times for entries, and whose clients leave after a time; all has happened in the end.
    fn serve(&mut self, arrivals: &[(u64, usize, Option<u64>)]) {
        for (n, (at, entry, leaves)) in arrivals.iter().enumerate() {
            self.events.push((*at, What::Arrive(entry % self.load.len(), n as u64)));
            if let Some(after) = leaves {
                self.events.push((at + after, What::Leave(n as u64)));
            }
        }
        self.run(10_000_000);
    }

    /// No wait is longer than the rounds that a queue of this length takes, each with the turns of all entries.
    fn wait_max(&self, requests: usize) -> u64 {
        let turns: u64 = self.load.iter().map(|l| l + (*l).max(1000) + self.service + 50 + 300).sum();
        turns * (requests.div_ceil(self.limit) as u64 + 1)
    }

    fn longest_wait(&self) -> u64 {
        self.arrived
            .iter()
            .filter(|(r, _)| !self.left.contains(r) && !self.refused.contains(r))
            .map(|(r, at)| self.served.get(r).unwrap_or_else(|| panic!("{r} was never served")) - at)
            .max()
            .unwrap_or(0)
    }
}

/// Two clients, one for each model, each asking again as soon as it was answered would be the worst: here a request for each
/// comes every 100 ms for a minute.
#[test]
fn alternating_load_does_not_thrash() {
    let (load, service) = (2000, 100);
    let mut world = World::new(Groups(vec!["g", "g"]), vec![load; 2], service, 4, None);
    for n in 0..600 {
        world.events.push((n * 100, What::Arrive((n % 2) as usize, n)));
    }
    world.run(200_000);
    // A turn is as long as a load: a swap every four seconds and a bit.
    let busy = world.starts.iter().filter(|(t, _)| *t < 60_000).count();
    assert!((8..=16).contains(&busy), "{busy} starts in a minute: {:?}", world.starts);
    // Its own load, and the other's turn, service, end and load before it.
    let wait = world.longest_wait();
    assert!(wait <= 2 * (load + load + service + 50) + 1000, "a request waited {wait} ms");
}

#[test]
fn a_single_client_can_switch_models_quickly() {
    let mut world = World::new(Groups(vec!["g", "g"]), vec![5000; 2], 1000, 4, None);
    world.events.push((0, What::Arrive(0, 0)));
    world.events.push((20_000, What::Arrive(1, 1)));
    world.run(60_000);
    assert_eq!(world.served[&1] - 20_000, 50 + 5000, "idle for longer than the pause: at once");
    let mut world = World::new(Groups(vec!["g", "g"]), vec![5000; 2], 1000, 4, None);
    world.events.push((0, What::Arrive(0, 0)));
    world.events.push((6000, What::Arrive(1, 1))); // the other ends at this moment
    world.run(60_000);
    assert_eq!(world.served[&1] - 6000, 300 + 50 + 5000);
}

#[test]
fn a_long_queue_for_one_model_does_not_starve_another() {
    let mut world = World::new(Groups(vec!["g", "g"]), vec![1000; 2], 1000, 1, None);
    for n in 0..200 {
        world.events.push((0, What::Arrive(0, n)));
    }
    world.events.push((500, What::Arrive(1, 999)));
    world.run(1_000_000);
    assert!(world.served[&999] <= 5000, "{}", world.served[&999]);
    world.longest_wait();
}

#[test]
fn repeated_failures_pause_longer_and_a_crash_is_restarted() {
    let now = Instant::now();
    let at = |ms: u64| now + Duration::from_millis(ms);
    let mut s = Scheduler::new(patience());
    let i = s.add(1, None, now);
    let (mut rules, mut steps) = (Groups(vec!["g"]), Vec::new());
    let mut start = |s: &mut Scheduler<u64>, ms: u64| {
        steps.clear();
        s.next(&mut rules, at(ms), &mut steps);
        steps.iter().any(|step| matches!(step, Step::Start(_)))
    };
    s.ask(i, 1);
    assert!(start(&mut s, 0));
    assert_eq!(s.failed(i, at(10)), [1]);
    assert_eq!(s.rests_for(i, at(10)), Some(Duration::from_millis(500)));
    s.ask(i, 2);
    assert!(!start(&mut s, 509) && start(&mut s, 510));
    s.failed(i, at(600));
    assert_eq!(s.rests_for(i, at(600)), Some(Duration::from_secs(1)));
    s.ask(i, 3);
    assert!(start(&mut s, 1600));
    s.ready(i, at(1700));
    s.crashed(i, at(1800));
    assert!(!start(&mut s, 3799) && start(&mut s, 3800), "waiting requests keep waiting");
    s.ready(i, at(3900));
    s.crashed(i, at(9000));
    assert!(start(&mut s, 9000), "it ran for long: at once, though no other request waits");
}

#[test]
fn an_entry_keeps_its_place_while_its_client_tries_again() {
    // The first entry always has a long answer to give; the second one's client leaves every two seconds, and comes back.
    let comes_back = |after: u64| {
        let mut world = World::new(Groups(vec!["g", "g"]), vec![1000; 2], 6000, 20, None);
        for n in 0..200 {
            world.events.push((n * 2000, What::Arrive(0, n)));
        }
        for n in 0..40 {
            world.events.push((10_000 + n * (2000 + after), What::Arrive(1, 1000 + n)));
            world.events.push((12_000 + n * (2000 + after), What::Leave(1000 + n)));
        }
        world.run(90_000);
        world.starts.iter().any(|(_, i)| *i == 1)
    };
    assert!(comes_back(100), "it keeps its place for 200 ms");
    assert!(!comes_back(300), "or the test shows nothing");
}

#[test]
fn an_entry_whose_turn_is_over_accepts_nothing_while_the_rules_find_something_out() {
    let rules = Shared { sizes: vec![10, 10], all: 10, is_known: false, asks: false };
    let mut world = World::new(rules, vec![1000; 2], 5000, 100, None);
    // there are always answers of the first entry under way
    for n in 0..200 {
        world.events.push((n * 500, What::Arrive(0, n)));
    }
    world.events.push((6000, What::Arrive(1, 1000)));
    world.run(1_000_000);
    assert!(world.served[&1000] <= 6000 + 5000 + 50 + 1000 + 100, "{}", world.served[&1000]);
}

#[test]
fn requests_of_an_earlier_run_do_not_count() {
    let now = Instant::now();
    let (mut rules, mut steps) = (Groups(vec!["g"]), Vec::new());
    let mut s = Scheduler::new(patience());
    let i = s.add(1, None, now);
    let mut admit = |s: &mut Scheduler<u64>, request: u64| {
        s.ask(i, request);
        s.next(&mut rules, now, &mut steps);
        s.ready(i, now);
        s.next(&mut rules, now, &mut steps);
        assert!(matches!(steps.pop(), Some(Step::Grant(_, r)) if r == request));
        s.generation(i)
    };
    let first = admit(&mut s, 1);
    s.stopped(i, now);
    let second = admit(&mut s, 2);
    s.done(i, first, now);
    assert_eq!(s.state(i), (Phase::Ready, 1, 0));
    s.done(i, second, now);
    assert_eq!(s.state(i), (Phase::Ready, 0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// No request is forgotten, entries that exclude each other never run together (see `World::run`), and no wait is longer than the turns before it.
    #[test]
    fn all_are_served_in_time(
        loads in proptest::collection::vec(0u64..3000, 2..5),
        two_groups in any::<bool>(),
        service in 1u64..800,
        limit in 1usize..5,
        ttl in proptest::option::of(0u64..2000),
        arrivals in proptest::collection::vec((0u64..30_000, 0usize..4, proptest::option::of(0u64..5000)), 1..80),
    ) {
        let models = loads.len();
        let groups = (0..models).map(|i| if two_groups && i % 2 == 0 { "h" } else { "g" }).collect();
        let mut world = World::new(Groups(groups), loads, service, limit, ttl);
        world.serve(&arrivals);
        let (wait, bound) = (world.longest_wait(), world.wait_max(arrivals.len()));
        prop_assert!(wait <= bound, "{wait} ms of {bound}");
        prop_assert!(world.starts.len() <= arrivals.len() * 2, "{} starts", world.starts.len());
    }

    /// The same for entries that share a memory: it never overflows, and what never fits is refused.
    #[test]
    fn all_that_fit_are_served_in_time(
        entries in proptest::collection::vec((0u64..3000, 1u64..12), 2..5),
        service in 1u64..800,
        limit in 1usize..5,
        ttl in proptest::option::of(0u64..2000),
        arrivals in proptest::collection::vec((0u64..30_000, 0usize..4, proptest::option::of(0u64..5000)), 1..80),
    ) {
        let (loads, sizes): (Vec<u64>, Vec<u64>) = entries.into_iter().unzip();
        let models = loads.len();
        let mut world = World::new(Shared { sizes: sizes.clone(), all: 10, is_known: false, asks: false }, loads, service, limit, ttl);
        world.serve(&arrivals);
        let (wait, bound) = (world.longest_wait(), world.wait_max(arrivals.len()));
        prop_assert!(wait <= bound, "{wait} ms of {bound}");
        for request in &world.refused {
            let model = arrivals[usize::try_from(*request).unwrap()].1 % models;
            prop_assert!(sizes[model] > 10, "{request} was refused, and its entry fits");
        }
    }
}
