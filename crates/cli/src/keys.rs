//! `octet keys`: manages virtual keys.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::{Args, Subcommand};
use octet_config::{Config, KeysSettings, printable};
use octet_keys::{Budget, KeyInfo, Limits, Options, Period, Profile, Store, Usd, calendar};
use serde_json::{Value, json};

use crate::serve::routes;
use crate::settings::Settings;
use crate::stderr::note;
use crate::usage_error::Usage;

const EXAMPLES: &str = "\
Examples:
  octet keys create alice --models default,cloud --rpm 60 --budget 10 --per 1mo --expires 90d
  octet keys create bob --config octet.yaml
  octet keys list
  octet keys edit alice --budget 20 --rpm none
  octet keys revoke alice
  octet keys import --from postgresql://me:secret@db:5432/litellm --config octet.yaml
  octet keys list --json | jq -r '.[] | select(.revoked == null) | .name'

A key is shown once, when it is created: the file has only its hash. A running server applies
changes within a second. KEY is an id, or the name of exactly one active key.";

/// Creates, lists, edits and revokes virtual keys.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct KeysArgs {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    file: FileArgs,
}

/// The key database.
#[derive(Debug, Args)]
pub struct FileArgs {
    /// Key database: a file, or postgresql://USER:PASSWORD@HOST:5432/NAME. Default: that of the configuration, else keys.db in Octet's data folder.
    #[arg(long, value_name = "FILE", global = true)]
    db: Option<PathBuf>,
    /// The server's configuration: its keys.database is used, and default_key_generate_params sets limits of new keys.
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Creates a key and prints it. It cannot be shown again.
    Create {
        /// Name of the key.
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        limits: LimitArgs,
    },
    /// Lists all keys, with their spending and budgets.
    #[command(visible_alias = "ls")]
    List,
    /// Changes the given settings of a key.
    Edit {
        /// The key.
        #[arg(value_name = "KEY")]
        key: String,
        /// New name.
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        limits: LimitArgs,
    },
    /// Copies keys, users and teams from LiteLLM's database; clients keep their keys.
    Import {
        /// LiteLLM's database, which is only read: postgresql://USER:PASSWORD@HOST:5432/NAME.
        #[arg(long, value_name = "URL")]
        from: String,
    },
    /// Revokes keys: requests with them are refused.
    Revoke {
        /// The keys.
        #[arg(value_name = "KEY", required = true)]
        keys: Vec<String>,
    },
}

/// A limit, or `none`.
#[derive(Debug, Clone, Copy)]
struct Limit<T>(Option<T>);

fn limit<T: FromStr>(text: &str) -> Result<Limit<T>, T::Err> {
    if text == "none" { Ok(Limit(None)) } else { text.parse().map(|v| Limit(Some(v))) }
}

#[derive(Debug, Args)]
struct LimitArgs {
    /// Models that the key can use, separated by commas; * matches any text. Default: all; edit: unchanged.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    models: Option<Vec<String>>,
    /// Maximum requests per minute, or none.
    #[arg(long, value_name = "N", value_parser = limit::<u64>)]
    rpm: Option<Limit<u64>>,
    /// Maximum tokens per minute, of prompts and answers, or none.
    #[arg(long, value_name = "N", value_parser = limit::<u64>)]
    tpm: Option<Limit<u64>>,
    /// Maximum concurrent requests, or none.
    #[arg(long, value_name = "N", value_parser = limit::<u64>)]
    max_parallel: Option<Limit<u64>>,
    /// Budget in US dollars, or none.
    #[arg(long, value_name = "USD", value_parser = limit::<Usd>)]
    budget: Option<Limit<Usd>>,
    /// When the budget resets: 30d, 12h (from the creation of the key), 1mo (calendar month, UTC), ever (never).
    #[arg(long, value_name = "TIME")]
    per: Option<Period>,
    /// When the key expires: 90d from now, 2027-01-01, or none.
    #[arg(long, value_name = "WHEN", value_parser = limit::<When>)]
    expires: Option<Limit<When>>,
}

/// A point in time, in seconds since 1970 UTC: a date, or a duration from now.
#[derive(Debug, Clone, Copy)]
enum When {
    At(i64),
    In(i64),
}

impl FromStr for When {
    type Err = octet_keys::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(day) = calendar::parse(text) {
            return Ok(Self::At(day * calendar::DAY_S));
        }
        match text.parse()? {
            Period::Seconds(n) => Ok(Self::In(i64::from(n))),
            _ => Err(octet_keys::Error::Invalid(format!("'{text}' is not a time; write 90d, or 2027-01-01"))),
        }
    }
}

/// The current time in seconds since 1970 UTC.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

