//! A hash of everything that affects what a model computes: stored states are only reused if it is the same. Computed when a model
//! with a cache folder is opened.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::SystemTime;

use octet_compute::backend::KvTypes;
use octet_weights::{Mapped, Metadata, Model, Stamp, Value};

use super::key::Key;
use super::known::Known;
use crate::Error;

/// Must change with every change of the kernels' results, in any bit, and of the memory layout of pages or states, so that files of
/// earlier builds are not found.
const VERSION: u32 = 2;

/// Files are hashed in pieces of this many bytes by several threads; a file's hash is that of its pieces' hashes.
const PIECE: usize = 16 << 20;
/// Maximum number of hashing threads: more are not faster.
const THREADS_MAX: usize = 8;

/// Hashes of all bytes of a model's weights: of each file, or of each tensor if there are no files. Hashes of unchanged files are read
/// from the cache's folder.
pub struct Contents<'a> {
    model: &'a Model,
    dir: &'a Path,
    known: Known,
}

impl<'a> Contents<'a> {
    /// Reads the known hashes from the cache's folder `dir`.
    pub fn new(model: &'a Model, dir: &'a Path) -> Self {
        Self { model, dir, known: Known::read(dir) }
    }

    fn known(&self, file: &Mapped) -> Option<Key> {
        self.known.get(file.stamp.as_ref()?)
    }

    /// Bytes that must be read.
    pub fn bytes(&self) -> u64 {
        let unknown = self.model.files().iter().filter(|f| self.known(f).is_none());
        unknown.map(|f| f.bytes.len() as u64).sum()
    }

    /// Computes the unknown hashes; `progress` gets the bytes read. The model is already loaded: a file that has changed since it was
    /// opened may have been loaded partly before and partly after the change, and gets a unique hash.
    fn hash(mut self, h: &mut blake3::Hasher, progress: &mut dyn FnMut(u64)) -> Result<(), Error> {
        let files = self.model.files();
        let mut done = 0;
        let mut learnt = false;
        for file in files {
            let known = self.known(file);
            let hash = known.unwrap_or_else(|| {
                hash_file(file, &mut |bytes| {
                    done += bytes;
                    progress(done);
                })
            });
            h.update(&hash);
            let Some(stamp) = &file.stamp else { continue };
            if Stamp::of(&stamp.path).ok().as_ref() != Some(stamp) {
                tracing::warn!(
                    "{}: changed while it was loaded; nothing of the cache on disk is used. Load the model again",
                    file.name
                );
                h.update(&nanoseconds().to_le_bytes());
            } else if known.is_none() && is_settled(stamp) {
                self.known.insert(stamp, hash);
                learnt = true;
            }
        }
        if learnt && let Err(e) = self.known.write(self.dir) {
            // If the folder is unusable, opening the cache reports it.
            tracing::warn!("{}: {e}; the model is hashed again at the next start", self.dir.display());
        }
        if files.is_empty() {
            for t in self.model.tensors() {
                if let Some(tensor) = self.model.optional(&t.name)? {
                    h.update(blake3::hash(&tensor.data).as_bytes());
                }
            }
        }
        Ok(())
    }
}

fn nanoseconds() -> i128 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as i128
}

/// Some file systems have timestamps of two seconds' resolution: a file changed just now could change again without a new time.
fn is_settled(stamp: &Stamp) -> bool {
    const TICK_NS: i128 = 2_000_000_000;
    i128::from(stamp.modified_ns.max(stamp.changed_ns)) + TICK_NS < nanoseconds()
}

/// BLAKE3 of the pieces' BLAKE3. `read` gets the bytes of each piece.
fn hash_file(file: &Mapped, read: &mut dyn FnMut(u64)) -> Key {
    let pieces = file.bytes.len().div_ceil(PIECE);
    let mut hashes = vec![Key::default(); pieces];
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX).min(pieces);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (send, hashed) = channel();
        for _ in 0..threads {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                loop {
                    let piece = next.fetch_add(1, Ordering::Relaxed);
                    if piece >= pieces {
                        return;
                    }
                    let range = piece * PIECE..((piece + 1) * PIECE).min(file.bytes.len());
                    file.will_read(&range);
                    let hash = blake3::hash(&file.bytes[range.clone()]);
                    file.release(&range);
                    if send.send((piece, range.len(), hash)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        for (piece, bytes, hash) in hashed {
            hashes[piece] = hash.into();
            read(bytes as u64);
        }
    });
    blake3::hash(hashes.as_flattened()).into()
}

/// `numerics` identifies kernels and precision. `progress` gets bytes of [`Contents::bytes`].
pub fn fingerprint(
    contents: Contents<'_>,
    numerics: &str,
    kv: KvTypes,
    progress: &mut dyn FnMut(u64),
) -> Result<Key, Error> {
    let model = contents.model;
    let mut h = blake3::Hasher::new();
    h.update(b"octet model").update(&VERSION.to_le_bytes());
    text(&mut h, numerics);
    text(&mut h, &kv.to_string());
    metadata(&mut h, &model.metadata);
    for t in model.tensors() {
        text(&mut h, &t.name);
        text(&mut h, &format!("{:?} {:?}", t.ty, t.shape));
    }
    contents.hash(&mut h, progress)?;
    Ok(h.finalize().into())
}

/// Hashes a length-prefixed text, so that different sequences of texts never hash the same bytes.
fn text(h: &mut blake3::Hasher, text: &str) {
    h.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
}

/// Hashes all keys except those that only name or describe the file.
fn metadata(h: &mut blake3::Hasher, metadata: &Metadata) {
    let counts = |key: &str| !key.starts_with("general.") || key == "general.architecture";
    for (key, value) in metadata.iter().filter(|(k, _)| counts(k)) {
        text(h, key);
        match value {
            // Long lists, without a copy.
            Value::Strs(all) => {
                h.update(&(all.len() as u64).to_le_bytes());
                all.iter().for_each(|s| text(h, s));
            }
            other => text(h, &format!("{other:?}")),
        }
    }
}
