//! MLX: `weight` U32 with dense strings of bits, `scales`, and for affine integers `biases`; a stack of experts has one more dimension.
//!
//! | mode | `scales` | bits times group size | value |
//! |---|---|---|---|
//! | affine | BF16, F16 or F32 | (said in config.json) | `q scale + bias` |
//! | mxfp4 | U8, E8M0 | 4 x 32 | as MXFP4 |
//! | nvfp4 | U8, E4M3 | 4 x 16 | as NVFP4, without a factor |
//! | mxfp8 | U8, E8M0 | 8 x 32 | as MXFP8 |

use super::group::{Floats, Group, Part};
use super::ints::{Ints, Quants, Scales, Zeros};
use super::qweight::sized;
use super::{Bad, Opened, Settings, fp4, fp8};

pub(super) fn open(g: &Group, settings: &Settings) -> Option<Result<Opened, Bad>> {
    let (weight, scales) = (g.part("weight")?, g.part("scales")?);
    Some(read(g, weight, scales, settings))
}

fn read(g: &Group, weight: &Part, scales: &Part, settings: &Settings) -> Result<Opened, Bad> {
    weight.expect_type(&["U32", "I32"])?;
    let (Some((&words, outer)), Some((&groups, outer_scales))) =
        (weight.shape.split_last(), scales.shape.split_last())
    else {
        return Err(weight.bad("has no dimensions; expected a matrix"));
    };
    let rows: usize = outer.iter().product();
    if outer.is_empty() || outer != outer_scales || rows * words * groups == 0 {
        let what = format!(
            "has shape {:?} beside a weight of {:?}; expected as many rows",
            scales.shape, weight.shape
        );
        return Err(scales.bad(what));
    }
    // Bits of a group: a row has 32 a word.
    let group_bits = 32 * words / groups;
    if !(32 * words).is_multiple_of(groups) {
        return Err(scales.bad(format!("has {groups} groups for rows of {words} words, which do not divide")));
    }
    let shape = |cols: usize| [outer, &[cols]].concat();
    if scales.is(&["U8"]) {
        return match group_bits {
            128 => Ok(fp4::opened(shape(32 * groups), fp4::Form::Mx, vec!["weight", "scales"])),
            64 => Ok(fp4::opened(shape(16 * groups), fp4::Form::Nv, vec!["weight", "scales"])),
            256 => Ok(fp8::opened_mx(shape(32 * groups), vec!["weight", "scales"])),
            _ => Err(scales.bad(format!(
                "is one byte for {group_bits} bits; expected 128 (mxfp4), 64 (nvfp4) or 256 (mxfp8)"
            ))),
        };
    }
    let biases = g.need("biases", weight)?;
    scales.expect_type(&["F16", "BF16", "F32"])?;
    biases.expect_type(&[scales.dtype()])?;
    biases.expect(&scales.shape, "one for each scale")?;
    let bits = bits(g, scales, group_bits, settings)?;
    let cols = 32 * words / bits;
    let floats = Floats::new(scales.dtype());
    let ints = Ints {
        rows,
        cols,
        bits: bits as u32,
        quants: Quants::Rows { row_bytes: 4 * words },
        zeros: Zeros::Minimum(floats),
        scales: Scales { floats, groups, by_group: false, single: false, divisor: 1.0 },
        groups: sized(
            scales,
            cols,
            groups,
            &Settings { group_sizes: vec![group_bits / bits], ..Settings::default() },
        )?,
    };
    let parts = vec!["weight", "scales", "biases"];
    Ok(Opened { ty: ints.ty(), shape: shape(cols), parts, reader: Box::new(ints) })
}

/// Bits of an integer: what config.json says of the module, of all modules, or what fits a usual size of groups.
fn bits(g: &Group, scales: &Part, group_bits: usize, settings: &Settings) -> Result<usize, Bad> {
    let stated = [settings.bits.get(&g.stem), settings.bits.get("")].into_iter().flatten().copied();
    let by_size = settings.group_sizes.iter().chain(&[64, 32, 128]).map(|size| group_bits / size);
    let fits = |bits: &usize| {
        let size = group_bits / (*bits).max(1);
        matches!(bits, 2..=6 | 8) && group_bits.is_multiple_of(*bits) && [16, 32, 64, 128].contains(&size)
    };
    stated.chain(by_size).find(fits).ok_or_else(|| {
        scales.bad(format!(
            "is one scale for {group_bits} bits; expected groups of 16, 32, 64 or 128 integers of 2 to 8 bits"
        ))
    })
}
