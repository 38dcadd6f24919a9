//! Responses that clients asked to keep (`store`), in memory, the oldest out first. Used by `responses`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use octet_api::core::Message;

/// Most responses.
const KEPT_MAX: usize = 512;
/// Most bytes of all of them, about.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// One response.
#[derive(Debug)]
pub struct KeptResponse {
    id: String,
    /// The conversation so far, which a later request goes on with.
    pub conversation: Vec<Message>,
    /// The answer as it was given.
    pub body: Vec<u8>,
    /// What both take, about.
    pub bytes: usize,
}

/// All responses.
#[derive(Debug, Default)]
pub struct Kept(Mutex<VecDeque<Arc<KeptResponse>>>);

impl Kept {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<KeptResponse>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a response by its answer's id.
    pub fn put(&self, id: &str, conversation: Vec<Message>, body: Vec<u8>) {
        // Debug text is no less than what it shows takes.
        let bytes = body.len() + conversation.iter().map(|m| format!("{m:?}").len()).sum::<usize>();
        if bytes > KEPT_BYTES_MAX {
            return;
        }
        let mut all = self.lock();
        all.push_back(Arc::new(KeptResponse { id: bare(id).into(), conversation, body, bytes }));
        while all.len() > KEPT_MAX || all.iter().map(|r| r.bytes).sum::<usize>() > KEPT_BYTES_MAX {
            all.pop_front();
        }
    }

    /// A response by its id as clients know it.
    pub fn get(&self, id: &str) -> Option<Arc<KeptResponse>> {
        self.lock().iter().find(|r| r.id == bare(id)).cloned()
    }

    /// Forgets one; false if there was none.
    pub fn remove(&self, id: &str) -> bool {
        let mut all = self.lock();
        let before = all.len();
        all.retain(|r| r.id != bare(id));
        all.len() < before
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
        let kept = Kept::default();
        for i in 0..KEPT_MAX + 2 {
            kept.put(&format!("{i}"), Vec::new(), vec![0]);
        }
        assert!(kept.get("1").is_none() && kept.get("resp_2").is_some());
        assert!(kept.remove("resp_2") && !kept.remove("2"));
        kept.put("large", Vec::new(), vec![0; KEPT_BYTES_MAX + 1]);
        assert!(kept.get("large").is_none());
        kept.put("half", Vec::new(), vec![0; KEPT_BYTES_MAX - 1]);
        assert!(kept.get("half").is_some() && kept.get("5").is_none(), "many small ones make way");
    }
}
