//! What a model's maker set beside its file. Ollama keeps such with a model: a system message, first messages, and settings
//! (`octet_hub::modelfile`). `octet run` and `octet serve` take them as defaults; flags, requests and `/set` come first.

use octet_api::core::{Message, ModelDefaults, Role};
use octet_engine::sampler::{Mirostat, MirostatVersion, SamplerParams, SamplingDefaults};
use octet_hub::modelfile::Modelfile;
use octet_weights::Metadata;
use serde_json::{Map, Value, json};

use crate::settings::Settings;
use crate::stderr::note;
use crate::units::count;

/// A maker's defaults. Empty for models that have none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Maker {
    /// The beginning of a conversation.
    pub opening: Opening,
    /// Sampling settings.
    pub sampling: SamplingDefaults,
    /// Texts that end an answer.
    pub stop: Vec<String>,
    /// Tokens of the context.
    pub context: Option<usize>,
    /// Maximum number of generated tokens; -1: until the context is full.
    pub predict: Option<i64>,
    /// The settings that count, as they were written.
    pub parameters: Vec<(String, Value)>,
    /// There is a chat template in the language of Go's templates.
    has_go_template: bool,
}

/// How a conversation with a model begins.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Opening {
    /// The system message.
    pub system: Option<String>,
    /// Messages before the user's first.
    pub messages: Vec<Value>,
}

/// Ollama's parameters of memory and threads, which Octet chooses itself, and those that Ollama reads no more.
const OF_OLLAMA: &[&str] = &[
    "f16_kv",
    "logits_all",
    "low_vram",
    "main_gpu",
    "num_batch",
    "num_gpu",
    "num_gqa",
    "num_keep",
    "num_thread",
    "numa",
    "penalize_newline",
    "tfs_z",
    "use_mlock",
    "use_mmap",
    "vocab_only",
];
/// Ollama's template that adds nothing: it writes it where it knows none.
const NO_TEMPLATE: &str = "{{ .Prompt }}";

/// What the maker of the model of this name set. Warns of what cannot be read or used.
pub fn of(name: &str) -> Maker {
    // The model itself is opened by name, and says what is wrong with that.
    let Some(other) = crate::model::other(name).ok().flatten() else { return Maker::default() };
    let (file, mut wrong) = other.layers.read();
    let maker = Maker::read(file, &mut wrong);
    for why in wrong {
        note!("warning: {name}: {why}");
    }
    maker
}

impl Maker {
    fn read(file: Modelfile, wrong: &mut Vec<String>) -> Self {
        if file.has_adapter {
            wrong.push("its adapter (LoRA) is not applied: answers are those of the model without it".into());
        }
        let messages = file.messages.iter().map(|(role, text)| json!({"role": role, "content": text}));
        let mut out = Self {
            opening: Opening { system: file.system, messages: messages.collect() },
            has_go_template: file.template.is_some_and(|text| text.trim() != NO_TEMPLATE),
            ..Self::default()
        };
        for (name, value) in &file.parameters {
            match out.set(name, value) {
                Ok(true) => out.parameters.push((name.clone(), value.clone())),
                Ok(false) => {}
                Err(why) => {
                    wrong.push(format!("its parameter {} {value} is left out: {why}", name.escape_debug()));
                }
            }
        }
        out.sampling.mirostat = mirostat(&file.parameters);
        if let Err(why) = SamplerParams::default().with(&out.sampling).validate(usize::MAX) {
            wrong.push(format!("its mirostat is left out: {why}"));
            out.sampling.mirostat = None;
            out.parameters.retain(|(name, _)| !name.starts_with("mirostat"));
        }
        out
    }

