//! What one step of the model works on: the tokens of several sequences, flattened, and where their caches lie.

/// Tokens of a KV page. Attention walks whole pages in order, so a result never depends on how a prompt was cut.
pub const PAGE_TOKENS: usize = 64;

/// The tokens of one sequence within a batch. Made by [`Batch::push`] only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Span {
    /// Index of the span's first token in [`Batch::tokens`].
    pub start: usize,
    /// Number of tokens, at least 1.
    pub len: usize,
    /// Tokens of this sequence that are in the cache already; the span's first token has this position.
    pub past: usize,
    /// State slot of the sequence (Gated DeltaNet layers).
    pub slot: usize,
    /// The slot whose state the span starts with: [`Span::slot`], or another one, which stays as it is. See [`Batch::start_from`].
    pub from: usize,
    /// Where the sequence's page numbers start in [`Batch::pages`]. Page `p` holds positions
    /// `p * PAGE_TOKENS ..` and the table covers `past + len` positions.
    pub pages: usize,
    /// The same for the pages of layers with a window. Those before the window are not valid numbers. Equals `pages` if there are none.
    pub windowed: usize,
    /// Number of guesses at the end of the tokens. The slot's state stops before them. Their inputs are kept for a later step, in case
    /// they are accepted; see [`Redo`].
    pub guesses: usize,
    /// Accepted guesses of the slot's last step that its state does not include yet.
    pub redo: Redo,
}

impl Span {
    /// Number of tokens that a recurrent layer processes: those to redo, and its own.
    pub fn recurrent_len(&self) -> usize {
        self.redo.len + self.len
    }
}

/// Some of the guesses of a slot's last step, which a recurrent layer processes first, from their kept inputs. So no state is ever
/// rolled back, and the guesses cost no pass over the state of their own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Redo {
    /// The first of them, counted among the guesses of that step.
    pub first: usize,
    /// How many.
    pub len: usize,
}

/// Which pages of a cache. Layers with a window may have pages of their own, of which a sequence needs only the last few.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PageGroup {
    /// Those of layers that attend to all positions, and of all layers unless there is [`crate::backend::CacheShape::windowed`].
    #[default]
    All,
    /// Those of layers with a window.
    Windowed,
}

/// Page numbers of a sequence: entry `i` of each group holds positions `i * PAGE_TOKENS ..`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tables<'a> {
    /// [`PageGroup::All`]
    pub all: &'a [u32],
    /// [`PageGroup::Windowed`]; empty if there is no such group. Entries before the window are not used.
    pub windowed: &'a [u32],
}

impl<'a> From<&'a [u32]> for Tables<'a> {
    /// Without pages of layers with a window.
    fn from(all: &'a [u32]) -> Self {
        Self { all, windowed: &[] }
    }
}

impl<'a> From<&'a Vec<u32>> for Tables<'a> {
    fn from(all: &'a Vec<u32>) -> Self {
        all.as_slice().into()
    }
}

impl<'a, const N: usize> From<&'a [u32; N]> for Tables<'a> {
    fn from(all: &'a [u32; N]) -> Self {
        all.as_slice().into()
    }
}

impl Tables<'_> {
    /// Whether each has an entry for each of `positions` positions.
    fn cover(&self, positions: usize) -> bool {
        let covers = |table: &[u32]| table.len() * PAGE_TOKENS >= positions;
        covers(self.all) && (self.windowed.is_empty() || covers(self.windowed))
    }
}

/// Entries of a table for the pages that hold positions `past..end`; none of a table that is empty.
fn entries(table: &[u32], past: usize, end: usize) -> &[u32] {
    match table {
        [] => &[],
        table => &table[past / PAGE_TOKENS..end.div_ceil(PAGE_TOKENS)],
    }
}

/// One step's input. Its vectors keep their capacity from step to step: filling it allocates nothing.
///
/// Threads write to slots and pages of one batch at the same time, each to those of its own spans or tokens. That is sound
/// because no span reads or writes the slot that another one writes, and no two write to the same page: [`Batch::push`] and
/// [`Batch::start_from`] check this, and nothing else changes a batch.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    spans: Vec<Span>,
    pages: Vec<u32>,
    outputs: Vec<u32>,
    /// Pages that are written to, of each group.
    written: [Vec<u32>; 2],
    /// The type of each token.
    types: Vec<u32>,
    /// Coordinates of each token; empty if no token has any.
    turns: Vec<[u32; 3]>,
    /// The positions `[first, end]` of each token's block; empty if no token is in one.
    blocks: Vec<[u32; 2]>,
    /// Tokens whose embeddings are given, and these, all of one width.
    given: Vec<u32>,
    embeddings: Vec<f32>,
}

