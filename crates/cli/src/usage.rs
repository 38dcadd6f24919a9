//! `octet usage`: what virtual keys and the master key used, by key, model and day.

use std::collections::BTreeMap;
use std::io::Write;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use octet_keys::{Filter, KeyId, Period, Store, UsageRow, Usd, calendar, own_key};
use serde_json::{Map, Value};

use crate::keys::{FileArgs, now, table, total_note};
use crate::settings::Settings;
use crate::stderr::note;

const EXAMPLES: &str = "\
Examples:
  octet usage                                  by key and model, in the last 30 days
  octet usage --by day --since 2026-11-01
  octet usage --key alice --by model,day --json

Days are UTC. A running server writes once a second. Requests with one of the server's own keys
are shown as those of 'master-key'.";

/// Shows the usage of virtual keys, and of the master key.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct UsageArgs {
    /// Only this key: its id or name.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Only this model, by its name in requests.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// First day: 2026-11-01, or 7d before today.
    #[arg(long, value_name = "WHEN", default_value = "30d")]
    since: Since,
    /// Last day: 2026-11-30. Default: today.
    #[arg(long, value_name = "DATE", value_parser = date)]
    until: Option<i64>,
    /// Columns to group by.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [By::Key, By::Model])]
    by: Vec<By>,
    #[command(flatten)]
    file: FileArgs,
}

/// What to group by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    Day,
    Key,
    Model,
}

#[derive(Debug, Clone, Copy)]
enum Since {
    Day(i64),
    Back(i64),
}

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(day) = calendar::parse(text) {
            return Ok(Self::Day(day));
        }
        match text.parse() {
            Ok(Period::Seconds(n)) => Ok(Self::Back(i64::from(n) / calendar::DAY_S)),
            _ => Err("write a date, 2026-11-01, or a duration, 7d".into()),
        }
    }
}

fn date(text: &str) -> Result<i64, String> {
    calendar::parse(text).ok_or_else(|| "write a date, 2026-11-30".into())
}

/// Sums of a group.
#[derive(Default)]
struct Sum {
    requests: u64,
    input: u64,
    cached: u64,
    output: u64,
    cost: Usd,
}

impl Sum {
    fn add(&mut self, row: &UsageRow) {
        self.requests += row.requests;
        self.input = self.input.saturating_add(row.usage.input);
        self.cached = self.cached.saturating_add(row.usage.cached);
        self.output = self.output.saturating_add(row.usage.output);
        self.cost = self.cost.plus(row.cost);
    }
}

pub fn run(args: &UsageArgs, settings: &Settings) -> anyhow::Result<()> {
    let store = args.file.open(settings)?;
    let find = |key: &String| match store.find(key) {
        Err(octet_keys::Error::NoSuchKey(_)) if *key == store.own().name => Ok(own_key()),
        found => found.map(|k| k.id),
    };
    let key = args.key.as_ref().map(find).transpose()?;
    let from_day = match args.since {
        Since::Day(day) => day,
        Since::Back(days) => calendar::day(now()) - days,
    };
    let filter = Filter { key, model: args.model.clone(), from_day: Some(from_day), to_day: args.until };
    let rows = store.usage(&filter)?;
    let mut out = std::io::stdout().lock();
    let groups = grouped(&rows, &args.by, &names(&store));
    if args.file.json {
        let all: Value = groups.iter().map(|(by, sum)| as_json(&args.by, by, sum)).collect();
        writeln!(out, "{all:#}")?;
        return Ok(());
    }
    if groups.is_empty() {
        note!("no key was used since {}", calendar::iso(from_day));
        total_note(&store);
        return Ok(());
    }
    let head: Vec<&str> = args.by.iter().map(|by| ["DAY", "KEY", "MODEL"][*by as usize]).collect();
    let sums = head.len();
    let head = [&head[..], &["REQUESTS", "INPUT", "CACHED", "OUTPUT", "COST"]].concat();
    let mut total = Sum::default();
    rows.iter().for_each(|row| total.add(row));
    let mut lines: Vec<Vec<String>> = groups.iter().map(|(by, sum)| line(by, sum)).collect();
    if lines.len() > 1 {
        let mut all = vec![String::new(); sums];
        all[0] = "total".into();
        lines.push(line(&all, &total));
    }
    table(&mut out, &head, &lines, &[sums, sums + 1, sums + 2, sums + 3, sums + 4])?;
    total_note(&store);
    Ok(())
}

fn names(store: &Store) -> BTreeMap<KeyId, String> {
    store.list().into_iter().chain([store.own()]).map(|k| (k.id, k.name)).collect()
}

/// Sums by the requested columns, in their order. Keys with the same name are distinguished by id.
fn grouped(rows: &[UsageRow], by: &[By], names: &BTreeMap<KeyId, String>) -> BTreeMap<Vec<String>, Sum> {
    let mut groups: BTreeMap<Vec<String>, Sum> = BTreeMap::new();
    for row in rows {
        let name = match names.get(&row.key) {
            Some(name) if names.values().filter(|n| *n == name).count() == 1 => name.clone(),
            Some(name) => format!("{name} ({})", row.key),
            None => row.key.to_string(),
        };
        let group = by.iter().map(|by| match by {
            By::Day => calendar::iso(row.day),
            By::Key => name.clone(),
            By::Model => row.model.clone(),
        });
        groups.entry(group.collect()).or_default().add(row);
    }
    groups
}

fn line(by: &[String], sum: &Sum) -> Vec<String> {
    let counts = [sum.requests, sum.input, sum.cached, sum.output].map(|n| n.to_string());
    [by, &counts, &[sum.cost.to_string()]].concat()
}

fn as_json(by: &[By], values: &[String], sum: &Sum) -> Value {
    let mut object = Map::new();
    for (by, value) in by.iter().zip(values) {
        object.insert(["day", "key", "model"][*by as usize].into(), value.clone().into());
    }
    object.insert("requests".into(), sum.requests.into());
    object.insert("input_tokens".into(), sum.input.into());
    object.insert("cached_tokens".into(), sum.cached.into());
    object.insert("output_tokens".into(), sum.output.into());
    object.insert("cost_usd".into(), sum.cost.dollars().into());
    object.into()
}
