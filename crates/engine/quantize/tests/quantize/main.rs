//! Tests of the encoders, the table of types and the files.

mod errors;
mod mixes;
mod weights;
