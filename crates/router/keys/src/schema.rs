//! Opening the file: is it ours, of a version that we know, whole, and writable? Called by `store`.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use crate::Error;
use crate::error::from_sqlite;

/// "OCTE": tells our files from those of other programs, which are not touched.
const APPLICATION_ID: i64 = 0x4f43_5445;

/// What brings a file from version N to N + 1. Steps are only ever added.
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
];

const VERSION: i64 = MIGRATIONS.len() as i64;
/// Longest text or blob that is read or written: a thousand models of 512 bytes as JSON fit.
const VALUE_BYTES_MAX: i32 = 4 << 20;

/// Opens the file, makes it if it is not there, and brings it to our version.
///
/// The file comes with its connection, for [`damage_on_disk`], and has to be closed after it: to close any handle of a file gives back
/// all locks that the process has on it.
pub fn open(path: &Path, bytes_max: u64, busy: Duration) -> Result<(Connection, File), Error> {
    let file = prepare(path)?;
    let db = connect(path, bytes_max, busy).map_err(|e| match e {
        Failed::Sqlite(e) => from_sqlite(path, bytes_max, e),
        Failed::Said(e) => e,
    })?;
    Ok((db, file))
}

/// How an SQLite database begins.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// The first bytes of a file, as many as a database begins with.
fn beginning(mut file: &File) -> std::io::Result<Vec<u8>> {
    let mut magic = Vec::new();
    file.rewind()?;
    file.take(MAGIC.len() as u64).read_to_end(&mut magic)?;
    Ok(magic)
}

/// Looks at the file before SQLite does: that would take a short text for an empty database, and write over it.
fn prepare(path: &Path) -> Result<File, Error> {
    let refused = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            Error::ReadOnly { path: path.to_path_buf() }
        }
        _ => Error::Unopened { path: path.to_path_buf(), why: e.to_string() },
    };
    match std::fs::metadata(path) {
        Ok(m) if !m.is_file() => {
            let why = "it is no regular file".into();
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
        // Who spent how much is nobody else's business.
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    let file = options.open(path).map_err(refused)?;
    let magic = beginning(&file).map_err(refused)?;
    if magic.is_empty() || magic == MAGIC {
        return Ok(file);
    }
    Err(Error::NotOurs { path: path.to_path_buf(), why: "it is no SQLite database".into() })
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
    let said = |e| Err(Failed::Said(e));
    let path = path.to_path_buf();
    let version = owned_version(&db)?;
    match version {
        None => return said(Error::NotOurs { path, why: "it is another program's SQLite database".into() }),
        Some(found) if found > VERSION => return said(Error::Newer { path, found, known: VERSION }),
        Some(_) => {}
    }
    let pages = bytes_max / number(&db, "page_size")?.max(512).unsigned_abs();
    db.pragma_update(None, "max_page_count", i64::try_from(pages.max(1)).unwrap_or(i64::MAX))?;
    let journal: String = db.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    if journal != "wal" {
        let why = format!("it needs a write-ahead log, and this file system gives it a '{journal}' journal");
        return said(Error::Unopened { path, why });
    }
    db.pragma_update(None, "journal_size_limit", 4 << 20)?;
    // One transaction a second can wait for the disk: a power cut loses no more than a crash does.
    db.pragma_update(None, "synchronous", "full")?;
    migrate(&mut db)?;
    let damage = damage(&db)?;
    if let Some(what) = damage {
        return said(Error::Damaged { path, what });
    }
    Ok(db)
}

/// A connection that trusts the file no more than it has to.
fn guarded(path: &Path, access: OpenFlags, busy: Duration) -> rusqlite::Result<Connection> {
    let db = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    db.busy_timeout(busy)?;
    // The file may be of somebody else's making: it runs no code of its own, and no cell is believed unchecked.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    db.set_limit(Limit::SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)?;
    db.pragma_update(None, "cell_size_check", true)?;
    Ok(db)
}

/// What is wrong with the file as it lies there, for whoever opens it next. A connection that has been open for a while does not notice:
/// it has in memory what it read before. What cannot be looked at now (a lock, too many open files) is no damage.
pub fn damage_on_disk(path: &Path, file: &File, busy: Duration) -> Option<String> {
    match beginning(file) {
        // SQLite would take it for a new database, and delete the log that others write.
        Ok(magic) if magic.is_empty() => return Some("it is empty".into()),
        // The log may have the page; whoever opens the file looks here first.
        Ok(magic) if magic != MAGIC => return Some("its beginning was written over".into()),
        _ => {}
    }
    let look = || {
        let db = guarded(path, OpenFlags::SQLITE_OPEN_READ_ONLY, busy)?;
        match owned_version(&db)? {
            None => Ok(Some("it is no database of keys any more".into())),
            Some(_) => damage(&db),
        }
    };
    look().unwrap_or_else(|e: rusqlite::Error| match e.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt | ErrorCode::TooBig) => Some(e.to_string()),
        Some(_) => None,
        // A value that is not what it should be.
        None => Some(e.to_string()),
    })
}

/// The schema's version of a file that is ours or empty, else `None`.
fn owned_version(db: &Connection) -> rusqlite::Result<Option<i64>> {
    let (id, version) = (number(db, "application_id")?, number(db, "user_version")?);
    let objects: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let is_empty = id == 0 && version == 0 && objects == 0;
    Ok((is_empty || id == APPLICATION_ID && version > 0).then_some(version))
}

/// Brings the schema to our version, all of it or none. Opening so is also the test that the file can be written.
fn migrate(db: &mut Connection) -> rusqlite::Result<()> {
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Again, under the lock: another process may have been quicker.
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

/// What is wrong with the file, if anything is.
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
