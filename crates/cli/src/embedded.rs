//! The built-in model `models/fox`, the default model.

use bytes::Bytes;
use octet_weights::{Error, Model, gguf};

/// Its name. A file or folder of this name is written `./fox`.
pub const NAME: &str = "fox";

/// The note printed when it is used by default.
pub const NOTE: &str = "fox: the tiny model built into octet, for trying things out; `octet run qwen3.6:35b-a3b` downloads a real one";

/// Tensors are read in place, some as f32, so the alignment is GGUF's.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../../../models/fox/fox.gguf"));

/// Whether this is the model's name, ignoring case.
pub fn is(name: &str) -> bool {
    name.trim().eq_ignore_ascii_case(NAME)
}

/// Size of the file in bytes.
pub fn size() -> u64 {
    FILE.0.len() as u64
}

/// Opens it in place.
pub fn open() -> Result<Model, Error> {
    gguf::from_bytes(NAME, Bytes::from_static(&FILE.0))
}
