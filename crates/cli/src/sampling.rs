//! Sampling settings, from flags and from `/set`, applied to the model's recommended ones.

use anyhow::Context;
use clap::Args;
use octet_engine::engine::Request;
use octet_engine::sampler::{SamplerParams, SamplingDefaults};
use octet_weights::Metadata;

use crate::maker::Maker;
use crate::numbers::{from_minus_one, from_minus_one_u32, number};
use crate::samplers::MoreSamplerArgs;
use crate::usage_error::Usage;

/// llama.cpp's settings, for models without recommended ones. With the plain distribution, a server's usual default, small models
/// ramble.
const MODERATE: SamplingDefaults = SamplingDefaults {
    temperature: Some(0.8),
    top_k: Some(40),
    top_p: Some(0.95),
    min_p: Some(0.05),
    repetition_penalty: None,
    penalty_last_n: None,
    presence_penalty: None,
    frequency_penalty: None,
    seed: None,
    typical_p: None,
    top_n_sigma: None,
    xtc: None,
    dry: None,
    dynamic_temperature: None,
    mirostat: None,
    order: None,
};

/// A model's defaults: those `given` first, then its file's recommended ones. If the file recommends nothing, llama.cpp's fill the gaps.
/// `given` are a server's flags and what the model's maker set beside the file ([`crate::maker`]).
pub fn defaults(metadata: &Metadata, given: SamplingDefaults) -> anyhow::Result<SamplingDefaults> {
    let says_nothing = SamplingDefaults::read(metadata)? == SamplingDefaults::default();
    Ok(if says_nothing { given.or(&MODERATE) } else { given })
}

/// All sampling settings of an answer that sets none itself.
pub fn recommended(metadata: &Metadata, given: SamplingDefaults) -> anyhow::Result<SamplerParams> {
    let given = defaults(metadata, given)?;
    Ok(SamplerParams::from_metadata(metadata, SamplerParams::default())?.with(&given))
}

/// Sampling settings of `octet run`, and the defaults of `octet serve`.
#[derive(Debug, Clone, Default, Args)]
pub struct SamplerArgs {
    /// Temperature; 0 always chooses the most probable token. Default: the model's recommendation; 0.8 if it has none.
    #[arg(long, visible_alias = "temperature", value_name = "X", allow_negative_numbers = true, value_parser = number::<f32>)]
    temp: Option<f32>,
    /// Keep the N most probable tokens; 0 or -1 keeps all. Default: the model's recommendation; 40 if it has none.
    #[arg(long, value_name = "N", allow_negative_numbers = true,
          value_parser = from_minus_one_u32)]
    top_k: Option<i64>,
    /// Keep the most probable tokens with this total probability. Default: the model's recommendation; 0.95 if it has none.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = number::<f32>)]
    top_p: Option<f32>,
    /// Keep tokens with at least this fraction of the highest probability. Default: the model's recommendation; 0.05 if it has none.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = number::<f32>)]
    min_p: Option<f32>,
    /// Repetition penalty; 1 is off.
    #[arg(long, visible_alias = "repetition-penalty", value_name = "X", allow_negative_numbers = true, value_parser = number::<f32>)]
    repeat_penalty: Option<f32>,
    /// Number of last tokens that the penalties apply to; -1 is all.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = from_minus_one)]
    repeat_last_n: Option<i64>,
    /// Presence penalty: subtracted once for a token that has occurred; 0 is off.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = number::<f32>)]
    presence_penalty: Option<f32>,
    /// Frequency penalty: subtracted for each occurrence of a token; 0 is off.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = number::<f32>)]
    frequency_penalty: Option<f32>,
    /// Random seed: the same seed and request give the same answer; -1: random.
    #[arg(short = 's', long, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    seed: Option<Seed>,
}

impl SamplerArgs {
    /// The set values, and those of further samplers, checked.
    pub fn defaults(&self, more: &MoreSamplerArgs) -> Result<SamplingDefaults, Usage> {
        let set = more.on(self.set());
        SamplerParams::default().with(&set).validate(usize::MAX).map_err(|e| Usage(e.to_string()))?;
        Ok(set)
    }

