//! All servers that are started on demand. Called by the router before it sends a request to one.

use std::fmt;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use octet_config::{PortChoice, Process, ProcessGroup, ProcessSettings};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};

use crate::Error;
use crate::log::Log;
use crate::scheduler::{Membership, Patience, Phase, Scheduler, Step};
use crate::supervise::{self, End, Event, Job};

/// llama-swap's default of `concurrencyLimit`.
const CONCURRENCY: u32 = 10;
/// Lines of a server's output in an error.
const LINES_SHOWN: usize = 12;
/// The group of entries without a group.
const UNGROUPED: &str = "(default)";

/// Options that are not in the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Time limits of turns and retries.
    pub patience: Patience,
    /// Maximum number of requests that wait for one server.
    pub queue_max: usize,
}

impl Default for Options {
    /// 1000 requests.
    fn default() -> Self {
        Self { patience: Patience::default(), queue_max: 1000 }
    }
}

/// All servers. When the last clone is dropped they end; [`Processes::shutdown`] waits for that.
#[derive(Clone)]
pub struct Processes {
    inner: Arc<Inner>,
    _last: Arc<Last>,
}

/// Ends all servers when dropped.
struct Last(Arc<Inner>);

impl Drop for Last {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Permission to send a request to a running server, which stays while this is held.
pub struct Lease {
    inner: Arc<Inner>,
    slot: usize,
    generation: u64,
    base_url: Arc<str>,
    is_counted: bool,
}

/// The state of a server.
#[derive(Debug, Clone)]
pub struct Status {
    /// Its name.
    pub id: String,
    /// What it is doing.
    pub phase: Phase,
    /// Its process.
    pub pid: Option<u32>,
    /// The address at which it listens.
    pub base_url: Option<String>,
    /// Requests that run.
    pub active: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Why it ended last time, if it was not stopped.
    pub failure: Option<String>,
    /// The last lines that it wrote.
    pub log: Vec<String>,
}

type Waiter = oneshot::Sender<Result<Lease, Error>>;

struct Inner {
    state: Mutex<State>,
    /// The state has changed: the driver computes the next time to act again.
    wake: Notify,
    /// Counts ends of servers.
    ends: watch::Sender<u64>,
    options: Options,
    runtime: Handle,
    me: Weak<Self>,
}

struct State {
    scheduler: Scheduler<Waiter>,
    slots: Vec<Slot>,
    is_closed: bool,
}

/// One entry of the configuration, and its server.
struct Slot {
    process: Arc<Process>,
    member: Membership,
    settings: (Duration, u16),
    is_retired: bool,
    /// The number of this start: leases of earlier ones are ignored.
    generation: u64,
    stop: Arc<Notify>,
    log: Arc<Log>,
    base_url: Arc<str>,
    port: Option<u16>,
    pid: Option<u32>,
    failure: Option<String>,
}

impl Processes {
    /// The configured servers; starts none. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// Outside a runtime, or for an entry that cannot be run.
    pub fn new(processes: Vec<Process>, settings: &ProcessSettings) -> Result<Self, Error> {
        Self::with(processes, settings, Options::default())
    }

    /// The same, with options.
    ///
    /// # Errors
    /// As [`Processes::new`].
    pub fn with(
        processes: Vec<Process>,
        settings: &ProcessSettings,
        options: Options,
    ) -> Result<Self, Error> {
        let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let inner = Arc::new_cyclic(|me| Inner {
            state: Mutex::new(State {
                scheduler: Scheduler::new(options.patience),
                slots: Vec::new(),
                is_closed: false,
            }),
            wake: Notify::new(),
            ends: watch::Sender::new(0),
            options,
            runtime,
            me: me.clone(),
        });
        let all = Self { _last: Arc::new(Last(inner.clone())), inner };
        all.reload(processes, settings)?;
        all.inner.runtime.spawn(drive(all.inner.clone()));
        Ok(all)
    }

