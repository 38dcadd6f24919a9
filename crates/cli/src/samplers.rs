//! llama-server's flags for the defaults of further samplers. Part of the flags of `octet serve`.

use clap::Args;
use octet_engine::sampler::{
    Dry, DynamicTemperature, Mirostat, MirostatVersion, SamplingDefaults, Stage, Xtc,
};

use crate::numbers::{from_minus_one, number, whole};

/// Defaults of samplers that few people set. Not in `--help`: docs/serving.md lists them.
#[derive(Debug, Clone, Default, Args)]
pub struct MoreSamplerArgs {
    #[arg(long, alias = "typical-p", hide = true, allow_negative_numbers = true, value_parser = number::<f32>)]
    typical: Option<f32>,
    #[arg(long, alias = "top-nsigma", hide = true, allow_negative_numbers = true, value_parser = number::<f32>)]
    top_n_sigma: Option<f32>,
    #[arg(long, hide = true, allow_negative_numbers = true, value_parser = number::<f32>)]
    xtc_probability: Option<f32>,
    #[arg(long, hide = true, allow_negative_numbers = true, value_parser = number::<f32>)]
    xtc_threshold: Option<f32>,
    #[arg(long, hide = true, allow_negative_numbers = true, value_parser = number::<f32>)]
    dry_multiplier: Option<f32>,
    #[arg(long, hide = true, allow_negative_numbers = true, value_parser = number::<f32>)]
    dry_base: Option<f32>,
    #[arg(long, hide = true, value_parser = whole::<u32>)]
    dry_allowed_length: Option<u32>,
    #[arg(long, hide = true, allow_negative_numbers = true, value_parser = from_minus_one)]
    dry_penalty_last_n: Option<i64>,
    #[arg(long, hide = true, allow_negative_numbers = true, value_parser = number::<f32>)]
    dynatemp_range: Option<f32>,
    #[arg(long, hide = true, allow_negative_numbers = true, value_parser = number::<f32>)]
    dynatemp_exp: Option<f32>,
    #[arg(long, hide = true, value_parser = clap::value_parser!(u8).range(..=2))]
    mirostat: Option<u8>,
    #[arg(long, hide = true, allow_negative_numbers = true, value_parser = number::<f32>)]
    mirostat_ent: Option<f32>,
    #[arg(long, hide = true, allow_negative_numbers = true, value_parser = number::<f32>)]
    mirostat_lr: Option<f32>,
    #[arg(long, hide = true, value_parser = order)]
    samplers: Option<Order>,
    #[arg(long, alias = "sampling-seq", hide = true, value_parser = order_by_letters, conflicts_with = "samplers")]
    sampler_seq: Option<Order>,
}

/// The order of samplers; a separate type, as clap treats a `Vec` as a flag that may be repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Order(Vec<Stage>);

impl MoreSamplerArgs {
    /// These settings on top of others. Ranges are checked by the caller.
    pub fn on(&self, base: SamplingDefaults) -> SamplingDefaults {
        let xtc = Xtc::default();
        let dry = Dry::default();
        let dynamic = DynamicTemperature::default();
        SamplingDefaults {
            typical_p: self.typical,
            top_n_sigma: self.top_n_sigma,
            xtc: self.xtc_probability.map(|probability| Xtc {
                probability,
                threshold: self.xtc_threshold.unwrap_or(xtc.threshold),
            }),
            dry: self.dry_multiplier.map(|multiplier| Dry {
                multiplier,
                base: self.dry_base.unwrap_or(dry.base),
                allowed_length: self.dry_allowed_length.map_or(dry.allowed_length, |n| n as usize),
                last_n: self
                    .dry_penalty_last_n
                    .map_or(dry.last_n, |n| usize::try_from(n).unwrap_or(usize::MAX)),
                ..dry
            }),
            dynamic_temperature: self.dynatemp_range.map(|range| DynamicTemperature {
                range,
                exponent: self.dynatemp_exp.unwrap_or(dynamic.exponent),
            }),
            mirostat: self.mirostat.filter(|version| *version > 0).map(|version| Mirostat {
                version: if version == 1 { MirostatVersion::V1 } else { MirostatVersion::V2 },
                tau: self.mirostat_ent.unwrap_or(Mirostat::TAU),
                eta: self.mirostat_lr.unwrap_or(Mirostat::ETA),
            }),
            order: self.samplers.as_ref().or(self.sampler_seq.as_ref()).map(|o| o.0.clone()),
            ..base
        }
    }
}

/// Names between semicolons: `top_k;temperature`.
fn order(text: &str) -> Result<Order, String> {
    stages(
        text.split(';')
            .filter(|n| !n.is_empty())
            .map(|name| octet_api::openai::sampler_name(name).ok_or(name)),
    )
}

/// Letters: `kt`.
fn order_by_letters(text: &str) -> Result<Order, String> {
    let letters = text.char_indices().map(|(i, c)| &text[i..i + c.len_utf8()]);
    stages(letters.map(|l| l.chars().next().and_then(octet_api::openai::sampler_letter).ok_or(l)))
}

fn stages<'a>(names: impl Iterator<Item = Result<&'static str, &'a str>>) -> Result<Order, String> {
    let mut out = Vec::new();
    for name in names {
        let stage = name.ok().and_then(Stage::from_name).ok_or_else(|| {
            let known = Stage::DEFAULT_ORDER.map(Stage::name).join(", ");
            let name = name.unwrap_or_else(|n| n);
            format!("the sampler '{name}' is not supported; there are: {known}")
        })?;
        if out.contains(&stage) {
            return Err(format!("names the sampler '{}' twice", stage.name()));
        }
        out.push(stage);
    }
    Ok(Order(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_samplers_is_read_as_llama_server_reads_it() {
        let want = Ok(Order(vec![Stage::TopK, Stage::TypicalP, Stage::Temperature]));
        assert_eq!(order("top_k;typ_p;temperature"), want);
        assert_eq!(order("top-k;typical;temp"), want);
        assert_eq!(order_by_letters("kyt"), want);
        assert!(order("top_k;top_k").unwrap_err().contains("twice"));
        assert!(order_by_letters("kz").unwrap_err().contains("'z'"));
        assert!(order("infill").unwrap_err().contains("top_n_sigma"));
    }
}
