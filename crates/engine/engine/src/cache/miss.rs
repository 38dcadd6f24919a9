//! Why a prompt was not found in the cache as a whole: where it left what was known, and what stood there instead.

use octet_compute::batch::PAGE_TOKENS;

use super::{Cache, Found};
use crate::detokenizer::{ControlTokens, decode};
use crate::tokenizer::Tokenizer;

/// The kind of a miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Miss {
    /// Nothing like it was seen: no prompt that began with this token, or it is long forgotten.
    Unknown,
    /// It begins like an earlier sequence and then differs.
    Differs,
    /// All of it is known, or all up to where it differs; but what was computed there has made way, or no snapshot was
    /// taken near.
    Gone,
}

/// Where a prompt left what was known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissReport {
    /// The kind.
    pub miss: Miss,
    /// Tokens that did not have to be computed.
    pub cached: usize,
    /// Tokens that the prompt shares with the most similar earlier sequence: the index of the first that differs.
    pub shared: usize,
    /// Text of both up to there: its end.
    pub before: String,
    /// How the prompt goes on.
    pub prompt: String,
    /// How the earlier sequence went on.
    pub earlier: String,
}

/// Tokens of text that a report shows on each side.
const TOKENS_SHOWN: usize = 24;

impl MissReport {
    /// One line of ASCII for a header or a log.
    pub fn line(&self) -> String {
        let Self { miss, cached, shared, before, prompt, earlier } = self;
        let what = match miss {
            Miss::Unknown => "nothing alike is known".into(),
            Miss::Differs if earlier.is_empty() => format!("new after {shared} tokens"),
            Miss::Differs => format!("differs after {shared} tokens"),
            Miss::Gone => format!("{shared} tokens are known, what was computed for them is not"),
        };
        let quote = |s: &str| s.escape_default().to_string();
        format!(
            "{what}; {cached} cached; after \"{}\" comes \"{}\", earlier \"{}\"",
            quote(before),
            quote(prompt),
            quote(earlier)
        )
    }
}

impl Cache {
    /// Explains what `find` found for `tokens`. `None` where nothing could be better.
    pub fn explain(&self, tokenizer: &Tokenizer, tokens: &[u32], found: &Found) -> Option<MissReport> {
        let root = found.root?;
        let walk = self.tree.walk(root, tokens);
        let (cached, shared) = (found.position, walk.matched);
        if cached + 1 >= tokens.len() {
            return None;
        }
        let text = |ids: &[u32]| decode(tokenizer, ids, ControlTokens::Show);
        let mut earlier = Vec::new();
        let whole = (walk.path.len() - 1) * PAGE_TOKENS;
        let mut next = walk.child;
        let mut skip = shared - whole;
        if next.is_none() {
            let last = *walk.path.last().unwrap_or(&root);
            next = self.latest_child(last);
            skip = 0;
        }
        while let Some(node) = next.filter(|_| earlier.len() < TOKENS_SHOWN) {
            earlier.extend(self.tree.nodes[node].tokens.iter().skip(skip));
            next = self.latest_child(node);
            skip = 0;
        }
        earlier.truncate(TOKENS_SHOWN);
        let miss = match shared {
            0 => Miss::Unknown,
            _ if shared >= tokens.len() || shared - cached >= super::TOKENS_MIN => Miss::Gone,
            _ => Miss::Differs,
        };
        Some(MissReport {
            miss,
            cached,
            shared,
            before: text(&tokens[shared.saturating_sub(TOKENS_SHOWN)..shared]),
            prompt: text(&tokens[shared..(shared + TOKENS_SHOWN).min(tokens.len())]),
            earlier: text(&earlier),
        })
    }

    fn latest_child(&self, node: usize) -> Option<usize> {
        self.tree.nodes[node].children.iter().map(|c| c.1).max_by_key(|c| self.tree.nodes[*c].used)
    }
}