impl LimitArgs {
    /// Limits as set by the flags. A first budget lasts for `period` if they set no duration.
    fn apply(&self, to: Limits, period: Period) -> Result<Limits, Usage> {
        let mut limits = to;
        if let Some(models) = &self.models {
            limits.models.clone_from(models);
        }
        let counts = [
            (&mut limits.rpm, self.rpm),
            (&mut limits.tpm, self.tpm),
            (&mut limits.max_parallel, self.max_parallel),
        ];
        for (limit, given) in counts {
            *limit = given.map_or(*limit, |l| l.0);
        }
        match (self.budget, self.per) {
            (Some(Limit(None)), None) => limits.budget = None,
            (Some(Limit(Some(limit))), per) => {
                let before = limits.budget.map_or(period, |b| b.period);
                limits.budget = Some(Budget { limit, period: per.unwrap_or(before) });
            }
            (budget, Some(period)) => match &mut limits.budget {
                Some(b) if budget.is_none() => b.period = period,
                _ => return Err(Usage("--per is the time of a budget; give a --budget too".into())),
            },
            (None, None) => {}
        }
        if let Some(Limit(when)) = self.expires {
            limits.expires = when.map(|when| match when {
                When::At(unix) => unix,
                When::In(seconds) => now().saturating_add(seconds),
            });
        }
        Ok(limits)
    }
}

impl FileArgs {
    /// The server's configuration.
    fn config(&self) -> anyhow::Result<Option<Config>> {
        self.config.as_deref().map(routes::read_unguarded).transpose()
    }

    /// The address of the database, if it is PostgreSQL.
    fn url(&self) -> anyhow::Result<Option<String>> {
        if let Some(db) = &self.db {
            let text = db.to_string_lossy();
            let is_url = text.starts_with("postgresql://") || text.starts_with("postgres://");
            return Ok(is_url.then(|| text.into_owned()));
        }
        let config = self.config()?;
        Ok(config.and_then(|c| c.keys.database_url).map(|url| url.expose().to_string()))
    }

    fn path(&self, settings: &Settings) -> anyhow::Result<PathBuf> {
        if let (None, Some(config), Some(file)) = (&self.db, self.config()?, &self.config) {
            let none =
                || Usage(format!("{} names no key database: write keys: {{database: FILE}}", file.display()));
            return Ok(config.keys.database.ok_or_else(none)?);
        }
        match (&self.db, &settings.data) {
            (Some(path), _) => Ok(path.clone()),
            (None, Some(data)) => Ok(data.join("keys.db")),
            (None, None) => {
                Err(Usage("there is no home directory for the key database; name a file with --db".into())
                    .into())
            }
        }
    }

    /// Opens an existing key database.
    pub fn open(&self, settings: &Settings) -> anyhow::Result<Store> {
        if let Some(url) = self.url()? {
            return Ok(Store::connect(&url, Options::default())?);
        }
        let path = self.path(settings)?;
        let is_there = path.try_exists().with_context(|| path.display().to_string())?;
        anyhow::ensure!(
            is_there,
            "there is no key database at {}; `octet keys create` creates it",
            path.display()
        );
        Ok(Store::open(path)?)
    }

    /// Opens the key database, creating it if necessary.
    fn open_or_create(&self, settings: &Settings) -> anyhow::Result<Store> {
        if let Some(url) = self.url()? {
            return Ok(Store::connect(&url, Options::default())?);
        }
        let path = self.path(settings)?;
        let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Store::open(path)?)
    }
}

pub fn run(args: &KeysArgs, settings: &Settings) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match &args.verb {
        Verb::Create { name, limits } => create(&args.file, settings, name, limits, &mut out),
        Verb::List => list(&args.file, settings, &mut out),
        Verb::Edit { key, name, limits } => {
            edit(&args.file, settings, key, name.as_deref(), limits, &mut out)
        }
        Verb::Import { from } => import(&args.file, settings, from, &mut out),
        Verb::Revoke { keys } => revoke(&args.file, settings, keys, &mut out),
    }
}

fn create(
    file: &FileArgs,
    settings: &Settings,
    name: &str,
    limits: &LimitArgs,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let config = file.config()?;
    if let (Some(config), Some(models)) = (&config, &limits.models) {
        unknown_models(config, models);
    }
    let limits = limits.apply(new_limits(config.as_ref().map(|c| &c.keys))?, Period::Ever)?;
    let store = file.open_or_create(settings)?;
    let (secret, key) = store.create_for(name, limits, new_profile(config.as_ref()))?;
    store.close()?;
    if file.json {
        let mut shown = as_json(&key);
        shown["key"] = secret.reveal().into();
        writeln!(out, "{shown:#}")?;
    } else {
        writeln!(out, "{}", secret.reveal())?;
        note!("This is the only time that the key of '{name}' is shown; its id is {}.", key.id);
    }
    if file.db.is_none() && file.config.is_none() {
        let path = file.path(settings)?;
        let path = path.display();
        note!(
            "note: the key is in {path}; a server uses it only if its configuration has keys: {{database: {path}}}"
        );
    }
    Ok(())
}

