//! Everything that a user can set: commands, flags that several commands share, and the environment. Read first.
//!
//! Flags that say how any model is loaded and how tokens are chosen have a mirror in the environment, made from their
//! name: `--ctx-size` is `OCTET_CTX_SIZE`. A flag beats its mirror. Flags of one command have none: what `--output`
//! means there, it may not mean elsewhere. No other file reads the environment; the hub gets it from here.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use etcetera::BaseStrategy;
use octet_compute::backend::{KvType, KvTypes};
use octet_compute::cpu::CpuOptions;
use octet_compute::cpu::isa::Isa;
use octet_engine::engine::Options;
use octet_hub::HubConfig;

use crate::Usage;
use crate::inside;
use crate::sampling::SamplingArgs;
use crate::stderr::note;

/// Runs large language models on your own machine, as fast as its memory allows.
#[derive(Debug, Parser)]
#[command(name = "octet", version, max_term_width = 100, after_help = TOP_HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const TOP_HELP: &str = "\
Examples:
  octet run 'Tell me a story about a fox.'                 the tiny model inside answers
  octet run smollm2:135m 'Why is the sky blue?'            fetches the model once, and answers
  octet run model.gguf                                     a chat in the terminal
  octet serve smollm2:135m                                 an API for clients, at 127.0.0.1:8080
  octet show model.gguf                                    what is in it, and what memory it takes
  octet plan                                               which models fit here, and how fast
  octet bench --synthetic qwen3.6-35b-a3b --quant q4_k_m   how fast would it run here?

A MODEL is a short name (smollm2:135m), a repository on Hugging Face (hf:user/repo:Q4_K_M), an
address of a GGUF file, a GGUF file, or a Hugging Face directory. What is not on this machine is
fetched first. Where none is named, the tiny model inside octet (fox) is used.

Flags that say how a model is loaded and how tokens are chosen have a mirror in the environment:
--ctx-size is OCTET_CTX_SIZE, --temp is OCTET_TEMP; OCTET_MODEL is the model where none is named.
Models are fetched as HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE say.";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    Run(Box<crate::run::RunArgs>),
    Serve(Box<crate::serve::ServeArgs>),
    Bench(Box<crate::bench::BenchArgs>),
    Show(crate::show::ShowArgs),
    Plan(crate::plan::PlanArgs),
    Experts(Box<crate::experts::ExpertsArgs>),
    Devices(crate::device::DevicesArgs),
    Doctor(crate::doctor::DoctorArgs),
    Synth(crate::synth::SynthArgs),
    Pull(crate::library::PullArgs),
    List(crate::library::ListArgs),
    Rm(crate::library::RmArgs),
    Tokenize(crate::tokenize::TokenizeArgs),
    Template(crate::template::TemplateArgs),
    Perplexity(crate::perplexity::PerplexityArgs),
    Config(crate::config_cmd::ConfigArgs),
    Route(Box<crate::route::RouteArgs>),
    Keys(Box<crate::keys::KeysArgs>),
    Usage(crate::usage::UsageArgs),
    Completions(crate::completions::CompletionsArgs),
}

/// The model to work on.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// Short name, hf:user/repo:QUANT, address, GGUF file, or Hugging Face directory. Default: the tiny model inside, fox.
    #[arg(value_name = "MODEL")]
    pub positional: Option<String>,
    /// The same as MODEL.
    #[arg(short = 'm', long = "model", value_name = "MODEL", help_heading = "Model")]
    pub flag: Option<String>,
    /// A model on Hugging Face: user/repo:QUANT. Also -hf.
    #[arg(
        long = "hf",
        alias = "hf-repo",
        value_name = "REPO",
        help_heading = "Model",
        conflicts_with = "flag"
    )]
    pub hf: Option<String>,
}

impl ModelArgs {
    /// The model as a flag names it.
    pub fn by_flag(&self) -> Option<String> {
        self.flag.clone().or_else(|| self.hf.as_ref().map(|h| format!("hf:{}", h.trim_start_matches("hf:"))))
    }

