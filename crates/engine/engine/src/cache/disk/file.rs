//! The format of a cache file: a page or a state with a header before it and a checksum after it.
//!
//! `magic [8] | key [32] | bytes u64 LE | the bytes | BLAKE3 of all that [32]`. The length is known before a file is opened, and
//! nothing in a file is trusted: it is exactly the expected one, or it is rejected.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use super::super::key::Key;

/// Changes with the format of a file.
const MAGIC: &[u8; 8] = b"octkv\0\0\x01";
const HEADER: usize = MAGIC.len() + 32 + 8;
const CHECKSUM: usize = 32;

/// Size of a file with `payload` bytes.
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

/// Suffix of temporary files.
pub const TEMPORARY: &str = ".octet-cache-part";

/// Writes a temporary file and renames it, so that no partial file is ever found. It is not synced to the disk: the checksum detects
/// data lost in a power failure. Only the user can read it (`tempfile` ensures that), as it reveals conversations.
pub fn write(path: &Path, key: &Key, parts: &[Arc<Vec<u8>>]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(path);
    // Its errors name the temporary file, which means nothing to the user.
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

/// Reads the file stored under `key`, in parts of these lengths; an error for anything else.
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
        return Err(wrong("content that does not match its name"));
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
    // Keeps the order of use for the next start. If the file system cannot, the file is still valid.
    let _ = file.set_modified(SystemTime::now());
    Ok(parts)
}
