//! The type of each tensor in a quantised file: the rules of llama-quantize, as in published files. Norms, router, convolution and the like
//! are always F32.

use std::fmt;
use std::str::FromStr;

use octet_weights::GgmlType as T;

use crate::Error;

/// A quantisation, as in file names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// The mix named after one type. All matrices have that type, except that the output head is Q6_K if the type is smaller, and that
    /// the IQ4 mixes have a few tensors in Q5_K.
    Of(T),
    /// Q4_K_M: Q4_K, with Q6_K for the output head and half of the down and value projections, and Q5_K for the fused
    /// projection of Gated DeltaNet.
    Q4KM,
    /// MXFP4_MOE: experts in MXFP4, all other matrices in Q8_0, as gpt-oss is published.
    Mxfp4Moe,
}

/// A matrix and its position in the model.
pub(crate) struct Place<'a> {
    /// Name without block and `.weight`: `ffn_down_exps`.
    pub stem: &'a str,
    /// Its layer, and the number of layers.
    pub layer: usize,
    pub layers: usize,
    /// Value projections in the layers before.
    pub values_before: usize,
    /// Experts of a layer; 0 without.
    pub experts: usize,
    /// Values of a row.
    pub cols: usize,
}

impl Mix {
    /// Names of all mixes.
    pub fn names() -> Vec<String> {
        Self::all().map(|m| m.to_string()).collect()
    }

    fn all() -> impl Iterator<Item = Self> {
        T::ALL.iter().map(|&t| Self::Of(t)).chain([Self::Q4KM, Self::Mxfp4Moe])
    }

    /// `general.file_type` of such files, where one is defined.
    pub fn file_type(self) -> Option<u64> {
        Some(match self {
            Self::Q4KM => 15,
            Self::Mxfp4Moe => 38,
            Self::Of(t) => match t {
                T::F32 => 0,
                T::F16 => 1,
                T::Q4_0 => 2,
                T::Q4_1 => 3,
                T::Q8_0 => 7,
                T::Q5_0 => 8,
                T::Q5_1 => 9,
                T::Q2_K => 10,
                T::Q3_K => 11,
                T::Q4_K => 14,
                T::Q5_K => 16,
                T::Q6_K => 18,
                T::IQ4_NL => 25,
                T::IQ4_XS => 30,
                T::BF16 => 32,
                _ => return None,
            },
        })
    }

    /// The type of a matrix.
    pub(crate) fn matrix_type(self, p: &Place) -> T {
        fit(self.target_type(p), p.cols)
    }

    fn target_type(self, p: &Place) -> T {
        let is_down = p.stem.starts_with("ffn_down");
        match self {
            // No file has it smaller.
            _ if p.stem == "per_layer_model_proj" && self != Self::Of(T::F32) => T::BF16,
            _ if (p.stem.starts_with("altup_") || p.stem.starts_with("laurel_"))
                && self != Self::Of(T::F32) =>
            {
                T::F16
            }
            Self::Of(t @ (T::F32 | T::F16 | T::BF16 | T::Q8_0)) => t,
            Self::Mxfp4Moe if p.stem.ends_with("_exps") => T::MXFP4,
            Self::Mxfp4Moe => T::Q8_0,
            _ if p.stem == "output" => T::Q6_K,
            Self::Of(t @ (T::IQ4_NL | T::IQ4_XS)) => match p.stem {
                "attn_qkv" | "attn_v" => T::Q5_K,
                _ if is_down && p.layer < p.layers / 8 => T::Q5_K,
                _ => t,
            },
            Self::Of(t) => t,
            Self::Q4KM => match p.stem {
                "attn_qkv" | "per_layer_token_embd" => T::Q5_K,
                // models of eight experts have little else, so the mix spends more on what they have
                "attn_k" | "attn_v" if p.experts == 8 => T::Q8_0,
                "attn_output" if p.experts == 8 => T::Q5_K,
                "attn_v" if more_bits(p.values_before, p.layers) => T::Q6_K,
                _ if is_down && more_bits(p.layer, p.layers) => T::Q6_K,
                _ => T::Q4_K,
            },
        }
    }
}

/// The first and the last eighth, and each third in between.
fn more_bits(i: usize, n: usize) -> bool {
    i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2
}

/// The replacement type if rows are not whole blocks of `t`.
fn fit(t: T, cols: usize) -> T {
    if cols.is_multiple_of(t.block_len()) {
        return t;
    }
    let small = match t {
        T::Q4_K => T::Q5_0,
        T::Q5_K => T::Q5_1,
        T::Q6_K => T::Q8_0,
        _ => T::IQ4_NL,
    };
    if cols.is_multiple_of(small.block_len()) { small } else { T::F16 }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(t) => f.pad(&t.name().to_ascii_lowercase()),
            Self::Q4KM => f.pad("q4_k_m"),
            Self::Mxfp4Moe => f.pad("mxfp4_moe"),
        }
    }
}

impl FromStr for Mix {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        Self::all()
            .find(|m| m.to_string().eq_ignore_ascii_case(s))
            .ok_or_else(|| Error::UnknownMix { name: s.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for m in Mix::all() {
            assert_eq!(m.to_string().parse::<Mix>().unwrap(), m);
        }
        assert_eq!("Q4_K_M".parse::<Mix>().unwrap(), Mix::Q4KM);
        assert!("q9".parse::<Mix>().unwrap_err().to_string().contains("iq4_xs"));
    }

    #[test]
    fn half_of_the_layers_get_more_bits() {
        let some: Vec<usize> = (0..40).filter(|&i| more_bits(i, 40)).collect();
        assert_eq!(some, [0, 1, 2, 3, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 34, 35, 36, 37, 38, 39]);
    }

    #[test]
    fn odd_rows_fall_back() {
        assert_eq!([256, 96, 48].map(|cols| fit(T::Q4_K, cols)), [T::Q4_K, T::Q5_0, T::F16]);
        assert_eq!([256, 96].map(|cols| fit(T::IQ4_XS, cols)), [T::IQ4_XS, T::IQ4_NL]);
        assert_eq!(fit(T::F32, 7), T::F32);
    }
}
