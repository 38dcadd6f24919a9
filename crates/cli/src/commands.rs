//! The command line: all commands, and its parsing.
//!
//! Shared flags (for loading and sampling) can be set in the environment: `--ctx-size` is `OCTET_CTX_SIZE`. A flag overrides its
//! variable. Flags of a single command have no variables: `--output` may mean something else in another command.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use clap::error::{ContextKind, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::args::EngineArgs;
use crate::llama_flags::env::{self, Foreign};
use crate::llama_flags::{self, Line};
use crate::sampling::SamplingArgs;
use crate::settings::{Settings, mirror, not_text, others, set};
use crate::stderr::note;
use crate::usage_error::Usage;

/// Runs large language models on your own machine, as fast as its memory allows.
#[derive(Debug, Parser)]
#[command(name = "octet", version, max_term_width = 100, after_help = TOP_HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const TOP_HELP: &str = "\
Examples:
  octet run 'Tell me a story about a fox.'                 ask the tiny built-in model
  octet run smollm2:135m 'Why is the sky blue?'            download a model once, and ask it
  octet run model.gguf                                     chat in the terminal
  octet serve smollm2:135m                                 serve APIs at http://127.0.0.1:8080
  octet show model.gguf                                    layers, parameters, memory
  octet plan                                               models that fit into this machine
  octet bench --synthetic qwen3.6-35b-a3b --quant q4_k_m   expected speed, without a download

A MODEL is a short name (smollm2:135m), a Hugging Face repository (hf:user/repo:Q4_K_M), a model
of Ollama's or LM Studio's on this machine (ollama:qwen3:8b, lmstudio:FILE), the URL of a GGUF
file, a GGUF file, or a Hugging Face directory. Octet downloads it if necessary.
Default: fox, the tiny built-in model.

The flags of `octet serve`, and those for loading and sampling, can be set in the environment:
--ctx-size is OCTET_CTX_SIZE, --temp is OCTET_TEMP. OCTET_MODEL is the default model. HF_HOME,
HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE control downloads.";

/// The command.
#[derive(Debug, Subcommand)]
pub enum Command {
    Run(Box<crate::run::RunArgs>),
    Serve(Box<crate::serve::ServeArgs>),
    Ps(crate::running::PsArgs),
    Stop(crate::running::StopArgs),
    Service(crate::service::ServiceArgs),
    Bench(Box<crate::bench::BenchArgs>),
    Show(crate::show::ShowArgs),
    Plan(crate::plan::PlanArgs),
    Experts(Box<crate::experts::ExpertsArgs>),
    Devices(crate::device::DevicesArgs),
    Doctor(crate::doctor::DoctorArgs),
    Synth(crate::synth::SynthArgs),
    Quantize(Box<crate::quantize::QuantizeArgs>),
    Convert(Box<crate::quantize::ConvertArgs>),
    Imatrix(Box<crate::imatrix::ImatrixArgs>),
    Pull(crate::library::PullArgs),
    List(crate::library::ListArgs),
    Rm(crate::library::RmArgs),
    Tokenize(crate::tokenize::TokenizeArgs),
    Template(crate::template::TemplateArgs),
    Perplexity(Box<crate::perplexity::PerplexityArgs>),
    Compare(Box<crate::compare::CompareArgs>),
    Eval(Box<crate::eval::EvalArgs>),
    #[command(hide = true)]
    Confined(crate::eval::confine::ConfinedArgs),
    Config(crate::config_cmd::ConfigArgs),
    Route(Box<crate::route::RouteArgs>),
    Keys(Box<crate::keys::KeysArgs>),
    Usage(crate::usage::UsageArgs),
    Completions(crate::completions::CompletionsArgs),
}

