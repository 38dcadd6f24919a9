//! compressed-tensors' integers: `pack-quantized` (dense strings of bits in `weight_packed`), and `int-quantized` and
//! `naive-quantized` (bytes in `weight`).
//!
//! `weight_packed` I32 [out, in bits / 32] with `weight_shape` [2]; `weight_scale` [out, groups] or [1]; `weight_zero_point` I32 [out bits /
//! 32, groups]; `weight_g_idx` I32 [in]. Integers and zero points are stored plus half of their range, so that it cancels out.

use super::group::{Floats, Group, Part};
use super::ints::{Groups, Ints, Quants, Scales, Zeros};
use super::qweight::{index, sized};
use super::{Bad, Opened, Settings};

pub(super) fn open(g: &Group, settings: &Settings) -> Option<Result<Opened, Bad>> {
    let packed = g.part("weight_packed").filter(|p| p.is(&["I32", "U32"]))?;
    Some(read(g, packed, settings))
}

fn read(g: &Group, packed: &Part, settings: &Settings) -> Result<Opened, Bad> {
    let (shape, scale) = (g.need("weight_shape", packed)?, g.need("weight_scale", packed)?);
    let [rows, words] = packed.matrix()?;
    let cols = columns(shape, rows)?;
    let bits =
        (2..=8).find(|b| cols.checked_mul(*b).is_some_and(|n| n.div_ceil(32) == words)).ok_or_else(|| {
            packed.bad(format!("has rows of {words} words for {cols} values; expected 2 to 8 bits each"))
        })?;
    let (scales, groups) = scales(scale, rows)?;
    let mut parts = vec!["weight_packed", "weight_scale"];
    let zeros = match g.part("weight_zero_point") {
        None => Zeros::Middle,
        Some(zeros) => {
            zeros.expect_type(&["I32", "U32"])?;
            zeros.expect(&[(rows * bits).div_ceil(32), groups], "a zero point for each scale")?;
            parts.push("weight_zero_point");
            Zeros::Packed
        }
    };
    let groups = match g.part("weight_g_idx") {
        // -1 stands for no order of its own.
        Some(part) if part.words().any(|w| w != u32::MAX) => {
            parts.push("weight_g_idx");
            index(part, cols, groups)?
        }
        Some(_) => {
            parts.push("weight_g_idx");
            sized(scale, cols, groups, settings)?
        }
        None => sized(scale, cols, groups, settings)?,
    };
    let quants = Quants::Rows { row_bytes: 4 * words };
    let mut opened = opened(Ints { rows, cols, bits: bits as u32, quants, zeros, scales, groups }, parts);
    opened.parts.push("weight_shape");
    Ok(opened)
}

fn opened(ints: Ints, parts: Vec<&'static str>) -> Opened {
    Opened { ty: ints.ty(), shape: vec![ints.rows, ints.cols], parts, reader: Box::new(ints) }
}

/// The number of columns that `weight_shape` says.
fn columns(shape: &Part, rows: usize) -> Result<usize, Bad> {
    shape.expect_type(&["I64", "I32"])?;
    shape.expect(&[2], "rows and columns")?;
    let numbers: Vec<u64> = match shape.dtype() {
        "I64" => shape.bytes.as_chunks().0.iter().map(|b| u64::from_le_bytes(*b)).collect(),
        _ => shape.words().map(u64::from).collect(),
    };
    match numbers[..] {
        [r, cols] if r == rows as u64 && (1..=1 << 32).contains(&cols) => Ok(cols as usize),
        _ => Err(shape
            .bad(format!("holds {numbers:?}; expected [{rows}, columns], as weight_packed has {rows} rows"))),
    }
}

/// Where the scales are, and how many groups a row has.
fn scales(scale: &Part, rows: usize) -> Result<(Scales, usize), Bad> {
    scale.expect_type(&["F16", "BF16", "F32"])?;
    let groups = match scale.shape[..] {
        [r, groups] if r == rows && groups > 0 => groups,
        [r] if r == rows => 1,
        _ if scale.len() == 1 => 1,
        _ => {
            let what = format!("has shape {:?}; expected [{rows}, groups], [{rows}] or [1]", scale.shape);
            return Err(scale.bad(what));
        }
    };
    let single = scale.len() == 1;
    Ok((Scales { floats: Floats::new(scale.dtype()), groups, by_group: false, single, divisor: 1.0 }, groups))
}

pub(super) fn open_bytes(g: &Group, settings: &Settings) -> Option<Result<Opened, Bad>> {
    let weight = g.part("weight").filter(|p| p.is(&["I8"]))?;
    let scale = g.part("weight_scale")?;
    Some(read_bytes(g, weight, scale, settings))
}

fn read_bytes(g: &Group, weight: &Part, scale: &Part, settings: &Settings) -> Result<Opened, Bad> {
    let [rows, cols] = weight.matrix()?;
    let (scales, groups) = scales(scale, rows)?;
    let mut parts = vec!["weight", "weight_scale"];
    let zeros = match g.part("weight_zero_point") {
        None => Zeros::Middle,
        Some(zeros) => {
            zeros.expect_type(&["I8"])?;
            zeros.expect(&scale.shape, "a zero point for each scale")?;
            parts.push("weight_zero_point");
            if zeros.bytes.iter().all(|b| *b == 0) { Zeros::Middle } else { Zeros::Bytes }
        }
    };
    if scales.single && matches!(zeros, Zeros::Bytes) {
        return Err(scale.bad("is one scale for a matrix with zero points; expected one of each row"));
    }
    let groups = if groups == 1 { Groups::Size(cols) } else { sized(scale, cols, groups, settings)? };
    Ok(opened(Ints { rows, cols, bits: 8, quants: Quants::Bytes, zeros, scales, groups }, parts))
}
