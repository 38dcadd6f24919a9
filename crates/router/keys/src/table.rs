//! Rows: keys and usage. Reads them from an SQLite file, and writes them there; called by `sqlite`, with the connection locked.

use rusqlite::{Connection, Row, ToSql, params};

use crate::limits::{Budget, COUNT_MAX, Period, is_too_early};
use crate::profile::{Member, OwnerKind};
use crate::{Error, KeyId, Limits, Profile, Usage, Usd};

/// Maximum number of keys in memory.
pub const KEYS_MAX: i64 = 100_000;

/// A row of the file: a key, a user or a team.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// What it is if it is not a key; then its name is its id.
    pub kind: Option<OwnerKind>,
    pub hash: blake3::Hash,
    pub name: String,
    pub limits: Limits,
    pub created: i64,
    pub revoked: Option<i64>,
    /// First second of the budget's period,
    pub window: i64,
    /// and the spend in it.
    pub spent: Usd,
    /// The same of the period before, for a clock that jumps ahead and back.
    pub before: Option<(i64, Usd)>,
    pub profile: Profile,
}

impl KeyRow {
    /// A new one without spend.
    pub fn new(hash: blake3::Hash, name: &str, limits: Limits, created: i64) -> Self {
        let window = limits.budget.map_or(Period::Ever, |b| b.period).start(created, created);
        let profile = Profile::default();
        Self {
            kind: None,
            hash,
            name: name.into(),
            limits,
            created,
            revoked: None,
            window,
            spent: Usd::ZERO,
            before: None,
            profile,
        }
    }

    /// Changes its limits. Its spend stays, unless it was in an ended period.
    pub fn limit(&mut self, limits: Limits, now: i64) {
        let period = |l: &Limits| l.budget.map_or(Period::Ever, |b| b.period);
        if period(&self.limits) != period(&limits) {
            if period(&self.limits).start(self.created, now) > self.window {
                self.spent = Usd::ZERO;
            }
            self.window = period(&limits).start(self.created, now);
            self.before = None;
        }
        self.limits = limits;
    }
}

/// Refuses more rows than fit in memory.
pub fn check_many(rows: usize) -> Result<(), Error> {
    let fits = i64::try_from(rows).is_ok_and(|n| n <= KEYS_MAX);
    if fits {
        Ok(())
    } else {
        Err(Error::Invalid(format!("there are {KEYS_MAX} keys, users and teams, which is the most")))
    }
}

/// The error for rows that cannot be read.
pub enum Unread {
    Sqlite(rusqlite::Error),
    Damaged(String),
}

impl From<rusqlite::Error> for Unread {
    fn from(e: rusqlite::Error) -> Self {
        // An error without a SQLite code is an invalid value.
        match e.sqlite_error_code() {
            Some(_) => Self::Sqlite(e),
            None => Self::Damaged(format!("a row cannot be read: {e}")),
        }
    }
}

fn amount(usd: Usd) -> i64 {
    i64::try_from(usd.nanos()).unwrap_or(i64::MAX)
}

fn count(n: u64) -> i64 {
    i64::try_from(n.min(COUNT_MAX)).unwrap_or(i64::MAX)
}

/// All keys.
pub fn keys(db: &Connection) -> Result<Vec<KeyRow>, Unread> {
    let many: i64 = db.query_row("SELECT count(*) FROM keys", [], |row| row.get(0))?;
    if many > KEYS_MAX {
        return Err(Unread::Damaged(format!("it has {many} keys; at most {KEYS_MAX} are held in memory")));
    }
    let mut statement = db.prepare_cached(
        "SELECT id, hash, name, models, rpm, tpm, max_parallel, budget, period, created, expires, revoked, \
         keys.window_start, keys.spent, kind, user, team, blocked, members, about, ended.window_start AS before_window, \
         ended.spent AS before_spent FROM keys LEFT JOIN ended ON ended.key = id ORDER BY created, name, id",
    )?;
    let mut rows = statement.query([])?;
    let mut keys = Vec::new();
    while let Some(row) = rows.next()? {
        let id: String = row.get("id")?;
        keys.push(key(row, &id).map_err(|e| match e {
            Unread::Damaged(what) => Unread::Damaged(format!("key '{id}': {what}")),
            e => e,
        })?);
    }
    Ok(keys)
}