    /// Applies another configuration. Servers with an unchanged entry continue; others finish their requests and end.
    ///
    /// # Errors
    /// For an entry that cannot be run; then nothing is changed.
    pub fn reload(&self, processes: Vec<Process>, settings: &ProcessSettings) -> Result<(), Error> {
        let entries = entries(processes, settings)?;
        let mut state = self.inner.state();
        let now = Instant::now();
        let mut kept = vec![false; state.slots.len()];
        let mut new = Vec::new();
        for (process, member) in entries {
            let settings = (settings.health_check_timeout, settings.start_port);
            let is_same = |s: &Slot| {
                !s.is_retired
                    && s.settings == settings
                    && s.member == member
                    && is_same_process(&s.process, &process)
            };
            match state.slots.iter().position(is_same) {
                Some(i) => kept[i] = true,
                None => new.push(Slot::new(process, member, settings)),
            }
        }
        for (i, _) in kept.iter().enumerate().filter(|(_, kept)| !**kept) {
            state.slots[i].is_retired = true;
            state.scheduler.retire(i);
        }
        for slot in new {
            let limit = slot.process.concurrency_limit.unwrap_or(CONCURRENCY) as usize;
            let i = state.scheduler.add(slot.member.clone(), limit, slot.process.ttl, now);
            match state.slots.get_mut(i) {
                Some(free) => *free = Slot { generation: free.generation, ..slot },
                None => state.slots.push(slot),
            }
        }
        drop(state);
        self.inner.wake.notify_one();
        Ok(())
    }

    /// Waits until a server accepts a request; starts it if it is not running.
    ///
    /// # Errors
    /// When it cannot be started, or too many wait.
    pub async fn lease(&self, id: &str) -> Result<Lease, Error> {
        // If the client leaves, the driver is woken after `answer` is dropped, to check who is still waiting.
        let _leaves = Wake(&self.inner);
        let (waiter, answer) = oneshot::channel();
        {
            let mut state = self.inner.state();
            let i = state.slots.iter().position(|s| !s.is_retired && s.process.id == id);
            let i = i.ok_or_else(|| Error::Unknown(id.into()))?;
            if state.is_closed {
                return Err(Error::Ending(id.into()));
            }
            if let Some(retry_after) = state.scheduler.rests_for(i, Instant::now())
                && let Some(why) = state.slots[i].failure.clone().filter(|_| state.slots[i].pid.is_none())
            {
                return Err(Error::Resting { id: id.into(), why, retry_after });
            }
            let (_, _, waiting) = state.scheduler.state(i);
            if waiting >= self.inner.options.queue_max {
                return Err(Error::QueueFull { id: id.into(), waiting });
            }
            state.scheduler.ask(i, waiter);
        }
        self.inner.turn();
        self.inner.wake.notify_one(); // there may be another time to act at
        answer.await.unwrap_or_else(|_| Err(Error::Ending(id.into())))
    }

    /// Starts servers without requests, as long as they evict no others: `hooks.on_startup.preload`.
    ///
    /// # Errors
    /// When there is no such entry; then none is started.
    pub fn preload(&self, ids: &[String]) -> Result<(), Error> {
        let mut state = self.inner.state();
        let mut wanted = Vec::new();
        for id in ids {
            let i = state.slots.iter().position(|s| !s.is_retired && s.process.id == *id);
            wanted.push(i.ok_or_else(|| Error::Unknown(id.clone()))?);
        }
        for i in wanted {
            state.scheduler.want(i);
        }
        drop(state);
        self.inner.wake.notify_one();
        Ok(())
    }

    /// Ends a server; the next request starts it again.
    ///
    /// # Errors
    /// When there is no such entry.
    pub fn unload(&self, id: &str) -> Result<(), Error> {
        let mut state = self.inner.state();
        let i = state.slots.iter().position(|s| !s.is_retired && s.process.id == id);
        let i = i.ok_or_else(|| Error::Unknown(id.into()))?;
        if state.scheduler.unload(i, Instant::now()) {
            state.slots[i].stop.notify_one();
        }
        Ok(())
    }

    /// The state of all servers, in the order of the configuration.
    pub fn status(&self) -> Vec<Status> {
        let state = self.inner.state();
        let all = state.slots.iter().enumerate();
        all.filter(|(i, s)| !s.is_retired || state.scheduler.state(*i).0 != Phase::Stopped)
            .map(|(i, slot)| {
                let (phase, active, waiting) = state.scheduler.state(i);
                let runs = slot.pid.is_some();
                Status {
                    id: slot.process.id.clone(),
                    phase,
                    pid: slot.pid,
                    base_url: runs.then(|| slot.base_url.to_string()),
                    active,
                    waiting,
                    failure: slot.failure.clone(),
                    log: slot.log.last(LINES_SHOWN),
                }
            })
            .collect()
    }