    fn set(&self) -> SamplingDefaults {
        SamplingDefaults {
            temperature: self.temp,
            top_k: self.top_k.map(top_k),
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            penalty_last_n: self.repeat_last_n.map(window),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed.and_then(|s| s.0),
            ..SamplingDefaults::default()
        }
    }
}

/// Generation settings of `octet run`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    #[command(flatten)]
    sampler: SamplerArgs,
    /// Added to the logit of the token with this id (see `octet tokenize`); -inf bans it. May be given several times.
    #[arg(long, value_name = "ID=X", value_parser = bias)]
    logit_bias: Vec<(u32, f32)>,
    /// Maximum number of generated tokens; -1: until the context is full. Default: -1, or what an Ollama model sets.
    #[arg(short = 'n', long, visible_alias = "max-tokens", alias = "n-predict", value_name = "N",
          allow_negative_numbers = true, value_parser = from_minus_one)]
    predict: Option<i64>,
    /// Stop string; may be given several times. Replaces those that an Ollama model sets.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
}

/// A seed, or -1 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(Option<u64>);

/// Parses a seed.
fn seed(text: &str) -> Result<Seed, &'static str> {
    if text == "-1" {
        return Ok(Seed(None));
    }
    text.parse()
        .map(|n| Seed(Some(n)))
        .map_err(|_| "expected a whole number from 0 up, or -1 for a random seed")
}

/// `15043=-1.5`, or llama.cpp's `15043-1.5`.
fn bias(text: &str) -> Result<(u32, f32), String> {
    let id = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (id, bias) = text.split_at(id);
    let bias = bias.strip_prefix('=').or(Some(bias).filter(|b| b.starts_with(['+', '-'])));
    let parsed = bias.and_then(|b| Some((id.parse().ok()?, b.parse().ok()?)));
    parsed.ok_or_else(|| format!("expected a token's id and a number, like 15043=-1, got '{text}'"))
}

impl SamplingArgs {
    /// The engine request for an answer: the flags, then what the model's maker set, then `recommended`. The maker's stop texts need the
    /// tokenizer and are not in it.
    pub fn request(&self, recommended: &SamplerParams, maker: &Maker) -> Request {
        let sampling = SamplerParams {
            logit_bias: self.logit_bias.clone(),
            ..recommended.clone().with(&self.sampler.set())
        };
        let max_tokens = limit(self.predict.or(maker.predict).unwrap_or(-1));
        Request { max_tokens, sampling, stop: self.stop.clone(), ..Default::default() }
    }

    /// Texts that end an answer are given.
    pub fn has_stop(&self) -> bool {
        !self.stop.is_empty()
    }

    /// Fails if a setting is out of range for every model, before one is loaded.
    pub fn check(&self) -> Result<(), Usage> {
        let request = self.request(&SamplerParams::default(), &Maker::default());
        request.sampling.validate(usize::MAX).map_err(|e| Usage(e.to_string()))
    }
}

/// vLLM's -1 for all.
fn top_k(n: i64) -> u32 {
    u32::try_from(n).unwrap_or(0)
}

