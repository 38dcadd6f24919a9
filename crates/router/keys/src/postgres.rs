//! Keys and usage in PostgreSQL, for several processes. Owned by `inner`.
//!
//! There is one connection, which is locked like an SQLite file: requests do not wait for it. It is opened again when it is lost. A process
//! listens for the ids of rows that others change (LISTEN, NOTIFY), and reads these rows. A batch of usage has a number, so that one whose
//! COMMIT got no answer is not counted twice.

use std::collections::HashMap;
use std::time::Duration;

use postgres::fallible_iterator::FallibleIterator;
use postgres::{Client, Row, Transaction};

use crate::backend::{Backend, Batch, Changes};
use crate::postgres_connect::{Place, connect};
use crate::postgres_leases::{lease, renew, shorten};
use crate::postgres_rows::{COLUMNS, Failed, all_rows, amount, count, put, rows, usage, usd};
use crate::table::{Counts, Filter, KeyRow, UsageRow};
use crate::tags::TagRow;
use crate::{Error, KeyId, Now, Usd};

/// The migrations from version N to N + 1. Existing ones never change.
const MIGRATIONS: &[&str] = &[
    "
CREATE TABLE octet_keys (
    id text PRIMARY KEY,
    hash bytea NOT NULL UNIQUE,
    name text NOT NULL,
    models text NOT NULL,
    rpm bigint,
    tpm bigint,
    max_parallel bigint,
    budget bigint,
    period text,
    created bigint NOT NULL,
    expires bigint,
    revoked bigint,
    window_start bigint NOT NULL,
    spent bigint NOT NULL,
    kind text,
    owner_user text,
    owner_team text,
    blocked boolean NOT NULL,
    members text,
    about text,
    before_window bigint,
    before_spent bigint
);
CREATE TABLE octet_usage (
    day bigint NOT NULL,
    key text NOT NULL,
    model text NOT NULL,
    requests bigint NOT NULL,
    input bigint NOT NULL,
    cached bigint NOT NULL,
    cache_written bigint NOT NULL,
    output bigint NOT NULL,
    cost bigint NOT NULL,
    PRIMARY KEY (day, key, model)
);
CREATE TABLE octet_usage_tags (
    day bigint NOT NULL,
    tag text NOT NULL,
    requests bigint NOT NULL,
    input bigint NOT NULL,
    output bigint NOT NULL,
    cost bigint NOT NULL,
    PRIMARY KEY (day, tag)
);
CREATE TABLE octet_writers (process text PRIMARY KEY, batch bigint NOT NULL, seen timestamptz NOT NULL);
",
    "
CREATE TABLE octet_leases (
    key text NOT NULL,
    process text NOT NULL,
    amount bigint NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (key, process)
);
CREATE TABLE octet_responses (
    id text PRIMARY KEY,
    owner text,
    input_len bigint NOT NULL,
    conversation bytea NOT NULL,
    body bytea NOT NULL,
    created timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX octet_responses_created ON octet_responses (created);
",
];

/// Locks of ours in the database: of migrations and of changes to rows.
const LOCK: i64 = 0x4f43_5445_5400;
/// The channel of changes. A notice is the sender's process, then ids; without ids, all rows may have changed.
const CHANNEL: &str = "octet_keys";
/// How long a stored response is kept, as OpenAI does.
const RESPONSES_FOR: &str = "30 days";
/// Maximum number of ids in a notice, which has less than 8000 bytes.
const IDS_MAX: usize = 400;

/// A database.
pub(crate) struct Postgres {
    place: Place,
    client: Option<Client>,
    /// Names this process.
    process: String,
    /// All rows have to be read: the connection is new.
    is_stale: bool,
    pruned: Option<i64>,
    /// Between `begin` and its end.
    is_changing: bool,
}

impl Postgres {
    /// Connects, and migrates the schema.
    pub fn open(url: &str) -> Result<Self, Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|e| Error::NoRandomness(e.to_string()))?;
        let process = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let place = Place::parse(url)?;
        let mut new = Self { place, client: None, process, is_stale: true, pruned: None, is_changing: false };
        let found = apart(|| new.migrate())?;
        if found > MIGRATIONS.len() {
            let (found, known) = (found as i64, MIGRATIONS.len() as i64);
            return Err(Error::Newer { path: new.place.shown.clone().into(), found, known });
        }
        Ok(new)
    }

    /// Its address, without the password.
    pub fn shown(&self) -> &str {
        &self.place.shown
    }

    /// Returns the schema's version.
    fn migrate(&mut self) -> Result<usize, Error> {
        self.with(|client, _| {
            let mut tx = client.transaction()?;
            tx.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK])?;
            tx.batch_execute("CREATE TABLE IF NOT EXISTS octet_schema (version bigint NOT NULL)")?;
            let version: i64 =
                tx.query_one("SELECT coalesce(max(version), 0) FROM octet_schema", &[])?.get(0);
            let version = usize::try_from(version).unwrap_or(usize::MAX);
            for (i, step) in MIGRATIONS.iter().enumerate().skip(version) {
                tx.batch_execute(step)?;
                tx.execute("INSERT INTO octet_schema VALUES ($1)", &[&(i as i64 + 1)])?;
            }
            tx.commit()?;
            Ok(version)
        })
    }

    /// Closes the connection: with its runtime, which must not end inside another one.
    fn disconnect(&mut self) {
        let client = self.client.take();
        apart(move || drop(client));
    }

    /// Works with the connection, which is opened if it is lost.
    fn with<T>(&mut self, work: impl FnOnce(&mut Client, &str) -> Result<T, Failed>) -> Result<T, Error> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            self.client = None;
            // A new connection knows nothing of the transaction.
            if std::mem::take(&mut self.is_changing) {
                return Err(self.place.lost());
            }
            let mut client = connect(&self.place)?;
            let listen = client.batch_execute(&format!("LISTEN {CHANNEL}"));
            listen.map_err(|e| self.place.error(&e))?;
            self.client = Some(client);
            self.is_stale = true;
        }
        let Some(client) = &mut self.client else { return Err(self.place.lost()) };
        work(client, &self.process).map_err(|e| match e {
            Failed::Postgres(e) => {
                // The state of a transaction that failed midway is unknown: the server ends it with the connection.
                self.client = None;
                self.place.error(&e)
            }
            Failed::Damaged(what) => Error::Damaged { path: self.place.shown.clone().into(), what },
        })
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.disconnect();
    }
}

