//! What decides what a model computes, as a key: states may only be used again where all of it is the same. Made when a
//! model is opened with a folder for its cache.

use octet_compute::backend::KvTypes;
use octet_weights::{Metadata, Model, Value};

use super::key::Key;
use crate::Error;

/// Changes with every change to what kernels compute, bit by bit, or to how pages and states lie in memory: then what
/// earlier builds have stored is not found any more.
const VERSION: u32 = 1;

/// Of each tensor so many bytes count, at its beginning, its middle and its end: reading all of a large model would take
/// longer than loading it, and models whose weights differ at all differ there.
const SAMPLE: usize = 4096;

/// `numerics` names kernels and precision.
pub fn fingerprint(model: &Model, numerics: &str, kv: KvTypes) -> Result<Key, Error> {
    let mut h = blake3::Hasher::new();
    h.update(b"octet model").update(&VERSION.to_le_bytes());
    text(&mut h, numerics);
    text(&mut h, &kv.to_string());
    metadata(&mut h, &model.metadata);
    for t in model.tensors() {
        text(&mut h, &t.name);
        text(&mut h, &format!("{:?} {:?}", t.ty, t.shape));
        let Some(tensor) = model.optional(&t.name)? else { continue };
        let data = &tensor.data[..];
        let middle = data.len() / 2;
        if data.len() <= 3 * SAMPLE {
            h.update(data);
        } else {
            h.update(&data[..SAMPLE]);
            h.update(&data[middle..middle + SAMPLE]);
            h.update(&data[data.len() - SAMPLE..]);
        }
    }
    Ok(h.finalize().into())
}

/// With its length in front, so that no two sequences of texts are the same bytes.
fn text(h: &mut blake3::Hasher, text: &str) {
    h.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
}

/// All keys but those that only name the file or describe it for people.
fn metadata(h: &mut blake3::Hasher, metadata: &Metadata) {
    let counts = |key: &str| !key.starts_with("general.") || key == "general.architecture";
    for (key, value) in metadata.iter().filter(|(k, _)| counts(k)) {
        text(h, key);
        match value {
            // The long ones, without a copy.
            Value::Strs(all) => {
                h.update(&(all.len() as u64).to_le_bytes());
                all.iter().for_each(|s| text(h, s));
            }
            other => text(h, &format!("{other:?}")),
        }
    }
}
