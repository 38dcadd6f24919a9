//! Rows in PostgreSQL: keys and usage. `table` does the same for SQLite.

use postgres::{Client, Row};

use crate::limits::{Budget, COUNT_MAX};
use crate::profile::{Member, OwnerKind};
use crate::table::{Filter, KEYS_MAX, KeyRow, UsageRow};
use crate::{KeyId, Limits, Profile, Usage, Usd};

/// A row's columns.
pub(crate) const COLUMNS: &str = "id, hash, name, models, rpm, tpm, max_parallel, budget, period, created, expires, revoked, window_start, spent, \
                       kind, owner_user, owner_team, blocked, members, about, before_window, before_spent";

pub(crate) enum Failed {
    Postgres(postgres::Error),
    Damaged(String),
}

impl From<postgres::Error> for Failed {
    fn from(e: postgres::Error) -> Self {
        Self::Postgres(e)
    }
}

pub(crate) fn amount(usd: Usd) -> i64 {
    i64::try_from(usd.nanos()).unwrap_or(i64::MAX)
}

pub(crate) fn count(n: u64) -> i64 {
    i64::try_from(n.min(COUNT_MAX)).unwrap_or(i64::MAX)
}

pub(crate) fn usd(n: i64) -> Usd {
    Usd::from_nanos(n.max(0).unsigned_abs())
}

pub(crate) fn all_rows() -> String {
    format!("SELECT {COLUMNS} FROM octet_keys ORDER BY created, name, id")
}

/// Inserts a row, or replaces it; with `stays`, one that is there stays as it is.
pub(crate) fn put(client: &mut Client, key: &KeyRow, stays: bool) -> Result<(), postgres::Error> {
    let (limits, profile) = (&key.limits, &key.profile);
    let models = serde_json::Value::from(limits.models.clone()).to_string();
    let member = |m: &Member| serde_json::json!([m.user, m.role]);
    let members: serde_json::Value = profile.members.iter().map(member).collect();
    let members = (!profile.members.is_empty()).then(|| members.to_string());
    let about =
        (!profile.about.is_empty()).then(|| serde_json::Value::from(profile.about.clone()).to_string());
    let values = (1..=22).map(|i| format!("${i}")).collect::<Vec<_>>().join(", ");
    let changed = "name models rpm tpm max_parallel budget period expires revoked window_start spent owner_user owner_team blocked members \
                   about before_window before_spent";
    let changed = changed.split_whitespace().map(|c| format!("{c} = excluded.{c}")).collect::<Vec<_>>();
    let then = if stays { "NOTHING".into() } else { format!("UPDATE SET {}", changed.join(", ")) };
    let sql = format!("INSERT INTO octet_keys ({COLUMNS}) VALUES ({values}) ON CONFLICT (id) DO {then}");
    client.execute(
        sql.as_str(),
        &[
            &KeyId::of(&key.hash).to_string(),
            &key.hash.as_bytes().as_slice(),
            &key.name,
            &models,
            &limits.rpm.map(count),
            &limits.tpm.map(count),
            &limits.max_parallel.map(count),
            &limits.budget.map(|b| amount(b.limit)),
            &limits.budget.map(|b| b.period.to_string()),
            &key.created,
            &limits.expires,
            &key.revoked,
            &key.window,
            &amount(key.spent),
            &key.kind.map(OwnerKind::name),
            &profile.user,
            &profile.team,
            &profile.blocked,
            &members,
            &about,
            &key.before.map(|(window, _)| window),
            &key.before.map(|(_, spent)| amount(spent)),
        ],
    )?;
    Ok(())
}

pub(crate) fn rows(rows: Vec<Row>) -> Result<Vec<KeyRow>, Failed> {
    if rows.len() as i64 > KEYS_MAX {
        let what = format!("it has {} keys; at most {KEYS_MAX} are held in memory", rows.len());
        return Err(Failed::Damaged(what));
    }
    let read = |row: &Row| {
        let id: String = row.try_get("id")?;
        key(row, &id).map_err(|e| match e {
            Failed::Damaged(what) => Failed::Damaged(format!("key '{id}': {what}")),
            e => e,
        })
    };
    rows.iter().map(read).collect()
}