/// Runs work that waits for the connection: on a thread of its own, because it may be called inside a tokio runtime.
fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Tells other processes which rows have changed.
fn notify(tx: &mut Transaction<'_>, process: &str, ids: &[String]) -> Result<(), postgres::Error> {
    let ids = if ids.len() <= IDS_MAX { ids } else { &[] };
    let payload =
        std::iter::once(process).chain(ids.iter().map(String::as_str)).collect::<Vec<_>>().join(" ");
    tx.execute("SELECT pg_notify($1, $2)", &[&CHANNEL, &payload]).map(drop)
}

impl Backend for Postgres {
    fn check(&mut self) -> Result<(), Error> {
        apart(|| self.with(|client, _| Ok(client.is_valid(VALID_WITHIN)?)))
    }

    fn add(&mut self, batch: &Batch) -> Result<Vec<(i64, Usd)>, Error> {
        apart(|| self.with(|client, process| add(client, process, batch)))
    }

    fn leases(&self) -> bool {
        true
    }

    fn lease(&mut self, key: KeyId, window: i64, wanted: Usd) -> Result<Usd, Error> {
        apart(|| self.with(|client, process| lease(client, process, key, window, wanted)))
    }

    fn renew(&mut self) -> Result<Vec<(KeyId, Usd)>, Error> {
        apart(|| self.with(renew))
    }

