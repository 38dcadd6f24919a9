//! ModernBERT (arXiv 2412.13663): an encoder whose layers see all of a text or the tokens around them, with gated GELU.

use octet_compute::backend::{Act, RopePairing, Window};
use octet_weights::Value;

use super::{encoder, glm4::fused};
use crate::Error;
use crate::models::keys::Keys;
use crate::models::plan::*;
use crate::models::rope::{self, ROPE, RopeRules, WINDOWED};

const PATTERN: &str = "attention.sliding_window_pattern";

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let (act, dense) = match k.opt_str("hidden_activation")?.unwrap_or("gelu") {
        "gelu" => (Act::GeluErf, DenseAct::Gelu),
        "silu" => (Act::Silu, DenseAct::Silu),
        other => {
            return Err(k.bad("hidden_activation", format!("is '{other}'; expected 'gelu' or 'silu'")));
        }
    };
    let window = k.window()?;
    let mut blocks = Vec::new();
    for (i, slides) in windowed(k)?.into_iter().enumerate() {
        let norm = |n: &str| k.centred(k.layer_norm(i, n));
        let around = window.filter(|_| slides).map(|size| Window::Around(size / 2));
        let mut a = encoder::attention(k, i, around.unwrap_or(Window::All))?;
        a.rope = Some(usize::from(around.is_some()));
        let attention = Op::Attention(Box::new(a));
        // The embedding's norm is that of the first layer.
        blocks.push(match k.has(&format!("blk.{i}.attn_norm.weight")) {
            true => Block::new(i, norm("attn_norm"), attention),
            false => Block::plain(i, attention),
        });
        let glu = Glu { act, ..fused(k, i, k.inner(i)?) };
        blocks.push(Block::new(i, norm("ffn_norm"), Op::Glu(glu)));
    }
    let (dims, pairing) = (k.head_dims()?[0], k.pairing(RopePairing::Half)?);
    let full = RopeRules { default: 160_000.0, ..ROPE };
    let ropes = [full, WINDOWED].map(|rules| rope::table(k, dims, pairing, rules));
    let mut plan = k.plan(ropes.into_iter().collect::<Result<_, _>>()?, blocks);
    plan.head = Head { norm: k.centred(plan.head.norm), matrix: None, ..plan.head };
    plan.embed.norm = Some(k.centred(k.norm("token_embd_norm", k.hidden)));
    let ranked = match k.own("octet.classifier_pooling")? {
        Some("cls") => Pooling::Cls,
        _ => Pooling::Mean,
    };
    plan.pool = Some(encoder::pool(k, dense, ranked)?);
    Ok(plan)
}

/// Whether each layer has a window: all but the first one and every `n`-th after it.
fn windowed(k: &Keys) -> Result<Vec<bool>, Error> {
    let n = match k.get(PATTERN) {
        None => 3,
        Some(Value::U64(n)) => usize::try_from(*n).unwrap_or(0),
        Some(_) => return Ok(k.pattern(PATTERN)?.unwrap_or_default()),
    };
    Ok((0..k.layers).map(|i| n == 0 || i % n != 0).collect())
}