fn key(row: &Row<'_>, id: &str) -> Result<KeyRow, Unread> {
    let wrong = Unread::Damaged;
    let hash: Vec<u8> = row.get("hash")?;
    let hash = blake3::Hash::from_slice(&hash).map_err(|e| wrong(format!("its hash is invalid: {e}")))?;
    if KeyId::of(&hash).to_string() != id {
        return Err(wrong("its id is not that of its hash".into()));
    }
    let at_least_0 = |name: &str| -> Result<Option<u64>, Unread> {
        let value: Option<i64> = row.get(name)?;
        value.map(|v| u64::try_from(v).map_err(|_| wrong(format!("its {name} is {v}")))).transpose()
    };
    let budget = match (at_least_0("budget")?, row.get::<_, Option<String>>("period")?) {
        (None, None) => None,
        (Some(limit), Some(period)) => {
            let period = period.parse().map_err(|e| wrong(format!("its period: {e}")))?;
            Some(Budget { limit: Usd::from_nanos(limit), period })
        }
        _ => return Err(wrong("its budget and its period do not go together".into())),
    };
    let models: String = row.get("models")?;
    let limits = Limits {
        models: serde_json::from_str(&models)
            .map_err(|e| wrong(format!("its models are not a list: {e}")))?,
        rpm: at_least_0("rpm")?,
        tpm: at_least_0("tpm")?,
        max_parallel: at_least_0("max_parallel")?,
        budget,
        expires: row.get("expires")?,
    };
    limits.check().map_err(|e| wrong(e.to_string()))?;
    let name: String = row.get("name")?;
    let kind = match row.get::<_, Option<String>>("kind")? {
        None => None,
        Some(kind) => Some(
            OwnerKind::read(&kind)
                .filter(|kind| kind.hash(&name) == hash)
                .ok_or_else(|| wrong(format!("it is no {kind} '{name}'")))?,
        ),
    };
    Ok(KeyRow {
        kind,
        hash,
        name,
        profile: profile(row)?,
        limits,
        created: row.get("created")?,
        revoked: row.get("revoked")?,
        window: row.get("window_start")?,
        spent: Usd::from_nanos(at_least_0("spent")?.unwrap_or(0)),
        before: row
            .get::<_, Option<i64>>("before_window")?
            .zip(at_least_0("before_spent")?.map(Usd::from_nanos)),
    })
}

fn profile(row: &Row<'_>) -> Result<Profile, Unread> {
    let wrong = |what: &str, e: serde_json::Error| Unread::Damaged(format!("its {what}: {e}"));
    let members: Option<String> = row.get("members")?;
    let members: Vec<(String, String)> = members
        .map_or(Ok(Vec::new()), |text| serde_json::from_str(&text))
        .map_err(|e| wrong("members", e))?;
    let about: Option<String> = row.get("about")?;
    Ok(Profile {
        user: row.get("user")?,
        team: row.get("team")?,
        blocked: row.get("blocked")?,
        members: members.into_iter().map(|(user, role)| Member { user, role }).collect(),
        about: about
            .map_or(Ok(serde_json::Map::new()), |t| serde_json::from_str(&t))
            .map_err(|e| wrong("about", e))?,
    })
}

/// Deletes a user or a team.
pub fn delete(db: &Connection, id: KeyId) -> rusqlite::Result<()> {
    db.execute("DELETE FROM keys WHERE id = ?1", [id.to_string()])?;
    put_ended(db, id, None)
}