    fn prune(&mut self, now: Now, retention_days: u32) -> Result<(), Error> {
        let today = crate::calendar::day(now.unix);
        if self.pruned == Some(today) {
            return Ok(());
        }
        let before = today.saturating_sub(i64::from(retention_days));
        apart(|| {
            self.with(|client, _| {
                client.execute("DELETE FROM octet_usage WHERE day < $1", &[&before])?;
                client.execute("DELETE FROM octet_usage_tags WHERE day < $1", &[&before])?;
                client.execute(
                    "DELETE FROM octet_keys WHERE revoked < $1 AND id NOT IN (SELECT key FROM octet_usage)",
                    &[&before.saturating_mul(crate::calendar::DAY_S)],
                )?;
                client.execute("DELETE FROM octet_writers WHERE seen < now() - interval '7 days'", &[])?;
                client.execute("DELETE FROM octet_leases WHERE until < now()", &[])?;
                let old =
                    format!("DELETE FROM octet_responses WHERE created < now() - interval '{RESPONSES_FOR}'");
                client.execute(old.as_str(), &[])?;
                Ok(())
            })
        })?;
        self.pruned = Some(today);
        Ok(())
    }

    fn changes(&mut self) -> Result<Changes, Error> {
        apart(|| {
            let noticed = self.with(noticed)?;
            if self.is_stale || noticed.is_none() {
                let all = self.with(|client, _| rows(client.query(all_rows().as_str(), &[])?))?;
                self.is_stale = false;
                return Ok(Changes::All(all));
            }
            let ids = noticed.unwrap_or_default();
            if ids.is_empty() {
                return Ok(Changes::None);
            }
            let some = format!("SELECT {COLUMNS} FROM octet_keys WHERE id = ANY($1)");
            let found = self.with(|client, _| rows(client.query(some.as_str(), &[&ids])?))?;
            let known: Vec<KeyId> = found.iter().map(|row| KeyId::of(&row.hash)).collect();
            let gone = ids.iter().filter_map(|id| id.parse().ok()).filter(|id| !known.contains(id)).collect();
            Ok(Changes::Some(found, gone))
        })
    }

    fn insert(&mut self, rows: &[KeyRow]) -> Result<(), Error> {
        apart(|| {
            self.with(|client, process| {
                client.batch_execute("BEGIN")?;
                for row in rows {
                    put(client, row, true)?;
                }
                let ids: Vec<String> = rows.iter().map(|row| KeyId::of(&row.hash).to_string()).collect();
                let ids = if ids.len() <= IDS_MAX { &ids[..] } else { &[] };
                let payload = std::iter::once(process).chain(ids.iter().map(String::as_str));
                let payload = payload.collect::<Vec<_>>().join(" ");
                client.execute("SELECT pg_notify($1, $2)", &[&CHANNEL, &payload])?;
                client.batch_execute("COMMIT")?;
                Ok(())
            })
        })
    }

    fn begin(&mut self) -> Result<Vec<KeyRow>, Error> {
        let begun = apart(|| {
            self.with(|client, _| {
                client.batch_execute("BEGIN")?;
                client.execute("SELECT pg_advisory_xact_lock($1)", &[&(LOCK + 1)])?;
                // Spend that others add meanwhile must not be lost.
                let all = format!("{} FOR UPDATE", all_rows());
                rows(client.query(all.as_str(), &[])?)
            })
        });
        match &begun {
            Ok(_) => self.is_changing = true,
            Err(_) => self.disconnect(),
        }
        begun
    }

    fn commit(&mut self, changed: &[&KeyRow], gone: &[KeyId]) -> Result<(), Error> {
        let done = apart(|| {
            self.with(|client, process| {
                for row in changed {
                    put(client, row, false)?;
                }
                let mut ids: Vec<String> = gone.iter().map(ToString::to_string).collect();
                client.execute("DELETE FROM octet_keys WHERE id = ANY($1)", &[&ids])?;
                ids.extend(changed.iter().map(|row| KeyId::of(&row.hash).to_string()));
                let ids = if ids.len() <= IDS_MAX { &ids[..] } else { &[] };
                let payload = std::iter::once(process).chain(ids.iter().map(String::as_str));
                let payload = payload.collect::<Vec<_>>().join(" ");
                client.execute("SELECT pg_notify($1, $2)", &[&CHANNEL, &payload])?;
                client.batch_execute("COMMIT")?;
                Ok(())
            })
        });
        self.is_changing = false;
        done
    }

