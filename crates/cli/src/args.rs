//! Flags shared by several commands: the model, its loading, the processor.
//!
//! Each has an environment variable, see `commands`.

use clap::{Args, ValueEnum};
use octet_compute::backend::{KvType, KvTypes};
use octet_compute::cpu::CpuOptions;
use octet_compute::cpu::isa::Isa;
use octet_engine::engine::Options;

use crate::numbers::{count, positive, threads};
use crate::settings::Settings;
use crate::units::memory_limit;
use crate::usage_error::Usage;

/// The model.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// Short name, hf:user/repo:QUANT, ollama:NAME or lmstudio:FILE (a model of these programs on this machine), URL, GGUF file, or Hugging
    /// Face directory. Default: fox, the tiny built-in model.
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
    /// The model named by a flag.
    pub fn by_flag(&self) -> Option<String> {
        self.flag.clone().or_else(|| self.hf.as_ref().map(|h| format!("hf:{}", h.trim_start_matches("hf:"))))
    }

    /// The model's name: from a flag, an argument, the environment, or the default, the built-in model.
    pub fn name(&self, settings: &Settings) -> Result<String, Usage> {
        match (&self.positional, self.by_flag()) {
            (Some(a), Some(b)) => Err(Usage(format!("two models are named, '{a}' and '{b}'; give one"))),
            (name, flag) => Ok(name.clone().or(flag).unwrap_or_else(|| settings.default_model())),
        }
    }

    /// For commands with a text after the model. All words are text if a flag names the model, or if the first cannot be a model
    /// ([`is_text`]); the model then comes from the environment, or is the built-in one.
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

/// Whether the first argument is text rather than a model: it contains a space, does not look like a path or a URL, and is not a file.
fn is_text(first: &str) -> bool {
    let start = ["hf:", "hf.co/", "http://", "https://", "/", "./", "../", "~"];
    let named = start.iter().any(|s| first.starts_with(s)) || first.to_ascii_lowercase().ends_with(".gguf");
    first.trim().contains(char::is_whitespace) && !named && !std::path::Path::new(first).exists()
}

/// Tokens of a step if the user gives no number.
pub const STEP_TOKENS: usize = 512;

/// How to load a model for generation.
#[derive(Debug, Clone, Args)]
pub struct EngineArgs {
    /// Context size in tokens; 0 is the model's own. Default: the model's own, but at most 16384.
    #[arg(short, long, visible_alias = "max-model-len", value_name = "N", value_parser = count, help_heading = "Memory")]
    pub ctx_size: Option<usize>,
    /// Maximum number of prompt tokens processed at once. Default: 512, and up to 2048 if experts stay on disk. Also -ub.
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Memory")]
    ubatch_size: Option<usize>,
    /// Same as --ubatch-size; the smaller value applies.
    #[arg(short, long, value_name = "N", value_parser = positive, help_heading = "Memory")]
    batch_size: Option<usize>,
    #[command(flatten)]
    pub kv: KvArgs,
    #[command(flatten)]
    pub memory: MemoryArgs,
    #[command(flatten)]
    pub limit: LimitArgs,
    /// Keep no packed weights, and use none. Otherwise those of models of 1 GiB and more are written to the user's cache folder once,
    /// and mapped at the next start.
    #[arg(long, help_heading = "Memory")]
    no_packed: bool,
    /// Number of threads. Default: one per physical core.
    #[arg(short, long, value_name = "N", value_parser = threads, help_heading = "Processor")]
    threads: Option<usize>,
    #[command(flatten)]
    pub kernels: KernelArgs,
    /// llama-server's HF_HUB_OFFLINE=1: nothing is fetched. `Settings` has it.
    #[arg(long, hide = true)]
    offline: bool,
    #[command(flatten)]
    pub device: crate::device::DeviceFlags,
    #[command(flatten)]
    speculation: crate::speculation::SpeculationFlags,
}

impl EngineArgs {
    /// The engine's options, for use: packed weights are kept. Opens the draft model, if one is named.
    pub fn options(&self, settings: &Settings) -> anyhow::Result<Options> {
        let plain = self.plain_options();
        let packed_files = if self.no_packed { None } else { crate::packed::files() };
        let cpu = CpuOptions { packed_files, ..plain.cpu };
        Ok(Options { speculation: self.speculation.options(settings)?, cpu, ..plain })
    }

    /// The same without speculative decoding.
    pub fn plain_options(&self) -> Options {
        Options {
            speculation: octet_engine::engine::speculation::Options::off(),
            context: self.ctx_size,
            kv: self.kv.kv(),
            batch_tokens: self.ubatch_size.into_iter().chain(self.batch_size).min().unwrap_or(STEP_TOKENS),
            cpu: self.kernels.options(self.threads),
            ..Options::default()
        }
    }

    /// Whether the user leaves the number of a step's tokens open.
    pub fn steps_may_grow(&self) -> bool {
        self.ubatch_size.is_none() && self.batch_size.is_none()
    }
}

/// Processor settings.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Processor")]
pub struct KernelArgs {
    /// Instruction set. Default: the best that this processor has.
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
        CpuOptions {
            threads,
            pin: !self.no_pin,
            isa: self.isa.map(Into::into),
            exact: self.exact,
            ..CpuOptions::default()
        }
    }
}

/// [`Isa`] as typed.
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
    /// Type of the keys and values in the cache; q8_0 needs about half the memory of f16. Also -ctk for keys and -ctv for values only.
    #[arg(long, value_enum, value_name = "TYPE", default_value = "f16", hide_possible_values = false)]
    kv_cache_dtype: KvArg,
    #[arg(long, value_enum, value_name = "TYPE", hide = true)]
    cache_type_k: Option<KvArg>,
    #[arg(long, value_enum, value_name = "TYPE", hide = true)]
    cache_type_v: Option<KvArg>,
}

/// Whether to load a model that seems too large.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Memory")]
pub struct MemoryArgs {
    /// Load the model even if it seems larger than the free memory.
    #[arg(long)]
    pub no_memory_check: bool,
}

/// How much memory models may use.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Memory")]
pub struct LimitArgs {
    /// Maximum memory of the model, or of all models of a server together: 24GiB. Experts that do not fit are read from the disk when they
    /// are needed. Default: the free memory.
    #[arg(long, value_name = "SIZE", value_parser = memory_limit)]
    pub memory_limit: Option<u64>,
}

impl KvArgs {
    /// The types of keys and values.
    pub fn kv(&self) -> KvTypes {
        KvTypes {
            keys: self.cache_type_k.unwrap_or(self.kv_cache_dtype).into(),
            values: self.cache_type_v.unwrap_or(self.kv_cache_dtype).into(),
        }
    }
}

/// [`KvType`] as typed.
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