impl Batch {
    /// An empty batch with room for `tokens` tokens, `spans` sequences and `pages` page numbers.
    pub fn with_capacity(tokens: usize, spans: usize, pages: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(tokens),
            positions: Vec::with_capacity(tokens),
            spans: Vec::with_capacity(spans),
            types: Vec::with_capacity(tokens),
            pages: Vec::with_capacity(pages),
            outputs: Vec::with_capacity(tokens),
            written: [Vec::with_capacity(pages), Vec::with_capacity(pages)],
            ..Self::default()
        }
    }

    /// Tokens without a sequence, for verbs that read only tokens.
    pub fn of_tokens(tokens: &[u32]) -> Self {
        Self { tokens: tokens.to_vec(), ..Self::default() }
    }

    /// Token ids of all spans, one after the other.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Position of each token in its sequence.
    pub fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// Type of each token.
    pub fn types(&self) -> &[u32] {
        &self.types
    }

    /// The sequences, in the order of their tokens.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Page tables of all spans, one after the other; of each span, that of layers with a window comes second.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Indices into `tokens` whose logits are requested, ascending.
    pub fn outputs(&self) -> &[u32] {
        &self.outputs
    }

    /// Index of the first token of the sequence in state slot `slot`.
    pub fn first_token(&self, slot: usize) -> Option<usize> {
        self.spans.iter().find(|s| s.slot == slot).map(|s| s.start)
    }

    /// Whether no span reads or writes this slot.
    fn is_free(&self, slot: usize) -> bool {
        self.spans.iter().all(|s| s.slot != slot && s.from != slot)
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// True before the first `push`.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Empties the batch, keeping its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.types.clear();
        self.spans.clear();
        self.pages.clear();
        self.outputs.clear();
        self.written.iter_mut().for_each(Vec::clear);
        self.turns.clear();
        self.blocks.clear();
        self.given.clear();
        self.embeddings.clear();
    }

    /// Adds `tokens` of a sequence with `past` cached tokens; `pages` covers `past + tokens.len()` positions.
    /// Requests logits of the last `outputs` tokens.
    ///
    /// # Panics
    /// If there are no tokens, or `pages` is too short; if another span has this slot or writes to the same page; or if `pages` names a
    /// page twice that would be written to.
    pub fn push<'a>(
        &mut self,
        tokens: &[u32],
        past: usize,
        slot: usize,
        pages: impl Into<Tables<'a>>,
        outputs: usize,
    ) {
        let tables = pages.into();
        assert!(!tokens.is_empty(), "a span has tokens");
        let end = past + tokens.len();
        assert!(end <= u32::MAX as usize, "position {end} is not counted");
        assert!(tables.cover(end), "{} pages for {end} positions", tables.all.len());
        assert!(self.is_free(slot), "slot {slot} is another sequence's in this batch");
        for (table, written) in [tables.all, tables.windowed].into_iter().zip(&mut self.written) {
            for &page in entries(table, past, end) {
                assert!(!written.contains(&page), "page {page} is written to twice in this batch");
                written.push(page);
            }
        }
        let start = self.tokens.len();
        let pages = self.pages.len();
        let windowed = if tables.windowed.is_empty() { pages } else { pages + tables.all.len() };
        let redo = Redo::default();
        let len = tokens.len();
        self.spans.push(Span { start, len, past, slot, from: slot, pages, windowed, guesses: 0, redo });
        self.tokens.extend_from_slice(tokens);
        self.positions.extend((past..end).map(|p| p as u32));
        self.types.resize(self.tokens.len(), 0);
        if !self.turns.is_empty() {
            self.turns.extend((past..end).map(|p| [p as u32; 3]));
        }
        if !self.blocks.is_empty() {
            self.blocks.extend((past..end).map(|p| [p as u32, p as u32 + 1]));
        }
        self.pages.extend_from_slice(tables.all);
        self.pages.extend_from_slice(tables.windowed);
        let end = start + tokens.len();
        self.outputs.extend((end - outputs.min(tokens.len())..end).map(|i| i as u32));
    }

    /// Marks the last `guesses` tokens of the newest span as guesses, and sets which guesses of its slot's last step are processed first.
    ///
    /// # Panics
    /// If all of its tokens would be guesses.
    pub fn speculate(&mut self, guesses: usize, redo: Redo) {
        let span = self.spans.last_mut().expect("a span was added");
        assert!(guesses < span.len, "{guesses} guesses among {} tokens", span.len);
        (span.guesses, span.redo) = (guesses, redo);
    }

    /// The coordinates of the tokens of the newest span, by which a rotation of several axes turns ([`crate::backend::Axes`]): time, row and
    /// column. For tokens without any, each is the position.
    ///
    /// # Panics
    /// If there are not as many as tokens.
    pub fn turn(&mut self, turns: impl Iterator<Item = [u32; 3]>) {
        let span = self.spans.last().expect("a span was added");
        if self.turns.is_empty() {
            self.turns.extend(self.positions.iter().map(|p| [*p; 3]));
        }
        self.turns.truncate(span.start);
        self.turns.extend(turns);
        assert_eq!(self.turns.len(), self.tokens.len(), "coordinates for each token");
    }

    /// The types of the tokens of the newest span, which encoders have embeddings for: 1 in the second text of a pair. Without, all are 0.
    ///
    /// # Panics
    /// If there are not as many as tokens.
    pub fn set_types(&mut self, types: impl Iterator<Item = u32>) {
        let span = self.spans.last().expect("a span was added");
        self.types.truncate(span.start);
        self.types.extend(types);
        assert_eq!(self.types.len(), self.tokens.len(), "a type for each token");
    }

    /// Positions `block` of the newest span's sequence are a block: its tokens see all of it where attention is two-way. Those that this
    /// span does not have are in the cache already.
    ///
    /// # Panics
    /// If the page table does not cover it.
    pub fn see(&mut self, block: std::ops::Range<usize>) {
        let span = self.spans.last().expect("a span was added");
        assert!((self.pages.len() - span.pages) * PAGE_TOKENS >= block.end, "pages for {block:?}");
        if self.blocks.is_empty() {
            self.blocks.extend(self.positions.iter().map(|p| [*p, *p + 1]));
        }
        let of_span = block.start.max(span.past)..block.end.min(span.past + span.len);
        for position in of_span {
            self.blocks[span.start + position - span.past] = [block.start as u32, block.end as u32];
        }
    }

    /// Token `token` of the batch has this embedding, whatever its id; further values are added after the first layers (deepstack), a row of
    /// the model's width after each. Tokens are given in ascending order, with embeddings of one length.
    pub fn give(&mut self, token: usize, embedding: &[f32]) {
        debug_assert!(token < self.tokens.len() && self.given.last().is_none_or(|t| (*t as usize) < token));
        self.given.push(token as u32);
        self.embeddings.extend_from_slice(embedding);
        assert_eq!(self.embeddings.len(), self.given.len() * embedding.len(), "embeddings of one length");
    }

    /// Coordinates of all tokens, if some have any.
    pub fn turns(&self) -> Option<&[[u32; 3]]> {
        (!self.turns.is_empty()).then_some(&self.turns)
    }

    /// Coordinates of a token: its position if it has none.
    pub fn turn_of(&self, token: usize) -> [u32; 3] {
        self.turns.get(token).copied().unwrap_or([self.positions[token]; 3])
    }

    /// The positions `[first, end]` of each token's block, if some tokens are in one. Both never decrease within a span.
    pub fn blocks(&self) -> Option<&[[u32; 2]]> {
        (!self.blocks.is_empty()).then_some(&self.blocks)
    }

    /// The block of a token: its own position if it is in none.
    pub fn block_of(&self, token: usize) -> [usize; 2] {
        let position = self.positions[token];
        self.blocks.get(token).copied().unwrap_or([position, position + 1]).map(|p| p as usize)
    }

    /// Tokens with given embeddings, and these `[given, width]`.
    pub fn given(&self) -> (&[u32], &[f32]) {
        (&self.given, &self.embeddings)
    }

    /// The newest span starts with the state of slot `from`, and with the inputs of guesses that are kept there. Its own slot gets the new
    /// state; `from` stays as it is.
    ///
    /// # Panics
    /// If another span has that slot.
    pub fn start_from(&mut self, from: usize) {
        let span = self.spans.last_mut().expect("a span was added");
        span.from = from;
        let own = span.slot;
        let is_free = from == own || self.first_token(from).is_none();
        assert!(is_free, "slot {from} is another sequence's in this batch");
    }

    /// Adds a span without tokens: recurrent layers add the accepted guesses of the last step to the state of `slot`.
    ///
    /// # Panics
    /// If another span has this slot.
    pub fn push_redo(&mut self, slot: usize, redo: Redo) {
        assert!(self.is_free(slot), "slot {slot} is another sequence's in this batch");
        let (start, pages) = (self.tokens.len(), self.pages.len());
        let windowed = pages;
        self.spans.push(Span { start, len: 0, past: 0, slot, from: slot, pages, windowed, guesses: 0, redo });
    }

    /// Adds a row of an earlier step to the outputs: for [`crate::Backend::norm_outputs`], of a batch without tokens.
    pub fn push_row(&mut self, row: usize) {
        self.outputs.push(row as u32);
    }

    /// Whether [`Batch::push`] would accept `len` tokens of such a sequence.
    pub fn fits<'a>(&self, past: usize, len: usize, slot: usize, pages: impl Into<Tables<'a>>) -> bool {
        let (tables, end) = (pages.into(), past + len);
        let fits = len > 0 && end <= u32::MAX as usize && tables.cover(end) && self.is_free(slot);
        fits && {
            let mut groups = [tables.all, tables.windowed].into_iter().zip(&self.written);
            groups.all(|(table, written)| {
                let own = entries(table, past, end);
                let is_taken = |(i, page): (usize, &u32)| written.contains(page) || own[..i].contains(page);
                !own.iter().enumerate().any(is_taken)
            })
        }
    }

    /// Page numbers of a span in a group, and what follows them.
    pub fn table(&self, span: &Span, group: PageGroup) -> &[u32] {
        match group {
            PageGroup::All => &self.pages[span.pages..],
            PageGroup::Windowed => &self.pages[span.windowed..],
        }
    }

    /// Page number that holds `position` of `span` in a group, and the row within the page.
    pub fn page_of(&self, span: &Span, group: PageGroup, position: usize) -> (usize, usize) {
        (self.table(span, group)[position / PAGE_TOKENS] as usize, position % PAGE_TOKENS)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// Whether a second span is accepted after one of 70 tokens in slot 0 with pages 5 and 6. [`Batch::fits`] says so before.
    fn fits(n: usize, past: usize, slot: usize, pages: &[u32]) -> bool {
        let mut batch = Batch::default();
        batch.push(&[1; 70], 0, 0, &[5, 6], 1);
        let tokens = vec![1; n];
        let fits = batch.fits(past, n, slot, pages);
        let is_pushed = catch_unwind(AssertUnwindSafe(|| batch.push(&tokens, past, slot, pages, 1))).is_ok();
        assert_eq!(fits, is_pushed, "{n} tokens behind {past}, slot {slot}, pages {pages:?}");
        is_pushed
    }

    #[test]
    fn no_two_spans_write_to_one_place() {
        assert!(fits(1, 0, 1, &[7]));
        assert!(!fits(1, 0, 0, &[7]), "a slot");
        assert!(!fits(1, 0, 1, &[6]), "a page");
        assert!(!fits(65, 0, 1, &[7, 7]), "a page of its own");
        assert!(fits(1, 64, 1, &[5, 7]), "one that it only reads");
        assert!(fits(1, 63, 1, &[7, 5]), "one behind its tokens");
        assert!(!fits(2, 63, 1, &[7, 5]));
        assert!(!fits(2, 63, 1, &[7]), "too few pages");
        assert!(!fits(0, 0, 1, &[7]), "no tokens");
    }

    #[test]
    fn no_span_starts_in_a_slot_that_another_one_changes() {
        let starts = |from: usize, next: usize| {
            let mut batch = Batch::default();
            batch.push(&[1], 0, 0, &[5], 1);
            batch.push(&[1], 0, 1, &[6], 1);
            let all = AssertUnwindSafe(|| {
                batch.start_from(from);
                batch.push(&[1], 0, next, &[7], 1);
            });
            catch_unwind(all).is_ok()
        };
        assert!(starts(1, 2), "its own slot");
        assert!(starts(3, 2));
        assert!(!starts(0, 2), "the slot of the span before");
        assert!(!starts(3, 3), "the slot of the span behind");
    }
}