    fn rollback(&mut self) {
        let ended = apart(|| self.with(|client, _| Ok(client.batch_execute("ROLLBACK")?)));
        self.is_changing = false;
        if ended.is_err() {
            // The server ends it with the connection.
            self.disconnect();
        }
    }

    fn usage(&mut self, filter: &Filter) -> Result<Vec<UsageRow>, Error> {
        apart(|| self.with(|client, _| usage(client, filter)))
    }

    fn tags(&mut self, from_day: Option<i64>, to_day: Option<i64>) -> Result<Vec<TagRow>, Error> {
        let sql = "SELECT tag, sum(requests)::bigint, sum(input)::bigint, sum(output)::bigint, sum(cost)::bigint FROM octet_usage_tags \
                   WHERE day BETWEEN $1 AND $2 GROUP BY tag ORDER BY 5 DESC, tag";
        let (from, to) = (from_day.unwrap_or(i64::MIN), to_day.unwrap_or(i64::MAX));
        let row = |row: &Row| TagRow {
            tag: row.get(0),
            requests: row.get::<_, i64>(1).max(0).unsigned_abs(),
            input: row.get::<_, i64>(2).max(0).unsigned_abs(),
            output: row.get::<_, i64>(3).max(0).unsigned_abs(),
            cost: usd(row.get(4)),
        };
        apart(|| self.with(|client, _| Ok(client.query(sql, &[&from, &to])?.iter().map(row).collect())))
    }

