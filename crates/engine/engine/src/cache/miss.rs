//! Explains cache misses: where a prompt diverged from cached ones, and what the earlier text was.

use octet_compute::batch::PAGE_TOKENS;

use super::{Cache, Found};
use crate::detokenizer::{ControlTokens, decode};
use crate::tokenizer::Tokenizer;

/// The kind of a miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Miss {
    /// No earlier prompt with this first token, or it was forgotten.
    Unknown,
    /// It shares a prefix with an earlier sequence and then differs.
    Differs,
    /// The shared prefix is known, but its data was evicted, or no snapshot was taken near its end.
    Gone,
}

/// A cache miss and where it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissReport {
    /// The kind.
    pub miss: Miss,
    /// Tokens that were cached.
    pub cached: usize,
    /// Length of the prefix shared with the most similar earlier sequence: the index of the first different token.
    pub shared: usize,
    /// The end of the shared text.
    pub before: String,
    /// The prompt's text after it.
    pub prompt: String,
    /// The earlier sequence's text after it.
    pub earlier: String,
}

/// Tokens of text shown on each side.
const TOKENS_SHOWN: usize = 24;

impl MissReport {
    /// One line of ASCII, for a header or a log.
    pub fn line(&self) -> String {
        let Self { miss, cached, shared, before, prompt, earlier } = self;
        let what = match miss {
            Miss::Unknown => "no similar prompt is known".into(),
            Miss::Differs if earlier.is_empty() => format!("new after {shared} tokens"),
            Miss::Differs => format!("differs after {shared} tokens"),
            Miss::Gone => format!("{shared} tokens are known, but their cache entries were evicted"),
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
    /// Explains the result of `find` for `tokens`. `None` if the hit could not be longer.
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
