//! Other servers' environment variables, for `octet serve`: llama-server's for the flags that Octet takes, by the rule for its flags; API
//! keys; Ollama's, which are only noted.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};

use super::names;
use super::table::{DEFAULTS, FLAGS, Meaning, Takes};
use crate::settings::{API_KEYS, mirror, not_text};
use crate::usage_error::Usage;

/// The beginning of llama-server's variables; the rest is mostly the flag's name.
const LLAMA: &str = "LLAMA_ARG_";

/// Variables that are not called like their flag.
const NAMES: [(&str, &str); 17] = [
    ("BATCH", "--batch-size"),
    ("UBATCH", "--ubatch-size"),
    ("ROPE_SCALING_TYPE", "--rope-scaling"),
    ("CHECKPOINT_MIN_SPACING_NT", "--checkpoint-min-step"),
    ("SPEC_DRAFT_CACHE_TYPE_K", "--spec-draft-type-k"),
    ("SPEC_DRAFT_CACHE_TYPE_V", "--spec-draft-type-v"),
    ("SPEC_DRAFT_HF_REPO", "--spec-draft-hf"),
    ("TEMPERATURE", "--temp"),
    ("N_PARALLEL", "--parallel"),
    ("STATIC_PATH", "--path"),
    ("ENDPOINT_METRICS", "--metrics"),
    ("ENDPOINT_PROPS", "--props"),
    ("ENDPOINT_SLOTS", "--slots"),
    ("N_GPU_LAYERS_DRAFT", "--n-gpu-layers-draft"),
    ("THINK", "--reasoning-format"),
    ("THINK_BUDGET", "--reasoning-budget"),
    ("THINK_BUDGET_MESSAGE", "--reasoning-budget-message"),
];

/// Variables that name the model; as in llama-server, a later one counts more.
const MODELS: [(&str, &str); 3] =
    [("LLAMA_ARG_MODEL", ""), ("LLAMA_ARG_MODEL_URL", ""), ("LLAMA_ARG_HF_REPO", "hf:")];

/// Ollama's variables, and the flags that do the same.
const OLLAMA: [(&str, &str); 7] = [
    ("OLLAMA_HOST", "--host and --port"),
    ("OLLAMA_KEEP_ALIVE", "--keep-alive"),
    ("OLLAMA_CONTEXT_LENGTH", "--ctx-size"),
    ("OLLAMA_NUM_PARALLEL", "--parallel"),
    ("OLLAMA_MAX_QUEUE", "--max-queue"),
    ("OLLAMA_KV_CACHE_TYPE", "--kv-cache-dtype"),
    ("OLLAMA_ORIGINS", "--cors-origin"),
];

/// Variables that only choose a model.
const CHOICES: [&str; 4] = ["HF_FILE", "MODELS_DIR", "MODELS_PRESET", "DOCKER_REPO"];

/// What the variables ask for.
#[derive(Debug, Default)]
pub(crate) struct Foreign {
    /// Variables by the long names of Octet's flags.
    flags: BTreeMap<String, String>,
    /// The variable that names a model, and the model.
    model: Option<(String, String)>,
    notes: Vec<String>,
    /// A variable that would change answers.
    refused: Option<Usage>,
    /// A variable that chooses a model in a way that is not supported: refused unless the command names one.
    choice_refused: Option<Usage>,
}

