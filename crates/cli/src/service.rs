//! `octet service`: runs `octet serve` in the background, and again after a restart of the machine: a unit of systemd, or an agent of launchd.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use clap::{Args, Subcommand};

use crate::usage_error::Usage;

const EXAMPLES: &str = "\
Examples:
  octet service install qwen3.6:35b-a3b                 octet serve qwen3.6:35b-a3b, now and at each login
  octet service install -- --config ~/octet.yaml        with these arguments of octet serve
  octet service install --print                         only show the file
  octet service remove";

/// Runs octet serve in the background, also after a restart (systemd on Linux, launchd on macOS).
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ServiceArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Installs and starts the service for this user.
    #[command(after_help = EXAMPLES)]
    Install(InstallArgs),
    /// Stops and removes it.
    #[command(after_help = EXAMPLES)]
    Remove,
}

#[derive(Debug, Args)]
struct InstallArgs {
    /// Only print the file that would be written.
    #[arg(long)]
    print: bool,
    /// Arguments of `octet serve`.
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    serve: Vec<String>,
}

/// The name of the service.
const NAME: &str = "octet";
/// The name of the agent.
const LABEL: &str = "org.octet.serve";

/// How services are run here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manager {
    Systemd,
    Launchd,
}

pub fn run(args: &ServiceArgs) -> anyhow::Result<()> {
    let manager = if cfg!(target_os = "macos") {
        Manager::Launchd
    } else if cfg!(target_os = "linux") {
        Manager::Systemd
    } else {
        return Err(Usage("octet service needs systemd (Linux) or launchd (macOS)".into()).into());
    };
    let home = etcetera::home_dir().context("there is no home folder")?;
    let file = manager.file(&home);
    match &args.action {
        Action::Install(install) => {
            let program = std::env::current_exe().context("the path of this program is unknown")?;
            // Behind the model, too: octet serve has no such flag.
            let (print, serve): (Vec<String>, Vec<String>) =
                install.serve.iter().cloned().partition(|argument| argument == "--print");
            let text = manager.text(&program, &serve)?;
            if install.print || !print.is_empty() {
                write!(std::io::stdout(), "{text}")?;
                return Ok(());
            }
            let folder = file.parent().expect("it is in a folder");
            std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
            std::fs::write(&file, text).with_context(|| format!("{}", file.display()))?;
            if let Err(e) = manager.commands(true, &file).iter().try_for_each(|command| call(command)) {
                let _ = std::fs::remove_file(&file);
                let hint = manager.hint();
                return Err(anyhow::anyhow!(
                    "{} cannot be started, and is removed again: {e}{hint}",
                    file.display()
                ));
            }
            writeln!(std::io::stdout(), "{} is installed and runs; {}", file.display(), manager.advice())?;
        }
        Action::Remove => {
            if !file.exists() {
                anyhow::bail!("{}: there is no such service", file.display());
            }
            // It may not run.
            for command in manager.commands(false, &file) {
                let _ = call(&command);
            }
            std::fs::remove_file(&file).with_context(|| format!("{}", file.display()))?;
            writeln!(std::io::stdout(), "{} is removed", file.display())?;
        }
    }
    Ok(())
}

impl Manager {
    fn file(self, home: &Path) -> PathBuf {
        match self {
            Self::Systemd => home.join(".config/systemd/user").join(format!("{NAME}.service")),
            Self::Launchd => home.join("Library/LaunchAgents").join(format!("{LABEL}.plist")),
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::Systemd => {
                "`journalctl --user -u octet -f` shows its log; `loginctl enable-linger` lets it run without a login"
            }
            Self::Launchd => "its log is in /tmp/octet.log",
        }
    }

