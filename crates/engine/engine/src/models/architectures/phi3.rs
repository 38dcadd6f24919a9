//! Phi-3, 3.5 and 4: fused projections, and LongRoPE.

use octet_compute::backend::{RopePairing, Window};

use super::{glm4::fused, llama::Windows};
use crate::Error;
use crate::models::keys::Keys;
use crate::models::plan::*;
use crate::models::rope::{self, ROPE, RopeRules};

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let windows = Windows::read(k)?;
    let mut blocks = Vec::new();
    for i in 0..k.layers {
        let mut a = k.attention(i, [heads[i], kv_heads[i]], dims)?;
        if let Some(w) = windows.as_ref().filter(|w| w.slides[i]) {
            a.window = Window::Last(w.size);
        }
        blocks.push(Block::new(i, k.layer_norm(i, "attn_norm"), Op::Attention(Box::new(a))));
        let glu = Op::Glu(fused(k, i, k.inner(i)?));
        blocks.push(Block::new(i, k.layer_norm(i, "ffn_norm"), glu));
    }
    let rope_dims = k.rope_dims("rope.dimension_count", dims[0])?;
    let rules = RopeRules { long: true, ..ROPE };
    let mut rope = rope::table(k, rope_dims, k.pairing(RopePairing::Half)?, rules)?;
    rope::longrope(k, &mut rope)?;
    Ok(k.plan(vec![rope], blocks))
}
