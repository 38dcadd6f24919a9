//! The chat page's conversations, by user, in one SQLite file. The page keeps a copy of them in the browser.
//!
//! An *item* is a conversation or a message: a JSON object with an id, which the page makes. Every change gets the next number of the
//! file, so that a page asks for what is new since the number that it knows ([`Store::changes`]). What is deleted stays as a mark without
//! content: a page that was away deletes it too, and cannot bring it back.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::limits::Limit;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use serde_json::Value;

/// Longest item in bytes: a message with attachments.
pub const ITEM_BYTES_MAX: usize = 24 << 20;
/// All items of a user in bytes.
pub const USER_BYTES_MAX: u64 = 4 << 30;
/// Bytes of items in one answer, if there is more than one item.
const PAGE_BYTES: usize = 4 << 20;
/// Items in one answer.
const PAGE_ITEMS: usize = 1000;
/// Longest id.
const ID_CHARS_MAX: usize = 64;
/// How long another process may keep the file locked.
const BUSY: Duration = Duration::from_secs(5);

/// Why something cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The change is not valid.
    #[error("{0}")]
    Invalid(String),
    /// The user's items take all the room that they may.
    #[error("the conversations of this user take more than {} GiB; delete some", USER_BYTES_MAX >> 30)]
    Full,
    /// The file.
    #[error("{path}: {why}")]
    File {
        /// The database.
        path: String,
        /// SQLite's message.
        why: String,
    },
}

/// What an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A conversation.
    Chat,
    /// A message of one.
    Message,
}

impl Kind {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Message => "message",
        }
    }

    /// The kind of a name.
    pub fn of(name: &str) -> Option<Self> {
        [Self::Chat, Self::Message].into_iter().find(|k| k.name() == name)
    }
}

/// An item, as it is now.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// What it is.
    pub kind: Kind,
    /// Its id.
    pub id: String,
    /// The conversation that it belongs to; a conversation's own id.
    pub chat: String,
    /// A JSON object, as text; `None` if it was deleted.
    pub value: Option<String>,
}

/// Changes since a number.
#[derive(Debug, Clone, PartialEq)]
pub struct Changes {
    /// The number to ask with next time.
    pub seq: i64,
    /// What changed, the oldest first.
    pub items: Vec<Item>,
    /// There is more: ask again at once.
    pub more: bool,
}

/// A user: whoever uses a server without keys, or a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User(String);

impl User {
    /// The only user of a server without keys.
    pub fn only() -> Self {
        Self("local".into())
    }

    /// The holder of a key; only its hash is kept.
    pub fn of_key(key: &str) -> Self {
        Self(format!("key-{}", &blake3::hash(key.as_bytes()).to_hex()[..32]))
    }

    /// The user's name in the file. It may be shown: it does not say the key.
    pub fn name(&self) -> &str {
        &self.0
    }
}

