//! Keys and usage in one SQLite file. Owned by `inner`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use rusqlite::{Connection, TransactionBehavior};

use crate::backend::{Backend, Batch, Changes};
use crate::error::from_sqlite;
use crate::files::{FILES, Identity, beside, identity};
use crate::options::Options;
use crate::table::{self, Filter, KeyRow, Unread, UsageRow};
use crate::tags::{self, TagRow};
use crate::{Error, KeyId, Now, Usd, calendar, schema};

/// An open file.
pub(crate) struct File {
    path: PathBuf,
    options: Options,
    db: Connection,
    /// SQLite's count of other processes' changes when keys were last read.
    data_version: i64,
    /// Day on which old usage was last deleted.
    pruned: Option<i64>,
    /// The clock when it was last as expected, and until which second nothing is deleted because it was not.
    seen: Option<Now>,
    unsteady_until: u64,
    /// The identity of the opened files.
    opened: [Option<Identity>; FILES.len()],
    /// When the next check for readability is due.
    look_at: Instant,
    /// The file itself, for checks; closed after `db`.
    raw: std::fs::File,
}

/// How far the calendar may differ from the time that has passed: a machine may sleep meanwhile.
const JUMP_MAX_S: u64 = 3 * 86_400;
/// After a jump of the calendar, how long no usage is deleted: a wrong date is often corrected soon.
const JUMP_WAIT_S: u64 = 6 * 3600;
/// Checks take at most one part in this many of the time.
const LOOK_SHARE: u32 = 200;

impl File {
    /// Opens the file; reads no keys yet.
    pub fn open(path: &Path, options: &Options) -> Result<Self, Error> {
        let (db, raw) = schema::open(path, options.bytes_max, options.lock_timeout)?;
        Ok(Self {
            path: path.to_path_buf(),
            options: options.clone(),
            db,
            data_version: -1,
            pruned: None,
            seen: None,
            unsteady_until: 0,
            opened: FILES.map(|end| identity(&beside(path, end))),
            look_at: Instant::now() + options.check_every,
            raw,
        })
    }

    /// Whether the calendar can be trusted with deleting old usage: it has not jumped lately.
    fn is_steady(&mut self, now: Now) -> bool {
        if let Some(seen) = self.seen.replace(now) {
            let passed = now.second.saturating_sub(seen.second);
            let expected = seen.unix.saturating_add_unsigned(passed);
            if now.unix.abs_diff(expected) > JUMP_MAX_S {
                tracing::warn!(
                    "the system's clock has jumped: no old usage is deleted for {} hours",
                    JUMP_WAIT_S / 3600
                );
                self.unsteady_until = now.second.saturating_add(JUMP_WAIT_S);
            }
        }
        now.second >= self.unsteady_until
    }

    fn sqlite(&self, e: rusqlite::Error) -> Error {
        from_sqlite(&self.path, self.options.bytes_max, e)
    }

    fn unread(&self, e: Unread) -> Error {
        match e {
            Unread::Sqlite(e) => self.sqlite(e),
            Unread::Damaged(what) => Error::Damaged { path: self.path.clone(), what },
        }
    }

    /// SQLite can write to a deleted file, and those writes would be lost.
    fn is_there(&self) -> Result<(), Error> {
        let paths = FILES.map(|end| beside(&self.path, end));
        let gone = paths.into_iter().zip(self.opened).find(|(path, opened)| identity(path) != *opened);
        gone.map_or(Ok(()), |(path, _)| Err(Error::Gone { path }))
    }

    /// If the file was overwritten, SQLite continues from memory, and what it writes cannot be read.
    fn is_whole(&mut self) -> Result<(), Error> {
        let began = Instant::now();
        if began < self.look_at {
            return Ok(());
        }
        // A damaged file is checked again next time.
        if let Some(what) = schema::damage_on_disk(&self.path, &self.raw, self.options.lock_timeout) {
            return Err(Error::Damaged { path: self.path.clone(), what });
        }
        let now = Instant::now();
        let every = self.options.check_every;
        self.look_at = if every.is_zero() { now } else { now + every.max((now - began) * LOOK_SHARE) };
        Ok(())
    }
}

impl Backend for File {
    fn check(&mut self) -> Result<(), Error> {
        self.is_there()?;
        self.is_whole()
    }

    fn add(&mut self, batch: &Batch) -> Result<Vec<(i64, Usd)>, Error> {
        let write = |db: &mut Connection| {
            let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let used: Vec<_> = batch.used.iter().collect();
            let sums = table::add(&tx, batch.unix, &used, &batch.spent)?;
            tags::add(&tx, &batch.tags)?;
            tx.commit()?;
            Ok(sums)
        };
        write(&mut self.db).map_err(|e| self.sqlite(e))
    }

    fn prune(&mut self, now: Now, retention_days: u32) -> Result<(), Error> {
        let today = calendar::day(now.unix);
        if self.is_steady(now) && self.pruned != Some(today) {
            let before = today.saturating_sub(i64::from(retention_days));
            table::prune(&self.db, before).map_err(|e| self.sqlite(e))?;
            self.pruned = Some(today);
        }
        Ok(())
    }

    fn changes(&mut self) -> Result<Changes, Error> {
        let version = self.db.pragma_query_value(None, "data_version", |row| row.get(0));
        let version: i64 = version.map_err(|e| self.sqlite(e))?;
        if version == self.data_version {
            return Ok(Changes::None);
        }
        let rows = table::keys(&self.db).map_err(|e| self.unread(e))?;
        self.data_version = version;
        Ok(Changes::All(rows))
    }

    fn begin(&mut self) -> Result<Vec<KeyRow>, Error> {
        self.db.execute_batch("BEGIN IMMEDIATE").map_err(|e| self.sqlite(e))?;
        table::keys(&self.db).map_err(|e| {
            self.rollback();
            self.unread(e)
        })
    }

    fn commit(&mut self, rows: &[&KeyRow], gone: &[KeyId]) -> Result<(), Error> {
        let write = |db: &Connection| -> rusqlite::Result<()> {
            rows.iter().try_for_each(|row| table::put(db, row))?;
            gone.iter().try_for_each(|id| table::delete(db, *id))?;
            db.execute_batch("COMMIT")
        };
        write(&self.db).map_err(|e| {
            self.rollback();
            self.sqlite(e)
        })
    }

    fn rollback(&mut self) {
        // An error may have ended it.
        if !self.db.is_autocommit()
            && let Err(e) = self.db.execute_batch("ROLLBACK")
        {
            tracing::error!(path = %self.path.display(), "a change cannot be undone: {e}");
        }
    }

    fn usage(&mut self, filter: &Filter) -> Result<Vec<UsageRow>, Error> {
        table::usage(&self.db, filter).map_err(|e| self.unread(e))
    }

    fn tags(&mut self, from_day: Option<i64>, to_day: Option<i64>) -> Result<Vec<TagRow>, Error> {
        tags::read(&self.db, from_day, to_day).map_err(|e| self.sqlite(e))
    }

    /// Moves the log into the file.
    fn checkpoint(&mut self) -> Result<(), Error> {
        // A busy log is no error: the process that reads it moves the rest.
        let moved = self.db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        moved.map_err(|e| self.sqlite(e))
    }
}
