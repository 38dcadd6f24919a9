//! Errors of making files.

use octet_weights::GgmlType;

/// Why a file cannot be made. Each says what, where and what to do.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    /// The model cannot be read.
    #[error(transparent)]
    Weights(#[from] octet_weights::Error),
    /// A tensor holds what no type can hold.
    #[error("{file}: tensor '{tensor}', row {row}: holds {value}; expected finite numbers")]
    NotFinite { file: String, tensor: String, row: usize, value: f32 },
    /// An importance matrix of another model.
    #[error(
        "{file}: tensor '{tensor}' has importance for {found} columns and {found_experts} matrices; the model has {columns} and {experts}: it is of another model"
    )]
    OtherModel {
        file: String,
        tensor: String,
        found: usize,
        found_experts: usize,
        columns: usize,
        experts: usize,
    },
    /// The file is no importance matrix, or a damaged one.
    #[error("{file}: {what}")]
    Importance { file: String, what: String },
    /// A wish that no tensor fulfils.
    #[error(
        "--tensor-type {pattern}: no tensor that is quantised has such a name; names look like blk.0.ffn_down_exps.weight"
    )]
    NoSuchTensor { pattern: String },
    /// A type that cannot be made.
    #[error("'{pattern}={name}': {why}; known types: {}", crate::TYPES.iter().map(|t| t.name().to_ascii_lowercase()).collect::<Vec<_>>().join(", "))]
    TensorType { pattern: String, name: String, why: &'static str },
    /// No mix is small enough.
    #[error(
        "the smallest mix of types has {least} bytes, more than {limit}; give a larger --fit, or an importance matrix for smaller types"
    )]
    Fit { limit: u64, least: u64 },
    /// Rows that a type cannot hold.
    #[error("--tensor-type {pattern}: '{tensor}' has rows of {columns} values; {ty} needs a multiple of {}", ty.block_len())]
    Rows { pattern: String, tensor: String, columns: usize, ty: GgmlType },
}
