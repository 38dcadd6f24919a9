//! `octet completions`: shell completions for commands and flags.

use clap::Args;
use clap_complete::Shell;

const EXAMPLES: &str = "\
Examples:
  octet completions bash > ~/.local/share/bash-completion/completions/octet
  octet completions zsh > ~/.zfunc/_octet
  octet completions fish > ~/.config/fish/completions/octet.fish";

/// Prints shell completions.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints completions for `command`, the whole command line.
pub fn run(args: &CompletionsArgs, mut command: clap::Command) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "octet", &mut script);
    Ok(std::io::Write::write_all(&mut std::io::stdout(), &script)?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Texts below `dir` that users may come to read.
    fn texts(dir: &Path, out: &mut Vec<(String, String)>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let extension = path.extension().and_then(|e| e.to_str());
            if path.is_dir() && !path.ends_with("target") {
                texts(&path, out);
            } else if matches!(extension, Some("rs" | "md" | "html" | "json")) {
                out.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }

    /// `octet quantize` was named in an error for long, and never existed.
    #[test]
    fn commands_that_texts_name_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let mut all = vec![("README.md".into(), std::fs::read_to_string(root.join("README.md")).unwrap())];
        ["crates", "docs"].iter().for_each(|dir| texts(&root.join(dir), &mut all));
        let known = crate::commands::command();
        let mut found = 0;
        for (file, text) in all.iter().filter(|(file, _)| !file.ends_with("completions.rs")) {
            for after in text.split("`octet ").skip(1) {
                let name: String =
                    after.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
                // A flag, or a place for any command.
                if name.is_empty() || name.starts_with('-') {
                    continue;
                }
                assert!(known.find_subcommand(&name).is_some(), "{file}: `octet {name}`");
                found += 1;
            }
        }
        assert!(found > 50, "{found}: the texts are where this test looks for them");
    }
}