/// Inserts or replaces a key.
pub fn put(db: &Connection, key: &KeyRow) -> rusqlite::Result<()> {
    let limits = &key.limits;
    // A list of texts is JSON.
    let models = serde_json::Value::from(limits.models.clone()).to_string();
    let profile = &key.profile;
    let member = |m: &Member| serde_json::json!([m.user, m.role]);
    let members: serde_json::Value = profile.members.iter().map(member).collect();
    let has_about = !profile.about.is_empty();
    let mut statement = db.prepare_cached(
        "INSERT INTO keys VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, \
         ?15, ?16, ?17, ?18, ?19, ?20) \
         ON CONFLICT (id) DO UPDATE SET name = ?3, models = ?4, rpm = ?5, tpm = ?6, max_parallel = ?7, budget = ?8, \
         period = ?9, expires = ?11, revoked = ?12, window_start = ?13, spent = ?14, user = ?16, team = ?17, \
         blocked = ?18, members = ?19, about = ?20",
    )?;
    statement.execute(params![
        KeyId::of(&key.hash).to_string(),
        key.hash.as_bytes().as_slice(),
        key.name,
        models,
        limits.rpm.map(count),
        limits.tpm.map(count),
        limits.max_parallel.map(count),
        limits.budget.map(|b| amount(b.limit)),
        limits.budget.map(|b| b.period.to_string()),
        key.created,
        limits.expires,
        key.revoked,
        key.window,
        amount(key.spent),
        key.kind.map(OwnerKind::name),
        profile.user,
        profile.team,
        profile.blocked,
        (!profile.members.is_empty()).then(|| members.to_string()),
        has_about.then(|| serde_json::Value::from(profile.about.clone()).to_string()),
    ])?;
    put_ended(db, KeyId::of(&key.hash), key.before)
}

/// Stores or deletes the period before a key's current one.
fn put_ended(db: &Connection, id: KeyId, before: Option<(i64, Usd)>) -> rusqlite::Result<()> {
    match before {
        Some((window, spent)) => {
            let mut put = db.prepare_cached("INSERT OR REPLACE INTO ended VALUES (?1, ?2, ?3)")?;
            put.execute(params![id.to_string(), window, amount(spent)])?;
        }
        None => drop(db.prepare_cached("DELETE FROM ended WHERE key = ?1")?.execute([id.to_string()])?),
    }
    Ok(())
}

/// The dimensions of usage.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UsageKey {
    pub day: i64,
    pub key: KeyId,
    pub model: String,
}

/// The counts of usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub requests: u64,
    pub usage: Usage,
    pub cost: Usd,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        let (sum, more) = (&mut self.usage, &other.usage);
        for (sum, more) in [
            (&mut self.requests, other.requests),
            (&mut sum.input, more.input),
            (&mut sum.cached, more.cached),
            (&mut sum.cache_written, more.cache_written),
            (&mut sum.output, more.output),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.cost = self.cost.plus(other.cost);
    }
}

/// A key's spend in the budget period that began at this time.
pub type Spent = (KeyId, (i64, Usd));

/// Adds usage and spend to the file, in a transaction, and returns the keys' periods and sums in the file. Writes something even without
/// usage, to check that writing works.
pub fn add(
    tx: &Connection,
    unix: i64,
    used: &[(&UsageKey, &Counts)],
    spent: &[Spent],
) -> rusqlite::Result<Vec<(i64, Usd)>> {
    let mut sums = Vec::with_capacity(spent.len());
    {
        let mut usage = tx.prepare_cached(
            "INSERT INTO usage VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT DO UPDATE SET \
             requests = requests + ?4, input = input + ?5, cached = cached + ?6, cache_written = cache_written + ?7, \
             output = output + ?8, cost = cost + ?9",
        )?;
        for (by, n) in used {
            usage.execute(params![
                by.day,
                by.key.to_string(),
                by.model,
                count(n.requests),
                count(n.usage.input),
                count(n.usage.cached),
                count(n.usage.cache_written),
                count(n.usage.output),
                amount(n.cost),
            ])?;
        }
        for (id, spent) in spent {
            sums.push(add_spend(tx, unix, *id, *spent)?);
        }
        tx.prepare_cached("INSERT INTO meta VALUES ('written', ?1) ON CONFLICT DO UPDATE SET value = ?1")?
            .execute([unix])?;
    }
    Ok(sums)
}

