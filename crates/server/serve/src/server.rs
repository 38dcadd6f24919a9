//! Connections: accepts them, gives each to the routes, and ends well. Run by the command and by tests.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use octet_engine::scheduler::Shutdown;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::app::{App, Options};
use crate::connections::{self, Activity, Connected};
use crate::http;
use crate::linger::Lingering;
use crate::models::BoxError;

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It has not.
    Run,
    /// What was accepted is finished, and nothing new taken.
    Drain,
    /// At once.
    Stop,
}

/// Longest headers of a request, all together.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// Headers of a request.
const HEADERS_MAX: usize = 100;
/// Longest time for them to come, and for a connection to be silent between requests.
const HEADER_TIME_MAX: Duration = Duration::from_secs(90);
/// After everything is answered, how long the last bytes may take.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(10);
/// The same where it is to end at once.
const LAST_WORD_TIME_MAX: Duration = Duration::from_secs(1);
/// How often a draining server looks whether it is done.
const DRAIN_LOOK: Duration = Duration::from_millis(20);
/// After the system has refused a connection (no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections over the limit: they get an error, or health and metrics. The newest always find a place.
const TURNED_AWAY_MAX: usize = 64;
/// Connections that were closed to make room and whose clients still get the reason; further ones are closed without it.
const PARTING_MAX: usize = 64;
/// Longest time for the request of such a one to come.
const TURNED_AWAY_TIME_MAX: Duration = Duration::from_secs(5);
/// Connections that the system keeps until they are accepted.
const BACKLOG: u32 = 1024;

/// An address that is this server's, at which nothing listens yet: clients are refused, and so is another server.
pub struct Reserved {
    socket: TcpSocket,
    address: SocketAddr,
}

impl Reserved {
    /// Takes an address. Port 0 is any that is free.
    ///
    /// # Errors
    /// Where it is not this machine's, or another program has it.
    pub fn new(address: SocketAddr) -> Result<Self, BoxError> {
        let take = || {
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // On Windows it would let two servers have one port.
            if cfg!(unix) {
                socket.set_reuseaddr(true)?;
            }
            socket.bind(address)?;
            Ok(Self { socket, address })
        };
        take().map_err(|e| unavailable(address, &e))
    }
}

fn unavailable(address: SocketAddr, e: &std::io::Error) -> BoxError {
    let instead = match e.kind() {
        std::io::ErrorKind::AddrInUse => "; stop the program that listens there, or give another --port",
        std::io::ErrorKind::AddrNotAvailable => "; give one of this machine's addresses as --host",
        _ => "",
    };
    format!("cannot listen at {address}: {e}{instead}").into()
}

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    app: Arc<App>,
}

impl Server {
    /// Listens, and opens each model's file to see what it is. Connections wait until [`Server::run`].
    pub async fn bind(address: SocketAddr, options: Options) -> Result<Self, BoxError> {
        Self::listen(Reserved::new(address)?, options)
    }

    /// The same at an address that was taken before. Belongs into a runtime of tokio's.
    pub fn listen(reserved: Reserved, options: Options) -> Result<Self, BoxError> {
        let Reserved { socket, address } = reserved;
        let options = Options { local: address.ip().is_loopback(), ..options };
        let listener = socket.listen(BACKLOG).map_err(|e| unavailable(address, &e))?;
        Ok(Self { listener, app: App::new(options)? })
    }

    /// Where it listens.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What its requests share.
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Loads the first model, so that it is there for the first request, and its failure known at once. False where `stage` says
    /// first that it is to end: then a thread may still be at work on it, which is not to be waited for.
    pub async fn preload(&self, stage: &mut watch::Receiver<Stage>) -> Result<bool, BoxError> {
        tokio::select! {
            loaded = self.app.models.acquire(0, None) => Ok(loaded.map(|_| true)?),
            () = reached(stage, Stage::Drain) => Ok(false),
        }
    }

    /// Serves until `stage` says otherwise. A sender that is gone means to stop.
    pub async fn run(self, mut stage: watch::Receiver<Stage>) {
        let Self { listener, app } = self;
        let idle = tokio::spawn(Arc::clone(&app.models).unload_idle());
        let history = tokio::spawn(Arc::clone(&app).keep_history());
        let lost = tokio::spawn(Arc::clone(&app.models).reload_lost());
        let routes = app.gateway().map(|gateway| tokio::spawn(Arc::clone(gateway).run()));
        let close = watch::Sender::new(());
        let mut draining = stage.clone();
        tokio::select! {
            () = accept(&listener, &app, &close) => {}
            () = drained(&app, &mut draining) => {}
        }
        drop(listener);
        close.send_replace(());
        let mut closed = pin!(close.closed());
        let stopped = tokio::select! {
            () = &mut closed => false,
            () = tokio::time::sleep(FLUSH_TIME_MAX) => {
                tracing::warn!("connections that do not take their last bytes are closed");
                false
            }
            () = reached(&mut stage, Stage::Stop) => true,
        };
        idle.abort();
        history.abort();
        lost.abort();
        if let Some(routes) = routes {
            routes.abort();
        }
        if let Some(gateway) = app.gateway() {
            gateway.stop().await;
        }
        app.models.stop(if stopped { Shutdown::Now } else { Shutdown::Drain }).await;
        if stopped {
            // Clients whose answers were interrupted get an error.
            let _ = tokio::time::timeout(LAST_WORD_TIME_MAX, closed).await;
        }
    }
}