/// Parses the command line and the environment; exits if it is invalid or asks for help.
pub fn parse() -> Result<(Command, Settings), Usage> {
    let is_set = |name: &str| set(name).is_some();
    let mut command = mirrored(crate::help::fit(Cli::command()), &is_set);
    let foreign = match command.find_subcommand(SERVE) {
        Some(serve) => env::read(&others(), serve, &is_shared, &is_set),
        None => Foreign::default(),
    };
    command = command.mut_subcommand(SERVE, |serve| foreign.add_to(serve));
    let Line { args, mut notes } = llama_flags::read(std::env::args_os(), &command)?;
    let matches = command.try_get_matches_from_mut(args).map_err(|e| refused(&e, &foreign))?;
    one_value_each(&matches, &command)?;
    let cli = Cli::from_arg_matches(&matches).map_err(|e| refused(&e.format(&mut command), &foreign))?;
    let offline =
        matches.subcommand().and_then(|(_, m)| m.try_get_one::<bool>("offline").ok().flatten().copied());
    let mut settings = Settings::read(given(&matches, &command), offline.unwrap_or(false))?;
    if let Some((SERVE, matches)) = matches.subcommand()
        && let Some(serve) = command.find_subcommand(SERVE)
    {
        let is_named = settings.model.is_some() || MODEL_FLAGS.iter().any(|id| settings.given.contains(*id));
        let (more, model) = foreign.take(matches, serve, is_named)?;
        notes.extend(more);
        settings.model = settings.model.or(model);
    }
    for note in notes {
        note!("note: {note}");
    }
    Ok((cli.command, settings))
}

/// The command that reads other servers' variables.
const SERVE: &str = "serve";
/// Its arguments that name models.
const MODEL_FLAGS: [&str; 4] = ["positional", "flag", "hf", "config"];

/// The flags that were given.
fn given(matches: &ArgMatches, command: &clap::Command) -> BTreeSet<String> {
    let Some((name, matches)) = matches.subcommand() else { return BTreeSet::new() };
    let Some(sub) = command.find_subcommand(name) else { return BTreeSet::new() };
    let ids = sub.get_arguments().map(|a| a.get_id().as_str());
    let by_user = |id: &&str| {
        let source = matches.try_contains_id(id).ok().and_then(|_| matches.value_source(id));
        matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
    };
    ids.filter(by_user).map(String::from).collect()
}

/// Prints clap's error and exits; an error about a variable names the variable.
fn refused(e: &clap::Error, foreign: &Foreign) -> Usage {
    let context = |kind| e.get(kind).map(ToString::to_string);
    let shared = shared();
    if e.kind() == ErrorKind::InvalidUtf8 {
        let not_utf8 = |name: &String| set(name).is_some_and(|v| v.into_string().is_err());
        if let Some(name) = shared.iter().map(|long| mirror(long)).find(not_utf8) {
            return not_text(&name);
        }
    }
    // A closed output is ignored.
    let _ = e.print();
    if let (Some(flag), Some(value)) = (context(ContextKind::InvalidArg), context(ContextKind::InvalidValue))
    {
        let flag = flag.split_whitespace().next().unwrap_or_default().trim_start_matches("--").to_string();
        let typed = std::env::args_os().any(|a| a.to_string_lossy().contains(&value));
        if !typed && shared.contains(&flag) {
            let name = foreign.variable(&flag).map_or_else(|| mirror(&flag), String::from);
            note!("\nThe value comes from the environment variable {name}.");
        }
    }
    std::process::exit(e.exit_code())
}

/// The parser, with all environment variables.
pub fn command() -> clap::Command {
    mirrored(Cli::command(), &|_| true)
}

/// The flags with variables: the shared groups, sampling, and the server's.
fn shared() -> BTreeSet<String> {
    let all = SamplingArgs::augment_args(EngineArgs::augment_args(clap::Command::new("shared")));
    let all = crate::serve::ServerArgs::augment_args(all);
    all.get_arguments().filter_map(|a| a.get_long()).map(String::from).collect()
}

/// Whether the flag of this long name has a variable.
pub fn is_shared(long: &str) -> bool {
    shared().contains(long)
}

