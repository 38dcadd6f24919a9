//! SmolLM3: each fourth layer does not rotate.

use super::llama::{LLAMA, decoder};
use crate::Error;
use crate::models::keys::Keys;
use crate::models::plan::*;

pub fn plan(k: &Keys) -> Result<Plan, Error> {
    let mut plan = decoder(k, LLAMA)?;
    for block in plan.blocks.iter_mut().filter(|b| (b.layer + 1) % 4 == 0) {
        for branch in &mut block.branches {
            if let Op::Attention(a) = &mut branch.op {
                a.rope = None;
            }
        }
    }
    Ok(plan)
}