fn list(file: &FileArgs, settings: &Settings, out: &mut impl Write) -> anyhow::Result<()> {
    let store = file.open(settings)?;
    let keys = store.list();
    if file.json {
        writeln!(out, "{:#}", keys.iter().map(as_json).collect::<Value>())?;
        return Ok(());
    }
    if keys.is_empty() {
        note!("no keys; `octet keys create NAME` creates one");
    } else {
        let rows: Vec<Vec<String>> = keys.iter().map(row).collect();
        table(out, &["ID", "NAME", "SPENT", "BUDGET", "LIMITS", "MODELS", "STATE"], &rows, &[2])?;
    }
    total_note(&store);
    Ok(())
}

fn edit(
    file: &FileArgs,
    settings: &Settings,
    key: &str,
    name: Option<&str>,
    limits: &LimitArgs,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let store = file.open(settings)?;
    if let (Some(config), Some(models)) = (file.config()?, &limits.models) {
        unknown_models(&config, models);
    }
    let found = store.find(key)?;
    // Edits the key as the file has it now: another process may have changed it since it was found.
    store.edit_for::<anyhow::Error>(found.id, |draft| {
        let kept = draft.profile.kept_period();
        draft.limits = limits.apply(draft.limits.clone(), kept.unwrap_or(Period::Ever))?;
        if draft.limits.budget.is_some() {
            draft.profile.keep_period(None);
        }
        if let Some(name) = name {
            draft.name = name.into();
        }
        Ok(())
    })?;
    let changed = store.find(&found.id.to_string())?;
    store.close()?;
    if file.json {
        writeln!(out, "{:#}", as_json(&changed))?;
    } else {
        writeln!(out, "{}: {}", changed.name, row(&changed)[3..].join("  "))?;
    }
    Ok(())
}

/// Copies LiteLLM's keys. What is already there stays as it is.
fn import(file: &FileArgs, settings: &Settings, from: &str, out: &mut impl Write) -> anyhow::Result<()> {
    let found = octet_keys::litellm(from)?;
    let store = file.open_or_create(settings)?;
    let copied = store.transact::<_, anyhow::Error>(|all| {
        let mut copied = Vec::new();
        for foreign in &found {
            let what = || format!("{} '{}'", foreign.kind(), printable(foreign.name()));
            // The others are not held up by one that Octet cannot have.
            let is_new = all.import(foreign).map_err(|e| e.to_string());
            copied.push((what(), is_new, &foreign.notes));
        }
        Ok(copied)
    })?;
    store.close()?;
    let shown = copied.iter().map(|(what, is_new, notes)| {
        let state = match is_new {
            Ok(true) => "imported".to_string(),
            Ok(false) => "already there".to_string(),
            Err(why) => format!("left out: {why}"),
        };
        (what, state, notes)
    });
    if file.json {
        let all: Value =
            shown.map(|(what, state, notes)| json!({"name": what, "state": state, "notes": notes})).collect();
        writeln!(out, "{all:#}")?;
        return Ok(());
    }
    for (what, state, notes) in shown {
        writeln!(out, "{what}: {state}")?;
        for note in notes.iter() {
            note!("{what}: {note}");
        }
    }
    Ok(())
}

fn revoke(file: &FileArgs, settings: &Settings, keys: &[String], out: &mut impl Write) -> anyhow::Result<()> {
    let store = file.open(settings)?;
    // A mistake in the last name is found before the first is processed.
    let found = keys.iter().map(|k| store.find(k)).collect::<Result<Vec<_>, _>>()?;
    store.revoke_all(&found.iter().map(|key| key.id).collect::<Vec<_>>())?;
    store.close()?;
    if file.json {
        let ids: Value = found.iter().map(|k| k.id.to_string()).collect();
        writeln!(out, "{ids:#}")?;
    } else {
        for key in found {
            writeln!(out, "{}: revoked ({})", key.name, key.id)?;
        }
    }
    Ok(())
}