/// llama.cpp's -1 for all.
fn window(n: i64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// llama.cpp's -1 for no limit.
fn limit(n: i64) -> Option<usize> {
    usize::try_from(n).ok()
}

/// The names for [`set`].
pub const NAMES: &str = "temperature, top_k, top_p, min_p, repeat_penalty, repeat_last_n, presence_penalty, \
                         frequency_penalty, logit_bias, seed, num_predict, stop";

/// Changes one setting by name; names of flags and of the API work too. `None` if it does not exist.
pub fn set(request: &mut Request, name: &str, value: &str) -> anyhow::Result<Option<()>> {
    fn number<T: std::str::FromStr>(name: &str, value: &str) -> anyhow::Result<T>
    where
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        value.parse().with_context(|| format!("{name} cannot be '{value}'"))
    }
    fn at_least_minus_one(name: &str, value: &str) -> anyhow::Result<i64> {
        from_minus_one(value).map_err(|e| anyhow::anyhow!("{name} cannot be '{value}': {e}"))
    }
    let mut new = request.clone();
    let s = &mut new.sampling;
    match canonical(name).as_str() {
        "temperature" => s.temperature = number(name, value)?,
        "top_k" => {
            let n = at_least_minus_one(name, value)?;
            s.top_k = if n == -1 { 0 } else { number(name, value)? };
        }
        "top_p" => s.top_p = number(name, value)?,
        "min_p" => s.min_p = number(name, value)?,
        "repeat_penalty" => s.repetition_penalty = number(name, value)?,
        "repeat_last_n" => s.penalty_last_n = window(at_least_minus_one(name, value)?),
        "presence_penalty" => s.presence_penalty = number(name, value)?,
        "frequency_penalty" => s.frequency_penalty = number(name, value)?,
        "logit_bias" => {
            let biases =
                value.split([',', ' ']).filter(|b| !b.is_empty()).map(bias).collect::<Result<_, _>>();
            s.logit_bias = biases.map_err(anyhow::Error::msg)?;
        }
        "seed" if value == "random" => s.seed = None,
        "seed" => s.seed = seed(value).map_err(|e| anyhow::anyhow!("seed cannot be '{value}': {e}"))?.0,
        "num_predict" => new.max_tokens = limit(at_least_minus_one(name, value)?),
        "stop" => {
            new.stop = if value.is_empty() { Vec::new() } else { vec![value.to_string()] };
            // Those of the model's maker.
            new.stop_token_ids.clear();
        }
        _ => return Ok(None),
    }
    // Ids are not set here, so any vocabulary is valid.
    new.sampling.validate(usize::MAX)?;
    *request = new;
    Ok(Some(()))
}

/// The canonical name of a setting in [`NAMES`].
fn canonical(name: &str) -> String {
    let name = name.replace('-', "_");
    let known = match name.as_str() {
        "temp" => "temperature",
        "repetition_penalty" => "repeat_penalty",
        "predict" | "max_tokens" => "num_predict",
        known => known,
    };
    known.to_string()
}

/// All settings, in the order of [`NAMES`].
fn all(request: &Request) -> Vec<(&'static str, String)> {
    let s = &request.sampling;
    let last_n = if s.penalty_last_n == usize::MAX { "-1".into() } else { s.penalty_last_n.to_string() };
    let biases: Vec<String> = s.logit_bias.iter().map(|(id, bias)| format!("{id}={bias}")).collect();
    vec![
        ("temperature", s.temperature.to_string()),
        ("top_k", s.top_k.to_string()),
        ("top_p", s.top_p.to_string()),
        ("min_p", s.min_p.to_string()),
        ("repeat_penalty", s.repetition_penalty.to_string()),
        ("repeat_last_n", last_n),
        ("presence_penalty", s.presence_penalty.to_string()),
        ("frequency_penalty", s.frequency_penalty.to_string()),
        ("logit_bias", if biases.is_empty() { "none".into() } else { biases.join(",") }),
        ("seed", s.seed.map_or("random".into(), |n| n.to_string())),
        ("num_predict", request.max_tokens.map_or("-1".into(), |n| n.to_string())),
        ("stop", format!("{:?}", request.stop)),
    ]
}

/// All settings as text.
pub fn describe(request: &Request) -> String {
    let all: Vec<String> = all(request).iter().map(|(name, value)| format!("{name} {value}")).collect();
    all.chunks(4).map(|four| four.join("  ")).collect::<Vec<_>>().join("\n")
}

