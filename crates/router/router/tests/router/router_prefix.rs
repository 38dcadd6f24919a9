//! `prefix-affinity` over eight simulated replicas with prefix caches: agents' conversations with shared instructions (Zipf), 5 to 25 turns
//! of 200 to 2000 tokens. Cached tokens, and how evenly requests are spread, against a plain sticky session.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use octet_config::Strategy;
use octet_router::choose::{Candidate, DeploymentSpec, Requirements, choose};
use octet_router::hash;
use octet_router::prefix::SentBlocks;
use octet_router::state::{Availability, DeploymentStatus};

/// Tokens of a block here.
const BLOCK: u64 = 256;
const REPLICAS: usize = 8;
/// Tokens that a replica's cache holds.
const CACHE: u64 = 400_000;
/// Requests that a replica answers at once.
const SLOTS: usize = 16;
const MS: f64 = 1000.0;

/// A replica's cache: the least recently used block is evicted.
#[derive(Default)]
struct Cache {
    used: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    clock: u64,
}

impl Cache {
    fn matched(&self, chain: &[u64]) -> usize {
        chain.iter().take_while(|block| self.used.contains_key(block)).count()
    }

    fn touch(&mut self, chain: &[u64]) {
        // From the end, so that the beginning is evicted last.
        for block in chain.iter().rev() {
            self.clock += 1;
            if let Some(old) = self.used.insert(*block, self.clock) {
                self.order.remove(&old);
            }
            self.order.insert(self.clock, *block);
        }
        while self.used.len() as u64 * BLOCK > CACHE {
            let (_, block) = self.order.pop_first().unwrap();
            self.used.remove(&block);
        }
    }
}

#[derive(Default)]
struct Session {
    chain: Vec<u64>,
    first: u64,
    turns: usize,
    turn: usize,
}

