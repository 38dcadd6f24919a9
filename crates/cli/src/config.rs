//! Everything that a user can set: commands, flags that several commands share, and the environment. Read first.
//!
//! Each flag of each command has a mirror in the environment, made from its name: `--ctx-size` is `OCTET_CTX_SIZE`.
//! A flag beats its mirror. No other file reads the environment; the hub gets it from here.

use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use etcetera::BaseStrategy;
use octet_compute::backend::KvType;
use octet_compute::cpu::CpuOptions;
use octet_compute::cpu::isa::Isa;
use octet_engine::engine::Options;
use octet_hub::HubConfig;

use crate::Usage;

/// Runs large language models on your own machine, as fast as its memory allows.
#[derive(Debug, Parser)]
#[command(name = "octet", version, max_term_width = 100, after_help = TOP_HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const TOP_HELP: &str = "\
Examples:
  octet run smollm2:135m 'Why is the sky blue?'            fetches the model once, and answers
  octet run model.gguf                                     a chat in the terminal
  octet show model.gguf                                    what is in it, and what memory it takes
  octet bench --synthetic qwen3.6-35b-a3b --quant q4_k_m   how fast would it run here?

A MODEL is a short name (smollm2:135m), a repository on Hugging Face (hf:user/repo:Q4_K_M), an
address of a GGUF file, a GGUF file, or a Hugging Face directory. What is not on this machine is
fetched first.

Each flag has a mirror in the environment: --ctx-size is OCTET_CTX_SIZE, --model is OCTET_MODEL.
Models are fetched as HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE say.";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    Run(Box<crate::run::RunArgs>),
    Bench(crate::bench::BenchArgs),
    Show(crate::show::ShowArgs),
    Synth(crate::synth::SynthArgs),
    Pull(crate::library::PullArgs),
    List(crate::library::ListArgs),
    Rm(crate::library::RmArgs),
    Tokenize(crate::tokenize::TokenizeArgs),
    Template(crate::template::TemplateArgs),
    Perplexity(crate::perplexity::PerplexityArgs),
    Completions(crate::completions::CompletionsArgs),
}

/// The model to work on.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// Short name, hf:user/repo:QUANT, address, GGUF file, or Hugging Face directory.
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

    /// The model that is named, by a flag or not, or else by the environment.
    pub fn name(&self, settings: &Settings) -> Result<String, Usage> {
        match (&self.positional, self.by_flag()) {
            (Some(a), Some(b)) => Err(Usage(format!("two models are named, '{a}' and '{b}'; give one"))),
            (name, flag) => name.clone().or(flag).or_else(|| settings.model.clone()).ok_or_else(|| {
                let here = "`octet list` shows those here";
                Usage(format!("no model is named; give a file or a name ({here}), or set OCTET_MODEL"))
            }),
        }
    }

    /// For commands that take a text after the model: where a flag names the model, all words are text.
    pub fn name_and_text(
        &self,
        words: &[String],
        settings: &Settings,
    ) -> Result<(String, Option<String>), Usage> {
        let (name, first) = match self.by_flag() {
            Some(name) => (name, self.positional.as_ref()),
            None => (self.name(settings)?, None),
        };
        let text: Vec<&str> = first.into_iter().chain(words).map(String::as_str).collect();
        Ok((name, (!text.is_empty()).then(|| text.join(" "))))
    }
}

/// How a model is loaded to generate.
#[derive(Debug, Args)]
pub struct EngineArgs {
    /// Tokens of context. Without it: all that the model was made for, at most 16384.
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
    /// Threads. Without it: one for each physical core.
    #[arg(short, long, value_name = "N", value_parser = positive, help_heading = "Processor")]
    threads: Option<usize>,
    #[command(flatten)]
    pub kernels: KernelArgs,
}

impl EngineArgs {
    /// The engine's options.
    pub fn options(&self) -> Result<Options, Usage> {
        Ok(Options {
            context: self.ctx_size,
            kv: self.kv.kv()?,
            batch_tokens: self.batch_size.map_or(self.ubatch_size, |b| b.min(self.ubatch_size)),
            cpu: self.kernels.options(self.threads),
            ..Options::default()
        })
    }
}

/// Which kernels run, on which processors.
#[derive(Debug, Args)]
#[command(next_help_heading = "Processor")]
pub struct KernelArgs {
    /// Instruction set. Without it: the widest that this processor has.
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
    #[value(alias = "avx512-vnni")]
    Avx512,
}

impl From<IsaArg> for Isa {
    fn from(isa: IsaArg) -> Self {
        match isa {
            IsaArg::Portable => Self::Portable,
            IsaArg::Avx2 => Self::Avx2,
            IsaArg::Avx512 => Self::Avx512Vnni,
        }
    }
}

