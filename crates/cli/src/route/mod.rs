//! `octet route`: explains routing decisions, and calibrates cascades.

mod calibrate;
pub mod explain;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::settings::Settings;

const EXAMPLES: &str = "\
Examples:
  octet route explain request.json --config octet.yaml
  octet route calibrate prompts.jsonl --config octet.yaml --name auto

See docs/routing.md.";

/// Explains routing decisions: where a request would go, and when a cascade should escalate.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RouteArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Prints each decision about a request, without sending it.
    Explain {
        /// A request as a client sends it: OpenAI's chat or completions, or Anthropic's messages. `-` is standard input.
        #[arg(value_name = "REQUEST.json")]
        request: PathBuf,
        /// The router's configuration.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Header of the request, for rules: 'x-team: a'. May be given several times.
        #[arg(long, value_name = "NAME: VALUE")]
        header: Vec<String>,
        /// Send the request, to include what only an answer shows: failures, and a cascade's measurements.
        #[arg(long)]
        send: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Sends the same questions to the fast and the strong model of a cascade: reports which signal separates right from wrong
    /// answers, and what each threshold would do.
    Calibrate(Box<calibrate::CalibrateArgs>),
}

pub fn run(args: &RouteArgs, settings: &Settings) -> anyhow::Result<()> {
    match &args.action {
        Action::Explain { request, config, header, send, json } => {
            let (send, json) = (*send, *json);
            explain::run(&explain::Explained { request, config, headers: header, send, json }, settings)
        }
        Action::Calibrate(args) => calibrate::run(args, settings),
    }
}
