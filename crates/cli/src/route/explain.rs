//! `octet route explain`: each decision about a request, without sending it or while it is answered.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use octet_api::core::GenerateRequest;
use octet_api::{anthropic, openai};
use octet_config::{Config, Target as Whose, printable};
use octet_router::{Ask, Call, Events, Failure, FailureKind, Piece, Route, Router, Step, Table, Target};
use octet_serve::{App, Options};

use crate::serve::{ServeArgs, routes};
use crate::settings::Settings;

/// A deployment that is never contacted.
pub struct Planned(String);

/// An answer that never exists.
pub enum Nothing {}

impl Events for Nothing {
    async fn next(&mut self) -> Option<Result<Piece, Failure>> {
        None
    }
}

impl Target for Planned {
    type Events = Nothing;

    async fn generate(&self, _: Ask<'_>) -> Result<Nothing, Failure> {
        Err(Failure::new(FailureKind::Cancelled, "nothing is sent"))
    }

    fn model(&self) -> &str {
        &self.0
    }
}

/// Parses a request in any dialect.
fn request(body: &[u8]) -> anyhow::Result<GenerateRequest> {
    let as_chat = match openai::chat::parse(body) {
        Ok(request) => return Ok(request),
        Err(e) => e,
    };
    let others = [anthropic::messages::parse(body), openai::completions::parse(body)];
    let read = others.into_iter().find_map(Result::ok);
    read.ok_or_else(|| anyhow::anyhow!("the request cannot be read as OpenAI's chat: {}", as_chat.message))
}

fn headers(given: &[String]) -> anyhow::Result<Vec<(String, String)>> {
    let split = |h: &String| {
        let (name, value) =
            h.split_once(':').with_context(|| format!("--header '{h}': expected NAME: VALUE"))?;
        Ok((name.trim().to_lowercase(), value.trim().to_string()))
    };
    given.iter().map(split).collect()
}

/// A router for `config` whose deployments are never contacted.
pub fn planned(config: &Config) -> anyhow::Result<Arc<Router<Planned>>> {
    let router = Router::new(config, fastrand_seed(), |d| {
        Ok(Planned(match &d.target {
            Whose::Remote(remote) => remote.model.clone(),
            Whose::Local(local) => local.model.clone(),
            Whose::Process(process) => process.model.clone(),
        }))
    })?;
    Ok(Arc::new(router))
}

/// What to explain.
pub struct Explained<'a> {
    /// The request's file.
    pub request: &'a Path,
    /// The router's configuration.
    pub config: &'a Path,
    /// Headers of the request.
    pub headers: &'a [String],
    /// Send the request, and read its answer.
    pub send: bool,
    /// Print JSON.
    pub json: bool,
}

pub fn run(args: &Explained<'_>, settings: &Settings) -> anyhow::Result<()> {
    let body = crate::chat::read_or_stdin(args.request)?;
    let config = routes::read_unguarded(args.config)?;
    let router = planned(&config)?;
    let as_json = args.json;
    let call = Call { headers: headers(args.headers)?, ..Call::new(request(body.as_bytes())?) };
    let route = if args.send {
        sent(call, config, args.config, settings)?
    } else {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        runtime.block_on(router.explain(call))
    };
    if as_json {
        crate::stdout::print(&format!("{}\n", serde_json::to_string_pretty(&route)?))?;
    } else {
        crate::stdout::print(&text(&route))?;
    }
    match chosen(&route) {
        Some(_) => Ok(()),
        None => anyhow::bail!(no_deployment(&route, &router.table())),
    }
}

/// The route of a request that is sent.
fn sent(call: Call, config: Config, file: &Path, settings: &Settings) -> anyhow::Result<Route> {
    let mut options = Options::new(Vec::new());
    let made = routes::routes(config, file, &ServeArgs::plain()?, settings)?;
    options.routes = Some(octet_serve::Routes { watch: None, ..made });
    crate::serve::serving_runtime()?.block_on(async {
        let app = App::new(options).map_err(anyhow::Error::from_boxed)?;
        let gateway = app.gateway().context("there is no router")?;
        let route = gateway.routed(call).await;
        gateway.stop().await;
        Ok(route)
    })
}

