//! Factors of whole matrices: `NAME.scale` beside `NAME.weight` of NVFP4, one number for a matrix or for each expert.

use std::collections::HashMap;

use crate::map::Mapped;
use crate::quant::float;
use crate::source::Place;
use crate::{Error, GgmlType, RowScales, TensorInfo};

/// Takes such factors, and scales of activations, out of `tensors`; returns them by name of the weight.
pub(super) fn take(
    files: &[Mapped],
    tensors: &mut Vec<(TensorInfo, Place)>,
) -> Result<HashMap<String, RowScales>, Error> {
    let weights: HashMap<String, Vec<usize>> = tensors
        .iter()
        .filter(|(info, _)| info.ty == GgmlType::NVFP4)
        .filter_map(|(info, _)| Some((info.name.strip_suffix(".weight")?.to_string(), info.shape.clone())))
        .collect();
    let mut scales = HashMap::new();
    let mut taken = Vec::new();
    for (i, (info, place)) in tensors.iter().enumerate() {
        let stem = |end: &str| info.name.strip_suffix(end).filter(|stem| weights.contains_key(*stem));
        if stem(".input_scale").is_some() {
            taken.push(i); // activations are not quantised to 4 bits here
        } else if let Some(stem) = stem(".scale") {
            scales.insert(format!("{stem}.weight"), factors(files, info, place, &weights[stem])?);
            taken.push(i);
        }
    }
    taken.into_iter().rev().for_each(|i| drop(tensors.remove(i)));
    Ok(scales)
}

/// A factor of each row of a weight of this shape.
fn factors(files: &[Mapped], info: &TensorInfo, place: &Place, shape: &[usize]) -> Result<RowScales, Error> {
    let Place::Plain { file, range, .. } = place else { return Ok([].into()) };
    let bad = |what: String| Error::tensor(&files[*file].name, &info.name, what);
    if info.ty != GgmlType::F32 {
        return Err(bad(format!("is stored as {}; expected F32", info.ty)));
    }
    let matrices = if shape.len() > 2 { shape[0] } else { 1 };
    let mut values = vec![0.0; info.len()];
    if values.len() != matrices && values.len() != 1 {
        return Err(bad(format!(
            "has {} numbers; expected one for each of {matrices} matrices",
            values.len()
        )));
    }
    float::f32_from_le(&files[*file].bytes[range.clone()], &mut values);
    if let Some(odd) = values.iter().find(|v| !v.is_finite()) {
        return Err(bad(format!("holds {odd}; expected finite numbers")));
    }
    let rows: usize = shape[..shape.len().saturating_sub(1)].iter().product();
    let each = rows / values.len();
    Ok(values.iter().flat_map(|v| std::iter::repeat_n(f64::from(*v), each)).collect())
}
