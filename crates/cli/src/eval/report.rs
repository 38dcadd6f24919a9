//! The figures of `octet eval`, as a table and JSON.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::check::Verdict;
use super::stats::{Rate, median};
use crate::endpoint::stream::{Answer, line};

/// Longest name of a task in the tables.
const NAME_CHARS: usize = 22;
/// Longest line.
const WIDTH: usize = 80;

/// One question, asked once.
#[derive(Debug)]
pub struct Run {
    pub seed: u64,
    pub verdict: Verdict,
    /// `None` if there was no answer, or the question was not asked.
    pub answer: Option<Answer>,
    /// The question was not asked.
    pub is_left_out: bool,
}

/// A task and its runs.
#[derive(Debug)]
pub struct Row {
    pub task: String,
    pub runs: Vec<Run>,
}

/// A model and its results.
#[derive(Debug)]
pub struct Side {
    /// As given: a model, or an address.
    pub name: String,
    /// As the server calls it.
    pub model: String,
    pub rows: Vec<Row>,
}

impl Row {
    fn rate(&self) -> Rate {
        let passed = self.runs.iter().filter(|r| r.verdict == Verdict::Passed).count();
        let failed = self.runs.iter().filter(|r| matches!(r.verdict, Verdict::Failed(_))).count();
        Rate { passed, of: passed + failed }
    }

    fn median(&self, of: impl Fn(&Answer) -> f64) -> Option<f64> {
        median(self.runs.iter().filter_map(|r| r.answer.as_ref()).map(of).collect())
    }

    /// Seconds to the first token and to the end, as medians.
    fn times(&self) -> [Option<f64>; 2] {
        [self.median(Answer::first_s), self.median(Answer::seconds)]
    }

    /// Why the first failed run failed, or else the first that was not judged.
    fn reason(&self) -> Option<(&'static str, &str)> {
        let failed = self.runs.iter().find_map(|r| match &r.verdict {
            Verdict::Failed(why) => Some(("failed", why.as_str())),
            _ => None,
        });
        let not_run = self.runs.iter().find_map(|r| match &r.verdict {
            Verdict::NotRun(why) => Some(("not run", why.as_str())),
            _ => None,
        });
        failed.or(not_run)
    }

    fn json(&self) -> Value {
        let rate = self.rate();
        let [first, all] = self.times();
        let runs = self.runs.iter().map(|run| {
            let (passed, why) = match &run.verdict {
                Verdict::Passed => (Value::Bool(true), None),
                Verdict::Failed(why) => (Value::Bool(false), Some(why)),
                Verdict::NotRun(why) => (Value::Null, Some(why)),
            };
            json!({
                "seed": run.seed,
                "passed": passed,
                "reason": why,
                "answer": run.answer.as_ref().map(|a| &a.said.content),
                "calls": run.answer.as_ref().map(|a| a.said.calls.iter()
                    .map(|c| json!({"name": c.name, "arguments": c.arguments})).collect::<Vec<_>>()),
                "tokens": run.answer.as_ref().map(|a| a.tokens),
                "first_token_s": run.answer.as_ref().map(Answer::first_s),
                "answer_s": run.answer.as_ref().map(Answer::seconds),
            })
        });
        json!({
            "task": self.task,
            "passed": rate.passed,
            "judged": rate.of,
            "not_run": self.runs.len() - rate.of,
            "rate": rate.value(),
            "interval_95": rate.interval(),
            "first_token_s_median": first,
            "answer_s_median": all,
            "runs": runs.collect::<Vec<_>>(),
        })
    }
}

impl Side {
    pub fn rate(&self) -> Rate {
        let rates = self.rows.iter().map(Row::rate);
        rates.fold(Rate { passed: 0, of: 0 }, |a, b| Rate { passed: a.passed + b.passed, of: a.of + b.of })
    }

    /// Whether nothing was asked, as all tasks were left out.
    pub fn all_left_out(&self) -> bool {
        self.rows.iter().flat_map(|r| &r.runs).all(|r| r.is_left_out)
    }

    /// All of it as one row.
    fn times(&self) -> [Option<f64>; 2] {
        let all = |of: fn(&Answer) -> f64| {
            let answers = self.rows.iter().flat_map(|r| &r.runs).filter_map(|r| r.answer.as_ref());
            median(answers.map(of).collect())
        };
        [all(Answer::first_s), all(Answer::seconds)]
    }
}

