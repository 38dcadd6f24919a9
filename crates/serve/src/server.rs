//! Connections: accepts them, gives each to the routes, and ends well. Run by the command and by tests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use octet_engine::scheduler::Shutdown;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::app::{App, Options};
use crate::http;
use crate::linger::{Lingering, Unread};
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
/// How often a draining server looks whether it is done.
const DRAIN_LOOK: Duration = Duration::from_millis(20);
/// After the system has refused a connection (no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections beyond the most that there may be, which are told so; others are closed without a word.
const TURNED_AWAY_MAX: usize = 64;
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
    format!("can not listen at {address}: {e}{instead}").into()
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

    /// Loads the first model, so that it is there for the first request, and its failure known at once.
    pub async fn preload(&self) -> Result<(), BoxError> {
        Ok(self.app.models.acquire(0, None).await.map(drop)?)
    }

    /// Serves until `stage` says otherwise. A sender that is gone means to stop.
    pub async fn run(self, mut stage: watch::Receiver<Stage>) {
        let Self { listener, app } = self;
        let idle = tokio::spawn(Arc::clone(&app.models).unload_idle());
        let routes = app.gateway().map(|gateway| tokio::spawn(Arc::clone(gateway).run()));
        let connections = GracefulShutdown::new();
        let mut draining = stage.clone();
        tokio::select! {
            () = accept(&listener, &app, &connections) => {}
            () = drained(&app, &mut draining) => {}
        }
        drop(listener);
        tokio::select! {
            () = connections.shutdown() => {}
            () = tokio::time::sleep(FLUSH_TIME_MAX) => tracing::warn!("connections that do not take their last bytes are closed"),
            () = reached(&mut stage, Stage::Stop) => {}
        }
        idle.abort();
        if let Some(routes) = routes {
            routes.abort();
        }
        if let Some(gateway) = app.gateway() {
            gateway.stop().await;
        }
        let how = if *stage.borrow() == Stage::Stop { Shutdown::Now } else { Shutdown::Drain };
        app.models.stop(how).await;
    }
}

/// Waits for a stage.
async fn reached(stage: &mut watch::Receiver<Stage>, which: Stage) {
    // A sender that is gone counts as all stages.
    let _ = stage.wait_for(|s| *s >= which).await;
}

/// Waits until the server has been told to end, and everything is answered.
async fn drained(app: &App, stage: &mut watch::Receiver<Stage>) {
    reached(stage, Stage::Drain).await;
    tracing::info!(requests = app.busy(), "draining; once more to stop at once");
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

async fn accept(listener: &TcpListener, app: &Arc<App>, connections: &GracefulShutdown) {
    let most = app.options.connections_max.max(1);
    let served = Entrance::new(most, http::routes(Arc::clone(app)), HEADER_TIME_MAX, connections);
    let mut turned_away =
        Entrance::new(TURNED_AWAY_MAX, http::full(Arc::clone(app)), TURNED_AWAY_TIME_MAX, connections);
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
    http: http1::Builder,
    routes: Router,
    connections: &'a GracefulShutdown,
}

impl<'a> Entrance<'a> {
    fn new(most: usize, routes: Router, header_time: Duration, connections: &'a GracefulShutdown) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(header_time)
            .max_buf_size(HEADER_BYTES_MAX)
            .max_headers(HEADERS_MAX);
        let room = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Self { room, http, routes, connections }
    }

    /// Serves a connection, or gives it back where there is no room.
    fn take(&self, stream: TcpStream) -> Option<TcpStream> {
        match Arc::clone(&self.room).try_acquire_owned() {
            Ok(permit) => self.serve(stream, permit),
            Err(_) => return Some(stream),
        }
        None
    }

    fn serve(&self, stream: TcpStream, permit: OwnedSemaphorePermit) {
        // Tokens are to go out as they come.
        if let Err(e) = stream.set_nodelay(true) {
            tracing::debug!("no TCP_NODELAY: {e}");
        }
        let unread = Unread::default();
        let stream = TokioIo::new(Lingering::new(stream, unread.clone()));
        let service = Connected { routes: TowerToHyperService::new(self.routes.clone()), unread };
        let connection = self.connections.watch(self.http.serve_connection(stream, service));
        tokio::spawn(async move {
            if let Err(e) = connection.await {
                tracing::debug!("a connection ended badly: {e}");
            }
            drop(permit);
        });
    }
}

/// The routes for the requests of one connection, which tell it where they leave something unread.
struct Connected {
    routes: TowerToHyperService<Router>,
    unread: Unread,
}

impl Service<Request<Incoming>> for Connected {
    type Response = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Response;
    type Error = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Error;
    type Future = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Future;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.unread.clone());
        self.routes.call(request)
    }
}
