//! `octet config`: checks a router's configuration, converts other programs' files, prints the schema for editors.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use octet_config::import::{self, Origin};
use octet_config::{Disk, schema};

use crate::route::explain;
use crate::serve::{UnsupportedArgs, prerouters, routes};
use crate::settings::{self, Settings};
use crate::stderr::note;
use crate::stdout::print;

const EXAMPLES: &str = "\
Examples:
  octet config check octet.yaml                    what each name routes to, and what is wrong
  octet config import litellm/config.yaml > octet.yaml
  octet config import Modelfile --name qwen > octet.yaml
  octet config schema > octet.schema.json          a JSON schema for editors

In the file, `# yaml-language-server: $schema=octet.schema.json` names the schema for editors.
docs/router-keys.md lists the keys.";

/// Checks a router's configuration file, or converts another program's.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ConfigArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Reports problems in a file, or shows what each name routes to.
    Check {
        /// The file; LiteLLM's config.yaml too.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        unsupported: UnsupportedArgs,
    },
    /// Prints another program's file in Octet's format: LiteLLM's and llama-swap's config.yaml, Ollama's Modelfile.
    Import {
        /// The file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The format of the file. Default: detected from its content.
        #[arg(long, value_enum)]
        from: Option<ImportFormat>,
        /// Model name for clients, if the file has none (Modelfile).
        #[arg(long, value_name = "NAME", default_value = "default")]
        name: String,
    },
    /// Prints a JSON schema of the file, for editors; or its keys as Markdown.
    Schema {
        /// Print Markdown tables of the keys instead.
        #[arg(long)]
        markdown: bool,
    },
}

/// [`Origin`] as typed.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ImportFormat {
    Litellm,
    LlamaSwap,
    Modelfile,
}

pub fn run(args: &ConfigArgs, settings: &Settings) -> anyhow::Result<()> {
    match &args.action {
        Action::Check { file, unsupported } => check(file, &unsupported.keys, settings),
        Action::Import { file, from, name } => import_file(file, *from, name),
        Action::Schema { markdown: true } => print(&schema::markdown()),
        Action::Schema { markdown: false } => print(&format!("{:#}\n", schema::json())),
    }
}

fn check(file: &Path, ignored: &[String], settings: &Settings) -> anyhow::Result<()> {
    let config = routes::read(file, ignored)?;
    // Errors that would otherwise appear only at the server's start.
    octet_serve::check(&config).map_err(anyhow::Error::msg)?;
    prerouters::check(&config, settings)?;
    explain::planned(&config)?;
    for note in octet_config::grouped(&config.notes) {
        note!("note: {note}");
    }
    print(&config.tree())
}

fn import_file(file: &Path, from: Option<ImportFormat>, name: &str) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let path = file.display().to_string();
    let origin = match from {
        None => Origin::guess(&path, &text),
        Some(ImportFormat::Litellm) => Origin::LiteLlm,
        Some(ImportFormat::LlamaSwap) => Origin::LlamaSwap,
        Some(ImportFormat::Modelfile) => Origin::Modelfile,
    };
    let imported = import::import(origin, &path, &text, name, &Disk(settings::lookup))?;
    for note in &imported.notes {
        note!("note: {note}");
    }
    print(&imported.yaml)
}
