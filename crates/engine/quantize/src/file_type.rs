//! The file types: their names, the type that most tensors have, and the numbers in `general.file_type`.

use std::fmt;
use std::str::FromStr;

use octet_weights::GgmlType as T;

/// A file type, as in file names: `q4_k_m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum FileType {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q6K,
    Q5KM,
    Q5KS,
    Q4KM,
    Q4KS,
    Q3KL,
    Q3KM,
    Q3KS,
    Q2K,
    Q2KS,
    Iq4Nl,
    Iq4Xs,
    Iq3M,
    Iq3S,
    Iq3Xs,
    Iq3Xxs,
    Iq2M,
    Iq2S,
    Iq2Xs,
    Iq2Xxs,
    Iq1M,
    Iq1S,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Mxfp4Moe,
    Tq1_0,
    Tq2_0,
    Q1_0,
    Q2_0,
}

/// Type, name, base type, number in files.
const ALL: &[(FileType, &str, T, u64)] = &[
    (FileType::F32, "f32", T::F32, 0),
    (FileType::F16, "f16", T::F16, 1),
    (FileType::Bf16, "bf16", T::BF16, 32),
    (FileType::Q8_0, "q8_0", T::Q8_0, 7),
    (FileType::Q6K, "q6_k", T::Q6_K, 18),
    (FileType::Q5KM, "q5_k_m", T::Q5_K, 17),
    (FileType::Q5KS, "q5_k_s", T::Q5_K, 16),
    (FileType::Q4KM, "q4_k_m", T::Q4_K, 15),
    (FileType::Q4KS, "q4_k_s", T::Q4_K, 14),
    (FileType::Q3KL, "q3_k_l", T::Q3_K, 13),
    (FileType::Q3KM, "q3_k_m", T::Q3_K, 12),
    (FileType::Q3KS, "q3_k_s", T::Q3_K, 11),
    (FileType::Q2K, "q2_k", T::Q2_K, 10),
    (FileType::Q2KS, "q2_k_s", T::Q2_K, 21),
    (FileType::Iq4Nl, "iq4_nl", T::IQ4_NL, 25),
    (FileType::Iq4Xs, "iq4_xs", T::IQ4_XS, 30),
    (FileType::Iq3M, "iq3_m", T::IQ3_S, 27),
    (FileType::Iq3S, "iq3_s", T::IQ3_S, 26),
    (FileType::Iq3Xs, "iq3_xs", T::IQ3_S, 22),
    (FileType::Iq3Xxs, "iq3_xxs", T::IQ3_XXS, 23),
    (FileType::Iq2M, "iq2_m", T::IQ2_S, 29),
    (FileType::Iq2S, "iq2_s", T::IQ2_XS, 28),
    (FileType::Iq2Xs, "iq2_xs", T::IQ2_XS, 20),
    (FileType::Iq2Xxs, "iq2_xxs", T::IQ2_XXS, 19),
    (FileType::Iq1M, "iq1_m", T::IQ1_M, 31),
    (FileType::Iq1S, "iq1_s", T::IQ1_S, 24),
    (FileType::Q4_0, "q4_0", T::Q4_0, 2),
    (FileType::Q4_1, "q4_1", T::Q4_1, 3),
    (FileType::Q5_0, "q5_0", T::Q5_0, 8),
    (FileType::Q5_1, "q5_1", T::Q5_1, 9),
    (FileType::Mxfp4Moe, "mxfp4_moe", T::Q8_0, 38),
    (FileType::Tq1_0, "tq1_0", T::TQ1_0, 36),
    (FileType::Tq2_0, "tq2_0", T::TQ2_0, 37),
    (FileType::Q1_0, "q1_0", T::Q1_0, 40),
    (FileType::Q2_0, "q2_0", T::Q2_0, 41),
];

impl FileType {
    /// All, in the order of help texts.
    pub fn all() -> impl Iterator<Item = Self> {
        ALL.iter().map(|row| row.0)
    }

    fn row(self) -> &'static (Self, &'static str, T, u64) {
        ALL.iter().find(|row| row.0 == self).unwrap_or_else(|| unreachable!("every file type has a row"))
    }

    /// The name: `q4_k_m`.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The type that most tensors get.
    pub fn base(self) -> T {
        self.row().2
    }

    /// The value of `general.file_type`.
    pub fn id(self) -> u64 {
        self.row().3
    }

    /// Whether weights become much worse without an importance matrix.
    pub fn needs_importance(self) -> bool {
        self == Self::Q2KS || self == Self::Iq3Xxs || self.is_tiny()
    }

    /// The types of about 2 bits and less have rules of their own.
    pub(crate) fn is_tiny(self) -> bool {
        use FileType as F;
        matches!(self, F::Iq2Xxs | F::Iq2Xs | F::Iq2S | F::Iq2M | F::Iq1S | F::Iq1M)
    }
}

impl fmt::Display for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No file type has this name.
#[derive(Debug, thiserror::Error)]
#[error("'{name}' is not a known type; known: {}", ALL.iter().map(|row| row.1).collect::<Vec<_>>().join(", "))]
pub struct UnknownFileType {
    /// The name.
    pub name: String,
}

impl FromStr for FileType {
    type Err = UnknownFileType;

    fn from_str(s: &str) -> Result<Self, UnknownFileType> {
        let found = ALL.iter().find(|row| row.1.eq_ignore_ascii_case(s));
        found.map(|row| row.0).ok_or_else(|| UnknownFileType { name: s.into() })
    }
}
