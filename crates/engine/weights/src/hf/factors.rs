//! Multipliers of a family's code, which become factors of rows: exact, without a copy, and whatever the type.

use std::collections::HashMap;

use super::arch::RowFactors;
use crate::source::Place;
use crate::{Metadata, RowScales, TensorInfo, Value};

/// The key that has them, for programs that tell files of the same tensors apart.
const KEY: &str = "octet.row_factors";

/// The factors of all rows of the matrices that have some, by name.
pub(super) fn of_rows(factors: &[RowFactors], tensors: &[(TensorInfo, Place)]) -> HashMap<String, RowScales> {
    let parts = |name: &str| {
        let (_, stem) = name.strip_prefix("blk.")?.split_once('.')?;
        Some(&factors.iter().find(|(end, _)| *end == stem)?.1)
    };
    let mut all = HashMap::new();
    for (info, _) in tensors {
        let Some(parts) = parts(&info.name) else { continue };
        let rows: usize = info.shape[..info.shape.len() - 1].iter().product();
        // A tensor of another shape than the model's is the loader's to refuse.
        let mut of_rows = Vec::with_capacity(rows);
        for (n, factor) in parts {
            let n = (*n).min(rows - of_rows.len());
            of_rows.extend(std::iter::repeat_n(*factor, n));
        }
        all.insert(info.name.clone(), of_rows.into());
    }
    all
}

/// Writes them down.
pub(super) fn record(factors: &[RowFactors], metadata: &mut Metadata) {
    if !factors.is_empty() {
        metadata.insert(KEY, Value::Str(format!("{factors:?}")));
    }
}
