//! GPTQ and AWQ, and AutoRound in their packings: `qweight`, `qzeros`, `scales` and maybe `g_idx`. A row of 32-bit words holds a
//! column's integers for all rows of the matrix; the two methods differ in what a word's neighbours are.
//!
//! | | `qweight` I32 | `qzeros` I32 | value |
//! |---|---|---|---|
//! | GPTQ | [in bits / 32, out], integers of one row in a word | [groups, out bits / 32] | `(q - z) scale`; in the first form `z` is stored less one |
//! | AWQ | [in, out / 8], eight rows in a word, in the order 0 2 4 6 1 3 5 7 | [groups, out / 8] | `(q - z) scale` |
//!
//! `scales` [groups, out] tells them apart. `g_idx` [in] is the group of each column (GPTQ with `desc_act`); without it groups follow one
//! another.

use super::group::{Floats, Group, Part};
use super::ints::{Groups, Ints, Quants, Scales, Zeros};
use super::{Bad, Opened, Settings};

pub(super) fn open(g: &Group, settings: &Settings) -> Option<Result<Opened, Bad>> {
    let qweight = g.part("qweight")?;
    Some(read(g, qweight, settings))
}

fn read(g: &Group, qweight: &Part, settings: &Settings) -> Result<Opened, Bad> {
    let (scales, qzeros) = (g.need("scales", qweight)?, g.need("qzeros", qweight)?);
    qweight.expect_type(&["I32", "U32"])?;
    qzeros.expect_type(&["I32", "U32"])?;
    scales.expect_type(&["F16", "BF16", "F32"])?;
    let [groups, rows] = scales.matrix()?;
    let [lines, words] = qweight.matrix()?;
    let is_awq = words * 8 == rows;
    let bits = match is_awq {
        true => 4,
        false => {
            qweight.expect(&[lines, rows], "one column a row of the matrix, as many as scales has")?;
            bits(qzeros, rows)?
        }
    };
    qzeros.expect(&[groups, (rows * bits).div_ceil(32)], "a zero point for each scale")?;
    let cols = if is_awq { lines } else { lines * 32 / bits };
    let (groups_of, index) = match g.part("g_idx") {
        Some(part) if part.len() > 0 => (index(part, cols, groups)?, true),
        _ => (sized(scales, cols, groups, settings)?, false),
    };
    let zeros = if is_awq { Zeros::Awq } else { Zeros::Columns { add: settings.stores_zero_less_one } };
    let zeros = if is_middle(qzeros, bits, &zeros, settings) { Zeros::Middle } else { zeros };
    let mut parts = vec!["qweight", "scales", "qzeros"];
    parts.extend(index.then_some("g_idx"));
    let ints = Ints {
        rows,
        cols,
        bits: bits as u32,
        quants: if is_awq { Quants::Awq } else { Quants::Columns },
        zeros,
        scales: Scales {
            floats: Floats::new(scales.dtype()),
            groups,
            by_group: true,
            single: false,
            divisor: 1.0,
        },
        groups: groups_of,
    };
    Ok(Opened { ty: ints.ty(), shape: vec![rows, cols], parts, reader: Box::new(ints) })
}

/// Bits of an integer, by the number of words that zero points of a row take.
fn bits(qzeros: &Part, rows: usize) -> Result<usize, Bad> {
    let words = qzeros.matrix()?[1];
    [4, 8, 2, 3].into_iter().find(|b| (rows * b).div_ceil(32) == words).ok_or_else(|| {
        qzeros
            .bad(format!("has rows of {words} words for {rows} zero points; expected 2, 3, 4 or 8 bits each"))
    })
}

/// Groups that follow one another.
pub(super) fn sized(scales: &Part, cols: usize, groups: usize, settings: &Settings) -> Result<Groups, Bad> {
    let size = settings.group_size(cols, groups);
    if cols.div_ceil(size) != groups {
        return Err(
            scales.bad(format!("has {groups} groups for rows of {cols} values, which no group size gives"))
        );
    }
    Ok(Groups::Size(size))
}

/// The group of each column.
pub(super) fn index(part: &Part, cols: usize, groups: usize) -> Result<Groups, Bad> {
    part.expect_type(&["I32"])?;
    part.expect(&[cols], "a group for each column")?;
    let of: Vec<u32> = part.words().collect();
    if let Some(odd) = of.iter().find(|g| **g as usize >= groups) {
        return Err(part.bad(format!("holds group {}; there are {groups}", *odd as i32)));
    }
    // Most files have the plain order.
    let size = of.iter().position(|g| *g != of[0]).unwrap_or(cols);
    let is_plain = of.iter().enumerate().all(|(c, g)| c / size == *g as usize);
    Ok(if is_plain { Groups::Size(size) } else { Groups::Index(of) })
}

/// Whether all zero points are the middle of the range.
fn is_middle(qzeros: &Part, bits: usize, zeros: &Zeros, settings: &Settings) -> bool {
    if !32usize.is_multiple_of(bits) {
        return false;
    }
    let all_ones = u32::MAX / ((1 << bits) - 1);
    let middle = all_ones << (bits - 1);
    let all = |word: u32| qzeros.words().all(|w| w == word);
    match zeros {
        // Some writers of symmetric files leave the subtraction out.
        Zeros::Columns { add: true } => {
            all(middle.wrapping_sub(all_ones)) || settings.symmetric == Some(true) && all(middle)
        }
        _ => all(middle),
    }
}
