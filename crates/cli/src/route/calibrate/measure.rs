//! Sends one prompt to both models of a cascade: measures the fast model's confidence, and the quality of both answers.

use std::sync::Arc;

use octet_api::core::{Event, GenerateRequest};
use octet_config::{Cascade, Confidence, Measure, Over, Signal};
use octet_router::calls::Calls;
use octet_router::confidence::{Meter, Verdict};
use octet_router::{last_user_text, self_check, signal};
use octet_serve::Gateway;

use super::CalibrateArgs;
use super::labels::{Prompt, agreement};

/// How a label was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// From the line.
    Label,
    /// From the judge.
    Judge,
    /// From the overlap with the strong model's answer.
    Agreement,
}

/// The measurements of a prompt.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The value of each of [`names`], if it exists; higher means more confident.
    pub sureness: Vec<Option<f64>>,
    /// The embedding of the prompt, if requested.
    pub embedding: Option<Vec<f64>>,
    /// Quality of the fast model's answer, 0 to 1: 1 is right.
    pub fast: f64,
    /// Quality of the strong model's answer.
    pub strong: f64,
    /// How the quality was found.
    pub by: By,
    /// The fast model's answer has text, and not only thoughts or calls.
    pub has_text: bool,
}

impl Measured {
    /// Whether the fast model's answer is right.
    pub fn right(&self) -> bool {
        self.fast >= 0.5
    }
}

/// A measure to decide by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Name {
    /// `confidence.signal`.
    Signal(Signal),
    /// `confidence.mean_logprob`.
    MeanLogprob,
    /// `confidence.self_check`.
    SelfCheck,
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Signal(signal) => signal.fmt(f),
            Self::MeanLogprob => f.write_str("mean_logprob"),
            Self::SelfCheck => f.write_str("self_check"),
        }
    }
}

impl Name {
    /// A confidence value as written in a configuration.
    pub fn shown(self, sureness: f64) -> f64 {
        match self {
            Self::Signal(signal) if !signal.measure.rises() => -sureness,
            _ => sureness,
        }
    }

    /// A threshold as written in a configuration.
    pub fn setting(self, sureness: f64, window: u32) -> String {
        let value = self.shown(sureness);
        match self {
            Self::Signal(signal) => {
                format!("confidence: {{window: {window}, signal: {signal}, threshold: {value:.4}}}")
            }
            Self::MeanLogprob => format!("confidence: {{window: {window}, mean_logprob: {value:.4}}}"),
            Self::SelfCheck => format!("confidence: {{self_check: {value:.4}}}"),
        }
    }
}

/// All measures.
pub fn names(self_check: bool) -> Vec<Name> {
    let over = [Over::Mean, Over::Quantile(0.0), Over::Quantile(0.25), Over::Quantile(0.5)];
    let signals =
        Measure::ALL.into_iter().flat_map(|measure| over.map(|over| Name::Signal(Signal { measure, over })));
    signals.chain([Name::MeanLogprob]).chain(self_check.then_some(Name::SelfCheck)).collect()
}

/// An answer.
struct Answer {
    /// Its text, and calls as `name(arguments)`.
    text: String,
    /// It has an invalid tool call.
    broken: bool,
}

async fn ask(
    gateway: &Gateway,
    model: &str,
    request: &GenerateRequest,
    see: &mut (dyn FnMut(&Event) + Send),
) -> anyhow::Result<Answer> {
    let asked = GenerateRequest { model: model.into(), ..request.clone() };
    let mut calls = Calls::new(&Arc::new(asked.clone()));
    let mut called = String::new();
    let mut watch = |event: &Event| {
        see(event);
        calls.iter_mut().for_each(|c| c.observe(event));
        match event {
            Event::ToolCallStart { name, .. } => called += &format!("\n{name} "),
            Event::ToolCallArguments { text, .. } => called += text,
            _ => {}
        }
    };
    let text = gateway.collect(asked, &mut watch).await;
    let text = text.map_err(|e| anyhow::anyhow!("{model}: {}", e.message))?;
    Ok(Answer { text: text + &called, broken: calls.is_some_and(|c| c.broken().is_some()) })
}