/// Adds a key's spend in the period that began at `window`, and returns its period and sum in the file.
fn add_spend(
    db: &Connection,
    unix: i64,
    id: KeyId,
    (window, cost): (i64, Usd),
) -> rusqlite::Result<(i64, Usd)> {
    let usd = |n: i64| Usd::from_nanos(n.max(0).unsigned_abs());
    let mut known = db.prepare_cached(
        "SELECT keys.window_start, keys.spent, ended.window_start, ended.spent FROM keys LEFT JOIN ended ON ended.key = id \
         WHERE id = ?1",
    )?;
    let mut rows = known.query([id.to_string()])?;
    // A deleted key has no spend.
    let Some(row) = rows.next()? else { return Ok((window, cost)) };
    let (begun, spent): (i64, Usd) = (row.get(0)?, usd(row.get(1)?));
    let before = row.get::<_, Option<i64>>(2)?.zip(row.get::<_, Option<i64>>(3)?.map(usd));
    let (window, sum, before) = if is_too_early(begun, window, unix) {
        // The clock was ahead when the period in the file began. What was spent before that counts again.
        let again = before.filter(|before| before.0 == window).map_or(Usd::ZERO, |before| before.1);
        (window, spent.plus(again).plus(cost), None)
    } else if begun < window {
        (window, cost, Some((begun, spent)))
    } else {
        // Also late spend, in a period that another process has ended: it counts in the new one.
        (begun, spent.plus(cost), before)
    };
    let mut put = db.prepare_cached("UPDATE keys SET window_start = ?2, spent = ?3 WHERE id = ?1")?;
    put.execute(params![id.to_string(), window, amount(sum)])?;
    put_ended(db, id, before)?;
    Ok((window, sum))
}

/// Deletes usage before a day, and revoked keys without usage.
pub fn prune(db: &Connection, before_day: i64) -> rusqlite::Result<()> {
    db.execute("DELETE FROM usage WHERE day < ?1", [before_day])?;
    db.execute("DELETE FROM usage_tags WHERE day < ?1", [before_day])?;
    db.execute(
        "DELETE FROM keys WHERE revoked IS NOT NULL AND revoked < ?1 AND id NOT IN (SELECT key FROM usage)",
        [before_day.saturating_mul(crate::calendar::DAY_S)],
    )?;
    db.execute("DELETE FROM ended WHERE key NOT IN (SELECT id FROM keys)", [])?;
    Ok(())
}

/// Selects usage; the default is all.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Of one key.
    pub key: Option<KeyId>,
    /// Of one model.
    pub model: Option<String>,
    /// From this day on, in days since 1970 UTC.
    pub from_day: Option<i64>,
    /// Up to and including this day.
    pub to_day: Option<i64>,
}

/// The usage of one key and model on one day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageRow {
    /// In days since 1970 UTC.
    pub day: i64,
    /// The key.
    pub key: KeyId,
    /// The model, by clients' name.
    pub model: String,
    /// Settled requests.
    pub requests: u64,
    /// Their tokens.
    pub usage: Usage,
    /// What they cost.
    pub cost: Usd,
}

/// Usage, by day, key and model.
pub fn usage(db: &Connection, filter: &Filter) -> Result<Vec<UsageRow>, Unread> {
    let mut statement = db.prepare_cached(
        "SELECT day, key, model, requests, input, cached, cache_written, output, cost FROM usage \
         WHERE day BETWEEN ?1 AND ?2 AND (?3 IS NULL OR key = ?3) AND (?4 IS NULL OR model = ?4) \
         ORDER BY day, key, model",
    )?;
    let key = filter.key.map(|k| k.to_string());
    let filter: [&dyn ToSql; 4] =
        [&filter.from_day.unwrap_or(i64::MIN), &filter.to_day.unwrap_or(i64::MAX), &key, &filter.model];
    let mut rows = statement.query(&filter[..])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let at_least_0 = |name: &str| -> Result<u64, Unread> {
            let value: i64 = row.get(name)?;
            u64::try_from(value).map_err(|_| Unread::Damaged(format!("usage: its {name} is {value}")))
        };
        let key: String = row.get("key")?;
        all.push(UsageRow {
            day: row.get("day")?,
            key: key
                .parse()
                .map_err(|_| Unread::Damaged(format!("usage: '{key}' is not the id of a key")))?,
            model: row.get("model")?,
            requests: at_least_0("requests")?,
            usage: Usage {
                input: at_least_0("input")?,
                cached: at_least_0("cached")?,
                cache_written: at_least_0("cache_written")?,
                output: at_least_0("output")?,
            },
            cost: Usd::from_nanos(at_least_0("cost")?),
        });
    }
    Ok(all)
}
