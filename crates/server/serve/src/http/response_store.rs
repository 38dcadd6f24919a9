//! Responses that clients asked to keep (`store`), in memory, the oldest out first. Used by `responses`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use octet_api::core::Message;

use crate::gateway::Caller;

/// Most responses.
const KEPT_MAX: usize = 512;
/// Most bytes of all of them, about.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// One response.
#[derive(Debug)]
pub struct KeptResponse {
    id: String,
    /// The virtual key that asked for it, if one did: nobody else with such a key gets to see it.
    owner: Option<Arc<str>>,
    /// The conversation so far, which a later request goes on with.
    pub conversation: Vec<Message>,
    /// The answer as it was given.
    pub body: Vec<u8>,
    /// What both take, about.
    pub bytes: usize,
}

/// All responses.
#[derive(Debug, Default)]
pub struct ResponseStore(Mutex<VecDeque<Arc<KeptResponse>>>);

impl ResponseStore {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<KeptResponse>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a response by its answer's id, for whoever asked for it.
    pub fn put(&self, id: &str, owner: Option<&Arc<str>>, conversation: Vec<Message>, body: Vec<u8>) {
        // Debug text is no less than what it shows takes.
        let bytes = body.len() + conversation.iter().map(|m| format!("{m:?}").len()).sum::<usize>();
        if bytes > KEPT_BYTES_MAX {
            return;
        }
        let mut all = self.lock();
        all.push_back(Arc::new(KeptResponse {
            id: bare(id).into(),
            owner: owner.cloned(),
            conversation,
            body,
            bytes,
        }));
        while all.len() > KEPT_MAX || all.iter().map(|r| r.bytes).sum::<usize>() > KEPT_BYTES_MAX {
            all.pop_front();
        }
    }

    /// A response by its id as clients know it, if `caller` may see it.
    pub fn get(&self, id: &str, caller: &Caller) -> Option<Arc<KeptResponse>> {
        self.lock().iter().find(|r| r.is(id, caller)).cloned()
    }

    /// Forgets one; false if there was none that `caller` may see.
    pub fn remove(&self, id: &str, caller: &Caller) -> bool {
        let mut all = self.lock();
        let before = all.len();
        all.retain(|r| !r.is(id, caller));
        all.len() < before
    }
}

impl KeptResponse {
    /// Whether this is the response of that id, and one that `caller` may see.
    fn is(&self, id: &str, caller: &Caller) -> bool {
        let is_theirs = match caller {
            Caller::Trusted => true,
            Caller::Key(key) => self.owner.as_ref() == Some(&key.id),
        };
        is_theirs && self.id == bare(id)
    }
}

fn bare(id: &str) -> &str {
    id.strip_prefix("resp_").unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first() {
        let kept = ResponseStore::default();
        let put = |id: &str, bytes: usize| kept.put(id, None, Vec::new(), vec![0; bytes]);
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
    }
}