    /// The model that is named, by a flag or not, or else by the environment, or else the one inside.
    pub fn name(&self, settings: &Settings) -> Result<String, Usage> {
        match (&self.positional, self.by_flag()) {
            (Some(a), Some(b)) => Err(Usage(format!("two models are named, '{a}' and '{b}'; give one"))),
            (name, flag) => Ok(name.clone().or(flag).unwrap_or_else(|| settings.default_model())),
        }
    }

    /// For commands that take a text after the model: where a flag names the model, all words are text; so they are where
    /// the first one can be no model ([`is_text`]), and then it is the model of the environment, or the one inside.
    pub fn name_and_text(
        &self,
        words: &[String],
        settings: &Settings,
    ) -> Result<(String, Option<String>), Usage> {
        let (name, first) = match (self.by_flag(), &self.positional) {
            (Some(name), first) => (name, first.as_ref()),
            (None, Some(first)) if is_text(first) => (settings.default_model(), Some(first)),
            (None, _) => (self.name(settings)?, None),
        };
        let text: Vec<&str> = first.into_iter().chain(words).map(String::as_str).collect();
        Ok((name, (!text.is_empty()).then(|| text.join(" "))))
    }
}

/// True where a text stands in the place of a model: it has a space in it, does not look like a path or an address, and is no file.
fn is_text(first: &str) -> bool {
    let start = ["hf:", "hf.co/", "http://", "https://", "/", "./", "../", "~"];
    let named = start.iter().any(|s| first.starts_with(s)) || first.to_ascii_lowercase().ends_with(".gguf");
    first.trim().contains(char::is_whitespace) && !named && !std::path::Path::new(first).exists()
}

/// How a model is loaded to generate.
#[derive(Debug, Clone, Args)]
pub struct EngineArgs {
    /// Tokens of context. Default: all that the model was made for, at most 16384.
    #[arg(short, long, visible_alias = "max-model-len", value_name = "N", value_parser = positive, help_heading = "Memory")]
    pub ctx_size: Option<usize>,
    /// Tokens of a prompt that are processed at once. Also -ub.
    #[arg(long, value_name = "N", default_value = "512", value_parser = positive, help_heading = "Memory")]
    ubatch_size: usize,
    /// The same; the smaller one counts.
    #[arg(short, long, value_name = "N", value_parser = positive, help_heading = "Memory")]
    batch_size: Option<usize>,
    #[command(flatten)]
    pub kv: KvArgs,
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Threads. Default: one for each physical core.
    #[arg(short, long, value_name = "N", value_parser = positive, help_heading = "Processor")]
    threads: Option<usize>,
    #[command(flatten)]
    pub kernels: KernelArgs,
    #[command(flatten)]
    pub device: crate::device::DeviceFlags,
    #[command(flatten)]
    speculation: crate::speculation::SpeculationFlags,
}

impl EngineArgs {
    /// The engine's options. Opens the draft model, where one is named.
    pub fn options(&self, settings: &Settings) -> anyhow::Result<Options> {
        Ok(Options { speculation: self.speculation.options(settings)?, ..self.plain_options() })
    }

    /// The same for one token a step.
    pub fn plain_options(&self) -> Options {
        Options {
            speculation: octet_engine::engine::speculation::Options::off(),
            context: self.ctx_size,
            kv: self.kv.kv(),
            batch_tokens: self.batch_size.map_or(self.ubatch_size, |b| b.min(self.ubatch_size)),
            cpu: self.kernels.options(self.threads),
            ..Options::default()
        }
    }
}

/// Which kernels run, on which processors.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Processor")]
pub struct KernelArgs {
    /// Instruction set. Default: the widest that this processor has.
    #[arg(long, value_enum)]
    pub isa: Option<IsaArg>,
    /// Let the system move threads between processors.
    #[arg(long)]
    pub no_pin: bool,
    /// Compute with f32 weights and activations: exact, large and slow.
    #[arg(long)]
    pub exact: bool,
}

