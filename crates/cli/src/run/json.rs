//! Prints an answer as JSON, with OpenAI's and llama.cpp's field names.

use std::io::Write;
use std::time::Duration;

use octet_engine::engine::Finish;
use serde_json::{Value, json};

use super::session::{Reply, Session};
use crate::tokenize::text_of;

/// Prints an answer with its statistics; includes its reasoning if `shown`.
pub fn write(session: &Session, reply: &Reply, shown: bool) -> anyhow::Result<()> {
    let a = &reply.answer;
    let tokenizer = session.engine.tokenizer();
    let token =
        |id: u32, logprob: f32| json!({"id": id, "token": text_of(tokenizer, id), "logprob": logprob});
    let logprobs = a.logprobs.iter().map(|t| {
        let mut entry = token(t.id, t.logprob);
        entry["top_logprobs"] = t.top.iter().map(|&(id, logprob)| token(id, logprob)).collect();
        entry
    });
    let prompt_n = a.prompt_tokens - a.cached_tokens;
    let predicted_n = a.tokens.len();
    let mut out = json!({
        "content": reply.content,
        "reasoning_content": (shown && !reply.reasoning.is_empty()).then_some(&reply.reasoning),
        "finish_reason": match a.finish {
            Finish::EndOfText | Finish::StopString | Finish::StopToken => "stop",
            Finish::Length => "length",
            Finish::Cancelled => "cancelled",
        },
        "seed": a.seed,
        "usage": {
            "prompt_tokens": a.prompt_tokens,
            "completion_tokens": predicted_n,
            "total_tokens": a.prompt_tokens + predicted_n,
            "prompt_tokens_details": {"cached_tokens": a.cached_tokens},
        },
        "timings": {
            "cache_n": a.cached_tokens,
            "prompt_n": prompt_n,
            "prompt_ms": ms(a.prompt_time),
            "prompt_per_second": rate(prompt_n, a.prompt_time),
            "predicted_n": predicted_n,
            "predicted_ms": ms(a.generate_time),
            // The first token comes with the prompt.
            "predicted_per_second": rate(predicted_n.saturating_sub(1), a.generate_time),
        },
    });
    if a.drafted > 0 {
        out["timings"]["draft_n"] = a.drafted.into();
        out["timings"]["draft_n_accepted"] = a.accepted.into();
    }
    if session.request.sampling.logprobs.is_some() {
        out["logprobs"] = json!({"content": logprobs.collect::<Value>()});
    }
    Ok(writeln!(std::io::stdout(), "{out:#}")?)
}

fn ms(t: Duration) -> f64 {
    t.as_secs_f64() * 1e3
}

/// `null` if the time is 0.
fn rate(n: usize, t: Duration) -> Option<f64> {
    (n > 0 && !t.is_zero()).then(|| n as f64 / t.as_secs_f64())
}
