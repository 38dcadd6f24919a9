//! The engine as a library: loads a model and streams its answer. Shown in ARCHITECTURE.md.
//!
//!     cargo run --release -p octet-engine --example answer -- MODEL.gguf "Why is the sky blue?"

use std::io::Write;
use std::ops::ControlFlow;

use octet_engine::engine::{Engine, Options, Request};
use octet_engine::template::{ChatInput, ChatTemplate};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(question)) = (args.next(), args.next()) else {
        return Err("usage: answer MODEL.gguf QUESTION".into());
    };
    let model = octet_weights::Model::open(path)?;
    let mut engine = Engine::open(&model, &Options::default(), &mut |_, _| {})?;
    let template = ChatTemplate::from_metadata(&model.metadata, engine.tokenizer())?;
    let messages = vec![serde_json::json!({"role": "user", "content": question})];
    let chat = ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() };
    let prompt = engine.tokenizer().encode_prompt(&template.render(&chat)?)?;
    let sampling = engine.sampling().clone();
    let request = Request { prompt, sampling, max_tokens: Some(500), ..Request::default() };
    engine.generate(request, &mut |text| {
        print!("{text}");
        // A reader that has gone away needs no more of it.
        if std::io::stdout().flush().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    println!();
    Ok(())
}
