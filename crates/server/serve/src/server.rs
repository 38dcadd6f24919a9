//! Accepts connections, passes them to the routes, and shuts down gracefully.

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

/// The stages of shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Running normally.
    Run,
    /// Accepted requests are finished; new ones are refused.
    Drain,
    /// Stop at once.
    Stop,
}

/// Maximum size of all headers of a request.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// Maximum number of headers of a request.
const HEADERS_MAX: usize = 100;
/// Maximum time for the headers to arrive, and for a connection to be idle between requests.
const HEADER_TIME_MAX: Duration = Duration::from_secs(90);
/// Maximum time to send the last bytes after everything is answered.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(10);
/// The same for [`Stage::Stop`].
const LAST_WORD_TIME_MAX: Duration = Duration::from_secs(1);
/// How often a draining server checks whether it is done.
const DRAIN_LOOK: Duration = Duration::from_millis(20);
/// Pause after `accept` failed (for example, no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum time for the headers of a connection over the limit.
const TURNED_AWAY_TIME_MAX: Duration = Duration::from_secs(5);
/// The listen backlog.
const BACKLOG: u32 = 1024;

/// A bound address on which the server does not listen yet: clients are refused, and no other server can bind it.
pub struct Reserved {
    socket: Socket,
    address: SocketAddr,
}

enum Socket {
    Bound(TcpSocket),
    /// Connections already wait at it.
    Listening(std::net::TcpListener),
}

impl Reserved {
    /// Binds an address. Port 0 picks a free port.
    ///
    /// # Errors
    /// If the address is not one of this machine's, or another program uses it.
    pub fn new(address: SocketAddr) -> Result<Self, BoxError> {
        let take = || {
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // On Windows it would let two servers bind the same port.
            if cfg!(unix) {
                socket.set_reuseaddr(true)?;
            }
            socket.bind(address)?;
            Ok(Self { socket: Socket::Bound(socket), address })
        };
        take().map_err(|e| unavailable(address, &e))
    }

    /// A socket that another program, such as systemd, has opened and listens at: it stays open when this server is restarted.
    ///
    /// # Errors
    /// If it is not a listening socket.
    pub fn inherited(listener: std::net::TcpListener) -> Result<Self, BoxError> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Self { socket: Socket::Listening(listener), address })
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn unavailable(address: SocketAddr, e: &std::io::Error) -> BoxError {
    let instead = match e.kind() {
        std::io::ErrorKind::AddrInUse => "; stop the program that listens there, or choose another --port",
        std::io::ErrorKind::AddrNotAvailable => "; set --host to one of this machine's addresses",
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
    /// Listens, and opens each model's file to read its metadata. Connections wait until [`Server::run`].
    pub async fn bind(address: SocketAddr, options: Options) -> Result<Self, BoxError> {
        Self::listen(Reserved::new(address)?, options)
    }

    /// The same at a bound address. Must be called inside a tokio runtime.
    pub fn listen(reserved: Reserved, options: Options) -> Result<Self, BoxError> {
        let Reserved { socket, address } = reserved;
        let options = Options { local: address.ip().to_canonical().is_loopback(), ..options };
        let listener = match socket {
            Socket::Bound(socket) => socket.listen(BACKLOG),
            Socket::Listening(listener) => TcpListener::from_std(listener),
        };
        let listener = listener.map_err(|e| unavailable(address, &e))?;
        Ok(Self { listener, app: App::new(options)? })
    }

    /// The address on which it listens.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The state that its requests share.
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Loads the first model, so that the first request does not wait and a failure shows at once. Returns false if `stage` asks
    /// for shutdown first; a thread may then still be loading the model.
    pub async fn preload(&self, stage: &mut watch::Receiver<Stage>) -> Result<bool, BoxError> {
        tokio::select! {
            loaded = self.app.models().acquire(0, None) => Ok(loaded.map(|_| true)?),
            () = wait_for_stage(stage, Stage::Drain) => Ok(false),
        }
    }

    /// Serves until `stage` asks for shutdown. A dropped sender means [`Stage::Stop`].
    pub async fn run(self, mut stage: watch::Receiver<Stage>) {
        let Self { listener, app } = self;
        let history = tokio::spawn(Arc::clone(&app).keep_history());
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
                tracing::warn!("closing connections whose clients do not receive their last bytes");
                false
            }
            () = wait_for_stage(&mut stage, Stage::Stop) => true,
        };
        history.abort();
        if let Some(routes) = routes {
            routes.abort();
        }
        if let Some(gateway) = app.gateway() {
            gateway.stop().await;
        }
        app.models().stop(if stopped { Shutdown::Now } else { Shutdown::Drain }).await;
        if stopped {
            // Clients whose answers were interrupted get an error.
            let _ = tokio::time::timeout(LAST_WORD_TIME_MAX, closed).await;
        }
    }
}