/// What becomes of one variable.
enum Outcome {
    Flag(String),
    Note(String),
    Refused(&'static str),
    Nothing,
}

/// Reads the variables that are set and not empty. `serve` is the command, whose flags with Octet's own variables are `shared`; a
/// variable of Octet counts more, if `is_set`.
pub(crate) fn read(
    variables: &[(String, OsString)],
    serve: &clap::Command,
    shared: &dyn Fn(&str) -> bool,
    is_set: &dyn Fn(&str) -> bool,
) -> Foreign {
    let mut out = Foreign::default();
    let mut ollama = Vec::new();
    for (name, value) in variables {
        if let Some((_, instead)) = OLLAMA.iter().find(|(n, _)| n == name) {
            ollama.push(format!("{name} ({instead})"));
            continue;
        }
        let (is_key, rest) = (API_KEYS.contains(&name.as_str()), name.strip_prefix(LLAMA));
        if !is_key && rest.is_none() {
            continue;
        }
        // Without its key the server would be open.
        let Some(value) = value.to_str() else {
            out.refused.get_or_insert(not_text(name));
            continue;
        };
        let Some(rest) = rest.filter(|_| !is_key) else { continue };
        if MODELS.iter().any(|(n, _)| n == name) {
            continue;
        }
        match outcome(rest, value, serve) {
            Outcome::Flag(long) if shared(&long) => {
                if !is_set(&mirror(&long)) {
                    out.flags.insert(long, name.clone());
                }
            }
            Outcome::Flag(long) => out.notes.push(format!("{name} is not read: give --{long}")),
            Outcome::Note(why) => out.notes.push(format!("{name} has no effect here: {why}")),
            Outcome::Refused(why) => {
                let what = format!("the environment variable {name} of llama.cpp is not supported: {why}");
                let place = if CHOICES.contains(&rest) { &mut out.choice_refused } else { &mut out.refused };
                place.get_or_insert(Usage(what));
            }
            Outcome::Nothing => {}
        }
    }
    if !ollama.is_empty() {
        let all = ollama.join(", ");
        out.notes.push(format!("Ollama's environment variables are not read: {all}; give the flags"));
    }
    let value = |name: &str| variables.iter().find(|(n, _)| n == name).and_then(|(_, v)| v.to_str());
    for (name, prefix) in MODELS {
        if let Some(model) = value(name) {
            let model = model.strip_prefix(prefix).unwrap_or(model);
            out.model = Some((name.into(), format!("{prefix}{model}")));
        }
    }
    if let Some(key) = API_KEYS.iter().find(|k| value(k).is_some())
        && !is_set(&mirror("api-key"))
    {
        out.flags.insert("api-key".into(), (*key).into());
    }
    out
}

/// The value of a variable that is a switch, as llama-server reads it.
fn switch(value: &str) -> Result<bool, String> {
    match value {
        "1" | "on" | "true" | "yes" | "enabled" => Ok(true),
        "0" | "off" | "false" | "no" | "disabled" | "" => Ok(false),
        _ => Err("expected 1 or 0, on or off, true or false, enabled or disabled".into()),
    }
}

/// What becomes of `LLAMA_ARG_{rest}`.
fn outcome(rest: &str, value: &str, serve: &clap::Command) -> Outcome {
    let is_off = ["0", "off", "false", "disabled"].contains(&value);
    let flag = NAMES.iter().find(|(name, _)| *name == rest).map_or_else(
        || format!("--{}", rest.to_ascii_lowercase().replace('_', "-")),
        |(_, flag)| (*flag).into(),
    );
    if DEFAULTS.iter().any(|(flags, v)| *v == value && names(flags, &flag)) {
        return Outcome::Nothing;
    }
    let row = |flag: &str| FLAGS.iter().find(|(flags, ..)| names(flags, flag));
    let own = |flag: &str| serve.get_arguments().find(|arg| is_called(arg, flag));
    if let Some(arg) = own(&flag) {
        let long = arg.get_long().unwrap_or_default().to_string();
        return Outcome::Flag(long);
    }
    match row(&flag) {
        Some((_, Takes::Nothing, _)) if is_off => match row(&flag.replacen("--", "--no-", 1)) {
            Some((.., Meaning::Ignored(why))) => Outcome::Note((*why).into()),
            Some((.., Meaning::Refused(why))) => Outcome::Refused(why),
            _ => Outcome::Nothing,
        },
        Some((.., Meaning::Ignored(why))) => Outcome::Note((*why).into()),
        Some((.., Meaning::Refused(why))) => Outcome::Refused(why),
        // With a prefix for its value, it cannot be read from a variable.
        Some((.., Meaning::Here(ours))) if ours.contains('=') => {
            let flag = ours.split('=').next().unwrap_or(ours);
            Outcome::Note(format!("give {flag}"))
        }
        Some((.., Meaning::Here(ours))) => Outcome::Flag(ours.trim_start_matches("--").into()),
        // `LLAMA_ARG_NO_MMAP`: whatever its value is, it is the same as `LLAMA_ARG_MMAP=0`.
        None => match rest.strip_prefix("NO_") {
            Some(rest) if !rest.starts_with("NO_") => match outcome(rest, "0", serve) {
                Outcome::Flag(_) => Outcome::Nothing,
                other => other,
            },
            _ => Outcome::Note("it is not known".into()),
        },
    }
}

/// Whether `flag` is a long name of this argument.
fn is_called(arg: &Arg, flag: &str) -> bool {
    let long = arg.get_long_and_visible_aliases().unwrap_or_default();
    let hidden = arg.get_all_aliases().unwrap_or_default();
    flag.strip_prefix("--").is_some_and(|flag| long.contains(&flag) || hidden.contains(&flag))
}

impl Foreign {
    /// Adds the variables to the flags of `serve`.
    pub fn add_to(&self, serve: clap::Command) -> clap::Command {
        serve.mut_args(|arg| match arg.get_long().and_then(|long| self.flags.get(long)) {
            Some(name) => {
                let is_switch = matches!(arg.get_action(), ArgAction::SetTrue);
                let arg = arg.env(name.clone()).hide_env(true);
                if is_switch { arg.value_parser(switch) } else { arg }
            }
            None => arg,
        })
    }

