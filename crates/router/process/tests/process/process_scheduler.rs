//! The scheduler against random arrivals, loads and services, with a clock that is turned by hand.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use octet_process::{Membership, Patience, Phase, Scheduler, Step};
use proptest::prelude::*;

fn member(group: &str) -> Membership {
    Membership { group: group.into(), swap: true, exclusive: true, persistent: false }
}

fn patience() -> Patience {
    Patience {
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
    Done(usize),
    Arrive(usize, u64),
    Leave(u64),
}

/// A machine on which all takes its time, in milliseconds.
struct World {
    scheduler: Scheduler<u64>,
    start: Instant,
    now: u64,
    events: Vec<(u64, What)>,
    load: Vec<u64>,
    service: u64,
    groups: Vec<Membership>,
    limit: usize,
    left: Vec<u64>,
    arrived: HashMap<u64, u64>,
    served: HashMap<u64, u64>,
    starts: Vec<(u64, usize)>,
}

impl World {
    fn new(groups: Vec<Membership>, load: Vec<u64>, service: u64, limit: usize, ttl: Option<u64>) -> Self {
        let start = Instant::now();
        let mut scheduler = Scheduler::new(patience());
        for group in &groups {
            scheduler.add(group.clone(), limit, ttl.map(Duration::from_millis), start);
        }
        let (left, arrived, served) = Default::default();
        let (events, starts) = Default::default();
        Self { scheduler, start, now: 0, events, load, service, groups, limit, left, arrived, served, starts }
    }

    fn time(&self) -> Instant {
        self.start + Duration::from_millis(self.now)
    }

    fn evicts(&self, a: usize, b: usize) -> bool {
        let (a, b) = (&self.groups[a], &self.groups[b]);
        if a.group == b.group { a.swap } else { a.exclusive && !b.persistent }
    }

    /// Lets all happen, until nothing more does or the time is over.
    fn run(&mut self, until: u64) {
        let mut steps = Vec::new();
        loop {
            let again = loop {
                let time = self.time();
                let again = self.scheduler.next(time, &mut steps);
                if steps.is_empty() {
                    break again;
                }
                for step in steps.drain(..) {
                    match step {
                        Step::Start(i) => {
                            for (j, _) in self.groups.iter().enumerate().filter(|(j, _)| *j != i) {
                                let runs =
                                    !matches!(self.scheduler.state(j).0, Phase::Stopped | Phase::Resting);
                                assert!(
                                    !runs || !self.evicts(i, j),
                                    "{i} starts while {j} runs, at {}",
                                    self.now
                                );
                            }
                            self.starts.push((self.now, i));
                            self.events.push((self.now + self.load[i], What::Ready(i)));
                        }
                        Step::Stop(i) => self.events.push((self.now + 50, What::Stopped(i))),
                        Step::Grant(i, request) => {
                            assert!(!self.left.contains(&request), "a cancelled request is forgotten");
                            assert!(self.scheduler.state(i).1 <= self.limit);
                            assert!(self.served.insert(request, self.now).is_none());
                            self.events.push((self.now + self.service, What::Done(i)));
                        }
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
                    What::Ready(i) => self.scheduler.ready(i, now),
                    What::Stopped(i) => self.scheduler.stopped(i, now),
                    What::Done(i) => self.scheduler.done(i, now),
                    What::Arrive(i, request) => {
                        self.arrived.insert(request, self.now);
                        self.scheduler.ask(i, request);
                    }
                    What::Leave(request) => {
                        if !self.served.contains_key(&request) {
                            self.left.push(request);
                            let left = self.left.clone();
                            self.scheduler.forget(|w| left.contains(w));
                        }
                    }
                }
            }
        }
    }

    fn longest_wait(&self) -> u64 {
        self.arrived
            .iter()
            .filter(|(r, _)| !self.left.contains(r))
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
    let mut world = World::new(vec![member("g"), member("g")], vec![load; 2], service, 4, None);
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
    let mut world = World::new(vec![member("g"), member("g")], vec![5000; 2], 1000, 4, None);
    world.events.push((0, What::Arrive(0, 0)));
    world.events.push((20_000, What::Arrive(1, 1)));
    world.run(60_000);
    assert_eq!(world.served[&1] - 20_000, 50 + 5000, "idle for longer than the pause: at once");
    let mut world = World::new(vec![member("g"), member("g")], vec![5000; 2], 1000, 4, None);
    world.events.push((0, What::Arrive(0, 0)));
    world.events.push((6000, What::Arrive(1, 1))); // the other ends at this moment
    world.run(60_000);
    assert_eq!(world.served[&1] - 6000, 300 + 50 + 5000);
}

#[test]
fn a_long_queue_for_one_model_does_not_starve_another() {
    let mut world = World::new(vec![member("g"), member("g")], vec![1000; 2], 1000, 1, None);
    for n in 0..200 {
        world.events.push((0, What::Arrive(0, n)));
    }
    world.events.push((500, What::Arrive(1, 999)));
    world.run(1_000_000);
    assert!(world.served[&999] <= 5000, "{}", world.served[&999]);
    world.longest_wait();
}

#[test]
fn groups_decide_which_processes_run_together() {
    let together = Membership { swap: false, exclusive: false, ..member("together") };
    let kept = Membership { persistent: true, swap: false, exclusive: false, group: "kept".into() };
    let groups = vec![together.clone(), together, kept, member("alone")];
    let mut world = World::new(groups, vec![100; 4], 50, 4, None);
    for i in 0..3 {
        world.events.push((0, What::Arrive(i, i as u64)));
    }
    world.run(1000);
    let phases = |w: &World| (0..4).map(|i| w.scheduler.state(i).0).collect::<Vec<_>>();
    assert_eq!(phases(&world), [Phase::Ready, Phase::Ready, Phase::Ready, Phase::Stopped]);
    world.events.push((1000, What::Arrive(3, 3)));
    world.run(10_000);
    assert_eq!(phases(&world), [Phase::Stopped, Phase::Stopped, Phase::Ready, Phase::Ready]);
}

#[test]
fn repeated_failures_pause_longer_and_a_crash_is_restarted() {
    let now = Instant::now();
    let at = |ms: u64| now + Duration::from_millis(ms);
    let mut s = Scheduler::new(patience());
    let i = s.add(member("g"), 1, None, now);
    let mut steps = Vec::new();
    let mut start = |s: &mut Scheduler<u64>, ms: u64| {
        steps.clear();
        s.next(at(ms), &mut steps);
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// No request is forgotten, exclusive models never run together (see `World::run`), and no wait is longer than the turns before it.
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
        let groups = (0..models).map(|i| member(if two_groups && i % 2 == 0 { "h" } else { "g" })).collect();
        let mut world = World::new(groups, loads.clone(), service, limit, ttl);
        for (n, (at, model, leaves)) in arrivals.iter().enumerate() {
            world.events.push((*at, What::Arrive(model % models, n as u64)));
            if let Some(after) = leaves {
                world.events.push((at + after, What::Leave(n as u64)));
            }
        }
        world.run(10_000_000);
        let wait = world.longest_wait();
        // Rounds that a queue of this length takes, each with all others' turns.
        let turns: u64 = loads.iter().map(|l| l + (*l).max(1000) + service + 50 + 300).sum();
        let rounds = arrivals.len().div_ceil(limit) as u64 + 1;
        prop_assert!(wait <= turns * rounds, "{wait} ms, {turns} a round");
        prop_assert!(world.starts.len() <= arrivals.len() * 2, "{} starts", world.starts.len());
    }
}
