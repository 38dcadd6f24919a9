//! Sampling defaults of a server, as flags. Used by `load`.

use clap::Args;
use octet_engine::sampler::{SamplerParams, SamplingDefaults};

use crate::Usage;
use crate::sampling::{Seed, seed};

/// Settings for requests that do not set them, in place of the model's own.
#[derive(Debug, Clone, Default, Args)]
#[command(
    next_help_heading = "Sampling defaults (for requests that set nothing; default: generation_config.json)"
)]
pub struct DefaultSampling {
    /// Temperature; 0 is greedy
    #[arg(long, visible_alias = "temperature", value_name = "X", allow_negative_numbers = true)]
    temp: Option<f32>,
    /// Keep the N most probable tokens; 0 or -1 keeps all
    #[arg(long, value_name = "N", allow_negative_numbers = true,
          value_parser = clap::value_parser!(i64).range(-1..=i64::from(u32::MAX)))]
    top_k: Option<i64>,
    /// Keep the most probable tokens that together have this probability
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Keep tokens with at least this share of the most probable token's probability
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Repetition penalty; 1 is off
    #[arg(long, visible_alias = "repetition-penalty", value_name = "X", allow_negative_numbers = true)]
    repeat_penalty: Option<f32>,
    /// Tokens that the penalties look at; -1 is all
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    repeat_last_n: Option<i64>,
    /// Presence penalty; 0 is off
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Frequency penalty; 0 is off
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Random seed: the same request gives the same answer. -1 draws one for each request
    #[arg(short = 's', long, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    seed: Option<Seed>,
    /// Maximum number of generated tokens; -1 is as many as the context holds
    #[arg(short = 'n', long, alias = "n-predict", value_name = "N", allow_negative_numbers = true,
          value_parser = clap::value_parser!(i64).range(-1..=i64::from(u32::MAX)))]
    predict: Option<i64>,
}

impl DefaultSampling {
    /// What is set, checked.
    pub fn defaults(&self) -> Result<SamplingDefaults, Usage> {
        let defaults = SamplingDefaults {
            temperature: self.temp,
            top_k: self.top_k.map(|n| u32::try_from(n).unwrap_or(0)),
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            penalty_last_n: self.repeat_last_n.map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed.and_then(|s| s.0),
        };
        let checked = SamplerParams::default().with(&defaults).validate(usize::MAX);
        checked.map(|()| defaults).map_err(|e| Usage(e.to_string()))
    }

    /// Longest answer.
    pub fn predict(&self) -> Option<u32> {
        self.predict.and_then(|n| u32::try_from(n).ok())
    }
}
