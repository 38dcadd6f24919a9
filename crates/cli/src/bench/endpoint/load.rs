//! Sends requests with a given concurrency to one endpoint, or alternately to two.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use super::prompt::prompt;
use crate::endpoint::client::Endpoint;
use crate::endpoint::stream::{Failure, Sample};

/// The requests to send.
#[derive(Debug, Clone)]
pub struct Work {
    /// Approximate number of prompt tokens.
    pub n_prompt: usize,
    /// Maximum number of answer tokens.
    pub n_gen: usize,
    /// Number of prompt tokens that all prompts share.
    pub shared: usize,
    /// Further request fields; `null` removes one.
    pub extra: Map<String, Value>,
    /// Makes this run's prompts different from those of other runs.
    pub run: u64,
}

impl Work {
    /// A request's JSON.
    fn json(&self, model: &str, request: u64) -> String {
        let mut body = json!({
            "model": model,
            "messages": [{"role": "user", "content": prompt(self.n_prompt, self.shared, self.run, request)}],
            "max_tokens": self.n_gen,
            "temperature": 0,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        for (key, value) in &self.extra {
            body[key] = value.clone();
        }
        if let Some(fields) = body.as_object_mut() {
            fields.retain(|_, v| !v.is_null());
        }
        body.to_string()
    }
}

/// The results of one endpoint at one concurrency.
#[derive(Debug, Default)]
pub struct Level {
    pub samples: Vec<Sample>,
    /// Failure reasons with their counts.
    pub failures: Vec<(String, usize)>,
    /// Time during which its requests ran.
    pub duration: Duration,
}

impl Level {
    fn add(&mut self, outcome: Result<Sample, Failure>) {
        match outcome {
            Ok(sample) => self.samples.push(sample),
            Err(Failure(why)) => match self.failures.iter_mut().find(|(w, _)| *w == why) {
                Some((_, n)) => *n += 1,
                None => self.failures.push((why, 1)),
            },
        }
    }

    /// Number of failed requests.
    pub fn failed(&self) -> usize {
        self.failures.iter().map(|(_, n)| n).sum()
    }
}

/// Sends `requests` requests to each endpoint, `concurrency` at a time: each finished one is followed by the next. Two endpoints
/// alternate, and alternate which is first, so that a temporary slowdown of the machine affects both. Requests are numbered from
/// `*next`.
pub async fn level(
    endpoints: &[Arc<Endpoint>],
    work: &Work,
    concurrency: usize,
    requests: usize,
    next: &mut u64,
    done: &mut dyn FnMut(),
) -> Vec<Level> {
    let mut levels: Vec<Level> = endpoints.iter().map(|_| Level::default()).collect();
    // Long enough that the ends of turns, with lower concurrency, matter little.
    let turn = if endpoints.len() > 1 { 2 * concurrency } else { requests };
    let (mut left, mut is_back) = (requests, false);
    while left > 0 {
        let count = turn.min(left);
        let mut pairs: Vec<_> = endpoints.iter().zip(&mut levels).collect();
        if is_back {
            pairs.reverse();
        }
        for (endpoint, level) in pairs {
            let numbers = *next..*next + count as u64;
            *next = numbers.end;
            let bodies = numbers.map(|i| work.json(&endpoint.model, i));
            run(endpoint, bodies, concurrency, level, done).await;
        }
        left -= count;
        is_back = !is_back;
    }
    levels
}

async fn run(
    endpoint: &Arc<Endpoint>,
    bodies: impl Iterator<Item = String>,
    concurrency: usize,
    level: &mut Level,
    done: &mut dyn FnMut(),
) {
    let bodies: Vec<String> = bodies.collect(); // before the clock runs
    let mut waiting = bodies.into_iter();
    let mut running = JoinSet::new();
    let started = Instant::now();
    loop {
        while running.len() < concurrency
            && let Some(json) = waiting.next()
        {
            running.spawn(endpoint.clone().request(json));
        }
        let Some(outcome) = running.join_next().await else { break };
        level.add(outcome.unwrap_or_else(|e| Err(Failure(format!("the request was stopped: {e}")))));
        done();
    }
    level.duration += started.elapsed();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_added_and_taken_away() {
        let extra = json!({"ignore_eos": true, "temperature": null, "max_tokens": 3});
        let Value::Object(extra) = extra else { panic!() };
        let work = Work { n_prompt: 30, n_gen: 8, shared: 0, extra, run: 1 };
        let body: Value = serde_json::from_str(&work.json("m", 1)).unwrap();
        assert_eq!((&body["ignore_eos"], &body["max_tokens"]), (&json!(true), &json!(3)));
        assert!(body.get("temperature").is_none());
        assert_eq!((&body["model"], &body["stream"]), (&json!("m"), &json!(true)));
    }

    #[test]
    fn like_failures_count_together() {
        let mut level = Level::default();
        for why in ["a", "b", "a"] {
            level.add(Err(Failure(why.into())));
        }
        assert_eq!(level.failures, [("a".into(), 2), ("b".into(), 1)]);
        assert_eq!(level.failed(), 3);
    }
}
