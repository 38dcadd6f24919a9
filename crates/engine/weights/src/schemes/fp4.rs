//! 4-bit floats (e2m1), two a byte, the first in the low half: NVFP4 and MXFP4 in everybody's spelling.
//!
//! | | values | scales | value |
//! |---|---|---|---|
//! | ModelOpt NVFP4 | `weight` U8 | `weight_scale` F8_E4M3 of 16, `weight_scale_2` F32 | `q (scale scale_2)` |
//! | compressed-tensors NVFP4 | `weight_packed` U8 | `weight_scale` F8_E4M3 of 16, `weight_global_scale` F32 | `q (scale / global)` |
//! | MXFP4 of both | the same | `weight_scale` U8, E8M0 of 32 | `q 2^(scale - 127)` |
//! | DeepSeek | `weight` I8 | `weight_scale_inv` or `scale`, E8M0 of 32 | the same |
//! | gpt-oss | `NAME_blocks` U8 [.., out, in / 32, 16] | `NAME_scales` U8 [.., out, in / 32] | the same |
//!
//! In GGML's types the first half of a block's values is in the low halves of its bytes.

use std::ops::Range;

use super::group::{Floats, Group, Part};
use super::quantised::Read;
use super::{Bad, Opened, Settings};
use crate::GgmlType;
use crate::quant::{fp8, mxfp4, nvfp4};

/// The scales' type and group size.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Form {
    /// E4M3, of 16 values.
    Nv,
    /// E8M0, of 32 values.
    Mx,
}

impl Form {
    const fn group(self) -> usize {
        match self {
            Self::Nv => nvfp4::GROUP,
            Self::Mx => mxfp4::LEN,
        }
    }
}

/// What the whole matrix is multiplied with.
#[derive(Clone, Copy, PartialEq)]
enum Factor {
    None,
    Multiplies,
    Divides,
}

struct Fp4 {
    rows: usize,
    cols: usize,
    form: Form,
    factor: Factor,
    ty: GgmlType,
}

pub(super) fn open(g: &Group, _: &Settings) -> Option<Result<Opened, Bad>> {
    let bytes = &["U8", "I8"];
    let packed = g.part("weight_packed").filter(|p| p.is(bytes)).map(|p| (p, "weight_packed"));
    let (weight, label) = packed.or_else(|| Some((g.part("weight").filter(|p| p.is(bytes))?, "weight")))?;
    let (scale, scale_label) = match (g.part("weight_scale"), g.part("weight_scale_inv")) {
        (Some(scale), _) => (scale, "weight_scale"),
        (None, Some(scale)) => (scale, "weight_scale_inv"),
        (None, None) => return None,
    };
    // Signed bytes are integers, but for DeepSeek.
    if weight.is(&["I8"]) && !scale.is(&["F8_E8M0", "U8"]) {
        return None;
    }
    Some(read(g, (weight, label), (scale, scale_label)))
}

