//! Tokenized prompt beginnings up to the end of their tools, so that a long list of tools is tokenized only when it changes. Kept by a
//! loaded model, used by the pipeline.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

/// Maximum number of entries.
const HEADS_MAX: usize = 8;

/// The most recent ones, the latest last.
#[derive(Debug, Default)]
pub struct ToolPrefixes(Mutex<Vec<Head>>);

#[derive(Debug)]
struct Head {
    /// A hash of the tools: prompts with other tools may begin with the same text.
    tools: u64,
    text: Box<str>,
    tokens: Arc<[u32]>,
}

impl ToolPrefixes {
    /// The tokens of a prompt with these tools that begins like `text` up to their end. If there is none, `make` renders and tokenizes
    /// such a prompt.
    pub fn find(
        &self,
        tools: &[Value],
        text: &str,
        make: impl FnOnce() -> Option<(String, Vec<u32>)>,
    ) -> Option<Arc<[u32]>> {
        let tools = fingerprint(tools);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = kept.iter().position(|h| h.tools == tools && text.starts_with(&*h.text)) {
            let found = kept.remove(at);
            let tokens = Arc::clone(&found.tokens);
            kept.push(found);
            return Some(tokens);
        }
        drop(kept);
        let (other, tokens) = make()?;
        let same = text.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        let head = Head { tools, text: text[..text.floor_char_boundary(same)].into(), tokens: tokens.into() };
        let tokens = Arc::clone(&head.tokens);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == HEADS_MAX {
            kept.remove(0);
        }
        kept.push(head);
        Some(tokens)
    }
}

fn fingerprint(tools: &[Value]) -> u64 {
    let mut hasher = DefaultHasher::new();
    tools.iter().for_each(|t| t.to_string().hash(&mut hasher));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_same_tools_are_made_once() {
        let tool_prefixes = ToolPrefixes::default();
        let made = std::cell::Cell::new(0);
        let ask = |tools: &str, text: &str| {
            let other = format!("{}é?", text.split('é').next().unwrap_or_default());
            let make = || {
                made.set(made.get() + 1);
                Some((other, vec![made.get()]))
            };
            tool_prefixes.find(&[json!({"name": tools})], text, make).unwrap()[0]
        };
        assert_eq!((ask("a", "tools a;éone"), ask("a", "tools a;étwo")), (1, 1));
        // other tools behind the same text, other text before the same tools
        assert_eq!((ask("b", "tools a;éone"), ask("a", "Monday, tools a;éone")), (2, 3));
        assert_eq!(ask("a", "tools a;éthree"), 1);
        for i in 0..HEADS_MAX {
            ask(&i.to_string(), "x");
        }
        assert_eq!(ask("a", "tools a;éone"), 4 + HEADS_MAX as u32);
        // what cannot be made is not kept
        assert!(tool_prefixes.find(&[json!("c")], "x", || None).is_none());
        assert!(tool_prefixes.find(&[json!("c")], "x", || Some((String::new(), vec![7]))).is_some());
    }
}