    /// Takes a parameter. False if it does not count here.
    fn set(&mut self, name: &str, value: &Value) -> Result<bool, String> {
        let mut s = self.sampling.clone();
        match name {
            "temperature" => s.temperature = Some(float(value)?),
            "top_p" => s.top_p = Some(float(value)?),
            "min_p" => s.min_p = Some(float(value)?),
            "typical_p" => s.typical_p = Some(float(value)?),
            // As in requests.
            "repeat_penalty" => {
                let r = Some(float(value)?).filter(|r| (0.01..=100.0).contains(r));
                s.repetition_penalty = Some(r.ok_or("expected a number from 0.01 to 100")?);
            }
            "presence_penalty" => s.presence_penalty = Some(float(value)?),
            "frequency_penalty" => s.frequency_penalty = Some(float(value)?),
            // Below zero is all.
            "top_k" => s.top_k = Some(u32::try_from(integer(value)?).unwrap_or(0)),
            "repeat_last_n" => {
                s.penalty_last_n = Some(usize::try_from(integer(value)?).unwrap_or(usize::MAX))
            }
            // Below zero is a random one.
            "seed" => s.seed = u64::try_from(integer(value)?).ok(),
            "stop" => self.stop = texts(value)?,
            "num_ctx" => {
                let n = usize::try_from(integer(value)?).ok().filter(|n| *n > 0);
                self.context = Some(n.ok_or("expected a number of tokens")?);
            }
            // Ollama takes 0 and all below it as without an end.
            "num_predict" => self.predict = Some(integer(value)?).filter(|n| *n > 0).or(Some(-1)),
            "mirostat" => drop(mirostat_version(value)?),
            "mirostat_tau" | "mirostat_eta" => drop(float(value)?),
            _ if OF_OLLAMA.contains(&name) => return Ok(false),
            _ => return Err("Octet has no such setting".into()),
        }
        SamplerParams::default().with(&s).validate(usize::MAX).map_err(|e| e.to_string())?;
        self.sampling = s;
        Ok(true)
    }

    /// For the server: what requests take that do not say otherwise.
    pub fn defaults(&self) -> ModelDefaults {
        let message = |m: &Value| {
            let role = [Role::System, Role::User].into_iter().find(|role| m["role"] == role.name());
            Message::text(role.unwrap_or(Role::Assistant), m["content"].as_str().unwrap_or_default())
        };
        ModelDefaults {
            system: self.opening.system.clone(),
            messages: self.opening.messages.iter().map(message).collect(),
            stop: self.stop.clone(),
            parameters: self.parameters.clone(),
        }
    }

