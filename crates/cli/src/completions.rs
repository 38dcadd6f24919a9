//! `octet completions`: what a shell needs to complete commands and flags.

use clap::Args;
use clap_complete::Shell;

const EXAMPLES: &str = "\
Examples:
  octet completions bash > ~/.local/share/bash-completion/completions/octet
  octet completions zsh > ~/.zfunc/_octet
  octet completions fish > ~/.config/fish/completions/octet.fish";

/// Prints completions for a shell.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// Which shell.
    #[arg(value_enum)]
    shell: Shell,
}

pub fn run(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::config::command(), "octet", &mut script);
    Ok(std::io::Write::write_all(&mut std::io::stdout(), &script)?)
}