    fn checkpoint(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// How long a connection may take to answer that it is alive.
const VALID_WITHIN: Duration = Duration::from_secs(2);

/// The ids of rows that others have changed; `None` if it may be all.
fn noticed(client: &mut Client, process: &str) -> Result<Option<Vec<String>>, Failed> {
    // Notices arrive with an answer.
    client.batch_execute("")?;
    let mut ids = Vec::new();
    let mut notices = client.notifications();
    let mut notices = notices.iter();
    while let Some(notice) = notices.next()? {
        let mut words = notice.payload().split(' ');
        if words.next() == Some(process) {
            continue;
        }
        let before = ids.len();
        ids.extend(words.map(str::to_string));
        if ids.len() == before {
            return Ok(None);
        }
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(Some(ids))
}

/// Adds a batch, unless that was done already.
fn add(client: &mut Client, process: &str, batch: &Batch) -> Result<Vec<(i64, Usd)>, Failed> {
    let mut tx = client.transaction()?;
    let is_new = tx.execute(
        "INSERT INTO octet_writers VALUES ($1, $2, now()) ON CONFLICT (process) DO UPDATE SET batch = $2, seen = now() \
         WHERE octet_writers.batch < $2",
        &[&process, &batch.number],
    )?;
    let ids: Vec<String> = batch.spent.iter().map(|(id, _)| id.to_string()).collect();
    if is_new > 0 {
        add_usage(&mut tx, &batch.used)?;
        add_tags(&mut tx, &batch.tags)?;
        add_spend(&mut tx, batch, &ids)?;
        shorten(&mut tx, process, &batch.leases)?;
        if !ids.is_empty() {
            notify(&mut tx, process, &ids)?;
        }
    }
    let sums = tx.query("SELECT id, window_start, spent FROM octet_keys WHERE id = ANY($1)", &[&ids])?;
    tx.commit()?;
    let sums: HashMap<String, (i64, Usd)> =
        sums.iter().map(|row| (row.get(0), (row.get(1), usd(row.get(2))))).collect();
    // A deleted key has no spend.
    Ok(batch.spent.iter().zip(&ids).map(|((_, own), id)| sums.get(id).copied().unwrap_or(*own)).collect())
}

fn add_usage(
    tx: &mut Transaction<'_>,
    used: &HashMap<crate::table::UsageKey, Counts>,
) -> Result<(), postgres::Error> {
    if used.is_empty() {
        return Ok(());
    }
    let mut used: Vec<_> = used.iter().collect();
    // In the same order everywhere, so that two processes do not wait for each other.
    used.sort_by_key(|(by, _)| (by.day, by.key, by.model.clone()));
    let days: Vec<i64> = used.iter().map(|(by, _)| by.day).collect();
    let keys: Vec<String> = used.iter().map(|(by, _)| by.key.to_string()).collect();
    let models: Vec<&str> = used.iter().map(|(by, _)| by.model.as_str()).collect();
    let numbers = |of: fn(&Counts) -> i64| used.iter().map(|(_, n)| of(n)).collect::<Vec<i64>>();
    tx.execute(
        "INSERT INTO octet_usage AS u SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], \
         $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[]) ON CONFLICT (day, key, model) DO UPDATE SET \
         requests = u.requests + excluded.requests, input = u.input + excluded.input, cached = u.cached + excluded.cached, \
         cache_written = u.cache_written + excluded.cache_written, output = u.output + excluded.output, cost = u.cost + excluded.cost",
        &[
            &days,
            &keys,
            &models,
            &numbers(|n| count(n.requests)),
            &numbers(|n| count(n.usage.input)),
            &numbers(|n| count(n.usage.cached)),
            &numbers(|n| count(n.usage.cache_written)),
            &numbers(|n| count(n.usage.output)),
            &numbers(|n| amount(n.cost)),
        ],
    )?;
    Ok(())
}

fn add_tags(tx: &mut Transaction<'_>, tags: &HashMap<(i64, String), Counts>) -> Result<(), postgres::Error> {
    if tags.is_empty() {
        return Ok(());
    }
    let mut tags: Vec<_> = tags.iter().collect();
    tags.sort_by_key(|(by, _)| *by);
    let days: Vec<i64> = tags.iter().map(|((day, _), _)| *day).collect();
    let names: Vec<&str> = tags.iter().map(|((_, tag), _)| tag.as_str()).collect();
    let numbers = |of: fn(&Counts) -> i64| tags.iter().map(|(_, n)| of(n)).collect::<Vec<i64>>();
    tx.execute(
        "INSERT INTO octet_usage_tags AS u SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], \
         $6::bigint[]) ON CONFLICT (day, tag) DO UPDATE SET requests = u.requests + excluded.requests, \
         input = u.input + excluded.input, output = u.output + excluded.output, cost = u.cost + excluded.cost",
        &[
            &days,
            &names,
            &numbers(|n| count(n.requests)),
            &numbers(|n| count(n.usage.input)),
            &numbers(|n| count(n.usage.output)),
            &numbers(|n| amount(n.cost)),
        ],
    )?;
    Ok(())
}

/// Adds spend as `table::add_spend` does for SQLite: in the period that the row is in, or in a new one, or, if the row's period lies ahead
/// of the clock, in the one before.
fn add_spend(tx: &mut Transaction<'_>, batch: &Batch, ids: &[String]) -> Result<(), postgres::Error> {
    if ids.is_empty() {
        return Ok(());
    }
    let windows: Vec<i64> = batch.spent.iter().map(|(_, (window, _))| *window).collect();
    let costs: Vec<i64> = batch.spent.iter().map(|(_, (_, cost))| amount(*cost)).collect();
    tx.execute("SELECT 1 FROM octet_keys WHERE id = ANY($1) ORDER BY id FOR UPDATE", &[&ids])?;
    tx.execute(
        "UPDATE octet_keys k SET \
         window_start = CASE WHEN v.start < k.window_start AND $4 < k.window_start THEN v.start \
                             ELSE greatest(k.window_start, v.start) END, \
         spent = CASE WHEN v.start < k.window_start AND $4 < k.window_start \
                      THEN k.spent + v.cost + CASE WHEN k.before_window = v.start THEN k.before_spent ELSE 0 END \
                      WHEN k.window_start < v.start THEN v.cost ELSE k.spent + v.cost END, \
         before_spent = CASE WHEN v.start < k.window_start AND $4 < k.window_start THEN NULL \
                             WHEN k.window_start < v.start THEN k.spent ELSE k.before_spent END, \
         before_window = CASE WHEN v.start < k.window_start AND $4 < k.window_start THEN NULL \
                              WHEN k.window_start < v.start THEN k.window_start ELSE k.before_window END \
         FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS v (id, start, cost) WHERE k.id = v.id",
        &[&ids, &windows, &costs, &batch.unix],
    )?;
    Ok(())
}