/// The same figures as JSON, with every answer. Control characters are escaped, as terminals act on them.
pub fn json(suite: &str, seed: u64, repetitions: usize, sides: &[Side]) -> String {
    let difference = match sides {
        [a, b] => a.rate().difference(b.rate()),
        _ => None,
    };
    let value = json!({
        "octet_version": env!("CARGO_PKG_VERSION"),
        "suite": suite,
        "seed": seed,
        "repetitions": repetitions,
        "models": sides.iter().map(|side| {
            let [first, all] = side.times();
            json!({
                "name": side.name,
                "model": side.model,
                "passed": side.rate().passed,
                "judged": side.rate().of,
                "rate": side.rate().value(),
                "interval_95": side.rate().interval(),
                "first_token_s_median": first,
                "answer_s_median": all,
                "tasks": side.rows.iter().map(Row::json).collect::<Vec<_>>(),
            })
        }).collect::<Vec<_>>(),
        "difference": difference.map(|(value, interval)| json!({"rate": value, "interval_95": interval})),
    });
    let escape = |c: char| match c {
        '\u{7f}'..='\u{9f}' => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    format!("{value:#}").chars().map(escape).collect()
}

/// The table, and the first reason of each task that did not pass.
pub fn table(out: &mut dyn Write, sides: &[Side]) -> io::Result<()> {
    match sides {
        [a, b] => two(out, a, b)?,
        _ => sides.iter().try_for_each(|side| one(out, side))?,
    }
    for (side, title) in sides.iter().zip(["first:", "second:"]) {
        let reason = |row: &Row| row.reason().map(|(how, why)| format!("{}: {how}: {}", row.task, line(why)));
        let reasons: Vec<String> = side.rows.iter().filter_map(reason).collect();
        if reasons.is_empty() {
            continue;
        }
        writeln!(out)?;
        if sides.len() > 1 {
            writeln!(out, "{title}")?;
        }
        reasons.iter().try_for_each(|reason| writeln!(out, "{}", clip(reason, WIDTH)))?;
    }
    Ok(())
}

fn one(out: &mut dyn Write, side: &Side) -> io::Result<()> {
    writeln!(out, "{}\n", clip(&heading(side), WIDTH))?;
    writeln!(
        out,
        "{:NAME_CHARS$}  {:>6}  {:>5}  {:>12}  {:>9}  {:>9}",
        "task", "passed", "rate", "95% interval", "first s", "answer s"
    )?;
    let mut put = |name: &str, rate: Rate, [first, all]: [Option<f64>; 2]| {
        writeln!(
            out,
            "{:NAME_CHARS$}  {:>6}  {:>5}  {:>12}  {:>9}  {:>9}",
            clip(name, NAME_CHARS),
            passed(rate),
            rate.value().map_or("-".into(), |r| format!("{:.0}%", 100.0 * r)),
            interval(rate),
            seconds(first),
            seconds(all)
        )
    };
    for row in &side.rows {
        put(&row.task, row.rate(), row.times())?;
    }
    put("all", side.rate(), side.times())
}

fn two(out: &mut dyn Write, a: &Side, b: &Side) -> io::Result<()> {
    writeln!(out, "{}", clip(&format!("first:  {}", heading(a)), WIDTH))?;
    writeln!(out, "{}\n", clip(&format!("second: {}", heading(b)), WIDTH))?;
    writeln!(out, "{:NAME_CHARS$}  {:<26}  {:<26}", "", "first", "second")?;
    let head = format!("{:>6}  {:>8}  {:>8}", "passed", "95%", "answer s");
    writeln!(out, "{:NAME_CHARS$}  {head}  {head}", "task")?;
    let cells = |rate: Rate, [_, all]: [Option<f64>; 2]| {
        format!("{:>6}  {:>8}  {:>8}", passed(rate), interval(rate), seconds(all))
    };
    for (a, b) in a.rows.iter().zip(&b.rows) {
        let [left, right] = [a, b].map(|r| cells(r.rate(), r.times()));
        writeln!(out, "{:NAME_CHARS$}  {left}  {right}", clip(&a.task, NAME_CHARS))?;
    }
    let [left, right] = [a, b].map(|s| cells(s.rate(), s.times()));
    writeln!(out, "{:NAME_CHARS$}  {left}  {right}", "all")?;
    if let Some((value, [low, high])) = a.rate().difference(b.rate()) {
        let [value, low, high] = [value, low, high].map(|v| format!("{:+.0}", 100.0 * v));
        writeln!(out, "\nsecond - first: {value} points of passed answers (95%: {low} to {high})")?;
    }
    Ok(())
}

/// `fox (http://...)`.
fn heading(side: &Side) -> String {
    if side.name == side.model {
        line(&side.name)
    } else {
        format!("{}, model {}", line(&side.name), line(&side.model))
    }
}

fn passed(rate: Rate) -> String {
    if rate.of == 0 { "-".into() } else { format!("{}/{}", rate.passed, rate.of) }
}

/// `23-88%`.
fn interval(rate: Rate) -> String {
    rate.interval().map_or("-".into(), |[low, high]| format!("{:.0}-{:.0}%", 100.0 * low, 100.0 * high))
}

fn seconds(s: Option<f64>) -> String {
    match s {
        None => "-".into(),
        Some(s) if s < 10.0 => format!("{s:.2}"),
        Some(s) => format!("{s:.1}"),
    }
}

/// A text of at most this number of characters.
fn clip(text: &str, chars: usize) -> String {
    match text.chars().count() > chars {
        true => text.chars().take(chars - 1).chain(['…']).collect(),
        false => text.into(),
    }
}