/// Warns about names without a model in the configuration: otherwise a typo shows up only when requests are refused.
fn unknown_models(config: &Config, models: &[String]) {
    let groups = config.deployments.iter().flat_map(|d| {
        std::iter::once(d.group.as_str()).chain(d.info.access_groups.iter().map(String::as_str))
    });
    let others = config.router.aliases.iter().map(|a| &a.name).chain(config.cascades.iter().map(|c| &c.name));
    let skipped = config.skipped.iter().map(|s| s.group.as_str());
    let known: Vec<&str> = groups.chain(others.map(String::as_str)).chain(skipped).collect();
    let by_wildcard = |name: &str| config.deployments.iter().any(|d| d.group.matches(name));
    for pattern in models {
        let allowed = Limits { models: vec![pattern.clone()], ..Limits::default() };
        if !known.iter().any(|name| allowed.allows(name)) && !by_wildcard(pattern) {
            note!("the configuration has no model '{}'", printable(pattern));
        }
    }
}

/// Prints the total spend of all requests, including those with the server's own key, if there is a total budget.
pub fn total_note(store: &Store) {
    if let Some((spent, budget)) = store.total().and_then(|t| Some((t.spent, t.limits.budget?))) {
        let per = match budget.period {
            Period::Ever => String::new(),
            period => format!(" per {period}"),
        };
        note!("all requests together: {spent} of {}{per} spent", budget.limit);
    }
}

/// Default limits of a new key: none, or those of the server's configuration.
fn new_limits(settings: Option<&KeysSettings>) -> anyhow::Result<Limits> {
    let mut limits = Limits::default();
    let Some(d) = settings.map(|s| &s.defaults) else { return Ok(limits) };
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let l = &d.limits;
    if !l.models.is_empty() {
        limits.models.clone_from(&l.models);
    }
    limits.rpm = l.rpm_limit;
    limits.tpm = l.tpm_limit;
    limits.max_parallel = l.max_parallel_requests.map(u64::from);
    limits.budget =
        l.max_budget.map(|usd| octet_keys::budget(usd, l.budget_duration.map(seconds))).transpose()?;
    limits.expires = d.duration.map(|time| now().saturating_add(seconds(time).into()));
    Ok(limits)
}

/// The default owner of a new key.
fn new_profile(config: Option<&Config>) -> Profile {
    let defaults = config.map(|c| c.keys.defaults.clone()).unwrap_or_default();
    Profile { user: defaults.user, team: defaults.team, ..Profile::default() }
}

fn row(key: &KeyInfo) -> Vec<String> {
    let limits = &key.limits;
    let budget = limits.budget.map_or("-".into(), |b| match b.period {
        Period::Ever => b.limit.to_string(),
        period => format!("{} per {period}", b.limit),
    });
    let counts = [("rpm", limits.rpm), ("tpm", limits.tpm), ("parallel", limits.max_parallel)];
    let counts: Vec<String> =
        counts.iter().filter_map(|(name, n)| n.map(|n| format!("{n} {name}"))).collect();
    let state = match (key.revoked, limits.expires) {
        (None, _) if key.profile.blocked => "blocked".into(),
        (Some(at), _) => format!("revoked {}", calendar::iso(calendar::day(at))),
        (None, Some(at)) if at <= now() => format!("expired {}", calendar::iso_minute(at)),
        (None, Some(at)) => format!("until {}", calendar::iso_minute(at)),
        (None, None) => "in force".into(),
    };
    vec![
        key.id.to_string(),
        key.name.clone(),
        key.spent.to_string(),
        budget,
        if counts.is_empty() { "-".into() } else { counts.join(", ") },
        limits.models.join(","),
        state,
    ]
}

fn as_json(key: &KeyInfo) -> Value {
    let limits = &key.limits;
    json!({
        "id": key.id.to_string(),
        "name": key.name,
        "models": limits.models,
        "rpm": limits.rpm,
        "tpm": limits.tpm,
        "max_parallel": limits.max_parallel,
        "budget_usd": limits.budget.map(|b| b.limit.dollars()),
        "budget_period": limits.budget.map(|b| b.period.to_string()),
        "budget_resets": key.resets,
        "spent_usd": key.spent.dollars(),
        "created": key.created,
        "expires": limits.expires,
        "revoked": key.revoked,
        "blocked": key.profile.blocked,
        "user": key.profile.user,
        "team": key.profile.team,
    })
}

/// Columns as wide as their contents; numbers are right-aligned.
pub fn table(
    out: &mut impl Write,
    head: &[&str],
    rows: &[Vec<String>],
    numbers: &[usize],
) -> std::io::Result<()> {
    let head: Vec<String> = head.iter().map(ToString::to_string).collect();
    // Model names come from clients.
    let shown = |row: &Vec<String>| row.iter().map(|cell| printable(cell).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(shown).collect();
    let width = |c: usize| {
        let cells = std::iter::once(&head).chain(&rows).filter_map(|r| r.get(c));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    for row in std::iter::once(&head).chain(&rows) {
        let cells = row.iter().zip(&widths).enumerate().map(|(c, (cell, width))| {
            if numbers.contains(&c) { format!("{cell:>width$}") } else { format!("{cell:width$}") }
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}
