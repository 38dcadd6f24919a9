//! Parts of a model, in the order of a forward pass: a backend of several devices divides a model by them.

/// A part of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// What comes before the first layer.
    Embedding,
    /// A layer by its number. Those after the last one are blocks for multi-token prediction.
    Layer(usize),
    /// What comes after the last layer.
    Head,
}