impl KernelArgs {
    /// The backend's options.
    pub fn options(&self, threads: Option<usize>) -> CpuOptions {
        CpuOptions { threads, pin: !self.no_pin, isa: self.isa.map(Into::into), exact: self.exact }
    }
}

/// [`Isa`] as it is typed.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum IsaArg {
    Portable,
    Avx2,
    AvxVnni,
    #[value(alias = "avx512-vnni")]
    Avx512,
    Neon,
    NeonI8mm,
}

impl From<IsaArg> for Isa {
    fn from(isa: IsaArg) -> Self {
        match isa {
            IsaArg::Portable => Self::Portable,
            IsaArg::Avx2 => Self::Avx2,
            IsaArg::AvxVnni => Self::AvxVnni,
            IsaArg::Avx512 => Self::Avx512Vnni,
            IsaArg::Neon => Self::Neon,
            IsaArg::NeonI8mm => Self::NeonI8mm,
        }
    }
}

/// Types of the keys and values.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Memory")]
pub struct KvArgs {
    /// Type of the keys and values in the cache; q8_0 takes about half of what f16 takes. Also -ctk for the keys and -ctv
    /// for the values alone.
    #[arg(long, value_enum, value_name = "TYPE", default_value = "f16", hide_possible_values = false)]
    kv_cache_dtype: KvArg,
    #[arg(long, value_enum, value_name = "TYPE", hide = true)]
    cache_type_k: Option<KvArg>,
    #[arg(long, value_enum, value_name = "TYPE", hide = true)]
    cache_type_v: Option<KvArg>,
}

/// Whether a model that seems too large is loaded.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Memory")]
pub struct MemoryArgs {
    /// Load the model even where it seems larger than the free memory.
    #[arg(long)]
    pub no_memory_check: bool,
}

impl KvArgs {
    /// The types that keys and values have.
    pub fn kv(&self) -> KvTypes {
        KvTypes {
            keys: self.cache_type_k.unwrap_or(self.kv_cache_dtype).into(),
            values: self.cache_type_v.unwrap_or(self.kv_cache_dtype).into(),
        }
    }
}

/// [`KvType`] as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvArg {
    #[value(aliases = ["auto", "fp16", "float16"])]
    F16,
    #[value(aliases = ["fp32", "float32"])]
    F32,
    #[value(name = "q8_0")]
    Q8_0,
}

impl From<KvArg> for KvType {
    fn from(kv: KvArg) -> Self {
        match kv {
            KvArg::F16 => Self::F16,
            KvArg::F32 => Self::F32,
            KvArg::Q8_0 => Self::Q8_0,
        }
    }
}

/// Largest count that is taken: far above what any machine holds, and far below what sums of them could overflow.
const COUNT_MAX: usize = 1 << 28;

/// A count of something there must be some of.
pub fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=COUNT_MAX) => Ok(n),
        Ok(0) | Err(_) => Err("expected a whole number above 0".into()),
        Ok(_) => Err(format!("expected at most {COUNT_MAX}")),
    }
}

/// A count of something there may be none of.
pub fn count(text: &str) -> Result<usize, String> {
    if text == "0" { Ok(0) } else { positive(text) }
}

/// What comes from the environment and is no flag.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Flags that stand on the command line or come from the environment: they beat a configuration file.
    pub given: BTreeSet<String>,
    /// `OCTET_MODEL`: the model where none is named.
    pub model: Option<String>,
    /// `OCTET_DATA_DIR`, or the system's folder for a user's data: what was typed in chats is kept there. `None` where
    /// there is no home directory.
    pub data: Option<PathBuf>,
    /// `RUST_LOG`: what the server writes to its log.
    pub log: Option<String>,
}

impl Settings {
    /// The model where none is named: that of the environment, or else the one inside, which is said.
    pub fn default_model(&self) -> String {
        self.model.clone().unwrap_or_else(|| {
            note!("{}", inside::NOTE);
            inside::NAME.into()
        })
    }