    /// What is set, as one line; `None` if nothing is.
    pub fn text(&self) -> Option<String> {
        let system = self
            .opening
            .system
            .as_ref()
            .map(|text| format!("a system message of {} characters", text.chars().count()));
        let messages = self.opening.messages.len();
        let messages = (messages > 0).then(|| format!("{} to begin with", count(messages, "message")));
        let parameters = self.parameters.iter().map(|(name, value)| format!("{name} {value}"));
        let all: Vec<String> = system.into_iter().chain(messages).chain(parameters).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// The same for `--json`.
    pub fn json(&self) -> Value {
        let parameters: Map<String, Value> = self.parameters.iter().cloned().collect();
        json!({"system": self.opening.system, "messages": self.opening.messages, "parameters": parameters})
    }

    /// Says once in a while that a template of Ollama's is not read: another one is.
    pub fn note_template(&self, name: &str, metadata: &Metadata, settings: &Settings) {
        if !self.has_go_template {
            return;
        }
        let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        if metadata.get("tokenizer.chat_template").is_none() {
            note!(
                "note: {name}: its template is in Ollama's own language, which is not read; --chat-template gives one in Jinja"
            );
        } else if settings.is_first_today(&format!("template-of-{plain}")) {
            note!("note: {name}: the file's own chat template is used, not Ollama's TEMPLATE");
        }
    }
}

fn float(value: &Value) -> Result<f32, String> {
    let number = value.as_f64().or_else(|| value.as_str()?.parse().ok());
    number.map(|x| x as f32).ok_or_else(|| "expected a number".into())
}

fn integer(value: &Value) -> Result<i64, String> {
    let number = value.as_i64().or_else(|| value.as_str()?.parse().ok());
    // Ollama's own files have whole numbers with a point, too.
    let whole = || value.as_f64().filter(|x| x.fract() == 0.0 && x.abs() < 1e15).map(|x| x as i64);
    number.or_else(whole).ok_or_else(|| "expected a whole number".into())
}

/// One text, or a list of them.
fn texts(value: &Value) -> Result<Vec<String>, String> {
    let one = |v: &Value| v.as_str().filter(|text| !text.is_empty()).map(String::from);
    let all: Option<Vec<String>> = match value {
        Value::Array(all) => all.iter().map(one).collect(),
        text => one(text).map(|text| vec![text]),
    };
    let all = all.ok_or("expected a text, or a list of texts")?;
    octet_engine::sampler::StopStrings::new(all.clone()).map_err(|e| e.to_string())?;
    Ok(all)
}

fn mirostat_version(value: &Value) -> Result<Option<MirostatVersion>, String> {
    match integer(value)? {
        0 => Ok(None),
        1 => Ok(Some(MirostatVersion::V1)),
        2 => Ok(Some(MirostatVersion::V2)),
        _ => Err("expected 0 (off), 1 or 2".into()),
    }
}

/// Three parameters that are one setting; `None` if it is off.
fn mirostat(all: &Map<String, Value>) -> Option<Mirostat> {
    let version = mirostat_version(all.get("mirostat")?).ok()??;
    let number = |name: &str, default: f32| all.get(name).and_then(|v| float(v).ok()).unwrap_or(default);
    Some(Mirostat {
        version,
        tau: number("mirostat_tau", Mirostat::TAU),
        eta: number("mirostat_eta", Mirostat::ETA),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parameters: Value) -> (Maker, Vec<String>) {
        let Value::Object(parameters) = parameters else { panic!("an object") };
        let mut wrong = Vec::new();
        let maker = Maker::read(Modelfile { parameters, ..Modelfile::default() }, &mut wrong);
        (maker, wrong)
    }

    #[test]
    fn ollamas_parameters_become_settings() {
        let (maker, wrong) = read(json!({
            "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0, "repeat_penalty": 1.05, "repeat_last_n": -1, "seed": 7,
            "stop": ["<|end|>", "User:"], "num_ctx": 4096, "num_predict": -2, "num_gpu": 99, "mirostat": 2, "mirostat_tau": 4.0,
        }));
        assert_eq!(wrong, [""; 0]);
        let want = SamplingDefaults {
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            min_p: Some(0.0),
            repetition_penalty: Some(1.05),
            penalty_last_n: Some(usize::MAX),
            seed: Some(7),
            mirostat: Some(Mirostat { version: MirostatVersion::V2, tau: 4.0, eta: Mirostat::ETA }),
            ..SamplingDefaults::default()
        };
        assert_eq!(maker.sampling, want);
        assert_eq!(
            (maker.stop, maker.context, maker.predict),
            (vec!["<|end|>".into(), "User:".into()], Some(4096), Some(-1))
        );
        assert!(
            !maker.parameters.iter().any(|(name, _)| name == "num_gpu"),
            "Octet chooses the devices itself"
        );
    }

    #[test]
    fn a_wrong_mirostat_leaves_the_others() {
        for wrong_tau in [json!(-1), json!("nan")] {
            let (maker, wrong) = read(json!({"mirostat": 2, "mirostat_tau": wrong_tau, "top_k": 3}));
            assert_eq!(maker.sampling, SamplingDefaults { top_k: Some(3), ..SamplingDefaults::default() });
            assert!(wrong.len() == 1 && wrong[0].contains("mirostat"), "{wrong:?}");
            assert!(maker.parameters.iter().all(|(name, _)| name == "top_k"));
        }
    }

    #[test]
    fn what_cannot_be_used_is_left_out_and_said() {
        let (maker, wrong) = read(
            json!({"top_p": 3, "temperature": "hot", "\u{1b}colour": 1, "repeat_penalty": 1e-9, "num_ctx": 0, "stop": [1], "top_k": "40"}),
        );
        assert_eq!(maker.sampling, SamplingDefaults { top_k: Some(40), ..SamplingDefaults::default() });
        assert_eq!((maker.stop.len(), maker.context), (0, None));
        for name in [
            "top_p 3",
            "temperature \"hot\"",
            "\\u{1b}colour 1",
            "repeat_penalty 1e-9",
            "num_ctx 0",
            "stop [1]",
        ] {
            assert!(
                wrong.iter().any(|w| w.starts_with(&format!("its parameter {name} is left out: "))),
                "{name}: {wrong:?}"
            );
        }
        assert_eq!(wrong.len(), 6);
    }
}
