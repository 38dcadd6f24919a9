//! The flags of speculative decoding: Octet's, and those of llama-server and vLLM.

use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use octet_engine::engine::speculation::{DRAFT_DEFAULT, DRAFT_MAX, Mode, Options};
use octet_engine::models::DraftVocab;
use serde_json::{Map, Value};

use crate::chat::object;
use crate::numbers::{number, whole};
use crate::settings::Settings;
use crate::stderr::note;
use crate::usage_error::Usage;

/// Speculative decoding.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Speculative decoding")]
pub struct SpeculationFlags {
    /// Speculative decoding, which speeds up answers without changing them: mtp (the model's own block for multi-token prediction),
    /// lookup (repetitions in the text), draft=MODEL (a smaller model with the same tokenizer), off, or auto (lookup, and mtp if the
    /// model has the block and is faster with it on this machine). Default: auto.
    #[arg(long, visible_alias = "spec-type", value_name = "HOW")]
    speculative: Option<SpeculativeArg>,
    /// Maximum number of draft tokens per step, 0 to 16. Default: 8.
    #[arg(
        long,
        visible_aliases = ["draft", "draft-n", "spec-draft-n-max", "num-speculative-tokens"],
        value_name = "N",
        value_parser = whole::<u32>
    )]
    draft_max: Option<u32>,
    /// The same as --speculative draft=MODEL. Also -md.
    #[arg(long, visible_alias = "spec-draft-model", value_name = "MODEL")]
    model_draft: Option<String>,
    /// The same in vLLM's form: '{"method": "ngram", "num_speculative_tokens": 4}'.
    #[arg(long, value_name = "JSON", value_parser = object, conflicts_with_all = ["speculative", "model_draft", "draft_max"])]
    speculative_config: Option<Map<String, Value>>,
    /// For measurements: guesses that are right with this probability, 0 to 1, when a prompt is repeated.
    #[arg(long, value_name = "P", hide = true, value_parser = chance)]
    draft_oracle: Option<f64>,
    /// For measurements: the block for multi-token prediction drafts among the first N tokens of the vocabulary, and those in
    /// --draft-recent.
    #[arg(long, value_name = "N", hide = true)]
    draft_vocab: Option<u32>,
    /// For measurements: number of recent tokens of the text that it may draft besides.
    #[arg(long, value_name = "N", hide = true, value_parser = clap::value_parser!(u32).range(..=32_768))]
    draft_recent: Option<u32>,
    /// llama-server's; without effect: the number of guesses is adapted automatically.
    #[arg(long, hide = true, aliases = ["draft-n-min", "spec-draft-n-min"], value_name = "N", value_parser = whole::<u32>)]
    draft_min: Option<u32>,
    /// The same.
    #[arg(long, hide = true, alias = "spec-draft-p-min", value_name = "P", value_parser = number::<f64>)]
    draft_p_min: Option<f64>,
}

/// `--speculative` as typed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum SpeculativeArg {
    Mode(Mode),
    Draft(String),
    /// llama-server's name of a mode whose model another flag names.
    DraftElsewhere,
}

impl FromStr for SpeculativeArg {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        Ok(match s {
            "auto" => Self::Mode(Mode::Auto),
            "off" | "none" => Self::Mode(Mode::Off),
            "mtp" | "draft-mtp" => Self::Mode(Mode::Mtp),
            "lookup" | "ngram" => Self::Mode(Mode::Lookup),
            // llama-server has several lookup modes, which all guess repetitions.
            "ngram-simple" | "ngram-map-k" | "ngram-map-k4v" | "ngram-mod" | "ngram-cache" => {
                Self::Mode(Mode::Lookup)
            }
            "draft" | "draft-simple" => Self::DraftElsewhere,
            _ if s.contains(',') && !s.starts_with("draft=") => Self::of_list(s)?,
            _ => match s.strip_prefix("draft=").filter(|m| !m.is_empty()) {
                Some(model) => Self::Draft(model.into()),
                None => return Err("expected auto, off, mtp, lookup or draft=MODEL".into()),
            },
        })
    }
}