    /// The hub's settings.
    pub fn hub(&self) -> anyhow::Result<HubConfig> {
        let unreadable = RefCell::new(None);
        let config = HubConfig::from_env(|name| {
            variable(name).unwrap_or_else(|e| {
                unreadable.borrow_mut().get_or_insert(e);
                None
            })
        });
        match unreadable.into_inner() {
            Some(e) => Err(e.into()),
            None => Ok(config?),
        }
    }
}

/// A variable that is set, and not to nothing.
fn set(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|v| !v.is_empty())
}

/// The same as text.
fn variable(name: &str) -> Result<Option<String>, Usage> {
    set(name).map(|v| v.into_string().map_err(|_| not_text(name))).transpose()
}

/// A variable that a router's configuration names.
pub fn lookup(name: &str) -> Option<String> {
    variable(name).unwrap_or_else(|e| {
        note!("{e}; it counts as not set");
        None
    })
}

/// The secret in the variable that a flag names.
pub fn secret(name: &str) -> Result<String, Usage> {
    variable(name)?.ok_or_else(|| Usage(format!("the environment variable {name} is not set")))
}

fn not_text(name: &str) -> Usage {
    Usage(format!("the environment variable {name} is not UTF-8"))
}

/// Reads the command line and the environment; exits where the command line cannot be understood, or asks for help.
pub fn parse() -> Result<(Command, Settings), Usage> {
    let mut command = mirrored(Cli::command(), &|name| set(name).is_some());
    let matches = command.try_get_matches_from_mut(spellings(std::env::args_os()));
    let matches = matches.map_err(|e| refused(&e))?;
    one_value_each(&matches, &command)?;
    let cli = Cli::from_arg_matches(&matches).map_err(|e| refused(&e.format(&mut command)))?;
    let data = || Some(etcetera::choose_base_strategy().ok()?.data_dir().join("octet"));
    let settings = Settings {
        given: given(&matches, &command),
        model: variable("OCTET_MODEL")?,
        data: set("OCTET_DATA_DIR").map(PathBuf::from).or_else(data),
        log: variable("RUST_LOG")?,
    };
    Ok((cli.command, settings))
}

/// The flags of the command that somebody gave.
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

/// Prints what clap has to say and exits; what it has to say about a variable names that.
fn refused(e: &clap::Error) -> Usage {
    let said = |kind| e.get(kind).map(ToString::to_string);
    let shared = shared();
    if e.kind() == ErrorKind::InvalidUtf8 {
        let not_utf8 = |name: &String| set(name).is_some_and(|v| v.into_string().is_err());
        if let Some(name) = shared.iter().map(|long| mirror(long)).find(not_utf8) {
            return not_text(&name);
        }
    }
    // That its output is closed is not worth a word.
    let _ = e.print();
    if let (Some(flag), Some(value)) = (said(ContextKind::InvalidArg), said(ContextKind::InvalidValue)) {
        let flag = flag.split_whitespace().next().unwrap_or_default().trim_start_matches("--").to_string();
        let typed = std::env::args_os().any(|a| a.to_string_lossy().contains(&value));
        if !typed && shared.contains(&flag) {
            note!("\nThe value comes from the environment variable {}.", mirror(&flag));
        }
    }
    std::process::exit(e.exit_code())
}

/// The parser, with all mirrors.
pub fn command() -> clap::Command {
    mirrored(Cli::command(), &|_| true)
}

/// The flags that have mirrors: those of the groups here that several commands share, of sampling, and of the server.
fn shared() -> BTreeSet<String> {
    let all = SamplingArgs::augment_args(EngineArgs::augment_args(clap::Command::new("shared")));
    let all = crate::serve::ServerArgs::augment_args(all);
    all.get_arguments().filter_map(|a| a.get_long()).map(String::from).collect()
}

fn mirror(long: &str) -> String {
    format!("OCTET_{}", long.to_ascii_uppercase().replace('-', "_"))
}