fn key(row: &Row, id: &str) -> Result<KeyRow, Failed> {
    let wrong = Failed::Damaged;
    let hash = blake3::Hash::from_slice(row.try_get("hash")?)
        .map_err(|e| wrong(format!("its hash is invalid: {e}")))?;
    if KeyId::of(&hash).to_string() != id {
        return Err(wrong("its id is not that of its hash".into()));
    }
    let number = |name: &str| -> Result<Option<u64>, Failed> {
        let value: Option<i64> = row.try_get(name)?;
        value.map(|v| u64::try_from(v).map_err(|_| wrong(format!("its {name} is {v}")))).transpose()
    };
    let budget = match (number("budget")?, row.try_get::<_, Option<String>>("period")?) {
        (Some(limit), Some(period)) => {
            let period = period.parse().map_err(|e| wrong(format!("its period: {e}")))?;
            Some(Budget { limit: Usd::from_nanos(limit), period })
        }
        (None, None) => None,
        _ => return Err(wrong("its budget and its period do not go together".into())),
    };
    let json = |name: &str, text: &str| {
        serde_json::from_str::<serde_json::Value>(text).map_err(|e| wrong(format!("its {name}: {e}")))
    };
    let text = |name: &str| row.try_get::<_, Option<String>>(name);
    let models = json("models", row.try_get("models")?)?;
    let limits = Limits {
        models: serde_json::from_value(models).map_err(|e| wrong(format!("its models: {e}")))?,
        rpm: number("rpm")?,
        tpm: number("tpm")?,
        max_parallel: number("max_parallel")?,
        budget,
        expires: row.try_get("expires")?,
    };
    limits.check().map_err(|e| wrong(e.to_string()))?;
    let name: String = row.try_get("name")?;
    let kind = match text("kind")? {
        None => None,
        Some(kind) => Some(
            OwnerKind::read(&kind)
                .filter(|kind| kind.hash(&name) == hash)
                .ok_or_else(|| wrong(format!("it is no {kind} '{name}'")))?,
        ),
    };
    let members: Vec<(String, String)> = match text("members")? {
        Some(text) => serde_json::from_str(&text).map_err(|e| wrong(format!("its members: {e}")))?,
        None => Vec::new(),
    };
    let about = match text("about")? {
        Some(text) => serde_json::from_str(&text).map_err(|e| wrong(format!("its about: {e}")))?,
        None => serde_json::Map::new(),
    };
    Ok(KeyRow {
        kind,
        hash,
        name,
        limits,
        created: row.try_get("created")?,
        revoked: row.try_get("revoked")?,
        window: row.try_get("window_start")?,
        spent: Usd::from_nanos(number("spent")?.unwrap_or(0)),
        before: row
            .try_get::<_, Option<i64>>("before_window")?
            .zip(number("before_spent")?.map(Usd::from_nanos)),
        profile: Profile {
            user: text("owner_user")?,
            team: text("owner_team")?,
            blocked: row.try_get("blocked")?,
            members: members.into_iter().map(|(user, role)| Member { user, role }).collect(),
            about,
        },
    })
}

pub(crate) fn usage(client: &mut Client, filter: &Filter) -> Result<Vec<UsageRow>, Failed> {
    let key = filter.key.map(|key| key.to_string());
    let (from, to) = (filter.from_day.unwrap_or(i64::MIN), filter.to_day.unwrap_or(i64::MAX));
    let rows = client.query(
        "SELECT day, key, model, requests, input, cached, cache_written, output, cost FROM octet_usage \
         WHERE day BETWEEN $1 AND $2 AND ($3::text IS NULL OR key = $3) AND ($4::text IS NULL OR model = $4) \
         ORDER BY day, key, model",
        &[&from, &to, &key, &filter.model],
    )?;
    let read = |row: &Row| {
        let number = |i: usize| row.get::<_, i64>(i).max(0).unsigned_abs();
        let key: &str = row.get(1);
        Ok(UsageRow {
            day: row.get(0),
            key: key
                .parse()
                .map_err(|_| Failed::Damaged(format!("usage: '{key}' is not the id of a key")))?,
            model: row.get(2),
            requests: number(3),
            usage: Usage { input: number(4), cached: number(5), cache_written: number(6), output: number(7) },
            cost: usd(row.get(8)),
        })
    };
    rows.iter().map(read).collect()
}