/// The deployment that would answer.
fn chosen(route: &Route) -> Option<&str> {
    route.steps.iter().rev().find_map(|step| match step {
        Step::Chose { deployment, .. } => Some(deployment.as_str()),
        _ => None,
    })
}

/// Why no deployment would answer.
fn no_deployment<T: Target>(route: &Route, table: &Table<T>) -> String {
    let name = printable(&route.requested_model);
    if route.steps.iter().any(|s| matches!(s, Step::Resolved { .. } | Step::Fallback { .. })) {
        return format!("no deployment would answer '{name}'");
    }
    match octet_config::near(&route.requested_model, table.names().iter().map(String::as_str))[..] {
        [] => format!("no route has the name '{name}'; there are: {}", printable(&table.known())),
        ref near => format!("no route has the name '{name}'; near it are: {}", printable(&near.join(", "))),
    }
}

/// A new seed each time, as in the server.
fn fastrand_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos()) ^ now.as_secs().rotate_left(32)
}

/// One line per decision.
fn text(route: &Route) -> String {
    let mut out = format!("{}\n", printable(&route.requested_model));
    for step in &route.steps {
        let line = match step {
            Step::Resolved { to, by } => {
                format!("resolves to {to} (by {})", format!("{by:?}").to_lowercase())
            }
            Step::Rule { rule, to } => format!("{rule} sends it to {to}"),
            Step::PassedOver { deployment, why } => format!("passes over {deployment}: {why:?}"),
            Step::Chose { group, deployment, why } => format!("chooses {deployment} of {group}: {why}"),
            Step::Failed { deployment, kind, message, .. } => {
                format!("{deployment} fails ({kind}): {message}")
            }
            Step::Fallback { from, to, why } => format!("falls back from {from} to {to}: {why}"),
            Step::Confidence { signal: Some(signal), value: Some(value), tokens, probe, verdict, .. } => {
                let of = if *probe { " of a greedy copy" } else { "" };
                format!("{signal} of {tokens} tokens{of} is {value:.4}: {verdict}")
            }
            Step::Confidence { logprob: Some(mean), margin, tokens, verdict, .. } => {
                let margin = margin.map_or(String::new(), |m| format!(", mean margin {m:.3}"));
                format!("mean log-probability of {tokens} tokens is {mean:.3}{margin}: {verdict}")
            }
            Step::Confidence { verdict, .. } => format!("its tokens are not measured: {verdict}"),
            Step::Prerouted { probability: Some(p), to, .. } => {
                format!(
                    "the prerouter expects a right answer of the fast model with probability {p:.3}: {to}"
                )
            }
            Step::Prerouted { probability: None, to, .. } => {
                format!("the prerouter has no embedding of the prompt: {to}")
            }
            Step::ToolCalls { why: Some(why), verdict } => format!("{why}: {verdict}"),
            Step::ToolCalls { why: None, verdict } => {
                format!("its tool calls match their schemas: {verdict}")
            }
            Step::SelfCheck { probability: Some(p), verdict } => {
                format!("it calls its answer right with probability {p:.3}: {verdict}")
            }
            Step::SelfCheck { probability: None, verdict } => {
                format!("its self-check says neither yes nor no: {verdict}")
            }
            other => format!("{other:?}"),
        };
        out += &format!("  {}\n", printable(&line));
    }
    if let Some(answered) = &route.answered {
        out += &format!("{} answered\n", printable(&answered.deployment));
    } else if let Some(deployment) = chosen(route) {
        out += &format!("{} would answer\n", printable(deployment));
    }
    out
}
