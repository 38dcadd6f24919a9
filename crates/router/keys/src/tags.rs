//! Usage by request tag, of all callers, in memory and in the file.

use std::collections::HashMap;
use std::sync::Mutex;

use rusqlite::{Connection, params};

use crate::Usd;
use crate::entry::lock;
use crate::table::Counts;

/// Maximum number of unwritten tags of one day: clients choose them. Further ones are counted as [`OTHERS`].
const WAITING_MAX: usize = 10_000;
/// Stands for tags above the maximum.
const OTHERS: &str = "(others)";

/// Unwritten usage, by day and tag.
#[derive(Debug, Default)]
pub(crate) struct Tags(Mutex<HashMap<(i64, String), Counts>>);

/// The usage of requests with a tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagRow {
    /// The tag.
    pub tag: String,
    /// Requests with it.
    pub requests: u64,
    /// Tokens of their prompts.
    pub input: u64,
    /// Tokens of their answers.
    pub output: u64,
    /// Their cost. A request with two tags counts for both.
    pub cost: Usd,
}

/// Usage by tag between two days, both included; most expensive first.
pub(crate) fn read(
    db: &Connection,
    from_day: Option<i64>,
    to_day: Option<i64>,
) -> rusqlite::Result<Vec<TagRow>> {
    let mut statement = db.prepare_cached(
        "SELECT tag, sum(requests), sum(input), sum(output), sum(cost) FROM usage_tags \
         WHERE day BETWEEN ?1 AND ?2 GROUP BY tag ORDER BY 5 DESC, tag",
    )?;
    let days = params![from_day.unwrap_or(i64::MIN), to_day.unwrap_or(i64::MAX)];
    let rows = statement.query_map(days, |row| {
        let count = |i: usize| row.get::<_, i64>(i).map(|n| n.max(0).unsigned_abs());
        let (requests, input, output) = (count(1)?, count(2)?, count(3)?);
        Ok(TagRow { tag: row.get(0)?, requests, input, output, cost: Usd::from_nanos(count(4)?) })
    })?;
    rows.collect()
}

impl Tags {
    /// Counts a request for each of its tags.
    pub(crate) fn count(&self, day: i64, tags: &[String], counts: &Counts) {
        let mut waiting = lock(&self.0);
        for tag in tags {
            let mut by = (day, tag.clone());
            if waiting.len() >= WAITING_MAX && !waiting.contains_key(&by) {
                by.1 = OTHERS.into();
            }
            waiting.entry(by).or_default().add(counts);
        }
    }

    /// Takes the unwritten usage.
    pub(crate) fn take(&self) -> HashMap<(i64, String), Counts> {
        std::mem::take(&mut *lock(&self.0))
    }
}

/// Adds usage to the file, in a transaction.
pub(crate) fn add(tx: &Connection, waiting: &HashMap<(i64, String), Counts>) -> rusqlite::Result<()> {
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    if !waiting.is_empty() {
        let mut statement = tx.prepare_cached(
            "INSERT INTO usage_tags VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO UPDATE SET \
             requests = requests + ?3, input = input + ?4, output = output + ?5, cost = cost + ?6",
        )?;
        for ((day, tag), n) in waiting {
            let (input, output) = (number(n.usage.input), number(n.usage.output));
            statement.execute(params![
                day,
                tag,
                number(n.requests),
                input,
                output,
                number(n.cost.nanos())
            ])?;
        }
    }
    Ok(())
}
