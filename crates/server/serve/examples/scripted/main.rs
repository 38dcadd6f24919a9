//! A server whose model plays a script. Started by `tests/agents`, to run real programs against the real server: HTTP, dialects,
//! chat template, tokenizer, prefix cache, grammar and parser are all real; only which token comes next is not computed.
//!
//!     scripted TOKENIZER.json TEMPLATE.jinja SCRIPT.json LOG_DIR TOWER.gguf NAME [ALIAS...]
//!
//! TOWER is a projector, which encodes images as usual; with `-` the model reads text only.
//! With `-` for SCRIPT the model computes, with random weights: for measuring how much of a prompt is computed again.
//!
//! It prints its address, and ends when its standard input does. `script.rs` says what a script is. In `LOG_DIR` there is a file for
//! each prompt, and `log.jsonl` with a line for each answer.

mod model;
mod script;

use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use octet_engine::engine::{self, Engine};
use octet_engine::scheduler;
use octet_engine::tokenizer::HUGGING_FACE_KEY;
use octet_engine::vision;
use octet_serve::{BoxError, MakeEngine, ModelSpec, Options, Server, Stage};
use octet_synth::{Mix, Shape, synthetic, tiny_shape};
use octet_weights::Value;
use tokio::sync::watch;

/// Rows of Qwen3.5's embedding table, and tokens of its vocabulary.
const VOCAB: usize = 248_320;
const REAL_VOCAB: usize = 248_077;
/// Tokens of context.
const CONTEXT: usize = 131_072;
/// States that the prefix cache keeps.
const SNAPSHOTS: u64 = 32;
/// Conversations at once: an agent, its sub-agents, its titles.
const PLACES: usize = 4;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [tokenizer, template, script, log, tower, name, aliases @ ..] = args.as_slice() else {
        return Err(
            "scripted TOKENIZER.json TEMPLATE.jinja SCRIPT.json LOG_DIR TOWER.gguf NAME [ALIAS...]".into()
        );
    };
    let script = match script.as_str() {
        "-" => None,
        path => Some(script::Script::read(&std::fs::read_to_string(path)?)?),
    };
    let log = PathBuf::from(log);
    let template = std::fs::read_to_string(template)?;
    let tokenizer = std::fs::read_to_string(tokenizer)?;
    let vision = match tower.as_str() {
        "-" => None,
        path => Some(vision::Options::new(Arc::new(octet_weights::Model::open(path)?))),
    };
    let shape = Shape { vocab: VOCAB, real_vocab: REAL_VOCAB, context: CONTEXT, ..tiny_shape("qwen35moe")? };
    let hidden = vision.as_ref().map(vision::Options::tower).transpose()?.map_or(shape.hidden, |t| t.out);
    let shape = Shape { hidden, ..shape };
    let open = move || -> Result<octet_weights::Model, BoxError> {
        // The weights are made when they are asked for, which they never are.
        let mut file = synthetic(&shape, Mix::Q4KM, None, 0)?;
        file.metadata.insert(HUGGING_FACE_KEY, Value::Str(tokenizer.clone()));
        Ok(file)
    };
    // Snapshots as many as 2 GiB hold of the 35B's.
    let snapshot_memory = match &script {
        Some(_) => SNAPSHOTS * model::STATE_BYTES as u64,
        None => SNAPSHOTS * octet_engine::report::Report::new(&open()?)?.state_bytes(),
    };
    let make = script.map(|script| {
        let make = move |file: &octet_weights::Model, options: &engine::Options| {
            let model = model::Scripted::new(file, options, script.clone(), log.clone())?;
            Engine::with_model(file, options, Box::new(model))
        };
        Arc::new(make) as MakeEngine
    });
    let engine = engine::Options {
        context: Some(CONTEXT),
        kv_tokens: Some(PLACES * CONTEXT),
        max_seqs: PLACES,
        batch_tokens: 4096,
        snapshot_memory: Some(snapshot_memory),
        vision,
        ..engine::Options::default()
    };
    let spec = ModelSpec {
        aliases: aliases.to_vec(),
        options: scheduler::Options { engine, queue: 16 },
        engine: make,
        chat_template: Some(template),
        ..ModelSpec::new(name.as_str(), Arc::new(open))
    };
    let server = Server::bind(SocketAddr::from(([127, 0, 0, 1], 0)), Options::new(vec![spec])).await?;
    println!("http://{}", server.address()?);
    let (stage, stages) = watch::channel(Stage::Run);
    let serving = tokio::spawn(server.run(stages));
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    stage.send(Stage::Stop)?;
    serving.await?;
    Ok(())
}
