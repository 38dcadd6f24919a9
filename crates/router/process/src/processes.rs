//! All servers that are started on demand.

use std::fmt;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::swap::{Fit, Host, Patience, Phase, Pool, Refused, Rules, Running};
use octet_config::{PortChoice, Process, ProcessSettings};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use crate::Error;
use crate::groups::{Membership, entries};
use crate::log::Log;
use crate::supervise::{self, End, Event, Job};

/// llama-swap's default of `concurrencyLimit`.
const CONCURRENCY: u32 = 10;
/// Lines of a server's output in an error.
const LINES_SHOWN: usize = 12;
/// A turn is as long as the last load.
const PATIENCE: Patience = Patience {
    turn_loads: 1,
    turn_min: Duration::from_secs(1),
    turn_max: Duration::from_secs(60),
    pause: Duration::from_millis(300),
    keep_place: Duration::ZERO,
    backoff_min: Duration::from_secs(1),
    backoff_max: Duration::from_secs(60),
};

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
        Self { patience: PATIENCE, queue_max: 1000 }
    }
}

/// All servers. When the last clone is dropped they end; [`Processes::shutdown`] waits for that.
#[derive(Clone)]
pub struct Processes {
    last: Arc<Last>,
}

/// Ends all servers when dropped.
struct Last(Arc<Pool<Slots>>);

impl Drop for Last {
    fn drop(&mut self) {
        close(&self.0);
    }
}

/// Permission to send a request to a running server, which stays while this is held.
pub struct Lease(crate::swap::Lease<Slots>);

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

/// The entries of the configuration, at the scheduler's indices.
struct Slots {
    all: Vec<Slot>,
    /// Counts ends of servers.
    ends: watch::Sender<u64>,
}

/// One entry of the configuration, and its server.
struct Slot {
    process: Arc<Process>,
    member: Membership,
    settings: (Duration, u16),
    is_retired: bool,
    stop: Arc<Notify>,
    log: Arc<Log>,
    base_url: Arc<str>,
    port: Option<u16>,
    pid: Option<u32>,
    failure: Option<String>,
}

impl Slots {
    /// The entry of that name in the configuration.
    fn find(&self, id: &str) -> Result<usize, Error> {
        let i = self.all.iter().position(|s| !s.is_retired && s.process.id == id);
        i.ok_or_else(|| Error::Unknown(id.into()))
    }
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
        let slots = Slots { all: Vec::new(), ends: watch::Sender::new(0) };
        let pool = Pool::new(|_| slots, options.patience, options.queue_max, runtime);
        let all = Self { last: Arc::new(Last(pool)) };
        all.reload(processes, settings)?;
        Ok(all)
    }

    fn pool(&self) -> &Arc<Pool<Slots>> {
        &self.last.0
    }

    /// Applies another configuration. Servers with an unchanged entry continue; others finish their requests and end.
    ///
    /// # Errors
    /// For an entry that cannot be run; then nothing is changed.
    pub fn reload(&self, processes: Vec<Process>, settings: &ProcessSettings) -> Result<(), Error> {
        let entries = entries(processes, settings)?;
        let now = Instant::now();
        self.pool().change(|scheduler, slots| {
            let mut kept = vec![false; slots.all.len()];
            let mut new = Vec::new();
            for (process, member) in entries {
                let settings = (settings.health_check_timeout, settings.start_port);
                let is_same = |s: &Slot| {
                    !s.is_retired
                        && s.settings == settings
                        && s.member == member
                        && is_same_process(&s.process, &process)
                };
                match slots.all.iter().position(is_same) {
                    Some(i) => kept[i] = true,
                    None => new.push(Slot::new(process, member, settings)),
                }
            }
            for (i, _) in kept.iter().enumerate().filter(|(_, kept)| !**kept) {
                slots.all[i].is_retired = true;
                scheduler.retire(i);
            }
            for slot in new {
                let limit = slot.process.concurrency_limit.unwrap_or(CONCURRENCY) as usize;
                let i = scheduler.add(limit, slot.process.ttl, now);
                match slots.all.get_mut(i) {
                    Some(free) => *free = slot,
                    None => slots.all.push(slot),
                }
            }
        });
        Ok(())
    }

    /// Waits until a server accepts a request; starts it if it is not running.
    ///
    /// # Errors
    /// When it cannot be started, or too many wait.
    pub async fn lease(&self, id: &str) -> Result<Lease, Error> {
        let lease = self.pool().lease(None, |slots, scheduler| {
            let i = slots.find(id)?;
            let slot = &slots.all[i];
            if let Some(retry_after) = scheduler.rests_for(i, Instant::now())
                && let Some(why) = slot.failure.clone().filter(|_| slot.pid.is_none())
            {
                return Err(Error::Resting { id: id.into(), why, retry_after });
            }
            Ok(i)
        });
        lease.await.map(Lease).map_err(|refused| match refused {
            Refused::QueueFull(waiting) => Error::QueueFull { id: id.into(), waiting },
            Refused::Closed => Error::Ending(id.into()),
            Refused::Because(why) => why,
        })
    }

    /// Starts servers without requests, as long as they evict no others: `hooks.on_startup.preload`.
    ///
    /// # Errors
    /// When there is no such entry; then none is started.
    pub fn preload(&self, ids: &[String]) -> Result<(), Error> {
        self.pool().change(|scheduler, slots| {
            let wanted: Result<Vec<usize>, Error> = ids.iter().map(|id| slots.find(id)).collect();
            wanted?.into_iter().for_each(|i| scheduler.want(i));
            Ok(())
        })
    }

    /// Ends a server; the next request starts it again.
    ///
    /// # Errors
    /// When there is no such entry.
    pub fn unload(&self, id: &str) -> Result<(), Error> {
        self.pool().change(|scheduler, slots| {
            let i = slots.find(id)?;
            if scheduler.unload(i, Instant::now()) {
                slots.all[i].stop.notify_one();
            }
            Ok(())
        })
    }

    /// The state of all servers, in the order of the configuration.
    pub fn status(&self) -> Vec<Status> {
        self.pool().read(|scheduler, slots| {
            let all = slots.all.iter().enumerate();
            all.filter(|(i, s)| !s.is_retired || scheduler.state(*i).0 != Phase::Stopped)
                .map(|(i, slot)| {
                    let (phase, active, waiting) = scheduler.state(i);
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
        })
    }

    /// Ends all servers, and waits for that: at most the longest `unloadTimeout`.
    pub async fn shutdown(&self) {
        let mut ends = self.pool().read(|_, slots| slots.ends.subscribe());
        close(self.pool());
        let runs = |s: &Slot| s.port.is_some() || s.pid.is_some();
        while self.pool().read(|_, slots| slots.all.iter().any(runs)) {
            if ends.changed().await.is_err() {
                break;
            }
        }
    }
}

/// Ends all servers and refuses waiting requests.
fn close(pool: &Pool<Slots>) {
    pool.close();
    pool.read(|_, slots| slots.all.iter().for_each(|slot| slot.stop.notify_one()));
}

impl fmt::Debug for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.status()).finish()
    }
}

