//! Responses that clients asked to store, in PostgreSQL: what one process stores, any other continues.
//!
//! There is one connection, over which requests do not wait for each other. After a failure it is opened again, not at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio_postgres::Client;

use crate::Error;
use crate::postgres_connect::{Place, connect_async};

/// After a failure the database is not asked for this long, so that requests do not wait for it in vain.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A stored response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseRow {
    /// Its id.
    pub id: String,
    /// The id of the key of its client.
    pub owner: Option<String>,
    /// The number of messages before the answer.
    pub input_len: u64,
    /// The conversation with the answer, as the server writes it.
    pub conversation: Vec<u8>,
    /// The answer as it was sent.
    pub body: Vec<u8>,
}

/// All stored responses of a database.
pub struct Responses {
    place: Place,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    client: Option<Arc<Client>>,
    failed: Option<(Instant, String)>,
}

impl std::fmt::Debug for Responses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Responses").field("place", &self.place.shown).finish_non_exhaustive()
    }
}

impl Responses {
    /// The responses in the database at this address, whose tables [`Store::connect`](crate::Store::connect) has created. Does not connect
    /// yet.
    ///
    /// # Errors
    /// If the address cannot be understood.
    pub fn new(url: &str) -> Result<Self, Error> {
        Ok(Self { place: Place::parse(url)?, state: Mutex::default() })
    }

    async fn client(&self) -> Result<Arc<Client>, Error> {
        let mut state = self.state.lock().await;
        if let Some(client) = state.client.as_ref().filter(|client| !client.is_closed()) {
            return Ok(Arc::clone(client));
        }
        if let Some((at, why)) = &state.failed
            && at.elapsed() < RETRY_AFTER
        {
            return Err(Error::Database { place: self.place.shown.clone(), what: why.clone() });
        }
        match connect_async(&self.place).await {
            Ok(client) => {
                let client = Arc::new(client);
                *state = State { client: Some(Arc::clone(&client)), failed: None };
                Ok(client)
            }
            Err(e) => {
                *state = State { client: None, failed: Some((Instant::now(), e.to_string())) };
                Err(e)
            }
        }
    }

    /// Stores a response. One that is stored with its id stays as it is.
    ///
    /// # Errors
    /// If the database cannot be written.
    pub async fn put(&self, row: &ResponseRow) -> Result<(), Error> {
        let input_len = i64::try_from(row.input_len).unwrap_or(i64::MAX);
        let put = "INSERT INTO octet_responses (id, owner, input_len, conversation, body) VALUES ($1, $2, $3, $4, $5) \
                   ON CONFLICT (id) DO NOTHING";
        let client = self.client().await?;
        let done =
            client.execute(put, &[&row.id, &row.owner, &input_len, &row.conversation, &row.body]).await;
        done.map(drop).map_err(|e| self.place.error(&e))
    }

    /// Which of these are stored, and the size of each in bytes. `owner`: only those of this key.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn sizes(&self, ids: &[&str], owner: Option<&str>) -> Result<Vec<(String, u64)>, Error> {
        let sizes = "SELECT id, (octet_length(conversation) + octet_length(body))::bigint FROM octet_responses \
                     WHERE id = ANY($1) AND ($2::text IS NULL OR owner = $2)";
        let rows = self.client().await?.query(sizes, &[&ids, &owner]).await;
        let rows = rows.map_err(|e| self.place.error(&e))?;
        Ok(rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1).max(0).unsigned_abs())).collect())
    }

    /// These responses, as far as they are stored. `owner`: only those of this key.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn get(&self, ids: &[&str], owner: Option<&str>) -> Result<Vec<ResponseRow>, Error> {
        let get = "SELECT id, owner, input_len, conversation, body FROM octet_responses \
                   WHERE id = ANY($1) AND ($2::text IS NULL OR owner = $2)";
        let rows = self.client().await?.query(get, &[&ids, &owner]).await;
        let rows = rows.map_err(|e| self.place.error(&e))?;
        let row = |row: &tokio_postgres::Row| ResponseRow {
            id: row.get(0),
            owner: row.get(1),
            input_len: row.get::<_, i64>(2).max(0).unsigned_abs(),
            conversation: row.get(3),
            body: row.get(4),
        };
        Ok(rows.iter().map(row).collect())
    }

    /// Deletes a response; false if there is none. `owner`: only one of this key.
    ///
    /// # Errors
    /// If the database cannot be written.
    pub async fn remove(&self, id: &str, owner: Option<&str>) -> Result<bool, Error> {
        let delete = "DELETE FROM octet_responses WHERE id = $1 AND ($2::text IS NULL OR owner = $2)";
        let gone = self.client().await?.execute(delete, &[&id, &owner]).await;
        Ok(gone.map_err(|e| self.place.error(&e))? > 0)
    }
}
