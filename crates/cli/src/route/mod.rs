//! `octet route`: where a request would go, and what a cascade's threshold would do.

mod calibrate;
pub mod explain;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::settings::Settings;

const EXAMPLES: &str = "\
Examples:
  octet route explain request.json --config octet.yaml
  octet route calibrate prompts.jsonl --config octet.yaml --name auto

docs/routing.md says what decides.";

/// Looks at the decisions of a router's file: where a request would go, and when a cascade should escalate.
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
        /// The router's file.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// A header of the request, as rules may look at: 'x-team: a'. May be given several times.
        #[arg(long, value_name = "NAME: VALUE")]
        header: Vec<String>,
        /// Send the request, to show also what only an answer can tell: failures, and what a cascade measures.
        #[arg(long)]
        send: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Asks the fast and the strong model of a cascade the same questions: says which signal tells right answers from wrong ones, and
    /// what each threshold would do.
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
