//! `octet route calibrate`: asks both models of a cascade the same questions, and says what each threshold would have done.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use octet_api::core::{Event, GenerateRequest};
use octet_api::openai;
use octet_config::{Cascade, Confidence, Config, printable};
use octet_router::calibrate::{Sample, cheapest, draw, sweep};
use octet_router::confidence::{Meter, Verdict};
use octet_serve::{App, Gateway, Options};
use serde_json::{Map, Value, json};

use crate::numbers::positive;
use crate::serve::{ServeArgs, routes};
use crate::settings::Settings;
use crate::stderr::note;

/// Which cascade, by which questions.
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// A question a line: {"prompt": "..."}, or a request of OpenAI's chat with its "messages".
    #[arg(value_name = "PROMPTS.jsonl")]
    prompts: PathBuf,
    /// The router's file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The cascade's name. Default: the only one that the file has.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// What thresholds are for.
    #[arg(long, value_enum, default_value = "mean-logprob")]
    measure: Measure,
    /// Longest answer in tokens.
    #[arg(long, value_name = "N", default_value = "256", value_parser = positive)]
    max_tokens: usize,
    /// Rows of the table.
    #[arg(long, value_name = "N", default_value = "20", value_parser = positive)]
    rows: usize,
    /// Say the threshold that reaches this agreement with the strong model with the least escalated.
    #[arg(long, value_name = "SHARE", default_value_t = 0.9)]
    agreement: f64,
    /// Print JSON: every question's measure and agreement, and the rows.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Measure {
    MeanLogprob,
    Margin,
}

pub fn run(args: &CalibrateArgs, settings: &Settings) -> anyhow::Result<()> {
    let config = routes::read_unguarded(&args.config)?;
    let cascade = cascade(&config, args.name.as_deref())?.clone();
    let prompts = prompts(args)?;
    let plain = ServeArgs::plain()?;
    let mut options = Options::new(Vec::new());
    let made = routes::routes(config, &args.config, &plain, settings)?;
    options.routes = Some(octet_serve::Routes { watch: None, ..made });
    let samples = crate::serve::serving_runtime()?.block_on(async {
        let app = App::new(options).map_err(anyhow::Error::from_boxed)?;
        let gateway = app.gateway().context("there is no router")?;
        let mut samples = Vec::new();
        for (i, request) in prompts.iter().enumerate() {
            samples.extend(sample(gateway, &cascade, request, args.measure).await?);
            note!("{} of {}", i + 1, prompts.len());
        }
        gateway.stop().await;
        anyhow::Ok(samples)
    })?;
    anyhow::ensure!(
        !samples.is_empty(),
        "no answer of '{}' could be measured: its server gives no log-probabilities",
        cascade.fast
    );
    report(args, &samples)
}

fn cascade<'a>(config: &'a Config, name: Option<&str>) -> anyhow::Result<&'a Cascade> {
    let all: Vec<&str> = config.cascades.iter().map(|c| c.name.as_str()).collect();
    let all = all.join(", ");
    let all = printable(&all);
    match (name, &config.cascades[..]) {
        (_, []) => anyhow::bail!(
            "the file has no cascade, so there is no threshold to find; docs/routing.md says how one is written"
        ),
        (None, [only]) => Ok(only),
        (Some(name), cascades) => cascades
            .iter()
            .find(|c| c.name == name)
            .with_context(|| format!("there is no cascade '{}'; there are: {all}", printable(name))),
        (None, _) => anyhow::bail!("the file has several cascades: {all}; give a --name"),
    }
}

fn prompts(args: &CalibrateArgs) -> anyhow::Result<Vec<GenerateRequest>> {
    let text = crate::chat::read(&args.prompts)?;
    let mut out = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let place = || format!("{}:{}", args.prompts.display(), i + 1);
        out.push(question(line, args.max_tokens).with_context(place)?);
    }
    anyhow::ensure!(!out.is_empty(), "{}: holds no question", args.prompts.display());
    Ok(out)
}

/// The request of a line.
fn question(line: &str, max_tokens: usize) -> anyhow::Result<GenerateRequest> {
    let mut wire: Map<String, Value> = serde_json::from_str(line).context("not a JSON object")?;
    if let Some(prompt) = wire.remove("prompt") {
        wire = Map::from_iter([("messages".into(), json!([{"role": "user", "content": prompt}]))]);
    }
    wire.insert("model".into(), "m".into());
    let read = openai::chat::parse(Value::from(wire).to_string().as_bytes());
    let mut request = read.map_err(|e| anyhow::anyhow!(e.message))?;
    request.max_tokens = request.max_tokens.or(u32::try_from(max_tokens).ok());
    request.sampling.temperature = request.sampling.temperature.or(Some(0.0));
    request.stream = true;
    Ok(request)
}