impl Session {
    fn grow(&mut self, blocks: u64, what: u64) {
        for i in 0..blocks {
            let last = self.chain.last().copied().unwrap_or(0);
            self.chain.push(hash::hash(&[&last.to_le_bytes(), &what.to_le_bytes(), &i.to_le_bytes()]));
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Policy {
    Prefix,
    Sticky,
}

struct Outcome {
    /// Share of the prompts' tokens that were cached.
    hits: f64,
    /// Requests of the replica with the most, by the mean.
    requests: f64,
    /// The same of computed tokens.
    computed: f64,
}

struct Replicas {
    caches: Vec<Cache>,
    sent: Vec<SentBlocks>,
    busy: Vec<usize>,
    waiting: Vec<std::collections::VecDeque<usize>>,
    computed: Vec<u64>,
}

impl Replicas {
    fn new() -> Self {
        Self {
            caches: (0..REPLICAS).map(|_| Cache::default()).collect(),
            sent: (0..REPLICAS).map(|_| SentBlocks::default()).collect(),
            busy: vec![0; REPLICAS],
            waiting: vec![Default::default(); REPLICAS],
            computed: vec![0; REPLICAS],
        }
    }

    fn choose(
        &mut self,
        policy: Policy,
        specs: &[DeploymentSpec],
        session: &Session,
        rng: &mut fastrand::Rng,
    ) -> usize {
        let chain = &session.chain;
        let name = session.first.to_string();
        let (strategy, sticky) = match policy {
            Policy::Prefix => (Strategy::PrefixAffinity, None),
            Policy::Sticky => (Strategy::SimpleShuffle, Some(name.as_str())),
        };
        let demand =
            Requirements { strategy, session: sticky, prefix: Some(session.first), ..Default::default() };
        let candidate = |i: usize| Candidate {
            terms: &specs[i],
            live: DeploymentStatus {
                available: Availability::Ready,
                in_flight: (self.busy[i] + self.waiting[i].len()) as u32,
                requests: 0,
                tokens: 0,
                reserved: 0,
                first_s: None,
                per_token_s: None,
                elsewhere: None,
                has_answered: true,
            },
            load: None,
            cached_tokens: Some(self.sent[i].matched(chain) as u64 * BLOCK),
            prompt_tokens: None,
            out: None,
        };
        let all: Vec<Candidate<'_>> = (0..REPLICAS).map(candidate).collect();
        let at = choose(&all, &demand, rng).unwrap().index;
        drop(all);
        self.sent[at].record(chain);
        at
    }

    /// Starts a request; returns the cached blocks, and how long it takes.
    fn start(&mut self, at: usize, chain: &[u64]) -> (usize, f64) {
        self.busy[at] += 1;
        let cached = self.caches[at].matched(chain);
        self.caches[at].touch(chain);
        let new = (chain.len() - cached) as u64 * BLOCK;
        self.computed[at] += new;
        // 8000 tokens of prompts a second alone, 300 tokens of an answer at 60 a second.
        let prompt = new as f64 / 8000.0 * (1.0 + self.busy[at] as f64 / 8.0);
        (cached, prompt + 5.0 * (0.5 + self.busy[at] as f64 / SLOTS as f64))
    }
}

/// The greatest value by the mean.
fn imbalance(all: &[u64]) -> f64 {
    let sum: u64 = all.iter().sum();
    *all.iter().max().unwrap() as f64 / (sum as f64 / all.len() as f64)
}

fn exponential(rng: &mut fastrand::Rng, mean: f64) -> f64 {
    -mean * (1.0 - rng.f64()).ln()
}

fn simulate(policy: Policy, sessions: usize) -> Outcome {
    let mut rng = fastrand::Rng::with_seed(7);
    let specs: Vec<DeploymentSpec> =
        (0..REPLICAS).map(|i| DeploymentSpec { id: format!("d{i}"), ..Default::default() }).collect();
    let instructions: Vec<u64> = (0..200).map(|_| rng.u64(2000..=12_000) / BLOCK).collect();
    let weights: f64 = (1..=200).map(|i| 1.0 / f64::from(i)).sum();
    let (mut all, mut events, mut now) = (Vec::new(), BinaryHeap::new(), 0.0);
    for id in 0..sessions {
        now += exponential(&mut rng, 1.0 / 0.7);
        let mut left = rng.f64() * weights;
        let which = (1..200)
            .take_while(|i| {
                left -= 1.0 / f64::from(*i);
                left > 0.0
            })
            .count();
        let mut session = Session { turns: rng.usize(5..=25), ..Default::default() };
        session.grow(instructions[which], which as u64);
        session.grow(rng.u64(50..=1500) / BLOCK + 1, 1000 + id as u64);
        session.first = *session.chain.last().unwrap();
        all.push(session);
        events.push(Reverse(((now * MS) as u64, id, None::<usize>)));
    }
    let mut replicas = Replicas::new();
    let (mut served, mut cached, mut total) = (vec![0u64; REPLICAS], 0, 0);
    while let Some(Reverse((at_ms, id, done))) = events.pop() {
        let mut starting = None;
        match done {
            None => {
                let at = replicas.choose(policy, &specs, &all[id], &mut rng);
                served[at] += 1;
                if replicas.busy[at] < SLOTS {
                    starting = Some((at, id))
                } else {
                    replicas.waiting[at].push_back(id)
                }
            }
            Some(at) => {
                replicas.busy[at] -= 1;
                starting = replicas.waiting[at].pop_front().map(|next| (at, next));
                let session = &mut all[id];
                session.turn += 1;
                if session.turn < session.turns {
                    session.grow(rng.u64(200..=2000) / BLOCK, (id as u64) << 8 | session.turn as u64);
                    let pause = exponential(&mut rng, 4.0);
                    events.push(Reverse((at_ms + (pause * MS) as u64, id, None)));
                } else {
                    session.chain = Vec::new();
                }
            }
        }
        if let Some((at, id)) = starting {
            let (hit, takes) = replicas.start(at, &all[id].chain);
            cached += hit;
            total += all[id].chain.len();
            events.push(Reverse((at_ms + (takes * MS) as u64, id, Some(at))));
        }
    }
    Outcome {
        hits: cached as f64 / total as f64,
        requests: imbalance(&served),
        computed: imbalance(&replicas.computed),
    }
}

#[test]
fn conversations_find_their_cache_and_the_load_stays_even() {
    let ours = simulate(Policy::Prefix, 1000);
    let sticky = simulate(Policy::Sticky, 1000);
    let shown =
        |o: &Outcome| format!("hits {:.3}, requests {:.2}, computed {:.2}", o.hits, o.requests, o.computed);
    eprintln!("prefix-affinity: {}; sticky: {}", shown(&ours), shown(&sticky));
    // With 10,000 conversations, requests are within 1.05 of the mean.
    assert!(ours.hits >= 0.90 && ours.requests <= 1.2 && ours.computed <= 1.25, "{}", shown(&ours));
    assert!(ours.hits > sticky.hits && ours.computed < sticky.computed, "{}", shown(&sticky));
}