    /// What may help if it cannot be started.
    fn hint(self) -> &'static str {
        match self {
            Self::Systemd => {
                "\n\n  systemd's user manager does not run in this session, as after su or sudo, or in a container: log in as \
                 this user, or run `loginctl enable-linger` and set XDG_RUNTIME_DIR=/run/user/$(id -u). \
                 `octet service install --print` shows the unit, to install it in another way"
            }
            Self::Launchd => {
                "\n\n  `octet service install --print` shows the file, to install it in another way"
            }
        }
    }

    /// The commands that start it, or end it.
    fn commands(self, starts: bool, file: &Path) -> Vec<Vec<String>> {
        let words = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
        let path = file.display().to_string();
        match (self, starts) {
            (Self::Systemd, true) => vec![
                words("systemctl --user daemon-reload"),
                words("systemctl --user enable octet.service"),
                words("systemctl --user restart octet.service"),
            ],
            (Self::Systemd, false) => vec![words("systemctl --user disable --now octet.service")],
            (Self::Launchd, true) => vec![vec!["launchctl".into(), "load".into(), "-w".into(), path]],
            (Self::Launchd, false) => vec![vec!["launchctl".into(), "unload".into(), "-w".into(), path]],
        }
    }

    /// The file's text.
    fn text(self, program: &Path, serve: &[String]) -> anyhow::Result<String> {
        let program = program.to_str().context("the path of this program is not UTF-8")?;
        let all: Vec<&str> = [program, "serve"].into_iter().chain(serve.iter().map(String::as_str)).collect();
        if all.iter().any(|word| word.contains(char::is_control)) {
            return Err(Usage("an argument has a control character".into()).into());
        }
        Ok(match self {
            Self::Systemd => {
                let command: Vec<String> = all.iter().map(|word| for_systemd(word)).collect();
                format!(
                    "[Unit]\nDescription=Octet, a server for language models\nAfter=network-online.target\n\n\
                     [Service]\nExecStart={}\nRestart=on-failure\nRestartSec=5\n\n\
                     [Install]\nWantedBy=default.target\n",
                    command.join(" ")
                )
            }
            Self::Launchd => {
                let words: String =
                    all.iter().map(|word| format!("    <string>{}</string>\n", for_xml(word))).collect();
                format!(
                    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
                     <!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n\
                     <plist version=\"1.0\"><dict>\n  <key>Label</key><string>{LABEL}</string>\n  \
                     <key>ProgramArguments</key><array>\n{words}  </array>\n  \
                     <key>RunAtLoad</key><true/>\n  <key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>\n  \
                     <key>StandardErrorPath</key><string>/tmp/octet.log</string>\n</dict></plist>\n"
                )
            }
        })
    }
}

/// A word of `ExecStart=`: quoted, with systemd's `%` and `$` as they are.
fn for_systemd(word: &str) -> String {
    let escaped = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+".contains(c);
    if !word.is_empty() && word.chars().all(plain) { escaped } else { format!("\"{escaped}\"") }
}

fn for_xml(word: &str) -> String {
    word.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn call(command: &[String]) -> anyhow::Result<()> {
    let status = Command::new(&command[0]).args(&command[1..]).status();
    let status = status.with_context(|| format!("{} cannot be started", command[0]))?;
    anyhow::ensure!(status.success(), "{} failed: {status}", command.join(" "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_words() {
        assert_eq!(for_systemd("qwen3:8b"), "qwen3:8b");
        assert_eq!(for_systemd("a b"), "\"a b\"");
        assert_eq!(for_systemd("50%$x\\\""), "\"50%%$$x\\\\\\\"\"");
        assert_eq!(for_systemd(""), "\"\"");
        let plist = Manager::Launchd.text(Path::new("/o"), &["a&<b".into()]).unwrap();
        assert!(
            plist.contains(
                "<string>/o</string>\n    <string>serve</string>\n    <string>a&amp;&lt;b</string>"
            ),
            "{plist}"
        );
        let unit = Manager::Systemd.text(Path::new("/opt/octet"), &["--port".into(), "9000".into()]).unwrap();
        assert!(unit.contains("\nExecStart=/opt/octet serve --port 9000\n"), "{unit}");
        assert!(Manager::Systemd.text(Path::new("/o"), &["a\nExecStartPre=x".into()]).is_err());
    }
}
