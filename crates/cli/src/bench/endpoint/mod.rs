//! `octet bench --url`: measures an OpenAI-compatible endpoint, or compares two.

mod load;
mod prompt;
mod stats;
mod table;

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use url::Url;

use super::Output;
use crate::endpoint::client::{self, Endpoint, Timeouts};
use crate::endpoint::{Object, for_each, object};
use crate::numbers::{count, positive};
use crate::progress::Bar;
use crate::settings::secret;
use crate::usage_error::Usage;
use load::Work;
use table::{Printer, Row};

/// The endpoints to measure, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "Endpoints")]
pub struct EndpointArgs {
    /// Measure the OpenAI-compatible endpoint at this URL; given twice, both alternately, side by side. -p, -n and -o apply; -m is the
    /// model to request (default: the first one listed; 'A,B' for one per endpoint).
    #[arg(long, value_name = "URL", value_parser = client::base, conflicts_with_all = [
        "positional", "hf", "synthetic", "quant", "layers", "weights_seed", "mtp", "n_depth", "parallel",
        "repetitions", "profile", "no_bandwidth"])]
    url: Vec<Url>,
    /// Concurrent requests; one row each. Default: 1,2,4,8.
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = positive)]
    concurrency: Vec<usize>,
    /// Number of requests per row. Default: four times the concurrency, at least 8.
    #[arg(long, value_name = "N", value_parser = positive)]
    requests: Option<usize>,
    /// Number of tokens that all prompts share. Default: none, so that no cache helps.
    #[arg(long, value_name = "N", value_parser = count)]
    shared_prefix: Option<usize>,
    /// Request fields to add, or with null to remove: '{"ignore_eos": true}'.
    #[arg(long, value_name = "JSON", value_parser = object)]
    extra_body: Option<Object>,
    /// Environment variable with the API key; 'A,B' for one per endpoint.
    #[arg(long, value_name = "NAME")]
    api_key_env: Option<String>,
    /// Timeout for a complete answer in seconds. Default: 600.
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    request_timeout: Option<usize>,
    /// Connection timeout in seconds. Default: 10.
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    connect_timeout: Option<usize>,
}

/// The default.
const CONCURRENCY: [usize; 4] = [1, 2, 4, 8];
const TIMEOUT_S: usize = 600;
const CONNECT_TIMEOUT_S: usize = 10;

/// Other flags of `octet bench` that apply here.
pub struct Common<'a> {
    pub n_prompt: &'a [usize],
    pub n_gen: &'a [usize],
    pub model: Option<String>,
    pub warmup: bool,
    pub output: Output,
}

impl EndpointArgs {
    /// Whether an endpoint is measured instead of a local model.
    pub fn is_given(&self) -> bool {
        !self.url.is_empty()
    }

    /// A flag of this group that is given without --url. (clap's `requires` does not work with MODEL, which conflicts with --url.)
    pub fn idle_flag(&self) -> Option<&'static str> {
        let given = [
            (!self.concurrency.is_empty(), "--concurrency"),
            (self.requests.is_some(), "--requests"),
            (self.shared_prefix.is_some(), "--shared-prefix"),
            (self.extra_body.is_some(), "--extra-body"),
            (self.api_key_env.is_some(), "--api-key-env"),
            (self.request_timeout.is_some(), "--request-timeout"),
            (self.connect_timeout.is_some(), "--connect-timeout"),
        ];
        given.into_iter().find(|(is, _)| *is && !self.is_given()).map(|(_, flag)| flag)
    }

    fn shared(&self) -> usize {
        self.shared_prefix.unwrap_or(0)
    }

    fn requests(&self, concurrency: usize) -> usize {
        self.requests.unwrap_or((4 * concurrency).max(8))
    }
}

