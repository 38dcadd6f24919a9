//! A server for this process only, at a port of the loopback device and with a key: models of this machine are asked as any server is.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::thread::JoinHandle;

use anyhow::Context;
use octet_serve::{Keys, ModelSpec, Reserved, Server, Stage};
use tokio::sync::watch;
use url::Url;

use super::{ServeArgs, limits, model, options, serving_runtime};
use crate::args::EngineArgs;
use crate::progress::Bar;
use crate::random;
use crate::settings::Settings;

/// The server. It ends when this is dropped.
pub struct Local {
    /// The URL of its API, up to `/v1`.
    pub url: Url,
    pub key: String,
    stage: watch::Sender<Stage>,
    thread: Option<JoinHandle<()>>,
}

impl Local {
    /// Loads a model, after downloading it if necessary, and serves it. `timeout` is that of an answer, in seconds.
    pub fn start(name: &str, engine: &EngineArgs, timeout: u64, settings: &Settings) -> anyhow::Result<Self> {
        let mut args = ServeArgs { engine: engine.clone(), ..ServeArgs::plain()? };
        args.server.timeout = timeout;
        args.server.parallel = 1;
        let (spec, _) = model((0, 1), name, &args, settings)?;
        let key = random::secret();
        let spec = ModelSpec { aliases: Vec::new(), ..spec };
        let mut options = options(&args, Keys::new(vec![key.clone()]));
        options.models = vec![spec];
        limits::apply(&mut options);
        let (stage, seen) = watch::channel(Stage::Run);
        let (sender, started) = mpsc::channel();
        let thread = std::thread::spawn(move || serve(options, seen, &sender));
        let working = Bar::working(&format!("loading {name}"));
        let address = started.recv().context("the server ended at once")?;
        drop(working);
        let mut local = Self { url: Url::parse("http://127.0.0.1/v1")?, key, stage, thread: Some(thread) };
        let address = address?;
        local.url = Url::parse(&format!("http://{address}/v1"))?;
        Ok(local)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.stage.send_replace(Stage::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic has been printed by its thread.
            let _ = thread.join();
        }
    }
}

/// Serves until asked to stop; sends the address, or why there is none.
fn serve(
    options: octet_serve::Options,
    mut stage: watch::Receiver<Stage>,
    started: &mpsc::Sender<anyhow::Result<SocketAddr>>,
) {
    let run = || -> anyhow::Result<()> {
        let runtime = serving_runtime()?;
        let served = runtime.block_on(async {
            let reserved =
                Reserved::new((Ipv4Addr::LOCALHOST, 0).into()).map_err(anyhow::Error::from_boxed)?;
            let server = Server::listen(reserved, options).map_err(anyhow::Error::from_boxed)?;
            server.preload(&mut stage).await.map_err(anyhow::Error::from_boxed)?;
            // Nobody waits for it if the command has ended.
            let _ = started.send(Ok(server.address()?));
            server.run(stage).await;
            Ok(())
        });
        runtime.shutdown_background();
        served
    };
    if let Err(e) = run() {
        let _ = started.send(Err(e));
    }
}