    /// Ends all servers, and waits for that: at most the longest `unloadTimeout`.
    pub async fn shutdown(&self) {
        let mut ends = self.inner.ends.subscribe();
        self.inner.close();
        while self.inner.state().slots.iter().any(|s| s.port.is_some() || s.pid.is_some()) {
            if ends.changed().await.is_err() {
                break;
            }
        }
    }
}

impl fmt::Debug for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.status()).finish()
    }
}

/// Wakes the driver when dropped.
struct Wake<'a>(&'a Inner);

impl Drop for Wake<'_> {
    fn drop(&mut self) {
        self.0.wake.notify_one();
    }
}

impl Lease {
    /// Where the server listens: `http://127.0.0.1:5800`.
    pub fn base_url(&self) -> &str {
        &self.base_url
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("base_url", &self.base_url).finish_non_exhaustive()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.is_counted {
            return;
        }
        let mut state = self.inner.state();
        if state.slots[self.slot].generation == self.generation {
            state.scheduler.done(self.slot, Instant::now());
        }
        drop(state);
        self.inner.wake.notify_one();
    }
}

/// Entries with their groups.
fn entries(
    processes: Vec<Process>,
    settings: &ProcessSettings,
) -> Result<Vec<(Arc<Process>, Membership)>, Error> {
    let mut entries = Vec::with_capacity(processes.len());
    for process in processes {
        let invalid = |why: &str| Err(Error::Invalid { id: process.id.clone(), why: why.into() });
        if process.cmd.is_empty() {
            return invalid("its cmd is empty; write the program and its arguments");
        }
        if entries.iter().any(|(p, _): &(Arc<Process>, _)| p.id == process.id) {
            return invalid("there are two entries of that name");
        }
        let names = |g: &&ProcessGroup| g.members.contains(&process.id);
        let member = match settings.groups.iter().find(names) {
            Some(g) => Membership {
                group: g.id.clone(),
                swap: g.swap,
                exclusive: g.exclusive,
                persistent: g.persistent,
            },
            None => Membership { group: UNGROUPED.into(), swap: true, exclusive: true, persistent: false },
        };
        entries.push((Arc::new(process), member));
    }
    Ok(entries)
}

/// Whether two entries are equal, wherever they are in the file.
fn is_same_process(a: &Process, b: &Process) -> bool {
    Process { span: b.span.clone(), ..a.clone() } == *b
}

impl Slot {
    fn new(process: Arc<Process>, member: Membership, settings: (Duration, u16)) -> Self {
        Self {
            process,
            member,
            settings,
            is_retired: false,
            generation: 0,
            stop: Arc::default(),
            log: Arc::default(),
            base_url: "".into(),
            port: None,
            pid: None,
            failure: None,
        }
    }
}

