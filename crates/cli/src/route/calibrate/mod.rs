//! `octet route calibrate`: sends the same questions to both models of a cascade, and reports how well each signal separates right
//! from wrong answers, and what each threshold would do.

mod labels;
mod measure;
mod report;
mod svg;

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use octet_config::{Cascade, Config, printable};
use octet_serve::{App, Options};

use crate::numbers::{positive, share};
use crate::serve::{ServeArgs, routes};
use crate::settings::Settings;
use crate::stderr::note;
use labels::Prompt;

/// The cascade and the questions.
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// Questions, one per line: {"prompt": "...", "answer": "..."}, or a request of OpenAI's chat with its "messages". Labels are
    /// answer (a text that a right answer contains, or a list of them), regex, and tests (commands that get the answer on standard
    /// input; see --run-tests).
    #[arg(value_name = "PROMPTS.jsonl")]
    prompts: PathBuf,
    /// The router's configuration.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Name of the cascade. Default: the only one in the file.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Signal for the thresholds: margin.q25, mean_logprob, self_check, ... Default: the one with the highest AUC.
    #[arg(long, value_name = "SIGNAL", alias = "measure")]
    signal: Option<String>,
    /// Model that judges answers to lines without a label. Default: none; such lines count the words in common with the strong model's
    /// answer.
    #[arg(long, value_name = "NAME")]
    judge: Option<String>,
    /// Run the tests in the lines: commands from the file, on this machine.
    #[arg(long)]
    run_tests: bool,
    /// Also ask the fast model whether its answers are right (confidence.self_check).
    #[arg(long)]
    self_check: bool,
    /// Also train a prerouter, and write its weights to this file.
    #[arg(long, value_name = "FILE")]
    prerouter: Option<PathBuf>,
    /// Maximum length of an answer in tokens.
    #[arg(long, value_name = "N", default_value = "256", value_parser = positive)]
    max_tokens: usize,
    /// Number of rows of the table.
    #[arg(long, value_name = "N", default_value = "20", value_parser = positive)]
    rows: usize,
    /// Find the threshold that reaches this share of the strong model's quality (above 0, up to 1) with the fewest requests for it.
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, alias = "agreement", value_parser = share)]
    quality: f64,
    /// Also draw cost against quality, as SVG.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON: each question's measures and quality, the AUCs, and the rows.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &CalibrateArgs, settings: &Settings) -> anyhow::Result<()> {
    let config = routes::read_unguarded(&args.config)?;
    let cascade = cascade(&config, args.name.as_deref())?.clone();
    let prompts = prompts(args)?;
    let signal = args.signal.as_deref().map(|s| report::signal(s, args.self_check)).transpose()?;
    let plain = ServeArgs::plain()?;
    // Before the work, not after it.
    for path in [&args.svg, &args.prerouter].into_iter().flatten() {
        let (is_new, cannot) = (!path.exists(), || format!("{} cannot be written", path.display()));
        std::fs::OpenOptions::new().create(true).append(true).open(path).with_context(cannot)?;
        if is_new {
            std::fs::remove_file(path).with_context(cannot)?;
        }
    }
    let mut options = Options::new(Vec::new());
    let made = routes::routes(config, &args.config, &plain, settings)?;
    options.routes = Some(octet_serve::Routes { watch: None, ..made });
    let measured = crate::serve::serving_runtime()?.block_on(async {
        let app = App::new(options).map_err(anyhow::Error::from_boxed)?;
        let gateway = app.gateway().context("there is no router")?;
        let mut all = Vec::new();
        let mut last = None;
        for (i, prompt) in prompts.iter().enumerate() {
            match measure::measure(gateway, &cascade, prompt, args).await {
                Ok(measured) => all.push(measured),
                // The other answers are paid for already.
                Err(e) => {
                    note!("prompt {} is left out: {e:#}", i + 1);
                    last = Some(e);
                }
            }
            note!("{} of {}", i + 1, prompts.len());
        }
        gateway.stop().await;
        let left_out = prompts.len() - all.len();
        if let Some(e) = last.filter(|_| 2 * left_out > prompts.len()) {
            return Err(e.context(format!("{left_out} of {} prompts could not be measured", prompts.len())));
        }
        anyhow::Ok(all)
    })?;
    if !measured.iter().any(|m| m.sureness.iter().any(Option::is_some)) {
        let has_text = measured.iter().any(|m| m.has_text);
        let why = if has_text {
            "its server gives no log-probabilities".to_string()
        } else {
            format!(
                "none had text within {} tokens; the model may be reasoning first: raise --max-tokens",
                args.max_tokens
            )
        };
        anyhow::bail!("no answer of '{}' could be measured: {why}", cascade.fast);
    }
    report::report(args, &cascade, signal, &measured)
}

fn cascade<'a>(config: &'a Config, name: Option<&str>) -> anyhow::Result<&'a Cascade> {
    let all: Vec<&str> = config.cascades.iter().map(|c| c.name.as_str()).collect();
    let all = all.join(", ");
    let all = printable(&all);
    match (name, &config.cascades[..]) {
        (_, []) => anyhow::bail!(
            "the file has no cascade, so there is no threshold to find; docs/routing.md describes how to write one"
        ),
        (None, [only]) => Ok(only),
        (Some(name), cascades) => cascades
            .iter()
            .find(|c| c.name == name)
            .with_context(|| format!("there is no cascade '{}'; there are: {all}", printable(name))),
        (None, _) => anyhow::bail!("the file has several cascades: {all}; give a --name"),
    }
}

fn prompts(args: &CalibrateArgs) -> anyhow::Result<Vec<Prompt>> {
    let text = crate::chat::read(&args.prompts)?;
    let mut out = Vec::new();
    // Some editors begin a file with a byte order mark.
    for (i, line) in
        text.trim_start_matches('\u{feff}').lines().enumerate().filter(|(_, l)| !l.trim().is_empty())
    {
        let place = || format!("{}:{}", args.prompts.display(), i + 1);
        out.push(Prompt::read(line, args.max_tokens, args.run_tests).with_context(place)?);
    }
    anyhow::ensure!(!out.is_empty(), "{}: holds no question", args.prompts.display());
    Ok(out)
}
