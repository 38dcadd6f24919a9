//! Sends requests, N at a time, to one endpoint or alternately to two. Used by `mod`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use super::client::Endpoint;
use super::prompt::prompt;
use super::stream::{Failure, Sample};

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Work {
    /// Tokens of a prompt, about.
    pub n_prompt: usize,
    /// Tokens of an answer, at most.
    pub n_gen: usize,
    /// Tokens of a prompt that all have in common.
    pub shared: usize,
    /// More fields of the request; `null` takes one away.
    pub extra: Map<String, Value>,
    /// What tells this run's prompts from all others'.
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

/// What came of the requests to one endpoint at one concurrency.
#[derive(Debug, Default)]
pub struct Level {
    pub samples: Vec<Sample>,
    /// Why requests failed, and how many of them.
    pub failures: Vec<(String, usize)>,
    /// While requests ran.
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

    /// How many failed.
    pub fn failed(&self) -> usize {
        self.failures.iter().map(|(_, n)| n).sum()
    }
}

/// Runs `requests` at each endpoint, `concurrency` at a time: the next one goes as soon as one is over. Two endpoints
/// take turns, and turns about which is first, so that what slows the machine for a while slows both. Requests are
/// numbered from `*next`.
pub async fn level(
    endpoints: &[Arc<Endpoint>],
    work: &Work,
    concurrency: usize,
    requests: usize,
    next: &mut u64,
    done: &mut dyn FnMut(),
) -> Vec<Level> {
    let mut levels: Vec<Level> = endpoints.iter().map(|_| Level::default()).collect();
    // Long enough that the ends of turns, where fewer run, do not count for much.
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