/// Runs the scheduler's steps when they are due, until all [`Processes`] are dropped.
async fn drive(inner: Arc<Inner>) {
    loop {
        let next = inner.turn();
        if inner.state().is_closed {
            break;
        }
        let far = Instant::now() + Duration::from_secs(3600);
        tokio::select! {
            () = tokio::time::sleep_until(next.unwrap_or(far).into()) => {}
            () = inner.wake.notified() => {}
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the steps that are due; returns when the next one is.
    fn turn(&self) -> Option<Instant> {
        let mut state = self.state();
        if state.is_closed {
            return None;
        }
        state.scheduler.forget(Waiter::is_closed);
        let mut steps = Vec::new();
        loop {
            let now = Instant::now();
            let next = state.scheduler.next(now, &mut steps);
            if steps.is_empty() {
                return next;
            }
            for step in steps.drain(..) {
                match step {
                    Step::Grant(i, waiter) => {
                        let inner = self.me.upgrade()?;
                        let slot = &state.slots[i];
                        let (generation, base_url) = (slot.generation, slot.base_url.clone());
                        let lease = Lease { inner, slot: i, generation, base_url, is_counted: true };
                        if let Err(Ok(mut lease)) = waiter.send(Ok(lease)) {
                            // Its client has just left. Dropping its lease would take the lock that is held here.
                            lease.is_counted = false;
                            state.scheduler.done(i, now);
                        }
                    }
                    Step::Stop(i) => state.slots[i].stop.notify_one(),
                    Step::Start(i) => self.start(&mut state, i),
                }
            }
        }
    }

    fn start(&self, state: &mut State, i: usize) {
        let Some(inner) = self.me.upgrade() else { return };
        let taken: Vec<u16> = state.slots.iter().filter_map(|s| s.port).collect();
        let slot = &mut state.slots[i];
        let (ready_within, start_port) = slot.settings;
        let port = match slot.process.port {
            PortChoice::Fixed => Ok(0), // none to fill in
            PortChoice::Chosen => free_port(start_port, &taken),
        };
        slot.generation += 1;
        slot.log = Arc::default();
        slot.stop = Arc::default();
        let generation = slot.generation;
        let port = match port {
            Ok(port) => port,
            Err(why) => {
                // Reported like any other failure, but not under the lock that is held here.
                slot.port = Some(0);
                self.runtime.spawn(async move { inner.ended(i, generation, End::Failed(why)) });
                return;
            }
        };
        slot.port = Some(port);
        let fill = |text: &String| text.replace("${PORT}", &port.to_string());
        slot.base_url = fill(&slot.process.proxy).trim_end_matches('/').into();
        let job = Job {
            process: slot.process.clone(),
            cmd: slot.process.cmd.iter().map(fill).collect(),
            cmd_stop: slot.process.cmd_stop.as_ref().map(|cmd| cmd.iter().map(fill).collect()),
            base_url: slot.base_url.clone(),
            ready_within,
            log: slot.log.clone(),
            stop: slot.stop.clone(),
        };
        tracing::info!("process '{}' is started at {}", job.process.id, job.base_url);
        self.runtime.spawn(async move {
            let tell = |event| inner.happened(i, event);
            let end = supervise::run(&job, tell).await;
            inner.ended(i, generation, end);
        });
    }

    fn happened(&self, i: usize, event: Event) {
        let mut state = self.state();
        match event {
            Event::Started(pid) => state.slots[i].pid = Some(pid),
            Event::Ready => {
                tracing::info!("process '{}' is ready", state.slots[i].process.id);
                state.slots[i].failure = None;
                state.scheduler.ready(i, Instant::now());
            }
        }
        drop(state);
        self.wake.notify_one();
    }

    /// A server has ended, or could not be started.
    fn ended(&self, i: usize, generation: u64, end: End) {
        let mut state = self.state();
        let now = Instant::now();
        let slot = &mut state.slots[i];
        slot.generation = generation + 1; // its leases count no more
        (slot.pid, slot.port) = (None, None);
        let id = slot.process.id.clone();
        let mut refused = Vec::new();
        match end {
            End::Stopped => {
                tracing::info!("process '{id}' has ended");
                state.scheduler.stopped(i, now);
            }
            End::Crashed(how) => {
                tracing::error!("process '{id}' crashed: {how}");
                slot.failure = None; // it had started: later requests wait for the next start
                state.scheduler.crashed(i, now);
            }
            End::Failed(why) => {
                tracing::error!("process '{id}' did not start: {why}");
                slot.failure = Some(why.clone());
                let log = slot.log.last(LINES_SHOWN);
                let error = Error::Start { id, why, log };
                refused = state.scheduler.failed(i, now).into_iter().map(|w| (w, error.clone())).collect();
            }
        }
        drop(state);
        for (waiter, error) in refused {
            let _ = waiter.send(Err(error)); // the receiver is gone if the client has left
        }
        self.ends.send_modify(|n| *n += 1);
        self.wake.notify_one();
    }

    /// Ends all servers and refuses waiting requests.
    fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        for slot in &state.slots {
            slot.stop.notify_one();
        }
        let State { scheduler, .. } = &mut *state;
        scheduler.forget(|_| true); // each hears that it is ended
        drop(state);
        self.wake.notify_one();
    }
}

/// The first port from `start` on which nothing listens.
fn free_port(start: u16, taken: &[u16]) -> Result<u16, String> {
    let is_free =
        |port: &u16| !taken.contains(port) && TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let last = start.saturating_add(999);
    (start..=last).find(is_free).ok_or_else(|| format!("no port from startPort ({start}) to {last} is free"))
}
