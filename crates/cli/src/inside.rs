//! The model inside the program: `models/fox`, the default where no model is named. Called by `model`, `config` and `library`.

use bytes::Bytes;
use octet_weights::{Error, Model, gguf};

/// What it is called. A file or folder of this name is written `./fox`.
pub const NAME: &str = "fox";

/// What is said where it is used because no model is named.
pub const NOTE: &str = "fox: the tiny model inside octet, made to try things with; `octet run qwen3.6:35b-a3b` fetches a real one";

/// Tensors are read in place, some as f32: as aligned as GGUF aligns them in a mapped file.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../../../models/fox/fox.gguf"));

/// True for the model's name, in any case.
pub fn is(name: &str) -> bool {
    name.trim().eq_ignore_ascii_case(NAME)
}

/// Size of the file in bytes.
pub fn size() -> u64 {
    FILE.0.len() as u64
}

/// Opens it; its bytes stay where they are in the program.
pub fn open() -> Result<Model, Error> {
    gguf::from_bytes(NAME, Bytes::from_static(&FILE.0))
}
