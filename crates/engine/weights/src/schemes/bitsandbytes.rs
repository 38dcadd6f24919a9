//! bitsandbytes: NF4 and FP4 (a table of 16 values under a maximum a block), and int8 under a maximum a row.
//!
//! `NAME.weight` U8 [values / 2, 1], the first value in the high half; `.weight.quant_map` F32 [16]; `.weight.absmax` F32, or U8 with
//! `.nested_absmax` and `.nested_quant_map`; `.weight.quant_state.bitsandbytes__nf4` holds JSON with the shape and the sizes of blocks.
//! 8 bit: `NAME.weight` I8 and `NAME.SCB` F32 [out], `q SCB / 127`.

use std::ops::Range;

use super::group::{Floats, Group, Part};
use super::ints::{Groups, Ints, Quants, Scales, Zeros};
use super::quantised::Read;
use super::{Bad, Opened, Settings};
use crate::GgmlType;
use crate::quant::levels;

const STATES: [&str; 2] = ["weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4"];

/// The JSON of a matrix.
#[derive(serde::Deserialize)]
struct State {
    shape: Vec<usize>,
    blocksize: usize,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f32>,
}

/// A part with odd contents, and what is odd.
type Odd = (usize, String);

struct Table {
    cols: usize,
    map: Vec<f32>,
    block: usize,
    /// Nested maxima: the values of their bytes, those of blocks of them, the size of these, and what is added.
    nested: Option<(Vec<f32>, Vec<f32>, usize, f32)>,
}

pub(super) fn open(g: &Group, _: &Settings) -> Option<Result<Opened, Bad>> {
    let (label, state) = STATES.into_iter().find_map(|label| Some((label, g.part(label)?)))?;
    Some(read(g, label, state))
}

fn read(g: &Group, label: &'static str, part: &Part) -> Result<Opened, Bad> {
    let (weight, absmax, map) =
        (g.need("weight", part)?, g.need("weight.absmax", part)?, g.need("weight.quant_map", part)?);
    weight.expect_type(&["U8"])?;
    let state: State = serde_json::from_slice(part.bytes)
        .map_err(|e| part.bad(format!("is not the JSON of a matrix: {e}")))?;
    let values = state.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).unwrap_or(0);
    let cols = match state.shape[..] {
        [_, cols] if values > 0 && values.div_ceil(2) == weight.len() => cols,
        _ => {
            let what = format!("has the shape {:?} for {} bytes, two values each", state.shape, weight.len());
            return Err(part.bad(what));
        }
    };
    if !cols.is_multiple_of(2) || state.blocksize == 0 {
        return Err(part.bad(format!(
            "has rows of {cols} values and blocks of {}; expected even ones",
            state.blocksize
        )));
    }
    let blocks = values.div_ceil(state.blocksize);
    absmax.expect(&[blocks], "one of each block")?;
    let map = map.floats()?;
    if map.len() != 16 {
        return Err(part.bad(format!("has a table of {} values; expected 16", map.len())));
    }
    let mut parts = vec!["weight", "weight.absmax", "weight.quant_map", label];
    let nested = match g.part("weight.nested_absmax") {
        None => {
            absmax.expect_type(&["F32"])?;
            None
        }
        Some(outer) => {
            absmax.expect_type(&["U8"])?;
            let table = g.need("weight.nested_quant_map", outer)?;
            let values = table.floats()?;
            let (Some(block), Some(offset)) =
                (state.nested_blocksize.filter(|n| *n > 0), state.nested_offset)
            else {
                return Err(part.bad("has nested maxima, but neither nested_blocksize nor nested_offset"));
            };
            outer.expect(&[blocks.div_ceil(block)], "one of each block of maxima")?;
            table.expect(&[256], "a value for each byte")?;
            parts.extend(["weight.nested_absmax", "weight.nested_quant_map"]);
            Some((values, outer.floats()?, block, offset))
        }
    };
    let reader = Table { cols, map, block: state.blocksize, nested };
    Ok(Opened { ty: reader.ty(), shape: state.shape, parts, reader: Box::new(reader) })
}

impl Table {
    /// The type that holds its values: with the usual tables, and blocks that do not reach over the end of a row.
    fn ty(&self) -> GgmlType {
        let whole_blocks = [self.cols, self.block].iter().all(|n| n.is_multiple_of(levels::LEN));
        match self.map[..] {
            _ if !whole_blocks => GgmlType::F32,
            ref map if *map == levels::NF4 => GgmlType::NF4,
            ref map if *map == levels::FP4 => GgmlType::FP4,
            _ => GgmlType::F32,
        }
    }

    /// The maximum of a block.
    fn maximum(&self, absmax: &[u8], block: usize) -> Result<f32, Odd> {
        let maximum = match &self.nested {
            None => {
                let mut one = [0.0];
                Floats::F32.read(absmax, block, &mut one);
                one[0]
            }
            Some((values, outer, size, offset)) => {
                values[usize::from(absmax[block])] * outer[block / size] + offset
            }
        };
        match maximum.is_finite() {
            true => Ok(maximum),
            false => Err((1, format!("holds a maximum of {maximum}; expected finite numbers"))),
        }
    }
}

impl Read for Table {
    fn rows(&self, parts: &[&[u8]], rows: Range<usize>, out: &mut [u8]) -> Result<(), Odd> {
        let first = rows.start * self.cols;
        if self.ty() != GgmlType::F32 {
            let bytes = &parts[0][first / 2..];
            for (i, out) in out.chunks_exact_mut(levels::BYTES).enumerate() {
                let maximum = self.maximum(parts[1], (first + levels::LEN * i) / self.block)?;
                out[..levels::QS].copy_from_slice(&maximum.to_le_bytes());
                let two = &bytes[levels::LEN / 2 * i..];
                out[levels::QS..].iter_mut().zip(two).for_each(|(out, q)| *out = q.rotate_left(4));
            }
            return Ok(());
        }
        let mut of = usize::MAX;
        let mut maximum = 0.0;
        for (i, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let at = first + i;
            if at / self.block != of {
                of = at / self.block;
                maximum = self.maximum(parts[1], of)?;
            }
            let q = parts[0][at / 2] >> (4 * (1 - at % 2)) & 15;
            *out = (self.map[usize::from(q)] * maximum).to_le_bytes();
        }
        Ok(())
    }
}

pub(super) fn open_bytes(g: &Group, _: &Settings) -> Option<Result<Opened, Bad>> {
    let (weight, scb) = (g.part("weight").filter(|p| p.is(&["I8"]))?, g.part("SCB")?);
    let read = || {
        let [rows, cols] = weight.matrix()?;
        scb.expect_type(&["F32"])?;
        scb.expect(&[rows], "one maximum a row")?;
        let scales =
            Scales { floats: Floats::F32, groups: 1, by_group: false, single: false, divisor: 127.0 };
        let (quants, zeros, groups) = (Quants::Bytes, Zeros::Middle, Groups::Size(cols));
        let ints = Ints { rows, cols, bits: 8, quants, zeros, scales, groups };
        Ok(Opened {
            ty: ints.ty(),
            shape: vec![rows, cols],
            parts: vec!["weight", "SCB"],
            reader: Box::new(ints),
        })
    };
    Some(read())
}
