//! One file of the cache's folder: a page or a state with a header in front and a checksum behind. Used by `io`.
//!
//! `magic [8] | key [32] | bytes u64 LE | the bytes | BLAKE3 of all that [32]`. The length is known before a file is
//! opened, and nothing that a file says is believed: either it is exactly what was looked for, or it is nothing.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use super::super::key::Key;

/// Changes with the layout of a file.
const MAGIC: &[u8; 8] = b"octkv\0\0\x01";
const HEADER: usize = MAGIC.len() + 32 + 8;
const CHECKSUM: usize = 32;

/// Bytes of a file with `payload` bytes.
pub fn file_bytes(payload: usize) -> u64 {
    (HEADER + payload + CHECKSUM) as u64
}

fn header(key: &Key, payload: usize) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[..8].copy_from_slice(MAGIC);
    out[8..40].copy_from_slice(key);
    out[40..].copy_from_slice(&(payload as u64).to_le_bytes());
    out
}

/// How files end that are being written.
pub const TEMPORARY: &str = ".octet-cache-part";

/// Writes a file under a name of its own and then gives it its name, so that no half of it is ever found there. It is
/// not forced to the disk: what is lost with the power is found out by its checksum. Nobody else may read it (`tempfile`
/// sees to that): what was said can be read out of it.
pub fn write(path: &Path, key: &Key, parts: &[Arc<Vec<u8>>]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(path);
    // Its errors name the temporary file, which says nothing to anybody.
    let create = tempfile::Builder::new().suffix(TEMPORARY).tempfile_in(dir);
    let mut file = create.map_err(|e| io::Error::from(e.kind()))?;
    let mut hash = blake3::Hasher::new();
    let header = header(key, parts.iter().map(|p| p.len()).sum());
    for part in std::iter::once(&header[..]).chain(parts.iter().map(|p| p.as_slice())) {
        hash.update(part);
        file.as_file_mut().write_all(part)?;
    }
    file.as_file_mut().write_all(hash.finalize().as_bytes())?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}

/// Reads what was written as `key` in parts of these lengths; an error for anything else.
pub fn read(path: &Path, key: &Key, lengths: &[usize]) -> io::Result<Vec<Vec<u8>>> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut file = File::open(path)?;
    let payload = lengths.iter().sum();
    if file.metadata()?.len() != file_bytes(payload) {
        return Err(wrong("another length than it should have"));
    }
    let mut head = [0; HEADER];
    file.read_exact(&mut head)?;
    if head != header(key, payload) {
        return Err(wrong("something else than its name says"));
    }
    let mut hash = blake3::Hasher::new();
    hash.update(&head);
    let mut parts = Vec::with_capacity(lengths.len());
    for &length in lengths {
        let mut part = vec![0; length];
        file.read_exact(&mut part)?;
        hash.update(&part);
        parts.push(part);
    }
    let mut checksum = [0; CHECKSUM];
    file.read_exact(&mut checksum)?;
    if hash.finalize() != checksum {
        return Err(wrong("a wrong checksum"));
    }
    // For the order after the next start; a file system that cannot do it is no reason not to use the file.
    let _ = file.set_modified(SystemTime::now());
    Ok(parts)
}
