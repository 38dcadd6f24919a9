//! What one step of the model works on: the tokens of several sequences, flattened, and where their caches lie.

/// Tokens of a KV page. Attention walks whole pages in order, so a result never depends on how a prompt was cut.
pub const PAGE_TOKENS: usize = 64;

/// The tokens of one sequence within a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Index of the span's first token in [`Batch::tokens`].
    pub start: usize,
    /// Number of tokens, at least 1.
    pub len: usize,
    /// Tokens of this sequence that are in the cache already; the span's first token has this position.
    pub past: usize,
    /// State slot of the sequence (Gated DeltaNet layers).
    pub slot: usize,
    /// Where the sequence's page numbers start in [`Batch::pages`]. Page `p` holds positions
    /// `p * PAGE_TOKENS ..` and the table covers `past + len` positions.
    pub pages: usize,
}

/// One step's input. Its vectors keep their capacity from step to step: filling it allocates nothing.
#[derive(Debug, Default)]
pub struct Batch {
    /// Token ids of all spans, one after the other.
    pub tokens: Vec<u32>,
    /// Position of each token in its sequence.
    pub positions: Vec<u32>,
    /// The sequences, in the order of their tokens.
    pub spans: Vec<Span>,
    /// Page tables of all spans, one after the other.
    pub pages: Vec<u32>,
    /// Indices into `tokens` whose logits are wanted, ascending.
    pub outputs: Vec<u32>,
}

impl Batch {
    /// An empty batch with room for `tokens` tokens, `spans` sequences and `pages` page numbers.
    pub fn with_capacity(tokens: usize, spans: usize, pages: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(tokens),
            positions: Vec::with_capacity(tokens),
            spans: Vec::with_capacity(spans),
            pages: Vec::with_capacity(pages),
            outputs: Vec::with_capacity(tokens),
        }
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
        self.spans.clear();
        self.pages.clear();
        self.outputs.clear();
    }

    /// Adds `tokens` of a sequence with `past` cached tokens; `pages` covers `past + tokens.len()` positions.
    /// Wants logits of the last `outputs` tokens.
    pub fn push(&mut self, tokens: &[u32], past: usize, slot: usize, pages: &[u32], outputs: usize) {
        debug_assert!(!tokens.is_empty() && pages.len() * PAGE_TOKENS >= past + tokens.len());
        let start = self.tokens.len();
        self.spans.push(Span { start, len: tokens.len(), past, slot, pages: self.pages.len() });
        self.tokens.extend_from_slice(tokens);
        self.positions.extend((past..past + tokens.len()).map(|p| p as u32));
        self.pages.extend_from_slice(pages);
        let end = start + tokens.len();
        self.outputs.extend((end - outputs.min(tokens.len())..end).map(|i| i as u32));
    }

    /// Page number that holds `position` of `span`, and the row within the page.
    pub fn page_of(&self, span: &Span, position: usize) -> (usize, usize) {
        (self.pages[span.pages + position / PAGE_TOKENS] as usize, position % PAGE_TOKENS)
    }
}
