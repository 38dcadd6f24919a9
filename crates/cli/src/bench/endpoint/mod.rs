//! `octet bench --url`: how fast an endpoint of OpenAI's kind answers, or how two of them compare. Called by `bench`.

mod client;
mod load;
mod prompt;
mod stats;
mod stream;
mod table;

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Map, Value};
use url::Url;

use super::Output;
use crate::Usage;
use crate::numbers::{count, positive};
use crate::progress::Bar;
use crate::settings::secret;
use client::{Endpoint, Timeouts};
use load::Work;
use table::{Printer, Row};

/// Which endpoints are measured, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "Endpoints")]
pub struct EndpointArgs {
    /// Measure the OpenAI-compatible endpoint at this address; given twice, both in turns, side by side. -p, -n and
    /// -o count; -m is the model to ask for, else the first one listed ('A,B' for each endpoint its own).
    #[arg(long, value_name = "URL", value_parser = client::base, conflicts_with_all = [
        "positional", "hf", "synthetic", "quant", "layers", "weights_seed", "mtp", "n_depth", "parallel",
        "repetitions", "profile", "no_bandwidth"])]
    url: Vec<Url>,
    /// Requests that run at the same time; one row each. Default: 1,2,4,8.
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = positive)]
    concurrency: Vec<usize>,
    /// Requests of each row. Default: four times the concurrency, at least 8.
    #[arg(long, value_name = "N", value_parser = positive)]
    requests: Option<usize>,
    /// Tokens that all prompts begin with. Without it prompts differ from the start, and no cache helps.
    #[arg(long, value_name = "N", value_parser = count)]
    shared_prefix: Option<usize>,
    /// Fields of the request to add, or with null to leave out: '{"ignore_eos": true}'.
    #[arg(long, value_name = "JSON", value_parser = object)]
    extra_body: Option<Object>,
    /// The environment variable that holds the API key; 'A,B' for each endpoint its own.
    #[arg(long, value_name = "NAME")]
    api_key_env: Option<String>,
    /// Seconds until an answer must be complete. Default: 600.
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    request_timeout: Option<usize>,
    /// Seconds until there must be a connection. Default: 10.
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    connect_timeout: Option<usize>,
}

/// Where none are asked for.
const CONCURRENCY: [usize; 4] = [1, 2, 4, 8];
const TIMEOUT_S: usize = 600;
const CONNECT_TIMEOUT_S: usize = 10;

/// Fields of a JSON object; clap would take a bare `Map` for a list.
#[derive(Debug, Clone)]
struct Object(Map<String, Value>);

fn object(text: &str) -> Result<Object, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) if fields.contains_key("stream") => {
            Err("answers are always streamed; leave 'stream' out".into())
        }
        Ok(Value::Object(fields)) => Ok(Object(fields)),
        Ok(_) => Err("expected a JSON object".into()),
        Err(e) => Err(format!("expected a JSON object: {e}")),
    }
}

/// The part of the other flags of `octet bench` that counts here.
pub struct Common<'a> {
    pub n_prompt: &'a [usize],
    pub n_gen: &'a [usize],
    pub model: Option<String>,
    pub warmup: bool,
    pub output: Output,
}

impl EndpointArgs {
    /// Whether an endpoint is measured, and no model here.
    pub fn is_given(&self) -> bool {
        !self.url.is_empty()
    }

    /// A flag that says how to measure an endpoint where none is. (Not clap's `requires`, which a MODEL would switch
    /// off: that conflicts with what is required.)
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
        bar.say(format!("pp{} tg{}, concurrency {concurrency}", work.n_prompt, work.n_gen));
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

/// One value for all endpoints, or with a comma one for each; none where that is empty.
fn for_each(value: Option<&str>, endpoints: usize, flag: &str) -> Result<Vec<Option<String>>, Usage> {
    let Some(value) = value else { return Ok(vec![None; endpoints]) };
    // Names of models may hold commas; where there is one endpoint, nothing is to be told apart.
    let values: Vec<&str> = if endpoints == 1 { vec![value] } else { value.split(',').collect() };
    let own = |v: &str| (!v.is_empty()).then(|| v.to_string());
    match values[..] {
        [one] => Ok(vec![own(one); endpoints]),
        _ if values.len() == endpoints => Ok(values.into_iter().map(own).collect()),
        _ => Err(Usage(format!("{flag} names {} for {endpoints} endpoints", values.len()))),
    }
}

fn works(args: &EndpointArgs, common: &Common) -> Vec<Work> {
    let run = RandomState::new().hash_one(()); // another one in each process
    let extra = args.extra_body.as_ref().map(|o| o.0.clone()).unwrap_or_default();
    let pairs = common.n_prompt.iter().flat_map(|p| common.n_gen.iter().map(move |n| (*p, *n)));
    pairs
        .map(|(n_prompt, n_gen)| Work { n_prompt, n_gen, shared: args.shared(), extra: extra.clone(), run })
        .collect()
}

/// One request to each endpoint that does not count. Fails where it does: no other would do better.
async fn warm_up(endpoints: &[Arc<Endpoint>], work: &Work, next: &mut u64) -> anyhow::Result<()> {
    for endpoint in endpoints {
        let level = load::level(std::slice::from_ref(endpoint), work, 1, 1, next, &mut || ()).await;
        if let Some((why, _)) = level.first().and_then(|l| l.failures.first()) {
            bail!("{}: the first request failed: {why}; --no-warmup measures in spite of it", endpoint.url);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_share_a_value_or_have_their_own() {
        let each = |value, n| for_each(value, n, "--model").map_err(|u| u.0);
        let some = |s: &str| Some(s.to_string());
        assert_eq!(each(None, 2).unwrap(), [None, None]);
        assert_eq!(each(Some("a"), 2).unwrap(), [some("a"), some("a")]);
        assert_eq!(each(Some("a,b"), 2).unwrap(), [some("a"), some("b")]);
        assert_eq!(each(Some(",b"), 2).unwrap(), [None, some("b")]);
        assert_eq!(each(Some("a,b"), 1).unwrap(), [some("a,b")]);
        assert!(each(Some("a,b,c"), 2).unwrap_err().contains("--model"));
    }

    #[test]
    fn extra_fields_are_an_object() {
        assert!(object(r#"{"ignore_eos": true}"#).is_ok());
        for bad in ["[]", "{", r#"{"stream": false}"#] {
            assert!(object(bad).is_err(), "{bad}");
        }
    }
}
