//! Connections: accepts them, gives each to the routes, and ends well. Run by the command and by tests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use octet_engine::scheduler::Shutdown;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::app::{App, Options};
use crate::http;
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

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    app: Arc<App>,
}

impl Server {
    /// Listens, and opens each model's file to see what it is. Connections wait until [`Server::run`].
    pub async fn bind(address: SocketAddr, options: Options) -> Result<Self, BoxError> {
        let options = Options { local: address.ip().is_loopback(), ..options };
        let listener = TcpListener::bind(address).await.map_err(|e| format!("{address}: {e}"))?;
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
    tracing::info!(requests = app.models.busy(), "draining; once more to stop at once");
    app.models.drain();
    let answered = async {
        while app.models.busy() > 0 {
            tokio::time::sleep(DRAIN_LOOK).await;
        }
    };
    tokio::select! {
        () = answered => {}
        () = reached(stage, Stage::Stop) => {}
    }
}

async fn accept(listener: &TcpListener, app: &Arc<App>, connections: &GracefulShutdown) {
    let routes = http::routes(Arc::clone(app));
    let room = Arc::new(Semaphore::new(app.options.connections_max.max(1)));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME_MAX)
        .max_buf_size(HEADER_BYTES_MAX)
        .max_headers(HEADERS_MAX);
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(e) => {
                tracing::warn!("a connection could not be accepted: {e}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Tokens are to go out as they come.
        if let Err(e) = stream.set_nodelay(true) {
            tracing::debug!("no TCP_NODELAY: {e}");
        }
        let service = TowerToHyperService::new(routes.clone());
        let connection = connections.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            if let Err(e) = connection.await {
                tracing::debug!("a connection ended badly: {e}");
            }
            drop(permit);
        });
    }
}