/// The mirror of a flag, where it is set to nothing. To most flags that is as good as unset.
pub fn empty_mirror(long: &str) -> Option<String> {
    Some(mirror(long)).filter(|name| std::env::var_os(name).is_some_and(|v| v.is_empty()))
}

/// Gives flags their mirrors, as far as those are `set`. (To clap an empty variable would be a value.)
fn mirrored(command: clap::Command, set: &dyn Fn(&str) -> bool) -> clap::Command {
    fn mirrored(
        command: clap::Command,
        shared: &BTreeSet<String>,
        set: &dyn Fn(&str) -> bool,
    ) -> clap::Command {
        // Of a flag that stands twice the last one counts, so that an alias of the shell can be overruled.
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

/// `octet bench` takes lists where other commands take one value; a variable holds one value for all of them.
fn one_value_each(matches: &ArgMatches, command: &clap::Command) -> Result<(), Usage> {
    let Some((name, matches)) = matches.subcommand() else { return Ok(()) };
    let Some(sub) = command.find_subcommand(name) else { return Ok(()) };
    let shared = shared();
    for arg in sub.get_arguments().filter(|a| a.get_value_delimiter().is_some()) {
        let id = arg.get_id().as_str();
        let by_variable = matches.value_source(id) == Some(ValueSource::EnvVariable);
        if let Some(long) = arg.get_long().filter(|l| by_variable && shared.contains(*l))
            && matches.get_raw(id).is_some_and(|v| v.len() > 1)
        {
            return Err(Usage(format!("{} holds one value; lists are for --{long}", mirror(long))));
        }
    }
    Ok(())
}

/// The command line in our spelling, up to `--`: behind it is only text.
fn spellings(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut is_text = false;
    let ours = |a: OsString| {
        is_text |= a == "--";
        match a.to_str() {
            Some(s) if !is_text => spelling(s).into(),
            _ => a,
        }
    };
    args.map(ours).collect()
}

/// llama.cpp's flags with one dash and several letters, which clap does not know, in our spelling.
fn spelling(arg: &str) -> String {
    const SPELLINGS: [(&str, &str); 8] = [
        ("-ctk", "--cache-type-k"),
        ("-ctv", "--cache-type-v"),
        ("-ub", "--ubatch-size"),
        ("-md", "--model-draft"),
        ("-np", "--parallel"),
        ("-hf", "--hf"),
        ("-hfr", "--hf"),
        ("-sys", "--system"),
    ];
    let (flag, value) = arg.split_once('=').map_or((arg, None), |(f, v)| (f, Some(v)));
    match SPELLINGS.iter().find(|(theirs, _)| *theirs == flag) {
        Some((_, ours)) => value.map_or(ours.to_string(), |v| format!("{ours}={v}")),
        None => arg.to_string(),
    }
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
        for sub in command().get_subcommands() {
            for arg in sub.get_arguments().filter(|a| !matches!(a.get_id().as_str(), "help" | "version")) {
                assert!(arg.get_help().is_some() || arg.is_hide_set(), "{} {}", sub.get_name(), arg.get_id());
            }
            assert!(sub.get_after_help().is_some(), "{} has no example", sub.get_name());
        }
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

    #[test]
    fn spellings_of_llama_cpp_are_understood() {
        let ours = |args: &[&str]| spellings(args.iter().map(OsString::from));
        assert_eq!(
            ours(&["-ctk", "-ub=64", "-p", "--hf", "-sysx", "--", "-hf", "-ub=1"]),
            ["--cache-type-k", "--ubatch-size=64", "-p", "--hf", "-sysx", "--", "-hf", "-ub=1"]
        );
    }

    #[test]
    fn counts_are_bounded() {
        assert_eq!((count("0"), positive("268435456")), (Ok(0), Ok(COUNT_MAX)));
        assert!(positive("0").is_err() && count("-1").is_err());
        assert!(positive("268435457").unwrap_err().contains("at most"));
        assert!(positive("18446744073709551616").is_err());
    }
}