fn read(
    g: &Group,
    (weight, label): (&Part, &'static str),
    (scale, scale_label): (&Part, &'static str),
) -> Result<Opened, Bad> {
    scale.expect_type(&["F8_E4M3", "F8_E8M0", "U8"])?;
    let form = if scale.is(&["F8_E4M3"]) { Form::Nv } else { Form::Mx };
    let Some((half, outer)) = weight.shape.split_last().filter(|(_, outer)| !outer.is_empty()) else {
        return Err(weight.bad(format!("has shape {:?}; expected a matrix", weight.shape)));
    };
    if weight.shape.contains(&0) || !(2 * half).is_multiple_of(form.group()) {
        let what = format!("has rows of {} values; expected groups of {}", 2 * half, form.group());
        return Err(weight.bad(what));
    }
    let shape = [outer, &[2 * half]].concat();
    scale.expect(&[outer, &[2 * half / form.group()]].concat(), "a scale for each group of values")?;
    let mut parts = vec![label, scale_label];
    let factors = [("weight_scale_2", Factor::Multiplies), ("weight_global_scale", Factor::Divides)];
    let mut opened = opened(shape, form, parts.clone());
    for (label, factor) in factors {
        let Some(part) = g.part(label) else { continue };
        part.expect_type(&["F32"])?;
        let matrices = if outer.len() == 2 { outer[0] } else { 1 };
        if part.len() != 1 && part.len() != matrices {
            return Err(part.bad(format!("has shape {:?}; expected one number for each matrix", part.shape)));
        }
        part.floats()?;
        parts.push(label);
        opened = with_factor(opened.shape, form, factor, parts.clone());
    }
    if form == Form::Nv && parts.len() == 2 {
        g.need(if label == "weight" { "weight_scale_2" } else { "weight_global_scale" }, weight)?;
    }
    Ok(opened)
}

/// Values whose parts were checked: two a byte, and scales.
pub(super) fn opened(shape: Vec<usize>, form: Form, parts: Vec<&'static str>) -> Opened {
    with_factor(shape, form, Factor::None, parts)
}

fn with_factor(shape: Vec<usize>, form: Form, factor: Factor, parts: Vec<&'static str>) -> Opened {
    let cols = shape.last().copied().unwrap_or(0);
    let rows = shape.iter().product::<usize>() / cols.max(1);
    let ty = match form {
        Form::Mx => GgmlType::MXFP4,
        Form::Nv if cols.is_multiple_of(nvfp4::LEN) => GgmlType::NVFP4,
        Form::Nv => GgmlType::F32,
    };
    Opened { ty, shape, parts, reader: Box::new(Fp4 { rows, cols, form, factor, ty }) }
}

/// gpt-oss: `NAME_blocks` and `NAME_scales`.
pub(super) fn open_fused(g: &Group, _: &Settings) -> Option<Result<Opened, Bad>> {
    let blocks = g.part("_blocks")?;
    let read = || {
        let scales = g.need("_scales", blocks)?;
        blocks.expect_type(&["U8"])?;
        scales.expect_type(&["U8", "F8_E8M0"])?;
        match blocks.shape[..] {
            [.., groups, 16] if groups > 0 && !blocks.shape.contains(&0) && blocks.shape.len() >= 3 => {
                let outer = &blocks.shape[..blocks.shape.len() - 2];
                scales.expect(&[outer, &[groups]].concat(), "a scale for each block")?;
                Ok(opened([outer, &[32 * groups]].concat(), Form::Mx, vec!["_blocks", "_scales"]))
            }
            _ => Err(blocks.bad(format!("has shape {:?}; expected [.., rows, blocks, 16]", blocks.shape))),
        }
    };
    Some(read())
}

impl Fp4 {
    fn factors(&self, part: &[u8]) -> Vec<f64> {
        let mut values = vec![0.0; part.len() / 4];
        Floats::F32.read(part, 0, &mut values);
        let factor = |v: f32| if self.factor == Factor::Divides { 1.0 / f64::from(v) } else { f64::from(v) };
        values.into_iter().map(factor).collect()
    }
}

impl Read for Fp4 {
    fn rows(&self, parts: &[&[u8]], rows: Range<usize>, out: &mut [u8]) -> Result<(), (usize, String)> {
        let (group, row_bytes) = (self.form.group(), out.len() / rows.len().max(1));
        let (packed, scales) = (self.cols / 2, self.cols / group);
        let weight = parts[0][rows.start * packed..rows.end * packed].chunks_exact(packed);
        let scale = parts[1][rows.start * scales..rows.end * scales].chunks_exact(scales);
        let factors = if self.factor == Factor::None { vec![1.0] } else { self.factors(parts[2]) };
        let rows_each = self.rows / factors.len();
        for (((row, weight), scale), out) in rows.zip(weight).zip(scale).zip(out.chunks_exact_mut(row_bytes))
        {
            check(self.form, scale)?;
            match self.ty {
                GgmlType::MXFP4 => {
                    for ((q, s), out) in
                        weight.chunks_exact(16).zip(scale).zip(out.chunks_exact_mut(mxfp4::BYTES))
                    {
                        out[mxfp4::E] = *s;
                        halves(q, &mut out[mxfp4::QS]);
                    }
                }
                GgmlType::NVFP4 => {
                    for ((q, s), out) in weight
                        .chunks_exact(32)
                        .zip(scale.chunks_exact(4))
                        .zip(out.chunks_exact_mut(nvfp4::BYTES))
                    {
                        out[nvfp4::SCALES].copy_from_slice(s);
                        for (q, out) in q.chunks_exact(8).zip(out[nvfp4::QS].chunks_exact_mut(8)) {
                            halves(q, out);
                        }
                    }
                }
                _ => {
                    let factor = factors[row / rows_each];
                    for (c, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
                        let q = weight[c / 2] >> (4 * (c % 2)) & 15;
                        let scale = (f64::from(fp8::E4M3[usize::from(scale[c / group])]) * factor) as f32;
                        *out = (0.5 * f32::from(mxfp4::LEVELS[usize::from(q)]) * scale).to_le_bytes();
                    }
                }
            }
        }
        Ok(())
    }

    fn scales(&self, parts: &[&[u8]]) -> Result<Option<Vec<f64>>, (usize, String)> {
        if self.factor == Factor::None {
            return Ok(None);
        }
        let factors = self.factors(parts[2]);
        if let Some(odd) = factors.iter().find(|f| !f.is_finite()) {
            return Err((2, format!("makes a factor of {odd}; expected a finite number, not 0")));
        }
        if self.ty != GgmlType::NVFP4 && self.ty != GgmlType::MXFP4 {
            return Ok(None);
        }
        let rows = self.rows / factors.len();
        Ok(Some(factors.iter().flat_map(|f| std::iter::repeat_n(*f, rows)).collect()))
    }
}

/// Fails for a scale that is no finite number, or negative.
fn check(form: Form, scales: &[u8]) -> Result<(), (usize, String)> {
    let odd = match form {
        Form::Nv => scales.iter().find(|s| **s >= 0x7f),
        Form::Mx => scales.iter().find(|s| **s == 0xff),
    };
    match odd {
        None => Ok(()),
        Some(s) => {
            Err((1, format!("holds a scale of the bits {s:#04x}; expected finite numbers, none below 0")))
        }
    }
}

/// Values in order, two a byte, as blocks have them: the first half of them in the low halves.
fn halves(q: &[u8], out: &mut [u8]) {
    let n = out.len();
    let nibble = |i: usize| q[i / 2] >> (4 * (i % 2)) & 15;
    for (i, out) in out.iter_mut().enumerate() {
        *out = nibble(i) | nibble(n + i) << 4;
    }
}