/// Type of the keys and values.
#[derive(Debug, Args)]
#[command(next_help_heading = "Memory")]
pub struct KvArgs {
    /// Type of the keys and values in the cache. Also -ctk and -ctv, which set both.
    #[arg(long, value_enum, value_name = "TYPE", default_value = "f16", hide_possible_values = false)]
    kv_cache_dtype: KvArg,
    #[arg(long, value_enum, value_name = "TYPE", hide = true)]
    cache_type_k: Option<KvArg>,
    #[arg(long, value_enum, value_name = "TYPE", hide = true)]
    cache_type_v: Option<KvArg>,
    /// Load the model even where it seems larger than the free memory.
    #[arg(long)]
    pub no_memory_check: bool,
}

impl KvArgs {
    /// The one type that keys and values have.
    pub fn kv(&self) -> Result<KvType, Usage> {
        match (self.cache_type_k, self.cache_type_v) {
            (Some(k), Some(v)) if k != v => {
                Err(Usage("keys and values have one type here: -ctk and -ctv must be the same".into()))
            }
            (k, v) => Ok(k.or(v).unwrap_or(self.kv_cache_dtype).into()),
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
}

impl From<KvArg> for KvType {
    fn from(kv: KvArg) -> Self {
        match kv {
            KvArg::F16 => Self::F16,
            KvArg::F32 => Self::F32,
        }
    }
}

/// A count of something there must be some of.
pub fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a whole number above 0".into()),
        Ok(n) => Ok(n),
    }
}

/// What comes from the environment and is no flag.
#[derive(Debug)]
pub struct Settings {
    /// `OCTET_MODEL`: the model where none is named.
    pub model: Option<String>,
    /// `OCTET_DATA_DIR`, or the system's folder for a user's data: what was typed in chats is kept there. `None` where
    /// there is no home directory.
    pub data: Option<PathBuf>,
}

impl Settings {
    /// The hub's settings.
    pub fn hub(&self) -> Result<HubConfig, octet_hub::Error> {
        HubConfig::from_env(variable)
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Reads the command line and the environment; exits where they can not be understood, or are asked for help.
pub fn parse() -> (Command, Settings) {
    let args = std::env::args_os().map(|a| a.to_str().map_or(a.clone(), |s| spelling(s).into()));
    let mut command = command();
    let cli = command.try_get_matches_from_mut(args).and_then(|m| Cli::from_arg_matches(&m));
    let cli = cli.unwrap_or_else(|e| e.format(&mut command).exit());
    let set = |name: &str| variable(name).filter(|v| !v.is_empty());
    let data = || Some(etcetera::choose_base_strategy().ok()?.data_dir().join("octet"));
    let settings =
        Settings { model: set("OCTET_MODEL"), data: set("OCTET_DATA_DIR").map(PathBuf::from).or_else(data) };
    (cli.command, settings)
}

/// The parser, with the environment's mirrors.
pub fn command() -> clap::Command {
    mirrored(Cli::command())
}

fn mirrored(command: clap::Command) -> clap::Command {
    // Of a flag that stands twice the last one counts, so that an alias of the shell can be overruled.
    let command = command.args_override_self(true).mut_args(|arg| match arg.get_long() {
        // The model is special: where a command names one, the environment's does not count.
        None | Some("model" | "hf" | "help" | "version") => arg,
        Some(long) => {
            let name = format!("OCTET_{}", long.to_ascii_uppercase().replace('-', "_"));
            let is_switch = matches!(arg.get_action(), clap::ArgAction::SetTrue);
            let arg = arg.env(name).hide_env(true);
            if is_switch { arg.value_parser(clap::builder::BoolishValueParser::new()) } else { arg }
        }
    });
    command.mut_subcommands(mirrored)
}

/// llama.cpp's flags with one dash and several letters, which clap does not know, in our spelling.
fn spelling(arg: &str) -> String {
    const SPELLINGS: [(&str, &str); 7] = [
        ("-ctk", "--cache-type-k"),
        ("-ctv", "--cache-type-v"),
        ("-ub", "--ubatch-size"),
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
    fn every_flag_has_a_mirror_and_an_explanation() {
        for sub in command().get_subcommands() {
            for arg in sub.get_arguments().filter(|a| !matches!(a.get_id().as_str(), "help" | "version")) {
                assert!(arg.get_help().is_some() || arg.is_hide_set(), "{} {}", sub.get_name(), arg.get_id());
                let mirrored =
                    matches!(arg.get_long(), None | Some("model" | "hf")) || arg.get_env().is_some();
                assert!(mirrored, "{} {}", sub.get_name(), arg.get_id());
            }
            assert!(sub.get_after_help().is_some(), "{} has no example", sub.get_name());
        }
    }

    #[test]
    fn spellings_of_llama_cpp_are_understood() {
        assert_eq!(
            ["-ctk", "-ub=64", "-p", "--hf", "-sysx"].map(spelling),
            ["--cache-type-k", "--ubatch-size=64", "-p", "--hf", "-sysx"]
        );
    }
}
