//! Stored responses (unless `store` is false): in memory, the oldest evicted first, or in the database of keys.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use octet_api::core::Message;
use octet_api::openai::responses::{self, InputItems, PageQuery, bare};
use octet_api::{ApiError, ErrorKind};
use octet_keys::ResponseRow;
use serde_json::Value;

use crate::blocking::run_sized;
use crate::gateway::Caller;

/// Maximum number of responses.
const KEPT_MAX: usize = 512;
/// Maximum number of responses that one request may refer to, if they are in a database.
const REFERRED_MAX: usize = 256;
/// Approximate maximum size of all of them in memory, and of one in a database, in bytes.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// A stored response.
#[derive(Debug)]
pub struct KeptResponse {
    id: Arc<str>,
    /// The virtual key of its client; other keys cannot see it.
    owner: Option<Arc<str>>,
    /// The conversation so far, which a later request continues.
    pub conversation: Vec<Message>,
    /// The items of its messages before the answer.
    input: InputItems,
    /// The answer as it was sent.
    pub body: Vec<u8>,
    /// Approximate size of both in bytes.
    pub bytes: usize,
}

/// A response to store.
#[derive(Debug, Default)]
pub struct NewResponse {
    /// The answer's id.
    pub id: String,
    /// The virtual key of its client.
    pub owner: Option<Arc<str>>,
    /// The conversation with the answer at its end.
    pub conversation: Vec<Message>,
    /// The number of messages before the answer.
    pub input_len: usize,
    /// The answer as it was sent.
    pub body: Vec<u8>,
}

/// Responses that a request refers to, by their ids without a prefix.
pub type KeptResponses = HashMap<String, Arc<KeptResponse>>;

/// All stored responses: in a database that several processes share, or in this process.
#[derive(Debug, Default)]
pub struct ResponseStore {
    /// Without a database, all; with one, those that could not be written there.
    memory: Mutex<VecDeque<Arc<KeptResponse>>>,
    database: Option<octet_keys::Responses>,
}

impl ResponseStore {
    /// Responses in a database.
    pub fn new(database: Option<octet_keys::Responses>) -> Self {
        Self { memory: Mutex::default(), database }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<KeptResponse>>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a response. When this returns, other processes can read it.
    pub async fn put(&self, new: NewResponse) {
        match &self.database {
            None => self.put_here(new),
            Some(database) => {
                let bytes = new.body.len();
                let written = run_sized(bytes, move || row(&new).map(|row| (row, new))).await;
                let Ok(Some((row, new))) = written else { return };
                if let Err(e) = database.put(&row).await {
                    tracing::warn!("a response is stored in this process only: {e}");
                    self.put_here(new);
                }
            }
        }
    }

    fn put_here(&self, new: NewResponse) {
        let NewResponse { id, owner, conversation, input_len, body } = new;
        // The debug text is at least as long as the data it shows.
        let mut shown = Length(0);
        for message in &conversation {
            let _ = write!(shown, "{message:?}");
        }
        let bytes = body.len() + shown.0;
        if bytes > KEPT_BYTES_MAX {
            return;
        }
        let input = InputItems::new(conversation.get(..input_len).unwrap_or_default());
        let id = bare(&id).into();
        let mut all = self.lock();
        all.push_back(Arc::new(KeptResponse { id, owner, conversation, input, body, bytes }));
        while all.len() > KEPT_MAX || all.iter().map(|r| r.bytes).sum::<usize>() > KEPT_BYTES_MAX {
            all.pop_front();
        }
    }

    /// Whether nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.database.is_none() && self.lock().is_empty()
    }