    /// The variable that the value of a flag comes from.
    pub fn variable(&self, long: &str) -> Option<&str> {
        self.flags.get(long).map(String::as_str)
    }

    /// The notes for the user, and the model, which counts unless one `is_named`. `matches` and `serve` are of the command.
    ///
    /// Fails for a variable that would change answers.
    pub fn take(
        self,
        matches: &ArgMatches,
        serve: &clap::Command,
        is_named: bool,
    ) -> Result<(Vec<String>, Option<String>), Usage> {
        if let Some(refused) = self.refused.or(self.choice_refused.filter(|_| !is_named)) {
            return Err(refused);
        }
        let mut notes = self.notes;
        let mut taken = Vec::new();
        for (long, name) in &self.flags {
            let id = serve.get_arguments().find(|arg| arg.get_long() == Some(long)).map(Arg::get_id);
            if id.and_then(|id| matches.value_source(id.as_str())) == Some(ValueSource::EnvVariable) {
                taken.push(format!("{name} (--{long})"));
            }
        }
        let model = self.model.filter(|_| !is_named);
        taken.extend(model.iter().map(|(name, _)| format!("{name} (the model)")));
        if !taken.is_empty() {
            notes.push(format!("read from the environment: {}", taken.join(", ")));
        }
        Ok((notes, model.map(|(_, model)| model)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn foreign(variables: &[(&str, &str)], is_set: &dyn Fn(&str) -> bool) -> Foreign {
        let variables: Vec<(String, OsString)> =
            variables.iter().map(|(name, value)| ((*name).into(), value.into())).collect();
        let commands = crate::commands::command();
        let serve = commands.find_subcommand("serve").unwrap();
        read(&variables, serve, &crate::commands::is_shared, is_set)
    }

    #[test]
    fn flags_are_read_from_llama_servers_variables() {
        for (name, value, long) in [
            ("LLAMA_ARG_CTX_SIZE", "4096", Some("ctx-size")),
            ("LLAMA_ARG_N_PARALLEL", "2", Some("parallel")),
            ("LLAMA_ARG_N_PARALLEL", "-1", None),
            ("LLAMA_ARG_N_PREDICT", "9", Some("predict")),
            ("LLAMA_ARG_TEMPERATURE", "0", Some("temp")),
            ("LLAMA_ARG_HOST", "0.0.0.0", Some("host")),
            ("LLAMA_ARG_PORT", "1", Some("port")),
            ("LLAMA_ARG_ALIAS", "a", Some("alias")),
            ("LLAMA_ARG_UBATCH", "64", Some("ubatch-size")),
            ("LLAMA_ARG_CACHE_TYPE_K", "q8_0", Some("cache-type-k")),
            ("LLAMA_ARG_CORS_ORIGINS", "*", Some("cors-origin")),
            ("LLAMA_ARG_CHAT_TEMPLATE_FILE", "x", Some("chat-template")),
            ("LLAMA_ARG_THINK", "none", Some("reasoning-format")),
            ("LLAMA_ARG_THINK_BUDGET", "0", Some("reasoning-budget")),
            ("LLAMA_ARG_OFFLINE", "1", Some("offline")),
            ("LLAMA_ARG_API_KEY_FILE", "x", Some("api-key-file")),
            ("LLAMA_ARG_SLOT_SAVE_PATH", "x", Some("cache-disk")),
            ("LLAMA_API_KEY", "a,b", Some("api-key")),
            ("VLLM_API_KEY", "a", Some("api-key")),
            ("LLAMA_ARG_MMPROJ", "x", Some("mmproj")),
            ("LLAMA_ARG_NO_OFFLINE", "1", None),
        ] {
            let read = foreign(&[(name, value)], &|_| false);
            let want: Vec<&str> = long.into_iter().collect();
            assert_eq!(read.flags.keys().collect::<Vec<_>>(), want, "{name}");
            assert!(read.notes.is_empty() && read.refused.is_none(), "{name}: {read:?}");
            // Octet's own variable counts more.
            let own = long.map(mirror);
            assert!(foreign(&[(name, value)], &|n| own.as_deref() == Some(n)).flags.is_empty(), "{name}");
        }
        let both = foreign(&[("VLLM_API_KEY", "b"), ("LLAMA_API_KEY", "a")], &|_| false);
        assert_eq!(both.variable("api-key"), Some("LLAMA_API_KEY"));
    }

    #[test]
    fn variables_without_effect_are_noted_and_others_refused() {
        for (name, value, note) in [
            ("LLAMA_ARG_N_GPU_LAYERS", "99", "that --device names"),
            ("LLAMA_ARG_FLASH_ATTN", "off", "one kind of attention"),
            ("LLAMA_ARG_ENDPOINT_METRICS", "1", "always on"),
            ("LLAMA_ARG_ENDPOINT_SLOTS", "0", "/slots is always there"),
            ("LLAMA_ARG_CONTEXT_SHIFT", "false", "always on"),
            ("LLAMA_ARG_NO_MMAP", "1", "file is read"),
            ("LLAMA_ARG_NO_JINJA", "1", "Jinja"),
            ("LLAMA_ARG_SPEC_DRAFT_HF_REPO", "a/b", "--model-draft"),
            ("LLAMA_ARG_SOMETHING_NEW", "1", "not known"),
            ("OLLAMA_HOST", "0.0.0.0", "OLLAMA_HOST (--host and --port)"),
        ] {
            let read = foreign(&[(name, value)], &|_| false);
            assert!(read.flags.is_empty() && read.refused.is_none(), "{name}: {read:?}");
            assert!(read.notes.len() == 1 && read.notes[0].contains(note), "{name}: {:?}", read.notes);
        }
        for (name, value, why) in [
            ("LLAMA_ARG_MMPROJ_URL", "x", "download the projector"),
            ("LLAMA_ARG_CONTEXT_SHIFT", "1", "make the context larger"),
            ("LLAMA_ARG_SSL_KEY_FILE", "x", "docs/deploy.md"),
            ("LLAMA_ARG_PREFILL_ASSISTANT", "0", "add_generation_prompt"),
            ("LLAMA_ARG_ROPE_SCALING_TYPE", "yarn", "the model's file"),
        ] {
            let refused = foreign(&[(name, value)], &|_| false).refused.expect(name).to_string();
            assert!(refused.contains(name) && refused.contains(why), "{refused}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_key_that_is_no_text_is_refused() {
        use std::os::unix::ffi::OsStringExt;
        let commands = crate::commands::command();
        let serve = commands.find_subcommand("serve").unwrap();
        for name in API_KEYS {
            let variables = [(name.to_string(), OsString::from_vec(vec![0xff]))];
            let refused = read(&variables, serve, &crate::commands::is_shared, &|_| false).refused;
            assert!(refused.expect(name).to_string().contains(name));
        }
    }

    #[test]
    fn choices_of_a_model_are_refused_unless_one_is_named() {
        let commands = crate::commands::command();
        let serve = commands.find_subcommand("serve").unwrap();
        let matches = serve.clone().try_get_matches_from(["serve"]).unwrap();
        let read = || foreign(&[("LLAMA_ARG_MODELS_DIR", "/x")], &|_| false);
        assert!(
            read().take(&matches, serve, false).unwrap_err().to_string().contains("LLAMA_ARG_MODELS_DIR")
        );
        assert!(read().take(&matches, serve, true).is_ok());
    }

    #[test]
    fn switches_have_llama_servers_values() {
        assert_eq!(
            (switch("enabled"), switch("1"), switch("disabled"), switch("off")),
            (Ok(true), Ok(true), Ok(false), Ok(false))
        );
        assert!(switch("maybe").is_err());
    }

    #[test]
    fn a_variable_names_the_model() {
        for (variables, want) in [
            (vec![("LLAMA_ARG_MODEL", "/x.gguf")], "/x.gguf"),
            (
                vec![("LLAMA_ARG_MODEL", "/x.gguf"), ("LLAMA_ARG_MODEL_URL", "https://x/y.gguf")],
                "https://x/y.gguf",
            ),
            (vec![("LLAMA_ARG_HF_REPO", "a/b:Q4_0"), ("LLAMA_ARG_MODEL", "/x.gguf")], "hf:a/b:Q4_0"),
        ] {
            let model = foreign(&variables, &|_| false).model.map(|(_, model)| model);
            assert_eq!(model.as_deref(), Some(want), "{variables:?}");
        }
    }

    #[test]
    fn flags_count_more_than_variables_and_what_is_read_is_said() {
        let parse = |args: &[&str]| {
            // A variable that is set wherever tests run stands for llama-server's.
            let flags = BTreeMap::from([("chat-template".to_string(), "PATH".to_string())]);
            let model = Some(("LLAMA_ARG_MODEL".to_string(), "/x.gguf".to_string()));
            let foreign = Foreign { flags, model, ..Foreign::default() };
            let commands = crate::commands::command();
            let serve = foreign.add_to(commands.find_subcommand("serve").unwrap().clone());
            let matches = serve.clone().try_get_matches_from(args).unwrap();
            let named = matches.contains_id("positional");
            let out = foreign.take(&matches, &serve, named).unwrap();
            (matches.get_one::<PathBuf>("chat_template").unwrap().clone(), out)
        };
        let (template, (notes, model)) = parse(&["serve"]);
        assert!(template.as_os_str().len() > 1, "it is PATH's: {template:?}");
        assert_eq!(model.as_deref(), Some("/x.gguf"));
        assert_eq!(notes, ["read from the environment: PATH (--chat-template), LLAMA_ARG_MODEL (the model)"]);
        let (template, out) = parse(&["serve", "fox", "--chat-template", "b"]);
        assert_eq!((template, out), (PathBuf::from("b"), (Vec::new(), None)));
    }
}