/// One setting by any of its names.
pub fn described(request: &Request, name: &str) -> Option<String> {
    let name = canonical(name);
    all(request).iter().find(|(n, _)| *n == name).map(|(n, value)| format!("{n} {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_names() {
        let mut r = Request::default();
        for name in NAMES.split(", ") {
            let value = if name == "logit_bias" { "7=-2.5, 8=-inf" } else { "1" };
            assert_eq!(set(&mut r, name, value).unwrap(), Some(()), "{name}");
            assert!(described(&r, name).unwrap().starts_with(&format!("{name} ")), "{name}");
        }
        assert_eq!((r.sampling.temperature, r.sampling.seed, r.max_tokens), (1.0, Some(1), Some(1)));
        assert_eq!(r.sampling.logit_bias, [(7, -2.5), (8, f32::NEG_INFINITY)]);
        assert!(describe(&r).contains("logit_bias 7=-2.5,8=-inf"));
        assert_eq!(r.stop, ["1"]);
        assert_eq!(set(&mut r, "colour", "1").unwrap(), None);
        assert_eq!(described(&r, "colour"), None);
        for (name, want) in [
            ("temp", "temperature 1"),
            ("max-tokens", "num_predict 1"),
            ("repetition_penalty", "repeat_penalty 1"),
        ] {
            assert_eq!(set(&mut r, name, "1").unwrap(), Some(()));
            assert_eq!(described(&r, name).as_deref(), Some(want));
        }
        set(&mut r, "num_predict", "-1").unwrap();
        assert_eq!(r.max_tokens, None);
        set(&mut r, "seed", "-1").unwrap();
        set(&mut r, "top_k", "-1").unwrap();
        set(&mut r, "logit_bias", "").unwrap();
        assert_eq!((r.sampling.seed, r.sampling.top_k, r.sampling.logit_bias.len()), (None, 0, 0));
    }

    #[test]
    fn wrong_values_change_nothing() {
        let mut r = Request::default();
        assert!(set(&mut r, "top_p", "much").unwrap_err().to_string().contains("much"));
        assert!(set(&mut r, "top_p", "1.5").is_err());
        for name in ["num_predict", "repeat_last_n", "top_k", "seed"] {
            assert!(set(&mut r, name, "-7").unwrap_err().to_string().contains("-7"), "{name}");
        }
        assert!(set(&mut r, "logit_bias", "7:1").is_err());
        assert_eq!((r.sampling, r.max_tokens), (SamplerParams::default(), None));
    }

    #[test]
    fn biases_are_read_as_here_and_as_in_llama_cpp() {
        assert_eq!(["5=1", "5=-1.5", "5+1", "5-1"].map(|b| bias(b).unwrap().1), [1.0, -1.5, 1.0, -1.0]);
        assert_eq!(bias("12=-inf"), Ok((12, f32::NEG_INFINITY)));
        for wrong in ["", "5", "=1", "x=1", "5=", "5=x", "-1=1", "99999999999=1"] {
            assert!(bias(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_the_makers_recommend_is_taken_as_a_whole() {
        let mut metadata = Metadata::new("model.gguf");
        let recommended = |m: &Metadata, given| recommended(m, given).unwrap();
        let nothing = SamplingDefaults::default;
        assert_eq!(recommended(&metadata, nothing()), SamplerParams::default().with(&MODERATE));
        let cold = SamplingDefaults { temperature: Some(0.1), ..nothing() };
        let cold_rest_moderate =
            SamplerParams { temperature: 0.1, ..SamplerParams::default().with(&MODERATE) };
        assert_eq!(recommended(&metadata, cold.clone()), cold_rest_moderate);
        metadata.insert("general.sampling.temp", octet_weights::Value::F64(0.6));
        metadata.insert("general.sampling.top_k", octet_weights::Value::U64(20));
        let of_makers = SamplerParams { temperature: 0.6, top_k: 20, ..Default::default() };
        assert_eq!(recommended(&metadata, nothing()), of_makers, "nothing of ours is mixed in");
        assert_eq!(recommended(&metadata, cold), SamplerParams { temperature: 0.1, ..of_makers });
    }
}