    /// Those of these responses that are stored and that `caller` may see. `take` gets the size of those that are read from the database,
    /// before.
    ///
    /// # Errors
    /// If the database cannot be read, there are too many, or `take` refuses.
    pub async fn find(
        &self,
        ids: &BTreeSet<String>,
        caller: &Caller,
        take: impl FnOnce(usize) -> Result<(), ApiError> + Send,
    ) -> Result<KeptResponses, ApiError> {
        let mut found = KeptResponses::new();
        for kept in self.lock().iter().filter(|r| r.is_visible(caller) && ids.contains(&*r.id)) {
            // Of two with one id, which only a careless provider gives, the first counts.
            found.entry(kept.id.to_string()).or_insert_with(|| Arc::clone(kept));
        }
        let Some(database) = self.database.as_ref().filter(|_| found.len() < ids.len()) else {
            return Ok(found);
        };
        if ids.len() > REFERRED_MAX {
            let what = format!("the request refers to {} responses; {REFERRED_MAX} are the most", ids.len());
            return Err(ApiError::new(ErrorKind::InvalidRequest, what));
        }
        let missing: Vec<&str> =
            ids.iter().map(String::as_str).filter(|id| !found.contains_key(*id)).collect();
        let sizes = database.sizes(&missing, owner(caller)).await.map_err(unreadable)?;
        if sizes.is_empty() {
            return Ok(found);
        }
        let bytes = sizes.iter().map(|(_, bytes)| usize::try_from(*bytes).unwrap_or(usize::MAX));
        let bytes = bytes.fold(0usize, usize::saturating_add);
        take(bytes)?;
        let stored: Vec<&str> = sizes.iter().map(|(id, _)| id.as_str()).collect();
        let rows = database.get(&stored, owner(caller)).await.map_err(unreadable)?;
        let read = run_sized(bytes, move || rows.into_iter().map(kept).collect::<Result<Vec<_>, _>>());
        for kept in read.await?.map_err(unreadable)? {
            found.insert(kept.id.to_string(), Arc::new(kept));
        }
        Ok(found)
    }

    /// A response by id, if `caller` may see it.
    ///
    /// # Errors
    /// If the database cannot be read, or `take` refuses.
    pub async fn get(
        &self,
        id: &str,
        caller: &Caller,
        take: impl FnOnce(usize) -> Result<(), ApiError> + Send,
    ) -> Result<Option<Arc<KeptResponse>>, ApiError> {
        let id = bare(id).to_string();
        Ok(self.find(&BTreeSet::from([id.clone()]), caller, take).await?.remove(&id))
    }

    /// Deletes a response; false if there is none that `caller` may see.
    ///
    /// # Errors
    /// If the database cannot be written.
    pub async fn remove(&self, id: &str, caller: &Caller) -> Result<bool, ApiError> {
        let is_here = {
            let mut all = self.lock();
            let before = all.len();
            all.retain(|r| !r.is(id, caller));
            all.len() < before
        };
        let Some(database) = &self.database else { return Ok(is_here) };
        let is_there = database.remove(bare(id), owner(caller)).await.map_err(unreadable)?;
        Ok(is_here || is_there)
    }
}

/// The key whose responses a caller may see; `None` is all.
fn owner(caller: &Caller) -> Option<&str> {
    match caller {
        Caller::Trusted => None,
        Caller::Key(key) => Some(&key.id),
    }
}

fn unreadable(e: impl fmt::Display) -> ApiError {
    tracing::error!("stored responses cannot be read: {e}");
    let what = "stored responses cannot be read at the moment; try again";
    ApiError { retry_after_s: Some(1), ..ApiError::new(ErrorKind::Overloaded, what) }
}

/// A response as it is stored in a database; `None` if it is too long.
fn row(new: &NewResponse) -> Option<ResponseRow> {
    let conversation = serde_json::to_vec(&new.conversation).ok()?;
    (conversation.len() + new.body.len() <= KEPT_BYTES_MAX).then(|| ResponseRow {
        id: bare(&new.id).into(),
        owner: new.owner.as_ref().map(ToString::to_string),
        input_len: new.input_len as u64,
        conversation,
        body: new.body.clone(),
    })
}

/// The same, read again.
fn kept(row: ResponseRow) -> Result<KeptResponse, serde_json::Error> {
    let bytes = row.conversation.len() + row.body.len();
    let conversation: Vec<Message> = serde_json::from_slice(&row.conversation)?;
    let input_len = usize::try_from(row.input_len).unwrap_or(usize::MAX).min(conversation.len());
    let input = InputItems::new(conversation.get(..input_len).unwrap_or_default());
    let (id, owner) = (row.id.into(), row.owner.map(Into::into));
    Ok(KeptResponse { id, owner, conversation, input, body: row.body, bytes })
}

impl KeptResponse {
    /// A page of the items that the answer follows.
    pub fn input_page(&self, query: &PageQuery) -> Result<Value, ApiError> {
        self.input.page(&self.id, &self.conversation, query)
    }

    /// Whether this response has that id and `caller` may see it.
    fn is(&self, id: &str, caller: &Caller) -> bool {
        self.is_visible(caller) && *self.id == *bare(id)
    }

