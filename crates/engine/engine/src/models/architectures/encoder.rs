//! What encoders share: attention in both directions, and the layers after pooling. And encoders that are decoders otherwise.

use octet_compute::backend::Window;

use super::llama;
use crate::Error;
use crate::models::keys::{Keys, MAX_DIM};
use crate::models::plan::*;

/// Values of `pooling_type`, as in llama.cpp.
const CLS: usize = 2;
const LAST: usize = 3;
const RANK: usize = 4;

/// Attention of block `i` in both directions, with the first rotation. Its keys and values are needed only
/// until the next layer's, so all layers have one place for them.
pub fn attention(k: &Keys, i: usize, window: Window) -> Result<Attention, Error> {
    let (heads, kv_heads, dims) = (k.heads()?, k.kv_heads()?, k.head_dims()?);
    let mut a = k.attention(i, [heads[i], kv_heads[i]], dims)?;
    see_both_ways(&mut a, i, kv_heads[i] == kv_heads[0]);
    a.window = window;
    Ok(a)
}

/// EuroBERT: Llama's layers, with pairs of halves.
pub fn eurobert(k: &Keys) -> Result<Plan, Error> {
    of_decoder(k, llama::halves(k)?)
}

/// llama-embed-nemotron.
pub fn llama_embed(k: &Keys) -> Result<Plan, Error> {
    of_decoder(k, llama::plan(k)?)
}

/// The encoder with a decoder's layers.
fn of_decoder(k: &Keys, mut plan: Plan) -> Result<Plan, Error> {
    for block in &mut plan.blocks {
        for branch in &mut block.branches {
            if let Op::Attention(a) = &mut branch.op {
                see_both_ways(a, block.layer, true);
            }
        }
    }
    plan.head.matrix = None;
    plan.pool = Some(pool(k, DenseAct::None, Pooling::Mean)?);
    Ok(plan)
}

/// Makes attention of block `i` that of an encoder; `same`: its keys are as large as those of the first one.
pub fn see_both_ways(a: &mut Attention, i: usize, same: bool) {
    a.two_way = true;
    a.keeps = if i > 0 && same { Keeps::Of(0) } else { Keeps::Own };
}

/// What follows the states: the classifier of a reranker, whose first layer has the activation `act`, or projections of the pooled state.
/// `ranked` is what a reranker pools.
pub fn pool(k: &Keys, act: DenseAct, ranked: Pooling) -> Result<Pool, Error> {
    if k.flag("attention.causal")? == Some(true) {
        return Err(k.bad("attention.causal", "is true; this architecture sees all of a text".into()));
    }
    let kind = k.opt_size("pooling_type", RANK)?;
    let has = |name: &str| k.has(&format!("{name}.weight"));
    let ranks = kind == Some(RANK) || kind.is_none() && (has("cls") || has("cls.output"));
    let names: &[(&str, DenseAct)] = match ranks {
        true => &[("cls", act), ("cls.output", DenseAct::None)],
        false => &[("dense_2", DenseAct::None), ("dense_3", DenseAct::None)],
    };
    let mut layers: Vec<Dense> = Vec::new();
    let mut width = k.hidden;
    for (name, act) in names.iter().filter(|(name, _)| has(name)) {
        let rows = k.range(name, k.rows(name)?, MAX_DIM)?;
        let stated = k.own(&format!("octet.{name}.activation"))?;
        let norm = (*name == "cls" && has("cls.norm")).then(|| k.centred(k.norm("cls.norm", rows)));
        let act = match stated {
            None => *act,
            Some("tanh") => DenseAct::Tanh,
            Some("gelu") => DenseAct::Gelu,
            Some("silu") => DenseAct::Silu,
            Some(_) => DenseAct::None,
        };
        layers.push(Dense { matrix: Tensor::matrix(*name, rows, width), act, norm });
        width = rows;
    }
    if ranks {
        check_score(k, &mut layers)?;
    }
    let pooling = match kind {
        _ if ranks => ranked,
        Some(CLS) => Pooling::Cls,
        Some(LAST) => Pooling::Last,
        _ => Pooling::Mean,
    };
    Ok(Pool { pooling, layers, ranks })
}

/// Fails unless the last layer gives one score, which has no activation.
fn check_score(k: &Keys, layers: &mut [Dense]) -> Result<(), Error> {
    match layers.last_mut() {
        Some(last) if last.matrix.shape[0] == 1 => {
            last.act = DenseAct::None;
            Ok(())
        }
        Some(last) => {
            let what = format!("is 4 (rank), but the classifier has {} labels", last.matrix.shape[0]);
            Err(k.bad("pooling_type", what))
        }
        None => {
            Err(k.bad("pooling_type", "is 4 (rank), but the file has no tensor cls.output.weight".into()))
        }
    }
}
