//! Stored responses (unless `store` is false), in memory, the oldest evicted first. Used by `responses`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use octet_api::ApiError;
use octet_api::core::Message;
use octet_api::openai::responses::{self, InputItems, PageQuery};
use serde_json::Value;

use crate::gateway::Caller;

/// Maximum number of responses.
const KEPT_MAX: usize = 512;
/// Approximate maximum size of all of them in bytes.
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

/// All stored responses.
#[derive(Debug, Default)]
pub struct ResponseStore(Mutex<VecDeque<Arc<KeptResponse>>>);

impl ResponseStore {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<KeptResponse>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a response.
    pub fn put(&self, new: NewResponse) {
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

    /// Approximate size of all in bytes.
    pub fn bytes(&self) -> usize {
        self.lock().iter().map(|r| r.bytes).sum()
    }

    /// The ids of all that `caller` may see.
    pub fn ids(&self, caller: &Caller) -> KeptIds {
        KeptIds(self.lock().iter().filter(|r| r.is_visible(caller)).map(|r| Arc::clone(&r.id)).collect())
    }

    /// A response by id, if `caller` may see it.
    pub fn get(&self, id: &str, caller: &Caller) -> Option<Arc<KeptResponse>> {
        self.lock().iter().find(|r| r.is(id, caller)).cloned()
    }

    /// Deletes a response; false if there is none that `caller` may see.
    pub fn remove(&self, id: &str, caller: &Caller) -> bool {
        let mut all = self.lock();
        let before = all.len();
        all.retain(|r| !r.is(id, caller));
        all.len() < before
    }
}

/// Ids of stored responses.
pub struct KeptIds(HashSet<Arc<str>>);

impl KeptIds {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a response is among them.
    pub fn contains(&self, id: &str) -> bool {
        self.0.contains(bare(id))
    }
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

/// The stored items that one request refers to, each at most once. The answer of each response is parsed once; of its input only the
/// items that are named are built.
pub struct Referred<'a> {
    store: &'a ResponseStore,
    caller: &'a Caller,
    /// The responses by their ids, with the output items not yet referred to by theirs.
    responses: HashMap<String, (Arc<KeptResponse>, HashMap<String, Value>)>,
    /// Size of those referred to, in bytes.
    pub bytes: usize,
}

impl<'a> Referred<'a> {
    pub fn new(store: &'a ResponseStore, caller: &'a Caller) -> Self {
        Self { store, caller, responses: HashMap::new(), bytes: 0 }
    }

    /// An input or output item by its id, if the caller may see its response.
    pub fn item(&mut self, id: &str) -> Option<Value> {
        let response = responses::response_of(id)?;
        if !self.responses.contains_key(response) {
            let kept = self.store.get(response, self.caller)?;
            let output = responses::output_items(&kept.body);
            self.responses.insert(response.to_string(), (kept, output));
        }
        let (kept, output) = self.responses.get_mut(response)?;
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

fn bare(id: &str) -> &str {
    id.strip_prefix("resp_").unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use octet_api::core::Role;

    use super::*;

    #[test]
    fn the_oldest_go_first() {
        let kept = ResponseStore::default();
        let put = |id: &str, bytes: usize| {
            kept.put(NewResponse { id: id.into(), body: vec![0; bytes], ..NewResponse::default() })
        };
        let get = |id: &str| kept.get(id, &Caller::Trusted);
        for i in 0..KEPT_MAX + 2 {
            put(&format!("{i}"), 1);
        }
        assert!(get("1").is_none() && get("resp_2").is_some());
        assert!(kept.remove("resp_2", &Caller::Trusted) && !kept.remove("2", &Caller::Trusted));
        put("large", KEPT_BYTES_MAX + 1);
        assert!(get("large").is_none());
        put("half", KEPT_BYTES_MAX - 1);
        assert!(get("half").is_some() && get("5").is_none(), "many small ones make way");
        let conversation = vec![Message::text(Role::User, "x".repeat(KEPT_BYTES_MAX))];
        kept.put(NewResponse { id: "said".into(), conversation, ..NewResponse::default() });
        assert!(get("said").is_none() && get("half").is_some(), "conversations count");
    }

    #[test]
    fn items_are_found_once() {
        let kept = ResponseStore::default();
        let body = br#"{"output": [{"id": "fc_a_0"}, {"id": "fc_a_1"}]}"#;
        let conversation = vec![Message::text(Role::User, "Hi"), Message::text(Role::Assistant, "Ho")];
        let new =
            NewResponse { id: "resp_a".into(), body: body.to_vec(), conversation, input_len: 1, owner: None };
        kept.put(new);
        let mut referred = Referred::new(&kept, &Caller::Trusted);
        assert!(kept.bytes() > body.len() + 2 * "Hi".len(), "conversations count");
        let ids = kept.ids(&Caller::Trusted);
        assert!(ids.contains("a") && ids.contains("resp_a") && !ids.contains("b"));
        assert_eq!(referred.item("fc_a_1").unwrap()["id"], "fc_a_1");
        assert_eq!(referred.item("fc_a_0").unwrap()["id"], "fc_a_0");
        assert_eq!(referred.bytes, 2 * br#"{"id":"fc_a_0"}"#.len());
        assert_eq!(referred.item("msg_a_in0").unwrap()["content"][0]["text"], "Hi");
        for id in ["msg_a_in1", "fc_a_0", "fc_a_2", "fc_b_0", "x", ""] {
            assert!(referred.item(id).is_none(), "{id}");
        }
    }
}
