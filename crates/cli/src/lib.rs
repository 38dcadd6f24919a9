//! The `octet` command: parses the command line, runs the command, reports errors. Start here, then `commands`.
#![warn(clippy::print_stderr)] // `stderr::note` does not panic

mod advice;
mod args;
mod bench;
mod chat;
mod commands;
mod compare;
mod completions;
mod config_cmd;
mod device;
mod device_bytes;
mod device_layers;
mod device_memory;
mod doctor;
mod embedded;
mod endpoint;
mod eval;
mod experts;
mod help;
mod images;
mod imatrix;
mod keys;
mod library;
mod llama_flags;
mod loading;
mod maker;
mod memory;
mod model;
mod numbers;
mod packed;
mod perplexity;
mod plan;
mod progress;
mod quantize;
mod random;
mod route;
mod run;
mod running;
mod samplers;
mod sampling;
mod serve;
mod service;
mod settings;
mod show;
mod speculation;
mod stderr;
mod stdout;
mod svg;
mod synth;
mod template;
mod tokenize;
mod units;
mod usage;
mod usage_error;
mod wrap;

use std::process::ExitCode;

use commands::Command;
use settings::Settings;
use stderr::note;
use usage_error::Usage;

/// Runs the command of the command line; returns the exit code.
pub fn main() -> ExitCode {
    let parsed = commands::parse().map_err(Into::into);
    parsed.and_then(|(command, settings)| dispatch(command, &settings)).unwrap_or_else(|e| report(&e))
}

fn dispatch(command: Command, settings: &Settings) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => return run::run(&args, settings),
        Command::Serve(args) => serve::run(&args, settings)?,
        Command::Ps(args) => running::ps(&args)?,
        Command::Stop(args) => running::stop(&args)?,
        Command::Service(args) => service::run(&args)?,
        Command::Bench(args) => bench::run(&args, settings)?,
        Command::Show(args) => show::run(&args, settings)?,
        Command::Plan(args) => plan::run(&args)?,
        Command::Experts(args) => experts::run(&args, settings)?,
        Command::Devices(args) => device::list(&args)?,
        Command::Doctor(args) => doctor::run(&args)?,
        Command::Synth(args) => synth::run(&args)?,
        Command::Quantize(args) => quantize::quantize(&args, settings)?,
        Command::Imatrix(args) => imatrix::run(&args, settings)?,
        Command::Convert(args) => quantize::convert(&args, settings)?,
        Command::Pull(args) => library::pull(&args, settings)?,
        Command::List(args) => library::list(&args, settings)?,
        Command::Rm(args) => library::rm(&args, settings)?,
        Command::Tokenize(args) => tokenize::run(&args, settings)?,
        Command::Template(args) => template::run(&args, settings)?,
        Command::Perplexity(args) => perplexity::run(&args, settings)?,
        Command::Compare(args) => compare::run(&args, settings)?,
        Command::Eval(args) => eval::run(&args, settings)?,
        Command::Confined(args) => return Ok(eval::confine::run(&args)),
        Command::Config(args) => config_cmd::run(&args, settings)?,
        Command::Route(args) => route::run(&args, settings)?,
        Command::Keys(args) => keys::run(&args, settings)?,
        Command::Usage(args) => usage::run(&args, settings)?,
        Command::Completions(args) => completions::run(&args, commands::command())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints an error with its causes, and returns the exit code.
fn report(e: &anyhow::Error) -> ExitCode {
    // The reader of our output has closed it: `octet list | head -1`.
    let piped = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
    if e.chain().any(|c| c.downcast_ref().is_some_and(piped)) {
        return ExitCode::SUCCESS;
    }
    note!("error: {}", described(e));
    if let Some(advice) = advice::advice(e, advice::Place::Command) {
        note!("\n  {advice}");
    }
    match e.downcast_ref::<Usage>() {
        Some(_) => {
            note!("\nFor more information, try '--help'.");
            ExitCode::from(2)
        }
        None => ExitCode::FAILURE,
    }
}

/// An error with its causes.
fn described(e: &anyhow::Error) -> String {
    let mut message = e.to_string();
    for cause in e.chain().skip(1).map(ToString::to_string) {
        // Many errors print their cause themselves.
        if !message.contains(&cause) {
            message += &format!(": {cause}");
        }
    }
    message
}
