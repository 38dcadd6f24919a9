//! Real client libraries against a real server, each in its own small test: they are fetched from the network, so that
//! `OCTET_TEST_NETWORK` has to be set, and need python3. Versions are those that the tests were written with.

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use common::families::{FAMILIES, source};
use common::python::{LIBRARIES, python, run};
use common::{Fixture, model};
use octet_engine::engine::speculation::{Mode, Options as Speculation};
use octet_engine::vision;
use octet_serve::{ModelSpec, Options};
use octet_testkit::shared;

/// Runs a script for a library, in the environment of that name.
async fn runs(
    script: &'static str,
    library: &'static str,
    environment: &'static str,
    packages: &'static [&'static str],
) {
    let python = tokio::task::spawn_blocking(move || python(environment, packages)).await.expect("pip ran");
    let Some(python) = python else { return };
    let f = Fixture::with(Options::new(vec![model("tiny")])).await;
    let url = f.url("");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(script);
    let asked = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(python);
        // A list of prices is not what is tested.
        run(command.arg(script).args([library, &url]).env("LITELLM_LOCAL_MODEL_COST_MAP", "True"));
    });
    asked.await.expect("the client is content");
}

async fn speaks(library: &'static str, packages: &'static [&'static str]) {
    runs("clients.py", library, library, packages).await;
}

/// Calls in the syntaxes of families, through OpenAI's and Anthropic's own libraries.
#[tokio::test(flavor = "multi_thread")]
async fn native_tools() {
    let python = tokio::task::spawn_blocking(|| python("libraries", LIBRARIES)).await.expect("pip ran");
    let Some(python) = python else { return };
    let spec = |family| ModelSpec { chat_template: Some(source(family)), ..model(family.0) };
    let f = Fixture::with(Options::new(FAMILIES.iter().map(spec).collect())).await;
    let url = f.url("");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/native_tools.py");
    let names = FAMILIES.map(|(name, ..)| name);
    let asked =
        tokio::task::spawn_blocking(move || run(Command::new(python).arg(script).arg(&url).args(names)));
    asked.await.expect("the clients are content");
}

/// What a server says of its guesses, read by Prometheus' own parser and by OpenAI's library. The block for multi-token prediction of a
/// model with random weights is always asked, so that there are some.
#[tokio::test(flavor = "multi_thread")]
async fn guesses() {
    let python = tokio::task::spawn_blocking(|| python("libraries", LIBRARIES)).await.expect("pip ran");
    let Some(python) = python else { return };
    let mut spec = model("tiny");
    spec.options.engine.speculation = Speculation { mode: Mode::Mtp, always: true, ..Speculation::default() };
    let f = Fixture::with(Options::new(vec![spec])).await;
    let url = f.url("");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients.py");
    let asked =
        tokio::task::spawn_blocking(move || run(Command::new(python).arg(script).args(["guesses", &url])));
    asked.await.expect("the clients are content");
}

/// Two images, and one of them again in a tool's result, to a model with a tower.
#[tokio::test(flavor = "multi_thread")]
async fn images() {
    let files =
        ["qwen35moe_vl.gguf", "qwen35moe_vl.mmproj.gguf"].map(|f| shared(&format!("zoo/vision/gguf/{f}")));
    let pictures = ["64x64.png", "100x70.png"].map(|f| shared(&format!("zoo/vision/images/{f}")));
    let ([Some(text), Some(tower)], [Some(one), Some(two)]) = (files, pictures) else { return };
    let Some(template) = shared("templates/qwen3_6.jinja") else { return };
    let python = tokio::task::spawn_blocking(|| python("libraries", LIBRARIES)).await.expect("pip ran");
    let Some(python) = python else { return };
    let tower = Arc::new(octet_weights::Model::open(&tower).expect("a projector"));
    let mut spec = ModelSpec {
        options: model("tiny").options,
        chat_template: Some(std::fs::read_to_string(template).expect("a template")),
        ..ModelSpec::new("tiny", Arc::new(move || Ok(octet_weights::Model::open(&text)?)))
    };
    spec.options.engine.vision = Some(vision::Options::new(tower));
    let f = Fixture::with(Options::new(vec![spec])).await;
    let url = f.url("");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway_images.py");
    let asked = tokio::task::spawn_blocking(move || {
        run(Command::new(python).arg(script).args([&url, "--seeing"]).args([&one, &two]).arg("tiny"));
    });
    asked.await.expect("the clients are content");
}

/// Every field that these libraries have, each in a body of its own.
#[tokio::test(flavor = "multi_thread")]
async fn fields() {
    for library in ["openai", "anthropic", "ollama"] {
        runs("fields.py", library, "libraries", LIBRARIES).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn openai() {
    runs("clients.py", "openai", "libraries", LIBRARIES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn anthropic() {
    runs("clients.py", "anthropic", "libraries", LIBRARIES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ollama() {
    runs("clients.py", "ollama", "libraries", LIBRARIES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn google_genai() {
    runs("clients.py", "google-genai", "libraries", LIBRARIES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn litellm() {
    // litellm imports mcp where tools are given, and does not ask for it.
    speaks("litellm", &["litellm==1.106.2", "mcp==2.3.0"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mistralai() {
    speaks("mistralai", &["mistralai==3.7.0"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn huggingface_hub() {
    speaks("huggingface-hub", &["huggingface-hub==2.4.0"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn langchain_openai() {
    speaks("langchain-openai", &["langchain-openai==1.7.3"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn httpx() {
    speaks("httpx", &["httpx==0.28.1", "h2==4.4.1"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn schemathesis() {
    speaks("schemathesis", &["schemathesis==4.32.5", "openapi-spec-validator==0.9.0"]).await;
}