/// One question to both; `None` where the fast model could not be measured.
async fn sample(
    gateway: &Gateway,
    cascade: &Cascade,
    request: &GenerateRequest,
    measure: Measure,
) -> anyhow::Result<Option<Sample>> {
    let known = cascade.confidence.unwrap_or(Confidence::new(Confidence::WINDOW));
    let mut meter = Meter::new(&Confidence { signal: None, mean_logprob: None, margin: None, ..known });
    let asked = |model: &str, logprobs| GenerateRequest { model: model.into(), logprobs, ..request.clone() };
    let mut watch = |event: &Event| {
        if meter.verdict() == Verdict::Watching {
            meter.see(event);
        }
    };
    let fast = gateway.collect(asked(&cascade.fast, Some(2)), &mut watch).await;
    let fast = fast.map_err(|e| anyhow::anyhow!("{}: {}", cascade.fast, e.message))?;
    let strong = gateway.collect(asked(&cascade.strong, None), &mut |_: &Event| {}).await;
    let strong = strong.map_err(|e| anyhow::anyhow!("{}: {}", cascade.strong, e.message))?;
    let measured = match measure {
        Measure::MeanLogprob => meter.mean_logprob(),
        Measure::Margin => meter.mean_margin(),
    };
    Ok(measured.map(|measure| Sample { measure, agreement: agreement(&fast, &strong) }))
}

/// How much of what two texts say is the same, 0 to 1: twice the words in common by the words of both (F1).
fn agreement(a: &str, b: &str) -> f64 {
    let words = |text: &str| -> Vec<String> {
        let split = text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty());
        split.map(str::to_lowercase).collect()
    };
    let (a, mut b) = (words(a), words(b));
    let all = a.len() + b.len();
    if all == 0 {
        return 1.0;
    }
    let mut common = 0;
    for word in &a {
        if let Some(at) = b.iter().position(|w| w == word) {
            b.swap_remove(at);
            common += 1;
        }
    }
    2.0 * f64::from(common) / all as f64
}

fn report(args: &CalibrateArgs, samples: &[Sample]) -> anyhow::Result<()> {
    let rows = sweep(samples, args.rows);
    if args.json {
        let samples: Vec<Value> =
            samples.iter().map(|s| json!({"measure": s.measure, "agreement": s.agreement})).collect();
        let all = json!({"samples": samples, "rows": serde_json::to_value(&rows)?});
        return crate::print(&format!("{all:#}\n"));
    }
    let mut out = String::from("threshold  escalated  agreement  of those kept\n");
    for row in &rows {
        let kept = row.agreement_kept.map_or("-".into(), |a| format!("{:.1}%", a * 100.0));
        let (escalated, agreement) = (row.escalated * 100.0, row.agreement * 100.0);
        out += &format!("{:9.3}  {escalated:8.1}%  {agreement:8.1}%  {kept:>13}\n", row.threshold);
    }
    out += &format!("\n{}\n", draw(&rows, 60, 12));
    let key = match args.measure {
        Measure::MeanLogprob => "mean_logprob",
        Measure::Margin => "margin",
    };
    out += &match cheapest(&rows, args.agreement) {
        Some(row) => format!(
            "confidence: {{{key}: {:.3}}} agrees to {:.1}% and sends {:.1}% to the strong model\n",
            row.threshold,
            row.agreement * 100.0,
            row.escalated * 100.0
        ),
        None => format!("no threshold agrees to {:.1}%\n", args.agreement * 100.0),
    };
    out += &format!("(measured on {} questions; agreement is the share of words in common)\n", samples.len());
    crate::print(&out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_prompt_or_a_request() {
        let asked = question(r#"{"prompt": "Why?"}"#, 9).unwrap();
        assert_eq!((asked.max_tokens, asked.stream), (Some(9), true));
        assert_eq!(
            question(r#"{"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 3}"#, 9)
                .unwrap()
                .max_tokens,
            Some(3)
        );
        for line in ["\"Why?\"", "[1]", "7", "{", "{}"] {
            assert!(question(line, 9).is_err(), "{line}");
        }
    }

    #[test]
    fn agreement_is_of_words() {
        assert_eq!(agreement("It is Paris.", "it is paris"), 1.0);
        assert_eq!((agreement("", ""), agreement("a", ""), agreement("a b", "b c")), (1.0, 0.0, 0.5));
    }
}