/// The file.
pub struct Store {
    path: PathBuf,
    db: Mutex<Connection>,
}

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS items (
        user TEXT NOT NULL, id TEXT NOT NULL, kind INTEGER NOT NULL, chat TEXT NOT NULL, seq INTEGER NOT NULL, value TEXT,
        PRIMARY KEY (user, id)
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX IF NOT EXISTS items_by_seq ON items (seq);
    CREATE INDEX IF NOT EXISTS items_by_user ON items (user, seq);
    CREATE INDEX IF NOT EXISTS items_by_chat ON items (user, chat);";

impl Store {
    /// Opens the file, or makes it and its folder. On Unix only its owner may read it.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |why: String| Error::File { path: path.display().to_string(), why };
        if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|e| failed(e.to_string()))?;
        }
        make_private(path).map_err(|e| failed(e.to_string()))?;
        let open = || -> rusqlite::Result<Connection> {
            let db = Connection::open(path)?;
            db.busy_timeout(BUSY)?;
            // The file may have been changed by others: it must not decide how much memory is allocated.
            db.set_limit(Limit::SQLITE_LIMIT_LENGTH, i32::try_from(2 * ITEM_BYTES_MAX).unwrap_or(i32::MAX))?;
            db.pragma_update(None, "journal_mode", "WAL")?;
            db.pragma_update(None, "synchronous", "NORMAL")?;
            db.pragma_update(None, "secure_delete", "ON")?;
            db.execute_batch(SCHEMA)?;
            Ok(db)
        };
        let db = open().map_err(|e| failed(e.to_string()))?;
        Ok(Self { path: path.to_path_buf(), db: Mutex::new(db) })
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn db(&self) -> MutexGuard<'_, Connection> {
        self.db.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, e: &rusqlite::Error) -> Error {
        Error::File { path: self.path.display().to_string(), why: e.to_string() }
    }

    /// What changed since `seq`; 0 gives everything.
    pub fn changes(&self, user: &User, seq: i64) -> Result<Changes, Error> {
        self.read(user, seq).map_err(|e| self.failed(&e))
    }

    fn read(&self, user: &User, since: i64) -> rusqlite::Result<Changes> {
        let db = self.db();
        let mut rows = db.prepare_cached(
            "SELECT kind, id, chat, value, seq FROM items WHERE user = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3",
        )?;
        let most = i64::try_from(PAGE_ITEMS + 1).unwrap_or(i64::MAX);
        let mut rows = rows.query(params![user.0, since, most])?;
        let mut out = Changes { seq: since, items: Vec::new(), more: false };
        let mut bytes = 0;
        while let Some(row) = rows.next()? {
            let value: Option<String> = row.get(3)?;
            bytes += value.as_ref().map_or(0, String::len);
            if !out.items.is_empty() && (bytes > PAGE_BYTES || out.items.len() == PAGE_ITEMS) {
                out.more = true;
                break;
            }
            let kind = if row.get::<_, i64>(0)? == 0 { Kind::Chat } else { Kind::Message };
            out.items.push(Item { kind, id: row.get(1)?, chat: row.get(2)?, value });
            out.seq = row.get(4)?;
        }
        Ok(out)
    }

    /// Keeps these items, all or none; one without a value is deleted, a conversation with its messages. What was deleted before stays so.
    /// Gives the number of the last change in the file.
    pub fn put(&self, user: &User, items: &[Item]) -> Result<i64, Error> {
        items.iter().try_for_each(check)?;
        let added: u64 = items.iter().filter_map(|i| i.value.as_ref()).map(|v| v.len() as u64).sum();
        let mut db = self.db();
        let mut write = || -> rusqlite::Result<Option<i64>> {
            let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let of_user = "SELECT coalesce(sum(octet_length(value)), 0) FROM items WHERE user = ?1";
            let kept: i64 = tx.query_row(of_user, [&user.0], |row| row.get(0))?;
            if added > 0 && u64::try_from(kept).unwrap_or(0) + added > USER_BYTES_MAX {
                return Ok(None);
            }
            let mut seq: i64 =
                tx.query_row("SELECT coalesce(max(seq), 0) FROM items", [], |row| row.get(0))?;
            for item in items {
                change(&tx, user, item, &mut seq)?;
            }
            tx.commit()?;
            Ok(Some(seq))
        };
        let seq = write().map_err(|e| self.failed(&e))?;
        seq.ok_or(Error::Full)
    }
}

fn change(tx: &Connection, user: &User, item: &Item, seq: &mut i64) -> rusqlite::Result<()> {
    let known = tx
        .prepare_cached("SELECT value IS NULL FROM items WHERE user = ?1 AND id = ?2")?
        .query_row(params![user.0, item.id], |row| row.get::<_, bool>(0))
        .optional()?;
    if known == Some(true) || chat_is_gone(tx, user, item)? {
        return Ok(());
    }
    if item.kind == Kind::Chat && item.value.is_none() {
        let mut messages =
            tx.prepare_cached("SELECT id FROM items WHERE user = ?1 AND chat = ?2 AND value IS NOT NULL")?;
        let ids: Vec<String> =
            messages.query_map(params![user.0, item.id], |row| row.get(0))?.collect::<Result<_, _>>()?;
        for id in ids {
            *seq += 1;
            let forget = "UPDATE items SET value = NULL, seq = ?3 WHERE user = ?1 AND id = ?2";
            tx.prepare_cached(forget)?.execute(params![user.0, id, *seq])?;
        }
    }
    *seq += 1;
    let kind = i64::from(item.kind == Kind::Message);
    tx.prepare_cached(
        "INSERT INTO items (user, id, kind, chat, seq, value) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (user, id) DO UPDATE SET kind = ?3, chat = ?4, seq = ?5, value = ?6",
    )?
    .execute(params![user.0, item.id, kind, item.chat, *seq, item.value])?;
    Ok(())
}

/// Whether an item is a message of a deleted conversation.
fn chat_is_gone(tx: &Connection, user: &User, item: &Item) -> rusqlite::Result<bool> {
    if item.kind == Kind::Chat {
        return Ok(false);
    }
    let gone = tx
        .prepare_cached("SELECT value IS NULL FROM items WHERE user = ?1 AND id = ?2")?
        .query_row(params![user.0, item.chat], |row| row.get::<_, bool>(0))
        .optional()?;
    Ok(gone == Some(true))
}

fn is_id(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= ID_CHARS_MAX
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// Checks an item that a page sent.
fn check(item: &Item) -> Result<(), Error> {
    let wrong = |what: String| Err(Error::Invalid(what));
    if !is_id(&item.id) || !is_id(&item.chat) {
        return wrong(format!("an id has 1 to {ID_CHARS_MAX} letters, digits, '_' and '-'"));
    }
    if item.kind == Kind::Chat && item.chat != item.id {
        return wrong("a conversation belongs to itself".into());
    }
    let Some(text) = &item.value else { return Ok(()) };
    if text.len() > ITEM_BYTES_MAX {
        return wrong(format!("'{}' is larger than {} MiB", item.id, ITEM_BYTES_MAX >> 20));
    }
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(map)) if map.get("id").and_then(Value::as_str) == Some(&item.id) => Ok(()),
        _ => wrong(format!("'{}' is not a JSON object with its id", item.id)),
    }
}