/// Waits for a stage.
async fn reached(stage: &mut watch::Receiver<Stage>, which: Stage) {
    // A sender that is gone counts as all stages.
    let _ = stage.wait_for(|s| *s >= which).await;
}

/// Waits for the signal to shut down, and until every request is answered.
async fn drained(app: &App, stage: &mut watch::Receiver<Stage>) {
    reached(stage, Stage::Drain).await;
    tracing::info!(requests = app.busy(), "finishing open requests; press Ctrl-C again to quit now");
    app.models.drain();
    let answered = async {
        while app.busy() > 0 {
            tokio::time::sleep(DRAIN_LOOK).await;
        }
    };
    tokio::select! {
        () = answered => {}
        () = reached(stage, Stage::Stop) => {}
    }
}

async fn accept(listener: &TcpListener, app: &Arc<App>, close: &watch::Sender<()>) {
    let most = app.options.connections_max.max(1);
    let mut served = Entrance::new(most, http::routes(Arc::clone(app)), HEADER_TIME_MAX, close);
    let mut turned_away =
        Entrance::new(TURNED_AWAY_MAX, http::full(Arc::clone(app)), TURNED_AWAY_TIME_MAX, close);
    // Their answers take no time: whoever is still there is slow to ask, or to go.
    turned_away.oldest_first = true;
    turned_away.http.keep_alive(false);
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(e) => {
                tracing::warn!("a connection could not be accepted: {e}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if let Some(stream) = served.take(stream) {
            tracing::debug!("all {most} connections are taken");
            drop(turned_away.take(stream));
        }
    }
}

/// Where connections come in, as many at a time as there is room for.
struct Entrance<'a> {
    room: Arc<Semaphore>,
    parting: Arc<Semaphore>,
    /// The oldest makes way at once, whatever it is at.
    oldest_first: bool,
    /// Those that came in; some are gone.
    open: Vec<Weak<Activity>>,
    http: http1::Builder,
    idle_max: Duration,
    routes: Router,
    close: &'a watch::Sender<()>,
}

impl<'a> Entrance<'a> {
    fn new(most: usize, routes: Router, header_time: Duration, close: &'a watch::Sender<()>) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(header_time)
            .max_buf_size(HEADER_BYTES_MAX)
            .max_headers(HEADERS_MAX);
        let room = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        let parting = Arc::new(Semaphore::new(PARTING_MAX));
        Self {
            room,
            parting,
            oldest_first: false,
            open: Vec::new(),
            http,
            idle_max: header_time,
            routes,
            close,
        }
    }

    /// Serves a connection, or gives it back where there is no room.
    fn take(&mut self, stream: TcpStream) -> Option<TcpStream> {
        let place = Arc::clone(&self.room).try_acquire_owned().ok();
        match place.or_else(|| self.make_way()) {
            Some(place) => self.serve(stream, place),
            None => return Some(stream),
        }
        None
    }

    /// Closes the connection that has been idle for longest, or whose body comes slowest; its place.
    fn make_way(&self) -> Option<OwnedSemaphorePermit> {
        let open = self.open.iter().filter_map(Weak::upgrade);
        if self.oldest_first {
            let mut open: Vec<_> = open.collect();
            open.sort_unstable_by_key(|a| a.began());
            return open.iter().find_map(|a| a.end());
        }
        let mut worth: Vec<_> = open.filter_map(|a| Some((a.worth()?, a))).collect();
        worth.sort_unstable_by_key(|(worth, _)| *worth);
        worth.iter().find_map(|(_, a)| a.make_way(Arc::clone(&self.parting).try_acquire_owned().ok()))
    }

    fn serve(&mut self, stream: TcpStream, place: OwnedSemaphorePermit) {
        // Tokens are to go out as they come.
        if let Err(e) = stream.set_nodelay(true) {
            tracing::debug!("no TCP_NODELAY: {e}");
        }
        let activity = Activity::new(place);
        if self.open.len() == self.open.capacity() {
            self.open.retain(|a| a.strong_count() > 0);
        }
        self.open.push(Arc::downgrade(&activity));
        let stream = TokioIo::new(Lingering::new(stream, Arc::clone(&activity)));
        let service = Connected::new(self.routes.clone(), Arc::clone(&activity));
        let connection = self.http.serve_connection(stream, service);
        tokio::spawn(connections::serve(connection, activity, self.close.subscribe(), self.idle_max));
    }
}
