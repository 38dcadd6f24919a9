//! `octet config`: looks at a router's configuration, translates other programs' files, prints the schema for editors.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use octet_config::import::{self, Origin};
use octet_config::{Disk, schema};

use crate::print;
use crate::route::explain;
use crate::serve::{UnsupportedArgs, prerouters, routes};
use crate::settings::{self, Settings};
use crate::stderr::note;

const EXAMPLES: &str = "\
Examples:
  octet config check octet.yaml                    what each name routes to, and what is wrong
  octet config import litellm/config.yaml > octet.yaml
  octet config import Modelfile --name qwen > octet.yaml
  octet config schema > octet.schema.json          for editors: # yaml-language-server: $schema=octet.schema.json

docs/router.md lists the keys.";

/// Looks at a router's configuration file, or makes one of another program's.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ConfigArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Says what is wrong with a file, or draws what each name routes to.
    Check {
        /// The file; LiteLLM's config.yaml too.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        unsupported: UnsupportedArgs,
    },
    /// Prints another program's file in our form: LiteLLM's and llama-swap's config.yaml, Ollama's Modelfile.
    Import {
        /// The file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Whose it is. Default: as it looks.
        #[arg(long, value_enum)]
        from: Option<Whose>,
        /// The name that clients ask for, where the file does not say (Modelfile).
        #[arg(long, value_name = "NAME", default_value = "default")]
        name: String,
    },
    /// Prints a JSON schema of the file, for editors; or its keys as Markdown.
    Schema {
        /// Print tables of the keys instead.
        #[arg(long)]
        markdown: bool,
    },
}

/// [`Origin`] as it is typed.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Whose {
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
    // What a start would find only then.
    octet_serve::check(&config).map_err(anyhow::Error::msg)?;
    prerouters::check(&config, settings)?;
    explain::planned(&config)?;
    for said in &config.notes {
        note!("note: {said}");
    }
    print(&config.tree())
}

fn import_file(file: &Path, from: Option<Whose>, name: &str) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let path = file.display().to_string();
    let origin = match from {
        None => Origin::guess(&path, &text),
        Some(Whose::Litellm) => Origin::LiteLlm,
        Some(Whose::LlamaSwap) => Origin::LlamaSwap,
        Some(Whose::Modelfile) => Origin::Modelfile,
    };
    let imported = import::import(origin, &path, &text, name, &Disk(settings::lookup))?;
    for said in &imported.notes {
        note!("note: {said}");
    }
    print(&imported.yaml)
}
