//! `octet bench`: measures a model in llama-bench's terms, and compares it with the memory bandwidth.

mod answers;
mod endpoint;
mod footer;
mod format;
mod kernels;

use std::io::Write;

use clap::{Args, ValueEnum};
use octet_compute::backend::KvTypes;
use octet_compute::cpu::{Cpu, CpuOptions};
use octet_engine::bench::{self, Kind, Outcome, Share, Test};
use octet_engine::device::Device;
use octet_engine::models::{self, Limits};
use octet_engine::report::Report;
use octet_synth::Shape;

use crate::args::{KernelArgs, KvArgs, MemoryArgs, ModelArgs, STEP_TOKENS};
use crate::device::DeviceName;
use crate::memory::OnDisk;
use crate::numbers::{count, positive, threads};
use crate::progress::Bar;
use crate::settings::Settings;
use crate::stderr::note;
use crate::synth::MadeArgs;
use crate::usage_error::Usage;

const EXAMPLES: &str = "\
Examples:
  octet bench model.gguf
  octet bench model.gguf -p 512,2048 -n 128 -d 0,4096       prompts, and both after 4096 tokens
  octet bench model.gguf -p 512 -n 64 -np 1,4,8             throughput of several sequences
  octet bench model.gguf -t 1,2,4 -o csv                    compare numbers of threads
  octet bench model.gguf --device cpu,vulkan:0              compare the card with the processor
  octet bench model.gguf -p 0 -n 64 --profile               time of each operation of a step
  octet bench model.gguf -n 64 --memory-limit 8,12,16       speed with a part of the experts on disk
  octet bench --synthetic qwen3.6-35b-a3b --quant q4_k_m    expected speed, without a download
  octet bench model.gguf --speculative auto -f prompts.jsonl    speedup by speculation
  octet bench --kernels                                     kernel speed by type of weights
  octet bench --url http://127.0.0.1:8080/v1                latency and throughput of a server
  octet bench --url http://127.0.0.1:8080/v1 --url http://127.0.0.1:9090/v1 --concurrency 1,4

Rows are llama-bench's: pp512 processes a prompt of 512 tokens, tg128 generates 128 tokens,
'@ d4096' does so after 4096 tokens, x4 runs four sequences (total rate). Comma-separated values
give one row each. The lines below the table show the bytes read per token, and the share of the
memory bandwidth that generation reached.

--kernels measures the matrix kernels without a model, for each type and instruction set: GB/s of
weights in the cache, which is the kernel's own limit, and in memory, next to a plain read of
memory.