pub fn run(args: &EndpointArgs, common: &Common) -> anyhow::Result<()> {
    if args.url.len() > 2 {
        return Err(Usage("--url is given more than twice; two endpoints can be compared".into()).into());
    }
    if common.n_prompt.contains(&0) || common.n_gen.contains(&0) {
        return Err(Usage(
            "a request has a prompt and an answer: -p and -n must be above 0 with --url".into(),
        )
        .into());
    }
    if let Some(n) = common.n_prompt.iter().find(|n| **n < args.shared()) {
        let shared = args.shared();
        return Err(Usage(format!("prompts of {n} tokens cannot share {shared}: raise -p")).into());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start")?.block_on(measure(args, common))
}

async fn measure(args: &EndpointArgs, common: &Common<'_>) -> anyhow::Result<()> {
    let endpoints = connect(args, common.model.as_deref()).await?;
    let works = works(args, common);
    let mut next = 0;
    if common.warmup {
        for work in &works {
            warm_up(&endpoints, work, &mut next).await?;
        }
    }
    let levels = match &args.concurrency[..] {
        [] => &CONCURRENCY[..],
        some => some,
    };
    let all = works.len() * endpoints.len() * levels.iter().map(|&c| args.requests(c)).sum::<usize>();
    let mut bar = Bar::steps("");
    let mut done = 0;
    let mut printer = Printer::new(common.output);
    let mut rows: Vec<Vec<Row>> = Vec::new();
    let mut out = std::io::stdout().lock();
    for (work, concurrency) in works.iter().flat_map(|w| levels.iter().map(move |&c| (w, c))) {
        bar.set_message(format!("pp{} tg{}, concurrency {concurrency}", work.n_prompt, work.n_gen));
        let mut tick = || {
            done += 1;
            bar.update(done, all as u64);
        };
        let requests = args.requests(concurrency);
        let levels = load::level(&endpoints, work, concurrency, requests, &mut next, &mut tick).await;
        let row = endpoints.iter().zip(levels);
        let row =
            row.map(|(e, level)| Row { url: e.url.as_str(), model: &e.model, work, concurrency, level });
        let row: Vec<Row> = row.collect();
        printer.rows(&mut out, &row)?;
        rows.push(row);
    }
    drop(bar);
    printer.end(&mut out)?;
    if common.output == Output::Md {
        table::footer(&mut out, &rows)?;
    }
    out.flush()?;
    for (i, endpoint) in endpoints.iter().enumerate() {
        if rows.iter().all(|r| r[i].level.samples.is_empty()) {
            let why = rows.iter().find_map(|r| r[i].level.failures.first()).map_or("", |(why, _)| why);
            bail!("{}: no request succeeded: {why}", endpoint.url);
        }
    }
    Ok(())
}

async fn connect(args: &EndpointArgs, model: Option<&str>) -> anyhow::Result<Vec<Arc<Endpoint>>> {
    let seconds = |given: Option<usize>, or: usize| Duration::from_secs(given.unwrap_or(or) as u64);
    let timeouts = Timeouts {
        connect: seconds(args.connect_timeout, CONNECT_TIMEOUT_S),
        request: seconds(args.request_timeout, TIMEOUT_S),
    };
    let models = for_each(model, args.url.len(), "--model")?;
    let keys = for_each(args.api_key_env.as_deref(), args.url.len(), "--api-key-env")?;
    let mut endpoints = Vec::new();
    for ((url, model), key) in args.url.iter().zip(models).zip(keys) {
        let key = key.map(|name| secret(&name)).transpose()?;
        endpoints.push(Arc::new(Endpoint::new(url.clone(), model, key, timeouts).await?));
    }
    Ok(endpoints)
}

fn works(args: &EndpointArgs, common: &Common) -> Vec<Work> {
    let run = RandomState::new().hash_one(()); // another one in each process
    let extra = args.extra_body.as_ref().map(|o| o.0.clone()).unwrap_or_default();
    let pairs = common.n_prompt.iter().flat_map(|p| common.n_gen.iter().map(move |n| (*p, *n)));
    pairs
        .map(|(n_prompt, n_gen)| Work { n_prompt, n_gen, shared: args.shared(), extra: extra.clone(), run })
        .collect()
}

/// Sends one unmeasured request to each endpoint. If it fails, so would the others.
async fn warm_up(endpoints: &[Arc<Endpoint>], work: &Work, next: &mut u64) -> anyhow::Result<()> {
    for endpoint in endpoints {
        let level = load::level(std::slice::from_ref(endpoint), work, 1, 1, next, &mut || ()).await;
        if let Some((why, _)) = level.first().and_then(|l| l.failures.first()) {
            bail!("{}: the first request failed: {why}; use --no-warmup to measure anyway", endpoint.url);
        }
    }
    Ok(())
}
