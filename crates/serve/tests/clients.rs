//! Real client libraries against a real server, each in its own small test: they are fetched from the network, so that
//! `OCTET_TEST_NETWORK` has to be set, and need python3. Versions are those that the tests were written with.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Fixture, model};
use octet_serve::Options;

/// A virtual environment with one library, made once.
fn python(library: &str, packages: &[&str]) -> Option<PathBuf> {
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
    if !done.exists() {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&dir));
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        run(Command::new(&python).args(pip).args(packages));
        std::fs::write(done, packages.join("\n")).expect("a file can be written");
    }
    Some(python)
}

fn run(command: &mut Command) {
    let output = command.output().expect("python3 can be run");
    assert!(
        output.status.success(),
        "{command:?}\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

async fn speaks(library: &'static str, packages: &'static [&'static str]) {
    let python = tokio::task::spawn_blocking(move || python(library, packages)).await.expect("pip ran");
    let Some(python) = python else { return };
    let f = Fixture::with(Options::new(vec![model("tiny")])).await;
    let url = f.url("");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients.py");
    let asked = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(python);
        // A list of prices is not what is tested.
        run(command.arg(script).args([library, &url]).env("LITELLM_LOCAL_MODEL_COST_MAP", "True"));
    });
    asked.await.expect("the client is content");
}

#[tokio::test(flavor = "multi_thread")]
async fn openai() {
    speaks("openai", &["openai==3.54.0"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn anthropic() {
    speaks("anthropic", &["anthropic==2.12.0"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ollama() {
    speaks("ollama", &["ollama==0.6.3"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn litellm() {
    // litellm imports mcp where tools are given, and does not ask for it.
    speaks("litellm", &["litellm==1.106.2", "mcp==2.3.0"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn langchain_openai() {
    speaks("langchain-openai", &["langchain-openai==1.7.3"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn schemathesis() {
    speaks("schemathesis", &["schemathesis==4.32.5", "openapi-spec-validator==0.9.0"]).await;
}
