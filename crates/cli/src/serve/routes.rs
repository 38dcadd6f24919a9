//! `octet serve --config FILE`: reads and reloads the file, and applies its server settings.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use octet_config::{Config, Disk, Ignoring, Problems, Target};
use octet_serve::{BoxError, Gateway, ImageFetcher, Options, Routes};

use super::ServeArgs;
use super::load::{Load, model_name};
use crate::settings::{self, Settings};
use crate::stderr::note;

/// How often to check whether the file has changed.
const WATCH: Duration = Duration::from_secs(1);

/// Reads a file; `ignored` keys need not be enforced.
pub fn read(file: &Path, ignored: &[String]) -> anyhow::Result<Config> {
    Ok(load(file, ignored)?)
}

/// Reads a file for its models and routes only: protections are up to the server.
pub fn read_unguarded(file: &Path) -> anyhow::Result<Config> {
    Ok(load(file, &["*".into()])?)
}

fn load(file: &Path, ignored: &[String]) -> Result<Config, Problems> {
    Config::load(file, &Ignoring { source: Disk(settings::lookup), keys: ignored })
}

/// The first of several problems, in one line.
fn one_line(file: &Path, problems: &Problems) -> String {
    let first = problems.0.first().map(ToString::to_string).unwrap_or_default();
    match problems.0.len() {
        0 | 1 => first,
        n => format!("{first} (and {} more: octet config check {})", n - 1, file.display()),
    }
}

/// The file's server settings, unless a flag sets them.
pub fn server(
    options: &mut Options,
    address: &mut SocketAddr,
    config: &Config,
    given: &BTreeSet<String>,
) -> anyhow::Result<()> {
    let s = &config.server;
    let open = |flag: &str| !given.contains(flag);
    if let Some(host) = s.host.filter(|_| open("host")) {
        address.set_ip(host);
    }
    if let Some(port) = s.port.filter(|_| open("port")) {
        address.set_port(port);
    }
    if open("cors_origin") && !s.cors_origins.is_empty() {
        options.cors_origins.clone_from(&s.cors_origins);
    }
    if open("allowed_host") {
        let names = s.allowed_hosts.iter().map(|name| {
            super::args::host_name(name).map_err(|e| anyhow::anyhow!("server.allowed_host: {e}"))
        });
        options.host_names.extend(names.collect::<Result<Vec<_>, _>>()?);
    }
    if let Some(timeout) = s.timeout.filter(|_| open("timeout")) {
        options.timeout = (!timeout.is_zero()).then_some(timeout);
    }
    if let Some(bytes) = s.max_body.filter(|_| open("max_body")) {
        options.body_bytes_max = usize::try_from(bytes).unwrap_or(usize::MAX);
    }
    if let Some(most) = s.max_connections.filter(|_| open("max_connections")) {
        options.connections_max = most;
    }
    if let Some(queue) = s.load_queue.filter(|_| open("load_queue")) {
        options.load_queue = queue;
    }
    if let Some(allow) = s.allow_image_urls.filter(|_| open("allow_image_urls")) {
        options.image_urls = allow.then(ImageFetcher::default);
    }
    if open("memory_limit") {
        options.memory.limit = s.memory_limit.or(options.memory.limit);
    }
    let formats: BTreeSet<&str> =
        locals(config).filter_map(|e| e.engine.reasoning_format.as_deref()).collect();
    let mut formats = formats.into_iter();
    match (formats.next(), formats.next()) {
        (Some(a), Some(b)) => anyhow::bail!(
            "reasoning_format is '{a}' in one entry and '{b}' in another; so far it is one for all models of this process"
        ),
        (Some(format), None) if open("reasoning_format") => {
            options.reasoning = format.parse().map_err(|e| anyhow::anyhow!("reasoning_format: {e}"))?;
        }
        _ => {}
    }
    Ok(())
}

fn locals(config: &Config) -> impl Iterator<Item = &octet_config::Local> {
    config.deployments.iter().filter_map(|d| match &d.target {
        Target::Local(local) => Some(local),
        _ => None,
    })
}

/// The router of `config`, and a function to reload it.
pub fn routes(config: Config, file: &Path, args: &ServeArgs, settings: &Settings) -> anyhow::Result<Routes> {
    let memory = args.engine.limit.memory_limit.or(config.server.memory_limit);
    let (load, settings, file) =
        (Load::of(args, settings)?.limited(memory), settings.clone(), file.to_path_buf());
    let reload_settings = settings.clone();
    // The models of the file that was read last.
    let count = Arc::new(AtomicUsize::new(models(&config)));
    let of = Arc::clone(&count);
    let local = move |name: &str, local: &octet_config::Local| -> Result<_, BoxError> {
        let made = || {
            let model = model_name(&local.model, &local.base)?;
            let load = load.clone().with(&local.engine, &local.base, &settings)?;
            let (spec, bill) = load.spec(name, &model, of.load(Ordering::Relaxed), &settings)?;
            note!("{bill}");
            Ok(spec)
        };
        made().map_err(|e: anyhow::Error| crate::described(&e).into())
    };
    Ok(Routes {
        reload: reload(file, args.unsupported.keys.clone(), reload_settings, count),
        local: Arc::new(local),
        watch: Some(WATCH),
        config,
    })
}

/// How many models run in this process: equal entries share one.
fn models(config: &Config) -> usize {
    let mut all = Vec::new();
    for local in locals(config) {
        let how = (&local.model, &local.base, &local.engine);
        if !all.contains(&how) {
            all.push(how);
        }
    }
    all.len()
}

/// The function that reads the file again and counts its models.
fn reload(
    file: PathBuf,
    ignored: Vec<String>,
    settings: Settings,
    count: Arc<AtomicUsize>,
) -> octet_serve::Reload {
    Arc::new(move || {
        let config = self::load(&file, &ignored).map_err(|p| one_line(&file, &p))?;
        super::prerouters::check(&config, &settings).map_err(|e| e.to_string())?;
        count.store(models(&config), Ordering::Relaxed);
        Ok(config)
    })
}

/// Reloads the file on SIGHUP. Must be called inside a tokio runtime.
#[cfg(unix)]
pub fn reload_on_hangup(gateway: &Arc<Gateway>) -> anyhow::Result<()> {
    let mut hangup = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?;
    let gateway = Arc::clone(gateway);
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            gateway.reload_and_log().await;
        }
    });
    Ok(())
}

/// This system has no such signal.
#[cfg(not(unix))]
pub fn reload_on_hangup(_: &Arc<Gateway>) -> anyhow::Result<()> {
    Ok(())
}