impl SpeculativeArg {
    /// llama-server accepts a list, such as `draft-mtp,ngram-mod`.
    fn of_list(s: &str) -> Result<Self, String> {
        let all: Vec<Self> = s.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let (mtp, lookup) = (Self::Mode(Mode::Mtp), Self::Mode(Mode::Lookup));
        if all.iter().all(|how| *how == lookup) {
            Ok(lookup)
        } else if all.iter().all(|how| *how == lookup || *how == mtp) {
            Ok(Self::Mode(Mode::Auto))
        } else {
            Err("of a list only mtp and lookup go together, which is auto".into())
        }
    }
}

fn chance(s: &str) -> Result<f64, String> {
    s.parse().ok().filter(|p| (0.0..=1.0).contains(p)).ok_or_else(|| "expected a number from 0 to 1".into())
}

impl SpeculationFlags {
    /// Whether one of the flags is given.
    pub fn is_given(&self) -> bool {
        let Self { speculative, draft_max, model_draft, speculative_config, .. } = self;
        let names = speculative.is_some() || model_draft.is_some() || speculative_config.is_some();
        let measured =
            self.draft_oracle.is_some() || self.draft_vocab.is_some() || self.draft_recent.is_some();
        names || draft_max.is_some() || measured
    }

    /// The engine's options. Opens the draft model, downloading it if necessary.
    pub fn options(&self, settings: &Settings) -> anyhow::Result<Options> {
        for (flag, given) in
            [("draft-min", self.draft_min.is_some()), ("draft-p-min", self.draft_p_min.is_some())]
        {
            if given {
                note!("note: --{flag} has no effect: Octet guesses as many tokens as pay, up to --draft-max");
            }
        }
        let (how, most) = match (&self.speculative_config, &self.model_draft) {
            (Some(config), _) => vllm(config)?,
            (None, Some(model)) => match &self.speculative {
                None | Some(SpeculativeArg::DraftElsewhere) => (SpeculativeArg::Draft(model.clone()), None),
                Some(_) => {
                    let what = "--model-draft and this --speculative exclude each other; give one of them";
                    return Err(Usage(what.into()).into());
                }
            },
            (None, None) => {
                (self.speculative.clone().unwrap_or(SpeculativeArg::Mode(Options::default().mode)), None)
            }
        };
        let draft_max = self.draft_max.map(|n| n as usize).or(most).unwrap_or(DRAFT_DEFAULT);
        if draft_max > DRAFT_MAX {
            note!("note: {DRAFT_MAX} tokens are guessed in a step at most");
        }
        let draft_max = draft_max.min(DRAFT_MAX);
        let (mode, draft) = match how {
            SpeculativeArg::DraftElsewhere => {
                let what = "--speculative draft needs a model: draft=MODEL, or --model-draft MODEL";
                return Err(Usage(what.into()).into());
            }
            SpeculativeArg::Mode(mode) => (mode, None),
            SpeculativeArg::Draft(name) => {
                (Mode::Draft, Some(Arc::new(crate::model::open(&name, settings)?)))
            }
        };
        let vocab = DraftVocab::default();
        let vocab = DraftVocab {
            first: self.draft_vocab.map_or(vocab.first, |n| n as usize),
            recent: self.draft_recent.map_or(vocab.recent, |n| n as usize),
        };
        Ok(Options { mode, draft_max, draft, vocab, oracle: self.draft_oracle, always: false })
    }
}

/// The setting of a configuration entry: a value of `--speculative`. `open` opens a draft model.
pub fn set(
    options: &mut Options,
    how: &str,
    open: impl Fn(&str) -> anyhow::Result<octet_weights::Model>,
) -> anyhow::Result<()> {
    (options.mode, options.draft) = match how.parse().map_err(anyhow::Error::msg)? {
        SpeculativeArg::Mode(mode) => (mode, None),
        SpeculativeArg::Draft(name) => (Mode::Draft, Some(Arc::new(open(&name)?))),
        SpeculativeArg::DraftElsewhere => anyhow::bail!("'draft' needs a model: draft=MODEL"),
    };
    Ok(())
}