/// Waits for a stage.
async fn wait_for_stage(stage: &mut watch::Receiver<Stage>, which: Stage) {
    // A dropped sender counts as the last stage.
    let _ = stage.wait_for(|s| *s >= which).await;
}

/// Waits for the signal to shut down, and until every request is answered.
async fn drained(app: &App, stage: &mut watch::Receiver<Stage>) {
    wait_for_stage(stage, Stage::Drain).await;
    match app.busy() {
        0 => tracing::info!("stopping"),
        requests => tracing::info!(requests, "finishing open requests; press Ctrl-C again to quit now"),
    }
    app.models().drain();
    let answered = async {
        while app.busy() > 0 {
            tokio::time::sleep(DRAIN_LOOK).await;
        }
    };
    tokio::select! {
        () = answered => {}
        () = wait_for_stage(stage, Stage::Stop) => {}
    }
}

async fn accept(listener: &TcpListener, app: &Arc<App>, close: &watch::Sender<()>) {
    let most = app.options.connections_max.max(1);
    // Connections over the limit get an error, or health and metrics; a new one replaces the oldest. As many clients of evicted ones get an
    // error response; further ones are closed without it.
    let spare = app.options.spare_connections.max(1);
    let mut served = Acceptor::new((most, spare), http::routes(Arc::clone(app)), HEADER_TIME_MAX, close);
    let mut turned_away =
        Acceptor::new((spare, spare), http::full(Arc::clone(app)), TURNED_AWAY_TIME_MAX, close);
    // These are answered at once, so a connection that is still open has a slow client.
    turned_away.oldest_first = true;
    turned_away.http.keep_alive(false);
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(e) => {
                tracing::warn!("a connection could not be accepted: {e}");
                if is_out_of_files(&e) {
                    // Of all that is open, idle connections are needed least.
                    drop(turned_away.evict().or_else(|| served.evict()));
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if let Some(stream) = served.admit(stream) {
            tracing::debug!("all {most} connections are in use");
            drop(turned_away.admit(stream));
        }
    }
}

/// Whether the process, or the system, has no file descriptors left: `EMFILE`, `ENFILE`.
fn is_out_of_files(e: &std::io::Error) -> bool {
    cfg!(unix) && matches!(e.raw_os_error(), Some(23 | 24))
}

/// Accepts connections up to a maximum number.
struct Acceptor<'a> {
    room: Arc<Semaphore>,
    parting: Arc<Semaphore>,
    /// Evict the oldest connection at once, whatever its state.
    oldest_first: bool,
    /// Accepted connections; some are closed already.
    open: Vec<Weak<Activity>>,
    http: http1::Builder,
    idle_max: Duration,
    routes: Router,
    close: &'a watch::Sender<()>,
}

impl<'a> Acceptor<'a> {
    fn new(
        (most, parting): (usize, usize),
        routes: Router,
        header_time: Duration,
        close: &'a watch::Sender<()>,
    ) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(header_time)
            .max_buf_size(HEADER_BYTES_MAX)
            .max_headers(HEADERS_MAX);
        let room = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        let parting = Arc::new(Semaphore::new(parting.min(Semaphore::MAX_PERMITS)));
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

    /// Serves a connection, or returns it if the maximum is reached.
    fn admit(&mut self, stream: TcpStream) -> Option<TcpStream> {
        let place = Arc::clone(&self.room).try_acquire_owned().ok();
        match place.or_else(|| self.evict()) {
            Some(place) => self.serve(stream, place),
            None => return Some(stream),
        }
        None
    }

    /// Closes the connection that has been idle longest, or else receives its body slowest; returns its permit.
    fn evict(&self) -> Option<OwnedSemaphorePermit> {
        let open = self.open.iter().filter_map(Weak::upgrade);
        if self.oldest_first {
            let mut open: Vec<_> = open.collect();
            open.sort_unstable_by_key(|a| a.began());
            return open.iter().find_map(|a| a.end());
        }
        let mut candidates: Vec<_> = open.filter_map(|a| Some((a.eviction_order()?, a))).collect();
        candidates.sort_unstable_by_key(|(candidates, _)| *candidates);
        candidates.iter().find_map(|(_, a)| a.evict(Arc::clone(&self.parting).try_acquire_owned().ok()))
    }

    fn serve(&mut self, stream: TcpStream, place: OwnedSemaphorePermit) {
        // Tokens must be sent as they are generated.
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
