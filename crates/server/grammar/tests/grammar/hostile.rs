//! Requests that try to keep a server busy for ever: each is refused, or compiles and has each mask in time.

use std::time::{Duration, Instant};

use crate::support::{EOS, bytes_within, compile};
use octet_grammar::{Error, GrammarSpec, TimeLimits};
use serde_json::{Map, Value, json};

/// Longest compilation and mask, with room for a machine that has other work: the crate's own bounds are 5 s and 0.5 s.
const COMPILE_MAX: Duration = Duration::from_secs(120);
const MASK_MAX: Duration = Duration::from_secs(60);

fn schema(schema: Value) -> GrammarSpec {
    GrammarSpec::JsonSchema(schema)
}

fn cases() -> Vec<(&'static str, GrammarSpec)> {
    let chain = |n: usize| -> Map<String, Value> {
        let link = |i| json!({"type": "object", "properties": {"a": {"$ref": format!("#/$defs/{}", i + 1)}}});
        (0..n).map(|i| (i.to_string(), link(i))).chain([(n.to_string(), json!({}))]).collect()
    };
    let regex = |r: &str| GrammarSpec::Regex(r.into());
    let lark = |l: &str| GrammarSpec::Lark(l.into());
    vec![
        ("a chain of references", schema(json!({"$ref": "#/$defs/0", "$defs": chain(1500)}))),
        ("long strings", schema(json!({"type": "string", "minLength": 1_000_000}))),
        ("longer strings", schema(json!({"type": "string", "minLength": 4_000_000_000u64}))),
        ("many items", schema(json!({"type": "array", "minItems": 900_000_000, "maxItems": 1_000_000_000}))),
        ("a large divisor", schema(json!({"type": "integer", "multipleOf": 999_999_937}))),
        ("a small divisor", schema(json!({"type": "number", "multipleOf": 1e-9}))),
        (
            "a nested pattern",
            schema(json!({"type": "string", "pattern": "^(((a{1,1000}){1,1000}){1,1000}b?)*$"})),
        ),
        ("a wide pattern", schema(json!({"type": "string", "pattern": ".*a.{0,30}b.*a.{20}c.*x.{30}"}))),
        ("nested repetitions", regex("(((a{1000}){1000}){1000}){1000}")),
        ("nested alternatives", regex("((a|b|ab|ba){0,1000}(a|ab|b){0,1000}){0,1000}c")),
        ("exponential states", regex("(a|b)*a(a|b){200}")),
        ("words", regex("(\\w{0,300}\\s?){300}")),
        ("a long regex", regex(&"(?:[ab]?[cd]?)".repeat(1000))),
        ("deep groups", regex(&format!("{}a{}", "(b".repeat(200), ")*".repeat(200)))),
        ("deep parentheses", lark(&format!("start: {}\"a\"{}", "(".repeat(5000), ")".repeat(5000)))),
        ("ambiguity", lark("start: s\ns: s s s s | /a/ | /[ab]/ | /[abc]+/\n")),
        ("empty loops", lark("start: s\ns: s | t\nt: s | \"\"\n")),
        ("repeated repetitions", lark("start: a{100000}\na: b{100000}\nb: \"x\"{100000} \"y\"\n")),
        ("complements", lark("start: A\nA: ~(/(.*a.{15}b.*)/ & ~/(.*c.{15}d.*)/)\n")),
        (
            "a schema in a grammar",
            lark(&format!("start: %json {}", json!({"type": "string", "pattern": "(".repeat(50)}))),
        ),
    ]
}

#[test]
fn a_slow_compilation_is_cancelled() {
    let times = TimeLimits { compile: Duration::from_micros(100), ..TimeLimits::default() };
    let long = GrammarSpec::Regex("(?:[ab]?[cd]?)".repeat(1000));
    let Err(Error::TooComplex(why)) = compile(&bytes_within(times), long, false) else {
        panic!("it was compiled")
    };
    assert!(why.contains("not compiled after 100µs"), "{why}");
}

#[test]
fn it_ends() {
    let vocabulary = bytes_within(TimeLimits::default());
    for (name, spec) in cases() {
        let began = Instant::now();
        let grammar = match compile(&vocabulary, spec, false) {
            Ok(grammar) => grammar,
            Err(e) => {
                println!("{name}: {:.2} s: {e}", began.elapsed().as_secs_f64());
                assert!(began.elapsed() < COMPILE_MAX, "{name}");
                assert!(e.to_string().len() < 1000, "{name}: {e}");
                continue;
            }
        };
        let compiled = began.elapsed();
        assert!(compiled < COMPILE_MAX, "{name}: {compiled:?}");
        let (mut matcher, mut bits, mut seed, mut worst) =
            (grammar.matcher(), vec![0u32; 9], 7u64, Duration::ZERO);
        for _ in 0..100 {
            let began = Instant::now();
            let masked = matcher.mask(&mut bits);
            worst = worst.max(began.elapsed());
            // An error that says so is a way to end, too.
            if matches!(masked, Err(Error::Step(_))) || matcher.is_finished() {
                break;
            }
            masked.unwrap();
            let allowed: Vec<u32> =
                (0..EOS).filter(|id| bits[*id as usize / 32] >> (id % 32) & 1 == 1).collect();
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let Some(id) = allowed.get((seed >> 33) as usize % allowed.len().max(1)) else { break };
            let began = Instant::now();
            let taken = matcher.accept(*id);
            worst = worst.max(began.elapsed());
            if taken.is_err() {
                break;
            }
        }
        println!(
            "{name}: compiled in {:.2} s, worst step {:.2} s",
            compiled.as_secs_f64(),
            worst.as_secs_f64()
        );
        assert!(worst < MASK_MAX, "{name}: {worst:?}");
    }
}
