//! Python with packages from the network.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The libraries of four APIs, in the versions that the tests were written with.
const OPENAI: &str = "openai==3.54.0";
const ANTHROPIC: &str = "anthropic==2.12.0";
const OLLAMA: &str = "ollama==0.6.3";
const GENAI: &str = "google-genai==3.4.0";
/// All of them in one environment, with what reads metrics.
pub const LIBRARIES: &[&str] = &[OPENAI, ANTHROPIC, OLLAMA, GENAI, "prometheus-client==0.26.0"];

/// The environment that has pip, and nothing else.
pub const PIP: &str = "pip";

/// A virtual environment with a library or some, made once for each list of packages. Nothing where that is not wished or not possible.
pub fn python(library: &str, packages: &[&str]) -> Option<PathBuf> {
    if std::env::var_os("OCTET_TEST_NETWORK").is_none() {
        octet_testkit::skipped(&format!(
            "fetches {library} from the network; set OCTET_TEST_NETWORK=1 to run it"
        ));
        return None;
    }
    if Command::new("python3").arg("--version").output().is_err() {
        octet_testkit::skipped(&format!("runs {library}, and there is no python3"));
        return None;
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("venv-{library}"));
    let python = dir.join("bin/python");
    let done = dir.join("installed");
    let wanted = packages.join("\n");
    // Several tests may want the same one at the same time.
    let turn = std::fs::File::create(dir.with_extension("lock")).expect("a file can be written");
    turn.lock().expect("a file can be locked");
    if std::fs::read_to_string(&done).is_ok_and(|there| there == wanted) {
        return Some(python);
    }
    // An environment with pip takes ten seconds to make, so one environment's pip installs for all others. Without `--no-compile` it would
    // compile everything, and not only what is imported.
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv", "--clear"]).arg(&dir);
    if library == PIP {
        run(&mut venv);
        // Older ones do not install for other environments.
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "pip>=22.3"]));
    } else {
        run(venv.arg("--without-pip"));
        let mut pip = Command::new(self::python(PIP, &[])?);
        pip.args(["-m", "pip", "--python"]).arg(&python);
        run(pip.args(["install", "--quiet", "--disable-pip-version-check", "--no-compile"]).args(packages));
    }
    std::fs::write(done, wanted).expect("a file can be written");
    Some(python)
}

/// Runs it to its end, which has to be a good one.
pub fn run(command: &mut Command) {
    let output = command.output().expect("python3 can be run");
    assert!(
        output.status.success(),
        "{command:?}\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
