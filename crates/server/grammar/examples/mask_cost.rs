//! What masks cost on Qwen3.6's vocabulary: for common constraints the time of a mask and of taking a token, along an answer.
//!   cargo run --release -p octet-grammar --example mask_cost

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use octet_grammar::{GrammarSpec, Tool, ToolMode, ToolSyntax};
use serde_json::json;
use support::{Real, compile};

fn main() {
    let Some(qwen) = Real::qwen() else { return };
    let began = Instant::now();
    let vocabulary = qwen.vocabulary();
    println!("vocabulary of {} ids: {:.2} s", vocabulary.len(), began.elapsed().as_secs_f64());
    let person = json!({"type": "object", "properties": {
        "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
        "bio": {"type": "string", "maxLength": 400},
    }, "required": ["name", "age", "email", "tags", "bio"], "additionalProperties": false});
    let document = serde_json::to_string(&json!({"name": "Ada Lovelace", "age": 36, "email": "ada@example.com", "tags": ["red", "blue"],
        "bio": "English mathematician and writer, chiefly known for her work on Charles Babbage's proposed mechanical general-purpose computer."})).unwrap();
    let write = Tool {
        name: "write_file".into(),
        parameters: json!({"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}, "mode": {"type": "integer"}},
            "required": ["path", "content"]}),
        strict: false,
    };
    let calls = |syntax| GrammarSpec::ToolCalls {
        syntax,
        tools: vec![write.clone()],
        mode: ToolMode::Required,
        parallel: true,
    };
    let code = "fn main() {\n    let mut sum = 0;\n    for i in 0..10 {\n        sum += i; // <b>\n    }\n    println!(\"{sum}\");\n}\n";
    let xml = format!(
        "<tool_call>\n<function=write_file>\n<parameter=path>\nsrc/main.rs\n</parameter>\n<parameter=content>\n{code}\n</parameter>\n</function>\n</tool_call>"
    );
    let hermes = format!(
        "<tool_call>\n{}\n</tool_call>",
        json!({"name": "write_file", "arguments": {"path": "src/main.rs", "content": code}})
            .to_string()
            .replace("\":", "\": ")
            .replace(",\"", ", \"")
    );
    let sum = "start: sum\nsum: product | sum (\"+\" | \"-\") product\nproduct: /[0-9]+/ | \"(\" sum \")\"\n";
    let cases = [
        ("JSON object", GrammarSpec::JsonObject, document.clone()),
        ("JSON schema", GrammarSpec::JsonSchema(person), document),
        (
            "regex",
            GrammarSpec::Regex("(\\w+ )*\\w+\\.".into()),
            "the quick brown fox jumps over the lazy dog.".into(),
        ),
        ("grammar", GrammarSpec::Lark(sum.into()), "12+(345-6)-(7+(8-9))".into()),
        (
            "choice",
            GrammarSpec::Choice(vec!["positive".into(), "negative".into(), "neutral".into()]),
            "neutral".into(),
        ),
        ("call, XML", calls(ToolSyntax::Qwen3Coder), xml),
        ("call, Hermes", calls(ToolSyntax::Hermes), hermes),
    ];
    println!(
        "{:14} {:>8} {:>11} {:>7} | mask: {:>8} {:>8} {:>8} | take: {:>8}",
        "constraint", "compile", "new matcher", "tokens", "median", "mean", "worst", "mean"
    );
    for (name, spec, text) in cases {
        let began = Instant::now();
        let grammar = compile(&vocabulary, spec, false).unwrap_or_else(|e| panic!("{name}: {e}"));
        let compiled = began.elapsed();
        let began = Instant::now();
        let mut matcher = grammar.matcher();
        let made = began.elapsed();
        let mut bits = vec![0u32; vocabulary.len().div_ceil(32)];
        let (mut masks, mut taking) = (Vec::new(), Duration::ZERO);
        for id in qwen.encode(&text) {
            let began = Instant::now();
            matcher.mask(&mut bits).unwrap_or_else(|e| panic!("{name}: {e}"));
            masks.push(began.elapsed());
            let began = Instant::now();
            matcher.accept(id).unwrap_or_else(|e| panic!("{name}: {e}"));
            taking += began.elapsed();
        }
        masks.sort();
        let us = |d: Duration| d.as_secs_f64() * 1e6;
        let mean = us(masks.iter().sum::<Duration>()) / masks.len() as f64;
        println!(
            "{name:14} {:>5.1} ms {:>8.0} us {:>7} |       {:>5.0} us {mean:>5.0} us {:>5.0} us |       {:>5.0} us",
            us(compiled) / 1e3,
            us(made),
            masks.len(),
            us(masks[masks.len() / 2]),
            us(masks[masks.len() - 1]),
            us(taking) / masks.len() as f64,
        );
    }
}