/// vLLM's `--speculative-config`.
fn vllm(config: &Map<String, Value>) -> Result<(SpeculativeArg, Option<usize>), Usage> {
    let wrong = |what: &str| Usage(format!("--speculative-config: {what}"));
    let model = match config.get("model") {
        None | Some(Value::Null) => None,
        Some(Value::String(model)) => Some(model.clone()),
        Some(_) => return Err(wrong("\"model\" must be a text")),
    };
    let method = match config.get("method") {
        None | Some(Value::Null) => None,
        Some(Value::String(method)) => Some(method.as_str()),
        Some(_) => return Err(wrong("\"method\" must be a text")),
    };
    let how = match (method, model) {
        (Some("ngram" | "suffix"), _) => SpeculativeArg::Mode(Mode::Lookup),
        // vLLM also names the block by its model: qwen3_next_mtp, deepseek_mtp.
        (Some(m), _) if m == "mtp" || m.ends_with("_mtp") => SpeculativeArg::Mode(Mode::Mtp),
        (None | Some("draft_model"), Some(model)) => SpeculativeArg::Draft(model),
        (None | Some("draft_model"), None) => {
            return Err(wrong("\"model\" names the draft model; or give a \"method\""));
        }
        (Some(other), _) => {
            return Err(wrong(&format!(
                "the method \"{other}\" is not supported; expected mtp, ngram or draft_model"
            )));
        }
    };
    let most = match config.get("num_speculative_tokens") {
        None | Some(Value::Null) => None,
        Some(n) => {
            let n = n
                .as_u64()
                .filter(|n| *n > 0)
                .ok_or_else(|| wrong("\"num_speculative_tokens\" must be 1 or more"))?;
            Some(usize::try_from(n).unwrap_or(usize::MAX))
        }
    };
    for key in config.keys() {
        if !["model", "method", "num_speculative_tokens"].contains(&key.as_str()) {
            note!("note: --speculative-config: \"{key}\" has no effect");
        }
    }
    Ok((how, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_the_names_of_others_too() {
        assert_eq!("lookup".parse(), Ok(SpeculativeArg::Mode(Mode::Lookup)));
        assert_eq!("ngram".parse(), Ok(SpeculativeArg::Mode(Mode::Lookup)));
        assert_eq!("draft=a.gguf".parse(), Ok(SpeculativeArg::Draft("a.gguf".into())));
        assert_eq!("draft-mtp".parse(), Ok(SpeculativeArg::Mode(Mode::Mtp)));
        assert_eq!("draft-mtp,ngram-map-k4v".parse(), Ok(SpeculativeArg::Mode(Mode::Auto)));
        assert_eq!("ngram-mod,ngram-map-k".parse(), Ok(SpeculativeArg::Mode(Mode::Lookup)));
        assert_eq!("draft-simple".parse(), Ok(SpeculativeArg::DraftElsewhere));
        for wrong in ["draft=", "eagle", "draft-eagle3", "draft,ngram-mod", "mtp,off", ","] {
            assert!(wrong.parse::<SpeculativeArg>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn vllms_configuration_is_understood() {
        let read = |text: &str| vllm(&object(text).expect("an object")).map_err(|e| e.to_string());
        let lookup = (SpeculativeArg::Mode(Mode::Lookup), Some(4));
        assert_eq!(
            read(r#"{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 5}"#),
            Ok(lookup)
        );
        let mtp = (SpeculativeArg::Mode(Mode::Mtp), Some(99));
        assert_eq!(read(r#"{"method": "qwen3_next_mtp", "num_speculative_tokens": 99}"#), Ok(mtp));
        assert_eq!(
            read(r#"{"model": "small.gguf"}"#),
            Ok((SpeculativeArg::Draft("small.gguf".into()), None))
        );
        for wrong in [
            r#"{"method": "eagle3", "model": "x"}"#,
            "{}",
            r#"{"method": 3}"#,
            r#"{"method": "mtp", "num_speculative_tokens": 0}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
