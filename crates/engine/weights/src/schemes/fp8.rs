//! 8-bit floats under scales: DeepSeek's and Qwen's tiles of 128 x 128, Mistral's one scale a matrix, compressed-tensors' and ModelOpt's
//! scales of a matrix, a row or tiles, and MXFP8.
//!
//! `weight` F8_E4M3 or F8_E5M2 [out, in], and `weight_scale_inv` or `weight_scale`, which both multiply:
//!
//! | shape of the scales | each is for |
//! |---|---|
//! | [] or [1] | the matrix |
//! | [out] or [out, 1] | a row |
//! | [out / 128, in / 128], or with dimensions of 1 between | a tile; the last ones are smaller |
//! | U8 or F8_E8M0 [out, in / 32] | 32 columns |
//!
//! Experts that are fused have one more dimension in front of both: `experts.gate_up_proj` and `experts.gate_up_proj_scale_inv`.

use std::ops::Range;

use super::group::{Floats, Group, Part};
use super::quantised::Read;
use super::{Bad, Opened, Settings};
use crate::GgmlType;
use crate::quant::fp8;

const TYPES: &[&str] = &["F8_E4M3", "F8_E5M2"];

/// What a scale is for.
enum Scaled {
    /// Each row of a matrix; `single`: all rows of each of `matrices`.
    Rows { single: bool, matrices: usize },
    /// Tiles of `[rows, columns]`, of which a matrix has `down` times `across`.
    Tiles { tile: [usize; 2], down: usize, across: usize },
}

struct Fp8 {
    /// Rows of one matrix.
    rows: usize,
    cols: usize,
    e5m2: bool,
    floats: Floats,
    scaled: Scaled,
    ty: GgmlType,
}

pub(super) fn open(g: &Group, settings: &Settings) -> Option<Result<Opened, Bad>> {
    let pairs = [("weight", "weight_scale_inv"), ("weight", "weight_scale"), ("", "_scale_inv")];
    let found =
        pairs.into_iter().find_map(|(w, s)| Some((g.part(w).filter(|p| p.is(TYPES))?, g.part(s)?, [w, s])));
    let (weight, scale, labels) = found?;
    Some(read(weight, scale, labels, settings))
}

