//! Synthetic models: the tensors, types and metadata of a published model with random weights, for measurements before a download and for
//! tests without reference data.
//!
//! [`synthetic`] returns an [`octet_weights::Model`] whose tensors are generated in memory when they are requested; [`fn@write`]
//! writes it (or any other model) as a GGUF file that other engines can load. The same shape, types and seed give the same bytes on
//! every machine.

mod error;
pub mod known;
mod listing;
mod metadata;
mod mix;
mod plan;
mod projector;
mod shape;
mod source;
mod tiny;
mod tokenizer;
mod write;

pub use error::Error;
pub use listing::Listing;
pub use mix::Mix;
pub use projector::projector;
pub use shape::{GdnShape, MoeShape, RopeScaling, Shape};
pub use tiny::{TINY_ARCHITECTURES, tiny, tiny_shape};
pub use write::{check_output, write};

/// A model of this shape with random weights of these types.
///
/// `layers` replaces the shape's own number of layers: two layers of a large model are enough to see whether it loads,
/// eight to measure it. A hybrid model always keeps both kinds of layer: below four layers the last one is attention.
pub fn synthetic(
    shape: &Shape,
    mix: Mix,
    layers: Option<usize>,
    seed: u64,
) -> Result<octet_weights::Model, Error> {
    skewed(shape, mix, layers, seed, 0.0)
}

/// The same without a tokenizer, for a model's sizes: to make up 200,000 words takes longer than all else.
pub fn outline(shape: &Shape, mix: Mix) -> Result<octet_weights::Model, Error> {
    let origin = format!("outline of {} {mix}", shape.name);
    let source = source::SyntheticSource::new(plan::plan(shape, mix), 0, 0.0);
    let metadata = metadata::without_tokenizer(shape, mix, &origin);
    Ok(octet_weights::Model::new(origin, metadata, Box::new(source))?)
}

/// [`synthetic`] with routers that choose some experts more often than others: row `e` of each router is multiplied with `exp(skew * z)`, `z` normally
/// distributed. The larger the row, the more often its expert is among the first.
pub fn skewed(
    shape: &Shape,
    mix: Mix,
    layers: Option<usize>,
    seed: u64,
    skew: f32,
) -> Result<octet_weights::Model, Error> {
    let shape = match layers {
        Some(n) => shape.with_layers(n)?,
        None => shape.clone(),
    };
    let origin = format!("synthetic {} {mix}", shape.name);
    let metadata = metadata::metadata(&shape, mix, &origin);
    let source = source::SyntheticSource::new(plan::plan(&shape, mix), seed, skew);
    Ok(octet_weights::Model::new(origin, metadata, Box::new(source))?)
}
