//! Opens the file, and checks that it is ours, of a known version, undamaged, and writable.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use crate::Error;
use crate::error::from_sqlite;

/// "OCTE": marks our files; those of other programs are not changed.
const APPLICATION_ID: i64 = 0x4f43_5445;

/// The migrations from version N to N + 1. Existing ones never change.
const MIGRATIONS: &[&str] = &[
    "
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    hash BLOB NOT NULL UNIQUE,
    name TEXT NOT NULL,
    models TEXT NOT NULL,
    rpm INTEGER,
    tpm INTEGER,
    max_parallel INTEGER,
    budget INTEGER,
    period TEXT,
    created INTEGER NOT NULL,
    expires INTEGER,
    revoked INTEGER,
    window_start INTEGER NOT NULL,
    spent INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE usage (
    day INTEGER NOT NULL,
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    requests INTEGER NOT NULL,
    input INTEGER NOT NULL,
    cached INTEGER NOT NULL,
    cache_written INTEGER NOT NULL,
    output INTEGER NOT NULL,
    cost INTEGER NOT NULL,
    PRIMARY KEY (day, key, model)
) STRICT, WITHOUT ROWID;
",
    "
CREATE TABLE usage_tags (
    day INTEGER NOT NULL,
    tag TEXT NOT NULL,
    requests INTEGER NOT NULL,
    input INTEGER NOT NULL,
    output INTEGER NOT NULL,
    cost INTEGER NOT NULL,
    PRIMARY KEY (day, tag)
) STRICT, WITHOUT ROWID;
",
    "
ALTER TABLE keys ADD COLUMN kind TEXT;
ALTER TABLE keys ADD COLUMN user TEXT;
ALTER TABLE keys ADD COLUMN team TEXT;
ALTER TABLE keys ADD COLUMN blocked INTEGER NOT NULL DEFAULT 0;
ALTER TABLE keys ADD COLUMN members TEXT;
ALTER TABLE keys ADD COLUMN about TEXT;
",
    "
CREATE TABLE IF NOT EXISTS ended (
    key TEXT PRIMARY KEY,
    window_start INTEGER NOT NULL,
    spent INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
",
];

const VERSION: i64 = MIGRATIONS.len() as i64;
/// Maximum size of a text or blob: a thousand models of 512 bytes as JSON.
const VALUE_BYTES_MAX: i32 = 4 << 20;

/// Opens the file, creates it if necessary, and migrates it.
///
/// The file is returned with its connection, for [`damage_on_disk`], and must be closed after it: closing any handle of a file releases
/// all locks of the process on it.
pub fn open(path: &Path, bytes_max: u64, busy: Duration) -> Result<(Connection, File), Error> {
    let file = prepare(path)?;
    let db = connect(path, bytes_max, busy).map_err(|e| match e {
        Failed::Sqlite(e) => from_sqlite(path, bytes_max, e),
        Failed::Said(e) => e,
    })?;
    Ok((db, file))
}

/// The first bytes of an SQLite database.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// The first bytes of a file: the length of [`MAGIC`].
fn beginning(mut file: &File) -> std::io::Result<Vec<u8>> {
    let mut magic = Vec::new();
    file.rewind()?;
    file.take(MAGIC.len() as u64).read_to_end(&mut magic)?;
    Ok(magic)
}

/// Checks the file before SQLite opens it: SQLite takes a short text for an empty database, and overwrites it.
fn prepare(path: &Path) -> Result<File, Error> {
    let refused = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            Error::ReadOnly { path: path.to_path_buf() }
        }
        _ => Error::Unopened { path: path.to_path_buf(), why: e.to_string() },
    };
    match std::fs::metadata(path) {
        Ok(m) if !m.is_file() => {
            let why = "it is not a regular file".into();
            return Err(Error::Unopened { path: path.to_path_buf(), why });
        }
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(refused(e)),
    }
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    {
        // Only the owner may read the spend of keys.
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    let file = options.open(path).map_err(refused)?;
    let magic = beginning(&file).map_err(refused)?;
    if magic.is_empty() || magic == MAGIC {
        return Ok(file);
    }
    Err(Error::NotOurs { path: path.to_path_buf(), why: "it is not an SQLite database".into() })
}

enum Failed {
    Sqlite(rusqlite::Error),
    Said(Error),
}

impl From<rusqlite::Error> for Failed {
    fn from(e: rusqlite::Error) -> Self {
        Self::Sqlite(e)
    }
}

fn number(db: &Connection, pragma: &str) -> rusqlite::Result<i64> {
    db.pragma_query_value(None, pragma, |row| row.get(0))
}

