//! Sizes: of caches, and of a step.

use octet_weights::GgmlType;

use super::{Error, Window};
pub use crate::batch::PageGroup;

/// Type of keys or of values in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum KvType {
    F32,
    F16,
    /// Blocks of 32 values of a head, quantised as ggml does: an f16 scale, then signed bytes.
    Q8_0,
}

impl KvType {
    /// The tensor type with the same blocks.
    pub const fn tensor_type(self) -> GgmlType {
        match self {
            Self::F32 => GgmlType::F32,
            Self::F16 => GgmlType::F16,
            Self::Q8_0 => GgmlType::Q8_0,
        }
    }
    /// Bytes of one head of `head_dim` values, which are whole blocks.
    pub const fn row_bytes(self, head_dim: usize) -> usize {
        let ty = self.tensor_type();
        head_dim.div_ceil(ty.block_len()) * ty.block_bytes()
    }
}

impl std::fmt::Display for KvType {
    /// The name in options: `q8_0`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.tensor_type().name().to_ascii_lowercase())
    }
}

/// Types of the keys and of the values in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct KvTypes {
    pub keys: KvType,
    pub values: KvType,
}

impl KvTypes {
    /// Fails if keys of `k_dim` values and values of `v_dim` are not whole blocks of their types.
    pub fn check(self, k_dim: usize, v_dim: usize) -> Result<(), Error> {
        for (what, ty, dim) in [("keys", self.keys, k_dim), ("values", self.values, v_dim)] {
            let block = ty.tensor_type().block_len();
            if !dim.is_multiple_of(block) {
                return Err(Error(format!(
                    "{what} of type {ty} need heads of a multiple of {block} values, and this model's have {dim}; \
                     f16 and f32 take any"
                )));
            }
        }
        Ok(())
    }
}

impl From<KvType> for KvTypes {
    /// Both of one type.
    fn from(ty: KvType) -> Self {
        Self { keys: ty, values: ty }
    }
}

impl std::fmt::Display for KvTypes {
    /// `f16`, or keys and values: `q8_0/f16`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.keys == self.values {
            return self.keys.fmt(f);
        }
        f.pad(&format!("{}/{}", self.keys, self.values))
    }
}

/// The data that a layer keeps between steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerCache {
    /// Nothing: the layer has no attention, or uses another layer's keys and values.
    None,
    /// Keys `[pages, kv_heads, PAGE_TOKENS, k_dim]` and values `[.., v_dim]`, rows of a head in blocks of their type.
    Kv {
        /// Key/value heads.
        kv_heads: usize,
        /// Dimensions of a key.
        k_dim: usize,
        /// Dimensions of a value; 0 if values are part of the keys.
        v_dim: usize,
        /// The pages that it lies in.
        group: PageGroup,
    },
    /// Of each slot, in f32: the last inputs of a convolution, a recurrent state, and the inputs of each guess.
    State {
        /// Values of the last inputs `[taps - 1, channels]`, oldest first.
        conv: usize,
        /// Values of the state.
        state: usize,
        /// Values of the inputs of one guess.
        inputs: usize,
    },
}

impl LayerCache {
    /// Bytes of the keys of one page, and of its values.
    pub fn page_parts(self, kv: KvTypes) -> [usize; 2] {
        match self {
            Self::Kv { kv_heads, k_dim, v_dim, .. } => [(kv.keys, k_dim), (kv.values, v_dim)]
                .map(|(ty, dim)| kv_heads * crate::batch::PAGE_TOKENS * ty.row_bytes(dim)),
            _ => [0, 0],
        }
    }
    /// Bytes of one page.
    pub fn page_bytes(self, kv: KvTypes) -> usize {
        self.page_parts(kv).iter().sum()
    }
    /// The pages that it lies in, if it has keys and values.
    pub fn group(self) -> Option<PageGroup> {
        match self {
            Self::Kv { group, .. } => Some(group),
            _ => None,
        }
    }
    /// The same in other pages.
    pub fn in_group(self, group: PageGroup) -> Self {
        match self {
            Self::Kv { kv_heads, k_dim, v_dim, .. } => Self::Kv { kv_heads, k_dim, v_dim, group },
            other => other,
        }
    }
    /// Bytes of one state slot.
    pub fn slot_bytes(self) -> usize {
        match self {
            Self::State { conv, state, .. } => 4 * (conv + state),
            _ => 0,
        }
    }
    /// Bytes of the inputs of one guess.
    pub fn guess_bytes(self) -> usize {
        match self {
            Self::State { inputs, .. } => 4 * inputs,
            _ => 0,
        }
    }
}

/// The pages of layers with a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowedPages {
    /// How many.
    pub pages: usize,
    /// The window of these layers, or the widest of them.
    pub window: Window,
}

/// Size of a model's cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheShape {
    /// One entry per layer.
    pub layers: Vec<LayerCache>,
    /// Pages, shared by all KV layers of [`PageGroup::All`]: page `p` holds the same positions in each.
    pub pages: usize,
    /// Pages of [`PageGroup::Windowed`], if there are such layers.
    pub windowed: Option<WindowedPages>,
    /// State slots: one for each running sequence.
    pub slots: usize,
    /// Maximum number of guesses of a span ([`crate::batch::Span::guesses`]).
    pub guesses: usize,
    /// Types of keys and values.
    pub kv: KvTypes,
}

impl CacheShape {
    /// Fails if a layer's heads cannot be stored in the types of keys and values.
    pub fn check(&self) -> Result<(), Error> {
        self.layers.iter().try_for_each(|l| match *l {
            LayerCache::Kv { k_dim, v_dim, .. } => self.kv.check(k_dim, v_dim),
            _ => Ok(()),
        })
    }
    /// Number of pages of a group.
    pub fn pages_of(&self, group: PageGroup) -> usize {
        match group {
            PageGroup::All => self.pages,
            PageGroup::Windowed => self.windowed.map_or(0, |w| w.pages),
        }
    }
    /// Bytes of one page over all layers of a group.
    pub fn page_bytes(&self, group: PageGroup) -> usize {
        let layers = self.layers.iter().filter(|l| l.group() == Some(group));
        layers.map(|l| l.page_bytes(self.kv)).sum()
    }
    /// Bytes of one state slot over all layers.
    pub fn slot_bytes(&self) -> usize {
        self.layers.iter().map(|l| l.slot_bytes()).sum()
    }
}

/// The largest possible step, for which a backend allocates its scratch memory. Sizes are the largest of all layers; 0 without such a part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Tokens of a step.
    pub tokens: usize,
    /// Rows of logits of a step.
    pub outputs: usize,
    /// Query heads.
    pub heads: usize,
    /// Intermediate row of a dense block or a shared expert.
    pub intermediate: usize,
    /// Experts of a layer.
    pub experts: usize,
    /// Experts that a token is routed to.
    pub top_k: usize,
    /// Intermediate row of a routed expert.
    pub expert_intermediate: usize,
    /// Of recurrent layers: values of all keys, all values (or channels of a convolution), value heads, dimensions of a key head; and what a
    /// thread needs to advance a copy of a head's state, with an output.
    pub recurrent: [usize; 6],
    /// Heads of a product by heads ([`super::Backend::per_head`]), and columns of one.
    pub per_head: [usize; 2],
}