    fn is_visible(&self, caller: &Caller) -> bool {
        match caller {
            Caller::Trusted => true,
            Caller::Key(key) => self.owner.as_ref() == Some(&key.id),
        }
    }
}

/// Items of an answer by their ids.
type OutputItems = HashMap<String, Value>;

/// The stored items that one request refers to, each at most once. The answer of each response is parsed once; of its input only the
/// items that are named are built.
pub struct Referred {
    /// The responses by their ids, with the output items not yet referred to by theirs.
    responses: HashMap<String, (Arc<KeptResponse>, Option<OutputItems>)>,
    /// Size of those referred to, in bytes.
    pub bytes: usize,
}

impl Referred {
    pub fn new(responses: &KeptResponses) -> Self {
        let response = |(id, kept): (&String, &Arc<KeptResponse>)| (id.clone(), (Arc::clone(kept), None));
        Self { responses: responses.iter().map(response).collect(), bytes: 0 }
    }

    /// An input or output item by its id, if the caller may see its response.
    pub fn item(&mut self, id: &str) -> Option<Value> {
        let (kept, output) = self.responses.get_mut(responses::response_of(id)?)?;
        let output = output.get_or_insert_with(|| responses::output_items(&kept.body));
        let item = output.remove(id).or_else(|| kept.input.by_id(&kept.id, &kept.conversation, id))?;
        self.bytes += item.to_string().len();
        Some(item)
    }
}

/// Counts the bytes of a text without storing it.
struct Length(usize);

impl fmt::Write for Length {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use octet_api::core::Role;

    use super::*;

    async fn get(store: &ResponseStore, id: &str) -> Option<Arc<KeptResponse>> {
        store.get(id, &Caller::Trusted, |_| Ok(())).await.expect("there is no database")
    }

    #[tokio::test]
    async fn the_oldest_go_first() {
        let kept = ResponseStore::default();
        let put = |id: &str, bytes: usize| {
            kept.put_here(NewResponse { id: id.into(), body: vec![0; bytes], ..NewResponse::default() })
        };
        for i in 0..KEPT_MAX + 2 {
            put(&format!("{i}"), 1);
        }
        assert!(get(&kept, "1").await.is_none() && get(&kept, "resp_2").await.is_some());
        let remove = async |id: &str| kept.remove(id, &Caller::Trusted).await.expect("there is no database");
        assert!(remove("resp_2").await && !remove("2").await);
        put("large", KEPT_BYTES_MAX + 1);
        assert!(get(&kept, "large").await.is_none());
        put("half", KEPT_BYTES_MAX - 1);
        assert!(
            get(&kept, "half").await.is_some() && get(&kept, "5").await.is_none(),
            "many small ones make way"
        );
        let conversation = vec![Message::text(Role::User, "x".repeat(KEPT_BYTES_MAX))];
        kept.put_here(NewResponse { id: "said".into(), conversation, ..NewResponse::default() });
        assert!(
            get(&kept, "said").await.is_none() && get(&kept, "half").await.is_some(),
            "conversations count"
        );
    }

    #[tokio::test]
    async fn items_are_found_once() {
        let store = ResponseStore::default();
        let body = br#"{"output": [{"id": "fc_a_0"}, {"id": "fc_a_1"}]}"#;
        let conversation = vec![Message::text(Role::User, "Hi"), Message::text(Role::Assistant, "Ho")];
        let new =
            NewResponse { id: "resp_a".into(), body: body.to_vec(), conversation, input_len: 1, owner: None };
        assert!(store.is_empty());
        store.put(new).await;
        let ids = ["a", "b"].map(String::from).into();
        let found = store.find(&ids, &Caller::Trusted, |_| Ok(())).await.expect("there is no database");
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a"]);
        assert!(found["a"].bytes > body.len() + 2 * "Hi".len(), "conversations count");
        let mut referred = Referred::new(&found);
        assert_eq!(referred.item("fc_a_1").unwrap()["id"], "fc_a_1");
        assert_eq!(referred.item("fc_a_0").unwrap()["id"], "fc_a_0");
        assert_eq!(referred.bytes, 2 * br#"{"id":"fc_a_0"}"#.len());
        assert_eq!(referred.item("msg_a_in0").unwrap()["content"][0]["text"], "Hi");
        for id in ["msg_a_in1", "fc_a_0", "fc_a_2", "fc_b_0", "x", ""] {
            assert!(referred.item(id).is_none(), "{id}");
        }
    }
}
