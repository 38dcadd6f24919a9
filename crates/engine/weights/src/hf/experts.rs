//! Experts whose types differ: some checkpoints keep a few experts of a layer in 8 bits beside others in 4.

use std::collections::BTreeMap;

use crate::schemes;
use crate::source::{Convert, Place};
use crate::{GgmlType, TensorInfo};

/// The projection of `blk.I.ffn_PROJECTION.E.weight`, without the expert.
fn projection(name: &str) -> Option<&str> {
    let stem = name.strip_suffix(".weight")?;
    let (projection, expert) = stem.rsplit_once('.')?;
    (projection.contains(".ffn_") && expert.parse::<u32>().is_ok()).then_some(projection)
}

/// Gives all experts of one projection one type, which holds the values of all: a backend keeps them in one allocation.
pub(super) fn unify(tensors: &mut [(TensorInfo, Place)]) {
    let mut by_projection: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (i, (info, _)) in tensors.iter().enumerate() {
        if let Some(projection) = projection(&info.name) {
            by_projection.entry(projection.to_string()).or_default().push(i);
        }
    }
    for members in by_projection.into_values() {
        let first = tensors[members[0]].0.ty;
        if members.iter().all(|&i| tensors[i].0.ty == first) {
            continue;
        }
        let is_member: std::collections::HashSet<usize> = members.iter().copied().collect();
        let mut quantised = Vec::new();
        let mut any_plain = false;
        for (_, (_, place)) in tensors.iter_mut().enumerate().filter(|(i, _)| is_member.contains(i)) {
            match place {
                Place::Quantised(q) => quantised.push(q),
                // Only of GGUF files.
                Place::Rows { .. } => any_plain = true,
                Place::Plain { convert, stored, .. } => {
                    any_plain = true;
                    *convert = if *stored == GgmlType::F32 { Convert::None } else { Convert::Widen };
                }
            }
        }
        let common = schemes::unify(quantised, any_plain);
        members.into_iter().for_each(|i| tensors[i].0.ty = common);
    }
}