fn read(weight: &Part, scale: &Part, labels: [&'static str; 2], settings: &Settings) -> Result<Opened, Bad> {
    let (matrices, rows, cols) = match weight.shape[..] {
        [rows, cols] => (1, rows, cols),
        [matrices, rows, cols] => (matrices, rows, cols),
        _ => {
            return Err(
                weight.bad(format!("has shape {:?}; expected a matrix or a stack of them", weight.shape))
            );
        }
    };
    if matrices * rows * cols == 0 {
        return Err(weight.bad(format!("has shape {:?}; expected no dimension of 0", weight.shape)));
    }
    scale.expect_type(&["F32", "BF16", "F16", "F8_E8M0", "U8"])?;
    let scaled = scaled(weight, scale, [matrices, rows, cols], settings)?;
    let e5m2 = weight.is(&["F8_E5M2"]);
    let ty = match &scaled {
        _ if e5m2 => GgmlType::F32,
        Scaled::Rows { .. } => GgmlType::F8_E4M3,
        Scaled::Tiles { tile, .. } => tiled_type(tile[1], cols),
    };
    let reader = Fp8 { rows, cols, e5m2, floats: Floats::new(scale.dtype()), scaled, ty };
    Ok(Opened { ty, shape: weight.shape.clone(), parts: labels.to_vec(), reader: Box::new(reader) })
}

fn tiled_type(tile_cols: usize, cols: usize) -> GgmlType {
    let fits =
        |block: usize| cols.is_multiple_of(block) && (tile_cols.is_multiple_of(block) || tile_cols >= cols);
    match () {
        () if fits(128) => GgmlType::F8_128,
        () if fits(32) => GgmlType::F8_32,
        () => GgmlType::F32,
    }
}

/// MXFP8 whose parts were checked.
pub(super) fn opened_mx(shape: Vec<usize>, parts: Vec<&'static str>) -> Opened {
    let cols = shape.last().copied().unwrap_or(0);
    let rows = shape.iter().product::<usize>() / cols.max(1);
    let scaled = Scaled::Tiles { tile: [1, 32], down: rows, across: cols / 32 };
    let reader = Fp8 { rows, cols, e5m2: false, floats: Floats::E8m0, scaled, ty: GgmlType::F8_32 };
    Opened { ty: GgmlType::F8_32, shape, parts, reader: Box::new(reader) }
}

fn scaled(
    weight: &Part,
    scale: &Part,
    [matrices, rows, cols]: [usize; 3],
    settings: &Settings,
) -> Result<Scaled, Bad> {
    let n = scale.len();
    if n == matrices && (n == 1 || scale.shape[0] == matrices) {
        return Ok(Scaled::Rows { single: true, matrices });
    }
    let outer = if matrices > 1 || weight.shape.len() == 3 { &[matrices][..] } else { &[] };
    let Some(inner) = scale.shape.strip_prefix(outer) else {
        return Err(scale.bad(format!("has shape {:?} beside a weight of {:?}", scale.shape, weight.shape)));
    };
    let (down, across) = match *inner {
        [down] | [down, 1] if down == rows => return Ok(Scaled::Rows { single: false, matrices }),
        [down, across] | [down, 1, across, 1] if down * across > 0 => (down, across),
        _ => {
            let what = format!(
                "has shape {:?} beside a weight of {:?}; expected one scale, one a row, or one a tile of 128 x 128",
                scale.shape, weight.shape
            );
            return Err(scale.bad(what));
        }
    };
    // Powers of two of each 32 columns; tiles of them are larger.
    if scale.is(&["U8", "F8_E8M0"]) && down == rows && across * 32 == cols {
        return Ok(Scaled::Tiles { tile: [1, 32], down, across });
    }
    let size = |n: usize, parts: usize, stated: Option<usize>| {
        let fits = |size: &usize| n.div_ceil(*size) == parts;
        let whole = n.is_multiple_of(parts).then(|| n / parts);
        stated.into_iter().chain([128, 32]).find(fits).or(whole)
    };
    let stated = settings.tile.map(|t| t.map(Some)).unwrap_or_default();
    let (Some(tall), Some(wide)) = (size(rows, down, stated[0]), size(cols, across, stated[1])) else {
        let what = format!(
            "has shape {:?}, which does not divide a weight of {:?} into tiles",
            scale.shape, weight.shape
        );
        return Err(scale.bad(what));
    };
    let tile = [tall, wide];
    Ok(Scaled::Tiles { tile, down, across })
}

impl Fp8 {
    /// The scales of a row, one of each tile across.
    fn tile_scales(&self, bytes: &[u8], row: usize, out: &mut [f32]) -> Result<(), (usize, String)> {
        match &self.scaled {
            Scaled::Rows { single, .. } => {
                self.floats.read(bytes, if *single { row / self.rows } else { row }, out);
            }
            Scaled::Tiles { tile, down, across } => {
                let line = row / self.rows * down + row % self.rows / tile[0];
                self.floats.read(bytes, line * across, out);
            }
        }
        match out.iter().find(|v| !v.is_finite()) {
            None => Ok(()),
            Some(v) => Err((1, format!("holds a scale of {v}; expected finite numbers"))),
        }
    }
}

impl Read for Fp8 {
    fn rows(&self, parts: &[&[u8]], rows: Range<usize>, out: &mut [u8]) -> Result<(), (usize, String)> {
        let weight = &parts[0][rows.start * self.cols..rows.end * self.cols];
        let is_number = |q: &u8| if self.e5m2 { q & 0x7c != 0x7c } else { q & 0x7f != 0x7f };
        if !weight.iter().all(is_number) {
            return Err((0, "holds values that are not finite".into())); // for which kernels have no place
        }
        if self.ty == GgmlType::F8_E4M3 {
            out.copy_from_slice(weight);
            return Ok(());
        }
        let (tile_cols, across) = match &self.scaled {
            Scaled::Rows { .. } => (self.cols, 1),
            Scaled::Tiles { tile, across, .. } => (tile[1], *across),
        };
        let mut scales = vec![0.0; across];
        let row_bytes = out.len() / rows.len().max(1);
        for ((row, q), out) in rows.zip(weight.chunks(self.cols)).zip(out.chunks_exact_mut(row_bytes)) {
            self.tile_scales(parts[1], row, &mut scales)?;
            if self.ty == GgmlType::F32 {
                for ((c, &q), out) in q.iter().enumerate().zip(out.as_chunks_mut().0) {
                    let value = if self.e5m2 { fp8::e5m2(q) } else { fp8::E4M3[usize::from(q)] };
                    *out = (value * scales[c / tile_cols]).to_le_bytes();
                }
                continue;
            }
            let block = self.ty.block_len();
            for ((i, q), out) in q.chunks(block).enumerate().zip(out.chunks_exact_mut(fp8::QS + block)) {
                out[..fp8::QS].copy_from_slice(&scales[i * block / tile_cols].to_le_bytes());
                out[fp8::QS..].copy_from_slice(q);
            }
        }
        Ok(())
    }

    fn scales(&self, parts: &[&[u8]]) -> Result<Option<Vec<f64>>, (usize, String)> {
        let Scaled::Rows { matrices, .. } = self.scaled else { return Ok(None) };
        if self.ty != GgmlType::F8_E4M3 {
            return Ok(None);
        }
        let mut one = [0.0];
        let mut all = Vec::with_capacity(matrices * self.rows);
        for row in 0..matrices * self.rows {
            self.tile_scales(parts[1], row, &mut one)?;
            all.push(f64::from(one[0]));
        }
        Ok(Some(all))
    }
}
