//! Qwen3.5 and Qwen3.6 (`qwen35`, `qwen35moe`): Gated DeltaNet in most layers, gated attention in the rest, dense or
//! mixture-of-experts MLPs, an optional multi-token-prediction block.

use octet_compute::backend::Backend;

use super::decoder::{Decoder, Layer, Mtp};
use super::loader::Loader;
use crate::Error;

/// Loads the model; the multi-token-prediction block too where the file has one and `with_mtp` asks for it.
pub fn load<B: Backend>(l: &mut Loader<'_, B>, with_mtp: bool) -> Result<Decoder<B>, Error> {
    let c = l.config;
    let (embedding, head) = l.embedding_and_head()?;
    let layers = (0..c.layers).map(|i| layer(l, i, c.recurrent[i])).collect::<Result<_, _>>()?;
    let mtp = if with_mtp && c.mtp_layers == 1 { Some(mtp(l, c.layers)?) } else { None };
    let norm = l.vector("output_norm.weight", &[c.hidden])?;
    Ok(Decoder { hidden: c.hidden, vocab: c.vocab, eps: c.eps, embedding, layers, norm, head, mtp })
}

fn layer<B: Backend>(l: &mut Loader<'_, B>, i: usize, recurrent: bool) -> Result<Layer<B>, Error> {
    Ok(Layer {
        mixer: if recurrent { l.gdn(i)? } else { l.attention(i, true, true)? },
        feed_forward: l.feed_forward(i, "post_attention_norm", true)?,
    })
}

fn mtp<B: Backend>(l: &mut Loader<'_, B>, i: usize) -> Result<Mtp<B>, Error> {
    let h = l.config.hidden;
    let name = |n: &str| format!("blk.{i}.nextn.{n}.weight");
    let norm = name("shared_head_norm");
    let norm = if l.model.info(&norm).is_some() { norm } else { "output_norm.weight".to_string() };
    Ok(Mtp {
        embed_norm: l.vector(&name("enorm"), &[h])?,
        hidden_norm: l.vector(&name("hnorm"), &[h])?,
        fc_embed: l.columns(&name("eh_proj"), [h, 2 * h], 0..h)?,
        fc_hidden: l.columns(&name("eh_proj"), [h, 2 * h], h..2 * h)?,
        layer: layer(l, i, false)?,
        norm: l.vector(&norm, &[h])?,
    })
}
