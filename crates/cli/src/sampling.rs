//! Sampling settings: as flags, and by name for `/set`. On top of what the model's makers recommend.

use anyhow::Context;
use clap::Args;
use octet_engine::engine::Request;
use octet_engine::sampler::SamplerParams;

/// How tokens are chosen.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling (without a flag: what the model's makers recommend)")]
pub struct SamplingArgs {
    /// Randomness; 0 always takes the likeliest token.
    #[arg(long, visible_alias = "temperature", value_name = "X")]
    temp: Option<f32>,
    /// Choose among the N likeliest tokens; 0 is all.
    #[arg(long, value_name = "N")]
    top_k: Option<u32>,
    /// Choose among the likeliest tokens that together have this probability.
    #[arg(long, value_name = "X")]
    top_p: Option<f32>,
    /// Choose among tokens with at least this share of the likeliest one's probability.
    #[arg(long, value_name = "X")]
    min_p: Option<f32>,
    /// Make tokens that were there before less likely; 1 is off.
    #[arg(long, visible_alias = "repetition-penalty", value_name = "X")]
    repeat_penalty: Option<f32>,
    /// So many tokens back count as before; -1 is all.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    repeat_last_n: Option<i64>,
    /// Subtracted once for a token that was there before.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Subtracted for each time that a token was there before.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// The same seed gives the same text.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Most tokens of an answer; -1 is as many as the context holds.
    #[arg(short = 'n', long, visible_alias = "max-tokens", alias = "n-predict", value_name = "N",
          allow_negative_numbers = true, default_value_t = -1)]
    predict: i64,
    /// Text that ends an answer; may be given several times.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
}

impl SamplingArgs {
    /// What is asked of the engine for each answer.
    pub fn request(&self, recommended: &SamplerParams) -> Request {
        let base = recommended.clone();
        let sampling = SamplerParams {
            temperature: self.temp.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition_penalty: self.repeat_penalty.unwrap_or(base.repetition_penalty),
            penalty_last_n: self.repeat_last_n.map_or(base.penalty_last_n, window),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            seed: self.seed.or(base.seed),
            ..base
        };
        Request { max_tokens: limit(self.predict), sampling, stop: self.stop.clone(), ..Default::default() }
    }
}

/// llama.cpp's -1 for "all".
fn window(n: i64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// llama.cpp's -1 for "no limit".
fn limit(n: i64) -> Option<usize> {
    usize::try_from(n).ok()
}

/// Names that [`set`] knows.
pub const NAMES: &str = "temperature, top_k, top_p, min_p, repeat_penalty, repeat_last_n, presence_penalty, \
                         frequency_penalty, seed, num_predict, stop";

/// Changes one setting by its name; names of the flags and of the API count too. `None` where there is none of it.
pub fn set(request: &mut Request, name: &str, value: &str) -> anyhow::Result<Option<()>> {
    fn number<T: std::str::FromStr>(name: &str, value: &str) -> anyhow::Result<T>
    where
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        value.parse().with_context(|| format!("{name} can not be '{value}'"))
    }
    let mut new = request.clone();
    let s = &mut new.sampling;
    match name.replace('-', "_").as_str() {
        "temperature" | "temp" => s.temperature = number(name, value)?,
        "top_k" => s.top_k = number(name, value)?,
        "top_p" => s.top_p = number(name, value)?,
        "min_p" => s.min_p = number(name, value)?,
        "repeat_penalty" | "repetition_penalty" => s.repetition_penalty = number(name, value)?,
        "repeat_last_n" => s.penalty_last_n = window(number(name, value)?),
        "presence_penalty" => s.presence_penalty = number(name, value)?,
        "frequency_penalty" => s.frequency_penalty = number(name, value)?,
        "seed" if value == "random" => s.seed = None,
        "seed" => s.seed = Some(number(name, value)?),
        "num_predict" | "predict" | "max_tokens" => new.max_tokens = limit(number(name, value)?),
        "stop" => new.stop = if value.is_empty() { Vec::new() } else { vec![value.to_string()] },
        _ => return Ok(None),
    }
    // ids are not set here, so any vocabulary will do
    new.sampling.validate(usize::MAX)?;
    *request = new;
    Ok(Some(()))
}

/// All settings in a few lines.
pub fn describe(request: &Request) -> String {
    let s = &request.sampling;
    let last_n = if s.penalty_last_n == usize::MAX { "-1".into() } else { s.penalty_last_n.to_string() };
    format!(
        "temperature {}  top_k {}  top_p {}  min_p {}\n\
         repeat_penalty {}  repeat_last_n {last_n}  presence_penalty {}  frequency_penalty {}\n\
         seed {}  num_predict {}  stop {:?}",
        s.temperature,
        s.top_k,
        s.top_p,
        s.min_p,
        s.repetition_penalty,
        s.presence_penalty,
        s.frequency_penalty,
        s.seed.map_or("random".into(), |n| n.to_string()),
        request.max_tokens.map_or("-1".into(), |n| n.to_string()),
        request.stop,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_names() {
        let mut r = Request::default();
        for name in NAMES.split(", ") {
            assert_eq!(set(&mut r, name, "1").unwrap(), Some(()), "{name}");
        }
        assert_eq!((r.sampling.temperature, r.sampling.seed, r.max_tokens), (1.0, Some(1), Some(1)));
        assert_eq!(r.stop, ["1"]);
        assert_eq!(set(&mut r, "colour", "1").unwrap(), None);
        set(&mut r, "num_predict", "-1").unwrap();
        assert_eq!(r.max_tokens, None);
    }

    #[test]
    fn wrong_values_change_nothing() {
        let mut r = Request::default();
        assert!(set(&mut r, "top_p", "much").unwrap_err().to_string().contains("much"));
        assert!(set(&mut r, "top_p", "1.5").is_err());
        assert_eq!(r.sampling, SamplerParams::default());
    }
}