With --speculative or -f, answers are generated with and without speculation, in turn, and must be
the same. -f is a file with one JSON object per line: {\"messages\": [..]} or {\"prompt\": \"..\"},
optionally with \"name\".

--url measures a server over HTTP, as its clients see it: time to the first token (TTFT), time per
output token after it (TPOT), time between pieces of the stream (ITL), and throughput. Tokens are
those that the server reports (usage); if it reports none, pieces count, and the table says so.";

/// Measures how fast a model processes prompts and generates text.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Measure a synthetic model of this shape, in memory; with --quant and --layers.
    #[arg(long, value_name = "SHAPE", value_parser = crate::synth::shape, help_heading = "Model",
          conflicts_with_all = ["positional", "flag", "hf"])]
    synthetic: Option<Box<Shape>>,
    #[command(flatten, next_help_heading = "Model")]
    made: MadeArgs,

    /// Prompt lengths to process; 0 for none.
    #[arg(
        short = 'p',
        long,
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "512",
        value_parser = count,
        help_heading = "Tests"
    )]
    n_prompt: Vec<usize>,
    /// Numbers of tokens to generate; 0 for none.
    #[arg(
        short = 'n',
        long,
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "128",
        value_parser = count,
        help_heading = "Tests"
    )]
    n_gen: Vec<usize>,
    /// Tokens in the cache before each test.
    #[arg(
        short = 'd',
        long,
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "0",
        value_parser = count,
        help_heading = "Tests"
    )]
    n_depth: Vec<usize>,
    /// Concurrent sequences, each with the lengths above. Also -np.
    #[arg(
        long,
        value_name = "N,..",
        value_delimiter = ',',
        default_value = "1",
        value_parser = positive,
        help_heading = "Tests"
    )]
    parallel: Vec<usize>,
    /// Number of runs of each test.
    #[arg(short, long, value_name = "N", default_value = "5", value_parser = positive, help_heading = "Tests")]
    repetitions: usize,
    /// Measure the matrix kernels of all types and instruction sets, without a model.
    #[arg(long = "kernels", help_heading = "Tests", conflicts_with_all = ["positional", "flag", "hf", "synthetic"])]
    only_kernels: bool,
    /// Answer the prompts in this file with and without speculation (JSON lines; - is standard input).
    #[arg(short = 'f', long = "prompts", value_name = "FILE", help_heading = "Tests")]
    prompts: Option<std::path::PathBuf>,
    #[command(flatten)]
    speculation: crate::speculation::SpeculationFlags,
    /// Skip the warm-up run.
    #[arg(long, help_heading = "Tests")]
    no_warmup: bool,

    /// Devices to measure: cpu, vulkan:N as in `octet devices`, or auto as in `octet run`. vulkan:0+vulkan:1 is one model over both.
    #[arg(
        long,
        value_name = "DEVICE,..",
        value_delimiter = ',',
        default_value = "auto",
        help_heading = "Device"
    )]
    device: Vec<DeviceName>,
    /// Maximum memory to use of each graphics device, in GiB. Default: all that is free.
    #[arg(long, value_name = "GIB", value_parser = crate::units::gibibytes, help_heading = "Device")]
    gpu_memory: Option<u64>,
    /// Numbers of threads. Default: one per physical core.
    #[arg(short, long, value_name = "N,..", value_delimiter = ',', value_parser = threads, help_heading = "Processor")]
    threads: Vec<usize>,
    #[command(flatten)]
    kernels: KernelArgs,
    /// Maximum number of prompt tokens processed at once. Default: 512, and up to 2048 if experts stay on disk. Also -ub.
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = positive, help_heading = "Memory")]
    ubatch_size: Vec<usize>,
    #[command(flatten)]
    kv: KvArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    /// Memory limits in GiB, a row each: experts that do not fit are read from the disk when they are needed. Default: none.
    #[arg(
        long,
        value_name = "GIB,..",
        value_delimiter = ',',
        value_parser = crate::units::gibibytes,
        help_heading = "Memory"
    )]
    memory_limit: Vec<u64>,

    #[command(flatten)]
    endpoint: endpoint::EndpointArgs,

    /// Output format.
    #[arg(short, long, value_enum, default_value = "md", help_heading = "Output")]
    output: Output,
    /// Show each verb's share of a step, or on a graphics device each stage's: time, and bytes per second.
    #[arg(long, help_heading = "Output")]
    profile: bool,
    /// Skip measuring the memory bandwidth.
    #[arg(long, help_heading = "Output")]
    no_bandwidth: bool,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Md,
    Json,
    Jsonl,
    Csv,
}

/// Number of bandwidth measurements; the best counts.
const BANDWIDTH_PASSES: usize = 9;
/// The machine is busy if half of the measurements are below this fraction of the best.
const BUSY: f64 = 0.9;

/// One row: a test with one setting.
struct Row {
    outcome: Outcome,
    /// The backend: `CPU`, `Vulkan`, and its description.
    backend: &'static str,
    device: String,
    /// Barriers and kernels of its last step, if steps are recorded.
    stages: Option<(u32, u32)>,
    /// Times of its stages on a device, for `--profile`.
    stage_times: Option<Vec<bench::Stages>>,
    threads: usize,
    ubatch: usize,
    kv: KvTypes,
    /// The limit of its memory, if one was given.
    memory_limit: Option<u64>,
    /// Memory bandwidth with this many threads in bytes per second, if measured.
    bandwidth: Option<f64>,
    /// The share of that bandwidth that generation reached, measured alternately.
    share: Option<Share>,
}

impl Row {
    /// Bytes per second that the test read and wrote: weights, states, keys and values, each once per step.
    fn achieved(&self) -> Option<f64> {
        let time: f64 = self.outcome.times.iter().map(|t| t.as_secs_f64()).sum();
        let bytes = self.outcome.profile.as_ref()?.total().bytes;
        (bytes > 0).then(|| bytes as f64 / time)
    }

    /// Tokens of all repetitions, at least 1.
    fn tokens(&self) -> u64 {
        (self.outcome.test.tokens() * self.outcome.times.len()).max(1) as u64
    }

    /// Time of all repetitions.
    fn seconds(&self) -> f64 {
        self.outcome.times.iter().map(|t| t.as_secs_f64()).sum()
    }

    fn is_generation(&self) -> bool {
        matches!(self.outcome.test.kind, Kind::Generate(_))
    }
}

/// The facts that the rows share.
struct Subject {
    name: String,
    report: Report,
    /// Prefetch distance of the processor in bytes, if it was measured.
    prefetch: Option<usize>,
}

