//! Splits the attention of a step into items for the team. Filled and read by `attend`.

use super::vector::{CHUNK, attend_chunks};
use crate::backend::Window;
use crate::batch::{Batch, PAGE_TOKENS};

/// Spans of fewer tokens are split by context; longer ones are split by tokens.
pub(super) const SPLIT_TOKENS: usize = 4;
/// Maximum number of queries (tokens times heads of a group) in a tile, unless a single token has more: as many as use
/// the caches well.
pub(super) const TILE_QUERIES: usize = 64;

/// A piece of work for one thread.
pub(super) struct Item {
    pub span: usize,
    /// First token, counted from the start of the batch, and number of tokens.
    pub token: usize,
    pub tokens: usize,
    pub kv_head: usize,
    /// The chunk of the context, and the row of its partial results; `None`: all that it attends to.
    pub split: Option<(usize, usize)>,
}

/// A token whose context was split: merged when all its chunks are done.
pub(super) struct Split {
    pub token: usize,
    pub chunks: usize,
    /// Its first partial result; `[chunks, heads]` follow.
    pub row: usize,
}

/// The items of one call; reuses its memory.
#[derive(Default)]
pub(super) struct Plan {
    pub items: Vec<Item>,
    pub splits: Vec<Split>,
}

impl Plan {
    /// Room for steps of `tokens` tokens with `heads` heads over a cache of `pages` pages and `slots` sequences.
    pub fn new(tokens: usize, heads: usize, pages: usize, slots: usize) -> Self {
        let chunks = Self::chunk_rows(pages, slots);
        Self {
            items: Vec::with_capacity((tokens + chunks) * heads),
            splits: Vec::with_capacity(SPLIT_TOKENS * slots.max(1)),
        }
    }

    /// Maximum number of chunks over all tokens. Sequences that share pages may have more: then the rest
    /// is not split.
    pub fn chunk_rows(pages: usize, slots: usize) -> usize {
        SPLIT_TOKENS * (attend_chunks(pages * PAGE_TOKENS) + slots)
    }

    /// Plans a batch, whose partial results have `rows` rows. Where tokens see blocks, no context is split.
    pub fn fill(
        &mut self,
        batch: &Batch,
        heads: usize,
        kv_heads: usize,
        window: Window,
        blocks: bool,
        threads: usize,
        rows: usize,
    ) {
        self.items.clear();
        self.splits.clear();
        let tile = (TILE_QUERIES / (heads / kv_heads)).max(1);
        let mut row = 0;
        for (index, span) in batch.spans().iter().enumerate() {
            let end = span.start + span.len;
            let begin = |position: usize| window.first(position) / CHUNK;
            let chunks_all = attend_chunks(span.past + span.len - 1) - begin(span.past);
            let fits = row + span.len * chunks_all * heads <= rows
                && self.splits.len() + span.len <= self.splits.capacity();
            if span.len < SPLIT_TOKENS && threads > 1 && chunks_all > 1 && fits && !blocks {
                for token in span.start..end {
                    let position = span.past + token - span.start;
                    let first = begin(position);
                    let chunks = attend_chunks(position) - first;
                    for chunk in 0..chunks {
                        for kv_head in 0..kv_heads {
                            let at = row + chunk * heads + kv_head * (heads / kv_heads);
                            self.items.push(Item {
                                span: index,
                                token,
                                tokens: 1,
                                kv_head,
                                split: Some((first + chunk, at)),
                            });
                        }
                    }
                    self.splits.push(Split { token, chunks, row });
                    row += chunks * heads;
                }
                continue;
            }
            let mut token = span.start;
            while token < end {
                let tokens = tile.min(end - token);
                for kv_head in 0..kv_heads {
                    self.items.push(Item { span: index, token, tokens, kv_head, split: None });
                }
                token += tokens;
            }
        }
    }
}