/// Makes the file if there is none, readable by its owner alone: what people write is private.
fn make_private(path: &Path) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    match options.open(path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(id: &str, value: Option<&str>) -> Item {
        let value = value.map(|text| format!(r#"{{"id": "{id}", "text": "{text}"}}"#));
        Item { kind: Kind::Chat, id: id.into(), chat: id.into(), value }
    }

    fn message(id: &str, chat: &str, value: Option<&str>) -> Item {
        let value = value.map(|text| format!(r#"{{"id": "{id}", "text": "{text}"}}"#));
        Item { kind: Kind::Message, id: id.into(), chat: chat.into(), value }
    }

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("new/x.db")).unwrap();
        (folder, store)
    }

    fn ids(store: &Store, user: &User, seq: i64) -> Vec<(String, bool)> {
        store.changes(user, seq).unwrap().items.into_iter().map(|i| (i.id, i.value.is_some())).collect()
    }

    #[test]
    fn what_one_page_keeps_another_reads() {
        let (folder, store) = store();
        let me = User::only();
        let seq = store.put(&me, &[chat("c", Some("a")), message("m", "c", Some("b"))]).unwrap();
        let all = store.changes(&me, 0).unwrap();
        assert_eq!((all.seq, all.more, all.items.len()), (seq, false, 2));
        assert_eq!(all.items[1], message("m", "c", Some("b")));
        store.put(&me, &[chat("c", Some("new"))]).unwrap();
        assert_eq!(ids(&store, &me, seq), [("c".to_string(), true)]);
        // The file is all that there is.
        drop(store);
        let again = Store::open(&folder.path().join("new/x.db")).unwrap();
        assert_eq!(again.changes(&me, 0).unwrap().items.len(), 2);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::metadata(again.path()).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0);
        }
    }

    #[test]
    fn users_do_not_see_each_other() {
        let (_folder, store) = store();
        let (a, b) = (User::of_key("sk-a"), User::of_key("sk-b"));
        store.put(&a, &[chat("c", Some("a"))]).unwrap();
        store.put(&b, &[chat("c", Some("b"))]).unwrap();
        assert_eq!(store.changes(&a, 0).unwrap().items, [chat("c", Some("a"))]);
        store.put(&b, &[chat("c", None)]).unwrap();
        assert_eq!(store.changes(&a, 0).unwrap().items, [chat("c", Some("a"))]);
        assert!(!a.name().contains("sk-a"));
    }

    #[test]
    fn what_is_deleted_stays_deleted() {
        let (_folder, store) = store();
        let me = User::only();
        let seq = store.put(&me, &[chat("c", Some("a")), message("m", "c", Some("b"))]).unwrap();
        store.put(&me, &[chat("c", None)]).unwrap();
        assert_eq!(ids(&store, &me, seq), [("m".to_string(), false), ("c".to_string(), false)]);
        // A page that was away meanwhile.
        store
            .put(&me, &[chat("c", Some("a")), message("m", "c", Some("b")), message("n", "c", Some("d"))])
            .unwrap();
        assert!(ids(&store, &me, 0).iter().all(|(_, is_there)| !is_there));
    }

    #[test]
    fn long_lists_come_in_parts() {
        let (_folder, store) = store();
        let me = User::only();
        let all: Vec<Item> = (0..2500).map(|i| chat(&format!("c{i}"), Some("x"))).collect();
        store.put(&me, &all).unwrap();
        let (mut seq, mut got) = (0, Vec::new());
        loop {
            let part = store.changes(&me, seq).unwrap();
            assert!(part.items.len() <= PAGE_ITEMS);
            seq = part.seq;
            got.extend(part.items);
            if !part.more {
                break;
            }
        }
        assert_eq!(got, all);
    }

    #[test]
    fn what_is_not_valid_changes_nothing() {
        let (_folder, store) = store();
        let me = User::only();
        let long = "x".repeat(65);
        for wrong in [
            chat("", Some("a")),
            chat("a b", Some("a")),
            chat(&long, Some("a")),
            Item { chat: "d".into(), ..chat("c", Some("a")) },
            Item { value: Some("[]".into()), ..chat("c", None) },
            Item { value: Some(r#"{"id": "other"}"#.into()), ..chat("c", None) },
            Item { value: Some("{".into()), ..chat("c", None) },
        ] {
            let refused = store.put(&me, &[chat("ok", Some("a")), wrong.clone()]);
            assert!(matches!(refused, Err(Error::Invalid(_))), "{wrong:?}");
        }
        assert!(ids(&store, &me, 0).is_empty());
    }

    #[test]
    fn a_file_of_something_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        std::fs::write(
            &path,
            "this is no database, whatever its name says, and it is long enough to see that",
        )
        .unwrap();
        assert!(matches!(Store::open(&path), Err(Error::File { .. })));
    }
}