pub fn run(args: &BenchArgs, settings: &Settings) -> anyhow::Result<()> {
    if args.endpoint.is_given() {
        let common = endpoint::Common {
            n_prompt: &args.n_prompt,
            n_gen: &args.n_gen,
            model: args.model.by_flag(),
            warmup: !args.no_warmup,
            output: args.output,
        };
        return endpoint::run(&args.endpoint, &common);
    }
    if let Some(flag) = args.endpoint.idle_flag() {
        return Err(Usage(format!("{flag} is for measuring a server: add --url URL, or remove it")).into());
    }
    if args.only_kernels {
        return kernels::run(&args.kernels, &args.threads, args.output);
    }
    let tests = tests(args);
    if tests.is_empty() {
        return Err(Usage("nothing to measure: give a -p or a -n above 0".into()).into());
    }
    if args.synthetic.is_none() && args.made.is_given() {
        let flags = "--quant, --layers, --expert-skew and --weights-seed are for a synthetic model";
        return Err(Usage(format!("{flags}: add --synthetic SHAPE, or remove them")).into());
    }
    let model = match &args.synthetic {
        Some(shape) => args.made.make(shape)?,
        None => crate::model::open(&args.model.name(settings)?, settings)?,
    };
    if args.prompts.is_some() || args.speculation.is_given() {
        let work = answers::Work {
            file: args.prompts.as_deref(),
            speculation: args.speculation.options(settings)?,
            n_prompt: &args.n_prompt,
            n_gen: args.n_gen.iter().copied().max().unwrap_or(0).max(2),
            repetitions: args.repetitions,
            warmup: !args.no_warmup,
            threads: args.threads.first().copied(),
            kernels: &args.kernels,
            kv: &args.kv,
            memory: &args.memory,
            output: args.output,
        };
        return answers::run(&work, &model);
    }
    measure_all(args, &model, &tests)
}

/// Runs the tests with each setting, and prints the rows.
fn measure_all(args: &BenchArgs, model: &octet_weights::Model, tests: &[Test]) -> anyhow::Result<()> {
    let report = Report::new(model)?;
    let name = report.name.clone().unwrap_or_else(|| report.origin.clone());
    let mut subject = Subject { name, report, prefetch: None };
    let threads = or_none(&args.threads);
    let ubatch_sizes = or_none(&args.ubatch_size);
    let mut printer = format::Printer::new(args.output);
    let mut rows = Vec::new();
    let mut out = std::io::stdout().lock();
    let limits = or_none(&args.memory_limit);
    for (&device, &limit) in args.device.iter().flat_map(|d| limits.iter().map(move |l| (d, l))) {
        for (&threads, &ubatch) in threads.iter().flat_map(|t| ubatch_sizes.iter().map(move |u| (t, u))) {
            let mut new =
                measure(args, model, &mut subject, tests, device, Processor { threads, ubatch, limit })?;
            printer.rows(&mut out, &subject, &new)?;
            rows.append(&mut new);
        }
    }
    printer.end(&mut out)?;
    if args.output == Output::Md {
        footer::write(&mut out, &subject, &rows, args.profile)?;
    }
    out.flush()?;
    Ok(())
}

/// A setting's values, or `None` if the user leaves it open.
fn or_none<T: Copy>(values: &[T]) -> Vec<Option<T>> {
    if values.is_empty() { vec![None] } else { values.iter().copied().map(Some).collect() }
}

fn tests(args: &BenchArgs) -> Vec<Test> {
    let kinds =
        args.n_prompt.iter().map(|&n| Kind::Prompt(n)).chain(args.n_gen.iter().map(|&n| Kind::Generate(n)));
    let kinds: Vec<Kind> = kinds.collect();
    let mut tests = Vec::new();
    for &depth in &args.n_depth {
        for &sequences in &args.parallel {
            tests.extend(kinds.iter().map(|&kind| Test { kind, depth, sequences }));
        }
    }
    tests.retain(|t| t.tokens() > 0);
    tests
}

/// Settings of a row.
struct Processor {
    threads: Option<usize>,
    /// `None`: as in use.
    ubatch: Option<usize>,
    /// Bytes of memory.
    limit: Option<u64>,
}