impl Lease {
    /// Where the server listens: `http://127.0.0.1:5800`.
    pub fn base_url(&self) -> &str {
        &self.0.access
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("base_url", &self.0.access).finish_non_exhaustive()
    }
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
            stop: Arc::default(),
            log: Arc::default(),
            base_url: "".into(),
            port: None,
            pid: None,
            failure: None,
        }
    }
}

impl Rules for Slots {
    type Error = Error;

    fn fits(&mut self, x: usize, running: &[Running]) -> Fit<Error> {
        let by: Vec<usize> = running.iter().map(|r| r.index).filter(|y| self.evicts(x, *y)).collect();
        if by.is_empty() { Fit::Yes } else { Fit::Blocked { by, again: None } }
    }

    fn overtakes(&mut self, later: usize, earlier: usize) -> bool {
        self.evicts(later, earlier) || self.evicts(earlier, later)
    }
}

impl Host for Slots {
    type Access = Arc<str>;

    fn start(&mut self, x: usize, pool: &Arc<Pool<Self>>) {
        let taken: Vec<u16> = self.all.iter().filter_map(|s| s.port).collect();
        let slot = &mut self.all[x];
        let (ready_within, start_port) = slot.settings;
        let port = match slot.process.port {
            PortChoice::Fixed => Ok(0), // none to fill in
            PortChoice::Chosen => free_port(start_port, &taken),
        };
        slot.log = Arc::default();
        slot.stop = Arc::default();
        let owner = Arc::clone(pool);
        let port = match port {
            Ok(port) => port,
            Err(why) => {
                // Reported like any other failure, but not under the lock that is held here.
                slot.port = Some(0);
                pool.spawn(async move { ended(&owner, x, End::Failed(why)) });
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
        pool.spawn(async move {
            let end = supervise::run(&job, |event| happened(&owner, x, event)).await;
            ended(&owner, x, end);
        });
    }

    fn stop(&mut self, x: usize, _: &Arc<Pool<Self>>) {
        self.all[x].stop.notify_one();
    }

    fn access(&mut self, x: usize) -> Arc<str> {
        self.all[x].base_url.clone()
    }
}

impl Slots {
    /// Whether `a` cannot start while `b` runs.
    fn evicts(&self, a: usize, b: usize) -> bool {
        self.all[a].member.evicts(&self.all[b].member)
    }
}

/// A server was started, or is ready.
fn happened(pool: &Pool<Slots>, i: usize, event: Event) {
    pool.change(|scheduler, slots| match event {
        Event::Started(pid) => slots.all[i].pid = Some(pid),
        Event::Ready => {
            tracing::info!("process '{}' is ready", slots.all[i].process.id);
            slots.all[i].failure = None;
            scheduler.ready(i, Instant::now());
        }
    });
}

/// A server has ended, or could not be started.
fn ended(pool: &Pool<Slots>, i: usize, end: End) {
    pool.change(|scheduler, slots| {
        let now = Instant::now();
        let slot = &mut slots.all[i];
        (slot.pid, slot.port) = (None, None);
        let id = slot.process.id.clone();
        match end {
            End::Stopped => {
                tracing::info!("process '{id}' has ended");
                scheduler.stopped(i, now);
            }
            End::Crashed(how) => {
                tracing::error!("process '{id}' crashed: {how}");
                slot.failure = None; // it had started: later requests wait for the next start
                scheduler.crashed(i, now);
            }
            End::Failed(why) => {
                tracing::error!("process '{id}' did not start: {why}");
                slot.failure = Some(why.clone());
                let error = Error::Start { id, why, log: slot.log.last(LINES_SHOWN) };
                scheduler.failed(i, now).into_iter().for_each(|w| w.refuse(error.clone()));
            }
        }
        slots.ends.send_modify(|n| *n += 1);
    });
}

/// The first port from `start` on which nothing listens.
fn free_port(start: u16, taken: &[u16]) -> Result<u16, String> {
    let is_free =
        |port: &u16| !taken.contains(port) && TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let last = start.saturating_add(999);
    (start..=last).find(is_free).ok_or_else(|| format!("no port from startPort ({start}) to {last} is free"))
}