/// Adds environment variables to flags, as far as they are `set`. (clap would treat an empty variable as a value.)
fn mirrored(command: clap::Command, set: &dyn Fn(&str) -> bool) -> clap::Command {
    fn mirrored(
        command: clap::Command,
        shared: &BTreeSet<String>,
        set: &dyn Fn(&str) -> bool,
    ) -> clap::Command {
        // If a flag is repeated, the last one counts, so that shell aliases can be overridden.
        let command = command.args_override_self(true).mut_args(|arg| match arg.get_long() {
            Some(long) if shared.contains(long) && set(&mirror(long)) => {
                let name = mirror(long);
                let is_switch = matches!(arg.get_action(), clap::ArgAction::SetTrue);
                let arg = arg.env(name).hide_env(true);
                if is_switch { arg.value_parser(clap::builder::BoolishValueParser::new()) } else { arg }
            }
            _ => arg,
        });
        command.mut_subcommands(|sub| mirrored(sub, shared, set))
    }
    mirrored(command, &shared(), set)
}

/// `octet bench` takes lists where other commands take one value; a variable has one value for all commands.
fn one_value_each(matches: &ArgMatches, command: &clap::Command) -> Result<(), Usage> {
    let Some((name, matches)) = matches.subcommand() else { return Ok(()) };
    let Some(sub) = command.find_subcommand(name) else { return Ok(()) };
    let shared = shared();
    for arg in sub.get_arguments().filter(|a| a.get_value_delimiter().is_some()) {
        let id = arg.get_id().as_str();
        // llama-server's variables hold lists.
        let is_ours = arg.get_long().is_some_and(|long| arg.get_env() == Some(OsStr::new(&mirror(long))));
        let by_variable = is_ours && matches.value_source(id) == Some(ValueSource::EnvVariable);
        if let Some(long) = arg.get_long().filter(|l| by_variable && shared.contains(*l))
            && matches.get_raw(id).is_some_and(|v| v.len() > 1)
        {
            return Err(Usage(format!("{} holds one value; lists are for --{long}", mirror(long))));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_flag_is_explained() {
        for sub in command().get_subcommands().filter(|sub| !sub.is_hide_set()) {
            for arg in sub.get_arguments().filter(|a| !matches!(a.get_id().as_str(), "help" | "version")) {
                assert!(arg.get_help().is_some() || arg.is_hide_set(), "{} {}", sub.get_name(), arg.get_id());
            }
            assert!(sub.get_after_help().is_some(), "{} has no example", sub.get_name());
        }
    }

    #[test]
    fn flags_after_a_flattened_group_are_not_under_its_heading() {
        let command = command();
        let heading = |sub: &str, id: &str| {
            let sub = command.find_subcommand(sub).unwrap();
            sub.get_arguments().find(|a| a.get_id() == id).unwrap().get_help_heading()
        };
        for (sub, id) in [("run", "web"), ("show", "json"), ("plan", "all"), ("template", "source")] {
            assert_eq!(heading(sub, id), None, "{sub} {id}");
        }
        assert_eq!(heading("serve", "verbose"), Some("Server"));
    }

    #[test]
    fn a_variable_means_the_same_to_every_command() {
        let mut parsers = std::collections::BTreeMap::new();
        for sub in command().get_subcommands() {
            for arg in sub.get_arguments() {
                let Some(name) = arg.get_env() else { continue };
                let is_switch = matches!(arg.get_action(), clap::ArgAction::SetTrue);
                let this = (arg.get_value_parser().type_id(), is_switch);
                let first = *parsers.entry(name.to_os_string()).or_insert(this);
                assert_eq!(first, this, "{name:?} of {}", sub.get_name());
            }
        }
        let has = |name: &str| parsers.contains_key(std::ffi::OsStr::new(name));
        assert!(has("OCTET_CTX_SIZE") && has("OCTET_TEMP") && has("OCTET_NO_PIN"));
        assert!(!has("OCTET_OUTPUT") && !has("OCTET_JSON"), "a command's own");
    }
}