/// Sends the prompt to both models.
pub async fn measure(
    gateway: &Gateway,
    cascade: &Cascade,
    prompt: &Prompt,
    args: &CalibrateArgs,
) -> anyhow::Result<Measured> {
    let known = cascade.confidence.unwrap_or(Confidence::new(Confidence::WINDOW));
    let plain = Confidence { window: known.window, skip_thoughts: known.skip_thoughts, ..Confidence::new(1) };
    let mut meter = Meter::new(&plain);
    let mut has_text = false;
    let mut watch = |event: &Event| {
        has_text |= matches!(event, Event::Text { text, .. } if !text.is_empty());
        if meter.verdict() == Verdict::Watching {
            meter.observe(event);
        }
    };
    let request = GenerateRequest { logprobs: Some(signal::ENTROPY_TOP), ..prompt.request.clone() };
    let fast = ask(gateway, &cascade.fast, &request, &mut watch).await?;
    let strong = ask(gateway, &cascade.strong, &prompt.request, &mut |_: &Event| {}).await?;
    let checked = match self_check::question(&prompt.request, &fast.text).filter(|_| args.self_check) {
        Some(question) => {
            let mut events = Vec::new();
            ask(gateway, &cascade.fast, &question, &mut |e: &Event| events.push(e.clone())).await?;
            self_check::probability(&events)
        }
        None => None,
    };
    let sureness = names(args.self_check).into_iter().map(|name| match name {
        Name::Signal(signal) => meter.value(signal).map(|v| if signal.measure.rises() { v } else { -v }),
        Name::MeanLogprob => meter.mean_logprob(),
        Name::SelfCheck => checked,
    });
    let sureness = sureness.collect();
    let embedding = match &args.prerouter {
        Some(_) => Some(embedding(gateway, cascade, &prompt.request).await?),
        None => None,
    };
    let (quality, by) = quality(gateway, prompt, [&fast, &strong], args).await?;
    let [fast, strong] = [(quality[0], &fast), (quality[1], &strong)]
        .map(|(quality, answer)| if answer.broken { 0.0 } else { quality });
    Ok(Measured { sureness, embedding, fast, strong, by, has_text })
}

/// The quality of the fast model's answer, and of the strong one's.
async fn quality(
    gateway: &Gateway,
    prompt: &Prompt,
    answers: [&Answer; 2],
    args: &CalibrateArgs,
) -> anyhow::Result<([f64; 2], By)> {
    let number = |right: bool| f64::from(u8::from(right));
    if let (Some(fast), Some(strong)) =
        (prompt.is_right(&answers[0].text)?, prompt.is_right(&answers[1].text)?)
    {
        return Ok(([number(fast), number(strong)], By::Label));
    }
    if let Some(judge) = &args.judge {
        let fast = judged(gateway, judge, prompt, &answers[0].text).await?;
        let strong = judged(gateway, judge, prompt, &answers[1].text).await?;
        return Ok(([number(fast), number(strong)], By::Judge));
    }
    Ok(([agreement(&answers[0].text, &answers[1].text), 1.0], By::Agreement))
}

/// Whether the judge accepts it.
async fn judged(gateway: &Gateway, judge: &str, prompt: &Prompt, answer: &str) -> anyhow::Result<bool> {
    /// A judge may reason first.
    const TOKENS_MAX: u32 = 1024;
    let Some(question) = self_check::question(&prompt.request, answer) else { return Ok(false) };
    // Some servers have no log-probabilities: the judge's word counts.
    let question = GenerateRequest { logprobs: None, max_tokens: Some(TOKENS_MAX), ..question };
    let reply = ask(gateway, judge, &question, &mut |_: &Event| {}).await?.text.to_lowercase();
    let word = reply.split(|c: char| !c.is_alphanumeric()).find(|w| matches!(*w, "yes" | "no"));
    match word {
        Some(word) => Ok(word == "yes"),
        None => anyhow::bail!("the judge {judge} says neither yes nor no: '{}'", reply.trim()),
    }
}

async fn embedding(
    gateway: &Gateway,
    cascade: &Cascade,
    request: &GenerateRequest,
) -> anyhow::Result<Vec<f64>> {
    let embed = cascade.prerouter.as_ref().and_then(|p| p.embed.as_ref()).unwrap_or(&cascade.fast);
    let vector = gateway.embedding(embed, &last_user_text(request)).await;
    let vector = vector.ok_or_else(|| {
        anyhow::anyhow!(
            "'{embed}' makes no embeddings: prerouter.embed names a group with a model in this process"
        )
    })?;
    Ok(vector.into_iter().map(f64::from).collect())
}