fn connect(path: &Path, bytes_max: u64, busy: Duration) -> Result<Connection, Failed> {
    let mut db = guarded(path, OpenFlags::SQLITE_OPEN_READ_WRITE, busy)?;
    let refused = |e| Err(Failed::Said(e));
    let path = path.to_path_buf();
    let version = owned_version(&db)?;
    match version {
        None => {
            return refused(Error::NotOurs { path, why: "it is another program's SQLite database".into() });
        }
        Some(found) if found > VERSION => return refused(Error::Newer { path, found, known: VERSION }),
        Some(_) => {}
    }
    let pages = bytes_max / number(&db, "page_size")?.max(512).unsigned_abs();
    db.pragma_update(None, "max_page_count", i64::try_from(pages.max(1)).unwrap_or(i64::MAX))?;
    let journal: String = db.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    if journal != "wal" {
        let why = format!("it needs a write-ahead log, and this file system gives it a '{journal}' journal");
        return refused(Error::Unopened { path, why });
    }
    db.pragma_update(None, "journal_size_limit", 4 << 20)?;
    // There is one transaction per second, which can wait for the disk: a power cut loses no more than a crash.
    db.pragma_update(None, "synchronous", "full")?;
    migrate(&mut db)?;
    let damage = damage(&db)?;
    if let Some(what) = damage {
        return refused(Error::Damaged { path, what });
    }
    Ok(db)
}

/// A connection to an untrusted file.
fn guarded(path: &Path, access: OpenFlags, busy: Duration) -> rusqlite::Result<Connection> {
    let db = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    db.busy_timeout(busy)?;
    // The file may come from anyone: it must not run code, and every cell is checked.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    db.set_limit(Limit::SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)?;
    db.pragma_update(None, "cell_size_check", true)?;
    Ok(db)
}

/// Damage of the file on disk, which the next open would find. An open connection does not notice it:
/// it has the pages in memory. A file that cannot be checked now (a lock, too many open files) is not damaged.
pub fn damage_on_disk(path: &Path, file: &File, busy: Duration) -> Option<String> {
    match beginning(file) {
        // SQLite would take it for a new database, and delete the log of other processes.
        Ok(magic) if magic.is_empty() => return Some("it is empty".into()),
        // The log may contain the page, but SQLite reads this one first when it opens the file.
        Ok(magic) if magic != MAGIC => return Some("its beginning was written over".into()),
        _ => {}
    }
    let look = || {
        let db = guarded(path, OpenFlags::SQLITE_OPEN_READ_ONLY, busy)?;
        match owned_version(&db)? {
            None => Ok(Some("it is no longer a key database".into())),
            Some(_) => damage(&db),
        }
    };
    look().unwrap_or_else(|e: rusqlite::Error| match e.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt | ErrorCode::TooBig) => Some(e.to_string()),
        Some(_) => None,
        // A value of the wrong type.
        None => Some(e.to_string()),
    })
}

/// The schema's version of our file or an empty one, else `None`.
fn owned_version(db: &Connection) -> rusqlite::Result<Option<i64>> {
    let (id, version) = (number(db, "application_id")?, number(db, "user_version")?);
    let objects: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let is_empty = id == 0 && version == 0 && objects == 0;
    Ok((is_empty || id == APPLICATION_ID && version > 0).then_some(version))
}

/// Migrates the schema, completely or not at all. This also checks that the file can be written.
fn migrate(db: &mut Connection) -> rusqlite::Result<()> {
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Again, under the lock: another process may have migrated it.
    let version = number(&tx, "user_version")?;
    for step in MIGRATIONS.iter().skip(usize::try_from(version).unwrap_or(usize::MAX)) {
        tx.execute_batch(step)?;
    }
    if version < VERSION {
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
        tx.pragma_update(None, "user_version", VERSION)?;
    }
    tx.execute("INSERT OR IGNORE INTO meta VALUES ('opened', 0)", [])?;
    tx.execute("UPDATE meta SET value = value + 1 WHERE name = 'opened'", [])?;
    tx.commit()
}

/// All tables, indexes, triggers and views.
fn objects(db: &Connection) -> rusqlite::Result<Vec<(String, String, Option<String>)>> {
    let mut statement = db.prepare("SELECT type, name, sql FROM sqlite_schema ORDER BY type, name")?;
    statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?.collect()
}

/// The file's damage, if there is any.
fn damage(db: &Connection) -> rusqlite::Result<Option<String>> {
    let model = Connection::open_in_memory()?;
    for step in MIGRATIONS {
        model.execute_batch(step)?;
    }
    let (ours, theirs) = (objects(&model)?, objects(db)?);
    if let Some((kind, name, _)) = theirs.iter().find(|o| !ours.contains(o)) {
        return Ok(Some(format!("it has a {kind} '{name}' that Octet did not make")));
    }
    if let Some((kind, name, _)) = ours.iter().find(|o| !theirs.contains(o)) {
        return Ok(Some(format!("its {kind} '{name}' is missing")));
    }
    let found: String = db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    Ok((found != "ok").then_some(found))
}
