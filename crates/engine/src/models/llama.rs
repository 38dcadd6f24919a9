//! Llama and its kin (`llama`): SmolLM2, Llama 3, Mistral, and Mixtral, which is the same with experts; and `qwen2`,
//! which adds biases to the query, key and value projections (the loader takes any bias that the file has).

use octet_compute::backend::Backend;

use super::decoder::{Decoder, Layer};
use super::loader::Loader;
use crate::Error;

/// Loads the model.
pub fn load<B: Backend>(l: &mut Loader<'_, B>) -> Result<Decoder<B>, Error> {
    let c = l.config;
    let (embedding, head) = l.embedding_and_head()?;
    let layer = |i| {
        Ok(Layer { mixer: l.attention(i, false, false)?, feed_forward: l.feed_forward(i, "ffn_norm", true)? })
    };
    let layers = (0..c.layers).map(layer).collect::<Result<_, Error>>()?;
    let norm = l.vector("output_norm.weight", &[c.hidden])?;
    Ok(Decoder { hidden: c.hidden, vocab: c.vocab, eps: c.eps, embedding, layers, norm, head, mtp: None })
}