/// Loads the model with one setting and runs all tests.
fn measure(
    args: &BenchArgs,
    model: &octet_weights::Model,
    subject: &mut Subject,
    tests: &[Test],
    device: DeviceName,
    Processor { threads, ubatch, limit }: Processor,
) -> anyhow::Result<Vec<Row>> {
    let context = tests.iter().map(Test::context).max().unwrap_or(1);
    let kv = args.kv.kv();
    let limits_with = |ubatch: usize| {
        let mut limits = Limits { batch_tokens: ubatch.min(context), kv, ..Limits::single(context) };
        tests.iter().for_each(|t| t.make_room(&mut limits));
        limits
    };
    let may_grow = ubatch.is_none();
    let mut ubatch = ubatch.unwrap_or(STEP_TOKENS);
    let mut limits = limits_with(ubatch);
    let is_checked = !args.memory.no_memory_check;
    let device = device.device(args.gpu_memory, &subject.report, &limits, args.kernels.exact, is_checked)?;
    let mut options = args.kernels.options(threads);
    if device.is_none() {
        let free = crate::memory::available().filter(|_| is_checked);
        let report = &subject.report;
        let needs = |ubatch| Ok(report.memory(&limits_with(ubatch), options.exact));
        if let Some(room) = free.into_iter().chain(limit).min().filter(|_| !options.exact)
            && let Some(on_disk) = OnDisk::within(report, room, ubatch, may_grow, needs)?
        {
            options.expert_slots = Some(on_disk.slots);
            ubatch = on_disk.step_tokens;
            limits = limits_with(ubatch);
        }
        // As in use, if they were kept; a measurement writes none.
        options.packed_files = crate::packed::files().filter(|_| options.expert_slots.is_some());
        options.packed_files.iter_mut().for_each(|files| files.least = u64::MAX);
        let bill = report.with_slots(report.memory(&limits, options.exact), options.expert_slots);
        crate::memory::check_within(free, limit, report, &[bill], context, "smaller -p, -n or -d")?;
    }
    let Loaded { mut model, backend, bandwidth } =
        load(args, model, subject, device.as_ref(), limits, &options)?;
    let device = model.backend().describe();
    let threads = model.backend().threads();
    let mut bar = Bar::steps("");
    let runs = args.repetitions + usize::from(!args.no_warmup);
    let mut rows = Vec::new();
    for (i, &test) in tests.iter().enumerate() {
        bar.set_message(test.name());
        let mut done = (i * runs) as u64;
        let outcome = bench::run(&mut *model, test, args.repetitions, !args.no_warmup, &mut || {
            done += 1;
            bar.update(done, (tests.len() * runs) as u64);
        })?;
        let stages = model.backend().stages();
        let stage_times =
            if args.profile && stages.is_some() { bench::stages(&mut *model, test)? } else { None };
        bar.set_message(format!("{}: share of the memory bandwidth", test.name()));
        // With experts on disk, memory is not what limits the speed.
        let is_apart = args.no_bandwidth || outcome.store.is_some();
        let share = if is_apart { Ok(None) } else { bench::share(&mut *model, test) };
        // The rows are complete without it.
        let share = share.unwrap_or_else(|e| {
            note!("the share of the memory's bandwidth could not be measured: {e}");
            None
        });
        rows.push(Row {
            outcome,
            backend,
            device: device.clone(),
            stages,
            stage_times,
            threads,
            ubatch,
            kv,
            memory_limit: limit,
            bandwidth,
            share,
        });
    }
    Ok(rows)
}

/// A model on its device.
struct Loaded {
    model: Box<dyn models::Model>,
    backend: &'static str,
    /// Of the device's memory, in bytes per second, if it was measured.
    bandwidth: Option<f64>,
}

fn load(
    args: &BenchArgs,
    model: &octet_weights::Model,
    subject: &mut Subject,
    device: Option<&Device>,
    limits: Limits,
    options: &CpuOptions,
) -> anyhow::Result<Loaded> {
    let loading = if args.synthetic.is_some() { "making weights" } else { "loading" };
    let (model, backend, passes) = match device {
        None => {
            let mut cpu = Cpu::new(options)?;
            subject.prefetch = Some(cpu.prefetch_distance());
            // Before the weights use the memory.
            let working = (!args.no_bandwidth).then(|| Bar::working("measuring the memory bandwidth"));
            let passes = (!args.no_bandwidth).then(|| cpu.measure_bandwidth(BANDWIDTH_PASSES)).transpose()?;
            drop(working);
            let bar = Bar::bytes(loading);
            (models::load(model, cpu, limits, &mut |done, all| bar.update(done, all))?, "CPU", passes)
        }
        Some(device) => {
            let bar = Bar::bytes(loading);
            let mut loaded = device.load(model, limits, &mut |done, all| bar.update(done, all))?;
            let measure = |l: &mut dyn models::Model| l.backend().measure_bandwidth(BANDWIDTH_PASSES);
            let passes = (!args.no_bandwidth).then(|| measure(&mut *loaded)).transpose()?;
            (loaded, "Vulkan", passes)
        }
    };
    Ok(Loaded { model, backend, bandwidth: passes.map(|mut passes| best(&mut passes)) })
}

/// The best measurement, which other programs disturbed least. Warns if they disturbed half of them.
fn best(passes: &mut [f64]) -> f64 {
    passes.sort_by(f64::total_cmp);
    let (middle, best) = (passes[passes.len() / 2], passes[passes.len() - 1]);
    if middle < BUSY * best {
        note!(
            "warning: this machine is busy: {:.1} to {:.1} GB/s in {} passes over its memory; other figures vary as much",
            passes[0] / 1e9,
            best / 1e9,
            passes.len()
        );
    }
    best
}
